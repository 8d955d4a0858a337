//! `cargo xtask sim`: the systems' simulations, over many seeds.
//!
//! A simulation is a test target called `sim` with a test `asked`, which runs the seeds of the variable
//! `OVERSIDE_SIM_SEEDS` and prints a line for each, and behind it how often each kind of thing happened in
//! that world. What happens in none of many worlds is not tested by them, and fails the run. A killed process of
//! a simulated world leaves its threads behind, so each process of ours runs a few seeds and ends.
//!
//! `--mutants` builds with `--cfg mutants`. Then `mutant("name")` in shipped code plants a fault, when the
//! environment asks for its name, and some seed must find each. A fault in a package that no simulation runs must be
//! found by the tests beside its code.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::syntax;
use crate::tree::Tree;

pub const HELP: &str =
    "usage: cargo xtask sim [--seeds N | --seed S [--events FILE]] [--history FILE] [--from S] [--mutants]
Runs the simulations with N seeds (300; with --mutants at most 1,000) from S (0) on, or with one seed. Behind
each simulation it says how often what happened; with 300 seeds or more, what never happened fails the run.
--mutants plants each fault of the shipped code in turn, and fails when no seed finds it.
--events writes every step of the threads of one seed, to FILE.PACKAGE for each simulation.
--history writes what clients asked and heard, to FILE.PACKAGE for one seed, and to FILE.PACKAGE.SEED for each
of several. It is a line of JSON for each operation:
  process   who asked
  kind      insert, upsert, upsert-among (one row of several), update, delete, read (by a get or a scan), create,
            drop, describe; checkpoint; end, for the end of a server
  key       TABLE/KEY for a row, by the table's number; `table NAME` for a table's name; `index
            TABLE/COLUMN` for an index; null for the server
  value     what a put wrote
  invoked   when it was asked; moments count what clients did
  returned  when the answer came; null while it is pending: it happened, or did not
  until     when a pending one can have happened at the latest: its server's end; null if that did not end
  result    done: whether it took effect or found something; read: the value. Of an end, what the server left:
            all, acknowledged (not what was only shown), prefix (of the log) or checkpoint (the last complete one)";

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    seeds: Range<u64>,
    /// Files to be written: the variable that asks for each, and its name.
    files: Vec<(&'static str, String)>,
    mutants: bool,
}

impl Asked {
    /// None when the arguments mean nothing.
    pub fn parse(arguments: &[&str]) -> Option<Self> {
        let (mut count, mut from, mut seed, mut files, mut mutants) = (None, 0, None, Vec::new(), false);
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match *argument {
                "--seeds" => count = Some(arguments.next()?.parse::<u64>().ok()?),
                "--from" => from = arguments.next()?.parse::<u64>().ok()?,
                "--seed" => seed = Some(arguments.next()?.parse::<u64>().ok()?),
                "--history" => files.push((HISTORY, (*arguments.next()?).to_owned())),
                "--events" => files.push((EVENTS, (*arguments.next()?).to_owned())),
                "--mutants" => mutants = true,
                _ => return None,
            }
        }
        let seeds = match (seed, count) {
            (Some(seed), None) => seed..seed.checked_add(1)?,
            (None, count) => from..from.checked_add(count.unwrap_or(if mutants { 1000 } else { 300 }))?,
            _ => return None,
        };
        let events = files.iter().any(|(name, _)| *name == EVENTS);
        (!events || seed.is_some()).then_some(Self { seeds, files, mutants })
    }
}

/// A system's simulation.
#[derive(Clone, Debug)]
struct Suite {
    package: String,
    program: PathBuf,
}

/// A seed's line.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    Held { seed: u64, trace: String, did: Vec<(String, u64)> },
    Failed { seed: u64, why: String },
}

/// Runs what was asked for; fails when a seed fails, or a mutant is not found.
pub fn run(root: &Path, asked: &Asked) -> Result<()> {
    let suites = build(root, asked.mutants)?;
    if asked.mutants {
        return find_mutants(root, &suites, asked.seeds.clone());
    }
    let (mut failed, mut lacking) = (0, Vec::new());
    for suite in &suites {
        let begun = Instant::now();
        let several = asked.seeds.end - asked.seeds.start > 1;
        let of_seed = if several { ".{seed}" } else { "" };
        let own = |file: &str| root.join(format!("{file}.{}{of_seed}", suite.package)).display().to_string();
        let environment = asked.files.iter().map(|(name, file)| (*name, own(file)));
        let lines = over(suite, asked.seeds.clone(), &environment.collect::<Vec<_>>(), false)?;
        let hash = lines.iter().fold(0u64, |hash, line| match line {
            Line::Held { trace, .. } => hash.rotate_left(7) ^ u64::from_str_radix(trace, 16).unwrap_or(0),
            Line::Failed { .. } => hash.rotate_left(7),
        });
        for line in &lines {
            if let Line::Failed { seed, why } = line {
                failed += 1;
                println!("FAILED: {} with seed {seed}: {why}\n  again: cargo xtask sim --seed {seed}", suite.package);
            }
        }
        let took = begun.elapsed().as_secs_f64();
        println!("sim {}: {} seeds in {took:.1} s, trace {hash:016x}", suite.package, lines.len());
        let (told, never) = coverage(&lines);
        println!("sim {} did {told}", suite.package);
        if lines.len() as u64 >= SEEDS_FOR_ALL && !never.is_empty() {
            println!("NEVER: {} did in no world: {}", suite.package, never.join(", "));
            lacking.push(suite.package.clone());
        }
    }
    if failed > 0 {
        bail!("{failed} seeds failed");
    }
    if !lacking.is_empty() {
        bail!("what the worlds of {} are there for does not happen in them", lacking.join(", "));
    }
    Ok(())
}

/// How often each kind of thing happened, and in how many worlds; and what happened in none.
fn coverage(lines: &[Line]) -> (String, Vec<String>) {
    let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for line in lines {
        let Line::Held { did, .. } = line else { continue };
        for (kind, count) in did {
            let (sum, worlds) = sums.entry(kind).or_default();
            (*sum, *worlds) = (*sum + count, *worlds + u64::from(*count > 0));
        }
    }
    let told = sums.iter().map(|(kind, (sum, worlds))| format!("{kind} {sum} in {worlds}"));
    let never = sums.iter().filter(|(_, (sum, _))| *sum == 0).map(|(kind, _)| (*kind).to_owned());
    (told.collect::<Vec<_>>().join("; "), never.collect())
}

/// Every fault that is planted in shipped code is found by a seed.
fn find_mutants(root: &Path, suites: &[Suite], seeds: Range<u64>) -> Result<()> {
    let tree = Tree::load(root)?;
    let names = planted(&tree);
    if names.is_empty() {
        bail!("no fault is planted: shipped code says `mutant(\"name\")` nowhere");
    }
    let mut missed = Vec::new();
    for (name, package) in names {
        let begun = Instant::now();
        let mut found = None;
        // No world has what no simulation runs: there the tests of the code itself must find it.
        let simulated = suites.iter().any(|suite| reaches(&tree, &suite.package, &package));
        if !simulated && fails_its_own_tests(root, &package, &name)? {
            println!("mutant {name}: found by the tests of {package}");
            continue;
        }
        for suite in suites.iter().filter(|_| simulated) {
            let environment = [("OVERSIDE_MUTANT", name.clone())];
            let lines = over(suite, seeds.clone(), &environment, true)?;
            found = lines.into_iter().find_map(|line| match line {
                Line::Failed { seed, why } => Some((suite.package.clone(), seed, why)),
                Line::Held { .. } => None,
            });
            if let Some((_, seed, _)) = &found {
                let alone = batch_of(suite, *seed..seed + 1, &[])?;
                if let Some(Line::Failed { why, .. }) = alone.first() {
                    bail!("seed {seed} of {} fails without any fault: {why}", suite.package);
                }
                break;
            }
        }
        let took = begun.elapsed().as_secs_f64();
        match found {
            Some((package, seed, why)) => {
                let why = why.lines().next().unwrap_or_default();
                println!("mutant {name}: found by {package} with seed {seed} ({took:.1} s): {why:.160}");
            }
            None => {
                println!("mutant {name}: NOT FOUND within {} seeds ({took:.1} s)", seeds.end - seeds.start);
                missed.push(name);
            }
        }
    }
    if !missed.is_empty() {
        bail!("no seed finds: {}", missed.join(", "));
    }
    Ok(())
}

/// Whether a package is, or stands on, another one.
fn reaches(tree: &Tree, from: &str, to: &str) -> bool {
    let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(name) = left.pop() {
        if name == to {
            return true;
        }
        let package = tree.packages.iter().find(|package| package.name == name);
        let edges = package.iter().flat_map(|package| &package.edges);
        left.extend(edges.map(|edge| edge.to.as_str()).filter(|to| seen.insert(*to)));
    }
    false
}

/// Whether the tests beside a package's code fail with this fault, and hold without it.
fn fails_its_own_tests(root: &Path, package: &str, name: &str) -> Result<bool> {
    let tests = || {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["test", "--quiet", "--package", package, "--lib"]).current_dir(root);
        cargo.env("RUSTFLAGS", "--cfg mutants").env("CARGO_TARGET_DIR", crate::target(root).join("mutants"));
        cargo
    };
    let sound = tests().output().context("cannot start cargo")?;
    if !sound.status.success() {
        bail!("the tests of {package} fail without any fault: {}", String::from_utf8_lossy(&sound.stderr));
    }
    let planted = tests().env("OVERSIDE_MUTANT", name).output().context("cannot start cargo")?;
    Ok(!planted.status.success())
}

/// The names of the faults in shipped code, and the packages that have them.
fn planted(tree: &Tree) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for source in &tree.sources {
        for at in syntax::words(&source.code, "mutant") {
            let shipped = source.path.contains("/src/") && source.is_shipped(source.line_of(at));
            let name = source.text[at..].strip_prefix("mutant(\"").and_then(|rest| rest.split('"').next());
            let package = tree.package_of(&source.path).map_or_else(String::new, |package| package.name.clone());
            names.extend(name.filter(|_| shipped).map(|name| (name.to_owned(), package)));
        }
    }
    names
}

/// Compiles every package's test target `sim`.
fn build(root: &Path, mutants: bool) -> Result<Vec<Suite>> {
    let mut packages = Vec::new();
    for package in Tree::load(root)?.packages {
        if package.targets.iter().any(|target| ROOTS.iter().any(|root| target.root.ends_with(root))) {
            packages.push(package.name);
        }
    }
    let mut suites = Vec::new();
    for package in packages {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["test", "--quiet", "--no-run", "--message-format=json", "--package", &package, "--test", "sim"]);
        if mutants {
            // Beside the usual build, which stays as it is.
            cargo.env("RUSTFLAGS", "--cfg mutants").env("CARGO_TARGET_DIR", crate::target(root).join("mutants"));
        }
        let built = cargo.current_dir(root).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
        if !built.status.success() {
            bail!("the simulation of {package} does not compile");
        }
        let program = String::from_utf8_lossy(&built.stdout).lines().rev().find_map(|line| {
            let message: serde_json::Value = serde_json::from_str(line).ok()?;
            let of_test = message["target"]["name"] == "sim";
            message["executable"].as_str().filter(|_| of_test).map(PathBuf::from)
        });
        let program = program.with_context(|| format!("cargo names no program for the simulation of {package}"))?;
        suites.push(Suite { package, program });
    }
    Ok(suites)
}

/// Runs seeds, some in each process, as many processes as there are processors; until one fails, where
/// that is enough.
fn over(suite: &Suite, seeds: Range<u64>, environment: &[(&str, String)], until_failed: bool) -> Result<Vec<Line>> {
    let batches: Vec<Range<u64>> = (seeds.start..seeds.end)
        .step_by(SEEDS_AT_ONCE as usize)
        .map(|from| from..(from + SEEDS_AT_ONCE).min(seeds.end))
        .collect();
    let (next, stop, lines) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(Vec::new()));
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
        let work = || {
            while !stop.load(Ordering::Relaxed) {
                let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                let told = batch_of(suite, batch.clone(), environment)?;
                let failed = told.iter().any(|line| matches!(line, Line::Failed { .. }));
                stop.fetch_or(until_failed && failed, Ordering::Relaxed);
                lines.lock().unwrap_or_else(|e| e.into_inner()).extend(told);
            }
            Ok(())
        };
        let threads: Vec<_> = (0..processors.min(batches.len())).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    });
    outcomes.into_iter().collect::<Result<()>>()?;
    let mut lines = lines.into_inner().unwrap_or_else(|e| e.into_inner());
    lines.sort_by_key(Line::seed);
    Ok(lines)
}

/// Runs a few seeds in a process of their own.
fn batch_of(suite: &Suite, seeds: Range<u64>, environment: &[(&str, String)]) -> Result<Vec<Line>> {
    let mut program = Command::new(&suite.program);
    program.args(["--exact", "asked", "--ignored", "--nocapture"]).env("RUST_BACKTRACE", "0");
    program.env("OVERSIDE_SIM_SEEDS", format!("{}..{}", seeds.start, seeds.end));
    program.envs(environment.iter().map(|(name, value)| (name, value)));
    let ended = program.output().with_context(|| format!("cannot start {}", suite.program.display()))?;
    let mut lines = parse(&String::from_utf8_lossy(&ended.stdout));
    let missing = seeds.start + lines.len() as u64;
    // With a planted fault the first seed that fails is the last that is run.
    if missing < seeds.end && !lines.iter().any(|line| matches!(line, Line::Failed { .. })) {
        let mut why = format!("the process ended with {}", ended.status);
        let said = String::from_utf8_lossy(&ended.stderr);
        said.lines().rev().take(8).for_each(|line| {
            let _ = write!(why, "\n    {line}");
        });
        lines.push(Line::Failed { seed: missing, why });
    }
    Ok(lines)
}

/// The lines of seeds; what is indented belongs to the line before.
fn parse(said: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for text in said.lines() {
        if let (Some(Line::Failed { why, .. }), true) = (lines.last_mut(), text.starts_with("    ")) {
            let _ = write!(why, "\n{text}");
        }
        if let (Some(Line::Held { did, .. }), Some(counts)) = (lines.last_mut(), text.strip_prefix("  did ")) {
            let count = |count: &str| count.split_once('=').and_then(|(kind, n)| Some((kind.into(), n.parse().ok()?)));
            did.extend(counts.split('|').filter_map(count));
        }
        let Some((seed, rest)) = text.strip_prefix("seed ").and_then(|rest| rest.split_once(' ')) else { continue };
        let Ok(seed) = seed.parse() else { continue };
        if let Some(trace) = rest.strip_prefix("trace ") {
            lines.push(Line::Held { seed, trace: trace.trim().to_owned(), did: Vec::new() });
        } else if let Some(why) = rest.strip_prefix("FAILS: ") {
            lines.push(Line::Failed { seed, why: why.to_owned() });
        }
    }
    lines
}

impl Line {
    fn seed(&self) -> u64 {
        match self {
            Line::Held { seed, .. } | Line::Failed { seed, .. } => *seed,
        }
    }
}

/// The root of a package's simulation.
const ROOTS: [&str; 2] = ["/tests/sim/main.rs", "/tests/sim.rs"];
/// The variables that ask a simulation for files.
const HISTORY: &str = "OVERSIDE_SIM_HISTORY";
const EVENTS: &str = "OVERSIDE_SIM_EVENTS";
/// So many worlds see all that there is.
const SEEDS_FOR_ALL: u64 = 300;
/// Seeds that one process runs: what killed processes of their worlds leave behind goes with it.
const SEEDS_AT_ONCE: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::planted as planted_tree;

    #[test]
    fn arguments_mean_seeds() {
        let seeds = |arguments: &[&str]| Asked::parse(arguments).map(|asked| asked.seeds);
        assert_eq!(seeds(&[]), Some(0..300));
        assert_eq!(seeds(&["--seeds", "20", "--from", "7"]), Some(7..27));
        assert_eq!(seeds(&["--seed", "5", "--history", "h"]), Some(5..6));
        assert_eq!(seeds(&["--mutants"]), Some(0..1000));
        assert_eq!(seeds(&["--seed", "5", "--seeds", "3"]), None);
        assert_eq!(seeds(&["--history", "h"]), Some(0..300));
        assert_eq!(seeds(&["--events", "e"]), None);
        assert_eq!(seeds(&["7"]), None);
    }

    #[test]
    fn lines_are_told_from_what_a_test_says() {
        let said = "\nrunning 1 test\nseed 3 trace 00ff\n  did kill=2|scan: copy=0\nseed 4 FAILS: no order\n    1 to 2\n    3\ntest asked ... ok\n";
        let did = vec![("kill".to_owned(), 2), ("scan: copy".to_owned(), 0)];
        let held = Line::Held { seed: 3, trace: "00ff".into(), did };
        let failed = Line::Failed { seed: 4, why: "no order\n    1 to 2\n    3".into() };
        let lines = parse(said);
        assert_eq!(lines, [held, failed]);
        assert_eq!(coverage(&lines), ("kill 2 in 1; scan: copy 0 in 0".to_owned(), vec!["scan: copy".to_owned()]));
    }

    #[test]
    fn faults_are_those_of_shipped_code() {
        let shipped = "fn a() { if mutant(\"floor-ignored\") { b(); } }\n// mutant(\"comment\")\n\
                       #[cfg(test)]\nmod tests { fn t() { mutant(\"tested\"); } }\n";
        let tree = planted_tree::tree(&[("crates/log/src/log.rs", shipped), ("crates/log/tests/sim.rs", shipped)]);
        assert_eq!(planted(&tree).into_keys().collect::<Vec<_>>(), ["floor-ignored"]);
    }
}
