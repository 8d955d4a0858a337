//! The messages of a shape: which fragments each has, by rule and never listed (d-rdma §3.1
//! DR-M06).

use std::ops::Range;

use crate::cut::{Cut, Lengths};
use crate::fragments::Fragments;
use crate::run::Run;
use crate::shape::Shape;
use crate::walk::Walk;

/// Messages of a shape, all or a range of them.
///
/// ```
/// use overside_shape::{Mask, Run, Shape};
/// // Two 4-byte columns; every other row goes to this destination.
/// let column = |at| Shape::strided(at, 8, 3, &[Run::new(0, 4)]);
/// let rows = Shape::set(vec![column(0)?, column(100)?], Mask::Rows)?;
/// let messages = rows.messages();
/// assert_eq!((messages.count(), messages.uniform_bytes()), (3, Some(8)));
/// assert_eq!(messages.message(1).collect::<Vec<_>>(), [Run::new(8, 4), Run::new(108, 4)]);
/// # Ok::<(), overside_shape::ShapeError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Messages<'a> {
    shape: &'a Shape,
    from: u64,
    to: u64,
}

/// A fragment, or the part of one that belongs to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Index of the message within the shape.
    pub message: u64,
    /// Its bytes.
    pub run: Run,
}

impl<'a> Messages<'a> {
    pub(crate) fn new(shape: &'a Shape) -> Self {
        Self { shape, from: 0, to: shape.unit_count(shape.message) }
    }

    /// How many messages.
    pub fn count(&self) -> u64 {
        self.to - self.from
    }

    /// Indices of these messages within the shape.
    pub fn range(&self) -> Range<u64> {
        self.from..self.to
    }

    /// The shape they are of.
    pub fn shape(&self) -> &'a Shape {
        self.shape
    }

    /// Bytes of each message, if all have as many.
    pub fn uniform_bytes(&self) -> Option<u64> {
        match self.shape.message {
            Cut::Every(bytes) => Some(bytes),
            Cut::Natural => None,
        }
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.start(self.to) - self.start(self.from)
    }

    /// Which of the shape's bytes in message order they are.
    pub fn byte_range(&self) -> Range<u64> {
        self.start(self.from)..self.start(self.to)
    }

    /// Bytes of message `index` (counted from the first of these).
    ///
    /// # Panics
    /// When there is no such message.
    pub fn bytes_of(&self, index: u64) -> u64 {
        let at = self.checked(index);
        self.start(at + 1) - self.start(at)
    }

    /// Bytes of each message in turn.
    pub fn lengths(&self) -> impl Iterator<Item = u64> + 'a {
        Lengths::new(self.shape, self.shape.message, self.from).take(self.count() as usize)
    }

    /// The fragments of message `index` (counted from the first of these).
    ///
    /// # Panics
    /// When there is no such message.
    pub fn message(&self, index: u64) -> Fragments<'a> {
        Fragments::new(Walk::at_message(self.shape, self.checked(index)), self.bytes_of(index))
    }

    /// The fragments of all of them in message order, folded across messages (d-rdma §4.1 DR-M28).
    pub fn fragments(&self) -> Fragments<'a> {
        Fragments::new(Walk::at_message(self.shape, self.from), self.bytes())
    }

    /// The fragments in message order, cut where a message ends. A message of no bytes has none.
    pub fn pieces(&self) -> Pieces<'a> {
        let lengths = Lengths::new(self.shape, self.shape.message, self.from);
        Pieces {
            walk: Walk::at_message(self.shape, self.from),
            lengths,
            next: self.from,
            to: self.to,
            left: 0,
            held: None,
        }
    }

    /// Messages `range` of these (counted from the first of these).
    ///
    /// # Panics
    /// When the range leaves them.
    pub fn slice(&self, range: Range<u64>) -> Self {
        assert!(range.start <= range.end && range.end <= self.count(), "messages {range:?} of {}", self.count());
        Self { shape: self.shape, from: self.from + range.start, to: self.from + range.end }
    }

    /// These messages in tiles of `rows` each; the last may have less.
    ///
    /// # Panics
    /// When `rows` is 0.
    pub fn tiles(self, rows: u64) -> impl Iterator<Item = Messages<'a>> {
        assert!(rows > 0, "a tile has a message at least");
        let count = self.count();
        (0..count.div_ceil(rows)).map(move |i| self.slice(i * rows..(i * rows).saturating_add(rows).min(count)))
    }

    pub(crate) fn start(&self, index: u64) -> u64 {
        self.shape.unit_start(self.shape.message, index)
    }

    fn checked(&self, index: u64) -> u64 {
        assert!(index < self.count(), "message {index} of {}", self.count());
        self.from + index
    }
}

/// Pieces in message order. See [`Messages::pieces`].
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    walk: Walk<'a>,
    lengths: Lengths<'a>,
    /// The message after the current one.
    next: u64,
    to: u64,
    left: u64,
    held: Option<Run>,
}

impl Pieces<'_> {
    #[inline]
    fn pull(&mut self) -> Option<Run> {
        let run = self.walk.take(self.left)?;
        self.left -= run.len;
        Some(run)
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        let mut run = match self.held.take() {
            Some(run) => run,
            None => {
                while self.left == 0 {
                    if self.next == self.to {
                        return None;
                    }
                    self.left = self.lengths.next()?;
                    self.next += 1;
                }
                self.pull()?
            }
        };
        while self.left > 0 && self.walk.folds() {
            let Some(more) = self.pull() else { break };
            if run.at + run.len != more.at {
                self.held = Some(more);
                break;
            }
            run.len += more.len;
        }
        Some(Piece { message: self.next - 1, run })
    }
}
