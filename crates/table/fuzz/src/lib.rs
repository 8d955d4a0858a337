//! The checks behind the fuzz targets, and what they share. `tests/corpus.rs` of the crate replays
//! the corpus through the same functions.

#![forbid(unsafe_code)]

mod checks;
mod lent;

pub use checks::{batch, control, key, parts, row, scan_answer, schema};

use overside_table::projection::Projection;
use overside_table::schema::{Column, ColumnType, Schema, TimeUnit};

/// Takes an input: panics where the parser broke a promise, answers whether the parser accepted it.
pub type Check = fn(&[u8]) -> bool;

/// Every target, by the name of its binary and of its folder in `corpus/`.
pub const TARGETS: [(&str, Check); 7] = [
    ("batch", batch),
    ("control", control),
    ("key", key),
    ("parts", parts),
    ("row", row),
    ("scan_answer", scan_answer),
    ("schema", schema),
];

/// A table with a column of each kind, nullable ones among them.
pub fn table() -> Schema {
    let columns = vec![
        Column::new("id", ColumnType::Int64),
        Column::new("name", ColumnType::Utf8),
        Column::nullable("small", ColumnType::Int8),
        Column::nullable("price", ColumnType::Decimal128 { precision: 15, scale: 2 }),
        Column::new("when", ColumnType::Timestamp { unit: TimeUnit::Microsecond, zone: None }),
        Column::nullable("flag", ColumnType::Boolean),
        Column::new("digest", ColumnType::FixedBinary(5)),
        Column::nullable("note", ColumnType::Binary),
        Column::new("ratio", ColumnType::Float64),
    ];
    Schema::with_key(columns, &["name", "id"]).expect("a schema within the limits")
}

/// All columns, fixed ones only, and some of both in another order; chosen by
/// the first byte of an input.
pub fn projection(choice: u8) -> Projection {
    let schema = table();
    match choice % 3 {
        0 => Projection::whole(&schema),
        1 => Projection::new(&schema, &[8, 0, 5]).expect("columns of the table"),
        _ => Projection::new(&schema, &[7, 3, 0]).expect("columns of the table"),
    }
}
