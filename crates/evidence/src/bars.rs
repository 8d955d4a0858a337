//! Bars: what must be reached, and whether it was.

use crate::{
    Ratio,
    verdict::{Judged, Says, Wanted},
};
use serde::Serialize;

/// A stated bar with what was measured against it.
#[derive(Clone, Debug, Serialize)]
pub struct Bar {
    /// What is compared, in words.
    pub name: String,
    /// The least that meets the bar, or the most.
    pub wanted: f64,
    /// Less is better.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub at_most: bool,
    /// What was measured; `None` when nothing could be compared.
    pub ratio: Option<Ratio>,
    /// Met, failed or open.
    pub verdict: Verdict,
}

/// What the measurement says about a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The median reaches the bar.
    Met,
    /// The median is below the bar, but the 95 % interval still includes it.
    WithinNoise,
    /// The 95 % interval has the bar in it, and the bar asks for all of it.
    CannotTell,
    /// The 95 % interval excludes the bar.
    Missed,
    /// Nothing was measured.
    NotMeasured,
}

impl Bar {
    /// Judges `ratio` against `wanted`.
    pub fn at_least(name: impl Into<String>, wanted: f64, ratio: Option<Ratio>) -> Bar {
        let verdict = match ratio {
            None => Verdict::NotMeasured,
            Some(r) if r.median >= wanted => Verdict::Met,
            Some(r) if r.high >= wanted => Verdict::WithinNoise,
            Some(_) => Verdict::Missed,
        };
        Bar { name: name.into(), wanted, at_most: false, ratio, verdict }
    }

    /// What a rule said: of the whole interval, which may lie on both sides of the bar.
    pub(crate) fn judged(judged: &Judged, wanted: Wanted) -> Bar {
        let (wanted, at_most) = match wanted {
            Wanted::AtLeast(least) => (least, false),
            Wanted::AtMost(most) | Wanted::Within(_, most) => (most, true),
        };
        let verdict = match (judged.verdict, judged.measured) {
            (_, None) => Verdict::NotMeasured,
            (Says::Agrees, _) => Verdict::Met,
            (Says::CannotTell, _) => Verdict::CannotTell,
            (Says::Differs, _) => Verdict::Missed,
        };
        Bar { name: judged.says.to_owned(), wanted, at_most, ratio: judged.measured, verdict }
    }

    /// What is wanted, with its direction.
    pub fn wanted(&self) -> String {
        format!("{} {}", if self.at_most { '≤' } else { '≥' }, self.wanted)
    }
}

impl Verdict {
    /// One word or two for a table.
    pub fn text(self) -> &'static str {
        match self {
            Verdict::Met => "met",
            Verdict::WithinNoise => "within noise",
            Verdict::CannotTell => "cannot tell",
            Verdict::Missed => "missed",
            Verdict::NotMeasured => "not measured",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_fails_only_when_the_interval_excludes_it() {
        let ratio = |median, low, high| Some(Ratio { median, low, high, rounds: 9 });
        assert_eq!(Bar::at_least("", 0.95, ratio(0.96, 0.90, 1.0)).verdict, Verdict::Met);
        assert_eq!(Bar::at_least("", 0.95, ratio(0.94, 0.90, 0.96)).verdict, Verdict::WithinNoise);
        assert_eq!(Bar::at_least("", 0.95, ratio(0.90, 0.88, 0.94)).verdict, Verdict::Missed);
        assert_eq!(Bar::at_least("", 0.95, None).verdict, Verdict::NotMeasured);
    }
}
