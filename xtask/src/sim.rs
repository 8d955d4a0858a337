//! `cargo xtask sim`: the systems' simulations, over many seeds.
//!
//! A simulation is a test target called `sim` with a test `asked`. It runs the seeds of the
//! variable `OVERSIDE_SIM_SEEDS` and prints a line for each, and behind it how often each kind of
//! thing happened in that world. What happens in none of many worlds is not tested by them, and
//! fails the run. A killed process of a simulated world leaves its threads behind, so each process
//! of ours runs a few seeds and ends.
//!
//! `--mutants` plants faults in shipped code: see `mutants`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::mutants;
use crate::tree::Tree;

pub const HELP: &str = "usage: cargo xtask sim [--seeds N | --seed S [--events FILE]] [--history FILE] [--from S]
                       [--mutants | --mutant NAME]
Runs the simulations with N seeds (300; with --mutants at most 1,000) from S (0) on, or with one seed. Behind
each simulation it says how often what happened; with 300 seeds or more, what never happened fails the run.
--mutants plants each fault of the shipped code in turn, and fails when none finds it: a test whose comment
names it (`Faults: NAME`), under shuttle if it is for that, or else a seed. --mutant plants one of them.
--events writes every step of the threads of one seed, to FILE.PACKAGE for each simulation.
--history writes what clients asked and heard, to FILE.PACKAGE for one seed, and to FILE.PACKAGE.SEED for each
of several. It is a line of JSON for each operation:
  process   who asked
  kind      insert, upsert, upsert-among (one row of several), update, delete, read (by a get or a scan), create,
            drop, describe; `read, if still` (by a scan of an index whose rows move: it may miss one);
            checkpoint; end, for the end of a server
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
pub struct SimOptions {
    pub seeds: Range<u64>,
    /// Files to be written: the variable that asks for each, and its name.
    files: Vec<(&'static str, String)>,
    mutants: bool,
    /// The one fault that is planted.
    pub mutant: Option<String>,
}

impl SimOptions {
    /// None when the arguments mean nothing.
    pub fn parse(arguments: &[&str]) -> Option<Self> {
        let (mut count, mut from, mut seed, mut files) = (None, 0, None, Vec::new());
        let (mut mutants, mut mutant) = (false, None);
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match *argument {
                "--seeds" => count = Some(arguments.next()?.parse::<u64>().ok()?),
                "--from" => from = arguments.next()?.parse::<u64>().ok()?,
                "--seed" => seed = Some(arguments.next()?.parse::<u64>().ok()?),
                "--history" => files.push((HISTORY, (*arguments.next()?).to_owned())),
                "--events" => files.push((EVENTS, (*arguments.next()?).to_owned())),
                "--mutants" => mutants = true,
                "--mutant" => (mutants, mutant) = (true, Some((*arguments.next()?).to_owned())),
                _ => return None,
            }
        }
        let seeds = match (seed, count) {
            (Some(seed), None) => seed..seed.checked_add(1)?,
            (None, count) => from..from.checked_add(count.unwrap_or(if mutants { 1000 } else { 300 }))?,
            _ => return None,
        };
        let events = files.iter().any(|(name, _)| *name == EVENTS);
        (!events || seed.is_some()).then_some(Self { seeds, files, mutants, mutant })
    }
}

/// A system's simulation.
#[derive(Clone, Debug)]
pub struct Suite {
    pub package: String,
    program: PathBuf,
}

/// A seed's line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    Held { seed: u64, trace: String, did: Vec<(String, u64)> },
    Failed { seed: u64, why: String },
}

/// Runs what was asked for; fails when a seed fails, or a mutant is not found.
pub fn run(root: &Path, options: &SimOptions) -> Result<()> {
    if options.mutants {
        return mutants::find(root, options);
    }
    let suites = build(root, false)?;
    let (mut failed, mut lacking) = (0, Vec::new());
    for suite in &suites {
        let begun = Instant::now();
        let several = options.seeds.end - options.seeds.start > 1;
        let of_seed = if several { ".{seed}" } else { "" };
        let own = |file: &str| root.join(format!("{file}.{}{of_seed}", suite.package)).display().to_string();
        let environment = options.files.iter().map(|(name, file)| (*name, own(file)));
        let lines = over(suite, options.seeds.clone(), &environment.collect::<Vec<_>>(), false)?;
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

/// Compiles every package's test target `sim`.
pub fn build(root: &Path, mutants: bool) -> Result<Vec<Suite>> {
    let mut packages = Vec::new();
    for package in Tree::load(root)?.packages {
        if package.targets.iter().any(|target| ROOTS.iter().any(|root| target.root.ends_with(root))) {
            packages.push(package.name);
        }
    }
    let mut suites = Vec::new();
    for package in packages {
        let mut cargo = if mutants { cargo_test(root, &package) } else { cargo_tests(root) };
        cargo.args(["--test", "sim"]);
        if mutants {
            with_mutants(root, &mut cargo);
        }
        let program = built(&mut cargo, &package)?;
        let program = program.with_context(|| format!("cargo names no program for the simulation of {package}"))?;
        suites.push(Suite { package, program });
    }
    Ok(suites)
}

/// What compiles tests of a package and runs none.
pub fn cargo_test(root: &Path, package: &str) -> Command {
    let mut cargo = compiles_tests(root);
    cargo.args(["--package", package]);
    cargo
}

/// What compiles tests of all packages: whoever ran the tests has built them already.
fn cargo_tests(root: &Path) -> Command {
    let mut cargo = compiles_tests(root);
    cargo.args(crate::TESTED);
    cargo
}

fn compiles_tests(root: &Path) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--quiet", "--no-run", "--message-format=json"]).current_dir(root);
    cargo
}

/// Plants the faults, beside the usual build, which stays as it is. Nobody looks for a line in this
/// one.
pub fn with_mutants(root: &Path, cargo: &mut Command) {
    cargo.env("RUSTFLAGS", "--cfg mutants").env("CARGO_TARGET_DIR", crate::target(root).join("mutants"));
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
}

/// The program of a package that such a command makes.
pub fn built(cargo: &mut Command, package: &str) -> Result<Option<PathBuf>> {
    let built = cargo.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    if !built.status.success() {
        bail!("`{cargo:?}` fails");
    }
    let program = String::from_utf8_lossy(&built.stdout).lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_its = message["package_id"].as_str().is_some_and(|id| is_of(id, package));
        message["executable"].as_str().filter(|_| is_its && message["profile"]["test"] == true).map(PathBuf::from)
    });
    Ok(program)
}

/// Whether that is how cargo's messages name a package: by its name, or by its folder where that is
/// its name, too.
fn is_of(id: &str, package: &str) -> bool {
    let Some((path, version)) = id.rsplit_once('#') else { return false };
    version.split('@').next() == Some(package) || path.rsplit('/').next() == Some(package)
}

/// How a program ended, and what it said.
pub struct Outcome {
    /// None: it was stopped, for it took too long.
    pub status: Option<ExitStatus>,
    pub said: String,
    pub complained: String,
}

impl Outcome {
    pub fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

/// Runs a program for so long at most.
pub fn ended_within(program: &mut Command, limit: Duration) -> Result<Outcome> {
    program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = program.spawn().with_context(|| format!("cannot start {program:?}"))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        let said = scope.spawn(|| text_of(out));
        let complained = scope.spawn(|| text_of(err));
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().context("waiting for a program")? {
                break Some(status);
            }
            if begun.elapsed() > limit {
                child.kill().and_then(|()| child.wait()).context("stopping a program")?;
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let text = |thread: std::thread::ScopedJoinHandle<'_, String>| thread.join().expect("it does not panic");
        Ok(Outcome { status, said: text(said), complained: text(complained) })
    })
}

fn text_of(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs seeds, some in each process, as many processes as there are processors; until one fails,
/// where that is enough.
pub fn over(suite: &Suite, seeds: Range<u64>, environment: &[(&str, String)], until_failed: bool) -> Result<Vec<Line>> {
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
pub fn batch_of(suite: &Suite, seeds: Range<u64>, environment: &[(&str, String)]) -> Result<Vec<Line>> {
    let mut program = Command::new(&suite.program);
    program.args(["--exact", "asked", "--ignored", "--nocapture"]).env("RUST_BACKTRACE", "0");
    program.env("OVERSIDE_SIM_SEEDS", format!("{}..{}", seeds.start, seeds.end));
    program.envs(environment.iter().map(|(name, value)| (name, value)));
    let ended = ended_within(&mut program, BATCH_SECONDS_MAX)?;
    let mut lines = parse(&ended.said);
    let missing = seeds.start + lines.len() as u64;
    // With a planted fault the first seed that fails is the last that is run.
    if missing < seeds.end && !lines.iter().any(|line| matches!(line, Line::Failed { .. })) {
        let mut why = match ended.status {
            Some(status) => format!("the process ended with {status}"),
            None => format!("{LATE} {} s", BATCH_SECONDS_MAX.as_secs()),
        };
        ended.complained.lines().rev().take(8).for_each(|line| {
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
        // On one processor the test's name stands before the first line.
        let text = text.strip_prefix("test asked ... ").unwrap_or(text);
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
/// What is said of a process that was stopped, which a busy machine brings about as well.
pub const LATE: &str = "it was not done within";
/// Worlds that take longer stand still.
const BATCH_SECONDS_MAX: Duration = Duration::from_secs(400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_mean_seeds() {
        let seeds = |arguments: &[&str]| SimOptions::parse(arguments).map(|options| options.seeds);
        assert_eq!(seeds(&[]), Some(0..300));
        assert_eq!(seeds(&["--seeds", "20", "--from", "7"]), Some(7..27));
        assert_eq!(seeds(&["--seed", "5", "--history", "h"]), Some(5..6));
        assert_eq!(seeds(&["--mutants"]), Some(0..1000));
        assert_eq!(SimOptions::parse(&["--mutant", "x"]).and_then(|options| options.mutant), Some("x".into()));
        assert_eq!(seeds(&["--seed", "5", "--seeds", "3"]), None);
        assert_eq!(seeds(&["--history", "h"]), Some(0..300));
        assert_eq!(seeds(&["--events", "e"]), None);
        assert_eq!(seeds(&["7"]), None);
    }

    #[test]
    fn lines_are_told_from_what_a_test_says() {
        let said = "\nrunning 1 test\ntest asked ... seed 3 trace 00ff\n  did kill=2|scan: copy=0\nseed 4 FAILS: no order\n    1 to 2\n    3\ntest asked ... ok\n";
        let did = vec![("kill".to_owned(), 2), ("scan: copy".to_owned(), 0)];
        let held = Line::Held { seed: 3, trace: "00ff".into(), did };
        let failed = Line::Failed { seed: 4, why: "no order\n    1 to 2\n    3".into() };
        let lines = parse(said);
        assert_eq!(lines, [held, failed]);
        assert_eq!(coverage(&lines), ("kill 2 in 1; scan: copy 0 in 0".to_owned(), vec!["scan: copy".to_owned()]));
    }
}
