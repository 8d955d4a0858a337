//! What a tree operation costs in instructions: run under callgrind by `cargo xtask instructions`.
//!
//! `tree_instructions SCENARIO` prepares a tree of 100,000 records, then runs the scenario inside of `measured`, the one
//! function that is counted, and prints how many units it did.

use std::hint::black_box;
use std::ops::Bound;
use std::sync::Arc;

use overside_bwtree::{Direction, HeapArena, Options, Run, Tree};

fn main() {
    let scenario = std::env::args().nth(1).unwrap_or_default();
    let arena = Arc::new(HeapArena::new(256 << 20).expect("address space"));
    let tree = Tree::new(arena, Options { prefix_len: 8, ..Options::default() }).expect("a tree");
    for i in 0..RECORDS {
        tree.insert(&key(i), &i.to_le_bytes()).expect("room");
    }
    let units = match scenario.as_str() {
        "get" => measured(|| get(&tree)),
        "insert" => measured(|| insert(&tree)),
        "upsert" => measured(|| upsert(&tree)),
        "range" => measured(|| range(&tree)),
        "scan" => measured(|| scan(&tree)),
        _ => {
            eprintln!("tree_instructions get|insert|upsert|range|scan, not {scenario:?}");
            std::process::exit(2);
        }
    };
    println!("{units}");
}

#[inline(never)]
fn measured(work: impl FnOnce() -> u64) -> u64 {
    work()
}

fn get(tree: &Tree) -> u64 {
    let mut out = Vec::new();
    for i in 0..OPERATIONS {
        assert!(tree.get(&key(i * 7 % RECORDS), &mut out).expect("no error"));
    }
    OPERATIONS
}

fn insert(tree: &Tree) -> u64 {
    for i in 0..OPERATIONS {
        tree.insert(&key(RECORDS + i), &i.to_le_bytes()).expect("room");
    }
    OPERATIONS
}

fn upsert(tree: &Tree) -> u64 {
    for i in 0..OPERATIONS {
        tree.upsert(&key(i * 7 % RECORDS), &i.to_le_bytes()).expect("room");
    }
    OPERATIONS
}

/// Ranges of 50 rows.
fn range(tree: &Tree) -> u64 {
    let mut sum = 0u64;
    for i in 0..OPERATIONS / 10 {
        let mut left = 50;
        for page in tree.pages(Bound::Included(&key(i * 7 % RECORDS)), Bound::Unbounded, Direction::Forward) {
            for row in page.merged().take(left) {
                sum = sum.wrapping_add(u64::from(row.prefix[0]));
                left -= 1;
            }
            if left == 0 {
                break;
            }
        }
    }
    black_box(sum);
    OPERATIONS / 10
}

/// All rows, by slices.
fn scan(tree: &Tree) -> u64 {
    let (mut rows, mut sum) = (0, 0u64);
    for page in tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward) {
        let leaf = page.leaf();
        for run in page.runs() {
            match run {
                Run::Base(at) => {
                    let values = leaf.prefixes()[8 * at.start..8 * at.end].as_chunks::<8>().0;
                    rows += values.len() as u64;
                    sum = values.iter().fold(sum, |sum, value| sum.wrapping_add(u64::from_le_bytes(*value)));
                }
                Run::Delta(delta) => {
                    rows += 1;
                    sum = sum.wrapping_add(u64::from(delta.prefix()[0]));
                }
            }
        }
    }
    black_box(sum);
    rows
}

fn key(n: u64) -> [u8; 8] {
    (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31).wrapping_mul(0xBF58_476D_1CE4_E5B9).to_be_bytes()
}

const RECORDS: u64 = 100_000;
const OPERATIONS: u64 = 20_000;
