//! The fuzz target's corpus, replayed: seeds are taken, and what is near them packs what it names or is refused.

mod region;

use std::fs;
use std::path::Path;

use region::{described_and_packed, seeds};

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/region");
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}; run the seeds binary", folder.display()));
    let mut inputs: Vec<Vec<u8>> = entries.map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
    inputs.sort();
    inputs
}

#[test]
fn the_seeds_are_those_of_this_version_and_taken() {
    let kept = corpus();
    for bytes in seeds() {
        assert!(
            kept.contains(&bytes),
            "a seed is not in corpus/: a format that changed needs a new version and new seeds"
        );
        assert!(described_and_packed(&bytes), "refused: {bytes:02x?}");
    }
}

#[test]
fn what_is_near_a_seed_packs_what_it_names_or_is_refused() {
    for mut bytes in corpus() {
        described_and_packed(&bytes);
        for at in 0..bytes.len() {
            let was = bytes[at];
            for now in [was.wrapping_add(1), was ^ 0x80, 0xFF] {
                bytes[at] = now;
                described_and_packed(&bytes);
            }
            bytes[at] = was;
        }
    }
}
