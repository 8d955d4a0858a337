//! Requests at random places, so many at a time.

use super::pattern::Pattern;
use crate::output::{Progress, grouped};
use crate::signals::Signals;
use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use overside::memory::{Buffer, Bytes, Segment};
use overside::vault::trace::TraceRequest;
use overside::verbs::{Clock, SystemClock};
use overside::volume::client::Volume;
use overside::volume::{Completion, Completions, Device, DeviceError, Request, Waiter, Work};
use overside_bench::SplitMix64;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What is asked of the volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) mix: Mix,
    /// Bytes of a request; of a trace's longest.
    pub(super) bs: u64,
    /// Requests under way.
    pub(super) depth: usize,
    /// None: until the trace ends.
    pub(super) time: Option<Duration>,
    pub(super) verifies: bool,
    pub(super) seed: u64,
}

/// Which requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mix {
    Reads,
    Writes,
    /// As many of each.
    Both,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) took: Duration,
    /// In nanoseconds.
    pub(super) latencies: Histogram<u64>,
    /// Sectors that were held against what was written.
    pub(super) checked: u64,
    pub(super) corrupt: u64,
    pub(super) errors: u64,
    pub(super) first_corrupt: Option<String>,
    pub(super) first_error: Option<DeviceError>,
    pub(super) is_interrupted: bool,
}

/// A volume under load.
pub(super) struct Load {
    volume: Volume,
    waiter: Waiter,
    plan: Plan,
    random: SplitMix64,
    pattern: Option<Pattern>,
    /// What is asked for instead of places at random.
    trace: Option<std::vec::IntoIter<TraceRequest>>,
    /// Bytes of the volume that are used.
    bytes: u64,
    unit: u64,
    free: Vec<Buffer>,
    /// By tag.
    under_way: Vec<Option<InFlight>>,
    tags: Vec<u64>,
    queue: VecDeque<Request>,
    ended: Vec<Completion>,
    outcome: Outcome,
}

struct InFlight {
    since: Instant,
    /// Generations of what a READ must find.
    expected: Vec<u32>,
    /// A WRITE's.
    generation: u32,
}

impl Mix {
    pub(super) fn parse(text: &str) -> Mix {
        match text {
            "randread" => Mix::Reads,
            "randwrite" => Mix::Writes,
            _ => Mix::Both,
        }
    }
}

impl Outcome {
    pub(super) fn ios(&self) -> u64 {
        self.reads + self.writes
    }
}

impl Load {
    pub(super) fn new(
        volume: Volume,
        plan: Plan,
        completions: Completions,
        trace: Option<Vec<TraceRequest>>,
    ) -> Result<Load> {
        let geometry = volume.geometry();
        let mut random = SplitMix64(plan.seed);
        if plan.seed == 0 {
            let mut bytes = [0; 8];
            SystemClock.fill(&mut bytes)?;
            random = SplitMix64(u64::from_le_bytes(bytes));
        }
        let bytes = if plan.verifies { geometry.bytes.min(VERIFIED_BYTES_MAX) } else { geometry.bytes };
        let bs = plan.bs as usize;
        // Of memory that a node may read from.
        let free = Segment::shared(bs * plan.depth).context("no memory for the requests")?.carve(bs);
        let mut free: Vec<Buffer> = free.into_iter().take(plan.depth).collect();
        for buffer in &mut free {
            // No disk should find it easier than real data.
            buffer.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&random.word().to_le_bytes()[..chunk.len()]));
        }
        let pattern = plan.verifies.then(|| Pattern::new(random.word(), bytes));
        Ok(Load {
            volume,
            waiter: Waiter::new(completions),
            plan,
            random,
            pattern,
            trace: trace.map(Vec::into_iter),
            bytes,
            unit: geometry.unit_bytes,
            free,
            under_way: (0..plan.depth).map(|_| None).collect(),
            tags: (0..plan.depth as u64).collect(),
            queue: VecDeque::new(),
            ended: Vec::new(),
            outcome: Outcome {
                reads: 0,
                writes: 0,
                took: Duration::ZERO,
                latencies: Histogram::new_with_max(LATENCY_NS_MAX, 3).context("no histogram can be made")?,
                checked: 0,
                corrupt: 0,
                errors: 0,
                first_corrupt: None,
                first_error: None,
                is_interrupted: false,
            },
        })
    }

    /// Lets requests run for the plan's time or until a signal comes, and then checks all that was
    /// written.
    ///
    /// # Errors
    /// Nothing can be carried out any more.
    pub(super) fn run(&mut self, signals: &Signals) -> Result<Outcome> {
        let start = SystemClock.now();
        let end = self.plan.time.map(|time| start + time);
        let whole = self.plan.time.map(|time| time.as_millis() as u64);
        let lines = self.trace.as_ref().map_or(0, |trace| trace.len() as u64);
        let progress = Progress::new("measuring", whole.unwrap_or(lines));
        loop {
            let now = SystemClock.now();
            self.outcome.is_interrupted = signals.check().is_err();
            if end.is_some_and(|end| now >= end) || self.outcome.is_interrupted || self.outcome.errors >= ERRORS_MAX {
                break;
            }
            while !self.free.is_empty()
                && self.trace.as_ref().is_none_or(|trace| trace.len() > 0)
                && let Some(tag) = self.tags.pop()
            {
                self.ask(tag, now);
            }
            if self.trace.as_ref().is_some_and(|trace| trace.len() == 0) {
                break;
            }
            self.step(end)?;
            let done = self.outcome.ios();
            let part = whole.map_or(done, |_| (now - start).as_millis() as u64);
            progress.at(part, || format!("{} requests", grouped(done)));
        }
        self.drain(signals)?;
        self.outcome.took = SystemClock.now() - start;
        drop(progress);
        // The last check is no part of what is measured.
        let (latencies, reads) = (self.outcome.latencies.clone(), self.outcome.reads);
        if !self.outcome.is_interrupted && self.plan.mix != Mix::Reads {
            self.check_all(signals)?;
        }
        let outcome = &mut self.outcome;
        outcome.reads = reads;
        let (first_corrupt, first_error) = (outcome.first_corrupt.take(), outcome.first_error);
        Ok(Outcome { latencies, first_corrupt, first_error, ..*outcome })
    }

    /// Ends the session, so that another writer need not wait.
    pub(super) fn close(self) {
        self.volume.close(CLOSE_PATIENCE);
    }

    /// One request more.
    fn ask(&mut self, tag: u64, now: Instant) {
        if let Some(trace) = &mut self.trace {
            return match trace.next() {
                Some(TraceRequest { writes, offset, bytes }) => self.submit(tag, offset, bytes, !writes, now),
                None => self.tags.push(tag),
            };
        }
        let at = self.place();
        let is_read = match self.plan.mix {
            Mix::Reads => true,
            Mix::Writes => false,
            Mix::Both => self.random.below(2) == 0,
        };
        self.submit(tag, at, self.plan.bs, is_read, now);
    }

    /// A place at random. What is verified meets in few places, half of it across the borders of
    /// others, so that requests overlap in every way.
    fn place(&mut self) -> u64 {
        let bs = self.plan.bs;
        let is_hot = self.pattern.is_some() && self.random.below(2) == 0;
        let bytes = if is_hot { self.bytes.min(HOT * self.plan.depth as u64 * bs) } else { self.bytes };
        let step = if is_hot && self.random.below(2) == 0 { self.unit } else { bs };
        self.random.below((bytes - bs) / step + 1) * step
    }

    fn submit(&mut self, tag: u64, at: u64, length: u64, is_read: bool, now: Instant) {
        // A buffer and a tag are free together.
        let Some(mut buffer) = self.free.pop() else { return };
        let mut under_way = InFlight { since: now, expected: Vec::new(), generation: 0 };
        let work = if is_read {
            if let Some(pattern) = &self.pattern {
                under_way.expected = pattern.expected(at, length);
            }
            Work::Read { at, length: length as usize, into: buffer }
        } else {
            if let Some(pattern) = &mut self.pattern {
                under_way.generation = pattern.fill(at, &mut buffer[..length as usize]);
            }
            Work::Write { at, from: Bytes::prefix(buffer, length as usize), fua: false }
        };
        self.under_way[tag as usize] = Some(under_way);
        self.queue.push_back(Request { tag, work });
    }

    /// Hands requests over, and takes what has ended, for which it sleeps if nothing has.
    fn step(&mut self, until: Option<Instant>) -> Result<()> {
        self.volume.submit(&mut self.queue);
        if self.volume.poll(&mut self.ended) == 0 {
            // Signals are looked for now and then.
            let look = SystemClock.now() + LOOK;
            let until = until.map_or(look, |until| until.min(look));
            self.waiter.poll(&mut self.volume, &SystemClock, Some(until), &mut self.ended)?;
        }
        let (now, mut ended) = (SystemClock.now(), std::mem::take(&mut self.ended));
        let taken = ended.drain(..).try_for_each(|completion| self.ended(completion, now));
        self.ended = ended;
        taken
    }

    fn ended(&mut self, completion: Completion, now: Instant) -> Result<()> {
        let Completion { tag, work, result } = completion;
        let Some(under_way) = self.under_way.get_mut(tag as usize).and_then(Option::take) else {
            bail!("the volume gave a request back that it did not have; that is a bug, please report it");
        };
        self.tags.push(tag);
        let Outcome { latencies, reads, writes, .. } = &mut self.outcome;
        if result.is_ok() {
            latencies.saturating_record((now - under_way.since).as_nanos() as u64);
        }
        let buffer = match work {
            Work::Read { at, length, into } => {
                *reads += u64::from(result.is_ok());
                if let (Some(pattern), Ok(())) = (&self.pattern, result) {
                    self.outcome.checked += under_way.expected.len() as u64;
                    let first = &mut self.outcome.first_corrupt;
                    self.outcome.corrupt += pattern.check(at, &into[..length], &under_way.expected, first);
                }
                Some(into)
            }
            Work::Write { from, .. } => {
                *writes += u64::from(result.is_ok());
                if let (Some(pattern), Err(_)) = (&mut self.pattern, result) {
                    pattern.failed(under_way.generation);
                }
                from.into_buffer().ok()
            }
            _ => None,
        };
        let spare = || Segment::shared(self.plan.bs as usize).ok()?.carve(self.plan.bs as usize).pop();
        self.free.extend(buffer.or_else(spare));
        match result {
            Ok(()) => Ok(()),
            // Every later one would fail so.
            Err(error @ (DeviceError::Fenced | DeviceError::Unreachable | DeviceError::Refused)) => bail!(error),
            Err(error) => {
                self.outcome.errors += 1;
                self.outcome.first_error.get_or_insert(error);
                Ok(())
            }
        }
    }

    /// Waits until nothing is under way. A signal ends that soon.
    fn drain(&mut self, signals: &Signals) -> Result<()> {
        let mut until: Option<Instant> = None;
        while self.tags.len() < self.plan.depth {
            self.step(until)?;
            if signals.check().is_err() {
                self.outcome.is_interrupted = true;
                let now = SystemClock.now();
                if now >= *until.get_or_insert(now + INTERRUPTED_PATIENCE) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Reads all that is known to have been written.
    fn check_all(&mut self, signals: &Signals) -> Result<()> {
        let Some(pattern) = &self.pattern else { return Ok(()) };
        let (bytes, bs) = (self.bytes, self.plan.bs);
        let places: Vec<u64> =
            (0..bytes).step_by(bs as usize).filter(|at| pattern.knows(*at, bs.min(bytes - at))).collect();
        let progress = Progress::new("checking", places.len() as u64);
        for (number, at) in places.into_iter().enumerate() {
            while self.tags.is_empty() || self.free.is_empty() {
                self.step(None)?;
                if signals.check().is_err() {
                    return self.drain(signals);
                }
            }
            if let Some(tag) = self.tags.pop() {
                self.submit(tag, at, bs.min(bytes - at), true, SystemClock.now());
            }
            progress.at(number as u64, || format!("{number} blocks"));
        }
        self.drain(signals)
    }
}

/// Of each sector of these, four bytes of memory say what it should hold.
const VERIFIED_BYTES_MAX: u64 = 8 << 30;
/// Blocks for each request under way, where requests are to overlap.
const HOT: u64 = 4;
/// Whatever takes longer counts as this.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;
/// More say nothing new.
const ERRORS_MAX: u64 = 1000;
const LOOK: Duration = Duration::from_millis(100);
const INTERRUPTED_PATIENCE: Duration = Duration::from_secs(1);
pub(super) const CLOSE_PATIENCE: Duration = Duration::from_secs(1);
