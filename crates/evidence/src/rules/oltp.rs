//! TPC-C on an attached volume, beside a disk of the database's own.

use super::{ANYWHERE, at, part};
use crate::{
    measured::Metric,
    verdict::{ClaimPart, Goals, Of, Rule, Wanted},
};
use Metric::Recorded;
use Wanted::{AtLeast, AtMost, Within};

/// In the order of the project's table.
pub(super) const GOALS: &Goals = &Goals {
    figure: "oltp",
    parts: &[
        part("a third of the disks: transactions/s over local", OVER_LOCAL, AtLeast(0.98)),
        part("a third of the disks: transactions/s over local; a goal", OVER_LOCAL, AtLeast(1.18)),
        part("a third of the disks, wDSA: transactions/s over local", WDSA_OVER_LOCAL, AtLeast(0.9)),
    ],
};

pub(super) const RULES: &[Rule] = &[
    rule("VI-C44", &[part("the database's share, attached", share("the database's share: attached"), AtMost(0.4))]),
    optional(
        "VI-C46",
        &[
            part("the client's share, attached over wDSA", CLIENT_OVER_WDSA, AtMost(1.0)),
            part("the kernel's and the client's share, wDSA over attached", WDSA_OVER_ATTACHED, AtLeast(1.0)),
        ],
    ),
    // Within three points of what the paper has.
    rule("VI-C47", &[part("transactions/s over local", OVER_LOCAL, Within(0.95, 1.01))]),
    rule("VI-C48", &[part("a third of the disks: transactions/s over local", OVER_LOCAL, AtLeast(0.95))]),
    rule("VI-C49", &[part("hits of the node's cache", share("hits of the node's cache: attached"), Within(0.4, 0.45))]),
    optional("VI-C50", &[part(BATCHED, BY_1000_OVER_EACH, AtLeast(1.0))]),
    optional(
        "VI-C10",
        // A region may hold several memories, and verbs deregister each by itself.
        &[part(
            "registered by 1,000: deregistrations for a WRITE",
            share("deregistrations for a WRITE: registered by 1,000"),
            AtMost(0.001),
        )],
    ),
];

const BATCHED: &str = "registered by 1,000 over each time: transactions/s";
const BY_1000_OVER_EACH: Of =
    Of::Curves(Recorded, "transactions/s: registered by 1,000", "transactions/s: registered each time", ANYWHERE);

const CLIENT_OVER_WDSA: Of = Of::Curves(Recorded, "the client's share: attached", "the client's share: wDSA", ANYWHERE);
const WDSA_OVER_ATTACHED: Of = Of::Curves(
    Recorded,
    "the kernel's and the client's share: wDSA",
    "the kernel's and the client's share: attached",
    ANYWHERE,
);

const OVER_LOCAL: Of = Of::Curves(Recorded, "transactions/s: attached", "transactions/s: local", ANYWHERE);
const WDSA_OVER_LOCAL: Of = Of::Curves(Recorded, "transactions/s: wDSA", "transactions/s: local", ANYWHERE);

const fn share(series: &'static str) -> Of {
    Of::Value(Recorded, at(series, 0))
}

/// Of sides that figures had not at first.
const fn optional(claim: &'static str, parts: &'static [ClaimPart]) -> Rule {
    Rule { optional: true, ..rule(claim, parts) }
}

const fn rule(claim: &'static str, parts: &'static [ClaimPart]) -> Rule {
    Rule { claim, figure: "oltp", parts, optional: false }
}
