//! The fuzz target's corpus, replayed: seeds are taken, and all that is near them keeps the
//! parsers' promises.

use crate::parts;
use overside_corpus::{Check, Corpus};

const TARGETS: [(&str, Check); 3] =
    [("frames", parts::frames), ("one_sided", parts::one_sided), ("two_ends", parts::two_ends)];

fn corpus(target: &str) -> Corpus {
    Corpus::of(env!("CARGO_MANIFEST_DIR"), target)
}

#[test]
fn the_seeds_are_those_of_this_version_and_taken() {
    parts::seeds().iter().for_each(|(target, seed)| corpus(target).holds(seed));
    TARGETS.iter().for_each(|(target, check)| corpus(target).replay(*check));
}

#[test]
fn what_is_near_a_seed_is_refused_or_answers() {
    for (target, check) in TARGETS {
        // A script takes a thousand times as long as a frame.
        let within = if target == "two_ends" { 40 } else { 150 };
        corpus(target).near_seeds(within, |near| _ = check(near.bytes));
    }
}

#[test]
fn a_tagged_frame_that_was_changed_anywhere_is_refused() {
    for seed in corpus("frames").seeds().filter(|seed| seed.bytes[0] & 1 == 1) {
        let mut bytes = seed.bytes.clone();
        for at in (1..bytes.len()).step_by(31) {
            bytes[at] ^= 4;
            assert!(!parts::frames(&bytes), "{}: byte {at}", seed.path.display());
            bytes[at] ^= 4;
        }
    }
}
