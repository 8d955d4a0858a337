//! Calls that move bytes past the hooks of this library: before each, the connection
//! goes back to the kernel.

use std::ffi::{c_int, c_uint, c_void};

use libc::{aiocb, iovec, off_t, ssize_t};

use super::{give_up, give_up_to};
use crate::connection::State;
use crate::settle::Reader;
use crate::{errno, files, iovecs, real, table};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_at: *mut i64,
    to: c_int,
    to_at: *mut i64,
    len: usize,
    flags: c_uint,
) -> ssize_t {
    if files::has(from) || files::has(to) {
        return files::refuse("splice") as ssize_t;
    }
    give_up_to(Reader::Here, from, "splice");
    give_up_to(Reader::Here, to, "splice");
    if table::find(from).is_some_and(|connection| connection.state() == State::Ring) {
        return out_of_ring(from, to, len, flags);
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::splice(from, from_at, to, to_at, len, flags) }
}

/// What still lies in the ring goes into a pipe by way of memory: as much as the pipe takes without
/// waiting once it has room.
fn out_of_ring(from: c_int, to: c_int, len: usize, flags: c_uint) -> ssize_t {
    let mut bytes = [0u8; libc::PIPE_BUF];
    let waits = flags & libc::SPLICE_F_NONBLOCK == 0;
    let mut room = libc::pollfd { fd: to, events: libc::POLLOUT, revents: 0 };
    // SAFETY: [preload-real] one pollfd of ours.
    match unsafe { real::poll(&mut room, 1, if waits { -1 } else { 0 }) } {
        0 => return errno::fail(libc::EAGAIN),
        1 => {}
        _ => return -1,
    }
    let list = [iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len.min(bytes.len()) }];
    let wait = if waits { 0 } else { libc::MSG_DONTWAIT };
    let (at, most) = (bytes.as_mut_ptr().cast(), len.min(bytes.len()));
    // SAFETY: [preload-real] so many bytes of ours.
    let got = super::receive_by(from, &list, wait, || unsafe { real::recv(from, at, most, wait) });
    if got <= 0 {
        return got;
    }
    // SAFETY: [preload-real] so many bytes of ours, just read.
    unsafe { real::write(to, bytes.as_ptr().cast(), got as usize) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
    if files::has(fd) {
        // SAFETY: [preload-program] the program's list.
        return unsafe { super::volume::read_list_as(fd, iov, count, at, flags) };
    }
    give_up(fd, "preadv2");
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::preadv2(fd, iov, count, at, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv64v2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
    if files::has(fd) {
        // SAFETY: [preload-program] the program's list.
        return unsafe { super::volume::read_list_as(fd, iov, count, at, flags) };
    }
    give_up(fd, "preadv2");
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::preadv64v2(fd, iov, count, at, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
    if files::has(fd) {
        // SAFETY: [preload-program] the program's list.
        return unsafe { super::volume::write_list_as(fd, iov, count, at, flags) };
    }
    give_up_to(Reader::Here, fd, "pwritev2");
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
    if files::has(fd) {
        // SAFETY: [preload-program] the program's list.
        return unsafe { super::volume::write_list_as(fd, iov, count, at, flags) };
    }
    give_up_to(Reader::Here, fd, "pwritev2");
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::pwritev64v2(fd, iov, count, at, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn aio_read(block: *mut aiocb) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's block.
    unsafe {
        if is_of_file(block) {
            return files::refuse("asynchronous I/O") as c_int;
        }
        give_up_block(block);
        real::aio_read(block)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn aio_read64(block: *mut aiocb) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's block.
    unsafe {
        if is_of_file(block) {
            return files::refuse("asynchronous I/O") as c_int;
        }
        give_up_block(block);
        real::aio_read64(block)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn aio_write(block: *mut aiocb) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's block.
    unsafe {
        if is_of_file(block) {
            return files::refuse("asynchronous I/O") as c_int;
        }
        give_up_block(block);
        real::aio_write(block)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn aio_write64(block: *mut aiocb) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's block.
    unsafe {
        if is_of_file(block) {
            return files::refuse("asynchronous I/O") as c_int;
        }
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
        if unsafe { is_of_file(*blocks.add(index)) } {
            return files::refuse("asynchronous I/O") as c_int;
        }
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
        if unsafe { is_of_file(*blocks.add(index)) } {
            return files::refuse("asynchronous I/O") as c_int;
        }
        // SAFETY: [preload-program] the program's list of blocks.
        unsafe { give_up_block(*blocks.add(index)) };
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::lio_listio64(mode, blocks, count, event) }
}

/// Whether a block is about a file on the volume.
///
/// # Safety
/// As of `give_up_block`.
unsafe fn is_of_file(block: *const aiocb) -> bool {
    // SAFETY: [preload-program] the caller's promise.
    unsafe { block.as_ref() }.filter(|_| iovecs::is_inside(block)).is_some_and(|block| files::has(block.aio_fildes))
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
