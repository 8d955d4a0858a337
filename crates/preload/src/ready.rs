//! What a ring connection is ready for, beside what the kernel says of its socket.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use rustix::event::PollFlags;

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLPRI, POLLRDHUP};

use crate::connection::{Connection, LockHeld, State};
use crate::fault::Fault;
use crate::layout::{SWITCHED, SharedMemory};
use crate::ring::Receiver;
use crate::sets::{READS, Reported, WRITES};
use crate::sleepers::{Counted, Present};
use crate::state::Source;
use crate::{drain, eventfd, fallback, fault, incoming, kernel, outgoing, table, wake};

/// How one connection is to be waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Look {
    /// Events that stand now by the rings.
    pub(crate) ready: i16,
    /// Events to ask the kernel for in the program's place.
    pub(crate) ask: i16,
    /// Something in passing is not to be waited for for long.
    pub(crate) brief: bool,
    /// The connection is the kernel's; `ask` is what the program wants.
    pub(crate) plain: bool,
    /// What there is to tell now.
    pub(crate) news: Reported,
    /// The eventfd to wait for as well.
    pub(crate) eventfd: Option<c_int>,
    /// A wake request was left, so who sleeps now will be woken.
    pub(crate) armed: bool,
    /// Those who are to run before a wake-up can be taken away, and this thread can sleep.
    pub(crate) others: Option<Others>,
}

/// Those who are counted among the sleepers of a connection's wake byte, or of its eventfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Others {
    OfWakeByte(Present),
    OfEventfd(Present),
}

impl Others {
    /// Whether anybody is counted: one who sleeps in a set is not.
    #[cfg(test)]
    pub(crate) fn is_anybody(self) -> bool {
        match self {
            Self::OfWakeByte(present) | Self::OfEventfd(present) => present.is_anybody(),
        }
    }

    /// Until they have run. False when a signal's handler came in between.
    pub(crate) fn outwait(self, connection: &Connection) -> bool {
        match self {
            Self::OfWakeByte(present) => connection.sleepers.outwait(present),
            Self::OfEventfd(present) => connection.pollers.outwait(present),
        }
    }
}

/// Where a thread that sleeps for a connection in poll is counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seat {
    connection: Option<&'static Connection>,
    byte: Option<Counted>,
    eventfd: Option<Counted>,
    early: Option<Counted>,
}

impl Seat {
    /// Where it is counted.
    #[cfg(test)]
    pub(crate) fn counted(&self) -> [Option<Counted>; 3] {
        [self.byte, self.eventfd, self.early]
    }

    /// The thread is awake, maybe because it `signalled` the eventfd. That is said before it is no
    /// longer counted, so nobody has drained it yet.
    pub(crate) fn rise(&mut self, signalled: bool) {
        let Self { connection: Some(connection), byte, eventfd, early } = std::mem::take(self) else { return };
        if signalled {
            connection.signalled.store(1, Ordering::SeqCst);
        }
        let counts = [(&connection.sleepers, byte), (&connection.pollers, eventfd), (&connection.early, early)];
        for (sleepers, counted) in counts {
            if let Some(counted) = counted {
                sleepers.leave(counted);
            }
        }
    }
}

impl Look {
    /// Leaves nothing ready when all of it has been told before.
    fn since(mut self, reported: Option<Reported>) -> Self {
        if let Some(reported) = reported {
            let arrived = self.ready & READS != 0 && self.news.head != reported.head;
            let room = self.ready & WRITES != 0 && self.news.fulls != reported.fulls;
            if !arrived && !room {
                self.ready = 0;
            }
        }
        self
    }
}

/// Looks at a connection. With a seat, everything is put in order for sleeping, and the thread is
/// counted if it can sleep, `by_wake_bytes` for one who cannot wait for eventfds.
pub(crate) fn look(
    fd: c_int,
    connection: &'static Connection,
    wanted: i16,
    seat: Option<&mut Seat>,
    by_wake_bytes: bool,
) -> Look {
    let Some(mut held) = table::hold(fd, connection) else {
        if seat.is_some() && connection.state() == State::Counting {
            // It cannot be counted, so the ends must not meet.
            connection.tainted.store(true, Ordering::Relaxed);
        }
        if let Some(broken) = of_broken(connection, wanted) {
            return broken;
        }
        return Look { ask: wanted, plain: true, ..Look::default() };
    };
    let Some(seat) = seat else { return look_held(&mut held, fd, wanted, false, None) };
    let others = drain::eventfd(&mut held, fd).map(Others::OfEventfd);
    let mut look = look_held(&mut held, fd, wanted, others.is_none(), None);
    look.others = look.others.or(others);
    if by_wake_bytes
        && look.eventfd.take().is_some()
        && let Some(shared) = held.shared()
    {
        shared.arm(held.end, request_of(wanted));
        let again = look_held(&mut held, fd, wanted, false, None);
        (look.ready, look.brief) = (again.ready, look.brief || again.brief);
    }
    *seat = Seat { connection: Some(connection), ..Seat::default() };
    if look.plain && connection.state() == State::Counting {
        seat.early = Some(connection.early.join());
    } else if look.armed && look.ready == 0 && !look.brief && look.others.is_none() {
        seat.byte = (wanted & (READS | WRITES) != 0).then(|| connection.sleepers.join());
        seat.eventfd = look.eventfd.map(|_| connection.pollers.join());
    }
    look
}

/// What is to be told of a connection that is broken: an error, which the next call says. The
/// kernel does not know of it.
pub(crate) fn of_broken(connection: &Connection, wanted: i16) -> Option<Look> {
    let broken = connection.state() == State::Ring && connection.is_broken();
    broken.then(|| Look { ready: POLLERR | wanted & (READS | WRITES), ..Look::default() })
}

/// By one who has the connection's lock. With `sleep`, wake bytes of before are drained and a
/// wake request is left, and what stands after that is told; with `reported`, nothing is ready
/// that has been told already.
pub(crate) fn look_held(
    held: &mut LockHeld<'_>,
    fd: c_int,
    wanted: i16,
    sleep: bool,
    reported: Option<Reported>,
) -> Look {
    let plain = Look { ask: wanted, plain: true, ..Look::default() };
    if held.connection.state() != State::Ring {
        return plain;
    }
    let Some(shared) = held.ring() else { return plain };
    fallback::respond(held, fd);
    if held.incoming.has_left() {
        incoming::progress(held, fd);
        if held.connection.state() != State::Ring {
            return plain;
        }
        if fallback::resend::due(held, &shared) > 0 && !kernel::something(fd) {
            fallback::resend::fetch(held, fd, &shared);
        }
    }
    let mut look = standing(held, fd, &shared, wanted).since(reported);
    if sleep && look.ready == 0 {
        let request = request_of(wanted);
        if !look.brief && !held.incoming.has_left() {
            look.others = drain::wake_bytes(held, fd, &shared).map(Others::OfWakeByte);
            look.brief = look.others.is_some();
            eventfd::arm(held, &shared, request);
            look.armed = true;
            look.eventfd = eventfd::to_wait_for(held, &shared);
        }
        if fault::is_planted(Fault::NoLookAgain) {
            return look;
        }
        let again = standing(held, fd, &shared, wanted).since(reported);
        (look.ready, look.news) = (again.ready, again.news);
        let switched = shared.tail(held.end).load(Ordering::SeqCst) & SWITCHED != 0;
        look.brief |= again.brief
            || switched && !held.outgoing.has_left()
            || look.ready == 0 && (shared.is_new() || fallback::is_unsettled(held));
    }
    look
}

fn request_of(wanted: i16) -> u64 {
    (if wanted & READS != 0 { wake::DATA } else { 0 }) | if wanted & WRITES != 0 { wake::ROOM } else { 0 }
}

fn standing(held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory, wanted: i16) -> Look {
    // Wake bytes arrive as bytes; who wants neither to read nor to write is not to be woken by them.
    let wake_bytes = if wanted & (READS | WRITES) != 0 { POLLIN } else { 0 };
    let mut look = Look { ask: wanted & (POLLPRI | POLLRDHUP) | wake_bytes, ..Look::default() };
    look.news.fulls = held.connection.fulls.load(Ordering::Relaxed);
    let is_reset = held.family.is_unix() && shared.reset(held.peer()).load(Ordering::Acquire) != 0;
    let peer = held.peer();
    let all_read = held.rest() == 0 && (held.incoming.has_left() || held.input.waiting(shared, peer) == Ok(0));
    if held.error.is_some() || is_reset && all_read {
        // Of a Unix socket the kernel knows no reset for bytes that lay in the ring. An error: one of our own calls has taken it from the socket, and the program has not been told yet.
        look.ready |= POLLERR | wanted & READS;
    }
    let source = held.source(shared);
    let kernel_first = comes_by_kernel(held, shared);
    if wanted & READS != 0 {
        let peer = held.peer();
        let waits = if held.rest() > 0 {
            // Of a taken-along rest a set is told as of what has just arrived.
            look.news.head = held.border();
            true
        } else {
            // Not by the count alone: a program may have said how much must be there.
            let pending = kernel_first
                && is_before_ring(held, shared)
                && kernel::pending(fd) > 0
                && kernel::events(fd, PollFlags::IN).contains(PollFlags::IN);
            if kernel_first {
                shared.refresh(fd);
            }
            // What has come in just now may say that the ring has begun, and bring its bytes: nobody says so again.
            if comes_by_kernel(held, shared) {
                pending && is_before_ring(held, shared)
            } else {
                look.news.head = shared.head(peer).load(Ordering::Acquire);
                held.input.waiting(shared, peer).map_or(true, |bytes| bytes > 0)
            }
        };
        if waits {
            look.ready |= wanted & READS;
        }
    }
    if !held.outgoing.is_in_ring() {
        look.ask |= wanted & WRITES;
        look.brief |= held.outgoing.has_backlog();
        if wanted & WRITES != 0 && is_owed_room(held, fd) {
            look.ready |= wanted & WRITES;
        }
    } else if wanted & WRITES != 0 {
        let end = held.end;
        if held.out.taken(shared, end).is_err() || held.out.has_room() || outgoing::deepen(held, fd, shared) {
            look.ready |= wanted & WRITES;
        } else {
            look.brief |= held.out.may_deepen();
        }
        // A peer that has not started cannot wake when there is room.
        look.brief |= source == Source::NotBegun;
    }
    look
}

/// Whether the program was told that the ring is full, which holds less than the kernel takes: to a
/// poll the kernel says that there is room only when much of it is free.
fn is_owed_room(held: &LockHeld<'_>, fd: c_int) -> bool {
    held.out.was_full() && !held.outgoing.has_backlog() && kernel::takes(fd, 1)
}

/// Whether what is to be read next comes through the kernel.
fn comes_by_kernel(held: &LockHeld<'_>, shared: &SharedMemory) -> bool {
    held.source(shared) != Source::Ring
}

/// Whether that is of before the ring.
fn is_before_ring(held: &LockHeld<'_>, shared: &SharedMemory) -> bool {
    held.source(shared).is_before_ring()
}

/// What the kernel's answer to `ask` means for the program.
pub(crate) fn translate(fd: c_int, connection: &'static Connection, wanted: i16, asked: Look, got: i16) -> i16 {
    if asked.plain {
        return got;
    }
    match table::hold(fd, connection) {
        Some(mut held) => match translate_held(&mut held, fd, wanted, asked.ask, got, None) {
            // It has gone back meanwhile: all that the kernel says is the program's.
            Look { plain: true, .. } => kernel::events(fd, PollFlags::from_bits_retain(wanted as u16)).bits() as i16,
            Look { ready, .. } => ready,
        },
        None => got & wanted | of_broken(connection, wanted).map_or(0, |broken| broken.ready),
    }
}

/// As `translate`, by one who has the connection's lock; with `reported`, only
/// when something of it is new.
pub(crate) fn translate_held(
    held: &mut LockHeld<'_>,
    fd: c_int,
    wanted: i16,
    ask: i16,
    got: i16,
    reported: Option<Reported>,
) -> Look {
    let shared = held.ring();
    let got = shared.map_or(got, |shared| without_wake_byte(held, &shared, wanted, got));
    let mut events = got & (POLLERR | POLLHUP | POLLNVAL | wanted & (POLLPRI | POLLRDHUP));
    if ask & WRITES != 0 {
        events |= got & wanted & WRITES;
    }
    let Some(shared) = shared else { return Look { ready: events, plain: true, ..Look::default() } };
    let mut look = standing(held, fd, &shared, wanted);
    if got & (POLLIN | POLLHUP | POLLRDHUP | POLLERR) != 0 {
        if look.ready & READS == 0 {
            // A wake byte, or the end, or what the kernel had before.
            held.dry.look_next();
            if held.incoming.has_left() {
                incoming::progress(held, fd);
            } else {
                drain::wake_bytes(held, fd, &shared);
            }
            if held.connection.state() != State::Ring {
                return Look { ready: events, plain: true, ..Look::default() };
            }
            // A peer that has ended may owe a wake byte, which never comes.
            let wake_bytes_are_gone = held.drained_all(&shared) || kernel::is_over(fd) && kernel::pending(fd) == 0;
            if wake_bytes_are_gone && kernel::something(fd) {
                events |= wanted & READS;
            }
        } else if comes_by_kernel(held, &shared) {
            // Of bytes of before the ring the kernel's word is the news: the ring's position says nothing of them.
            events |= wanted & READS;
        }
        if wanted & WRITES & !look.ready != 0 && look.ask & WRITES == 0 && kernel::is_over(fd) {
            // Nobody will ever take a byte from the ring: the kernel is to say so to the next send.
            fallback::switch_out(held, &shared);
            events |= kernel::events(fd, PollFlags::OUT).bits() as i16 & wanted;
        }
    }
    if events == 0 {
        look = look.since(reported);
    }
    look.ready |= events;
    look
}

/// What the kernel would say of the end of a peer without the wake byte that it had not
/// read when it was killed.
fn without_wake_byte(held: &mut LockHeld<'_>, shared: &SharedMemory, wanted: i16, got: i16) -> i16 {
    // The other end of a Unix socket that is gone hangs up anyway.
    let of_resets = if held.family.is_unix() { POLLERR } else { POLLERR | POLLHUP };
    if got & of_resets != 0 && got & !of_resets & wanted != 0 && fallback::is_of_a_wake_byte(held, shared) {
        got & !of_resets
    } else {
        got
    }
}

/// Whether there is anything new for somebody who spins. Without the lock: `Watch`
/// keeps the memory mapped.
#[derive(Clone, Copy)]
pub(crate) struct Watch {
    pub(crate) connection: &'static Connection,
    shared: SharedMemory,
    end: usize,
    tail: u64,
    taken: u64,
    wanted: i16,
}

impl Watch {
    /// With `reported`, what has been told already is not new.
    pub(crate) fn begin(
        fd: c_int,
        connection: &'static Connection,
        wanted: i16,
        reported: Option<Reported>,
    ) -> Option<Self> {
        let held = table::hold(fd, connection)?;
        let shared = held.ring()?;
        connection.watchers.fetch_add(1, Ordering::SeqCst);
        let taken = held.out.seen();
        let tail = reported.map_or(held.input.tail, |reported| reported.head.max(held.input.tail));
        Some(Self { connection, shared, end: held.end, tail, taken, wanted })
    }

    #[inline]
    pub(crate) fn is_stirring(&self) -> bool {
        Receiver::is_stirring(&self.shared, self.end ^ 1, self.tail)
            || self.wanted & WRITES != 0 && self.shared.tail(self.end).load(Ordering::Acquire) != self.taken
    }

    /// Whether the peer was last seen waiting on this processor.
    pub(crate) fn peer_is_here(&self, here: u64) -> bool {
        self.shared.processor(self.end).store(here, Ordering::Relaxed);
        self.shared.processor(self.end ^ 1).load(Ordering::Relaxed) == here
    }

    pub(crate) fn end(self) {
        self.connection.watchers.fetch_sub(1, Ordering::SeqCst);
    }
}
