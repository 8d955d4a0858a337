//! Where the columns of a row lie.

use crate::schema::{ColumnType, Schema};

/// Offsets of every column of a row: computed once a schema or projection, shared by all its rows.
///
/// The columns stand in the order in which the reader asked for them, which for a projection is not
/// the order in which they lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowLayout {
    pub(crate) columns: Box<[ColumnLayout]>,
    pub(crate) prefix_len: usize,
    pub(crate) null_bytes: usize,
    /// Null bits that these bytes hold, those of columns that a projection left out included.
    pub(crate) null_bits: usize,
    pub(crate) variable: usize,
}

/// Where one column lies, and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnLayout {
    /// What its values are.
    pub column_type: ColumnType,
    /// Where they lie.
    pub place: RowPart,
    /// The bit that says a value is absent; none when it never is.
    pub null: Option<NullBit>,
}

/// Which part of a row a column lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowPart {
    /// In the prefix: `width` bytes from `offset`.
    Fixed {
        /// Bytes from the prefix's start.
        offset: usize,
        /// Bytes.
        width: usize,
    },
    /// In the rest: the bytes between end offsets `index - 1` and `index`.
    Variable {
        /// Which variable column of the row.
        index: usize,
    },
}

/// One bit of the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NullBit {
    /// Byte of the prefix.
    pub byte: usize,
    /// The bit in it.
    pub mask: u8,
}

impl RowLayout {
    /// The layout of whole rows of a table.
    pub fn new(schema: &Schema) -> RowLayout {
        let nullable = schema.columns().iter().filter(|c| c.nullable).count();
        let null_bytes = nullable.div_ceil(8);
        let (mut offset, mut variable, mut nulls) = (null_bytes, 0, 0);
        let mut columns = Vec::with_capacity(schema.columns().len());
        for column in schema.columns() {
            let place = match column.column_type.width() {
                Some(width) => {
                    offset += width;
                    RowPart::Fixed { offset: offset - width, width }
                }
                None => {
                    variable += 1;
                    RowPart::Variable { index: variable - 1 }
                }
            };
            let null = column.nullable.then(|| {
                nulls += 1;
                NullBit { byte: (nulls - 1) / 8, mask: 1 << ((nulls - 1) % 8) }
            });
            columns.push(ColumnLayout { column_type: column.column_type.clone(), place, null });
        }
        RowLayout { columns: columns.into(), prefix_len: offset, null_bytes, null_bits: nullable, variable }
    }

    /// Bytes of every row's prefix.
    pub fn prefix_len(&self) -> usize {
        self.prefix_len
    }

    /// Bytes of null bits at the prefix's start.
    pub fn null_bytes(&self) -> usize {
        self.null_bytes
    }

    /// Variable columns that a rest holds: it starts with this many end offsets.
    pub fn variable_columns(&self) -> usize {
        self.variable
    }

    /// Bytes of the shortest rest: its end offsets.
    pub fn rest_len_min(&self) -> usize {
        self.variable * 4
    }

    /// All columns.
    pub fn columns(&self) -> &[ColumnLayout] {
        &self.columns
    }

    /// One column.
    ///
    /// # Panics
    /// There are not that many columns.
    pub fn column(&self, index: usize) -> &ColumnLayout {
        &self.columns[index]
    }
}

impl ColumnLayout {
    /// Whether its values lie in the rest.
    pub fn is_variable(&self) -> bool {
        matches!(self.place, RowPart::Variable { .. })
    }
}
