//! Results as they are kept: `results/MACHINE/DATE-COMMIT/FIGURE.json`, a figure of a full run
//! each.

use crate::{
    Bar, Ratio,
    measured::Measured,
    rules,
    verdict::{Judgement, Says},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// What a file of results says of itself. Another number is another meaning.
pub const FORMAT: u64 = 1;

/// One figure, and where and of what build it was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kept {
    /// [`FORMAT`].
    pub format: u64,
    /// The commit that was built.
    pub commit: String,
    /// The day.
    pub date: String,
    /// Few places and short rounds: shows shapes, and is not committed.
    pub quick: bool,
    /// The machine, as the figure's run describes it.
    pub machine: Value,
    /// The figure's own JSON.
    pub figure: Value,
}

impl Kept {
    /// Of a file's text; `path` is for what is said of it.
    ///
    /// # Errors
    /// It was cut short, is of another version, or is no figure: one line names the file and says
    /// what to do.
    pub fn read(path: &str, text: &str) -> Result<Kept, String> {
        const AGAIN: &str = "measure it again with `overside bench all --results DIR`";
        let value: Value =
            serde_json::from_str(text).map_err(|error| format!("{path}: cut short, or no JSON ({error}); {AGAIN}"))?;
        match value["format"].as_u64() {
            Some(FORMAT) => {}
            Some(other) => return Err(format!("{path}: of version {other}, and this reads {FORMAT}; {AGAIN}")),
            None => return Err(format!("{path}: no file of results, since it has no `format`; {AGAIN}")),
        }
        let kept: Kept = serde_json::from_value(value).map_err(|error| format!("{path}: {error}; {AGAIN}"))?;
        Measured::of(&kept.figure).map_err(|error| format!("{path}: {error}; {AGAIN}"))?;
        Ok(kept)
    }

    /// The figure's name.
    pub fn name(&self) -> &str {
        self.figure["figure"].as_str().unwrap_or_default()
    }

    /// What must be reached, judged anew.
    ///
    /// # Errors
    /// A bar is not whole.
    pub fn bars(&self, path: &str) -> Result<Vec<Bar>, String> {
        if let Some(bars) = crate::bars(&self.figure).map_err(|error| format!("{path}: {error}"))? {
            return Ok(bars);
        }
        let bars = self.figure["bars"].as_array().cloned().unwrap_or_default();
        let bar = |value: &Value| {
            let (name, wanted) = (value["name"].as_str()?, value["wanted"].as_f64()?);
            let ratio: Option<Ratio> = serde_json::from_value(value["ratio"].clone()).ok()?;
            Some(Bar::at_least(name, wanted, ratio))
        };
        let whole = |value: &Value| bar(value).ok_or_else(|| format!("{path}: a bar is not whole: {value}"));
        bars.iter().map(whole).collect()
    }

    /// What the figure says of every claim that asks it; of one whose rule is optional only where
    /// it has what is asked.
    ///
    /// # Errors
    /// It lacks a series that another rule asks for.
    pub fn judge(&self, path: &str) -> Result<Vec<Judgement>, String> {
        let mut all = crate::judge(&self.figure).map_err(|error| format!("{path}: {error}"))?;
        let may_lack = |claim| rules().any(|rule| rule.optional && rule.claim == claim && rule.figure == self.name());
        all.retain(|one| one.lacks().is_none() || !may_lack(one.claim));
        match Judgement::lacking(&all) {
            Some(lacking) => Err(format!("{path}: {lacking}; measure it again")),
            None => Ok(all),
        }
    }
}

/// The verdict of each claim over all results: of one run the worst of its figures; of several runs
/// what all say, else that they cannot tell. A claim has none until a run has all figures that it
/// asks. A run with some of them that differs there makes an `agrees` a `cannot tell`, and counts
/// for nothing else.
///
/// # Errors
/// As [`Kept::judge`].
pub fn verdicts(results: &BTreeMap<String, Kept>) -> Result<BTreeMap<&'static str, Says>, String> {
    let mut runs: BTreeMap<&str, Run> = BTreeMap::new();
    for (path, kept) in results {
        let run = path.rsplit_once('/').map_or("", |(run, _)| run);
        for judgement in kept.judge(path)? {
            runs.entry(run).or_default().entry(judgement.claim).or_default().push(judgement.verdict);
        }
    }
    Ok(settled(runs.values()))
}

/// What one run's figures say of each claim.
type Run = BTreeMap<&'static str, Vec<Says>>;

fn settled<'r>(runs: impl Iterator<Item = &'r Run>) -> BTreeMap<&'static str, Says> {
    let (mut said, mut refuted) = (BTreeMap::new(), Vec::new());
    for (claim, all) in runs.flatten() {
        let asked = rules().filter(|rule| rule.claim == *claim).count();
        let Some(worst) = all.iter().copied().max() else { continue };
        if all.len() == asked {
            said.entry(*claim)
                .and_modify(|says| *says = if *says == worst { worst } else { Says::CannotTell })
                .or_insert(worst);
        } else if worst == Says::Differs {
            refuted.push(*claim);
        }
    }
    for claim in refuted {
        said.entry(claim).and_modify(|says| *says = (*says).max(Says::CannotTell));
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A page with deltas so many times as fast as scattered records, for a tenth of the work.
    pub(crate) fn delta(faster: f64) -> Value {
        let place = |series: &str, x: u64, bytes: f64, work: f64| {
            json!({"series": series, "x": x, "rounds": {
                "bytes": [bytes, bytes, bytes], "wall_ns": [1e9, 1e9, 1e9], "requests": [9, 9, 9],
                "sender_ns": [work, work, work], "sender_poll_ns": [0, 0, 0]}})
        };
        let page = [0, 1, 4, 32].map(|x| place("page and deltas 128 B, 15 clients", x, 1e9 * faster, 1e6 * faster));
        let large = [0, 32].map(|x| place("page and deltas 1024 B, 15 clients", x, 1e9, 1e6));
        let scattered = [place("scattered 128 B, 15 clients", 4, 1e9, 1e7)];
        let points: Vec<Value> = page.into_iter().chain(large).chain(scattered).collect();
        json!({"figure": "delta", "points": points})
    }

    fn file(figure: Value) -> String {
        json!({"format": FORMAT, "commit": "01234567", "date": "2026-11-25", "quick": false,
               "machine": {"processor": "P"}, "figure": figure})
        .to_string()
    }

    fn run(name: &str, faster: f64) -> (String, Kept) {
        let path = format!("results/p/{name}/delta.json");
        let kept = Kept::read(&path, &file(delta(faster))).unwrap();
        (path, kept)
    }

    #[test]
    fn runs_that_say_the_same_say_it_and_others_cannot_tell() {
        let one = BTreeMap::from([run("a", 2.0)]);
        assert_eq!(verdicts(&one).unwrap()["TC-C01"], Says::Agrees);
        assert_eq!(verdicts(&BTreeMap::from([run("a", 1.2)])).unwrap()["TC-C01"], Says::Differs);
        let both = BTreeMap::from([run("a", 2.0), run("b", 1.2)]);
        assert_eq!(verdicts(&both).unwrap()["TC-C01"], Says::CannotTell);
        // Asks a second figure, which this run has not.
        assert!(!verdicts(&one).unwrap().contains_key("TC-C46"));
    }

    /// One half that differs refutes a claim, and one that agrees does not show it.
    #[test]
    fn a_run_with_one_of_two_figures_can_only_speak_against_an_agrees() {
        use Says::{Agrees, CannotTell, Differs};
        let said = |runs: &[&[Says]]| {
            // Asks two figures.
            let runs: Vec<Run> = runs.iter().map(|all| Run::from([("TC-C46", all.to_vec())])).collect();
            settled(runs.iter()).get("TC-C46").copied()
        };
        assert_eq!(said(&[&[Agrees, Agrees], &[Differs]]), Some(CannotTell));
        assert_eq!(said(&[&[Differs], &[Agrees, Agrees]]), Some(CannotTell), "in either order");
        assert_eq!(said(&[&[Agrees, Agrees], &[CannotTell]]), Some(Agrees));
        assert_eq!(said(&[&[Differs, Agrees], &[Agrees]]), Some(Differs));
        assert_eq!(said(&[&[Differs, Agrees], &[Differs]]), Some(Differs));
        assert_eq!(said(&[&[Differs], &[Differs]]), None, "no run has both");
    }

    #[test]
    fn what_cannot_be_read_is_named_in_one_line() {
        let whole = file(delta(2.0));
        for (text, says) in [
            (whole[..whole.len() / 2].to_owned(), "cut short"),
            (String::new(), "cut short"),
            (whole.replace("\"format\":1", "\"format\":7"), "of version 7, and this reads 1"),
            (whole.replace("\"format\"", "\"farmat\""), "has no `format`"),
            (whole.replace("\"commit\"", "\"comet\""), "commit"),
            (whole.replace("\"rounds\"", "\"bounds\""), "has no rounds"),
        ] {
            let error = Kept::read("results/p/r/delta.json", &text).unwrap_err();
            assert!(error.starts_with("results/p/r/delta.json: ") && error.contains(says), "{error}");
            assert!(!error.contains('\n') && error.ends_with("--results DIR`"), "{error}");
        }
    }

    #[test]
    fn bars_are_judged_anew() {
        let bar = |wanted: f64| json!({"name": "b", "wanted": wanted, "ratio": {"median": 2.0, "low": 1.9, "high": 2.1, "rounds": 9}, "verdict": "met"});
        let mut figure = delta(2.0);
        figure["bars"] = json!([bar(1.0), bar(3.0), {"name": "c", "wanted": 1.0, "ratio": null}]);
        let verdicts = |figure: &Value| {
            let bars = Kept::read("f.json", &file(figure.clone())).unwrap().bars("f.json");
            bars.map(|bars| bars.iter().map(|bar| bar.verdict.text()).collect::<Vec<_>>())
        };
        assert_eq!(verdicts(&figure).unwrap(), ["met", "missed", "not measured"]);
        figure["bars"] = json!([{"name": "c", "ratio": null}]);
        assert!(verdicts(&figure).unwrap_err().starts_with("f.json: a bar is not whole"));
    }

    /// A host without FUSE, or a result from before the side was there, says nothing of it; one
    /// that has it is judged.
    #[test]
    fn a_rule_that_is_optional_is_not_asked_of_a_result_without_its_side() {
        let figure = |more: &[(&str, f64)]| {
            let place = |series: &str, x: u64, value: f64| json!({"series": series, "x": x, "rounds": {"value": vec![value; 5]}});
            let mut all: Vec<Value> = ["native, asleep", "bare transport", "native", "node's front"]
                .iter()
                .flat_map(|way| {
                    ["p50 ns", "client's CPU ns"].map(|what| place(&format!("a read, {what}: {way}"), 8192, 1e4))
                })
                .collect();
            all.extend([2048, 8192].map(|x| place("a read, node's work over its time: native, asleep", x, 0.1)));
            all.extend(more.iter().map(|(series, value)| place(series, 8192, *value)));
            let text = file(json!({"figure": "clients", "measured": all}));
            Kept::read("f.json", &text).unwrap().judge("f.json").map(|all| all.iter().any(|one| one.claim == "VI-C24"))
        };
        let sides = [("a read, client's CPU ns: FUSE", 2e4), ("a read, client's CPU ns: wDSA", 3e4)];
        assert_eq!((figure(&[]), figure(&sides[..1]), figure(&sides)), (Ok(false), Ok(false), Ok(true)));
    }

    #[test]
    fn a_result_without_a_series_is_named_with_the_claim_that_asks() {
        let text = file(delta(2.0)).replace("scattered 128 B", "strewn 128 B");
        let kept = Kept::read("f.json", &text).unwrap();
        let error = kept.judge("f.json").unwrap_err();
        assert_eq!(
            error,
            "f.json: delta lacks the series `scattered 128 B, 15 clients` at 4, which TC-C01 asks for; measure it again"
        );
    }
}
