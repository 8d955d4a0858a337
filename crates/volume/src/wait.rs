//! Waiting for a device, for callers who have nothing else to do.

use std::time::{Duration, Instant};

use overside_verbs::spin::{Expects, Spin, Wait};
use overside_verbs::{Clock, VerbsError};

use crate::device::{Completion, Device, DeviceError, Request, Work};

/// Sleeps until `device` has something to give back or wants to be polled, at most until `until`.
/// It may return earlier.
///
/// # Errors
/// When the system refuses to wait.
pub fn wait(device: &mut dyn Device, clock: &dyn Clock, until: Option<Instant>) -> Result<(), VerbsError> {
    if !device.arm() {
        return Ok(());
    }
    let until = [until, device.due()].into_iter().flatten().min();
    match device.fd() {
        Some(fd) => clock.wait(&[fd], until),
        None => clock.wait(&[], Some(until.unwrap_or_else(|| clock.now()))),
    }
}

/// Waits for one device again and again: it polls before it sleeps where that has paid of late, by
/// the one policy of all who wait ([`overside_verbs::spin`]).
#[derive(Debug)]
pub struct Waiter {
    how: Completions,
    spin: Spin,
}

/// How a caller learns of what has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Completions {
    /// It polls before it sleeps where that has paid of late.
    #[default]
    Auto,
    /// It sleeps until its descriptor is readable.
    Interrupt,
    /// It polls, and never sleeps.
    Poll,
}

impl Default for Waiter {
    fn default() -> Waiter {
        Waiter::new(Completions::Auto)
    }
}

impl Waiter {
    /// One that waits so.
    pub fn new(how: Completions) -> Waiter {
        Waiter { how, spin: Spin::new(SPIN) }
    }

    /// Polls `device`, and waits until it has something to give back or wants to be polled, at most
    /// until `until`. It may return earlier. How many completions were appended.
    ///
    /// # Errors
    /// When the system refuses to wait.
    pub fn poll(
        &mut self,
        device: &mut dyn Device,
        clock: &dyn Clock,
        until: Option<Instant>,
        out: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError> {
        let found = device.poll(out);
        if found > 0 {
            return Ok(found);
        }
        match self.how {
            Completions::Auto => {}
            Completions::Interrupt => {
                wait(device, clock, until)?;
                return Ok(device.poll(out));
            }
            Completions::Poll => {
                for _ in 0..POLLS_MAX {
                    let found = device.poll(out);
                    if found > 0 || until.is_some_and(|until| clock.now() >= until) {
                        return Ok(found);
                    }
                    std::hint::spin_loop();
                }
                return Ok(0);
            }
        }
        let how = self.spin.begin(Expects::Answer);
        if let Wait::Poll(budget) = how {
            let end = clock.now() + budget;
            let end = until.map_or(end, |until| until.min(end));
            // A clock that stands must not keep it from sleeping.
            for _ in 0..POLLS_MAX {
                let found = device.poll(out);
                if found > 0 {
                    self.spin.found();
                    return Ok(found);
                }
                if clock.now() >= end {
                    break;
                }
                std::hint::spin_loop();
            }
        }
        let start = (how != Wait::Unpolled { watched: false }).then(|| clock.now());
        wait(device, clock, until)?;
        let slept = start.map(|start| clock.now().saturating_duration_since(start));
        let found = device.poll(out);
        self.spin.slept(how, slept, found > 0);
        Ok(found)
    }
}

/// Carries one request out and waits for it, at most for `patience`. Nothing else may be in flight.
/// The request comes back, unless the device still has it after that time.
///
/// # Errors
/// Why it failed; [`DeviceError::Unreachable`] where it took longer.
pub fn complete(
    device: &mut dyn Device,
    clock: &dyn Clock,
    work: Work,
    patience: Duration,
) -> (Option<Work>, Result<(), DeviceError>) {
    let until = clock.now() + patience;
    let mut batch = [Request { tag: 0, work }].into();
    let mut done: Vec<Completion> = Vec::new();
    loop {
        device.submit(&mut batch);
        if device.poll(&mut done) > 0
            && let Some(completion) = done.pop()
        {
            return (Some(completion.work), completion.result);
        }
        if clock.now() >= until || wait(device, clock, Some(until)).is_err() {
            return (batch.pop_front().map(|request| request.work), Err(DeviceError::Unreachable));
        }
    }
}

/// How long it polls before it sleeps, where that has paid of late; a try after it was in vain
/// takes three times as long.
const SPIN: Duration = Duration::from_micros(50);
/// More polls take longer than that in any case.
const POLLS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::os::fd::BorrowedFd;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::Geometry;

    /// Gives back after so many polls, or a sleep, what it was asked for.
    #[derive(Debug)]
    struct After {
        polls: usize,
        since: usize,
        slept: bool,
        asked: VecDeque<Request>,
    }

    impl Device for After {
        fn geometry(&self) -> Geometry {
            Geometry { bytes: 4096, unit_bytes: 512, read_only: false }
        }
        fn submit(&mut self, batch: &mut VecDeque<Request>) {
            self.asked.append(batch);
            (self.since, self.slept) = (0, false);
        }
        fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
            self.since += 1;
            let found = if self.since > self.polls || self.slept { self.asked.pop_front() } else { None };
            let found = found.map(|request| request.ended(Ok(())));
            let count = found.iter().count();
            out.extend(found);
            count
        }
        fn arm(&mut self) -> bool {
            self.slept = true;
            true
        }
        fn fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    /// Time passes in waits alone, a little each.
    #[derive(Debug)]
    struct Standing(Instant, AtomicU64);

    impl Clock for Standing {
        fn now(&self) -> Instant {
            self.0 + Duration::from_micros(self.1.load(Ordering::SeqCst))
        }
        fn wait(&self, _: &[BorrowedFd<'_>], _: Option<Instant>) -> Result<(), VerbsError> {
            self.1.fetch_add(3, Ordering::SeqCst);
            Ok(())
        }
        fn fill(&self, bytes: &mut [u8]) -> Result<(), VerbsError> {
            bytes.fill(1);
            Ok(())
        }
    }

    /// Sleeps and polls that so many requests took, one after the other.
    fn took(waiter: &mut Waiter, polls: usize, requests: usize) -> (u64, usize) {
        let clock = Standing(Instant::now(), AtomicU64::new(0));
        let (mut device, mut all) = (After { polls, since: 0, slept: false, asked: VecDeque::new() }, 0);
        for tag in 0..requests as u64 {
            device.submit(&mut [Request { tag, work: Work::Flush }].into());
            let mut done = Vec::new();
            while waiter.poll(&mut device, &clock, None, &mut done).unwrap() == 0 {}
            assert_eq!(done.iter().map(|completion| completion.tag).collect::<Vec<_>>(), [tag]);
            all += device.since;
        }
        (clock.1.load(Ordering::SeqCst) / 3, all)
    }

    #[test]
    fn who_says_how_it_waits_polls_alone_or_sleeps_at_once() {
        let (sleeps, polls) = took(&mut Waiter::new(Completions::Poll), 3 * POLLS_MAX, 5);
        assert_eq!((sleeps, polls), (0, 5 * (3 * POLLS_MAX + 1)), "who polls never sleeps");
        let (sleeps, polls) = took(&mut Waiter::new(Completions::Interrupt), 100, 50);
        assert_eq!((sleeps, polls), (50, 50 * 2), "who sleeps looks once before and once after");
    }

    #[test]
    fn it_polls_where_that_pays_and_sleeps_where_it_does_not() {
        let mut waiter = Waiter::default();
        assert_eq!(took(&mut waiter, 100, 50), (0, 50 * 101), "what comes soon is not slept for");
        let (sleeps, polls) = took(&mut waiter, usize::MAX, 1000);
        assert_eq!(sleeps, 1000);
        assert!(polls < 20 * POLLS_MAX, "polling in vain becomes rare: {polls}");
    }
}
