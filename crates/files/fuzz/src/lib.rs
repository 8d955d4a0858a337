//! What loading a file promises, whatever its bytes are: the checks behind the fuzz targets.

#![forbid(unsafe_code)]

mod checks;

pub use checks::{TARGETS, arrow, csv, parquet};

/// What the checks hold the memory by.
#[global_allocator]
static HEAP: overside_corpus::MeteredHeap = overside_corpus::MeteredHeap;
