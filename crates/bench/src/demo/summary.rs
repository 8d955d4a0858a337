//! The three sentences, the four commands, and the bars.

use super::quiet::Quiet;
use crate::{
    measure::{Bar, Ratio, best_of},
    report::{Prices, Run},
};
use std::path::Path;

/// The bars that a demo can judge.
pub(super) fn bars(quiet: &Quiet, hot: &[Run]) -> Vec<Bar> {
    let mut bars = Vec::new();
    for workload in ["full", "range", "projection", "hot"] {
        let runs: Vec<&Run> = quiet.runs.iter().chain(hot).filter(|run| run.workload == workload).collect();
        let rounds = |mode: &str| runs.iter().find(|run| run.mode == mode).map(|run| run.by_round.clone());
        let over = |mode: &str, others: &[&str]| {
            let others: Vec<Vec<f64>> = others.iter().filter_map(|mode| rounds(mode)).collect();
            rounds(mode).and_then(|ours| best_of(&ours, &others)).map(|best| best.ratio)
        };
        bars.push(Bar::at_least(format!("auto over the best mode, {workload}"), 0.95, over("auto", &WAYS)));
        let in_place = match workload {
            "full" => Some(("the best other mode", 1.3, &WAYS[..3])),
            "projection" => Some(("the best other mode", 1.2, &WAYS[..3])),
            "hot" => Some(("delta", 1.2, &["delta"][..])),
            _ => None,
        };
        if let Some((of, wanted, others)) = in_place {
            let name = format!("in-place over {of}, {workload}");
            bars.push(Bar::at_least(name, wanted, over("in-place", others)));
        }
    }
    bars.push(Bar::at_least("server's time a row, full, gather over in-place", 4.0, server_saved(&quiet.runs)));
    bars.push(Bar::at_least("auto, clean pages, over the limit for copies", 0.8, quiet.of_limit));
    bars.push(Bar::at_least("in-place, full, over one process that reads the pages", 0.8, quiet.of_reading));
    for run in &quiet.baseline {
        let auto = quiet.runs.iter().find(|other| other.workload == run.workload && other.mode == "auto");
        let ratio = auto.and_then(|auto| Ratio::paired(&auto.by_round, &run.by_round));
        bars.push(Bar::at_least(format!("auto over write and read, {}", run.workload), 1.0, ratio));
    }
    bars
}

/// How many times as long the server works on a row of a full scan when it
/// gathers as when it lends.
fn server_saved(runs: &[Run]) -> Option<Ratio> {
    let rounds = |mode: &str| runs.iter().find(|run| run.workload == "full" && run.mode == mode);
    Ratio::paired(&rounds("gather")?.server_by_round, &rounds("in-place")?.server_by_round)
}

/// What `auto` chose, why, with both prices, and what it saved.
pub(super) fn sentences(runs: &[Run], baseline: &[Run], prices: &[Prices]) -> [String; 3] {
    let autos: Vec<&Run> = runs.iter().filter(|run| run.mode == "auto").collect();
    [chosen(&autos), why(&autos, prices), saved(runs, baseline)]
}

fn chosen(autos: &[&Run]) -> String {
    let choice = |run: &Run| {
        let pages = run.chosen.pages().max(1);
        let mut ways: Vec<_> = WAYS.into_iter().zip(run.chosen.parts()).filter(|(_, n)| *n > 0).collect();
        ways.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        let ways: Vec<_> = match ways[..] {
            [(way, _)] => vec![format!("every page as {way}")],
            _ => ways.iter().map(|(way, n)| format!("{:.0} % as {way}", *n as f64 / pages as f64 * 100.0)).collect(),
        };
        ways.join(" and ")
    };
    // Each choice once, with all the workloads that it was made for.
    let mut choices: Vec<(String, Vec<&str>)> = Vec::new();
    for run in autos {
        let choice = choice(run);
        match choices.iter_mut().find(|(other, _)| *other == choice) {
            Some((_, workloads)) => workloads.push(&run.workload),
            None => choices.push((choice, vec![&run.workload])),
        }
    }
    let choices: Vec<_> =
        choices.iter().map(|(choice, workloads)| format!("{choice} for {}", listed(workloads))).collect();
    format!("Left to choose, auto sent {}.", choices.join(", "))
}

/// `a`, `a and b`, `a, b and c`.
fn listed(names: &[&str]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => names.concat(),
    }
}

fn why(autos: &[&Run], prices: &[Prices]) -> String {
    let reason = |prices: &Prices| {
        let auto = autos.iter().find(|run| run.workload == prices.workload)?;
        let parts = auto.chosen.parts();
        let main = (0..4).max_by_key(|way| parts[*way])?;
        let other = (0..4).filter(|way| *way != main && prices.ns[*way].is_some());
        let next =
            other.min_by(|a, b| prices.ns[*a].unwrap_or(f64::MAX).total_cmp(&prices.ns[*b].unwrap_or(f64::MAX)))?;
        let (main_ns, next_ns) = (prices.ns[main]?, prices.ns[next]?);
        Some(format!(
            "{} {:.2} µs as {} and {:.2} µs as {}",
            prices.workload,
            main_ns / 1e3,
            WAYS[main],
            next_ns / 1e3,
            WAYS[next]
        ))
    };
    let reasons: Vec<_> = prices.iter().filter_map(reason).collect();
    if reasons.is_empty() {
        return "The planner left no prices.".to_owned();
    }
    format!("It did so because a page was priced, by costs of this device, at: {}.", reasons.join("; "))
}

fn saved(runs: &[Run], baseline: &[Run]) -> String {
    let find = |workload: &str, mode: &str| runs.iter().find(|run| run.workload == workload && run.mode == mode);
    let mut parts = Vec::new();
    for workload in ["full", "hot"] {
        if let (Some(auto), Some(copy)) = (find(workload, "auto"), find(workload, "copy")) {
            let percent = |ours: f64, theirs: f64| (1.0 - ours / theirs.max(f64::MIN_POSITIVE)) * 100.0;
            let time = percent(1.0 / auto.rows_per_s, 1.0 / copy.rows_per_s);
            let cpu = percent(auto.server_work_ns_per_row(), copy.server_work_ns_per_row());
            let less = |percent: f64| {
                if percent >= 0.0 { format!("{percent:.0} % less") } else { format!("{:.0} % more", -percent) }
            };
            parts.push(format!("{} time and {} server work for {workload}", less(time), less(cpu)));
        }
    }
    let socket = baseline.iter().find(|run| run.workload == "full");
    let times = find("full", "auto").zip(socket).map(|(auto, socket)| auto.rows_per_s / socket.rows_per_s.max(1.0));
    let times = times.map_or(String::new(), |times| format!(", {times:.1} × the rate of write and read"));
    format!("Against packing every page that took {}{times}.", parts.join(", and "))
}

/// How to do the same with a file of one's own, by the name under which
/// this program can be started.
pub(super) fn commands() -> [String; 4] {
    let program = program();
    [
        format!("{program} serve --listen shm:mine"),
        format!("{program} load shm:mine t FILE.parquet --key COLUMN"),
        format!("{program} scan shm:mine t --mode auto --json"),
        format!("{program} scan shm:mine t --columns A,B --out part.csv"),
    ]
}

/// Relative to the working directory where it lies below that; its bare name where the
/// search path leads to it.
fn program() -> String {
    let Ok(path) = std::env::current_exe() else { return NAME.to_owned() };
    let below = std::env::current_dir().ok().and_then(|here| path.strip_prefix(here).ok().map(Path::to_path_buf));
    let on_path =
        std::env::var_os("PATH").is_some_and(|list| std::env::split_paths(&list).any(|dir| dir.join(NAME) == path));
    match (on_path, below) {
        (true, _) => NAME.to_owned(),
        (false, Some(relative)) => relative.display().to_string(),
        (false, None) => path.display().to_string(),
    }
}

const NAME: &str = "overside";
const WAYS: [&str; 4] = ["copy", "gather", "delta", "in-place"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Chosen, Sample};

    fn run(workload: &str, mode: &str, wall_ns: u64, server_cpu_ns: u64, chosen: Chosen) -> Run {
        let sample = Sample { scans: 1, rows: 1000, bytes: 1000, wall_ns, server_cpu_ns, chosen, ..Sample::default() };
        Run::of(workload, mode, 0, &[sample; 4])
    }

    #[test]
    fn the_sentences_say_what_was_measured() {
        let none = Chosen::default();
        let runs = [
            run("full", "copy", 2000, 1000, none),
            run("full", "auto", 1000, 100, Chosen { delta: 10, ..none }),
            run("hot", "copy", 2000, 1000, none),
            run("hot", "auto", 2500, 1200, Chosen { copy: 3, delta: 1, ..none }),
        ];
        let prices = [Prices { workload: "full".into(), ns: [Some(4200.0), Some(2900.0), Some(2000.0), None] }];
        let baseline = [run("full", "socket", 10_000, 1, none)];
        let [chosen, why, saved] = sentences(&runs, &baseline, &prices);
        assert_eq!(
            chosen,
            "Left to choose, auto sent every page as delta for full, 75 % as copy and 25 % as delta for hot."
        );
        assert!(why.ends_with("full 2.00 µs as delta and 2.90 µs as gather."), "{why}");
        assert_eq!(
            saved,
            "Against packing every page that took 50 % less time and 90 % less server work for full, and 25 % more time \
             and 20 % more server work for hot, 10.0 × the rate of write and read."
        );
    }

    #[test]
    fn a_choice_is_said_once() {
        let runs =
            ["full", "range", "hot"].map(|name| run(name, "auto", 1, 1, Chosen { gather: 7, ..Chosen::default() }));
        let [chosen, ..] = sentences(&runs, &[], &[]);
        assert_eq!(chosen, "Left to choose, auto sent every page as gather for full, range and hot.");
    }

    #[test]
    fn every_bar_is_judged() {
        let modes = ["copy", "gather", "delta", "in-place", "auto"];
        let runs = |workload: &str| modes.map(|mode| run(workload, mode, 1000, 10, Chosen::default())).to_vec();
        let quiet = Quiet {
            runs: ["full", "range", "projection"].iter().flat_map(|workload| runs(workload)).collect(),
            baseline: vec![run("full", "socket", 4000, 10, Chosen::default())],
            of_limit: Ratio::of(&[0.9, 0.9]),
            of_reading: Ratio::of(&[0.7, 0.7]),
            ..Quiet::default()
        };
        let bars = bars(&quiet, &runs("hot"));
        assert_eq!(bars.len(), 11);
        // What is as fast as the others does not reach the bars of reading in place.
        let met = |bar: &crate::measure::Bar| bar.verdict == crate::measure::Verdict::Met;
        assert!(bars.iter().all(|bar| met(bar) != bar.name.contains("in-place")), "{bars:?}");
        assert!((bars[10].ratio.unwrap().median - 4.0).abs() < 1e-9);
    }

    #[test]
    fn the_server_that_gathers_is_held_against_the_one_that_lends() {
        let none = Chosen::default();
        let ran = |gather, lent| {
            let full = [run("full", "gather", 1, gather, none), run("full", "in-place", 1, lent, none)];
            [&full[..], &[run("range", "gather", 1, 1, none), run("range", "in-place", 1, 1000, none)]].concat()
        };
        assert!((server_saved(&ran(900, 200)).unwrap().median - 4.5).abs() < 1e-9);
        assert!(server_saved(&ran(900, 200)[2..]).is_none());
    }

    #[test]
    fn the_commands_are_the_four_of_the_contract() {
        let commands = commands();
        for (command, verb) in commands.iter().zip([" serve ", " load ", " scan ", " scan "]) {
            assert!(command.contains(verb), "{command}");
        }
    }
}
