//! One cached read at a time by each way to it; x is bytes.

use super::{ANYWHERE, at, part, ratio};
use crate::{
    measured::Metric,
    verdict::{Of, Part, Rule, Wanted},
};
use Metric::Recorded;
use Wanted::{AtLeast, Within};

pub(super) const RULES: &[Rule] = &[
    rule(
        "VI-C05",
        // Of the two ways through the kernel, the shorter.
        &[
            ratio(
                "8 KiB: a read over the node's own NBD over a native one",
                Recorded,
                at("a read, p50 ns: node's front", 8192),
                at(ASLEEP, 8192),
                AtLeast(1.0),
            ),
            ratio(
                "– processor time of the client",
                Recorded,
                at("a read, client's CPU ns: node's front", 8192),
                at(ASLEEP_CPU, 8192),
                AtLeast(1.0),
            ),
        ],
    ),
    rule(
        "VI-C20",
        // Its microseconds are of the paper's machine: what stands is that a volume costs more than the transport.
        &[part(
            "a native read over the bare transport's",
            Of::Curves(Recorded, ASLEEP, "a read, p50 ns: bare transport", ANYWHERE),
            AtLeast(1.0),
        )],
    ),
    rule(
        "VI-C23",
        // 20 % and 9 %, by less than the root of two: a share that does not fall from one to the other cannot be both.
        &[
            of_its_time("the node's work over a read's time, 2 KiB", 2048, Within(0.142, 0.282)),
            of_its_time("… 8 KiB", 8192, Within(0.064, 0.127)),
        ],
    ),
    rule(
        "VI-C27",
        // Too much: half as much again.
        &[ratio(
            "8 KiB: processor time of a client that polls over one that sleeps",
            Recorded,
            at("a read, client's CPU ns: native", 8192),
            at(ASLEEP_CPU, 8192),
            AtLeast(1.5),
        )],
    ),
];

const ASLEEP: &str = "a read, p50 ns: native, asleep";
const ASLEEP_CPU: &str = "a read, client's CPU ns: native, asleep";

const fn of_its_time(says: &'static str, bytes: u64, bar: Wanted) -> Part {
    part(says, Of::Value(Recorded, at("a read, node's work over its time: native, asleep", bytes)), bar)
}

const fn rule(claim: &'static str, parts: &'static [Part]) -> Rule {
    Rule { claim, figure: "clients", parts }
}
