//! The fuzz targets' corpus, replayed: seeds are those of this version, and near them nothing breaks a promise.

use overside_corpus::Corpus;
use overside_vault::fronts::nbd::{fuzz_nbd, seeds_nbd};

#[test]
fn the_seeds_are_those_of_this_version_and_taken() {
    let corpus = Corpus::of(env!("CARGO_MANIFEST_DIR"), "nbd");
    seeds_nbd().iter().for_each(|seed| corpus.holds(seed));
    corpus.replay(fuzz_nbd);
}

#[test]
fn what_is_near_a_seed_is_taken_or_refused() {
    Corpus::of(env!("CARGO_MANIFEST_DIR"), "nbd").near_seeds(400, |near| _ = fuzz_nbd(near.bytes));
}
