//! Measuring what things cost on a device, for any provider.
//!
//! Two ports of the provider are connected to each other, each on a thread of its own. Streams of
//! many kinds of shape go from one to the other by the declared sends that ship. What either side's
//! processor does for a message is a point; [`Profile`] is the curves through them. Some points are
//! held out: how well the planner predicts them is the calibration's error.
//!
//! - [`calibrate()`] measures.
//! - [`Store`] keeps what was measured, for each user, host and device.
//! - [`known`] and [`measured`] are the stored prices, or what serves where none are stored. Who
//!   constructs something takes the first; measuring takes time, so it is a call of its own.
//!
//! # The way of one calibration
//!
//! - `points`: which streams are measured. `rig`: both ends of a stream, on threads of their own;
//!   work kept apart from waiting.
//! - `apart`: how far apart the two processors are, before each sample.
//! - `fit`: the profile, one price after another. `store`, `prices`: what is kept, and what serves.
//!
//! What a provider itself decides by price is measured before everything that depends on it, and
//! passed to it (`Provider::learn`).
//!
//! A file of another version, or with a field that is no cost, is refused by the field's name and
//! never half used. Nothing is measured unless a caller asks for it. docs/design/008-calibration.md
//! has the reasons.

#![forbid(unsafe_code)]

mod apart;
mod fit;
mod points;
mod prices;
mod rig;
mod store;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_planner::{Bends, Capabilities, Curve, Force, Method, PlanError, Planner, Profile, Terms};
use overside_shape::Shape;
use overside_verbs::{Provider, VerbsError};

pub use apart::Processors;
pub use points::{Case, Point};
pub use prices::{known, measured};
pub use rig::Cost;
use rig::{Rig, Stream};
pub use store::{Store, StoreError, read, slug};

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// What a profile cannot do without, in a tenth of a second.
    Quick,
    /// Every curve, in a few seconds; on a machine that is busy with other things up to a quarter
    /// of a minute.
    Full,
}

/// A profile and what it was made from.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The prices.
    pub profile: Profile,
    /// Every point, in the order of measuring.
    pub seen: Vec<Seen>,
    /// How far the profile is from the points that it was made from.
    pub fitted: Misses,
    /// How far it is from those that were held out; none when none was.
    pub held_out: Option<Misses>,
    /// How far apart prices are that come of the first half of the time and of the second.
    pub halves: Misses,
    /// Where both threads ran; none when that is not known.
    pub processors: Option<Processors>,
    /// Where they ran at other times, if the provider tells such times apart: the prices of
    /// [`Profile::elsewhere`] are of then, if there were samples enough for them.
    pub elsewhere: Option<Processors>,
    /// How long it took.
    pub took: Duration,
}

/// A point, what was seen, and what the profile says.
#[derive(Clone, Debug)]
pub struct Seen {
    /// What was sent.
    pub point: Point,
    /// The lower quarter of the samples in which both threads had a processor for themselves.
    pub cost: Cost,
    /// The same of the first half of the time and of the second.
    pub halves: [Cost; 2],
    /// The planner's price for it.
    pub predicted: Cost,
    /// How many samples there were, and in how many of them nobody disturbed.
    pub samples: (usize, usize),
    shape: Arc<Shape>,
}

/// What speaks against a calibration.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Doubt {
    /// Other programs had the processors.
    #[error("other programs took processor time from {points} of {of} points more often than not")]
    Disturbed {
        /// Points of whose samples less than half were undisturbed.
        points: usize,
        /// All points.
        of: usize,
    },
    /// The machine was not the same throughout.
    #[error(
        "the machine was unsteady: prices from the first half of the time and from the second are {:.0} % apart in the \
         median, {:.0} % at nine tenths", .median * 100.0, .p90 * 100.0
    )]
    Unsteady {
        /// How far apart prices are, in the median.
        median: f64,
        /// At nine tenths.
        p90: f64,
    },
}

/// By how much of what was seen predictions were wrong, without regard to sign.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Misses {
    /// Half of the points are no further off.
    pub median: f64,
    /// Nine tenths are no further off.
    pub p90: f64,
    /// The furthest.
    pub worst: f64,
}

/// What goes wrong when something is measured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It was told to stop.
    #[error("stopped before everything was measured; nothing was stored")]
    Stopped,
    /// A verb failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A region cannot be sent.
    #[error(transparent)]
    Transfer(#[from] overside_transfer::Error),
    /// What is to be measured cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// Measures `provider`. `name` is the provider's part of an address on this host at which nobody
/// listens. `watch` is told now and then which part of it is done, 0 to 1; when it says false,
/// nothing more is measured.
///
/// # Errors
/// [`Error::Stopped`], and when memory, threads or connections for it are not there.
pub fn calibrate(
    provider: &Arc<dyn Provider>,
    name: &str,
    effort: Effort,
    watch: &mut dyn FnMut(f64) -> bool,
) -> Result<Calibration, Error> {
    let begun = Instant::now();
    let budget = Budget::of(effort);
    let mut rig = Rig::new(provider, name, budget.memory_bytes)?;
    let capabilities = provider.capabilities();
    // Before the prices, which depend on it.
    let copied_bytes = if budget.quick { 0.0 } else { copied_bytes(&mut rig, provider, &budget)? };
    let Streams { measured, dealt, lent } = measure(&mut rig, &capabilities, &budget, watch)?;
    drop(rig);
    let both_busy = apart::both_busy()?;
    let undisturbed = measured.iter().flat_map(|one| &one.samples).filter(|sample| sample.undisturbed);
    let (kind, other) = apart::kinds(undisturbed.map(|sample| sample.round_trip_ns)).unzip();
    // Without a provider that tells which distance holds, nobody could go by prices of another.
    let tells = measured.iter().flat_map(|one| &one.samples).any(|sample| sample.line_ns.is_finite());
    let other = other.flatten().filter(|_| tells);
    let source = match effort {
        Effort::Quick => "measured quickly on this machine",
        Effort::Full => "measured on this machine",
    };
    let deal_value_ns = if dealt.is_empty() { None } else { Some(Cost::calm(&dealt).sender_ns) };
    let priced = |seen: &[Seen], cost: fn(&Seen) -> Cost| {
        let mut profile = fit::fit(seen, cost, provider.profile(), source);
        let bends = &mut profile.bends;
        (bends.copied_bytes, bends.both_busy) = (copied_bytes, both_busy);
        bends.deal_value_ns = deal_value_ns.unwrap_or(bends.deal_value_ns);
        bends.line_ns = line_ns(seen);
        let request = profile.receive_request_ns;
        let lend = lent.iter().filter(|(_, costs)| !costs.is_empty());
        let lend = lend.map(|(bytes, costs)| (*bytes, (Cost::calm(costs).receiver_ns - request).max(0.0)));
        profile.bends.lend = Curve::new(lend).unwrap_or_default();
        profile
    };
    // Of few samples no price of another distance is made: those of this one are nearer to the truth.
    let elsewhere: Option<Vec<Seen>> = match (&other, effort) {
        (Some(other), Effort::Full) => measured.iter().map(|one| one.seen_elsewhere(&other.round_trips)).collect(),
        _ => None,
    };
    let elsewhere = elsewhere.map(|seen| Box::new(priced(&seen, |one| one.cost)));
    let kind_of = kind.as_ref().map(|kind| &kind.round_trips);
    let mut seen: Vec<Seen> = measured.into_iter().map(|one| one.into_seen(kind_of)).collect();
    let mut profile = priced(&seen, |one| one.cost);
    profile.elsewhere = elsewhere;
    let (early, late) = (priced(&seen, |one| one.halves[0]), priced(&seen, |one| one.halves[1]));
    let halves = apart(&seen, &Planner::new(capabilities.clone(), early), &Planner::new(capabilities.clone(), late))?;
    let planner = Planner::new(capabilities, profile.clone());
    for one in &mut seen {
        let price = planner.plan(&one.shape, &terms(&one.point))?.chosen();
        let (sender_ns, receiver_ns) = (price.sender_ns, price.receiver_ns);
        let wall_ns = sender_ns.max(receiver_ns);
        one.predicted = Cost { sender_ns, receiver_ns, wall_ns, undisturbed: true, ..one.cost };
    }
    let [fitted, held_out] = [false, true].map(|held_out| {
        Misses::of(seen.iter().filter(|one| one.point.held_out == held_out).map(Seen::missed).collect())
    });
    Ok(Calibration {
        profile,
        seen,
        fitted: fitted.unwrap_or_default(),
        held_out,
        halves,
        processors: kind.map(|kind| kind.processors),
        elsewhere: other.map(|other| other.processors),
        took: begun.elapsed(),
    })
}

/// Bytes of memory that what is sent is spread over, so that no cache of this machine holds it when
/// its turn comes again. Four times its largest cache, a power of two from 64 to 256 MiB.
pub fn cold_bytes() -> usize {
    let size = |index: usize| {
        let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok()
    };
    cold_bytes_beside((0..CACHES_MAX).filter_map(size).max().unwrap_or(0).saturating_mul(1024))
}

fn cold_bytes_beside(cache_bytes: usize) -> usize {
    cache_bytes.saturating_mul(4).clamp(COLD_MIN, COLD_MAX).next_power_of_two()
}

/// How long a line took to come, in the median of the points; 0 where the provider does not tell.
fn line_ns(seen: &[Seen]) -> f64 {
    let mut known: Vec<f64> = seen.iter().map(|one| one.cost.line_ns).filter(|ns| ns.is_finite()).collect();
    known.sort_by(f64::total_cmp);
    known.get(known.len() / 2).copied().unwrap_or(0.0)
}

/// How far apart the prices of two planners are for what was measured.
fn apart(seen: &[Seen], one: &Planner, other: &Planner) -> Result<Misses, Error> {
    let price =
        |planner: &Planner, seen: &Seen| Ok::<f64, Error>(planner.plan(&seen.shape, &terms(&seen.point))?.chosen().ns);
    let apart = |seen| Ok((price(one, seen)? / price(other, seen)?.max(1.0) - 1.0).abs());
    Ok(Misses::of(seen.iter().map(apart).collect::<Result<_, Error>>()?).unwrap_or_default())
}

/// How much memory and time a calibration takes.
struct Budget {
    memory_bytes: usize,
    places_max: u64,
    /// Samples of each point, undisturbed ones.
    samples: usize,
    slice: Duration,
    most: Duration,
    quick: bool,
}

impl Budget {
    fn of(effort: Effort) -> Budget {
        let millis = Duration::from_millis;
        match effort {
            Effort::Quick => Budget {
                memory_bytes: QUICK_BYTES,
                places_max: 64,
                samples: 2,
                slice: millis(1),
                most: millis(100),
                quick: true,
            },
            Effort::Full => Budget {
                memory_bytes: cold_bytes(),
                places_max: 4096,
                // Short ones: among other programs there is more hope that nobody comes between. Many: what a machine does for
                // seconds on end is in all of them, and a quarter of them still tells a price.
                samples: 36,
                slice: millis(1),
                most: millis(14_000),
                quick: false,
            },
        }
    }
}

/// A point while it is measured.
struct Measured {
    point: Point,
    shapes: Vec<Arc<Shape>>,
    next: usize,
    samples: Vec<Cost>,
}

/// Up to which length a provider that may copy the pieces of a list together itself does better to,
/// and has it do so from here on; 0 where it does not.
fn copied_bytes(rig: &mut Rig, provider: &Arc<dyn Provider>, budget: &Budget) -> Result<f64, Error> {
    let learn = |copied_bytes: f64| {
        let profile = provider.profile();
        provider.learn(&Profile { bends: Bends { copied_bytes, ..profile.bends }, ..profile })
    };
    if !learn(COPIED_NONE) {
        return Ok(0.0);
    }
    let mut rungs = Vec::new();
    for point in points::copied() {
        let shapes = point.shapes(rig.memory_bytes(), budget.places_max);
        let Some(first) = shapes.first() else { continue };
        let plan = rig.planner().plan(first, &terms(&point))?;
        rungs.push((point, shapes, plan, 0, [Vec::new(), Vec::new()]));
    }
    for _ in 0..budget.samples {
        for (point, shapes, plan, next, samples) in &mut rungs {
            for (up_to, samples) in [COPIED_NONE, COPIED_ALL].into_iter().zip(samples) {
                learn(up_to);
                let stream = Stream { shapes, plan, bytes: point.case.bytes() as usize };
                samples.push(rig.stretch(&stream, next, budget.slice)?);
            }
        }
    }
    let seen = rungs.iter().map(|(point, .., samples)| {
        let [named, copied] = samples.each_ref().map(|samples| Cost::calm(samples).sender_ns);
        (point.case.piece_bytes(), named / copied)
    });
    let found = crossing(&seen.collect::<Vec<_>>());
    learn(found);
    Ok(found)
}

/// The length up to which copying is the cheaper way, of lengths in order and what
/// naming costs over copying there. It is the one by which least is lost in all,
/// wherever noise puts a single one.
fn crossing(seen: &[(u64, f64)]) -> f64 {
    let (mut best, mut gained) = ((COPIED_NONE, 0.0), 0.0);
    for (bytes, ratio) in seen {
        gained += ratio.ln();
        if gained > best.1 {
            best = (*bytes as f64, gained);
        }
    }
    best.0
}

/// What was measured of a provider.
struct Streams {
    measured: Vec<Measured>,
    /// What dealing rows out costs for each value.
    dealt: Vec<Cost>,
    /// What a message costs that is lent, by its length; nothing where the provider does not lend.
    lent: Vec<(u64, Vec<Cost>)>,
}

/// All points in turn, round by round, so that what a machine does for a second falls on all of
/// them alike. Each round also has what dealing rows out costs, which is the sender's alone and the
/// same for every provider.
fn measure(
    rig: &mut Rig,
    capabilities: &Capabilities,
    budget: &Budget,
    watch: &mut dyn FnMut(f64) -> bool,
) -> Result<Streams, Error> {
    let (tables, mut row, mut dealt) = (rig::Tables::over(rig.memory_bytes()), 0, Vec::new());
    let lengths = LENT_BYTES.into_iter().filter(|_| capabilities.lends);
    let (mut lent, mut place): (Vec<_>, _) = (lengths.map(|bytes| (bytes, Vec::new())).collect(), 0);
    let mut all = Vec::new();
    for point in points::points(capabilities, budget.quick) {
        let shapes = point.shapes(rig.memory_bytes(), budget.places_max);
        // What this device cannot send is not measured on it.
        if let Some(first) = shapes.first()
            && let Ok(plan) = rig.planner().plan(first, &terms(&point))
        {
            all.push((Measured { point, shapes, next: 0, samples: Vec::new() }, plan));
        }
    }
    let begun = Instant::now();
    loop {
        let open = |(measured, _): &(Measured, _)| measured.undisturbed() < budget.samples;
        let left: usize = all.iter().map(|(one, _)| budget.samples - one.undisturbed().min(budget.samples)).sum();
        let part = 1.0 - left as f64 / (budget.samples * all.len()).max(1) as f64;
        let late = begun.elapsed().as_secs_f64() / budget.most.as_secs_f64();
        if left == 0 || (late >= 1.0 && all.iter().all(|(one, _)| !one.samples.is_empty())) {
            break;
        }
        for (number, (one, plan)) in all.iter_mut().enumerate().filter(|(_, one)| open(one)) {
            if number % 16 == 0 && !watch(part.max(late).min(1.0)) {
                return Err(Error::Stopped);
            }
            let stream = Stream { shapes: &one.shapes, plan, bytes: one.point.case.bytes() as usize };
            one.samples.push(rig.stretch(&stream, &mut one.next, budget.slice)?);
        }
        dealt.extend(rig.deal(&tables, &mut row, budget.slice));
        for (bytes, costs) in &mut lent {
            costs.push(rig.lend(*bytes, &mut place, budget.slice)?);
        }
    }
    Ok(Streams { measured: all.into_iter().map(|(measured, _)| measured).collect(), dealt, lent })
}

impl Measured {
    fn undisturbed(&self) -> usize {
        self.samples.iter().filter(|sample| sample.undisturbed).count()
    }

    /// Made of the samples in which the processors were as far apart as the prices are made for, if
    /// there are any.
    fn into_seen(mut self, alike: Option<&Range<f64>>) -> Seen {
        let samples = (self.samples.len(), self.undisturbed());
        let is_alike = |sample: &Cost| alike.is_none_or(|alike| alike.contains(&sample.round_trip_ns));
        if self.samples.iter().any(|sample| sample.undisturbed && is_alike(sample)) {
            self.samples.retain(|sample| !sample.undisturbed || is_alike(sample));
        }
        self.seen(&self.samples, samples)
    }

    /// Made of the undisturbed samples in which they were so far apart; none where those are few.
    fn seen_elsewhere(&self, round_trips: &Range<f64>) -> Option<Seen> {
        let is_there = |sample: &&Cost| sample.undisturbed && round_trips.contains(&sample.round_trip_ns);
        let there: Vec<Cost> = self.samples.iter().filter(is_there).copied().collect();
        (there.len() >= ELSEWHERE_MIN).then(|| self.seen(&there, (there.len(), there.len())))
    }

    fn seen(&self, of: &[Cost], samples: (usize, usize)) -> Seen {
        let (early, late) = of.split_at(of.len() / 2);
        let (cost, shape) = (Cost::calm(of), self.shapes[0].clone());
        let halves = [early, late].map(|half| if half.is_empty() { cost } else { Cost::calm(half) });
        Seen { point: self.point.clone(), cost, halves, predicted: Cost::default(), samples, shape }
    }
}

impl Cost {
    /// The mean of the lowest quarter of the undisturbed samples without the very lowest. What a
    /// machine does beside (its other virtual machines, its clock, its memory) only ever adds. So
    /// two halves of one calibration came out 3.7 % apart in the median and 8.0 % at nine tenths.
    /// The middle half of the same samples had them 13 and 24 % apart
    /// (docs/design/008-calibration.md).
    fn calm(samples: &[Cost]) -> Cost {
        let undisturbed = samples.iter().filter(|sample| sample.undisturbed).count();
        // A disturbance only ever adds: without enough undisturbed samples, the lower quarter of all is nearest.
        let used: Vec<&Cost> = samples.iter().filter(|sample| undisturbed < 2 || sample.undisturbed).collect();
        let (quarter, lowest) = (used.len() / 4, (used.len() / 20).max(usize::from(used.len() >= 8)));
        let calm = if undisturbed < 2 { quarter..quarter + 1 } else { lowest..quarter.max(lowest + 1) };
        let of = |what: fn(&Cost) -> f64| {
            let mut values: Vec<f64> = used.iter().map(|cost| what(cost)).collect();
            values.sort_by(f64::total_cmp);
            values[calm.clone()].iter().sum::<f64>() / calm.len() as f64
        };
        Cost {
            sender_ns: of(|cost| cost.sender_ns),
            receiver_ns: of(|cost| cost.receiver_ns),
            wall_ns: of(|cost| cost.wall_ns),
            undisturbed: undisturbed > 1,
            round_trip_ns: of(|cost| cost.round_trip_ns),
            line_ns: of(|cost| cost.line_ns),
        }
    }
}

impl Calibration {
    /// Why the prices should not be relied on; none when they may be.
    pub fn doubt(&self) -> Option<Doubt> {
        if let Some(disturbed) = self.disturbed(DISTURBED_PART) {
            return Some(disturbed);
        }
        let Misses { median, p90, .. } = self.halves;
        (median > HALVES_MEDIAN || p90 > HALVES_P90).then_some(Doubt::Unsteady { median, p90 })
    }

    /// The same of a quick one, whose few samples say nothing of steadiness.
    pub fn quick_doubt(&self) -> Option<Doubt> {
        self.disturbed(QUICK_DISTURBED_PART)
    }

    /// When more than one in `part` points was disturbed more often than not.
    fn disturbed(&self, part: usize) -> Option<Doubt> {
        let points = self.seen.iter().filter(|seen| 2 * seen.samples.1 < seen.samples.0).count();
        (points * part > self.seen.len()).then_some(Doubt::Disturbed { points, of: self.seen.len() })
    }
}

impl Seen {
    /// By how much of the slower side's time the profile is wrong.
    pub fn missed(&self) -> f64 {
        let slower = |cost: &Cost| cost.sender_ns.max(cost.receiver_ns);
        let seen = slower(&self.cost).max(1.0);
        (slower(&self.predicted) - seen).abs() / seen
    }
}

impl Misses {
    /// None of none.
    fn of(mut misses: Vec<f64>) -> Option<Misses> {
        misses.sort_by(f64::total_cmp);
        let at = |part: f64| misses.get(((misses.len().max(1) - 1) as f64 * part).round() as usize).copied();
        Some(Misses { median: at(0.5)?, p90: at(0.9)?, worst: at(1.0)? })
    }
}

/// Lengths of messages that are lent: a part of a page, and more than one.
const LENT_BYTES: [u64; 3] = [4 << 10, 16 << 10, 32 << 10];
/// What a quick one has the time to make ready.
const QUICK_BYTES: usize = 16 << 20;
const COLD_MIN: usize = 64 << 20;
const COLD_MAX: usize = 256 << 20;
const CACHES_MAX: usize = 8;
/// Every piece is named to the device, and every one is copied that can be.
const COPIED_NONE: f64 = 1.0;
const COPIED_ALL: f64 = 1e9;
/// Undisturbed samples of each point, of which prices of another distance are made.
const ELSEWHERE_MIN: usize = 4;
/// Of the points, one in so many may be disturbed more often than not.
const DISTURBED_PART: usize = 8;
/// The same of a quick calibration: three points by mischance are no reason to do without it.
const QUICK_DISTURBED_PART: usize = 4;
/// How far apart the prices of the two halves of a calibration may be. Each is made of half of the
/// samples, so noise alone sets them apart by half as much again as two calibrations, which are to
/// be within 5 % in the median.
const HALVES_MEDIAN: f64 = 0.07;
const HALVES_P90: f64 = 0.2;

/// A point's way, and requests as long as its message.
fn terms(point: &Point) -> Terms {
    let bytes = rig::MESSAGE_MAX as u64;
    let inline = point.way == Method::Inline;
    Terms {
        force: Some(match point.way {
            Method::Mixture => Force::Threshold(point.gather_from),
            way => Force::Method(way),
        }),
        warm: point.warm && !inline,
        request_bytes_max: bytes,
        bundle_bytes: bytes,
        ..Terms::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A provider, and a name that nobody else listens at.
    fn of(transport: &str) -> (String, Arc<dyn Provider>) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (number, process) = (NEXT.fetch_add(1, Ordering::Relaxed), std::process::id());
        match transport {
            "shm" => (format!("calibrated-{process}-{number}"), overside_shm::ShmProvider::new().unwrap()),
            _ => {
                let address = format!("127.{}.{}.{}:9999", 1 + process / 256 % 100, process % 256, 1 + number % 250);
                (address, overside_tcp::TcpProvider::new())
            }
        }
    }

    /// No time is asserted: only that everything is there, is a cost, and was stored nowhere.
    #[test]
    fn a_quick_calibration_gives_every_price() {
        for (transport, (name, provider)) in ["shm", "tcp"].map(|transport| (transport, of(transport))) {
            let found = calibrate(&provider, &name, Effort::Quick, &mut |_| true).unwrap();
            let text = found.profile.to_string();
            assert_eq!(text.parse::<Profile>().unwrap(), found.profile, "{text}");
            assert!(found.profile.source.starts_with("measured quickly"));
            let bends = &found.profile.bends;
            for (name, curve) in [("pack", &bends.pack), ("receive", &bends.receive), ("send", &bends.send)] {
                assert!(!curve.is_empty(), "{transport}: {name}");
            }
            let vectors = overside_memory::pack::PackKernel::best() >= overside_memory::pack::PackKernel::Avx2;
            assert_eq!(bends.deal_value_ns > 0.0, vectors, "{transport}");
            assert!(bends.both_busy >= 1.0, "{transport}: {}", bends.both_busy);
            assert_eq!(bends.lend.is_empty(), transport == "tcp", "what lends is priced");
            assert!(found.profile.send_request_ns > 0.0 && found.profile.receive_request_ns > 0.0);
            assert!(found.seen.iter().all(|seen| seen.cost.sender_ns > 0.0 && seen.predicted.sender_ns > 0.0));
        }
    }

    #[test]
    fn neither_what_is_far_off_nor_slow_stretches_nor_what_was_disturbed_counts() {
        let cost = |ns: f64, undisturbed| {
            let (sender_ns, receiver_ns, wall_ns, round_trip_ns) = (ns, 2.0 * ns, ns, 100.0);
            Cost { sender_ns, receiver_ns, wall_ns, undisturbed, round_trip_ns, line_ns: 60.0 }
        };
        let mut samples: Vec<Cost> = (0..8).map(|at| cost(100.0 + f64::from(at), true)).collect();
        samples.extend([cost(1e6, true), cost(1.0, true), cost(5e6, false), cost(6e6, false)]);
        let calm = Cost::calm(&samples);
        assert!((100.0..=103.0).contains(&calm.sender_ns) && calm.undisturbed, "{calm:?}");
        assert!((calm.receiver_ns - 2.0 * calm.sender_ns).abs() < 1e-9);
        samples.extend((0..16).map(|at| cost(200.0 + f64::from(at), true)));
        assert!((100.0..=103.0).contains(&Cost::calm(&samples).sender_ns), "the machine was slow most of the time");
        let disturbed: Vec<Cost> = [9.0, 5.0, 1.0, 7.0].map(|ns| cost(ns, false)).into();
        assert_eq!(Cost::calm(&disturbed), cost(5.0, false), "the lower quarter");
        assert_eq!(Cost::calm(&[cost(3.0, true)]), Cost { undisturbed: false, ..cost(3.0, true) });
    }

    #[test]
    fn memory_is_cold_beside_any_cache() {
        for (cache, cold) in [(0, 64 << 20), (32 << 20, 128 << 20), (36 << 20, 256 << 20), (usize::MAX, 256 << 20)] {
            assert_eq!(cold_bytes_beside(cache), cold, "{cache}");
        }
        assert!((COLD_MIN..=COLD_MAX).contains(&cold_bytes()) && cold_bytes().is_power_of_two());
    }

    #[test]
    fn up_to_where_pieces_are_copied_is_measured_where_a_provider_copies_them() {
        for (transport, (name, provider)) in ["shm", "tcp"].map(|transport| (transport, of(transport))) {
            let budget = Budget { samples: 2, ..Budget::of(Effort::Full) };
            let mut rig = Rig::new(&provider, &name, 16 << 20).unwrap();
            let found = copied_bytes(&mut rig, &provider, &budget).unwrap();
            let among = points::copied().iter().any(|point| point.case.piece_bytes() as f64 == found);
            assert!(if transport == "tcp" { among || found == COPIED_NONE } else { found == 0.0 }, "{found}");
        }
    }

    #[test]
    fn pieces_are_copied_up_to_where_it_costs_more_than_naming_them() {
        assert_eq!(crossing(&[(512, 2.0), (1024, 1.3), (2048, 0.9), (4096, 0.6)]), 1024.0);
        assert_eq!(crossing(&[(512, 2.0), (1024, 0.98), (2048, 1.1), (4096, 0.6)]), 2048.0, "one was disturbed");
        assert_eq!(crossing(&[(512, 0.9), (1024, 0.8)]), COPIED_NONE);
        assert_eq!(crossing(&[]), COPIED_NONE);
    }

    #[test]
    fn disturbed_and_unsteady_calibrations_are_doubted() {
        let (name, provider) = of("shm");
        let mut found = calibrate(&provider, &name, Effort::Quick, &mut |_| true).unwrap();
        found.seen.iter_mut().for_each(|seen| seen.samples = (20, 15));
        found.halves = Misses { median: 0.06, p90: 0.15, worst: 0.9 };
        assert_eq!(found.doubt(), None);
        found.halves = Misses { median: 0.08, p90: 0.15, worst: 0.9 };
        let says = found.doubt().unwrap().to_string();
        assert!(says.contains("unsteady") && says.contains("8 % apart") && says.contains("15 %"), "{says}");
        found.halves = Misses::default();
        let points = found.seen.len();
        found.seen.iter_mut().take(points / 2).for_each(|seen| seen.samples = (20, 9));
        assert_eq!(found.doubt(), Some(Doubt::Disturbed { points: points / 2, of: points }));
        assert_eq!(found.quick_doubt(), found.doubt());
        found.seen.iter_mut().skip(points / 4).for_each(|seen| seen.samples = (2, 2));
        assert!(found.doubt().is_some() && found.quick_doubt().is_none(), "a quarter of {points}");
    }

    #[test]
    fn a_calibration_can_be_stopped() {
        let (name, provider) = of("shm");
        let mut parts = Vec::new();
        let stopped = calibrate(&provider, &name, Effort::Full, &mut |part| {
            parts.push(part);
            parts.len() < 3
        });
        assert!(matches!(stopped, Err(Error::Stopped)), "{stopped:?}");
        assert!(parts.iter().all(|part| (0.0..=1.0).contains(part)), "{parts:?}");
    }
}
