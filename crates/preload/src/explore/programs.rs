//! What the threads of a scenario do: calls, each of them sections of the library
//! and sleeps of the kernel.

mod sections;
mod steps;

use std::hash::{Hash, Hasher};

use rustix::io::Errno;

use super::kernel::end_of;
use super::set::Caught;
use super::world::World;
use super::{PROCESSES, Packed};
use crate::ready::{Look, Others, Seat};
use crate::settle::Reader;
use crate::sleepers::Counted;
use crate::state::State;

/// A call of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Call {
    /// A blocking send of so many bytes.
    Send(u32),
    /// Blocking receives until there were so many bytes, or an end.
    Receive(u32),
    /// Until the end.
    ReceiveAll,
    /// Until one of these stands.
    Poll(i16),
    /// Until the set has something to say.
    Wait,
    /// A call that rings do not cover comes next, and such a one reads then.
    Leave(Reader),
    /// Reads the socket without the library, until the end.
    ReadPast,
    /// The end of a counted call, at which ends come into the rings.
    Advance,
    Fork,
    Close,
}

/// The library's part of a call, under the connection's lock but for `Rise` and `Awake`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Section {
    Receive,
    Send,
    Nap(u64),
    Doze(u64),
    Awake {
        counted: Option<Counted>,
        reset: bool,
    },
    AfterSleep {
        reset: bool,
    },
    Look,
    Rise {
        got: i16,
        signalled: bool,
        look: Look,
    },
    Disarm {
        got: i16,
        look: Look,
    },
    /// A wait looks at the rings, and says what stands.
    Pass {
        arm: bool,
    },
    /// It is counted among those who sleep in the set; and is not any more, with what
    /// it has found and caught.
    Join,
    Part {
        found: u32,
        caught: Caught,
        ends: bool,
    },
    Understand {
        found: u32,
        caught: Caught,
        ends: bool,
    },
    Translate {
        got: i16,
        look: Look,
    },
    Leave(Reader, bool),
    Split,
    Close,
    Begin(bool),
    Counted {
        bytes: u32,
        sends: bool,
    },
    Advance,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// Its next call.
    Ready,
    In(Section),
    /// Sleeps on the word of its end, or is about to.
    OnWord {
        armed: u32,
        request: u64,
        asleep: bool,
    },
    Woken,
    /// In the kernel's incoming, that only looks.
    InKernel(Option<Counted>),
    /// Until the stream has room.
    ForRoom,
    InPoll(Look),
    /// In the kernel's wait, which may be short.
    InSet {
        brief: bool,
    },
    /// Asks it what it has beside what the rings have.
    AskKernel {
        found: u32,
    },
    /// Until others, who were woken, have run.
    Outwaits(Others),
    /// In a call of the program's own.
    Plainly {
        sends: bool,
        counted: bool,
    },
    Closing,
    Unborn,
    Done,
}

#[derive(Clone, Debug)]
pub(super) struct Thread {
    pub(super) process: usize,
    program: &'static [Call],
    at: usize,
    /// Bytes of this call that are done.
    done: u32,
    pub(super) phase: Phase,
    pub(super) log: Vec<Packed>,
    seat: Seat,
    /// It may sleep for ever.
    pub(super) idles: bool,
}

impl Hash for Thread {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.at, self.done, self.phase, &self.log, self.seat.counted()).hash(state);
    }
}

impl Thread {
    pub(super) fn new(process: usize, program: &'static [Call]) -> Self {
        let phase = if process == PROCESSES - 1 { Phase::Unborn } else { Phase::Ready };
        Self { process, program, at: 0, done: 0, phase, log: Vec::new(), seat: Seat::default(), idles: false }
    }

    fn call(&self) -> Option<Call> {
        self.program.get(self.at).copied()
    }

    fn next_call(&mut self) {
        (self.at, self.done) = (self.at + 1, 0);
        self.phase = if self.at == self.program.len() { Phase::Done } else { Phase::Ready };
    }

    fn stop(&mut self) {
        self.phase = Phase::Done;
    }
}

/// What a section came to, and what follows.
type Next = Result<(), String>;

/// A byte of a program's, by its number.
pub(super) fn byte(number: u32) -> u8 {
    (number % 250) as u8 + 1
}

impl World {
    /// Whether all programs are at their end.
    pub(super) fn is_over(&self) -> bool {
        self.threads.iter().all(|thread| {
            matches!(thread.phase, Phase::Done | Phase::Unborn) || thread.idles || !self.processes[thread.process].alive
        })
    }

    fn die(&mut self, process: usize) {
        self.processes[process].alive = false;
        for thread in self.threads.iter_mut().filter(|thread| thread.process == process) {
            (thread.phase, thread.seat) = (Phase::Done, Seat::default());
            thread.log.clear();
        }
        self.processes[process].locked = None;
        self.close(process);
    }

    fn close(&mut self, process: usize) {
        self.processes[process].alive = false;
        self.forget(process);
        self.kernel.close(process);
    }

    fn begin(&mut self, who: usize) {
        let process = self.threads[who].process;
        let state = self.processes[process].inner.life().state();
        let (peer, unread) = (end_of(process) ^ 1, self.is_unread(process));
        let thread = &mut self.threads[who];
        let Some(call) = thread.call() else { return thread.stop() };
        thread.phase = match (call, state) {
            (Call::Send(_), State::Ring) => Phase::In(Section::Send),
            (Call::Receive(_) | Call::ReceiveAll, State::Ring) => Phase::In(Section::Receive),
            (Call::Send(_), State::Counting) => Phase::In(Section::Begin(true)),
            (Call::Receive(_) | Call::ReceiveAll, State::Counting) => Phase::In(Section::Begin(false)),
            (Call::Send(_), _) => Phase::Plainly { sends: true, counted: false },
            (Call::Receive(_) | Call::ReceiveAll | Call::ReadPast, _) => {
                Phase::Plainly { sends: false, counted: false }
            }
            (Call::Poll(_), _) => Phase::In(Section::Look),
            (Call::Wait, _) => Phase::In(Section::Pass { arm: false }),
            (Call::Leave(reader), State::Ring) => Phase::In(Section::Leave(reader, false)),
            (Call::Fork, State::Ring) => {
                self.processes[process].forks = true;
                Phase::In(Section::Leave(Reader::Both, false))
            }
            (Call::Fork, _) => {
                self.processes[process].forks = true;
                Phase::In(Section::Split)
            }
            (Call::Leave(_), _) => return thread.next_call(),
            (Call::Advance, _) => Phase::In(Section::Advance),
            (Call::Close, _) => {
                self.owed[peer] |= unread;
                Phase::In(Section::Close)
            }
        };
    }

    /// Whether another process has the same end. What it still reads is no reason for a reset.
    fn has_relatives(&self, process: usize) -> bool {
        let end = end_of(process);
        (0..PROCESSES).any(|other| other != process && end_of(other) == end && self.processes[other].alive)
    }

    /// Whether a close of it is a reset.
    fn is_unread(&self, process: usize) -> bool {
        let peer = end_of(process) ^ 1;
        self.got[peer] < self.sent[peer] && !self.has_relatives(process)
    }

    /// The call goes on where it looks what to do.
    fn again(&mut self, who: usize) {
        self.threads[who].phase = Phase::Ready;
    }

    /// So many bytes more of this call are done.
    fn progress(&mut self, who: usize, bytes: u32) {
        let thread = &mut self.threads[who];
        thread.done += bytes;
        match thread.call() {
            Some(Call::Send(want) | Call::Receive(want)) if thread.done >= want => thread.next_call(),
            _ => thread.phase = Phase::Ready,
        }
    }

    fn deliver(&mut self, end: usize, bytes: &[u8]) -> Next {
        let from = end ^ 1;
        for got in bytes {
            let number = self.got[from];
            if *got != byte(number) && number >= self.unchecked[from] {
                return Err(format!("byte {number} of end {from} is {got}"));
            }
            self.got[from] += 1;
        }
        Ok(())
    }

    /// The program is told the end of the stream.
    fn ended(&mut self, who: usize) -> Next {
        let from = end_of(self.threads[who].process) ^ 1;
        if self.got[from] < self.sent[from] {
            return Err(format!("a clean end after {} bytes of {}", self.got[from], self.sent[from]));
        }
        if self.owed[from ^ 1] {
            return Err("a clean end of a stream that was reset".to_owned());
        }
        self.threads[who].next_call();
        Ok(())
    }

    fn failed(&mut self, who: usize, error: Errno) -> Next {
        if !self.excused && !self.kernel.was_full {
            return Err(format!("an error without need: {error}"));
        }
        self.owed[end_of(self.threads[who].process)] = false;
        self.threads[who].stop();
        Ok(())
    }
}

/// A receive takes no more at once.
const MOST: u32 = 2;
