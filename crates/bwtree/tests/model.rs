//! The tree against a `BTreeMap`: every operation, both directions, all bounds, pages small enough for deep trees.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use overside_bwtree::{Direction, Error, HeapArena, Options, OverflowRef, Put, Rest, Row, Tree};
use proptest::prelude::*;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Debug, Clone)]
enum Step {
    Insert(Vec<u8>, Vec<u8>),
    Upsert(Vec<u8>, Vec<u8>),
    Update(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    /// Rows, sorted or not, up to so many refusals.
    Many(Put, Vec<(Vec<u8>, Vec<u8>)>, bool, usize),
    /// Expects the current value if the flag says so.
    Swap(Vec<u8>, bool, Option<Vec<u8>>),
    Get(Vec<u8>),
    DeleteRange(Vec<u8>, usize),
    Scan(Bound<Vec<u8>>, Bound<Vec<u8>>),
}

/// How keys and values of a run look.
#[derive(Debug, Clone, Copy)]
struct Kind {
    prefix_len: usize,
    page_bytes: usize,
    fan_out: usize,
    chain_max: usize,
}

fn key(kind: u8) -> BoxedStrategy<Vec<u8>> {
    match kind {
        0 => (0u64..400).prop_map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_be_bytes().to_vec()).boxed(),
        1 => prop::collection::vec(0u8..3, 0..7).boxed(),
        2 => (0u32..300).prop_map(|n| format!("customer/{n:03}/address").into_bytes()).boxed(),
        3 => prop::collection::vec(prop::sample::select(vec![0u8, 1, 255]), 0..40).boxed(),
        _ => (0u16..500).prop_map(|n| n.to_be_bytes().to_vec()).boxed(),
    }
}

/// What follows the prefix in values.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rests {
    None,
    Short,
    Long,
}

fn value(prefix_len: usize, rests: Rests) -> BoxedStrategy<Vec<u8>> {
    let rest = match rests {
        Rests::None => Just(0).boxed(),
        Rests::Short => prop_oneof![4 => Just(0usize), 6 => 1..30usize, 1 => 30..200usize].boxed(),
        Rests::Long => prop_oneof![4 => Just(0usize), 6 => 1..30usize, 1 => 5_000..40_000usize].boxed(),
    };
    (rest, any::<u8>())
        .prop_map(move |(n, seed)| (0..prefix_len + n).map(|i| seed.wrapping_add(i as u8)).collect())
        .boxed()
}

fn step(kind: u8, prefix_len: usize, rests: Rests) -> impl Strategy<Value = Step> {
    let (k, v) = (move || key(kind), move || value(prefix_len, rests));
    let bound =
        move || prop_oneof![Just(Bound::Unbounded), k().prop_map(Bound::Included), k().prop_map(Bound::Excluded)];
    let put = prop::sample::select(vec![Put::Insert, Put::Upsert, Put::Update]);
    let refused_max = prop_oneof![Just(usize::MAX), 1..20usize];
    let many = (put, prop::collection::vec((k(), v()), 0..150), any::<bool>(), refused_max);
    prop_oneof![
        6 => many.prop_map(|(put, rows, sorted, refused_max)| Step::Many(put, rows, sorted, refused_max)),
        10 => (k(), v()).prop_map(|(k, v)| Step::Insert(k, v)),
        10 => (k(), v()).prop_map(|(k, v)| Step::Upsert(k, v)),
        4 => (k(), v()).prop_map(|(k, v)| Step::Update(k, v)),
        8 => k().prop_map(Step::Delete),
        4 => (k(), any::<bool>(), prop::option::of(v())).prop_map(|(k, e, n)| Step::Swap(k, e, n)),
        4 => k().prop_map(Step::Get),
        1 => (k(), 0..80usize).prop_map(|(k, n)| Step::DeleteRange(k, n)),
        1 => (bound(), bound()).prop_map(|(a, b)| Step::Scan(a, b)),
    ]
}

fn as_ref(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

fn apply(tree: &Tree, model: &mut Model, step: Step) {
    match step {
        Step::Insert(k, v) => match tree.insert(&k, &v) {
            Ok(()) => assert_eq!(model.insert(k, v), None),
            Err(error) => assert_eq!((error, model.contains_key(&k)), (Error::Exists, true)),
        },
        Step::Upsert(k, v) => {
            assert_eq!(tree.upsert(&k, &v).unwrap(), model.insert(k, v).is_some());
        }
        Step::Update(k, v) => {
            assert_eq!(tree.update(&k, &v).unwrap(), model.contains_key(&k));
            model.entry(k).and_modify(|old| *old = v);
        }
        Step::Delete(k) => assert_eq!(tree.delete(&k).unwrap(), model.remove(&k).is_some()),
        Step::Many(put, mut rows, sorted, refused_max) => {
            if sorted {
                rows.sort_by(|a, b| a.0.cmp(&b.0));
            }
            let given: Vec<_> = rows.iter().map(|(k, v)| (&k[..], &v[..])).collect();
            let mut expected = Vec::new();
            for (k, v) in &rows {
                let there = model.contains_key(k);
                expected.push(if put == Put::Insert && there { Err(Error::Exists) } else { Ok(there) });
                if there == (put == Put::Update) || put == Put::Upsert {
                    model.insert(k.clone(), v.clone());
                }
                let refused = |answer: &&Result<bool, Error>| answer.is_err() || put == Put::Update && !answer.unwrap();
                if expected.iter().filter(refused).count() == refused_max {
                    break;
                }
            }
            assert_eq!(tree.put_many(put, &given, refused_max), expected, "{put:?}, {refused_max} refusals at most");
        }
        Step::Swap(k, right, new) => {
            let current = model.get(&k).cloned();
            let expected = match (&current, right) {
                (current, true) => current.clone(),
                (Some(v), false) => Some([v.as_slice(), b"x"].concat()),
                (None, false) => {
                    Some(b"not there, and long enough for any prefix length of these tests, 64 bytes..".to_vec())
                }
            };
            assert_eq!(tree.compare_and_swap(&k, expected.as_deref(), new.as_deref()).unwrap(), right);
            if right {
                match new {
                    Some(v) => drop(model.insert(k, v)),
                    None => drop(model.remove(&k)),
                }
            }
        }
        Step::Get(k) => {
            let mut out = vec![1];
            assert_eq!(tree.get(&k, &mut out).unwrap(), model.contains_key(&k));
            assert_eq!(out, model.get(&k).cloned().unwrap_or_default());
        }
        Step::DeleteRange(k, n) => {
            let keys: Vec<Vec<u8>> = model.range(k..).take(n).map(|(k, _)| k.clone()).collect();
            for k in keys {
                assert!(tree.delete(&k).unwrap());
                model.remove(&k);
            }
        }
        Step::Scan(from, to) => scan(tree, model, &from, &to),
    }
}

fn scan(tree: &Tree, model: &Model, from: &Bound<Vec<u8>>, to: &Bound<Vec<u8>>) {
    let inside = |k: &Vec<u8>| {
        let above = match from {
            Bound::Unbounded => true,
            Bound::Included(from) => k >= from,
            Bound::Excluded(from) => k > from,
        };
        above
            && match to {
                Bound::Unbounded => true,
                Bound::Included(to) => k <= to,
                Bound::Excluded(to) => k < to,
            }
    };
    let mut expected: Vec<_> = model.iter().filter(|(k, _)| inside(k)).map(|(k, v)| (k.clone(), v.clone())).collect();
    let rows: Vec<_> = tree.range(as_ref(from), as_ref(to), Direction::Forward).collect();
    assert_eq!(rows, expected, "forward {from:?} {to:?}");
    for page in tree.pages(as_ref(from), as_ref(to), Direction::Forward) {
        check_page(&page);
    }
    for together in [2, 7] {
        let mut rows = Vec::new();
        for page in tree.pages(as_ref(from), as_ref(to), Direction::Forward).together(together) {
            check_page(&page);
            assert!(!page.is_empty());
            rows.extend(page.merged().map(|row| (row.key.to_vec(), [row.prefix, page.rest_bytes(row.rest)].concat())));
        }
        assert_eq!(rows, expected, "{together} together, {from:?} {to:?}");
    }
    let mut reader = tree.reader();
    for rows_max in [0, 1, 2, 5, 17, usize::MAX] {
        let mut rows = Vec::new();
        reader.seek(as_ref(from), as_ref(to), rows_max);
        while let Some(copied) = reader.next_rows() {
            assert!(copied.count() > 0 && copied.rows().len() == copied.count(), "no rows are no answer");
            let value = |row: &Row<'_>| [row.prefix, copied.rest_bytes(row.rest)].concat();
            rows.extend(copied.rows().map(|row| (row.key.to_vec(), value(&row))));
        }
        assert_eq!(rows, expected[..expected.len().min(rows_max)], "{rows_max} rows of {from:?} {to:?}");
    }
    expected.reverse();
    let rows: Vec<_> = tree.range(as_ref(from), as_ref(to), Direction::Backward).collect();
    assert_eq!(rows, expected, "backward {from:?} {to:?}");
}

/// What a page says about itself holds, read by the parsers that a peer would use.
fn check_page(page: &overside_bwtree::PinnedPage) {
    let leaf = overside_bwtree::Leaf::parse(page.base()).unwrap();
    assert_eq!(leaf.count(), page.leaf().count());
    for (i, delta) in page.deltas().enumerate() {
        let parsed = overside_bwtree::DeltaRecord::parse(delta.record()).unwrap();
        assert_eq!(parsed.record().len(), delta.record().len());
        assert_eq!(
            leaf.search(delta.key()),
            if delta.replaces() { Ok(delta.position()) } else { Err(delta.position()) }
        );
        assert!(delta.key() >= page.low_fence() && page.high_fence().is_none_or(|high| delta.key() < high));
        assert!(i == 0 || page.delta(i - 1).key() < delta.key());
    }
    for i in 0..leaf.count() {
        let key = leaf.key_parts(i).to_vec();
        assert_eq!(leaf.search(&key), Ok(i));
        assert!(key.as_slice() >= page.low_fence() && page.high_fence().is_none_or(|high| key.as_slice() < high));
    }
    let rows: Vec<_> = page.merged().map(|row| row.key.to_vec()).collect();
    let mut backward: Vec<_> = page.merged().rev().map(|row| row.key.to_vec()).collect();
    backward.reverse();
    assert_eq!(rows, backward);
    let by_runs = page.runs().flat_map(|run| match run {
        overside_bwtree::Run::Base(at) => at.map(|i| leaf.key_parts(i).to_vec()).collect(),
        overside_bwtree::Run::Delta(delta) => vec![delta.key().to_vec()],
    });
    assert_eq!(rows, by_runs.collect::<Vec<_>>());
}

fn run(kind: Kind, steps: Vec<Step>) {
    let arena = Arc::new(HeapArena::new(256 << 20).unwrap());
    let Kind { prefix_len, page_bytes, fan_out, chain_max } = kind;
    let tree = Tree::new(arena, Options { prefix_len, page_bytes, fan_out, chain_max, ..Options::default() }).unwrap();
    let mut model = Model::new();
    for step in steps {
        apply(&tree, &mut model, step);
    }
    scan(&tree, &model, &Bound::Unbounded, &Bound::Unbounded);
    // Emptied row by row, nothing stays behind.
    for k in model.into_keys() {
        assert!(tree.delete(&k).unwrap());
    }
    assert_eq!(tree.range(Bound::Unbounded, Bound::Unbounded, Direction::Forward).count(), 0);
    tree.reclaim();
    let stats = tree.stats();
    assert_eq!((stats.held_by_epochs_bytes, stats.held_by_pins_bytes, stats.pins), (0, 0, 0));
}

fn runs(rests: Rests) -> impl Strategy<Value = (Kind, Vec<Step>)> {
    let kinds = (0u8..5, prop::sample::select(vec![0usize, 1, 8, 13, 64]), 4usize..10, 1usize..10);
    kinds.prop_flat_map(move |(keys, prefix_len, fan_out, chain_max)| {
        let page_bytes = if rests == Rests::Long { 16 << 10 } else { 256 + 4 * prefix_len };
        let kind = Kind { prefix_len, page_bytes, fan_out, chain_max };
        (Just(kind), prop::collection::vec(step(keys, prefix_len, rests), 1..1500))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn tiny_pages((kind, steps) in runs(Rests::Short)) {
        run(kind, steps);
    }

    #[test]
    fn rows_of_one_length((kind, steps) in runs(Rests::None)) {
        run(kind, steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn large_values((kind, steps) in runs(Rests::Long)) {
        run(kind, steps);
    }
}

#[test]
fn a_mebibyte_and_an_empty_key() {
    let tree = Tree::new(Arc::new(HeapArena::new(64 << 20).unwrap()), Options { prefix_len: 8, ..Options::default() })
        .unwrap();
    let large: Vec<u8> = (0..1 << 20).map(|i: u32| ((i * 7) >> 3) as u8).collect();
    tree.insert(b"", &large).unwrap();
    tree.insert(b"k", &large[..8]).unwrap();
    let mut out = Vec::new();
    assert!(tree.get(b"", &mut out).unwrap() && out == large);
    let (mut pages, all) = (tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward), Bound::Unbounded);
    let page = pages.next().unwrap();
    assert!(tree.upsert(b"", &large[1..]).unwrap());
    assert!(tree.delete(b"").unwrap());
    tree.reclaim();
    // The page still shows what was.
    let row = page.merged().next().unwrap();
    assert_eq!([row.prefix, page.rest_bytes(row.rest)].concat(), large);
    drop(page);
    // Rows that lie apart are copied some at a time.
    (0..6u8).for_each(|i| tree.insert(&[b'l', i], &large[..100_000 + usize::from(i)]).unwrap());
    let mut reader = tree.reader();
    reader.seek(Bound::Included(b"l"), all, 5);
    let mut lengths = Vec::new();
    while let Some(copied) = reader.next_rows() {
        let values = copied.rows().map(|row| [row.prefix, copied.rest_bytes(row.rest)].concat());
        let values: Vec<Vec<u8>> = values.inspect(|value| assert_eq!(*value, large[..value.len()])).collect();
        lengths.push(values.iter().map(Vec::len).collect::<Vec<_>>());
    }
    assert_eq!(lengths, [vec![100_000, 100_001], vec![100_002, 100_003], vec![100_004]]);
    (0..6u8).for_each(|i| assert!(tree.delete(&[b'l', i]).unwrap()));
    assert_eq!(tree.range(all, all, Direction::Backward).count(), 1);
    assert!(matches!(tree.insert(b"x", &vec![0; (1 << 20) + 1]), Err(Error::ValueTooLong { .. })));
    assert!(matches!(tree.insert(b"x", &[0; 7]), Err(Error::ValueTooShort { .. })));
    assert!(matches!(tree.insert(&[0; 5000], &[0; 8]), Err(Error::KeyTooLong { .. })));
}

/// Whoever has a page can make any reference, or have one from elsewhere: bytes come for those of its own rows alone.
#[test]
fn a_page_gives_no_bytes_for_references_of_others() {
    let options = Options { page_bytes: 4096, ..Options::default() };
    let tree = Tree::new(Arc::new(HeapArena::new(64 << 20).unwrap()), options).unwrap();
    (0..20u8).for_each(|i| tree.insert(&[i], &[i; 5000]).unwrap());
    let page = || tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward).next().unwrap();
    let reference = |row: &Row<'_>| match row.rest {
        Rest::Overflow(reference) => reference,
        Rest::Inline(_) => panic!("5,000 bytes lie in an extent"),
    };
    let before = page();
    let old: Vec<_> = before.merged().map(|row| reference(&row)).collect();
    assert_eq!(old.len(), 20);
    assert!(before.leaf().has_overflow() && before.delta_count() > 0, "of base rows and of deltas");
    for order in [old.clone(), old.iter().rev().copied().collect()] {
        for reference in order {
            let bytes = before.overflow(reference).unwrap();
            assert!(bytes.len() == 5000 && bytes.iter().all(|byte| *byte == bytes[0]));
        }
    }
    let some = old[3];
    let forged = [
        OverflowRef { offset: some.offset + 64, ..some },
        OverflowRef { len: u32::MAX, ..some },
        OverflowRef { extent: some.extent + 1, ..some },
    ];
    forged.into_iter().for_each(|forged| assert_eq!(before.overflow(forged), None));
    (0..20u8).for_each(|i| assert!(tree.upsert(&[i], &[i; 5001]).unwrap()));
    let after = page();
    for row in after.merged() {
        assert_eq!(before.overflow(reference(&row)), None);
        assert_eq!((before.rest_bytes(row.rest).len(), after.rest_bytes(row.rest).len()), (0, 5001));
    }
}

#[test]
fn an_arena_that_words_cannot_name_is_refused() {
    let too_long = HeapArena::with_chunks(1 << 30, (4 << 10) + 1).unwrap();
    assert!(
        matches!(Tree::new(Arc::new(too_long), Options::default()), Err(Error::Options(why)) if why.contains("4 TiB"))
    );
    let too_coarse = HeapArena::with_chunks(8 << 30, 1).unwrap();
    assert!(
        matches!(Tree::new(Arc::new(too_coarse), Options::default()), Err(Error::Options(why)) if why.contains("4 GiB"))
    );
}
