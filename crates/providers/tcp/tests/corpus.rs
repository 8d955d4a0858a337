//! The fuzz targets' corpus, replayed: seeds are taken, and all that is near them keeps the parsers' promises.

use std::fs;
use std::path::{Path, PathBuf};

use overside_tcp::parts;

type Check = fn(&[u8]) -> bool;
const TARGETS: [(&str, Check); 2] = [("frames", parts::frames), ("one_sided", parts::one_sided)];

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}; run the seeds binary", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

#[test]
fn the_seeds_are_those_of_this_version_and_taken() {
    let mut kept: Vec<Vec<u8>> =
        TARGETS.iter().flat_map(|(target, _)| corpus(target)).map(|(_, bytes)| bytes).collect();
    for (target, bytes) in parts::seeds() {
        let at = kept.iter().position(|kept| *kept == bytes);
        assert!(
            at.is_some(),
            "a seed of {target} is not in corpus/: a format that changed needs a new version and new seeds"
        );
        kept.swap_remove(at.unwrap());
        let (_, check) = TARGETS.iter().find(|(name, _)| *name == target).unwrap();
        assert!(check(&bytes), "{target} refuses its seed {bytes:02x?}");
    }
}

/// Inputs that fuzzing found keep the parsers' promises; they need not be taken.
#[test]
fn what_was_found_is_refused_or_answers() {
    for (target, check) in TARGETS {
        corpus(target).iter().for_each(|(_, bytes)| _ = check(bytes));
    }
}

fn is_seed(path: &Path) -> bool {
    path.file_name().unwrap().to_string_lossy().starts_with("seed-")
}

/// Each byte changed in turn, and cut off there.
#[test]
fn what_is_near_a_seed_is_refused_or_answers() {
    for (target, check) in TARGETS {
        for (_, mut bytes) in corpus(target).into_iter().filter(|(path, _)| is_seed(path)) {
            for at in (0..bytes.len()).filter(|at| *at < NEAR_BYTES_MAX || at % 499 == 0) {
                check(&bytes[..at]);
                let was = bytes[at];
                for now in [0, was ^ 1, was ^ 0x80] {
                    bytes[at] = now;
                    check(&bytes);
                }
                bytes[at] = was;
            }
        }
    }
}

#[test]
fn a_tagged_frame_that_was_changed_anywhere_is_refused() {
    let tagged = |(path, bytes): &(PathBuf, Vec<u8>)| is_seed(path) && bytes[0] & 1 == 1;
    for (path, mut bytes) in corpus("frames").into_iter().filter(tagged) {
        for at in (1..bytes.len()).step_by(31) {
            bytes[at] ^= 4;
            assert!(!parts::frames(&bytes), "{}: byte {at}", path.display());
            bytes[at] ^= 4;
        }
    }
}

/// How far into an input every byte is changed.
const NEAR_BYTES_MAX: usize = 150;
