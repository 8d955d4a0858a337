//! Files of every kind read and written: by other writers, by our own, damaged and hostile.

mod bombs;
#[path = "../../fuzz/src/checks.rs"]
mod checks;
mod fixtures;
mod hostile;
mod round_trip;
mod samples;

/// Tests hold what a file can make its reader allocate.
#[global_allocator]
static HEAP: overside_corpus::MeteredHeap = overside_corpus::MeteredHeap;
