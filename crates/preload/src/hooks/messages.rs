//! sendmsg and recvmsg, with ancillary data and without.

use std::ffi::{c_int, c_uint};

use libc::{cmsghdr, iovec, mmsghdr, msghdr, ssize_t, timespec};

use super::{give_up, receive_as, send_by};
use crate::receive::How;
use crate::{epoll, iovecs, real, table};

/// The buffers of a message, when its header can be read at all.
unsafe fn buffers<'a>(message: *const msghdr) -> Option<(&'a msghdr, &'a [iovec])> {
    // SAFETY: [preload-program] the program's promise to sendmsg or recvmsg.
    let header = unsafe { message.as_ref() }.filter(|_| iovecs::is_inside(message))?;
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
            give_up(fd, "sendmsg with ancillary data");
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
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::recvmsg(fd, message, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    give_up(fd, "sendmmsg");
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
    give_up(fd, "recvmmsg");
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::recvmmsg(fd, messages, count, flags, timeout) }
}

/// Connections whose descriptors travel with a message: whoever gets them may not have the library.
unsafe fn give_up_passed(message: *const msghdr) {
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
                    let fd = fds.add(index).read_unaligned();
                    give_up(fd, "its descriptor was passed on");
                    epoll::make_foreign(fd, "a set of epoll that was passed on");
                }
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
}

/// The kernel looks at no more in one call.
const MESSAGES_MAX: usize = 1024;
