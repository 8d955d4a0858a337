//! Rows in a reader's memory.

use std::ops::Range;

use crate::newest::Newest;
use crate::page::{KeyParts, Leaf, Rest, head_of};
use crate::pinned::Row;

/// Rows of one leaf at one instant, in key order, deltas merged in, in the memory of a
/// [`Reader`](crate::Reader).
#[derive(Debug, Clone, Copy)]
pub struct Copied<'a> {
    form: Form<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Form<'a> {
    Plain(&'a Plain),
    Page { leaf: Leaf<'a>, extents: &'a [u8] },
}

impl<'a> Copied<'a> {
    pub(crate) fn plain(rows: &'a Plain) -> Copied<'a> {
        Copied { form: Form::Plain(rows) }
    }

    /// `leaf`'s references to overflow extents are offsets in `extents`.
    pub(crate) fn page(leaf: Leaf<'a>, extents: &'a [u8]) -> Copied<'a> {
        Copied { form: Form::Page { leaf, extents } }
    }

    /// How many rows there are.
    #[inline]
    pub fn count(&self) -> usize {
        match &self.form {
            Form::Plain(plain) => plain.heads.len(),
            Form::Page { leaf, .. } => leaf.count(),
        }
    }

    /// When all keys have the same length: bytes that all begin with, and bytes of each head that
    /// belong to the key. As [`Leaf::fixed_keys`].
    #[inline]
    pub fn fixed_keys(&self) -> Option<(&'a [u8], usize)> {
        match self.form {
            Form::Plain(plain) => Some((&plain.common, plain.fixed)),
            Form::Page { leaf, .. } => leaf.fixed_keys(),
        }
    }

    /// Of each row's key the (up to) 8 bytes after what all begin with, zero-padded.
    #[inline]
    pub fn heads(&self) -> &'a [[u8; 8]] {
        match self.form {
            Form::Plain(plain) => &plain.heads,
            Form::Page { leaf, .. } => leaf.heads(),
        }
    }

    /// The fixed-length parts of the values, one after another.
    #[inline]
    pub fn prefixes(&self) -> &'a [u8] {
        match self.form {
            Form::Plain(plain) => &plain.prefixes,
            Form::Page { leaf, .. } => leaf.prefixes(),
        }
    }

    /// The rows, one by one.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = Row<'a>> + DoubleEndedIterator + use<'a> {
        let copied = *self;
        (0..copied.count()).map(move |i| copied.row(i))
    }

    #[inline]
    fn row(&self, i: usize) -> Row<'a> {
        match self.form {
            Form::Plain(plain) => plain.row(i),
            Form::Page { leaf, .. } => Row { key: leaf.key_parts(i), prefix: leaf.prefix(i), rest: leaf.rest(i) },
        }
    }

    /// A rest's bytes.
    #[inline]
    pub fn rest_bytes(&self, rest: Rest<'a>) -> &'a [u8] {
        match (rest, self.form) {
            (Rest::Inline(bytes), _) => bytes,
            (Rest::Overflow(o), Form::Page { extents, .. }) => {
                extents.get(o.offset as usize..).and_then(|bytes| bytes.get(..o.len as usize)).unwrap_or(&[])
            }
            (Rest::Overflow(_), Form::Plain(_)) => &[],
        }
    }
}

/// Rows with keys of one length and values of a fixed one, which is what short rows mostly are: two
/// arrays.
#[derive(Debug, Default)]
pub(crate) struct Plain {
    common: Vec<u8>,
    fixed: usize,
    heads: Vec<[u8; 8]>,
    prefix_len: usize,
    prefixes: Vec<u8>,
}

impl Plain {
    /// Copies the first `rows_max` of `leaf`'s `rows` with the changes among them. How many rows
    /// that are; `None` if they are not of this kind.
    pub(crate) fn copy(
        &mut self,
        leaf: &Leaf<'_>,
        rows: Range<usize>,
        newest: &Newest<'_>,
        rows_max: usize,
    ) -> Option<usize> {
        let (common, fixed) = leaf.fixed_keys().filter(|_| !leaf.has_rests())?;
        let (heads, prefixes) = (leaf.heads(), leaf.prefixes());
        self.common.clear();
        self.common.extend_from_slice(common);
        (self.fixed, self.prefix_len) = (fixed, leaf.prefix_len());
        self.heads.clear();
        self.prefixes.clear();
        let (mut from, mut left) = (rows.start, rows_max);
        let run = |plain: &mut Plain, from: usize, to: usize| {
            plain.heads.extend_from_slice(&heads[from..to]);
            plain.prefixes.extend_from_slice(&prefixes[from * plain.prefix_len..to * plain.prefix_len]);
        };
        for edit in newest.iter() {
            let to = edit.place.row().min(from.saturating_add(left));
            if from < to {
                run(self, from, to);
                left -= to - from;
                from = to;
            }
            if left == 0 {
                return Some(rows_max);
            }
            if let Some((prefix, rest)) = edit.value {
                let suffix = edit.key.strip_prefix(common).filter(|suffix| suffix.len() == fixed && rest.is_empty())?;
                self.heads.push(head_of(suffix).to_be_bytes());
                self.prefixes.extend_from_slice(prefix);
                left -= 1;
            }
            from += usize::from(edit.place.replaces());
        }
        let to = rows.end.min(from.saturating_add(left));
        if from < to {
            run(self, from, to);
        }
        Some(self.heads.len())
    }

    fn row(&self, i: usize) -> Row<'_> {
        let key = KeyParts { common: &self.common, head: &self.heads[i][..self.fixed], tail: &[] };
        let prefix = &self.prefixes[i * self.prefix_len..(i + 1) * self.prefix_len];
        Row { key, prefix, rest: Rest::Inline(&[]) }
    }
}
