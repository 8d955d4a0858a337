//! Verdicts: what a figure says of what a paper states, as a pure function of the figure's JSON.

use crate::{
    Bar, Ratio,
    measured::{DataPoint, Lack, Measured, Metric, Reading, over},
};
use serde::Serialize;
use std::{fmt, ops::RangeInclusive};

/// What a paper states, as questions to one figure.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The claim's id.
    pub claim: &'static str,
    /// The figure that is asked.
    pub figure: &'static str,
    /// Every half of what the claim states.
    pub parts: &'static [ClaimPart],
    /// It asks of a side that not every host has, or that figures had not when results were kept: a
    /// kept result without it says nothing of the claim.
    pub optional: bool,
}

/// The bars of a figure, each asked of it as a half of a claim is.
#[derive(Clone, Copy, Debug)]
pub struct Goals {
    /// The figure that is asked.
    pub figure: &'static str,
    /// Every bar.
    pub parts: &'static [ClaimPart],
}

/// One half of a claim.
#[derive(Clone, Copy, Debug)]
pub struct ClaimPart {
    /// What is read.
    pub says: &'static str,
    /// From where.
    pub of: Of,
    /// Of how many readings the bar is asked.
    pub demand: Demand,
    /// What is wanted.
    pub bar: Wanted,
}

/// A place on a curve.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// The curve.
    pub series: &'static str,
    /// Where on it.
    pub on: On,
    /// Rows of the table, where a figure has several.
    pub rows: Option<u64>,
}

/// Where on a curve.
#[derive(Clone, Copy, Debug)]
pub enum On {
    /// There.
    X(u64),
    /// Where it begins.
    First,
    /// Where it ends.
    Last,
    /// Where its rate is highest.
    Peak,
}

/// Where readings come from.
#[derive(Clone, Copy, Debug)]
pub enum Of {
    /// A place.
    Value(Metric, At),
    /// A place over another, round by round.
    Ratio(Metric, At, At),
    /// A curve over another at each x of a range that both have.
    Curves(Metric, &'static str, &'static str, RangeEnds),
    /// A curve over one place, at each x of a range.
    OverPlace(Metric, &'static str, At, RangeEnds),
    /// A curve over another, all rounds of a range together.
    Pooled(Metric, &'static str, &'static str, RangeEnds),
    /// The x at which a curve ends.
    End(&'static str),
    /// What no other kind says.
    Named(fn(&Measured) -> Result<Vec<Reading>, Lack>),
}

/// First and last x.
pub type RangeEnds = (u64, u64);

/// Of how many readings a bar is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Of all.
    Every,
    /// Of one at least.
    Some,
    /// Of nine in ten.
    Nearly,
}

/// What is wanted of a reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wanted {
    /// This much.
    AtLeast(f64),
    /// No more.
    AtMost(f64),
    /// From here to there.
    Within(f64, f64),
}

/// What a figure says of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Says {
    /// Every half holds, with the whole interval.
    #[serde(rename = "agrees")]
    Agrees,
    /// An interval spans its bar, or the figure lacks what the rule asks.
    #[serde(rename = "cannot tell")]
    CannotTell,
    /// A half does not hold, with the whole interval.
    #[serde(rename = "differs")]
    Differs,
}

/// A claim beside what a figure says.
#[derive(Clone, Debug, Serialize)]
pub struct Judgement {
    /// The claim's id.
    pub claim: &'static str,
    /// The worst of its halves.
    pub verdict: Says,
    /// Each half.
    pub parts: Vec<Judged>,
}

/// One half of a claim, judged.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// What was read.
    pub says: &'static str,
    /// The bar.
    pub wanted: String,
    /// The reading that decided, and where it was; `None` if the figure lacks it.
    pub measured: Option<Ratio>,
    /// Where the reading that decided is on its curve; empty if the rule names one place.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub at: String,
    /// What it comes to.
    pub verdict: Says,
    /// What the figure does not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lacks: Option<String>,
}

/// With fewer rounds there is no interval to speak of.
const ROUNDS_MIN: usize = 3;

impl Rule {
    /// What `figure` says of the claim.
    pub fn judge(&self, figure: &Measured) -> Judgement {
        let parts: Vec<Judged> = self.parts.iter().map(|part| part.judge(figure)).collect();
        let verdict = parts.iter().map(|part| part.verdict).max().unwrap_or(Says::CannotTell);
        Judgement { claim: self.claim, verdict, parts }
    }
}

impl Goals {
    /// What `figure` says of each bar.
    pub fn judge(&self, figure: &Measured) -> Vec<Bar> {
        self.parts.iter().map(|part| Bar::judged(&part.judge(figure), part.bar)).collect()
    }
}

impl ClaimPart {
    /// What `figure` says of this half.
    pub(crate) fn judge(&self, figure: &Measured) -> Judged {
        let judged = |measured, at, verdict, lacks| Judged {
            says: self.says,
            wanted: self.bar.to_string(),
            measured,
            at,
            verdict,
            lacks,
        };
        let readings = match self.of.readings(figure) {
            Ok(readings) => readings,
            Err(lack) => return judged(None, String::new(), Says::CannotTell, Some(lack.to_string())),
        };
        let Some(verdict) = self.demand.of(readings.iter().map(|reading| self.bar.says(reading)).collect()) else {
            return judged(None, String::new(), Says::CannotTell, Some(format!("{} has no round", figure.figure)));
        };
        // Shown is the reading that decided, or that came closest to deciding otherwise.
        let by = |a: &&Reading, b: &&Reading| {
            let shortfall = |reading: &Reading| self.bar.shortfall(reading.ratio.median);
            self.bar.says(a).cmp(&self.bar.says(b)).then(shortfall(a).total_cmp(&shortfall(b)))
        };
        let shown = match self.demand {
            Demand::Some => readings.iter().min_by(by),
            Demand::Every | Demand::Nearly => readings.iter().max_by(by),
        };
        let (measured, at) = shown.map(|r| (r.ratio, r.at.clone())).unzip();
        judged(measured, at.unwrap_or_default(), verdict, None)
    }
}

impl Of {
    pub(crate) fn readings(&self, figure: &Measured) -> Result<Vec<Reading>, Lack> {
        let one = |values: &[f64], exact| Ok(Reading::of(String::new(), values, exact).into_iter().collect());
        match *self {
            Of::Value(metric, at) => {
                let place = at.place(figure)?;
                one(&place.values(figure, metric)?, place.exact.is_some())
            }
            Of::Ratio(metric, ours, theirs) => {
                let (ours, theirs) = (ours.place(figure)?, theirs.place(figure)?);
                let exact = ours.exact.is_some() && theirs.exact.is_some();
                one(&ratios(figure, metric, ours, theirs)?, exact)
            }
            Of::Curves(metric, ours, theirs, within) => each(figure, metric, ours, theirs, within),
            Of::OverPlace(metric, series, base, within) => {
                let base = base.place(figure)?;
                if figure.curve(series, None)?.len() < 2 {
                    return Err(figure.lack(series, Some(base.x + 1), None));
                }
                let reading = |place: &DataPoint| {
                    let values = ratios(figure, metric, place, base)?;
                    Ok(Reading::of(place.x.to_string(), &values, false))
                };
                // The place itself is one of them where it lies in the range: a curve that peaks there is as high as its peak.
                let all = in_range(figure, series, within)?.into_iter();
                all.filter_map(|place| reading(place).transpose()).collect()
            }
            Of::Pooled(metric, ours, theirs, within) => {
                let mut all = Vec::new();
                for place in in_range(figure, ours, within)? {
                    all.extend(ratios(figure, metric, place, figure.place(theirs, place.x, None)?)?);
                }
                one(&all, false)
            }
            Of::End(series) => {
                let end = figure.curve(series, None)?.iter().map(|place| place.x).max().unwrap_or(0);
                one(&[end as f64], true)
            }
            Of::Named(read) => read(figure),
        }
    }
}

impl At {
    /// The place that is meant.
    pub(crate) fn place(self, figure: &Measured) -> Result<&DataPoint, Lack> {
        if let On::X(x) = self.on {
            return figure.place(self.series, x, self.rows);
        }
        let curve = figure.curve(self.series, self.rows)?;
        let lack = || figure.lack(self.series, None, self.rows);
        match self.on {
            On::First => curve.first().copied().ok_or_else(lack),
            On::Last => curve.last().copied().ok_or_else(lack),
            On::X(_) | On::Peak => {
                let rates =
                    curve.iter().map(|place| place.median(figure, Metric::Rate)).collect::<Result<Vec<_>, _>>()?;
                let best = rates.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
                best.map(|(at, _)| curve[at]).ok_or_else(lack)
            }
        }
    }
}

impl Demand {
    /// One verdict of many; `None` of none.
    fn of(self, all: Vec<Says>) -> Option<Says> {
        let count = |says| all.iter().filter(|one| **one == says).count();
        let (agrees, differs, total) = (count(Says::Agrees), count(Says::Differs), all.len());
        let enough = match self {
            Demand::Every => total,
            Demand::Some => 1,
            Demand::Nearly => (total * 9).div_ceil(10),
        };
        if total == 0 {
            return None;
        }
        Some(match () {
            () if agrees >= enough => Says::Agrees,
            () if total - differs < enough => Says::Differs,
            () => Says::CannotTell,
        })
    }
}

impl Wanted {
    fn says(self, reading: &Reading) -> Says {
        let Ratio { low, high, rounds, .. } = reading.ratio;
        if !reading.exact && rounds < ROUNDS_MIN {
            return Says::CannotTell;
        }
        let (least, most) = self.ends();
        match () {
            () if low >= least && high <= most => Says::Agrees,
            () if high < least || low > most => Says::Differs,
            () => Says::CannotTell,
        }
    }

    fn ends(self) -> (f64, f64) {
        match self {
            Wanted::AtLeast(least) => (least, f64::INFINITY),
            Wanted::AtMost(most) => (f64::NEG_INFINITY, most),
            Wanted::Within(least, most) => (least, most),
        }
    }

    /// How far a value is from what is wanted; below 0 by how much it has it.
    fn shortfall(self, value: f64) -> f64 {
        let (least, most) = self.ends();
        (least - value).max(value - most)
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wanted::AtLeast(least) => write!(f, "≥ {least}"),
            Wanted::AtMost(most) => write!(f, "≤ {most}"),
            Wanted::Within(least, most) => write!(f, "{least} to {most}"),
        }
    }
}

impl Says {
    /// As it is written.
    pub fn text(self) -> &'static str {
        match self {
            Says::Agrees => "agrees",
            Says::CannotTell => "cannot tell",
            Says::Differs => "differs",
        }
    }

    /// Of what [`text`](Self::text) gives.
    pub fn parse(text: &str) -> Option<Says> {
        [Says::Agrees, Says::CannotTell, Says::Differs].into_iter().find(|says| says.text() == text)
    }
}

impl Judgement {
    /// What was measured, in one line.
    pub fn here(&self) -> String {
        self.parts.iter().map(Judged::to_string).collect::<Vec<_>>().join("; ")
    }

    /// What the figure does not have, if a half could not be read.
    pub fn lacks(&self) -> Option<&str> {
        self.parts.iter().find_map(|part| part.lacks.as_deref())
    }

    /// What the first of some claims asks of a figure that it does not have, and which claim that
    /// is.
    pub fn lacking<'a>(all: impl IntoIterator<Item = &'a Judgement>) -> Option<String> {
        let (claim, lacks) = all.into_iter().find_map(|one| Some((one.claim, one.lacks()?)))?;
        Some(format!("{lacks}, which {claim} asks for"))
    }
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Judged { says, wanted, .. } = self;
        write!(f, "{says}")?;
        if !self.at.is_empty() {
            write!(f, " (at {})", self.at)?;
        }
        match (&self.measured, &self.lacks) {
            (Some(r), _) => {
                write!(f, ": {} [{}, {}], wanted {wanted}", short(r.median), short(r.low), short(r.high))
            }
            (None, lacks) => write!(f, ": not measured ({})", lacks.as_deref().unwrap_or("no reading")),
        }
    }
}

/// As many digits as a reader needs.
fn short(value: f64) -> String {
    if value.abs() >= 1e4 { format!("{value:.3e}") } else { format!("{value:.2}") }
}

/// One place over another, round by round.
pub(crate) fn ratios(
    figure: &Measured,
    metric: Metric,
    ours: &DataPoint,
    theirs: &DataPoint,
) -> Result<Vec<f64>, Lack> {
    Ok(over(&ours.values(figure, metric)?, &theirs.values(figure, metric)?))
}

fn in_range<'a>(figure: &'a Measured, series: &str, (from, to): RangeEnds) -> Result<Vec<&'a DataPoint>, Lack> {
    let range: RangeInclusive<u64> = from..=to;
    let mut all = figure.curve(series, None)?;
    all.retain(|place| range.contains(&place.x));
    if all.is_empty() { Err(figure.lack(series, Some(from), None)) } else { Ok(all) }
}

/// A curve over another at each x of a range that both have.
pub(crate) fn each(
    figure: &Measured,
    metric: Metric,
    ours: &str,
    theirs: &str,
    within: RangeEnds,
) -> Result<Vec<Reading>, Lack> {
    let (all, mut readings) = (in_range(figure, ours, within)?, Vec::new());
    for place in &all {
        let Ok(other) = figure.place(theirs, place.x, None) else { continue };
        let values = ratios(figure, metric, place, other)?;
        readings.extend(Reading::of(place.x.to_string(), &values, false));
    }
    let first = all.first().map(|place| place.x);
    if readings.is_empty() { Err(figure.lack(theirs, first, None)) } else { Ok(readings) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(low: f64, median: f64, high: f64, rounds: usize) -> Reading {
        Reading { at: String::new(), ratio: Ratio { median, low, high, rounds }, exact: false }
    }

    #[test]
    fn an_interval_that_spans_the_bar_cannot_tell() {
        let bar = Wanted::AtLeast(1.7);
        assert_eq!(bar.says(&reading(1.8, 2.0, 2.2, 9)), Says::Agrees);
        assert_eq!(bar.says(&reading(1.6, 2.0, 2.2, 9)), Says::CannotTell);
        assert_eq!(bar.says(&reading(1.1, 1.2, 1.6, 9)), Says::Differs);
        // Two rounds have no interval.
        assert_eq!(bar.says(&reading(2.0, 2.0, 2.0, 2)), Says::CannotTell);
        let bar = Wanted::Within(0.9, 1.1);
        assert_eq!(bar.says(&reading(0.8, 1.0, 1.05, 9)), Says::CannotTell);
        assert_eq!(bar.says(&reading(0.95, 1.0, 1.05, 9)), Says::Agrees);
        assert_eq!(bar.says(&reading(1.2, 1.3, 1.4, 9)), Says::Differs);
    }

    #[test]
    fn one_that_differs_is_enough_against_every_and_one_that_agrees_for_some() {
        use Says::{Agrees, CannotTell, Differs};
        assert_eq!(Demand::Every.of(vec![Agrees, Agrees, Differs]), Some(Differs));
        assert_eq!(Demand::Every.of(vec![Agrees, CannotTell]), Some(CannotTell));
        assert_eq!(Demand::Some.of(vec![Differs, Agrees]), Some(Agrees));
        assert_eq!(Demand::Some.of(vec![Differs, CannotTell]), Some(CannotTell));
        assert_eq!(Demand::Some.of(vec![Differs, Differs]), Some(Differs));
        let mut ten = vec![Agrees; 9];
        ten.push(Differs);
        assert_eq!(Demand::Nearly.of(ten.clone()), Some(Agrees));
        ten[0] = Differs;
        assert_eq!(Demand::Nearly.of(ten), Some(Differs));
        assert_eq!(Demand::Every.of(Vec::new()), None);
    }
}
