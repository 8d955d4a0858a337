//! Generating the table, a part per thread.

use super::{NarrowRows, PackedRows, Row};
use std::thread;
use tpchgen::{
    distribution::Distributions,
    generators::{LineItem, LineItemGenerator, LineItemGeneratorIterator},
    text::TextPool,
};

/// The generated table, rows in the order of their keys.
#[derive(Clone, Debug)]
pub struct Lineitem {
    rows: PackedRows,
    scale: f64,
}

impl Lineitem {
    /// Generates the table at TPC-H scale factor `scale` with `threads` threads; the result is the
    /// same for any number of them.
    ///
    /// Takes about 1.2 s for the text that comments are cut from, at any scale, and then a fraction
    /// of a microsecond a row.
    ///
    /// # Errors
    ///
    /// A scale at which the standard has no rows, or beyond what this generator packs into memory.
    pub fn generate(scale: f64, threads: usize) -> Result<Lineitem, GenerateError> {
        Ok(Lineitem { rows: generated(scale, threads)?, scale })
    }

    /// The same rows in a third of the memory.
    ///
    /// # Errors
    ///
    /// As [`generate`](Self::generate).
    pub fn narrow(scale: f64, threads: usize) -> Result<NarrowRows, GenerateError> {
        generated(scale, threads)
    }

    /// Same rows but for their comments, which come from a pool that is made in no time.
    pub(crate) fn sample(scale: f64) -> Lineitem {
        let pool = TextPool::new(1 << 20, Distributions::static_default());
        Lineitem { rows: with_texts(scale, 1, &pool), scale }
    }

    /// The rows.
    pub fn rows(&self) -> &PackedRows {
        &self.rows
    }

    /// The scale factor.
    pub fn scale(&self) -> f64 {
        self.scale
    }
}

/// A scale factor that cannot be generated.
#[derive(Debug, PartialEq)]
pub struct GenerateError {
    scale: f64,
}

impl std::fmt::Display for GenerateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "scale factor {} cannot be generated: give one from {} to {} (0.1 is 600,572 rows)",
            self.scale,
            SCALES.start(),
            SCALES.end()
        )
    }
}

impl std::error::Error for GenerateError {}

/// Where rows are generated to.
trait Target: Default + Send {
    fn with_room(rows: usize) -> Self;
    fn push(&mut self, row: &Row<'_>);
    fn append(&mut self, other: Self);
}

impl Target for PackedRows {
    fn with_room(rows: usize) -> PackedRows {
        PackedRows::with_capacity(rows)
    }

    fn push(&mut self, row: &Row<'_>) {
        PackedRows::push(self, row);
    }

    fn append(&mut self, other: PackedRows) {
        PackedRows::append(self, &other);
    }
}

impl Target for NarrowRows {
    fn with_room(rows: usize) -> NarrowRows {
        NarrowRows::with_capacity(rows)
    }

    fn push(&mut self, row: &Row<'_>) {
        NarrowRows::push(self, row);
    }

    fn append(&mut self, other: NarrowRows) {
        NarrowRows::append(self, &other);
    }
}

fn generated<T: Target>(scale: f64, threads: usize) -> Result<T, GenerateError> {
    if !SCALES.contains(&scale) {
        return Err(GenerateError { scale });
    }
    // Not the crate's global pool: that would keep its 300 MB for as long as the process lives.
    let pool = TextPool::new(TEXT_POOL_BYTES, Distributions::static_default());
    Ok(with_texts(scale, threads, &pool))
}

fn with_texts<T: Target>(scale: f64, threads: usize, pool: &TextPool) -> T {
    let distributions = Distributions::static_default();
    let threads = threads.clamp(1, THREADS_MAX);
    let part = |number: i32| {
        LineItemGenerator::new_with_distributions_and_text_pool(scale, number, threads as i32, distributions, pool)
    };
    let parts: Vec<T> = thread::scope(|scope| {
        let workers: Vec<_> = (1..=threads as i32)
            .map(part)
            .map(|part| scope.spawn(move || pack(part.iter(), scale / threads as f64)))
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("generating does not panic")).collect()
    });
    let mut parts = parts.into_iter();
    let mut rows = parts.next().unwrap_or_default();
    parts.for_each(|part| rows.append(part));
    rows
}

fn pack<T: Target>(items: LineItemGeneratorIterator<'_>, scale: f64) -> T {
    let mut rows = T::with_room((scale * ROWS_AT_ONE * 1.01) as usize + 16);
    for item in items {
        rows.push(&row(&item));
    }
    rows
}

fn row<'a>(item: &LineItem<'a>) -> Row<'a> {
    let mut row = Row {
        orderkey: item.l_orderkey,
        partkey: item.l_partkey,
        suppkey: item.l_suppkey,
        linenumber: item.l_linenumber,
        quantity: item.l_quantity * 100,
        extendedprice: item.l_extendedprice.into_inner(),
        discount: item.l_discount.into_inner(),
        tax: item.l_tax.into_inner(),
        returnflag: item.l_returnflag,
        linestatus: item.l_linestatus,
        shipdate: item.l_shipdate.to_unix_epoch(),
        commitdate: item.l_commitdate.to_unix_epoch(),
        receiptdate: item.l_receiptdate.to_unix_epoch(),
        shipinstruct: item.l_shipinstruct,
        shipmode: item.l_shipmode,
        comment: item.l_comment,
        version: 1,
        checksum: 0,
    };
    row.checksum = row.sum();
    row
}

const ROWS_AT_ONE: f64 = 6_001_215.0;
/// The generator of parts wants at least some of them.
const SCALES: std::ops::RangeInclusive<f64> = 0.0001..=10.0;
const TEXT_POOL_BYTES: i32 = 300 << 20;
const THREADS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lineitem::Rows;

    #[test]
    fn the_first_row_is_the_standards() {
        let table = Lineitem::generate(0.001, 2).unwrap();
        let row = table.rows().row(0);
        // 1|156|4|1|17|17954.55|0.04|0.02|N|O|1996-03-13|1996-02-12|1996-03-22|DELIVER IN PERSON|..
        assert_eq!((row.orderkey, row.partkey, row.suppkey), (1, 156, 4));
        assert_eq!((row.linenumber, row.quantity), (1, 1700));
        assert_eq!((row.extendedprice, row.discount, row.tax), (1_795_455, 4, 2));
        assert_eq!((row.shipdate, row.commitdate, row.receiptdate), (9568, 9538, 9577));
        assert_eq!(row.texts(), ["N", "O", "DELIVER IN PERSON", "TRUCK", "egular courts above the"]);
        assert_eq!(table.rows().len(), 6005);
    }

    #[test]
    fn threads_do_not_change_the_rows_and_keys_ascend() {
        let pool = TextPool::new(1 << 20, Distributions::static_default());
        let one: PackedRows = with_texts(0.001, 1, &pool);
        let three: PackedRows = with_texts(0.001, 3, &pool);
        assert_eq!(one, three);
        let (one, three): (NarrowRows, NarrowRows) = (with_texts(0.001, 1, &pool), with_texts(0.001, 3, &pool));
        assert_eq!(one, three);
        let keys: Vec<_> = (0..one.len()).map(|index| one.key(index)).collect();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn a_senseless_scale_is_an_error() {
        for scale in [0.0, -1.0, f64::NAN, 1e9, 1e-9, 1e-5] {
            let error = Lineitem::generate(scale, 2).unwrap_err();
            assert!(error.to_string().contains("from 0.0001 to 10"));
        }
        let pool = TextPool::new(1 << 20, Distributions::static_default());
        assert!(!with_texts::<PackedRows>(*SCALES.start(), 64, &pool).is_empty());
    }
}
