//! Several messages in one SEND: how they stand in it, and how the receiver takes them apart.
//!
//! A declared region yields many messages, often of a few bytes; a request for each would cost more
//! than its bytes. So whole messages share a SEND, and its immediate data says how to tell them
//! apart:
//!
//! | immediate | the SEND's bytes |
//! |---|---|
//! | none | one message |
//! | `n`, the top bit clear | messages of `n` bytes each, one after another |
//! | `k`, the top bit set | `k` lengths (u32, little-endian), then the messages one after another |
//!
//! What the receiver gets are the messages that separate SENDs would have brought, borders included
//! (d-rdma Fig. 1 DR-M03).

use overside_shape::Messages;

/// How messages stand in a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// One message.
    Single,
    /// Messages of so many bytes each, at least one byte.
    Uniform(u32),
    /// So many lengths in front.
    Lengths(u32),
}

/// Received bytes are not the messages that their immediate data promises: the sender is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// Not a whole number of messages.
    #[error("{bytes} bytes are no whole number of messages of {each}; close the connection")]
    Uniform {
        /// Bytes received.
        bytes: usize,
        /// Bytes of each message, as the immediate data says.
        each: u32,
    },
    /// The lengths in front do not fit, or do not add up.
    #[error("{count} lengths in front of {bytes} bytes do not add up; close the connection")]
    Lengths {
        /// Bytes received.
        bytes: usize,
        /// How many lengths, as the immediate data says.
        count: u32,
    },
}

impl Framing {
    /// For messages that share a SEND.
    pub fn of(messages: &Messages<'_>) -> Framing {
        match messages.uniform_bytes() {
            _ if messages.count() == 1 => Framing::Single,
            Some(bytes @ 1..UNIFORM_MAX) => Framing::Uniform(bytes as u32),
            _ => Framing::Lengths(messages.count() as u32),
        }
    }

    /// The immediate data that says so.
    pub fn immediate(self) -> Option<u32> {
        match self {
            Framing::Single => None,
            Framing::Uniform(bytes) => Some(bytes),
            Framing::Lengths(count) => Some(count | LENGTHS),
        }
    }

    /// What immediate data says; any value says something, not always of any bytes.
    pub fn from_immediate(immediate: Option<u32>) -> Framing {
        match immediate {
            None => Framing::Single,
            Some(value) if value & LENGTHS != 0 => Framing::Lengths(value & !LENGTHS),
            Some(bytes) => Framing::Uniform(bytes),
        }
    }

    /// Bytes in front of the messages.
    pub fn head_bytes(self) -> usize {
        match self {
            Framing::Lengths(count) => count as usize * LENGTH_BYTES,
            _ => 0,
        }
    }
}

/// Those of `messages`, from the first on, that share the next SEND, if none is to be longer than
/// `bytes_max` with the lengths in front of them; one at least. There is one.
pub fn first<'a>(messages: &Messages<'a>, bytes_max: u64) -> Messages<'a> {
    messages.slice(0..by_bytes(messages, bytes_max).min(messages.count()))
}

/// How many of `messages`, from the first on, fit into `bytes_max` bytes as one packed request; at
/// least one.
fn by_bytes(messages: &Messages<'_>, bytes_max: u64) -> u64 {
    let count = messages.count();
    match messages.uniform_bytes() {
        Some(0) => count.min((bytes_max / LENGTH_BYTES as u64).max(1)),
        Some(bytes) => count.min((bytes_max / bytes).max(1)),
        None => {
            let (mut taken, mut bytes) = (0, 0);
            for length in messages.lengths() {
                bytes = length.saturating_add(LENGTH_BYTES as u64).saturating_add(bytes);
                if bytes > bytes_max && taken > 0 {
                    break;
                }
                taken += 1;
            }
            taken.max(1)
        }
    }
}

/// The messages of a received SEND, in order.
#[derive(Clone, Debug)]
pub struct Bundle<'a> {
    framing: Framing,
    lengths: &'a [u8],
    rest: &'a [u8],
}

impl Default for Bundle<'_> {
    /// Of no message.
    fn default() -> Self {
        Self { framing: Framing::Lengths(0), lengths: &[], rest: &[] }
    }
}

impl<'a> Bundle<'a> {
    /// Takes apart what a completion reported. Every length is checked before the first message is
    /// given out.
    ///
    /// # Errors
    /// [`BundleError`] when the bytes are not what the immediate data says.
    pub fn new(bytes: &'a [u8], immediate: Option<u32>) -> Result<Self, BundleError> {
        let framing = Framing::from_immediate(immediate);
        let (lengths, rest) = match framing {
            Framing::Single => (&bytes[..0], bytes),
            Framing::Uniform(each) => {
                if each == 0 || !bytes.len().is_multiple_of(each as usize) {
                    return Err(BundleError::Uniform { bytes: bytes.len(), each });
                }
                (&bytes[..0], bytes)
            }
            Framing::Lengths(count) => {
                let fault = BundleError::Lengths { bytes: bytes.len(), count };
                let (lengths, rest) = bytes.split_at_checked(framing.head_bytes()).ok_or(fault)?;
                let sum: u64 = lengths.chunks_exact(LENGTH_BYTES).map(|length| u64::from(length_of(length))).sum();
                if sum != rest.len() as u64 {
                    return Err(fault);
                }
                (lengths, rest)
            }
        };
        Ok(Self { framing, lengths, rest })
    }
}

impl<'a> Iterator for Bundle<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let take = match self.framing {
            Framing::Single => {
                self.framing = Framing::Lengths(0);
                self.rest.len()
            }
            Framing::Uniform(each) if !self.rest.is_empty() => each as usize,
            Framing::Uniform(_) => return None,
            Framing::Lengths(_) => {
                let (length, lengths) = self.lengths.split_at_checked(LENGTH_BYTES)?;
                self.lengths = lengths;
                length_of(length) as usize
            }
        };
        let (message, rest) = self.rest.split_at(take);
        self.rest = rest;
        Some(message)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = match self.framing {
            Framing::Single => 1,
            Framing::Uniform(each) => self.rest.len() / each as usize,
            Framing::Lengths(_) => self.lengths.len() / LENGTH_BYTES,
        };
        (left, Some(left))
    }
}

impl ExactSizeIterator for Bundle<'_> {}

/// Writes the lengths that stand in front of messages of several lengths: the first
/// [`Framing::head_bytes`] of a SEND.
pub fn write_lengths(messages: &Messages<'_>, head: &mut [u8]) {
    for (length, place) in messages.lengths().zip(head.chunks_exact_mut(LENGTH_BYTES)) {
        // A request's bytes are bounded far below 4 GiB.
        place.copy_from_slice(&(length as u32).to_le_bytes());
    }
}

fn length_of(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_le_bytes)
}

/// Bytes of a length in front of the messages.
pub const LENGTH_BYTES: usize = 4;
const LENGTHS: u32 = 1 << 31;
const UNIFORM_MAX: u64 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_come_apart_as_the_immediate_says() {
        let split = |bytes: &'static [u8], immediate| {
            Bundle::new(bytes, immediate).map(|bundle| {
                let len = bundle.len();
                let messages: Vec<&[u8]> = bundle.collect();
                assert_eq!(messages.len(), len);
                messages
            })
        };
        assert_eq!(split(b"abc", None), Ok(vec![&b"abc"[..]]));
        assert_eq!(split(b"", None), Ok(vec![&b""[..]]), "an empty message is one");
        assert_eq!(split(b"abcdef", Some(2)), Ok(vec![&b"ab"[..], b"cd", b"ef"]));
        let framed = b"\x01\0\0\0\0\0\0\0\x02\0\0\0xyz";
        assert_eq!(split(framed, Some(3 | 1 << 31)), Ok(vec![&b"x"[..], b"", b"yz"]));
    }

    #[test]
    fn what_does_not_add_up_is_refused() {
        assert_eq!(Bundle::new(b"abc", Some(2)).unwrap_err(), BundleError::Uniform { bytes: 3, each: 2 });
        assert!(Bundle::new(b"abc", Some(0)).is_err());
        assert!(Bundle::new(b"\x01\0\0\0", Some(1 << 31 | 1)).is_err(), "a length without its byte");
        assert!(Bundle::new(b"\x01\0\0\0ab", Some(1 << 31 | 1)).is_err(), "a byte too much");
        assert!(Bundle::new(b"ab", Some(u32::MAX)).is_err());
        assert!(Bundle::new(&[0xFF; 16], Some(1 << 31 | 4)).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_apart_whole_or_refused(
            bytes in proptest::collection::vec(0u8..4, 0..60), immediate in proptest::option::of(prop_oneof![0u32..9, (0u32..9).prop_map(|k| k | 1 << 31), any::<u32>()]),
        ) {
            if let Ok(bundle) = Bundle::new(&bytes, immediate) {
                let head = Framing::from_immediate(immediate).head_bytes();
                let whole: Vec<u8> = bundle.flatten().copied().collect();
                prop_assert_eq!(&whole[..], &bytes[head..]);
            }
        }
    }
}
