//! What alternating sides came to: the rows of a table, data, and ratios.

use super::pair::Ends;
use crate::{
    figures::{
        figure::{Figure, Table},
        messages::play::Stretch,
    },
    measure::{Ratio, Spread},
};
use serde_json::{Value, json};

/// Sides that alternated.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) sides: Vec<SideRounds>,
}

/// A side's rounds, and where its connections went.
pub(super) struct SideRounds {
    pub(super) name: String,
    pub(super) stretches: Vec<Stretch>,
    pub(super) ends: Option<Ends>,
}

impl SideRounds {
    fn per_s(&self) -> Vec<f64> {
        self.stretches.iter().map(Stretch::per_s).collect()
    }

    /// Processor time of both processes for one, in nanoseconds.
    fn cpu_each(&self) -> f64 {
        Spread::of(&self.stretches.iter().map(Stretch::cpu_each).collect::<Vec<_>>()).median
    }

    fn rings(&self) -> String {
        match &self.ends {
            Some(ends) if ends.all > 0 => format!("{} of {}", ends.in_rings, ends.all),
            _ => "–".into(),
        }
    }
}

impl Series {
    /// Of paired rounds.
    pub(super) fn ratio(&self, ours: &str, theirs: &str) -> Option<Ratio> {
        let of = |name: &str| Some(self.sides.iter().find(|side| side.name == name)?.per_s());
        Ratio::paired(&of(ours)?, &of(theirs)?)
    }

    /// For people: every side against every plain one.
    pub(super) fn table(&self) -> Table {
        let plain: Vec<&str> = self.sides.iter().map(|side| &side.name[..]).filter(|name| !is_library(name)).collect();
        let head = ["", "thousand/s", "quartiles", "CPU µs each", "ends in rings"].map(str::to_owned);
        let row = |side: &SideRounds| {
            let spread = Spread::of(&side.per_s());
            let over =
                |other: &&str| self.ratio(&side.name, other).map_or("–".into(), |r| format!("{:.2}", r.median));
            let quartiles = format!("{:.2}–{:.2}", spread.quarter_low / 1e3, spread.quarter_high / 1e3);
            let cells = [
                side.name.clone(),
                format!("{:.2}", spread.median / 1e3),
                quartiles,
                format!("{:.2}", side.cpu_each() / 1e3),
                side.rings(),
            ];
            cells.into_iter().chain(plain.iter().map(over)).collect()
        };
        Table {
            caption: self.name.clone(),
            head: head.into_iter().chain(plain.iter().map(|name| format!("× {name}"))).collect(),
            rows: self.sides.iter().map(row).collect(),
        }
    }

    /// What every round of each side came to, as rules read it.
    pub(super) fn record(&self, figure: &mut Figure) {
        for side in &self.sides {
            let cpu = side.stretches.iter().map(Stretch::cpu_each).collect();
            figure.record(format!("{}, per s: {}", self.name, side.name), 0, side.per_s());
            figure.record(format!("{}, CPU ns each: {}", self.name, side.name), 0, cpu);
        }
    }

    /// For programs.
    pub(super) fn data(&self) -> Value {
        let side = |side: &SideRounds| {
            let spread = Spread::of(&side.per_s());
            let (rings, all) = side.ends.as_ref().map_or((0, 0), |ends| (ends.in_rings, ends.all));
            json!({"side": side.name, "per_s": spread.median, "spread": spread, "cpu_ns_each": side.cpu_each(),
                   "ends": all, "ends_in_rings": rings})
        };
        json!({"series": self.name, "sides": self.sides.iter().map(side).collect::<Vec<_>>()})
    }
}

fn is_library(name: &str) -> bool {
    name.ends_with(", library")
}

#[cfg(test)]
mod tests {
    use super::*;
    use overside_evidence::Says;

    fn side(name: &str, round_trips: u64) -> SideRounds {
        let stretch = |more| Stretch { round_trips: round_trips + more, wall_ns: 1_000_000_000, cpu_ns: 1 };
        SideRounds { name: name.into(), stretches: (0..5).map(stretch).collect(), ends: None }
    }

    /// What a side came to is what the claims of PostgreSQL ask for, round by round.
    #[test]
    fn rounds_are_recorded_as_rules_ask_for_them() {
        let said = |plain: u64, library: u64| {
            let mut figure = Figure::new("sockets", "", "");
            let connecting = [super::super::TPC_B_KEPT, super::super::TPC_B_AGAIN];
            for name in [super::super::TPC_B_1, super::super::REPLAY].into_iter().chain(connecting) {
                let sides = ["TCP", "Unix socket"].map(|family| side(family, plain)).into_iter();
                let under = ["TCP, library", "Unix socket, library"].map(|family| side(family, library));
                Series { name: name.into(), sides: sides.chain(under).collect() }.record(&mut figure);
            }
            figure.judge().unwrap();
            let all = figure.claims.iter().map(|one| &one.judgement);
            all.map(|one| (one.claim, one.verdict, one.lacks().is_some())).collect::<Vec<_>>()
        };
        // Both gain alike here, whatever they gain.
        let both = |says| vec![("RS-C02", says, false), ("RS-C13", says, false), ("RS-C14", Says::Agrees, false)];
        assert_eq!(said(100_000, 170_000), both(Says::Agrees));
        assert_eq!(said(100_000, 110_000), both(Says::Differs));
    }
}
