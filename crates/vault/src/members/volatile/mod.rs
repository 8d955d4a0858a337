//! A member that forgets as a disk with a cache does: for tests of what stands on it.

mod hostile;
mod log;

#[doc(hidden)]
pub use hostile::{fuzz_unflushed, seeds_unflushed};

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use overside_memory::{Buffer, Bytes, Segment};
use overside_verbs::watch::Watch;
use overside_verbs::{Clock, VerbsError};
use overside_volume::{Completion, Device, DeviceError, Geometry, Request, SECTOR_BYTES, Work, complete, watch_all};

use crate::server::lock;
use log::{BLOCK, Record, RecordKind};

/// A device whose writes are in its cache alone until a FLUSH or FUA.
/// [`lose_power`](Self::lose_power) leaves of each sector in the cache any of
/// what it was given, or none.
///
/// With a side file, opening it again is a loss of power, too: what the file has of the last
/// life is lost by the seed.
#[derive(Debug)]
pub struct Volatile {
    base: Box<dyn Device>,
    side: Option<VolatileSide>,
    geometry: Geometry,
    handle: VolatileHandle,
    watch: Option<Watch>,
    /// Of each sector that was written since it was last stable, all that it was given, in order.
    cached: BTreeMap<u64, Vec<(u64, Sector)>>,
    cached_bytes: u64,
    next: u64,
    /// Reads of the base, with what the cache had when they were asked for.
    reads: BTreeMap<u64, (u64, Vec<(u64, Sector)>)>,
    /// WRITEs whose records are being written.
    recorded: BTreeMap<u64, Request>,
    /// WRITEs for which the cache has no room until a flush has ended.
    waiting: VecDeque<Request>,
    /// What goes to the base, one after the other.
    steps: VecDeque<Step>,
    queue: VecDeque<Request>,
    done: Vec<Completion>,
    polled: Vec<Completion>,
}

/// Stops a volatile device, and knows whether it has stopped.
#[derive(Clone, Debug, Default)]
pub struct VolatileHandle(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// So many more writes into the cache are carried out.
    stops_after: Mutex<Option<u64>>,
    stopped: AtomicBool,
    cached: AtomicU64,
    lies: AtomicBool,
}

/// What became of the sectors that no flush had covered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Sectors that were in the cache.
    pub cached: usize,
    /// Those that have what they had before.
    pub lost: usize,
}

/// Numbers from a seed.
#[derive(Clone, Debug)]
pub struct XorShift(u64);

type Sector = Arc<[u8; SECTOR_BYTES as usize]>;

#[derive(Debug)]
struct VolatileSide {
    device: Box<dyn Device>,
    epoch: u64,
    /// Where the next record goes.
    end: u64,
    /// In order, with their payloads; the first one is being written.
    records: VecDeque<Bytes>,
    places: VecDeque<u64>,
    /// Which WRITE each record is of; none where it is a step's.
    of: VecDeque<Option<u64>>,
    writing: bool,
}

/// Something that goes to the base.
#[derive(Debug)]
struct Step {
    /// None: a flush because the cache is full.
    request: Option<Request>,
    /// What was written up to this number is stable afterwards.
    upto: u64,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waits,
    /// So many parts are being written.
    Writes(usize, Result<(), DeviceError>),
    Flushes,
    /// The side file is told.
    Records,
}

impl Volatile {
    /// Over a device that holds what is stable, without a side file: it ends with this process.
    ///
    /// # Errors
    /// When the system has no descriptor.
    pub fn over(base: Box<dyn Device>) -> Result<Volatile, VerbsError> {
        Self::with(base, None)
    }

    /// The same with a side file. What that has of the last life is lost, by the seed.
    ///
    /// # Errors
    /// Why one of the two cannot be read or written.
    pub fn open(
        base: Box<dyn Device>,
        side: Box<dyn Device>,
        seed: u64,
        clock: &dyn Clock,
    ) -> Result<(Volatile, Lost), DeviceError> {
        let mut this = Self::with(base, None).map_err(|_| DeviceError::Failed)?;
        let mut side = side;
        let epoch = this.replay(&mut *side, clock)?;
        let lost = this.lose_power(&mut XorShift::of(seed ^ epoch.rotate_left(32)), clock)?;
        let mut side = VolatileSide {
            device: side,
            epoch,
            end: 0,
            records: VecDeque::new(),
            places: VecDeque::new(),
            of: VecDeque::new(),
            writing: false,
        };
        side.begin_again(this.next)?;
        let first = side.records.pop_front().zip(side.places.pop_front()).ok_or(DeviceError::Failed)?;
        side.of.clear();
        complete(&mut *side.device, clock, Work::Write { at: first.1, from: first.0, fua: false }, PATIENCE).1?;
        this.watch = watch_all([&*this.base, &*side.device].into_iter()).map_err(|_| DeviceError::Failed)?;
        this.side = Some(side);
        Ok((this, lost))
    }

    fn with(base: Box<dyn Device>, side: Option<VolatileSide>) -> Result<Volatile, VerbsError> {
        let geometry = base.geometry();
        Ok(Volatile {
            watch: watch_all([&*base].into_iter())?,
            base,
            side,
            geometry,
            handle: VolatileHandle::default(),
            cached: BTreeMap::new(),
            cached_bytes: 0,
            next: 1,
            reads: BTreeMap::new(),
            recorded: BTreeMap::new(),
            waiting: VecDeque::new(),
            steps: VecDeque::new(),
            queue: VecDeque::new(),
            done: Vec::new(),
            polled: Vec::new(),
        })
    }

    /// Stops it, or lets it lie.
    pub fn handle(&self) -> VolatileHandle {
        self.handle.clone()
    }

    /// Everything in the cache is lost, or nothing, or each sector on its own: it has
    /// any of what it was given, or none. What was under way is forgotten; it goes on
    /// as it would after a start.
    ///
    /// # Errors
    /// Why the base cannot be written.
    pub fn lose_power(&mut self, chance: &mut XorShift, clock: &dyn Clock) -> Result<Lost, DeviceError> {
        let cached = std::mem::take(&mut self.cached);
        self.cached_bytes = 0;
        *lock(&self.handle.0.stops_after) = None;
        self.handle.0.stopped.store(false, Ordering::Release);
        self.handle.0.cached.store(0, Ordering::Release);
        self.drain(clock)?;
        let mut lost = Lost { cached: cached.len(), lost: 0 };
        let way = chance.below(4);
        let mut kept: BTreeMap<u64, Sector> = BTreeMap::new();
        for (sector, versions) in cached {
            let count = match way {
                0 => 0,
                1 => versions.len(),
                _ => chance.below(versions.len() as u64 + 1) as usize,
            };
            match count.checked_sub(1).and_then(|at| versions.get(at)) {
                Some((_, content)) => _ = kept.insert(sector, content.clone()),
                None => lost.lost += 1,
            }
        }
        let unit = self.geometry.unit_bytes;
        // A unit may be longer than a sector: what surrounds the sector stays.
        let units: std::collections::BTreeSet<u64> =
            kept.keys().map(|sector| sector * SECTOR_BYTES / unit * unit).collect();
        for at in units {
            let into = buffer(unit as usize).ok_or(DeviceError::NoMemory)?;
            let (work, result) =
                complete(&mut *self.base, clock, Work::Read { at, length: unit as usize, into }, PATIENCE);
            result?;
            let Some(Work::Read { mut into, .. }) = work else { return Err(DeviceError::Failed) };
            apply(kept.range(at / SECTOR_BYTES..(at + unit) / SECTOR_BYTES), at, &mut into[..unit as usize]);
            let from = Bytes::prefix(into, unit as usize);
            complete(&mut *self.base, clock, Work::Write { at, from, fua: false }, PATIENCE).1?;
        }
        complete(&mut *self.base, clock, Work::Flush, PATIENCE).1?;
        Ok(lost)
    }

    /// What is under way at the base ends, and nobody hears of it.
    fn drain(&mut self, clock: &dyn Clock) -> Result<(), DeviceError> {
        let until = clock.now() + PATIENCE;
        let writes = self.steps.front().map_or(0, |step| match step.phase {
            Phase::Writes(left, _) => left,
            Phase::Flushes => 1,
            _ => 0,
        });
        let mut left = self.reads.len() + writes - self.queue.len().min(self.reads.len() + writes);
        while left > 0 {
            left -= self.base.poll(&mut self.polled).min(left);
            if left > 0 && (clock.now() >= until || overside_volume::wait(&mut *self.base, clock, Some(until)).is_err())
            {
                return Err(DeviceError::Unreachable);
            }
        }
        self.polled.clear();
        self.queue.clear();
        self.reads.clear();
        self.recorded.clear();
        self.waiting.clear();
        self.steps.clear();
        self.done.clear();
        Ok(())
    }

    /// Puts into the cache what the side file has; the newest epoch.
    fn replay(&mut self, side: &mut dyn Device, clock: &dyn Clock) -> Result<u64, DeviceError> {
        let (mut at, mut epoch, end) = (0, None, side.geometry().bytes);
        let mut read = |at: u64, length: u64| {
            let into = buffer(length as usize).ok_or(DeviceError::NoMemory)?;
            let (work, result) =
                complete(&mut *side, clock, Work::Read { at, length: length as usize, into }, PATIENCE);
            result?;
            let Some(Work::Read { into, .. }) = work else { return Err(DeviceError::Failed) };
            Ok(into)
        };
        while at + BLOCK as u64 <= end {
            let block = read(at, BLOCK as u64)?;
            let Some(record) = Record::parse(&block[..BLOCK], self.geometry.bytes) else { break };
            if record.room() > end - at || epoch.is_some_and(|epoch| epoch != record.epoch) {
                break;
            }
            let mut whole = read(at, record.room())?;
            if !Record::is_sound(&mut whole[..record.room() as usize]) {
                break;
            }
            match record.kind {
                RecordKind::Unflushed => self.keep(record.number, record.at, &whole[BLOCK..][..record.length as usize]),
                RecordKind::Settled => self.settle(record.at, record.length, record.number),
            }
            epoch = Some(record.epoch);
            self.next = self.next.max(record.number + 1);
            at += record.room();
        }
        Ok(epoch.unwrap_or(0))
    }

    fn keep(&mut self, number: u64, at: u64, bytes: &[u8]) {
        for (sector, content) in (at / SECTOR_BYTES..).zip(bytes.as_chunks::<{ SECTOR_BYTES as usize }>().0) {
            self.cached.entry(sector).or_default().push((number, Arc::new(*content)));
            self.cached_bytes += SECTOR_BYTES;
        }
        self.handle.0.cached.store(self.cached.len() as u64, Ordering::Release);
    }

    /// Of the range, or of everything where it has no length, nothing up to
    /// the number counts any more.
    fn settle(&mut self, at: u64, length: u64, upto: u64) {
        let (from, to) = if length == 0 { (0, u64::MAX) } else { (at / SECTOR_BYTES, (at + length) / SECTOR_BYTES) };
        let mut empty = Vec::new();
        for (sector, versions) in self.cached.range_mut(from..to) {
            let before = versions.len();
            versions.retain(|(number, _)| *number > upto);
            self.cached_bytes -= SECTOR_BYTES * (before - versions.len()) as u64;
            if versions.is_empty() {
                empty.push(*sector);
            }
        }
        empty.iter().for_each(|sector| _ = self.cached.remove(sector));
        self.handle.0.cached.store(self.cached.len() as u64, Ordering::Release);
    }

    fn newest(&self, at: u64, length: u64) -> Vec<(u64, Sector)> {
        let sectors = self.cached.range(at / SECTOR_BYTES..(at + length) / SECTOR_BYTES);
        sectors.filter_map(|(sector, versions)| Some((*sector, versions.last()?.1.clone()))).collect()
    }

    fn take(&mut self, request: Request) {
        if let Err(error) = self.geometry.check(&request.work) {
            return self.done.push(request.ended(Err(error)));
        }
        let lies = self.handle.0.lies.load(Ordering::Relaxed);
        match request.work {
            Work::Hint { .. } => self.done.push(request.ended(Ok(()))),
            Work::Check { at, length, mend, .. } => {
                // What is wrong is known above it.
                let work = Work::Check { at, length, mend, wrong: 0 };
                self.done.push(Request { tag: request.tag, work }.ended(Ok(())));
            }
            Work::Flush if lies => self.done.push(request.ended(Ok(()))),
            Work::Read { at, length, .. } => {
                let number = self.number();
                self.reads.insert(number, (request.tag, self.newest(at, length as u64)));
                self.queue.push_back(Request { tag: number, work: request.work });
            }
            Work::Write { fua: false, ref from, .. } if from.len() as u64 <= CACHE_BYTES / 2 => self.cache(request),
            Work::Write { .. } | Work::Discard { .. } | Work::Zero { .. } | Work::Flush => {
                let upto = self.number();
                self.steps.push_back(Step { request: Some(request), upto, phase: Phase::Waits });
            }
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// A WRITE into the cache.
    fn cache(&mut self, request: Request) {
        let Work::Write { at, from, .. } = &request.work else { return };
        let room =
            Record { epoch: 0, number: 0, kind: RecordKind::Unflushed, at: *at, length: from.len() as u64 }.room();
        // A flush's own record has room behind it.
        let is_full = self.cached_bytes + from.len() as u64 > CACHE_BYTES
            || self.side.as_ref().is_some_and(|side| side.end + room + 2 * BLOCK as u64 > side.device.geometry().bytes);
        if is_full && !(self.cached.is_empty() && self.side.is_none()) || !self.waiting.is_empty() {
            if self.steps.iter().all(|step| step.request.is_some()) {
                let upto = self.number();
                self.steps.push_back(Step { request: None, upto, phase: Phase::Waits });
            }
            return self.waiting.push_back(request);
        }
        let (at, from) = (*at, from.clone());
        let number = self.number();
        self.keep(number, at, &from);
        let mut stops_after = lock(&self.handle.0.stops_after);
        if let Some(left) = *stops_after {
            self.handle.0.stopped.fetch_or(left == 0, Ordering::AcqRel);
            *stops_after = left.checked_sub(1);
        }
        drop(stops_after);
        let Some(side) = &mut self.side else { return self.done.push(request.ended(Ok(()))) };
        let record = Record { epoch: side.epoch, number, kind: RecordKind::Unflushed, at, length: from.len() as u64 };
        match side.append(&record, &from, Some(number)) {
            Ok(()) => _ = self.recorded.insert(number, request),
            Err(error) => self.done.push(request.ended(Err(error))),
        }
    }

    /// Begins what is next for the base.
    fn begin_step(&mut self) {
        let Some(Step { request, upto, phase: phase @ Phase::Waits }) = self.steps.front_mut() else { return };
        let mut parts = Vec::new();
        match request.as_ref().map(|request| &request.work) {
            Some(Work::Write { at, from, .. }) => parts.push(Work::Write { at: *at, from: from.clone(), fua: true }),
            Some(Work::Zero { at, length }) => parts.push(Work::Zero { at: *at, length: *length }),
            Some(Work::Discard { at, length }) => parts.push(Work::Discard { at: *at, length: *length }),
            _ => {
                // All that is in the cache now, in runs of sectors.
                *upto = self.next - 1;
                let mut runs: Vec<(u64, Vec<Sector>)> = Vec::new();
                for (sector, versions) in &self.cached {
                    let Some((_, content)) = versions.last() else { continue };
                    match runs.last_mut().filter(|(first, run)| first + run.len() as u64 == *sector && run.len() < RUN)
                    {
                        Some((_, run)) => run.push(content.clone()),
                        None => runs.push((*sector, vec![content.clone()])),
                    }
                }
                for (first, run) in runs {
                    let length = run.len() * SECTOR_BYTES as usize;
                    let Some(mut into) = buffer(length) else {
                        *phase = Phase::Writes(0, Err(DeviceError::NoMemory));
                        return;
                    };
                    for (place, content) in into.as_chunks_mut::<{ SECTOR_BYTES as usize }>().0.iter_mut().zip(&run) {
                        *place = **content;
                    }
                    parts.push(Work::Write { at: first * SECTOR_BYTES, from: Bytes::prefix(into, length), fua: false });
                }
            }
        }
        *phase = Phase::Writes(parts.len(), Ok(()));
        self.queue.extend(parts.into_iter().map(|work| Request { tag: STEP, work }));
    }

    /// Goes on with what is under way at the base; whether it went on.
    fn advance(&mut self) -> bool {
        self.begin_step();
        let Some(step) = self.steps.front_mut() else { return false };
        let of_range = step.request.as_ref().and_then(|request| request.work.range());
        match step.phase {
            Phase::Writes(0, Err(error)) => self.end_step(Err(error)),
            Phase::Writes(0, Ok(())) if of_range.is_none() => {
                step.phase = Phase::Flushes;
                self.queue.push_back(Request { tag: STEP, work: Work::Flush });
            }
            Phase::Writes(0, Ok(())) => self.record_step(),
            _ => return false,
        }
        true
    }

    /// The side file learns what is stable now.
    fn record_step(&mut self) {
        let Some(step) = self.steps.front_mut() else { return };
        step.phase = Phase::Records;
        let (at, length) = step.request.as_ref().and_then(|request| request.work.range()).unwrap_or_default();
        let upto = step.upto;
        self.settle(at, length, upto);
        let Some(side) = &mut self.side else { return self.end_step(Ok(())) };
        let recorded = if self.cached.is_empty() {
            side.begin_again(upto)
        } else {
            let record = Record { epoch: side.epoch, number: upto, kind: RecordKind::Settled, at, length };
            side.append(&record, &[], None)
        };
        if recorded.is_err() {
            self.end_step(recorded);
        }
    }

    fn end_step(&mut self, result: Result<(), DeviceError>) {
        let Some(step) = self.steps.pop_front() else { return };
        self.done.extend(step.request.map(|request| request.ended(result)));
        for request in std::mem::take(&mut self.waiting) {
            if result.is_err() {
                self.done.push(request.ended(result));
            } else {
                self.cache(request);
            }
        }
    }

    fn base_ended(&mut self, Completion { tag, mut work, result }: Completion) {
        if tag == STEP {
            match self.steps.front_mut().map(|step| &mut step.phase) {
                Some(Phase::Writes(left, so_far)) => {
                    *left -= 1;
                    *so_far = so_far.and(result);
                }
                Some(Phase::Flushes) if result.is_ok() => self.record_step(),
                Some(Phase::Flushes) => self.end_step(result),
                _ => {}
            }
            return;
        }
        let Some((tag, before)) = self.reads.remove(&tag) else { return };
        if let Work::Read { at, length, into } = &mut work {
            let now = self.newest(*at, *length as u64);
            apply(before.iter().map(|(sector, content)| (sector, content)), *at, &mut into[..*length]);
            apply(now.iter().map(|(sector, content)| (sector, content)), *at, &mut into[..*length]);
        }
        self.done.push(Completion { tag, work, result });
    }

    fn turn(&mut self) -> bool {
        let mut found = self.advance();
        if !self.queue.is_empty() {
            self.base.submit(&mut self.queue);
        }
        let mut polled = std::mem::take(&mut self.polled);
        found |= self.base.poll(&mut polled) > 0;
        polled.drain(..).for_each(|completion| self.base_ended(completion));
        self.polled = polled;
        let Some(side) = &mut self.side else { return found };
        let written = side.turn();
        found |= written.is_some();
        match written {
            Some((Some(number), result)) => {
                self.done.extend(self.recorded.remove(&number).map(|request| request.ended(result)));
            }
            Some((None, result)) => self.end_step(result),
            None => {}
        }
        found
    }
}

impl VolatileSide {
    /// From its beginning again: all that it has is stable.
    fn begin_again(&mut self, upto: u64) -> Result<(), DeviceError> {
        (self.epoch, self.end) = (self.epoch + 1, 0);
        let record = Record { epoch: self.epoch, number: upto, kind: RecordKind::Settled, at: 0, length: 0 };
        self.append(&record, &[], None)
    }

    fn append(&mut self, record: &Record, payload: &[u8], of: Option<u64>) -> Result<(), DeviceError> {
        let room = record.room() as usize;
        let mut into = buffer(room).ok_or(DeviceError::NoMemory)?;
        into[BLOCK..room].fill(0);
        into[BLOCK..BLOCK + payload.len()].copy_from_slice(payload);
        record.write(&mut into[..room]);
        self.records.push_back(Bytes::prefix(into, room));
        self.places.push_back(self.end);
        self.of.push_back(of);
        self.end += room as u64;
        Ok(())
    }

    /// Writes the next record, after the one before; whose record has been
    /// written, and how that ended.
    fn turn(&mut self) -> Option<(Option<u64>, Result<(), DeviceError>)> {
        if !self.writing
            && let (Some(from), Some(at)) = (self.records.front(), self.places.front())
        {
            let work = Work::Write { at: *at, from: from.clone(), fua: false };
            self.device.submit(&mut [Request { tag: 0, work }].into());
            self.writing = true;
        }
        let mut done = Vec::new();
        self.device.poll(&mut done);
        let Completion { result, .. } = done.pop()?;
        self.writing = false;
        self.records.pop_front();
        self.places.pop_front();
        Some((self.of.pop_front()?, result))
    }
}

impl VolatileHandle {
    /// It stops in the middle of what it does: behind so many more writes
    /// that are in its cache alone.
    pub fn stop_after(&self, writes: u64) {
        *lock(&self.0.stops_after) = Some(writes);
    }

    /// Whether it has stopped, and answers nobody any more.
    pub fn has_stopped(&self) -> bool {
        self.0.stopped.load(Ordering::Acquire)
    }

    /// From now on it calls a FLUSH done and does nothing.
    pub fn lie(&self) {
        self.0.lies.store(true, Ordering::Relaxed);
    }

    /// Sectors in the cache.
    pub fn cached(&self) -> u64 {
        self.0.cached.load(Ordering::Acquire)
    }
}

impl XorShift {
    /// From a seed.
    pub fn of(seed: u64) -> XorShift {
        XorShift(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Less than `bound`, or 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound.max(1)
    }
}

impl Device for Volatile {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        while self.reads.len() + self.recorded.len() + self.waiting.len() + self.steps.len() < REQUESTS_MAX
            && let Some(request) = batch.pop_front()
        {
            self.take(request);
        }
        while self.turn() {}
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        while self.turn() {}
        if self.handle.has_stopped() {
            self.done.clear();
        }
        let found = self.done.len();
        out.append(&mut self.done);
        found
    }

    fn arm(&mut self) -> bool {
        self.done.is_empty() && self.base.arm() && self.side.as_mut().is_none_or(|side| side.device.arm())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(|watch| watch.as_fd())
    }

    fn due(&self) -> Option<Instant> {
        let side = self.side.as_ref().and_then(|side| side.device.due());
        [self.base.due(), side].into_iter().flatten().min()
    }
}

fn apply<'a>(sectors: impl Iterator<Item = (&'a u64, &'a Sector)>, at: u64, bytes: &mut [u8]) {
    for (sector, content) in sectors {
        let place = (sector * SECTOR_BYTES - at) as usize;
        bytes[place..place + SECTOR_BYTES as usize].copy_from_slice(&content[..]);
    }
}

fn buffer(bytes: usize) -> Option<Buffer> {
    let segment = Segment::private(bytes).ok()?;
    let whole = segment.len();
    segment.carve(whole).pop()
}

/// Bytes that the cache holds before it is flushed by itself.
const CACHE_BYTES: u64 = 64 << 20;
/// Bytes of a side file: the cache's with its records.
pub const SIDE_BYTES: u64 = 2 * CACHE_BYTES;
/// Sectors of one write to the base.
const RUN: usize = 256;
const REQUESTS_MAX: usize = 1024;
/// The tag of a step's parts; reads have lower ones.
const STEP: u64 = u64::MAX;
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
