//! Recorded concurrent histories are linearizable, key by key (Wing and Gong's search with Lowe's memory of what was tried).

use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use overside_bwtree::{Arena, Error, Exhausted, HeapArena, Options, Tree};

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

#[derive(Debug, Clone, Copy)]
struct Event {
    call: Call,
    answer: Answer,
    began: u64,
    ended: u64,
}

/// The value after `call` on `state`, and the answer it must give.
fn model(state: Option<u64>, call: Call) -> (Option<u64>, Answer) {
    match (call, state) {
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

/// Whether some order of the events, in which none comes before one that ended before it began, gives all the answers.
fn linearizable(events: &[Event]) -> bool {
    fn search(events: &[Event], done: u64, state: Option<u64>, tried: &mut HashSet<(u64, Option<u64>)>) -> bool {
        if done.count_ones() as usize == events.len() {
            return true;
        }
        if !tried.insert((done, state)) {
            return false;
        }
        let open = || (0..events.len()).filter(|i| done & (1 << i) == 0);
        let first_end = open().map(|i| events[i].ended).min().unwrap_or(u64::MAX);
        open().any(|i| {
            let (next, answer) = model(state, events[i].call);
            events[i].began < first_end && answer == events[i].answer && search(events, done | 1 << i, next, tried)
        })
    }
    assert!(events.len() <= 64);
    search(events, 0, None, &mut HashSet::new())
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

    fn commit(&self, chunk: usize) -> Result<(), Exhausted> {
        self.arena.commit(chunk)
    }

    unsafe fn decommit(&self, chunk: usize) {
        // SAFETY: [bwtree-arena] as the caller promises.
        unsafe { self.arena.decommit(chunk) }
    }
}

const KEYS: usize = 40;
const THREADS: u64 = 3;
const CALLS: usize = 20;

/// One short burst of all threads on few keys that share few pages with many that come and go.
fn round(seed: u64) -> Vec<Vec<Event>> {
    let arena = Arc::new(Restless { arena: HeapArena::new(64 << 20).unwrap(), asked: AtomicU64::new(seed) });
    let options = Options { page_bytes: 256, prefix_len: 8, chain_max: 2, fan_out: 4, ..Options::default() };
    let tree = Tree::new(arena, options).unwrap();
    let clock = AtomicU64::new(1);
    let start = Barrier::new(THREADS as usize);
    let histories: Vec<Vec<Vec<Event>>> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..THREADS)
            .map(|t| {
                let (tree, clock, start) = (&tree, &clock, &start);
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
                        let call = match random(&mut rng) % 8 {
                            0 => Call::Insert(v),
                            1 | 2 => Call::Upsert(v),
                            3 => Call::Update(v),
                            4 => Call::Delete,
                            5 => {
                                let seen = events[at].last().and_then(|e: &Event| e.answer.1);
                                Call::Swap(seen, (!v.is_multiple_of(3)).then_some(v))
                            }
                            _ => Call::Get,
                        };
                        let key = (at as u64 * 0x0101).to_be_bytes();
                        let began = clock.fetch_add(1, Ordering::SeqCst);
                        let answer = perform(tree, &key, call);
                        let ended = clock.fetch_add(1, Ordering::SeqCst);
                        events[at].push(Event { call, answer, began, ended });
                    }
                    events
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    (0..KEYS).map(|key| histories.iter().flat_map(|h| h[key].iter().copied()).collect()).collect()
}

#[test]
fn histories_are_linearizable() {
    let (mut overlapping, mut seed) = (0, 0);
    // More rounds where one processor runs all threads, and calls rarely meet.
    while seed < 150 || overlapping <= 100 {
        seed += 1;
        assert!(seed < 15_000, "only {overlapping} calls overlapped: the histories prove nothing");
        for events in round(seed) {
            let events: Vec<Event> = events.into_iter().take(64).collect();
            overlapping +=
                events.iter().filter(|a| events.iter().any(|b| a.began < b.began && b.began < a.ended)).count();
            assert!(linearizable(&events), "seed {seed}: {events:#?}");
        }
    }
}

#[test]
fn the_checker_refuses_what_cannot_be() {
    let event = |call, answer, began, ended| Event { call, answer, began, ended };
    let put = event(Call::Upsert(1), (false, None), 1, 2);
    assert!(linearizable(&[put, event(Call::Get, (true, Some(1)), 3, 4)]));
    // A read that began after the put ended must see it.
    assert!(!linearizable(&[put, event(Call::Get, (false, None), 3, 4)]));
    // One that overlaps it may or may not.
    let overlapping = event(Call::Upsert(1), (false, None), 1, 9);
    assert!(linearizable(&[overlapping, event(Call::Get, (false, None), 3, 4)]));
    // New, then old again: no order explains it.
    let (new, old) = (event(Call::Get, (true, Some(1)), 3, 4), event(Call::Get, (false, None), 5, 6));
    assert!(!linearizable(&[overlapping, new, old]));
    // Two inserts of one key cannot both succeed.
    assert!(!linearizable(&[event(Call::Insert(1), (true, None), 1, 4), event(Call::Insert(2), (true, None), 2, 3)]));
}
