//! Hit ratios of cache policies; x is the cache's share of the blocks that a trace touches, in a
//! hundred. All is counted.

use super::{at, part, ratio};
use crate::{
    measured::{Lack, Measured, Metric, Reading, over},
    verdict::{ClaimPart, Goals, Of, Rule, Wanted},
};
use Metric::Recorded;
use Wanted::{AtLeast, AtMost};

pub(super) const GOALS: &Goals = &Goals {
    figure: "policies",
    parts: &[
        default("w-tinylfu, the default, over the best of the others: zipf", Of::Named(zipf)),
        default("w-tinylfu, the default, over the best of the others: scan", Of::Named(scan)),
        default("w-tinylfu, the default, over the best of the others: loop", Of::Named(looped)),
        default("w-tinylfu, the default, over the best of the others: mixed", Of::Named(mixed)),
        default("w-tinylfu, the default, over the best of the others: second level", Of::Named(second)),
    ],
};

pub(super) const RULES: &[Rule] = &[Rule {
    claim: "VI-C07",
    figure: "policies",
    optional: false,
    parts: &[
        // Does not suit: at least a tenth of its hits could be more.
        ratio(
            "below another cache: hits of lru over those of mq",
            Recorded,
            at("second level: lru", 10),
            at("second level: mq", 10),
            AtMost(0.9),
        ),
        part(
            "accesses there to the warmest fifth of its blocks",
            Of::Value(Recorded, at("second level: accesses to the warmest fifth, share", 0)),
            AtLeast(0.5),
        ),
    ],
}];

const DEFAULT: &str = "w-tinylfu";
const OTHERS: [&str; 6] = ["mq", "lru", "arc", "2q", "lirs", "s3-fifo"];

/// As good as any other, but for what is chance.
const fn default(says: &'static str, of: Of) -> ClaimPart {
    part(says, of, AtLeast(0.99))
}

fn zipf(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    over_best(figure, "zipf")
}

fn scan(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    over_best(figure, "scan")
}

fn looped(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    over_best(figure, "loop")
}

fn mixed(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    over_best(figure, "mixed")
}

fn second(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    over_best(figure, "second level")
}

/// Where the cache holds a tenth.
fn over_best(figure: &Measured, trace: &str) -> Result<Vec<Reading>, Lack> {
    let of = |policy: &str| figure.place(&format!("{trace}: {policy}"), 10, None)?.values(figure, Recorded);
    let mut best = of(OTHERS[0])?;
    for policy in &OTHERS[1..] {
        best = best.iter().zip(&of(policy)?).map(|(best, other)| best.max(*other)).collect();
    }
    Ok(Reading::of(String::new(), &over(&of(DEFAULT)?, &best), true).into_iter().collect())
}
