//! Pages and delta records from a hostile peer: parsers refuse or answer, and no accessor panics or leaves the bytes.

use std::ops::Bound;
use std::sync::Arc;

use overside_bwtree::page::HEADER_BYTES;
use overside_bwtree::{DeltaRecord, Direction, HeapArena, Leaf, LeafBuilder, Options, OverflowRef, Rest, Tree};
use proptest::prelude::*;

/// Calls everything on a page, and checks that all it gives lies inside.
fn walk(bytes: &[u8]) {
    let Ok(leaf) = Leaf::parse(bytes) else { return };
    let inside = |part: &[u8]| {
        let (start, end) = (bytes.as_ptr() as usize, bytes.as_ptr() as usize + bytes.len());
        let at = part.as_ptr() as usize;
        assert!(part.is_empty() || (at >= start && at + part.len() <= end));
    };
    inside(leaf.bytes());
    inside(leaf.low_fence());
    inside(leaf.high_fence().unwrap_or(&[]));
    inside(leaf.prefixes());
    inside(leaf.common());
    inside(leaf.heads().as_flattened());
    let rows = (0..leaf.count().min(200)).chain([leaf.count(), usize::MAX, leaf.count() / 2, u32::MAX as usize]);
    for i in rows {
        let key = leaf.key_parts(i);
        [key.common, key.head, key.tail, leaf.prefix(i)].into_iter().for_each(inside);
        if let Rest::Inline(rest) = leaf.rest(i) {
            inside(rest);
        }
        let _ = leaf.search(&key.to_vec());
        let _ = key.compare(b"k");
        for range in [0..i, i..i.saturating_add(3), i..0] {
            let parts = [
                leaf.prefixes_at(range.clone()),
                leaf.slots_at(range.clone()),
                leaf.heap_at(range.clone()),
                leaf.heads_at(range),
            ];
            parts.into_iter().for_each(|at| inside(&leaf.bytes()[at]));
        }
    }
    for probe in [&b""[..], b"\0", b"customer/0000", &[255; 40]] {
        match leaf.search(probe) {
            Ok(i) => assert!(i < leaf.count()),
            Err(i) => assert!(i <= leaf.count()),
        }
    }
}

fn walk_delta(bytes: &[u8]) {
    let Ok(delta) = DeltaRecord::parse(bytes) else { return };
    assert!(delta.record().len() <= bytes.len());
    let _ =
        (delta.op(), delta.key().len(), delta.prefix().len(), delta.rest().len(), delta.position(), delta.replaces());
    assert!(delta.rest_at().end <= bytes.len());
}

fn page(keys: &[Vec<u8>], prefix_len: usize, rest: usize) -> Vec<u8> {
    let mut builder = LeafBuilder::new(prefix_len).fences(b"a", Some(b"zz"));
    for (i, key) in keys.iter().enumerate() {
        let bytes = vec![i as u8; rest * (i % 4)];
        let overflow = OverflowRef { offset: 64 * i as u64, len: 70_000, extent: 7 };
        let rest = if rest > 0 && i % 9 == 8 { Rest::Overflow(overflow) } else { Rest::Inline(&bytes) };
        builder.push(key, &vec![i as u8; prefix_len], rest).unwrap();
    }
    builder.finish()
}

fn keys() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let sets = prop_oneof![
        prop::collection::btree_set(prop::collection::vec(0u8..4, 8..=8), 0..120),
        prop::collection::btree_set(prop::collection::vec(0u8..4, 0..30), 0..120),
        prop::collection::btree_set((0u32..2000).prop_map(|n| format!("customer/{n:04}").into_bytes()), 0..120),
    ];
    sets.prop_map(|set| set.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_built_page_says_what_was_put_in(keys in keys(), prefix_len in 0usize..20, rest in 0usize..9) {
        let bytes = page(&keys, prefix_len, rest);
        walk(&bytes);
        let leaf = Leaf::parse(&bytes).unwrap();
        prop_assert_eq!(leaf.count(), keys.len());
        prop_assert_eq!((leaf.low_fence(), leaf.high_fence()), (&b"a"[..], Some(&b"zz"[..])));
        for (i, key) in keys.iter().enumerate() {
            prop_assert_eq!(&leaf.key_parts(i).to_vec(), key);
            prop_assert_eq!(leaf.search(key), Ok(i));
            let longer = [key.as_slice(), b"\0"].concat();
            prop_assert_eq!(leaf.search(&longer), keys.binary_search(&longer));
            prop_assert_eq!(leaf.prefix(i), vec![i as u8; prefix_len]);
            prop_assert_eq!(&bytes[leaf.prefixes_at(i..i + 1)], leaf.prefix(i));
            match leaf.rest(i) {
                Rest::Inline(bytes) => prop_assert_eq!(bytes, vec![i as u8; rest * (i % 4)]),
                Rest::Overflow(o) => prop_assert_eq!((i % 9, o.offset, o.len), (8, 64 * i as u64, 70_000)),
            }
        }
    }

    #[test]
    fn mutated_pages_are_refused_or_answer(
        keys in keys(), rest in 0usize..9, cut in prop::option::of(0usize..4000),
        changes in prop::collection::vec((prop_oneof![3 => 0usize..HEADER_BYTES, 1 => 0usize..6000], any::<u8>()), 1..6),
    ) {
        let mut bytes = page(&keys, 5, rest);
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes.truncate(cut.unwrap_or(usize::MAX));
        walk(&bytes);
    }

    #[test]
    fn headers_of_huge_numbers_are_refused_or_answer(
        words in prop::collection::vec(prop_oneof![Just(0u32), Just(u32::MAX), Just(1 << 31), 0u32..5000, any::<u32>()], 16),
    ) {
        let mut bytes = page(&[b"b".to_vec()], 8, 3);
        for (i, word) in words.iter().enumerate().skip(2) {
            bytes[4 * i..4 * i + 4].copy_from_slice(&word.to_le_bytes());
        }
        let len = bytes.len() as u32;
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        walk(&bytes);
    }

    #[test]
    fn garbage_is_no_delta_or_answers(mut bytes in prop::collection::vec(any::<u8>(), 0..200), op in 0u8..4) {
        walk_delta(&bytes);
        walk(&bytes);
        if bytes.len() >= 24 {
            (bytes[22], bytes[23]) = (op, 0xD1);
            walk_delta(&bytes);
        }
    }
}

/// The same on the records of a real tree, every byte of each changed in turn.
#[test]
fn mutated_records_are_refused_or_answer() {
    let options = Options { prefix_len: 8, chain_max: 20, ..Options::default() };
    let tree = Tree::new(Arc::new(HeapArena::new(16 << 20).unwrap()), options).unwrap();
    for n in 0..10u64 {
        tree.upsert(format!("key number {n}").as_bytes(), &vec![7; 8 + 5 * n as usize]).unwrap();
        tree.delete(format!("key number {}", n / 2).as_bytes()).unwrap();
    }
    let page = tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward).next().unwrap();
    assert!(page.delta_count() > 0);
    for delta in page.deltas() {
        let bytes = delta.record();
        for at in 0..bytes.len() {
            for value in [0, 1, 127, 128, 255] {
                let mut bytes = bytes.to_vec();
                bytes[at] = value;
                walk_delta(&bytes);
                walk_delta(&bytes[..at]);
            }
        }
    }
}
