//! Some columns of a row, and the two ways in which an answer can hold them.
//!
//! *In place*: whole prefixes (and whole rests where a variable column is wanted) travel as they
//! lie, and the view looks at the chosen columns only. *Packed*: only what was chosen travels. A
//! packed row keeps the order in which columns lie, whatever order was requested, so that
//! neighbours are moved as one run. If any chosen column is nullable, it keeps all null bits as
//! they are: moving bits one by one would cost more than the bytes they take.

mod pack;

use std::sync::Arc;

use overside_shape::Run;

use crate::row::{ColumnLayout, RowLayout, RowPart};
use crate::schema::{COLUMNS_MAX, Schema};

/// Columns of a table that a scan returns, in the order it returns them.
#[derive(Clone, Debug)]
pub struct Projection {
    columns: Vec<usize>,
    in_place: Arc<RowLayout>,
    packed: Arc<RowLayout>,
    /// What a packed prefix takes of a whole one, in order; neighbours merged.
    runs: Vec<Run>,
    /// Which variable columns of a whole row a packed one keeps, ascending.
    variables: Vec<usize>,
    variables_of_row: usize,
}

impl Projection {
    /// Every column, in the schema's order.
    pub fn whole(schema: &Schema) -> Projection {
        Projection::of((0..schema.columns().len()).collect(), &RowLayout::new(schema))
    }

    /// These columns, in this order.
    ///
    /// # Errors
    /// No column, one twice, or one that the table does not have.
    pub fn new(schema: &Schema, columns: &[usize]) -> Result<Projection, ProjectionError> {
        if columns.is_empty() || columns.len() > COLUMNS_MAX {
            return Err(ProjectionError::Count { count: columns.len() });
        }
        for (at, &column) in columns.iter().enumerate() {
            if column >= schema.columns().len() {
                return Err(ProjectionError::Unknown { column });
            }
            if columns[..at].contains(&column) {
                return Err(ProjectionError::Twice { column });
            }
        }
        Ok(Projection::of(columns.to_vec(), &RowLayout::new(schema)))
    }

    /// The columns as indexes into the schema's.
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// Whether packed rows are whole rows, byte for byte.
    pub fn is_whole(&self) -> bool {
        self.packed.prefix_len == self.in_place.prefix_len && self.keeps_rests()
    }

    /// Whether any column lies in the rest. If none does, rests need not travel.
    pub fn needs_rest(&self) -> bool {
        !self.variables.is_empty()
    }

    /// Whether a packed rest is the whole rest, byte for byte.
    pub fn keeps_rests(&self) -> bool {
        self.variables.len() == self.variables_of_row
    }

    /// Where the chosen columns lie in a whole row.
    pub fn in_place(&self) -> &Arc<RowLayout> {
        &self.in_place
    }

    /// Where they lie in a packed one.
    pub fn packed(&self) -> &Arc<RowLayout> {
        &self.packed
    }

    /// What a packed prefix takes of a whole prefix, in order; neighbours are one run.
    pub fn prefix_runs(&self) -> &[Run] {
        &self.runs
    }

    /// Of `bytes` bytes of a message that holds `rows` rows whole, about how many lie in cache
    /// lines that a reader of the chosen columns touches. These are the lines of their places in
    /// the prefixes, and of all rests where a column lies there.
    pub fn read_of(&self, rows: u64, bytes: u64) -> u64 {
        let stride = self.in_place.prefix_len as u64;
        let rests = if self.needs_rest() { bytes.saturating_sub(rows * stride) } else { 0 };
        let lines: u64 = self.runs.iter().map(|run| run.len + LINE_BYTES - 1).sum();
        (rows * lines.min(stride) + rests).min(bytes)
    }

    fn of(columns: Vec<usize>, row: &RowLayout) -> Projection {
        let chosen = || columns.iter().map(|&column| &row.columns[column]);
        let mut fixed: Vec<(usize, usize)> = chosen().filter_map(fixed_place).collect();
        fixed.sort_unstable();
        let null_bytes = if chosen().any(|c| c.null.is_some()) { row.null_bytes } else { 0 };
        if null_bytes > 0 {
            fixed.insert(0, (0, null_bytes));
        }
        let mut variables: Vec<usize> = chosen().filter_map(variable_place).collect();
        variables.sort_unstable();
        // Where a run of the whole prefix starts in the packed one.
        let mut targets = Vec::with_capacity(fixed.len());
        let mut packed_len = 0;
        for &(offset, width) in &fixed {
            targets.push((offset, packed_len));
            packed_len += width;
        }
        let packed_column = |column: &ColumnLayout| {
            let place = match column.place {
                RowPart::Fixed { offset, width } => {
                    // Sought among the places that were collected from these same columns.
                    let found = targets.binary_search_by_key(&offset, |t| t.0).unwrap_or_default();
                    RowPart::Fixed { offset: targets[found].1, width }
                }
                RowPart::Variable { index } => {
                    RowPart::Variable { index: variables.binary_search(&index).unwrap_or_default() }
                }
            };
            ColumnLayout { place, ..column.clone() }
        };
        let null_bits = if null_bytes > 0 { row.null_bits } else { 0 };
        let packed = RowLayout {
            columns: chosen().map(packed_column).collect(),
            prefix_len: packed_len,
            null_bytes,
            null_bits,
            variable: variables.len(),
        };
        let in_place = RowLayout { columns: chosen().cloned().collect(), ..row.clone() };
        let runs = merge(&fixed);
        Projection {
            runs,
            variables,
            variables_of_row: row.variable,
            packed: Arc::new(packed),
            in_place: Arc::new(in_place),
            columns,
        }
    }
}

const LINE_BYTES: u64 = 64;

fn fixed_place(column: &ColumnLayout) -> Option<(usize, usize)> {
    match column.place {
        RowPart::Fixed { offset, width } => Some((offset, width)),
        RowPart::Variable { .. } => None,
    }
}

fn variable_place(column: &ColumnLayout) -> Option<usize> {
    match column.place {
        RowPart::Fixed { .. } => None,
        RowPart::Variable { index } => Some(index),
    }
}

fn merge(fixed: &[(usize, usize)]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for &(offset, width) in fixed {
        match runs.last_mut() {
            Some(last) if last.at + last.len == offset as u64 => last.len += width as u64,
            _ => runs.push(Run::new(offset as u64, width as u64)),
        }
    }
    runs
}

/// Why columns make no projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProjectionError {
    /// No column, or more than a table can have.
    #[error("a scan returns 1 to {COLUMNS_MAX} columns, not {count}: name them, or ask for all")]
    Count {
        /// How many were given.
        count: usize,
    },
    /// A column that the table does not have.
    #[error("the table has no column {column}: see its schema")]
    Unknown {
        /// The index given.
        column: usize,
    },
    /// A column stands twice.
    #[error("column {column} was asked for twice: name it once")]
    Twice {
        /// Its index.
        column: usize,
    },
}

#[cfg(test)]
pub(crate) mod tests;
