//! A receive of the program's: by the rings, or by the C library's function, counted
//! where that may still matter.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use libc::iovec;

use crate::connection::{Connection, State};
use crate::diagnosis::Reason;
use crate::incoming::{AGAIN_TRIES, How, Step, is_after_ring, is_in_ring, is_unread, once};
use crate::iovecs::{self, Cursor};
use crate::settle::{Reader, settle};
use crate::{errno, fallback, kernel, policy, real, rendezvous, table, wait};

/// How a call goes on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// It is done, with this result; errno is set.
    Done(isize),
    /// The C library's function does it.
    Kernel,
    /// It does, and what it carries is to be counted afterwards.
    Counted,
}

/// A receive into the program's buffers: by the ring, or by `real`, counted
/// where that may still matter.
#[inline]
pub(crate) fn run(
    fd: c_int,
    connection: &'static Connection,
    list: &[iovec],
    flags: c_int,
    how: How,
    real: impl FnOnce() -> isize,
) -> isize {
    match begin(fd, connection, list, flags, how) {
        Route::Done(result) => result,
        Route::Kernel => real(),
        Route::Counted => {
            let result = real();
            counted(fd, connection, result, flags);
            result
        }
    }
}

/// Begins a receive into the program's buffers.
#[inline]
fn begin(fd: c_int, connection: &'static Connection, list: &[iovec], flags: c_int, how: How) -> Route {
    match connection.state() {
        State::Ring if list.iter().any(iovecs::is_outside) => {
            settle(fd, connection, Reason::Call("a buffer outside of memory"), Reader::Kernel);
            Route::Kernel
        }
        State::Ring if is_understood(flags) => from_ring(fd, connection, list, flags, how),
        State::Counting if is_understood(flags) => {
            let Some(mut held) = table::hold(fd, connection) else {
                connection.tainted.store(true, Ordering::Relaxed);
                return Route::Kernel;
            };
            if policy::is_soon() {
                errno::kept(|| rendezvous::advance(&mut held, fd));
            }
            if connection.state() == State::Counting {
                held.receiving += 1;
                return Route::Counted;
            }
            drop(held);
            begin(fd, connection, list, flags, how)
        }
        // Urgent data and the like; looking at the error queue moves no bytes.
        State::Ring | State::Counting if flags & libc::MSG_ERRQUEUE == 0 => {
            settle(fd, connection, Reason::Call("a flag of recv"), Reader::Kernel);
            if connection.state() == State::Ring && table::hold(fd, connection).is_some_and(|held| is_in_ring(&held)) {
                // What lies in the ring comes first, and the flag means nothing there.
                return from_ring(fd, connection, list, flags & UNDERSTOOD, how);
            }
            Route::Kernel
        }
        _ => Route::Kernel,
    }
}

/// Counts what the kernel delivered; the ends may meet now.
fn counted(fd: c_int, connection: &'static Connection, result: isize, flags: c_int) {
    errno::kept(|| {
        let Some(mut held) = table::hold(fd, connection) else { return };
        held.receiving = held.receiving.saturating_sub(1);
        if result > 0 && flags & libc::MSG_PEEK == 0 {
            held.count_received(result as usize);
            held.operations += 1;
        }
        rendezvous::advance(&mut held, fd);
    });
}

/// Bytes that the program has been told of lay in a ring that is switched: a call that does not
/// wait must not find nothing, so this does until the peer has sent them again. One that makes no
/// call for long cannot be waited for.
fn until_sent_again(fd: c_int) {
    for _ in 0..AGAIN_TRIES {
        if kernel::something(fd) {
            return;
        }
        kernel::nap();
    }
}

fn from_ring(fd: c_int, connection: &'static Connection, list: &[iovec], flags: c_int, how: How) -> Route {
    let mut to = Cursor::new(list);
    let (look, all) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_WAITALL != 0);
    let (mut got, mut switched) = (0usize, false);
    loop {
        let Some(mut held) = table::hold(fd, connection) else {
            return Route::Done(errno::fail(connection.refusal()));
        };
        // In the middle of a switch back the library takes bytes out of the kernel itself, but nothing beside them.
        let how = if got == 0 { how } else { How::Bytes };
        let blocking = flags & libc::MSG_DONTWAIT == 0 && !connection.nonblocking.load(Ordering::Relaxed);
        let unread = !blocking && is_unread(&held);
        let beside = how == How::Ancillary && is_after_ring(&mut held, fd) && kernel::something(fd);
        if connection.state() != State::Ring {
            drop(held);
            return back(fd, connection, list, &mut to, flags, how, got);
        }
        if beside {
            // Nobody counts what comes with it.
            fallback::leave(&mut held, fd, Reason::Call("ancillary data"));
        }
        let step = if beside { Step::Plain } else { once(&mut held, fd, &mut to, look, how) };
        switched |= unread && held.incoming.has_left();
        drop(held);
        if switched && got == 0 && matches!(step, Step::Nothing | Step::Plain) {
            switched = false;
            until_sent_again(fd);
            continue;
        }
        match step {
            Step::Bytes(bytes) => {
                got += bytes;
                if !all || look || to.is_done() {
                    return Route::Done(got as isize);
                }
            }
            Step::Again => {}
            Step::End => return Route::Done(got as isize),
            Step::Error(_) if got > 0 => return Route::Done(got as isize),
            Step::Error(error) => return Route::Done(errno::fail(error.raw_os_error())),
            Step::Plain => return back(fd, connection, list, &mut to, flags, how, got),
            Step::Nothing if !blocking => {
                return Route::Done(if got > 0 { got as isize } else { errno::fail(libc::EAGAIN) });
            }
            Step::Nothing => {
                if let Err(error) = wait::for_data(fd, connection) {
                    return Route::Done(if got > 0 { got as isize } else { errno::fail(error) });
                }
            }
        }
    }
}

/// The connection went back to the kernel, for good or for a while; maybe in the middle of
/// a receive that wants all.
fn back(
    fd: c_int,
    connection: &'static Connection,
    list: &[iovec],
    to: &mut Cursor<'_>,
    flags: c_int,
    how: How,
    mut got: usize,
) -> Route {
    if got == 0 {
        return if connection.state() == State::Counting {
            begin(fd, connection, list, flags, how)
        } else {
            Route::Kernel
        };
    }
    while let Some((at, len)) = to.peek(usize::MAX) {
        let part = [iovec { iov_base: at.cast(), iov_len: len }];
        // SAFETY: [preload-program] the program's buffer.
        let n = run(fd, connection, &part, flags, How::Bytes, || unsafe { real::recv(fd, at.cast(), len, flags) });
        if n <= 0 {
            break;
        }
        to.advance(n as usize);
        got += n as usize;
    }
    Route::Done(got as isize)
}

fn is_understood(flags: c_int) -> bool {
    // A look that waits until all is there has nothing to sleep on.
    let looks_for_all = libc::MSG_PEEK | libc::MSG_WAITALL;
    flags & !UNDERSTOOD == 0 && flags & looks_for_all != looks_for_all
}

/// Flags that mean the same in a ring; MSG_CMSG_CLOEXEC and MSG_NOSIGNAL mean nothing here.
const UNDERSTOOD: c_int =
    libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_CMSG_CLOEXEC | libc::MSG_NOSIGNAL;
