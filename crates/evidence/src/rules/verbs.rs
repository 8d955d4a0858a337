//! The thesis' figures 2.2 and 2.3: verbs by length of their lists; x is records in a list.

use super::{ANYWHERE, at, on, part, peak, ratio};
use crate::{
    measured::Metric,
    verdict::{Demand, Of, On, Part, Rule, Wanted},
};
use Metric::Rate;
use Wanted::{AtLeast, AtMost};

const SEND: &str = "SEND 100 B";
const READ: &str = "READ 100 B";

/// One place alone.
const ONE_POINT: Part = part("places that READ has: it names one range", Of::Count(READ), AtMost(1.0));

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
            ONE_POINT,
        ],
    ),
    rule(
        "TH-C02",
        &[Part {
            says: "SEND of 1000 B over SEND of 100 B, by list length",
            of: Of::Curves(Rate, "SEND 1000 B", SEND, ANYWHERE),
            demand: Demand::Nearly,
            bar: AtLeast(1.0),
        }],
    ),
    rule(
        "TH-C03",
        &[
            ONE_POINT,
            ratio("READ of 100 B over gathered SENDs at their best", Rate, at(READ, 1), peak(SEND), AtMost(1.0)),
        ],
    ),
];

const fn rule(claim: &'static str, parts: &'static [Part]) -> Rule {
    Rule { claim, figure: "verbs", parts }
}
