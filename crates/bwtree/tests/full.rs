//! An arena without room for another page: deletes work, at once, and give the memory back.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use overside_bwtree::{Direction, Error, HeapArena, Options, Tree};

fn key(n: u64) -> [u8; 8] {
    (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
}

/// Of 0..n, in a random order.
fn shuffled(n: u64, mut seed: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..n).collect();
    for i in (1..order.len()).rev() {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        order.swap(i, (seed >> 33) as usize % (i + 1));
    }
    order
}

/// Filled until neither a page nor a delta finds room: all chains and pages are as long as they get. Which keys there are.
fn filled(tree: &Tree, value: &[u8]) -> Vec<u64> {
    let (mut there, mut refused) = (Vec::new(), 0);
    for n in 0.. {
        match tree.insert(&key(n), value) {
            Ok(()) => {
                there.push(n);
                refused = 0;
            }
            Err(Error::Exhausted) if refused < 10_000 => refused += 1,
            Err(error) => {
                assert_eq!(error, Error::Exhausted);
                break;
            }
        }
    }
    there
}

fn tree(page_bytes: usize, chunks: usize, value: usize) -> Tree {
    let arena = Arc::new(HeapArena::with_chunks(1 << 20, chunks).unwrap());
    // A page that holds fewer rows than its chain deltas would be emptied without ever being made anew.
    let chain_max = if page_bytes < 1024 { 2 } else { 8 };
    let options = Options { prefix_len: value.min(8), page_bytes, chain_max, value_max: 400_000, ..Options::default() };
    Tree::new(arena, options).unwrap()
}

#[test]
fn every_delete_succeeds_at_once() {
    for (page_bytes, chunks, value) in [
        (16 << 10, 3, 8),
        (16 << 10, 3, 100),
        (16 << 10, 8, 200),
        (4096, 3, 100),
        (4096, 2, 0),
        (512, 2, 40),
        (96 << 10, 4, 100),
    ] {
        let tree = tree(page_bytes, chunks, value);
        let there = filled(&tree, &vec![7; value]);
        for (done, at) in shuffled(there.len() as u64, 1).into_iter().enumerate() {
            let deleted = tree.delete(&key(there[at as usize]));
            assert_eq!(
                deleted,
                Ok(true),
                "pages of {page_bytes}, values of {value}, {done} deleted: {:?}",
                tree.stats()
            );
        }
        assert_eq!(tree.range(Bound::Unbounded, Bound::Unbounded, Direction::Forward).count(), 0);
        if page_bytes < 4096 {
            // So few rows a page that pages lie about everywhere.
            continue;
        }
        // The memory is there again, a value of several spans included.
        assert_eq!(tree.insert(b"large", &[1; 300_000]), Ok(()), "{:?}", tree.stats());
        let again = filled(&tree, &vec![7; value]).len();
        assert!(again > there.len() / 3, "{again} of {}", there.len());
    }
}

/// On a machine whose processors others keep busy, each time slice given up costs milliseconds, and a load into a full arena
/// has thousands of inserts refused.
#[test]
fn an_insert_that_is_refused_waits_for_nobody() {
    let tree = tree(16 << 10, 3, 100);
    // One stays inside all the while and holds back what is replaced.
    let pages = tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward).collect::<Vec<_>>();
    let there = filled(&tree, &[7; 100]);
    for n in &there[..100] {
        let update = tree.update(&key(*n), &[8; 100]);
        assert!(matches!(update, Ok(true) | Err(Error::Exhausted)), "{update:?}");
    }
    assert_eq!(tree.stats().waits, 0);
    drop(pages);
}

/// A thread that serves others cannot sleep: it is told at once, and succeeds once the pages are let go.
#[test]
fn a_delete_that_shall_not_wait_is_refused_until_others_let_go() {
    let tree = tree(16 << 10, 3, 100);
    let there = filled(&tree, &[7; 100]);
    let pages = tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward).collect::<Vec<_>>();
    let mut left = there.iter().map(|n| key(*n));
    let refused = left.by_ref().find(|key| match tree.delete_now(key) {
        Ok(was_there) => !was_there,
        Err(error) => {
            assert_eq!(error, Error::Exhausted);
            true
        }
    });
    let refused = refused.expect("the reserve is smaller than the pages that are held");
    assert_eq!(tree.delete_now(&refused), Err(Error::Exhausted), "as long as they are held");
    assert_eq!(tree.stats().waits, 0);
    let mut value = Vec::new();
    assert_eq!(tree.get(&refused, &mut value), Ok(true), "what was refused is untouched");
    drop(pages);
    assert_eq!(tree.delete_now(&refused), Ok(true), "{:?}", tree.stats());
    for key in left {
        assert_eq!(tree.delete_now(&key), Ok(true), "{:?}", tree.stats());
    }
}

#[test]
fn deletes_succeed_while_others_read_and_fail_to_insert() {
    let tree = tree(16 << 10, 3, 100);
    let there = filled(&tree, &[7; 100]);
    let order = shuffled(there.len() as u64, 2);
    let deleting = AtomicU64::new(2);
    std::thread::scope(|s| {
        for half in [0, 1] {
            let (tree, there, order, deleting) = (&tree, &there, &order, &deleting);
            s.spawn(move || {
                // When a delete fails as well, or the reader below never ends.
                let _done = scopeguard::guard((), |()| _ = deleting.fetch_sub(1, Ordering::Relaxed));
                for at in order.iter().skip(half).step_by(2) {
                    assert_eq!(tree.delete(&key(there[*at as usize])), Ok(true), "{:?}", tree.stats());
                }
            });
        }
        s.spawn(|| {
            let (mut n, mut out) = (0, Vec::new());
            while deleting.load(Ordering::Relaxed) > 0 {
                n += 1;
                tree.get(&key(n % 10_000), &mut out).unwrap();
                // Keys of their own, beyond those that were tried above.
                let inserted = tree.upsert(&key((1 << 40) + n % 100), &[9; 100]);
                assert!(matches!(inserted, Ok(_) | Err(Error::Exhausted)));
            }
        });
    });
    let left: Vec<_> = tree.range(Bound::Unbounded, Bound::Unbounded, Direction::Forward).collect();
    assert!(left.len() <= 100 && left.iter().all(|(_, value)| value == &[9; 100]), "{}", left.len());
}
