//! What the papers say, from the one file that has it.

use crate::svg::Mark;
use serde::Deserialize;
use std::sync::LazyLock;

#[derive(Debug, Deserialize)]
struct Papers {
    claims: Vec<Claim>,
    points: Vec<Point>,
}

#[derive(Debug, Deserialize)]
struct Claim {
    claim: String,
    says: String,
    #[cfg_attr(not(test), expect(dead_code, reason = "for whoever reads the file, and its test"))]
    figure: String,
}

/// A point that a paper's text states, in the unit of the chart.
#[derive(Debug, Deserialize)]
struct Point {
    claim: String,
    figure: String,
    chart: String,
    series: String,
    x: f64,
    value: f64,
    says: String,
}

/// What a claim says, in this project's words.
pub(super) fn says(claim: &str) -> &'static str {
    PAPERS.claims.iter().find(|c| c.claim == claim).map_or("", |c| &c.says)
}

/// The ids of all claims that a figure is to answer, in order.
#[cfg(test)]
pub(super) fn claims(figure: &str) -> Vec<&'static str> {
    let own = PAPERS.claims.iter().filter(|claim| claim.figure == figure);
    let mut ids: Vec<_> = own.map(|claim| claim.claim.as_str()).collect();
    ids.sort_unstable();
    ids
}

/// The papers' points of a chart.
pub(super) fn marks(figure: &str, chart: &str) -> Vec<Mark> {
    let own = PAPERS.points.iter().filter(|point| point.figure == figure && point.chart == chart);
    let mark = |point: &Point| Mark {
        hint: format!("the paper's ({}), {}: {}", point.claim, point.series, point.says),
        name: point.claim.split(", ").next().unwrap_or_default().to_owned(),
        at: (point.x, point.value),
    };
    own.map(mark).collect()
}

static PAPERS: LazyLock<Papers> =
    LazyLock::new(|| serde_json::from_str(include_str!("../../data/papers.json")).expect("a test parses it"));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::NAMES;

    #[test]
    fn every_claim_and_point_belongs_to_a_figure() {
        let figures = PAPERS.claims.iter().map(|c| &c.figure).chain(PAPERS.points.iter().map(|p| &p.figure));
        for figure in figures {
            assert!(NAMES.contains(&figure.as_str()), "{figure}");
        }
        for point in &PAPERS.points {
            for claim in point.claim.split(", ") {
                assert!(!says(claim).is_empty(), "{claim} has a point and no words");
            }
        }
        let mut ids: Vec<_> = PAPERS.claims.iter().map(|c| &c.claim).collect();
        ids.sort();
        let all = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), all, "a claim stands twice");
        assert_eq!(marks("transmit", "throughput").len(), 3);
        assert_eq!(says("XX-C00"), "");
    }
}
