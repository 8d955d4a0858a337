//! A figure as data: its points, what it says about the papers' claims, and its charts.

use super::sender::Sample;
use crate::measure::{Bar, Ratio, Spread};
use serde::Serialize;
use serde_json::{Map, Value};

/// A figure.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// As it is asked for.
    pub figure: &'static str,
    /// The provider's part of the address that it was measured over.
    pub provider: String,
    /// What was measured.
    pub points: Vec<Point>,
    /// What else a figure tells, by name.
    #[serde(flatten)]
    pub more: Map<String, Value>,
    /// The papers' statements beside what was measured.
    pub claims: Vec<Comparison>,
    /// What must be reached, and whether it was.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bars: Vec<Bar>,
    /// For the report: what it shows.
    #[serde(skip)]
    pub title: String,
    /// For the report: how it was measured and what to look at.
    #[serde(skip)]
    pub text: String,
    /// What is no curve, by row and column.
    #[serde(skip)]
    pub tables: Vec<Table>,
    /// For the report: drawings with their captions.
    #[serde(skip)]
    pub charts: Vec<(String, String)>,
}

/// A table of a figure, as people read it; its data are in [`Figure::more`].
#[derive(Clone, Debug)]
pub struct Table {
    /// What it shows.
    pub caption: String,
    /// Over the columns.
    pub head: Vec<String>,
    /// By row.
    pub rows: Vec<Vec<String>>,
}

/// One place on one curve. Times are nanoseconds of processor time.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Which curve.
    pub series: String,
    /// Where on it; the figure says what it counts.
    pub x: u64,
    /// Payload bytes per second, all destinations together: the median of the rounds.
    pub bytes_per_s: f64,
    /// Processor time of the sender for a payload byte.
    pub sender_cpu_ns_per_byte: f64,
    /// Of it, without polling for nothing.
    pub sender_work_ns_per_byte: f64,
    /// Processor time of all receivers for a payload byte.
    pub receiver_cpu_ns_per_byte: f64,
    /// What a copy of equally cold memory by one processor reaches, in bytes per second.
    pub limit_bytes_per_s: f64,
    /// Further figures and what tells this curve from others.
    #[serde(flatten)]
    pub labels: Map<String, Value>,
    /// The spread behind the medians.
    pub spread: PointSpread,
    /// The rounds, for comparing in pairs.
    #[serde(skip)]
    pub rounds: Vec<Sample>,
}

/// Spreads of a point.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PointSpread {
    /// Of `bytes_per_s`.
    pub bytes_per_s: Spread,
    /// Processor time of both ends for a payload byte.
    pub both_cpu_ns_per_byte: Spread,
    /// Of it, without polling for nothing.
    pub both_work_ns_per_byte: Spread,
}

/// A claim of a paper beside what this run shows.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The claim's id.
    pub claim: String,
    /// What the paper says.
    pub paper: String,
    /// What was measured.
    pub here: String,
    /// Whether they agree.
    pub agrees: bool,
}

impl Figure {
    /// An empty one.
    pub fn new(figure: &'static str, provider: &str, title: &str) -> Figure {
        Figure {
            figure,
            provider: provider.to_owned(),
            points: Vec::new(),
            more: Map::new(),
            claims: Vec::new(),
            bars: Vec::new(),
            title: title.to_owned(),
            text: String::new(),
            tables: Vec::new(),
            charts: Vec::new(),
        }
    }

    /// The point of a curve.
    pub fn point(&self, series: &str, x: u64) -> Option<&Point> {
        self.points.iter().find(|point| point.series == series && point.x == x)
    }

    /// The points of a curve, in the order of `x`.
    pub fn curve<'a>(&'a self, series: &str) -> Vec<&'a Point> {
        let mut points: Vec<_> = self.points.iter().filter(|point| point.series == series).collect();
        points.sort_by_key(|point| point.x);
        points
    }

    /// The place of a curve where `figure` is largest.
    pub fn peak(&self, series: &str, figure: impl Fn(&Point) -> f64) -> Option<&Point> {
        self.curve(series).into_iter().max_by(|a, b| figure(a).total_cmp(&figure(b)))
    }

    /// Puts a claim beside what was measured.
    pub fn compare(&mut self, claim: &str, paper: &str, here: String, agrees: bool) {
        self.claims.push(Comparison { claim: claim.to_owned(), paper: paper.to_owned(), here, agrees });
    }
}

impl Point {
    /// Medians of `rounds`; `limits` are those of the same rounds.
    pub fn of(series: impl Into<String>, x: u64, rounds: Vec<Sample>, limits: &[f64]) -> Point {
        let spread = |figure: &dyn Fn(&Sample) -> f64| Spread::of(&rounds.iter().map(figure).collect::<Vec<_>>());
        let bytes_per_s = spread(&Sample::bytes_per_s);
        let both = spread(&Sample::both_per_byte);
        let both_work_ns_per_byte = spread(&Sample::both_work_per_byte);
        Point {
            series: series.into(),
            x,
            bytes_per_s: bytes_per_s.median,
            sender_cpu_ns_per_byte: spread(&Sample::sender_per_byte).median,
            sender_work_ns_per_byte: spread(&Sample::work_per_byte).median,
            receiver_cpu_ns_per_byte: spread(&Sample::receiver_per_byte).median,
            limit_bytes_per_s: Spread::of(limits).median,
            labels: Map::new(),
            spread: PointSpread { bytes_per_s, both_cpu_ns_per_byte: both, both_work_ns_per_byte },
            rounds,
        }
    }

    /// With something more to tell.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Point {
        self.labels.insert(name.to_owned(), value.into());
        self
    }

    /// A further figure by its name; 0 where there is none.
    pub fn label(&self, name: &str) -> f64 {
        self.labels.get(name).and_then(Value::as_f64).unwrap_or(0.0)
    }

    /// Processor time of both ends for a byte.
    pub fn both_cpu_ns_per_byte(&self) -> f64 {
        self.spread.both_cpu_ns_per_byte.median
    }

    /// How `figure` of this point compares to another's, round by round.
    pub fn ratio(&self, other: &Point, figure: impl Fn(&Sample) -> f64) -> Option<Ratio> {
        let of = |point: &Point| point.rounds.iter().map(&figure).collect::<Vec<_>>();
        Ratio::paired(&of(self), &of(other))
    }
}

/// A ratio as people read it.
pub fn shown(ratio: Option<Ratio>) -> String {
    ratio.map_or("–".to_owned(), |r| format!("{:.2} [{:.2}, {:.2}]", r.median, r.low, r.high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_medians_and_pairs_are_of_one_round() {
        let sample = |bytes| Sample { bytes, wall_ns: 1000, sender_ns: 100, receiver_ns: 300, ..Sample::default() };
        let slow = Point::of("a", 1, vec![sample(10), sample(30), sample(20)], &[5.0, 7.0]);
        assert_eq!((slow.bytes_per_s, slow.limit_bytes_per_s), (20.0 * 1e6, 6.0));
        assert_eq!((slow.sender_cpu_ns_per_byte, slow.both_cpu_ns_per_byte()), (5.0, 20.0));
        let fast = Point::of("b", 1, vec![sample(20), sample(60), sample(40)], &[]);
        let ratio = fast.ratio(&slow, Sample::bytes_per_s).unwrap();
        assert_eq!((ratio.low, ratio.high), (2.0, 2.0));
        let json = serde_json::to_value(slow.with("clients", 15)).unwrap();
        assert_eq!((json["clients"].as_u64(), json["x"].as_u64()), (Some(15), Some(1)));
    }
}
