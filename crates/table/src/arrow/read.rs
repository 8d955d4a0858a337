//! Scan answers to record batches.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use super::column::ColumnBuilder;
use super::strided::Prefixes;
use super::variable::Rests;
use super::{ArrowError, projected_to_arrow};
use crate::block::{Ahead, Answer, LentBlock, LentError, OpenRun, OpenRuns, RowBlock, Source};
use crate::projection::Projection;
use crate::row::{Bytes, RowLayout, RowPart};
use crate::schema::Schema;

/// Collects the rows of scan answers into record batches: push blocks, then finish, then push the
/// next batch's.
///
/// Batches are whole and may be kept, sent to other threads, and outlive the builder. One that has
/// been dropped gives its memory back to the builder. So a consumer that drops batches as it goes
/// has no page faulted in after the first few. A builder for several scans of the same columns
/// keeps the memory from one to the next.
#[derive(Debug)]
pub struct BatchBuilder {
    schema: SchemaRef,
    columns: Vec<ColumnBuilder>,
    rows: usize,
    /// Null bytes of a run's rows, `|`ed together.
    any: Vec<u8>,
    /// Whether any column is variable, and so needs a run's rests.
    variable: bool,
    rests: Rests,
}

impl BatchBuilder {
    /// A builder for the answers to a scan of this table with this projection.
    pub fn new(schema: &Schema, projection: &Projection) -> BatchBuilder {
        let arrow = Arc::new(projected_to_arrow(schema, projection));
        let columns = projection.packed().columns().iter().map(|c| ColumnBuilder::new(&c.column_type)).collect();
        let variable = projection.needs_rest();
        BatchBuilder { schema: arrow, columns, rows: 0, any: Vec::new(), variable, rests: Rests::default() }
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
    /// A row's offsets are broken, or a column's text exceeds what an array can hold; then the rows
    /// since the last batch are dropped.
    ///
    /// # Panics
    /// The block answers a scan of other columns.
    pub fn push<B: AsRef<[u8]>>(&mut self, block: &RowBlock<B>) -> Result<(), ArrowError> {
        let pushed = self.push_runs(block.runs(), block.layout());
        self.pushed(pushed, block.len())
    }

    /// Adds all rows of an answer that was lent, straight from where they lie. They count if the
    /// server still vouched for them when they had all been copied into the columns.
    ///
    /// # Errors
    /// As [`push`](Self::push), and [`LentError::Revoked`].
    ///
    /// # Panics
    /// The block answers a scan of other columns.
    pub fn push_lent(&mut self, block: &LentBlock) -> Result<(), ArrowError> {
        let pushed = self.push_runs(block.runs(), block.layout());
        // What was taken for broken may be what came behind the bytes that were lent.
        let pushed = if block.is_valid() { pushed } else { Err(LentError::Revoked.into()) };
        self.pushed(pushed, block.len())
    }

    /// As [`push`](Self::push) or [`push_lent`](Self::push_lent), whichever it takes.
    ///
    /// # Errors
    /// As those.
    ///
    /// # Panics
    /// The block answers a scan of other columns.
    pub fn push_answer<B: AsRef<[u8]>>(&mut self, answer: &Answer<B>) -> Result<(), ArrowError> {
        match answer {
            Answer::Copied(block) => self.push(block),
            Answer::Lent(block) => self.push_lent(block),
        }
    }

    fn pushed(&mut self, pushed: Result<(), ArrowError>, rows: usize) -> Result<(), ArrowError> {
        match pushed {
            Ok(()) => self.rows += rows,
            Err(_) => {
                self.rows = 0;
                self.columns.iter_mut().for_each(ColumnBuilder::clear);
            }
        }
        pushed
    }

    fn push_runs<'a, S: Source<'a>>(
        &mut self,
        mut runs: OpenRuns<'a, S>,
        layout: &RowLayout,
    ) -> Result<(), ArrowError> {
        assert_eq!(layout.columns().len(), self.columns.len(), "a builder takes answers to its own scan");
        let mut ahead = runs.message().ahead();
        runs.try_for_each(|run| self.push_run(&run, layout, &mut ahead))
    }

    fn push_run(
        &mut self,
        run: &OpenRun<'_, impl Bytes>,
        layout: &RowLayout,
        ahead: &mut impl Ahead,
    ) -> Result<(), ArrowError> {
        let prefixes = Prefixes { bytes: run.prefixes, stride: layout.prefix_len(), rows: run.rows };
        self.any.clear();
        self.any.extend((0..layout.null_bytes()).map(|byte| prefixes.bytes_at(byte).fold(0, |any, byte| any | byte)));
        if self.variable {
            self.rests.of_run(run, layout.variable_columns());
        }
        // Column by column, so that the processor is asked for no more at once than it can have under way.
        let rows_a_column = run.rows.div_ceil(layout.columns().len().max(1));
        for (builder, column) in self.columns.iter_mut().zip(layout.columns()) {
            (0..rows_a_column).for_each(|_| ahead.row());
            if let Some(bit) = column.null {
                builder.push_nulls(&prefixes, bit, self.any[bit.byte]);
            }
            match column.place {
                RowPart::Fixed { offset, width } => builder.push_fixed(&prefixes, offset, width),
                RowPart::Variable { index } => builder.push_variable(run, &mut self.rests, index)?,
            }
        }
        Ok(())
    }

    /// The rows collected since the last batch, as one.
    ///
    /// # Errors
    /// Text that is not UTF-8.
    pub fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        self.rows = 0;
        let mut arrays = Vec::with_capacity(self.columns.len());
        let mut failed = None;
        for builder in &mut self.columns {
            match builder.finish() {
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
