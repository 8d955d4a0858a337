//! One cached read at a time by each way to it; x is bytes.

use super::{ANYWHERE, at, part, ratio};
use crate::{
    measured::Metric,
    verdict::{ClaimPart, Of, Rule, Wanted},
};
use Metric::Recorded;
use Wanted::{AtLeast, AtMost, Within};

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
    optional(
        "VI-C12",
        // Almost none: one of ten requests.
        &[part(
            "16 reads of 8 KiB outstanding: wake-ups of a native client for one",
            Of::Value(Recorded, at("steps, wake-ups: a read, polled, then slept", 16)),
            AtMost(0.1),
        )],
    ),
    optional(
        "VI-C22",
        &[ratio(
            "one WRITE of 8 KiB outstanding, registered by 1,000 over each time: requests/s",
            Recorded,
            at(BY_1000, 1),
            at(EACH, 1),
            AtMost(1.03),
        )],
    ),
    optional(
        "VI-C50",
        // Which transactions gain is the paper's machine's: what stands is that requests do.
        &[ratio(
            "16 WRITEs of 8 KiB outstanding, registered by 1,000 over each time: requests/s",
            Recorded,
            at(BY_1000, 16),
            at(EACH, 16),
            AtLeast(1.0),
        )],
    ),
    optional(
        "VI-C21",
        // Each of the three polls for a while before it sleeps.
        &[
            at_8_kib("8 KiB: a native read over FUSE's", "a read, p50 ns: native", FUSE, Within(0.85, 1.0)),
            at_8_kib("– over wDSA's", "a read, p50 ns: native", WDSA, Within(0.7, 1.0)),
            at_8_kib("wDSA's over FUSE's", WDSA, FUSE, Within(1.0, 1.2)),
        ],
    ),
    rule(
        "VI-C23",
        // 20 % and 9 %, by less than the root of two: a share that does not fall from one to the other cannot be both.
        &[
            of_its_time("the node's work over a read's time, 2 KiB", 2048, Within(0.142, 0.282)),
            of_its_time("… 8 KiB", 8192, Within(0.064, 0.127)),
        ],
    ),
    optional(
        "VI-C24",
        &[
            at_8_kib(
                "8 KiB: processor time of FUSE's client over a native one's",
                "a read, client's CPU ns: FUSE",
                POLLS_CPU,
                AtLeast(1.0),
            ),
            // Three times, by less than the root of two.
            at_8_kib("– of wDSA's", "a read, client's CPU ns: wDSA", POLLS_CPU, Within(2.12, 4.24)),
        ],
    ),
    optional(
        "VI-C26",
        // About half in kDSA, and least in cDSA.
        &[part(
            "8 KiB: the reply's share of a native client's own time",
            Of::Value(Recorded, at("a read, the reply's share of the client's time: native", 8192)),
            AtMost(0.5),
        )],
    ),
    rule(
        "VI-C27",
        // Too much: half as much again.
        &[ratio(
            "8 KiB: processor time of a client that polls over one that sleeps",
            Recorded,
            at(POLLS_CPU, 8192),
            at(ASLEEP_CPU, 8192),
            AtLeast(1.5),
        )],
    ),
];

const ASLEEP: &str = "a read, p50 ns: native, asleep";
const EACH: &str = "steps, requests/s: a write, registered each time";
const BY_1000: &str = "steps, requests/s: a write, registered by 1,000";
const POLLS_CPU: &str = "a read, client's CPU ns: native";
const FUSE: &str = "a read, p50 ns: FUSE";
const WDSA: &str = "a read, p50 ns: wDSA";
const ASLEEP_CPU: &str = "a read, client's CPU ns: native, asleep";

const fn of_its_time(says: &'static str, bytes: u64, bar: Wanted) -> ClaimPart {
    part(says, Of::Value(Recorded, at("a read, node's work over its time: native, asleep", bytes)), bar)
}

const fn at_8_kib(says: &'static str, ours: &'static str, theirs: &'static str, bar: Wanted) -> ClaimPart {
    ratio(says, Recorded, at(ours, 8192), at(theirs, 8192), bar)
}

/// Of sides that figures had not at first, or that a host may not have.
const fn optional(claim: &'static str, parts: &'static [ClaimPart]) -> Rule {
    Rule { optional: true, ..rule(claim, parts) }
}

const fn rule(claim: &'static str, parts: &'static [ClaimPart]) -> Rule {
    Rule { claim, figure: "clients", parts, optional: false }
}
