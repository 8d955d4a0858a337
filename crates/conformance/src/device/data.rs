//! What is written is what is read.

use overside_volume::{SECTOR_BYTES, Work};

use super::DeviceHarness;
use super::drive::{Drive, Lcg, buffer, filled, pattern};
use crate::Stop;
use crate::ends::owes;

pub(super) fn own(harness: &dyn DeviceHarness) -> Result<(), Stop> {
    let mut drive = Drive::open(harness)?;
    let unit = drive.unit as usize;
    for (seed, at) in [(1, 0), (2, drive.unit * 3), (3, drive.unit * 3)] {
        let bytes = pattern(seed, drive.unit * 2);
        let from = filled(&bytes);
        drive.done(Work::Write { at, from: from.clone(), fua: seed == 2 })?;
        owes!(from[..] == bytes[..], "a WRITE changed the bytes that it was to write");
    }
    // A READ's buffer is longer than the READ.
    let mut into = buffer(unit * 4);
    into.fill(0xee);
    let read = drive.done(Work::Read { at: drive.unit * 3, length: unit * 2, into })?;
    let Some(into) = read.buffer() else { return Err(Stop::Broken("a READ came back without its buffer".into())) };
    owes!(into[..unit * 2] == pattern(3, drive.unit * 2)[..], "a READ did not find what was written last");
    owes!(into[unit * 2..unit * 4].iter().all(|byte| *byte == 0xee), "a READ wrote past its length");
    for seed in 10..20 {
        let bytes = pattern(seed, drive.unit * 2);
        drive.write(drive.unit * 3, &bytes)?;
        let _ = drive.read(drive.unit * 3, unit)?;
    }
    owes!(into[..unit * 2] == pattern(3, drive.unit * 2)[..], "a READ's bytes changed after it was given back");
    Ok(())
}

pub(super) fn zeros(harness: &dyn DeviceHarness) -> Result<(), Stop> {
    let mut drive = Drive::open(harness)?;
    let unit = drive.unit;
    for at in [0, unit * 5, drive.geometry.bytes - unit * 3] {
        let bytes = drive.read(at, unit as usize * 3)?;
        owes!(bytes.iter().all(|byte| *byte == 0), "bytes at {at} are no zeros, and nothing was written there");
    }
    for zero in [true, false] {
        let written = pattern(7, unit * 9);
        drive.write(unit * 2, &written)?;
        let (at, length) = (unit * 4, unit * 3);
        drive.done(if zero { Work::Zero { at, length } } else { Work::Discard { at, length } })?;
        let mut expected = written;
        expected[unit as usize * 2..unit as usize * 5].fill(0);
        let what = if zero { "ZERO" } else { "DISCARD" };
        owes!(
            drive.read(unit * 2, unit as usize * 9)? == expected,
            "after a {what} not all of it, or more, reads as zeros"
        );
        drive.write(unit * 5, &pattern(8, unit))?;
        owes!(
            drive.read(unit * 5, unit as usize)? == pattern(8, unit),
            "what a {what} covered cannot be written again"
        );
        // Longer than any step in which it may be done.
        let all = drive.geometry.bytes;
        drive.write(all - unit, &pattern(9, unit))?;
        drive.done(if zero { Work::Zero { at: 0, length: all } } else { Work::Discard { at: 0, length: all } })?;
        for at in [0, unit * 5, all - unit] {
            owes!(drive.read(at, unit as usize)?.iter().all(|byte| *byte == 0), "a long {what} left bytes at {at}");
        }
    }
    Ok(())
}

/// Held against a model: rounds of requests that do not overlap each other, of any lengths.
pub(super) fn written(harness: &dyn DeviceHarness) -> Result<(), Stop> {
    let mut drive = Drive::open(harness)?;
    let mut chance = Lcg(1);
    let (unit, units) = (drive.unit, 96.min(drive.geometry.bytes / drive.unit));
    // At the end, where arrays and files have their edges.
    let base = drive.geometry.bytes - units * unit;
    let mut model = vec![0u8; (units * unit) as usize];
    for round in 0..60 {
        let (mut at, mut works, mut reads) = (chance.below(8), Vec::new(), Vec::new());
        while at < units {
            let length = (1 + chance.below(12)).min(units - at);
            let range = (at * unit) as usize..((at + length) * unit) as usize;
            let (place, bytes) = (base + at * unit, length * unit);
            match chance.below(8) {
                0..3 => {
                    model[range.clone()].copy_from_slice(&pattern(round * 100 + at, bytes));
                    works.push(Work::Write { at: place, from: filled(&model[range]), fua: chance.below(4) == 0 });
                }
                3 => {
                    model[range].fill(0);
                    works.push(Work::Discard { at: place, length: bytes });
                }
                4 => {
                    model[range].fill(0);
                    works.push(Work::Zero { at: place, length: bytes });
                }
                5 => works.push(Work::Flush),
                _ => {
                    reads.push((works.len(), model[range].to_vec()));
                    works.push(Work::Read { at: place, length: bytes as usize, into: buffer(bytes as usize) });
                }
            }
            at += length + chance.below(3);
        }
        let tags = drive.submit_all(works)?;
        for (place, tag) in tags.into_iter().enumerate() {
            let completion = drive.until(tag)?;
            owes!(completion.result.is_ok(), "round {round}: a request failed: {:?}", completion.result);
            let Some((_, expected)) = reads.iter().find(|(of, _)| *of == place) else { continue };
            let found = completion.buffer();
            owes!(
                found.is_some_and(|found| found[..expected.len()] == expected[..]),
                "round {round}: a READ found something else than what was written last"
            );
        }
        if round % 10 == 9 {
            owes!(drive.read(base, model.len())? == model, "round {round}: the whole is not what was written");
        }
    }
    Ok(())
}

pub(super) fn overlap(harness: &dyn DeviceHarness) -> Result<(), Stop> {
    let mut drive = Drive::open(harness)?;
    let unit = drive.unit;
    for round in 0..20 {
        let ranges = [(0, 8), (4, 8), (6, 1), (2, 9), (0, 12)];
        let bytes: Vec<Vec<u8>> = (0..5).map(|seed| pattern(round * 10 + seed, 12 * unit)).collect();
        let write = |(seed, (at, length)): (usize, &(u64, u64))| {
            let (from, to) = ((at * unit) as usize, ((at + length) * unit) as usize);
            Work::Write { at: at * unit, from: filled(&bytes[seed][from..to]), fua: false }
        };
        let tags = drive.submit_all(ranges.iter().enumerate().map(write))?;
        for tag in tags {
            let result = drive.until(tag)?.result;
            owes!(result.is_ok(), "a WRITE that overlaps others failed: {result:?}");
        }
        let first = drive.read(0, 12 * unit as usize)?;
        let sector = SECTOR_BYTES as usize;
        for at in (0..first.len()).step_by(sector) {
            let candidates = ranges.iter().enumerate().filter(|(_, (from, length))| {
                let place = at as u64;
                from * unit <= place && place < (from + length) * unit
            });
            let is_one =
                candidates.map(|(seed, _)| &bytes[seed]).any(|of| of[at..at + sector] == first[at..at + sector]);
            owes!(is_one, "round {round}: the sector at {at} is none of what was written there");
        }
        for again in 0..4 {
            owes!(
                drive.read(0, 12 * unit as usize)? == first,
                "round {round}: READ {again} of what overlapping writes left differs from the first"
            );
        }
    }
    Ok(())
}

pub(super) fn durable(harness: &dyn DeviceHarness) -> Result<(), Stop> {
    let mut drive = Drive::open(harness)?;
    let unit = drive.unit;
    // Whether or not it can lose power, both are done.
    drive.write(0, &pattern(1, unit * 4))?;
    drive.done(Work::Flush)?;
    drive.done(Work::Write { at: unit * 8, from: filled(&pattern(2, unit * 4)), fua: true })?;
    drive.write(unit * 16, &pattern(3, unit * 4))?;
    let Some(device) = harness.lose_power(drive.device) else {
        return Err(Stop::Skipped("the harness cannot take its power away".into()));
    };
    let mut drive = Drive::over(device)?;
    owes!(drive.read(0, unit as usize * 4)? == pattern(1, unit * 4), "what a FLUSH covered is gone");
    owes!(drive.read(unit * 8, unit as usize * 4)? == pattern(2, unit * 4), "what was written with FUA is gone");
    let rest = drive.read(unit * 16, unit as usize * 4)?;
    let new = pattern(3, unit * 4);
    let sector = SECTOR_BYTES as usize;
    for (at, bytes) in rest.chunks(sector).enumerate() {
        let new = &new[at * sector..(at + 1) * sector];
        owes!(bytes == new || bytes.iter().all(|byte| *byte == 0), "a sector is neither old nor new");
    }
    Ok(())
}
