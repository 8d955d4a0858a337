//! `regret`: on shapes that calibration never saw, how far the planner's choice falls behind the best fixed strategy known
//! afterwards.

mod apart;
mod cells;

use super::{
    Setting,
    charts::{Curve, Curves, curves},
    figure::Figure,
    records::Records,
    sender::{Post, Sample, Sender},
};
use crate::{
    measure::{Bar, Ratio, alternate, best_of, elapsed_ns, now_ns},
    svg::Scale,
};
use anyhow::{Context, Result, ensure};
pub use apart::{PricesApart, prices_apart};
use cells::Cell;
use overside::{
    memory::{Buffer, Pool},
    planner::{Force, Planner, Terms, ViewPlan, Way},
    shape::Shape,
    verbs::{
        CompletionQueue, QueuePair,
        declared::{DeclaredSend, Region},
    },
};
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;

/// A strategy that looks at nothing but the length of fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fixed {
    Copy,
    Gather,
    Threshold(u64),
}

impl Fixed {
    /// All rivals.
    fn all() -> Vec<Fixed> {
        let thresholds = THRESHOLDS.into_iter().map(Fixed::Threshold);
        [Fixed::Copy, Fixed::Gather].into_iter().chain(thresholds).collect()
    }

    fn name(self) -> String {
        match self {
            Fixed::Copy => "copy".into(),
            Fixed::Gather => "gather".into(),
            Fixed::Threshold(bytes) => format!("gather from {bytes} B"),
        }
    }

    fn force(self) -> Force {
        match self {
            Fixed::Copy => Force::Way(Way::Copy),
            Fixed::Gather => Force::Way(Way::Gather),
            Fixed::Threshold(bytes) => Force::Threshold(bytes),
        }
    }
}

/// How a cell is sent: as planned anew for each message, or as somebody fixed it before.
struct Strategy<'a> {
    planner: &'a Planner,
    terms: Terms,
    /// None: planned anew for each message.
    plan: Option<ViewPlan>,
    memory: &'a Arc<Buffer>,
    shapes: &'a [Arc<Shape>],
    pool: &'a Pool,
    next: usize,
    /// Nanoseconds to go on for; 0: each shape once.
    for_ns: u64,
    start: u64,
    left: usize,
    send: Option<DeclaredSend>,
    bytes: u64,
}

impl Strategy<'_> {
    /// The next message; none when time is over.
    fn take(&mut self) -> Result<Option<DeclaredSend>> {
        let over = if self.for_ns == 0 { self.left == 0 } else { elapsed_ns(self.start) >= self.for_ns };
        if over {
            return Ok(None);
        }
        let at = self.next % self.shapes.len();
        (self.next, self.left) = (self.next + 1, self.left.saturating_sub(1));
        let shape = &self.shapes[at];
        let planned;
        let plan = match &self.plan {
            Some(plan) => plan,
            None => {
                planned = self.planner.plan(shape, &self.terms)?;
                &planned
            }
        };
        let region = Region::new(self.memory, shape)?;
        self.bytes += shape.bytes();
        let capabilities = self.planner.capabilities();
        Ok(Some(DeclaredSend::new(0, region, Some(plan), capabilities, self.terms.request_bytes_max)?))
    }
}

impl Post for Strategy<'_> {
    fn begin(&mut self, _pairs: &[QueuePair]) -> Result<()> {
        (self.start, self.bytes, self.left) = (now_ns(), 0, self.shapes.len());
        if self.for_ns == 0 {
            self.next = 0;
        }
        Ok(())
    }

    fn post(&mut self, queue: &mut CompletionQueue, pairs: &[QueuePair]) -> Result<bool> {
        loop {
            if let Some(send) = &mut self.send
                && !queue.post_send(pairs[0], send, self.pool)?
            {
                return Ok(false);
            }
            self.send = self.take()?;
            if self.send.is_none() {
                return Ok(true);
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// What a cell showed.
#[derive(Clone, Debug, Serialize)]
struct Outcome {
    /// The shape, in words.
    shape: String,
    bytes: u64,
    fragments: u64,
    /// How much of the best strategy's rate was lost, 0 to 1; the best is chosen in other rounds than it is compared in.
    regret: f64,
    /// The same when every message is planned anew while time runs, instead of once when its region is declared.
    regret_planned_anew: f64,
    /// What the planner chose, with its prices.
    plan: String,
    /// The best fixed strategy.
    best: String,
    /// Bytes per second of auto and of the best.
    bytes_per_s: [f64; 2],
    /// What was measured: each different way of sending the cell, with its price and what was seen.
    alternatives: Vec<Alternative>,
    /// What each threshold loses against the best, in the order of the thresholds.
    threshold_losses: Vec<f64>,
}

/// A way of sending a cell.
#[derive(Clone, Debug, Serialize)]
struct Alternative {
    /// `copy`, `gather`, or from which length on fragments are gathered.
    way: String,
    /// The planner's price for a message, in nanoseconds: sender, receiver.
    predicted_ns: [f64; 2],
    /// Nanoseconds from one message to the next.
    seen_ns: f64,
}

/// Measures the figure.
pub(super) fn measure(setting: &Setting<'_>) -> Result<Figure> {
    let mut figure = Figure::new("regret", setting.over.name(), "How far auto falls behind the best fixed strategy");
    let mut sender = Sender::start(setting.over, 1)?;
    let memory = Records::region(&mut sender, setting.region_bytes())?;
    let planner = Planner::new(sender.capabilities.clone(), sender.profile.clone());
    let mut cells = cells::grid(if setting.quick { CELLS_QUICK } else { CELLS_FULL });
    // One connection for each class of size: its receive buffers are as long as the class.
    cells.sort_by_key(Cell::class);
    let mut outcomes = Vec::new();
    let (mut class, mut pool) = (0, None);
    for (at, cell) in cells.iter().enumerate() {
        setting.progress.part("regret", at, cells.len());
        if cell.class() != class || pool.is_none() {
            class = cell.class();
            pool = Some(sender.pool(class, (POOL_BYTES / class).clamp(8, 256))?);
            sender.connect(1, class, (POOL_BYTES / class).clamp(8, 256))?;
        }
        if let Some(pool) = &pool {
            outcomes.push(one(setting, &mut sender, &planner, &memory, cell, pool)?);
        }
    }
    tell(&mut figure, &outcomes)?;
    Ok(figure)
}

fn one(
    setting: &Setting<'_>,
    sender: &mut Sender,
    planner: &Planner,
    memory: &Arc<Buffer>,
    cell: &Cell,
    pool: &Pool,
) -> Result<Outcome> {
    // At so many places that its bytes were not touched lately when it comes to them again.
    let places = (COLD_BYTES / cell.touched()).clamp(PLACES_MIN, PLACES_MAX) as usize;
    let shapes = cell.shapes(memory.len() as u64, places)?;
    let terms = Terms { request_bytes_max: cell.class() as u64, ..Terms::default() };
    // Strategies that come to the same for this cell are measured once.
    // Plans go by lengths alone, which are the same at every place.
    let mut kinds: Vec<ViewPlan> = Vec::new();
    let mut kind_of = Vec::new();
    for strategy in Fixed::all() {
        let plan = planner.plan(&shapes[0], &Terms { force: Some(strategy.force()), ..terms });
        kind_of.push(plan.ok().map(|plan| place_of(&mut kinds, plan, &shapes[0])));
    }
    let rivals = kinds.len();
    let plan = planner.plan(&shapes[0], &terms)?;
    let chosen = place_of(&mut kinds, plan.clone(), &shapes[0]);
    let side = |plan| Strategy {
        planner,
        terms,
        plan,
        memory,
        shapes: &shapes,
        pool,
        next: 0,
        for_ns: 0,
        start: 0,
        left: 0,
        send: None,
        bytes: 0,
    };
    let mut sides: Vec<Strategy<'_>> = kinds.iter().map(|plan| side(Some(plan.clone()))).collect();
    sides.push(side(None));
    let answers = sides.iter_mut().map(|side| Ok(sender.post(side, true)?.1[0])).collect::<Result<Vec<_>>>()?;
    ensure!(
        answers.iter().all(|answer| (answer.messages, answer.digest) == (answers[0].messages, answers[0].digest)),
        "two strategies delivered different bytes of {}",
        cell.describe()
    );
    sides.iter_mut().for_each(|side| side.for_ns = setting.slice_ns() / 4);
    let samples = alternate(sides.len(), setting.rounds() * 2, |at, _| undisturbed(sender, &mut sides[at]))?;
    let mut rates: Vec<Vec<f64>> = samples.iter().map(|side| side.iter().map(Sample::bytes_per_s).collect()).collect();
    let anew = rates.pop().unwrap_or_default();
    let auto = [rates[chosen].clone(), anew];
    let alternatives = kinds.iter().zip(&rates).map(|(kind, rates)| alternative(kind, rates)).collect();
    rates.truncate(rivals);
    Ok(outcome(cell, &shapes[0], &plan, &rates, &auto, (&kind_of, alternatives)))
}

/// A stretch in which no other program had a processor of ours, if there is one in a few attempts: differences of some
/// hundredths do not show beside that.
fn undisturbed(sender: &mut Sender, side: &mut Strategy<'_>) -> Result<Sample> {
    let mut best: Option<Sample> = None;
    for _ in 0..ATTEMPTS {
        let sample = sender.post(side, false)?.0;
        if best.is_none_or(|known| sample.crowded_ns < known.crowded_ns) {
            best = Some(sample);
        }
        if sample.crowded_ns * CROWDED_PART < sample.wall_ns {
            break;
        }
    }
    best.context("no attempt was made")
}

/// Where a plan is measured: beside one that sends the shape alike, or on its own.
fn place_of(kinds: &mut Vec<ViewPlan>, plan: ViewPlan, shape: &Shape) -> usize {
    kinds.iter().position(|kind| same(kind, &plan, shape)).unwrap_or_else(|| {
        kinds.push(plan);
        kinds.len() - 1
    })
}

fn alternative(plan: &ViewPlan, rates: &[f64]) -> Alternative {
    let way = match plan.way() {
        Way::Mixture => format!("gather from {} B", plan.gather_from()),
        way => way.to_string(),
    };
    let price = plan.chosen();
    let seen_ns = plan.bytes() as f64 * 1e9 / crate::measure::median(rates).max(1.0);
    Alternative { way, predicted_ns: [price.sender_ns, price.receiver_ns], seen_ns }
}

fn outcome(
    cell: &Cell,
    shape: &Shape,
    plan: &ViewPlan,
    rates: &[Vec<f64>],
    auto: &[Vec<f64>; 2],
    (kind_of, alternatives): (&[Option<usize>], Vec<Alternative>),
) -> Outcome {
    let median = |side: &[f64]| crate::measure::median(side);
    let best = (0..rates.len()).max_by(|a, b| median(&rates[*a]).total_cmp(&median(&rates[*b]))).unwrap_or(0);
    let lost = |side: &[f64]| best_of(side, rates).map_or(0.0, |best| 1.0 - best.ratio.median);
    let named = Fixed::all().into_iter().zip(kind_of).filter(|(_, kind)| **kind == Some(best)).map(|(f, _)| f.name());
    let thresholds = Fixed::all().into_iter().zip(kind_of).filter(|(fixed, _)| matches!(fixed, Fixed::Threshold(_)));
    let losses = thresholds.map(|(_, kind)| kind.map_or(0.0, |kind| lost(&rates[kind])));
    Outcome {
        shape: cell.describe(),
        bytes: shape.bytes(),
        fragments: shape.fragment_count(),
        regret: lost(&auto[0]).max(0.0),
        regret_planned_anew: lost(&auto[1]).max(0.0),
        plan: plan.to_string(),
        best: named.collect::<Vec<_>>().join(", "),
        bytes_per_s: [median(&auto[0]), median(&rates[best])],
        threshold_losses: losses.collect(),
        alternatives,
    }
}

/// Whether two plans send a shape alike.
fn same(one: &ViewPlan, other: &ViewPlan, shape: &Shape) -> bool {
    let packed = |plan: &ViewPlan| shape.fragments().filter(|run| run.len < plan.gather_from()).count();
    one.way() == other.way() && packed(one) == packed(other)
}

fn tell(figure: &mut Figure, outcomes: &[Outcome]) -> Result<()> {
    let regrets = sorted(outcomes.iter().map(|outcome| outcome.regret));
    let of = |threshold: usize| sorted(outcomes.iter().map(|outcome| outcome.threshold_losses[threshold].max(0.0)));
    // The best single threshold is the one that loses least on average.
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len().max(1) as f64;
    let thresholds: Vec<Vec<f64>> = (0..THRESHOLDS.len()).map(of).collect();
    let best =
        (0..THRESHOLDS.len()).min_by(|a, b| mean(&thresholds[*a]).total_cmp(&mean(&thresholds[*b]))).unwrap_or(0);
    let worst = outcomes.iter().max_by(|a, b| a.regret.total_cmp(&b.regret));
    let anew = sorted(outcomes.iter().map(|outcome| outcome.regret_planned_anew));
    let summary = |losses: &[f64]| json!({"median": at(losses, 0.5), "p95": at(losses, 0.95), "worst": at(losses, 1.0), "mean": mean(losses)});
    figure.more.insert("median".into(), json!(at(&regrets, 0.5)));
    figure.more.insert("p95".into(), json!(at(&regrets, 0.95)));
    figure.more.insert("worst".into(), json!(at(&regrets, 1.0)));
    figure.more.insert("mean".into(), json!(mean(&regrets)));
    figure.more.insert("planned_anew".into(), summary(&anew));
    figure.more.insert("worst_cell".into(), serde_json::to_value(worst)?);
    figure.more.insert("best_single_threshold".into(), json!(THRESHOLDS[best]));
    figure.more.insert("best_single_threshold_loses".into(), summary(&thresholds[best]));
    let all: serde_json::Map<String, serde_json::Value> =
        THRESHOLDS.iter().zip(&thresholds).map(|(bytes, losses)| (bytes.to_string(), summary(losses))).collect();
    figure.more.insert("thresholds".into(), all.into());
    figure.more.insert("cells".into(), serde_json::to_value(outcomes)?);
    let exact =
        |value: f64| Some(Ratio { median: 1.0 - value, low: 1.0 - value, high: 1.0 - value, rounds: outcomes.len() });
    figure.bars = vec![
        Bar::at_least("auto over the best fixed strategy, median cell", 0.97, exact(at(&regrets, 0.5))),
        Bar::at_least("auto over the best fixed strategy, 95th percentile", 0.90, exact(at(&regrets, 0.95))),
    ];
    figure.text = text(outcomes, [&regrets, &anew, &thresholds[best]], worst, THRESHOLDS[best]);
    let percent = |losses: &[f64]| losses.iter().enumerate().map(|(rank, loss)| (rank as u64, loss * 100.0)).collect();
    let mut chart = Curves::new("lost against the best (%)", "cells, from the least to the most lost", Scale::Linear);
    chart.add(Curve::values("auto", 3, percent(&regrets)));
    chart.add(Curve::values(&format!("gather from {} B", THRESHOLDS[best]), 0, percent(&thresholds[best])));
    for (colour, threshold) in [(1, 0), (4, THRESHOLDS.len() - 1)] {
        if threshold != best {
            chart.add(Curve::values(
                &format!("gather from {} B", THRESHOLDS[threshold]),
                colour,
                percent(&thresholds[threshold]),
            ));
        }
    }
    figure.charts.push((
        curves(&chart),
        "What auto and fixed thresholds lose against the best fixed strategy of each cell, known afterwards.".into(),
    ));
    Ok(())
}

fn text(outcomes: &[Outcome], lost: [&[f64]; 3], worst: Option<&Outcome>, threshold: u64) -> String {
    let [auto, anew, fixed] = lost.map(|losses| {
        let percent = |part| at(losses, part) * 100.0;
        format!(
            "{:.1} % in the median cell, {:.1} % at the 95th percentile, {:.1} % in the worst",
            percent(0.5),
            percent(0.95),
            percent(1.0)
        )
    });
    let worst = worst.map_or(String::new(), |worst| {
        format!(
            " The worst cell is {}: {:.1} % behind <i>{}</i> ({:.2} against {:.2} GB/s); the plan was: {}.",
            worst.shape,
            worst.regret * 100.0,
            worst.best,
            worst.bytes_per_s[0] / 1e9,
            worst.bytes_per_s[1] / 1e9,
            crate::svg::escape(&worst.plan)
        )
    });
    format!(
        "{} shapes from a seed that calibration never sees, over scattered memory. Rivals always copy, always gather, or gather \
         from a fixed length on, 256 B to 64 KiB. The best rival of a cell is chosen in half of the rounds and compared in the other \
         half. Auto, which plans a region when it is declared, loses {auto}; planning every message anew while time runs: {anew}; \
         the best single threshold, {threshold} B, loses {fixed}.{worst}",
        outcomes.len()
    )
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// A quantile of sorted values.
fn at(sorted: &[f64], part: f64) -> f64 {
    let place = (sorted.len().saturating_sub(1) as f64 * part).round() as usize;
    sorted.get(place).copied().unwrap_or(0.0)
}

const THRESHOLDS: [u64; 9] = [256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
const CELLS_QUICK: usize = 200;
const CELLS_FULL: usize = 400;
/// More than a second-level cache holds, several times over.
const COLD_BYTES: u64 = 32 << 20;
const PLACES_MIN: u64 = 64;
const PLACES_MAX: u64 = 4096;
const POOL_BYTES: usize = 1 << 20;
/// Of a stretch, one part in so many may go to other programs.
const CROWDED_PART: u64 = 50;
const ATTEMPTS: usize = 6;
