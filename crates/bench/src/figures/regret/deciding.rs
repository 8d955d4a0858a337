//! What deciding costs beside what it decides about: messages of 16 KiB.

use super::{
    Bench,
    strategy::{Planned, Strategy, Turn},
    undisturbed,
};
use crate::{
    figures::sender::Sender,
    measure::{Ratio, elapsed_ns, median, now_ns},
};
use anyhow::Result;
use overside::{
    planner::{PlanCache, Terms},
    shape::{Run, Shape},
};
use overside_evidence::SplitMix64;
use serde::Serialize;
use std::{hint::black_box, sync::Arc};

/// What deciding about one kind of message takes.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Deciding {
    /// The message.
    pub(super) shape: &'static str,
    /// The way that was decided for.
    way: String,
    /// Nanoseconds from one message to the next, its plan at hand.
    send_ns: f64,
    /// Nanoseconds of a plan made for a shape that nothing is known about.
    fresh_ns: f64,
    /// Nanoseconds of looking up the plan of a shape that is known.
    cached_ns: f64,
    /// The send's part of itself and a plan made afresh.
    #[serde(skip)]
    pub(super) fresh: Option<Ratio>,
    /// The send's part of itself and a plan looked up.
    #[serde(skip)]
    pub(super) cached: Option<Ratio>,
}

impl Deciding {
    /// In a few words: what a fresh and a known plan take, as a part of the send.
    pub(super) fn in_words(&self) -> String {
        let percent = |ns: f64| 100.0 * ns / self.send_ns.max(1.0);
        format!(
            "{} ({}, {:.1} µs): afresh {:.0} ns, {:.1} %, known {:.0} ns, {:.1} %",
            self.shape,
            self.way,
            self.send_ns / 1000.0,
            self.fresh_ns,
            percent(self.fresh_ns),
            self.cached_ns,
            percent(self.cached_ns)
        )
    }
}

/// Each kind of message, at places one after another so that neither its bytes nor its
/// description are at hand.
pub(super) fn deciding(bench: &Bench<'_>, sender: &mut Sender) -> Result<Vec<Deciding>> {
    let many = |i: u64| if i.is_multiple_of(16) { 1500 } else { 28 + i % 40 };
    Ok(vec![
        one(bench, sender, "128 pieces of 128 B", &[128; 128])?,
        one(bench, sender, "128 pieces of many lengths", &(0..128).map(many).collect::<Vec<_>>())?,
        one(bench, sender, "16 pieces of 1 KiB", &[1024; 16])?,
    ])
}

fn one(bench: &Bench<'_>, sender: &mut Sender, name: &'static str, lengths: &[u64]) -> Result<Deciding> {
    let Bench { setting, planner, memory, pool } = *bench;
    let mut random = SplitMix64(SEED);
    let mut place = |len: u64| Run::new(random.below((memory.len() as u64 - len) / 64) * 64, len);
    let shape = |_| {
        Ok::<_, anyhow::Error>(Arc::new(
            Shape::list(&lengths.iter().map(|len| place(*len)).collect::<Vec<_>>())?.one_message(),
        ))
    };
    let shapes = (0..PLACES).map(shape).collect::<Result<Vec<_>>>()?;
    let terms = Terms { request_bytes_max: MESSAGE_BYTES, ..Terms::default() };
    let plan = planner.plan(&shapes[0], &terms)?;
    let (way, planned) = (plan.way().to_string(), Planned::As(Box::new(plan)));
    let shapes = &shapes[..];
    let mut side = Strategy {
        planner,
        terms,
        planned,
        memory,
        shapes,
        pool,
        for_ns: setting.slice_ns(),
        first: 0,
        turn: Turn::default(),
    };
    let mut cache = PlanCache::default();
    let (mut sends, mut fresh, mut cached) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..setting.rounds() * 2 {
        let sample = undisturbed(sender, &mut side)?;
        sends.push(shapes[0].bytes() as f64 * 1e9 / sample.bytes_per_s().max(1.0));
        fresh.push(each(shapes, |shape| drop(black_box(planner.plan(black_box(shape), &terms)))));
        // Where two shapes have one place, neither may be the other's.
        shapes.iter().try_for_each(|shape| cache.plan(planner, shape, &terms).map(|_| ()))?;
        cached.push(each(&shapes[PLACES - KNOWN..], |shape| {
            let _ = black_box(cache.plan(planner, black_box(shape), &terms));
        }));
    }
    let part = |costs: &[f64]| {
        let both: Vec<f64> = sends.iter().zip(costs).map(|(send, cost)| send + cost).collect();
        Ratio::paired(&sends, &both)
    };
    let (fresh_ns, cached_ns) = (median(&fresh), median(&cached));
    Ok(Deciding {
        shape: name,
        way,
        send_ns: median(&sends),
        fresh_ns,
        cached_ns,
        fresh: part(&fresh),
        cached: part(&cached),
    })
}

/// Nanoseconds of a call for each shape.
fn each(shapes: &[Arc<Shape>], mut call: impl FnMut(&Arc<Shape>)) -> f64 {
    let start = now_ns();
    shapes.iter().for_each(&mut call);
    elapsed_ns(start) as f64 / shapes.len().max(1) as f64
}

/// Bytes of a message, about.
pub(super) const MESSAGE_BYTES: u64 = 32 << 10;
/// Shapes in turn: their descriptions are more than a first-level cache holds.
const PLACES: usize = 512;
/// Of them, so many are asked for again while their plans are known.
const KNOWN: usize = 16;
const SEED: u64 = 0xDEC1_DE00_0000_0001;
