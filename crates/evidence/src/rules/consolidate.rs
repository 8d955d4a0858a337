//! to-copy's figure 6 and §5.4 to §5.5: pages with deltas behind them, sent to 15 clients, and what
//! their consolidation costs.

use super::{ANYWHERE, at, part, ratio};
use crate::{
    Ratio,
    measured::{Lack, Measured, Metric, Reading, over},
    verdict::{ClaimPart, Of, Rule, Wanted},
};
use Metric::{Rate, Recorded, Requests, Work, WorkEach, Working};
use Wanted::{AtLeast, AtMost, Within};

const PAGE: &str = "page and deltas 128 B, 15 clients";
const PAGE_1024: &str = "page and deltas 1024 B, 15 clients";
const SCATTERED: &str = "scattered 128 B, 15 clients";

/// 5.7 over 3.4 GB/s.
const FASTER: ClaimPart = ratio(
    "a page with 4 deltas of 128 B over scattered records gathered: throughput",
    Rate,
    at(PAGE, 4),
    at(SCATTERED, 4),
    AtLeast(1.7),
);
/// 75 % less.
const LESS_WORK: ClaimPart = ratio("… the sender's work for a byte", Work, at(PAGE, 4), at(SCATTERED, 4), AtMost(0.25));

const SENT: &str = "page and deltas, 1 update a page";
const COPIED: &str = "copy-out, 1 update a page";

pub(super) const RULES: &[Rule] = &[
    delta("TC-C01", &[FASTER]),
    delta("TC-C02", &[LESS_WORK]),
    delta("TH-C09", &[FASTER, LESS_WORK]),
    delta(
        "TC-C32",
        &[
            part(
                "deltas of 128 B: throughput over that of a page without any",
                Of::OverPlace(Rate, PAGE, at(PAGE, 0), ANYWHERE),
                AtLeast(0.9),
            ),
            part("deltas of 1024 B", Of::OverPlace(Rate, PAGE_1024, at(PAGE_1024, 0), ANYWHERE), AtLeast(0.9)),
        ],
    ),
    delta(
        "TC-C33",
        &[
            part(
                "share of time in which the sender works, one delta of 128 B",
                Of::Value(Working, at(PAGE, 1)),
                AtMost(0.01),
            ),
            part("… 32 deltas", Of::Value(Working, at(PAGE, 32)), AtMost(0.03)),
        ],
    ),
    delta(
        "TC-C46",
        &[ratio(
            "scattered records over a page with 4 deltas: throughput",
            Rate,
            at(SCATTERED, 4),
            at(PAGE, 4),
            AtMost(1.0),
        )],
    ),
    rule(
        "TC-C46",
        &[ratio(
            "updates a second with chains of 1 over those with chains of 4",
            Requests,
            at("updates", 1),
            at("updates", 4),
            AtMost(1.0),
        )],
    ),
    rule(
        "TC-C35",
        &[part(
            "share of consolidation in the sender's work for a page, d = 4, an update a page: from what chains of 16 spare to all of the dearest update",
            Of::Named(consolidation),
            AtLeast(0.5),
        )],
    ),
    rule(
        "TC-C36",
        &[ratio(
            "copied out, 4 pages sent an update: work for a page with chains of 1 over that with chains of 8",
            WorkEach,
            at("copy-out, 1 update in 4 pages", 1),
            at("copy-out, 1 update in 4 pages", 8),
            AtMost(1.0),
        )],
    ),
    rule(
        "TC-C37",
        &[
            part(
                "consolidations an update at d = 4",
                Of::Value(Recorded, at("consolidations an update", 4)),
                AtMost(0.25),
            ),
            part("consolidations an update times d, at every d", Of::Named(as_one_over_d), Within(0.45, 1.2)),
        ],
    ),
    rule(
        "TC-C38",
        &[ratio(
            "d = 4, an update a page: page and deltas over copy-out, throughput",
            Rate,
            at(SENT, 4),
            at(COPIED, 4),
            AtLeast(1.0),
        )],
    ),
    rule(
        "TC-C39",
        // About 8 %, to within half and double of it.
        &[ratio(
            "d = 4, an update a page: page and deltas over copy-out, the sender's work for a page",
            WorkEach,
            at(SENT, 4),
            at(COPIED, 4),
            Within(0.84, 0.96),
        )],
    ),
    rule(
        "TC-C40",
        &[part("consolidated bytes a second on one processor, chains of 1", Of::Named(compaction), AtLeast(5.2e9))],
    ),
    rule(
        "TC-C41",
        &[
            part(
                "updates of one page a second at d = 4",
                Of::Value(Requests, at("updates of one page", 4)),
                AtLeast(1.3e6),
            ),
            part(
                "4 updates of one page, then that page, d = 4: page and deltas over copy-out, the sender's work, consolidating with copy-out to never",
                Of::Named(worst_case),
                AtMost(1.0),
            ),
        ],
    ),
    rule(
        "TC-C43",
        &[
            part(
                "stalled clients at the same pages: bytes held back over copy-out's transmit buffers",
                Of::Named(held_over_buffers),
                AtMost(1.0),
            ),
            part(
                "… that ratio with 16 clients at the same pages over that with one",
                Of::Named(compounds),
                AtMost(0.99),
            ),
        ],
    ),
    rule(
        "TC-C51",
        &[
            part("updates a second on one processor at d = 4", Of::Value(Requests, at("updates", 4)), AtLeast(1e6)),
            ratio(
                "an update a page, d = 4: page and deltas over copy-out, the sender's work for a page",
                WorkEach,
                at(SENT, 4),
                at(COPIED, 4),
                AtMost(1.0),
            ),
        ],
    ),
];

const fn rule(claim: &'static str, parts: &'static [ClaimPart]) -> Rule {
    Rule { claim, figure: "consolidate", parts, optional: false }
}

const fn delta(claim: &'static str, parts: &'static [ClaimPart]) -> Rule {
    Rule { claim, figure: "delta", parts, optional: false }
}

/// What consolidations cost an update at d = 4, over all work for a page that is sent after an
/// update. The least is what chains of 16 spare of the work and of the consolidations: too little,
/// since they take longer to search. The most is all of the dearest update: with nothing sent,
/// or what more of them cost where pages are sent.
fn consolidation(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    let each = |series, x| figure.place(series, x, None)?.values(figure, WorkEach);
    let counted = |x| figure.place("consolidations an update", x, None)?.values(figure, Recorded);
    let (four, sixteen, page) = (each("updates", 4)?, each("updates", 16)?, each(SENT, 4)?);
    let (more, fewer) =
        (each("page and deltas, 4 updates a page", 4)?, each("page and deltas, 1 update in 4 pages", 4)?);
    let (often, seldom) = (counted(4)?, counted(16)?);
    let spared = four.iter().zip(&sixteen).map(|(four, sixteen)| four - sixteen);
    // Chains of 16 are consolidated now and then, too.
    let all =
        often.iter().zip(&seldom).map(|(often, seldom)| if seldom < often { often / (often - seldom) } else { 1.0 });
    let least: Vec<f64> = spared.zip(all).zip(&page).map(|((spared, all), page)| spared * all / page).collect();
    let update = |of: &[f64], less: &[f64], updates: f64| {
        of.iter().zip(less).map(|(of, less)| (of - less) / updates).collect::<Vec<_>>()
    };
    let dearest = [four, update(&more, &page, 3.0), update(&page, &fewer, 0.75)];
    let most = dearest.iter().filter_map(|update| Ratio::of(&over(update, &page)));
    let most = most.max_by(|one, other| one.high.total_cmp(&other.high));
    Ok(Ratio::of(&least).zip(most).map(|(least, most)| between(least, most)).into_iter().collect())
}

/// With copy-out an update need not be consolidated, and here it is: of all four updates nothing to
/// everything is what it need not do, which is the same as what sending does in addition.
fn worst_case(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    let each = |series| figure.place(series, 4, None)?.values(figure, WorkEach);
    let (sent, copied) = (each("page and deltas, 4 updates of that page")?, each("copy-out, 4 updates of that page")?);
    let updates = each("updates of one page")?;
    let in_addition: Vec<f64> = sent.iter().zip(&updates).map(|(sent, update)| sent + 4.0 * update).collect();
    let ratios = Ratio::of(&over(&sent, &copied)).zip(Ratio::of(&over(&in_addition, &copied)));
    Ok(ratios.map(|(least, most)| between(least, most)).into_iter().collect())
}

/// What lies between two bounds: the interval covers both of theirs.
fn between(least: Ratio, most: Ratio) -> Reading {
    let ratio = Ratio {
        median: (least.median + most.median) / 2.0,
        low: least.low.min(most.low),
        high: least.high.max(most.high),
        rounds: least.rounds.min(most.rounds),
    };
    Reading { at: String::new(), ratio, exact: false }
}

/// Pages of 16 KiB, each consolidation one.
fn compaction(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    let updates = figure.place("updates", 1, None)?.values(figure, Requests)?;
    let each = figure.place("consolidations an update", 1, None)?.values(figure, Recorded)?;
    let bytes: Vec<f64> = updates.iter().zip(&each).map(|(updates, each)| updates * each * 16384.0).collect();
    Ok(Reading::of(String::new(), &bytes, false).into_iter().collect())
}

fn as_one_over_d(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    let mut readings = Vec::new();
    for place in figure.curve("consolidations an update", None)? {
        let times: Vec<f64> = place.values(figure, Recorded)?.iter().map(|each| each * place.x as f64).collect();
        readings.extend(Reading::of(place.x.to_string(), &times, false));
    }
    Ok(readings)
}

/// With 16 clients over with one.
fn compounds(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    let share = |x| {
        let values = |series| figure.place(series, x, None)?.values(figure, Recorded);
        Ok::<_, Lack>(over(&values("held back")?, &values("transmit buffers")?))
    };
    Ok(Reading::of(String::new(), &over(&share(16)?, &share(1)?), true).into_iter().collect())
}

/// At every number of clients.
fn held_over_buffers(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    let mut readings = Vec::new();
    for place in figure.curve("held back", None)? {
        let buffers = figure.place("transmit buffers", place.x, None)?.values(figure, Recorded)?;
        let ratios = over(&place.values(figure, Recorded)?, &buffers);
        readings.extend(Reading::of(place.x.to_string(), &ratios, true));
    }
    Ok(readings)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::{Says, judge};

    /// Half of what consolidations cost is seen where chains of 16 have half as many of them. They
    /// cost no more than the whole of an update, which may be dearer where pages are sent.
    #[test]
    fn consolidation_costs_from_what_chains_of_16_spare_to_all_of_the_dearest_update() {
        let said = |update: f64, seldom: f64, meanwhile: f64| {
            let work = |series: &str, x: u64, ns: f64| {
                json!({"series": series, "x": x, "rounds": {"requests": [1, 1, 1, 1, 1], "sender_ns": vec![ns; 5],
                       "sender_poll_ns": [0, 0, 0, 0, 0]}})
            };
            let often = |x: u64, each: f64| json!({"series": "consolidations an update", "x": x, "rounds": {"value": vec![each; 5]}});
            let points = [
                work("updates", 4, update),
                work("updates", 16, update * 0.7),
                work("page and deltas, 1 update a page", 4, 1000.0),
                work("page and deltas, 4 updates a page", 4, 1000.0 + 3.0 * meanwhile),
                work("page and deltas, 1 update in 4 pages", 4, 1000.0 - 0.75 * meanwhile),
            ];
            let figure =
                json!({"figure": "consolidate", "points": points, "measured": [often(4, 0.2), often(16, seldom)]});
            judge(&figure).unwrap().iter().find(|judgement| judgement.claim == "TC-C35").unwrap().verdict
        };
        assert_eq!(said(1000.0, 0.1, 400.0), Says::Agrees, "0.6 at least");
        assert_eq!(said(1000.0, 0.0, 400.0), Says::CannotTell, "from 0.3 to all of the work");
        assert_eq!(said(1000.0, 0.3, 400.0), Says::CannotTell, "chains of 16 were consolidated more often");
        assert_eq!(said(400.0, 0.1, 400.0), Says::Differs, "no more than 0.4");
        assert_eq!(said(400.0, 0.1, 600.0), Says::CannotTell, "an update is dearer where pages are sent");
    }

    /// What an update of copy-out consolidates is not what sending pays for.
    #[test]
    fn a_worst_case_that_only_shared_consolidations_win_is_not_won() {
        let said = |sent: f64, update: f64| {
            let work = |series: &str, ns: f64| {
                json!({"series": series, "x": 4, "rounds": {"requests": [1, 1, 1, 1, 1], "wall_ns": [700, 700, 700, 700, 700],
                       "sender_ns": vec![ns; 5], "sender_poll_ns": [0, 0, 0, 0, 0]}})
            };
            let points = [
                work("updates of one page", update),
                work("page and deltas, 4 updates of that page", sent),
                work("copy-out, 4 updates of that page", 4000.0),
            ];
            let all = judge(&json!({"figure": "consolidate", "points": points})).unwrap();
            all.iter().find(|judgement| judgement.claim == "TC-C41").unwrap().verdict
        };
        assert_eq!(said(2000.0, 400.0), Says::Agrees, "cheaper than copying without any consolidation");
        assert_eq!(said(3000.0, 400.0), Says::CannotTell);
        assert_eq!(said(4500.0, 400.0), Says::Differs);
    }
}
