//! `cargo xtask instructions`: what the hot paths cost, counted under callgrind.
//!
//! Time on a shared machine says little about a change; the number of instructions says the same on
//! every run. Each scenario of [`SCENARIOS`] is an example that does its work inside of one
//! function, and only that function is counted. The recorded counts lie in
//! `xtask/instructions.txt`; a scenario that needs more than they allow fails, and so does one that
//! needs so much less that the record no longer guards anything. `--record` writes what was
//! counted.
//!
//! Stamps are for logs, and a tree without them must not pay: its scenarios are counted against a
//! build that has no stamps at all.
//!
//! Callgrind knows neither AVX-512 nor `pidfd_open`: kernels are counted on their AVX2 path, and a
//! connection there is not told of its peer's process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

struct Scenario {
    name: &'static str,
    example: &'static str,
    arguments: &'static [&'static str],
    /// Part of the mangled name of the function that is counted.
    counted: &'static str,
}

const fn tree(name: &'static str, arguments: &'static [&'static str]) -> Scenario {
    let counted = "17tree_instructions8measured17h";
    Scenario { name, example: TREE, arguments, counted }
}

const fn table(name: &'static str, counted: &'static str, arguments: &'static [&'static str]) -> Scenario {
    Scenario { name, example: "formats", arguments, counted }
}

const fn deciding(name: &'static str, counted: &'static str, arguments: &'static [&'static str]) -> Scenario {
    Scenario { name, example: "deciding", arguments, counted }
}

const SCENARIOS: [Scenario; 17] = [
    tree("tree-get", &["get"]),
    tree("tree-insert", &["insert"]),
    tree("tree-upsert", &["upsert"]),
    tree("tree-range", &["range"]),
    tree("tree-scan", &["scan"]),
    table("row-views", "7formats5Bench5views17h", &["row views, gathered", "1", "64"]),
    table("parse-message", "7formats5Bench5parse17h", &["parsing one message", "1", "64"]),
    table("pack-rows", "7formats5Bench4pack17h", &["packing whole rows", "1", "64"]),
    table("answer-heads", "7formats5Bench5heads17h", &["heads of gather", "1", "64"]),
    table("arrow-batches", "7formats5Bench7batches17h", &["Arrow batches", "1", "64"]),
    deciding("plan", "8deciding5fresh17h", &["fresh"]),
    deciding("plan-known", "8deciding9looked_up17h", &["known"]),
    deciding("plan-together", "8deciding8together17h", &["together"]),
    Scenario { name: "scan-served", example: "serving", arguments: &["20"], counted: "7serving6served17h" },
    Scenario { name: "pack-together", example: "pack", arguments: &["count"], counted: "4pack8together17h" },
    Scenario {
        name: "round-trips",
        example: "round_trip",
        arguments: &["64", "20000"],
        counted: "10round_trip8measured17h",
    },
    Scenario {
        name: "cached-read",
        example: "cached_read",
        arguments: &["1000"],
        counted: "11cached_read8measured17h",
    },
];

/// What is built for them.
const EXAMPLES: [&str; 7] = [TREE, "formats", "serving", "deciding", "pack", "round_trip", "cached_read"];

/// Counts every scenario and compares with the record, or writes the record.
pub fn run(root: &Path, record: bool) -> Result<()> {
    let path = root.join("xtask/instructions.txt");
    let recorded = if record { BTreeMap::new() } else { parse(&std::fs::read_to_string(&path)?)? };
    build(root)?;
    let mut counted = Vec::new();
    for scenario in &SCENARIOS {
        let count = count(root, scenario.example, scenario).with_context(|| format!("counting {}", scenario.name))?;
        counted.push((scenario.name, count));
        if record {
            println!("{:16} {count:>12}", scenario.name);
        }
    }
    if record {
        return Ok(std::fs::write(path, render(&counted))?);
    }
    let mut verdicts: Vec<(String, bool)> =
        counted.iter().map(|(name, count)| judge(name, *count, &recorded)).collect();
    for (scenario, (name, stamped)) in SCENARIOS.iter().zip(&counted).filter(|(s, _)| s.example == TREE) {
        let without = count(root, UNSTAMPED, scenario).with_context(|| format!("counting {name} without stamps"))?;
        verdicts.push(judge_stamps(name, *stamped, without));
    }
    verdicts.iter().for_each(|(line, _)| println!("{line}"));
    let broken = verdicts.iter().filter(|(_, kept)| !kept).count();
    if broken > 0 {
        bail!("{broken} instruction counts left their record; if that is meant: cargo xtask instructions --record");
    }
    Ok(())
}

fn build(root: &Path) -> Result<()> {
    // The usual one takes its place afterwards.
    build_examples(root, &[TREE], &["--features", "overside-bwtree/unstamped"])?;
    let built = examples(root);
    std::fs::copy(built.join(TREE), built.join(UNSTAMPED)).context("keeping the build without stamps")?;
    build_examples(root, &EXAMPLES, &[])
}

/// No package is named: each alone has dependencies with other features, and all that stands on
/// them would be built again.
fn build_examples(root: &Path, examples: &[&str], more: &[&str]) -> Result<()> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--release", "--quiet"]).args(more).current_dir(root);
    examples.iter().for_each(|example| _ = cargo.args(["--example", example]));
    if !cargo.status()?.success() {
        bail!("the examples {} do not build", examples.join(", "));
    }
    Ok(())
}

fn examples(root: &Path) -> PathBuf {
    crate::target(root).join("release/examples")
}

/// The instructions of a scenario in a program.
fn count(root: &Path, program: &str, scenario: &Scenario) -> Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--demangle=no", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect=*{}*", scenario.counted))
        .arg(examples(root).join(program))
        .args(scenario.arguments)
        .output()
        .context("cannot start valgrind: apt-get install valgrind")?;
    let report = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{} ended with {}:\n{report}", scenario.example, output.status);
    }
    collected(&report).filter(|&count| count > 0).with_context(|| format!("nothing was counted:\n{report}"))
}

/// The number behind `Collected :`.
fn collected(report: &str) -> Option<u64> {
    let line = report.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

fn parse(text: &str) -> Result<BTreeMap<String, u64>> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|line| {
            let (name, count) = line.split_once(' ').with_context(|| format!("not `name count`: {line}"))?;
            Ok((name.to_owned(), count.trim().parse().with_context(|| format!("not a number: {line}"))?))
        })
        .collect()
}

fn render(counted: &[(&str, u64)]) -> String {
    let mut out = String::from("# Instructions of each scenario; written by `cargo xtask instructions --record`.\n");
    counted.iter().for_each(|(name, count)| out.push_str(&format!("{name} {count}\n")));
    out
}

/// A line for people, and whether the count keeps to its record.
fn judge(name: &str, count: u64, recorded: &BTreeMap<String, u64>) -> (String, bool) {
    let Some(&record) = recorded.get(name) else {
        return (format!("{name:16} {count:>12}  has no record"), false);
    };
    let ratio = count as f64 / record as f64;
    let (verdict, kept) = match ratio {
        r if r > MORE_MAX => ("MORE than recorded", false),
        r if r < LESS_MAX => ("so much less that the record guards nothing", false),
        _ => ("ok", true),
    };
    (format!("{name:16} {count:>12}  {ratio:.3} x the record  {verdict}"), kept)
}

/// A line for people, and whether a tree without stamps pays no more for them than it may.
fn judge_stamps(name: &str, count: u64, without: u64) -> (String, bool) {
    let ratio = count as f64 / without.max(1) as f64;
    let kept = ratio <= STAMPS_MAX;
    let verdict = if kept { "ok" } else { "MORE than unused stamps may cost" };
    (format!("{name:16} {count:>12}  {ratio:.3} x a build without stamps  {verdict}"), kept)
}

const TREE: &str = "tree_instructions";
/// A feature, and the program built with it.
const UNSTAMPED: &str = "unstamped";
/// What stamps may cost a tree that has none.
const STAMPS_MAX: f64 = 1.01;
/// Compilers differ by a few in a hundred.
const MORE_MAX: f64 = 1.08;
const LESS_MAX: f64 = 0.80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_found_in_the_report() {
        let report = "==1== Events    : Ir\n==1== Collected : 22318443\n==1== \n";
        assert_eq!(collected(report), Some(22_318_443));
        assert_eq!(collected("valgrind: no such file"), None);
    }

    #[test]
    fn more_much_less_and_unrecorded_fail() {
        let record = parse(&render(&[("a", 1000)])).unwrap();
        assert!(judge("a", 1000, &record).1);
        assert!(judge("a", 1079, &record).1);
        assert!(!judge("a", 1081, &record).1);
        assert!(!judge("a", 799, &record).1);
        assert!(!judge("b", 1000, &record).1);
        assert!(parse("a b").is_err());
    }

    #[test]
    fn stamps_that_nobody_uses_may_cost_one_in_a_hundred() {
        assert!(judge_stamps("a", 1010, 1000).1 && judge_stamps("a", 900, 1000).1);
        assert!(!judge_stamps("a", 1011, 1000).1);
    }
}
