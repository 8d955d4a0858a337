//! Bytes of one or several buffers: read, recv, write, send and their kin. The C library has some
//! of them under a second name, as other functions here.

use std::ffi::{c_int, c_void};

use libc::{iovec, sockaddr, socklen_t, ssize_t};

use super::{receive_by, send_by};
use crate::{files, iovecs, real, table};

pub(super) fn one(at: *const c_void, len: usize) -> [iovec; 1] {
    [iovec { iov_base: at.cast_mut(), iov_len: len }]
}

/// The program's own list of buffers; an absurd count is the kernel's to refuse.
///
/// # Safety
/// As the program promises to readv or writev.
pub(super) unsafe fn list<'a>(iov: *const iovec, count: c_int) -> Option<&'a [iovec]> {
    let count = usize::try_from(count).ok().filter(|count| *count <= 1024 && iovecs::is_inside(iov))?;
    // SAFETY: [preload-program] the program's promise to readv or writev.
    Some(unsafe { std::slice::from_raw_parts(iov, count) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn read(fd: c_int, to: *mut c_void, len: usize) -> ssize_t {
    if files::has(fd) {
        return files::told(files::read(fd, &one(to, len), None)) as ssize_t;
    }
    if len == 0 {
        // It returns at once, unlike `recv`.
        // SAFETY: [preload-real] the program's arguments.
        return unsafe { real::read(fd, to, len) };
    }
    // SAFETY: [preload-real] the program's arguments.
    receive_by(fd, &one(to, len), 0, || unsafe { real::read(fd, to, len) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(fd: c_int, to: *mut c_void, len: usize, room: usize) -> ssize_t {
    if len > room {
        // SAFETY: [preload-real] the program's arguments; the C library ends the program in its own words.
        return unsafe { real::__read_chk(fd, to, len, room) };
    }
    // SAFETY: [preload-program] the program's arguments.
    unsafe { read(fd, to, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read(fd: c_int, to: *mut c_void, len: usize) -> ssize_t {
    // SAFETY: [preload-program] the program's arguments.
    unsafe { read(fd, to, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    if files::has(fd) {
        // SAFETY: [preload-program] the program's list.
        return unsafe { super::volume::read_list(fd, iov, count, None) };
    }
    if table::find(fd).is_some()
        // SAFETY: [preload-program] the program's list.
        && let Some(list) = unsafe { list(iov, count) }.filter(|list| !iovecs::is_empty(list))
    {
        // SAFETY: [preload-real] the program's arguments.
        return receive_by(fd, list, 0, || unsafe { real::readv(fd, iov, count) });
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::readv(fd, iov, count) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recv(fd: c_int, to: *mut c_void, len: usize, flags: c_int) -> ssize_t {
    // SAFETY: [preload-real] the program's arguments.
    receive_by(fd, &one(to, len), flags, || unsafe { real::recv(fd, to, len, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recv_chk(fd: c_int, to: *mut c_void, len: usize, room: usize, flags: c_int) -> ssize_t {
    if len > room {
        // SAFETY: [preload-real] as above.
        return unsafe { real::__recv_chk(fd, to, len, room, flags) };
    }
    // SAFETY: [preload-real] the program's arguments.
    receive_by(fd, &one(to, len), flags, || unsafe { real::recv(fd, to, len, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    to: *mut c_void,
    len: usize,
    flags: c_int,
    address: *mut sockaddr,
    alen: *mut socklen_t,
) -> ssize_t {
    let mut by_kernel = false;
    let result = receive_by(fd, &one(to, len), flags, || {
        by_kernel = true;
        // SAFETY: [preload-real] the program's arguments.
        unsafe { real::recvfrom(fd, to, len, flags, address, alen) }
    });
    if !by_kernel && result >= 0 && !address.is_null() && !alen.is_null() {
        // SAFETY: [preload-program] the program's place for an address.
        unsafe { super::tell_sender(fd, result > 0, address, alen) };
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    to: *mut c_void,
    len: usize,
    room: usize,
    flags: c_int,
    address: *mut sockaddr,
    alen: *mut socklen_t,
) -> ssize_t {
    if len > room {
        // SAFETY: [preload-real] as above.
        return unsafe { real::__recvfrom_chk(fd, to, len, room, flags, address, alen) };
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { recvfrom(fd, to, len, flags, address, alen) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn write(fd: c_int, from: *const c_void, len: usize) -> ssize_t {
    if files::has(fd) {
        return files::told(files::write(fd, &one(from, len), None)) as ssize_t;
    }
    // SAFETY: [preload-real] the program's arguments.
    send_by(fd, &one(from, len), 0, || unsafe { real::write(fd, from, len) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __write(fd: c_int, from: *const c_void, len: usize) -> ssize_t {
    // SAFETY: [preload-program] the program's arguments.
    unsafe { write(fd, from, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __send(fd: c_int, from: *const c_void, len: usize, flags: c_int) -> ssize_t {
    // SAFETY: [preload-program] the program's arguments.
    unsafe { send(fd, from, len, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    if files::has(fd) {
        // SAFETY: [preload-program] the program's list.
        return unsafe { super::volume::write_list(fd, iov, count, None) };
    }
    if table::find(fd).is_some()
        // SAFETY: [preload-program] the program's list.
        && let Some(list) = unsafe { list(iov, count) }
    {
        // SAFETY: [preload-real] the program's arguments.
        return send_by(fd, list, 0, || unsafe { real::writev(fd, iov, count) });
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::writev(fd, iov, count) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn send(fd: c_int, from: *const c_void, len: usize, flags: c_int) -> ssize_t {
    // SAFETY: [preload-real] the program's arguments.
    send_by(fd, &one(from, len), flags, || unsafe { real::send(fd, from, len, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    from: *const c_void,
    len: usize,
    flags: c_int,
    address: *const sockaddr,
    alen: socklen_t,
) -> ssize_t {
    if !address.is_null() {
        // SAFETY: [preload-real] the program's arguments.
        let real = || unsafe { real::sendto(fd, from, len, flags, address, alen) };
        return super::send_past(fd, "sendto with an address", real);
    }
    // SAFETY: [preload-real] the program's arguments.
    send_by(fd, &one(from, len), flags, || unsafe { real::sendto(fd, from, len, flags, address, alen) })
}
