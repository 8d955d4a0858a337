//! The heap of a program that says so when it has no memory left.

use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator for `#[global_allocator]`. When there is nothing left it calls a function
/// of the program's own, before it fails as ever. Without one a program can only abort, whatever it
/// says of its exit status.
///
/// The function is given the bytes that were asked for, may run on any thread, and ends the
/// process. It must not allocate, for then it is called again, nor unwind: a panic of it aborts the
/// process, since an allocator that unwinds is undefined behaviour. A program for which going on
/// without an allocation matters (`try_reserve`) uses another allocator: this one does not know
/// that it would.
#[derive(Debug)]
pub struct Heap {
    exhausted: fn(usize),
}

impl Heap {
    /// A heap that calls `exhausted` when the system has no memory.
    pub const fn new(exhausted: fn(usize)) -> Heap {
        Heap { exhausted }
    }

    #[inline]
    fn checked(&self, given: *mut u8, bytes: usize) -> *mut u8 {
        if given.is_null() {
            self.out_of_memory(bytes);
        }
        given
    }

    #[cold]
    fn out_of_memory(&self, bytes: usize) {
        let unwinding = Aborts;
        (self.exhausted)(bytes);
        std::mem::forget(unwinding);
    }
}

/// Ends the process where it is dropped: when a panic comes by.
struct Aborts;

impl Drop for Aborts {
    fn drop(&mut self) {
        std::process::abort();
    }
}

// SAFETY: [heap] every call is `System`'s own, and so is every answer.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: [heap] the caller's promises are those that `System` asks for.
        self.checked(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: [heap] the caller's promises are those that `System` asks for.
        self.checked(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, given: *mut u8, layout: Layout) {
        // SAFETY: [heap] the caller's promises are those that `System` asks for.
        unsafe { System.dealloc(given, layout) };
    }

    unsafe fn realloc(&self, given: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: [heap] the caller's promises are those that `System` asks for.
        self.checked(unsafe { System.realloc(given, layout, bytes) }, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn what_the_system_refuses_is_told_and_the_rest_is_the_systems() {
        static TOLD: AtomicUsize = AtomicUsize::new(0);
        let heap = Heap::new(|bytes| TOLD.store(bytes, Ordering::Relaxed));
        let (small, absurd) = (Layout::new::<u64>(), isize::MAX as usize / 2);
        let huge = Layout::from_size_align(absurd, 8).unwrap();
        // SAFETY: [heap] layouts are not empty, and what is given back was given with the layout named.
        unsafe {
            let given = heap.alloc_zeroed(small);
            assert_eq!(given.cast::<u64>().read(), 0);
            assert!(heap.alloc(huge).is_null());
            assert_eq!(TOLD.swap(0, Ordering::Relaxed), absurd);
            assert!(heap.realloc(given, small, absurd).is_null());
            assert_eq!(TOLD.swap(0, Ordering::Relaxed), absurd);
            heap.dealloc(given, small);
        }
        assert_eq!(TOLD.load(Ordering::Relaxed), 0);
    }

    /// The program's function is any safe function.
    #[test]
    fn a_function_that_panics_does_not_unwind_through_the_allocator() {
        use std::os::unix::process::ExitStatusExt;
        const CHILD: &str = "OVERSIDE_HEAP_THAT_PANICS";
        if std::env::var_os(CHILD).is_some() {
            let heap = Heap::new(|_| panic!("planted"));
            let absurd = Layout::from_size_align(isize::MAX as usize / 2, 8).unwrap();
            // SAFETY: [heap] the layout is not empty.
            let given = std::panic::catch_unwind(|| unsafe { heap.alloc(absurd) }.is_null());
            unreachable!("unwound: {given:?}");
        }
        let name = "heap::tests::a_function_that_panics_does_not_unwind_through_the_allocator";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let ended = child.args(["--exact", name]).env(CHILD, "1").output().unwrap();
        assert_eq!(ended.status.signal(), Some(6), "aborted: {ended:?}");
    }
}
