//! Calls that move bytes past the hooks of this library: before each, the connection goes back to the kernel.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::ssize_t;

use super::give_up;
use crate::real;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_at: *mut i64,
    to: c_int,
    to_at: *mut i64,
    len: usize,
    flags: c_uint,
) -> ssize_t {
    give_up(from, "splice");
    give_up(to, "splice");
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::splice(from, from_at, to, to_at, len, flags) }
}

/// A stream of the C library reads and writes by calls of its own.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void {
    give_up(fd, "fdopen");
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::fdopen(fd, mode) }
}
