//! Scan answers to record batches.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use super::column::ColumnBuilder;
use super::{ArrowError, projected_to_arrow};
use crate::block::RowBlock;
use crate::projection::Projection;
use crate::schema::Schema;

/// Collects the rows of scan answers into record batches: push blocks, then finish, then push the next batch's.
#[derive(Debug)]
pub struct BatchBuilder {
    schema: SchemaRef,
    columns: Vec<ColumnBuilder>,
    rows: usize,
}

impl BatchBuilder {
    /// A builder for the answers to a scan of this table with this projection.
    pub fn new(schema: &Schema, projection: &Projection) -> BatchBuilder {
        let arrow = Arc::new(projected_to_arrow(schema, projection));
        let columns = projection.packed().columns().iter().map(|c| ColumnBuilder::new(&c.column_type)).collect();
        BatchBuilder { schema: arrow, columns, rows: 0 }
    }

    /// The batches' schema.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Rows collected since the last batch.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Adds all rows of an answer to the scan that this builder was made for.
    ///
    /// # Errors
    /// A row's offsets are broken, or a column's text exceeds what an array can hold; then the rows since the last
    /// batch are dropped.
    ///
    /// # Panics
    /// The block answers a scan of other columns.
    pub fn push<B: AsRef<[u8]>>(&mut self, block: &RowBlock<B>) -> Result<(), ArrowError> {
        let layout = block.layout();
        assert_eq!(layout.columns().len(), self.columns.len(), "a builder takes answers to its own scan");
        let pushed = self.columns.iter_mut().zip(layout.columns()).try_for_each(|(builder, column)| {
            block.runs().iter().try_for_each(|run| builder.push(block.bytes(), run, layout, column))
        });
        match pushed {
            Ok(()) => self.rows += block.len(),
            Err(_) => {
                self.rows = 0;
                self.columns.iter_mut().for_each(ColumnBuilder::clear);
            }
        }
        pushed
    }

    /// The rows collected since the last batch, as one.
    ///
    /// # Errors
    /// Text that is not UTF-8.
    pub fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        let rows = std::mem::take(&mut self.rows);
        let mut arrays = Vec::with_capacity(self.columns.len());
        let mut failed = None;
        for builder in &mut self.columns {
            match builder.finish(rows) {
                Ok(array) => arrays.push(array),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(RecordBatch::try_new(self.schema.clone(), arrays)?),
        }
    }
}
