//! `cargo xtask torture`: random programs, each run plainly and under the sockets library; what
//! they see must be equal.
//!
//! A seed makes a program (`generate`), which a small interpreter in C runs by the C library's
//! calls, as any program makes them (`programs/`). What its plain run says is what the run under
//! the library must say (`run`). A program that differs is shortened while it still does
//! (`shrink`), and printed: `--script` runs such a text again.

mod calls;
mod endings;
mod generate;
mod options;
mod phases;
mod program;
mod random;
mod run;
mod shrink;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

pub use options::{HELP, TortureOptions};
use program::Program;
use run::{Outcome, Runner, Under};

/// Runs what was asked for; an error when a program saw a difference, or when none came into the
/// rings.
pub fn run(root: &Path, options: &TortureOptions) -> Result<()> {
    let target = crate::target(root);
    let library = match &options.library {
        Some(library) => library.canonicalize().with_context(|| library.display().to_string())?,
        None => build(root, &target, options.release)?,
    };
    let runner = Runner::new(root, &target, library)?;
    let torture = Torture::new(runner, options.clone());
    let found = root.join("xtask/src/torture/found");
    match (&options.script, options.seed) {
        (Some(script), _) => {
            let text = std::fs::read_to_string(script).with_context(|| script.display().to_string())?;
            torture.one(&Program::parse(&text)?)
        }
        (None, Some(seed)) => torture.one(&generate::generate(seed)),
        (None, None) => torture.found(&found).and_then(|()| torture.many()),
    }
}

fn build(root: &Path, target: &Path, release: bool) -> Result<PathBuf> {
    let mut command = Command::new(env!("CARGO"));
    if release {
        command.args(["build", "--release", "--quiet", "--package", "overside-preload"]);
    } else {
        // As the tests have it, so that nothing is built after them; such a library lies among what they stand on.
        command.args(["test", "--no-run", "--quiet", "--test", "pairs"]).args(crate::TESTED);
    }
    command.current_dir(root);
    if !command.status()?.success() {
        bail!("the sockets library does not build");
    }
    let library = target.join(if release { "release" } else { "debug/deps" }).join("liboverside_preload.so");
    if !library.is_file() {
        bail!("{}, which was to be built, is not there", library.display());
    }
    Ok(library)
}

struct Torture {
    runner: Runner,
    options: TortureOptions,
    printing: Mutex<()>,
    tally: Tally,
}

#[derive(Default)]
struct Tally {
    programs: AtomicUsize,
    discarded: AtomicUsize,
    rings: AtomicUsize,
    connections: AtomicUsize,
    differences: AtomicUsize,
    shortened: AtomicUsize,
}

/// How often to start a program before its fault shows again.
struct Fault {
    differences: Vec<String>,
    kinds: BTreeSet<String>,
    waits: Vec<String>,
    /// Of so many further runs.
    again: usize,
    of: usize,
}

impl Torture {
    fn new(runner: Runner, options: TortureOptions) -> Self {
        Self { runner, options, printing: Mutex::new(()), tally: Tally::default() }
    }

    /// One program, with all that it saw.
    fn one(&self, program: &Program) -> Result<()> {
        println!("{program}");
        if self.options.shrink_seconds.is_some() {
            let Some(mut fault) = self.check(program)? else { bail!("it does not differ, so it cannot be shortened") };
            self.run_again(program, &mut fault)?;
            let shorter = self.shorten(program, &fault)?;
            println!("{}", described(program, &fault, shorter.as_ref()));
            bail!("it differs");
        }
        let mut failed = 0;
        for _ in 0..self.options.times {
            let plain = self.runner.run(program, Under::Plain, PLAIN_PATIENCE)?;
            if plain.stalled {
                bail!("it hangs plainly:\n{}\n{}", plain.stuck(program).join("\n"), plain.waits.join("\n"));
            }
            let other = self.runner.run(program, Under::Library, PATIENCE)?;
            let differences = plain.differences(program, &other);
            if self.options.times == 1 {
                for (step, (saw, under)) in program.steps().zip(plain.steps.iter().zip(&other.steps)) {
                    println!(
                        "  {step}: {saw}{}",
                        if saw == under { String::new() } else { format!("; UNDER THE LIBRARY {under}") }
                    );
                }
            }
            if !differences.is_empty() {
                failed += 1;
                println!("{}\n{}", differences.join("\n"), other.waits.join("\n"));
            }
            println!("{} of {} connection ends in rings", other.rings, other.connections);
        }
        if failed > 0 {
            bail!("{failed} of {} runs differ", self.options.times);
        }
        Ok(())
    }

    /// Programs that differed once, shortened: first of all none may again.
    fn found(&self, folder: &Path) -> Result<()> {
        let mut scripts: Vec<PathBuf> = std::fs::read_dir(folder)
            .with_context(|| folder.display().to_string())?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<_>>()?;
        scripts.sort();
        for script in &scripts {
            let program = Program::parse(&std::fs::read_to_string(script)?)?;
            if let Some(fault) = self.check(&program)? {
                bail!("{} differs again:\n{}", script.display(), fault.differences.join("\n"));
            }
        }
        println!("torture: {} programs that differed once do not", scripts.len());
        Ok(())
    }

    /// Programs of one seed after another until the time is over.
    fn many(&self) -> Result<()> {
        let from = self.options.from.unwrap_or_else(|| {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            since.map_or(1, |since| since.as_secs() % 1_000_000 * 1000)
        });
        println!("torture: seeds from {from} on, {} at a time, for {} s", self.options.jobs, self.options.seconds);
        let started = Instant::now();
        let (next, over, error) = (AtomicU64::new(from), AtomicBool::new(false), Mutex::new(None));
        let until = started + Duration::from_secs(self.options.seconds);
        std::thread::scope(|scope| {
            for _ in 0..self.options.jobs {
                scope.spawn(|| {
                    while Instant::now() < until && !over.load(Ordering::Relaxed) {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        match self.try_seed(seed, started) {
                            Ok(differs) if differs && self.options.stop => over.store(true, Ordering::Relaxed),
                            Ok(_) => {}
                            Err(failure) => {
                                *error.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
                                over.store(true, Ordering::Relaxed);
                            }
                        }
                    }
                });
            }
        });
        if let Some(failure) = error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(failure);
        }
        self.tell(started);
        self.judge()
    }

    fn tell(&self, started: Instant) {
        let Tally { programs, discarded, rings, connections, differences, .. } = &self.tally;
        let read = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        println!(
            "torture: {} programs in {:.0} s ({:.1} a second; {} more had no one outcome plainly), {} of {} connection ends in rings, {} differ",
            read(programs),
            started.elapsed().as_secs_f64(),
            read(programs) as f64 / started.elapsed().as_secs_f64().max(0.1),
            read(discarded),
            read(rings),
            read(connections),
            read(differences),
        );
    }

    fn judge(&self) -> Result<()> {
        let differ = self.tally.differences.load(Ordering::Relaxed);
        if differ > self.options.allow {
            bail!(
                "{differ} programs saw something else under the library; `--seed S` or `--script FILE` runs one of them again"
            );
        }
        if self.tally.rings.load(Ordering::Relaxed) == 0 {
            bail!("no connection came into the rings, so nothing has been tested: `overside run --verbose` says why");
        }
        Ok(())
    }

    /// Whether the program of this seed differs.
    fn try_seed(&self, seed: u64, started: Instant) -> Result<bool> {
        let program = generate::generate(seed);
        let has = |word: &String| program.steps().any(|step| [&step.verb, &step.call, &step.wait].contains(&word));
        if !self.options.with.iter().all(has) || self.options.without.iter().any(has) {
            return Ok(false);
        }
        let fault = self.check(&program)?;
        let done = self.tally.programs.load(Ordering::Relaxed);
        if done > 0 && done.is_multiple_of(PROGRAMS_A_LINE) {
            self.tell(started);
        }
        let Some(mut fault) = fault else { return Ok(false) };
        let at = started.elapsed();
        if !self.run_again(&program, &mut fault)? {
            self.tally.discarded.fetch_add(1, Ordering::Relaxed);
            return Ok(false);
        }
        self.tally.differences.fetch_add(1, Ordering::Relaxed);
        let shorter = self.shorten(&program, &fault)?;
        let _printing = self.printing.lock().unwrap_or_else(PoisonError::into_inner);
        println!("\nDIFFERENCE: seed {seed}, after {:.0} s", at.as_secs_f64());
        println!("{}", described(&program, &fault, shorter.as_ref()));
        if let Some(folder) = &self.options.keep {
            std::fs::create_dir_all(folder)?;
            std::fs::write(
                folder.join(format!("{seed}.script")),
                shorter.map_or(program, |(short, _)| short).to_string(),
            )?;
        }
        Ok(true)
    }

    /// Runs a program plainly and under the library. What plain runs do not agree on is discarded.
    fn check(&self, program: &Program) -> Result<Option<Fault>> {
        let plain = self.runner.run(program, Under::Plain, PLAIN_PATIENCE)?;
        if plain.stalled {
            self.tally.discarded.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        let outcome = self.runner.run(program, Under::Library, PATIENCE)?;
        let differences = plain.differences(program, &outcome);
        if !differences.is_empty() && !self.is_steady(program, &plain)? {
            self.tally.discarded.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        self.tally.programs.fetch_add(1, Ordering::Relaxed);
        self.tally.rings.fetch_add(outcome.rings, Ordering::Relaxed);
        self.tally.connections.fetch_add(outcome.connections, Ordering::Relaxed);
        Ok((!differences.is_empty()).then(|| {
            let kinds = plain.kinds(program, &outcome);
            Fault { differences, kinds, waits: outcome.waits, again: 0, of: 0 }
        }))
    }

    /// How often it shows under the library. False when a plain run shows it, too: then it is
    /// chance.
    fn run_again(&self, program: &Program, fault: &mut Fault) -> Result<bool> {
        let until = Instant::now() + AGAIN;
        let plain = self.runner.run(program, Under::Plain, PLAIN_PATIENCE)?;
        while fault.of < RUNS_AGAIN_MAX && fault.again < 2 && Instant::now() < until {
            let other = self.runner.run(program, Under::Plain, PLAIN_PATIENCE)?;
            if !other.stalled && !plain.kinds(program, &other).is_disjoint(&fault.kinds) {
                return Ok(false);
            }
            let outcome = self.runner.run(program, Under::Library, SHRINKING_PATIENCE)?;
            fault.of += 1;
            fault.again += usize::from(!plain.kinds(program, &outcome).is_empty());
        }
        Ok(true)
    }

    /// A shorter program that still differs, and what it sees; none if it differs too seldom.
    fn shorten(&self, program: &Program, fault: &Fault) -> Result<Option<(Program, Vec<String>)>> {
        let seconds = self.options.shrink_seconds.unwrap_or(SHRINK_SECONDS);
        let is_rare = fault.again == 0 || seconds == 0;
        if is_rare || self.tally.shortened.fetch_add(1, Ordering::Relaxed) >= SHORTENED_MAX {
            return Ok(None);
        }
        let until = Instant::now() + Duration::from_secs(seconds);
        // What shows in one of three runs is looked for in five.
        let tries = 2 * fault.of.div_ceil(fault.again) - 1;
        let (mut failure, mut seen) = (None, fault.differences.clone());
        let short = shrink::shrink(program, &mut |candidate| {
            if failure.is_some() {
                return false;
            }
            match self.still_differs(candidate, &fault.kinds, tries, until) {
                Ok(Some(differences)) => {
                    seen = differences;
                    true
                }
                Ok(None) => false,
                Err(error) => {
                    failure = Some(error);
                    false
                }
            }
        });
        failure.map_or(Ok(Some((short, seen))), Err)
    }

    fn still_differs(
        &self,
        program: &Program,
        kinds: &BTreeSet<String>,
        tries: usize,
        until: Instant,
    ) -> Result<Option<Vec<String>>> {
        if Instant::now() > until {
            return Ok(None);
        }
        let plain = self.runner.run(program, Under::Plain, SHORT_PATIENCE)?;
        if plain.stalled || plain.ends.iter().any(|end| end.contains("exit 99")) {
            return Ok(None);
        }
        let Some(outcome) = self.one_that_differs(program, &plain, tries)? else { return Ok(None) };
        let same = !plain.kinds(program, &outcome).is_disjoint(kinds);
        // What is left out may have been what made its outcome one.
        Ok((same && self.is_steady(program, &plain)?).then(|| plain.differences(program, &outcome)))
    }

    /// The outcome of one of so many runs under the library, some at a time, that is not the plain
    /// one.
    fn one_that_differs(&self, program: &Program, plain: &Outcome, tries: usize) -> Result<Option<Outcome>> {
        let (left, found) = (AtomicUsize::new(tries), Mutex::new(Ok(None)));
        let set = |what| *found.lock().unwrap_or_else(PoisonError::into_inner) = what;
        let next = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        std::thread::scope(|scope| {
            for _ in 0..tries.min(TRIES_AT_ONCE) {
                scope.spawn(|| {
                    while next() {
                        match self.runner.run(program, Under::Library, SHRINKING_PATIENCE) {
                            Ok(outcome) if plain.kinds(program, &outcome).is_empty() => continue,
                            Ok(outcome) => set(Ok(Some(outcome))),
                            Err(error) => set(Err(error)),
                        }
                        left.store(0, Ordering::Relaxed);
                    }
                });
            }
        });
        found.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_steady(&self, program: &Program, plain: &Outcome) -> Result<bool> {
        for _ in 0..PLAIN_AGAIN {
            let again = self.runner.run(program, Under::Plain, PLAIN_PATIENCE)?;
            if again.stalled || !plain.kinds(program, &again).is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// What is told of a program that differs.
fn described(program: &Program, fault: &Fault, shorter: Option<&(Program, Vec<String>)>) -> String {
    let Fault { differences, waits, again, of, .. } = fault;
    let head = format!("{}\n{}\nagain in {again} of {of} runs", differences.join("\n"), waits.join("\n"));
    let Some((short, differences)) = shorter else { return format!("{head}; not shortened\n") };
    let (before, after) = (program.steps().count(), short.steps().count());
    format!("{head}; shortened from {before} steps to {after}:\n{short}{}\n", differences.join("\n"))
}

/// How long nothing moves before that is a hang. The longest pause in a program is far below a
/// second, but machines are shared.
const PATIENCE: Duration = Duration::from_secs(12);
/// A program that hangs plainly says nothing, so nothing depends on this.
const PLAIN_PATIENCE: Duration = Duration::from_secs(3);
const SHORT_PATIENCE: Duration = Duration::from_millis(1500);
const SHRINK_SECONDS: u64 = 60;
/// For a program that is known to hang or to differ.
const SHRINKING_PATIENCE: Duration = Duration::from_secs(3);
/// How long, and how often, a fault is given to show again.
const AGAIN: Duration = Duration::from_secs(30);
const RUNS_AGAIN_MAX: usize = 60;
/// Programs that are shortened; of the others the seed is told.
const SHORTENED_MAX: usize = 12;
const TRIES_AT_ONCE: usize = 4;
/// Plain runs that must be equal before a difference is believed.
const PLAIN_AGAIN: usize = 3;
const PROGRAMS_A_LINE: usize = 200;
