//! A figure as data: its points, what it says about the papers' claims, and its charts.

use super::sender::Sample;
use crate::measure::{Bar, Ratio, Spread};
use overside_evidence::{Judgement, Says};
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
    /// What was recorded beside points: values of each round, or counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub measured: Vec<Recorded>,
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
    #[serde(serialize_with = "columns")]
    pub rounds: Vec<Sample>,
}

/// A place on a curve that is no transmission. Rules read it as they read points.
#[derive(Clone, Debug, Serialize)]
pub struct Recorded {
    /// Which curve.
    pub series: String,
    /// Where on it.
    pub x: u64,
    /// Rows of the table, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// What every round came to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds: Option<Rounds>,
    /// What was counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exact: Option<f64>,
}

/// One value a round.
#[derive(Clone, Debug, Serialize)]
pub struct Rounds {
    value: Vec<f64>,
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

/// A claim of a paper beside what this run says of it.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// What the paper says.
    pub paper: &'static str,
    /// What this run says, half by half.
    #[serde(flatten)]
    pub judgement: Judgement,
}

impl Recorded {
    /// Of every round; nothing of what was counted.
    pub(super) fn values(&self) -> &[f64] {
        self.rounds.as_ref().map_or(&[], |rounds| &rounds.value)
    }
}

impl Figure {
    /// An empty one.
    pub fn new(figure: &'static str, provider: &str, title: &str) -> Figure {
        Figure {
            figure,
            provider: provider.to_owned(),
            points: Vec::new(),
            measured: Vec::new(),
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

    /// Records what every round came to at a place.
    pub fn record(&mut self, series: impl Into<String>, x: u64, value: Vec<f64>) {
        let rounds = Some(Rounds { value });
        self.measured.push(Recorded { series: series.into(), x, rows: None, rounds, exact: None });
    }

    /// Records what was counted at a place, of a table of so many rows if there are several.
    pub fn count(&mut self, series: &str, x: u64, rows: Option<u64>, exact: f64) {
        self.measured.push(Recorded { series: series.to_owned(), x, rows, rounds: None, exact: Some(exact) });
    }

    /// What every round of a series that was recorded at 0 came to; nothing of one that was not.
    pub(super) fn values_of(&self, series: &str) -> &[f64] {
        self.measured.iter().find(|recorded| recorded.series == series).map_or(&[], Recorded::values)
    }

    /// What every round of a series came to, at each place.
    pub(super) fn recorded(&self, series: &str) -> impl Iterator<Item = (u64, &[f64])> {
        let own = self.measured.iter().filter(move |recorded| recorded.series == series);
        own.map(|recorded| (recorded.x, recorded.values()))
    }

    /// The same as a spread.
    pub(super) fn spread_of(&self, series: &str) -> Spread {
        Spread::of(self.values_of(series))
    }

    /// Puts every claim that asks this figure beside what was measured, and judges its bars.
    ///
    /// # Errors
    /// A place has no round at all.
    pub fn judge(&mut self) -> anyhow::Result<()> {
        let json = serde_json::to_value(&*self)?;
        if let Some(bars) = overside_evidence::bars(&json).map_err(anyhow::Error::msg)? {
            self.bars = bars;
        }
        let judged = overside_evidence::judge(&json).map_err(anyhow::Error::msg)?;
        let compare =
            |judgement: Judgement| Comparison { paper: overside_evidence::states(judgement.claim), judgement };
        self.claims = judged.into_iter().map(compare).collect();
        Ok(())
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

impl Comparison {
    /// For a page: its class.
    pub fn class(&self) -> &'static str {
        match self.judgement.verdict {
            Says::Agrees => "good",
            Says::CannotTell => "open",
            Says::Differs => "bad",
        }
    }
}

/// Rounds by column, as rules read them.
fn columns<S: serde::Serializer>(rounds: &[Sample], to: S) -> Result<S::Ok, S::Error> {
    type Column = (&'static str, fn(&Sample) -> u64);
    let all: [Column; 7] = [
        ("bytes", |s| s.bytes),
        ("requests", |s| s.requests),
        ("wall_ns", |s| s.wall_ns),
        ("sender_ns", |s| s.sender_ns),
        ("sender_poll_ns", |s| s.sender_poll_ns),
        ("receiver_ns", |s| s.receiver_ns),
        ("receiver_poll_ns", |s| s.receiver_poll_ns),
    ];
    to.collect_map(all.map(|(name, of)| (name, rounds.iter().map(of).collect::<Vec<_>>())))
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
        let sample = |bytes| Sample {
            bytes,
            wall_ns: 1000,
            sender_ns: 100,
            sender_poll_ns: 40,
            receiver_ns: 300,
            ..Sample::default()
        };
        let slow = Point::of("a", 1, vec![sample(10), sample(30), sample(20)], &[5.0, 7.0]);
        assert_eq!((slow.bytes_per_s, slow.limit_bytes_per_s), (20.0 * 1e6, 6.0));
        assert_eq!((slow.sender_cpu_ns_per_byte, slow.both_cpu_ns_per_byte()), (5.0, 20.0));
        assert_eq!(slow.sender_work_ns_per_byte, 3.0, "without what polled for nothing");
        let fast = Point::of("b", 1, vec![sample(20), sample(60), sample(40)], &[]);
        let ratio = fast.ratio(&slow, Sample::bytes_per_s).unwrap();
        assert_eq!((ratio.low, ratio.high), (2.0, 2.0));
        let json = serde_json::to_value(slow.with("clients", 15)).unwrap();
        assert_eq!((json["clients"].as_u64(), json["x"].as_u64()), (Some(15), Some(1)));
        assert_eq!(json["rounds"]["bytes"], serde_json::json!([10, 30, 20]));
    }

    #[test]
    fn every_claim_of_a_figure_has_a_verdict() {
        let mut figure = Figure::new("delta", "shm", "");
        figure.judge().unwrap();
        let of_delta = overside_evidence::rules().filter(|rule| rule.figure == "delta").count();
        assert_eq!(figure.claims.len(), of_delta);
        let json = serde_json::to_value(&figure).unwrap();
        for claim in json["claims"].as_array().unwrap() {
            assert_eq!(claim["verdict"], "cannot tell", "{claim}");
            assert!(claim["parts"][0]["lacks"].as_str().is_some_and(|lacks| lacks.contains("lacks the series")));
            assert!(claim["paper"].as_str().is_some_and(|paper| !paper.is_empty()), "{claim}");
        }
    }
}
