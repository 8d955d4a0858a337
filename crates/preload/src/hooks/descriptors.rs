//! Where connections come from and go: connect, accept, close, dup, settings.

use std::ffi::{c_int, c_uint, c_ulong};
use std::sync::atomic::Ordering;

use libc::{sockaddr, socklen_t};
use rustix::net::{SocketAddrAny, SocketAddrV4, SocketAddrV6, SocketType, sockopt};

use super::{give_up, give_up_to};
use crate::connection::{Connection, State};
use crate::kernel::borrowed;
use crate::layout::SWITCHED;
use crate::settle::Reader;
use crate::state::Host;
use crate::{end, epoll, errno, files, real, remote, rendezvous, sets, table};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: [preload-real] the program's arguments.
    let result = unsafe { real::connect(fd, address, len) };
    errno::kept(|| {
        let pending = result != 0 && errno::get() == libc::EINPROGRESS;
        if let Some(known) = table::find(fd) {
            // Asked again whether it is there, or told that it is.
            let again = result != 0 && matches!(errno::get(), libc::EINPROGRESS | libc::EALREADY | libc::EISCONN);
            if again || result == 0 && known.state() == State::Counting {
                return;
            }
            if table::is_ours() {
                end::close(fd, known);
            }
        }
        if (result == 0 || pending)
            && let Some(host) = is_for_us(fd)
            && table::is_ours()
        {
            let connection = table::insert(fd, 0, host);
            rendezvous::at_once(fd, connection, !pending);
        }
    });
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: [preload-program] the program's arguments.
    unsafe { connect(fd, address, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: [preload-real] the program's arguments.
    let result = unsafe { real::accept(fd, address, len) };
    accepted(result);
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    // SAFETY: [preload-real] the program's arguments.
    let result = unsafe { real::accept4(fd, address, len, flags) };
    accepted(result);
    result
}

fn accepted(fd: c_int) {
    if fd < 0 {
        return;
    }
    errno::kept(|| {
        // It is new: what was said of its number was of another.
        table::note_in_set(fd, false);
        if let Some(host) = is_for_us(fd)
            && table::is_ours()
        {
            let connection = table::insert(fd, 1, host);
            rendezvous::at_once(fd, connection, true);
        }
    });
}

/// Whether a new connection may ever leave the kernel; and where its other end is then.
fn is_for_us(fd: c_int) -> Option<Host> {
    if is_of_this_host(fd) {
        return Some(Host::This);
    }
    let stream = remote::is_asked_for() && sockopt::socket_type(borrowed(fd)) == Ok(SocketType::STREAM);
    stream.then_some(Host::Other)
}

/// A stream whose other end is on this host, as far as addresses tell.
fn is_of_this_host(fd: c_int) -> bool {
    let Ok(here) = rustix::net::getsockname(borrowed(fd)) else { return false };
    let loopback = |address: &SocketAddrAny| {
        let v4 = SocketAddrV4::try_from(address.clone()).is_ok_and(|v4| v4.ip().is_loopback());
        v4 || SocketAddrV6::try_from(address.clone())
            .is_ok_and(|v6| v6.ip().is_loopback() || v6.ip().to_ipv4_mapped().is_some_and(|v4| v4.is_loopback()))
    };
    if here.address_family() == rustix::net::AddressFamily::UNIX || loopback(&here) {
        return true;
    }
    // One of the host's own addresses at both ends.
    let ip = |address: SocketAddrAny| {
        let v4 = SocketAddrV4::try_from(address.clone()).map(|v4| v4.ip().to_ipv6_mapped());
        v4.or_else(|_| SocketAddrV6::try_from(address).map(|v6| *v6.ip())).ok()
    };
    let there = rustix::net::getpeername(borrowed(fd)).ok().flatten().and_then(ip);
    there.is_some() && there == ip(here)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    forget(fd);
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::close(fd) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __close(fd: c_int) -> c_int {
    // SAFETY: [preload-program] the program's arguments.
    unsafe { close(fd) }
}

/// Before a descriptor is closed.
pub(super) fn forget(fd: c_int) {
    errno::kept(|| files::closing(fd));
    errno::kept(|| end::closing_own(fd as u32, fd as u32));
    table::note_in_set(fd, false);
    epoll::closing(fd);
    if sets::find(fd).is_some() && errno::kept(table::is_ours) {
        sets::disown(fd);
    }
    if let Some(connection) = table::find(fd)
        && errno::kept(table::is_ours)
    {
        end::close(fd, connection);
    }
}

/// Before all these are closed.
fn forget_range(first: c_uint, last: c_uint) {
    files::closing_range(first, last);
    end::closing_own(first, last);
    epoll::closing_range(first, last);
    for (fd, connection) in table::range(first, last) {
        end::close(fd, connection);
    }
    table::note_closed(first, last);
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    before_close_range(first, last, flags);
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::close_range(first, last, flags) }
}

/// Unless it closes nothing yet.
pub(super) fn before_close_range(first: c_uint, last: c_uint, flags: c_int) {
    if flags & CLOSE_RANGE_CLOEXEC == 0 {
        errno::kept(|| files::closing_in_vfork(first, last));
        if errno::kept(table::is_ours) {
            errno::kept(|| forget_range(first, last));
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn closefrom(first: c_int) {
    errno::kept(|| files::closing_in_vfork(first.max(0) as c_uint, c_uint::MAX));
    if errno::kept(table::is_ours) {
        forget_range(first.max(0) as c_uint, c_uint::MAX);
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::closefrom(first) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    give_up_to(Reader::Here, fd, "shutdown");
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::shutdown(fd, how) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: [preload-real] the program's arguments.
    let new = unsafe { real::dup(fd) };
    doubled(fd, new)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    if fd != to && borrowed_exists(fd) {
        forget(to);
    }
    // SAFETY: [preload-real] the program's arguments.
    let new = unsafe { real::dup2(fd, to) };
    if fd == to { new } else { doubled(fd, new) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: [preload-program] the program's arguments.
    unsafe { dup2(fd, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if fd != to && flags & !libc::O_CLOEXEC == 0 && borrowed_exists(fd) {
        forget(to);
    }
    // SAFETY: [preload-real] the program's arguments.
    let new = unsafe { real::dup3(fd, to, flags) };
    doubled(fd, new)
}

/// Whether a dup of it can succeed; only then is the target closed.
pub(super) fn borrowed_exists(fd: c_int) -> bool {
    fd >= 0 && errno::kept(|| rustix::io::fcntl_getfd(borrowed(fd)).is_ok())
}

/// `new` names what `fd` names. In a vfork child, which is about to become another program, the
/// connection goes back. What the call returns.
fn doubled(fd: c_int, new: c_int) -> c_int {
    if new < 0 {
        return new;
    }
    if let Err(error) = errno::kept(|| files::doubled(fd, new)) {
        // SAFETY: [preload-real] the descriptor that has just come about.
        unsafe { real::close(new) };
        return errno::fail(error) as c_int;
    }
    errno::kept(|| epoll::alias(fd, new));
    let Some(connection) = table::find(fd) else { return new };
    errno::kept(|| {
        if !table::is_ours() {
            give_up_to(Reader::Stranger, fd, "dup in a vfork child");
        } else if new <= libc::STDERR_FILENO {
            // The C library's streams read and write there by calls of their own.
            give_up_to(Reader::Stranger, fd, "a standard stream");
            table::add(new, connection);
        } else if !table::add(new, connection) {
            give_up(fd, "a descriptor above 65535");
        }
    });
    new
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: [preload-real] the program's arguments.
    let result = unsafe { real::fcntl(asked(fd, command), command, argument) };
    after_fcntl(fd, command, argument, result)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: [preload-program] the program's arguments.
    unsafe { fcntl(fd, command, argument) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: [preload-real] the program's arguments.
    let result = unsafe { real::fcntl64(asked(fd, command), command, argument) };
    after_fcntl(fd, command, argument, result)
}

/// Which descriptor a command is for.
fn asked(fd: c_int, command: c_int) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC | libc::F_GETFD | libc::F_SETFD => fd,
        _ => files::behind(fd),
    }
}

macro_rules! behind {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fd: c_int, $($argument: $type),*) -> c_int {
            // SAFETY: [preload-real] the program's arguments.
            unsafe { real::$name(files::behind(fd), $($argument),*) }
        }
    )*};
}

behind! {
    flock(operation: c_int);
    lockf(command: c_int, length: libc::off_t);
    lockf64(command: c_int, length: libc::off_t);
    fchmod(mode: libc::mode_t);
    fchown(owner: libc::uid_t, group: libc::gid_t);
    futimens(times: *const libc::timespec);
}

/// What the call returns.
fn after_fcntl(fd: c_int, command: c_int, argument: usize, result: c_int) -> c_int {
    if result < 0 {
        return result;
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => return doubled(fd, result),
        libc::F_SETFL => {
            set_nonblocking(fd, argument as c_int & libc::O_NONBLOCK != 0);
            if argument as c_int & libc::O_ASYNC != 0 {
                give_up(fd, "O_ASYNC");
            }
        }
        _ => {}
    }
    result
}

fn set_nonblocking(fd: c_int, on: bool) {
    if let Some(connection) = table::find(fd) {
        connection.nonblocking.store(on, Ordering::Relaxed);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    if let Some(connection) = table::find(fd)
        && connection.state() == State::Ring
        && let Some(bytes) = ring_bytes(fd, connection, request)
    {
        // SAFETY: [preload-program] the program's int.
        unsafe { (argument as *mut c_int).write(bytes) };
        return 0;
    }
    let of = if request == FICLONE { argument as c_int } else { fd };
    if [FICLONE, FICLONERANGE, FIDEDUPERANGE].contains(&request) && (files::has(fd) || files::has(of)) {
        // Programs copy bytes then.
        return errno::fail(libc::EOPNOTSUPP) as c_int;
    }
    // SAFETY: [preload-real] the program's arguments.
    let result = unsafe { real::ioctl(fd, request, argument) };
    if request == libc::FIOASYNC && result == 0 {
        give_up(fd, "FIOASYNC");
    }
    if request == libc::FIONBIO && result == 0 {
        // SAFETY: [preload-program] the program's int, which the system has read already.
        set_nonblocking(fd, unsafe { (argument as *const c_int).read() } != 0);
    }
    result
}

/// Bytes to be read, or not read by the peer yet; none when the kernel is to be asked.
fn ring_bytes(fd: c_int, connection: &'static Connection, request: c_ulong) -> Option<c_int> {
    if !matches!(request, libc::FIONREAD | libc::TIOCOUTQ) {
        return None;
    }
    let mut held = table::hold(fd, connection)?;
    let shared = held.ring()?;
    let (end, peer) = (held.end, held.end ^ 1);
    if request == libc::TIOCOUTQ {
        if !held.family.is_unix() {
            // What the peer's host has: bytes of a ring are there as soon as they are sent.
            return None;
        }
        let taken = held.out.taken(&shared, end).ok()?;
        return (!taken.switched && held.outgoing.has_begun()).then_some((held.out.head - taken.tail) as c_int);
    }
    let word = shared.tail(peer).load(Ordering::Acquire);
    let in_ring = if held.incoming.has_left() {
        held.rest()
    } else if word & SWITCHED != 0 {
        // What the sender has switched before comes through the kernel.
        (word & !SWITCHED).checked_sub(held.input.tail)?
    } else {
        held.input.waiting(&shared, peer).ok()?
    };
    // Before those of the ring may lie others, and wake bytes.
    let wake_bytes = crate::wake::issued(shared.wake_word(end)).saturating_sub(held.drained());
    Some((in_ring + crate::fallback::resend::unread(&held, fd, &shared).saturating_sub(wake_bytes)) as c_int)
}

const CLOSE_RANGE_CLOEXEC: c_int = 4;
const FICLONE: c_ulong = 0x4004_9409;
const FICLONERANGE: c_ulong = 0x4020_940d;
const FIDEDUPERANGE: c_ulong = 0xc018_9436;
