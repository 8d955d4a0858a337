//! The checks behind the fuzz targets. `tests/corpus.rs` of the crate replays the corpus
//! through the same functions.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::Arc;

use overside_bwtree::{
    AdoptLeaf, DeltaRecord, Direction, HeapArena, KeyParts, Leaf, Op, Opening, Options, Reads, Rest, SystemWaits, Tree,
    Walk,
};

/// Takes an input: panics where the parser broke a promise, answers whether the parser accepted it.
pub type Check = fn(&[u8]) -> bool;

/// Every target, by the name of its binary and of its folder in `corpus/`.
pub const TARGETS: [(&str, Check); 4] = [("adopt", adopt), ("delta", delta), ("leaf", leaf), ("walk", walk)];

/// A leaf page: every accessor answers inside the page, for rows that are there
/// and for rows that are not.
pub fn leaf(data: &[u8]) -> bool {
    let Ok(leaf) = Leaf::parse(data) else { return false };
    let page = leaf.bytes();
    inside(data, page);
    for part in [leaf.low_fence(), leaf.high_fence().unwrap_or(&[]), leaf.prefixes(), leaf.common()] {
        inside(page, part);
    }
    inside(page, leaf.heads().as_flattened());
    assert!(leaf.fixed_keys().is_none_or(|(common, len)| common == leaf.common() && len <= 8));
    std::hint::black_box(leaf.has_overflow());
    let mut keys = Vec::new();
    let count = leaf.count();
    for i in (0..count.min(ROWS_MAX)).chain([count / 2, count.saturating_sub(1), count, usize::MAX]) {
        keys.clear();
        leaf.key(i, &mut keys);
        key_of(page, leaf.key_parts(i), &keys);
        assert!(leaf.search(&keys).map_or_else(|at| at <= count, |at| at < count));
        inside(page, leaf.prefix(i));
        assert!(leaf.prefix(i).is_empty() || leaf.prefix(i).len() == leaf.prefix_len());
        rest_of(page, leaf.rest(i));
        for rows in [0..i, i..i.saturating_add(1), i..count] {
            sections(&leaf, rows);
        }
    }
    for probe in [&b""[..], b"\0", b"customer/0003", b"zz", &[255; 40]] {
        assert!(leaf.search(probe).map_or_else(|at| at <= count, |at| at < count));
    }
    true
}

/// A delta record: what it says lies in it.
pub fn delta(data: &[u8]) -> bool {
    let Ok(delta) = DeltaRecord::parse(data) else { return false };
    let record = delta.record();
    inside(data, record);
    inside(record, delta.key());
    inside(record, delta.prefix());
    rest_of(record, delta.rest());
    assert!(delta.rest_at().end <= record.len());
    assert!(matches!(delta.op(), Op::Put | Op::Delete));
    std::hint::black_box((delta.position(), delta.replaces()));
    let again = DeltaRecord::parse(record).expect("a record is one without what follows it");
    assert_eq!((again.key(), again.prefix(), again.rest()), (delta.key(), delta.prefix(), delta.rest()));
    true
}

/// Leaves that were written down: refused, or a tree whose rows are in order, can be
/// found, replaced and deleted.
pub fn adopt(data: &[u8]) -> bool {
    let arena = Arc::new(HeapArena::with_chunks(1 << 20, 8).expect("address space"));
    let adoption = Tree::adopt(arena, ADOPTED, &SystemWaits, None).expect("options within the limits");
    let (mut part, mut taken, mut left) = (adoption.part(b""), 0, data);
    while let Some((base, rows, deltas, extents)) = next_leaf(&mut left) {
        let leaf = AdoptLeaf { base, rows, deltas: &deltas, extents: &extents };
        taken += usize::from(part.take(&leaf).is_ok());
    }
    let tree = adoption.finish([part]).expect("one part is in order, and there is room");
    let all = |direction| tree.range(Bound::Unbounded, Bound::Unbounded, direction);
    let rows: Vec<(Vec<u8>, Vec<u8>)> = all(Direction::Forward).collect();
    assert!(rows.is_sorted_by(|a, b| a.0 < b.0), "keys out of order");
    assert!(all(Direction::Backward).eq(rows.iter().rev().cloned()));
    let mut out = Vec::new();
    for (key, value) in &rows {
        assert!(tree.get(key, &mut out).expect("no error") && out == *value, "a row that nobody finds");
        assert!(tree.upsert(key, &[1; 20]).expect("room for a row"), "a row that nobody replaces");
    }
    for (key, _) in &rows {
        assert!(tree.delete(key).expect("room for a delete"), "a row that nobody deletes");
    }
    assert_eq!(all(Direction::Forward).next(), None);
    taken > 0
}

/// Memory that a peer reads by itself: its walk comes to an end, or to an
/// error, and gives no key twice.
pub fn walk(data: &[u8]) -> bool {
    let (mut left, mut memory) = (data, Memory { pieces: BTreeMap::new(), reads: 0 });
    let Some(blocks) = (0..3).map(|_| number(&mut left).map(|at| Some(64 * at as u64))).collect() else { return false };
    while let (Some(at), Some(bytes)) = (number(&mut left), piece(&mut left)) {
        memory.pieces.insert(64 * at as u64, bytes);
    }
    let mut walk = Walk::new(opening(blocks), Bound::Unbounded, Bound::Unbounded);
    let (mut last, mut rows): (Option<Vec<u8>>, u64) = (None, 0);
    while let Ok(true) = walk.advance(&mut memory) {
        let page = walk.page();
        let leaf = page.leaf();
        let replaced: Vec<usize> = page.deltas().filter(DeltaRecord::replaces).map(|d| d.position()).collect();
        let base = page.rows().filter(|row| !replaced.contains(row));
        let mut keys: Vec<(Vec<u8>, Rest<'_>)> =
            base.map(|row| (leaf.key_parts(row).to_vec(), leaf.rest(row))).collect();
        let puts = page.deltas().filter(|delta| delta.op() == Op::Put);
        keys.extend(puts.map(|delta| (delta.key().to_vec(), delta.rest())));
        keys.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for (key, rest) in keys {
            assert!(last.as_ref() < Some(&key), "keys out of order");
            if let Rest::Overflow(reference) = rest {
                assert!(page.extent(reference).is_some(), "a value that was not loaded");
            }
            (last, rows) = (Some(key), rows + 1);
        }
        assert!(memory.reads < 100_000, "it does not end");
    }
    rows > 0
}

/// Of the trees whose memory the inputs of `walk` are.
pub fn opening(blocks: Vec<Option<u64>>) -> Opening {
    let Options { page_bytes, prefix_len, value_max, key_max, .. } = ADOPTED;
    Opening { first: 1, blocks, page_bytes, prefix_len, value_max, key_max }
}

/// What an input has of an arena; zeroes lie between, up to a MiB.
struct Memory<'a> {
    pieces: BTreeMap<u64, &'a [u8]>,
    reads: usize,
}

impl Reads for Memory<'_> {
    type Error = ();

    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<usize, ()> {
        self.reads += 1;
        if at >= 1 << 20 {
            return Err(());
        }
        let len = out.len().min((1 << 20) - at as usize);
        out[..len].fill(0);
        for (from, bytes) in &self.pieces {
            let (begin, end) = (at.max(*from), (at + len as u64).min(from + bytes.len() as u64));
            if begin < end {
                let source = &bytes[(begin - from) as usize..(end - from) as usize];
                out[(begin - at) as usize..(end - at) as usize].copy_from_slice(source);
            }
        }
        Ok(len)
    }

    fn again(&mut self, nth: u64) -> bool {
        nth < 8
    }
}

/// A leaf in an input: base page, first row, end of the rows, deltas, extents. Lengths
/// come first, in two bytes.
#[allow(clippy::type_complexity)]
fn next_leaf<'a>(left: &mut &'a [u8]) -> Option<(&'a [u8], Range<usize>, Vec<&'a [u8]>, Vec<&'a [u8]>)> {
    let base = piece(left)?;
    let rows = number(left)?..number(left)?;
    let mut pieces = || (0..number(left)?).map(|_| piece(left)).collect::<Option<Vec<_>>>();
    Some((base, rows, pieces()?, pieces()?))
}

fn piece<'a>(left: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = number(left)?;
    let (piece, rest) = left.split_at_checked(len)?;
    *left = rest;
    Some(piece)
}

fn number(left: &mut &[u8]) -> Option<usize> {
    let (number, rest) = left.split_first_chunk::<2>()?;
    *left = rest;
    Some(u16::from_le_bytes(*number).into())
}

/// Of the trees that the leaves of an input are of.
pub const ADOPTED: Options =
    Options { page_bytes: 512, prefix_len: 8, chain_max: 4, fan_out: 4, value_max: 4096, key_max: 64 };

fn key_of(page: &[u8], parts: KeyParts<'_>, whole: &[u8]) {
    [parts.common, parts.head, parts.tail].into_iter().for_each(|part| inside(page, part));
    assert!(parts.head.len() <= 8 && parts.len() == whole.len());
    assert!(parts.compare(whole).is_eq());
}

fn rest_of(bytes: &[u8], rest: Rest<'_>) {
    match rest {
        Rest::Inline(part) => inside(bytes, part),
        Rest::Overflow(reference) => assert_eq!(rest.len(), reference.len as usize),
    }
}

/// What a gather list would name for these rows.
fn sections(leaf: &Leaf<'_>, rows: std::ops::Range<usize>) {
    let of =
        [leaf.prefixes_at(rows.clone()), leaf.slots_at(rows.clone()), leaf.heap_at(rows.clone()), leaf.heads_at(rows)];
    for section in of {
        assert!(section.start <= section.end && section.end <= leaf.bytes().len(), "{section:?} is not in the page");
    }
}

fn inside(whole: &[u8], part: &[u8]) {
    let (whole, part) = (whole.as_ptr_range(), part.as_ptr_range());
    assert!(part.is_empty() || (part.start >= whole.start && part.end <= whole.end), "a part lies outside its page");
}

/// Rows of a page that are looked at one by one.
const ROWS_MAX: usize = 200;
