//! Many threads at once, with pages small enough that splits, merges and consolidations never stop.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use overside_bwtree::{Direction, HeapArena, Options, Tree};

fn tree(page_bytes: usize, chain_max: usize) -> Tree {
    let arena = Arc::new(HeapArena::new(512 << 20).unwrap());
    Tree::new(arena, Options { page_bytes, prefix_len: 8, chain_max, fan_out: 6, ..Options::default() }).unwrap()
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn key(n: u64) -> [u8; 8] {
    n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
}

/// Each thread owns the keys ≡ its number, inserts and deletes them, and knows what must be there.
#[test]
fn writers_of_their_own_keys_see_what_they_wrote() {
    let tree = tree(512, 4);
    const THREADS: u64 = 4;
    std::thread::scope(|s| {
        for t in 0..THREADS {
            let tree = &tree;
            s.spawn(move || {
                let mut rng = Rng(t + 1);
                let mut there = vec![false; 2000];
                let mut out = Vec::new();
                for round in 0..200_000u64 {
                    let i = rng.next() % 2000;
                    let k = key(i * THREADS + t);
                    // Waves of growth and shrinking.
                    let grow = (round / 20_000) % 2 == 0;
                    match rng.next() % 10 {
                        0..=1 => assert_eq!(tree.get(&k, &mut out).unwrap(), there[i as usize], "get"),
                        n if (n < 8) == grow => {
                            assert_eq!(tree.upsert(&k, &round.to_le_bytes()).unwrap(), there[i as usize], "upsert");
                            there[i as usize] = true;
                            assert!(tree.get(&k, &mut out).unwrap() && out == round.to_le_bytes());
                        }
                        _ => {
                            assert_eq!(tree.delete(&k).unwrap(), there[i as usize], "delete");
                            there[i as usize] = false;
                        }
                    }
                }
            });
        }
    });
    let stats = tree.stats();
    assert!(stats.splits > 100 && stats.merges > 100 && stats.inner_splits > 10, "{stats:?}");
}

/// Scans in both directions while the tree grows and shrinks: rows that are there throughout come exactly once, in order.
#[test]
fn scans_see_what_stays_exactly_once() {
    let tree = tree(512, 4);
    for n in 0..3000 {
        tree.insert(&key(n), &n.to_le_bytes()).unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        for t in 0..2u64 {
            let (tree, stop) = (&tree, &stop);
            s.spawn(move || {
                let mut rng = Rng(t + 7);
                while !stop.load(Ordering::Relaxed) {
                    let grow = rng.next().is_multiple_of(2);
                    for _ in 0..20_000 {
                        let k = key(3000 + rng.next() % 9000);
                        if grow {
                            tree.upsert(&k, &[1; 8]).unwrap();
                        } else {
                            tree.delete(&k).unwrap();
                        }
                    }
                }
            });
        }
        // However this ends: writers that go on would keep the scope open.
        let _stop = scopeguard::guard((), |()| stop.store(true, Ordering::Relaxed));
        let mut stay: Vec<[u8; 8]> = (0..3000).map(key).collect();
        stay.sort();
        for round in 0..300 {
            let direction = if round % 2 == 0 { Direction::Forward } else { Direction::Backward };
            let mut seen = Vec::new();
            let mut rows = tree.range(Bound::Unbounded, Bound::Unbounded, direction);
            let mut last: Option<Vec<u8>> = None;
            while let Some((row, _)) = rows.next_row() {
                let k = row.key.to_vec();
                if let Some(last) = &last {
                    assert!(if round % 2 == 0 { *last < k } else { *last > k }, "order");
                }
                if row.prefix != [1; 8] {
                    seen.push(<[u8; 8]>::try_from(k.as_slice()).unwrap());
                }
                last = Some(k);
            }
            if round % 2 == 1 {
                seen.reverse();
            }
            assert_eq!(seen, stay);
            read_in_steps(&tree, &stay);
        }
    });
    assert!(tree.stats().merges > 10, "{:?}", tree.stats());
}

/// The same by a reader, some rows at a time.
fn read_in_steps(tree: &Tree, stay: &[[u8; 8]]) {
    let (mut reader, mut seen, mut from) = (tree.reader(), Vec::new(), Bound::Unbounded);
    loop {
        let mut last: Option<[u8; 8]> = None;
        reader.seek(from.as_ref().map(|key: &[u8; 8]| &key[..]), Bound::Unbounded, 100);
        let mut rows = 0;
        while let Some(copied) = reader.next_rows() {
            let (_, head_bytes) = copied.fixed_keys().expect("all keys have 8 bytes");
            for row in copied.rows() {
                let key = <[u8; 8]>::try_from(row.key.to_vec()).unwrap();
                assert!(last.is_none_or(|last| last < key) && head_bytes <= 8, "order");
                if row.prefix != [1; 8] {
                    seen.push(key);
                }
                last = Some(key);
                rows += 1;
            }
        }
        match last {
            Some(last) if rows == 100 => from = Bound::Excluded(last),
            _ => break,
        }
    }
    assert_eq!(seen, stay);
}

/// A counter per key, raised by compare-and-swap from many threads: no increment is lost.
#[test]
fn compare_and_swap_loses_nothing() {
    let tree = tree(512, 2);
    for n in 0..50u64 {
        tree.insert(&key(n), &0u64.to_le_bytes()).unwrap();
    }
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let tree = &tree;
            s.spawn(move || {
                let mut out = Vec::new();
                for i in 0..10_000u64 {
                    let k = key((i * 7 + t) % 50);
                    loop {
                        tree.get(&k, &mut out).unwrap();
                        let n = u64::from_le_bytes(out[..8].try_into().unwrap());
                        if tree.compare_and_swap(&k, Some(&out), Some(&(n + 1).to_le_bytes())).unwrap() {
                            break;
                        }
                    }
                }
            });
        }
    });
    let sum: u64 = tree
        .range(Bound::Unbounded, Bound::Unbounded, Direction::Forward)
        .map(|(_, v)| u64::from_le_bytes(v.try_into().unwrap()))
        .sum();
    assert_eq!(sum, 40_000);
}

/// Pages held on another thread keep their content while the tree is rewritten, and nothing else is kept.
#[test]
fn pinned_pages_do_not_change_and_hold_back_only_themselves() {
    let tree = tree(4096, 8);
    for n in 0..5000 {
        tree.insert(&key(n), &n.to_le_bytes()).unwrap();
    }
    let account = tree.pin_account();
    let pages: Vec<_> = tree
        .pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward)
        .on_account(account.clone())
        .take(5)
        .collect();
    let before: Vec<Vec<Vec<u8>>> =
        pages.iter().map(|p| p.merged().map(|r| [r.key.to_vec(), r.prefix.to_vec()].concat()).collect()).collect();
    let pinned = account.pinned_bytes();
    assert!(pinned > 0 && account.held_bytes() == 0);
    for round in 0..20u64 {
        for n in 0..5000 {
            tree.upsert(&key(n), &(n + round).to_le_bytes()).unwrap();
        }
    }
    tree.reclaim();
    let after: Vec<Vec<Vec<u8>>> =
        pages.iter().map(|p| p.merged().map(|r| [r.key.to_vec(), r.prefix.to_vec()].concat()).collect()).collect();
    assert_eq!(before, after);
    let stats = tree.stats();
    assert_eq!((account.held_bytes(), stats.held_by_pins_bytes, stats.pins), (pinned, pinned, 5));
    assert!(stats.used_bytes < 5000 * 16 * 2, "{stats:?}");
    std::thread::spawn(move || drop(pages)).join().unwrap();
    let stats = tree.stats();
    assert_eq!((account.held_bytes(), account.pinned_bytes(), stats.held_by_pins_bytes, stats.pins), (0, 0, 0, 0));
}

/// A page that is on its way to many is held back once, and pages of each its own are held for each (to-copy §5.5, TC-C43).
#[test]
fn what_is_sent_to_many_is_held_back_once() {
    let tree = tree(4096, 8);
    let rewrite =
        |round: u64| (0..20_000).for_each(|n| assert!(tree.upsert(&key(n), &(n ^ round).to_le_bytes()).is_ok()));
    rewrite(0);
    let pages = |from: usize| {
        tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward).skip(from).take(4).collect::<Vec<_>>()
    };
    let held = |clients: usize, apart: usize| {
        tree.reclaim();
        let sent: Vec<_> = (0..clients).map(|client| pages(client * apart)).collect();
        let bytes: usize = sent.iter().flatten().map(|page| page.base().len()).sum();
        (1..5).for_each(rewrite);
        tree.reclaim();
        (tree.stats().held_by_pins_bytes, bytes as u64)
    };
    let (one, same, own) = (held(1, 0), held(8, 0), held(8, 4));
    assert!(one.0 >= one.1 && own.0 >= own.1, "{one:?} at four pages, {own:?} at four each");
    assert!(same.0 > 0 && 2 * same.0 < same.1, "{same:?} at the same four");
    assert_eq!(tree.stats().held_by_pins_bytes, 0);
}
