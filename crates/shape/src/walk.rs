//! A place in the bytes of any shape, in message order.

use crate::cursor::Cursor;
use crate::cut::{Cut, Lengths};
use crate::form::{Form, Mask};
use crate::run::Run;
use crate::shape::Shape;

/// Yields pieces of a shape; allocates once for a set under [`Mask::Rows`], never per piece.
#[derive(Clone, Debug)]
pub(crate) enum Walk<'a> {
    Plain(Cursor<'a>),
    Periods { regions: &'a [Shape], cursor: Cursor<'a> },
    Rows { columns: Vec<ColumnWalk<'a>>, at: usize },
}

/// One region of a set under [`Mask::Rows`].
#[derive(Clone, Debug)]
pub(crate) struct ColumnWalk<'a> {
    cursor: Cursor<'a>,
    lengths: Lengths<'a>,
    /// What is left of the current element.
    left: u64,
}

impl<'a> Walk<'a> {
    /// At byte `at` of the shape's bytes in message order.
    pub(crate) fn at_byte(shape: &'a Shape, at: u64) -> Self {
        match &shape.form {
            Form::Set { regions, mask: Mask::Rows } => {
                let (element, rest) = shape.element_at(at);
                Self::rows(regions, element).skip(rest)
            }
            Form::Set { regions, mask: Mask::Periods } => {
                let (mut index, mut at) = (0, at);
                while index + 1 < regions.len() && at >= regions[index].bytes {
                    at -= regions[index].bytes;
                    index += 1;
                }
                Walk::Periods { regions: &regions[index + 1..], cursor: Cursor::new(&regions[index].form, at) }
            }
            form => Walk::Plain(Cursor::new(form, at)),
        }
    }

    /// At the start of message `index`.
    pub(crate) fn at_message(shape: &'a Shape, index: u64) -> Self {
        match (&shape.form, shape.message) {
            (Form::Set { regions, mask: Mask::Rows }, Cut::Natural) => Self::rows(regions, index),
            _ => Self::at_byte(shape, shape.unit_start(shape.message, index)),
        }
    }

    fn rows(regions: &'a [Shape], element: u64) -> Self {
        let column = |region: &'a Shape| ColumnWalk {
            cursor: Cursor::new(&region.form, region.unit_start(region.element, element)),
            lengths: Lengths::new(region, region.element, element),
            left: 0,
        };
        Walk::Rows { columns: regions.iter().map(column).collect(), at: regions.len() - 1 }
    }

    fn skip(mut self, mut bytes: u64) -> Self {
        while bytes > 0 {
            match self.take(bytes) {
                Some(run) => bytes -= run.len,
                None => break,
            }
        }
        self
    }

    /// Whether successive pieces that touch are one fragment: not where each is an element of
    /// another region.
    pub(crate) fn folds(&self) -> bool {
        !matches!(self, Walk::Rows { .. })
    }

    /// The next bytes that lie together, `most` at most.
    #[inline]
    pub(crate) fn take(&mut self, most: u64) -> Option<Run> {
        match self {
            Walk::Plain(cursor) => cursor.take(most),
            Walk::Periods { regions, cursor } => loop {
                if let Some(run) = cursor.take(most) {
                    return Some(run);
                }
                let (first, rest) = regions.split_first()?;
                (*cursor, *regions) = (Cursor::new(&first.form, 0), rest);
            },
            Walk::Rows { columns, at } => {
                while columns[*at].left == 0 {
                    *at = if *at + 1 == columns.len() { 0 } else { *at + 1 };
                    columns[*at].left = columns[*at].lengths.next()?;
                }
                let column = &mut columns[*at];
                let run = column.cursor.take(most.min(column.left))?;
                column.left -= run.len;
                Some(run)
            }
        }
    }
}
