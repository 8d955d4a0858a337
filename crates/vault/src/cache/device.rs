//! A cache of blocks over a device (vi-attached-storage §2.1, §2.2).
//!
//! A READ takes what is there from memory; a block that is not is read once, however many ask for
//! it meanwhile. Writes go through: they end when the device below has ended them, and the cache
//! has their bytes from then on. A block in memory never changes: a write puts another one in its
//! place, so whoever still reads the old one reads it whole.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use overside_memory::Bytes;
use overside_volume::{Below, Completion, Device, DeviceError, Geometry, Hint, Overlaps, Request, Work};

use super::blocks::{BlockMemory, Pool, Private};
use super::policy::{Policy, PolicyKind};

/// How a cache is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// Bytes of blocks that it may hold; 0: none, and everything passes by.
    pub bytes: u64,
    /// Bytes of a block: a power of two, at least the units of the device below.
    pub block_bytes: u64,
    /// Which block makes room.
    pub policy: PolicyKind,
}

impl Default for CacheOptions {
    fn default() -> Self {
        CacheOptions { bytes: 256 << 20, block_bytes: 8192, policy: PolicyKind::default() }
    }
}

/// What went through a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Bytes of blocks that it may hold.
    pub bytes: u64,
    /// Blocks of READs that were in memory.
    pub hits: u64,
    /// Blocks of READs that were not.
    pub misses: u64,
    /// Blocks that are in memory now.
    pub blocks: u64,
}

/// A cache over a device, and a device itself.
#[derive(Debug)]
pub struct Cache<D> {
    below: Below<D>,
    geometry: Geometry,
    block: u64,
    blocks_max: usize,
    /// It is to have so many, as soon as nothing is under way.
    resized: Option<usize>,
    kind: PolicyKind,
    policy: Box<dyn Policy>,
    blocks: BTreeMap<u64, Bytes>,
    pool: Pool,
    statistics: CacheStatistics,
    /// Requests that touch one block, and of which one writes, go one after the other.
    overlaps: Overlaps,
    admitted: Vec<u64>,
    next: u64,
    requests: BTreeMap<u64, InFlight>,
    /// Requests to the device below.
    steps: BTreeMap<u64, Step>,
    /// Blocks that are being read, by number.
    fills: BTreeMap<u64, Fill>,
    done: Vec<Completion>,
}

#[derive(Debug)]
struct InFlight {
    tag: u64,
    /// None while the device below has it.
    work: Option<Work>,
    /// Blocks that it waits for.
    left: usize,
    result: Result<(), DeviceError>,
}

#[derive(Debug)]
enum Step {
    /// A request as it came.
    Passed(u64),
    /// A block that is read.
    Fill(u64),
}

#[derive(Debug, Default)]
struct Fill {
    waiting: Vec<u64>,
    /// The policy has a place for it.
    kept: bool,
    /// Nobody waits for it, so writes of the block are kept back under this number.
    hint: Option<u64>,
}

impl<D: Device> Cache<D> {
    /// Over a device.
    ///
    /// # Errors
    /// The text says which size cannot be.
    pub fn over(below: D, options: CacheOptions) -> Result<Cache<D>, String> {
        Cache::lying_in(Arc::new(Private), below, options)
    }

    /// The same, with blocks in this memory.
    ///
    /// # Errors
    /// As [`over`](Self::over).
    pub fn lying_in(memory: Arc<dyn BlockMemory>, below: D, options: CacheOptions) -> Result<Cache<D>, String> {
        let geometry = below.geometry();
        let block = options.block_bytes;
        if !block.is_power_of_two() || block < geometry.unit_bytes || block > BLOCK_BYTES_MAX {
            return Err(format!(
                "a cache's blocks are a power of two from {} to {BLOCK_BYTES_MAX} bytes here, not {block}",
                geometry.unit_bytes
            ));
        }
        let blocks_max = blocks_of(options.bytes, block);
        Ok(Cache {
            below: Below::new(below),
            geometry,
            block,
            blocks_max,
            resized: None,
            kind: options.policy,
            policy: options.policy.policy(blocks_max),
            blocks: BTreeMap::new(),
            pool: Pool::new(block as usize, memory),
            statistics: CacheStatistics::default(),
            overlaps: Overlaps::default(),
            admitted: Vec::new(),
            next: 0,
            requests: BTreeMap::new(),
            steps: BTreeMap::new(),
            fills: BTreeMap::new(),
            done: Vec::new(),
        })
    }

    /// The device under it.
    pub fn below(&mut self) -> &mut D {
        &mut self.below.device
    }

    /// What went through it.
    pub fn statistics(&self) -> CacheStatistics {
        let bytes = self.blocks_max as u64 * self.block;
        CacheStatistics { bytes, blocks: self.blocks.len() as u64, ..self.statistics }
    }

    /// From now on it may hold as many bytes of blocks as this. It begins empty again, unless that
    /// is what it may hold already.
    pub fn resize(&mut self, bytes: u64) {
        let blocks_max = blocks_of(bytes, self.block);
        if blocks_max == self.blocks_max {
            return;
        }
        // Requests that a cache without blocks let pass are under way unordered; they may all end first.
        self.resized = Some(blocks_max);
        self.resize_when_quiet();
    }

    fn resize_when_quiet(&mut self) {
        if self.requests.is_empty()
            && self.fills.is_empty()
            && let Some(blocks_max) = self.resized.take()
        {
            self.blocks_max = blocks_max;
            self.policy = self.kind.policy(blocks_max);
            std::mem::take(&mut self.blocks).into_values().for_each(|bytes| self.pool.give(bytes));
        }
    }

    /// Bytes as they lie in memory, to be sent from there, in as many parts as blocks. It counts as
    /// a READ.
    ///
    /// None where not all are there, some are being written, or there are more than `parts_max`.
    /// None, too, where their blocks are far larger: a client that takes no answers holds blocks.
    pub fn lookup(&mut self, at: u64, length: usize, parts_max: usize) -> Option<Vec<Bytes>> {
        let bytes = length as u64;
        if length == 0 || at.checked_add(bytes).is_none_or(|end| end > self.geometry.bytes) {
            return None;
        }
        let touched = self.touched((at, bytes));
        let (start, count) = (touched.start * self.block, touched.end - touched.start);
        if count > parts_max as u64 || bytes.saturating_mul(KEPT_FOR_EACH) < count * self.block {
            return None;
        }
        let part = |block: u64| {
            let bytes = self.blocks.get(&block)?;
            let from = at.saturating_sub(block * self.block) as usize;
            let to = (at + length as u64 - block * self.block).min(self.block) as usize;
            (to <= bytes.len()).then(|| bytes.slice(from..to))
        };
        let parts: Vec<Bytes> = touched.clone().map(part).collect::<Option<_>>()?;
        // What writers brought along may lie where it cannot be sent from. To gather that costs more than to copy all.
        if count > 1 && !parts.iter().all(|part| self.pool.made(part)) {
            return None;
        }
        let id = self.number();
        let is_free = self.overlaps.enter(id, start, count * self.block, false);
        self.overlaps.leave(id, &mut self.admitted);
        if !is_free {
            return None;
        }
        for block in touched {
            self.policy.access(block, &mut |_| false);
        }
        self.statistics.hits += count;
        Some(parts)
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The blocks that a range touches.
    fn touched(&self, (at, length): (u64, u64)) -> std::ops::Range<u64> {
        at / self.block..(at + length).div_ceil(self.block)
    }

    /// Bytes of a block: the last one may be shorter.
    fn bytes_of(&self, block: u64) -> u64 {
        self.block.min(self.geometry.bytes - block * self.block)
    }

    fn take(&mut self, request: Request) {
        if let Err(error) = self.geometry.check(&request.work) {
            return self.done.push(request.ended(Err(error)));
        }
        let Request { tag, work } = request;
        let id = self.number();
        let (range, writes) = (work.range(), work.writes());
        let orders = writes || matches!(work, Work::Read { .. });
        self.requests.insert(id, InFlight { tag, work: Some(work), left: 0, result: Ok(()) });
        let goes = match range.filter(|_| orders && self.blocks_max > 0) {
            Some(range) => {
                let touched = self.touched(range);
                let (start, end) = (touched.start * self.block, touched.end * self.block);
                self.overlaps.enter(id, start, end - start, writes)
            }
            None => true,
        };
        if goes {
            self.begin(id);
        }
    }

    fn begin(&mut self, id: u64) {
        let Some(under_way) = self.requests.get_mut(&id) else { return };
        let Some(work) = under_way.work.take() else { return };
        match work {
            Work::Read { at, length, into } if self.blocks_max > 0 => self.read(id, at, length, into),
            Work::Hint { at, length, hint } if self.blocks_max > 0 => {
                self.hint((at, length), hint);
                self.pass(id, work);
            }
            work => self.pass(id, work),
        }
    }

    fn pass(&mut self, id: u64, work: Work) {
        let tag = self.number();
        self.steps.insert(tag, Step::Passed(id));
        self.below.push(tag, work);
    }

    fn read(&mut self, id: u64, at: u64, length: usize, mut into: overside_memory::Buffer) {
        let mut left = 0;
        for block in self.touched((at, length as u64)) {
            if let Some(fill) = self.fills.get_mut(&block) {
                fill.waiting.push(id);
                self.statistics.misses += 1;
                left += 1;
                continue;
            }
            let fills = &self.fills;
            let access = self.policy.access(block, &mut |block| !fills.contains_key(&block));
            self.evict(access.evicted);
            match self.blocks.get(&block) {
                Some(bytes) => {
                    copy(bytes, block * self.block, at, &mut into[..length]);
                    self.statistics.hits += 1;
                }
                None => {
                    self.statistics.misses += 1;
                    left += 1;
                    self.fill(block, Fill { waiting: vec![id], kept: access.admitted, hint: None });
                }
            }
        }
        if let Some(under_way) = self.requests.get_mut(&id) {
            under_way.work = Some(Work::Read { at, length, into });
            under_way.left += left;
        }
        self.end_if_done(id);
    }

    /// Reads a block for those who wait for it.
    fn fill(&mut self, block: u64, fill: Fill) {
        self.fills.insert(block, fill);
        let Some(into) = self.pool.take(self.blocks_max) else {
            return self.filled(block, None, Err(DeviceError::NoMemory));
        };
        let tag = self.number();
        self.steps.insert(tag, Step::Fill(block));
        let length = self.bytes_of(block) as usize;
        self.below.push(tag, Work::Read { at: block * self.block, length, into });
    }

    fn filled(&mut self, block: u64, bytes: Option<Bytes>, result: Result<(), DeviceError>) {
        let Some(Fill { waiting, kept, hint }) = self.fills.remove(&block) else { return };
        if let Some(id) = hint {
            self.overlaps.leave(id, &mut self.admitted);
        }
        for id in waiting {
            let Some(under_way) = self.requests.get_mut(&id) else { continue };
            under_way.left = under_way.left.saturating_sub(1);
            under_way.result = under_way.result.and(result);
            if let (Some(bytes), Some(Work::Read { at, length, into })) = (&bytes, &mut under_way.work) {
                copy(bytes, block * self.block, *at, &mut into[..*length]);
            }
            self.end_if_done(id);
        }
        match bytes {
            Some(bytes) if kept => self.keep(block, bytes),
            Some(bytes) => self.pool.give(bytes),
            None if kept => self.policy.remove(block),
            None => {}
        }
    }

    fn keep(&mut self, block: u64, bytes: Bytes) {
        if let Some(old) = self.blocks.insert(block, bytes) {
            self.pool.give(old);
        }
    }

    fn evict(&mut self, block: Option<u64>) {
        if let Some(bytes) = block.and_then(|block| self.blocks.remove(&block)) {
            self.pool.give(bytes);
        }
    }

    /// A block is not in the cache any more.
    fn forget(&mut self, block: u64) {
        self.evict(Some(block));
        self.policy.remove(block);
    }

    fn hint(&mut self, range: (u64, u64), hint: Hint) {
        if self.geometry.check(&Work::Hint { at: range.0, length: range.1, hint }).is_err() {
            return;
        }
        match hint {
            Hint::WillNeed => {
                for block in self.touched(range).take(HINTED_MAX) {
                    let is_there = self.blocks.contains_key(&block) || self.fills.contains_key(&block);
                    let id = self.number();
                    // What is being written will be there anyway.
                    if is_there || !self.overlaps.enter(id, block * self.block, self.block, false) {
                        self.overlaps.leave(id, &mut self.admitted);
                        continue;
                    }
                    let fills = &self.fills;
                    let access = self.policy.access(block, &mut |block| !fills.contains_key(&block));
                    self.evict(access.evicted);
                    if access.admitted {
                        self.fill(block, Fill { waiting: Vec::new(), kept: true, hint: Some(id) });
                    } else {
                        self.overlaps.leave(id, &mut self.admitted);
                    }
                }
            }
            Hint::DontNeed => {
                // Of a volume far larger than the cache, those that are here alone are looked at.
                let here: Vec<u64> = self.blocks.range(self.touched(range)).map(|(block, _)| *block).collect();
                here.into_iter().for_each(|block| self.forget(block));
            }
            Hint::Sequential | Hint::Random => {}
        }
    }

    /// The device below has ended a request as it came.
    fn passed(&mut self, id: u64, work: Work, result: Result<(), DeviceError>) {
        if self.blocks_max > 0 && work.writes() {
            self.written(&work, result);
        }
        if let Some(under_way) = self.requests.get_mut(&id) {
            (under_way.work, under_way.result) = (Some(work), result);
        }
        self.end_if_done(id);
    }

    /// What was written is in the cache from now on; what failed, or is zeros, is not.
    fn written(&mut self, work: &Work, result: Result<(), DeviceError>) {
        let Some((at, length)) = work.range() else { return };
        if overside_disk::mutant("volume-cached-block-old") {
            return;
        }
        for block in self.touched((at, length)) {
            let (Work::Write { from, .. }, Ok(())) = (work, result) else {
                self.forget(block);
                continue;
            };
            let (start, bytes) = (block * self.block, self.bytes_of(block));
            let is_whole = at <= start && start + bytes <= at + length;
            if !is_whole && !self.blocks.contains_key(&block) {
                continue;
            }
            let fills = &self.fills;
            let access = self.policy.access(block, &mut |block| !fills.contains_key(&block));
            self.evict(access.evicted);
            if !access.admitted {
                continue;
            }
            let offset = (start.max(at) - at) as usize;
            let new = if is_whole && keeps(self.block, from.buffer().len()) {
                // It is there already, and keeps little else.
                Some(from.slice(offset..offset + bytes as usize))
            } else {
                self.composed(block, at, from, is_whole)
            };
            match new {
                Some(new) => self.keep(block, new),
                None => self.forget(block),
            }
        }
    }

    /// A block with what was written over it, in memory of its own.
    fn composed(&mut self, block: u64, at: u64, from: &Bytes, is_whole: bool) -> Option<Bytes> {
        let mut buffer = self.pool.take(self.blocks_max)?;
        let (start, length) = (block * self.block, self.bytes_of(block) as usize);
        // Of a block that is written whole nothing old is left.
        if let Some(old) = self.blocks.get(&block).filter(|_| !is_whole) {
            buffer[..length].copy_from_slice(&old[..length]);
        }
        copy(from, at, start, &mut buffer[..length]);
        Some(Bytes::prefix(buffer, length))
    }

    fn end_if_done(&mut self, id: u64) {
        if self.requests.get(&id).is_none_or(|under_way| under_way.left > 0 || under_way.work.is_none()) {
            return;
        }
        let Some(InFlight { tag, work: Some(work), result, .. }) = self.requests.remove(&id) else { return };
        self.overlaps.leave(id, &mut self.admitted);
        self.done.push(Completion { tag, work, result });
    }

    fn turn(&mut self) -> bool {
        while let Some(id) = self.admitted.pop() {
            self.begin(id);
        }
        let found = self.below.turn();
        while let Some(Completion { tag, work, result }) = self.below.ended() {
            match (self.steps.remove(&tag), work) {
                (Some(Step::Passed(id)), work) => self.passed(id, work, result),
                (Some(Step::Fill(block)), Work::Read { length, into, .. }) => match result {
                    Ok(()) => self.filled(block, Some(Bytes::prefix(into, length)), Ok(())),
                    Err(error) => {
                        self.pool.give_buffer(into);
                        self.filled(block, None, Err(error));
                    }
                },
                _ => {}
            }
        }
        found || !self.admitted.is_empty()
    }
}

/// Whether a cache keeps a block that was written as a whole where its writer brought it, in a
/// buffer so long.
pub(crate) fn keeps(block_bytes: u64, buffer_bytes: usize) -> bool {
    buffer_bytes as u64 <= 2 * block_bytes
}

/// Blocks that so many bytes have room for.
fn blocks_of(bytes: u64, block: u64) -> usize {
    (bytes / block).min(u64::from(u32::MAX / 2)) as usize
}

/// Copies what both ranges have in common: `from` lies at `from_at`, `into` at `into_at`.
fn copy(from: &[u8], from_at: u64, into_at: u64, into: &mut [u8]) {
    let start = from_at.max(into_at);
    let end = (from_at + from.len() as u64).min(into_at + into.len() as u64);
    if start < end {
        let part = &from[(start - from_at) as usize..(end - from_at) as usize];
        into[(start - into_at) as usize..(end - into_at) as usize].copy_from_slice(part);
    }
}

impl<D: Device> Device for Cache<D> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        self.resize_when_quiet();
        while self.requests.len() < REQUESTS_MAX
            && self.resized.is_none()
            && let Some(request) = batch.pop_front()
        {
            self.take(request);
        }
        self.below.submit();
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        while self.turn() {}
        self.resize_when_quiet();
        let found = self.done.len();
        out.append(&mut self.done);
        found
    }

    fn arm(&mut self) -> bool {
        self.done.is_empty() && self.admitted.is_empty() && self.below.device.arm()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.below.device.fd()
    }

    fn due(&self) -> Option<Instant> {
        self.below.device.due()
    }
}

/// Requests in flight; more wait with the caller.
const REQUESTS_MAX: usize = 1024;
/// Bytes of blocks that a READ may keep, for each of its own: 8 KiB for 512 B.
const KEPT_FOR_EACH: u64 = 16;
/// Blocks that one hint has read.
const HINTED_MAX: usize = 256;
/// Bytes of a block at most.
const BLOCK_BYTES_MAX: u64 = 1 << 20;
