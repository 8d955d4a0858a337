//! What clients and servers say to each other, apart from rows.
//!
//! Every message is one SEND. The first four bytes say what it is ([`MessageKind`]); a request or
//! reply is a postcard encoding of [`Request`] or [`Reply`] behind a [`CONTROL_HEADER`]-byte
//! header. Whatever is longer than the other side's buffers travels in parts ([`cut`]).
//! `docs/reference/wire.md` has the bytes.
//!
//! Both directions are bounded and total: a message that does not decode closes its connection.
//!
//! `Status` is answered by nothing where tables live in memory alone. Else it is answered by the
//! directory, the durability, the way of writing, the log's position and how much of it is durable.
//! Behind these come the bytes since the last checkpoint began, how many checkpoints there were,
//! and whether one is under way. The governor comes last: its pace in bytes a second (u64), p99.9
//! of requests now and undisturbed in ns (each u64, or none), and halvings (u64).
//!
//! `ScanInPlace` has the fields of `Scan` and one more: the bytes that a lent message may have
//! (varint). Such a message must fit into the receive that it meets, since it may be copied after
//! all. `ScanEndInPlace` has those of `ScanEnd` with a fourth count and a fourth price, those of
//! in-place.
//!
//! `CreateIndex` and `DropIndex` have a table's number and the index's columns (a count, then
//! varints); `Indexes` has the number alone. `CreateIndex` is answered by `Indexing` (rows looked
//! at, of how many) until the index is there, then by `Index`: its columns, pages and bytes.
//! `ScanIndex` has the fields of `Scan`, the index's columns, and the bytes of a lent message, 0
//! where nothing may be lent. Its bounds are encoded values of the index's columns
//! (`key::IndexCodec`).
//!
//! `Choices` has a table's number; its answer has the pages sent in each mode and the limit of
//! chains. `Prices` has nothing; its answer has their source, then pairs of prices (f64, server and
//! client): of a request, and of copied and gathered pieces by length; none is negative or no
//! number. What each mode took beyond comes last. `Held` has nothing; its answer has the bytes that
//! pins hold, those that epochs hold, the pins, and none or one thread: its table, its number, and
//! for how many ns.
//!
//! `Open` has a table's number and a place in its arena. Its answer has the leftmost leaf's number,
//! the places of the mapping table's blocks (each none or one), bytes of a page, of a value's
//! prefix, and of the longest value and key. Regions from that place on follow, each with where it
//! lies and the 32 bytes that name it to the provider, and whether there are more.

mod batch;
mod features;
mod message;

pub(crate) use batch::{FRAME_BYTES, REQUEST_BYTES, frame};
pub use batch::{pieces, push_piece, split_piece};
pub use features::Features;
pub(crate) use features::other_version;
pub use message::{
    Applied, Bounds, Checkpointed, Choices, DataStatus, Durability, FAILED_MAX, Fault, FaultCode, GovernorStatus, Held,
    IndexInfo, MODES, Mode, OpenRegion, Opened, PiecePrice, PriceList, PutMode, Reply, Request, ScanReply, ScanRequest,
    ServerStats, Stalled, TableInfo, WAYS,
};
pub use overside_service::{
    ASSEMBLY_BYTES_MAX, Assembly, BadMessage, CONTROL_HEADER, CONTROL_MAGIC, MessageKind, PART_HEADER, PART_MAGIC, cut,
    kind,
};

/// Version of this protocol; both sides must have the same. What a side can do beyond it, it says
/// by its [`Features`].
pub const VERSION: u16 = 4;

/// Longest request a server takes: a value of 1 MiB, its key and room.
pub const REQUEST_BYTES_MAX: usize = (1 << 20) + (64 << 10);
/// Bytes of a receive buffer of a client's that says nothing else: two pages, or one with its
/// deltas and room. No power of two: buffers at such a distance fall into the same sets of a cache,
/// and a ring far smaller than the cache then evicts itself.
pub const BLOCK_BYTES: usize = 36 << 10;
/// Schemas and names of the tables that one reply to List has; it has one table at least, however
/// long that is.
pub const LIST_BYTES_MAX: usize = 1 << 20;
/// Tables have names of 1 to this many bytes.
pub const TABLE_NAME_BYTES_MAX: usize = 255;

/// Writes a request or reply with its header.
pub fn encode<T: serde::Serialize>(request: u32, body: &T) -> Vec<u8> {
    overside_service::message(request, |out| append(out, body))
}

/// Writes a request or reply without its header.
pub fn append<T: serde::Serialize>(out: &mut Vec<u8>, body: &T) {
    // Serialising plain data into memory has no way to fail.
    *out = postcard::to_extend(body, std::mem::take(out)).unwrap_or_default();
}

/// Reads a request or reply: its number and its body.
///
/// # Errors
/// [`BadMessage`] for anything else.
pub fn decode<'a, T: serde::Deserialize<'a>>(message: &'a [u8]) -> Result<(u32, T), BadMessage> {
    let (number, body) = overside_service::open(message)?;
    Ok((number, decode_body(body)?))
}

/// Reads a request or reply without its header.
///
/// # Errors
/// [`BadMessage`] for anything else.
pub fn decode_body<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, BadMessage> {
    let (body, left) = postcard::take_from_bytes(body).map_err(|_| BadMessage("its body does not decode"))?;
    if !left.is_empty() {
        return Err(BadMessage("bytes behind its body"));
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A client compares and prints them: a server must not make it work with what is no number.
    #[test]
    fn what_is_no_price_is_refused() {
        let said = |(server, client): (f64, f64), request: bool| {
            let sound = (1.0, 0.0);
            let piece =
                PiecePrice { bytes: 8, copied_ns: sound, gathered_ns: if request { sound } else { (server, client) } };
            let request_ns = if request { (server, client) } else { sound };
            let list = PriceList { request_ns, pieces: vec![piece], ..PriceList::default() };
            decode::<Reply>(&encode(1, &Reply::Prices(list))).is_ok()
        };
        for request in [true, false] {
            assert!(said((1.5, 0.0), request));
            for wrong in [f64::NAN, f64::INFINITY, -1.0] {
                assert!(!said((wrong, 1.0), request) && !said((1.0, wrong), request), "{wrong}");
            }
        }
    }

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
        assert_eq!(kind(&bytes), MessageKind::Control);
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
