//! A heap that knows how much of it a piece of work takes at most: for tests that hold what bytes
//! from outside can make a parser allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator for `#[global_allocator]`, which counts for each thread what it has
/// allocated and not given back.
#[derive(Debug)]
pub struct MeteredHeap;

thread_local! {
    /// Bytes now, and the most there were. What another thread gives back is not seen.
    static BYTES: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

impl MeteredHeap {
    /// Runs `work`. Returns what it returns, and the most bytes that this thread had allocated
    /// meanwhile beyond those before; 0 where another allocator is the program's.
    pub fn peak<R>(work: impl FnOnce() -> R) -> (R, usize) {
        let before = BYTES.get().0;
        BYTES.set((before, before));
        let result = work();
        (result, BYTES.get().1.abs_diff(before))
    }
}

fn count(change: isize) {
    // A thread that ends may allocate when its cells are gone.
    let _ = BYTES.try_with(|bytes| {
        let (now, most) = bytes.get();
        bytes.set((now + change, most.max(now + change)));
    });
}

// SAFETY: [corpus-heap] every call is `System`'s own, and so is every answer; counting touches a thread's own cell, which allocates nothing.
unsafe impl GlobalAlloc for MeteredHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: [corpus-heap] the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: [corpus-heap] the caller's promises are those that `System` asks for.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, given: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: [corpus-heap] the caller's promises are those that `System` asks for.
        unsafe { System.dealloc(given, layout) };
    }

    unsafe fn realloc(&self, given: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes as isize - layout.size() as isize);
        // SAFETY: [corpus-heap] the caller's promises are those that `System` asks for.
        unsafe { System.realloc(given, layout, bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_at_once_counts() {
        let layout = |bytes| Layout::from_size_align(bytes, 8).unwrap();
        let ((), peak) = MeteredHeap::peak(|| {
            // SAFETY: [corpus-heap] layouts are not empty, and what is given back was given with the layout named.
            unsafe {
                let small = MeteredHeap.alloc(layout(1000));
                let large = MeteredHeap.realloc(small, layout(1000), 5000);
                MeteredHeap.dealloc(large, layout(5000));
                MeteredHeap.dealloc(MeteredHeap.alloc_zeroed(layout(3000)), layout(3000));
            }
        });
        assert_eq!(peak, 5000);
        assert_eq!(MeteredHeap::peak(|| ()).1, 0);
    }
}
