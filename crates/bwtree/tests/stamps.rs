//! Stamps: every change and every refusal says one, and no page forgets its newest.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use overside_bwtree::{
    ChangeOutcome, Changes, Direction, Error, HeapArena, Options, PinnedPage, Put, Stamps, SystemWaits, Tree, Writing,
};

fn stamped(options: Options, stamps: &Arc<Stamps>) -> Tree {
    Tree::stamped(Arc::new(HeapArena::new(64 << 20).unwrap()), options, &SystemWaits, stamps.clone()).unwrap()
}

fn tree(stamps: &Arc<Stamps>) -> Tree {
    stamped(Options { page_bytes: 256, prefix_len: 8, chain_max: 2, fan_out: 4, ..Options::default() }, stamps)
}

fn done(outcome: Result<ChangeOutcome, Error>) -> (bool, u64) {
    match outcome.unwrap() {
        ChangeOutcome::Done { was_there, stamp } => (was_there, stamp),
        refused => panic!("{refused:?}"),
    }
}

fn refused(outcome: Result<ChangeOutcome, Error>) -> (bool, u64) {
    match outcome.unwrap() {
        ChangeOutcome::Refused { is_there, stamp } => (is_there, stamp),
        done => panic!("{done:?}"),
    }
}

#[test]
fn every_answer_bears_a_stamp() {
    let stamps = Stamps::new(10);
    let tree = tree(&stamps);
    let mut out = Vec::new();
    assert_eq!(tree.get_stamped(b"a", &mut out), (false, 0));
    let writing = stamps.begin();
    let changes = tree.within(&writing);
    assert_eq!(refused(changes.put(Put::Update, b"a", b"12345678")), (false, 0));
    assert_eq!(done(changes.put(Put::Insert, b"a", b"12345678")), (false, 10));
    assert_eq!(refused(changes.put(Put::Insert, b"a", b"12345678")), (true, 10));
    assert_eq!(done(changes.put(Put::Upsert, b"b", b"12345678")), (false, 11));
    assert_eq!(refused(changes.delete(b"c")), (false, 11), "what is not there is not there as of all changes so far");
    assert_eq!(done(changes.compare_and_swap(b"c", None, None)), (false, 11), "nothing was changed");
    assert_eq!(refused(changes.compare_and_swap(b"b", None, Some(b"12345678"))), (true, 11));
    assert_eq!(done(changes.compare_and_swap(b"b", Some(b"12345678"), None)), (true, 12));
    assert_eq!(done(changes.delete_now(b"a")), (true, 13));
    assert_eq!(tree.get_stamped(b"a", &mut out), (false, 13));
    assert_eq!(stamps.floor(), 10, "nothing of it was appended");
    drop(writing);
    assert_eq!((stamps.floor(), stamps.next()), (14, 14));
    // Who does not ask for stamps draws them all the same, and holds no floor back.
    tree.insert(b"a", b"12345678").unwrap();
    assert_eq!((tree.get_stamped(b"a", &mut out), stamps.floor()), ((true, 14), 15));
}

#[test]
fn rows_of_one_page_share_a_stamp() {
    let stamps = Stamps::new(1);
    let tree = tree(&stamps);
    let writing = stamps.begin();
    let changes = tree.within(&writing);
    let rows: Vec<(&[u8], &[u8])> = [b"d", b"b", b"b", b"a", b"c"].map(|key| (&key[..], &b"12345678"[..])).to_vec();
    let (answers, of) = changes.put_many(Put::Upsert, &rows, usize::MAX);
    assert_eq!(answers, [Ok(false), Ok(false), Ok(true), Ok(false), Ok(false)]);
    assert_eq!(of, [1; 5]);
    // Refused by the leaf, refused by a row of the same batch, refused for its length, and alone.
    let long = [0; 9000];
    let rows: Vec<(&[u8], &[u8])> =
        vec![(b"a", b"12345678"), (b"x", b"12345678"), (b"x", b"12345678"), (&long, b"12345678"), (b"y", b"12345678")];
    let (answers, of) = changes.put_many(Put::Insert, &rows, usize::MAX);
    assert_eq!(answers[..3], [Err(Error::Exists), Ok(false), Err(Error::Exists)]);
    assert!(matches!(answers[3], Err(Error::KeyTooLong { .. })) && answers[4] == Ok(false));
    assert_eq!(of[3], 0);
    assert!(of[1] > 1 && of[2] >= of[1] && of[4] > 1, "{of:?}");
    let (answers, of) = changes.put_many(Put::Insert, &rows[..2], usize::MAX);
    assert_eq!((answers, of), (vec![Err(Error::Exists); 2], vec![stamps.next() - 1; 2]));
}

#[test]
#[should_panic(expected = "other stamps")]
fn a_writing_of_other_stamps_is_refused() {
    let (stamps, others) = (Stamps::new(1), Stamps::new(1));
    let tree = tree(&stamps);
    let _ = tree.within(&others.begin());
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

fn changed(changes: Changes<'_>, rng: &mut u64, k: u64) -> Option<u64> {
    let long = vec![7; 8 + random(rng) as usize % 90];
    let outcome = match random(rng) % 5 {
        0 => changes.put(Put::Insert, &key(k), &long),
        1 => changes.put(Put::Upsert, &key(k), &long),
        _ => changes.delete(&key(k)),
    };
    match outcome.unwrap() {
        ChangeOutcome::Done { stamp, .. } => Some(stamp),
        ChangeOutcome::Refused { .. } => None,
    }
}

/// Thousands of changes, so that pages fill, split, fall empty and merge: no leaf's newest stamp is below that of a change to
/// a key between its fences, deleted or not, nor is that of a scan which passes over what was emptied.
#[test]
fn no_page_forgets_its_newest() {
    let stamps = Stamps::new(1);
    let tree = tree(&stamps);
    let mut rng = 0x9E37_79B9_7F4A_7C15;
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    for round in 0..60 {
        let writing = stamps.begin();
        let changes = tree.within(&writing);
        let from = random(&mut rng) % 400;
        if round % 3 == 0 {
            let keys: Vec<[u8; 8]> = (from..from + 120).map(key).collect();
            let rows: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &[1; 20][..])).collect();
            let (answers, of) = changes.put_many(Put::Upsert, &rows, usize::MAX);
            assert!(answers.iter().all(Result::is_ok));
            (from..).zip(of).for_each(|(k, stamp)| assert!(last.insert(k, stamp).is_none_or(|old| old < stamp)));
        }
        for _ in 0..200 {
            let k = from + random(&mut rng) % 150;
            if let Some(stamp) = changed(changes, &mut rng, k) {
                assert!(last.insert(k, stamp).is_none_or(|old| old < stamp), "stamps of one key ascend");
            }
        }
        let newest = |from: &[u8], to: Option<&[u8]>| {
            let inside = |k: &u64| key(*k)[..] >= *from && to.is_none_or(|to| key(*k)[..] < *to);
            last.iter().filter(|(k, _)| inside(k)).map(|(_, stamp)| *stamp).max().unwrap_or(0)
        };
        for k in (0..600).step_by(7) {
            let (_, seen) = tree.get_stamped(&key(k), &mut Vec::new());
            assert!(seen >= last.get(&k).copied().unwrap_or(0), "round {round}, key {k}");
        }
        let mut pages = tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward).together(round % 4 + 1);
        let mut covered = Vec::new();
        for page in pages.by_ref() {
            assert!(page.newest() >= newest(&covered, page.high_fence()), "round {round}, {:?}", page.low_fence());
            covered = page.high_fence().unwrap_or_default().to_vec();
        }
        assert!(pages.newest() >= newest(&[], None), "round {round}");
        let mut reader = tree.reader();
        reader.seek(Bound::Unbounded, Bound::Unbounded, usize::MAX);
        while reader.next_rows().is_some() {}
        assert!(reader.newest() >= newest(&[], None), "round {round}");
    }
    let stats = tree.stats();
    assert!(stats.splits > 20 && stats.merges > 20 && stats.consolidations > 100, "{stats:?}");
}

/// Threads of their own trees and of one shared tree, in one order of stamps; a floor passes nothing that was not appended.
#[test]
fn the_log_is_complete_below_the_floor() {
    const WRITERS: u64 = 3;
    const CHANGES: u64 = 3000;
    let stamps = Stamps::new(1);
    let trees = [tree(&stamps), tree(&stamps)];
    let log = Mutex::new(Vec::new());
    let floors = Mutex::new(Vec::new());
    let left = std::sync::atomic::AtomicU64::new(WRITERS);
    std::thread::scope(|s| {
        for seed in 1..=WRITERS {
            let (stamps, trees, log, left) = (&stamps, &trees, &log, &left);
            s.spawn(move || {
                let mut rng = seed << 40 | 77;
                for n in 0..CHANGES {
                    let writing: Writing<'_> = stamps.begin();
                    let at = random(&mut rng) as usize % 2;
                    let k = random(&mut rng) % 60;
                    let puts = !random(&mut rng).is_multiple_of(3);
                    let outcome = match puts {
                        false => trees[at].within(&writing).delete(&key(k)),
                        true => trees[at].within(&writing).put(Put::Upsert, &key(k), &(n << 8 | seed).to_le_bytes()),
                    };
                    if n % 16 == 0 {
                        std::thread::yield_now();
                    }
                    if let ChangeOutcome::Done { was_there, stamp } = outcome.unwrap() {
                        log.lock().unwrap().push((stamp, at, k, puts, was_there));
                    }
                    drop(writing);
                }
                left.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
            });
        }
        while left.load(std::sync::atomic::Ordering::SeqCst) > 0 {
            let floor = stamps.floor();
            floors.lock().unwrap().push((floor, log.lock().unwrap().len()));
            std::thread::yield_now();
        }
    });
    let log = log.into_inner().unwrap();
    let floors = floors.into_inner().unwrap();
    assert!(floors.is_sorted_by_key(|(floor, _)| *floor));
    for (floor, appended) in floors {
        assert!(log[appended..].iter().all(|(stamp, ..)| *stamp >= floor), "the floor {floor} passed a record");
    }
    assert_eq!(stamps.floor(), stamps.next());
    // The order of the stamps explains every answer, and what is there in the end.
    let mut sorted = log;
    sorted.sort_unstable();
    assert!(sorted.windows(2).all(|pair| pair[0].0 < pair[1].0), "each change has a stamp of its own");
    let mut there: BTreeMap<(usize, u64), (bool, u64)> = BTreeMap::new();
    for (stamp, at, k, puts, was_there) in sorted {
        let before = there.insert((at, k), (puts, stamp)).is_some_and(|(is_there, _)| is_there);
        assert_eq!(before, was_there, "stamp {stamp}");
    }
    for ((at, k), (is_there, stamp)) in there {
        let (found, newest) = trees[at].get_stamped(&key(k), &mut Vec::new());
        assert!(found == is_there && newest >= stamp);
    }
}

/// A page's newest stamp is fixed when it is pinned.
#[test]
fn a_pinned_page_keeps_its_newest() {
    let stamps = Stamps::new(1);
    let tree = tree(&stamps);
    tree.insert(&key(1), &key(1)).unwrap();
    let page: PinnedPage = tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Backward).next().unwrap();
    tree.insert(&key(2), &key(2)).unwrap();
    assert_eq!((page.newest(), stamps.next()), (1, 3));
}

/// A scan that finds nothing shows who emptied what it passed over, wherever that lies.
#[test]
fn the_end_of_a_scan_shows_who_emptied_the_last_pages() {
    let stamps = Stamps::new(1);
    let tree = tree(&stamps);
    (0..2000).for_each(|k| tree.insert(&key(k), &key(k)).unwrap());
    for keys in [1000..2000, 0..1000] {
        let mut deleted = 0;
        for k in keys {
            deleted = done(tree.within(&stamps.begin()).delete(&key(k))).1;
        }
        for (direction, most) in [(Direction::Forward, 1), (Direction::Forward, 8), (Direction::Backward, 1)] {
            let mut pages = tree.pages(Bound::Unbounded, Bound::Unbounded, direction).together(most);
            pages.by_ref().for_each(drop);
            assert!(pages.newest() >= deleted, "{direction:?}: {} is older than {deleted}", pages.newest());
        }
    }
}

/// In a full arena deletes make their pages in a reserve, and others move them out again.
#[test]
fn pages_that_move_keep_their_newest() {
    let stamps = Stamps::new(1);
    let options = Options { page_bytes: 4096, prefix_len: 8, value_max: 1000, ..Options::default() };
    let arena = Arc::new(HeapArena::with_chunks(1 << 20, 2).unwrap());
    let tree = Tree::stamped(arena, options, &SystemWaits, stamps.clone()).unwrap();
    let (mut there, mut refused, mut rng) = (Vec::new(), 0, 99);
    while refused < 10_000 {
        let k = random(&mut rng);
        match tree.insert(&key(k), &[1; 80]) {
            Ok(()) => there.push(k),
            Err(_) => refused += 1,
        }
    }
    let mut last = BTreeMap::new();
    for (n, k) in there.into_iter().enumerate() {
        let writing = stamps.begin();
        last.insert(k, done(tree.within(&writing).delete(&key(k))).1);
        drop(writing);
        if n % 40 == 0 {
            for (k, stamp) in last.iter().step_by(1 + n / 400) {
                assert!(tree.get_stamped(&key(*k), &mut Vec::new()).1 >= *stamp, "key {k}");
            }
        }
    }
}
