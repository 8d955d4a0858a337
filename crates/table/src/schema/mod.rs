//! Schemas: the columns of a table, their types, and which of them are the primary key.
//!
//! A [`Schema`] is valid by construction: everything that reads one (row layouts, key codecs, the
//! wire) relies on the limits checked in [`Schema::new`].

mod column_type;
mod wire;

pub use column_type::{ColumnType, TimeUnit};
pub use wire::{SCHEMA_BYTES_MAX, SCHEMA_VERSION};

use std::fmt;

/// One column: its name, its type, and whether a row may leave it out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Column {
    /// 1 to [`NAME_BYTES_MAX`] bytes, unique within the schema.
    pub name: String,
    /// What its values are.
    pub column_type: ColumnType,
    /// Whether a value may be absent. Key columns may not be.
    pub nullable: bool,
}

impl Column {
    /// A column that every row has a value for.
    pub fn new(name: impl Into<String>, column_type: ColumnType) -> Column {
        Column { name: name.into(), column_type, nullable: false }
    }

    /// A column whose value may be absent.
    pub fn nullable(name: impl Into<String>, column_type: ColumnType) -> Column {
        Column { name: name.into(), column_type, nullable: true }
    }
}

/// The columns of a table and its primary key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Schema {
    columns: Vec<Column>,
    key: Vec<usize>,
}

impl Schema {
    /// Takes columns in their order and the key as indexes into them, most significant first.
    ///
    /// # Errors
    /// What the columns or the key break of the limits at the end of this file.
    pub fn new(columns: Vec<Column>, key: Vec<usize>) -> Result<Schema, SchemaError> {
        if columns.is_empty() || columns.len() > COLUMNS_MAX {
            return Err(SchemaError::ColumnCount { count: columns.len() });
        }
        let mut names = std::collections::HashSet::with_capacity(columns.len());
        for (index, column) in columns.iter().enumerate() {
            if column.name.is_empty() || column.name.len() > NAME_BYTES_MAX || column.name.contains('\0') {
                return Err(SchemaError::Name { index });
            }
            if !names.insert(column.name.as_str()) {
                return Err(SchemaError::DuplicateName { name: column.name.clone() });
            }
            column.column_type.check(&column.name)?;
        }
        let fixed: usize = columns.iter().filter_map(|c| c.column_type.width()).sum();
        let nulls = columns.iter().filter(|c| c.nullable).count().div_ceil(8);
        if fixed + nulls > PREFIX_BYTES_MAX {
            return Err(SchemaError::PrefixTooLong { bytes: fixed + nulls });
        }
        check_key(&columns, &key)?;
        Ok(Schema { columns, key })
    }

    /// The same, with the key's columns named.
    ///
    /// # Errors
    /// As [`Schema::new`], or a key column that is not among `columns`.
    pub fn with_key(columns: Vec<Column>, key: &[&str]) -> Result<Schema, SchemaError> {
        let find = |name: &&str| {
            let found = columns.iter().position(|c| c.name == *name);
            found.ok_or_else(|| SchemaError::UnknownColumn { name: (*name).to_owned() })
        };
        let key = key.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        Schema::new(columns, key)
    }

    /// The columns in their order: 1 to [`COLUMNS_MAX`].
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Indexes of the key's columns, most significant first: 1 to [`KEY_COLUMNS_MAX`].
    pub fn key(&self) -> &[usize] {
        &self.key
    }

    /// Where the column of this name stands.
    ///
    /// # Errors
    /// No column has this name.
    pub fn column(&self, name: &str) -> Result<usize, SchemaError> {
        let found = self.columns.iter().position(|c| c.name == name);
        found.ok_or_else(|| SchemaError::UnknownColumn { name: name.to_owned() })
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for column in &self.columns {
            let null = if column.nullable { " null" } else { "" };
            writeln!(f, "{} {}{null}", column.name, column.column_type)?;
        }
        let key: Vec<&str> = self.key.iter().map(|&k| self.columns[k].name.as_str()).collect();
        write!(f, "key ({})", key.join(", "))
    }
}

fn check_key(columns: &[Column], key: &[usize]) -> Result<(), SchemaError> {
    if key.is_empty() || key.len() > KEY_COLUMNS_MAX {
        return Err(SchemaError::KeyColumnCount { count: key.len() });
    }
    for (at, &index) in key.iter().enumerate() {
        let Some(column) = columns.get(index) else {
            return Err(SchemaError::KeyOutOfRange { index });
        };
        if key[..at].contains(&index) {
            return Err(SchemaError::KeyTwice { name: column.name.clone() });
        }
        if column.nullable {
            return Err(SchemaError::KeyNullable { name: column.name.clone() });
        }
    }
    let fixed: usize = key.iter().filter_map(|&k| columns[k].column_type.width()).sum();
    if fixed > crate::key::KEY_BYTES_MAX {
        return Err(SchemaError::KeyTooLong { bytes: fixed });
    }
    Ok(())
}

/// Why columns and a key make no schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// No column, or too many.
    #[error("a table has 1 to {COLUMNS_MAX} columns, not {count}: leave some out")]
    ColumnCount {
        /// How many were given.
        count: usize,
    },
    /// A name is empty, too long, or holds a NUL.
    #[error("the name of column {index} is empty, longer than {NAME_BYTES_MAX} bytes or holds a NUL: rename it")]
    Name {
        /// Which column.
        index: usize,
    },
    /// Two columns of one name.
    #[error("two columns are named `{name}`: rename one")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// No such column.
    #[error("no column is named `{name}`: choose one of the table's columns")]
    UnknownColumn {
        /// The name asked for.
        name: String,
    },
    /// A type's parameters are out of range.
    #[error("column `{name}`: {why}")]
    Type {
        /// The column.
        name: String,
        /// What is wrong, and what is allowed.
        why: &'static str,
    },
    /// The fixed-width columns of a row take too many bytes.
    #[error(
        "the fixed-width columns of a row take {bytes} bytes of at most {PREFIX_BYTES_MAX}: declare the widest as variable-length"
    )]
    PrefixTooLong {
        /// Bytes of all fixed-width columns and null bits.
        bytes: usize,
    },
    /// No key column, or too many.
    #[error("a primary key has 1 to {KEY_COLUMNS_MAX} columns, not {count}: name them")]
    KeyColumnCount {
        /// How many were given.
        count: usize,
    },
    /// A key column's index is beyond the columns.
    #[error("key column {index} is not a column of the table")]
    KeyOutOfRange {
        /// The index.
        index: usize,
    },
    /// A key names a column twice.
    #[error("column `{name}` stands twice in the primary key: name it once")]
    KeyTwice {
        /// The column.
        name: String,
    },
    /// A key column may be null.
    #[error("key column `{name}` may be null: declare it as not nullable or choose another key")]
    KeyNullable {
        /// The column.
        name: String,
    },
    /// The fixed-width key columns alone exceed a key.
    #[error("the key's columns take {bytes} bytes of at most {}: choose a shorter key", crate::key::KEY_BYTES_MAX)]
    KeyTooLong {
        /// Bytes of the fixed-width key columns.
        bytes: usize,
    },
    /// Bytes that are no schema.
    #[error("these {len} bytes are no schema of version {SCHEMA_VERSION} ({what}): is the other side another version?")]
    Malformed {
        /// Length of the bytes.
        len: usize,
        /// What was wrong first.
        what: &'static str,
    },
}

/// Columns of a table.
pub const COLUMNS_MAX: usize = 1024;
/// Bytes of a column's name.
pub const NAME_BYTES_MAX: usize = 255;
/// Columns of a primary key.
pub const KEY_COLUMNS_MAX: usize = 16;
/// Bytes of null bits and fixed-width columns of one row; a quarter of a 16 KiB page, so that a
/// page holds rows.
pub const PREFIX_BYTES_MAX: usize = 4096;
/// Bytes of a [`ColumnType::FixedBinary`].
pub const FIXED_BINARY_MAX: u16 = 4096;
/// Bytes of a timestamp's zone name.
pub const ZONE_BYTES_MAX: usize = 64;
/// Bytes of a whole value: null bits, fixed columns, variable columns.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
pub(crate) mod tests;
