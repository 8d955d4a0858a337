//! Frames: what travels on a connection once both ends have shown who they are.
//!
//! Pure: bytes in, values out. Every field of a peer's frame is checked here or refused.
//!
//! # Version 4
//!
//! Frames go in both directions. Where tags were agreed on, each is followed by tags of 16 bytes,
//! AEGIS-128X2 as a MAC (`draft-irtf-cfrg-aegis-aead`) over the bytes. Its key is the first 16
//! bytes of BLAKE3's `derive_key`, context "overside 3 frame tags", of the direction's key from the
//! handshake. Its nonce, 16 bytes, is the number of the frame in its direction × 2 (+ 1 for a
//! payload's own), so none comes twice under a key:
//!
//! ```text
//! whole    head | payload | tag        payload of up to 1,024 bytes, and every part of a WRITE
//! large    head | tag | payload | tag
//!
//! head     0 u8 kind   1 u8 flags (1: immediate data)   2 u16 0   4 u32 immediate data (0 without)   8 u32 length of the payload
//!         12 u32 credits: receives that the reader may use, beyond those it knows of
//!         16 u64 requests of the reader that the writer has carried out, ever; in an answer, the number of the request it answers
//!         24 words of the kind
//! ```
//!
//! | kind | words (u64) | payload | means |
//! |---|---|---|---|
//! | 1 send | | the message, to 1 GiB | uses a credit |
//! | 2 write | key (2), at, length of all parts (to 1 GiB) | the first part, to 16 KiB | with immediate data it uses a credit |
//! | 3 write more | | the next part, to 16 KiB | no request may stand in between |
//! | 4 read | key (2), at, length (to 1 GiB) | | |
//! | 5 fetch and add | key (2), at, what to add | | |
//! | 6 compare and swap | key (2), at, compare, swap | | |
//! | 7 data | | the next bytes of a READ, to 128 KiB | answer |
//! | 8 value | what an atomic found | | answer; also of a READ of nothing |
//! | 9 refused | | | answer: key, range or right do not allow it, or the region was deregistered meanwhile; ends a READ after any of its bytes |
//! | 10 ack | | | nothing but the head |
//! | 11 want | count | | so many messages wait for credits |
//! | 12 recall | | | give back credits that you do not use; not again before the answer |
//! | 13 return | count | | answer to recall: all credits that no message before it used |
//! | 14 bye | why (0 closed, 1 too long, 2 malformed), number of the request that was too long | | the last frame |
//!
//! Requests are numbered from 0 in the order of their frames, carried out and answered in that
//! order. No head acknowledges a request whose answer is still to come. A word about a request
//! counts once the last byte of the request has been handed to the kernel. An earlier one ends the
//! connection. So does a return before its recall was handed over, or one that keeps credits. So
//! does a recall before the return to the last one was handed over. No second ack, return or recall
//! is queued behind one that has not left, so a peer that reads nothing makes its other side keep
//! no more. At most 128 READs and atomics, and 4,096 answers, are under way. A frame that was begun
//! grows by 4 KiB in 5 s. A message without a credit, parts that do not fit, an answer to nothing,
//! an unknown kind, flag or length, and a wrong tag end the connection.

/// What a frame says, apart from its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Requests of the receiver that the sender of this frame has carried out, ever; for an answer,
    /// the number of the request that it answers.
    pub acked: u64,
    /// Receives that the receiver of this frame may use, beyond those it was told of.
    pub credits: u32,
    /// Bytes of payload.
    pub len: u32,
    /// What it is.
    pub op: Op,
}

/// Kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A message; the payload is all of it.
    Send {
        /// Immediate data.
        immediate: Option<u32>,
    },
    /// A WRITE, with the first part of its bytes.
    Write {
        /// Key of the target.
        rkey: u128,
        /// Where it begins.
        at: u64,
        /// How long it is with all parts.
        total: u64,
        /// Immediate data.
        immediate: Option<u32>,
    },
    /// More bytes of the WRITE under way.
    WriteMore,
    /// A READ.
    Read {
        /// Key of the source.
        rkey: u128,
        /// Where it begins.
        at: u64,
        /// How long it is.
        len: u64,
    },
    /// FETCH_ADD.
    FetchAdd {
        /// Key of the target.
        rkey: u128,
        /// Where the word is.
        at: u64,
        /// What is added.
        add: u64,
    },
    /// CMP_SWAP.
    CompareSwap {
        /// Key of the target.
        rkey: u128,
        /// Where the word is.
        at: u64,
        /// What it must be.
        compare: u64,
        /// What it becomes.
        swap: u64,
    },
    /// Answer: the next bytes of a READ.
    Data,
    /// Answer: what an atomic found.
    Value(u64),
    /// Answer: key, range or right do not allow it; nothing was changed.
    Refused,
    /// Nothing but `acked` and `credits`.
    Ack,
    /// So many messages wait for credits.
    Want(u32),
    /// Give back credits that you do not use.
    Recall,
    /// So many were given back.
    Return(u32),
    /// The end.
    Bye {
        /// Why.
        why: Why,
        /// The request that was too long, if that is why.
        number: u64,
    },
}

/// Why somebody says goodbye.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Closed.
    Closed,
    /// A message was longer than the receive it met.
    TooLong,
    /// The other side broke the protocol.
    Malformed,
}

impl Head {
    /// Writes the head; returns how long it is.
    pub fn encode(&self, out: &mut [u8; HEAD_MAX]) -> usize {
        let mut immediate = None;
        let mut more = [0u64; 5];
        let words = |rkey: u128| (rkey as u64, (rkey >> 64) as u64);
        match self.op {
            Op::Send { immediate: with } => immediate = with,
            Op::Write { rkey, at, total, immediate: with } => {
                let (low, high) = words(rkey);
                immediate = with;
                more = [low, high, at, total, 0];
            }
            Op::Read { rkey, at, len: operand } | Op::FetchAdd { rkey, at, add: operand } => {
                let (low, high) = words(rkey);
                more = [low, high, at, operand, 0];
            }
            Op::CompareSwap { rkey, at, compare, swap } => {
                let (low, high) = words(rkey);
                more = [low, high, at, compare, swap];
            }
            Op::Value(value) => more[0] = value,
            Op::Want(count) | Op::Return(count) => more[0] = u64::from(count),
            Op::Bye { why, number } => more = [why as u64, number, 0, 0, 0],
            Op::WriteMore | Op::Data | Op::Refused | Op::Ack | Op::Recall => {}
        }
        let kind = self.op.kind();
        out[0] = kind;
        out[1] = u8::from(immediate.is_some());
        out[2..4].fill(0);
        out[4..8].copy_from_slice(&immediate.unwrap_or(0).to_le_bytes());
        out[8..12].copy_from_slice(&self.len.to_le_bytes());
        out[12..16].copy_from_slice(&self.credits.to_le_bytes());
        out[16..24].copy_from_slice(&self.acked.to_le_bytes());
        let len = head_bytes(kind).unwrap_or(HEAD_MIN);
        for (place, word) in out[HEAD_MIN..len].chunks_exact_mut(8).zip(more) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        len
    }

    /// Reads a head of exactly [`head_bytes`] bytes.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let kind = *bytes.first().ok_or("an empty frame")?;
        if head_bytes(kind) != Some(bytes.len()) {
            return Err("a frame of an unknown kind");
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let more = |i: usize| word(HEAD_MIN + 8 * i);
        let rkey = || u128::from(more(0)) | u128::from(more(1)) << 64;
        let immediate = match bytes[1] {
            0 if half(4) == 0 => None,
            1 => Some(half(4)),
            _ => return Err("a frame with unknown flags"),
        };
        if bytes[2..4] != [0, 0] || (immediate.is_some() && !matches!(kind, SEND | WRITE)) {
            return Err("a frame with unknown flags");
        }
        let count = || u32::try_from(more(0)).map_err(|_| "a count that is absurd");
        let op = match kind {
            SEND => Op::Send { immediate },
            WRITE => Op::Write { rkey: rkey(), at: more(2), total: more(3), immediate },
            WRITE_MORE => Op::WriteMore,
            READ => Op::Read { rkey: rkey(), at: more(2), len: more(3) },
            FETCH_ADD => Op::FetchAdd { rkey: rkey(), at: more(2), add: more(3) },
            COMPARE_SWAP => Op::CompareSwap { rkey: rkey(), at: more(2), compare: more(3), swap: more(4) },
            DATA => Op::Data,
            VALUE => Op::Value(more(0)),
            REFUSED => Op::Refused,
            ACK => Op::Ack,
            WANT => Op::Want(count()?),
            RECALL => Op::Recall,
            RETURN => Op::Return(count()?),
            BYE => Op::Bye { why: Why::from_word(more(0)).ok_or("a goodbye for no known reason")?, number: more(1) },
            _ => return Err("a frame of an unknown kind"),
        };
        let head = Head { acked: word(16), credits: half(12), len: half(8), op };
        head.check()
    }

    /// Lengths within what the kind allows.
    fn check(self) -> Result<Self, &'static str> {
        let len = u64::from(self.len);
        let fits = match self.op {
            Op::Send { .. } => len <= MESSAGE_MAX,
            Op::Write { total, .. } => {
                total <= MESSAGE_MAX && len <= total && len <= WRITE_CHUNK as u64 && (len > 0 || total == 0)
            }
            Op::WriteMore => len > 0 && len <= WRITE_CHUNK as u64,
            Op::Data => len > 0 && len <= READ_CHUNK as u64,
            Op::Read { len: asked, .. } => len == 0 && asked <= MESSAGE_MAX,
            _ => len == 0,
        };
        if fits { Ok(self) } else { Err("a frame of an absurd length") }
    }

    /// Whether its payload is taken whole, together with the head, before anything is done.
    pub fn is_whole(&self) -> bool {
        self.len as usize <= SMALL_BYTES || matches!(self.op, Op::Write { .. } | Op::WriteMore)
    }
}

impl Op {
    /// Whether it asks for something that counts as a request.
    pub(crate) fn is_request(&self) -> bool {
        use Op::{CompareSwap, FetchAdd, Read, Send, Write};
        matches!(self, Send { .. } | Write { .. } | Read { .. } | FetchAdd { .. } | CompareSwap { .. })
    }

    fn kind(&self) -> u8 {
        match self {
            Op::Send { .. } => SEND,
            Op::Write { .. } => WRITE,
            Op::WriteMore => WRITE_MORE,
            Op::Read { .. } => READ,
            Op::FetchAdd { .. } => FETCH_ADD,
            Op::CompareSwap { .. } => COMPARE_SWAP,
            Op::Data => DATA,
            Op::Value(_) => VALUE,
            Op::Refused => REFUSED,
            Op::Ack => ACK,
            Op::Want(_) => WANT,
            Op::Recall => RECALL,
            Op::Return(_) => RETURN,
            Op::Bye { .. } => BYE,
        }
    }
}

impl Why {
    fn from_word(word: u64) -> Option<Self> {
        match word {
            0 => Some(Why::Closed),
            1 => Some(Why::TooLong),
            2 => Some(Why::Malformed),
            _ => None,
        }
    }
}

/// Length of the head of a frame of this kind; none when there is no such kind.
pub fn head_bytes(kind: u8) -> Option<usize> {
    let words = match kind {
        SEND | WRITE_MORE | DATA | REFUSED | ACK | RECALL => 0,
        VALUE | WANT | RETURN => 1,
        BYE => 2,
        WRITE | READ | FETCH_ADD => 4,
        COMPARE_SWAP => 5,
        _ => return None,
    };
    Some(HEAD_MIN + 8 * words)
}

const SEND: u8 = 1;
const WRITE: u8 = 2;
const WRITE_MORE: u8 = 3;
const READ: u8 = 4;
const FETCH_ADD: u8 = 5;
const COMPARE_SWAP: u8 = 6;
const DATA: u8 = 7;
const VALUE: u8 = 8;
const REFUSED: u8 = 9;
const ACK: u8 = 10;
const WANT: u8 = 11;
const RECALL: u8 = 12;
const RETURN: u8 = 13;
const BYE: u8 = 14;

/// Length of the shortest head.
pub const HEAD_MIN: usize = 24;
/// Length of the longest head.
pub const HEAD_MAX: usize = HEAD_MIN + 40;
/// Bytes of one message, WRITE or READ.
pub const MESSAGE_MAX: u64 = 1 << 30;
/// A payload up to here shares its head's tag and is taken whole.
pub const SMALL_BYTES: usize = 1024;
/// Bytes of a WRITE in one frame: it is checked whole before a byte of it is placed.
pub const WRITE_CHUNK: usize = 16 << 10;
/// Bytes of a READ's answer in one frame.
pub const READ_CHUNK: usize = 128 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ops() -> impl Strategy<Value = (Op, u32)> {
        let immediate = || proptest::option::of(any::<u32>());
        let small = 0..=SMALL_BYTES as u32;
        prop_oneof![
            (immediate(), 0..=MESSAGE_MAX as u32).prop_map(|(immediate, len)| (Op::Send { immediate }, len)),
            (any::<u128>(), any::<u64>(), 1..=MESSAGE_MAX, immediate(), 1u32..=WRITE_CHUNK as u32).prop_map(
                |(rkey, at, total, immediate, len)| {
                    (Op::Write { rkey, at, total, immediate }, len.min(total as u32))
                }
            ),
            (1..=WRITE_CHUNK as u32).prop_map(|len| (Op::WriteMore, len)),
            (any::<u128>(), any::<u64>(), 0..=MESSAGE_MAX).prop_map(|(rkey, at, len)| (Op::Read { rkey, at, len }, 0)),
            (any::<u128>(), any::<u64>(), any::<u64>()).prop_map(|(rkey, at, add)| (Op::FetchAdd { rkey, at, add }, 0)),
            (any::<u128>(), any::<u64>(), any::<u64>(), any::<u64>())
                .prop_map(|(rkey, at, compare, swap)| (Op::CompareSwap { rkey, at, compare, swap }, 0)),
            (1..=READ_CHUNK as u32).prop_map(|len| (Op::Data, len)),
            any::<u64>().prop_map(|value| (Op::Value(value), 0)),
            any::<u32>().prop_map(|count| (Op::Want(count), 0)),
            any::<u32>().prop_map(|count| (Op::Return(count), 0)),
            any::<u64>().prop_map(|number| (Op::Bye { why: Why::TooLong, number }, 0)),
            small.prop_map(|_| (Op::Ack, 0)),
            Just((Op::Recall, 0)),
            Just((Op::Refused, 0)),
        ]
    }

    proptest! {
        #[test]
        fn heads_travel((op, len) in ops(), acked: u64, credits: u32) {
            let head = Head { acked, credits, len, op };
            let mut bytes = [0xEE; HEAD_MAX];
            let encoded = head.encode(&mut bytes);
            prop_assert_eq!(head_bytes(bytes[0]), Some(encoded));
            prop_assert_eq!(Head::decode(&bytes[..encoded]), Ok(head));
        }

        #[test]
        fn what_is_read_is_what_was_written(bytes in proptest::collection::vec(any::<u8>(), 0..=HEAD_MAX)) {
            if let Ok(head) = Head::decode(&bytes) {
                let mut again = [0; HEAD_MAX];
                let len = head.encode(&mut again);
                prop_assert_eq!(&again[..len], &bytes[..]);
            }
        }
    }

    #[test]
    fn absurd_lengths_are_refused() {
        let head = |op, len| Head { acked: 0, credits: 0, len, op };
        for (op, len) in [
            (Op::Send { immediate: None }, MESSAGE_MAX as u32 + 1),
            (Op::Write { rkey: 0, at: 0, total: 5, immediate: None }, 6),
            (Op::Write { rkey: 0, at: 0, total: 5, immediate: None }, 0),
            (Op::Write { rkey: 0, at: 0, total: 1 << 40, immediate: None }, 6),
            (Op::WriteMore, 0),
            (Op::WriteMore, WRITE_CHUNK as u32 + 1),
            (Op::Read { rkey: 0, at: 0, len: MESSAGE_MAX + 1 }, 0),
            (Op::Data, READ_CHUNK as u32 + 1),
            (Op::Ack, 1),
        ] {
            let mut bytes = [0; HEAD_MAX];
            let encoded = head(op, len).encode(&mut bytes);
            assert!(Head::decode(&bytes[..encoded]).is_err(), "{op:?} {len}");
        }
    }
}
