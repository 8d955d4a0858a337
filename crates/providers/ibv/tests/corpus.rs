//! The fuzz target's corpus, replayed: seeds are taken, and all that is near them keeps the parser's promises.

use std::fs;
use std::path::Path;

use overside_ibv::parts;

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/side_channel");
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}; run the seeds binary", folder.display()));
    let mut inputs: Vec<Vec<u8>> = entries.map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
    inputs.sort();
    inputs
}

#[test]
fn the_seeds_are_those_of_this_version_and_taken() {
    let kept = corpus();
    for bytes in parts::seeds() {
        assert!(
            kept.contains(&bytes),
            "a seed is not in corpus/: a format that changed needs a new version and new seeds"
        );
        assert!(parts::side_channel(&bytes), "refused: {bytes:02x?}");
    }
}

/// Each byte changed in turn, and cut off there; of what carries tags, nothing that was changed is taken.
#[test]
fn what_is_near_a_seed_is_refused_or_keeps_the_promises() {
    for mut bytes in corpus() {
        let tagged = bytes[0] & 1 == 1;
        for at in 0..bytes.len() {
            parts::side_channel(&bytes[..at]);
            let was = bytes[at];
            for now in [0, was ^ 1, was ^ 0x80] {
                bytes[at] = now;
                let taken = parts::side_channel(&bytes);
                assert!(!taken || !tagged || at == 0 || now == was, "byte {at} changed to {now}");
            }
            bytes[at] = was;
        }
    }
}
