//! The fuzz targets' corpus, replayed: seeds are those of this version, and near them nothing breaks a promise.

use overside_corpus::{Check, Corpus};
use overside_vault::files::{fuzz_files, seeds_files};
use overside_vault::fronts::fuse::{fuzz_fuse, seeds_fuse};
use overside_vault::fronts::nbd::{fuzz_nbd, seeds_nbd};
use overside_vault::fronts::ublk::{fuzz_ublk, seeds_ublk};
use overside_vault::home::{fuzz_superblock, seeds_superblock};
use overside_vault::members::volatile::{fuzz_unflushed, seeds_unflushed};
use overside_vault::server::{fuzz_access, seeds_access};
use overside_vault::trace::{fuzz_trace, seeds_trace};

/// How many neighbours of a seed are looked at is of each target.
fn targets() -> [(&'static str, Vec<Vec<u8>>, Check, usize); 8] {
    [
        ("access", seeds_access(), fuzz_access, 400),
        ("files", seeds_files(), fuzz_files, 700),
        ("fuse", seeds_fuse(), fuzz_fuse, 400),
        ("nbd", seeds_nbd(), fuzz_nbd, 400),
        ("superblock", seeds_superblock(), fuzz_superblock, 128),
        ("trace", seeds_trace(), fuzz_trace, 400),
        ("ublk", seeds_ublk(), fuzz_ublk, 400),
        ("unflushed", seeds_unflushed(), fuzz_unflushed, 48),
    ]
}

#[test]
fn the_seeds_are_those_of_this_version_and_taken() {
    for (target, seeds, check, _) in targets() {
        let corpus = Corpus::of(env!("CARGO_MANIFEST_DIR"), target);
        seeds.iter().for_each(|seed| corpus.holds(seed));
        corpus.replay(check);
    }
}

#[test]
fn what_is_near_a_seed_is_taken_or_refused() {
    for (target, _, check, within) in targets() {
        Corpus::of(env!("CARGO_MANIFEST_DIR"), target).near_seeds(within, |near| _ = check(near.bytes));
    }
}
