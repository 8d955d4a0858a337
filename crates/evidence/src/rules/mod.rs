//! Which question each claim puts to which figure.
//!
//! A bar is the paper's own ratio where the paper states one. Where it states a direction, the bar
//! is 1, and the interval must lie beyond it. Absolute rates are of the papers' machines; a rule
//! asks for one only where the claim is the rate.

mod blocks;
mod clients;
mod consolidate;
mod costs;
mod durability;
mod messages;
mod mixed;
mod oltp;
mod policies;
mod scans;
mod shuffle;
mod sockets;
mod targets;
mod transmit;
mod verbs;

use crate::{
    measured::Metric,
    verdict::{At, ClaimPart, Demand, Goals, Of, On, RangeEnds, Rule, Wanted},
};

/// All rules, by figure.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    [
        transmit::RULES,
        consolidate::RULES,
        verbs::RULES,
        shuffle::RULES,
        messages::RULES,
        durability::RULES,
        mixed::RULES,
        scans::RULES,
        costs::RULES,
        sockets::RULES,
        blocks::RULES,
        policies::RULES,
        clients::RULES,
        oltp::RULES,
        targets::RULES,
    ]
    .into_iter()
    .flatten()
}

/// The bars of those figures that are judged by their JSON alone.
pub fn goals() -> impl Iterator<Item = &'static Goals> {
    [durability::GOALS, blocks::GOALS, policies::GOALS, oltp::GOALS, targets::GOALS].into_iter()
}

/// Any x.
const ANYWHERE: RangeEnds = (0, u64::MAX);

const fn at(series: &'static str, x: u64) -> At {
    At { series, on: On::X(x), rows: None }
}

const fn on(series: &'static str, on: On) -> At {
    At { series, on, rows: None }
}

const fn peak(series: &'static str) -> At {
    on(series, On::Peak)
}

/// A part that is asked of every reading.
const fn part(says: &'static str, of: Of, bar: Wanted) -> ClaimPart {
    ClaimPart { says, of, demand: Demand::Every, bar }
}

const fn some(says: &'static str, of: Of, bar: Wanted) -> ClaimPart {
    ClaimPart { says, of, demand: Demand::Some, bar }
}

const fn ratio(says: &'static str, metric: Metric, ours: At, theirs: At, bar: Wanted) -> ClaimPart {
    part(says, Of::Ratio(metric, ours, theirs), bar)
}

#[cfg(test)]
mod tests;
