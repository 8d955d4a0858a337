//! Fragments in address order, merged across messages and regions (d-rdma §4.1 DR-M28, DR-M32).

use std::ops::Range;

use crate::bitmap::Bitmap;
use crate::bitmapped::Column;
use crate::cursor::Cursor;
use crate::form::{Form, Mask};
use crate::fragments::Fragments;
use crate::messages::Messages;
use crate::run::Run;
use crate::shape::Shape;
use crate::walk::Walk;

impl Shape {
    /// Appends the fragments in address order, each as large as it can be whatever message or
    /// region its bytes belong to; a byte named twice stands there once. What regular regions list
    /// is merged as it comes; lists and mapped rows are sorted.
    pub fn address_order(&self, out: &mut Vec<Run>) {
        self.messages().address_order(out);
    }
}

impl Messages<'_> {
    /// Appends the fragments of these messages in address order. See [`Shape::address_order`].
    pub fn address_order(&self, out: &mut Vec<Run>) {
        let bytes = self.start(self.range().start)..self.start(self.range().end);
        let from = out.len();
        match tracks(self.shape(), bytes.clone()) {
            Some(tracks) => merge(tracks, out, from),
            None => {
                let all = Fragments::new(Walk::at_byte(self.shape(), bytes.start), bytes.end - bytes.start);
                out.extend(all);
                sort(out, from);
            }
        }
    }
}

/// Ascending fragments that make up the given bytes of a shape; none when a region does not ascend.
pub(crate) fn tracks(shape: &Shape, bytes: Range<u64>) -> Option<Vec<Fragments<'_>>> {
    let len = bytes.end - bytes.start;
    match &shape.form {
        Form::Contiguous(_) | Form::Strided(_) | Form::Variable(_) => {
            Some(vec![Fragments::new(Walk::at_byte(shape, bytes.start), len)])
        }
        Form::List(_) | Form::Mapped(_) => None,
        Form::Bitmapped(b) => {
            let even = bytes.start.is_multiple_of(b.row_bytes) && bytes.end.is_multiple_of(b.row_bytes);
            let (from, to) = (bytes.start / b.row_bytes, bytes.end / b.row_bytes);
            even.then(|| b.columns.iter().map(|c| Fragments::of_column(*c, &b.rows, from..to)).collect())
        }
        Form::Set { regions, mask: Mask::Rows } => {
            let (from, rest) = shape.element_at(bytes.start);
            let (to, over) = shape.element_at(bytes.end);
            if rest != 0 || over != 0 {
                return None;
            }
            let mut all = Vec::with_capacity(regions.len());
            for region in regions.iter() {
                let part = region.unit_start(region.element, from)..region.unit_start(region.element, to);
                all.extend(tracks(region, part)?);
            }
            Some(all)
        }
        Form::Set { regions, mask: Mask::Periods } => {
            let (mut all, mut before) = (Vec::with_capacity(regions.len()), 0);
            for region in regions.iter() {
                let within = |at: u64| at.clamp(before, before + region.bytes) - before;
                all.extend(tracks(region, within(bytes.start)..within(bytes.end))?);
                before += region.bytes;
            }
            Some(all)
        }
    }
}

impl<'a> Fragments<'a> {
    /// Set rows `ones` of one column.
    pub(crate) fn of_column(column: Column, rows: &'a Bitmap, ones: Range<u64>) -> Self {
        let bytes = (ones.end - ones.start) * column.width;
        Fragments::new(Walk::Plain(Cursor::column(column, rows, ones.start)), bytes)
    }
}

/// Merges ascending tracks behind entry `from` of `out`.
fn merge(tracks: Vec<Fragments<'_>>, out: &mut Vec<Run>, from: usize) {
    let started = tracks.into_iter().filter_map(|mut track| track.next().map(|run| (run, track)));
    let mut heads: Vec<(Run, Fragments<'_>)> = started.collect();
    while !heads.is_empty() {
        let lowest = (0..heads.len()).min_by_key(|i| heads[*i].0.at).unwrap_or(0);
        let others = heads.iter().enumerate().filter(|(i, _)| *i != lowest).map(|(_, h)| h.0.at);
        let until = others.min().unwrap_or(u64::MAX);
        // Columns seldom interleave: go on with this one as long as it is the lowest.
        loop {
            push(out, from, heads[lowest].0);
            match heads[lowest].1.next() {
                Some(run) => heads[lowest].0 = run,
                None => {
                    heads.swap_remove(lowest);
                    break;
                }
            }
            if heads[lowest].0.at > until {
                break;
            }
        }
    }
}

fn sort(out: &mut Vec<Run>, from: usize) {
    out[from..].sort_unstable();
    let all = out.split_off(from);
    for run in all {
        push(out, from, run);
    }
}

#[inline]
fn push(out: &mut Vec<Run>, from: usize, run: Run) {
    let merges = out.len() > from;
    match out.last_mut() {
        Some(last) if merges && last.at + last.len >= run.at => {
            last.len = last.len.max(run.at + run.len - last.at);
        }
        _ => out.push(run),
    }
}
