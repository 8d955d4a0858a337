//! Record batches to rows: keys and values for a load or a batched put.

use std::ops::Range;

use arrow_array::RecordBatch;

use super::ArrowError;
use super::cells::Source;
use super::schema::data_type;
use crate::key::KeyCodec;
use crate::row::{RowLayout, RowPart, RowView, blank_value};
use crate::schema::{Schema, VALUE_BYTES_MAX};
use crate::wire::{FRAME_BYTES, REQUEST_BYTES, frame};

/// Encodes batches of one table.
#[derive(Clone, Debug)]
pub struct BatchEncoder {
    schema: Schema,
    layout: RowLayout,
    codec: KeyCodec,
    blank: Vec<u8>,
}

/// Keys and values of a batch's rows, in the batch's order.
#[derive(Clone, Debug, Default)]
pub struct EncodedRows {
    keys: Vec<u8>,
    key_ends: Vec<usize>,
    /// Framed as they are put.
    values: Vec<u8>,
    value_starts: Vec<usize>,
}

impl EncodedRows {
    /// Rows.
    pub fn len(&self) -> usize {
        self.key_ends.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.key_ends.is_empty()
    }

    /// Key and value of a row.
    ///
    /// # Panics
    /// There is no such row.
    pub fn row(&self, index: usize) -> (&[u8], &[u8]) {
        (self.key(index), &self.values[self.value(index)])
    }

    /// Keys and values of all rows.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        (0..self.len()).map(|index| self.row(index))
    }

    /// Keys of all rows.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.key(index))
    }

    /// The rows as requests to put them: bytes, and which rows they are.
    pub(crate) fn requests(&self) -> impl Iterator<Item = (&[u8], Range<u64>)> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let begin = self.value_starts[..self.len()].get(from)? - FRAME_BYTES;
            let behind = &self.value_starts[from + 1..];
            let rows = from..from + 1 + behind.partition_point(|start| start - FRAME_BYTES - begin < REQUEST_BYTES);
            from = rows.end;
            let end = self.value_starts.get(from).map_or(self.values.len(), |start| start - FRAME_BYTES);
            Some((&self.values[begin..end], rows.start as u64..rows.end as u64))
        })
    }

    #[inline]
    fn key(&self, index: usize) -> &[u8] {
        let from = if index == 0 { 0 } else { self.key_ends[index - 1] };
        &self.keys[from..self.key_ends[index]]
    }

    #[inline]
    fn value(&self, index: usize) -> Range<usize> {
        let end = self.value_starts.get(index + 1).map_or(self.values.len(), |start| start - FRAME_BYTES);
        self.value_starts[index]..end
    }
}

impl BatchEncoder {
    /// An encoder of rows for this table.
    pub fn new(schema: &Schema) -> BatchEncoder {
        let layout = RowLayout::new(schema);
        let blank = blank_value(&layout);
        BatchEncoder { schema: schema.clone(), codec: KeyCodec::new(schema), layout, blank }
    }

    /// Encodes all rows of a batch into `out`, which is emptied first. Columns are found by name;
    /// one that the batch lacks is null.
    ///
    /// # Errors
    /// A column that the table lacks, or that lacks and may not be null, or has another type; a
    /// null where none may be; a key or a value that is too long. Then `out` has no row.
    pub fn encode(&self, batch: &RecordBatch, out: &mut EncodedRows) -> Result<(), ArrowError> {
        out.keys.clear();
        out.key_ends.clear();
        let sources = self.sources(batch)?;
        self.lay_out(&sources, batch.num_rows(), out)?;
        for (column, source) in sources.iter().enumerate() {
            self.write_column(column, source.as_ref(), out);
        }
        for row in 0..batch.num_rows() {
            let encoded = RowView::of_value(&out.values[out.value(row)], &self.layout)
                .map_err(ArrowError::from)
                .and_then(|view| {
                    let encoded = self.codec.encode_row(&view, &mut out.keys);
                    encoded.map_err(|error| ArrowError::Key { row, error })
                });
            if let Err(error) = encoded {
                out.key_ends.clear();
                return Err(error);
            }
            out.key_ends.push(out.keys.len());
        }
        Ok(())
    }

    /// The batch's columns in the table's order, none where the batch lacks one.
    fn sources<'a>(&self, batch: &'a RecordBatch) -> Result<Vec<Option<Source<'a>>>, ArrowError> {
        for field in batch.schema_ref().fields() {
            if self.schema.column(field.name()).is_err() {
                return Err(ArrowError::ExtraColumn { column: field.name().clone() });
            }
        }
        let mut sources = Vec::with_capacity(self.schema.columns().len());
        for column in self.schema.columns() {
            let Some(array) = batch.column_by_name(&column.name) else {
                if column.nullable {
                    sources.push(None);
                    continue;
                }
                return Err(ArrowError::MissingColumn { column: column.name.clone() });
            };
            let Some(source) = Source::of(array, &column.column_type) else {
                return Err(ArrowError::Type {
                    column: column.name.clone(),
                    found: array.data_type().to_string(),
                    expected: data_type(&column.column_type).to_string(),
                });
            };
            if let Some(row) = source.first_null().filter(|_| !column.nullable) {
                return Err(ArrowError::Null { column: column.name.clone(), row });
            }
            sources.push(Some(source));
        }
        Ok(sources)
    }

    /// Lays the rows' values one after another: blank, with room for their text and bytes.
    fn lay_out(&self, sources: &[Option<Source<'_>>], rows: usize, out: &mut EncodedRows) -> Result<(), ArrowError> {
        let mut lengths = vec![self.blank.len(); rows];
        for source in sources.iter().flatten() {
            source.add_lengths(&mut lengths);
        }
        out.value_starts.clear();
        let mut total = 0;
        for (row, &bytes) in lengths.iter().enumerate() {
            if bytes > VALUE_BYTES_MAX {
                return Err(ArrowError::RowTooLong { row, bytes });
            }
            out.value_starts.push(total + FRAME_BYTES);
            total += FRAME_BYTES + bytes;
        }
        // What was there before is overwritten: blank values, and texts and bytes that fill the room behind them.
        out.values.resize(total, 0);
        for (&start, &bytes) in out.value_starts.iter().zip(&lengths) {
            out.values[start - FRAME_BYTES..start].copy_from_slice(&frame(bytes));
            out.values[start..start + self.blank.len()].copy_from_slice(&self.blank);
        }
        Ok(())
    }

    fn write_column(&self, column: usize, source: Option<&Source<'_>>, out: &mut EncodedRows) {
        let layout = self.layout.column(column);
        let (values, starts) = (&mut out.values[..], &out.value_starts[..]);
        if let (Some(bit), Some(source)) = (layout.null, source) {
            for (row, &start) in starts.iter().enumerate() {
                if source.is_valid(row) {
                    values[start + bit.byte] &= !bit.mask;
                }
            }
        }
        match (layout.place, source) {
            (RowPart::Fixed { offset, width }, Some(source)) => source.write_fixed(values, starts, offset, width),
            (RowPart::Fixed { .. }, None) => {}
            (RowPart::Variable { index }, source) => self.write_variable(index, source, values, starts),
        }
    }

    /// Appends a variable column's values to the rows, whose end so far is the end offset of the
    /// column before.
    fn write_variable(&self, index: usize, source: Option<&Source<'_>>, values: &mut [u8], starts: &[usize]) {
        let (offsets, head) = (self.layout.prefix_len(), self.blank.len());
        for (row, &start) in starts.iter().enumerate() {
            let end_at = start + offsets + index * 4;
            let before = if index == 0 { 0 } else { word(values, end_at - 4) };
            let bytes = source.map_or(&[][..], |source| source.bytes(row));
            let at = start + head + before;
            values[at..at + bytes.len()].copy_from_slice(bytes);
            values[end_at..end_at + 4].copy_from_slice(&((before + bytes.len()) as u32).to_le_bytes());
        }
    }
}

fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize
}
