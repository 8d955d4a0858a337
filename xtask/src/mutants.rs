//! `cargo xtask sim --mutants`: every fault that is planted in shipped code is found.
//!
//! A build with `--cfg mutants` has all of them, and the environment's `OVERSIDE_MUTANT` chooses
//! one. A test that finds one says so in a comment above it, `Faults: NAME, NAME`, and is run with
//! it: under shuttle, where its file is for shuttle alone. What no test names, the world of some
//! seed must find.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::sim::{self, Line, SimOptions, Suite};
use crate::syntax;
use crate::tree::Tree;

/// A test that says which faults it finds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Test {
    package: String,
    folder: String,
    /// What names its target to cargo.
    target: Vec<String>,
    under_shuttle: bool,
    function: String,
}

/// Who found a fault.
struct Discovery {
    by: String,
    why: String,
}

/// Finds every fault, or those that were asked for; fails when one is missed.
pub fn find(root: &Path, options: &SimOptions) -> Result<()> {
    let tree = Tree::load(root)?;
    let mut names = planted(&tree);
    if names.is_empty() {
        bail!("no fault is planted: shipped code says `mutant(\"name\")` nowhere");
    }
    if let Some(only) = &options.mutant {
        names.retain(|name, _| name == only);
        if names.is_empty() {
            bail!("no fault {only:?} is planted");
        }
    }
    let mut search = Search { root, seeds: options.seeds.clone(), suites: None, programs: BTreeMap::new(), tree };
    let tests = tests_that_find(&search.tree);
    let (begun, count) = (Instant::now(), names.len());
    let mut missed = Vec::new();
    for (number, (name, package)) in names.into_iter().enumerate() {
        eprintln!("fault {} of {count}: {name} ({package})", number + 1);
        let since = Instant::now();
        let found = match tests.get(&name) {
            Some(tests) => search.by_tests(&name, tests)?,
            None => search.by_worlds(&name, &package)?,
        };
        let took = since.elapsed().as_secs_f64();
        match found {
            Some(Discovery { by, why }) => println!("mutant {name}: found by {by} ({took:.1} s){why:.160}"),
            None => {
                println!("mutant {name}: NOT FOUND ({took:.1} s)");
                missed.push(name);
            }
        }
    }
    println!("sim: {} of {count} faults found in {:.0} s", count - missed.len(), begun.elapsed().as_secs_f64());
    if !missed.is_empty() {
        bail!("nothing finds: {}", missed.join(", "));
    }
    Ok(())
}

struct Search<'r> {
    root: &'r Path,
    seeds: Range<u64>,
    tree: Tree,
    /// Built when the first of them is needed.
    suites: Option<Vec<Suite>>,
    /// Of tests, by package, target and whether under shuttle.
    programs: BTreeMap<(String, Vec<String>, bool), PathBuf>,
}

impl Search<'_> {
    /// The first test that fails with the fault, and holds without.
    fn by_tests(&mut self, name: &str, tests: &BTreeSet<Test>) -> Result<Option<Discovery>> {
        for test in tests {
            let program = self.program(test)?;
            let run = |mutant: &str| {
                let mut command = Command::new(&program);
                command.arg(&test.function).env("OVERSIDE_MUTANT", mutant).env("RUST_BACKTRACE", "0");
                sim::ended_within(command.current_dir(self.root.join(&test.folder)), TEST_SECONDS_MAX)
            };
            let sound = run("")?;
            let held = sound.is_success() && sound.said.lines().any(|line| line.contains("test result: ok. 1 passed"));
            if !held {
                bail!("test {} of {} does not hold without any fault:\n{}", test.function, test.package, sound.said);
            }
            if !run(name)?.is_success() {
                let way = if test.under_shuttle { "shuttle's" } else { "the test" };
                let by = format!("{way} {} of {}", test.function, test.package);
                return Ok(Some(Discovery { by, why: String::new() }));
            }
        }
        Ok(None)
    }

    /// The first seed whose world fails with the fault, and holds without.
    fn by_worlds(&mut self, name: &str, package: &str) -> Result<Option<Discovery>> {
        if self.suites.is_none() {
            self.suites = Some(sim::build(self.root, true)?);
        }
        let mut suites: Vec<&Suite> = self.suites.iter().flatten().collect();
        suites.retain(|suite| reaches(&self.tree, &suite.package, package));
        // What has little around it is found soonest there.
        suites.sort_by_key(|suite| suite.package != package);
        if suites.is_empty() {
            bail!("no simulation runs {package}, and no test's comment says `Faults: {name}`");
        }
        let middle = self.seeds.end.min(self.seeds.start + SEEDS_FIRST);
        for seeds in [self.seeds.start..middle, middle..self.seeds.end] {
            for suite in suites.iter().filter(|_| !seeds.is_empty()) {
                eprintln!("  worlds of {}, seeds {} to {}", suite.package, seeds.start, seeds.end - 1);
                let environment = [("OVERSIDE_MUTANT", name.to_owned())];
                let Some((seed, why)) = first_failed(suite, seeds.clone(), &environment)? else { continue };
                let alone = sim::batch_of(suite, seed..seed + 1, &[])?;
                if let Some(Line::Failed { why, .. }) = alone.first() {
                    bail!("seed {seed} of {} fails without any fault: {why}", suite.package);
                }
                let why = format!(": {}", why.lines().next().unwrap_or_default());
                return Ok(Some(Discovery { by: format!("{} with seed {seed}", suite.package), why }));
            }
        }
        Ok(None)
    }

    /// The program of a test's target, with all faults in it.
    fn program(&mut self, test: &Test) -> Result<PathBuf> {
        let key = (test.package.clone(), test.target.clone(), test.under_shuttle);
        if let Some(program) = self.programs.get(&key) {
            return Ok(program.clone());
        }
        let mut cargo = sim::cargo_test(self.root, &test.package);
        cargo.args(&test.target);
        if test.under_shuttle {
            // Thousands of schedules: slow without any optimization, and slow to build with all of it.
            cargo.env("RUSTFLAGS", "--cfg shuttle --cfg mutants").env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
            cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
            cargo.env("CARGO_TARGET_DIR", crate::target(self.root).join("shuttle"));
        } else {
            sim::with_mutants(self.root, &mut cargo);
        }
        let program = sim::built(&mut cargo, &test.package)?;
        let program = program.with_context(|| format!("cargo builds no test of {} {:?}", test.package, test.target))?;
        self.programs.insert(key, program.clone());
        Ok(program)
    }
}

/// The first of these seeds that fails.
fn first_failed(suite: &Suite, seeds: Range<u64>, environment: &[(&str, String)]) -> Result<Option<(u64, String)>> {
    let failed = |lines: Vec<Line>| {
        lines.into_iter().find_map(|line| match line {
            Line::Failed { seed, why } => Some((seed, why)),
            Line::Held { .. } => None,
        })
    };
    let mut from = seeds.start;
    while from < seeds.end {
        let Some((seed, why)) = failed(sim::over(suite, from..seeds.end, environment, true)?) else { break };
        // Where others keep the machine busy, a world is late without any fault.
        let is_late = why.starts_with(sim::LATE);
        if !is_late || failed(sim::batch_of(suite, seed..seed + 1, environment)?).is_some() {
            return Ok(Some((seed, why)));
        }
        eprintln!("  seed {seed} was late, and holds by itself");
        from = seed + 1;
    }
    Ok(None)
}

/// Whether the tests of a package are of another one, or stand on it. What that one's own tests
/// need is not among them.
fn reaches(tree: &Tree, from: &str, to: &str) -> bool {
    let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(name) = left.pop() {
        if name == to {
            return true;
        }
        let package = tree.packages.iter().find(|package| package.name == name);
        let edges = package.iter().flat_map(|package| &package.edges);
        let edges = edges.filter(|edge| name == from || !edge.dev).map(|edge| edge.to.as_str());
        left.extend(edges.filter(|to| seen.insert(*to)));
    }
    false
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

/// The tests whose comments say which faults they find, by the faults' names.
fn tests_that_find(tree: &Tree) -> BTreeMap<String, BTreeSet<Test>> {
    let mut tests: BTreeMap<String, BTreeSet<Test>> = BTreeMap::new();
    for source in &tree.sources {
        let Some(package) = tree.package_of(&source.path) else { continue };
        for comment in source.comments.iter().filter(|comment| source.is_test(comment.line)) {
            let text = comment.text.trim_start_matches(['/', ' ']);
            let Some(names) = text.strip_prefix("Faults: ") else { continue };
            let behind = source.code.lines().skip(comment.line).find_map(|line| line.trim_start().strip_prefix("fn "));
            let Some(function) = behind.map(syntax::identifier) else { continue };
            let root = package.targets.iter().find(|target| {
                let folder = target.root.strip_suffix("main.rs").unwrap_or(&target.root);
                target.kind == "test" && source.path.starts_with(folder)
            });
            let target = match root.map(|target| target.root.trim_end_matches("/main.rs")) {
                Some(root) => {
                    let file = root.rsplit('/').next().unwrap_or(root);
                    vec!["--test".to_owned(), file.trim_end_matches(".rs").to_owned()]
                }
                None => vec!["--lib".to_owned()],
            };
            let test = Test {
                package: package.name.clone(),
                folder: package.folder.clone(),
                target,
                under_shuttle: source.text.contains("#![cfg(shuttle)]"),
                function: function.to_owned(),
            };
            for name in names.trim_end_matches('.').split(", ") {
                tests.entry(name.to_owned()).or_default().insert(test.clone());
            }
        }
    }
    tests
}

/// Most faults are found within so many seeds; all simulations run these before any runs more.
const SEEDS_FIRST: u64 = 60;
/// A test that takes longer with a fault stands still.
const TEST_SECONDS_MAX: Duration = Duration::from_secs(400);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::planted as planted_tree;

    #[test]
    fn faults_are_those_of_shipped_code() {
        let shipped = "fn a() { if mutant(\"floor-ignored\") { b(); } }\n// mutant(\"comment\")\n\
                       #[cfg(test)]\nmod tests { fn t() { mutant(\"tested\"); } }\n";
        let tree = planted_tree::tree(&[("crates/log/src/log.rs", shipped), ("crates/log/tests/sim.rs", shipped)]);
        assert_eq!(planted(&tree).into_keys().collect::<Vec<_>>(), ["floor-ignored"]);
    }

    #[test]
    fn worlds_reach_what_their_package_stands_on_and_not_what_that_is_tested_with() {
        let edge = |(to, dev): (&str, bool)| crate::tree::Edge { to: to.to_owned(), dev };
        let package = |name: &str, edges: &[(&str, bool)]| {
            let edges = edges.iter().copied().map(edge).collect();
            crate::tree::Package { name: name.to_owned(), edges, ..Default::default() }
        };
        let packages = vec![
            package("table", &[("log", false), ("sim", true)]),
            package("log", &[("disk", false), ("volume", true)]),
            package("sim", &[("verbs", false)]),
        ];
        let tree = Tree { packages, ..Tree::default() };
        let reached = ["table", "log", "disk", "sim", "verbs", "volume"].map(|to| reaches(&tree, "table", to));
        assert_eq!(reached, [true, true, true, true, true, false]);
        assert!(reaches(&tree, "log", "volume"));
    }

    #[test]
    fn tests_say_which_faults_they_find() {
        let shuttle =
            "#![cfg(shuttle)]\n/// It waits.\n/// Faults: wake-lost, two-at-once.\n#[test]\nfn hand_over() {}\n";
        let unit = "/// Faults: shipped\nfn a() {}\n#[cfg(test)]\nmod tests {\n    // Faults: wake-lost\n    #[test]\n    fn unit() {}\n}\n";
        let tree = planted_tree::tree(&[("crates/log/src/log.rs", unit), ("crates/log/tests/shuttle.rs", shuttle)]);
        let found = tests_that_find(&tree);
        let names: Vec<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["two-at-once", "wake-lost"]);
        let functions: Vec<(&str, bool)> =
            found["wake-lost"].iter().map(|test| (test.function.as_str(), test.under_shuttle)).collect();
        assert!(functions.contains(&("unit", false)) && functions.contains(&("hand_over", true)), "{functions:?}");
    }
}
