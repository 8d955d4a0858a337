//! Directories that released versions left are read. `version-1` was written by `left_by_this_version` below.

mod life;
mod memory;

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use life::{Written, options, recover};
use memory::Files;
use overside_log::{Durability, Options};

const NAMES: [&str; 3] = ["", "log", "checkpoint"];

fn small() -> Options {
    Options { segment_bytes: 8 * 4096, ..options(Durability::Sync) }
}

/// A checkpoint, then changes in two segments, and a clean end.
fn left_by_this_version() -> Arc<Mutex<Files>> {
    let files = Files::new(11);
    let mut life = recover(&files, small()).unwrap().life;
    let mut written = Written::default();
    for key in 0..8 {
        assert!(life.put(&mut written, key, Some(100 + usize::from(key))));
        life.rest();
    }
    assert!(life.checkpoint(&mut written, &[(2, 20), (6, 60)]));
    for key in 0..4 {
        assert!(life.put(&mut written, key, (key != 1).then_some(3000)));
        life.rest();
    }
    life.log.close();
    life.rest();
    assert!(life.log.is_closed());
    files
}

#[test]
fn what_version_1_left_is_read_and_taken_up() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/version-1");
    let files = Files::new(1);
    for name in NAMES {
        for entry in fs::read_dir(folder.join(name)).unwrap().map(Result::unwrap) {
            let path = Path::new(name).join(entry.file_name());
            if entry.file_type().unwrap().is_file() {
                files.lock().unwrap().add(path.to_str().unwrap(), fs::read(entry.path()).unwrap());
            }
        }
    }
    let checked = overside_log::check(memory::MemoryDisk::new(&files), small()).unwrap();
    assert_eq!((checked.faults.len(), checked.tables, checked.rows), (0, 1, 8));
    // With segments of another length than theirs.
    let mut recovered = recover(&files, options(Durability::Sync)).unwrap();
    let rows: Vec<_> =
        recovered.life.state.iter().map(|(key, (stamp, value))| (*key, *stamp, value.as_ref().map(Vec::len))).collect();
    let expected = [
        (0, 11, Some(3000)),
        (1, 12, None),
        (2, 13, Some(3000)),
        (3, 14, Some(3000)),
        (4, 5, Some(104)),
        (5, 6, Some(105)),
        (6, 10, Some(60)),
        (7, 8, Some(107)),
    ];
    assert_eq!(rows, expected);
    assert_eq!((recovered.replayed.next_stamp, recovered.replayed.next_table), (15, 4));
    let mut written = Written::default();
    assert!(recovered.life.put(&mut written, 1, Some(1)));
    recovered.life.rest();
    let state = recovered.life.state.clone();
    drop(recovered);
    assert_eq!(recover(&files, small()).unwrap().life.state, state);
}

/// Writes the directory of this version: `cargo test -p overside-log --test versions -- --ignored`, once for each version.
#[test]
#[ignore = "writes into the sources"]
fn write_the_directory_of_this_version() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/version-{}", overside_log::VERSION));
    assert!(!folder.exists(), "there is one; a changed format has a new version");
    for (name, bytes) in left_by_this_version().lock().unwrap().contents() {
        if !name.ends_with(".spare") {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }
}
