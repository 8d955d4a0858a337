//! `regret`: on shapes that calibration never saw, how far the planner's choice falls behind the
//! best fixed strategy known afterwards.

mod apart;
mod cells;
mod deciding;
mod strategy;

use super::{
    Setting,
    charts::{Curve, Curves, curves},
    figure::Figure,
    records::Records,
    sender::{Sample, Sender},
};
use crate::{
    measure::{Bar, Ratio, alternate, best_of},
    svg::Scale,
};
use anyhow::{Context, Result, ensure};
pub use apart::{PricesApart, prices_apart};
use cells::Cell;
use deciding::Deciding;
use overside::{
    memory::{Buffer, Pool},
    planner::{Method, Planner, Terms, ViewPlan},
    shape::Shape,
};
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;
use strategy::{Fixed, Planned, Strategy, THRESHOLDS, Turn};

/// What a cell showed.
#[derive(Clone, Debug, Serialize)]
struct Outcome {
    /// The shape, in words.
    shape: String,
    bytes: u64,
    fragments: u64,
    /// How much of the best strategy's rate was lost, 0 to 1, in rounds after those in
    /// which the best was chosen.
    regret: f64,
    /// The planner's choice is that best strategy; `lost` then shows what two stretches
    /// of one strategy differ by.
    same_as_best: bool,
    /// What was lost, below 0 where auto is ahead of every rival: the lower end of its 95 %
    /// interval, the median, the upper end.
    lost: [f64; 3],
    /// The same when every message is planned anew while time runs, instead of once
    /// when its region is declared.
    regret_planned_anew: f64,
    /// What the planner chose, with its prices.
    plan: String,
    /// The best fixed strategy.
    best: String,
    /// How long a cache line took to come from the receiver's processor
    /// before, where that is known.
    line_ns: Option<f64>,
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
    let mut cells = cells::grid(if setting.quick { CELLS_QUICK } else { CELLS_FULL }, setting.seed);
    // One connection for each class of size: its receive buffers are as long as the class.
    cells.sort_by_key(Cell::class);
    let mut outcomes = Vec::new();
    let (mut class, mut pool, mut decisions) = (0, None, Vec::new());
    for (at, cell) in cells.iter().enumerate() {
        setting.progress.part("regret", at, cells.len());
        if cell.class() != class || pool.is_none() {
            class = cell.class();
            pool = Some(sender.pool(class, (POOL_BYTES / class).clamp(8, 256))?);
            sender.connect(1, class, (POOL_BYTES / class).clamp(8, 256))?;
        }
        if let Some(pool) = &pool {
            let bench = Bench { setting, planner: &planner, memory: &memory, pool };
            if decisions.is_empty() && class as u64 >= deciding::MESSAGE_BYTES {
                decisions = deciding::deciding(&bench, &mut sender)?;
            }
            outcomes.push(one(&bench, &mut sender, cell)?);
        }
    }
    tell(&mut figure, &outcomes)?;
    tell_deciding(&mut figure, &decisions)?;
    figure.more.insert("seed".into(), json!(setting.seed));
    figure.more.insert("prices".into(), json!(sender.profile.source));
    let elsewhere = sender.profile.elsewhere.as_ref().map(|prices| prices.bends.line_ns);
    figure.more.insert("prices_line_ns".into(), json!([Some(sender.profile.bends.line_ns), elsewhere]));
    Ok(figure)
}

/// What a cell is measured with.
struct Bench<'a> {
    setting: &'a Setting<'a>,
    planner: &'a Planner,
    memory: &'a Arc<Buffer>,
    pool: &'a Pool,
}

fn one(bench: &Bench<'_>, sender: &mut Sender, cell: &Cell) -> Result<Outcome> {
    let Bench { setting, planner, memory, pool } = *bench;
    // At so many places that its bytes were not touched lately when it comes to them again.
    let places = (memory.len() as u64 / cell.touched()).clamp(PLACES_MIN, PLACES_MAX) as usize;
    let shapes = &cell.shapes(memory.len() as u64, places)?[..];
    let terms = Terms { request_bytes_max: cell.class() as u64, ..Terms::default() };
    let line_ns = sender.line_ns(0);
    let kinds = Kinds::of(planner, line_ns, &shapes[0], &terms)?;
    let first = shapes.len().min((CHECKED_BYTES / cell.bytes().max(1)).max(PLACES_MIN) as usize);
    let side =
        |planned| Strategy { planner, terms, planned, memory, shapes, pool, for_ns: 0, first, turn: Turn::default() };
    let mut sides: Vec<Strategy<'_>> =
        kinds.plans.iter().map(|plan| side(Planned::As(Box::new(plan.clone())))).collect();
    let (auto, anew) = (sides.len(), sides.len() + 1);
    sides.push(side(Planned::ByDistance(Box::new(kinds.by_distance.map(|place| kinds.plans[place].clone())))));
    sides.push(side(Planned::Anew));
    let answers = sides.iter_mut().map(|side| Ok(sender.post(side, true)?.1[0])).collect::<Result<Vec<_>>>()?;
    ensure!(
        answers.iter().all(|answer| (answer.messages, answer.digest) == (answers[0].messages, answers[0].digest)),
        "two strategies delivered different bytes of {}",
        cell.describe()
    );
    sides.iter_mut().for_each(|side| side.for_ns = setting.slice_ns() / 4);
    let mut rates = |of: &[usize], rounds: usize| -> Result<Vec<Vec<f64>>> {
        let samples = alternate(of.len(), rounds, |at, _| undisturbed(sender, &mut sides[of[at]]))?;
        Ok(samples.iter().map(|side| side.iter().map(Sample::bytes_per_s).collect()).collect())
    };
    let all: Vec<usize> = (0..kinds.plans.len()).collect();
    let chosen_in = rates(&all, setting.rounds() + 1)?;
    let best = best_rival(&chosen_in[..kinds.rivals]);
    // The luckiest of many looks best. What it is ahead by counts in rounds that had no part in choosing it, and so does what
    // it is behind by: every cell is measured again, not those alone that look bad.
    let again = rates(&[best, auto, anew], setting.rounds() * 2 - 2)?;
    Ok(outcome(cell, &shapes[0], &kinds, &Seen { first: &chosen_in, again: &again, best, line_ns }))
}

/// The different ways in which strategies send a cell: those that come to
/// the same are measured once.
struct Kinds {
    /// Those of the rivals, then the planner's if none of them has it.
    plans: Vec<ViewPlan>,
    rivals: usize,
    /// Of each fixed strategy: none where the device cannot.
    of_fixed: Vec<Option<usize>>,
    /// The planner's by the prices of each distance that it knows, its own first.
    by_distance: [usize; 2],
    /// Its choice where the receiver is now.
    chosen: usize,
}

impl Kinds {
    /// Plans go by lengths alone, which are the same at every place.
    fn of(planner: &Planner, line_ns: Option<f64>, shape: &Shape, terms: &Terms) -> Result<Kinds> {
        let (mut plans, mut of_fixed) = (Vec::new(), Vec::new());
        let here = planner.at(line_ns);
        for strategy in Fixed::all() {
            let plan = here.plan(shape, &Terms { force: Some(strategy.force()), ..*terms });
            of_fixed.push(plan.ok().map(|plan| place_of(&mut plans, plan, shape)));
        }
        let rivals = plans.len();
        let elsewhere = planner.profile().elsewhere.as_ref().map(|prices| prices.bends.line_ns);
        let chosen = place_of(&mut plans, here.plan(shape, terms)?, shape);
        let mut place =
            |planner: &Planner| Ok::<_, anyhow::Error>(place_of(&mut plans, planner.plan(shape, terms)?, shape));
        let by_distance = [place(planner)?, place(planner.at(elsewhere))?];
        Ok(Kinds { plans, rivals, of_fixed, by_distance, chosen })
    }
}

/// The rates of a cell's strategies, round by round.
struct Seen<'a> {
    /// Of each way, in the rounds in which the best was chosen.
    first: &'a [Vec<f64>],
    /// Of the best, of the planner's choice, and of planning anew, afterwards.
    again: &'a [Vec<f64>],
    best: usize,
    /// How far the receiver was before them.
    line_ns: Option<f64>,
}

fn best_rival(rates: &[Vec<f64>]) -> usize {
    let median = |at: usize| crate::measure::median(&rates[at]);
    (0..rates.len()).max_by(|a, b| median(*a).total_cmp(&median(*b))).unwrap_or(0)
}

/// A stretch in which no other program had a processor of ours, if there is one in a few attempts:
/// differences of some hundredths do not show beside that.
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
        Method::Mixture => format!("gather from {} B", plan.gather_from()),
        way => way.to_string(),
    };
    let price = plan.chosen();
    let seen_ns = plan.bytes() as f64 * 1e9 / crate::measure::median(rates).max(1.0);
    Alternative { way, predicted_ns: [price.sender_ns, price.receiver_ns], seen_ns }
}

fn outcome(cell: &Cell, shape: &Shape, kinds: &Kinds, seen: &Seen<'_>) -> Outcome {
    let Seen { first, again, best, line_ns } = *seen;
    let (same, rivals, plan) = (kinds.by_distance == [best; 2], &first[..kinds.rivals], &kinds.plans[kinds.chosen]);
    let median = |side: &[f64]| crate::measure::median(side);
    let behind = |side: &[f64]| Ratio::paired(side, &again[0]);
    let lost = |rate: Option<Ratio>| rate.map_or(0.0, |ratio| (1.0 - ratio.median).max(0.0));
    let auto = behind(&again[1]);
    let named =
        Fixed::all().into_iter().zip(&kinds.of_fixed).filter(|(_, kind)| **kind == Some(best)).map(|(f, _)| f.name());
    let thresholds =
        Fixed::all().into_iter().zip(&kinds.of_fixed).filter(|(fixed, _)| matches!(fixed, Fixed::Threshold(_)));
    let loses = |kind: usize| best_of(&rivals[kind], rivals).map_or(0.0, |best| 1.0 - best.ratio.median);
    Outcome {
        shape: cell.describe(),
        bytes: shape.bytes(),
        fragments: shape.fragment_count(),
        regret: if same { 0.0 } else { lost(auto) },
        same_as_best: same,
        lost: auto.map_or([0.0; 3], |ratio| [1.0 - ratio.high, 1.0 - ratio.median, 1.0 - ratio.low]),
        regret_planned_anew: lost(behind(&again[2])),
        plan: plan.to_string(),
        best: named.collect::<Vec<_>>().join(", "),
        bytes_per_s: [median(&again[1]), median(&again[0])],
        threshold_losses: thresholds.map(|(_, kind)| kind.map_or(0.0, loses)).collect(),
        line_ns,
        alternatives: kinds.plans.iter().zip(first).map(|(plan, rates)| alternative(plan, rates)).collect(),
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
    let noise = sorted(outcomes.iter().filter(|outcome| outcome.same_as_best).map(|outcome| outcome.lost[1].max(0.0)));
    figure.more.insert("one_strategy_against_itself".into(), summary(&noise));
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

fn tell_deciding(figure: &mut Figure, decisions: &[Deciding]) -> Result<()> {
    figure.more.insert("deciding".into(), serde_json::to_value(decisions)?);
    let words: Vec<String> = decisions.iter().map(Deciding::in_words).collect();
    figure.text += &format!(" Deciding about 16 KiB: {}.", words.join("; "));
    for one in decisions {
        let bar = |what, wanted, ratio| {
            Bar::at_least(format!("16 KiB of {}, the send over it and {what}", one.shape), wanted, ratio)
        };
        figure.bars.push(bar("a fresh decision", 0.91, one.fresh));
        figure.bars.push(bar("a known one", 0.98, one.cached));
    }
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
         from a fixed length on, 256 B to 64 KiB. The best rival of a cell is chosen in some rounds and compared in others after \
         them. Auto, which plans a region when it is declared, loses {auto}; planning every message anew while time runs: {anew}; \
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

const CELLS_QUICK: usize = 200;
const CELLS_FULL: usize = 400;
/// So much of each strategy is compared byte by byte.
const CHECKED_BYTES: u64 = 4 << 20;
const PLACES_MIN: u64 = 64;
const PLACES_MAX: u64 = 1 << 16;
const POOL_BYTES: usize = 1 << 20;
/// Of a stretch, one part in so many may go to other programs.
const CROWDED_PART: u64 = 50;
const ATTEMPTS: usize = 6;
