//! Descriptors to wait on, and calls that do not wait.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use overside_volume::{Device, Request, Work};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::DeviceHarness;
use super::drive::{Drive, WAIT, buffer, filled, pattern};
use crate::Stop;
use crate::ends::owes;

pub(super) fn nonblocking(harness: &dyn DeviceHarness) -> Result<(), Stop> {
    let mut drive = Drive::open(harness)?;
    let unit = drive.unit;
    let mut out = Vec::new();
    for round in 0..50 {
        let write = Work::Write { at: round * unit, from: filled(&pattern(round, unit)), fua: true };
        let read = Work::Read { at: round * unit, length: unit as usize, into: buffer(unit as usize) };
        let mut batch: VecDeque<Request> =
            [write, read, Work::Flush].into_iter().map(|work| Request { tag: 1, work }).collect();
        let started = Instant::now();
        drive.device.submit(&mut batch);
        drive.device.arm();
        drive.device.poll(&mut out);
        let took = started.elapsed();
        owes!(took < CALL, "a call took {took:?}: it waited for something");
    }
    Ok(())
}

pub(super) fn arm(harness: &dyn DeviceHarness) -> Result<(), Stop> {
    let mut drive = Drive::open(harness)?;
    let unit = drive.unit;
    for round in 0..60 {
        let work = match round % 4 {
            0 => Work::Write { at: round * unit, from: filled(&pattern(round, unit)), fua: round % 8 == 0 },
            1 => Work::Read { at: 0, length: unit as usize * 3, into: buffer(unit as usize * 3) },
            2 => Work::Flush,
            _ => Work::Zero { at: unit, length: unit * 2 },
        };
        let tag = drive.submit(work)?;
        let limit = Instant::now() + WAIT;
        loop {
            drive.collect_now()?;
            if drive.given(tag).is_some() {
                break;
            }
            owes!(
                drive.device.fd().is_some(),
                "without a descriptor, a request came back by a later poll than the first"
            );
            owes!(Instant::now() < limit, "a request did not come back within {WAIT:?}");
            let due = drive.device.due();
            if drive.device.arm() {
                // A device with a time may have nothing before that, but what it has is not to wait for it.
                let patience = due.map_or(WAIT, |due| due.saturating_duration_since(Instant::now()) / 2);
                let silent = !readable(&*drive.device, patience.min(WAIT));
                owes!(!silent || due.is_some(), "a request is in flight, and the armed descriptor stayed silent");
                let early = due.is_some_and(|due| Instant::now() < due);
                // It may end just now: then the descriptor tells of it.
                let ended = silent && early && !drive.device.arm();
                owes!(
                    !ended || readable(&*drive.device, MOMENT),
                    "something has ended before its time, and the armed descriptor stayed silent"
                );
            }
        }
    }
    Ok(())
}

pub(super) fn idle(harness: &dyn DeviceHarness) -> Result<(), Stop> {
    let mut drive = Drive::open(harness)?;
    let unit = drive.unit;
    for round in 0..5 {
        drive.write(round * unit, &pattern(round, unit))?;
        let limit = Instant::now() + WAIT;
        while !drive.device.arm() {
            drive.collect_now()?;
            owes!(Instant::now() < limit, "with nothing in flight, arm says for {WAIT:?} that something has happened");
        }
        let quiet = !readable(&*drive.device, Duration::from_millis(60));
        owes!(quiet, "with nothing in flight, the armed descriptor is readable");
    }
    Ok(())
}

impl Drive {
    /// Takes what has ended, and does not wait.
    fn collect_now(&mut self) -> Result<(), Stop> {
        let before = self.in_flight();
        if before > 0 && self.device.arm() && self.device.fd().is_some() && !readable(&*self.device, Duration::ZERO) {
            return Ok(());
        }
        self.collect(Instant::now() + WAIT)
    }
}

fn readable(device: &dyn Device, within: Duration) -> bool {
    let Some(fd) = device.fd() else {
        // It is asked after a poll alone, and then there is nothing to wait for.
        return false;
    };
    let timeout = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
    let mut watched = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    rustix::event::poll(&mut watched, Some(&timeout)).is_ok_and(|found| found > 0)
}

/// What has just ended shows within this.
const MOMENT: Duration = Duration::from_millis(200);
/// No call that does not wait takes as long, on a machine with much else to do.
const CALL: Duration = Duration::from_secs(5);
