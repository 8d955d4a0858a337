//! A device in the hands of a check.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use overside_memory::{Buffer, Bytes, Segment};
use overside_verbs::SystemClock;
use overside_volume::{Completion, Device, Geometry, Request, Work};

use super::{DEVICE_BYTES_MIN, DeviceHarness};
use crate::Stop;
use crate::ends::owes;

/// A device, and what it has given back.
pub(super) struct Drive {
    pub(super) device: Box<dyn Device>,
    pub(super) geometry: Geometry,
    pub(super) unit: u64,
    next: u64,
    in_flight: usize,
    given: BTreeMap<u64, Completion>,
}

impl Drive {
    pub(super) fn open(harness: &dyn DeviceHarness) -> Result<Drive, Stop> {
        Self::over(harness.open())
    }

    pub(super) fn over(device: Box<dyn Device>) -> Result<Drive, Stop> {
        let geometry = device.geometry();
        owes!(geometry.bytes >= DEVICE_BYTES_MIN, "the harness gave a device of {} bytes only", geometry.bytes);
        owes!(geometry.unit_bytes <= 64 << 10, "units of {} bytes are too long for the suite", geometry.unit_bytes);
        Ok(Drive { device, geometry, unit: geometry.unit_bytes, next: 0, in_flight: 0, given: BTreeMap::new() })
    }

    /// Submits all of them, whole; their tags.
    pub(super) fn submit_all(&mut self, works: impl IntoIterator<Item = Work>) -> Result<Vec<u64>, Stop> {
        let mut batch = VecDeque::new();
        let mut tags = Vec::new();
        for work in works {
            self.next += 1;
            tags.push(self.next);
            batch.push_back(Request { tag: self.next, work });
        }
        self.in_flight += batch.len();
        let limit = Instant::now() + WAIT;
        self.device.submit(&mut batch);
        while !batch.is_empty() {
            self.collect(limit)?;
            self.device.submit(&mut batch);
        }
        Ok(tags)
    }

    pub(super) fn submit(&mut self, work: Work) -> Result<u64, Stop> {
        Ok(self.submit_all([work])?[0])
    }

    /// Takes what has ended; waits where nothing has.
    pub(super) fn collect(&mut self, limit: Instant) -> Result<(), Stop> {
        let mut out = Vec::new();
        let found = self.device.poll(&mut out);
        owes!(found == out.len(), "poll said {found} and gave {} requests back", out.len());
        for completion in out {
            owes!(self.in_flight > 0, "more requests came back than were submitted");
            self.in_flight -= 1;
            let tag = completion.tag;
            owes!(tag != 0 && tag <= self.next, "a request with the unknown tag {tag} came back");
            owes!(self.given.insert(tag, completion).is_none(), "the request with the tag {tag} came back twice");
        }
        owes!(Instant::now() < limit, "a request did not come back within {WAIT:?}");
        if found == 0 {
            // Not by the descriptor alone: `arm` is a sentence of its own.
            let look = Some(Instant::now() + Duration::from_millis(1));
            overside_volume::wait(&mut *self.device, &SystemClock, look)?;
        }
        Ok(())
    }

    /// The request's end.
    pub(super) fn until(&mut self, tag: u64) -> Result<Completion, Stop> {
        let limit = Instant::now() + WAIT;
        loop {
            if let Some(completion) = self.given.remove(&tag) {
                return Ok(completion);
            }
            self.collect(limit)?;
        }
    }

    /// What has come back of a request, if it has.
    pub(super) fn given(&mut self, tag: u64) -> Option<Completion> {
        self.given.remove(&tag)
    }

    /// A request that must succeed.
    pub(super) fn done(&mut self, work: Work) -> Result<Completion, Stop> {
        let tag = self.submit(work)?;
        let completion = self.until(tag)?;
        owes!(completion.result.is_ok(), "a request failed that must not: {:?}", completion.result);
        Ok(completion)
    }

    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Stop> {
        self.done(Work::Write { at, from: filled(bytes), fua: false }).map(drop)
    }

    pub(super) fn read(&mut self, at: u64, length: usize) -> Result<Vec<u8>, Stop> {
        let completion = self.done(Work::Read { at, length, into: buffer(length) })?;
        let buffer = completion.buffer();
        let Some(buffer) = buffer else { return Err(Stop::Broken("a READ came back without its buffer".into())) };
        Ok(buffer[..length].to_vec())
    }

    /// So many requests are with the device.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }
}

/// Zeroed pages.
pub(super) fn buffer(length: usize) -> Buffer {
    Segment::private(length).expect("the suite's memory").carve(length).pop().expect("one buffer")
}

/// Bytes to be written.
pub(super) fn filled(bytes: &[u8]) -> Bytes {
    let mut buffer = buffer(bytes.len());
    buffer[..bytes.len()].copy_from_slice(bytes);
    Bytes::prefix(buffer, bytes.len())
}

/// Bytes that differ from place to place and from seed to seed.
pub(super) fn pattern(seed: u64, length: u64) -> Vec<u8> {
    let word = |i: u64| (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i.wrapping_mul(0xd134_2543_de82_ef95);
    (0..length / 8).flat_map(|i| word(i).rotate_left(31).to_le_bytes()).collect()
}

/// A check's own numbers, the same each time: a linear congruential generator.
pub(super) struct Lcg(pub(super) u64);

impl Lcg {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % limit
    }
}

/// A device that takes longer for a request hangs.
pub(super) const WAIT: Duration = Duration::from_secs(20);
