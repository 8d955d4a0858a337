//! What stands behind the papers' arguments; x is bytes, destinations of a shuffle, or a query's
//! number.

use super::{at, part, ratio};
use crate::{
    measured::Metric,
    verdict::{ClaimPart, Of, Rule, Wanted},
};
use Metric::Recorded;
use Wanted::{AtLeast, AtMost, Within};

pub(super) const RULES: &[Rule] = &[
    rule(
        "TC-C42",
        // A few microseconds of transmission, for a copy of one to two.
        &[ratio(
            "a page of 16 KiB: how long it is held over the copy that this saves",
            Recorded,
            at("page held, ns", 16384),
            at("page copied, ns", 16384),
            Within(1.0, 10.0),
        )],
    ),
    rule(
        "TC-C10",
        // Nothing is less than a tenth.
        &[
            pages("packing records of 128 B: pages of 2 MiB over 4 KiB", PACKING, 128),
            pages("… of 1024 B", PACKING, 1024),
            pages("how long a page of 16 KiB is held", HELD, 16384),
        ],
    ),
    rule(
        "TC-C07",
        &[
            share("the kernel's share of a round trip over TCP", "kernel's share of a round trip: TCP"),
            share("… over a Unix socket", "kernel's share of a round trip: Unix socket"),
        ],
    ),
    rule(
        "RS-C01",
        &[
            part(
                "context switches for a round trip over TCP",
                Of::Value(Recorded, at("switches a round trip: TCP", 0)),
                AtLeast(1.0),
            ),
            share("the kernel's share of its processor time", "kernel's share of a round trip: TCP"),
        ],
    ),
    rule(
        "RS-C03",
        &[
            ratio(
                "registering 64 KiB over copying as many bytes",
                Recorded,
                at("registering, ns", 65536),
                at("copying, ns", 65536),
                AtLeast(1.0),
            ),
            share("the kernel's share of registering", "kernel's share of registering 8 KiB"),
        ],
    ),
    rule(
        "RS-C04",
        &[ratio(
            "a word of the peer's: FETCH_ADD over WRITE, post to completion",
            Recorded,
            at("a word, ns: FETCH_ADD", 8),
            at("a word, ns: WRITE", 8),
            AtLeast(1.0),
        )],
    ),
    rule(
        "TC-C26",
        // A read and a write of every byte. Counted, so exact.
        &[
            count("what copying records of 128 B adds, bytes of memory traffic a byte sent", ADDED, 128, TWICE),
            count("… of 1024 B", ADDED, 1024, TWICE),
        ],
    ),
    rule(
        "DR-C09",
        // A gap by projection comes again in each row; where rows go is no rule.
        &[
            lengths(
                "lengths of gaps: a shuffle by order to 8 over a projection, query 6",
                "lengths of gaps: shuffle by order",
            ),
            lengths("… by part", "lengths of gaps: shuffle by part"),
        ],
    ),
    rule(
        "DR-C38",
        &[
            count("a shuffle by order to 8: fragments a value", "fragments a value: shuffle by order", 8, AtLeast(0.1)),
            count("… by part", "fragments a value: shuffle by part", 8, AtLeast(0.1)),
            close(
                "… values next to the one before or a line away, by order",
                "values close to the one before, share: shuffle by order",
                8,
            ),
            close("… by part", "values close to the one before, share: shuffle by part", 8),
            close("a projection of query 6: the same", "values close to the one before, share: projection", 6),
            count("… lengths of its gaps", "lengths of gaps: projection", 6, AtMost(8.0)),
        ],
    ),
];

const PACKING: [&str; 2] = ["packing, bytes/s: pages of 4 KiB", "packing, bytes/s: pages of 2 MiB"];
const ADDED: &str = "memory traffic that copying adds";
const TWICE: Wanted = Within(1.8, 2.2);
const HELD: [&str; 2] = ["page held, ns: pages of 4 KiB", "page held, ns: pages of 2 MiB"];

const fn rule(claim: &'static str, parts: &'static [ClaimPart]) -> Rule {
    Rule { claim, figure: "costs", parts, optional: false }
}

const fn pages(says: &'static str, of: [&'static str; 2], x: u64) -> ClaimPart {
    let [small, huge] = of;
    ratio(says, Recorded, at(huge, x), at(small, x), Within(0.9, 1.1))
}

/// What dominates takes more than half.
const fn share(says: &'static str, series: &'static str) -> ClaimPart {
    part(says, Of::Value(Recorded, at(series, 0)), AtLeast(0.5))
}

const fn count(says: &'static str, series: &'static str, x: u64, bar: Wanted) -> ClaimPart {
    part(says, Of::Value(Recorded, at(series, x)), bar)
}

/// Another kind is several times as many.
const fn lengths(says: &'static str, series: &'static str) -> ClaimPart {
    ratio(says, Recorded, at(series, 8), at("lengths of gaps: projection", 6), AtLeast(8.0))
}

/// Often is more than half.
const fn close(says: &'static str, series: &'static str, x: u64) -> ClaimPart {
    count(says, series, x, AtLeast(0.5))
}
