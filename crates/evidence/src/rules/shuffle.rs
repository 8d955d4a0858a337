//! d-rdma's shuffle (figure 11) and projection: gather lists, copying out, declared regions.

use super::{part, ratio};
use crate::{
    measured::{Lack, Measured, Metric, Reading},
    verdict::{At, ClaimPart, Of, On, Rule, Wanted, ratios},
};
use Metric::{Rate, Recorded, Work, Working};
use Wanted::{AtLeast, AtMost, Within};

/// The paper's table: 64 Ki rows, two destinations.
const fn small(series: &'static str) -> At {
    At { series, on: On::X(2), rows: Some(64 << 10) }
}

/// Columns A, B and D: one is dropped.
const fn pattern(series: &'static str) -> At {
    At { series, on: On::X(0b1011), rows: None }
}

/// All four columns.
const fn whole(series: &'static str) -> At {
    At { series, on: On::X(0b1111), rows: None }
}

pub(super) const RULES: &[Rule] = &[
    rule(
        "DR-C02",
        &[part(
            "share of time in which the sender works, copying out",
            Of::Value(Working, small("copy-out")),
            AtLeast(0.9),
        )],
    ),
    rule(
        "DR-C11",
        &[
            part(
                "gather entries of the lists",
                Of::Value(Recorded, small("gather entries")),
                Within(327_680.0, 327_680.0),
            ),
            part("columns under bitmaps, all destinations", Of::Value(Recorded, small("regions")), AtMost(10.0)),
            ratio(
                "bytes of the descriptions, bitmaps included, over 16 an entry",
                Recorded,
                small("bytes of regions"),
                small("bytes of entries"),
                AtMost(0.1),
            ),
        ],
    ),
    rule(
        "DR-C12",
        &[
            ratio(
                "both described while time is taken: lists over declared regions, the sender's work for a byte",
                Work,
                small("sge-list, described"),
                small("declared, described"),
                AtLeast(1.0),
            ),
            part(
                "… describing alone: what lists take beyond regions, ns for a byte",
                Of::Named(describing),
                AtLeast(0.0),
            ),
            ratio(
                "… posting alone: lists over declared regions",
                Work,
                small("sge-list"),
                small("declared"),
                AtLeast(1.0),
            ),
        ],
    ),
    rule(
        "DR-C17",
        &[
            // 1.5 of 18 Gb/s.
            ratio("lists over copying out: throughput", Rate, small("sge-list"), small("copy-out"), AtMost(0.0834)),
            part(
                "share of time in which the sender works, by lists",
                Of::Value(Working, small("sge-list")),
                Within(0.35, 0.65),
            ),
        ],
    ),
    rule("DR-C18", &[part("lists: throughput at more rows over that at 64 Ki", Of::Named(by_rows), Within(0.8, 1.25))]),
    rule(
        "DR-C20",
        &[
            ratio("copying out over lists: throughput", Rate, small("copy-out"), small("sge-list"), AtLeast(12.0)),
            part(
                "share of time in which the sender works, copying out",
                Of::Value(Working, small("copy-out")),
                AtLeast(0.9),
            ),
        ],
    ),
    rule(
        "DR-C21",
        // A fifth of 100 Gb/s.
        &[part("copying out on one processor: bytes a second", Of::Value(Rate, small("copy-out")), AtMost(2.5e9))],
    ),
    projection(
        "DR-C36",
        &[ratio(
            "columns A, B and D: declared over copied out, work of both ends for a byte",
            Metric::BothWork,
            pattern("declared"),
            pattern("copy-out"),
            AtMost(1.0),
        )],
    ),
    projection(
        "DR-C10",
        &[
            part(
                "gather entries a row, one column of four dropped",
                Of::Value(Recorded, pattern("gather entries a row")),
                Within(2.0, 2.0),
            ),
            part("… no column dropped", Of::Value(Recorded, whole("gather entries a row")), Within(1.0, 1.0)),
            part("regions for all rows", Of::Value(Recorded, pattern("regions")), Within(1.0, 1.0)),
        ],
    ),
    projection(
        "DR-C19",
        // As in the shuffle: 18 over 1.5 Gb/s, and all of a core.
        &[
            ratio(
                "columns A, B and D: copying out over lists, throughput",
                Rate,
                pattern("copy-out"),
                pattern("sge-list"),
                AtLeast(12.0),
            ),
            part(
                "share of time in which the sender works, copying out",
                Of::Value(Working, pattern("copy-out")),
                AtLeast(0.9),
            ),
        ],
    ),
];

const fn rule(claim: &'static str, parts: &'static [ClaimPart]) -> Rule {
    Rule { claim, figure: "shuffle", parts, optional: false }
}

const fn projection(claim: &'static str, parts: &'static [ClaimPart]) -> Rule {
    Rule { claim, figure: "projection", parts, optional: false }
}

/// What is described while time is taken costs more than what was described before, by what
/// describing it costs.
fn describing(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    let work = |series| small(series).place(figure)?.values(figure, Work);
    let [lists, listed] = [work("sge-list, described")?, work("sge-list")?];
    let [regions, declared] = [work("declared, described")?, work("declared")?];
    let rounds = lists.iter().zip(&listed).zip(regions.iter().zip(&declared));
    let beyond: Vec<f64> =
        rounds.map(|((lists, listed), (regions, declared))| (lists - listed) - (regions - declared)).collect();
    Ok(Reading::of(String::new(), &beyond, false).into_iter().collect())
}

fn by_rows(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    let base = small("sge-list").place(figure)?;
    let mut readings = Vec::new();
    for place in figure.curve("sge-list", None)?.into_iter().filter(|place| place.x == 2 && place.rows != base.rows) {
        let values = ratios(figure, Rate, place, base)?;
        readings.extend(Reading::of(format!("{} rows", place.rows.unwrap_or(0)), &values, false));
    }
    if readings.is_empty() { Err(figure.lack("sge-list", Some(2), Some(1 << 20))) } else { Ok(readings) }
}
