//! to-copy's figures 3 to 5: records copied out against records gathered, sent to 15 clients as in
//! all of its experiments; x is bytes a send.

use super::{ANYWHERE, at, on, part, peak, ratio, some};
use crate::{
    measured::{Lack, Measured, Metric, Reading, over},
    verdict::{ClaimPart, Demand, Of, On, Rule, Wanted, each},
};
use Metric::{Rate, Waiting, Work, WorkEach};
use Wanted::{AtLeast, AtMost, Within};

const COPY_128: &str = "copy-out 128 B, 15 clients";
const ZERO_128: &str = "zero-copy 128 B, 15 clients";
const COPY_1024: &str = "copy-out 1024 B, 15 clients";
const ZERO_1024: &str = "zero-copy 1024 B, 15 clients";
const COPY_64: &str = "copy-out 64 B, 15 clients";
const ZERO_64: &str = "zero-copy 64 B, 15 clients";
const INLINE_64: &str = "inline 64 B, 15 clients";
const COPY_256: &str = "copy-out 256 B, 15 clients";
const ZERO_256: &str = "zero-copy 256 B, 15 clients";
const COPY_16_KIB: &str = "copy-out 16384 B, 15 clients";
const ZERO_16_KIB: &str = "zero-copy 16384 B, 15 clients";
/// A curve counts as saturated within a tenth of its best.
const SATURATED: f64 = 0.9;
const BELOW_16_KIB: (u64, u64) = (0, (16 << 10) - 1);
/// The paper's lists have 32 entries.
const LISTS_1024: (u64, u64) = (0, 32 << 10);

pub(super) const RULES: &[Rule] = &[
    rule(
        "TC-C04",
        &[ratio("128 B: copy-out over zero-copy at their peaks", Rate, peak(COPY_128), peak(ZERO_128), AtLeast(1.0))],
    ),
    rule(
        "TC-C06",
        &[
            ratio("128 B: zero-copy over copy-out at their peaks", Rate, peak(ZERO_128), peak(COPY_128), AtMost(1.0)),
            ratio(
                "work of the sender for the longest list over the shortest, 128 B",
                WorkEach,
                on(ZERO_128, On::Last),
                on(ZERO_128, On::First),
                AtLeast(2.0),
            ),
            part(
                "sends of 16 KiB, zero-copy over copy-out: in 64 records of 256 B over in one record",
                Of::Named(in_entries),
                AtMost(1.0),
            ),
            part("longest send of 128 B, zero-copy over copy-out: lists are capped", Of::Named(reach), AtMost(0.99)),
            part(
                "128 B gathered, the longest list over the one before: throughput still rises where it is capped",
                Of::Named(at_the_cap),
                AtLeast(1.0),
            ),
        ],
    ),
    rule(
        "TC-C13",
        &[
            longest("1024 B copied out, the longest send over the shortest: throughput", Rate, COPY_1024, AtLeast(1.0)),
            longest("… the sender's work for a byte", Work, COPY_1024, AtMost(1.0)),
            longest("1024 B gathered, the longest send over the shortest: throughput", Rate, ZERO_1024, AtLeast(1.0)),
            longest("… the sender's work for a byte", Work, ZERO_1024, AtMost(1.0)),
            longest("128 B copied out: throughput", Rate, COPY_128, AtLeast(1.0)),
            longest("… the sender's work for a byte", Work, COPY_128, AtMost(1.0)),
            longest("128 B gathered: throughput", Rate, ZERO_128, AtLeast(1.0)),
            longest("… the sender's work for a byte", Work, ZERO_128, AtMost(1.0)),
        ],
    ),
    rule(
        "TC-C14",
        &[
            ratio(
                "1024 B gathered: 6 records a send over the best",
                Rate,
                at(ZERO_1024, 6144),
                peak(ZERO_1024),
                AtLeast(SATURATED),
            ),
            ratio("… 4 records a send over the best", Rate, at(ZERO_1024, 4096), peak(ZERO_1024), AtMost(SATURATED)),
        ],
    ),
    rule(
        "TC-C15",
        &[
            part(
                "1024 B copied out: sends below 16 KiB over the best",
                Of::OverPlace(Rate, COPY_1024, peak(COPY_1024), BELOW_16_KIB),
                AtMost(SATURATED),
            ),
            ratio("… of 16 KiB over the best", Rate, at(COPY_1024, 16384), peak(COPY_1024), AtLeast(SATURATED)),
        ],
    ),
    rule(
        "TC-C16",
        &[
            some(
                "1024 B: gathering over copy-out, the best below 16 records",
                Of::Curves(Rate, ZERO_1024, COPY_1024, BELOW_16_KIB),
                AtLeast(1.29),
            ),
            ratio(
                "… at 16 records, where almost nothing is left",
                Rate,
                at(ZERO_1024, 16384),
                at(COPY_1024, 16384),
                AtMost(1.05),
            ),
        ],
    ),
    rule(
        "TC-C17",
        &[
            part("128 B gathered: the longest send in bytes", Of::End(ZERO_128), AtMost(4096.0)),
            ratio("… its peak over copy-out's", Rate, peak(ZERO_128), peak(COPY_128), AtMost(SATURATED)),
        ],
    ),
    rule(
        "TC-C18",
        &[ratio(
            "copy-out of 128 B over copy-out of 1024 B at their peaks",
            Rate,
            peak(COPY_128),
            peak(COPY_1024),
            Within(0.95, 1.05),
        )],
    ),
    rule(
        "TC-C19",
        &[ratio(
            "128 B: copy-out at its peak over zero-copy of 32 records, where the paper's curve ends",
            Rate,
            peak(COPY_128),
            at(ZERO_128, 4096),
            AtLeast(1.53),
        )],
    ),
    rule(
        "TC-C20",
        // 5.8 over 5.6 GB/s; the rates themselves are of the paper's network.
        &[ratio(
            "1024 B: zero-copy over copy-out at their peaks",
            Rate,
            peak(ZERO_1024),
            peak(COPY_1024),
            Within(0.93, 1.14),
        )],
    ),
    rule(
        "TC-C21",
        &[
            longest("copy-out of 128 B, the longest send over the shortest", Rate, COPY_128, AtLeast(1.0)),
            longest("zero-copy of 128 B", Rate, ZERO_128, AtLeast(1.0)),
            longest("copy-out of 1024 B", Rate, COPY_1024, AtLeast(1.0)),
            longest("zero-copy of 1024 B", Rate, ZERO_1024, AtLeast(1.0)),
            ratio(
                "zero-copy of 128 B is the lowest: its peak over copy-out's of 128 B",
                Rate,
                peak(ZERO_128),
                peak(COPY_128),
                AtMost(1.0),
            ),
        ],
    ),
    rule(
        "TC-C22",
        &[
            waits("share of time in which the sender waits at the peak, 1024 B copied out", COPY_1024),
            waits("… 1024 B gathered", ZERO_1024),
            waits("… 128 B copied out", COPY_128),
            waits("… 128 B gathered", ZERO_128),
        ],
    ),
    rule(
        "TC-C23",
        &[
            LESS_WORK_1024,
            LESS_WORK_128,
            part(
                "what gathering leaves of the work at best, 1024 B over 128 B",
                Of::Named(more_for_larger),
                AtMost(1.0),
            ),
        ],
    ),
    rule(
        "TC-C29",
        &[some(
            "1024 B: gathering's work for a byte over copy-out's, the best send of at most 32 records",
            Of::Curves(Work, ZERO_1024, COPY_1024, LISTS_1024),
            AtMost(0.24),
        )],
    ),
    rule(
        "TC-C30",
        // A saving of 12 %, to within half and double of it, though copy-out's sends are the larger ones.
        &[ratio(
            "128 B: gathering's work for a byte in sends of 32 records over copy-out's at its longest send",
            Work,
            at(ZERO_128, 4096),
            on(COPY_128, On::Last),
            Within(0.76, 0.94),
        )],
    ),
    rule(
        "TC-C31",
        &[
            ratio("128 B: copy-out over zero-copy at their peaks", Rate, peak(COPY_128), peak(ZERO_128), AtLeast(1.0)),
            ratio(
                "gathering 128 B does not saturate: over gathering 1024 B at their peaks",
                Rate,
                peak(ZERO_128),
                peak(ZERO_1024),
                AtMost(SATURATED),
            ),
        ],
    ),
    rule(
        "TC-C47",
        &[
            large_results("64 B: copy-out at its longest send over zero-copy at its own", COPY_64, ZERO_64),
            large_results("128 B", COPY_128, ZERO_128),
            large_results("256 B", COPY_256, ZERO_256),
        ],
    ),
    rule(
        "TC-C44",
        &[
            part(
                "64 B: inline over copy-out at every send that both have: throughput",
                Of::Curves(Rate, INLINE_64, COPY_64, ANYWHERE),
                Within(0.8, 1.25),
            ),
            part("… the sender's work for a byte", Of::Curves(Work, INLINE_64, COPY_64, ANYWHERE), Within(0.8, 1.25)),
            part("the longest inline send of 64 B, in bytes", Of::End(INLINE_64), AtMost(912.0)),
        ],
    ),
    rule("TC-C50", &[LESS_WORK_1024, LESS_WORK_128]),
    rule(
        "TC-C52",
        // Ten billion records of 128 B.
        &[part("128 B copied out at the peak: bytes a second", Of::Value(Rate, peak(COPY_128)), AtLeast(1.28e12))],
    ),
    rule(
        "TH-C08",
        // A migration's sends are long.
        &[part(
            "128 B: copying's work of both ends for a byte over gathering's, sends of 16 KiB and more",
            Of::Curves(Metric::BothWork, COPY_128, ZERO_128, (16 << 10, u64::MAX)),
            AtMost(1.0),
        )],
    ),
];

/// Less work for the sender, at every send that both ways have.
const LESS_WORK_1024: ClaimPart = ClaimPart {
    says: "1024 B: gathering's work of the sender for a byte over copy-out's, at every send",
    of: Of::Curves(Work, ZERO_1024, COPY_1024, ANYWHERE),
    demand: Demand::Every,
    bar: AtMost(1.0),
};
const LESS_WORK_128: ClaimPart = ClaimPart {
    says: "128 B: gathering's work of the sender for a byte over copy-out's, at every send",
    of: Of::Curves(Work, ZERO_128, COPY_128, ANYWHERE),
    demand: Demand::Every,
    bar: AtMost(1.0),
};

const fn rule(claim: &'static str, parts: &'static [ClaimPart]) -> Rule {
    Rule { claim, figure: "transmit", parts, optional: false }
}

const fn longest(says: &'static str, metric: Metric, series: &'static str, bar: Wanted) -> ClaimPart {
    ratio(says, metric, on(series, On::Last), on(series, On::First), bar)
}

const fn large_results(says: &'static str, copied: &'static str, gathered: &'static str) -> ClaimPart {
    ratio(says, Rate, on(copied, On::Last), on(gathered, On::Last), AtLeast(1.0))
}

const fn waits(says: &'static str, series: &'static str) -> ClaimPart {
    part(says, Of::Value(Waiting, peak(series)), AtLeast(0.5))
}

/// Where gathering's curve ends, over where copy-out's does.
fn reach(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    let end = |series| Ok(figure.curve(series, None)?.last().map_or(0.0, |place| place.x as f64));
    Ok(Reading::of(String::new(), &[end(ZERO_128)? / end(COPY_128)?], true).into_iter().collect())
}

/// The end of gathering's curve over the place before it.
fn at_the_cap(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    let curve = figure.curve(ZERO_128, None)?;
    let [.., before, last] = &curve[..] else { return Err(figure.lack(ZERO_128, Some(256), None)) };
    let ratios = over(&last.values(figure, Rate)?, &before.values(figure, Rate)?);
    Ok(Reading::of(String::new(), &ratios, false).into_iter().collect())
}

/// What gathering gains over copying as many bytes, in many entries over in one.
fn in_entries(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    let gain = |zero, copy| -> Result<Vec<f64>, Lack> {
        let rates = |series| figure.place(series, 16 << 10, None)?.values(figure, Rate);
        Ok(over(&rates(zero)?, &rates(copy)?))
    };
    let ratios = over(&gain(ZERO_256, COPY_256)?, &gain(ZERO_16_KIB, COPY_16_KIB)?);
    Ok(Reading::of(String::new(), &ratios, false).into_iter().collect())
}

/// At the send where each size saves most: what is left of the work, the larger records' over the
/// smaller ones'.
fn more_for_larger(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    let left = |zero, copy| -> Result<Vec<f64>, Lack> {
        let best = each(figure, Work, zero, copy, ANYWHERE)?;
        let best = best.iter().min_by(|a, b| a.ratio.median.total_cmp(&b.ratio.median));
        let x = best.and_then(|best| best.at.parse().ok()).unwrap_or(0);
        let values = |series| figure.place(series, x, None)?.values(figure, Work);
        Ok(over(&values(zero)?, &values(copy)?))
    };
    let ratios = over(&left(ZERO_1024, COPY_1024)?, &left(ZERO_128, COPY_128)?);
    Ok(Reading::of(String::new(), &ratios, false).into_iter().collect())
}
