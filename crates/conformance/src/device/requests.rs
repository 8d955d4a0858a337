//! What goes in, what comes back, and what is refused.

use std::collections::VecDeque;
use std::time::Instant;

use overside_volume::{DeviceError, Hint, Request, Work};

use super::DeviceHarness;
use super::drive::{Drive, WAIT, buffer, filled, pattern};
use crate::Stop;
use crate::ends::owes;

pub(super) fn geometry(harness: &dyn DeviceHarness) -> Result<(), Stop> {
    let mut drive = Drive::open(harness)?;
    let first = drive.geometry;
    owes!(first.unit_bytes.is_power_of_two() && first.unit_bytes >= 512, "a unit has {} bytes", first.unit_bytes);
    owes!(first.bytes.is_multiple_of(first.unit_bytes), "the device ends in the middle of a unit");
    owes!(!first.read_only, "the harness gave a device that can only be read");
    drive.write(first.bytes - first.unit_bytes, &pattern(1, first.unit_bytes))?;
    drive.done(Work::Flush)?;
    owes!(drive.device.geometry() == first, "the geometry changed");
    Ok(())
}

pub(super) fn accept(harness: &dyn DeviceHarness) -> Result<(), Stop> {
    const REQUESTS: u64 = 3000;
    let mut drive = Drive::open(harness)?;
    let (unit, units) = (drive.unit, drive.geometry.bytes / drive.unit);
    let work = |tag: u64| Work::Read { at: tag % units * unit, length: unit as usize, into: buffer(unit as usize) };
    let mut batch: VecDeque<Request> = (0..REQUESTS).map(|tag| Request { tag, work: work(tag) }).collect();
    let (mut back, mut out, limit) = (0, Vec::new(), Instant::now() + WAIT);
    while back < REQUESTS {
        let (before, in_flight) = (batch.len(), REQUESTS - batch.len() as u64 - back);
        drive.device.submit(&mut batch);
        let left = batch.iter().map(|request| request.tag);
        owes!(left.eq(REQUESTS - batch.len() as u64..REQUESTS), "what was left of a batch is not its end");
        owes!(in_flight > 0 || before == 0 || batch.len() < before, "with nothing in flight no request was taken");
        back += drive.device.poll(&mut out) as u64;
        out.clear();
        owes!(Instant::now() < limit, "{back} of {REQUESTS} requests came back within {WAIT:?}");
        let look = Some(Instant::now() + std::time::Duration::from_millis(1));
        overside_volume::wait(&mut *drive.device, &overside_verbs::SystemClock, look)?;
    }
    Ok(())
}

pub(super) fn once(harness: &dyn DeviceHarness) -> Result<(), Stop> {
    let mut drive = Drive::open(harness)?;
    let unit = drive.unit;
    for round in 0..20u64 {
        let (into, from) = (buffer(unit as usize * 3), filled(&pattern(round, unit * 2)));
        let address = into.address();
        let works = [
            Work::Read { at: unit, length: unit as usize * 2, into },
            Work::Write { at: unit * 9, from: from.clone(), fua: round % 2 == 0 },
            Work::Zero { at: unit * 20, length: unit * 40 },
            Work::Discard { at: unit * 70, length: unit },
            Work::Hint { at: 0, length: unit, hint: Hint::WillNeed },
            Work::Flush,
        ];
        let tags = drive.submit_all(works)?;
        let mut back = Vec::new();
        for tag in tags {
            back.push(drive.until(tag)?);
        }
        owes!(back.iter().all(|completion| completion.result.is_ok()), "one of them failed: {back:?}");
        let same = matches!(&back[..], [read, write, zero, discard, hint, flush]
            if matches!(&read.work, Work::Read { at, length, into }
                if *at == unit && *length as u64 == unit * 2 && into.address() == address && into.len() as u64 == unit * 3)
            && matches!(&write.work, Work::Write { at, from: bytes, fua }
                if *at == unit * 9 && bytes.as_ptr() == from.as_ptr() && bytes.len() == from.len() && *fua == (round % 2 == 0))
            && matches!(zero.work, Work::Zero { at, length } if (at, length) == (unit * 20, unit * 40))
            && matches!(discard.work, Work::Discard { at, length } if (at, length) == (unit * 70, unit))
            && matches!(hint.work, Work::Hint { at: 0, length, hint: Hint::WillNeed } if length == unit)
            && matches!(flush.work, Work::Flush));
        owes!(same, "requests came back changed: {back:?}");
        drop(back);
        let whole = from.into_buffer();
        owes!(whole.is_ok(), "a WRITE came back, and its bytes are still held");
    }
    // Nothing comes back a second time.
    let limit = Instant::now() + WAIT;
    for _ in 0..20 {
        drive.collect(limit)?;
    }
    owes!(drive.in_flight() == 0, "{} requests never came back", drive.in_flight());
    Ok(())
}

/// Requests that there cannot be, of a device of `bytes` in units of `unit`.
fn absurd(unit: u64, bytes: u64) -> Vec<Work> {
    let ranges = [
        (0, 0),
        (bytes, unit),
        (bytes - unit, unit * 2),
        (bytes + unit, unit),
        (u64::MAX - unit + 1, unit),
        (u64::MAX - unit + 1, unit * 2),
        (1, unit),
        (unit / 2, unit),
        (0, unit - 1),
        (unit, unit + 1),
    ];
    let each = ranges.into_iter().flat_map(|(at, length)| {
        let from = || filled(&vec![0xab; length as usize]);
        [
            Work::Read { at, length: length as usize, into: buffer(length.max(1) as usize) },
            Work::Write { at, from: from(), fua: false },
            Work::Discard { at, length },
            Work::Zero { at, length },
            Work::Hint { at, length, hint: Hint::DontNeed },
        ]
    });
    // Longer than its buffer; longer than any memory.
    let long = [
        Work::Read { at: 0, length: unit as usize * 64, into: buffer(4096).split_at(unit.min(2048) as usize).0 },
        Work::Zero { at: 0, length: u64::MAX - unit + 1 },
        Work::Discard { at: unit, length: u64::MAX - unit + 1 },
    ];
    each.chain(long).collect()
}

pub(super) fn range(harness: &dyn DeviceHarness) -> Result<(), Stop> {
    let mut drive = Drive::open(harness)?;
    let (unit, bytes) = (drive.unit, drive.geometry.bytes);
    let edges = [0, bytes - unit * 4];
    for at in edges {
        drive.write(at, &pattern(at, unit * 4))?;
    }
    for work in absurd(unit, bytes) {
        let said = format!("{work:?}");
        let tag = drive.submit(work)?;
        let result = drive.until(tag)?.result;
        owes!(result == Err(DeviceError::Invalid), "{said} ended as {result:?}");
    }
    for at in edges {
        owes!(drive.read(at, unit as usize * 4)? == pattern(at, unit * 4), "a request that was refused changed bytes");
    }
    Ok(())
}

pub(super) fn apart(harness: &dyn DeviceHarness) -> Result<(), Stop> {
    let mut drive = Drive::open(harness)?;
    let (unit, bytes) = (drive.unit, drive.geometry.bytes);
    let bad = absurd(unit, bytes);
    let count = bad.len();
    let mixed = bad.into_iter().enumerate().flat_map(|(i, bad)| {
        let at = (i as u64 * 2) * unit;
        [bad, Work::Write { at, from: filled(&pattern(i as u64, unit)), fua: false }]
    });
    let tags = drive.submit_all(mixed)?;
    for (i, tag) in tags.into_iter().enumerate() {
        let result = drive.until(tag)?.result;
        owes!(result.is_ok() == (i % 2 == 1), "among requests that fail, number {i} ended as {result:?}");
    }
    for i in 0..count as u64 {
        let found = drive.read(i * 2 * unit, unit as usize)?;
        owes!(found == pattern(i, unit), "a WRITE among requests that fail is not there");
    }
    Ok(())
}

pub(super) fn read_only(harness: &dyn DeviceHarness) -> Result<(), Stop> {
    let Some(device) = harness.frozen() else {
        return Err(Stop::Skipped("the harness has no device that can only be read".into()));
    };
    let mut drive = Drive::over(device)?;
    let unit = drive.unit;
    owes!(drive.geometry.read_only, "the geometry does not say that the device can only be read");
    let before = drive.read(0, unit as usize)?;
    let write = Work::Write { at: 0, from: filled(&pattern(1, unit)), fua: true };
    for work in [write, Work::Zero { at: 0, length: unit }, Work::Discard { at: 0, length: unit }] {
        let tag = drive.submit(work)?;
        let result = drive.until(tag)?.result;
        owes!(result == Err(DeviceError::ReadOnly), "a request that writes ended as {result:?}");
    }
    drive.done(Work::Flush)?;
    owes!(drive.read(0, unit as usize)? == before, "a device that can only be read was written");
    Ok(())
}

pub(super) fn hint(harness: &dyn DeviceHarness) -> Result<(), Stop> {
    let mut drive = Drive::open(harness)?;
    let (unit, bytes) = (drive.unit, drive.geometry.bytes);
    drive.write(0, &pattern(5, unit * 8))?;
    for hint in [Hint::WillNeed, Hint::DontNeed, Hint::Sequential, Hint::Random] {
        drive.done(Work::Hint { at: 0, length: bytes, hint })?;
        owes!(drive.read(0, unit as usize * 8)? == pattern(5, unit * 8), "the hint {hint:?} changed bytes");
    }
    Ok(())
}

pub(super) fn check(harness: &dyn DeviceHarness) -> Result<(), Stop> {
    let mut drive = Drive::open(harness)?;
    let (unit, bytes) = (drive.unit, drive.geometry.bytes);
    for (seed, mend) in [(5, false), (6, true)] {
        drive.write(unit, &pattern(seed, unit * 8))?;
        for (at, length) in [(0, bytes), (unit * 3, unit)] {
            let looked = drive.done(Work::Check { at, length, mend, wrong: u64::MAX })?;
            let named = matches!(looked.work, Work::Check { wrong, .. } if wrong != 0);
            owes!(!named, "a CHECK names a member, and nothing is wrong: {looked:?}");
            let found = drive.read(unit, unit as usize * 8)?;
            owes!(found == pattern(seed, unit * 8), "a CHECK changed bytes");
        }
    }
    Ok(())
}
