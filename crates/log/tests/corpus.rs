//! The fuzz targets' corpus, replayed: seeds are accepted, and they and all that is near them keep the parsers' promises.

use overside_corpus::Corpus;

#[path = "../fuzz/src/lib.rs"]
mod fuzz;

#[test]
fn every_target_takes_its_seeds() {
    for (target, seeds) in fuzz::seeds() {
        let corpus = Corpus::of(env!("CARGO_MANIFEST_DIR"), target);
        seeds.iter().for_each(|seed| corpus.holds(seed));
    }
    for (target, check) in fuzz::TARGETS {
        Corpus::of(env!("CARGO_MANIFEST_DIR"), target).replay(check);
    }
}

#[test]
fn what_is_near_a_seed_is_refused_or_answers() {
    for (target, check) in fuzz::TARGETS {
        Corpus::of(env!("CARGO_MANIFEST_DIR"), target).near_seeds(512, |near| _ = check(near.bytes));
    }
}
