//! The protocols under shuttle: random schedules of the shipped code, atomics and all.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test --release -p overside-bwtree --test shuttle`
//!
//! Freed units are overwritten in this build, so whoever reads one too late reads nonsense and fails.
#![cfg(shuttle)]

use std::ops::Bound;
use std::sync::Arc;

use overside_bwtree::{ChangeOutcome, Direction, Error, HeapArena, Options, Put, Stamps, Stats, Tree, Waits};
use shuttle::thread;

const OPTIONS: Options =
    Options { page_bytes: 256, prefix_len: 8, chain_max: 1, fan_out: 4, value_max: 1 << 10, key_max: 64 };

fn tree(options: Options) -> Tree {
    let arena = Arc::new(HeapArena::with_chunks(1 << 20, 16).unwrap());
    Tree::new(arena, options).unwrap()
}

fn value(n: u64) -> [u8; 16] {
    [n.to_le_bytes(), (!n).to_le_bytes()].concat().try_into().unwrap()
}

/// The number in a value, which must not be torn.
fn number(value: &[u8]) -> u64 {
    let (n, check) = value.split_at(8);
    let n = u64::from_le_bytes(n.try_into().unwrap());
    assert_eq!(check, (!n).to_le_bytes(), "a torn value");
    n
}

fn get(tree: &Tree, key: u64) -> Option<u64> {
    let mut out = Vec::new();
    tree.get(&key.to_be_bytes(), &mut out).unwrap().then(|| number(&out))
}

fn put(tree: &Tree, key: u64, n: u64) -> bool {
    tree.upsert(&key.to_be_bytes(), &value(n)).unwrap()
}

/// Puts the keys together, all with the same number.
fn put_many(tree: &Tree, put: Put, keys: &[u64], n: u64) -> Vec<Result<bool, Error>> {
    let keys: Vec<[u8; 8]> = keys.iter().map(|key| key.to_be_bytes()).collect();
    let value = value(n);
    let rows: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &value[..])).collect();
    tree.put_many(put, &rows, usize::MAX)
}

fn delete(tree: &Tree, key: u64) -> bool {
    tree.delete(&key.to_be_bytes()).unwrap()
}

fn rows(tree: &Tree, direction: Direction) -> Vec<(u64, u64)> {
    let rows = tree.range(Bound::Unbounded, Bound::Unbounded, direction);
    rows.map(|(k, v)| (u64::from_be_bytes(k.try_into().unwrap()), number(&v))).collect()
}

/// The keys, by pages that were taken together.
fn keys_together(tree: &Tree, together: usize) -> Vec<u64> {
    let pages = tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward).together(together);
    let keys = |page: overside_bwtree::PinnedPage| -> Vec<u64> {
        page.merged().map(|row| u64::from_be_bytes(row.key.to_vec().try_into().unwrap())).collect()
    };
    pages.flat_map(keys).collect()
}

/// Explores `schedules` schedules; `happened` must hold for the tree of at least one of them.
fn explore(schedules: usize, chain_max: usize, happened: fn(&Stats) -> bool, body: fn(&Tree)) {
    explore_with(Options { chain_max, ..OPTIONS }, schedules, happened, body);
}

fn explore_with(options: Options, schedules: usize, happened: fn(&Stats) -> bool, body: fn(&Tree)) {
    let seen = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let flag = seen.clone();
    let run = move || {
        let tree = tree(options);
        body(&tree);
        if happened(&tree.stats()) {
            flag.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    };
    let shared = Arc::new(run);
    let (random, pct) = (shared.clone(), shared);
    shuttle::check_random(move || random(), schedules / 2);
    shuttle::check_pct(move || pct(), schedules / 2, 3);
    assert!(seen.load(std::sync::atomic::Ordering::Relaxed), "the schedules never came to what they are for");
}

fn spawn(tree: &Tree, work: impl FnOnce(Tree) + Send + 'static) -> thread::JoinHandle<()> {
    let tree = tree.clone();
    thread::spawn(move || work(tree))
}

/// Two writers on one page: neither change is lost, and exactly one of two inserts of a key succeeds.
#[test]
fn install() {
    explore(
        3000,
        8,
        |s| s.retries > 0,
        |tree| {
            let threads: Vec<_> = (0..2u64)
                .map(|t| {
                    spawn(tree, move |tree| {
                        put(&tree, 10 + t, t);
                        let won = tree.insert(&5u64.to_be_bytes(), &value(t)).is_ok();
                        assert_eq!(get(&tree, 10 + t), Some(t));
                        assert!(won || get(&tree, 5) == Some(1 - t));
                    })
                })
                .collect();
            threads.into_iter().for_each(|t| t.join().unwrap());
            let rows = rows(tree, Direction::Forward);
            assert_eq!(rows.iter().map(|r| r.0).collect::<Vec<_>>(), [5, 10, 11]);
        },
    );
}

/// Writers that consolidate against writers that append, and a reader who must never see a value go back.
#[test]
fn consolidation() {
    explore(
        3000,
        1,
        |s| s.consolidations > 1 && s.retries > 0,
        |tree| {
            put(tree, 1, 0);
            put(tree, 2, 0);
            let mut threads: Vec<_> = (1..=2u64)
                .map(|k| {
                    spawn(tree, move |tree| {
                        for n in 1..4 {
                            assert!(put(&tree, k, n));
                        }
                    })
                })
                .collect();
            threads.push(spawn(tree, |tree| {
                let mut last = 0;
                for _ in 0..4 {
                    let now = get(&tree, 1).expect("always there");
                    assert!(now >= last, "went back from {last} to {now}");
                    last = now;
                }
            }));
            threads.into_iter().for_each(|t| t.join().unwrap());
            assert_eq!(rows(tree, Direction::Forward), [(1, 3), (2, 3)]);
        },
    );
}

/// A page splits (and inner nodes with it) under writers and a scan.
#[test]
fn split() {
    explore(
        2000,
        2,
        |s| s.splits > 3 && s.inner_splits > 0,
        |tree| {
            for k in 0..24 {
                put(tree, 4 * k, k);
            }
            let mut threads: Vec<_> = (0..2u64)
                .map(|t| {
                    spawn(tree, move |tree| {
                        for k in 0..7 {
                            let key = 4 * (8 + k) + 1 + t;
                            assert!(!put(&tree, key, k));
                            assert_eq!(get(&tree, key), Some(k));
                        }
                    })
                })
                .collect();
            threads.push(spawn(tree, |tree| {
                let old: Vec<u64> =
                    rows(&tree, Direction::Forward).into_iter().map(|r| r.0).filter(|k| k % 4 == 0).collect();
                assert_eq!(old, (0..24).map(|k| 4 * k).collect::<Vec<_>>());
            }));
            threads.push(spawn(tree, |tree| {
                let old: Vec<u64> = keys_together(&tree, 8).into_iter().filter(|k| k % 4 == 0).collect();
                assert_eq!(old, (0..24).map(|k| 4 * k).collect::<Vec<_>>());
            }));
            threads.into_iter().for_each(|t| t.join().unwrap());
            let keys: Vec<u64> = rows(tree, Direction::Backward).into_iter().map(|r| r.0).rev().collect();
            let mut expected: Vec<u64> = (0..24).map(|k| 4 * k).collect();
            expected.extend((0..7).flat_map(|k| [4 * (8 + k) + 1, 4 * (8 + k) + 2]));
            expected.sort_unstable();
            assert_eq!(keys, expected);
        },
    );
}

/// Two batches insert the same keys, into pages that they split, beside a writer: each key is the one's or the other's, none is
/// lost, and no answer is another key's.
#[test]
fn batches() {
    explore(
        2000,
        2,
        |s| s.splits > 3 && s.retries > 0,
        |tree| {
            for k in 0..12 {
                put(tree, 10 * k, 100);
            }
            let won = Arc::new(std::sync::Mutex::new(Vec::new()));
            let mut threads: Vec<_> = (0..2u64)
                .map(|t| {
                    let won = won.clone();
                    spawn(tree, move |tree| {
                        // Old keys, new ones between them and behind the last, in and out of order.
                        let mut keys: Vec<u64> = (40..60).chain((100..110).rev()).chain(115..125).collect();
                        keys.rotate_left(7 * t as usize);
                        let answers = put_many(&tree, Put::Insert, &keys, t);
                        for (key, answer) in keys.into_iter().zip(answers) {
                            let old = key % 10 == 0 && key < 120;
                            assert!(!old || answer == Err(Error::Exists));
                            if answer == Ok(false) {
                                won.lock().unwrap().push((key, t));
                            }
                        }
                    })
                })
                .collect();
            threads.push(spawn(tree, |tree| {
                for k in [3, 45, 105, 130] {
                    let there = put(&tree, k, 7);
                    assert!(there || k != 50);
                    assert_eq!(get(&tree, k), Some(7), "nobody else replaces it");
                }
            }));
            threads.push(spawn(tree, |tree| {
                let old = |k: &u64| k % 10 == 0 && *k < 120;
                let seen: Vec<u64> = keys_together(&tree, 3).into_iter().filter(old).collect();
                assert_eq!(seen, (0..12).map(|k| 10 * k).collect::<Vec<_>>());
            }));
            threads.into_iter().for_each(|t| t.join().unwrap());
            let mut expected: Vec<(u64, u64)> = (0..12).map(|k| (10 * k, 100)).collect();
            let won = std::mem::take(&mut *won.lock().unwrap());
            expected.extend(won.into_iter().filter(|(key, _)| ![45, 105].contains(key)));
            expected.extend([3, 45, 105, 130].map(|key| (key, 7)));
            expected.sort_unstable();
            assert_eq!(rows(tree, Direction::Forward), expected);
            assert_eq!(expected.len(), 12 + 37 + 2);
        },
    );
}

/// A batch meets pages that merge under it, and those that others have just split.
#[test]
fn a_batch_and_merges() {
    explore(
        2000,
        1,
        |s| s.merges > 0 && s.splits > 3,
        |tree| {
            for k in 0..30 {
                put(tree, 10 * k, k);
            }
            let mut threads = vec![spawn(tree, |tree| {
                for k in 4..26 {
                    assert!(delete(&tree, 10 * k));
                }
            })];
            threads.push(spawn(tree, |tree| {
                let keys: Vec<u64> = (5..25).map(|k| 10 * k + 1).collect();
                assert!(put_many(&tree, Put::Upsert, &keys, 1).iter().all(|answer| *answer == Ok(false)));
                let again = put_many(&tree, Put::Update, &keys, 2);
                assert!(again.iter().all(|answer| *answer == Ok(true)));
            }));
            threads.push(spawn(tree, |tree| {
                let keys: Vec<u64> = (100..110).chain(100..110).map(|k| 2 * k + 1).filter(|k| k % 10 != 1).collect();
                let answers = put_many(&tree, Put::Upsert, &keys, 3);
                // The second time they are there.
                let there: Vec<bool> = answers.into_iter().map(Result::unwrap).collect();
                assert_eq!(there, [vec![false; 8], vec![true; 8]].concat());
            }));
            threads.into_iter().for_each(|t| t.join().unwrap());
            let keys: Vec<u64> = rows(tree, Direction::Forward).into_iter().map(|r| r.0).collect();
            let mut expected: Vec<u64> = (0..4).chain(26..30).map(|k| 10 * k).collect();
            expected.extend((5..25).map(|k| 10 * k + 1));
            expected.extend((100..110).map(|k| 2 * k + 1).filter(|k| k % 10 != 1));
            expected.sort_unstable();
            assert_eq!(keys, expected);
            let numbers: Vec<u64> =
                rows(tree, Direction::Backward).into_iter().filter(|r| r.0 % 10 == 1).map(|r| r.1).collect();
            assert_eq!(numbers, [2; 20]);
        },
    );
}

/// Pages fall empty and merge while others write into them, split them again, read and scan them.
#[test]
fn merge() {
    explore(
        2000,
        1,
        |s| s.merges > 1,
        |tree| {
            for k in 0..40 {
                put(tree, 4 * k, k);
            }
            let deleters = (0..2u64).map(|t| {
                spawn(tree, move |tree| {
                    for k in (6..30).filter(|k| k % 2 == t) {
                        assert!(delete(&tree, 4 * k));
                        assert_eq!(get(&tree, 4 * k), None);
                    }
                })
            });
            let mut threads: Vec<_> = deleters.collect();
            threads.push(spawn(tree, |tree| {
                for k in 10..16 {
                    assert!(!put(&tree, 4 * k + 1, k));
                    assert_eq!(get(&tree, 4 * k + 1), Some(k));
                }
            }));
            threads.push(spawn(tree, |tree| {
                let stay = |k: &u64| k % 4 == 0 && !(24..120).contains(k);
                let seen: Vec<u64> = rows(&tree, Direction::Backward).into_iter().map(|r| r.0).filter(stay).collect();
                assert_eq!(seen, (0..160).rev().filter(stay).collect::<Vec<_>>());
            }));
            threads.push(spawn(tree, |tree| {
                let stay = |k: &u64| k % 4 == 0 && !(24..120).contains(k);
                let seen: Vec<u64> = keys_together(&tree, 8).into_iter().filter(stay).collect();
                assert_eq!(seen, (0..160).filter(stay).collect::<Vec<_>>());
            }));
            threads.into_iter().for_each(|t| t.join().unwrap());
            let keys: Vec<u64> = rows(tree, Direction::Forward).into_iter().map(|r| r.0).collect();
            let mut expected: Vec<u64> = (0..40).filter(|k| !(6..30).contains(k)).map(|k| 4 * k).collect();
            expected.extend((10..16).map(|k| 4 * k + 1));
            expected.sort_unstable();
            assert_eq!(keys, expected);
        },
    );
}

/// A page that is merged away while others write into it and into its neighbour: the smallest case, many schedules.
#[test]
fn merge_of_two() {
    explore_with(
        Options { page_bytes: 512, chain_max: 1, ..OPTIONS },
        6000,
        |s| s.merges > 0,
        |tree| {
            // Two pages of eight rows (descending, since ascending rows leave full pages behind).
            for k in (0..16).rev() {
                put(tree, 10 * k, k);
            }
            let mut threads = vec![spawn(tree, |tree| {
                for k in 9..15 {
                    assert!(delete(&tree, 10 * k));
                }
            })];
            for t in 1..3u64 {
                threads.push(spawn(tree, move |tree| {
                    for k in [12, 2] {
                        assert!(!put(&tree, 10 * k + t, k));
                        assert_eq!(get(&tree, 10 * k + t), Some(k));
                    }
                }));
            }
            threads.into_iter().for_each(|t| t.join().unwrap());
            let keys: Vec<u64> = rows(tree, Direction::Forward).into_iter().map(|r| r.0).collect();
            assert_eq!(keys, [0, 10, 20, 21, 22, 30, 40, 50, 60, 70, 80, 121, 122, 150]);
            let back: Vec<u64> = rows(tree, Direction::Backward).into_iter().map(|r| r.0).collect();
            assert!(back.iter().rev().eq(&keys));
        },
    );
}

/// Readers race with the reuse of what they read.
#[test]
fn reclamation() {
    explore(
        3000,
        1,
        |s| s.consolidations > 4,
        |tree| {
            for k in 0..3 {
                put(tree, k, 0);
            }
            let mut threads: Vec<_> = (0..2u64)
                .map(|t| {
                    spawn(tree, move |tree| {
                        for n in 1..6 {
                            put(&tree, t, n);
                        }
                    })
                })
                .collect();
            for k in 0..2 {
                threads.push(spawn(tree, move |tree| {
                    for _ in 0..4 {
                        assert!(get(&tree, k).expect("always there") < 6);
                        assert_eq!(get(&tree, 2), Some(0));
                    }
                }));
            }
            threads.into_iter().for_each(|t| t.join().unwrap());
            tree.reclaim();
            assert_eq!(tree.stats().held_by_epochs_bytes, 0);
        },
    );
}

/// Pins are taken, cloned and dropped on other threads while the pages under them are replaced.
#[test]
fn pins() {
    explore(
        3000,
        1,
        |s| s.consolidations > 2,
        |tree| {
            for k in 0..6 {
                put(tree, k, 7);
            }
            let account = tree.pin_account();
            let writer = spawn(tree, |tree| {
                for n in 8..12 {
                    put(&tree, n % 3, n);
                    tree.reclaim();
                }
            });
            // Two scans, so that pages carry pins of two owners; one takes pages together.
            let scan = |taken: Arc<overside_bwtree::PinAccount>, together| {
                spawn(tree, move |tree| {
                    let mut dropped = Vec::new();
                    let pages = tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward);
                    for page in pages.on_account(taken).together(together) {
                        let content = |page: &overside_bwtree::PinnedPage| -> Vec<(Vec<u8>, u64)> {
                            page.merged()
                                .map(|r| (r.key.to_vec(), number(&[r.prefix, page.rest_bytes(r.rest)].concat())))
                                .collect()
                        };
                        let before = content(&page);
                        let clone = page.clone();
                        dropped.push(thread::spawn(move || drop(page)));
                        thread::yield_now();
                        assert_eq!(content(&clone), before);
                        dropped.push(thread::spawn(move || drop(overside_memory::Hold::from(clone))));
                    }
                    dropped.into_iter().for_each(|t| t.join().unwrap());
                })
            };
            let scans = [scan(account.clone(), 1), scan(account.clone(), 3)];
            writer.join().unwrap();
            scans.into_iter().for_each(|scan| scan.join().unwrap());
            tree.reclaim();
            let stats = tree.stats();
            assert_eq!((stats.pins, stats.held_by_pins_bytes, stats.held_by_epochs_bytes), (0, 0, 0));
            assert_eq!((account.pins(), account.pinned_bytes(), account.held_bytes()), (0, 0, 0));
        },
    );
}

/// What a writer noted of a change that was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Record {
    key: u64,
    stamp: u64,
    /// The number that it put; none: a delete.
    put: Option<u64>,
    was_there: bool,
}

/// A log as a server would write it: appended to while the writing lasts.
type Log = Arc<std::sync::Mutex<Vec<Record>>>;

fn stamped(stamps: &Arc<Stamps>) -> Tree {
    let arena = Arc::new(HeapArena::with_chunks(1 << 20, 16).unwrap());
    Tree::stamped(arena, OPTIONS, &Yields, stamps.clone()).unwrap()
}

#[derive(Debug)]
struct Yields;

impl Waits for Yields {
    fn now(&self) -> std::time::Duration {
        std::time::Duration::ZERO
    }

    fn pause(&self, _: usize) {
        thread::yield_now();
    }
}

/// One change with its record; what it was told where it was refused.
fn logged(tree: &Tree, stamps: &Stamps, log: &Log, key: u64, put: Option<u64>) {
    let writing = stamps.begin();
    let outcome = match put {
        Some(n) => tree.within(&writing).put(Put::Upsert, &key.to_be_bytes(), &value(n)),
        None => tree.within(&writing).delete(&key.to_be_bytes()),
    };
    // Here a server's thread may be put to sleep: the change is in the tree and not in the log.
    thread::yield_now();
    if let ChangeOutcome::Done { was_there, stamp } = outcome.unwrap() {
        log.lock().unwrap().push(Record { key, stamp, put, was_there });
    }
}

/// A batch with its records, in the batch's order.
fn logged_many(tree: &Tree, stamps: &Stamps, log: &Log, keys: &[u64], n: u64) {
    let writing = stamps.begin();
    let bytes: Vec<[u8; 8]> = keys.iter().map(|key| key.to_be_bytes()).collect();
    let value = value(n);
    let rows: Vec<(&[u8], &[u8])> = bytes.iter().map(|key| (&key[..], &value[..])).collect();
    let (answers, of) = tree.within(&writing).put_many(Put::Upsert, &rows, usize::MAX);
    thread::yield_now();
    let rows = keys.iter().zip(answers.into_iter().zip(of));
    let records =
        rows.map(|(key, (was_there, stamp))| Record { key: *key, stamp, put: Some(n), was_there: was_there.unwrap() });
    log.lock().unwrap().extend(records);
}

/// The log, sorted by stamp, explains each answer, and what is there in the end.
fn explains(log: &Log, first: &[(u64, u64)], tree: &Tree) {
    let mut log = log.lock().unwrap().clone();
    log.sort_by_key(|record| record.stamp);
    let mut there: std::collections::BTreeMap<u64, u64> = first.iter().copied().collect();
    for record in log {
        let before = match record.put {
            Some(n) => there.insert(record.key, n),
            None => there.remove(&record.key),
        };
        assert_eq!(before.is_some(), record.was_there, "{record:?} was told otherwise");
    }
    assert_eq!(rows(tree, Direction::Forward), there.into_iter().collect::<Vec<_>>());
}

/// Explores schedules of a tree with stamps.
fn explore_stamps(schedules: usize, happened: fn(&Stats) -> bool, body: fn(&Tree, &Arc<Stamps>, &Log)) {
    plant();
    let seen = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let flag = seen.clone();
    let run = Arc::new(move || {
        let (stamps, log) = (Stamps::new(1), Log::default());
        let tree = stamped(&stamps);
        body(&tree, &stamps, &log);
        if happened(&tree.stats()) {
            flag.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    let (random, pct) = (run.clone(), run);
    shuttle::check_random(move || random(), schedules / 2);
    shuttle::check_pct(move || pct(), schedules / 2, 3);
    assert!(seen.load(std::sync::atomic::Ordering::Relaxed), "the schedules never came to what they are for");
}

fn spawn_stamped(
    (tree, stamps, log): (&Tree, &Arc<Stamps>, &Log),
    work: impl FnOnce(&Tree, &Stamps, &Log) + Send + 'static,
) -> thread::JoinHandle<()> {
    let (tree, stamps, log) = (tree.clone(), stamps.clone(), log.clone());
    thread::spawn(move || work(&tree, &stamps, &log))
}

/// Two writers of one key, beside rows that make its page full: the log's order is the tree's.
fn one_key(tree: &Tree, stamps: &Arc<Stamps>, log: &Log) {
    let threads = (0..2u64).map(|t| {
        spawn_stamped((tree, stamps, log), move |tree, stamps, log| {
            for n in 0..3 {
                logged(tree, stamps, log, 5, (n + t != 2).then_some(10 * n + t));
            }
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|t| t.join().unwrap());
    explains(log, &[], tree);
}

/// Pages split, fall empty and merge under single changes and batches of the same keys.
fn splits_and_merges(tree: &Tree, stamps: &Arc<Stamps>, log: &Log) {
    let first: Vec<(u64, u64)> = (0..30).map(|k| (10 * k, k)).collect();
    first.iter().for_each(|(k, n)| assert!(!put(tree, *k, *n)));
    let all = (tree, stamps, log);
    let threads = [
        spawn_stamped(all, |tree, stamps, log| (4..26).for_each(|k| logged(tree, stamps, log, 10 * k, None))),
        spawn_stamped(all, |tree, stamps, log| {
            let keys: Vec<u64> = (5..25).map(|k| 10 * k + k % 2).collect();
            logged_many(tree, stamps, log, &keys, 1000);
            (5..25).rev().step_by(3).for_each(|k| logged(tree, stamps, log, 10 * k + k % 2, None));
        }),
        spawn_stamped(all, |tree, stamps, log| {
            for k in [8, 9, 10, 20, 21] {
                logged(tree, stamps, log, 10 * k, Some(2000));
                logged(tree, stamps, log, 10 * k + 1, Some(2001));
            }
        }),
        // Who sees a row sees a leaf that is not older.
        spawn_stamped(all, |tree, _, log| {
            let mut out = Vec::new();
            for k in [5, 8, 9, 21, 15] {
                let (found, newest) = tree.get_stamped(&(10 * k as u64).to_be_bytes(), &mut out);
                let n = if found { number(&out) } else { 0 };
                let of = |record: &&Record| record.key == 10 * k && record.put == Some(n) && found;
                let shown = log.lock().unwrap().iter().find(of).map_or(0, |record| record.stamp);
                assert!(newest >= shown, "newest {newest} of a leaf that shows {shown}");
            }
            let mut pages = tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward);
            let mut shown = 0;
            for page in pages.by_ref() {
                for row in page.merged() {
                    let key = u64::from_be_bytes(row.key.to_vec().try_into().unwrap());
                    let n = number(&[row.prefix, page.rest_bytes(row.rest)].concat());
                    let of = |record: &&Record| record.key == key && record.put == Some(n);
                    let stamp = log.lock().unwrap().iter().find(of).map_or(0, |record| record.stamp);
                    assert!(page.newest() >= stamp, "newest {} of a page that shows {stamp}", page.newest());
                    shown = shown.max(stamp);
                }
            }
            assert!(pages.newest() >= shown);
        }),
    ];
    threads.into_iter().for_each(|t| t.join().unwrap());
    explains(log, &first, tree);
}

/// Writers of two trees that come and go, and one who asks for the floor: all that is below it and ever appended was so before.
fn the_floor(tree: &Tree, stamps: &Arc<Stamps>, log: &Log) {
    let other = stamped(stamps);
    let threads = (0..3u64).map(|t| {
        let own = if t == 2 { &other } else { tree };
        spawn_stamped((own, stamps, log), move |tree, stamps, log| {
            for n in 0..3 {
                logged(tree, stamps, log, n, Some(t));
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    let asks = spawn_stamped((tree, stamps, log), |_, stamps, log| {
        let mut floors = Vec::new();
        for _ in 0..4 {
            let floor = stamps.floor();
            floors.push((floor, log.lock().unwrap().len()));
            thread::yield_now();
        }
        assert!(floors.is_sorted_by_key(|(floor, _)| *floor), "a floor fell: {floors:?}");
        // Until everybody is done.
        while stamps.next() < 10 || stamps.floor() < stamps.next() {
            thread::yield_now();
        }
        let log = log.lock().unwrap();
        for (floor, appended) in floors {
            assert!(log[appended..].iter().all(|record| record.stamp >= floor), "{floor} passed one of {log:?}");
        }
    });
    threads.into_iter().for_each(|t| t.join().unwrap());
    asks.join().unwrap();
    assert_eq!(log.lock().unwrap().len(), 9);
}

// Faults: stamp-before-word
#[test]
fn stamps_of_one_key_ascend() {
    explore_stamps(6000, |s| s.retries > 0 && s.consolidations > 1, one_key);
}

// Faults: stamp-before-word
#[test]
fn stamps_ascend_across_splits_and_merges() {
    explore_stamps(2000, |s| s.merges > 0 && s.splits > 3 && s.retries > 0, splits_and_merges);
}

// Faults: floor-slots-first
#[test]
fn the_floor_passes_no_writer() {
    explore_stamps(6000, |_| true, the_floor);
}

/// Each planted fault of the stamps is found by the tests that name it.
#[cfg(mutants)]
#[test]
#[ignore = "slow: `.ci/shuttle`"]
fn mutants_are_found() {
    let tests = [
        ("stamp-before-word", "stamps_of_one_key_ascend"),
        ("stamp-before-word", "stamps_ascend_across_splits_and_merges"),
        ("floor-slots-first", "the_floor_passes_no_writer"),
    ];
    for (mutant, test) in tests {
        let mut own = std::process::Command::new(std::env::current_exe().unwrap());
        let ended = own.args(["--exact", test]).env("OVERSIDE_MUTANT", mutant).output().unwrap();
        assert!(!ended.status.success(), "{test} holds with {mutant}");
    }
}

/// The fault that the environment asks for.
fn plant() {
    #[cfg(mutants)]
    if let Ok(name) = std::env::var("OVERSIDE_MUTANT") {
        overside_bwtree::mutants::plant(&name);
    }
}
