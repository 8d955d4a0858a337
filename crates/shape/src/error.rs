//! Why a description is not a shape.

/// Why a description is refused. Each text names the field at fault and what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// An offset or a length leaves 64 bits.
    #[error("the shape's offsets exceed 64 bits; check base, period and count")]
    Overflow,
    /// Runs of a period overlap, are out of order or stick out of it.
    #[error("the runs of a period must be in order, disjoint and inside the period of {period} bytes")]
    Runs {
        /// The period in bytes.
        period: u64,
    },
    /// A level's periods would overlap.
    #[error("level {level}: its period of {period} bytes is shorter than the {reach} bytes of the levels within it")]
    Level {
        /// Index of the level, the outermost is 0.
        level: usize,
        /// Its period in bytes.
        period: u64,
        /// What must fit into it, in bytes.
        reach: u64,
    },
    /// More levels than a shape keeps.
    #[error("{levels} levels of periods remain where at most {max} are kept; declare a set of regions")]
    Levels {
        /// Levels left after the canonical form is reached.
        levels: usize,
        /// How many a shape keeps.
        max: usize,
    },
    /// The shape needs bytes that the memory does not have.
    #[error("the shape ends at byte {end} but its memory has {len}")]
    Escapes {
        /// One past the shape's last byte.
        end: u64,
        /// The memory's length in bytes.
        len: u64,
    },
    /// A bitmap's words and its number of rows do not go together.
    #[error("bitmap: {rows} rows take {needed} words of 64 bits, not {words}")]
    Bitmap {
        /// Words given.
        words: u64,
        /// Rows given.
        rows: u64,
        /// Words that the rows take.
        needed: u64,
    },
    /// A column has no width, or its rows overlap.
    #[error(
        "column {column}: a width of {width} bytes needs a stride of at least that, and not 0; the stride is {stride}"
    )]
    Column {
        /// Index of the column.
        column: usize,
        /// Bytes from one row to the next.
        stride: u64,
        /// Bytes of one value.
        width: u64,
    },
    /// Offsets of a variable-length column decrease, or there is none.
    #[error("offsets: entry {index} is missing or less than the one before it; n values take n + 1 ascending offsets")]
    Offsets {
        /// Index of the entry at fault.
        index: usize,
    },
    /// A selection and the column it selects from have different numbers of rows.
    #[error("selection: its bitmap has {rows} rows but the column has {values} values")]
    Selection {
        /// Rows of the bitmap.
        rows: u64,
        /// Values of the column.
        values: u64,
    },
    /// Regions of a set differ in length.
    #[error("region {region} of the set has {elements} elements where region 0 has {expected}; all must have as many")]
    Elements {
        /// Index of the region.
        region: usize,
        /// Its elements.
        elements: u64,
        /// Elements of region 0.
        expected: u64,
    },
    /// A region's bytes do not divide into elements or messages of the given length.
    #[error("{what}: {bytes} bytes do not divide the region's runs of which one has {run}")]
    Divide {
        /// Which length: "element bytes" or "message bytes".
        what: &'static str,
        /// The length given.
        bytes: u64,
        /// A run, or the whole region, that it does not divide.
        run: u64,
    },
    /// A set within a set.
    #[error("region {region} of the set is a set itself; list its regions in the outer one")]
    Nested {
        /// Index of the region.
        region: usize,
    },
    /// A destination is written twice.
    #[error("byte {at} belongs to region {first} and again to region {second}; a destination's bytes must be disjoint")]
    Overlap {
        /// A byte named twice.
        at: u64,
        /// Index of a region that names it.
        first: usize,
        /// Index of the other (the same for a region that overlaps itself).
        second: usize,
    },
}
