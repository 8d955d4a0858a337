//! What the two ends of a connection tell each other over the side channel, once they have shaken
//! hands: packets of 64 bytes.
//!
//! # Version 3
//!
//! | kind (u8) | then | means |
//! |---|---|---|
//! | 2 attach | u32 own, u32 shared queue pair (0: not yet), u32 first packet, gid (16 bytes), u16 lid, u8 MTU (1 to 5: 256 to 4,096). Then u8 READs at a time, u8 may share (0 or 1), u8 mode. Then, all 0 where unknown, boot id (16 bytes), u32 namespace of process ids, u32 process id | once, first: how to reach this end |
//! | 3 second | u32 queue pair | the shared one, made when the peer was heard to share |
//! | 4 ready | | this end's queue pairs take what comes |
//! | 5 mode | u8: 1 own, 2 shared | from where this end takes receives from now on |
//! | 6 close | u8: 1 closed, 2 a message was longer than its receive, 3 a remote access was refused, 4 the other side broke the protocol | the end |
//!
//! Mode 0 in attach: no receive was posted so far. Numbers of queue pairs and packets have 24 bits.

use crate::process::Process;

/// A message of the side channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Once, first, when the connection gets its queue pair.
    Attach(Attach),
    /// Number of the second queue pair, where the first message could not have it yet.
    Second { number: u32 },
    /// Our queue pairs take what comes.
    Ready,
    /// From where the receiver takes its receives.
    Mode(Mode),
    /// The end, and why.
    Close { fate: u8 },
}

/// How to reach a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attach {
    /// Numbers of the queue pair with receives of its own, and of the one on the shared queue (0:
    /// none yet).
    pub(crate) numbers: [u32; 2],
    /// First packet's number, of either.
    pub(crate) psn: u32,
    /// The port's address.
    pub(crate) gid: [u8; 16],
    /// The port's address within an InfiniBand subnet.
    pub(crate) lid: u16,
    /// The largest packet, as the enumeration has it.
    pub(crate) mtu: u8,
    /// READs and atomics that it takes at a time.
    pub(crate) reads: u8,
    /// Whether it may ever take from a shared queue.
    pub(crate) shares: bool,
    /// From where it takes receives, as far as that is known.
    pub(crate) mode: Mode,
    /// Whose end to watch, on the same host.
    pub(crate) process: Option<Process>,
}

/// From where a receiver takes its receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It has posted none so far.
    Undecided,
    /// The queue pair's own.
    Own,
    /// The shared queue.
    Shared,
}

impl Message {
    /// As it travels.
    pub(crate) fn encode(&self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        match self {
            Message::Attach(attach) => {
                out[0] = ATTACH;
                out[1..5].copy_from_slice(&attach.numbers[0].to_le_bytes());
                out[5..9].copy_from_slice(&attach.numbers[1].to_le_bytes());
                out[9..13].copy_from_slice(&attach.psn.to_le_bytes());
                out[13..29].copy_from_slice(&attach.gid);
                out[29..31].copy_from_slice(&attach.lid.to_le_bytes());
                out[31] = attach.mtu;
                out[32] = attach.reads;
                out[33] = u8::from(attach.shares);
                out[34] = attach.mode.byte();
                if let Some(process) = &attach.process {
                    out[35..51].copy_from_slice(&process.host);
                    out[51..55].copy_from_slice(&process.space.to_le_bytes());
                    out[55..59].copy_from_slice(&process.pid.to_le_bytes());
                }
            }
            Message::Second { number } => {
                out[0] = SECOND;
                out[1..5].copy_from_slice(&number.to_le_bytes());
            }
            Message::Ready => out[0] = READY,
            Message::Mode(mode) => {
                out[0] = MODE;
                out[1] = mode.byte();
            }
            Message::Close { fate } => {
                out[0] = CLOSE;
                out[1] = *fate;
            }
        }
        out
    }

    /// From any bytes; none when no peer of ours says so.
    pub(crate) fn decode(bytes: &[u8; BYTES]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (message, used) = match bytes[0] {
            ATTACH => (Message::Attach(Self::attach(bytes, [word(1), word(5), word(9)])?), 59),
            SECOND if is_number(word(1)) => (Message::Second { number: word(1) }, 5),
            READY => (Message::Ready, 1),
            MODE => match Mode::from_byte(bytes[1])? {
                Mode::Undecided => return None,
                mode => (Message::Mode(mode), 2),
            },
            CLOSE => (Message::Close { fate: bytes[1] }, 2),
            _ => return None,
        };
        bytes[used..].iter().all(|byte| *byte == 0).then_some(message)
    }

    fn attach(bytes: &[u8; BYTES], [own, shared, psn]: [u32; 3]) -> Option<Attach> {
        let fits = is_number(own) && (shared == 0 || is_number(shared)) && psn <= NUMBER_MAX;
        let mtu = bytes[31];
        (fits && (1..=5).contains(&mtu) && bytes[33] <= 1).then_some(())?;
        let [space, pid] = [51, 55].map(|at| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i])));
        let told = Process { host: std::array::from_fn(|i| bytes[35 + i]), space, pid };
        let process = (pid != 0).then_some(told);
        (process.is_some() || bytes[35..55].iter().all(|byte| *byte == 0)).then_some(())?;
        Some(Attach {
            numbers: [own, shared],
            psn,
            gid: std::array::from_fn(|i| bytes[13 + i]),
            lid: u16::from_le_bytes([bytes[29], bytes[30]]),
            mtu,
            reads: bytes[32],
            shares: bytes[33] == 1,
            mode: Mode::from_byte(bytes[34])?,
            process,
        })
    }
}

impl Mode {
    fn byte(self) -> u8 {
        match self {
            Mode::Undecided => 0,
            Mode::Own => 1,
            Mode::Shared => 2,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Mode::Undecided),
            1 => Some(Mode::Own),
            2 => Some(Mode::Shared),
            _ => None,
        }
    }
}

/// Numbers of queue pairs and packets have 24 bits; 0 and 1 are not for users.
fn is_number(number: u32) -> bool {
    (2..=NUMBER_MAX).contains(&number)
}

/// Bytes of a message.
pub(crate) const BYTES: usize = 64;
const NUMBER_MAX: u32 = (1 << 24) - 1;
const ATTACH: u8 = 2;
const SECOND: u8 = 3;
const READY: u8 = 4;
const MODE: u8 = 5;
const CLOSE: u8 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    fn attach() -> Attach {
        Attach {
            numbers: [17, 18],
            psn: 0xff_ffff,
            gid: std::array::from_fn(|i| i as u8),
            lid: 7,
            mtu: 5,
            reads: 16,
            shares: true,
            mode: Mode::Shared,
            process: Some(Process { host: [9; 16], space: 5, pid: 77 }),
        }
    }

    #[test]
    fn messages_travel() {
        for message in [
            Message::Attach(attach()),
            Message::Attach(Attach { numbers: [2, 0], shares: false, mode: Mode::Undecided, ..attach() }),
            Message::Attach(Attach { process: None, ..attach() }),
            Message::Second { number: 99 },
            Message::Ready,
            Message::Mode(Mode::Own),
            Message::Mode(Mode::Shared),
            Message::Close { fate: 3 },
        ] {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
    }

    #[test]
    fn nothing_else_is_taken() {
        type Spoil = fn(&mut [u8; BYTES]);
        let cases: [(&str, Spoil); 8] = [
            ("a host without a process", |bytes| bytes[55..59].fill(0)),
            ("a queue pair of the system", |bytes| bytes[1..5].copy_from_slice(&1u32.to_le_bytes())),
            ("a number of more than 24 bits", |bytes| bytes[8] = 1),
            ("a packet size that does not exist", |bytes| bytes[31] = 6),
            ("neither yes nor no", |bytes| bytes[33] = 2),
            ("a mode that does not exist", |bytes| bytes[34] = 3),
            ("more than there is to say", |bytes| bytes[63] = 1),
            ("a kind that does not exist", |bytes| bytes[0] = 9),
        ];
        for (what, spoil) in cases {
            let mut bytes = Message::Attach(attach()).encode();
            spoil(&mut bytes);
            assert_eq!(Message::decode(&bytes), None, "{what}");
        }
        // Whatever is taken says the same when it is said again.
        for seed in 0..20_000u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let bytes: [u8; BYTES] = std::array::from_fn(|i| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                if i == 0 {
                    (state % 8) as u8
                } else if state % 3 == 0 {
                    state as u8
                } else {
                    0
                }
            });
            if let Some(message) = Message::decode(&bytes) {
                assert_eq!(message.encode(), bytes);
            }
        }
    }
}
