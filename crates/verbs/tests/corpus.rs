//! The fuzz target's corpus, replayed: seeds are taken, and of all that is near them only what proves the key.

use std::fs;
use std::path::Path;

use overside_verbs::handshake::parts;

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/handshake");
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
        assert!(parts::handshake(&bytes), "refused: {bytes:02x?}");
    }
}

/// Each byte changed in turn, and cut off there. Nobody with another word, nonce or proof is known.
#[test]
fn what_is_near_a_seed_is_refused() {
    for mut bytes in corpus() {
        for at in 0..bytes.len() {
            assert!(!parts::handshake(&bytes[..at]), "cut off at {at}");
            let was = bytes[at];
            for now in [was.wrapping_add(1), was ^ 1, was ^ 0x80] {
                bytes[at] = now;
                // The first bytes only say which side we are, and in which portions the rest comes.
                assert!(!parts::handshake(&bytes) || at < 2, "byte {at} changed to {now}");
            }
            bytes[at] = was;
        }
    }
}
