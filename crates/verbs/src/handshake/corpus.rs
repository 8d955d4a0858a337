//! The fuzz target's corpus, replayed: seeds are taken, and of all that is near them only what
//! proves the key.

use super::parts;
use overside_corpus::Corpus;

fn corpus() -> Corpus {
    Corpus::of(env!("CARGO_MANIFEST_DIR"), "handshake")
}

#[test]
fn the_seeds_are_those_of_this_version_and_taken() {
    parts::seeds().iter().for_each(|seed| corpus().holds(seed));
    corpus().replay(parts::handshake);
}

/// Nobody with another word, nonce or proof is known.
#[test]
fn what_is_near_a_seed_is_refused() {
    corpus().near_seeds(usize::MAX, |near| {
        // The first bytes only say which side we are, and in which portions the rest comes.
        let refused = !parts::handshake(near.bytes) || (near.at < 2 && !near.cut);
        assert!(refused, "byte {} became {:?}", near.at, near.bytes.get(near.at));
    });
}
