//! The checks behind the fuzz targets. `tests/corpus.rs` of the crate replays the corpus through the same functions.

#![forbid(unsafe_code)]

use overside_bwtree::{DeltaRecord, KeyParts, Leaf, Op, Rest};

/// Takes an input: panics where the parser broke a promise, answers whether the parser accepted it.
pub type Check = fn(&[u8]) -> bool;

/// Every target, by the name of its binary and of its folder in `corpus/`.
pub const TARGETS: [(&str, Check); 2] = [("delta", delta), ("leaf", leaf)];

/// A leaf page: every accessor answers inside the page, for rows that are there and for rows that are not.
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
