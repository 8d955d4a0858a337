//! Full runs as files that are committed: `DIR/MACHINE/DATE-COMMIT/FIGURE.json`, which the
//! house rules judge again.

use super::Figure;
use crate::report::Machine;
use anyhow::{Context, Result, bail, ensure};
use overside_disk::AtomicFile;
use overside_evidence::{FORMAT, Judgement, Kept};
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

/// Where a run is to be kept, and of what build it is.
#[derive(Clone, Debug)]
pub struct Keep {
    folder: PathBuf,
    commit: String,
    date: String,
    /// The run's own folder, once its first figure is kept.
    own: Option<PathBuf>,
}

impl Keep {
    /// In `folder`, of what is checked out here.
    ///
    /// # Errors
    /// Here is no checkout, or it holds changes that no commit has.
    pub fn here(folder: &Path) -> Result<Keep> {
        let commit = git(&["rev-parse", "--short=8", "HEAD"])?;
        let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
        ensure!(
            changed.is_empty(),
            "results name the commit that was measured: commit what is changed, build it, and measure that"
        );
        Ok(Keep { folder: folder.to_owned(), commit, date: today(), own: None })
    }

    /// Writes a figure's file as soon as it is measured: what comes after may fail. The folder it
    /// is in. A second run of a day and commit has one of its own.
    ///
    /// # Errors
    /// The folder or the file cannot be written.
    pub fn keep(&mut self, figure: &Figure, machine: &Machine) -> Result<PathBuf> {
        let folder = match &self.own {
            Some(folder) => folder.clone(),
            None => {
                let (date, commit) = (&self.date, &self.commit);
                let name = |run: usize| match run {
                    1 => format!("{date}-{commit}"),
                    _ => format!("{date}-{commit}-{run}"),
                };
                let all = self.folder.join(slug(machine));
                let free = (1..).map(|run| all.join(name(run))).find(|folder| !folder.exists());
                let folder = free.context("no name is free")?;
                fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
                self.own.insert(folder).clone()
            }
        };
        let mut value = serde_json::to_value(figure)?;
        // Judged again by whoever reads it, by the rules of that day.
        value.as_object_mut().context("a figure is an object")?.remove("claims");
        let kept = Kept {
            format: FORMAT,
            commit: self.commit.clone(),
            date: self.date.clone(),
            quick: false,
            machine: serde_json::to_value(machine)?,
            figure: value,
        };
        let path = folder.join(format!("{}.json", figure.figure));
        let file = AtomicFile::create(&path).with_context(|| format!("{} cannot be written", path.display()))?;
        writeln!(file.file(), "{}", serde_json::to_string(&kept)?)?;
        file.publish().with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(folder)
    }

    /// Where what was kept lies.
    pub(super) fn folder(&self) -> Option<&Path> {
        self.own.as_deref()
    }
}

/// What a claim asks of a figure that it does not have: programs may be missing here.
pub(super) fn lacking(figure: &Figure) -> Option<String> {
    Judgement::lacking(figure.claims.iter().map(|claim| &claim.judgement))
}

fn git(arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").args(arguments).output().context("results name a commit, and there is no git")?;
    if !output.status.success() {
        bail!("results name a commit: run it in a checkout ({})", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The processor's name and how many there are, as a folder is named.
fn slug(machine: &Machine) -> String {
    let letters = machine.processor.to_lowercase();
    let words = letters.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    format!("{}-{}-cores", words.collect::<Vec<_>>().join("-"), machine.cores)
}

/// Today, as `2026-11-25`.
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    date(seconds / 86_400)
}

/// The day so many days after 1970-01-01. Years are counted from March, so
/// that a leap day ends one.
fn date(days: u64) -> String {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = (year + era * 400 + u64::from(month >= 10), if month < 10 { month + 3 } else { month - 9 });
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        figures::{Point, Sample},
        measure::Bar,
    };

    #[test]
    fn what_is_kept_is_read_and_judged_again() {
        let folder = std::env::temp_dir().join(format!("overside-results-{}", std::process::id()));
        let mut figure = Figure::new("verbs", "shm", "");
        for (series, x, bytes) in [
            ("SEND 100 B", 1, 10),
            ("SEND 100 B", 4, 40),
            ("SEND 1000 B", 1, 20),
            ("SEND 1000 B", 4, 50),
            ("WRITE 100 B", 1, 10),
            ("WRITE 100 B", 4, 40),
            ("WRITE 1000 B", 1, 20),
            ("WRITE 1000 B", 4, 50),
            ("READ 100 B", 1, 9),
            ("READ 1000 B", 1, 19),
        ] {
            let sample = Sample { bytes, wall_ns: 10, sender_ns: 5, ..Sample::default() };
            figure.points.push(Point::of(series, x, vec![sample; 5], &[]));
        }
        figure.bars.push(Bar::at_least("b", 1.0, crate::measure::Ratio::of(&[2.0; 5])));
        assert_eq!(lacking(&figure), None);
        figure.judge().unwrap();
        assert_eq!(lacking(&figure), None);
        let machine = Machine { processor: "Intel(R) Xeon(R) @ 2.0".into(), cores: 2, ..Machine::here() };
        let keep = || Keep { folder: folder.clone(), commit: "0a1b2c3d".into(), date: "2026-11-25".into(), own: None };
        let mut run = keep();
        let first = run.keep(&figure, &machine).unwrap();
        assert_eq!(first, folder.join("intel-r-xeon-r-2-0-2-cores/2026-11-25-0a1b2c3d"));
        let other = Figure::new("transmit", "shm", "");
        assert_eq!(run.keep(&other, &machine).unwrap(), first);
        assert!(first.join("transmit.json").exists());
        assert!(keep().keep(&figure, &machine).unwrap().ends_with("2026-11-25-0a1b2c3d-2"));
        let text = fs::read_to_string(first.join("verbs.json")).unwrap();
        let kept = Kept::read("verbs.json", &text).unwrap();
        let verdicts: Vec<_> = kept.judge("verbs.json").unwrap().iter().map(|j| (j.claim, j.verdict)).collect();
        let fresh: Vec<_> = figure.claims.iter().map(|c| (c.judgement.claim, c.judgement.verdict)).collect();
        assert_eq!(verdicts, fresh);
        assert_eq!(fresh.len(), 3);
        assert!(fresh.iter().all(|(_, says)| says.text() == "agrees"), "{fresh:?}");
        assert_eq!(kept.bars("verbs.json").unwrap()[0].verdict.text(), "met");
        let _ = fs::remove_dir_all(folder);
    }

    #[test]
    fn what_a_claim_asks_for_in_vain_is_said() {
        let mut figure = Figure::new("messages", "shm", "");
        figure.judge().unwrap();
        let said = lacking(&figure).unwrap();
        assert!(said.starts_with("messages lacks the series `") && said.ends_with("which RS-C06 asks for"), "{said}");
    }

    #[test]
    fn days_have_their_dates() {
        for (days, wanted) in [(0, "1970-01-01"), (59, "1970-03-01"), (11_016, "2000-02-29"), (20_782, "2026-11-25")] {
            assert_eq!(date(days), wanted);
        }
    }
}
