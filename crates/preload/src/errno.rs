//! The C library's errno, and who is calling.

use std::ffi::c_int;

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

/// Runs `f` and leaves errno as it was.
pub(crate) fn kept<T>(f: impl FnOnce() -> T) -> T {
    let before = get();
    let value = f();
    set(before);
    value
}
