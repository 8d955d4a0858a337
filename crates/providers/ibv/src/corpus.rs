//! The fuzz target's corpus, replayed: seeds are taken, and all that is near them keeps the
//! parser's promises.

use crate::parts;
use overside_corpus::Corpus;

fn corpus() -> Corpus {
    Corpus::of(env!("CARGO_MANIFEST_DIR"), "side_channel")
}

#[test]
fn the_seeds_are_those_of_this_version_and_taken() {
    parts::seeds().iter().for_each(|seed| corpus().holds(seed));
    corpus().replay(parts::side_channel);
}

/// Of what carries tags, nothing that was changed is taken.
#[test]
fn what_is_near_a_seed_is_refused_or_keeps_the_promises() {
    corpus().near_seeds(usize::MAX, |near| {
        let taken = parts::side_channel(near.bytes);
        let tagged = near.seed.bytes[0] & 1 == 1;
        assert!(!taken || !tagged || near.cut || near.at == 0, "byte {} became {}", near.at, near.bytes[near.at]);
    });
}
