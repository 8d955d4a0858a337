//! What operations cost that can be counted: consolidations, and allocations.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::Bound;
use std::sync::Arc;

use overside_bwtree::{HeapArena, Options, Tree};

/// Counts what the thread that asked for it allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<Option<usize>> = const { Cell::new(None) };
}

// SAFETY: [test] the system's allocator does the work; counting touches a thread's own cell without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get().map(|n| n + 1));
        // SAFETY: [test] the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: [test] the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(what: impl FnOnce()) -> usize {
    ALLOCATIONS.set(Some(0));
    what();
    ALLOCATIONS.take().unwrap_or_default()
}

const ROWS: u64 = 20_000;

fn key(n: u64) -> [u8; 8] {
    (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
}

fn tree(chain_max: usize) -> Tree {
    let arena = Arc::new(HeapArena::new(64 << 20).unwrap());
    let tree = Tree::new(arena, Options { prefix_len: 8, chain_max, ..Options::default() }).unwrap();
    (0..ROWS).for_each(|n| tree.insert(&key(n), &n.to_le_bytes()).unwrap());
    tree
}

/// One consolidation for each `chain_max` deltas: the change that finds the chain full goes in with it. A longest chain of four
/// spares four of five.
//= to-copy §5.4 TC-C37
#[test]
fn consolidations_fall_with_the_chain_s_length() {
    for chain_max in [1, 2, 4, 8, 16] {
        let tree = tree(chain_max);
        let before = tree.stats();
        const UPDATES: u64 = 100_000;
        (0..UPDATES).for_each(|n| assert!(tree.upsert(&key(n * 7 % ROWS), &n.to_le_bytes()).unwrap()));
        let after = tree.stats();
        let (deltas, made) = (after.deltas - before.deltas, after.consolidations - before.consolidations);
        assert_eq!((deltas + made, after.splits), (UPDATES, before.splits));
        // Chains are somewhere between empty and full when it begins, and when it ends.
        let pages = before.splits + 1;
        let expected = UPDATES / (chain_max as u64 + 1);
        assert!(made.abs_diff(expected) <= pages, "chains of {chain_max}: {made} for {UPDATES}, {expected} expected");
    }
}

/// From the next change of a page on; never longer than the pages have room for.
//= to-copy §5.4 TC-M32
#[test]
fn a_limit_that_is_set_later_holds_from_the_next_change_on() {
    let tree = tree(8);
    for (set, holds) in [(2, 2), (0, 1), (4, 4), (100, 8)] {
        tree.set_chain_max(set);
        assert_eq!(tree.chain_max(), holds);
        // Every page has met the limit by then.
        let update = |rounds: u64| {
            (0..rounds * ROWS).for_each(|n| assert!(tree.upsert(&key(n % ROWS), &n.to_le_bytes()).unwrap()))
        };
        update(1);
        let before = tree.stats();
        update(4);
        let after = tree.stats();
        let (made, pages) = (after.consolidations - before.consolidations, before.splits + 1);
        let expected = 4 * ROWS / (holds as u64 + 1);
        assert!(made.abs_diff(expected) <= pages, "chains of {set}: {made}, {expected} expected");
    }
}

/// Reads, short ranges and changes that find room on the chain allocate nothing.
#[test]
fn most_operations_allocate_nothing() {
    let tree = tree(8);
    let (mut out, mut reader) = (Vec::with_capacity(8), tree.reader());
    let mut read = |times: u64| {
        for n in 0..times {
            assert!(tree.get(&key(n), &mut out).unwrap());
            reader.seek(Bound::Included(&key(n)), Bound::Unbounded, 100);
            while let Some(rows) = reader.next_rows() {
                assert!(rows.count() <= 100);
            }
        }
    };
    read(100);
    assert_eq!(allocations(|| read(1000)), 0);
    let before = tree.stats();
    let changes = allocations(|| (0..9000).for_each(|n| _ = tree.upsert(&key(n), &n.to_le_bytes()).unwrap()));
    let made = tree.stats().consolidations - before.consolidations;
    // One a consolidation (the key of a row that goes into the new page), and a list now and then of who is inside.
    assert!(made > 900 && changes as u64 <= made + made / 8, "{changes} allocations, {made} consolidations");
}
