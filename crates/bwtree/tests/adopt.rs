//! Trees made of pages that another tree's scan showed: the same rows, and a tree like any other afterwards. Bytes that no tree
//! wrote are refused, or make a tree of rows in order.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::Arc;

use overside_bwtree::{
    AdoptError, AdoptLeaf, Direction, Error, HeapArena, LeafBuilder, Options, OverflowRef, PinnedPage, Rest, Stamps,
    SystemWaits, Tree,
};
use proptest::prelude::*;

const OPTIONS: Options =
    Options { page_bytes: 512, prefix_len: 4, chain_max: 4, fan_out: 4, value_max: 4096, key_max: 64 };

fn tree() -> Tree {
    Tree::new(Arc::new(HeapArena::with_chunks(1 << 20, 32).unwrap()), OPTIONS).unwrap()
}

/// A leaf's bytes, as a checkpoint keeps them.
#[derive(Debug, Clone, Default)]
struct Written {
    base: Vec<u8>,
    rows: Range<usize>,
    deltas: Vec<Vec<u8>>,
    extents: Vec<Vec<u8>>,
}

impl Written {
    fn of(page: &PinnedPage) -> Written {
        Written {
            base: page.base().to_vec(),
            rows: page.rows(),
            deltas: page.deltas().map(|delta| delta.record().to_vec()).collect(),
            extents: page.extents().map(<[u8]>::to_vec).collect(),
        }
    }

    fn with<T>(&self, what: impl FnOnce(&AdoptLeaf<'_>) -> T) -> T {
        let deltas: Vec<&[u8]> = self.deltas.iter().map(Vec::as_slice).collect();
        let extents: Vec<&[u8]> = self.extents.iter().map(Vec::as_slice).collect();
        what(&AdoptLeaf { base: &self.base, rows: self.rows.clone(), deltas: &deltas, extents: &extents })
    }

    fn high(&self) -> Vec<u8> {
        let leaf = overside_bwtree::Leaf::parse(&self.base).unwrap();
        leaf.high_fence().unwrap_or_default().to_vec()
    }
}

fn written(tree: &Tree) -> Vec<Written> {
    tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward).map(|page| Written::of(&page)).collect()
}

/// Adopts the leaves, in parts of so many, each on a thread of its own.
fn adopted(leaves: &[Written], options: Options, each: usize) -> Result<Tree, AdoptError> {
    let arena = Arc::new(HeapArena::with_chunks(1 << 20, 32).unwrap());
    let adoption = Tree::adopt(arena, options, &SystemWaits, None)?;
    let mut from = Vec::new();
    let parts = leaves.chunks(each.max(1)).map(|leaves| {
        let part = adoption.part(&from);
        from = leaves[leaves.len() - 1].high();
        (part, leaves)
    });
    let parts: Vec<_> = parts.collect();
    let parts: Result<Vec<_>, AdoptError> = std::thread::scope(|s| {
        let threads: Vec<_> = parts
            .into_iter()
            .map(|(mut part, leaves)| {
                s.spawn(move || {
                    leaves.iter().try_for_each(|leaf| leaf.with(|leaf| part.take(leaf)))?;
                    Ok(part)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let parts = parts?;
    let counted: u64 = parts.iter().map(overside_bwtree::LeafRun::rows).sum();
    let tree = adoption.finish(parts)?;
    assert_eq!(counted, rows(&tree, Direction::Forward).len() as u64);
    Ok(tree)
}

fn rows(tree: &Tree, direction: Direction) -> Vec<(Vec<u8>, Vec<u8>)> {
    tree.range(Bound::Unbounded, Bound::Unbounded, direction).collect()
}

#[derive(Debug, Clone)]
enum Change {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    /// Everything from one key to another goes.
    Clear(Vec<u8>, Vec<u8>),
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    // Of one length mostly, as tables have them, and all over.
    prop_oneof![
        (0u16..400).prop_map(|n| n.to_be_bytes().to_vec()),
        prop::collection::vec(0u8..3, 0..14),
        (0u16..60).prop_map(|n| format!("customer/{n:05}").into_bytes()),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let value = prop_oneof![
        8 => prop::collection::vec(any::<u8>(), 4..30),
        2 => prop::collection::vec(any::<u8>(), 100..700),
        1 => Just(vec![9; 3000]),
    ];
    prop_oneof![
        30 => (key(), value).prop_map(|(key, value)| Change::Put(key, value)),
        10 => key().prop_map(Change::Delete),
        1 => (key(), key()).prop_map(|(from, to)| Change::Clear(from, to)),
    ]
}

fn apply(tree: &Tree, model: &mut BTreeMap<Vec<u8>, Vec<u8>>, change: &Change) {
    match change {
        Change::Put(key, value) => {
            assert_eq!(tree.upsert(key, value).unwrap(), model.insert(key.clone(), value.clone()).is_some());
        }
        Change::Delete(key) => assert_eq!(tree.delete(key).unwrap(), model.remove(key).is_some()),
        Change::Clear(from, to) => {
            let keys: Vec<Vec<u8>> = model.keys().filter(|key| *key >= from && *key < to).cloned().collect();
            keys.into_iter().for_each(|key| apply(tree, model, &Change::Delete(key)));
        }
    }
}

fn agrees(tree: &Tree, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let expected: Vec<(Vec<u8>, Vec<u8>)> = model.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    assert_eq!(rows(tree, Direction::Forward), expected);
    assert!(rows(tree, Direction::Backward).into_iter().rev().eq(expected));
    let mut out = Vec::new();
    for (key, value) in model {
        assert!(tree.get(key, &mut out).unwrap() && out == *value);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]

    /// What was scanned is there again, in parts of any size and pages of another size, and everything goes on.
    #[test]
    fn a_tree_goes_on_as_another(
        before in prop::collection::vec(change(), 0..600),
        after in prop::collection::vec(change(), 0..300),
        each in 1usize..9,
        page_bytes in prop::sample::select(vec![256, 512, 2048]),
    ) {
        let (old, mut model) = (tree(), BTreeMap::new());
        before.iter().for_each(|change| apply(&old, &mut model, change));
        let new = adopted(&written(&old), Options { page_bytes, ..OPTIONS }, each).unwrap();
        drop(old);
        agrees(&new, &model);
        after.iter().for_each(|change| apply(&new, &mut model, change));
        agrees(&new, &model);
        let keys: Vec<Vec<u8>> = model.keys().cloned().collect();
        keys.into_iter().for_each(|key| apply(&new, &mut model, &Change::Delete(key)));
        agrees(&new, &model);
    }

    /// Pages of different instants: with all changes since the first one replayed, the tree is as the other.
    #[test]
    fn pages_of_different_instants_make_a_tree(
        before in prop::collection::vec(change(), 50..400),
        between in prop::collection::vec(change(), 50..400),
        each in 1usize..5,
    ) {
        let (old, mut model) = (tree(), BTreeMap::new());
        before.iter().for_each(|change| apply(&old, &mut model, change));
        let (mut changes, mut log, mut leaves) = (between.chunks(10), Vec::new(), Vec::new());
        for page in old.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward) {
            leaves.push(Written::of(&page));
            drop(page);
            for change in changes.next().unwrap_or_default() {
                match change {
                    Change::Clear(from, to) if from < to => {
                        log.extend(model.range(from.clone()..to.clone()).map(|(key, _)| Change::Delete(key.clone())));
                    }
                    change => log.push(change.clone()),
                }
                apply(&old, &mut model, change);
            }
        }
        let new = adopted(&leaves, OPTIONS, each).unwrap();
        for change in log {
            match change {
                Change::Put(key, value) => _ = new.upsert(&key, &value).unwrap(),
                Change::Delete(key) => _ = new.delete(&key).unwrap(),
                Change::Clear(..) => {}
            }
        }
        agrees(&new, &model);
    }

    /// Bytes that somebody changed: refused, or a tree whose rows are in order and can be found.
    #[test]
    fn mangled_leaves_are_refused_or_make_a_tree(
        before in prop::collection::vec(change(), 20..200),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>(), 0u8..5), 1..4),
    ) {
        let (old, mut model) = (tree(), BTreeMap::new());
        before.iter().for_each(|change| apply(&old, &mut model, change));
        let mut leaves = written(&old);
        prop_assume!(!leaves.is_empty());
        for (leaf, at, byte, what) in changes {
            let leaf = leaf.index(leaves.len());
            let leaf = &mut leaves[leaf];
            match what {
                0 | 1 => {
                    // The header and the fences, mostly.
                    let len = if what == 0 { leaf.base.len() } else { leaf.base.len().min(80) };
                    leaf.base[at.index(len)] ^= byte;
                }
                2 if !leaf.deltas.is_empty() => {
                    let delta = at.index(leaf.deltas.len());
                    let len = leaf.deltas[delta].len();
                    leaf.deltas[delta][at.index(len.min(32))] ^= byte;
                }
                3 => leaf.rows = at.index(leaf.rows.end + 2)..leaf.rows.end + usize::from(byte & 1),
                4 if !leaf.extents.is_empty() => drop(leaf.extents.remove(at.index(leaf.extents.len()))),
                _ => _ = leaf.base.pop(),
            }
        }
        let arena = Arc::new(HeapArena::with_chunks(1 << 20, 32).unwrap());
        let adoption = Tree::adopt(arena, OPTIONS, &SystemWaits, None).unwrap();
        let mut part = adoption.part(b"");
        for leaf in &leaves {
            match leaf.with(|leaf| part.take(leaf)) {
                Ok(()) | Err(AdoptError::Leaf { .. } | AdoptError::Tree(Error::Exhausted)) => {}
                Err(other) => panic!("{other}"),
            }
        }
        works(&adoption.finish([part]).unwrap());
    }
}

/// A tree of whatever rows: it can be read and written.
fn works(tree: &Tree) {
    let there = rows(tree, Direction::Forward);
    assert!(there.is_sorted_by(|a, b| a.0 < b.0));
    let mut out = Vec::new();
    for (key, value) in &there {
        assert!(tree.get(key, &mut out).unwrap() && out == *value, "{key:?}");
        assert!(tree.upsert(key, b"another value").unwrap());
    }
    for n in 0..300u16 {
        tree.upsert(&n.to_be_bytes(), &[1; 20]).unwrap();
    }
    for (key, _) in rows(tree, Direction::Backward) {
        assert!(tree.delete(&key).unwrap());
    }
    assert_eq!(rows(tree, Direction::Forward), []);
}

fn fault(leaf: &Written) -> &'static str {
    let arena = Arc::new(HeapArena::with_chunks(1 << 20, 8).unwrap());
    let adoption = Tree::adopt(arena, OPTIONS, &SystemWaits, None).unwrap();
    let mut part = adoption.part(b"");
    match leaf.with(|leaf| part.take(leaf)) {
        Err(AdoptError::Leaf { leaf: 0, fault }) => fault,
        other => panic!("{other:?}"),
    }
}

/// Three rows, the second elsewhere, and deltas on the first and behind the last.
fn sample() -> Written {
    let tree = tree();
    for (key, len) in [(b"b", 10), (b"c", 900), (b"d", 10)] {
        tree.upsert(key, &vec![7; len]).unwrap();
    }
    // One more change than the chain takes makes a page of all.
    (0..2).for_each(|_| _ = tree.upsert(b"d", &[8; 10]).unwrap());
    tree.upsert(b"b", &[9; 800]).unwrap();
    tree.upsert(b"e", &[9; 12]).unwrap();
    let mut leaves = written(&tree);
    assert_eq!(
        (leaves.len(), leaves[0].deltas.len(), leaves[0].extents.len(), leaves[0].rows.clone()),
        (1, 2, 2, 0..3)
    );
    leaves.pop().unwrap()
}

#[test]
fn each_fault_has_its_name() {
    assert_eq!(adopted(&[sample()], OPTIONS, 1).map(|tree| rows(&tree, Direction::Forward).len()), Ok(4));
    let faulty = |change: fn(&mut Written)| {
        let mut leaf = sample();
        change(&mut leaf);
        fault(&leaf)
    };
    assert_eq!(faulty(|leaf| leaf.base.truncate(50)), "it is no page");
    assert_eq!(faulty(|leaf| leaf.base.push(0)), "something follows the page");
    assert_eq!(faulty(|leaf| leaf.rows = 0..4), "it has fewer rows");
    assert_eq!(faulty(|leaf| leaf.rows = Range { start: 2, end: 1 }), "it has fewer rows");
    assert_eq!(faulty(|leaf| leaf.rows = 1..3), "a delta belongs to a row that is not its leaf's");
    let none_of_them = |leaf: &mut Written| (leaf.rows, _) = (0..0, leaf.deltas.pop());
    assert_eq!(faulty(none_of_them), "a delta belongs to a row that is not its leaf's");
    assert_eq!(faulty(|leaf| leaf.deltas.swap(0, 1)), "its deltas do not ascend");
    assert_eq!(faulty(|leaf| leaf.deltas[0][0] = b'd'), "a delta belongs to another row");
    assert_eq!(faulty(|leaf| leaf.deltas[0][1] = 1), "a record's key is none");
    assert_eq!(faulty(|leaf| leaf.deltas[0].extend([0; 8])), "a record has another length");
    assert_eq!(faulty(|leaf| leaf.deltas[1].truncate(20)), "a delta is no record");
    assert_eq!(faulty(|leaf| drop(leaf.extents.pop())), "an extent is missing");
    assert_eq!(faulty(|leaf| leaf.extents.push(vec![1])), "there is an extent that no row refers to");
    assert_eq!(faulty(|leaf| _ = leaf.extents[1].pop()), "an extent has another length");
    let mut twice = LeafBuilder::new(4);
    let reference = OverflowRef { offset: 0, len: 3, extent: 1 };
    [b"a", b"b"].iter().for_each(|key| twice.push(*key, b"1234", Rest::Overflow(reference)).unwrap());
    let extents = vec![b"one".to_vec(), b"two".to_vec()];
    let twice = Written { base: twice.finish(), rows: 0..2, extents, ..Written::default() };
    assert_eq!(fault(&twice), "two rows refer to one extent");
    let built = |low: &[u8], high: Option<&[u8]>, prefix_len: usize, key: &[u8]| {
        let mut builder = LeafBuilder::new(prefix_len).fences(low, high);
        builder.push(key, &vec![0; prefix_len], Rest::Inline(b"")).unwrap();
        fault(&Written { base: builder.finish(), rows: 0..1, ..Written::default() })
    };
    assert_eq!(built(b"", None, 5, b"a"), "its values have prefixes of another length");
    assert_eq!(built(b"b", None, 4, b"a"), "its keys are outside its fences");
    assert_eq!(built(b"", Some(b"a"), 4, b"a"), "its keys are outside its fences");
    assert_eq!(built(b"b", Some(b"b"), 4, b"b"), "its fences are none");
    assert_eq!(built(b"", None, 4, &[1; 65]), "its keys are too long");
}

/// Leaves that overlap or come twice; parts that do; what lies between and behind them has no rows and takes some.
#[test]
fn order_and_gaps() {
    let leaf = |low: &[u8], high: Option<&[u8]>, key: &[u8]| {
        let mut builder = LeafBuilder::new(4).fences(low, high);
        builder.push(key, b"1234", Rest::Inline(b"rest")).unwrap();
        Written { base: builder.finish(), rows: 0..1, ..Written::default() }
    };
    let (a, b, last) = (leaf(b"a", Some(b"c"), b"b"), leaf(b"f", Some(b"k"), b"g"), leaf(b"x", None, b"z"));
    let fault = |leaves: &[Written]| adopted(leaves, OPTIONS, leaves.len()).map(|_| ()).unwrap_err().to_string();
    assert!(fault(&[a.clone(), a.clone()]).contains("leaf 1 of its part is damaged: it ends before"));
    assert!(fault(&[last.clone(), a.clone()]).contains("the last one"));
    let early = leaf(b"a", Some(b"e"), b"b");
    assert!(fault(&[a.clone(), early]).contains("it begins before"));
    for each in [1, 2, 3] {
        for leaves in [
            &[a.clone(), b.clone(), last.clone()][..],
            &[a.clone(), b.clone()],
            std::slice::from_ref(&b),
            std::slice::from_ref(&last),
            &[],
        ] {
            let tree = adopted(leaves, OPTIONS, each).unwrap();
            assert_eq!(rows(&tree, Direction::Forward).len(), leaves.len());
            for n in 0..=255u8 {
                tree.upsert(&[n, 7], b"prefix and rest").unwrap();
            }
            assert_eq!(rows(&tree, Direction::Backward).len(), leaves.len() + 256);
        }
    }
    let arena = Arc::new(HeapArena::with_chunks(1 << 20, 8).unwrap());
    let adoption = Tree::adopt(arena, OPTIONS, &SystemWaits, None).unwrap();
    let mut parts = [adoption.part(b""), adoption.part(b"b")];
    a.with(|leaf| parts[0].take(leaf)).unwrap();
    b.with(|leaf| parts[1].take(leaf)).unwrap();
    assert_eq!(adoption.finish(parts).unwrap_err(), AdoptError::Order { part: 1 });
}

/// A leaf that its left neighbour took in after that one was written: what is clipped from it does not come twice.
#[test]
fn a_leaf_that_merged_meanwhile_comes_once() {
    let (old, mut model) = (tree(), BTreeMap::new());
    (0..400u16).for_each(|n| apply(&old, &mut model, &Change::Put(n.to_be_bytes().to_vec(), vec![1; 20])));
    let (mut leaves, mut log) = (Vec::new(), Vec::new());
    for page in old.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward) {
        leaves.push(Written::of(&page));
        let high = page.high_fence().unwrap_or_default().to_vec();
        drop(page);
        // All but one in five of the keys on either side of where the scan stands.
        let near = model.range(high..).take(12).chain(model.range(..=leaves.last().unwrap().high()).rev().take(12));
        let keys: Vec<Vec<u8>> = near.map(|(key, _)| key.clone()).filter(|key| key[1] % 5 != 0).collect();
        for key in keys {
            apply(&old, &mut model, &Change::Delete(key.clone()));
            log.push(key);
        }
    }
    assert!(leaves.iter().any(|leaf| leaf.rows.start > 0), "no leaf merged in time");
    for each in [1, 3, leaves.len()] {
        let new = adopted(&leaves, OPTIONS, each).unwrap();
        assert!(rows(&new, Direction::Forward).is_sorted_by(|a, b| a.0 < b.0));
        log.iter().for_each(|key| _ = new.delete(key).unwrap());
        agrees(&new, &model);
    }
}

#[test]
fn an_adopted_tree_bears_stamps_and_frees_its_extents() {
    let old = tree();
    for n in 0..40u16 {
        old.upsert(&n.to_be_bytes(), &[n as u8; 2000]).unwrap();
    }
    let stamps = Stamps::new(5);
    let arena = Arc::new(HeapArena::with_chunks(1 << 20, 8).unwrap());
    let adoption = Tree::adopt(arena, OPTIONS, &SystemWaits, Some(stamps.clone())).unwrap();
    let mut part = adoption.part(b"");
    written(&old).iter().for_each(|leaf| leaf.with(|leaf| part.take(leaf)).unwrap());
    let new = adoption.finish([part]).unwrap();
    assert_eq!(new.get_stamped(&7u16.to_be_bytes(), &mut Vec::new()), (true, 0));
    let full = new.stats().used_bytes;
    for n in (0..40u16).chain(0..40) {
        new.upsert(&n.to_be_bytes(), b"1234").unwrap();
    }
    assert_eq!(stamps.floor(), 85);
    new.reclaim();
    assert!(new.stats().used_bytes < full / 4, "extents of replaced rows are let go");
}

#[test]
fn a_full_arena_refuses() {
    let old = Tree::new(Arc::new(HeapArena::with_chunks(1 << 20, 32).unwrap()), OPTIONS).unwrap();
    for n in 0..3000u16 {
        old.upsert(&n.to_be_bytes(), &[1; 700]).unwrap();
    }
    let arena = Arc::new(HeapArena::with_chunks(1 << 20, 2).unwrap());
    let adoption = Tree::adopt(arena, OPTIONS, &SystemWaits, None).unwrap();
    let mut part = adoption.part(b"");
    let refused = written(&old).iter().find_map(|leaf| leaf.with(|leaf| part.take(leaf)).err());
    assert_eq!(refused, Some(AdoptError::Tree(Error::Exhausted)));
}
