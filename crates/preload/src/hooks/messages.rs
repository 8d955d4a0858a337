//! sendmsg and recvmsg, with ancillary data and without.

use std::ffi::{c_int, c_uint};
use std::time::{Duration, Instant};

use libc::{cmsghdr, iovec, mmsghdr, msghdr, ssize_t, timespec};

use super::{give_up, give_up_to, receive_as, send_by};
use crate::connection::State;
use crate::incoming::How;
use crate::settle::Reader;
use crate::{epoll, errno, files, iovecs, real, table};

/// The buffers of a message, when its header can be read at all.
unsafe fn buffers<'a>(message: *const msghdr) -> Option<(&'a msghdr, &'a [iovec])> {
    // SAFETY: [preload-program] the program's promise to sendmsg or recvmsg.
    let header = unsafe { message.as_ref() }.filter(|_| iovecs::is_inside(message))?;
    if header.msg_iovlen == 0 {
        return Some((header, &[]));
    }
    if !iovecs::is_inside(header.msg_iov) || header.msg_iovlen > 1024 {
        return None;
    }
    // SAFETY: [preload-program] as above.
    Some((header, unsafe { std::slice::from_raw_parts(header.msg_iov, header.msg_iovlen) }))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: [preload-program] the program's message.
    unsafe { give_up_passed(message) };
    if table::find(fd).is_some()
        // SAFETY: [preload-program] the program's message.
        && let Some((header, list)) = unsafe { buffers(message) }
    {
        if header.msg_controllen > 0 || !header.msg_name.is_null() {
            // SAFETY: [preload-real] the program's arguments.
            return super::send_past(fd, "sendmsg with ancillary data", || unsafe {
                real::sendmsg(fd, message, flags)
            });
        }
        // SAFETY: [preload-real] the program's arguments.
        return send_by(fd, list, flags, || unsafe { real::sendmsg(fd, message, flags) });
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::sendmsg(fd, message, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if table::find(fd).is_some()
        // SAFETY: [preload-program] the program's message.
        && let Some((header, list)) = unsafe { buffers(message) }
    {
        let mut by_kernel = false;
        let how = if header.msg_controllen > 0 { How::Ancillary } else { How::Bytes };
        let result = receive_as(fd, list, flags, how, || {
            by_kernel = true;
            // SAFETY: [preload-real] the program's arguments.
            unsafe { real::recvmsg(fd, message, flags) }
        });
        if by_kernel && result >= 0 {
            // SAFETY: [preload-program] the program's message, as the kernel has filled it.
            unsafe { adopt_received(message) };
        }
        if !by_kernel && result >= 0 {
            // SAFETY: [preload-program] the program's message; rings carry nothing beside bytes.
            unsafe {
                (*message).msg_flags = 0;
                (*message).msg_controllen = 0;
                if (*message).msg_name.is_null() {
                    (*message).msg_namelen = 0;
                } else {
                    super::tell_sender(fd, result > 0, (*message).msg_name.cast(), &raw mut (*message).msg_namelen);
                }
            }
        }
        return result;
    }
    // SAFETY: [preload-real] [preload-program] the program's arguments, and what the kernel has made of them.
    unsafe {
        let result = real::recvmsg(fd, message, flags);
        if result >= 0 {
            adopt_received(message);
        }
        result
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    give_up_to(Reader::Here, fd, "sendmmsg");
    for index in 0..if messages.is_null() { 0 } else { (count as usize).min(MESSAGES_MAX) } {
        // SAFETY: [preload-program] the program's messages.
        unsafe { give_up_passed(&raw const (*messages.add(index)).msg_hdr) };
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::sendmmsg(fd, messages, count, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let in_ring = table::find(fd).is_some_and(|connection| connection.state() == State::Ring);
    if !in_ring || !iovecs::is_inside(messages) {
        give_up(fd, "recvmmsg");
        // SAFETY: [preload-real] [preload-program] the program's arguments, and what the kernel has made of them.
        return unsafe {
            let got = real::recvmmsg(fd, messages, count, flags, timeout);
            (0..got.max(0) as usize).for_each(|index| adopt_received(&raw const (*messages.add(index)).msg_hdr));
            got
        };
    }
    // SAFETY: [preload-program] the program's time, or none.
    let limit = unsafe { timeout.as_ref() };
    let limit =
        limit.map(|limit| Duration::new(limit.tv_sec.max(0) as u64, limit.tv_nsec.clamp(0, 999_999_999) as u32));
    let begun = Instant::now();
    let mut flags_now = flags & !libc::MSG_WAITFORONE;
    let mut got = 0;
    while got < count.min(MESSAGES_MAX as c_uint) {
        // SAFETY: [preload-program] the program's messages, of which this is one.
        let len = unsafe { recvmsg(fd, &raw mut (*messages.add(got as usize)).msg_hdr, flags_now) };
        if len < 0 {
            break;
        }
        // SAFETY: [preload-program] the same.
        unsafe { (*messages.add(got as usize)).msg_len = len as c_uint };
        got += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags_now |= libc::MSG_DONTWAIT;
        }
        // As the kernel has it: the time is looked at between messages.
        if limit.is_some_and(|limit| begun.elapsed() >= limit) {
            break;
        }
    }
    if got > 0 { got as c_int } else { -1 }
}

/// Connections whose descriptors travel with a message: their receiver may not have the library.
unsafe fn give_up_passed(message: *const msghdr) {
    // SAFETY: [preload-program] the caller's promise.
    unsafe {
        each_passed(message, |fd| {
            errno::kept(|| files::passed(fd));
            give_up_to(Reader::Stranger, fd, "its descriptor was passed on");
            epoll::make_foreign(fd, "a set of epoll that was passed on");
        });
    }
}

/// Files on a volume whose descriptors have come with a message.
unsafe fn adopt_received(message: *const msghdr) {
    if files::is_on() {
        // SAFETY: [preload-program] the caller's promise.
        unsafe { each_passed(message, |fd| errno::kept(|| files::received(fd))) };
    }
}

/// Descriptors in a message's ancillary data.
unsafe fn each_passed(message: *const msghdr, mut each: impl FnMut(c_int)) {
    // SAFETY: [preload-program] the program's message.
    let Some(header) = (unsafe { message.as_ref() }).filter(|_| iovecs::is_inside(message)) else { return };
    if header.msg_control.is_null() || header.msg_controllen < size_of::<cmsghdr>() {
        return;
    }
    // SAFETY: [preload-program] the macros walk the program's ancillary data within its length.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while let Some(part) = at.as_ref() {
            if part.cmsg_level == libc::SOL_SOCKET && part.cmsg_type == libc::SCM_RIGHTS {
                let fds = libc::CMSG_DATA(at).cast::<c_int>();
                let bytes = part.cmsg_len.saturating_sub(size_of::<cmsghdr>());
                for index in 0..bytes / size_of::<c_int>() {
                    each(fds.add(index).read_unaligned());
                }
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
}

/// The kernel looks at no more in one call.
const MESSAGES_MAX: usize = 1024;
