//! How fast work in the background may go, so that those who wait for replies hardly notice it.
//!
//! The pace grows step by step and is halved whenever the p99.9 of what requests take passes twice
//! what it is without such work. It never falls below a floor, so that the work comes to its end.
//! [`Governor`] is a pure state machine: times and latencies come in as values. [`Pace`] feeds it
//! by a server's clock and by what its workers record.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use overside_service::{Latencies, Latency};
use overside_verbs::Clock;

use crate::wire::GovernorStatus;

/// Sets the pace of work in the background.
#[derive(Debug)]
pub(crate) struct Governor {
    /// In bytes a second, as the pace.
    floor: u64,
    pace: u64,
    /// Bytes that may be worked off at once. Below zero, the work has to pause.
    credit: i64,
    credited: Duration,
    /// Requests while nothing was done in the background.
    undisturbed: Latency,
    /// Requests since the last judgement, which was when, and the bytes worked off since.
    disturbed: Latency,
    judged: Duration,
    done: u64,
    looked: Duration,
    /// The work pauses until then, for it is not known what requests take without it.
    listens_until: Option<Duration>,
    /// What it last judged by.
    p999: Option<Duration>,
    halvings: u64,
    /// Pieces of work under way.
    works: usize,
}

impl Governor {
    /// For a pace of at least `floor` bytes a second.
    pub(crate) fn new(floor: u64) -> Governor {
        Governor {
            floor,
            pace: floor,
            credit: 0,
            credited: Duration::ZERO,
            undisturbed: Latency::default(),
            disturbed: Latency::default(),
            judged: Duration::ZERO,
            done: 0,
            looked: Duration::ZERO,
            listens_until: None,
            p999: None,
            halvings: 0,
            works: 0,
        }
    }

    /// A piece of work begins. What requests took before it, `measured`, is the measure for what
    /// they may take, unless other work is under way. It begins with half of the pace that the last
    /// one came to.
    pub(crate) fn begin(&mut self, now: Duration, measured: &Latency) {
        self.works += 1;
        if self.works > 1 {
            return self.look(now, measured);
        }
        self.undisturbed.clear();
        self.undisturbed.add(measured);
        self.disturbed.clear();
        self.p999 = None;
        self.pace = (self.pace / 2).max(self.floor);
        (self.credit, self.credited) = (self.credit_max(), now);
        (self.judged, self.done, self.looked, self.listens_until) = (now, 0, now, None);
    }

    /// A piece of work has ended, or was given up.
    pub(crate) fn end(&mut self) {
        self.works -= 1;
    }

    /// When [`look`](Self::look) is to be called next.
    pub(crate) fn look_at(&self) -> Duration {
        self.looked + LOOK_EVERY
    }

    /// What requests took since the last look.
    pub(crate) fn look(&mut self, now: Duration, measured: &Latency) {
        self.looked = now;
        if self.listens_until.is_some() {
            self.undisturbed.add(measured);
            if self.listens_until.is_some_and(|until| now >= until) {
                self.listens_until = None;
                self.judge_anew(now);
            }
            return;
        }
        self.disturbed.add(measured);
        let patience = if self.disturbed.count() == 0 { JUDGE_NONE } else { JUDGE_FEW };
        if self.disturbed.count() >= ENOUGH || now.saturating_sub(self.judged) >= patience {
            self.judge(now);
        }
    }

    fn judge(&mut self, now: Duration) {
        self.p999 = self.disturbed.p999();
        // A pace that the work itself does not come up to says nothing about a higher one.
        let passed = now.saturating_sub(self.judged);
        let reached = u128::from(self.done) * 2_000_000_000 >= u128::from(self.pace) * passed.as_nanos();
        match (self.p999, self.undisturbed()) {
            // Nobody is there to be disturbed.
            (None, _) if reached => self.pace = self.pace.saturating_mul(2),
            (None, _) => {}
            (Some(p999), Some(undisturbed)) if p999 > undisturbed * 2 => self.halve(),
            (Some(_), Some(_)) if reached => self.pace = self.pace.saturating_add(STEP),
            (Some(_), Some(_)) => {}
            (Some(_), None) => {
                self.pace = self.floor;
                self.listens_until = Some(now + LISTEN);
            }
        }
        self.judge_anew(now);
    }

    fn halve(&mut self) {
        self.pace = (self.pace / 2).max(self.floor);
        self.halvings += 1;
    }

    fn judge_anew(&mut self, now: Duration) {
        self.disturbed.clear();
        (self.judged, self.done) = (now, 0);
    }

    /// So many bytes were worked off; when to go on.
    pub(crate) fn spent(&mut self, bytes: u64, now: Duration) -> Duration {
        self.done += bytes;
        let earned = u128::from(self.pace) * now.saturating_sub(self.credited).as_nanos() / NANOS;
        self.credited = now;
        let credit = self.credit.saturating_add(i64::try_from(earned).unwrap_or(i64::MAX));
        self.credit = credit.min(self.credit_max()).saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
        let owed = u128::from(self.credit.min(0).unsigned_abs()) * NANOS / u128::from(self.pace.max(1));
        let go_on = now + Duration::from_nanos(u64::try_from(owed).unwrap_or(u64::MAX));
        // What is not done meanwhile may be caught up with, so that the floor is kept.
        self.listens_until.map_or(go_on, |until| go_on.max(until))
    }

    /// What a pause earns at most. So much may go at once.
    fn credit_max(&self) -> i64 {
        let at_once = (self.floor / FLOOR_AT_ONCE).max(self.pace / PACE_AT_ONCE);
        i64::try_from(at_once).unwrap_or(i64::MAX)
    }

    /// What requests take at most without work in the background, as far as that is known.
    fn undisturbed(&self) -> Option<Duration> {
        self.undisturbed.p999().filter(|_| self.undisturbed.count() >= FEW)
    }

    fn is_at_work(&self) -> bool {
        self.works > 0
    }

    fn status(&self) -> GovernorStatus {
        let ns = |time: Option<Duration>| time.map(|time| time.as_nanos() as u64);
        GovernorStatus {
            pace: self.pace,
            p999_ns: ns(self.p999),
            undisturbed_ns: ns(self.undisturbed()),
            halvings: self.halvings,
        }
    }
}

/// A server's governor, for all threads that work in the background.
#[derive(Debug)]
pub(crate) struct Pace {
    latencies: Arc<Latencies>,
    clock: Arc<dyn Clock>,
    began: Instant,
    governor: Mutex<Governor>,
}

/// A piece of work that goes by it.
#[derive(Debug)]
pub(crate) struct Work<'p>(&'p Pace);

impl Pace {
    /// Where the server's workers record what requests take.
    pub(crate) fn latencies(&self) -> &Arc<Latencies> {
        &self.latencies
    }

    /// Of a server whose workers record `latencies`, and at least `floor` bytes a second.
    pub(crate) fn new(latencies: Arc<Latencies>, clock: Arc<dyn Clock>, floor: u64) -> Pace {
        let began = clock.now();
        Pace { latencies, clock, began, governor: Mutex::new(Governor::new(floor)) }
    }

    /// Begins a piece of work.
    pub(crate) fn begin(&self) -> Work<'_> {
        let (now, measured) = self.measured();
        self.governor().begin(now, &measured);
        Work(self)
    }

    /// The pace, and what it is set by. Without work under way it is what requests take now.
    pub(crate) fn status(&self) -> GovernorStatus {
        let mut status = {
            let governor = self.governor();
            if governor.is_at_work() {
                return governor.status();
            }
            governor.status()
        };
        let mut measured = Latency::default();
        self.latencies.peek(self.clock.now(), &mut measured);
        let p999 = measured.p999().map(|time| time.as_nanos() as u64);
        (status.p999_ns, status.undisturbed_ns) = (p999, p999);
        status
    }

    fn measured(&self) -> (Duration, Latency) {
        let now = self.clock.now();
        let mut measured = Latency::default();
        self.latencies.take(now, &mut measured);
        (now.saturating_duration_since(self.began), measured)
    }

    fn governor(&self) -> MutexGuard<'_, Governor> {
        self.governor.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Work<'_> {
    /// So many bytes were worked off; when to go on.
    pub(crate) fn spent(&self, bytes: u64) -> Instant {
        let pace = self.0;
        let now = pace.clock.now().saturating_duration_since(pace.began);
        let is_due = now >= pace.governor().look_at();
        if is_due {
            let (now, measured) = pace.measured();
            pace.governor().look(now, &measured);
        }
        pace.began + pace.governor().spent(bytes, now)
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        // What it disturbed is no measure for the next.
        let _ = self.0.measured();
        self.0.governor().end();
    }
}

/// In bytes a second. Below it, a checkpoint would not keep up with a log.
pub(crate) const PACE_MIN: u64 = 8 << 20;
/// What the pace grows by, in bytes a second.
const STEP: u64 = 8 << 20;
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// It judges by so many requests, or after this time by fewer, or by there being none.
const ENOUGH: u64 = 1000;
const JUDGE_FEW: Duration = Duration::from_millis(250);
const JUDGE_NONE: Duration = Duration::from_millis(50);
/// Fewer requests do not say what they take without work in the background.
const FEW: u64 = 100;
/// How long the work pauses to find that out.
const LISTEN: Duration = Duration::from_millis(100);
/// What may go at once, as parts of a second: as much as is left undone while it listens, and at a
/// higher pace no burst that would be noticed.
const FLOOR_AT_ONCE: u64 = 8;
const PACE_AT_ONCE: u64 = 100;
const NANOS: u128 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Work and requests in a time of their own.
    struct Bench {
        governor: Governor,
        now: Duration,
        /// What the disk takes, in bytes a second.
        disk: u64,
        /// What a request takes beside work of a pace, in µs; and requests a second.
        takes: fn(u64) -> u64,
        requests: u64,
        done: u64,
        /// When the governor last looked, and what was done since.
        looked: Duration,
        since: u64,
    }

    impl Bench {
        fn new(takes: fn(u64) -> u64, requests: u64) -> Bench {
            let governor = Governor::new(PACE_MIN);
            let (now, disk) = (Duration::from_secs(1), 4 << 30);
            Bench { governor, now, disk, takes, requests, done: 0, looked: now, since: 0 }
        }

        /// Requests of so long, beside work of such a pace.
        fn served(&self, time: Duration, pace: u64) -> Latency {
            let mut latency = Latency::default();
            let count = (time.as_secs_f64() * self.requests as f64) as u64;
            let usual = Duration::from_micros((self.takes)(pace));
            // One in a hundred takes what the p99.9 is about.
            (0..count).for_each(|number| latency.record(if number % 100 == 0 { usual } else { usual / 10 }));
            latency
        }

        fn begin(&mut self) {
            let before = self.served(Duration::from_secs(10), 0);
            self.governor.begin(self.now, &before);
            (self.looked, self.since) = (self.now, 0);
        }

        /// Works for so long, by pieces of 16 KiB.
        fn work(&mut self, time: Duration) -> u64 {
            let (until, before) = (self.now + time, self.done);
            while self.now < until {
                self.now += Duration::from_secs_f64((16 << 10) as f64 / self.disk as f64);
                self.done += 16 << 10;
                self.since += 16 << 10;
                if self.now >= self.governor.look_at() {
                    let passed = self.now - self.looked;
                    let pace = (self.since as f64 / passed.as_secs_f64()) as u64;
                    let served = self.served(passed, pace);
                    self.governor.look(self.now, &served);
                    (self.looked, self.since) = (self.now, 0);
                }
                self.now = self.now.max(self.governor.spent(16 << 10, self.now));
            }
            self.done - before
        }
    }

    fn undisturbed(_: u64) -> u64 {
        100
    }

    /// Beyond 100 MiB/s requests take five times as long.
    fn disturbed_beyond(pace: u64) -> u64 {
        if pace > 100 * MIB { 500 } else { 100 }
    }

    /// By all but a single piece.
    fn disturbed_by_all(pace: u64) -> u64 {
        if pace > MIB { 201 } else { 100 }
    }

    fn disturbed_less_than_twice(pace: u64) -> u64 {
        if pace > 0 { 190 } else { 100 }
    }

    #[test]
    fn the_pace_settles_where_requests_take_twice_as_long() {
        let mut bench = Bench::new(disturbed_beyond, 20_000);
        bench.begin();
        bench.work(Duration::from_secs(10));
        let halvings = bench.governor.halvings;
        assert!(halvings > 2, "{halvings}");
        for _ in 0..20 {
            let done = bench.work(Duration::from_secs(1));
            assert!((45 * MIB..=110 * MIB).contains(&done), "{} MiB/s", done / MIB);
        }
    }

    #[test]
    fn it_grows_step_by_step_and_is_halved_at_once() {
        let mut bench = Bench::new(disturbed_less_than_twice, 20_000);
        bench.begin();
        let mut paces = vec![bench.governor.pace];
        for _ in 0..200 {
            bench.work(Duration::from_millis(20));
            if bench.governor.pace != paces[paces.len() - 1] {
                paces.push(bench.governor.pace);
            }
        }
        assert_eq!(paces[..5], [8, 16, 24, 32, 40].map(|pace| pace * MIB), "twice as long is not yet too long");
        assert_eq!(bench.governor.halvings, 0);
        let before = bench.governor.pace;
        bench.takes = |_| 5000;
        bench.work(Duration::from_millis(100));
        assert!(bench.governor.pace <= before / 2 && bench.governor.halvings > 0, "{:?}", bench.governor.status());
    }

    #[test]
    fn the_floor_is_kept_whatever_requests_take() {
        let mut bench = Bench::new(disturbed_by_all, 20_000);
        bench.begin();
        bench.work(Duration::from_secs(1));
        for _ in 0..20 {
            let done = bench.work(Duration::from_secs(1));
            assert!((8 * MIB..=9 * MIB).contains(&(done + MIB / 16)), "{done} bytes a second");
            assert_eq!(bench.governor.pace, PACE_MIN);
        }
    }

    #[test]
    fn nobody_waits_for_a_server_that_nobody_uses() {
        let mut bench = Bench::new(undisturbed, 0);
        bench.begin();
        assert_eq!(bench.governor.spent(MIB - 1, bench.now), bench.now, "what is small goes at once");
        bench.begin();
        bench.work(Duration::from_secs(1));
        let done = bench.work(Duration::from_secs(1));
        assert!(done > 2048 * MIB, "{} MiB/s", done / MIB);
    }

    /// A pace that was never put to the test would let everything pass later.
    #[test]
    fn the_pace_does_not_outgrow_the_work() {
        for requests in [0, 20_000] {
            let mut bench = Bench::new(undisturbed, requests);
            bench.disk = 50 * MIB;
            bench.begin();
            bench.work(Duration::from_secs(20));
            let pace = bench.governor.pace;
            assert!((50 * MIB..=200 * MIB).contains(&pace), "{} MiB/s for {requests} requests", pace / MIB);
        }
    }

    /// Without requests before, it finds out what they take in pauses, and makes up for those.
    #[test]
    fn requests_that_come_later_are_measured_in_pauses() {
        let mut bench = Bench::new(disturbed_by_all, 0);
        bench.begin();
        bench.work(Duration::from_secs(1));
        assert!(bench.governor.pace > PACE_MIN && bench.governor.undisturbed().is_none());
        bench.requests = 20_000;
        while bench.governor.disturbed.count() == 0 && bench.governor.listens_until.is_none() {
            bench.work(Duration::from_millis(5));
        }
        bench.work(Duration::from_millis(60));
        assert_eq!(bench.governor.pace, PACE_MIN, "as long as it is not known what they take");
        bench.work(Duration::from_secs(1));
        let about = bench.governor.undisturbed().unwrap().as_micros();
        assert!((99..=102).contains(&about), "{about} µs, though work is disturbing");
        let done = bench.work(Duration::from_secs(1));
        assert!(done + MIB / 16 >= 8 * MIB && bench.governor.pace == PACE_MIN, "{done} bytes");
        // So few that a pause does not tell: it tries again, and the floor is kept all the same.
        let mut bench = Bench::new(disturbed_by_all, 100);
        bench.governor.begin(bench.now, &Latency::default());
        let done = bench.work(Duration::from_secs(10));
        assert!(done + MIB / 16 >= 80 * MIB, "{done} bytes in 10 s");
    }

    #[test]
    fn the_next_work_begins_with_half_of_what_the_last_came_to() {
        let mut bench = Bench::new(undisturbed, 20_000);
        bench.begin();
        bench.work(Duration::from_secs(2));
        let pace = bench.governor.pace;
        bench.governor.end();
        bench.begin();
        assert_eq!(bench.governor.pace, pace / 2);
        assert!(bench.governor.undisturbed().is_some(), "what was measured before it is the measure");
        // A second one beside it changes nothing.
        let measured = bench.served(Duration::from_millis(1), 0);
        bench.governor.begin(bench.now, &measured);
        assert_eq!((bench.governor.pace, bench.governor.works), (pace / 2, 2));
        bench.governor.end();
        assert!(bench.governor.is_at_work());
        bench.governor.end();
        assert!(!bench.governor.is_at_work());
    }
}
