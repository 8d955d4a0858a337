//! What was measured, one line each, so that a comparison can be run in pieces and told as a whole.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// One figure of one map in one round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Records and operations a column: only samples that agree in them are compared.
    pub keys: usize,
    /// See `keys`.
    pub operations: usize,
    /// The round, counted through all pieces. Maps are compared within a round only.
    pub round: usize,
    /// Threads that asked.
    pub threads: usize,
    /// The map's name.
    pub map: String,
    /// What was measured.
    pub figure: String,
    /// In the figure's own unit.
    pub value: f64,
}

/// Samples of this run and, where they are kept, of earlier ones.
#[derive(Debug, Default)]
pub struct Samples {
    all: Vec<Sample>,
    fresh: usize,
}

impl Samples {
    /// Those that `file` holds; none if it does not exist.
    pub fn read(file: &Path, keys: usize, operations: usize) -> Result<Samples> {
        if !file.exists() {
            return Ok(Samples::default());
        }
        let lines =
            BufReader::new(File::open(file).with_context(|| format!("cannot open {}", file.display()))?).lines();
        let mut all = Vec::new();
        for (n, line) in lines.enumerate() {
            let sample: Sample = serde_json::from_str(&line?).with_context(|| {
                format!("{}, line {}: no sample of this command; name another file", file.display(), n + 1)
            })?;
            ensure!(
                (sample.keys, sample.operations) == (keys, operations),
                "{} holds samples of {} keys, not {keys}; name another file, or leave --quick as it was",
                file.display(),
                sample.keys
            );
            all.push(sample);
        }
        Ok(Samples { fresh: all.len(), all })
    }

    /// Appends to `file` what was added since it was read.
    pub fn append(&mut self, file: &Path) -> Result<()> {
        let options = OpenOptions::new().create(true).append(true).open(file);
        let mut out = options.with_context(|| format!("cannot write to {}", file.display()))?;
        for sample in &self.all[self.fresh..] {
            writeln!(out, "{}", serde_json::to_string(sample)?)?;
        }
        self.fresh = self.all.len();
        Ok(())
    }

    /// Number of the next round.
    pub fn next_round(&self) -> usize {
        self.all.iter().map(|sample| sample.round + 1).max().unwrap_or(0)
    }

    /// Adds one.
    pub fn add(&mut self, sample: Sample) {
        self.all.push(sample);
    }

    /// All values of a figure.
    pub fn of(&self, threads: usize, map: &str, figure: &str) -> Vec<f64> {
        self.select(threads, map, figure).map(|(_, value)| value).collect()
    }

    /// Values of a figure in the rounds in which both maps were measured, pair by pair.
    pub fn pairs(&self, threads: usize, ours: &str, theirs: &str, figure: &str) -> (Vec<f64>, Vec<f64>) {
        let in_round = |round| self.select(threads, theirs, figure).find(|(r, _)| *r == round).map(|(_, value)| value);
        self.select(threads, ours, figure).filter_map(|(round, ours)| Some((ours, in_round(round)?))).unzip()
    }

    fn select(&self, threads: usize, map: &str, figure: &str) -> impl Iterator<Item = (usize, f64)> {
        let wanted = move |s: &&Sample| s.threads == threads && s.map == map && s.figure == figure;
        self.all.iter().filter(wanted).map(|s| (s.round, s.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(round: usize, map: &str, figure: &str, value: f64) -> Sample {
        let (map, figure) = (map.to_string(), figure.to_string());
        Sample { keys: 10, operations: 5, round, threads: 2, map, figure, value }
    }

    #[test]
    fn pieces_make_a_whole_and_only_rounds_of_both_are_paired() {
        let file = std::env::temp_dir().join(format!("overside-samples-{}", std::process::id()));
        let _ = std::fs::remove_file(&file);
        let mut first = Samples::read(&file, 10, 5).unwrap();
        assert_eq!(first.next_round(), 0);
        first.add(sample(0, "a", "E", 1.0));
        first.add(sample(0, "b", "E", 2.0));
        first.append(&file).unwrap();
        let mut second = Samples::read(&file, 10, 5).unwrap();
        assert_eq!(second.next_round(), 1);
        second.add(sample(1, "a", "E", 3.0));
        second.add(sample(2, "b", "E", 4.0));
        second.add(sample(2, "a", "A", 5.0));
        second.append(&file).unwrap();
        let whole = Samples::read(&file, 10, 5).unwrap();
        assert_eq!(whole.all, second.all);
        assert_eq!(whole.of(2, "a", "E"), [1.0, 3.0]);
        assert_eq!(whole.pairs(2, "a", "b", "E"), (vec![1.0], vec![2.0]));
        assert!(whole.of(1, "a", "E").is_empty());
        let other = Samples::read(&file, 11, 5).unwrap_err().to_string();
        assert!(other.contains("name another file"), "{other}");
        std::fs::write(&file, "what?\n").unwrap();
        assert!(Samples::read(&file, 10, 5).is_err());
        std::fs::remove_file(&file).unwrap();
    }
}
