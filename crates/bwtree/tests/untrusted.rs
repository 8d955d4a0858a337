//! What safe code may do to a tree without harm: lend its arena twice, lie about ranges, watch it
//! badly.

use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use overside_bwtree::{
    Arena, Direction, Error, Exhausted, HeapArena, Options, PinnedPage, SegmentArena, SegmentObserver, Tree,
};
use overside_memory::{Segment, SegmentId};

const OPTIONS: Options =
    Options { page_bytes: 1024, prefix_len: 0, chain_max: 8, fan_out: 512, value_max: 1000, key_max: 64 };

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

fn fill(tree: &Tree, keys: u64, value: &[u8]) {
    (0..keys).for_each(|n| tree.insert(&key(n), value).unwrap());
}

fn holds(tree: &Tree, keys: u64, value: &[u8]) -> bool {
    let mut out = Vec::new();
    (0..keys).all(|n| tree.get(&key(n), &mut out).unwrap() && out == value)
}

fn pages(tree: &Tree) -> Vec<PinnedPage> {
    tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward).collect()
}

/// A tree has its arena for itself, says its maker, who may be wrong.
#[test]
fn two_trees_over_one_arena_never_share_a_chunk() {
    let arena = Arc::new(HeapArena::with_chunks(1 << 20, 16).unwrap());
    let trees = [1u8, 2].map(|_| Tree::new(arena.clone(), OPTIONS).unwrap());
    for (tree, byte) in trees.iter().zip([1, 2]) {
        fill(tree, 3000, &[byte; 100]);
    }
    for (tree, byte) in trees.iter().zip([1, 2]) {
        assert!(holds(tree, 3000, &[byte; 100]), "tree {byte} has its own rows");
    }
    assert_eq!(arena.commit(0, 0..1 << 20), Err(Exhausted), "nor with anybody else");
    // Once there is no chunk left, that is said.
    let small = Arc::new(HeapArena::with_chunks(1 << 20, 1).unwrap());
    let _first = Tree::new(small.clone(), OPTIONS).unwrap();
    assert_eq!(Tree::new(small, OPTIONS).unwrap_err(), Error::Exhausted);
}

#[test]
fn ranges_without_bytes_are_nothing_wherever_they_are() {
    let arena = SegmentArena::new(1 << 20, 4 << 20, Arc::new(())).unwrap();
    let tree = Tree::new(Arc::new(arena), OPTIONS).unwrap();
    fill(&tree, 10, &[7; 100]);
    let page = pages(&tree).pop().unwrap();
    let (at, len) = (page.offset_of(page.base()), page.base().len() as u64);
    for far in [0, at, at + len, 4 << 20, 1 << 42, u64::MAX - 1, u64::MAX] {
        let view = page.view([(far, 0), (at, len), (far, 0)]).unwrap();
        assert_eq!((view.bytes(), view.fragments().len()), (len, 1), "{far}");
        assert_eq!(page.view([(far, 0)]).unwrap().bytes(), 0);
    }
    let outside =
        [(at, len + 1), (at.wrapping_sub(1), 2), (1 << 42, 1), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)];
    for range in outside {
        assert!(page.view([range]).is_none(), "{range:?}");
        assert!(page.view([(at, len), range]).is_none(), "{range:?}");
    }
}

/// It is asked once for each range; whatever it says the next time is another range.
#[test]
fn ranges_that_change_or_panic_are_taken_as_they_were_checked() {
    let tree = Tree::new(Arc::new(HeapArena::new(4 << 20).unwrap()), Options::default()).unwrap();
    fill(&tree, 10, &[7; 100]);
    let page = pages(&tree).pop().unwrap();
    let at = page.offset_of(page.base());
    let mut turn = 0;
    let endless = std::iter::from_fn(|| {
        turn += 1;
        Some(if turn < 20 { (at, 8) } else { (at + (1 << 30), 8) })
    });
    assert!(page.view(endless).is_none());
    let panics = (0..5).map(|turn| if turn == 3 { panic!("planted") } else { (at, 8) });
    assert!(catch_unwind(AssertUnwindSafe(|| page.view(panics))).is_err());
    drop(page);
    assert_eq!(tree.stats().pins, 0, "no pin was left behind");
}

#[test]
fn an_account_of_another_tree_is_refused() {
    let tree = || Tree::new(Arc::new(HeapArena::new(4 << 20).unwrap()), Options::default()).unwrap();
    let (one, other) = (tree(), tree());
    let cursor = one.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward);
    assert!(catch_unwind(AssertUnwindSafe(|| cursor.on_account(other.pin_account()))).is_err());
}

/// Panics at every third call or so, refuses every fifth, keeps segments for longer than it should.
#[derive(Debug, Default)]
struct Bad {
    calls: AtomicUsize,
    kept: Mutex<Vec<Arc<Segment>>>,
}

impl Bad {
    fn misbehaves(&self) -> bool {
        let call = self.calls.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56;
        assert!(!call.is_multiple_of(3), "planted");
        call.is_multiple_of(5)
    }
}

impl SegmentObserver for Bad {
    fn has_room(&self, _: usize) -> bool {
        !self.misbehaves()
    }

    fn committed(&self, segment: &Arc<Segment>) -> Result<(), Exhausted> {
        let refused = self.misbehaves();
        let mut kept = self.kept.lock().unwrap();
        kept.push(segment.clone());
        if kept.len() > 3 {
            kept.remove(0);
        }
        if refused { Err(Exhausted) } else { Ok(()) }
    }

    fn decommitted(&self, _: SegmentId) {
        self.misbehaves();
    }
}

#[test]
fn a_tree_goes_on_whatever_its_observer_does() {
    let arena = Arc::new(SegmentArena::new(1 << 20, 16 << 20, Arc::new(Bad::default())).unwrap());
    let made = || catch_unwind(AssertUnwindSafe(|| Tree::new(arena.clone(), OPTIONS)));
    let tree = std::iter::repeat_with(made).take(100).find_map(|made| made.ok()?.ok()).unwrap();
    let mut there = std::collections::BTreeMap::new();
    for round in 0..4u64 {
        let value = [round as u8; 200];
        for n in 0..12_000 {
            // What panicked or found no room may have happened or not.
            match catch_unwind(AssertUnwindSafe(|| tree.upsert(&key(n), &value))) {
                Ok(Ok(_)) => _ = there.insert(n, Some(value)),
                Ok(Err(_)) => {}
                Err(_) => _ = there.insert(n, None),
            }
        }
        for n in (0..12_000).filter(|n| n % 8 != round) {
            match catch_unwind(AssertUnwindSafe(|| tree.delete(&key(n)))) {
                Ok(Ok(_)) => _ = there.remove(&n),
                Ok(Err(_)) => {}
                Err(_) => _ = there.insert(n, None),
            }
        }
        let _ = catch_unwind(AssertUnwindSafe(|| tree.reclaim()));
        let mut out = Vec::new();
        for n in 0..12_000 {
            let found = tree.get(&key(n), &mut out).unwrap();
            match there.get(&n) {
                Some(Some(value)) => assert!(found && out == value, "row {n} is as it was put"),
                Some(None) => {}
                None => assert!(!found, "row {n} was deleted"),
            }
        }
    }
    let _ = catch_unwind(AssertUnwindSafe(|| drop((tree, arena))));
}

/// Panics whenever a segment goes.
#[derive(Debug, Default)]
struct Told {
    came: AtomicUsize,
    went: AtomicUsize,
}

impl SegmentObserver for Told {
    fn committed(&self, _: &Arc<Segment>) -> Result<(), Exhausted> {
        self.came.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn decommitted(&self, _: SegmentId) {
        self.went.fetch_add(1, Ordering::Relaxed);
        panic!("planted");
    }
}

#[test]
fn an_observer_that_panics_is_told_of_every_segment() {
    let told = Arc::new(Told::default());
    let tree = Tree::new(Arc::new(SegmentArena::new(1 << 20, 8 << 20, told.clone()).unwrap()), OPTIONS).unwrap();
    fill(&tree, 10_000, &[7; 200]);
    let segments = told.came.load(Ordering::Relaxed);
    assert_eq!(segments, 1 + (tree.stats().committed_bytes as usize >> 20), "the first chunk came in two parts");
    assert!(segments > 2 && told.went.load(Ordering::Relaxed) == 0);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(tree))).is_err());
    assert_eq!(told.went.load(Ordering::Relaxed), segments);
}
