//! The fuzz target's corpus, replayed: an honest peer keeps its connection, and whatever another
//! does harms nobody.

use crate::parts;
use overside_corpus::Corpus;

fn corpus() -> Corpus {
    Corpus::of(env!("CARGO_MANIFEST_DIR"), "ring")
}

#[test]
fn the_seeds_are_those_of_this_version_and_taken() {
    parts::seeds().iter().for_each(|(_, seed)| corpus().holds(seed));
    corpus().replay(parts::ring);
}

#[test]
fn what_is_near_a_seed_harms_nobody() {
    corpus().near_seeds(150, |near| _ = parts::ring(near.bytes));
}
