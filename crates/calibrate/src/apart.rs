//! How far apart two processors are: how long a cache line takes to the other and back.
//!
//! Processors that share a cache exchange a line in some tens of nanoseconds, those that do not in
//! some hundreds. A virtual machine's processors are moved from the one to the other every few
//! seconds (docs/design/008-calibration.md). Whoever packs pays for that, whoever gathers hardly
//! does, so prices of both together are the prices of neither.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use overside_verbs::VerbsError;

/// Where the two threads of a calibration ran.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Processors {
    /// From one processor to the other and back, in nanoseconds: the median of the samples that the
    /// prices are made of.
    pub round_trip_ns: f64,
    /// Of 1, the part of the samples in which they were as far apart.
    pub part: f64,
}

/// Round trips of one kind, and what to say of them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Distance {
    pub(super) round_trips: Range<f64>,
    pub(super) processors: Processors,
}

/// The kind of round trips that prices are made for in the first place, and the other one where
/// there are two; none where no round trip is known.
///
/// Where there are two, the near one comes first, unless hardly anything was measured there: it is
/// the one that schedulers strive for.
pub(super) fn kinds(round_trips: impl Iterator<Item = f64>) -> Option<(Distance, Option<Distance>)> {
    let mut all: Vec<f64> = round_trips.filter(|ns| *ns < KNOWN_NS).collect();
    all.sort_by(f64::total_cmp);
    let at = |part: f64| all.get((all.len().saturating_sub(1) as f64 * part).round() as usize).copied();
    let (low, high) = (at(LOWEST)?, at(1.0 - LOWEST)?);
    let border = if high < low * TWO_KINDS { f64::INFINITY } else { (low * high).sqrt() };
    let border_at = all.partition_point(|ns| *ns < border);
    let kind = |round_trips: Range<f64>, of: Range<usize>| Distance {
        processors: Processors {
            round_trip_ns: all[of.start + of.len() / 2],
            part: of.len() as f64 / all.len() as f64,
        },
        round_trips,
    };
    let near = (border_at > 0).then(|| kind(0.0..border, 0..border_at));
    let far = (border_at < all.len()).then(|| kind(border..f64::INFINITY, border_at..all.len()));
    match (near, far) {
        (Some(near), Some(far)) if near.processors.part * NEAR_PART < 1.0 => Some((far, Some(near))),
        (Some(near), far) => Some((near, far)),
        (None, far) => Some((far?, None)),
    }
}

/// A line that two threads write in turns.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Echo {
    turn: AtomicU64,
    /// So often in a row nobody answered.
    silence: AtomicU64,
}

impl Echo {
    /// The least time of a line there and back, in nanoseconds, while the other thread
    /// [answers](Self::answer) for the `time`th time; infinite when it does not.
    pub(super) fn ask(&self, time: u64) -> f64 {
        if self.is_given_up() {
            return f64::INFINITY;
        }
        let (mut turn, mut least) = (time * EACH, f64::INFINITY);
        for _ in 0..GROUPS {
            let begun = Instant::now();
            for _ in 0..TURNS {
                self.turn.store(turn + 1, Ordering::Release);
                turn += 2;
                if !self.until(turn) {
                    self.silence.fetch_add(u64::from(least == f64::INFINITY), Ordering::Relaxed);
                    return least;
                }
            }
            least = least.min(begun.elapsed().as_nanos() as f64 / TURNS as f64);
        }
        self.silence.store(0, Ordering::Relaxed);
        least
    }

    /// Answers all that [`ask`](Self::ask) asks the `time`th time, unless the other thread stops
    /// asking.
    pub(super) fn answer(&self, time: u64) {
        if self.is_given_up() {
            return;
        }
        for turn in (0..GROUPS * TURNS).map(|turn| time * EACH + 2 * turn) {
            if !self.until(turn + 1) {
                return;
            }
            self.turn.store(turn + 2, Ordering::Release);
        }
    }

    /// Where both have one processor no answer ever comes in time.
    fn is_given_up(&self) -> bool {
        self.silence.load(Ordering::Relaxed) >= SILENCE_MAX
    }

    fn until(&self, value: u64) -> bool {
        let mut begun = None;
        loop {
            for _ in 0..LOOKS {
                if self.turn.load(Ordering::Acquire) == value {
                    return true;
                }
            }
            if begun.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return false;
            }
        }
    }
}

/// How many times as long one thread's copying takes while another copies as well, 1 at least.
///
/// # Errors
/// There is no other thread to be had.
pub(super) fn both_busy() -> Result<f64, VerbsError> {
    let (doing, done) = (AtomicU64::new(RESTS), AtomicU64::new(0));
    let (mut alone, mut both) = (Vec::new(), Vec::new());
    let beside = || {
        let mut place = Scratch::new();
        loop {
            match doing.load(Ordering::Acquire) {
                WORKS => place.copy(1),
                RESTS => std::thread::sleep(REST),
                _ => return,
            }
            done.fetch_add(1, Ordering::Release);
        }
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("overside-beside".into()).spawn_scoped(scope, beside);
        thread.map_err(|e| VerbsError::no_thread(&e))?;
        let mut place = Scratch::new();
        for round in 0..2 * BUSY_ROUNDS {
            let (does, times) = if round % 2 == 0 { (RESTS, &mut alone) } else { (WORKS, &mut both) };
            doing.store(does, Ordering::Release);
            // Until it does, and what it did before is over.
            let (seen, begun) = (done.load(Ordering::Acquire), Instant::now());
            while done.load(Ordering::Acquire) < seen + 2 && begun.elapsed() < BUSY_PATIENCE {
                std::thread::yield_now();
            }
            let begun = Instant::now();
            place.copy(COPIES);
            times.push(begun.elapsed().as_nanos() as f64);
        }
        doing.store(ENDS, Ordering::Release);
        Ok::<(), VerbsError>(())
    })?;
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    Ok((median(both) / median(alone).max(1.0)).max(1.0))
}

/// What is copied there and back, and stays in the nearest cache.
struct Scratch([u8; PLACE_BYTES], [u8; PLACE_BYTES]);

impl Scratch {
    fn new() -> Scratch {
        Scratch([1; PLACE_BYTES], [2; PLACE_BYTES])
    }

    fn copy(&mut self, times: usize) {
        for _ in 0..times {
            self.0.copy_from_slice(&self.1);
            self.1.copy_from_slice(std::hint::black_box(&self.0));
        }
    }
}

const RESTS: u64 = 0;
const WORKS: u64 = 1;
const ENDS: u64 = 2;
const REST: Duration = Duration::from_micros(20);
const BUSY_ROUNDS: usize = 15;
const BUSY_PATIENCE: Duration = Duration::from_millis(2);
const PLACE_BYTES: usize = 8 << 10;
const COPIES: usize = 400;
const GROUPS: u64 = 4;
const TURNS: u64 = 8;
/// No two times have a value in common, so that a late answer is none to the next question.
const EACH: u64 = 2 * GROUPS * TURNS + 1;
const LOOKS: usize = 256;
/// Whoever has no processor for so long is not answering.
const PATIENCE: Duration = Duration::from_micros(200);
const SILENCE_MAX: u64 = 32;
/// No two processors are further apart; a thread without a processor is.
const KNOWN_NS: f64 = 5_000.0;
/// By so many times do the round trips of two kinds differ at least; those of one kind, by a third.
const TWO_KINDS: f64 = 2.0;
/// One sample in so many is enough.
const NEAR_PART: f64 = 4.0;
/// What is lower than the others, or higher, in so small a part of them is no kind.
const LOWEST: f64 = 0.02;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_made_of_one_kind_of_distance_and_of_the_other() {
        let times = |near: usize, far: usize| {
            let near = (0..near).map(|at| 90.0 + (at % 20) as f64);
            near.chain((0..far).map(|at| 400.0 + (at % 60) as f64)).chain([f64::INFINITY, 80_000.0])
        };
        for (near, far, inside, outside, round_trip, part) in [
            (75, 25, 109.0, 400.0, 100.0, 0.75),
            (25, 75, 109.0, 400.0, 100.0, 0.25),
            (10, 90, 400.0, 109.0, 430.0, 0.9),
            (100, 0, 250.0, -1.0, 100.0, 1.0),
            (0, 100, 400.0, -1.0, 430.0, 1.0),
        ] {
            let (first, other) = kinds(times(near, far)).unwrap();
            let range = &first.round_trips;
            assert!(range.contains(&inside) && !range.contains(&outside), "{near} {far}: {range:?}");
            let found = first.processors;
            assert!((found.round_trip_ns - round_trip).abs() < 20.0 && found.part == part, "{found:?}");
            assert_eq!(other.is_some(), near.min(far) > 0);
            if let Some(other) = other {
                assert!(other.round_trips.contains(&outside) && !other.round_trips.contains(&inside), "{other:?}");
                assert!((other.processors.part + part - 1.0).abs() < 1e-9);
            }
        }
        assert_eq!(kinds([f64::INFINITY; 3].into_iter()), None, "one processor for both");
    }

    #[test]
    fn a_line_comes_back_and_nobody_is_waited_for_in_vain() {
        let echo = Echo::default();
        let known = std::thread::scope(|scope| {
            scope.spawn(|| (0..200).for_each(|time| echo.answer(time)));
            (0..200).map(|time| echo.ask(time)).filter(|ns| ns.is_finite()).all(|ns| ns > 0.0)
        });
        assert!(known);
        let alone = Echo::default();
        let begun = Instant::now();
        assert!((0..100_000).all(|time| alone.ask(time) == f64::INFINITY));
        // Each time would have been a patience.
        assert!(alone.is_given_up() && begun.elapsed() < PATIENCE * 50_000);
    }
}
