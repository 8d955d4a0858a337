//! Scans by a client that reads every row: in every mode the same lines of the same rows.

use crate::limits::{Touched, touch, touch_lent};
use anyhow::Result;
use overside::table::{
    block::Answer,
    client::{Client, RemoteTable, Scan, ScanOptions, ScanSummary},
    row::{Bytes, RowView},
};

/// Scans, and reads a byte of each cache line of each row, wherever it lies.
pub(in crate::figures) fn read(
    client: &mut Client,
    table: &RemoteTable,
    options: &ScanOptions<'_>,
) -> Result<(Touched, ScanSummary)> {
    all_of(client.scan_in_place(table, options)?)
}

/// The same of a whole table, which the client reads in the server's memory by itself.
pub(in crate::figures) fn read_one_sided(client: &mut Client, table: &RemoteTable) -> Result<Touched> {
    Ok(all_of(client.scan_one_sided(table, &ScanOptions::default())?)?.0)
}

fn all_of(mut scan: Scan<'_>) -> Result<(Touched, ScanSummary)> {
    let mut all = Touched::default();
    while let Some(block) = scan.next_in_place()? {
        all.add(match &block {
            Answer::Copied(block) => touched(block.rows(), touch),
            Answer::Lent(block) => block.read(|rows| touched(rows, touch_lent))?,
        });
    }
    Ok((all, scan.summary()))
}

#[inline]
fn touched<'r, P: Bytes>(rows: impl Iterator<Item = RowView<'r, P>>, touch: impl Fn(P) -> u64) -> Touched {
    rows.fold(Touched::default(), |mut all, row| {
        let (prefix, rest) = (row.prefix(), row.rest());
        let sum = touch(prefix).wrapping_add(touch(rest));
        all.add(Touched { rows: 1, bytes: (prefix.len() + rest.len()) as u64, sum });
        all
    })
}
