//! A served table scanned through a secondary index; x is the rows of a range.

use super::{at, ratio};
use crate::{
    measured::Metric,
    verdict::{Rule, Wanted},
};

pub(super) const RULES: &[Rule] = &[Rule {
    claim: "TC-C04",
    figure: "scans",
    optional: false,
    parts: &[ratio(
        "ranges of 10,000 rows through an index: rows/s copied out over gathered",
        Metric::Recorded,
        at("through an index, rows/s: copy", 10_000),
        at("through an index, rows/s: gather", 10_000),
        Wanted::AtLeast(1.0),
    )],
}];
