//! Damaged files: every byte changed, every length cut, and nothing but errors comes of it.

use super::checks::{TARGETS, peak_max};
use super::samples::{every_type, many};
use anyhow::Result;
use arrow_array::RecordBatch;
use arrow_schema::Field;
use overside_corpus::{Corpus, MeteredHeap};
use overside_files::BATCH_ROWS;
use overside_files::create;
use overside_files::open_as;
use std::fs;
use std::fs::File;
use std::io::Seek;
use std::io::Write;
use std::path::Path;

/// An allocation beyond this aborts the tests: what a file claims must not become memory.
fn bound_memory() {
    let bound = Some(3 << 30);
    let limit = rustix::process::Rlimit { current: bound, maximum: bound };
    rustix::process::setrlimit(rustix::process::Resource::As, limit).unwrap();
}

/// Reads a file of `bytes` to its end, or to its first error, in as much memory as reading such a file may take.
fn read_all(name: &str, bytes: &[u8], columns: &[Field]) -> Result<usize> {
    bound_memory();
    let (read, peak) = MeteredHeap::peak(|| read_rows(name, bytes, columns));
    assert!(peak <= peak_max(bytes.len()), "{name} took {peak} bytes");
    if let Err(error) = &read
        && !name.ends_with(".csv")
    {
        let refusal = format!("{error:#}");
        // What stands between backquotes is the file's.
        let own: String = refusal.split('`').step_by(2).collect();
        let mut behind = own.split("; ").skip(1);
        assert!(behind.any(|advice| ADVICE.iter().any(|verb| advice.starts_with(verb))), "{refusal}");
    }
    read
}

/// What the reader of a refusal can do.
const ADVICE: [&str; 14] = [
    "convert",
    "copy",
    "decode",
    "decrypt",
    "flatten",
    "it holds only nulls: leave it out",
    "leave",
    "make it binary",
    "merge",
    "rename",
    "rewrite",
    "shorten",
    "store",
    "write",
];

fn read_rows(name: &str, bytes: &[u8], columns: &[Field]) -> Result<usize> {
    // In memory: there are ten thousands of these files.
    let memory = rustix::fs::memfd_create("hostile", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = File::from(memory);
    file.write_all(bytes)?;
    file.rewind()?;
    let mut reader = open_as(Path::new(name), file, columns)?;
    let mut rows = 0;
    // A damaged count may claim any number of rows, and runs of equal values hold them in a few
    // bytes; the first of them show that no batch of them harms.
    while rows < 4 * BATCH_ROWS
        && let Some(batch) = reader.next_batch()?
    {
        rows += batch.num_rows();
    }
    Ok(rows)
}

fn written(name: &str, batch: &RecordBatch) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let mut writer = create(&path, batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.finish().unwrap();
    fs::read(&path).unwrap()
}

/// Cuts the file at every `step`th length; all but CSV must notice.
fn every_truncation(name: &str, whole: &[u8], step: usize, noticed: bool) {
    for length in (0..whole.len()).step_by(step) {
        let read = read_all(name, &whole[..length], &[]);
        assert!(read.is_err() || !noticed, "{name} cut to {length} of {} bytes", whole.len());
    }
}

/// Changes every `step`th byte in a few ways, and puts the greatest number of 32 bits over it; the
/// reader may succeed, but must return.
fn every_change(name: &str, whole: &[u8], step: usize) {
    let mut bytes = whole.to_vec();
    for at in (0..whole.len()).step_by(step) {
        for change in [0xFF, 0x80, 0x01] {
            bytes[at] = whole[at] ^ change;
            let _ = read_all(name, &bytes, &[]);
        }
        let varint = [0xFF, 0xFF, 0xFF, 0xFF, 0x0F];
        let end = whole.len().min(at + varint.len());
        bytes[at..end].copy_from_slice(&varint[..end - at]);
        let _ = read_all(name, &bytes, &[]);
        bytes[at..end].copy_from_slice(&whole[at..end]);
    }
}

#[test]
fn parquet_of_every_type() {
    let whole = written("t.parquet", &every_type());
    assert_eq!(read_all("t.parquet", &whole, &[]).unwrap(), 5);
    every_truncation("t.parquet", &whole, 7, true);
    every_change("t.parquet", &whole, 7);
}

#[test]
fn refused_files_of_another_writer_say_what_to_do() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    // `read_all` looks at each refusal.
    for name in ["every_type.parquet", "every_type.arrow"] {
        let whole = fs::read(folder.join(name)).unwrap();
        assert!(read_all(name, &whole, &[]).unwrap() > 0);
        every_truncation(name, &whole, 31, true);
        every_change(name, &whole, 17);
    }
}

#[test]
fn parquet_with_dictionaries_and_runs() {
    let whole = written("t.parquet", &many(700));
    every_change("t.parquet", &whole, 11);
}

#[test]
fn arrow_files_of_every_type() {
    let whole = written("t.arrow", &every_type());
    assert_eq!(read_all("t.arrow", &whole, &[]).unwrap(), 5);
    every_truncation("t.arrow", &whole, 7, true);
    every_change("t.arrow", &whole, 5);
}

#[test]
fn csv_of_every_type() {
    let batch = every_type();
    let whole = written("t.csv", &batch);
    every_truncation("t.csv", &whole, 7, false);
    every_change("t.csv", &whole, 7);
}

#[test]
fn compressed_and_encoded_files_of_another_writer() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    for (name, step) in [
        ("delta.parquet", 1),
        ("int96.parquet", 3),
        ("v2_zstd.parquet", 23),
        ("gzip.parquet", 41),
        ("lz4.feather", 23),
        ("zstd.arrow", 41),
        ("variants.arrow", 13),
        ("dictionary_stream.arrows", 3),
    ] {
        let whole = fs::read(folder.join(name)).unwrap();
        assert!(read_all(name, &whole, &[]).unwrap() > 0);
        every_truncation(name, &whole, 101, !name.ends_with("arrows"));
        every_change(name, &whole, step);
    }
}

#[test]
fn claims_of_a_few_bytes_allocate_nothing_absurd() {
    // A footer of 4 GiB, a record batch of 2^60 rows: refused by the file's size.
    let mut parquet = b"PAR1........".to_vec();
    parquet.extend(u32::MAX.to_le_bytes());
    parquet.extend(b"PAR1");
    let told = format!("{:#}", read_all("t.parquet", &parquet, &[]).unwrap_err());
    assert!(told.contains("footer claims to be longer"), "{told}");
    let mut arrow = b"ARROW1\0\0........".to_vec();
    arrow.extend(u32::MAX.to_le_bytes());
    arrow.extend(b"ARROW1");
    let told = format!("{:#}", read_all("t.arrow", &arrow, &[]).unwrap_err());
    assert!(told.contains("footer claims to be longer"), "{told}");
    let stream = [&[0xFF; 4][..], &i32::MAX.to_le_bytes(), &[0; 64]].concat();
    let told = format!("{:#}", read_all("t.arrow", &stream, &[]).unwrap_err());
    assert!(told.contains("outside of the file"), "{told}");
}

#[test]
fn every_fuzz_target_takes_its_seeds() {
    for (target, check) in TARGETS {
        Corpus::of(env!("CARGO_MANIFEST_DIR"), target).replay(check);
    }
}
