//! Options of sockets: some mean nothing in the rings, and read back as the program has set them.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use libc::socklen_t;

use super::give_up_to;
use crate::connection::{Connection, State};
use crate::settle::Reader;
use crate::state::Family;
use crate::{fallback, iovecs, real, table};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if let Some(connection) = table::find(fd)
        && matches!(connection.state(), State::Counting | State::Ring)
    {
        match (level, name) {
            (libc::IPPROTO_TCP, libc::TCP_NODELAY | libc::TCP_CORK) => {
                // SAFETY: [preload-program] the program's arguments.
                if let Some(result) = unsafe { set_in_ring(fd, connection, name, value, len) } {
                    return result;
                }
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => {
                // Not while it is another for a moment.
                let _held = table::hold(fd, connection);
                // SAFETY: [preload-real] the program's arguments.
                return unsafe { real::setsockopt(fd, level, name, value, len) };
            }
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW) => {
                connection.timed.store(true, Ordering::Relaxed);
            }
            (libc::SOL_SOCKET, libc::SO_RCVLOWAT | libc::SO_OOBINLINE | libc::SO_PASSCRED | libc::SO_PEEK_OFF)
            | (
                libc::SOL_SOCKET,
                libc::SO_TIMESTAMP | libc::SO_TIMESTAMPNS | libc::SO_TIMESTAMPING | libc::SO_ZEROCOPY,
            )
            | (libc::IPPROTO_TCP, libc::TCP_ULP | libc::TCP_REPAIR) => give_up_to(Reader::Here, fd, "a socket option"),
            _ => {}
        }
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::setsockopt(fd, level, name, value, len) }
}

/// Wake bytes must not wait for one another; what the program wants takes effect
/// when the connection is the kernel's again. None when the kernel is to be asked,
/// or is to say what is wrong.
///
/// # Safety
/// The value is the program's, of that length.
unsafe fn set_in_ring(
    fd: c_int,
    connection: &'static Connection,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Option<c_int> {
    let mut held = table::hold(fd, connection).filter(|held| held.ring().is_some())?;
    let Family::Tcp { nagle, cork } = &mut held.family else { return None };
    if (len as usize) < size_of::<c_int>() || !iovecs::is_inside(value) {
        return None;
    }
    // SAFETY: [preload-program] the program's int.
    let on = unsafe { value.cast::<c_int>().read_unaligned() } != 0;
    if name == libc::TCP_NODELAY {
        *nagle = !on;
    } else {
        *cork = on;
    }
    Some(0)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: [preload-real] the program's arguments.
    let result = unsafe { real::getsockopt(fd, level, name, value, len) };
    if result == 0
        && let Some(connection) = table::find(fd)
        && connection.state() == State::Ring
        && matches!(
            (level, name),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY | libc::TCP_CORK) | (libc::SOL_SOCKET, libc::SO_ERROR)
        )
    {
        let mut bytes = [0; size_of::<c_int>()];
        // SAFETY: [preload-program] the system has just written so many bytes to the program's place.
        let len = unsafe {
            let len = bytes.len().min(*len as usize);
            std::ptr::copy_nonoverlapping(value.cast(), bytes.as_mut_ptr(), len);
            len
        };
        if let Some(reported) = reported(fd, connection, level, name, c_int::from_ne_bytes(bytes)) {
            // SAFETY: [preload-program] the same place.
            unsafe { std::ptr::copy_nonoverlapping(reported.to_ne_bytes().as_ptr(), value.cast(), len) };
        }
    }
    result
}

/// What the program is to be told in place of what the kernel says.
fn reported(fd: c_int, connection: &'static Connection, level: c_int, name: c_int, said: c_int) -> Option<c_int> {
    let mut held = table::hold(fd, connection)?;
    let shared = held.ring()?;
    match (level, name, held.family) {
        (libc::IPPROTO_TCP, libc::TCP_NODELAY, Family::Tcp { nagle, .. }) => Some(c_int::from(!nagle)),
        (libc::IPPROTO_TCP, libc::TCP_CORK, Family::Tcp { cork, .. }) => Some(c_int::from(cork)),
        // A wake byte that the peer had not read when it was killed is no error; what else the kernel knows of is.
        (libc::SOL_SOCKET, libc::SO_ERROR, _)
            if said == libc::ECONNRESET && fallback::is_of_a_wake_byte(&mut held, &shared) =>
        {
            Some(0)
        }
        _ => None,
    }
}

/// With a time of 64 bits on every machine.
const SO_RCVTIMEO_NEW: c_int = 66;
