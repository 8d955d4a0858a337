//! The fuzz targets' corpus, replayed: seeds are accepted, and they and all that is near them keep the parsers' promises.

use std::fs;
use std::path::{Path, PathBuf};

#[path = "../fuzz/src/lib.rs"]
mod fuzz;

/// The inputs of one target, by name.
fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}; run the seeds binary", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Others were found by fuzzing; they need not be taken.
fn is_seed(path: &Path) -> bool {
    path.file_name().unwrap().to_string_lossy().starts_with("seed-")
}

#[test]
fn every_target_has_seeds_and_takes_them() {
    for (target, check) in fuzz::TARGETS {
        let mut seeds = 0;
        for (path, bytes) in corpus(target) {
            let taken = check(&bytes);
            if is_seed(&path) {
                assert!(
                    taken,
                    "{} is refused; a format that changed needs a new version and new seeds",
                    path.display()
                );
                seeds += 1;
            }
        }
        assert!(seeds > 0, "{target} has no seed");
    }
}

/// Each byte changed in turn, and cut off there.
#[test]
fn what_is_near_a_seed_is_refused_or_answers() {
    for (target, check) in fuzz::TARGETS {
        for (_, mut bytes) in corpus(target).into_iter().filter(|(path, _)| is_seed(path)) {
            for at in 0..bytes.len().min(NEAR_BYTES_MAX) {
                check(&bytes[..at]);
                let was = bytes[at];
                for now in [0, was ^ 1, was ^ 0x80, 0xff] {
                    bytes[at] = now;
                    check(&bytes);
                }
                bytes[at] = was;
            }
        }
    }
}

/// How far into an input bytes are changed.
const NEAR_BYTES_MAX: usize = 2048;
