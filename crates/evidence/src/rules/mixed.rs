//! Small requests beside full scans: what the thesis says of large transfers beside small ones.

use super::{at, part, ratio};
use crate::{
    measured::{Lack, Measured, Metric, Reading, over},
    verdict::{ClaimPart, Of, Rule, Wanted},
};
use Metric::Recorded;
use Wanted::{AtLeast, AtMost};

const MODES: [&str; 5] = ["copy", "gather", "delta", "in-place", "auto"];

pub(super) const RULES: &[Rule] = &[
    rule(
        "TH-C13",
        &[
            // 10 µs and 100 µs over the median access of 5 µs.
            part("gets beside scans in each mode: p99.9 over the median undisturbed", Of::Named(gets), AtMost(2.0)),
            part("puts: p99.9 over the median undisturbed get", Of::Named(puts), AtMost(20.0)),
        ],
    ),
    rule(
        "TH-C16",
        &[
            part("gets beside scans in each mode: p99 over undisturbed", Of::Named(gets_disturbed), AtLeast(1.0)),
            part("… over those beside threads that only compute", Of::Named(gets_by_transfers), AtLeast(1.0)),
            part("puts beside scans in each mode: p99 over undisturbed", Of::Named(puts_disturbed), AtLeast(1.0)),
            part("… over those beside threads that only compute", Of::Named(puts_by_transfers), AtLeast(1.0)),
        ],
    ),
    rule(
        "TH-C18",
        &[
            transfer(
                "get over tcp: an echo of as many bytes over it",
                "echo of a get, p50 ns: tcp",
                "split get, p50 ns: tcp",
            ),
            transfer("put", "echo of a put, p50 ns: tcp", "split put, p50 ns: tcp"),
            transfer("range", "echo of a range, p50 ns: tcp", "split range, p50 ns: tcp"),
        ],
    ),
];

const fn rule(claim: &'static str, parts: &'static [ClaimPart]) -> Rule {
    Rule { claim, figure: "mixed", parts, optional: false }
}

/// Most of it is more than half.
const fn transfer(says: &'static str, echo: &'static str, whole: &'static str) -> ClaimPart {
    ratio(says, Recorded, at(echo, 0), at(whole, 0), AtLeast(0.5))
}

fn values(figure: &Measured, series: &str) -> Result<Vec<f64>, Lack> {
    figure.place(series, 0, None)?.values(figure, Recorded)
}

/// What a kind of request takes beside scans in each mode, over something else.
fn beside(figure: &Measured, kind: &str, share: &str, base: &str) -> Result<Vec<Reading>, Lack> {
    let base = values(figure, base)?;
    let mut readings = Vec::new();
    for mode in MODES {
        let own = values(figure, &format!("{kind}, {share} ns: {mode}"))?;
        readings.extend(Reading::of(mode.to_owned(), &over(&own, &base), false));
    }
    Ok(readings)
}

fn gets(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    beside(figure, "get", "p99.9", "get, p50 ns: undisturbed")
}

fn puts(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    beside(figure, "put", "p99.9", "get, p50 ns: undisturbed")
}

fn gets_disturbed(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    beside(figure, "get", "p99", "get, p99 ns: undisturbed")
}

fn gets_by_transfers(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    beside(figure, "get", "p99", "get, p99 ns: busy thread")
}

fn puts_disturbed(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    beside(figure, "put", "p99", "put, p99 ns: undisturbed")
}

fn puts_by_transfers(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    beside(figure, "put", "p99", "put, p99 ns: busy thread")
}
