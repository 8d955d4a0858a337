//! The peer that says anything: its frames, and a look at all that an end sends to it.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use super::end::pattern;
use super::{LENGTHS, POISON, STRANGE, Script};
use crate::frame::{HEAD_MAX, Head, Op, WRITE_CHUNK, Why, head_bytes};

pub(super) struct Stranger {
    socket: UnixStream,
    /// Keys that it knows.
    keys: [u128; 3],
    /// Bytes on their way out, and such as came and are no whole frame yet.
    out: Vec<u8>,
    came: Vec<u8>,
    /// What the end has asked, in order.
    asked: VecDeque<PostedRequest>,
}

/// A request that an end has posted: its mark, its length, and what of it came.
#[derive(Clone, Copy, Debug)]
pub(super) enum PostedRequest {
    Send(u8, usize),
    Write(u8, usize, usize),
    Other,
}

impl Stranger {
    pub(super) fn new(socket: UnixStream, keys: [u128; 3]) -> Option<Self> {
        socket.set_nonblocking(true).ok()?;
        Some(Self { socket, keys, out: Vec::new(), came: Vec::new(), asked: VecDeque::new() })
    }

    pub(super) fn is_asked(&mut self, asked: PostedRequest) {
        self.asked.push_back(asked);
    }

    /// A frame, some times.
    pub(super) fn says(&mut self, script: &mut Script<'_>, times: usize) {
        let Some(head) = read(script, &self.keys) else { return };
        let mut bytes = [0; HEAD_MAX];
        let len = head.encode(&mut bytes);
        for _ in 0..times {
            self.out.extend_from_slice(&bytes[..len]);
            self.out.resize(self.out.len() + head.len as usize, STRANGE);
            if self.out.len() > OUT_MAX {
                break;
            }
        }
        self.sends();
    }

    /// Bytes that need not be a frame.
    pub(super) fn says_bytes(&mut self, script: &mut Script<'_>) {
        for _ in 0..script.number() % 64 {
            self.out.push(script.number());
        }
        self.sends();
    }

    fn sends(&mut self) {
        while !self.out.is_empty() {
            match self.socket.write(&self.out) {
                Ok(len) => _ = self.out.drain(..len),
                // Full, or hung up on: what it could not say it says later, or never.
                Err(_) => return,
            }
        }
    }

    pub(super) fn hangs_up(&mut self) {
        _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Takes up to so many bytes and looks at them.
    pub(super) fn hears(&mut self, most: usize) {
        let (mut left, mut bytes) = (most, [0; 4096]);
        while left > 0 {
            let want = left.min(bytes.len());
            match self.socket.read(&mut bytes[..want]) {
                Ok(len @ 1..) => {
                    self.came.extend_from_slice(&bytes[..len]);
                    left -= len;
                }
                _ => break,
            }
        }
        self.understands(most == usize::MAX);
        self.sends();
    }

    /// Looks at each frame that is whole; at the very end at the part of one, too.
    fn understands(&mut self, over: bool) {
        let mut at = 0;
        while let Some(kind) = self.came.get(at) {
            let head_len = head_bytes(*kind).expect("an end says what is no frame");
            let Some(head) = self.came.get(at..at + head_len) else { break };
            let head = Head::decode(head).expect("an end says what is no frame");
            let (start, end) = (at + head_len, at + head_len + head.len as usize);
            if end > self.came.len() && !over {
                break;
            }
            let payload = self.came[start..end.min(self.came.len())].to_vec();
            self.looks(&head, &payload);
            at = end.min(self.came.len());
        }
        self.came.drain(..at);
    }

    fn looks(&mut self, head: &Head, payload: &[u8]) {
        let holds = |mark: u8, from: usize| {
            let strange = payload.iter().enumerate().find(|(at, byte)| **byte != pattern(mark, from + at));
            assert!(strange.is_none(), "an end sends what is not in the message: {strange:?}, {head:?}");
        };
        match head.op {
            Op::Send { .. } => match self.asked.pop_front() {
                Some(PostedRequest::Send(mark, len)) if len == head.len as usize => holds(mark, 0),
                other => panic!("a message of {} bytes instead of {other:?}", head.len),
            },
            Op::Write { .. } | Op::WriteMore => match self.asked.front_mut() {
                Some(PostedRequest::Write(mark, len, came)) => {
                    holds(*mark, *came);
                    *came += head.len as usize;
                    if came == len {
                        self.asked.pop_front();
                    }
                }
                other => panic!("a WRITE instead of {other:?}"),
            },
            Op::Read { .. } | Op::FetchAdd { .. } | Op::CompareSwap { .. } => {
                assert!(matches!(self.asked.pop_front(), Some(PostedRequest::Other)), "{head:?} was not asked");
            }
            Op::Data => assert!(!payload.contains(&POISON), "memory was read after it was deregistered"),
            _ => {}
        }
    }
}

/// A frame as a script says it: its kind, what it acknowledges and grants, and a few words.
pub(crate) fn frame(acked: u8, credits: u8, op: Op, len: u8) -> Vec<u8> {
    let key = |rkey: u128| rkey as u8;
    let mut bytes = vec![0, acked, credits];
    let (kind, words) = match op {
        Op::Send { immediate } => (1, vec![u8::from(immediate.is_some()), len]),
        Op::Write { rkey, at, total, immediate } => {
            (2, vec![key(rkey), at as u8, total as u8, u8::from(immediate.is_some()), len])
        }
        Op::WriteMore => (3, vec![len]),
        Op::Read { rkey, at, len } => (4, vec![key(rkey), at as u8, len as u8]),
        Op::FetchAdd { rkey, at, add } => (5, vec![key(rkey), at as u8, add as u8]),
        Op::CompareSwap { rkey, at, compare, swap } => (6, vec![key(rkey), at as u8, compare as u8, swap as u8]),
        Op::Data => (7, vec![len]),
        Op::Value(value) => (8, vec![value as u8]),
        Op::Refused => (9, vec![]),
        Op::Ack => (10, vec![]),
        Op::Want(count) => (11, vec![count as u8]),
        Op::Recall => (12, vec![]),
        Op::Return(count) => (13, vec![count as u8]),
        Op::Bye { why, number } => (14, vec![why as u8, number as u8]),
    };
    bytes[0] = kind;
    bytes.extend(words);
    bytes
}

/// What [`frame`] has written. None: there is no such kind.
fn read(script: &mut Script<'_>, keys: &[u128; 3]) -> Option<Head> {
    let (kind, acked, credits) = (script.number(), script.number(), script.number());
    // The highest is one that nobody has asked.
    let acked = if acked == u8::MAX { u64::MAX } else { u64::from(acked) };
    let (mut number, mut len) = (|| u64::from(script.number()), 0);
    let length = |number: u64| LENGTHS[number as usize % LENGTHS.len()];
    let rkey = |number: u64| keys.get(number as usize).copied().unwrap_or_default();
    let immediate = |number: u64| (number % 2 == 1).then_some(7);
    let op = match kind % 15 {
        1 => {
            let immediate = immediate(number());
            len = length(number());
            Op::Send { immediate }
        }
        2 => {
            let (rkey, at, total) = (rkey(number()), 8 * number(), length(number()) as u64);
            let immediate = immediate(number());
            len = length(number()).min(total as usize).min(WRITE_CHUNK);
            Op::Write { rkey, at, total, immediate }
        }
        3 => {
            len = length(number()).min(WRITE_CHUNK);
            Op::WriteMore
        }
        4 => Op::Read { rkey: rkey(number()), at: 8 * number(), len: length(number()) as u64 },
        5 => Op::FetchAdd { rkey: rkey(number()), at: 8 * number(), add: number() },
        6 => Op::CompareSwap { rkey: rkey(number()), at: 8 * number(), compare: number(), swap: number() },
        7 => {
            len = length(number());
            Op::Data
        }
        8 => Op::Value(number()),
        9 => Op::Refused,
        10 => Op::Ack,
        11 => Op::Want(number() as u32),
        12 => Op::Recall,
        13 => Op::Return(number() as u32),
        14 => {
            let why = [Why::Closed, Why::TooLong, Why::Malformed][(number() % 3) as usize];
            Op::Bye { why, number: number() }
        }
        _ => return None,
    };
    Some(Head { acked, credits: u32::from(credits), len: len as u32, op })
}

/// What it may have to say that nobody takes.
const OUT_MAX: usize = 256 << 10;
