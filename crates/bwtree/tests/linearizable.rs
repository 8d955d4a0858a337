//! Recorded concurrent histories are linearizable, key by key.

use std::ops::Bound;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use overside_bwtree::{Arena, Error, Exhausted, HeapArena, Options, Put, Tree, Walk};
use overside_corpus::{self as corpus, Model};

mod peer;

#[derive(Debug, Clone, Copy)]
enum Call {
    Insert(u64),
    Upsert(u64),
    Update(u64),
    Delete,
    Swap(Option<u64>, Option<u64>),
    Get,
}

/// What a call answered: whether it took effect (or found something), and what it read.
type Answer = (bool, Option<u64>);

type Event = corpus::Event<Call, Answer>;

/// The value of one key.
struct Key;

impl Model for Key {
    type State = Option<u64>;
    type Call = Call;
    type Answer = Answer;

    fn apply(state: &Option<u64>, call: &Call) -> (Option<u64>, Answer) {
        let state = *state;
        match (*call, state) {
            (Call::Insert(v), None) => (Some(v), (true, None)),
            (Call::Insert(_), Some(_)) => (state, (false, None)),
            (Call::Upsert(v), _) => (Some(v), (state.is_some(), None)),
            (Call::Update(v), Some(_)) => (Some(v), (true, None)),
            (Call::Delete, Some(_)) => (None, (true, None)),
            (Call::Update(_) | Call::Delete, None) => (None, (false, None)),
            (Call::Swap(expected, new), _) if expected == state => (new, (true, None)),
            (Call::Swap(..), _) => (state, (false, None)),
            (Call::Get, _) => (state, (state.is_some(), state)),
        }
    }
}

fn linearizable(events: &[Event]) -> bool {
    corpus::linearizable::<Key>(None, events)
}

fn perform(tree: &Tree, key: &[u8], call: Call) -> Answer {
    let bytes = |v: u64| v.to_le_bytes();
    match call {
        Call::Insert(v) => match tree.insert(key, &bytes(v)) {
            Ok(()) => (true, None),
            Err(error) => {
                assert_eq!(error, Error::Exists);
                (false, None)
            }
        },
        Call::Upsert(v) => (tree.upsert(key, &bytes(v)).unwrap(), None),
        Call::Update(v) => (tree.update(key, &bytes(v)).unwrap(), None),
        Call::Delete => (tree.delete(key).unwrap(), None),
        Call::Swap(expected, new) => {
            let (expected, new) = (expected.map(bytes), new.map(bytes));
            let swapped = tree.compare_and_swap(key, expected.as_ref().map(|v| &v[..]), new.as_ref().map(|v| &v[..]));
            (swapped.unwrap(), None)
        }
        Call::Get => {
            let mut out = Vec::new();
            let there = tree.get(key, &mut out).unwrap();
            (there, there.then(|| u64::from_le_bytes(out.try_into().unwrap())))
        }
    }
}

/// The keys of one call together, each of them once or twice; a call's value says which one it was.
fn perform_together(tree: &Tree, put: Put, calls: &[(usize, Call)]) -> Vec<Answer> {
    let keys: Vec<[u8; 8]> = calls.iter().map(|(at, _)| key(*at)).collect();
    let value = |call: &Call| match *call {
        Call::Insert(v) | Call::Upsert(v) | Call::Update(v) => v.to_le_bytes(),
        _ => unreachable!("no row has it"),
    };
    let values: Vec<[u8; 8]> = calls.iter().map(|(_, call)| value(call)).collect();
    let rows: Vec<(&[u8], &[u8])> = keys.iter().zip(&values).map(|(k, v)| (&k[..], &v[..])).collect();
    let answers = tree.put_many(put, &rows, usize::MAX).into_iter().map(|answer| match (put, answer) {
        (Put::Insert, Err(error)) => {
            assert_eq!(error, Error::Exists);
            (false, None)
        }
        (Put::Insert, answer) => (!answer.unwrap(), None),
        (_, answer) => (answer.unwrap(), None),
    });
    answers.collect()
}

fn key(at: usize) -> [u8; 8] {
    (at as u64 * 0x0101).to_be_bytes()
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// An arena whose users lose their processor now and then, in the midst of a call: where pieces are given back, which each
/// consolidation, each split and each lost race does. A machine that runs one thread at a time would hardly ever stop one there.
struct Restless {
    arena: HeapArena,
    asked: AtomicU64,
}

// SAFETY: [bwtree-arena] all is the heap arena's own.
unsafe impl Arena for Restless {
    fn base(&self) -> NonNull<u8> {
        self.arena.base()
    }

    fn chunk_bytes(&self) -> usize {
        if self.asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(128) {
            std::thread::yield_now();
        }
        self.arena.chunk_bytes()
    }

    fn chunks_max(&self) -> usize {
        self.arena.chunks_max()
    }

    fn commit(&self, chunk: usize, part: std::ops::Range<usize>) -> Result<(), Exhausted> {
        self.arena.commit(chunk, part)
    }

    unsafe fn decommit(&self, chunk: usize) {
        // SAFETY: [bwtree-arena] as the caller promises.
        unsafe { self.arena.decommit(chunk) }
    }
}

const KEYS: usize = 40;
const THREADS: u64 = 3;
const CALLS: usize = 20;
/// One call of so many is a batch.
const BATCHES: u64 = 30;

/// Puts rows all over the keys, some of them twice. Each is an event of its key that took as long as the whole call.
fn batch(tree: &Tree, clock: &AtomicU64, rng: &mut u64, v: u64, events: &mut [Vec<Event>]) {
    let put = [Put::Insert, Put::Upsert, Put::Update][random(rng) as usize % 3];
    let mut calls = Vec::new();
    let mut rows = [0; KEYS];
    for n in 0..2 + random(rng) % 40 {
        let (at, v) = (random(rng) as usize % KEYS, v << 8 | n);
        if rows[at] < 2 && events[at].len() + 2 <= CALLS {
            rows[at] += 1;
            let call = match put {
                Put::Insert => Call::Insert(v),
                Put::Upsert => Call::Upsert(v),
                Put::Update => Call::Update(v),
            };
            calls.push((at, call));
        }
    }
    let began = clock.fetch_add(1, Ordering::SeqCst);
    let answers = perform_together(tree, put, &calls);
    let ended = clock.fetch_add(1, Ordering::SeqCst);
    for (row, ((at, call), answer)) in calls.iter().zip(answers).enumerate() {
        let second = calls[..row].iter().any(|other| other.0 == *at);
        let after = second.then(|| events[*at].len() - 1);
        events[*at].push(Event { call: *call, answer: Some(answer), began, ended, after });
    }
}

const OPTIONS: Options =
    Options { page_bytes: 256, prefix_len: 8, chain_max: 2, fan_out: 4, value_max: 1 << 18, key_max: 2 << 10 };

/// What a peer finds that walks the tree to a key, and never asks it.
fn walked(tree: &Tree, mapper: &Arc<peer::Mapper>, key: &[u8]) -> Answer {
    let mut walk = Walk::new(tree.opening().unwrap(), Bound::Included(key), Bound::Included(key));
    let mut peer = peer::Peer::new(tree, mapper);
    peer.yields = 17;
    let mut found = None;
    while peer::advance(&mut walk, &mut peer) {
        for (_, value) in peer::rows(&walk.page()) {
            assert_eq!(found.replace(u64::from_le_bytes(value.try_into().unwrap())), None);
        }
    }
    (found.is_some(), found)
}

/// A round in a tree of its own.
fn round(seed: u64) -> Vec<Vec<Event>> {
    let arena = Arc::new(Restless { arena: HeapArena::new(64 << 20).unwrap(), asked: AtomicU64::new(seed) });
    burst(seed, &Tree::new(arena, OPTIONS).unwrap(), None)
}

/// One short burst of all threads on few keys that share few pages with many that come and go. Where the tree is open, peers get.
fn burst(seed: u64, tree: &Tree, mapper: Option<&Arc<peer::Mapper>>) -> Vec<Vec<Event>> {
    let clock = AtomicU64::new(1);
    let start = Barrier::new(THREADS as usize);
    let histories: Vec<Vec<Vec<Event>>> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..THREADS)
            .map(|t| {
                let (clock, start) = (&clock, &start);
                s.spawn(move || {
                    let mut rng = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (t + 1) << 32 | 1;
                    let mut events = vec![Vec::new(); KEYS];
                    start.wait();
                    for n in 0..CALLS * KEYS {
                        let at = random(&mut rng) as usize % KEYS;
                        if events[at].len() == CALLS {
                            continue;
                        }
                        let v = (n as u64) << 8 | t;
                        if random(&mut rng).is_multiple_of(BATCHES) {
                            batch(tree, clock, &mut rng, v, &mut events);
                            continue;
                        }
                        let call = match random(&mut rng) % 8 {
                            0 => Call::Insert(v),
                            1 | 2 => Call::Upsert(v),
                            3 => Call::Update(v),
                            4 => Call::Delete,
                            5 => {
                                let seen = events[at].last().and_then(|e: &Event| e.answer?.1);
                                Call::Swap(seen, (!v.is_multiple_of(3)).then_some(v))
                            }
                            _ => Call::Get,
                        };
                        let began = clock.fetch_add(1, Ordering::SeqCst);
                        let answer = match (call, mapper) {
                            (Call::Get, Some(mapper)) => walked(tree, mapper, &key(at)),
                            _ => perform(tree, &key(at), call),
                        };
                        let ended = clock.fetch_add(1, Ordering::SeqCst);
                        events[at].push(Event { call, answer: Some(answer), began, ended, after: None });
                    }
                    events
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let together = |key: usize| {
        let mut all: Vec<Event> = Vec::new();
        for history in &histories {
            let before = all.len();
            all.extend(history[key].iter().map(|e: &Event| Event { after: e.after.map(|at| at + before), ..*e }));
        }
        all
    };
    (0..KEYS).map(together).collect()
}

/// Checks histories until enough calls have met in them.
fn check(round: impl Fn(u64) -> Vec<Vec<Event>>) {
    let (mut overlapping, mut seed) = (0, 0);
    // More rounds where one processor runs all threads, and calls rarely meet.
    while seed < 150 || overlapping <= 100 {
        seed += 1;
        assert!(seed < 15_000, "only {overlapping} calls overlapped: the histories prove nothing");
        for events in round(seed) {
            overlapping +=
                events.iter().filter(|a| events.iter().any(|b| a.began < b.began && b.began < a.ended)).count();
            assert!(linearizable(&events), "seed {seed}: {events:#?}");
        }
    }
}

#[test]
fn histories_are_linearizable() {
    check(round);
}

#[test]
fn histories_whose_reads_are_one_sided_are_linearizable() {
    check(|seed| {
        let (tree, mapper) = peer::open(OPTIONS);
        burst(seed, &tree, Some(&mapper))
    });
}
