//! A figure's own JSON as rules read it: places on curves, each with what every round came to.

use crate::Ratio;
use serde_json::{Map, Value};
use std::fmt;

/// What a figure measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// As it is asked for: `overside bench FIGURE`.
    pub figure: String,
    /// On all curves.
    pub places: Vec<DataPoint>,
}

/// One place on one curve.
#[derive(Clone, Debug, Default)]
pub struct DataPoint {
    /// Which curve.
    pub series: String,
    /// Where on it.
    pub x: u64,
    /// Rows of the table that was sent, where a figure has tables of several sizes.
    pub rows: Option<u64>,
    /// One value a round, by name.
    pub rounds: Map<String, Value>,
    /// A number that was counted: it has no spread.
    pub exact: Option<f64>,
}

/// What a rule wants to know of a place, one value a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Payload bytes a second.
    Rate,
    /// Requests a second.
    Requests,
    /// Work of the sender's processor for a byte: its time without polling for nothing.
    Work,
    /// Work of the sender's processor for a request.
    WorkEach,
    /// The share of time in which the sender's processor was taken, polling included.
    Busy,
    /// The share of time in which the sender worked.
    Working,
    /// The share of time in which the sender waited, asleep or polling for nothing.
    Waiting,
    /// Work of both ends for a byte.
    BothWork,
    /// What the figure recorded as it is: a rate, a share, a count.
    Recorded,
}

/// What a rule wanted and the figure does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// The figure.
    pub figure: String,
    /// The curve.
    pub series: String,
    /// The place on it, if one was named.
    pub x: Option<u64>,
    /// The table's rows, if they were named.
    pub rows: Option<u64>,
    /// The column of the rounds, if the place is there.
    pub column: Option<&'static str>,
}

/// A reading with its 95 % interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The place, as people read it; empty where a rule names only one.
    pub at: String,
    /// Median and interval.
    pub ratio: Ratio,
    /// Counted, not measured.
    pub exact: bool,
}

impl Measured {
    /// Of one figure's JSON.
    ///
    /// # Errors
    /// It is no figure, or a place on it is not whole: one line says what.
    pub fn of(figure: &Value) -> Result<Measured, String> {
        let name = figure["figure"].as_str().ok_or("there is no `figure`: this is no figure's JSON")?;
        let list = |key: &str| figure[key].as_array().cloned().unwrap_or_default();
        let all = list("points").into_iter().chain(list("measured"));
        let places = all.map(|value| DataPoint::of(name, &value)).collect::<Result<_, _>>()?;
        Ok(Measured { figure: name.to_owned(), places })
    }

    /// The place of a curve.
    pub(crate) fn place(&self, series: &str, x: u64, rows: Option<u64>) -> Result<&DataPoint, Lack> {
        let own = |place: &&DataPoint| place.is_of(series, rows) && place.x == x;
        self.places.iter().find(own).ok_or_else(|| self.lack(series, Some(x), rows))
    }

    /// The places of a curve in the order of x: at least one.
    pub(crate) fn curve(&self, series: &str, rows: Option<u64>) -> Result<Vec<&DataPoint>, Lack> {
        let mut all: Vec<&DataPoint> = self.places.iter().filter(|place| place.is_of(series, rows)).collect();
        all.sort_by_key(|place| place.x);
        if all.is_empty() { Err(self.lack(series, None, rows)) } else { Ok(all) }
    }

    pub(crate) fn lack(&self, series: &str, x: Option<u64>, rows: Option<u64>) -> Lack {
        Lack { figure: self.figure.clone(), series: series.to_owned(), x, rows, column: None }
    }
}

impl DataPoint {
    fn of(figure: &str, value: &Value) -> Result<DataPoint, String> {
        let series = value["series"].as_str().ok_or_else(|| format!("{figure}: a point names no series"))?;
        let x = value["x"].as_u64().ok_or_else(|| format!("{figure}: a point of `{series}` has no x"))?;
        let rounds = value["rounds"].as_object().cloned().unwrap_or_default();
        let exact = value["exact"].as_f64();
        let empty = rounds.values().all(|column| column.as_array().is_none_or(Vec::is_empty));
        if exact.is_none() && empty {
            return Err(format!("{figure}: `{series}` at {x} has no rounds"));
        }
        Ok(DataPoint { series: series.to_owned(), x, rows: value["rows"].as_u64(), rounds, exact })
    }

    fn is_of(&self, series: &str, rows: Option<u64>) -> bool {
        self.series == series && (rows.is_none() || self.rows == rows)
    }

    fn column(&self, figure: &Measured, name: &'static str) -> Result<Vec<f64>, Lack> {
        let values = self.rounds.get(name).and_then(Value::as_array);
        let values: Option<Vec<f64>> = values.and_then(|values| values.iter().map(Value::as_f64).collect());
        let lack = || Lack { column: Some(name), ..figure.lack(&self.series, Some(self.x), self.rows) };
        values.filter(|values| !values.is_empty()).ok_or_else(lack)
    }

    /// One value a round; a number that was counted stands alone.
    pub(crate) fn values(&self, figure: &Measured, metric: Metric) -> Result<Vec<f64>, Lack> {
        if let (Metric::Recorded, Some(exact)) = (metric, self.exact) {
            return Ok(vec![exact]);
        }
        let column = |name| self.column(figure, name);
        let work = || Ok(less(&column("sender_ns")?, &column("sender_poll_ns")?));
        match metric {
            Metric::Rate => Ok(over(&scaled(&column("bytes")?, 1e9), &column("wall_ns")?)),
            Metric::Requests => Ok(over(&scaled(&column("requests")?, 1e9), &column("wall_ns")?)),
            Metric::Work => Ok(over(&work()?, &column("bytes")?)),
            Metric::WorkEach => Ok(over(&work()?, &column("requests")?)),
            Metric::Busy => Ok(over(&column("sender_ns")?, &column("wall_ns")?)),
            Metric::Working => Ok(over(&work()?, &column("wall_ns")?)),
            Metric::Waiting => Ok(over(&work()?, &column("wall_ns")?).iter().map(|share| 1.0 - share).collect()),
            Metric::BothWork => {
                let receivers = less(&column("receiver_ns")?, &column("receiver_poll_ns")?);
                let both: Vec<f64> = work()?.iter().zip(&receivers).map(|(a, b)| a + b).collect();
                Ok(over(&both, &column("bytes")?))
            }
            Metric::Recorded => column("value"),
        }
    }

    /// The median of what [`values`](Self::values) gives.
    pub(crate) fn median(&self, figure: &Measured, metric: Metric) -> Result<f64, Lack> {
        Ok(crate::median(&self.values(figure, metric)?))
    }
}

impl Reading {
    /// Of one value a round.
    pub(crate) fn of(at: String, values: &[f64], exact: bool) -> Option<Reading> {
        Ratio::of(values).map(|ratio| Reading { at, ratio, exact })
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lacks ", self.figure)?;
        match self.column {
            Some(column) => write!(f, "`{column}` of the rounds of ")?,
            None => write!(f, "the series ")?,
        }
        write!(f, "`{}`", self.series)?;
        if let Some(x) = self.x {
            write!(f, " at {x}")?;
        }
        self.rows.map_or(Ok(()), |rows| write!(f, ", {rows} rows"))
    }
}

/// Round by round; a round without a divisor is left out by who summarises.
pub(crate) fn over(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    ours.iter().zip(theirs).map(|(ours, theirs)| if *theirs > 0.0 { ours / theirs } else { f64::NAN }).collect()
}

fn less(all: &[f64], part: &[f64]) -> Vec<f64> {
    all.iter().zip(part).map(|(all, part)| (all - part).max(0.0)).collect()
}

fn scaled(values: &[f64], by: f64) -> Vec<f64> {
    values.iter().map(|value| value * by).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn figure() -> Value {
        json!({"figure": "delta", "points": [
            {"series": "a", "x": 4, "rounds": {"bytes": [100, 200], "wall_ns": [10, 10], "requests": [1, 2],
             "sender_ns": [8, 8], "sender_poll_ns": [3, 8], "receiver_ns": [4, 4], "receiver_poll_ns": [0, 0]}},
            {"series": "a", "x": 1, "rounds": {"bytes": [100], "wall_ns": [0]}},
        ], "measured": [{"series": "counted", "x": 2, "exact": 7.0}]})
    }

    #[test]
    fn metrics_are_of_each_round() {
        let measured = Measured::of(&figure()).unwrap();
        let place = measured.place("a", 4, None).unwrap();
        let of = |metric| place.values(&measured, metric).unwrap();
        assert_eq!(of(Metric::Rate), [1e10, 2e10]);
        assert_eq!(of(Metric::Work), [0.05, 0.0]);
        assert_eq!(of(Metric::Waiting), [0.5, 1.0]);
        assert_eq!(of(Metric::Busy), [0.8, 0.8]);
        assert_eq!(of(Metric::BothWork), [0.09, 0.02]);
        assert_eq!(of(Metric::WorkEach), [5.0, 0.0]);
        let counted = measured.place("counted", 2, None).unwrap();
        assert_eq!(counted.values(&measured, Metric::Recorded).unwrap(), [7.0]);
        assert_eq!(measured.curve("a", None).unwrap()[0].x, 1);
    }

    #[test]
    fn what_a_figure_lacks_is_named() {
        let measured = Measured::of(&figure()).unwrap();
        assert_eq!(measured.place("a", 5, None).unwrap_err().to_string(), "delta lacks the series `a` at 5");
        let lack = measured.place("a", 1, None).unwrap().values(&measured, Metric::Work).unwrap_err();
        assert_eq!(lack.to_string(), "delta lacks `sender_ns` of the rounds of `a` at 1");
        assert!(measured.curve("b", Some(64)).unwrap_err().to_string().ends_with("`b`, 64 rows"));
        assert!(Measured::of(&json!({"points": []})).unwrap_err().contains("no `figure`"));
        let halved = json!({"figure": "delta", "points": [{"series": "a", "x": 1}]});
        assert_eq!(Measured::of(&halved).unwrap_err(), "delta: `a` at 1 has no rounds");
    }
}
