//! Making a leaf page out of pieces: runs of rows of older pages, and single rows.
//!
//! A consolidation changes a few rows of many, so the pieces are mostly long runs. A run whose keys
//! are kept the same way in the new page is copied section by section, not row by row.

use thiserror::Error;

use super::delta::OVERFLOW_BYTES;
use super::key::head_of;
use super::layout::*;
use super::leaf::{KEY_SLOT_AT, KEY_SLOT_SHIFT, Leaf, OverflowRef, Rest, SLOT_AT, SLOT_OVERFLOW};

/// Longest key, in bytes: key, prefix and fence lengths are kept in 16 bits.
pub(crate) const MAX_KEY: usize = 1 << 14;

/// Part of a page to be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Piece<'a> {
    /// Rows `from..to` of an older page.
    Run { leaf: &'a Leaf<'a>, from: usize, to: usize },
    /// One row.
    Row { key: &'a [u8], prefix: &'a [u8], rest: Rest<'a> },
}

impl Piece<'_> {
    #[inline]
    pub(crate) fn rows(&self) -> usize {
        match self {
            Piece::Run { from, to, .. } => to - from,
            Piece::Row { .. } => 1,
        }
    }
}

/// The key range of a page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fences<'a> {
    pub(crate) low: &'a [u8],
    pub(crate) high: Option<&'a [u8]>,
}

/// Where the sections of a page to be will lie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) count: usize,
    pub(crate) page_len: usize,
    prefix_len: usize,
    common: usize,
    fixed: Option<usize>,
    heads_at: usize,
    tails_at: usize,
    prefixes_at: usize,
    slots_at: usize,
    heap_at: usize,
}

impl Layout {
    /// Lays out the page that consists of `pieces` (in key order).
    pub(crate) fn of(pieces: &[Piece<'_>], fences: Fences<'_>, prefix_len: usize) -> Layout {
        let (common, fixed) = key_form(pieces);
        let (mut count, mut tails, mut heap) = (0, 0, 0);
        for piece in pieces {
            count += piece.rows();
            if fixed.is_none() {
                tails += tail_bytes(piece, common);
            }
            heap += heap_bytes(piece);
        }
        let fences_end = HEADER_BYTES + fences.low.len() + fences.high.map_or(0, <[u8]>::len);
        let hints = count.saturating_sub(1) / HINT_STRIDE;
        let heads_at = align8(align8(fences_end) + 8 * hints + common);
        let tails_at = heads_at + 8 * count + if fixed.is_none() { 4 * (count + 1) } else { 0 };
        let prefixes_at = align8(tails_at + tails);
        let prefixes_end = prefixes_at + count * prefix_len;
        let slots_at = if heap == 0 { 0 } else { prefixes_end.next_multiple_of(4) };
        let heap_at = if heap == 0 { prefixes_end } else { slots_at + 4 * (count + 1) };
        let page_len = heap_at + heap;
        Layout { count, page_len, prefix_len, common, fixed, heads_at, tails_at, prefixes_at, slots_at, heap_at }
    }
}

/// Length of the keys' common prefix to factor out, and, when the heads then hold all keys, how
/// many of their bytes.
fn key_form(pieces: &[Piece<'_>]) -> (usize, Option<usize>) {
    if let Some(form) = kept_form(pieces) {
        return form;
    }
    let (mut first, mut last) = (Vec::new(), Vec::new());
    match pieces.first() {
        None => return (0, Some(0)),
        Some(piece) => piece_key(piece, 0, &mut first),
    }
    let piece = &pieces[pieces.len() - 1];
    piece_key(piece, piece.rows() - 1, &mut last);
    let length = uniform_length(pieces);
    let common = first.iter().zip(&last).take_while(|(a, b)| a == b).count();
    match length {
        Some(n) if n <= 8 => (0, Some(n)),
        Some(n) if n - common <= 8 => (common, Some(n - common)),
        _ => (common, None),
    }
}

/// The form of the runs' pages if all agree in it and all single rows fit it too.
fn kept_form(pieces: &[Piece<'_>]) -> Option<(usize, Option<usize>)> {
    let model = pieces.iter().find_map(|p| match p {
        Piece::Run { leaf, .. } => Some(leaf),
        Piece::Row { .. } => None,
    })?;
    let common = model.common();
    let fits = |piece: &Piece<'_>| match piece {
        Piece::Run { leaf, .. } if std::ptr::eq(leaf.page.as_ptr(), model.page.as_ptr()) => true,
        Piece::Run { leaf, .. } => leaf.is_fixed() && leaf.fixed == model.fixed && leaf.common() == common,
        Piece::Row { key, .. } => {
            key.len() == common.len() + model.fixed && (common.is_empty() || key.starts_with(common))
        }
    };
    (model.is_fixed() && pieces.iter().all(fits)).then_some((common.len(), Some(model.fixed)))
}

fn uniform_length(pieces: &[Piece<'_>]) -> Option<usize> {
    let mut length = None;
    let mut agree = |n: usize| *length.get_or_insert(n) == n;
    for piece in pieces {
        let uniform = match piece {
            Piece::Row { key, .. } => agree(key.len()),
            Piece::Run { leaf, from, to } if leaf.is_fixed() => from == to || agree(leaf.common_len + leaf.fixed),
            Piece::Run { leaf, from, to } => (*from..*to).all(|i| agree(leaf.key_parts(i).len())),
        };
        if !uniform {
            return None;
        }
    }
    length
}

fn piece_key(piece: &Piece<'_>, i: usize, out: &mut Vec<u8>) {
    out.clear();
    match piece {
        Piece::Run { leaf, from, .. } => leaf.key(from + i, out),
        Piece::Row { key, .. } => out.extend_from_slice(key),
    }
}

fn tail_bytes(piece: &Piece<'_>, common: usize) -> usize {
    match piece {
        Piece::Row { key, .. } => key.len().saturating_sub(common + 8),
        Piece::Run { leaf, from, to } if same_variable(leaf, common) => leaf.key_slot(*to).1 - leaf.key_slot(*from).1,
        Piece::Run { leaf, from, to } => (*from..*to).map(|i| leaf.key_parts(i).len().saturating_sub(common + 8)).sum(),
    }
}

/// Whether `leaf`'s key slots and tails can be taken over as they are.
fn same_variable(leaf: &Leaf<'_>, common: usize) -> bool {
    !leaf.is_fixed() && leaf.common_len == common
}

fn heap_bytes(piece: &Piece<'_>) -> usize {
    match piece {
        Piece::Row { rest: Rest::Inline(bytes), .. } => bytes.len(),
        Piece::Row { rest: Rest::Overflow(_), .. } => OVERFLOW_BYTES,
        Piece::Run { leaf, .. } if leaf.slots_at == 0 => 0,
        Piece::Run { leaf, from, to } => leaf.heap_at(*from..*to).len(),
    }
}

/// Bytes that row `i` of the piece adds to a page, roughly.
fn row_bytes(piece: &Piece<'_>, i: usize) -> usize {
    match piece {
        Piece::Row { key, prefix, .. } => 8 + key.len().saturating_sub(8) + prefix.len() + heap_bytes(piece),
        Piece::Run { leaf, from, .. } => {
            let row = from + i;
            8 + leaf.key_parts(row).tail.len() + leaf.prefix_len() + leaf.heap_at(row..row + 1).len()
        }
    }
}

/// How full pages become that take the place of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fill {
    /// All alike: rows may come between any two.
    Evenly,
    /// From the left on, since more rows come behind the last one: the last page has what is left.
    Left,
}

/// The rows before which to cut `pieces`, which are too many for one page of `page_bytes`; at least
/// one row goes to each side.
pub(crate) fn cuts(pieces: &[Piece<'_>], layout: &Layout, page_bytes: usize, fill: Fill) -> Vec<usize> {
    // A full page leaves room for the row or two that come into it late.
    let content = layout.page_len - HEADER_BYTES;
    let share = |bytes: usize| bytes * 15 / 16;
    let longest = page_bytes - HEADER_BYTES;
    let full = if share(content) <= longest { share(content) } else { share(longest) };
    let (rows, pages) = (layout.count, content.div_ceil(full).clamp(2, layout.count));
    if layout.fixed.is_some() && layout.slots_at == 0 {
        let full = (rows * full / content).clamp(1, rows - 1);
        return match fill {
            Fill::Evenly => (1..pages).map(|page| rows * page / pages).collect(),
            Fill::Left => (full..rows).step_by(full).collect(),
        };
    }
    // Sizes as rows have them by themselves, set against all of them: a page has slots and hints besides.
    let sizes = || pieces.iter().flat_map(|p| (0..p.rows()).map(move |i| row_bytes(p, i)));
    let sum = sizes().sum::<usize>();
    let full = sum * full / content;
    let (mut cuts, mut before, mut begun) = (Vec::with_capacity(pages), 0, 0);
    for (row, size) in sizes().enumerate() {
        let goal = match fill {
            Fill::Evenly => sum * (cuts.len() + 1) / pages,
            Fill::Left => begun + full,
        };
        if before + size > goal && before > begun {
            cuts.push(row);
            begun = before;
        }
        before += size;
    }
    // The last row alone outweighs all others.
    if cuts.is_empty() {
        cuts.push(rows - 1);
    }
    cuts
}

/// The pieces between the rows `cuts`.
pub(crate) fn split_pieces<'a>(pieces: &[Piece<'a>], cuts: &[usize]) -> Vec<Vec<Piece<'a>>> {
    let (mut parts, mut part) = (Vec::with_capacity(cuts.len() + 1), Vec::new());
    let mut cuts = cuts.iter().copied().peekable();
    let mut row = 0;
    for &piece in pieces {
        let (end, mut left) = (row + piece.rows(), piece);
        while let Some(at) = cuts.next_if(|&at| at < end) {
            if let Piece::Run { leaf, from, to } = left
                && row < at
            {
                let middle = from + (at - row);
                part.push(Piece::Run { leaf, from, to: middle });
                left = Piece::Run { leaf, from: middle, to };
                row = at;
            }
            parts.push(std::mem::take(&mut part));
        }
        part.push(left);
        row = end;
    }
    parts.push(part);
    parts
}

/// Whole key of row `at` of `pieces`.
pub(crate) fn row_of(pieces: &[Piece<'_>], at: usize) -> Vec<u8> {
    let mut key = Vec::new();
    let mut row = 0;
    for piece in pieces {
        if at < row + piece.rows() {
            piece_key(piece, at - row, &mut key);
            return key;
        }
        row += piece.rows();
    }
    key
}

/// Writes the page into `out`, which is exactly `layout.page_len` long.
pub(crate) fn write_page(out: &mut [u8], layout: &Layout, fences: Fences<'_>, pieces: &[Piece<'_>]) {
    debug_assert_eq!(out.len(), layout.page_len);
    write_header(out, layout, fences);
    let common_at = write_fences(out, layout, fences);
    write_keys(out, layout, pieces);
    write_hints(out, layout, common_at - 8 * hints_of(layout));
    let common = &mut out[common_at..layout.heads_at];
    common.fill(0);
    if layout.common > 0 {
        common[..layout.common].copy_from_slice(&row_of(pieces, 0)[..layout.common]);
    }
    write_values(out, layout, pieces);
}

fn hints_of(layout: &Layout) -> usize {
    layout.count.saturating_sub(1) / HINT_STRIDE
}

fn write_header(out: &mut [u8], layout: &Layout, fences: Fences<'_>) {
    let mut header = [0; HEADER_BYTES];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &MAGIC.to_le_bytes());
    let fixed = if layout.fixed.is_some() { FLAG_FIXED } else { 0 };
    let high = if fences.high.is_some() { FLAG_HIGH } else { 0 };
    put(4, &[VERSION, fixed | high]);
    put(AT_PREFIX_LEN, &(layout.prefix_len as u16).to_le_bytes());
    put(AT_PAGE_LEN, &(layout.page_len as u32).to_le_bytes());
    put(AT_COUNT, &(layout.count as u32).to_le_bytes());
    put(AT_COMMON, &(layout.common as u16).to_le_bytes());
    put(AT_FIXED, &(layout.fixed.unwrap_or(0) as u16).to_le_bytes());
    put(AT_HEADS, &(layout.heads_at as u32).to_le_bytes());
    put(AT_TAILS, &(layout.tails_at as u32).to_le_bytes());
    put(AT_PREFIXES, &(layout.prefixes_at as u32).to_le_bytes());
    put(AT_SLOTS, &(layout.slots_at as u32).to_le_bytes());
    put(AT_HEAP, &(layout.heap_at as u32).to_le_bytes());
    put(AT_LOW_LEN, &(fences.low.len() as u16).to_le_bytes());
    put(AT_HIGH_LEN, &(fences.high.map_or(0, <[u8]>::len) as u16).to_le_bytes());
    put(AT_RIGHT, &NO_PAGE.to_le_bytes());
    put(AT_UNIT, &NO_PAGE.to_le_bytes());
    put(AT_HIGH_HEAD, &fences.high.map_or(u64::MAX, head_of).to_le_bytes());
    out[..HEADER_BYTES].copy_from_slice(&header);
}

/// Writes the fences; returns where the common key prefix goes.
fn write_fences(out: &mut [u8], layout: &Layout, fences: Fences<'_>) -> usize {
    let high = fences.high.unwrap_or(&[]);
    let high_at = HEADER_BYTES + fences.low.len();
    let end = high_at + high.len();
    out[HEADER_BYTES..high_at].copy_from_slice(fences.low);
    out[high_at..end].copy_from_slice(high);
    out[end..align8(end)].fill(0);
    align8(end) + 8 * hints_of(layout)
}

fn write_hints(out: &mut [u8], layout: &Layout, hints_at: usize) {
    let (before, heads) = out.split_at_mut(layout.heads_at);
    let heads = heads[..8 * layout.count].as_chunks::<8>().0;
    let hints = before[hints_at..hints_at + 8 * hints_of(layout)].as_chunks_mut::<8>().0;
    for (hint, head) in hints.iter_mut().zip(heads.iter().skip(HINT_STRIDE).step_by(HINT_STRIDE)) {
        *hint = u64::from_be_bytes(*head).to_le_bytes();
    }
}

fn write_keys(out: &mut [u8], layout: &Layout, pieces: &[Piece<'_>]) {
    let (section, after) = out[layout.heads_at..].split_at_mut(8 * layout.count);
    let heads = section.as_chunks_mut::<8>().0;
    let mut row = 0;
    let mut tail = layout.tails_at;
    let slots_end = layout.tails_at - layout.heads_at - 8 * layout.count;
    let (slots, tails) = after.split_at_mut(slots_end);
    let slots = slots.as_chunks_mut::<4>().0;
    let mut scratch = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Run { leaf, from, to }
                if layout.fixed.is_some() && leaf.is_fixed() && leaf.common_len == layout.common =>
            {
                heads[row..row + to - from].copy_from_slice(&leaf.heads()[*from..*to]);
                row += to - from;
                continue;
            }
            Piece::Run { leaf, from, to } if layout.fixed.is_none() && same_variable(leaf, layout.common) => {
                heads[row..row + to - from].copy_from_slice(&leaf.heads()[*from..*to]);
                let start = leaf.key_slot(*from).1;
                for i in *from..*to {
                    let (len, at) = leaf.key_slot(i);
                    slots[row] = key_slot(len, at - start + tail);
                    row += 1;
                }
                let bytes = &leaf.bytes()[start..leaf.key_slot(*to).1];
                tails[tail - layout.tails_at..][..bytes.len()].copy_from_slice(bytes);
                tail += bytes.len();
                continue;
            }
            _ => {}
        }
        for i in 0..piece.rows() {
            let key = match piece {
                Piece::Row { key, .. } => *key,
                Piece::Run { leaf, from, .. } => {
                    scratch.clear();
                    leaf.key(from + i, &mut scratch);
                    &scratch
                }
            };
            let suffix = &key[layout.common..];
            heads[row] = head_of(suffix).to_be_bytes();
            if layout.fixed.is_none() {
                slots[row] = key_slot(suffix.len().min(8), tail);
                let bytes = suffix.get(8..).unwrap_or(&[]);
                tails[tail - layout.tails_at..][..bytes.len()].copy_from_slice(bytes);
                tail += bytes.len();
            }
            row += 1;
        }
    }
    if layout.fixed.is_none() {
        slots[row] = key_slot(0, tail);
    }
    out[tail..layout.prefixes_at].fill(0);
}

fn key_slot(head_len: usize, tail_at: usize) -> [u8; 4] {
    debug_assert!(tail_at <= KEY_SLOT_AT as usize);
    ((head_len as u32) << KEY_SLOT_SHIFT | tail_at as u32).to_le_bytes()
}

fn write_values(out: &mut [u8], layout: &Layout, pieces: &[Piece<'_>]) {
    let mut at = layout.prefixes_at;
    for piece in pieces {
        let bytes = match piece {
            Piece::Run { leaf, from, to } => &leaf.prefixes()[from * layout.prefix_len..to * layout.prefix_len],
            Piece::Row { prefix, .. } => prefix,
        };
        out[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    }
    if layout.slots_at == 0 {
        return;
    }
    out[at..layout.slots_at].fill(0);
    let (before, heap) = out.split_at_mut(layout.heap_at);
    let slots = before[layout.slots_at..].as_chunks_mut::<4>().0;
    let (mut row, mut heap_at) = (0, layout.heap_at);
    let mut overflow = false;
    for piece in pieces {
        let filled;
        let bytes: &[u8] = match piece {
            Piece::Row { rest: Rest::Inline(bytes), .. } => {
                slots[row] = (heap_at as u32).to_le_bytes();
                bytes
            }
            Piece::Row { rest: Rest::Overflow(reference), .. } => {
                slots[row] = (heap_at as u32 | SLOT_OVERFLOW).to_le_bytes();
                overflow = true;
                filled = reference.to_bytes();
                &filled
            }
            Piece::Run { leaf, from, to } => {
                overflow |= leaf.has_overflow();
                let bytes = &leaf.bytes()[leaf.heap_at(*from..*to)];
                let start = if leaf.slots_at == 0 { 0 } else { leaf.slot(*from) & SLOT_AT };
                for (slot, i) in slots[row..].iter_mut().zip(*from..*to) {
                    let old = if leaf.slots_at == 0 { start } else { leaf.slot(i) };
                    *slot = (((old & SLOT_AT) - start + heap_at as u32) | (old & SLOT_OVERFLOW)).to_le_bytes();
                }
                bytes
            }
        };
        heap[heap_at - layout.heap_at..][..bytes.len()].copy_from_slice(bytes);
        heap_at += bytes.len();
        row += piece.rows();
    }
    slots[row] = (heap_at as u32).to_le_bytes();
    if overflow {
        before[5] |= FLAG_OVERFLOW;
    }
}

/// Replaces the references to overflow extents in a page of one's own.
pub(crate) fn rebase_overflow(page: &mut [u8], mut replace: impl FnMut(OverflowRef) -> OverflowRef) {
    let rows = Leaf::open(page);
    let rows = if rows.has_overflow() { rows.count() } else { 0 };
    for i in 0..rows {
        let leaf = Leaf::open(page);
        let at = leaf.heap_at(i..i + 1);
        if let Rest::Overflow(reference) = leaf.rest(i) {
            page[at].copy_from_slice(&replace(reference).to_bytes());
        }
    }
}

/// Why rows make no page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BuildError {
    /// A row's key is not above the row's before it.
    #[error("keys must be pushed in strictly ascending order; sort the rows first")]
    Order,
    /// A prefix of another length than the page's.
    #[error("every row's prefix must be exactly as long as the page's prefix_len; pad it")]
    Prefix,
    /// A key or fence too long.
    #[error("a key is longer than 16 KiB; use a shorter primary key")]
    Key,
}

/// Key, prefix, and the rest or where it lies.
type BuilderRow = (Vec<u8>, Vec<u8>, Result<Vec<u8>, OverflowRef>);

/// Makes a leaf page in private memory: what tests and tools feed to clients.
#[derive(Debug, Default)]
pub struct LeafBuilder {
    prefix_len: usize,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    rows: Vec<BuilderRow>,
}

impl LeafBuilder {
    /// A page without rows and fences whose values have `prefix_len` fixed bytes.
    pub fn new(prefix_len: usize) -> LeafBuilder {
        LeafBuilder { prefix_len, ..LeafBuilder::default() }
    }

    /// Sets the page's key range.
    pub fn fences(mut self, low: &[u8], high: Option<&[u8]>) -> LeafBuilder {
        self.low = low.to_vec();
        self.high = high.map(<[u8]>::to_vec);
        self
    }

    /// Adds a row; keys ascend.
    pub fn push(&mut self, key: &[u8], prefix: &[u8], rest: Rest<'_>) -> Result<(), BuildError> {
        if prefix.len() != self.prefix_len {
            return Err(BuildError::Prefix);
        }
        if key.len() > MAX_KEY {
            return Err(BuildError::Key);
        }
        if self.rows.last().is_some_and(|(last, ..)| last.as_slice() >= key) {
            return Err(BuildError::Order);
        }
        let rest = match rest {
            Rest::Inline(bytes) => Ok(bytes.to_vec()),
            Rest::Overflow(reference) => Err(reference),
        };
        self.rows.push((key.to_vec(), prefix.to_vec(), rest));
        Ok(())
    }

    /// The page.
    pub fn finish(&self) -> Vec<u8> {
        let fences = Fences { low: &self.low, high: self.high.as_deref() };
        let pieces: Vec<Piece<'_>> = self
            .rows
            .iter()
            .map(|(key, prefix, rest)| Piece::Row {
                key,
                prefix,
                rest: match rest {
                    Ok(bytes) => Rest::Inline(bytes),
                    Err(reference) => Rest::Overflow(*reference),
                },
            })
            .collect();
        let layout = Layout::of(&pieces, fences, self.prefix_len);
        let mut page = vec![0; layout.page_len];
        write_page(&mut page, &layout, fences, &pieces);
        page
    }
}
