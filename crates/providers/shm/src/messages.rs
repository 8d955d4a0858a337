//! What travels on the socket beside the bytes' way: at most 64 bytes each, little-endian.
//!
//! Every message on the socket is one packet of at most 64 bytes, little-endian, with one file
//! descriptor beside it where the table says so, and none otherwise. Anything else ends the
//! connection.
//!
//! | kind (u8) | then | descriptor | means |
//! |---|---|---|---|
//! | 1 hello | `overside` (8 bytes), u32 version | | first in both directions; the connector speaks first |
//! | 2 attach | u32 depth, u32 cells | control memory | once, first after hello |
//! | 3 segment | u32 id, u64 length | the segment's memfd | descriptors name the segment from now on |
//! | 4 grant | u128 key, u8 access, u8 window (0 or 1), u64 length | the memory | the receiver may reach this by the key |
//! | 5 revoke | u128 key | | the key is void |
//! | 6 forget | 1 to 15 u32 ids | | no later descriptor names these segments |
//! | 7 doorbell | | | something was published while you slept |
//! | 8 bye | | | closed; the `closed` word says why |
//!
//! Access is a sum of 1 (local), 2 (READ), 4 (WRITE), 8 (atomics). A segment's memfd carries the
//! seals against shrinking, growing and sealing. It carries the one against future writes, too,
//! unless it is a window that peers may WRITE or do atomics on (`window` is 1 then). Length and
//! seals are checked before it is mapped. A window that peers may only READ is granted as a segment
//! is: its owner mapped it before the seal, and it is not mapped for writing after.

use crate::ring::Geometry;

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// First in both directions: who speaks which version.
    Hello,
    /// My control memory, passed along. Once, first after the greeting.
    Attach(Geometry),
    /// A segment that later descriptors name, passed along.
    Segment { id: u32, len: u64 },
    /// Memory that the receiver may reach by this key, passed along.
    Grant { rkey: u128, access: u8, window: bool, len: u64 },
    /// That key is void.
    Revoke { rkey: u128 },
    /// No later descriptor names these segments.
    Forget(Vec<u32>),
    /// Something was published while you slept.
    Doorbell,
    /// I have closed; my `closed` word says why.
    Bye,
}

impl Message {
    /// Writes it; returns its length.
    pub(crate) fn encode(&self, out: &mut [u8; BYTES_MAX]) -> usize {
        let mut writer = Writer { out, at: 0 };
        match self {
            Message::Hello => writer.put(&[1]).put(&MAGIC).put(&VERSION.to_le_bytes()),
            Message::Attach(geometry) => {
                writer.put(&[2]).put(&geometry.depth().to_le_bytes()).put(&geometry.cells().to_le_bytes())
            }
            Message::Segment { id, len } => writer.put(&[3]).put(&id.to_le_bytes()).put(&len.to_le_bytes()),
            Message::Grant { rkey, access, window, len } => {
                writer.put(&[4]).put(&rkey.to_le_bytes()).put(&[*access, u8::from(*window)]).put(&len.to_le_bytes())
            }
            Message::Revoke { rkey } => writer.put(&[5]).put(&rkey.to_le_bytes()),
            Message::Forget(ids) => {
                writer.put(&[6]);
                for id in ids.iter().take(FORGET_MAX) {
                    writer.put(&id.to_le_bytes());
                }
                &mut writer
            }
            Message::Doorbell => writer.put(&[7]),
            Message::Bye => writer.put(&[8]),
        };
        writer.at
    }

    /// Reads one. None for anything that [`encode`](Self::encode) does not write.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Message> {
        let (kind, rest) = bytes.split_first()?;
        let mut reader = Reader { rest };
        let message = match kind {
            1 => {
                let magic: [u8; 8] = reader.take()?;
                let version = u32::from_le_bytes(reader.take()?);
                (magic == MAGIC && version == VERSION).then_some(Message::Hello)?
            }
            2 => {
                let depth = u32::from_le_bytes(reader.take()?);
                Message::Attach(Geometry::checked(depth, u32::from_le_bytes(reader.take()?))?)
            }
            3 => {
                let id = u32::from_le_bytes(reader.take()?);
                Message::Segment { id, len: u64::from_le_bytes(reader.take()?) }
            }
            4 => {
                let rkey = u128::from_le_bytes(reader.take()?);
                let [access, window] = reader.take()?;
                let len = u64::from_le_bytes(reader.take()?);
                (window < 2).then_some(Message::Grant { rkey, access, window: window == 1, len })?
            }
            5 => Message::Revoke { rkey: u128::from_le_bytes(reader.take()?) },
            6 => {
                if reader.rest.len() > FORGET_MAX * 4 {
                    return None;
                }
                let mut ids = Vec::with_capacity(FORGET_MAX);
                while !reader.rest.is_empty() {
                    ids.push(u32::from_le_bytes(reader.take()?));
                }
                Message::Forget(ids)
            }
            7 => Message::Doorbell,
            8 => Message::Bye,
            _ => return None,
        };
        reader.rest.is_empty().then_some(message)
    }

    /// Bytes of the memory that it passes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        match self {
            Message::Segment { len, .. } | Message::Grant { len, .. } => *len,
            _ => 0,
        }
    }

    /// Whether a descriptor travels with it.
    pub(crate) fn carries(&self) -> bool {
        matches!(self, Message::Attach(_) | Message::Segment { .. } | Message::Grant { .. })
    }
}

/// The version a greeting of 13 bytes or more names, for telling people what is wrong.
pub(crate) fn greeting_version(bytes: &[u8]) -> Option<u32> {
    let magic = bytes.get(1..9)?;
    let version = bytes.get(9..13)?;
    (bytes[0] == 1 && magic == MAGIC).then(|| u32::from_le_bytes(std::array::from_fn(|i| version[i])))
}

struct Writer<'a> {
    out: &'a mut [u8; BYTES_MAX],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*head)
    }
}

const MAGIC: [u8; 8] = *b"overside";
/// Changes with any layout of the control memory or of these messages.
pub(crate) const VERSION: u32 = 6;
/// No message is longer.
pub(crate) const BYTES_MAX: usize = 64;
/// Segments in one message.
pub(crate) const FORGET_MAX: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Message> {
        vec![
            Message::Hello,
            Message::Attach(Geometry::for_options(128, 1024)),
            Message::Segment { id: 7, len: 1 << 40 },
            Message::Grant { rkey: u128::MAX - 3, access: 6, window: true, len: 4096 },
            Message::Revoke { rkey: 5 },
            Message::Forget((0..FORGET_MAX as u32).collect()),
            Message::Forget(vec![]),
            Message::Doorbell,
            Message::Bye,
        ]
    }

    #[test]
    fn messages_come_back_and_every_other_length_is_refused() {
        for message in samples() {
            let mut bytes = [0; BYTES_MAX];
            let len = message.encode(&mut bytes);
            assert_eq!(Message::decode(&bytes[..len]).as_ref(), Some(&message));
            for cut in 0..len {
                let decoded = Message::decode(&bytes[..cut]);
                // A list that ends early at an entry is a shorter list.
                assert!(decoded.is_none() || matches!(decoded, Some(Message::Forget(_))), "{message:?} cut at {cut}");
            }
            if len < BYTES_MAX && !matches!(message, Message::Forget(_)) {
                assert_eq!(Message::decode(&bytes[..len + 1]), None, "{message:?} with a byte more");
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_decode_or_not_without_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..80)) {
            if let Some(message) = Message::decode(&bytes) {
                let mut again = [0; BYTES_MAX];
                let len = message.encode(&mut again);
                assert_eq!(&again[..len], &bytes[..]);
            }
        }
    }
}
