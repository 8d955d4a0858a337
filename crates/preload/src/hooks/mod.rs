//! What the program calls in place of the C library.
//!
//! Each hook looks the descriptor up and, when it is no connection of ours or its connection is the
//! kernel's, calls the C library at once. `extern "C-unwind"`: a thread may be cancelled in a
//! blocked call, and its unwinding passes through here. So over a call of the C library that can
//! block, no hook keeps anything that must be dropped.

mod data;
mod descriptors;
mod files;
mod messages;
mod options;
mod processes;
mod sets;
mod streams;
mod unnoticed;
mod variadic;
mod volume;
mod waiting;

use std::ffi::c_int;

use libc::iovec;

use crate::connection::{Connection, State};
use crate::diagnosis::Reason;
use crate::incoming::How;
use crate::settle::{Reader, settle};
use crate::{end, errno, fork, iovecs, kernel, oversubscription, policy, receive, remote, report, send, table, wait};

/// Runs when the library is loaded, maybe after other libraries' constructors have called hooks.
#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = init;

/// Runs at `exit`.
#[used]
#[unsafe(link_section = ".fini_array")]
static FINI: extern "C" fn() = fini;

extern "C" fn init() {
    errno::find_main();
    table::adopt();
    report::find_file();
    policy::find_soon();
    oversubscription::find_processors();
    remote::find();
    crate::files::find();
    // SAFETY: [preload-real] functions that live as long as the process: the library is never unloaded.
    unsafe { libc::pthread_atfork(Some(fork::prepare), Some(fork::parent), Some(fork::child)) };
}

extern "C" fn fini() {
    crate::files::end();
    if table::is_ours() {
        for (fd, connection) in table::all() {
            end::abandon(fd, connection);
        }
    }
}

/// A receive of these buffers, by the ring or by `real`.
#[inline]
fn receive_by(fd: c_int, list: &[iovec], flags: c_int, real: impl FnOnce() -> isize) -> isize {
    receive_as(fd, list, flags, How::Bytes, real)
}

/// As `receive_by`, of what else the program wants.
#[inline]
fn receive_as(fd: c_int, list: &[iovec], flags: c_int, how: How, real: impl FnOnce() -> isize) -> isize {
    let Some(connection) = table::find(fd) else { return real() };
    if connection.state() == State::Ring {
        wait::cancellation_point();
        if iovecs::is_empty(list) {
            return receive_nothing(fd, connection, flags, how, real);
        }
    }
    receive::run(fd, connection, list, flags, how, real)
}

/// A receive of no bytes waits for some, or for the end, and takes none.
fn receive_nothing(
    fd: c_int,
    connection: &'static Connection,
    flags: c_int,
    how: How,
    real: impl FnOnce() -> isize,
) -> isize {
    let mut byte = 0u8;
    let list = [iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
    let flags = flags & !libc::MSG_WAITALL | libc::MSG_PEEK;
    receive::run(fd, connection, &list, flags, how, real).min(0)
}

/// A send of these buffers, by the ring or by `real`.
#[inline]
fn send_by(fd: c_int, list: &[iovec], flags: c_int, real: impl FnOnce() -> isize) -> isize {
    let Some(connection) = table::find(fd) else { return real() };
    if connection.state() == State::Ring {
        wait::cancellation_point();
    }
    send::run(fd, connection, list, flags, real)
}

/// A send of more than bytes, by `real`: the connection goes back first, and what is unread here
/// may still lie in its ring.
fn send_past(fd: c_int, call: &'static str, real: impl FnOnce() -> isize) -> isize {
    let Some(connection) = table::find(fd) else { return real() };
    give_up_to(Reader::Here, fd, call);
    let result = real();
    if let Ok(sent @ 1..) = usize::try_from(result)
        && connection.state() == State::Ring
    {
        errno::kept(|| table::hold(fd, connection).inspect(|held| held.count_sent(sent)));
    }
    result
}

/// The connection goes back to the kernel, if it ever left: a call that is not covered follows, and
/// reads what the kernel has.
fn give_up(fd: c_int, call: &'static str) {
    give_up_to(Reader::Kernel, fd, call);
}

/// The same, by who reads on.
fn give_up_to(reader: Reader, fd: c_int, call: &'static str) {
    if let Some(connection) = table::find(fd)
        && matches!(connection.state(), State::Counting | State::Ring)
    {
        settle(fd, connection, Reason::Call(call), reader);
    }
}

/// Who sent the bytes of a ring, as the kernel tells it of a stream: nothing over TCP, and the
/// other end's name over a Unix socket.
///
/// # Safety
/// The address has room for as many bytes as `len` says.
unsafe fn tell_sender(fd: c_int, any: bool, address: *mut libc::sockaddr, len: *mut libc::socklen_t) {
    errno::kept(|| {
        let domain = rustix::net::sockopt::socket_domain(kernel::borrowed(fd));
        let named = any && domain == Ok(rustix::net::AddressFamily::UNIX);
        // SAFETY: [preload-program] the program's place for an address and its length.
        unsafe {
            if !named || libc::getpeername(fd, address, len) != 0 || *len as usize <= size_of::<libc::sa_family_t>() {
                *len = 0;
            }
        }
    });
}
