//! How a region's bytes divide into messages and elements.

use crate::bitmap::Ones;
use crate::form::{Form, Mask};
use crate::shape::Shape;
use crate::variable::Variable;

/// Where one unit (message or element) ends and the next begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cut {
    /// After every so many bytes.
    Every(u64),
    /// As the kind says: values of different length, or sets of them.
    Natural,
}

impl Shape {
    /// How many units a cut makes.
    pub(crate) fn unit_count(&self, cut: Cut) -> u64 {
        match (cut, &self.form) {
            (Cut::Every(0), _) => 0,
            (Cut::Every(bytes), _) => self.bytes / bytes,
            (Cut::Natural, Form::Variable(v)) => v.values(),
            (Cut::Natural, Form::Set { regions, mask: Mask::Rows }) => {
                regions.first().map_or(0, |r| r.unit_count(r.element))
            }
            (Cut::Natural, Form::Set { regions, mask: Mask::Periods }) => {
                regions.iter().map(|r| r.unit_count(r.message)).sum()
            }
            // Every other kind is cut evenly.
            (Cut::Natural, _) => 0,
        }
    }

    /// Bytes before unit `index`, which may be one past the last.
    pub(crate) fn unit_start(&self, cut: Cut, index: u64) -> u64 {
        match (cut, &self.form) {
            (Cut::Every(bytes), _) => index * bytes,
            (Cut::Natural, Form::Variable(v)) => v.bytes_before(index),
            (Cut::Natural, Form::Set { regions, mask: Mask::Rows }) => {
                regions.iter().map(|r| r.unit_start(r.element, index)).sum()
            }
            (Cut::Natural, Form::Set { regions, mask: Mask::Periods }) => {
                let (mut index, mut start) = (index, 0);
                for region in regions.iter() {
                    let count = region.unit_count(region.message);
                    if index < count {
                        return start + region.unit_start(region.message, index);
                    }
                    (index, start) = (index - count, start + region.bytes);
                }
                start
            }
            (Cut::Natural, _) => 0,
        }
    }

    /// Element and rest of byte `at` of a set's row-wise bytes.
    pub(crate) fn element_at(&self, at: u64) -> (u64, u64) {
        let (mut low, mut high) = (0, self.unit_count(Cut::Natural));
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.unit_start(Cut::Natural, middle) <= at { low = middle } else { high = middle - 1 }
        }
        (low, at - self.unit_start(Cut::Natural, low))
    }
}

/// Lengths of successive units.
#[derive(Clone, Debug)]
pub(crate) enum Lengths<'a> {
    Even { bytes: u64, left: u64 },
    Values { region: &'a Variable, next: u64 },
    Selected { region: &'a Variable, ones: Ones<'a> },
    Rows(Vec<Lengths<'a>>),
    Periods { regions: &'a [Shape], lengths: Box<Lengths<'a>> },
}

impl<'a> Lengths<'a> {
    /// From unit `index` of a shape on.
    pub(crate) fn new(shape: &'a Shape, cut: Cut, index: u64) -> Self {
        match (cut, &shape.form) {
            (Cut::Natural, Form::Variable(region)) => match &region.rows {
                Some(rows) => Lengths::Selected { region, ones: rows.ones_from(index) },
                None => Lengths::Values { region, next: index },
            },
            (Cut::Natural, Form::Set { regions, mask: Mask::Rows }) => {
                Lengths::Rows(regions.iter().map(|r| Lengths::new(r, r.element, index)).collect())
            }
            (Cut::Natural, Form::Set { regions, mask: Mask::Periods }) => {
                let (mut at, mut index) = (0, index);
                while at + 1 < regions.len() && index >= regions[at].unit_count(regions[at].message) {
                    index -= regions[at].unit_count(regions[at].message);
                    at += 1;
                }
                let first = Lengths::new(&regions[at], regions[at].message, index);
                Lengths::Periods { regions: &regions[at + 1..], lengths: Box::new(first) }
            }
            (Cut::Every(bytes), _) => Lengths::Even { bytes, left: shape.unit_count(cut).saturating_sub(index) },
            (Cut::Natural, _) => Lengths::Even { bytes: 0, left: 0 },
        }
    }
}

impl Iterator for Lengths<'_> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        match self {
            Lengths::Even { bytes, left } => {
                *left = left.checked_sub(1)?;
                Some(*bytes)
            }
            Lengths::Values { region, next } => {
                let more = *next < region.values();
                *next += 1;
                more.then(|| region.run(*next - 1).len)
            }
            Lengths::Selected { region, ones } => ones.next().map(|row| region.run(row).len),
            Lengths::Rows(columns) => columns.iter_mut().map(Iterator::next).sum(),
            Lengths::Periods { regions, lengths } => loop {
                if let Some(len) = lengths.next() {
                    return Some(len);
                }
                let (first, rest) = regions.split_first()?;
                (**lengths, *regions) = (Lengths::new(first, first.message, 0), rest);
            },
        }
    }
}
