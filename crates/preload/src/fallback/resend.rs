//! Unread bytes of a ring are put into the kernel's stream, for a program that will read the socket
//! without this library. Such a program runs after exec, has a descriptor that was passed on, or
//! reads by a stream of the C library.
//!
//! The receiver has switched the direction before what is unread (`leaving::Unread::SentAgain`).
//! Mostly the sender sends it again: at once where it sleeps in a call, else at its next one. A
//! sender that computes meanwhile is not waited for: the receiver borrows its socket from its
//! process, as a debugger would, where the system allows that, and sends in its place. One word
//! says who does it, so that it is done once; another how far that has come.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

use crate::connection::{Connection, Inner, LockHeld, State};
use crate::fault::Fault;
use crate::layout::{LEFT_TO_ANOTHER, SWITCHED, SharedMemory};
use crate::leaving::{self, Action, Event, InPlace, TakeAlong};
use crate::{drain, fallback, fault, futex, kernel, table, wake};

/// The sender is to be the one who sends again what lies behind the border. Refused as long
/// as the receiver is at it.
pub(crate) fn claim(held: &Inner, shared: &SharedMemory) -> Event {
    let claimed = kernel::soon(0, CLAIM_TRIES, || match claim_now(held, shared, held.end) {
        Event::Refused => None,
        event => Some(u64::from(event == Event::Broken)),
    });
    match claimed {
        None => Event::Refused,
        Some(0) => Event::Done,
        Some(_) => Event::Broken,
    }
}

/// The same of the receiver, in the sender's place.
fn claim_in_place(held: &Inner, shared: &SharedMemory) -> Event {
    claim_now(held, shared, held.peer())
}

/// One attempt for a direction. A process that was killed in the midst of it gives way; but where
/// it may have put bytes into the stream of which it has not told, nobody knows how to go on.
fn claim_now(held: &Inner, shared: &SharedMemory, direction: usize) -> Event {
    let (me, pusher) = (claimed_by(held.end, own_number()), shared.pusher(direction));
    let claim = |from, to| pusher.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
    match claim(0, me) {
        Ok(_) => Event::Done,
        Err(LOST) => Event::Broken,
        // A thread of this end has jumped out of it, if it is not for the process that has been killed.
        Err(other) if other & !GIVING == me || is_dead(other) => {
            let to = if other & GIVING == 0 { me } else { LOST };
            match claim(other, to) {
                Ok(_) if to == LOST => Event::Broken,
                Ok(_) => Event::Done,
                Err(_) => Event::Refused,
            }
        }
        Err(_) => Event::Refused,
    }
}

fn own_number() -> Pid {
    #[cfg(test)]
    if let Some(number) = crate::explore::own_number() {
        return number;
    }
    rustix::process::getpid()
}

/// What the word says while this process does it.
fn claimed_by(end: usize, process: Pid) -> u64 {
    ((process.as_raw_nonzero().get() as u64) << PROCESS_SHIFT) | (end as u64 + 1)
}

/// Whether the process that the word names has ended.
fn is_dead(word: u64) -> bool {
    let Some(process) = i32::try_from(word >> PROCESS_SHIFT).ok().and_then(Pid::from_raw) else { return true };
    #[cfg(test)]
    if let Some(dead) = crate::explore::is_dead(process) {
        return dead;
    }
    match rustix::process::pidfd_open(process, PidfdFlags::empty()) {
        Ok(process) => kernel::events(process.as_raw_fd(), PollFlags::IN).contains(PollFlags::IN),
        // Without descriptors left nobody knows; then it lives.
        Err(error) => error == Errno::SRCH,
    }
}

/// The claiming thread is about to do something that the others learn of only once it has
/// been said; or that is over.
pub(crate) fn mark_giving(shared: &SharedMemory, direction: usize, giving: bool) {
    let pusher = shared.pusher(direction);
    if giving {
        pusher.fetch_or(GIVING, Ordering::SeqCst);
    } else {
        pusher.fetch_and(!GIVING, Ordering::SeqCst);
    }
}

/// Whether a process was killed while it put bytes of the peer's into the stream, so that nobody
/// knows which of them are there.
pub(crate) fn is_unknown(shared: &SharedMemory, direction: usize) -> bool {
    let now = || shared.pusher(direction).load(Ordering::SeqCst);
    let word = now();
    // One that has come to its end since was not in the midst of it when it ended.
    word == LOST || word & GIVING != 0 && is_dead(word) && now() == word
}

/// Bytes behind the border that nobody has put into the kernel yet, as the receiver sees it.
pub(crate) fn due(held: &Inner, shared: &SharedMemory) -> u64 {
    if !held.incoming.has_left() {
        return 0;
    }
    if fault::is_planted(Fault::NothingDue) || fault::is_planted(Fault::LeavesUnread) {
        return 0;
    }
    let direction = held.peer();
    let head = shared.head(direction).load(Ordering::SeqCst);
    let pushed = shared.pushed(direction).load(Ordering::SeqCst).saturating_sub(1);
    leaving::due(held.border(), head, pushed)
}

/// Bytes that come to this end through the kernel: those in its stream, and those that are due. Who
/// sends them again tells of them before and after, so they are counted once.
pub(crate) fn unread(held: &Inner, fd: c_int, shared: &SharedMemory) -> u64 {
    if !held.incoming.has_left() {
        return kernel::pending(fd);
    }
    let direction = held.peer();
    let said = || (due(held, shared), shared.pusher(direction).load(Ordering::SeqCst) & GIVING);
    let mut counted = 0;
    for _ in 0..COUNT_TRIES {
        let before = said();
        counted = before.0 + kernel::pending(fd);
        if before == said() && before.1 == 0 {
            break;
        }
        rustix::thread::sched_yield();
    }
    counted
}

/// Whether a program that reads the socket without this library will miss bytes that are lost to
/// it. They lie in the ring, or the sender has ended in the midst of sending them again, and how
/// far it came is unknown. Or it will read a wake byte, or miss an error that a call of this
/// library has taken from the socket.
pub(crate) fn is_lost(held: &Inner, fd: c_int, shared: &SharedMemory) -> bool {
    let wake_bytes =
        shared.given(held.peer()).load(Ordering::SeqCst).min(held.incoming.wake_bytes().unwrap_or(u64::MAX));
    let untold = held.error.is_some() && kernel::pending(fd) == 0;
    // First whether it has ended: one that has not may be sending again at this moment.
    let has_reset = held.error.is_some() || shared.reset(held.peer()).load(Ordering::SeqCst) != 0;
    let is_over = has_reset || kernel::is_over(fd);
    untold || held.rest() > 0 || is_over && due(held, shared) > 0 || wake_bytes > held.drained()
}

/// Sends in the sender's place what is due: all of it, or with `partly` as much as the kernel
/// takes. True when it is all there.
pub(crate) fn in_place_of_sender(held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory, partly: bool) -> bool {
    if due(held, shared) == 0 {
        return true;
    }
    let direction = held.peer();
    let (mut socket, mut more) = (None, 0);
    let Some(wake_bytes) = held.incoming.wake_bytes() else { return false };
    let mut machine = InPlace::new(held.border(), wake_bytes, partly);
    leaving::run(&mut machine, |action| match action {
        Action::Borrow => {
            socket = borrow(held, fd, shared);
            if socket.is_some() { Event::Done } else { Event::Refused }
        }
        Action::Claim => claim_in_place(held, shared),
        Action::Give { from, until } => {
            let Some(number) = socket.as_ref().map(Theirs::number) else { return Event::Refused };
            let home = shared.home_now(direction);
            let (at, run) = shared.place(direction, from, home);
            let mut sent = Event::Refused;
            mark_giving(shared, direction, true);
            // What the kernel does not take now may never come there: its buffer is made larger then.
            for more in [more, usize::try_from(until - from).unwrap_or(usize::MAX)] {
                if sent == Event::Refused {
                    kernel::with_buffer_for(number, more, || {
                        if let Ok(bytes) = kernel::give(number, at, run.min(until - from) as usize) {
                            sent = Event::Word(bytes as u64);
                        }
                    });
                }
            }
            if sent == Event::Refused {
                mark_giving(shared, direction, false);
            }
            sent
        }
        action => {
            let number = socket.as_ref().map_or(-1, Theirs::number);
            let event = fallback::act(held, number, shared, direction, action);
            if let (Action::Room(bytes), Event::Done) = (action, event) {
                // A buffer whose size is set does not grow by itself any more, and so takes less than it might.
                more = usize::try_from(bytes).unwrap_or(0);
            }
            event
        }
    });
    futex::wake(shared.wake_word(direction));
    machine.there
}

/// Before somebody else reads the socket: wake bytes that lie behind unread bytes of before the
/// ring are taken out of the stream. Those bytes are read, and sent again by the sender's socket;
/// then the wake bytes come first, and are drained. As long as the sender has not left the ring,
/// and nobody asks to be woken, it puts nothing between them.
pub(crate) fn take_wake_bytes_out(held: &mut Inner, fd: c_int, shared: &SharedMemory) {
    let (own, direction) = (held.end, held.peer());
    let (start, received) = (shared.start(direction).load(Ordering::SeqCst), &held.counts().received);
    let before = start.saturating_sub(1).saturating_sub(received.load(Ordering::Relaxed));
    let stays = || shared.tail(direction).load(Ordering::SeqCst) & SWITCHED == 0;
    if before == 0
        || !is_findable(shared, direction)
        || held.incoming.has_left()
        || held.receiving > 0
        || held.drained_all(shared)
        || !stays()
    {
        return;
    }
    let issued = wake::disarm(shared.wake_word(own));
    let behind = issued.saturating_sub(held.drained());
    let is_there = || {
        shared.given(direction).load(Ordering::SeqCst) >= issued && kernel::pending(fd) == before.saturating_add(behind)
    };
    if kernel::soon(0, WAKE_BYTE_TRIES, || is_there().then_some(0)).is_none() {
        return;
    }
    let Some(socket) = borrow(held, fd, shared).filter(|socket| kernel::takes(socket.number(), before)) else {
        return;
    };
    let mut left = before;
    while left > 0 {
        let mut bytes = [0; PIECE];
        let want = left.min(PIECE as u64) as usize;
        let Ok(got @ 1..) = kernel::take(fd, bytes.as_mut_ptr(), want, false) else { break };
        left -= got as u64;
        if !give_all(socket.number(), bytes.get(..got).unwrap_or(&[])) {
            return break_off(fd);
        }
    }
    let drained = drain::last(held, fd, issued).is_none();
    if left > 0 || !drained || !stays() {
        // It has left in this very moment: what it sent may have come in between.
        break_off(fd);
    }
}

/// All of it, in spite of a buffer that is full for a moment.
fn give_all(socket: c_int, mut bytes: &[u8]) -> bool {
    for _ in 0..CLAIM_TRIES {
        match kernel::give(socket, bytes.as_ptr(), bytes.len()) {
            Ok(given) => bytes = bytes.get(given..).unwrap_or(&[]),
            Err(Errno::AGAIN) => kernel::nap(),
            Err(_) => return false,
        }
        if bytes.is_empty() {
            return true;
        }
    }
    false
}

/// Nobody has sent again what is due, and nobody will in time: this end takes it from the ring
/// after all, and the sender finds that it is done. False while the sender is at it, or was.
pub(crate) fn take_along(held: &mut Inner, shared: &SharedMemory) -> bool {
    let direction = held.peer();
    let mut machine = TakeAlong::default();
    leaving::run(&mut machine, |action| match action {
        Action::Claim => claim_in_place(held, shared),
        action => fallback::act(held, -1, shared, direction, action),
    });
    if machine.taken {
        // The sender counts them as sent through the kernel: it knows of two ways alone.
        held.count_received(usize::try_from(machine.bytes).unwrap_or(0));
    }
    machine.taken
}

/// What is due has a way to this end again: it is taken from the ring after all, or put
/// into the kernel's stream as far as that takes it. A sender that has sent a part again
/// may not come back for the rest.
pub(crate) fn fetch(held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory) -> bool {
    take_along(held, shared) || in_place_of_sender(held, fd, shared, true)
}

/// The peer's socket.
enum Theirs {
    Borrowed(OwnedFd),
    #[cfg(test)]
    OfTest(c_int),
}

impl Theirs {
    fn number(&self) -> c_int {
        match self {
            Self::Borrowed(socket) => socket.as_raw_fd(),
            #[cfg(test)]
            Self::OfTest(socket) => *socket,
        }
    }
}

/// The peer's own socket, as long as this is kept; none where the system does not allow it,
/// or it is not to be found.
fn borrow(held: &Inner, fd: c_int, shared: &SharedMemory) -> Option<Theirs> {
    #[cfg(test)]
    if let Some(socket) = crate::explore::borrow(fd) {
        return socket.map(Theirs::OfTest);
    }
    let peer = held.peer();
    let pid = Pid::from_raw(i32::try_from(shared.process(peer).load(Ordering::Acquire)).ok()?)?;
    let number = i32::try_from(shared.descriptor(peer).load(Ordering::Acquire).checked_sub(1)?).ok()?;
    let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
    let socket = rustix::process::pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()?;
    // Numbers are used again, and a peer may say anything.
    let is_it = sockopt::socket_cookie(&socket) == Ok(shared.cookie(peer).load(Ordering::Acquire))
        && sockopt::socket_type(&socket) == Ok(SocketType::STREAM)
        && is_of_this_connection(fd, &socket);
    is_it.then_some(Theirs::Borrowed(socket))
}

/// Whether the peer has said where its socket is.
fn is_findable(shared: &SharedMemory, peer: usize) -> bool {
    #[cfg(test)]
    if crate::explore::is_on() {
        return true;
    }
    shared.process(peer).load(Ordering::Acquire) != 0
}

/// Over TCP the names of both ends tell. Sockets of a pair have none; there the number that the
/// peer has said is all there is.
fn is_of_this_connection(fd: c_int, theirs: &OwnedFd) -> bool {
    let ours = kernel::borrowed(fd);
    let (here, there) = (rustix::net::getsockname(ours), rustix::net::getpeername(ours));
    let (Ok(here), Ok(there)) = (here, there) else { return false };
    if here.address_family() == AddressFamily::UNIX {
        let ours = sockopt::socket_cookie(ours);
        return sockopt::socket_domain(theirs) == Ok(AddressFamily::UNIX) && ours != sockopt::socket_cookie(theirs);
    }
    rustix::net::getpeername(theirs).is_ok_and(|peer| peer == Some(here))
        && Some(rustix::net::getsockname(theirs)).and_then(Result::ok) == there
}

/// This end's socket, as the peer may look for it.
pub(crate) fn announce_socket(held: &Inner, fd: c_int, shared: &SharedMemory) {
    let end = held.end;
    let cookie = sockopt::socket_cookie(kernel::borrowed(fd)).unwrap_or(0);
    shared.cookie(end).store(cookie, Ordering::Relaxed);
    shared.process(end).store(rustix::process::getpid().as_raw_nonzero().get() as u64, Ordering::Relaxed);
    shared.descriptor(end).store(fd as u64 + 1, Ordering::Release);
}

/// A descriptor is about to be closed, which the peer may know as the one of this end's
/// socket: it is told of another.
pub(crate) fn announce_socket_elsewhere(fd: c_int, connection: &'static Connection) {
    if connection.state() == State::Ring
        && connection.descriptors.load(Ordering::Acquire) > 1
        && let Some(held) = table::hold(fd, connection)
        && let Some(shared) = held.shared()
        && let Some((other, _)) = table::all().find(|(other, it)| *other != fd && std::ptr::eq(*it, connection))
    {
        announce_socket(&held, other, &shared);
    }
}

/// This end is closed over bytes that nobody can send again, and the peer's socket is read by a
/// program that has no ring: the kernel says reset there, and not that it was all. Between Unix
/// sockets it does so where the one that is closed has something unread.
pub(crate) fn break_for_reader(held: &Inner, fd: c_int, shared: &SharedMemory) {
    if !held.outgoing.has_backlog() || shared.left(held.peer()).load(Ordering::SeqCst) != LEFT_TO_ANOTHER {
        return;
    }
    if !held.family.is_unix() {
        let _ = sockopt::set_socket_linger(kernel::borrowed(fd), Some(Duration::ZERO));
    } else if let Some(socket) = borrow(held, fd, shared) {
        let _ = kernel::give(socket.number(), &0, 1);
    }
}

/// A program that knows nothing of the ring is about to read the socket, and the bytes in the ring
/// cannot reach it in any other way. It reads an error, not the end of the stream. Another socket
/// whose peer has reset it takes the descriptor's place.
pub(crate) fn break_off(fd: c_int) {
    #[cfg(test)]
    if crate::explore::break_off(fd) {
        return;
    }
    let Ok((ours, other)) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
    else {
        return;
    };
    let _ = kernel::give(ours.as_raw_fd(), &0, 1);
    // With a byte unread, which makes it a reset.
    drop(other);
    let flags = if kernel::is_inherited(fd) { 0 } else { libc::O_CLOEXEC };
    // SAFETY: [preload-real] two descriptors, of which the second stays the program's.
    let _ = unsafe { crate::real::dup3(ours.as_raw_fd(), fd, flags) };
}

/// Of the word that says who sends again: the end, one more than its number; its process;
/// and whether it is giving.
const GIVING: u64 = 4;
const PROCESS_SHIFT: u32 = 3;
/// What it says when nobody can any more.
const LOST: u64 = u64::MAX;
/// Looks at what is being sent again, until it stands still.
const COUNT_TRIES: u32 = 64;
/// Milliseconds that a receiver may take.
const CLAIM_TRIES: u32 = 100;
/// Milliseconds that a wake byte may be on its way.
const WAKE_BYTE_TRIES: u32 = 20;
/// Bytes that are sent again at once.
const PIECE: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// The sender's side of a connection whose receiver has said that it sends in its place.
    fn claimed_by_receiver(process: Pid, giving: u64) -> (SharedMemory, Inner) {
        let (shared, _) = SharedMemory::create().unwrap();
        let sender = Inner::new(0);
        shared.pusher(0).store(claimed_by(1, process) | giving, Ordering::SeqCst);
        (shared, sender)
    }

    fn ended() -> Pid {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        Pid::from_raw(child.id() as i32).unwrap()
    }

    #[test]
    fn as_long_as_a_process_lives_it_alone_sends_again() {
        let (shared, held) = claimed_by_receiver(rustix::process::getpid(), 0);
        assert_eq!(claim(&held, &shared), Event::Refused);
        shared.pusher(0).store(0, Ordering::SeqCst);
        assert_eq!(claim(&held, &shared), Event::Done);
        // SAFETY: [preload-shared] not used afterwards.
        unsafe { shared.unmap() };
    }

    #[test]
    fn a_process_that_was_killed_gives_way_unless_nobody_knows_how_far_it_came() {
        let (shared, held) = claimed_by_receiver(ended(), 0);
        assert!(!is_unknown(&shared, 0));
        assert_eq!(claim(&held, &shared), Event::Done);
        assert_eq!(shared.pusher(0).load(Ordering::SeqCst), claimed_by(0, rustix::process::getpid()));
        // SAFETY: [preload-shared] not used afterwards.
        unsafe { shared.unmap() };
        let (shared, held) = claimed_by_receiver(ended(), GIVING);
        assert!(is_unknown(&shared, 0));
        let receiver = Inner::new(1);
        for _ in 0..2 {
            assert_eq!((claim(&held, &shared), claim_in_place(&receiver, &shared)), (Event::Broken, Event::Broken));
            assert!(is_unknown(&shared, 0), "for good");
        }
        // SAFETY: [preload-shared] not used afterwards.
        unsafe { shared.unmap() };
    }

    /// Or a wake byte of the next time in the rings is taken for a byte of before it.
    #[test]
    fn what_is_taken_along_counts_at_both_ends() {
        let (shared, _) = SharedMemory::create().unwrap();
        let [mut sender, mut receiver] = [0, 1].map(Inner::new);
        sender.step(crate::step::Event::Begins { given: 0 });
        sender.out.head = 5;
        shared.head(0).store(5, Ordering::SeqCst);
        sender.step(crate::step::Event::StopsSending { resend: 0, head: 5 });
        receiver.step(crate::step::Event::StopsReceiving { wake_bytes: Some(0) });
        assert!(take_along(&mut receiver, &shared));
        assert_eq!(fallback::push(&mut sender, -1, &shared), Ok(()));
        let counts = (sender.counts().sent.load(Ordering::SeqCst), receiver.counts().received.load(Ordering::SeqCst));
        assert_eq!(counts, (5, 5));
        // SAFETY: [preload-shared] not used afterwards.
        unsafe { shared.unmap() };
    }

    /// Between a piece that goes to the kernel and the word that tells of it.
    #[test]
    fn what_is_given_is_marked_until_it_is_said() {
        let (shared, _) = claimed_by_receiver(rustix::process::getpid(), 0);
        let (mut inner, before) = (Inner::new(0), shared.pusher(0).load(Ordering::SeqCst));
        let word = || shared.pusher(0).load(Ordering::SeqCst);
        fallback::act(&mut inner, -1, &shared, 0, Action::SayBorder(7));
        assert_eq!(word(), before | GIVING);
        fallback::act(&mut inner, -1, &shared, 0, Action::SayPushed(7));
        assert_eq!(word(), before);
        // SAFETY: [preload-shared] not used afterwards.
        unsafe { shared.unmap() };
    }
}
