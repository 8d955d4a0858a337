//! How long requests take: workers record it, and whoever paces work in the background takes it.

use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// What a service's requests take, from their arrival at a worker until their replies are posted.
/// Each worker records on its own. Answers that come in many messages, or by a ticket, do not
/// count.
#[derive(Debug, Default)]
pub struct Latencies {
    workers: Mutex<Vec<Weak<Recorder>>>,
}

/// How many requests took how long, to about a hundredth.
#[derive(Clone, Debug)]
pub struct Latency(Histogram<u32>);

/// What one worker's requests took of late.
#[derive(Debug, Default)]
pub(crate) struct Recorder(Mutex<Recent>);

/// Two spans of time, so that what is older than both is forgotten.
#[derive(Debug, Default)]
struct Recent {
    older: Latency,
    newer: Latency,
    /// When the newer one began; none before the first request.
    since: Option<Instant>,
}

impl Latencies {
    /// Nothing is recorded yet.
    pub fn new() -> Arc<Latencies> {
        Arc::default()
    }

    /// Adds what all workers have recorded, as far as it is not older than 10 to 20 s. They begin
    /// anew.
    pub fn take(&self, now: Instant, into: &mut Latency) {
        self.visit(now, into, true);
    }

    /// As [`take`](Self::take), and leaves it there.
    pub fn peek(&self, now: Instant, into: &mut Latency) {
        self.visit(now, into, false);
    }

    fn visit(&self, now: Instant, into: &mut Latency, clears: bool) {
        let mut workers = lock(&self.workers);
        // A worker that panicked began anew with another.
        workers.retain(|worker| worker.strong_count() > 0);
        for worker in workers.iter().filter_map(Weak::upgrade) {
            let mut recent = worker.recent();
            recent.forget(now);
            into.add(&recent.older);
            into.add(&recent.newer);
            if clears {
                recent.older.clear();
                recent.newer.clear();
            }
        }
    }

    /// A recorder for one worker.
    pub(crate) fn enlist(&self) -> Arc<Recorder> {
        let recorder = Arc::<Recorder>::default();
        lock(&self.workers).push(Arc::downgrade(&recorder));
        recorder
    }
}

impl Recorder {
    /// Requests that arrived at these times are answered now.
    pub(crate) fn record(&self, now: Instant, arrived: impl Iterator<Item = Instant>) {
        let mut recent = self.recent();
        recent.forget(now);
        arrived.for_each(|at| recent.newer.record(now.saturating_duration_since(at)));
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        lock(&self.0)
    }
}

impl Recent {
    /// Begins a new span where the last one is over.
    fn forget(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(*self.since.get_or_insert(now));
        if passed < SPAN {
            return;
        }
        std::mem::swap(&mut self.older, &mut self.newer);
        self.newer.clear();
        if passed >= 2 * SPAN {
            self.older.clear();
        }
        self.since = Some(now);
    }
}

impl Latency {
    /// A request took `time`. More than a minute counts as a minute.
    pub fn record(&mut self, time: Duration) {
        self.0.saturating_record(time.as_nanos() as u64);
    }

    /// How many requests there were.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// What 999 of 1,000 requests took at most; none where there was no request.
    pub fn p999(&self) -> Option<Duration> {
        (self.count() > 0).then(|| Duration::from_nanos(self.0.value_at_quantile(0.999)))
    }

    /// Adds the requests of another.
    pub fn add(&mut self, other: &Latency) {
        // Both have the same bounds, which alone could be in the way.
        let _ = self.0.add(&other.0);
    }

    /// Forgets all requests.
    pub fn clear(&mut self) {
        if self.count() > 0 {
            self.0.reset();
        }
    }
}

impl Default for Latency {
    fn default() -> Latency {
        Latency(Histogram::new_with_bounds(NS_MIN, NS_MAX, 2).expect("the bounds are constants that go together"))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// What was recorded is forgotten after one to two of these.
const SPAN: Duration = Duration::from_secs(10);
/// Shorter times are not told apart.
const NS_MIN: u64 = 256;
const NS_MAX: u64 = 60_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_in_a_thousand_does_not_count_and_two_do() {
        let mut latency = Latency::default();
        assert_eq!(latency.p999(), None);
        (0..1998).for_each(|_| latency.record(Duration::from_micros(50)));
        (0..2).for_each(|_| latency.record(Duration::from_millis(7)));
        let about =
            |time: Duration, expected: Duration| (time.as_secs_f64() / expected.as_secs_f64() - 1.0).abs() < 0.01;
        assert!(about(latency.p999().unwrap(), Duration::from_micros(50)), "{:?}", latency.p999());
        latency.record(Duration::from_millis(7));
        assert!(about(latency.p999().unwrap(), Duration::from_millis(7)), "{:?}", latency.p999());
        latency.clear();
        assert_eq!((latency.count(), latency.p999()), (0, None));
        latency.record(Duration::from_secs(3600));
        assert!(about(latency.p999().unwrap(), Duration::from_secs(60)), "{:?}", latency.p999());
    }

    #[test]
    fn what_all_workers_recorded_of_late_is_taken_once() {
        let latencies = Latencies::new();
        let workers = [latencies.enlist(), latencies.enlist()];
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let record =
            |worker: usize, ms: u64| workers[worker].record(at(ms), std::iter::once(at(ms) - Duration::from_micros(9)));
        let count = |now: Instant, takes: bool| {
            let mut found = Latency::default();
            if takes {
                latencies.take(now, &mut found)
            } else {
                latencies.peek(now, &mut found)
            }
            found.count()
        };
        (0..3).for_each(|ms| record(0, ms));
        record(1, 5);
        assert_eq!((count(at(6), false), count(at(6), true), count(at(6), true)), (4, 4, 0));
        record(0, 100);
        record(0, 10_100);
        assert_eq!(count(at(10_200), false), 2, "of this span and the last");
        record(0, 20_200);
        assert_eq!(count(at(20_200), false), 2, "the first is too old");
        assert_eq!(count(at(60_000), false), 0, "all are too old");
    }
}
