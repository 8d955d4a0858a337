//! A small tree is small, and its segments are few.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use overside_bwtree::{Direction, Exhausted, Options, SegmentArena, SegmentObserver, Tree};
use overside_memory::{Segment, SegmentId};

/// Bytes that are registered, and where.
#[derive(Debug, Default)]
struct Registered {
    bytes: AtomicUsize,
    segments: Mutex<Vec<(SegmentId, usize, usize)>>,
}

impl SegmentObserver for Registered {
    fn committed(&self, segment: &Arc<Segment>) -> Result<(), Exhausted> {
        self.bytes.fetch_add(segment.len(), Ordering::Relaxed);
        let at = segment.base().as_ptr() as usize;
        self.segments.lock().unwrap().push((segment.id(), at, segment.len()));
        Ok(())
    }

    fn decommitted(&self, id: SegmentId) {
        let mut segments = self.segments.lock().unwrap();
        let place = segments.iter().position(|segment| segment.0 == id).expect("it came before");
        self.bytes.fetch_sub(segments.swap_remove(place).2, Ordering::Relaxed);
    }
}

/// As the table server makes one.
fn tree(registered: &Arc<Registered>) -> Tree {
    let arena = SegmentArena::new(8 << 20, 1 << 30, registered.clone()).unwrap();
    Tree::new(Arc::new(arena), Options { prefix_len: 8, ..Options::default() }).unwrap()
}

fn fill(tree: &Tree, rows: u64, bytes: usize) {
    (0..rows).for_each(|n| assert!(!tree.upsert(&n.to_be_bytes(), &vec![n as u8; bytes]).unwrap()));
}

#[test]
fn hundreds_of_small_trees_fit() {
    let registered = Arc::new(Registered::default());
    let trees: Vec<Tree> = (0..400).map(|_| tree(&registered)).collect();
    trees.iter().step_by(2).for_each(|tree| fill(tree, 10, 100));
    // 512 KiB each: a span of 128 KiB for each of two kinds of pieces, and two that deletes need in a full arena.
    assert_eq!(registered.bytes.load(Ordering::Relaxed), 400 * (512 << 10));
    assert_eq!(registered.segments.lock().unwrap().len(), 400);
    drop(trees);
    assert_eq!(registered.bytes.load(Ordering::Relaxed), 0);
}

/// What is sent of a page or an extent is named by the segment that it lies in, in the chunk that came in parts and in others.
#[test]
fn each_part_is_named_by_its_segment() {
    let registered = Arc::new(Registered::default());
    let tree = tree(&registered);
    for n in 0..40u64 {
        let bytes = if n % 3 == 0 { 400_000 } else { 3000 };
        tree.upsert(&n.to_be_bytes(), &vec![n as u8; bytes]).unwrap();
    }
    assert_eq!(registered.segments.lock().unwrap().len(), 5, "8 MiB in parts of 512 KiB, the same, 1, 2 and 4 MiB");

    (100..2000u64).for_each(|n| _ = tree.upsert(&n.to_be_bytes(), &vec![1; 6000]).unwrap());
    assert!(registered.segments.lock().unwrap().len() > 5);
    let segments = registered.segments.lock().unwrap().clone();
    let mut seen = Vec::new();
    for page in tree.pages(std::ops::Bound::Unbounded, std::ops::Bound::Unbounded, Direction::Forward) {
        let parts = std::iter::once(page.base()).chain(page.extents());
        for part in parts {
            let view = page.view([(page.offset_of(part), part.len() as u64)]).unwrap();
            let fragment = &view.fragments()[0];
            let at = part.as_ptr() as usize;
            let (id, base, len) = *segments.iter().find(|(id, ..)| *id == fragment.segment).expect("a known segment");
            assert!(base <= at && at + part.len() <= base + len, "a part lies outside of the segment that names it");
            seen.push(id);
        }
    }
    seen.sort_unstable_by_key(|id| id.get());
    seen.dedup();
    assert!(seen.len() >= 5, "parts and whole chunks were sent from");
}
