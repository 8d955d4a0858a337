//! What a table can hold, as far as a file is refused for it. The command holds these to the
//! tables'.

/// Columns of a table.
pub const COLUMNS_MAX: usize = 1024;
/// Bytes of a column's name.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of a value of a type with a fixed length.
pub const FIXED_BINARY_MAX: u16 = 4096;
