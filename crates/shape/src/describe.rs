//! A shape as bytes, for whoever carries it out elsewhere: a device that is given a region instead
//! of a gather list (d-rdma §3 DR-M01).
//!
//! What a shape was declared with is what is written: rules, not fragments. Whoever reads builds it
//! anew through the checks of declaring it, so no bytes make a shape that could not have been
//! declared.
//!
//! # Version 1
//!
//! All words are u64, little-endian; offsets count from the
//! start of the memory that the region is declared over.
//!
//! ```text
//! head     "OSREGN" | u8 version 1 | u8 0
//! region   kind | bytes of a message | bytes of an element | body        (either length: 2^64 - 1 where the kind says by itself)
//! ```
//!
//! | kind | body |
//! |---|---|
//! | 1 contiguous | at, length |
//! | 2 strided | base, number of levels, number of runs; a level: period, count (the outermost first); a run: at, length |
//! | 3 list | number of runs; a run: at, length |
//! | 4 bitmapped | number of columns (to 4,096); a column: base, stride, width; a bitmap |
//! | 5 mapped | number of rows, number of runs; a row: at; a run: at, length |
//! | 6 variable | data, number of offsets, 1 if a bitmap selects; the offsets; that bitmap |
//! | 7 set | mask (0 rows, 1 periods), number of regions (to 4,096); the regions, none a set |
//!
//! A bitmap is its number of rows, then a word for each 64 of them, the least significant bit
//! first. 2^64 - 1 instead of a number of rows means the bitmap before it once more. A reader
//! builds the region by the checks of declaring it:
//!
//! - Counts are within the bytes there are, before anything is made of them. Offsets stay within 64
//!   bits.
//! - Runs ascend, are disjoint and within their period. Lengths divide the region's bytes.
//! - The regions of a set have equally many elements. Nothing follows the end.
//! - The region lies within the memory that the reader knows. Bitmaps that are said again are not
//!   too long, since each is gone through once more.

use std::sync::Arc;

use crate::bitmap::Bitmap;
use crate::bitmapped::{Column, Order, Stepped};
use crate::cut::Cut;
use crate::error::ShapeError;
use crate::form::{Form, Mask};
use crate::mapped::mapped;
use crate::run::Run;
use crate::set::set;
use crate::shape::Shape;
use crate::strided::{Level, regular};
use crate::variable::variable;

/// Why bytes describe no shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptionError {
    /// Another format or version.
    #[error(
        "no description of a region: it begins with {found:#x}, this build reads {HEAD:#x}; use one build at both ends"
    )]
    Version {
        /// The first word.
        found: u64,
    },
    /// It ends too early, or too late.
    #[error("the description has {bytes} bytes and says that it has others; send all of it")]
    Length {
        /// How many it has.
        bytes: usize,
    },
    /// A field has a value that it cannot have.
    #[error("the description's {field} cannot be {value}")]
    Field {
        /// Which one.
        field: &'static str,
        /// What stands there.
        value: u64,
    },
    /// Bitmaps said again make more steps than the memory and the description warrant.
    #[error(
        "the description says bitmaps again that have {words} words together, where {most} are read over a memory of so many bytes; \
         send fewer columns of the region at a time"
    )]
    Repeats {
        /// Words of the bitmaps that are said again.
        words: u64,
        /// How many may be.
        most: u64,
    },
    /// What it describes is no shape.
    #[error("the description is refused: {0}")]
    Shape(#[from] ShapeError),
}

impl Shape {
    /// Bytes of [`describe`](Self::describe).
    pub fn description_bytes(&self) -> u64 {
        let words = 1 + region_words(self, &mut Said::default());
        words.saturating_mul(WORD_BYTES as u64)
    }

    /// Whether [`described`](Self::described) takes the description, for a memory of `over` bytes.
    ///
    /// # Errors
    /// [`DescriptionError::Field`] where a bitmap has more than 4,096 columns, or a set more than
    /// 4,096 regions. [`DescriptionError::Repeats`], and [`DescriptionError::Shape`] when the shape
    /// leaves the memory.
    pub fn describable(&self, over: u64) -> Result<(), DescriptionError> {
        self.within(over)?;
        few("number of columns", self.columns_max(), COLUMNS_MAX)?;
        if let Form::Set { regions, .. } = &self.form {
            few("number of regions", regions.len() as u64, REGIONS_MAX)?;
        }
        let mut said = Said::default();
        let words = 1 + region_words(self, &mut said);
        repeated(said.again, words, over)
    }

    /// Columns of the bitmap that has the most.
    fn columns_max(&self) -> u64 {
        match &self.form {
            Form::Bitmapped(b) => b.columns.len() as u64,
            Form::Set { regions, .. } => regions.iter().map(Self::columns_max).max().unwrap_or(0),
            _ => 0,
        }
    }

    /// Appends the shape's description.
    pub fn describe(&self, out: &mut Vec<u8>) {
        put(out, [HEAD]);
        region(self, &mut None, out);
    }

    /// The shape that [`describe`](Self::describe) wrote, over a memory of `over` bytes. Any bytes
    /// at all give a shape or an error; neither time nor memory exceeds a few times what as many
    /// bytes take. Going through the shape once costs in addition what going through its bytes and
    /// the memory costs: bitmaps that are said again are counted.
    ///
    /// # Errors
    /// [`DescriptionError`].
    pub fn described(bytes: &[u8], over: u64) -> Result<Self, DescriptionError> {
        let mut reader = Reader { left: bytes, bytes: bytes.len(), over, bitmap: None, stepped: None, again: 0 };
        match reader.word()? {
            HEAD => {}
            found => return Err(DescriptionError::Version { found }),
        }
        let shape = reader.region(true)?;
        shape.within(over)?;
        if reader.left.is_empty() { Ok(shape) } else { Err(reader.fault()) }
    }
}

/// How many words the bitmaps may have together that are said again: `REPEATED_MIN`, which take no
/// time at all, and `REPEATED_PER_WORD` for each word of the description, as a few dozen columns
/// would have. In addition one bit for each byte of the memory: columns that share a bitmap have
/// bytes of their own.
fn repeated(again: u64, words: u64, over: u64) -> Result<(), DescriptionError> {
    let most = REPEATED_MIN.saturating_add(words.saturating_mul(REPEATED_PER_WORD)).saturating_add(over / 64);
    if again > most {
        return Err(DescriptionError::Repeats { words: again, most });
    }
    Ok(())
}

fn few(field: &'static str, value: u64, most: u64) -> Result<(), DescriptionError> {
    if value > most { Err(DescriptionError::Field { field, value }) } else { Ok(()) }
}

/// What was written of bitmaps.
#[derive(Default)]
struct Said<'a> {
    last: Option<&'a Bitmap>,
    /// Words of those that are said again.
    again: u64,
}

/// Words that [`region`] writes.
fn region_words<'a>(shape: &'a Shape, last: &mut Said<'a>) -> u64 {
    let body = match &shape.form {
        Form::Contiguous(_) => 2,
        Form::Strided(s) => 3 + 2 * (s.levels.len() + s.runs.len()) as u64,
        Form::List(runs) => 1 + 2 * runs.len() as u64,
        Form::Bitmapped(b) => 1 + 3 * b.columns.len() as u64 + bitmap_words(&b.rows, last),
        Form::Mapped(m) => 2 + (m.rows.len() + 2 * m.runs.len()) as u64,
        Form::Variable(v) => 3 + v.offsets.len() as u64 + v.rows.as_ref().map_or(0, |rows| bitmap_words(rows, last)),
        Form::Set { regions, .. } => 2 + regions.iter().map(|region| region_words(region, last)).sum::<u64>(),
    };
    3 + body
}

fn bitmap_words<'a>(rows: &'a Bitmap, said: &mut Said<'a>) -> u64 {
    let words = rows.word_count() as u64;
    if said.last.replace(rows) == Some(rows) {
        said.again = said.again.saturating_add(words);
        return 1;
    }
    1 + words
}

/// `last` is the bitmap written last: where columns share one, it is written once.
fn region<'a>(shape: &'a Shape, last: &mut Option<&'a Bitmap>, out: &mut Vec<u8>) {
    let cut = |cut: Cut| match cut {
        Cut::Every(bytes) => bytes,
        Cut::Natural => NATURAL,
    };
    let kind = match &shape.form {
        Form::Contiguous(_) => CONTIGUOUS,
        Form::Strided(_) => STRIDED,
        Form::List(_) => LIST,
        Form::Bitmapped(_) => BITMAPPED,
        Form::Mapped(_) => MAPPED,
        Form::Variable(_) => VARIABLE,
        Form::Set { .. } => SET,
    };
    put(out, [kind, cut(shape.message), cut(shape.element)]);
    match &shape.form {
        Form::Contiguous(run) => put(out, [run.at, run.len]),
        Form::Strided(s) => {
            put(out, [s.base, s.levels.len() as u64, s.runs.len() as u64]);
            s.levels.iter().for_each(|level| put(out, [level.period, level.count]));
            runs(&s.runs, out);
        }
        Form::List(ranges) => {
            put(out, [ranges.len() as u64]);
            runs(ranges, out);
        }
        Form::Bitmapped(b) => {
            put(out, [b.columns.len() as u64]);
            b.columns.iter().for_each(|column| put(out, [column.base, column.stride, column.width]));
            bitmap(&b.rows, last, out);
        }
        Form::Mapped(m) => {
            put(out, [m.rows.len() as u64, m.runs.len() as u64]);
            m.rows.iter().for_each(|row| put(out, [*row]));
            runs(&m.runs, out);
        }
        Form::Variable(v) => {
            put(out, [v.data, v.offsets.len() as u64, u64::from(v.rows.is_some())]);
            v.offsets.iter().for_each(|offset| put(out, [*offset]));
            if let Some(rows) = &v.rows {
                bitmap(rows, last, out);
            }
        }
        Form::Set { regions, mask } => {
            put(out, [u64::from(*mask == Mask::Periods), regions.len() as u64]);
            regions.iter().for_each(|one| region(one, last, out));
        }
    }
}

fn bitmap<'a>(rows: &'a Bitmap, last: &mut Option<&'a Bitmap>, out: &mut Vec<u8>) {
    if *last == Some(rows) {
        return put(out, [SAME]);
    }
    *last = Some(rows);
    put(out, [rows.rows()]);
    out.reserve(rows.word_count() * WORD_BYTES);
    (0..rows.word_count()).for_each(|index| put(out, [rows.word(index)]));
}

fn runs(runs: &[Run], out: &mut Vec<u8>) {
    runs.iter().for_each(|run| put(out, [run.at, run.len]));
}

fn put<const N: usize>(out: &mut Vec<u8>, words: [u64; N]) {
    words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
}

/// What is left of a description.
struct Reader<'a> {
    left: &'a [u8],
    bytes: usize,
    /// Bytes of the memory that the shape is of.
    over: u64,
    /// The bitmap read last.
    bitmap: Option<Bitmap>,
    /// What it comes to under columns, once somebody asked.
    stepped: Option<Stepped>,
    /// Words of bitmaps that were said again.
    again: u64,
}

impl Reader<'_> {
    fn region(&mut self, whole: bool) -> Result<Shape, DescriptionError> {
        let [kind, message, element] = [self.word()?, self.word()?, self.word()?];
        let form = match kind {
            CONTIGUOUS => Shape::contiguous(self.word()?, self.word()?)?.form,
            STRIDED => {
                let [base, levels, runs] = [self.word()?, self.word()?, self.word()?];
                let levels = self.pairs(levels)?.map(|[period, count]| Level::new(period, count)).collect::<Vec<_>>();
                regular(base, &levels, &self.runs(runs)?)?.form
            }
            LIST => {
                let count = self.word()?;
                Shape::list(&self.runs(count)?)?.form
            }
            BITMAPPED => {
                let columns = self.word()?;
                few("number of columns", columns, COLUMNS_MAX)?;
                let column = |[base, stride, width]: [u64; 3]| Column { base, stride, width };
                let columns: Vec<Column> = self.groups::<3>(columns)?.map(column).collect();
                let rows = self.bitmap()?;
                let stepped = self.stepped.get_or_insert_with(|| Stepped::of(&rows));
                Shape::under(&columns, stepped, Order::Rows)?.form
            }
            MAPPED => {
                let [rows, runs] = [self.word()?, self.word()?];
                let rows: Arc<[u64]> = self.words(rows)?;
                mapped(rows, &self.runs(runs)?)?.0
            }
            VARIABLE => {
                let [data, offsets, selected] = [self.word()?, self.word()?, self.word()?];
                let offsets = self.words(offsets)?;
                let rows = match selected {
                    0 => None,
                    1 => Some(self.bitmap()?),
                    value => return Err(DescriptionError::Field { field: "selection", value }),
                };
                variable(data, offsets, rows)?
            }
            SET if whole => self.set()?.form,
            value => return Err(DescriptionError::Field { field: "kind", value }),
        };
        let shape = Shape::whole(form);
        let cut = |field, value| cut(&shape, field, value);
        let (message, element) = (cut("message length", message)?, cut("element length", element)?);
        Ok(Shape { message, element, ..shape })
    }

    fn set(&mut self) -> Result<Shape, DescriptionError> {
        let mask = match self.word()? {
            0 => Mask::Rows,
            1 => Mask::Periods,
            value => return Err(DescriptionError::Field { field: "row mask", value }),
        };
        let count = self.word()?;
        few("number of regions", count, REGIONS_MAX)?;
        let regions = (0..count).map(|_| self.region(false)).collect::<Result<Vec<_>, _>>()?;
        Ok(set(regions, mask)?)
    }

    fn bitmap(&mut self) -> Result<Bitmap, DescriptionError> {
        let rows = match self.word()? {
            SAME => {
                let none = DescriptionError::Field { field: "bitmap", value: SAME };
                let bitmap = self.bitmap.clone().ok_or(none)?;
                self.again = self.again.saturating_add(bitmap.word_count() as u64);
                repeated(self.again, self.bytes.div_ceil(WORD_BYTES) as u64, self.over)?;
                return Ok(bitmap);
            }
            rows => rows,
        };
        let words: Arc<[u64]> = self.words(rows.div_ceil(64))?;
        let bitmap = Bitmap::new(words, rows)?;
        (self.bitmap, self.stepped) = (Some(bitmap.clone()), None);
        Ok(bitmap)
    }

    fn runs(&mut self, count: u64) -> Result<Vec<Run>, DescriptionError> {
        Ok(self.pairs(count)?.map(|[at, len]| Run::new(at, len)).collect())
    }

    fn pairs(&mut self, count: u64) -> Result<impl Iterator<Item = [u64; 2]>, DescriptionError> {
        self.groups::<2>(count)
    }

    /// `count` groups of `N` words; there are so many.
    fn groups<const N: usize>(&mut self, count: u64) -> Result<impl Iterator<Item = [u64; N]>, DescriptionError> {
        let words = count.checked_mul(N as u64).ok_or(self.fault())?;
        let bytes = self.take(words)?;
        let group = |group: &[u8]| {
            let words = group.as_chunks::<WORD_BYTES>().0;
            std::array::from_fn(|index| u64::from_le_bytes(words[index]))
        };
        Ok(bytes.chunks_exact(N * WORD_BYTES).map(group))
    }

    fn words(&mut self, count: u64) -> Result<Arc<[u64]>, DescriptionError> {
        let words = self.take(count)?.as_chunks::<WORD_BYTES>().0;
        Ok(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }

    fn word(&mut self) -> Result<u64, DescriptionError> {
        let (word, _) = self.take(1)?.as_chunks::<WORD_BYTES>();
        Ok(u64::from_le_bytes(word[0]))
    }
}

impl<'a> Reader<'a> {
    fn take(&mut self, words: u64) -> Result<&'a [u8], DescriptionError> {
        let bytes = words.checked_mul(WORD_BYTES as u64).filter(|bytes| *bytes <= self.left.len() as u64);
        let Some(bytes) = bytes else { return Err(self.fault()) };
        let (taken, left) = self.left.split_at(bytes as usize);
        self.left = left;
        Ok(taken)
    }

    fn fault(&self) -> DescriptionError {
        DescriptionError::Length { bytes: self.bytes }
    }
}

/// A cut of a described form: whole units only, and the kind's own where it has one.
fn cut(shape: &Shape, field: &'static str, value: u64) -> Result<Cut, DescriptionError> {
    let natural = matches!(shape.form, Form::Variable(_) | Form::Set { .. });
    match value {
        NATURAL if natural => Ok(Cut::Natural),
        NATURAL => Err(DescriptionError::Field { field, value }),
        0 if shape.bytes == 0 => Ok(Cut::Every(0)),
        bytes if bytes > 0 && shape.bytes > 0 && shape.bytes.is_multiple_of(bytes) => Ok(Cut::Every(bytes)),
        _ => Err(DescriptionError::Field { field, value }),
    }
}

/// "OSREGN", version 1.
const HEAD: u64 = u64::from_le_bytes(*b"OSREGN\x01\0");
const WORD_BYTES: usize = 8;
const NATURAL: u64 = u64::MAX;
/// Instead of a number of rows: the bitmap before this one again.
const SAME: u64 = u64::MAX;
const CONTIGUOUS: u64 = 1;
const STRIDED: u64 = 2;
const LIST: u64 = 3;
const BITMAPPED: u64 = 4;
const MAPPED: u64 = 5;
const VARIABLE: u64 = 6;
const SET: u64 = 7;
/// Words of bitmaps that are said again, whatever the description is of: a millisecond's steps.
const REPEATED_MIN: u64 = 1 << 20;
/// And for each word of the description.
const REPEATED_PER_WORD: u64 = 64;
/// Columns under one bitmap, and regions of a set.
const COLUMNS_MAX: u64 = 4096;
const REGIONS_MAX: u64 = 4096;
