//! The thesis' figures 2.2 and 2.3: verbs by length of their lists; x is records in a list.

use super::{ANYWHERE, at, on, peak, ratio};
use crate::{
    measured::Metric,
    verdict::{ClaimPart, Demand, Of, On, Rule, Wanted},
};
use Metric::Rate;
use Wanted::{AtLeast, AtMost};

const SEND: &str = "SEND 100 B";
const WRITE: &str = "WRITE 100 B";
const READ: &str = "READ 100 B";

pub(super) const RULES: &[Rule] = &[
    rule(
        "TH-C01",
        &[
            ratio(
                "SEND of 100 B: the longest list over one record",
                Rate,
                on(SEND, On::Last),
                at(SEND, 1),
                AtLeast(1.0),
            ),
            ratio("WRITE of 100 B: the same", Rate, on(WRITE, On::Last), at(WRITE, 1), AtLeast(1.0)),
        ],
    ),
    rule(
        "TH-C02",
        &[
            nearly("SEND of 1000 B over SEND of 100 B, by list length", "SEND 1000 B", SEND),
            nearly("WRITE of 1000 B over WRITE of 100 B, by list length", "WRITE 1000 B", WRITE),
            ratio("READ of 1000 B over READ of 100 B", Rate, at("READ 1000 B", 1), at(READ, 1), AtLeast(1.0)),
        ],
    ),
    rule(
        "TH-C03",
        &[ratio("READ of 100 B over gathered SENDs at their best", Rate, at(READ, 1), peak(SEND), AtMost(1.0))],
    ),
];

const fn rule(claim: &'static str, parts: &'static [ClaimPart]) -> Rule {
    Rule { claim, figure: "verbs", parts, optional: false }
}

/// Nearly always faster.
const fn nearly(says: &'static str, larger: &'static str, smaller: &'static str) -> ClaimPart {
    ClaimPart { says, of: Of::Curves(Rate, larger, smaller, ANYWHERE), demand: Demand::Nearly, bar: AtLeast(1.0) }
}
