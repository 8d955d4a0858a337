//! The C library's errno, and who is calling.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The calling thread's errno.
#[inline]
pub(crate) fn get() -> c_int {
    // SAFETY: [preload-errno] always valid for the calling thread.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
#[inline]
pub(crate) fn set(value: c_int) {
    // SAFETY: [preload-errno] as above.
    unsafe { *libc::__errno_location() = value }
}

/// -1 with this errno, as a call that fails returns.
#[inline]
pub(crate) fn fail(value: c_int) -> isize {
    set(value);
    -1
}

/// Tells threads apart without a system call: each has an errno of its own.
#[inline]
pub(crate) fn thread() -> usize {
    // SAFETY: [preload-errno] only the address is taken.
    unsafe { libc::__errno_location() as usize }
}

/// Whether the caller is on the stack that its thread has begun on, and not on one for signals or
/// of the program's making. False as well where that cannot be told.
#[cold]
pub(crate) fn is_on_own_stack() -> bool {
    let place = 0u8;
    let (thread, here) = (thread(), (&raw const place).addr());
    // What the C library keeps of a thread that it has made lies on top of that thread's stack.
    let top = if thread == MAIN.load(Ordering::Relaxed) { TOP.load(Ordering::Relaxed) } else { thread };
    let near = top.checked_sub(here).is_some_and(|below| below < STACK_MOST);
    // SAFETY: [preload-errno] a question about this thread, into a structure of ours; all zeroes are one.
    near && unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(std::ptr::null(), &mut stack) == 0 && stack.ss_flags & libc::SS_ONSTACK == 0
    }
}

/// At start-up, on the main thread.
pub(crate) fn find_main() {
    let place = 0u8;
    TOP.store((&raw const place).addr().saturating_add(BEFORE_START), Ordering::Relaxed);
    MAIN.store(thread(), Ordering::Relaxed);
}

/// The main thread, and where its stack begins.
static MAIN: AtomicUsize = AtomicUsize::new(0);
static TOP: AtomicUsize = AtomicUsize::new(0);
/// Of the main thread's stack, what the start-up of this library takes at most.
const BEFORE_START: usize = 64 << 10;
/// Those that are deeper are none that this is asked for.
const STACK_MOST: usize = 8 << 20;

/// Runs `f` and leaves errno as it was.
pub(crate) fn kept<T>(f: impl FnOnce() -> T) -> T {
    let before = get();
    let value = f();
    set(before);
    value
}
