//! Claims, results, and what results say of claims: pure data, which measures nothing.
//!
//! A figure of `overside bench` is JSON: places on curves, with what every round came to
//! ([`Measured`]). A [`Rule`] asks such a figure each half of what a paper states and answers
//! agrees, differs or cannot tell ([`Judgement`]). The bench asks when it has measured; `cargo
//! xtask` asks committed results again by the same code.
//!
//! `stats`, `bars`: medians, intervals, ratios of pairs. `measured`, `verdict`, `rules`: a figure
//! as rules read it, a file of rules for each group. `claims`, `results`: docs/claims.toml, and
//! committed full runs.
//!
//! Each half of a rule can agree, differ and not tell; a test makes data up until it has. An
//! interval that spans its bar cannot tell. There is no clock here.
#![forbid(unsafe_code)]

mod bars;
mod claims;
mod measured;
mod results;
mod rules;
mod split_mix;
mod stats;
mod verdict;

pub use bars::{Bar, Verdict};
pub use claims::{Claim, numbers, parse, states};
pub use measured::{DataPoint, Lack, Measured, Metric, Reading};
pub use results::{FORMAT, Kept, verdicts};
pub use rules::{goals, rules};
pub use split_mix::SplitMix64;
pub use stats::{BestOf, Ratio, Spread, best_of, median};
pub use verdict::{At, ClaimPart, Demand, Goals, Judged, Judgement, Of, On, RangeEnds, Rule, Says, Wanted};

use serde_json::Value;

/// The figures of `overside bench`, in the order of `all`.
pub const FIGURES: [&str; 18] = [
    "verbs",
    "transmit",
    "delta",
    "consolidate",
    "shuffle",
    "projection",
    "regret",
    "messages",
    "sockets",
    "durability",
    "mixed",
    "scans",
    "costs",
    "blocks",
    "policies",
    "clients",
    "oltp",
    "targets",
];

/// What a figure's JSON says of every claim that asks it.
///
/// # Errors
/// It is no figure's JSON, or a place on it is not whole: one line says what.
pub fn judge(figure: &Value) -> Result<Vec<Judgement>, String> {
    let measured = Measured::of(figure)?;
    Ok(rules().filter(|rule| rule.figure == measured.figure).map(|rule| rule.judge(&measured)).collect())
}

/// What a figure's JSON says of the bars that the project has set it; `None` of a figure whose bars
/// are stated elsewhere.
///
/// # Errors
/// As [`judge`].
pub fn bars(figure: &Value) -> Result<Option<Vec<Bar>>, String> {
    let measured = Measured::of(figure)?;
    let own = goals().find(|goals| goals.figure == measured.figure);
    Ok(own.map(|goals| goals.judge(&measured)))
}
