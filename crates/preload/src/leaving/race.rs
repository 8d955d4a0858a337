//! A sender and a receiver, in every order in which they can be run, while either leaves the ring
//! between them.
//!
//! What an end does is decided by the machines of `leaving`; each of their actions is a step, done
//! here on words, a ring and a stream of bytes. Sending into an open ring, reading from one and the
//! bells' word are steps, too, in the order of `send`, `ring` and `bells`.
//!
//! The bound: one direction; a ring of 2 bytes; a kernel's stream of 1 byte, which fills, and of 8,
//! which does not; a message of 1 byte and one of 2, or one of 2 where two processes read. The
//! receiver leaves once, at any moment, either way, and reads 1 or 2 bytes at a time; then it reads
//! on by the library, or a stranger reads the stream, or a second process reads beside it, by the
//! same counts. The sender leaves once (where the receiver reads on), closes or is killed, at any
//! moment, within a call, too. Of two processes that read, a look at the counts and the read that
//! follows are one step. Nobody of the receiver's is killed. There are 1.7 million states.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::AtomicU64;

use super::*;
use crate::bells;

mod receiver;
mod sender;

const RING: usize = 2;
const STREAM: usize = 8;
/// In the stream: a bell. All else are the program's bytes, numbered.
const BELL: u8 = 200;

/// What is left out, or done at the wrong place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// The sender does not look whether the receiver has left.
    NoLook,
    /// Who wants the bytes sent again puts the border behind them.
    BorderAtHead,
    /// What the kernel did not take stays published.
    NoUnsend,
    /// It is taken back when somebody else may send it already.
    UnsentLate,
    /// Nobody looks whether the other is sending again.
    TwoPushers,
    /// Who closes puts the border before what is unread, and does not send it.
    ClosedWithout,
    /// Bytes are sent before a bell that is counted.
    BellBehind,
    /// A reader does not look for what nobody has sent again.
    NothingDue,
    /// It does not send the rest of what the sender has sent again in part.
    NoHelp,
    /// A stranger reads although a sender was killed in the midst of sending again.
    NotBrokenOff,
}

/// Who reads once the receiver has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reader {
    Here,
    Both,
    Stranger,
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    messages: &'static [u8],
    stream: usize,
    reader: Reader,
    /// The sender may leave and go on, too.
    leaves: bool,
    wrong: Wrong,
}

/// A machine of the sender's, and what comes after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Sending {
    Idle,
    /// Has written so many bytes of a message, and published them.
    Published(u8),
    Rung(u8),
    BellGiven(u8),
    Find(Find, u8, Then),
    Push(Push, u8, Then),
    Closing,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Then {
    /// A send of a message whose bytes are in the ring, or are to go to the kernel.
    Sent,
    ToKernel,
    Respond,
    Leave,
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reading {
    Idle,
    /// Has copied so many from the ring, at this position.
    Copied(u8, u64),
    Leave(Leave),
    InPlace(InPlace),
    Along(TakeAlong, bool),
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Process {
    at: Reading,
    event: Event,
    /// The last bell, once it has left.
    left: Option<u64>,
    /// It is still within the call that leaves.
    settles: bool,
    stranger: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    head: u64,
    tail: u64,
    left: bool,
    /// 1 sender, 2 receiver.
    pusher: u8,
    pushed: u64,
    given: u64,
    bell: u64,
    reset: bool,
    ring: [u8; RING],
    stream: [u8; STREAM],
    len: usize,
    ended: bool,
    /// The kernel has refused a byte, or the receiver has kept the sender waiting.
    full: bool,
    sending: Sending,
    sent_event: Event,
    out_head: u64,
    seen: u64,
    resend: Option<u64>,
    owed: u32,
    leaves: bool,
    /// Bytes that calls have reported, and the next message.
    sent: u8,
    message: u8,
    killed: bool,
    processes: [Process; 2],
    input_tail: u64,
    border: u64,
    taken: u64,
    eaten: u64,
    may_leave: bool,
    got: u8,
    /// The program was told an error, or an end.
    over: bool,
}

type Breach = Result<(), &'static str>;

impl World {
    fn new() -> Self {
        let process = Process { at: Reading::Idle, event: Event::Done, left: None, settles: false, stranger: false };
        Self {
            head: 0,
            tail: 0,
            left: false,
            pusher: 0,
            pushed: 0,
            given: 0,
            bell: 0,
            reset: false,
            ring: [0; RING],
            stream: [0; STREAM],
            len: 0,
            ended: false,
            full: false,
            sending: Sending::Idle,
            sent_event: Event::Done,
            out_head: 0,
            seen: 0,
            resend: None,
            owed: 0,
            leaves: true,
            sent: 0,
            message: 0,
            killed: false,
            processes: [process, Process { at: Reading::Gone, ..process }],
            input_tail: 0,
            border: 0,
            taken: 0,
            eaten: 0,
            may_leave: true,
            got: 0,
            over: false,
        }
    }

    fn bells<T>(&mut self, f: impl FnOnce(&AtomicU64) -> T) -> T {
        let word = AtomicU64::new(self.bell);
        let value = f(&word);
        self.bell = word.into_inner();
        value
    }

    fn put(&mut self, byte: u8) {
        self.stream[self.len] = byte;
        self.len += 1;
    }

    fn get(&mut self) -> u8 {
        let byte = self.stream[0];
        self.stream.copy_within(1.., 0);
        self.stream[STREAM - 1] = 0;
        self.len -= 1;
        byte
    }

    /// One action, by the sender (1) or the receiver (2).
    fn act(&mut self, who: u8, action: Action, bound: &Bound) -> Event {
        match action {
            Action::LookLeft if bound.wrong == Wrong::NoLook => Event::Word(0),
            Action::LookLeft => Event::Word(u64::from(self.left)),
            Action::LookHead => Event::Word(self.head),
            Action::LookTail => Event::Word(self.tail),
            Action::LookPushed => Event::Word(self.pushed),
            Action::LookGiven if bound.wrong == Wrong::BellBehind => Event::Word(u64::MAX),
            Action::LookGiven => Event::Word(self.given),
            Action::LookBorder => Event::Word(self.border),
            Action::SayBorder(border) => {
                self.border = border;
                Event::Done
            }
            Action::SayLeft => {
                self.left = true;
                Event::Done
            }
            Action::SayHead(head) => {
                if !matches!(bound.wrong, Wrong::NoUnsend | Wrong::UnsentLate) {
                    self.head = head;
                }
                Event::Done
            }
            Action::SayPushed(position) => {
                self.pushed = position;
                Event::Done
            }
            Action::Switch => {
                let word = self.tail;
                if bound.wrong == Wrong::BorderAtHead && word & SWITCHED == 0 {
                    self.tail = self.head | SWITCHED;
                    return Event::Word(self.tail);
                }
                self.tail |= SWITCHED;
                Event::Word(word)
            }
            Action::SwitchAt(position) => {
                if self.tail & SWITCHED == 0 {
                    self.tail = position | SWITCHED;
                }
                Event::Word(self.tail)
            }
            Action::Disarm => Event::Word(self.bells(bells::disarm)),
            Action::Claim if self.pusher != 0 && bound.wrong != Wrong::TwoPushers => {
                // A sender waits for so long that only a receiver that stands still is not done.
                self.full |= who == 1;
                Event::Refused
            }
            Action::Claim => {
                self.pusher = who;
                Event::Done
            }
            Action::Release => {
                self.pusher = 0;
                Event::Done
            }
            Action::GiveBell if self.len == bound.stream => {
                self.full = true;
                Event::Refused
            }
            Action::GiveBell => {
                self.put(BELL);
                Event::Done
            }
            Action::SayGiven => {
                self.given += 1;
                Event::Done
            }
            Action::Borrow if !self.ended => Event::Done,
            Action::Borrow => Event::Refused,
            Action::Room(bytes) if bytes <= (bound.stream - self.len) as u64 => Event::Done,
            Action::Room(_) => {
                self.full = true;
                Event::Refused
            }
            Action::Give { .. } if self.len == bound.stream => {
                self.full = true;
                Event::Refused
            }
            Action::Give { from, until } => {
                let bytes = (until - from).min((bound.stream - self.len) as u64);
                self.full |= bytes < until - from;
                (from..from + bytes).for_each(|at| self.put(self.ring[at as usize % RING]));
                Event::Word(bytes)
            }
        }
    }
}

impl World {
    /// Whether the reader alone, the sender making no call, comes to its next byte or to an end.
    fn reads_on(&self, bound: &Bound) -> bool {
        let (mut seen, mut open) = (HashSet::new(), vec![*self]);
        while let Some(world) = open.pop() {
            if world.over || world.got > self.got {
                return true;
            }
            if seen.insert(world) {
                // What is wrong there is found there.
                if (0..2).try_for_each(|which| world.steps_of_reader(which, bound, &mut open)).is_err() {
                    return true;
                }
            }
        }
        false
    }
}

/// There are many states, and the standard hash takes most of the time.
#[derive(Default)]
struct Fold(u64);

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        bytes.chunks(8).for_each(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        });
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// What goes wrong in some order, and where; else how many states there are.
fn explore(bound: Bound) -> Result<usize, (&'static str, Box<World>)> {
    let (mut seen, mut open, mut next) =
        (HashSet::<_, BuildHasherDefault<Fold>>::default(), vec![World::new()], Vec::new());
    while let Some(world) = open.pop() {
        if !seen.insert(world) {
            continue;
        }
        next.clear();
        for which in 0..2 {
            world.steps_of_reader(which, &bound, &mut next).map_err(|what| (what, Box::new(world)))?;
        }
        let between_calls = matches!(world.sending, Sending::Idle | Sending::Gone);
        // Nobody can help a byte for which there was no room while anybody of the library looked.
        let excused = world.full && bound.reader == Reader::Stranger;
        if between_calls && world.got < world.sent && !excused && !world.reads_on(&bound) {
            return Err(("the reader waits for the sender's next call", Box::new(world)));
        }
        world.steps_of_sender(&bound, &mut next);
        open.append(&mut next);
    }
    Ok(seen.len())
}

#[test]
fn every_byte_arrives_once_however_a_direction_leaves_its_ring() {
    for reader in [Reader::Here, Reader::Both, Reader::Stranger] {
        for stream in [1, STREAM] {
            let messages: &[u8] = if reader == Reader::Both { &[2] } else { &[1, 2] };
            let bound = Bound { messages, stream, reader, leaves: reader == Reader::Here, wrong: Wrong::Nothing };
            match explore(bound) {
                Ok(states) => assert!(states > 100_000, "{bound:?}: {states} states"),
                Err((what, world)) => panic!("{bound:?}: {what}: {world:?}"),
            }
        }
    }
}

#[test]
fn each_rule_is_needed() {
    for (wrong, reader, stream) in [
        (Wrong::NothingDue, Reader::Here, STREAM),
        (Wrong::NoLook, Reader::Stranger, STREAM),
        (Wrong::BorderAtHead, Reader::Stranger, STREAM),
        (Wrong::NoUnsend, Reader::Here, 1),
        (Wrong::UnsentLate, Reader::Here, 1),
        (Wrong::TwoPushers, Reader::Here, STREAM),
        (Wrong::ClosedWithout, Reader::Stranger, STREAM),
        (Wrong::BellBehind, Reader::Here, STREAM),
        (Wrong::NoHelp, Reader::Here, 1),
        (Wrong::NotBrokenOff, Reader::Stranger, STREAM),
    ] {
        let found = explore(Bound { messages: &[1, 2], stream, reader, leaves: true, wrong });
        let found = found.map_err(|(what, _)| what);
        println!("{wrong:?}: {found:?}");
        assert!(found.is_err(), "{wrong:?}: the rule is needed");
    }
}
