//! Calls that move bytes past the hooks of this library: before each, the connection goes back to the kernel.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{aiocb, iovec, off_t, ssize_t};

use super::give_up;
use crate::{iovecs, real};

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

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
    give_up(fd, "preadv2");
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::preadv2(fd, iov, count, at, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv64v2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
    give_up(fd, "preadv2");
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::preadv64v2(fd, iov, count, at, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
    give_up(fd, "pwritev2");
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::pwritev2(fd, iov, count, at, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwritev64v2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> ssize_t {
    give_up(fd, "pwritev2");
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::pwritev64v2(fd, iov, count, at, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn aio_read(block: *mut aiocb) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's block.
    unsafe {
        give_up_block(block);
        real::aio_read(block)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn aio_read64(block: *mut aiocb) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's block.
    unsafe {
        give_up_block(block);
        real::aio_read64(block)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn aio_write(block: *mut aiocb) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's block.
    unsafe {
        give_up_block(block);
        real::aio_write(block)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn aio_write64(block: *mut aiocb) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's block.
    unsafe {
        give_up_block(block);
        real::aio_write64(block)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn lio_listio(
    mode: c_int,
    blocks: *const *mut aiocb,
    count: c_int,
    event: *mut c_void,
) -> c_int {
    for index in 0..if iovecs::is_inside(blocks) { usize::try_from(count).unwrap_or(0) } else { 0 } {
        // SAFETY: [preload-program] the program's list of blocks.
        unsafe { give_up_block(*blocks.add(index)) };
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::lio_listio(mode, blocks, count, event) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn lio_listio64(
    mode: c_int,
    blocks: *const *mut aiocb,
    count: c_int,
    event: *mut c_void,
) -> c_int {
    for index in 0..if iovecs::is_inside(blocks) { usize::try_from(count).unwrap_or(0) } else { 0 } {
        // SAFETY: [preload-program] the program's list of blocks.
        unsafe { give_up_block(*blocks.add(index)) };
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::lio_listio64(mode, blocks, count, event) }
}

/// A thread of the C library's reads or writes what a block says, by calls of its own.
///
/// # Safety
/// The block is the program's, or none.
unsafe fn give_up_block(block: *const aiocb) {
    // SAFETY: [preload-program] the caller's promise.
    if let Some(block) = unsafe { block.as_ref() }.filter(|_| iovecs::is_inside(block)) {
        give_up(block.aio_fildes, "asynchronous I/O");
    }
}
