//! The kernel's messages, of the FUSE protocol 7.31 and later, as a file system of
//! one file meets them. Pure.
//!
//! Numbers are in the machine's own order. Source: `linux/fuse.h`.

use overside_volume::Geometry;
use rustix::io::Errno;

/// What the kernel asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FuseRequest {
    /// Names the request; 0 is never answered.
    pub(super) unique: u64,
    pub(super) call: Call,
}

/// Of a request. Places and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// The first one: what the kernel speaks, and what it can do.
    Init {
        major: u32,
        minor: u32,
        readahead: u32,
        flags: u64,
    },
    Attributes,
    /// With the size it is to have, where that is meant; whether owner or mode are.
    SetAttributes {
        size: Option<u64>,
        access: bool,
    },
    /// With the flags of `open`.
    Open {
        flags: u32,
    },
    Read {
        at: u64,
        length: u32,
    },
    /// The bytes lie behind the first [`HEAD_BYTES`]. Durable: answered only when
    /// they are on stable storage.
    Write {
        at: u64,
        length: u32,
        durable: bool,
    },
    Sync,
    Allocate {
        at: u64,
        length: u64,
        mode: u32,
    },
    Statistics,
    /// A close; there is nothing to do.
    Release,
    /// The kernel forgets the file. Never answered.
    Forget,
    /// What this file system has not.
    Other,
}

/// No request of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl FuseRequest {
    /// Of the first bytes of a message that is `total` bytes long.
    pub(super) fn parse(words: &[u8], total: usize) -> Result<FuseRequest, Malformed> {
        let (head, args) = words.split_at_checked(HEADER_BYTES).ok_or(Malformed)?;
        if u32_at(head, 0)? as usize != total {
            return Err(Malformed);
        }
        let unique = u64_at(head, 8)?;
        let call = match u32_at(head, 4)? {
            3 => Call::Attributes,
            4 => {
                let (meant, size) = (u32_at(args, 0)?, u64_at(args, 16)?);
                Call::SetAttributes { size: (meant & SIZE != 0).then_some(size), access: meant & ACCESS != 0 }
            }
            14 => Call::Open { flags: u32_at(args, 0)? },
            15 => Call::Read { at: u64_at(args, 8)?, length: u32_at(args, 16)? },
            16 => {
                let (at, length) = (u64_at(args, 8)?, u32_at(args, 16)?);
                if total != HEAD_BYTES + length as usize {
                    return Err(Malformed);
                }
                Call::Write { at, length, durable: u32_at(args, 32)? & O_DSYNC != 0 }
            }
            17 => Call::Statistics,
            18 => Call::Release,
            20 => Call::Sync,
            26 => {
                let (low, high) = (u32_at(args, 12)?, u32_at(args, 16).unwrap_or(0));
                let high = if u64::from(low) & EXTENDED == 0 { 0 } else { high };
                let flags = u64::from(low) | u64::from(high) << 32;
                Call::Init { major: u32_at(args, 0)?, minor: u32_at(args, 4)?, readahead: u32_at(args, 8)?, flags }
            }
            43 => Call::Allocate { at: u64_at(args, 8)?, length: u64_at(args, 16)?, mode: u32_at(args, 24)? },
            2 | 42 => Call::Forget,
            _ => Call::Other,
        };
        Ok(FuseRequest { unique, call })
    }
}

/// An answer without what is read: its header and its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    unique: u64,
    failed: Option<Errno>,
    words: Vec<u8>,
}

impl Answer {
    pub(super) fn done(unique: u64) -> Answer {
        Answer { unique, failed: None, words: Vec::new() }
    }

    pub(super) fn failed(unique: u64, why: Errno) -> Answer {
        Answer { unique, failed: Some(why), words: Vec::new() }
    }

    /// Whom it answers.
    pub(super) fn unique(&self) -> u64 {
        self.unique
    }

    /// Header and words, in front of `behind` bytes that are read.
    pub(super) fn bytes(&self, behind: usize) -> Vec<u8> {
        let length = (ANSWER_BYTES + self.words.len() + behind) as u32;
        let error = self.failed.map_or(0, |errno| -errno.raw_os_error());
        let mut out = Vec::with_capacity(ANSWER_BYTES + self.words.len());
        out.extend(length.to_ne_bytes());
        out.extend(error.to_ne_bytes());
        out.extend(self.unique.to_ne_bytes());
        out.extend(&self.words);
        out
    }

    fn words(unique: u64, parts: &[Word]) -> Answer {
        let mut words = Vec::new();
        for part in parts {
            match part {
                Word::U16(value) => words.extend(value.to_ne_bytes()),
                Word::U32(value) => words.extend(value.to_ne_bytes()),
                Word::U64(value) => words.extend(value.to_ne_bytes()),
                Word::Zeros(count) => words.resize(words.len() + count, 0),
            }
        }
        Answer { unique, failed: None, words }
    }

    /// Of the first request: what is spoken from now on.
    pub(super) fn init(unique: u64, minor: u32, readahead: u32, flags: u64) -> Answer {
        use Word::{U16, U32, Zeros};
        let pages = PAYLOAD_BYTES_MAX.div_ceil(4096) as u16;
        let agreed = flags & WANTED;
        let both = [
            U32(MAJOR),
            U32(minor.min(MINOR)),
            U32(readahead),
            U32(agreed as u32),
            U16(BACKGROUND_MAX),
            U16(BACKGROUND_MAX / 4 * 3),
            U32(PAYLOAD_BYTES_MAX as u32),
            U32(1),
            U16(pages),
            U16(0),
            U32((agreed >> 32) as u32),
            Zeros(28),
        ];
        Answer::words(unique, &both)
    }

    pub(super) fn opened(unique: u64) -> Answer {
        Answer::words(unique, &[Word::U64(0), Word::U32(OPENED), Word::U32(0)])
    }

    pub(super) fn written(unique: u64, bytes: u32) -> Answer {
        Answer::words(unique, &[Word::U32(bytes), Word::U32(0)])
    }

    /// The file: its owner alone may open it, and its size never changes.
    pub(super) fn attributes(unique: u64, geometry: Geometry, (user, group): (u32, u32)) -> Answer {
        use Word::{U32, U64, Zeros};
        let mode = 0o100_000 | if geometry.read_only { 0o400 } else { 0o600 };
        let (size, blocks) = (geometry.bytes, geometry.bytes.div_ceil(512));
        let unit = (geometry.unit_bytes as u32).max(4096);
        let all = [U64(FOR_EVER_S), U32(0), U32(0)].into_iter().chain([
            U64(1),
            U64(size),
            U64(blocks),
            Zeros(36),
            U32(mode),
            U32(1),
            U32(user),
            U32(group),
            U32(0),
            U32(unit),
            U32(0),
        ]);
        Answer::words(unique, &all.collect::<Vec<_>>())
    }

    pub(super) fn statistics(unique: u64, geometry: Geometry) -> Answer {
        use Word::{U32, U64, Zeros};
        let all = [U64(geometry.bytes / 512), Zeros(16), U64(1), U64(0), U32(512), U32(255), U32(512), Zeros(28)];
        Answer::words(unique, &all)
    }
}

enum Word {
    U16(u16),
    U32(u32),
    U64(u64),
    Zeros(usize),
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Malformed> {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map(|word| u32::from_ne_bytes(*word)).ok_or(Malformed)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, Malformed> {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map(|word| u64::from_ne_bytes(*word)).ok_or(Malformed)
}

pub(super) const HEADER_BYTES: usize = 40;
/// What comes before a WRITE's bytes.
pub(super) const HEAD_BYTES: usize = HEADER_BYTES + 40;
pub(super) const ANSWER_BYTES: usize = 16;
/// What a READ or WRITE carries at most: as much as the kernel allows without
/// being told to allow more.
pub(super) const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Requests that the kernel keeps under way without a thread of the program's that waits for them.
const BACKGROUND_MAX: u16 = 64;
pub(super) const MAJOR: u32 = 7;
/// The first that has all that is used here, and the newest that was read.
pub(super) const MINOR_MIN: u32 = 31;
const MINOR: u32 = 42;
/// Reads at once, writes of more than a page, asynchronous direct I/O, requests of up to 256
/// pages, and what comes behind.
const WANTED: u64 = 1 | 1 << 5 | 1 << 15 | 1 << 22 | EXTENDED | BY_IO_URING;
/// There are more than 32 flags.
const EXTENDED: u64 = 1 << 30;
/// Requests come by io_uring from then on.
pub(super) const BY_IO_URING: u64 = 1 << 41;
/// Nothing is kept in the page cache, writes to different places go at once,
/// and a close is not told.
const OPENED: u32 = 1 | 1 << 5 | 1 << 6;
/// What a change of attributes means.
const SIZE: u32 = 1 << 3;
const ACCESS: u32 = 7;
const O_DSYNC: u32 = 0o10_000;
/// Attributes never change, so the kernel need not ask again.
const FOR_EVER_S: u64 = 1 << 30;

/// Takes a message of the kernel's as the server does, and holds what it finds against what was
/// said. Whether it is one.
#[doc(hidden)]
pub fn fuzz_fuse(message: &[u8]) -> bool {
    let Ok(request) = FuseRequest::parse(message, message.len()) else { return false };
    assert!(FuseRequest::parse(message, message.len() + 1).is_err(), "a message of another length");
    if let Call::Write { length, .. } = request.call {
        assert_eq!(message.len(), HEAD_BYTES + length as usize, "bytes that are not there");
    }
    true
}

/// What the kernel says, for fuzzing to begin with.
#[doc(hidden)]
pub fn seeds_fuse() -> Vec<Vec<u8>> {
    let message = |opcode: u32, args: &[u8]| {
        let length = (HEADER_BYTES + args.len()) as u32;
        let mut all = Vec::from(length.to_ne_bytes());
        all.extend(opcode.to_ne_bytes());
        all.extend((u64::from(opcode) + 2).to_ne_bytes());
        all.extend(1u64.to_ne_bytes());
        all.resize(HEADER_BYTES, 0);
        [&all[..], args].concat()
    };
    let place = |at: u64, length: u32, flags: u32| {
        let words = [&7u64.to_ne_bytes()[..], &at.to_ne_bytes(), &length.to_ne_bytes(), &[0; 12], &flags.to_ne_bytes()];
        [&words.concat()[..], &[0; 4]].concat()
    };
    let init: Vec<u8> = [7u32, 45, 131_072, u32::MAX].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let size = [&8u32.to_ne_bytes()[..], &[0; 12], &4096u64.to_ne_bytes(), &[0; 64]].concat();
    let range = [&7u64.to_ne_bytes()[..], &512u64.to_ne_bytes(), &4096u64.to_ne_bytes(), &3u32.to_ne_bytes(), &[0; 4]];
    vec![
        message(26, &[&init[..], &[0; 48]].concat()),
        message(3, &[0; 16]),
        message(4, &size),
        message(14, &0o100_002u32.to_ne_bytes()),
        message(15, &place(512, 4096, 0)),
        message(16, &[&place(1024, 8, O_DSYNC)[..], b"overside"].concat()),
        message(17, &[]),
        message(18, &[0; 24]),
        message(20, &[0; 16]),
        message(43, &range.concat()),
        message(2, &[0; 8]),
        message(22, b"security.capability\0"),
        message(26, &[&init[..], &512u32.to_ne_bytes(), &[0; 44]].concat()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_read_as_it_was_meant() {
        let calls: Vec<Call> =
            seeds_fuse().iter().map(|seed| FuseRequest::parse(seed, seed.len()).unwrap().call).collect();
        let expected = [
            Call::Init { major: 7, minor: 45, readahead: 131_072, flags: u32::MAX.into() },
            Call::Attributes,
            Call::SetAttributes { size: Some(4096), access: false },
            Call::Open { flags: 0o100_002 },
            Call::Read { at: 512, length: 4096 },
            Call::Write { at: 1024, length: 8, durable: true },
            Call::Statistics,
            Call::Release,
            Call::Sync,
            Call::Allocate { at: 512, length: 4096, mode: 3 },
            Call::Forget,
            Call::Other,
            Call::Init { major: 7, minor: 45, readahead: 131_072, flags: u64::from(u32::MAX) | BY_IO_URING },
        ];
        assert_eq!(calls, expected);
    }

    #[test]
    fn answers_have_the_lengths_that_the_kernel_wants() {
        let geometry = Geometry { bytes: 1 << 20, unit_bytes: 512, read_only: false };
        let lengths = [
            (Answer::init(1, 31, 0, 0), 64),
            (Answer::opened(1), 16),
            (Answer::written(1, 8), 8),
            (Answer::attributes(1, geometry, (0, 0)), 104),
            (Answer::statistics(1, geometry), 80),
            (Answer::done(1), 0),
            (Answer::failed(1, Errno::IO), 0),
        ];
        for (answer, length) in lengths {
            let bytes = answer.bytes(0);
            assert_eq!(bytes.len(), ANSWER_BYTES + length, "{answer:?}");
            assert_eq!(u32_at(&bytes, 0), Ok(bytes.len() as u32));
        }
        assert_eq!(u32_at(&Answer::done(3).bytes(4096), 0), Ok(16 + 4096), "what is read is counted");
        assert_eq!(u32_at(&Answer::failed(3, Errno::IO).bytes(0), 4), Ok(-5i32 as u32));
    }
}
