//! What clients and servers say to each other, apart from rows.
//!
//! Every message is one SEND. The first four bytes say what it is ([`Kind`]); a request or reply is a
//! postcard encoding of [`Request`] or [`Reply`] behind a [`CONTROL_HEADER`]-byte header. Whatever is longer
//! than the other side's buffers travels in [parts](part). `docs/wire.md` has the bytes.
//!
//! Both directions are bounded and total: a message that does not decode closes its connection.

mod batch;
mod message;
mod part;

pub use batch::{pieces, push_piece, split_piece};
pub use message::{
    Applied, Bounds, FAILED_MAX, Fault, FaultCode, MODES, Mode, PutMode, Reply, Request, ScanReply, ScanRequest,
    ServerStats, TableInfo,
};
pub use part::{Assembly, PART_HEADER, cut};

/// Version of this protocol; both sides must have the same.
pub const VERSION: u16 = 3;

/// Bytes before the postcard body: magic, request number.
pub const CONTROL_HEADER: usize = 8;

/// Magic of a request or reply, read as little-endian: the bytes `OVSC`.
pub const CONTROL_MAGIC: u32 = u32::from_le_bytes(*b"OVSC");
/// Magic of a part of something longer: the bytes `OVSP`.
pub const PART_MAGIC: u32 = u32::from_le_bytes(*b"OVSP");

/// Longest request a server takes: a value of 1 MiB, its key and room.
pub const REQUEST_BYTES_MAX: usize = (1 << 20) + (64 << 10);
/// Bytes of a receive buffer of a client's that says nothing else: two pages, or one with its deltas and room. No power of two:
/// buffers at such a distance fall into the same sets of a cache, and a ring far smaller than the cache then evicts itself.
pub const BLOCK_BYTES: usize = 36 << 10;
/// Longest reply or scan answer that travels in parts.
pub const ASSEMBLY_BYTES_MAX: usize = 4 << 20;
/// Schemas and names of the tables that one reply to List has; it has one table at least, however long that is.
pub const LIST_BYTES_MAX: usize = 1 << 20;
/// Tables have names of 1 to this many bytes.
pub const TABLE_NAME_BYTES_MAX: usize = 255;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request or a reply.
    Control,
    /// A part of a longer message.
    Part,
    /// Rows; the block module parses it.
    Block,
}

/// What a received message is, by its first bytes.
pub fn kind(message: &[u8]) -> Kind {
    match message.first_chunk().map(|m| u32::from_le_bytes(*m)) {
        Some(CONTROL_MAGIC) => Kind::Control,
        Some(PART_MAGIC) => Kind::Part,
        _ => Kind::Block,
    }
}

/// A message that is not what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message from the other side is malformed: {0}; is it the same version?")]
pub struct BadMessage(pub &'static str);

/// Writes a request or reply with its header.
pub fn encode<T: serde::Serialize>(request: u32, body: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    out.extend_from_slice(&CONTROL_MAGIC.to_le_bytes());
    out.extend_from_slice(&request.to_le_bytes());
    // Serialising plain data into memory has no way to fail.
    postcard::to_extend(body, out).unwrap_or_default()
}

/// Reads a request or reply: its number and its body.
///
/// # Errors
/// [`BadMessage`] for anything else.
pub fn decode<'a, T: serde::Deserialize<'a>>(message: &'a [u8]) -> Result<(u32, T), BadMessage> {
    let (header, body) = message.split_at_checked(CONTROL_HEADER).ok_or(BadMessage("shorter than its header"))?;
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i]));
    if word(0) != CONTROL_MAGIC {
        return Err(BadMessage("wrong magic"));
    }
    let (body, left) = postcard::take_from_bytes(body).map_err(|_| BadMessage("its body does not decode"))?;
    if !left.is_empty() {
        return Err(BadMessage("bytes behind its body"));
    }
    Ok((word(4), body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_travels() {
        let request = Request::Scan(ScanRequest {
            table: 3,
            bounds: Bounds { from: Some((b"a", true)), to: None },
            columns: Some(vec![1, 2]),
            mode: Mode::Auto,
            rows_max: None,
        });
        let bytes = encode(9, &request);
        assert_eq!(kind(&bytes), Kind::Control);
        assert_eq!(decode::<Request<'_>>(&bytes), Ok((9, request)));
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(decode::<Request<'_>>(&longer).is_err(), "nothing may follow");
    }

    proptest! {
        #[test]
        fn garbage_is_an_error(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), sound in any::<bool>()) {
            if sound && bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&CONTROL_MAGIC.to_le_bytes());
            }
            let _ = decode::<Request<'_>>(&bytes);
            let _ = decode::<Reply>(&bytes);
        }
    }
}
