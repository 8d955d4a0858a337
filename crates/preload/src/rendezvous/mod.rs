//! The ends of a connection find each other, while it goes on through the kernel.
//!
//! After a few calls the side that connected listens on an abstract Unix socket whose name only the
//! two can tell; the side that accepted comes by and leaves a descriptor of new shared memory. Each
//! checks the other's user. Neither waits: both look in at the end of calls, less and less often,
//! and give up. Not one byte of the stream is touched.

pub(crate) mod remote;

use std::ffi::c_int;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use crate::connection::{Connection, Inner, LockHeld, State};
use crate::diagnosis::Reason;
use crate::eventfd;
use crate::fallback;
use crate::fault::{self, Fault};
use crate::kernel::{self, borrowed, option};
use crate::layout::{SWITCHED, SharedMemory};
use crate::name::Name;
use crate::own;
use crate::peer;
use crate::policy;
use crate::real;
use crate::reattach::{self, Progress};
use crate::sets;
use crate::state::{Family, Host, Life, Search};
use crate::step::{Action, Event, Sight};
use crate::table;
use crate::wake;

/// At the end of a call that went through the kernel: one step towards the ring, if it is time.
pub(crate) fn advance(held: &mut LockHeld<'_>, fd: c_int) {
    if held.connection.state() != State::Counting || held.operations < held.next_try || policy::is_fork_under_way() {
        return;
    }
    if matches!(held.life(), Life::Resting(_)) && !reattach(held) {
        return;
    }
    if held.shared().is_some() {
        return enter(held, fd);
    }
    if held.operations > GIVE_UP {
        return refuse(held, Reason::Alone);
    }
    held.next_try = if policy::is_soon() { 0 } else { held.operations + (held.operations / 2).max(1) };
    if held.search.socket().is_some_and(|socket| !own::is(socket)) {
        // The program has closed it, and may have another there.
        fallback::withdraw_offer(held);
    }
    if !held.is_ours_alone() || held.connection.tainted.load(Ordering::Relaxed) || policy::is_barred() {
        held.reason = Reason::SharedMemory;
        return;
    }
    if peer::own_user().is_none() {
        // It has changed its effective user, maybe for a while.
        held.reason = Reason::Alone;
        return;
    }
    let met = match (held.host, held.search) {
        (Host::Other, _) => remote::step(held, fd),
        (Host::This, _) if held.end == 1 => call(held, fd),
        (Host::This, Search::Listening(socket)) => let_in(held, socket),
        (Host::This, Search::Accepted(socket)) => answer(held, socket),
        (Host::This, Search::Idle | Search::Datagrams(_)) => offer(held, fd),
    };
    // On another host nobody listens.
    let refused = held.host == Host::Other && met == Err(Errno::CONNREFUSED);
    match met {
        Ok(()) => {}
        Err(Errno::AGAIN | Errno::CONNREFUSED | Errno::NOTCONN) => held.reason = Reason::Alone,
        // It has stopped listening.
        Err(Errno::PIPE | Errno::CONNRESET) => refuse(held, Reason::Alone),
        Err(Errno::NODEV) => return refuse(held, held.reason),
        Err(Errno::PERM | Errno::ADDRINUSE) => refuse(held, Reason::Refused),
        Err(_) => refuse(held, Reason::Exhausted),
    }
    if held.shared().is_some() {
        held.next_try = 0;
        enter(held, fd);
    } else if held.search != Search::Idle && !policy::is_soon() && !refused {
        held.next_try = held.operations + (held.operations / 16).max(1);
    }
}

/// One step of an end that rests; true when the rings are as they were at the first rendezvous.
fn reattach(held: &mut LockHeld<'_>) -> bool {
    if held.connection.tainted.load(Ordering::Relaxed) {
        refuse(held, Reason::Miscounted);
        return false;
    }
    let alone = reattach::may(held);
    match reattach::advance(held, alone) {
        Progress::Live => return true,
        Progress::Over => refuse(held, Reason::Peer),
        // To ask whether the others have ended costs a system call for each.
        Progress::Waiting if !alone => held.next_try = held.operations.saturating_add(ALONE_TURN),
        Progress::Waiting => {}
    }
    false
}

/// The kernel's for good.
fn refuse(held: &mut LockHeld<'_>, reason: Reason) {
    if let Action::Cancel = held.step(Event::Leaves(reason)) {
        held.reason = reason;
        fallback::cancel(held);
    }
}

/// Listens for the other end.
fn offer(held: &mut Inner, fd: c_int) -> Result<(), Errno> {
    let name = Name::of(fd, held.end).ok_or(Errno::NOTCONN)?;
    let socket = side_socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    rustix::net::listen(&socket, 1)?;
    held.search = Search::Listening(out_of_the_way(socket)?);
    Ok(())
}

/// Looks whether the other end has come by.
fn let_in(held: &mut LockHeld<'_>, socket: c_int) -> Result<(), Errno> {
    let caller = rustix::net::accept_with(borrowed(socket), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    is_one_of_us(&caller)?;
    fallback::withdraw_offer(held);
    let caller = out_of_the_way(caller)?;
    held.search = Search::Accepted(caller);
    answer(held, caller)
}

/// And what it has left. It may be between the two for long, on a busy machine.
fn answer(held: &mut LockHeld<'_>, caller: c_int) -> Result<(), Errno> {
    let (memory, eventfds) = receive(borrowed(caller))?;
    let shared = SharedMemory::passed(&memory)?;
    held.attach(shared, false);
    if let Some(eventfds) = eventfds {
        eventfd::keep(held, eventfds, &shared);
    }
    fallback::withdraw_offer(held);
    Ok(())
}

/// Goes to where the other end may listen and leaves the memory there.
fn call(held: &mut LockHeld<'_>, fd: c_int) -> Result<(), Errno> {
    let name = Name::of(fd, held.end).ok_or(Errno::NOTCONN)?;
    let socket = side_socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    is_one_of_us(&socket)?;
    let (shared, memory) = SharedMemory::create()?;
    held.attach(shared, true);
    let eventfds = eventfd::make();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let with = eventfds.as_ref().map(|[first, second]| [memory.as_fd(), first.as_fd(), second.as_fd()]);
    let alone = [memory.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(with.as_ref().map_or(&alone, |all| all)));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(&socket, &[IoSlice::new(&GREETING)], &mut ancillary, flags)?;
    if let Some(eventfds) = eventfds {
        eventfd::keep(held, eventfds, &shared);
    }
    Ok(())
}

/// The memory, and the eventfds if there are any.
fn receive(caller: BorrowedFd<'_>) -> Result<(OwnedFd, Option<[OwnedFd; 2]>), Errno> {
    let mut greeting = [0; 32];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(caller, &mut [IoSliceMut::new(&mut greeting)], &mut ancillary, flags)?;
    let (mut memory, mut eventfds) = (None, None);
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            memory = fds.next();
            eventfds = fds.next().zip(fds.next()).map(|(first, second)| [first, second]);
        }
    }
    if greeting.get(..got.bytes) != Some(&GREETING[..]) {
        return Err(Errno::PERM);
    }
    Ok((memory.ok_or(Errno::PERM)?, eventfds))
}

/// Memory is there: as soon as no call is in the kernel with the program's buffers, and the peer is
/// known to have it too, the ring is expected.
fn enter(held: &mut LockHeld<'_>, fd: c_int) {
    let Life::Attached { shared, .. } = held.life() else { return };
    if held.host == Host::Other && !matches!(remote::introduce(held, fd), Ok(true)) {
        if held.operations > GIVE_UP {
            refuse(held, Reason::Alone);
        }
        return;
    }
    // Wake bytes must not be held back; a program that corks its socket soon takes the cork out again.
    let corked = option(fd, libc::IPPROTO_TCP, libc::TCP_CORK).is_some_and(|cork| cork != 0);
    match (look(held), held.life()) {
        (Action::Enter, _) if !corked => {}
        (Action::Refuse(reason), _) => {
            held.reason = reason;
            return fallback::cancel(held);
        }
        (_, Life::Attached { .. }) if held.operations > GIVE_UP => return refuse(held, Reason::Alone),
        (_, Life::Resting(_)) => return held.reason = Reason::Fork,
        _ => return,
    }
    if let Err(reason) = fits(held, fd) {
        return refuse(held, reason);
    }
    if !sets::may_enter(fd, held.connection) {
        return refuse(held, Reason::Call("epoll"));
    }
    held.reason = Reason::None;
    fallback::resend::announce_socket(held, fd, &shared);
    // No call is in the kernel for it alone; but a thread may sleep in a set, and is woken by the first byte.
    if sets::is_watched(fd, held.connection) {
        eventfd::arm(held, &shared, wake::DATA | wake::ROOM);
    }
    come_in(held, &shared);
    sets::enter(fd, held.connection);
}

/// Whether an end that has the memory may expect the ring.
pub(crate) fn look(held: &mut LockHeld<'_>) -> Action {
    let Life::Attached { shared, called } = held.life() else { return Action::Nothing };
    let has_left = (shared.tail(0).load(Ordering::Acquire) | shared.tail(1).load(Ordering::Acquire)) & SWITCHED != 0;
    let may_reattach = has_left && reattach::is_open(&shared);
    let peer_is_there = !called || shared.present(held.peer()).load(Ordering::Acquire) == 1;
    // A thread that sleeps and knows nothing of rings, too: others would take its wake byte away.
    let early = held.connection.early.any() && !fault::is_planted(Fault::AttachesEarly);
    let is_busy = held.sending > 0 || held.receiving > 0 || early;
    // To ask for relatives costs a system call for each.
    let is_asked = !has_left && peer_is_there && !is_busy;
    let is_shared = is_asked && (!held.is_ours_alone() || held.connection.tainted.load(Ordering::Relaxed));
    held.step(Event::Looks(Sight { has_left, may_reattach, peer_is_there, is_busy, is_shared }))
}

/// From here on the ring is expected.
pub(crate) fn come_in(held: &mut LockHeld<'_>, shared: &SharedMemory) {
    shared.present(held.end).store(1, Ordering::Release);
    held.step(Event::Enters);
}

/// Whether the socket's settings and the kernel's own counts allow it.
fn fits(held: &mut LockHeld<'_>, fd: c_int) -> Result<(), Reason> {
    let socket = borrowed(fd);
    let flags = rustix::fs::fcntl_getfl(socket).map_err(|_| Reason::Refused)?;
    if flags.bits() & libc::O_ASYNC as u32 != 0 {
        return Err(Reason::Call("O_ASYNC"));
    }
    if sockopt::socket_type(socket) != Ok(SocketType::STREAM) {
        return Err(Reason::Refused);
    }
    if option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT) != Some(1) {
        return Err(Reason::Call("SO_RCVLOWAT"));
    }
    if sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX) {
        held.family = Family::Unix;
        if option(fd, libc::SOL_SOCKET, libc::SO_PASSCRED) != Some(0) {
            return Err(Reason::Call("SO_PASSCRED"));
        }
    } else {
        let counts = kernel_counts(fd).ok_or(Reason::Refused)?;
        let ours = (held.counts().sent.load(Ordering::Relaxed), held.counts().received.load(Ordering::Relaxed));
        if counts != ours {
            return Err(Reason::Miscounted);
        }
        if option(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE) != Some(0) {
            return Err(Reason::Call("SO_OOBINLINE"));
        }
        let nagle = sockopt::tcp_nodelay(socket) == Ok(false);
        held.family = Family::Tcp { nagle, cork: false };
        if nagle {
            sockopt::set_tcp_nodelay(socket, true).map_err(|_| Reason::Refused)?;
        }
    }
    held.connection.nonblocking.store(flags.contains(OFlags::NONBLOCK), Ordering::Relaxed);
    if !matches!(sockopt::socket_timeout(socket, sockopt::Timeout::Recv), Ok(None)) {
        held.connection.timed.store(true, Ordering::Relaxed);
    }
    Ok(())
}

/// Bytes that the program has sent and received over TCP, as the kernel counts them. The caller
/// knows that nobody receives; what the peer sends between two of these system calls must not make
/// it look as if bytes were missing.
fn kernel_counts(fd: c_int) -> Option<(u64, u64)> {
    for _ in 0..COUNT_TRIES {
        let unread = kernel::pending(fd);
        let (sent, arrived) = kernel_stream(fd)?;
        if kernel::pending(fd) == unread {
            return Some((sent, arrived.checked_sub(unread)?));
        }
    }
    None
}

/// Bytes that TCP has taken from the program, and that have arrived for it.
fn kernel_stream(fd: c_int) -> Option<(u64, u64)> {
    let mut info = [0u8; 256];
    let mut len = info.len() as libc::socklen_t;
    // SAFETY: [preload-real] a buffer of ours and its length.
    let done = unsafe { real::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &mut len) };
    if done != 0 || (len as usize) < TCPI_BYTES_RETRANS + 8 {
        return None;
    }
    let long = |at: usize| info.get(at..)?.first_chunk::<8>().map(|bytes| u64::from_ne_bytes(*bytes));
    let word = |at: usize| info.get(at..)?.first_chunk::<4>().map(|bytes| u32::from_ne_bytes(*bytes));
    let sent = long(TCPI_BYTES_SENT)?.checked_sub(long(TCPI_BYTES_RETRANS)?)? + u64::from(word(TCPI_NOTSENT_BYTES)?);
    Some((sent, long(TCPI_BYTES_RECEIVED)?))
}

/// Nobody but a process that could as well trace this one.
fn is_one_of_us(socket: &OwnedFd) -> Result<(), Errno> {
    if peer::is_one_of_us(socket.as_raw_fd()) { Ok(()) } else { Err(Errno::PERM) }
}

fn side_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// A descriptor that a program does not expect must not take a number that it does.
pub(crate) fn out_of_the_way(socket: OwnedFd) -> Result<c_int, Errno> {
    let socket = match own::aside(socket.as_fd()) {
        Some(double) => double,
        None => match rustix::io::fcntl_dupfd_cloexec(&socket, OUT_OF_THE_WAY) {
            Err(Errno::INVAL) => socket,
            high => high?,
        },
    };
    own::keep(socket).ok_or(Errno::MFILE)
}

/// Where ends are to meet at once: the first step towards the ring, for a new connection, and a
/// little time for the other end to come by.
pub(crate) fn at_once(fd: c_int, connection: Option<&'static Connection>, wait: bool) {
    let Some(connection) = connection.filter(|_| policy::is_soon()) else { return };
    let until = Instant::now() + SOON_WAIT;
    loop {
        let Some(mut held) = table::hold(fd, connection) else { return };
        advance(&mut held, fd);
        if connection.state() != State::Counting || !wait || Instant::now() >= until {
            return;
        }
        drop(held);
        kernel::nap();
    }
}

/// Kind, version and size of what is left at the other end.
const GREETING: [u8; 16] = *b"overside-sock-05";
/// Calls after which the other end will not come any more.
const GIVE_UP: u32 = 200;
/// Calls between two looks whether other processes still have the connection open.
const ALONE_TURN: u32 = 32;
const COUNT_TRIES: u32 = 10;
const OUT_OF_THE_WAY: c_int = 500;
/// Offsets in `struct tcp_info`.
const TCPI_BYTES_RECEIVED: usize = 128;
const TCPI_NOTSENT_BYTES: usize = 144;
const TCPI_BYTES_SENT: usize = 200;
const TCPI_BYTES_RETRANS: usize = 208;
/// How long a new connection waits where ends are to meet at once.
const SOON_WAIT: Duration = Duration::from_millis(10);
