//! How the fragments lie that TPC-H's own shuffles and projections send, by gap analysis.

use super::super::figure::{Figure, Table};
use crate::lineitem::{Lineitem, Row, schema};
use anyhow::Result;
use overside::{
    shape::{Bitmap, Column, Order, Run, Shape},
    table::row::{RowLayout, RowPart},
};

/// Shares of what is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Adjacency {
    /// Fragments for each value that is sent: 1 where none lies next to the one before.
    fragments: f64,
    /// Of the values, how many lie next to the one before or behind a gap of a cache line or less.
    close: f64,
    /// How many lengths of gap there are.
    lengths: usize,
}

/// Counts, and the table of what was counted.
pub(super) fn count(figure: &mut Figure) -> Result<Table> {
    let table = Lineitem::sample(SCALE);
    let rows = table.rows();
    let mut lines = Vec::new();
    let mut tell = |figure: &mut Figure, of: String, x: u64, found: Adjacency| {
        figure.count(&format!("fragments a value: {of}"), x, None, found.fragments);
        figure.count(&format!("values close to the one before, share: {of}"), x, None, found.close);
        figure.count(&format!("lengths of gaps: {of}"), x, None, found.lengths as f64);
        lines.push(vec![
            of,
            x.to_string(),
            format!("{:.2}", found.fragments),
            format!("{:.0} %", 100.0 * found.close),
            found.lengths.to_string(),
        ]);
    };
    for (name, key) in KEYS {
        for destinations in DESTINATIONS {
            let to = |row: u64| mixed(key(&rows.row(row as usize))) % destinations;
            let shape = shuffled(rows.len() as u64, |row| to(row) == 0)?;
            tell(figure, format!("shuffle by {name}"), destinations, found(&shape, values(&shape)));
        }
    }
    for (query, columns) in QUERIES {
        let shape = projected(rows.len().min(PROJECTED_ROWS), columns)?;
        let values = (rows.len().min(PROJECTED_ROWS) * columns.len()) as u64;
        tell(figure, "projection".into(), query, found(&shape, values));
    }
    let head = ["", "destinations or query", "fragments a value", "close", "lengths of gaps"];
    Ok(Table {
        caption: "Fragments of TPC-H's lineitem; close is next to the value before, or a cache line away at most"
            .into(),
        head: head.map(str::to_owned).to_vec(),
        rows: lines,
    })
}

/// A column of eight bytes, of which the rows that `goes` says go to one destination.
fn shuffled(rows: u64, goes: impl Fn(u64) -> bool) -> Result<Shape> {
    let column = Column { base: 0, stride: VALUE_BYTES, width: VALUE_BYTES };
    Ok(Shape::bitmapped(&[column], &Bitmap::of(rows, goes), Order::Rows)?)
}

/// These columns of rows as the table lays them out, one row after another.
fn projected(rows: usize, columns: &[usize]) -> Result<Shape> {
    let layout = RowLayout::new(&schema()?);
    let mut runs = Vec::new();
    for row in 0..rows as u64 {
        for column in columns {
            if let RowPart::Fixed { offset, width, .. } = layout.column(*column).place {
                runs.push(Run::new(row * layout.prefix_len() as u64 + offset as u64, width as u64));
            }
        }
    }
    Ok(Shape::list(&runs)?)
}

fn values(shape: &Shape) -> u64 {
    shape.bytes() / VALUE_BYTES
}

fn found(shape: &Shape, values: u64) -> Adjacency {
    let classes = shape.gap_classes();
    let gaps: u64 = classes.iter().map(|class| class.count).sum();
    let short: u64 = classes.iter().filter(|class| class.len <= LINE_BYTES).map(|class| class.count).sum();
    // The first value has none before it.
    let followers = values.saturating_sub(1).max(1);
    Adjacency {
        fragments: (gaps + 1) as f64 / values.max(1) as f64,
        close: (followers - gaps + short) as f64 / followers as f64,
        lengths: classes.len(),
    }
}

fn mixed(key: i64) -> u64 {
    let z = (key as u64).wrapping_add(0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (z ^ (z >> 29)).wrapping_mul(0x94D0_49BB_1331_11EB) >> 33
}

type Key = fn(&Row<'_>) -> i64;
/// What joins go by: with orders (queries 3, 5, 7 to 10, 12, 18, 21), with part (8, 9, 14, 17, 19).
const KEYS: [(&str, Key); 2] = [("order", |row| row.orderkey), ("part", |row| row.partkey)];
const DESTINATIONS: [u64; 3] = [2, 8, 32];
/// The columns of fixed width that a query reads of lineitem, by the table's
/// numbers, in their order.
const QUERIES: [(u64, &[usize]); 4] =
    [(1, &[4, 5, 6, 7, 10]), (3, &[0, 5, 6, 10]), (6, &[4, 5, 6, 10]), (14, &[1, 5, 6, 10])];
const SCALE: f64 = 0.01;
const PROJECTED_ROWS: usize = 1000;
const VALUE_BYTES: u64 = 8;
const LINE_BYTES: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use overside_evidence::Says;

    #[test]
    fn gaps_are_told_by_their_length() {
        // Rows 0, 1, 3, 20: one lies next to the one before, one behind a gap of 8 bytes, one behind 128.
        let shape = shuffled(30, |row| [0, 1, 3, 20].contains(&row)).unwrap();
        let found = found(&shape, values(&shape));
        assert_eq!((found.fragments, found.lengths), (0.75, 2));
        assert!((found.close - 2.0 / 3.0).abs() < 1e-9, "{found:?}");
    }

    /// What is counted is of no machine: both claims about fragments have their verdicts here.
    #[test]
    fn lineitem_has_the_fragments_that_the_paper_speaks_of() {
        let mut figure = Figure::new("costs", "", "");
        count(&mut figure).unwrap();
        figure.judge().unwrap();
        for claim in ["DR-C09", "DR-C38"] {
            let said = figure.claims.iter().map(|one| &one.judgement).find(|said| said.claim == claim).unwrap();
            assert_eq!(said.verdict, Says::Agrees, "{claim}: {}", said.here());
        }
    }

    #[test]
    fn a_projection_has_the_gaps_of_one_row_again_and_again() {
        let shape = projected(50, QUERIES[2].1).unwrap();
        let found = found(&shape, 200);
        assert!(found.lengths <= 4 && found.fragments <= 0.75, "{found:?}");
    }
}
