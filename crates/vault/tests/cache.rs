//! A cache over a device whose requests end when the test says so, held against plain memory.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use overside_memory::{Buffer, Bytes, Segment};
use overside_vault::cache::{Cache, CacheOptions, PolicyKind};
use overside_volume::{Completion, Device, DeviceError, Geometry, Hint, MemoryDevice, Request, Work};
use proptest::prelude::*;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 16;

/// Memory, carried out when a request arrives or when it is let go, and given back when it is let go.
#[derive(Debug)]
struct Held {
    memory: MemoryDevice,
    waiting: Vec<Waiting>,
    ready: Vec<Completion>,
    submitted: usize,
    fails: bool,
}

#[derive(Debug)]
enum Waiting {
    Done(Completion),
    Not(Request),
}

impl Held {
    fn new() -> Held {
        let memory = MemoryDevice::new(BLOCKS * BLOCK as u64).unwrap();
        Held { memory, waiting: Vec::new(), ready: Vec::new(), submitted: 0, fails: false }
    }

    fn carry_out(&mut self, request: Request) -> Completion {
        if self.fails {
            return request.ended(Err(DeviceError::Failed));
        }
        let mut done = Vec::new();
        self.memory.submit(&mut VecDeque::from([request]));
        self.memory.poll(&mut done);
        done.pop().unwrap()
    }

    fn let_go(&mut self, which: usize) {
        if self.waiting.is_empty() {
            return;
        }
        let completion = match self.waiting.remove(which % self.waiting.len()) {
            Waiting::Done(completion) => completion,
            Waiting::Not(request) => self.carry_out(request),
        };
        self.ready.push(completion);
    }
}

impl Device for Held {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        for request in batch.drain(..) {
            self.submitted += 1;
            // Half of them happen at once, the others in the end.
            let waiting = if self.submitted.is_multiple_of(2) {
                Waiting::Done(self.carry_out(request))
            } else {
                Waiting::Not(request)
            };
            self.waiting.push(waiting);
        }
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let found = self.ready.len();
        out.append(&mut self.ready);
        found
    }
    fn arm(&mut self) -> bool {
        self.ready.is_empty()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Tag, first sector, sectors; what it writes; of each sector what it may be (a READ), or what others that ended
/// meanwhile wrote there (a write).
type InFlight = (u64, u64, u64, Option<u8>, Vec<Vec<u8>>);

fn buffer(bytes: usize) -> Buffer {
    Segment::private(bytes).unwrap().carve(bytes).pop().unwrap()
}

fn cache(blocks: u64, policy: PolicyKind) -> Cache<Held> {
    let options = CacheOptions { bytes: blocks * BLOCK as u64, block_bytes: BLOCK as u64, policy };
    Cache::over(Held::new(), options).unwrap()
}

fn submit(cache: &mut Cache<Held>, tag: u64, work: Work) {
    let mut batch = VecDeque::from([Request { tag, work }]);
    cache.submit(&mut batch);
    assert!(batch.is_empty());
}

fn read(at: u64, length: usize) -> Work {
    Work::Read { at, length, into: buffer(length.next_multiple_of(4096)) }
}

fn poll(cache: &mut Cache<Held>) -> Vec<Completion> {
    let mut done = Vec::new();
    cache.poll(&mut done);
    done
}

fn until_quiet(cache: &mut Cache<Held>) -> Vec<Completion> {
    let mut done = poll(cache);
    while !cache.below().waiting.is_empty() {
        cache.below().let_go(0);
        done.extend(poll(cache));
    }
    done
}

#[test]
fn a_block_is_read_once_however_many_ask() {
    let mut cache = cache(4, PolicyKind::Mq);
    for tag in 0..5 {
        submit(&mut cache, tag, read(512 * tag, 512));
    }
    assert_eq!((poll(&mut cache).len(), cache.below().submitted), (0, 1));
    assert_eq!(until_quiet(&mut cache).len(), 5);
    submit(&mut cache, 9, read(0, BLOCK));
    assert_eq!((poll(&mut cache).len(), cache.below().submitted), (1, 1), "it is in memory");
    let statistics = cache.statistics();
    assert_eq!((statistics.hits, statistics.misses, statistics.blocks), (1, 5, 1));
    cache.resize(2 * BLOCK as u64);
    let statistics = cache.statistics();
    assert_eq!((statistics.bytes, statistics.blocks), (2 * BLOCK as u64, 0), "another size begins empty");
}

#[test]
fn a_block_that_is_read_while_it_is_written_is_whole_and_stays_so_for_its_reader() {
    let mut cache = cache(4, PolicyKind::Lru);
    let mut old = buffer(BLOCK);
    old.fill(1);
    submit(&mut cache, 0, Work::Write { at: 0, from: old.into(), fua: false });
    until_quiet(&mut cache);
    let sent = cache.lookup(0, BLOCK, 1).expect("what was written is in memory").remove(0);
    let mut new = buffer(BLOCK);
    new.fill(2);
    submit(&mut cache, 1, Work::Write { at: 0, from: new.into(), fua: false });
    assert!(cache.lookup(0, 512, 1).is_none(), "it is being written");
    until_quiet(&mut cache);
    assert!(sent.iter().all(|byte| *byte == 1), "whoever reads the old block reads it whole");
    assert!(cache.lookup(512, 512, 1).unwrap()[0].iter().all(|byte| *byte == 2));
}

/// Whoever takes no answers keeps the blocks that they are sent from.
#[test]
fn little_of_a_large_block_is_copied_rather_than_kept() {
    let block = 8 * BLOCK as u64;
    let options = CacheOptions { bytes: 2 * block, block_bytes: block, policy: PolicyKind::Lru };
    let mut cache = Cache::over(Held::new(), options).unwrap();
    submit(&mut cache, 0, read(0, 2 * block as usize));
    until_quiet(&mut cache);
    assert!(cache.lookup(0, 1024, 4).is_none());
    assert!(cache.lookup(0, 2048, 4).is_some());
    assert!(cache.lookup(block - 1024, 2048, 4).is_none(), "of two");
    assert!(cache.lookup(block - 2048, 4096, 4).is_some());
}

#[test]
fn several_blocks_are_found_together_or_not_at_all() {
    let mut cache = cache(8, PolicyKind::Lru);
    let block = BLOCK as u64;
    for number in 0..4 {
        let mut half = buffer(BLOCK);
        half.fill(number as u8);
        let from = Bytes::prefix(half, BLOCK / 2);
        submit(&mut cache, number, Work::Write { at: number * block, from, fua: false });
    }
    submit(&mut cache, 9, read(0, 4 * BLOCK));
    until_quiet(&mut cache);
    let hits = cache.statistics().hits;
    // From half of a block to the first sector of another.
    let parts = cache.lookup(block / 2, BLOCK / 2 + 2 * BLOCK + 512, 4).unwrap();
    assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [BLOCK / 2, BLOCK, BLOCK, 512]);
    assert_eq!(parts.iter().map(|part| part[0]).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!((parts[1][BLOCK / 2 - 1], parts[1][BLOCK / 2]), (1, 0), "what was never written is zeros");
    assert_eq!(cache.statistics().hits, hits + 4);
    assert!(cache.lookup(block / 2, BLOCK / 2 + 2 * BLOCK + 512, 3).is_none(), "more parts than can be sent");
    assert!(cache.lookup(3 * block, 2 * BLOCK, 4).is_none(), "one is not there");
    assert!(cache.lookup(0, 0, 4).is_none());
    for (at, length) in [(u64::MAX - 511, 512), (u64::MAX - 511, 1024), (BLOCKS * block, 512)] {
        assert!(cache.lookup(at, length, 4).is_none(), "beyond the end");
    }
    submit(&mut cache, 10, Work::Write { at: 2 * block, from: buffer(BLOCK).into(), fua: false });
    assert!(cache.lookup(block, 2 * BLOCK, 4).is_none(), "one is being written");
    until_quiet(&mut cache);
    assert!(cache.lookup(block, 2 * BLOCK, 4).is_none(), "a writer brought one along");
    assert!(cache.lookup(2 * block, BLOCK, 4).is_some());
    assert_eq!(cache.statistics().hits, hits + 5);
}

/// A hint's block must not come back old after a write that passed it by.
#[test]
fn a_hinted_block_is_not_older_than_a_write() {
    for _ in 0..2 {
        let mut cache = cache(4, PolicyKind::Lru);
        // So that the hint's READ happens at once and ends late.
        submit(&mut cache, 0, Work::Flush);
        until_quiet(&mut cache);
        submit(&mut cache, 1, Work::Hint { at: 0, length: BLOCK as u64, hint: Hint::WillNeed });
        let mut new = buffer(BLOCK);
        new.fill(7);
        submit(&mut cache, 2, Work::Write { at: 0, from: new.into(), fua: false });
        while !cache.below().waiting.is_empty() {
            let last = cache.below().waiting.len() - 1;
            cache.below().let_go(last);
            poll(&mut cache);
        }
        submit(&mut cache, 3, read(0, BLOCK));
        let done = until_quiet(&mut cache);
        let bytes = done.into_iter().find(|one| one.tag == 3).and_then(Completion::buffer).unwrap();
        assert!(bytes[..BLOCK].iter().all(|byte| *byte == 7));
    }
}

/// A hint is more than words: what it names is read before anybody asks for it, and what nobody needs makes room.
#[test]
fn what_will_be_needed_is_there_before_it_is_asked_for_and_what_will_not_goes() {
    let mut cache = cache(4, PolicyKind::Mq);
    let two = |hint| Work::Hint { at: 0, length: 2 * BLOCK as u64, hint };
    submit(&mut cache, 0, two(Hint::WillNeed));
    until_quiet(&mut cache);
    let asked = cache.below().submitted;
    submit(&mut cache, 1, read(0, 2 * BLOCK));
    assert_eq!((poll(&mut cache).len(), cache.below().submitted), (1, asked), "the hint has brought it");
    assert_eq!((cache.statistics().hits, cache.statistics().misses), (2, 0));
    submit(&mut cache, 2, two(Hint::DontNeed));
    until_quiet(&mut cache);
    assert_eq!(cache.statistics().blocks, 0);
}

/// Longer than any disk: who looked at each of its blocks would not end.
#[derive(Debug)]
struct Endless(MemoryDevice);

impl Device for Endless {
    fn geometry(&self) -> Geometry {
        Geometry { bytes: 1 << 60, ..self.0.geometry() }
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        self.0.submit(batch);
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.0.poll(out)
    }
    fn arm(&mut self) -> bool {
        self.0.arm()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[test]
fn that_nobody_uses_a_large_volume_is_heard_at_once() {
    let below = Endless(MemoryDevice::new(4 * BLOCK as u64).unwrap());
    let policy = PolicyKind::Lru;
    let options = CacheOptions { bytes: 4 * BLOCK as u64, block_bytes: BLOCK as u64, policy };
    let mut cache = Cache::over(below, options).unwrap();
    let all = Work::Hint { at: 0, length: 1 << 60, hint: Hint::DontNeed };
    cache.submit(&mut [Request { tag: 1, work: read(0, BLOCK) }].into());
    assert_eq!((cache.poll(&mut Vec::new()), cache.statistics().blocks), (1, 1));
    cache.submit(&mut [Request { tag: 2, work: all }].into());
    assert_eq!((cache.poll(&mut Vec::new()), cache.statistics().blocks), (1, 0));
}

#[test]
fn what_failed_is_not_in_the_cache() {
    let mut cache = cache(4, PolicyKind::Arc);
    cache.below().fails = true;
    submit(&mut cache, 0, read(0, 512));
    let done = until_quiet(&mut cache);
    assert_eq!(done[0].result, Err(DeviceError::Failed));
    assert_eq!(cache.statistics().blocks, 0);
    cache.below().fails = false;
    submit(&mut cache, 1, read(0, 512));
    assert_eq!(until_quiet(&mut cache)[0].result, Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Requests of every kind, ended in any order: what is read is what was written before it, or by
    /// requests that were under way with it.
    #[test]
    fn it_reads_as_memory_does(
        policy in 0usize..7,
        blocks in 0u64..6,
        steps in proptest::collection::vec((0u8..11, 0u64..120, 1u64..24, any::<u8>(), any::<usize>()), 1..150),
    ) {
        let mut cache = cache(blocks, PolicyKind::ALL[policy]);
        let sectors = (BLOCKS * BLOCK as u64 / 512) as usize;
        // What each sector may be: all that is under way, and what was before.
        let mut may: Vec<Vec<u8>> = vec![vec![0]; sectors];
        let mut under_way: Vec<InFlight> = Vec::new();
        let (mut tag, mut batch) = (0, VecDeque::new());
        let ended = |done: Vec<Completion>, under_way: &mut Vec<InFlight>, may: &mut Vec<Vec<u8>>| {
            for completion in done {
                assert_eq!(completion.result, Ok(()));
                let Some(place) = under_way.iter().position(|one| one.0 == completion.tag) else { continue };
                let (_, at, length, writes, seen) = under_way.remove(place);
                if let Some(value) = writes {
                    for sector in at..at + length {
                        // The order in which they end is not that in which they happened.
                        let mut now = seen[(sector - at) as usize].clone();
                        now.push(value);
                        for one in under_way.iter_mut().filter(|one| (one.1..one.1 + one.2).contains(&sector)) {
                            if let Some(other) = one.3 {
                                now.push(other);
                                one.4[(sector - one.1) as usize].push(value);
                            }
                        }
                        may[sector as usize] = now;
                    }
                } else if let Work::Read { into, .. } = &completion.work {
                    for (sector, allowed) in seen.iter().enumerate() {
                        let bytes = &into[sector * 512..(sector + 1) * 512];
                        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mix");
                        assert!(allowed.contains(&bytes[0]), "sector {} is {}, not {allowed:?}", at as usize + sector, bytes[0]);
                    }
                }
            }
        };
        for (step, at, length, value, which) in steps {
            let length = length.min(sectors as u64 - at);
            let (byte, bytes) = (at * 512, length as usize * 512);
            tag += 1;
            match step {
                0..=2 => {
                    let seen = (at..at + length).map(|sector| may[sector as usize].clone()).collect();
                    under_way.push((tag, at, length, None, seen));
                    batch.push_back(Request { tag, work: read(byte, bytes) });
                }
                3..=5 => {
                    let value = if step == 5 { 0 } else { value };
                    for one in under_way.iter_mut().filter(|one| one.3.is_none()) {
                        for sector in (at..at + length).filter(|sector| (one.1..one.1 + one.2).contains(sector)) {
                            one.4[(sector - one.1) as usize].push(value);
                        }
                    }
                    (at..at + length).for_each(|sector| may[sector as usize].push(value));
                    under_way.push((tag, at, length, Some(value), vec![Vec::new(); length as usize]));
                    let mut from = buffer(bytes.next_multiple_of(4096));
                    from.fill(value);
                    let work = match step {
                        5 => Work::Zero { at: byte, length: bytes as u64 },
                        _ => Work::Write { at: byte, from: Bytes::prefix(from, bytes), fua: false },
                    };
                    batch.push_back(Request { tag, work });
                }
                6 => batch.push_back(Request { tag, work: Work::Hint { at: byte, length: bytes as u64, hint: Hint::WillNeed } }),
                7 => batch.push_back(Request { tag, work: Work::Hint { at: byte, length: bytes as u64, hint: Hint::DontNeed } }),
                // What it does not take now, because it is to be resized, it takes later.
                10 => cache.resize(u64::from(value % 6) * BLOCK as u64),
                _ => cache.below().let_go(which),
            }
            cache.submit(&mut batch);
            let done = poll(&mut cache);
            ended(done, &mut under_way, &mut may);
        }
        for _ in 0..2 {
            let done = until_quiet(&mut cache);
            ended(done, &mut under_way, &mut may);
            cache.submit(&mut batch);
        }
        prop_assert!(under_way.is_empty() && batch.is_empty(), "a request never ended");
        let statistics = cache.statistics();
        prop_assert!(statistics.blocks * BLOCK as u64 <= statistics.bytes);
    }
}
