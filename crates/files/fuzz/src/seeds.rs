//! Copies the seeds from the tests' fixtures, which other writers made.

use std::fs;
use std::path::Path;

fn main() -> std::io::Result<()> {
    for (target, fixtures) in SEEDS {
        let folder = Path::new("corpus").join(target);
        fs::create_dir_all(&folder)?;
        for (number, fixture) in fixtures.iter().enumerate() {
            fs::copy(Path::new("../tests/fixtures").join(fixture), folder.join(format!("seed-{number}")))?;
        }
    }
    Ok(())
}

const SEEDS: [(&str, &[&str]); 3] = [
    ("parquet", &["delta.parquet", "int96.parquet", "v2_zstd.parquet", "every_type.parquet"]),
    ("arrow", &["variants.arrow", "dictionary_stream.arrows", "lz4.feather"]),
    ("csv", &["plain.csv"]),
];
