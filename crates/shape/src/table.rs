//! Regions that are rows of one table: bitmaps over the same columns, as the destinations of a
//! shuffle have them.

use crate::bitmap::Bitmap;
use crate::bitmapped::{Bitmapped, Column};
use crate::form::Form;
use crate::shape::Shape;

/// The rows of the same columns that each of several shapes has.
#[derive(Clone, Debug)]
pub struct OneTable<'a> {
    columns: Vec<Column>,
    rows: u64,
    parts: Vec<Wanted<'a>>,
}

/// Which rows of a table a shape has.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    rows: &'a Bitmap,
    /// Rows of the table before the bitmap's first.
    lead: u64,
    /// The words that hold its bits, and which of theirs is the first.
    words: &'a [u64],
    first: u64,
}

impl<'a> Wanted<'a> {
    fn new(lead: u64, rows: &'a Bitmap) -> Self {
        let (words, first) = rows.window();
        Self { rows, lead, words, first }
    }

    /// Rows of the table before the first that it may have.
    pub fn lead(&self) -> u64 {
        self.lead
    }

    /// Which of 64 rows of the table, `from` being the first, it has.
    #[inline]
    pub fn word(&self, from: u64) -> u64 {
        if from >= self.lead && from + 64 <= self.lead + self.rows.rows() {
            let bit = from - self.lead + self.first;
            let (index, shift) = ((bit / 64) as usize, bit % 64);
            // Bitmaps of one table stand in step as a rule.
            return if shift == 0 {
                self.words[index]
            } else {
                self.words[index] >> shift | self.words[index + 1] << (64 - shift)
            };
        }
        if from < self.lead {
            let shift = self.lead - from;
            return if shift < 64 { self.rows.word(0) << shift } else { 0 };
        }
        let (index, shift) = (((from - self.lead) / 64) as usize, (from - self.lead) % 64);
        let low = self.rows.word(index) >> shift;
        if shift == 0 { low } else { low | self.rows.word(index + 1) << (64 - shift) }
    }

    /// Lays its rows over those of the words of the table from `first` on that are `seen`; whether
    /// none was there.
    pub(crate) fn lay_over(&self, first: u64, seen: &mut [u64]) -> bool {
        let end = first + seen.len() as u64;
        // Words in which all rows are the bitmap's, and in step with its own.
        let inner = self.lead.div_ceil(64).clamp(first, end);
        let outer = ((self.lead + self.rows.rows()) / 64).clamp(inner, end);
        let in_step = self.lead % 64 == self.first;
        let (inner, outer) = if in_step { (inner, outer) } else { (end, end) };
        let mut both = 0;
        let mut lay = |seen: &mut [u64], from: u64| {
            for (word, seen) in (from..).zip(seen) {
                let word = self.word(word * 64);
                both |= *seen & word;
                *seen |= word;
            }
        };
        lay(&mut seen[..(inner - first) as usize], first);
        lay(&mut seen[(outer - first) as usize..], outer);
        if in_step && inner < outer {
            let before = (self.lead - self.first) / 64;
            let words = &self.words[(inner - before) as usize..(outer - before) as usize];
            for (seen, word) in seen[(inner - first) as usize..].iter_mut().zip(words) {
                both |= *seen & word;
                *seen |= word;
            }
        }
        both == 0
    }
}

impl<'a> OneTable<'a> {
    /// Of the shapes that have any bytes; none where one is anything else than bitmapped columns,
    /// or has other columns than the others, and where no shape has any bytes.
    pub fn of(shapes: &[&'a Shape]) -> Option<Self> {
        let full = shapes.iter().filter(|shape| shape.bytes > 0);
        let parts = full
            .map(|shape| if let Form::Bitmapped(b) = &shape.form { Some(b) } else { None })
            .collect::<Option<Vec<&Bitmapped>>>()?;
        let lowest = parts.iter().min_by_key(|part| part.columns[0].base)?;
        // A bitmap begins with its first set row, and its columns there.
        let rows_before = |part: &&Bitmapped| {
            let lead = (part.columns[0].base - lowest.columns[0].base) / lowest.columns[0].stride;
            let alike = |(column, low): (&Column, &Column)| {
                (column.stride, column.width) == (low.stride, low.width) && column.base == low.base + lead * low.stride
            };
            let same = part.columns.len() == lowest.columns.len();
            (same && part.columns.iter().zip(&lowest.columns).all(alike)).then_some(lead)
        };
        let leads = parts.iter().map(rows_before).collect::<Option<Vec<u64>>>()?;
        let rows = leads.iter().zip(&parts).map(|(lead, part)| lead + part.rows.rows()).max()?;
        let parts = leads.into_iter().zip(&parts).map(|(lead, part)| Wanted::new(lead, &part.rows)).collect();
        Some(Self { columns: lowest.columns.to_vec(), rows, parts })
    }

    /// The columns, from the first row that any shape has.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Rows from there to the last that any shape has.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Of each shape that has any bytes, which rows.
    pub fn parts(&self) -> &[Wanted<'a>] {
        &self.parts
    }

    /// Lines of so many bytes that a stretch of some rows in the middle lies in: those that anybody
    /// has something of, and the sum of those that each has something of. By bit counts, as if
    /// every column began with a line.
    pub fn lines(&self, line_bytes: u64, rows: u64) -> (u64, u64) {
        let (from, mut union, mut apart) = (self.rows.saturating_sub(rows) / 2 / 64 * 64, 0, 0);
        for column in &self.columns {
            let each = (line_bytes / column.stride.max(1)).clamp(1, 64) as usize;
            for block in (from..self.rows.min(from + rows)).step_by(64) {
                for first in (0..64).step_by(each) {
                    let line = u64::MAX >> (64 - each) << first;
                    let has = self.parts.iter().filter(|part| part.word(block) & line != 0).count() as u64;
                    (union, apart) = (union + u64::from(has > 0), apart + has);
                }
            }
        }
        (union, apart)
    }

    /// Whether all its columns are dense, of values of `width` bytes.
    pub fn is_dense(&self, width: u64) -> bool {
        self.columns.iter().all(|column| (column.width, column.stride) == (width, width))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bitmapped::Order;
    use proptest::prelude::*;

    proptest! {
        /// In step and out of it, from any row, within the bitmap and around it.
        #[test]
        fn words_of_the_table_have_the_rows_of_the_bitmap(
            bits in proptest::collection::vec(any::<bool>(), 1..500), cut in 0usize..200, lead in 0u64..200, from in 0u64..700, laid in 0u64..4,
        ) {
            let cut = cut.min(bits.len() - 1);
            let whole = Bitmap::of(bits.len() as u64, |row| bits[row as usize]);
            let part = whole.slice(cut as u64..bits.len() as u64);
            let wanted = Wanted::new(lead, &part);
            let has = |row: u64| row >= lead && bits.get(cut + (row - lead) as usize).copied().unwrap_or(false);
            let expected = |from: u64| (0..64).fold(0u64, |word, bit| word | u64::from(has(from + bit)) << bit);
            prop_assert_eq!(wanted.word(from), expected(from));
            let mut seen: Vec<u64> = vec![0; 9];
            prop_assert!(wanted.lay_over(laid, &mut seen));
            prop_assert_eq!(&seen, &(laid..laid + 9).map(|word| expected(word * 64)).collect::<Vec<_>>());
            let any = seen.iter().any(|word| *word != 0);
            prop_assert_eq!(wanted.lay_over(laid, &mut seen), !any);
        }
    }

    #[test]
    fn lines_are_those_of_the_fragments() {
        for stride in [4, 8, 24, 64, 100] {
            let columns = [Column::new(0, stride, 4), Column::new(1 << 20, 4, 4)];
            let shapes: Vec<Shape> = (0..3)
                .map(|of| {
                    Shape::bitmapped(&columns, &Bitmap::of(640, |row| row * row % 11 % 4 == of), Order::Rows).unwrap()
                })
                .collect();
            let table = OneTable::of(&shapes.iter().collect::<Vec<_>>()).unwrap();
            let of = |shape: &Shape| {
                // Values that reach into the next line count for their own.
                shape.messages().fragments().map(|run| run.at / 64).collect::<std::collections::BTreeSet<u64>>()
            };
            let each: Vec<_> = shapes.iter().map(of).collect();
            let apart: usize = each.iter().map(|lines| lines.len()).sum();
            let union = each.iter().flatten().collect::<std::collections::BTreeSet<_>>().len();
            let (found_union, found_apart) = table.lines(64, 640);
            // A line of rows of 24 bytes is taken to be two of them, which it is not quite.
            let close = |found: u64, real: usize| {
                (found as f64 / real as f64 - 1.0).abs() < if stride == 24 { 0.3 } else { 0.01 }
            };
            assert!(
                close(found_union, union) && close(found_apart, apart),
                "{stride}: {found_union} {union} {found_apart} {apart}"
            );
        }
    }

    #[test]
    fn rows_are_counted_from_the_first_that_anybody_has() {
        let columns = [Column::dense(100, 4), Column::dense(2000, 8)];
        let rows = |from: u64, of: u64| Bitmap::of(200, move |row| row >= from && row * row % 7 == of);
        let shape = |bits: &Bitmap| Shape::bitmapped(&columns, bits, Order::Rows).unwrap();
        let (late, early) = (shape(&rows(90, 1)), shape(&rows(5, 2)));
        let nothing = Shape::contiguous(0, 0).unwrap();
        let table = OneTable::of(&[&late, &nothing, &early]).unwrap();
        let first = (5..).find(|row: &u64| row * row % 7 == 2).unwrap();
        assert_eq!(table.columns(), [Column::dense(100 + first * 4, 4), Column::dense(2000 + first * 8, 8)]);
        let leads: Vec<u64> = table.parts().iter().map(Wanted::lead).collect();
        assert_eq!(leads, [(90..).find(|row: &u64| row * row % 7 == 1).unwrap() - first, 0]);
        let last = (0..200u64).rfind(|row| matches!(row * row % 7, 1 | 2)).unwrap();
        assert_eq!((table.rows(), table.is_dense(4)), (last + 1 - first, false));
        let other = Shape::bitmapped(&[columns[0], Column::dense(2001, 8)], &rows(5, 4), Order::Rows).unwrap();
        assert!(OneTable::of(&[&late, &other]).is_none() && OneTable::of(&[&nothing]).is_none());
    }
}
