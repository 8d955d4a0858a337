//! What each parser of outside bytes promises.

use overside_table::arrow::BatchBuilder;
use overside_table::block::{LentBlock, LentError, RowBlock};
use overside_table::key::KeyCodec;
use overside_table::row::{RowLayout, RowView, Value};
use overside_table::schema::Schema;
use overside_table::wire::{self, ASSEMBLY_BYTES_MAX, Assembly, MessageKind, PART_HEADER, Reply, Request};

use super::lent::lent;
use super::{projection, table};

/// A request or a reply: what decodes means the same when it is said again.
pub fn control(data: &[u8]) -> bool {
    let request = wire::decode::<Request<'_>>(data);
    if let Ok((number, request)) = &request {
        assert_eq!(
            wire::decode::<Request<'_>>(&wire::encode(*number, request)).as_ref(),
            Ok(&(*number, request.clone()))
        );
    }
    let reply = wire::decode::<Reply>(data);
    if let Ok((number, reply)) = &reply {
        assert_eq!(wire::decode::<Reply>(&wire::encode(*number, reply)).as_ref(), Ok(&(*number, reply.clone())));
    }
    let taken = request.is_ok() || reply.is_ok();
    assert!(!taken || wire::kind(data) == MessageKind::Control, "what decodes is told apart by its first bytes");
    taken
}

/// Parts of longer messages, each behind its length as a u16: a whole is its payloads in order, and
/// nothing grows past the limit.
pub fn parts(mut data: &[u8]) -> bool {
    let mut assembly = Assembly::default();
    let (mut payload, mut wholes) = (Vec::new(), 0);
    while let Some((len, after)) = data.split_first_chunk::<2>() {
        let (part, after) = after.split_at(usize::from(u16::from_le_bytes(*len)).min(after.len()));
        data = after;
        // The connection closes at the first error.
        let Ok(whole) = assembly.add(part) else { return false };
        let at = u32::from_le_bytes(std::array::from_fn(|i| part[8 + i]));
        assert_eq!(at as usize, payload.len(), "a part lies where it says");
        payload.extend_from_slice(&part[PART_HEADER..]);
        assert!(wire::kind(part) == MessageKind::Part && payload.len() <= ASSEMBLY_BYTES_MAX);
        if let Some(whole) = whole {
            assert_eq!(whole, payload);
            payload.clear();
            control(&whole);
            wholes += 1;
        }
    }
    wholes > 0
}

/// A batch of rows that a client sent: its pieces are all of it, in order, and whole
/// rows among them can be read.
pub fn batch(data: &[u8]) -> bool {
    let Ok(pieces) = wire::pieces(data) else { return false };
    let mut again = Vec::new();
    pieces.iter().for_each(|piece| wire::push_piece(&mut again, piece));
    assert_eq!(again, data);
    pieces.into_iter().filter(|piece| row(piece)).count() > 0
}

/// A scan answer, by rows and as a record batch; its first byte chooses the projection. Lent
/// instead of received, it says the same.
pub fn scan_answer(data: &[u8]) -> bool {
    let Some((choice, message)) = data.split_first() else { return false };
    let projection = projection(*choice);
    let lent = lent(message).map(|loan| LentBlock::parse(loan, &projection));
    let parsed = RowBlock::parse(message, &projection);
    if let Some(lent) = &lent {
        assert_eq!(lent.as_ref().err().copied(), parsed.as_ref().err().map(|&error| LentError::Malformed(error)));
    }
    let Ok(block) = parsed else { return false };
    let mut bytes = 0;
    block.rows().for_each(|row| {
        bytes += row.len() as u64;
        let broken = (0..row.layout().columns().len()).filter(|&column| row.value(column).is_err());
        std::hint::black_box(broken.count());
    });
    assert_eq!(bytes, block.row_bytes());
    assert_eq!(block.rows().count(), block.len());
    let mut builder = BatchBuilder::new(&table(), &projection);
    let batch = builder.push(&block).and_then(|()| builder.finish());
    if let Some(Ok(lent)) = lent {
        lent_answer(&lent, &block);
        let in_place = builder.push_lent(&lent).and_then(|()| builder.finish());
        assert_eq!(in_place, batch, "the same columns");
    }
    let Ok(batch) = batch else { return false };
    assert_eq!(batch.num_rows(), block.len());
    true
}

/// A lent answer has the rows of the same one received.
fn lent_answer(lent: &LentBlock, block: &RowBlock<&[u8]>) {
    assert_eq!((lent.len(), lent.row_bytes()), (block.len(), block.row_bytes()));
    let same = lent.read(|rows| {
        rows.zip(block.rows()).all(|(here, there)| {
            // Debug, for a number that is none is not itself.
            let same = |column| {
                format!("{:?}", here.to_value(column)) == format!("{:?}", there.value(column).map(|v| v.to_owned()))
            };
            (0..block.layout().columns().len()).all(same)
        })
    });
    assert_eq!(same, Ok(true), "the same rows");
}

/// A row that a client sent.
pub fn row(data: &[u8]) -> bool {
    let layout = RowLayout::new(&table());
    let Ok(row) = RowView::of_value(data, &layout) else { return false };
    let whole = row.check().is_ok();
    let mut key = Vec::new();
    let encoded = KeyCodec::new(&table()).encode_row(&row, &mut key).is_ok();
    for column in 0..layout.columns().len() {
        assert!(row.value(column).is_ok() || !whole, "what was checked can be read");
    }
    assert!(key.is_empty() || encoded, "a key that fails leaves nothing");
    whole && encoded
}

/// An encoded key: an error, or the only encoding of its values.
pub fn key(data: &[u8]) -> bool {
    let codec = KeyCodec::new(&table());
    let Ok(values) = codec.decode(data) else { return false };
    let mut again = Vec::new();
    codec.encode(&values.iter().map(Value::as_ref).collect::<Vec<_>>(), &mut again).expect("values of a key");
    assert_eq!(again, data);
    true
}

/// An encoded schema: an error, or the only encoding of a schema within the limits.
pub fn schema(data: &[u8]) -> bool {
    let Ok(schema) = Schema::decode(data) else { return false };
    let mut again = Vec::new();
    schema.encode(&mut again);
    assert_eq!(again, data);
    RowLayout::new(&schema);
    true
}
