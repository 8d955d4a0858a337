//! The checks, which a test of the crate runs over the corpus as well.

use overside_corpus::{Check, MeteredHeap};
use overside_files::budget::BATCH_BYTES_MAX;
use overside_files::open_as;
use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;

/// Every target, by the name of its binary and of its folder in `corpus/`.
pub const TARGETS: [(&str, Check); 3] = [("arrow", arrow), ("csv", csv), ("parquet", parquet)];

/// A Parquet file.
pub fn parquet(data: &[u8]) -> bool {
    read("t.parquet", data)
}

/// An Arrow file or stream.
pub fn arrow(data: &[u8]) -> bool {
    read("t.arrow", data)
}

/// A CSV file.
pub fn csv(data: &[u8]) -> bool {
    read("t.csv", data)
}

/// Reads a file's first batches in bounded memory: all of it, for files as long as the corpus has.
fn read(name: &str, data: &[u8]) -> bool {
    let memory = rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC);
    let mut file = File::from(memory.expect("a descriptor"));
    file.write_all(data).and_then(|()| file.rewind()).expect("memory for the file");
    let (taken, peak) = MeteredHeap::peak(|| {
        let mut reader = open_as(Path::new(name), file, &[]).ok()?;
        for _ in 0..BATCHES {
            let Some(batch) = reader.next_batch().ok()? else { break };
            assert!(batch.num_rows() > 0, "a batch of no rows");
        }
        Some(())
    });
    let most = peak_max(data.len());
    assert!(peak <= most, "{} bytes of {name} took {peak} bytes of memory, more than {most}", data.len());
    taken.is_some()
}

/// What reading a file may take at most: what is held of it, what is decoded of it for a batch, the
/// batch, and what its outline becomes in memory.
pub fn peak_max(file_bytes: usize) -> usize {
    3 * BATCH_BYTES_MAX + file_bytes * OUTLINE
}

/// Batches that are read: a few bytes may stand for any number.
const BATCHES: usize = 4;
/// A byte of a footer, and of what is held of the file, in memory.
const OUTLINE: usize = 100;
