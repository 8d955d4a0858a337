//! What the papers say, from the one file that has it.

use crate::svg::Mark;
use serde::Deserialize;
use std::sync::LazyLock;

#[derive(Debug, Deserialize)]
struct Papers {
    points: Vec<Point>,
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
    fn every_point_belongs_to_a_figure_and_a_claim() {
        for point in &PAPERS.points {
            assert!(NAMES.contains(&point.figure.as_str()), "{}", point.figure);
            for claim in point.claim.split(", ") {
                assert!(!overside_evidence::states(claim).is_empty(), "{claim} has a point and no words");
            }
        }
        assert_eq!(marks("transmit", "throughput").len(), 3);
    }
}
