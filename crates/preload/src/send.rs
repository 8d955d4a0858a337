//! A send of the program's: by the rings, or by the C library's function, counted
//! where that may still matter.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use libc::iovec;

use crate::connection::{Connection, State};
use crate::diagnosis::Reason;
use crate::iovecs::{self, Cursor, PARTS};
use crate::outgoing::{Step, once};
use crate::receive::Route;
use crate::settle::{Reader, settle};
use crate::{errno, fallback, policy, real, rendezvous, table, wait};

/// A send of the program's buffers: by the ring, or by `real`, counted where that may still matter.
#[inline]
pub(crate) fn run(
    fd: c_int,
    connection: &'static Connection,
    list: &[iovec],
    flags: c_int,
    real: impl FnOnce() -> isize,
) -> isize {
    match begin(fd, connection, list, flags) {
        Route::Done(result) => result,
        Route::Kernel => real(),
        Route::Counted => {
            let result = real();
            counted(fd, connection, result);
            result
        }
    }
}

/// Begins a send of the program's bytes.
#[inline]
fn begin(fd: c_int, connection: &'static Connection, list: &[iovec], flags: c_int) -> Route {
    match connection.state() {
        State::Ring if list.iter().any(iovecs::is_outside) => {
            settle(fd, connection, Reason::Call("a buffer outside of memory"), Reader::Here);
            Route::Kernel
        }
        State::Ring if flags & !UNDERSTOOD == 0 => into_ring(fd, connection, list, flags),
        State::Counting if flags & !UNDERSTOOD == 0 => {
            let Some(mut held) = table::hold(fd, connection) else {
                connection.tainted.store(true, Ordering::Relaxed);
                return Route::Kernel;
            };
            if policy::is_soon() {
                errno::kept(|| rendezvous::advance(&mut held, fd));
            }
            if connection.state() == State::Counting {
                held.sending += 1;
                return Route::Counted;
            }
            drop(held);
            begin(fd, connection, list, flags)
        }
        State::Ring | State::Counting => {
            settle(fd, connection, Reason::Call("a flag of send"), Reader::Here);
            Route::Kernel
        }
        _ => Route::Kernel,
    }
}

/// A send whose bytes the kernel alone can take, counted where that may still matter. None when the
/// ends have met: then nothing was sent, and it is to go by the ring.
pub(crate) fn by_kernel(fd: c_int, connection: &'static Connection, real: impl FnOnce() -> isize) -> Option<isize> {
    if connection.state() == State::Counting
        && let Some(mut held) = table::hold(fd, connection)
    {
        if policy::is_soon() {
            errno::kept(|| rendezvous::advance(&mut held, fd));
        }
        if connection.state() == State::Counting {
            held.sending += 1;
            drop(held);
            let result = real();
            counted(fd, connection, result);
            return Some(result);
        }
    } else if connection.state() == State::Counting {
        connection.tainted.store(true, Ordering::Relaxed);
    }
    (connection.state() != State::Ring).then(real)
}

/// Counts what the kernel took; the ends may meet now.
fn counted(fd: c_int, connection: &'static Connection, result: isize) {
    errno::kept(|| {
        let Some(mut held) = table::hold(fd, connection) else { return };
        held.sending = held.sending.saturating_sub(1);
        if result > 0 {
            held.counts().sent.fetch_add(result as u64, Ordering::Relaxed);
            held.operations += 1;
        }
        fallback::announce(&mut held, fd);
        rendezvous::advance(&mut held, fd);
    });
}

fn into_ring(fd: c_int, connection: &'static Connection, list: &[iovec], flags: c_int) -> Route {
    let mut from = Cursor::new(list);
    let mut sent = 0usize;
    let mut limit = wait::Limit::default();
    if from.is_done() {
        // Whether the other end is there is all that it asks.
        return Route::Kernel;
    }
    loop {
        let Some(mut held) = table::hold(fd, connection) else {
            return Route::Done(errno::fail(connection.refusal()));
        };
        if connection.state() != State::Ring {
            drop(held);
            return back(fd, connection, list, &mut from, flags, sent);
        }
        let step = once(&mut held, fd, &mut from);
        if matches!(step, Step::NotStarted) && sent == 0 {
            held.sending += 1;
            return Route::Counted;
        }
        let unix = held.family.is_unix();
        drop(held);
        let blocking = flags & libc::MSG_DONTWAIT == 0 && !connection.nonblocking.load(Ordering::Relaxed);
        let waited = match step {
            Step::Bytes(bytes) => {
                sent += bytes;
                if !blocking || from.is_done() {
                    return Route::Done(sent as isize);
                }
                if unix {
                    // There the kernel counts it for each piece anew.
                    limit = wait::Limit::default();
                }
                Ok(())
            }
            Step::Plain | Step::NotStarted => return back(fd, connection, list, &mut from, flags, sent),
            Step::Error(error) => Err(error.raw_os_error()),
            Step::Full | Step::KernelFull if !blocking => Err(libc::EAGAIN),
            Step::Full => wait::for_room(fd, connection, &mut limit),
            Step::KernelFull => wait::for_kernel(fd, &mut limit),
        };
        if let Err(error) = waited {
            return Route::Done(if sent > 0 { sent as isize } else { errno::fail(error) });
        }
    }
}

/// The connection went back to the kernel, for good or for a while; maybe in the
/// middle of a blocking send.
fn back(
    fd: c_int,
    connection: &'static Connection,
    list: &[iovec],
    from: &mut Cursor<'_>,
    flags: c_int,
    mut sent: usize,
) -> Route {
    if sent == 0 {
        return if connection.state() == State::Counting { begin(fd, connection, list, flags) } else { Route::Kernel };
    }
    // What went is the result; there is no signal for the rest.
    let flags = flags | libc::MSG_NOSIGNAL;
    while !from.is_done() {
        let mut parts = [NO_PART; PARTS];
        let many = from.list(&mut parts, |at, len| iovec { iov_base: at.cast(), iov_len: len });
        let parts = parts.get_mut(..many).unwrap_or(&mut []);
        // SAFETY: [preload-program] all zeroes are a message without buffers.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), parts.len());
        // SAFETY: [preload-program] the program's bytes.
        let n = run(fd, connection, parts, flags, || unsafe { real::sendmsg(fd, &raw const message, flags) });
        if n <= 0 {
            break;
        }
        from.skip(n as usize);
        sent += n as usize;
    }
    Route::Done(sent as isize)
}

const NO_PART: iovec = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
/// Flags that mean the same in a ring, or nothing there.
const UNDERSTOOD: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_EOR | libc::MSG_CONFIRM;
