//! The shape itself: how each kind is declared, and what all of them answer.

use std::ops::Range;
use std::sync::Arc;

use crate::bitmap::Bitmap;
use crate::bitmapped::{Column, Order, Stepped, column, trimmed};
use crate::cut::Cut;
use crate::error::ShapeError;
use crate::form::{Form, Mask, ShapeKind};
use crate::fragments::Fragments;
use crate::mapped::mapped;
use crate::messages::Messages;
use crate::run::Run;
use crate::set::set;
use crate::strided::{Frequency, Level, listed, regular};
use crate::variable::variable;
use crate::walk::Walk;

/// Which bytes, in message order, and where messages end. See the crate's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    pub(crate) form: Form,
    pub(crate) message: Cut,
    pub(crate) element: Cut,
    pub(crate) bytes: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Shape {
    /// `len` bytes from `at`: one message.
    ///
    /// # Errors
    /// [`ShapeError::Overflow`] when the end exceeds 64 bits.
    pub fn contiguous(at: u64, len: u64) -> Result<Self, ShapeError> {
        Self::list(&[Run::new(at, len)])
    }

    /// `rows` values of `width` bytes without space between them, a message each: a dense column.
    ///
    /// # Errors
    /// [`ShapeError::Overflow`] when the end exceeds 64 bits.
    pub fn column(at: u64, width: u64, rows: u64) -> Result<Self, ShapeError> {
        let bytes = width.checked_mul(rows).ok_or(ShapeError::Overflow)?;
        Ok(Self { message: Cut::Every(width), element: Cut::Every(width), ..Self::contiguous(at, bytes)? })
    }

    /// `count` periods of `period` bytes, the first at `base`; of each period the bytes of `runs`
    /// (offsets from the period's start, ascending, disjoint). A message a period (d-rdma §3.1
    /// DR-M07).
    ///
    /// # Errors
    /// [`ShapeError::Runs`] for runs out of order or outside of the period,
    /// [`ShapeError::Overflow`] when the last period exceeds 64 bits.
    pub fn strided(base: u64, period: u64, count: u64, runs: &[Run]) -> Result<Self, ShapeError> {
        Self::nested(base, &[Level::new(period, count)], runs)
    }

    /// Periods within periods, the outermost first, and the runs of each innermost one. A message
    /// an innermost period.
    ///
    /// # Errors
    /// As [`strided`](Self::strided); [`ShapeError::Level`] when what lies within a period does not
    /// fit into it, [`ShapeError::Levels`] when more than six remain in the canonical form.
    pub fn nested(base: u64, levels: &[Level], runs: &[Run]) -> Result<Self, ShapeError> {
        let region = regular(base, levels, runs)?;
        let period = Cut::Every(region.period_bytes);
        Ok(Self::of(region.form, period, period))
    }

    /// Of each `of` elements `take`, `count` times (d-rdma §3.1 DR-M04). A message a period,
    /// elements of `width`.
    ///
    /// # Errors
    /// As [`strided`](Self::strided).
    pub fn every(frequency: Frequency) -> Result<Self, ShapeError> {
        let Frequency { base, width, take, of, start, count } = frequency;
        let bytes = |elements: u64| elements.checked_mul(width).ok_or(ShapeError::Overflow);
        let run = Run::new(bytes(start)?, bytes(take)?);
        Self::strided(base, bytes(of)?, count, &[run])?.elements_of(width)
    }

    /// The given ranges in the given order; touching neighbours are folded and empty ones dropped.
    /// One message.
    ///
    /// # Errors
    /// [`ShapeError::Overflow`] when a range or the sum exceeds 64 bits.
    pub fn list(ranges: &[Run]) -> Result<Self, ShapeError> {
        let mut out: Vec<Run> = Vec::with_capacity(ranges.len());
        let mut bytes = 0u64;
        for range in ranges.iter().filter(|r| r.len > 0) {
            range.end().ok_or(ShapeError::Overflow)?;
            bytes = bytes.checked_add(range.len).ok_or(ShapeError::Overflow)?;
            match out.last_mut() {
                Some(previous) if previous.at + previous.len == range.at => previous.len += range.len,
                _ => out.push(*range),
            }
        }
        Ok(Self::whole(listed(out)?))
    }

    /// The set rows of a bitmap across columns (d-rdma §3.3 DR-M18). In the order of
    /// [`Order::Rows`] a message is a row; column by column it is a value.
    ///
    /// # Errors
    /// [`ShapeError::Column`] for a width of 0 or above the stride, [`ShapeError::Overflow`].
    pub fn bitmapped(columns: &[Column], rows: &Bitmap, order: Order) -> Result<Self, ShapeError> {
        Self::under(columns, &Stepped::of(rows), order)
    }

    /// As [`bitmapped`](Self::bitmapped), under a bitmap that was stepped through before.
    pub(crate) fn under(columns: &[Column], rows: &Stepped, order: Order) -> Result<Self, ShapeError> {
        let Some(columns) = trimmed(columns, rows)?.filter(|columns| !columns.is_empty()) else {
            return Ok(Self::whole(Form::empty()));
        };
        let mut regions = Vec::with_capacity(columns.len());
        for of in &columns {
            let width = Cut::Every(of.width);
            of.width.checked_mul(rows.rows.ones()).ok_or(ShapeError::Overflow)?;
            regions.push(Self::of(column(*of, rows)?, width, width));
        }
        set(regions, if order == Order::Rows { Mask::Rows } else { Mask::Periods })
    }

    /// The bytes of `runs` (offsets from the row's start, ascending, disjoint) of the rows at the
    /// given offsets. A message a row (d-rdma §3.3 DR-M17).
    ///
    /// # Errors
    /// [`ShapeError::Runs`] for runs out of order, [`ShapeError::Overflow`].
    pub fn mapped(rows: impl Into<Arc<[u64]>>, runs: &[Run]) -> Result<Self, ShapeError> {
        let (form, row_bytes) = mapped(rows.into(), runs)?;
        Ok(Self::of(form, Cut::Every(row_bytes), Cut::Every(row_bytes)))
    }

    /// Values of any length: value i is bytes `offsets[i]..offsets[i + 1]` from `data`; all of
    /// them, or those of a bitmap. A message a value.
    ///
    /// # Errors
    /// [`ShapeError::Offsets`] when they descend or are missing, [`ShapeError::Selection`] when the
    /// bitmap has not a bit for each value, [`ShapeError::Overflow`].
    pub fn variable(data: u64, offsets: impl Into<Arc<[u64]>>, rows: Option<&Bitmap>) -> Result<Self, ShapeError> {
        let offsets = offsets.into();
        let width = offsets.windows(2).next().map_or(0, |w| w[1].saturating_sub(w[0]));
        let form = variable(data, offsets, rows.cloned())?;
        let cut = if matches!(form, Form::Variable(_)) { Cut::Natural } else { Cut::Every(width) };
        Ok(Self::of(form, cut, cut))
    }

    /// Several regions of one memory under a row mask.
    ///
    /// # Errors
    /// [`ShapeError::Elements`] when one has more elements than another (d-rdma §3.2 DR-M14),
    /// [`ShapeError::Nested`] for a set within a set, [`ShapeError::Overflow`].
    pub fn set(regions: Vec<Shape>, mask: Mask) -> Result<Self, ShapeError> {
        set(regions, mask)
    }

    /// The same bytes with elements of `bytes` each: what [`Mask::Rows`] takes of this region at a
    /// time.
    ///
    /// # Errors
    /// [`ShapeError::Divide`] when a run is not so many whole elements; values of any length and
    /// sets never are.
    pub fn elements_of(self, bytes: u64) -> Result<Self, ShapeError> {
        let odd = |run: u64| bytes == 0 || !run.is_multiple_of(bytes);
        let fault = match &self.form {
            Form::Contiguous(run) => Some(run.len).filter(|len| odd(*len)),
            Form::Strided(s) => s.runs.iter().map(|r| r.len).find(|len| odd(*len)),
            Form::List(runs) => runs.iter().map(|r| r.len).find(|len| odd(*len)),
            Form::Bitmapped(b) => b.columns.iter().map(|c| c.width).find(|len| odd(*len)),
            Form::Mapped(m) => m.runs.iter().map(|r| r.len).find(|len| odd(*len)),
            Form::Variable(_) | Form::Set { .. } => Some(self.bytes),
        };
        match fault {
            Some(run) => Err(ShapeError::Divide { what: "element bytes", bytes, run }),
            None => Ok(Self { element: Cut::Every(bytes), ..self }),
        }
    }

    /// The same bytes in messages of `bytes` each.
    ///
    /// # Errors
    /// [`ShapeError::Divide`] when the last message would be shorter.
    pub fn messages_of(self, bytes: u64) -> Result<Self, ShapeError> {
        if self.bytes > 0 && (bytes == 0 || !self.bytes.is_multiple_of(bytes)) {
            return Err(ShapeError::Divide { what: "message bytes", bytes, run: self.bytes });
        }
        Ok(Self { message: Cut::Every(bytes), ..self })
    }

    /// The same bytes as one message of one element.
    pub fn one_message(self) -> Self {
        Self { message: Cut::Every(self.bytes), element: Cut::Every(self.bytes), ..self }
    }

    /// A form as one message of one element.
    pub(crate) fn whole(form: Form) -> Self {
        let all = Self::of(form, Cut::Every(0), Cut::Every(0));
        let bytes = Cut::Every(all.bytes);
        Self { message: bytes, element: bytes, ..all }
    }

    /// A checked form.
    pub(crate) fn of(form: Form, message: Cut, element: Cut) -> Self {
        let (bytes, start, end) = form.extent();
        // What is empty is equal, however it was to be cut.
        let cut = |cut: Cut| if bytes == 0 && cut != Cut::Natural { Cut::Every(0) } else { cut };
        Self { form, message: cut(message), element: cut(element), bytes, start, end }
    }

    /// What it is made of.
    pub fn kind(&self) -> ShapeKind<'_> {
        self.form.kind()
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The lowest byte; 0 for an empty shape.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// One past the highest byte; 0 for an empty shape.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The fragments in message order, each as large as it can be. Under [`Mask::Rows`] each
    /// element of each region is a fragment of its own.
    pub fn fragments(&self) -> Fragments<'_> {
        Fragments::new(Walk::at_byte(self, 0), self.bytes)
    }

    /// The fragments of a range of the bytes in message order.
    ///
    /// # Panics
    /// When the range leaves the shape.
    pub fn fragments_in(&self, range: Range<u64>) -> Fragments<'_> {
        assert!(range.start <= range.end && range.end <= self.bytes, "bytes {range:?} of {}", self.bytes);
        Fragments::new(Walk::at_byte(self, range.start), range.end - range.start)
    }

    /// How many fragments [`fragments`](Self::fragments) yields. Constant time but for several
    /// bitmapped columns.
    pub fn fragment_count(&self) -> u64 {
        match &self.form {
            Form::Contiguous(run) => u64::from(run.len > 0),
            Form::Strided(s) => s.fragment_count(),
            Form::List(runs) => runs.len() as u64,
            Form::Bitmapped(b) => b.fragment_count(),
            Form::Mapped(m) => m.fragments,
            Form::Variable(v) => v.fragments,
            Form::Set { regions, mask: Mask::Periods } => {
                let (mut count, mut reach) = (0, None);
                for region in regions.iter().filter(|r| r.bytes > 0) {
                    let first = Walk::at_byte(region, 0).take(1).map(|byte| byte.at);
                    count += region.fragment_count() - u64::from(first == reach);
                    reach = Walk::at_byte(region, region.bytes - 1).take(1).map(|byte| byte.at + 1);
                }
                count
            }
            Form::Set { regions, mask: Mask::Rows } => regions.iter().map(Self::element_pieces).sum(),
        }
    }

    /// The messages: where the row mask cuts (d-rdma §3.1 DR-M06).
    pub fn messages(&self) -> Messages<'_> {
        Messages::new(self)
    }

    /// Elements: what [`Mask::Rows`] counts.
    pub fn elements(&self) -> u64 {
        self.unit_count(self.element)
    }

    /// Bytes of an element, if all have as many.
    pub fn element_bytes(&self) -> Option<u64> {
        match self.element {
            Cut::Every(bytes) => Some(bytes),
            Cut::Natural => None,
        }
    }

    /// Pieces of all elements, none folded with the next element's.
    fn element_pieces(&self) -> u64 {
        match &self.form {
            // An empty value has no piece.
            Form::Variable(v) => v.nonempty,
            // Of all periods at once, which are not worth a walk.
            Form::Strided(s) if self.element_bytes() == Some(self.bytes) => s.runs.len() as u64 * s.periods(),
            // Every element has as many pieces as the first.
            _ => {
                let bytes = self.element_bytes().unwrap_or(0).min(self.bytes);
                self.elements() * walk_pieces(Walk::at_byte(self, 0), bytes)
            }
        }
    }

    /// Checks that the shape lies in a memory of `len` bytes.
    ///
    /// # Errors
    /// [`ShapeError::Escapes`].
    pub fn within(&self, len: u64) -> Result<(), ShapeError> {
        if self.end > len {
            return Err(ShapeError::Escapes { end: self.end, len });
        }
        Ok(())
    }
}

fn walk_pieces(mut walk: Walk<'_>, mut bytes: u64) -> u64 {
    let mut pieces = 0;
    while bytes > 0 {
        let Some(run) = walk.take(bytes) else { break };
        (bytes, pieces) = (bytes - run.len, pieces + 1);
    }
    pieces
}
