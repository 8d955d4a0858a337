//! The kernel, as far as the library sees it.

use std::ffi::c_int;

use rustix::event::PollFlags;
use rustix::io::Errno;

use super::set::{ALL, Interest};
use super::{EVENTFDS, Outcome, PROCESSES, Packed, RUN, SOCKETS, is_on, step};
use crate::word::Word;

/// Bytes that a stream may hold, at most.
pub(super) const STREAM: usize = 8;

/// One direction of a socket: what was sent and not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stream {
    bytes: [u8; STREAM],
    len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kernel {
    /// Towards end 0 and towards end 1.
    streams: [Stream; 2],
    pub(super) room: usize,
    /// Processes that have their end's socket open.
    pub(super) open: [bool; PROCESSES],
    /// Nobody has this end's socket open any more.
    pub(super) closed: [bool; 2],
    /// An error that this end's next receive, or look at it, takes.
    reset: [bool; 2],
    /// The descriptor was given to a socket that is broken.
    pub(super) broken: [bool; PROCESSES],
    eventfds: [bool; 2],
    /// What end 1's set of epoll has of its socket and of its eventfd.
    pub(super) interests: [Option<Interest>; 2],
    /// Those that sleep on the word of this end are woken.
    pub(super) woken: [bool; 2],
    /// It has refused a byte, once.
    pub(super) was_full: bool,
    /// Ends whose close is a reset.
    aborts: [bool; 2],
}

impl Kernel {
    pub(super) fn new(room: usize) -> Self {
        Self {
            streams: [Stream { bytes: [0; STREAM], len: 0 }; 2],
            room,
            open: [true, true, false],
            closed: [false; 2],
            reset: [false; 2],
            broken: [false; PROCESSES],
            eventfds: [false; 2],
            interests: [None; 2],
            woken: [false; 2],
            was_full: false,
            aborts: [false; 2],
        }
    }

    fn left(&self, end: usize) -> usize {
        self.room - self.streams[end].len
    }

    pub(super) fn send(&mut self, end: usize, bytes: &[u8]) -> Result<usize, Errno> {
        let peer = end ^ 1;
        if self.closed[peer] {
            return Err(Errno::PIPE);
        }
        let taken = bytes.len().min(self.left(peer));
        self.was_full |= taken < bytes.len();
        if taken == 0 {
            return Err(Errno::AGAIN);
        }
        let stream = &mut self.streams[peer];
        stream.bytes[stream.len..stream.len + taken].copy_from_slice(&bytes[..taken]);
        stream.len += taken;
        self.stir(peer, false, libc::EPOLLIN as u32);
        Ok(taken)
    }

    pub(super) fn receive(&mut self, process: usize, len: usize, look: bool) -> Result<([u8; STREAM], usize), Errno> {
        let end = end_of(process);
        if self.broken[process] {
            return Err(Errno::CONNRESET);
        }
        let was_full = self.left(end) == 0;
        let stream = &mut self.streams[end];
        let taken = len.min(stream.len);
        if taken == 0 {
            return match (std::mem::take(&mut self.reset[end]), self.closed[end ^ 1]) {
                (true, _) => Err(Errno::CONNRESET),
                (false, true) => Ok(([0; STREAM], 0)),
                (false, false) => Err(Errno::AGAIN),
            };
        }
        let mut bytes = [0; STREAM];
        bytes[..taken].copy_from_slice(&stream.bytes[..taken]);
        if !look {
            stream.bytes.copy_within(taken.., 0);
            stream.bytes[STREAM - taken..].fill(0);
            stream.len -= taken;
            if was_full {
                self.stir(end ^ 1, false, libc::EPOLLOUT as u32);
            }
        }
        Ok((bytes, taken))
    }

    pub(super) fn events(&self, end: usize) -> PollFlags {
        let mut events = PollFlags::empty();
        let ended = self.closed[end ^ 1];
        events.set(PollFlags::IN, self.streams[end].len > 0 || ended || self.reset[end]);
        events.set(PollFlags::OUT, self.left(end ^ 1) > 0 || ended);
        events.set(PollFlags::RDHUP | PollFlags::HUP, ended);
        events.set(PollFlags::ERR, self.reset[end]);
        events
    }

    pub(super) fn is_signalled(&self, end: usize) -> bool {
        self.eventfds[end]
    }

    pub(super) fn is_alone(&self, process: usize) -> bool {
        (0..PROCESSES).all(|other| other == process || end_of(other) != end_of(process) || !self.open[other])
    }

    /// A process closes its socket; or it ends.
    pub(super) fn close(&mut self, process: usize) {
        self.open[process] = false;
        let end = end_of(process);
        if !self.is_alone(process) || self.closed[end] {
            return;
        }
        self.closed[end] = true;
        self.reset[end ^ 1] |= self.streams[end].len > 0 || self.aborts[end];
        self.streams[end] = Stream { bytes: [0; STREAM], len: 0 };
        self.stir(end ^ 1, false, ALL);
    }
}

pub(super) fn end_of(process: usize) -> usize {
    process.min(1)
}

fn process_of(fd: c_int) -> usize {
    match usize::try_from(fd - SOCKETS) {
        Ok(process) if process < PROCESSES => process,
        _ => panic!("a descriptor that is none of the connection's: {fd}"),
    }
}

fn kernel<T>(f: impl FnOnce(&mut Kernel) -> T) -> T {
    RUN.with_borrow_mut(|run| f(&mut run.as_mut().unwrap().kernel))
}

/// What a receive came to.
struct Took(Result<([u8; STREAM], usize), Errno>);

impl Outcome for Took {
    fn pack(&self) -> Packed {
        match self.0 {
            Ok((bytes, len)) => [u64::from_le_bytes(bytes), len as u64],
            Err(error) => [error.raw_os_error() as u64, u64::MAX],
        }
    }
    fn unpack(packed: Packed) -> Self {
        match packed[1] {
            u64::MAX => Self(Err(Errno::from_raw_os_error(packed[0] as i32))),
            len => Self(Ok((packed[0].to_le_bytes(), len as usize))),
        }
    }
}

pub(crate) fn take(fd: c_int, to: *mut u8, len: usize, look: bool) -> Option<Result<usize, Errno>> {
    let took = is_on().then(|| step(|| Took(kernel(|kernel| kernel.receive(process_of(fd), len, look)))))?;
    Some(took.0.map(|(bytes, taken)| {
        // SAFETY: the caller's buffer, of `len` bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, taken) };
        taken
    }))
}

pub(crate) fn give(fd: c_int, from: *const u8, len: usize) -> Option<Result<usize, Errno>> {
    // SAFETY: the caller's bytes.
    let bytes = || unsafe { std::slice::from_raw_parts(from, len) };
    is_on().then(|| step(|| kernel(|kernel| kernel.send(end_of(process_of(fd)), bytes()))))
}

pub(crate) fn pending(fd: c_int) -> Option<u64> {
    is_on().then(|| step(|| kernel(|kernel| kernel.streams[end_of(process_of(fd))].len as u64)))
}

pub(crate) fn takes(fd: c_int, bytes: u64) -> Option<bool> {
    is_on().then(|| {
        step(|| {
            kernel(|kernel| {
                let takes = bytes <= kernel.left(end_of(process_of(fd)) ^ 1) as u64;
                kernel.was_full |= !takes;
                takes
            })
        })
    })
}

pub(crate) fn reset_by_close(fd: c_int) -> bool {
    is_on() && {
        step(|| kernel(|kernel| kernel.aborts[end_of(process_of(fd))] = true));
        true
    }
}

pub(crate) fn events(fd: c_int, wanted: PollFlags) -> Option<PollFlags> {
    let always = PollFlags::HUP | PollFlags::ERR;
    is_on().then(|| step(|| kernel(|kernel| kernel.events(end_of(process_of(fd))) & (wanted | always))))
}

pub(crate) fn write_eventfd(fd: c_int) -> bool {
    is_on() && {
        step(|| {
            kernel(|kernel| {
                kernel.eventfds[eventfd(fd)] = true;
                kernel.stir(eventfd(fd), true, libc::EPOLLIN as u32);
            });
        });
        true
    }
}

pub(crate) fn read_eventfd(fd: c_int) -> bool {
    is_on() && {
        step(|| kernel(|kernel| kernel.eventfds[eventfd(fd)] = false));
        true
    }
}

fn eventfd(fd: c_int) -> usize {
    match usize::try_from(fd - EVENTFDS) {
        Ok(end) if end < 2 => end,
        _ => panic!("no eventfd of the connection's: {fd}"),
    }
}

/// The peer's socket, which the system lets this end have.
pub(crate) fn borrow(fd: c_int) -> Option<Option<c_int>> {
    is_on().then(|| {
        let there = step(|| kernel(|kernel| !kernel.closed[end_of(process_of(fd)) ^ 1]));
        there.then_some(SOCKETS + (end_of(process_of(fd)) ^ 1) as c_int)
    })
}

pub(crate) fn break_off(fd: c_int) -> bool {
    is_on() && {
        step(|| kernel(|kernel| kernel.broken[process_of(fd)] = true));
        true
    }
}

/// The threads that sleep on this word are woken.
pub(crate) fn futex_wake(word: &Word) -> bool {
    is_on() && {
        step(|| {
            let end = super::world::end_of_word(word);
            kernel(|kernel| kernel.woken[end] = true);
        });
        true
    }
}
