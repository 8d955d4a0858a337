//! Runs a program, plainly or under the library, and reads what came of it.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::program::{Program, is_barrier};

/// What runs programs.
pub struct Runner {
    interpreter: PathBuf,
    library: PathBuf,
    /// Goes when this does.
    folder: PathBuf,
    runs: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Under {
    Plain,
    Library,
}

/// What became of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Of each step, in the order of the script.
    pub steps: Vec<String>,
    /// How each side ended.
    pub ends: Vec<String>,
    pub stalled: bool,
    /// In what each thread waited when nothing moved any more.
    pub waits: Vec<String>,
    /// The step, by number, that each list was in.
    at: Vec<(usize, usize)>,
    /// Connection ends that were in rings, and all that the library told of.
    pub rings: usize,
    pub connections: usize,
}

impl Runner {
    /// Compiles the interpreter into the target folder.
    pub fn new(root: &Path, target: &Path, library: PathBuf) -> Result<Self> {
        let programs = root.join("xtask/src/torture/programs");
        let place = target.join("torture");
        std::fs::create_dir_all(&place)?;
        let interpreter = place.join(format!("interpreter-{}", std::process::id()));
        let sources = SOURCES.map(|name| programs.join(name));
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-g", "-pthread", "-Wall", "-Wextra", "-o"]).arg(&interpreter).args(sources);
        let status = compiler.status().context("no C compiler: apt-get install build-essential")?;
        if !status.success() {
            bail!("the interpreter of random programs does not compile");
        }
        let folder = std::env::temp_dir().join(format!("overside-torture-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        Ok(Self { interpreter, library, folder, runs: AtomicU64::new(0) })
    }

    /// Runs a program once; `patience` without a step forward is a hang.
    pub fn run(&self, program: &Program, way: Under, patience: Duration) -> Result<Outcome> {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.join(number.to_string());
        std::fs::create_dir_all(&folder)?;
        let (script, report) = (folder.join("script"), folder.join("report"));
        std::fs::write(&script, program.to_string())?;
        std::fs::write(&report, "")?;
        let library = if way == Under::Plain { Path::new("-") } else { &self.library };
        let mut child = Command::new(&self.interpreter)
            .arg("run")
            .args([&script, &folder])
            .arg(library)
            .arg(&report)
            .arg(patience.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let said = read(&mut child)?;
        let mut outcome = Outcome::parse(&said);
        outcome.count(&std::fs::read_to_string(&report).unwrap_or_default());
        if outcome.ends.len() != 2 {
            bail!("the interpreter says nothing of the ends of:\n{program}\nbut:\n{said}");
        }
        std::fs::remove_dir_all(&folder)?;
        Ok(outcome)
    }
}

/// Its standard input stays open until it has said all: it takes its end for ours.
fn read(child: &mut Child) -> Result<String> {
    let mut said = Vec::new();
    child.stdout.take().context("no output")?.read_to_end(&mut said)?;
    child.wait()?;
    Ok(String::from_utf8_lossy(&said).into_owned())
}

impl Drop for Runner {
    fn drop(&mut self) {
        // What cannot be removed is in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.folder);
        let _ = std::fs::remove_file(&self.interpreter);
    }
}

impl Outcome {
    fn parse(said: &str) -> Self {
        let mut outcome = Self::default();
        for line in said.lines() {
            match line.split_once(' ') {
                Some(("outcome", rest)) => {
                    outcome.steps.push(rest.split_once(' ').map_or("", |(_, what)| what).to_owned());
                }
                Some(("end", rest)) => outcome.ends.push(rest.to_owned()),
                Some(("stalled:", _)) => outcome.stalled = true,
                // Who sleeps for a barrier says nothing.
                Some(("thread", _)) if !line.contains("nanosleep") => outcome.waits.push(line.to_owned()),
                Some(("in", rest)) => outcome.at.extend(place(rest)),
                _ => {}
            }
        }
        outcome
    }

    /// What each list did not come out of, if nothing moved any more.
    pub fn stuck(&self, program: &Program) -> Vec<String> {
        let at = self.at.iter().filter(|_| self.stalled);
        at.map(|(list, at)| {
            let step = program.steps().nth(*at).map(ToString::to_string).unwrap_or_default();
            format!("list {list} does not come out of `{step}`")
        })
        .collect()
    }

    /// What kinds of differences there are: a hang, who dies, and verbs with what they say in both
    /// runs, numbers aside.
    pub fn kinds(&self, program: &Program, library: &Outcome) -> BTreeSet<String> {
        if library.stalled {
            return BTreeSet::from(["hang".to_owned()]);
        }
        let ends = library.ends.iter().zip(&self.ends).filter(|(other, plain)| other != plain);
        let steps = program.steps().zip(self.steps.iter().zip(&library.steps));
        let steps = steps.filter(|(step, (plain, other))| !is_same(plain, other) && !is_barrier(step));
        let words = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
        let steps = steps.map(|(step, (plain, other))| format!("{}: {}: {}", step.verb, words(plain), words(other)));
        ends.map(|(other, _)| other.clone()).chain(steps).collect()
    }

    /// Reads the library's report: a line for each connection's end.
    fn count(&mut self, report: &str) {
        let ways: Vec<&str> = report.lines().filter_map(|line| line.split('\t').nth(4)).collect();
        self.connections = ways.len();
        self.rings = ways.iter().filter(|way| **way == "ring").count();
    }

    /// What a plain run and one under the library saw differently; nothing, if all is as it must
    /// be.
    pub fn differences(&self, program: &Program, library: &Outcome) -> Vec<String> {
        let mut found = Vec::new();
        if library.stalled && !self.stalled {
            found.push("nothing moves any more under the library".to_owned());
        }
        for (side, (plain, other)) in self.ends.iter().zip(&library.ends).enumerate() {
            if plain != other {
                found.push(format!(
                    "end of side {}: plainly {plain}, under the library {other}",
                    ["A", "B"][side.min(1)]
                ));
            }
        }
        found.extend(library.stuck(program));
        let places =
            program.lists.iter().enumerate().flat_map(|(list, of)| of.steps.iter().map(move |step| (list, step)));
        for ((list, step), (plain, other)) in places.zip(self.steps.iter().zip(&library.steps)) {
            let allowed = is_same(plain, other) || other == UNFINISHED || is_barrier(step);
            if !allowed {
                found.push(format!("list {list}, `{step}`: plainly {plain}; under the library {other}"));
            }
        }
        found
    }
}

/// Whether both saw the same. How much of a stream still arrives before a reset, no kernel
/// promises.
fn is_same(plain: &str, other: &str) -> bool {
    let before_reset = |text: &str| text.ends_with(" received, then ECONNRESET");
    plain == other || before_reset(plain) && before_reset(other)
}

/// `list 1 step 20`.
fn place(text: &str) -> Option<(usize, usize)> {
    let ["list", list, "step", step] = text.split_whitespace().collect::<Vec<_>>()[..] else { return None };
    Some((list.parse().ok()?, step.parse().ok()?))
}

/// What the interpreter says of a step that has not come to its end.
const UNFINISHED: &str = "unfinished";
const SOURCES: [&str; 6] = ["script.c", "calls.c", "steps.c", "openings.c", "others.c", "supervisor.c"];

#[cfg(test)]
mod tests {
    use super::super::program::{List, Side, Step};
    use super::*;

    fn program() -> Program {
        let steps = vec![Step::new("recv", 0).n(-1), Step::new("close", 0)];
        let (family, under, ending) = ("tcp".to_owned(), "both".to_owned(), "return".to_owned());
        let lists = vec![List { side: Side::A, child: false, steps }];
        Program { family, under, soon: true, nofile: 0, ending, lists }
    }

    const PLAIN: &str = "outcome 0 100 received, then the end\noutcome 1 done\nend A exit 0\nend B exit 0\n";

    #[test]
    fn equal_outcomes_do_not_differ() {
        let plain = Outcome::parse(PLAIN);
        let mut other = plain.clone();
        other.count("1\tconnected\t-\t-\tring\t\t1\t1\t1\t1\n1\taccepted\t-\t-\tkernel\tx\t0\t0\t0\t0\n");
        assert_eq!((other.rings, other.connections), (1, 2));
        assert_eq!(plain.differences(&program(), &other), [""; 0]);
    }

    #[test]
    fn kinds_tell_a_hang_from_a_loss() {
        let plain = Outcome::parse(PLAIN);
        let kinds = |from: &str, to: &str| plain.kinds(&program(), &Outcome::parse(&PLAIN.replace(from, to)));
        assert_eq!(
            kinds("100 received", "0 received"),
            BTreeSet::from(["recv:  received, then the end:  received, then the end".to_owned()])
        );
        assert_eq!(kinds("end A", "stalled: 5 ms\nend A"), BTreeSet::from(["hang".to_owned()]));
        assert_eq!(kinds("A exit 0", "A signal 11"), BTreeSet::from(["A signal 11".to_owned()]));
        assert_eq!(kinds("@", "y"), BTreeSet::new());
    }

    #[test]
    fn lost_bytes_a_hang_and_a_crash_differ() {
        let plain = Outcome::parse(PLAIN);
        let differ = |from: &str, to: &str| plain.differences(&program(), &Outcome::parse(&PLAIN.replace(from, to)));
        assert!(is_same("3 received, then ECONNRESET", "8 received, then ECONNRESET"));
        assert!(!is_same("3 received, then ECONNRESET", "3 received, then the end"));
        let lost = differ("100 received", "0 received");
        assert_eq!(lost.len(), 1);
        assert!(lost[0].contains("list 0, `recv 0 -1") && lost[0].contains("0 received"), "{lost:?}");
        assert!(differ("A exit 0", "A signal 11")[0].contains("end of side A"));
        let hang = differ("outcome 1 done\n", "outcome 1 unfinished\nstalled: nothing moved\nin list 0 step 1\n");
        assert!(hang[0].contains("nothing moves"), "{hang:?}");
        assert!(hang[1].contains("list 0 does not come out of `close 0"), "{hang:?}");
    }
}
