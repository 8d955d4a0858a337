//! rdma-sockets' round trips of 64 B in five steps, and messages that ride in their request by
//! size.

use super::{at, part, ratio};
use crate::{
    measured::Metric,
    verdict::{ClaimPart, Of, RangeEnds, Rule, Wanted},
};
use Metric::Recorded;
use Wanted::{AtLeast, AtMost, Within};

const TCP: &str = "two idle cores, TCP";
const INDEX: &str = "two idle cores, shm: index";
const FRAMED: &str = "two idle cores, shm: header and footer";
const INLINE: &str = "two idle cores, shm: header and footer, inline";
const SMALL: RangeEnds = (0, 192);
const MIDDLE: RangeEnds = (193, 432);
const LARGE: RangeEnds = (433, u64::MAX);

pub(super) const RULES: &[Rule] = &[
    // About 20 %, and about 5 %: neither less nor more.
    rule("RS-C06", &[gain("inline over fetched from memory, up to 192 B", SMALL, Within(1.15, 1.25))]),
    rule("RS-C07", &[gain("inline over fetched from memory, above 192 up to 432 B", MIDDLE, Within(1.025, 1.075))]),
    // No gain above says something only where there is one below.
    rule(
        "RS-C08",
        &[
            gain("inline over fetched from memory, above 432 B", LARGE, AtMost(1.02)),
            gain("… up to 192 B, where a gain is", SMALL, AtLeast(1.02)),
        ],
    ),
    rule(
        "RS-C10",
        // Over TCP on the same network, and on the slower one.
        &[
            ratio("index raised by atomics over TCP of this host", Recorded, at(INDEX, 64), at(TCP, 64), AtLeast(4.5)),
            ratio("… as over Ethernet", Recorded, at(INDEX, 64), at(TCP, 64), AtLeast(9.8)),
        ],
    ),
    rule(
        "RS-C11",
        &[ratio("header and footer over the index", Recorded, at(FRAMED, 64), at(INDEX, 64), AtLeast(1.72))],
    ),
    rule(
        "RS-C12",
        // About 12 %, and below the 20 % of RS-C06.
        &[
            ratio("header and footer inline over not", Recorded, at(INLINE, 64), at(FRAMED, 64), Within(1.06, 1.2)),
            ratio("… inline over TCP of this host", Recorded, at(INLINE, 64), at(TCP, 64), AtLeast(8.8)),
            ratio("… as over Ethernet", Recorded, at(INLINE, 64), at(TCP, 64), AtLeast(18.8)),
        ],
    ),
];

const fn rule(claim: &'static str, parts: &'static [ClaimPart]) -> Rule {
    Rule { claim, figure: "messages", parts, optional: false }
}

const fn gain(says: &'static str, sizes: RangeEnds, bar: Wanted) -> ClaimPart {
    part(says, Of::Pooled(Recorded, "shm, inline", "shm, fetched", sizes), bar)
}
