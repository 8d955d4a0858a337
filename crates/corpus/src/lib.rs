//! What fuzzing keeps, replayed by the tests of the crate whose parsers it was made for.
//!
//! A fuzz target's inputs lie in `fuzz/corpus/TARGET` of its crate. Files named `seed-…` were
//! written by the crate's `seeds` program: its parser takes them. The others were found by `cargo
//! xtask fuzz --keep`; all they owe is that the target's promises hold.
#![deny(unsafe_op_in_unsafe_fn)]

mod linearizable;
mod metered;

pub use linearizable::{Event, Model, linearizable};
pub use metered::MeteredHeap;

use std::fs;
use std::path::{Path, PathBuf};

/// Whether a target takes an input; it panics when one of its promises is broken.
pub type Check = fn(&[u8]) -> bool;

/// The inputs of one target, by name of file.
pub struct Corpus {
    target: String,
    inputs: Vec<Input>,
}

/// One file.
pub struct Input {
    /// Where it lies.
    pub path: PathBuf,
    /// What it says.
    pub bytes: Vec<u8>,
}

/// A seed in which something is amiss.
pub struct Near<'a> {
    /// What became of the seed.
    pub bytes: &'a [u8],
    /// The seed.
    pub seed: &'a Input,
    /// Where it was changed.
    pub at: usize,
    /// It ends at `at`; otherwise only the byte there differs.
    pub cut: bool,
}

impl Corpus {
    /// Of the crate in `manifest_dir`: `env!("CARGO_MANIFEST_DIR")` there.
    ///
    /// # Panics
    ///
    /// When there is no such folder, or it has no seed.
    pub fn of(manifest_dir: &str, target: &str) -> Self {
        let folder = Path::new(manifest_dir).join("fuzz/corpus").join(target);
        let entries =
            fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}; run the seeds program", folder.display()));
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let read = |path: PathBuf| Input { bytes: fs::read(&path).unwrap(), path };
        let corpus = Self { target: target.to_owned(), inputs: paths.into_iter().map(read).collect() };
        assert!(corpus.seeds().next().is_some(), "{target} has no seed");
        corpus
    }

    /// All of them.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// Those that the target takes.
    pub fn seeds(&self) -> impl Iterator<Item = &Input> {
        self.inputs.iter().filter(|input| input.is_seed())
    }

    /// Every input is checked, and every seed is taken.
    ///
    /// # Panics
    ///
    /// When a seed is not taken.
    pub fn replay(&self, check: Check) {
        for input in &self.inputs {
            let taken = check(&input.bytes);
            assert!(taken || !input.is_seed(), "{} is refused; {NEW_VERSION}", input.path.display());
        }
    }

    /// The seeds that the parser's crate makes today are among those kept.
    ///
    /// # Panics
    ///
    /// When one is not.
    pub fn holds(&self, seed: &[u8]) {
        let kept = self.seeds().any(|kept| kept.bytes == seed);
        assert!(kept, "a seed of {} is not in its corpus; {NEW_VERSION}: {seed:02x?}", self.target);
    }

    /// All that is near a seed, in turn: cut off, or another byte, at each of its first `within`
    /// places and at some behind.
    pub fn near_seeds(&self, within: usize, mut each: impl FnMut(Near<'_>)) {
        for seed in self.seeds() {
            let mut bytes = seed.bytes.clone();
            for at in (0..bytes.len()).filter(|at| *at < within || at % SOME == 0) {
                each(Near { bytes: &bytes[..at], seed, at, cut: true });
                let was = bytes[at];
                for now in [0, was ^ 1, was ^ 0x80, was.wrapping_add(1), 0xff] {
                    if now != was {
                        bytes[at] = now;
                        each(Near { bytes: &bytes, seed, at, cut: false });
                    }
                }
                bytes[at] = was;
            }
        }
    }
}

impl Input {
    /// Whether the target takes it.
    pub fn is_seed(&self) -> bool {
        self.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("seed-"))
    }
}

const NEW_VERSION: &str = "a format that changed needs a new version and new seeds";
/// Behind the first places of a seed, one in so many is changed.
const SOME: usize = 499;

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Corpus) {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("fuzz/corpus/words");
        fs::create_dir_all(&inside).unwrap();
        for (name, bytes) in files {
            fs::write(inside.join(name), bytes).unwrap();
        }
        let corpus = Corpus::of(folder.path().to_str().unwrap(), "words");
        (folder, corpus)
    }

    #[test]
    fn found_inputs_need_not_be_taken() {
        let (_folder, corpus) = kept(&[("seed-0", b"yes"), ("af3b", b"no")]);
        corpus.replay(|bytes| bytes == b"yes");
        corpus.holds(b"yes");
    }

    #[test]
    #[should_panic(expected = "is refused")]
    fn a_seed_that_is_refused_is_told() {
        kept(&[("seed-0", b"yes")]).1.replay(|_| false);
    }

    #[test]
    #[should_panic(expected = "is not in its corpus")]
    fn a_seed_of_another_version_is_told() {
        kept(&[("seed-0", b"yes"), ("found", b"new")]).1.holds(b"new");
    }

    #[test]
    #[should_panic(expected = "has no seed")]
    fn a_corpus_without_a_seed_is_none() {
        _ = kept(&[("found", b"new")]);
    }

    #[test]
    fn near_is_shorter_or_one_byte_apart_and_never_the_seed() {
        let (_folder, corpus) = kept(&[("seed-0", &[0, 1, 0xff]), ("found", b"x")]);
        let mut seen = 0;
        corpus.near_seeds(2, |near| {
            seen += 1;
            assert_ne!(near.bytes, near.seed.bytes);
            let apart = near.bytes.iter().zip(&near.seed.bytes).filter(|(a, b)| a != b).count();
            assert_eq!(apart, usize::from(!near.cut));
            assert_eq!(near.bytes.len(), if near.cut { near.at } else { 3 });
        });
        // Two places, each cut off and changed to what differs of five: 0 is 0 once and 1 ^ 1 and wraps to itself once more.
        assert_eq!(seen, 2 + (4 + 5));
    }
}
