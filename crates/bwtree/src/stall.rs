//! Tests with threads that are descheduled inside the tree: what only the inside can stage.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::core::Core;
use crate::inner::Target;
use crate::{Direction, Error, HeapArena, Options, Tree};

/// A step of a split or a merge that was just done, with another to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The page has two halves, and its parent knows of one.
    Split,
    Mark,
    Freeze,
    /// The left neighbour has the rows of both, and the other still names its own.
    Join,
    Absorb,
}

/// Where a thread stops, whom it tells, and what it waits for there.
struct Stop {
    at: (Step, u32),
    stopped: mpsc::Sender<()>,
    released: mpsc::Receiver<()>,
}

thread_local!(static STOP: RefCell<Option<Stop>> = const { RefCell::new(None) });

/// A thread that is to stop here does.
pub(crate) fn reached(step: Step, level: u32) {
    let stop = STOP.with_borrow_mut(|stop| stop.take_if(|stop| stop.at == (step, level)));
    if let Some(stop) = stop {
        stop.stopped.send(()).unwrap();
        // Its sender goes when the others are done.
        let _ = stop.released.recv();
    }
}

fn tree() -> Tree {
    let arena = Arc::new(HeapArena::new(256 << 20).unwrap());
    Tree::new(arena, Options { prefix_len: 8, page_bytes: 4096, ..Options::default() }).unwrap()
}

fn key(n: u64) -> [u8; 8] {
    n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
}

fn rewrite(tree: &Tree, rows: u64, round: u64) {
    for n in 0..rows {
        tree.upsert(&key(n), &(n ^ round).to_le_bytes()).unwrap();
    }
}

/// A guard that sleeps holds back what lived when it last looked, not what came since; nobody
/// waits, and it is reported.
#[test]
fn a_stalled_guard_holds_back_at_most_the_tree() {
    let tree = tree();
    rewrite(&tree, 20_000, 0);
    tree.reclaim();
    let live = tree.stats().used_bytes;
    let core: &Core = &tree.core;
    let guard = core.enter();
    let found = core.find_leaf(&guard, Target::At(&key(1)));
    let before: Vec<u8> = found.state.leaf.bytes().to_vec();
    for round in 1..30 {
        rewrite(&tree, 20_000, round);
        let stats = tree.stats();
        assert!(stats.used_bytes < 3 * live, "round {round}: {} of {live}", stats.used_bytes);
    }
    let stats = tree.stats();
    assert!(stats.held_by_epochs_bytes >= before.len() as u64);
    let stall = stats.stall.expect("the guard has been there for 29 rounds");
    assert_eq!(stall.thread, crate::sync::thread_id());
    // What it saw is still as it was.
    assert_eq!(found.state.leaf.bytes(), before);
    drop(guard);
    tree.reclaim();
    let stats = tree.stats();
    assert_eq!((stats.held_by_epochs_bytes, stats.stall), (0, None));
    assert!(stats.used_bytes < live * 3 / 2);
}

/// A guard also protects pages that were born after it came in, from the moment that it reads them.
#[test]
fn what_a_guard_read_stays_however_young() {
    let tree = tree();
    rewrite(&tree, 2000, 0);
    let guard = tree.core.enter();
    // Every leaf is replaced, some epochs later, by others that the guard has not seen …
    rewrite(&tree, 2000, 1);
    rewrite(&tree, 2000, 2);
    let found = tree.core.find_leaf(&guard, Target::At(&key(1)));
    let before = found.state.leaf.bytes().to_vec();
    // … until now; and those are replaced as well.
    rewrite(&tree, 2000, 3);
    rewrite(&tree, 2000, 4);
    tree.reclaim();
    assert_eq!(found.state.leaf.bytes(), before);
}

/// What a guard read names a page that was merged into its neighbour since: nothing of that page is
/// looked at any more.
#[test]
fn a_page_merged_away_is_not_followed() {
    let tree = tree();
    let rows = |range: std::ops::Range<u64>| range.map(u64::to_be_bytes);
    for key in rows(0..2000) {
        tree.insert(&key, &[1; 8]).unwrap();
    }
    let core: &Core = &tree.core;
    let guard = core.enter();
    let left = core.find_leaf(&guard, Target::At(&[])).state.leaf;
    let (high, going) = (left.high_fence().unwrap(), left.right());
    // The page to the right is replaced by ones that the guard never saw, and goes: its last version is freed.
    for key in rows(2000..3000) {
        tree.insert(&key, &[2; 8]).unwrap();
    }
    for key in rows(0..2000) {
        assert!(tree.delete(&key).unwrap());
    }
    tree.reclaim();
    assert!(core.read(&guard, going).frozen() && tree.stats().merges > 0);
    assert!(core.next_leaf(&guard, &left).is_none());
    core.post(&guard, 1, &[high, b"beyond"].concat(), crate::page::NO_PAGE, going);
}

/// Threads that stop at any point inside, scans that stop with pages in hand, and writers who must
/// not care.
#[test]
fn stalls_everywhere_disturb_nobody() {
    let tree = tree();
    rewrite(&tree, 5000, 0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        for t in 0..3u64 {
            let (tree, stop) = (&tree, &stop);
            s.spawn(move || {
                let mut n = t;
                while !stop.load(Ordering::Relaxed) {
                    n = n.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let guard = tree.core.enter();
                    let found = tree.core.find_leaf(&guard, Target::At(&key(n % 5000)));
                    let before = found.state.leaf.bytes().to_vec();
                    std::thread::sleep(std::time::Duration::from_millis(n % 7));
                    assert_eq!(found.state.leaf.bytes(), before);
                }
            });
        }
        let (scanned, stopped) = (&tree, &stop);
        s.spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let pages = scanned.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward);
                let held: Vec<_> = pages.step_by(3).collect();
                let before: Vec<Vec<u8>> = held.iter().map(|p| p.base().to_vec()).collect();
                std::thread::sleep(std::time::Duration::from_millis(5));
                held.iter().zip(before).for_each(|(page, before)| assert_eq!(page.base(), before));
            }
        });
        // However this ends: readers that go on would keep the scope open.
        let _stop = scopeguard::guard((), |()| stop.store(true, Ordering::Relaxed));
        for round in 1..40 {
            rewrite(&tree, 5000, round);
        }
    });
    let mut out = Vec::new();
    for n in 0..5000 {
        assert!(tree.get(&key(n), &mut out).unwrap());
        assert_eq!(out, (n ^ 39u64).to_le_bytes());
    }
    tree.reclaim();
    let stats = tree.stats();
    assert_eq!((stats.held_by_epochs_bytes, stats.held_by_pins_bytes, stats.pins), (0, 0, 0));
}

/// A thread stops between two steps of a split or a merge and does not go on. Others find every row
/// there, put and delete them and finish what it left; when it goes on at last, it changes nothing.
#[test]
fn what_a_thread_leaves_half_done_stops_nobody() {
    for level in [0, 1] {
        for step in [Step::Split, Step::Mark, Step::Freeze, Step::Join, Step::Absorb] {
            half_done(step, level);
        }
    }
}

fn half_done(step: Step, level: u32) {
    let arena = Arc::new(HeapArena::new(64 << 20).unwrap());
    let options = Options { prefix_len: 8, page_bytes: 512, chain_max: 2, fan_out: 4, ..Options::default() };
    let model = Arc::new(Model { tree: Tree::new(arena, options).unwrap(), rows: Mutex::default() });
    let grows = step == Step::Split;
    (0..ROWS).filter(|n| !grows || n % 4 == 0).for_each(|n| model.put(n, n));
    let (stopped, has_stopped) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let stalled = std::thread::spawn({
        let model = model.clone();
        move || {
            STOP.set(Some(Stop { at: (step, level), stopped, released }));
            for n in (ROWS / 4..ROWS).take_while(|_| STOP.with_borrow(Option::is_some)) {
                if grows { model.put(n, n) } else { model.delete(n) }
            }
        }
    });
    let at = format!("{step:?} at level {level}");
    has_stopped.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{at}: nobody comes there"));
    let others = model.clone();
    in_time(&at, move || {
        others.check();
        (0..ROWS).for_each(|n| others.put(n, !n));
        others.check();
        (0..ROWS).filter(|n| n % 50 != 0).for_each(|n| others.delete(n));
        others.check();
        (0..ROWS / 2).for_each(|n| others.put(n, n));
        others.check();
    });
    drop(release);
    in_time(&at, move || {
        stalled.join().unwrap();
        model.check();
        (0..ROWS).for_each(|n| model.put(n, !n));
        (0..ROWS).filter(|n| n % 50 != 0).for_each(|n| model.delete(n));
        model.check();
        model.tree.reclaim();
        assert_eq!(model.tree.stats().held_by_epochs_bytes, 0);
    });
}

/// A tree, and the rows that it must have.
struct Model {
    tree: Tree,
    rows: Mutex<BTreeMap<u64, u64>>,
}

impl Model {
    // The row comes before the tree's: where a thread stops in a change, others see it already.
    fn put(&self, n: u64, value: u64) {
        let was = self.rows.lock().unwrap().insert(n, value);
        assert_eq!(self.tree.upsert(&n.to_be_bytes(), &value.to_le_bytes()).unwrap(), was.is_some(), "{n}");
    }

    fn delete(&self, n: u64) {
        let was = self.rows.lock().unwrap().remove(&n);
        assert_eq!(self.tree.delete(&n.to_be_bytes()).unwrap(), was.is_some(), "{n}");
    }

    fn check(&self) {
        let (rows, mut out) = (self.rows.lock().unwrap().clone(), Vec::new());
        for n in 0..ROWS {
            let there = self.tree.get(&n.to_be_bytes(), &mut out).unwrap();
            let value = there.then(|| u64::from_le_bytes(out[..].try_into().unwrap()));
            assert_eq!(value.as_ref(), rows.get(&n), "{n}");
        }
        let scan = |direction| {
            let rows = self.tree.range(Bound::Unbounded, Bound::Unbounded, direction);
            rows.map(|(key, value)| [key, value].map(|bytes| bytes.try_into().unwrap())).collect::<Vec<[[u8; 8]; 2]>>()
        };
        let mut all: Vec<_> = rows.iter().map(|(n, value)| [n.to_be_bytes(), value.to_le_bytes()]).collect();
        assert_eq!(scan(Direction::Forward), all);
        all.reverse();
        assert_eq!(scan(Direction::Backward), all);
    }
}

/// Who waits for a thread that does not go on would wait for ever.
fn in_time(at: &str, work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    is_done.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{at}: {error}"));
}

const ROWS: u64 = 1000;
const PATIENCE: Duration = Duration::from_secs(60);

/// With the arena full every call fails cleanly or works, what was stored stays, and deleting makes
/// room again.
#[test]
fn an_exhausted_tree_is_intact() {
    let arena = Arc::new(HeapArena::with_chunks(1 << 20, 3).unwrap());
    let options = Options { prefix_len: 8, page_bytes: 4096, value_max: 400_000, ..Options::default() };
    let tree = Tree::new(arena, options).unwrap();
    let mut stored = 0;
    let error = loop {
        match tree.insert(&key(stored), &[stored as u8; 100]) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, Error::Exhausted);
    assert!(stored > 15_000, "{stored}");
    assert_eq!(tree.insert(b"large", &[1; 300_000]), Err(Error::Exhausted));
    let mut out = Vec::new();
    assert!((0..stored).all(|n| tree.get(&key(n), &mut out).unwrap() && out == [n as u8; 100]));
    assert_eq!(tree.range(Bound::Unbounded, Bound::Unbounded, Direction::Backward).count() as u64, stored);
    (0..stored).for_each(|n| assert!(tree.delete(&key(n)).unwrap(), "{n} of {stored}: {:?}", tree.stats()));
    tree.insert(b"large", &[1; 300_000]).unwrap();
}

/// Splits and merges of a deep tree, in an arena that is always about full: calls fail or work,
/// nothing is lost, nothing hangs.
#[test]
fn at_the_edge_of_memory_nothing_is_lost() {
    let arena = Arc::new(HeapArena::with_chunks(1 << 20, 1).unwrap());
    let options = Options { prefix_len: 8, page_bytes: 512, fan_out: 4, value_max: 1 << 17, ..Options::default() };
    let tree = Tree::new(arena, options).unwrap();
    let mut model = std::collections::BTreeMap::new();
    let (mut rng, mut refused, mut out) = (1u64, 0, Vec::new());
    for round in 0..300_000u64 {
        rng = rng.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let k = key((rng >> 33) % 30_000);
        let value = vec![round as u8; 8 + (rng >> 50) as usize % 40];
        // Phases that fill up and phases that empty.
        let filling = round / 30_000 % 2 == 0;
        let done = match (rng >> 60, filling) {
            (0..2, _) => {
                assert_eq!(tree.get(&k, &mut out).unwrap(), model.contains_key(&k));
                assert_eq!(model.get(&k).unwrap_or(&Vec::new()), &out);
                Ok(())
            }
            (2..12, true) | (2..4, false) => {
                tree.upsert(&k, &value).map(|there| assert_eq!(there, model.insert(k, value).is_some()))
            }
            _ => tree.delete(&k).map(|there| assert_eq!(there, model.remove(&k).is_some())),
        };
        if let Err(error) = done {
            assert_eq!(error, Error::Exhausted);
            refused += 1;
        }
        if round % 50_000 == 0 {
            let rows: Vec<_> = tree.range(Bound::Unbounded, Bound::Unbounded, Direction::Forward).collect();
            assert!(rows.iter().map(|(k, v)| (&k[..], v)).eq(model.iter().map(|(k, v)| (&k[..], v))));
        }
    }
    let stats = tree.stats();
    assert!(refused > 200 && stats.merges > 100 && stats.splits > 100, "{refused} {stats:?}");
}

/// Deleting 99 % gives the memory back while readers run. (The 10 M row version is the `throughput`
/// example's last column.)
#[test]
fn deleting_most_rows_returns_memory() {
    const ROWS: u64 = 1_000_000;
    let tree = filled(ROWS);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let (read, stopped) = (&tree, &stop);
        s.spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let rows = read.range(Bound::Unbounded, Bound::Unbounded, Direction::Forward).count() as u64;
                assert!(rows >= ROWS / 100);
            }
        });
        let _stop = scopeguard::guard((), |()| stop.store(true, Ordering::Relaxed));
        for n in (0..ROWS).filter(|n| n % 100 != 0) {
            assert!(tree.delete(&key(n)).unwrap());
        }
        // A reader that the system keeps waiting inside holds back what it may see. Pages go to high chunks meanwhile, and down
        // again as they are rewritten.
        let begun = std::time::Instant::now();
        for round in 0.. {
            tree.reclaim();
            let stats = tree.stats();
            if stats.committed_bytes * 8 <= stats.committed_bytes_peak
                && stats.used_bytes * 20 < stats.committed_bytes_peak
            {
                break;
            }
            assert!(begun.elapsed().as_secs() < 60, "{stats:?}");
            touch(&tree, ROWS, round);
        }
    });
}

/// However deleting strewed the pages that are left over the chunks: written once more, they lie in
/// the lowest ones.
#[test]
fn rewritten_pages_leave_high_chunks() {
    const ROWS: u64 = 300_000;
    for stays in [1, 4, 5, 8, 10] {
        let tree = filled(ROWS);
        let mut inside = None;
        for n in (0..ROWS).filter(|n| n % 100 != 0) {
            if n % (ROWS / 100 * stays) == 1 {
                // Held anew from here: what is deleted meanwhile stays, and new pages go where there is room.
                drop(inside.take());
                let guard = tree.core.enter();
                tree.core.find_leaf(&guard, Target::At(&key(n)));
                inside = Some(guard);
            }
            assert!(tree.delete(&key(n)).unwrap());
        }
        drop(inside);
        tree.reclaim();
        touch(&tree, ROWS, 1);
        tree.reclaim();
        let stats = tree.stats();
        // One of them is kept empty.
        assert!(stats.committed_bytes <= 2 << 20 && stats.committed_bytes_peak >= 10 << 20, "{stays}: {stats:?}");
    }
}

fn filled(rows: u64) -> Tree {
    let arena = Arc::new(HeapArena::with_chunks(1 << 20, 256).unwrap());
    let tree = Tree::new(arena, Options { prefix_len: 8, value_max: 1 << 18, ..Options::default() }).unwrap();
    (0..rows).for_each(|n| tree.insert(&key(n), &n.to_le_bytes()).unwrap());
    tree
}

/// Writes the hundredth of the rows again that was not deleted.
fn touch(tree: &Tree, rows: u64, round: u64) {
    for n in (0..rows).step_by(100) {
        tree.upsert(&key(n), &(n + round).to_le_bytes()).unwrap();
    }
}
