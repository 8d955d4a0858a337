//! What a peer sees that walks an open tree by reading its memory.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

use overside_bwtree::{Direction, Options, Reads, Tree, Walk, WalkError};

mod peer;

use peer::{Peer, advance, open, rows};

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

const OPTIONS: Options =
    Options { page_bytes: 1024, prefix_len: 4, chain_max: 8, fan_out: 16, value_max: 400_000, key_max: 200 };

fn walked(tree: &Tree, peer: &mut Peer<'_>, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Rows {
    let mut walk = Walk::new(tree.opening().unwrap(), from, to);
    let mut all = Vec::new();
    while advance(&mut walk, peer) {
        all.extend(rows(&walk.page()));
    }
    all
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Keys of several lengths, values that lie in pages and elsewhere, rows that came, changed and went.
fn filled(seed: u64) -> (Tree, std::sync::Arc<peer::Mapper>) {
    let (tree, mapper) = open(OPTIONS);
    let mut rng = seed * 2 + 1;
    for n in 0..4000u64 {
        let key = format!("{:05}{}", random(&mut rng) % 3000, "x".repeat((n % 7) as usize * usize::from(seed != 1)));
        let len = match random(&mut rng) % 50 {
            0 => 300 + random(&mut rng) as usize % 3000,
            _ => 4 + random(&mut rng) as usize % 30,
        };
        match random(&mut rng) % 4 {
            0 => _ = tree.delete(key.as_bytes()).unwrap(),
            _ => _ = tree.upsert(key.as_bytes(), &vec![n as u8; len]).unwrap(),
        }
    }
    (tree, mapper)
}

#[test]
fn a_walk_sees_what_a_scan_sees() {
    for seed in 1..6 {
        let (tree, mapper) = filled(seed);
        let mut peer = Peer::new(&tree, &mapper);
        let mut rng = seed * 77 + 1;
        let mut bounds = vec![(Bound::Unbounded, Bound::Unbounded)];
        for _ in 0..40 {
            let mut edge = || {
                let key = format!("{:05}", random(&mut rng) % 3100).into_bytes();
                match random(&mut rng) % 3 {
                    0 => Bound::Unbounded,
                    1 => Bound::Included(key),
                    _ => Bound::Excluded(key),
                }
            };
            bounds.push((edge(), edge()));
        }
        for (from, to) in bounds {
            let (from, to) = (from.as_ref().map(|k: &Vec<u8>| &k[..]), to.as_ref().map(|k: &Vec<u8>| &k[..]));
            let scanned: Rows = tree.range(from, to, Direction::Forward).collect();
            assert_eq!(walked(&tree, &mut peer, from, to), scanned, "{seed} {from:?} {to:?}");
        }
        assert!(tree.stats().splits > 50, "{:?}", tree.stats());
    }
}

/// Values of which a page names more than are loaded at a time.
#[test]
fn long_values_come_part_by_part() {
    let (tree, mapper) = open(OPTIONS);
    for n in 0..24u32 {
        tree.insert(&n.to_be_bytes(), &vec![n as u8; 390_000 + n as usize]).unwrap();
    }
    let mut walk = Walk::new(tree.opening().unwrap(), Bound::Unbounded, Bound::Unbounded);
    let (mut all, mut parts) = (Vec::new(), 0);
    let mut peer = Peer::new(&tree, &mapper);
    while advance(&mut walk, &mut peer) {
        let rows = rows(&walk.page());
        assert!(rows.iter().map(|(_, value)| value.len()).sum::<usize>() <= 4 << 20);
        parts += 1;
        all.extend(rows);
    }
    let scanned: Rows = tree.range(Bound::Unbounded, Bound::Unbounded, Direction::Forward).collect();
    assert!(all == scanned && parts > 2, "{parts} parts");
}

#[test]
fn only_an_open_tree_says_where_its_pages_are() {
    let arena = std::sync::Arc::new(overside_bwtree::HeapArena::new(4 << 20).unwrap());
    assert_eq!(Tree::new(arena, OPTIONS).unwrap().opening(), None);
}

/// Rows that are there all the while come once each, in order, whatever comes and goes beside them; and nothing is given back.
#[test]
fn beside_writers_what_stays_is_seen_once() {
    let (tree, mapper) = open(Options { page_bytes: 512, chain_max: 3, ..OPTIONS });
    let stays = |n: u64| n.is_multiple_of(5);
    let key = |n: u64| n.to_be_bytes();
    const ROWS: u64 = 6000;
    (0..ROWS).filter(|n| stays(*n)).for_each(|n| tree.insert(&key(n), &n.to_le_bytes()).unwrap());
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        for t in 0..2u64 {
            let (tree, stop) = (&tree, &stop);
            s.spawn(move || {
                let mut rng = t * 1000 + 7;
                // Fills a stretch and empties it again, so that pages split and merge all the while.
                while !stop.load(Ordering::Relaxed) {
                    let from = random(&mut rng) % (ROWS - 400);
                    for n in (from..from + 400).filter(|n| !stays(*n)) {
                        tree.upsert(&key(n), &n.to_le_bytes()).unwrap();
                    }
                    for n in (from..from + 400).filter(|n| !stays(*n)) {
                        tree.delete(&key(n)).unwrap();
                    }
                    for n in (from..from + 400).filter(|n| stays(*n)) {
                        tree.update(&key(n), &n.to_le_bytes()).unwrap();
                    }
                }
            });
        }
        let _stop = scopeguard::guard((), |()| stop.store(true, Ordering::Relaxed));
        let mut peer = Peer::new(&tree, &mapper);
        peer.yields = 31;
        let (mut again, mut walks) = (0, 0);
        while walks < 60 || again < 200 {
            let mut walk = Walk::new(tree.opening().unwrap(), Bound::Unbounded, Bound::Unbounded);
            let (mut last, mut stayed) = (None, 0);
            while advance(&mut walk, &mut peer) {
                for (key, value) in rows(&walk.page()) {
                    let n = u64::from_be_bytes(key.try_into().unwrap());
                    assert_eq!(value, n.to_le_bytes());
                    assert!(last.replace(n) < Some(n), "{n} behind {last:?}");
                    stayed += u64::from(stays(n));
                }
            }
            assert_eq!(stayed, ROWS.div_ceil(5));
            (again, walks) = (again + walk.again(), walks + 1);
            assert!(walks < 20_000, "pages changed only {again} times: this proves nothing");
        }
    });
    assert!(tree.stats().merges > 50 && tree.stats().splits > 50, "{:?}", tree.stats());
}

/// An arena as it was at some time, with bytes that a hostile server may have written.
struct Image {
    bytes: Vec<u8>,
    reads: u64,
}

impl Reads for Image {
    type Error = ();

    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<usize, ()> {
        self.reads += 1;
        let from = usize::try_from(at).ok().filter(|at| *at < self.bytes.len()).ok_or(())?;
        let len = out.len().min(self.bytes.len() - from);
        out[..len].copy_from_slice(&self.bytes[from..from + len]);
        Ok(len)
    }

    fn again(&mut self, nth: u64) -> bool {
        nth < 20
    }
}

/// Whatever lies in the arena, a walk ends: with rows in order, or with an error.
#[test]
fn a_hostile_arena_gives_an_error() {
    let (mut errors, mut ends) = (BTreeMap::new(), 0);
    for seed in 1..4 {
        let (tree, mapper) = filled(seed);
        let mut whole = Vec::new();
        for (at, len, _) in tree.segments() {
            whole.resize((at + len) as usize, 0);
            Peer::new(&tree, &mapper).read(at, &mut whole[at as usize..]).unwrap();
        }
        let used = whole.iter().rposition(|byte| *byte != 0).unwrap();
        let mut rng = seed;
        for _ in 0..600 {
            let mut image = Image { bytes: whole.clone(), reads: 0 };
            for _ in 0..1 + random(&mut rng) % 60 {
                let at = random(&mut rng) as usize % used;
                match random(&mut rng) % 3 {
                    0 => image.bytes[at] ^= 1 << (random(&mut rng) % 8),
                    1 => image.bytes[at] = random(&mut rng) as u8,
                    // As a side link, a word or a length that names something that is there.
                    _ => {
                        let (from, len) = ((random(&mut rng) as usize % used) & !7, 8.min(whole.len() - at));
                        image.bytes[at..at + len].copy_from_slice(&whole[from..from + len]);
                    }
                }
            }
            let mut walk = Walk::new(tree.opening().unwrap(), Bound::Unbounded, Bound::Unbounded);
            let mut last: Option<Vec<u8>> = None;
            loop {
                match walk.advance(&mut image) {
                    Ok(true) => {
                        for (key, _) in rows(&walk.page()) {
                            assert!(last.as_ref() < Some(&key));
                            last = Some(key);
                        }
                    }
                    Ok(false) => {
                        ends += 1;
                        break;
                    }
                    Err(error) => {
                        let text = match error {
                            WalkError::Malformed(text) => text,
                            WalkError::Read(()) => "outside",
                            WalkError::Unopened(_) => "unopened",
                            WalkError::Busy => "busy",
                        };
                        *errors.entry(text).or_insert(0) += 1;
                        break;
                    }
                }
                assert!(image.reads < 1_000_000);
            }
        }
    }
    assert!(ends > 20 && errors.len() > 8, "{ends} {errors:?}");
}
