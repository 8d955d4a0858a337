//! The fuzz targets' corpus, replayed: seeds are those of this version, and near them nothing breaks a promise.

use overside_corpus::{Check, Corpus};
use overside_volume::files::{fuzz_entry, seeds_entries};
use overside_volume::wire::{fuzz_to_client, fuzz_to_node, seeds_to_client, seeds_to_node};
use overside_volume::{fuzz_intents, fuzz_journal, seeds_intents, seeds_journal};

fn targets() -> [(&'static str, Vec<Vec<u8>>, Check); 5] {
    [
        ("entries", seeds_entries(), fuzz_entry),
        ("to_node", seeds_to_node(), fuzz_to_node),
        ("to_client", seeds_to_client(), fuzz_to_client),
        ("intents", seeds_intents(), fuzz_intents),
        ("journal", seeds_journal(), fuzz_journal),
    ]
}

#[test]
fn the_seeds_are_those_of_this_version_and_taken() {
    for (target, seeds, check) in targets() {
        let corpus = Corpus::of(env!("CARGO_MANIFEST_DIR"), target);
        seeds.iter().for_each(|seed| corpus.holds(seed));
        corpus.replay(check);
    }
}

#[test]
fn what_is_near_a_seed_is_taken_or_refused() {
    for (target, _, check) in targets() {
        Corpus::of(env!("CARGO_MANIFEST_DIR"), target).near_seeds(2048, |near| _ = check(near.bytes));
    }
}
