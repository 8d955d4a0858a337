//! Rows put together: how full they leave the pages, and what they are told when memory runs out.

use std::ops::Bound;
use std::sync::Arc;

use overside_bwtree::{Direction, Error, HeapArena, Options, Put, Tree};

const ALL: Bound<&[u8]> = Bound::Unbounded;

fn tree(bytes: usize) -> Tree {
    let options = Options { prefix_len: 16, value_max: 512 << 10, ..Options::default() };
    Tree::new(Arc::new(HeapArena::with_chunks(1 << 20, bytes >> 20).unwrap()), options).unwrap()
}

/// Puts rows of these keys, all with the same value; what each was told.
fn put(tree: &Tree, put: Put, keys: &[u64], refused_max: usize) -> Vec<Result<bool, Error>> {
    let keys: Vec<[u8; 8]> = keys.iter().map(|key| key.to_be_bytes()).collect();
    let rows: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &VALUE[..])).collect();
    tree.put_many(put, &rows, refused_max)
}

fn is_there(tree: &Tree, key: u64) -> bool {
    tree.get(&key.to_be_bytes(), &mut Vec::new()).unwrap()
}

/// Content of the pages and their number.
fn pages(tree: &Tree) -> (usize, usize) {
    tree.pages(ALL, ALL, Direction::Forward).fold((0, 0), |(bytes, pages), page| (bytes + page.base().len(), pages + 1))
}

fn shuffled(n: u64) -> Vec<u64> {
    let mut keys: Vec<u64> = (0..n).collect();
    keys.sort_by_key(|key| key.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    keys
}

#[test]
fn ascending_batches_leave_full_pages() {
    for rows_a_batch in [100, 1000, 30_000] {
        let tree = tree(64 << 20);
        for batch in (0..120_000).collect::<Vec<u64>>().chunks(rows_a_batch) {
            assert!(put(&tree, Put::Insert, batch, 1).iter().all(|told| *told == Ok(false)));
        }
        let (bytes, count) = pages(&tree);
        let full = bytes as f64 / (count * tree.options().page_bytes) as f64;
        assert!(full > 0.9 && full <= 1.0, "{rows_a_batch} rows a batch: {count} pages, {full} full");
        assert_eq!(tree.range(ALL, ALL, Direction::Backward).count(), 120_000);
        let stats = tree.stats();
        assert!(stats.deltas == 0 && stats.splits + 1 == count as u64, "{stats:?}");
    }
}

#[test]
fn few_rows_of_a_leaf_are_deltas_and_many_a_page() {
    let tree = tree(16 << 20);
    put(&tree, Put::Insert, &(0..300).map(|n| 10 * n).collect::<Vec<_>>(), 1);
    let before = tree.stats();
    put(&tree, Put::Insert, &[1, 501, 1001], 1);
    let few = tree.stats();
    assert_eq!((few.deltas - before.deltas, few.consolidations), (3, before.consolidations));
    put(&tree, Put::Insert, &[2, 502, 1002, 3, 503, 1003], usize::MAX);
    let many = tree.stats();
    assert_eq!(
        (many.deltas, many.consolidations - few.consolidations),
        (few.deltas, 1),
        "they do not fit into the chain"
    );
    assert!([1, 501, 2, 502, 1003].into_iter().all(|key| is_there(&tree, key)));
}

/// Of ascending rows those before the last answer are there, and those behind it are not.
#[test]
fn ascending_rows_without_memory_are_not_looked_at() {
    let tree = tree(3 << 20);
    let keys: Vec<u64> = (0..60_000).collect();
    let told = put(&tree, Put::Insert, &keys, usize::MAX);
    assert!((20_000..60_000).contains(&told.len()), "{}", told.len());
    let (last, applied) = told.split_last().unwrap();
    assert_eq!(last, &Err(Error::Exhausted));
    assert!(applied.iter().all(|told| *told == Ok(false)));
    assert!((0..60_000).all(|key| is_there(&tree, key) == (key < applied.len() as u64)));
    // Deletes work as ever, and make room.
    (0..applied.len() as u64).for_each(|key| assert_eq!(tree.delete(&key.to_be_bytes()), Ok(true)));
    assert!(put(&tree, Put::Insert, &keys[..10_000], 1).iter().all(|told| *told == Ok(false)));
}

/// Of others each is told by itself, and as many as may be refused are sorted at once.
#[test]
fn rows_in_no_order_without_memory_are_told_one_by_one() {
    let tree = tree(3 << 20);
    let keys = shuffled(60_000);
    let told = put(&tree, Put::Upsert, &keys, 256);
    let first = told.iter().position(Result::is_err).unwrap();
    assert!(first > 15_000 && told.len() - first <= 256, "{first} of {}", told.len());
    for (key, told) in keys.iter().zip(&told) {
        assert!(matches!(told, Ok(false) | Err(Error::Exhausted)));
        assert_eq!(is_there(&tree, *key), told.is_ok(), "{key}");
    }
    assert!(keys[told.len()..].iter().all(|key| !is_there(&tree, *key)));
}

#[test]
fn rows_of_a_length_that_cannot_be_are_refused_by_themselves() {
    let tree = tree(16 << 20);
    let (long, extent, short) = (vec![1; 300_000], vec![2; 9000], [3; 3]);
    let long_key = [b'k'; 3000];
    let rows: [(&[u8], &[u8]); 6] =
        [(b"a", &VALUE), (b"b", &long), (b"c", &extent), (b"d", &short), (&long_key, &VALUE), (b"z", &VALUE)];
    let told = tree.put_many(Put::Insert, &rows, usize::MAX);
    assert!(matches!(told[1], Ok(false)) && matches!(told[3], Err(Error::ValueTooShort { len: 3, prefix: 16 })));
    assert!(matches!(told[4], Err(Error::KeyTooLong { .. })));
    assert_eq!((&told[0], &told[2], &told[5]), (&Ok(false), &Ok(false), &Ok(false)));
    let mut out = Vec::new();
    assert!(tree.get(b"c", &mut out).unwrap() && out == extent);
    let refused = tree.put_many(Put::Insert, &rows, 2);
    assert_eq!(refused, [Err(Error::Exists), Err(Error::Exists)], "the second refusal is the last");
}

const VALUE: [u8; 40] = [7; 40];
