//! A leaf page, parsed. Total: whatever the bytes say, accessors answer something inside the page
//! or nothing.

use std::ops::{Deref, Range};

use super::key::KeyParts;
use super::layout::*;

/// A view of a leaf page's bytes.
#[derive(Debug, Clone, Copy)]
pub struct Leaf<'a> {
    pub(super) page: &'a [u8],
    sections: Sections,
}

/// Where the sections of a leaf page lie, by its header. No byte of the page is behind it, so it
/// serves pages that are read in place in a peer's memory, too: the header is copied out, and
/// checked in the copy.
#[derive(Debug, Clone, Copy)]
pub struct Sections {
    /// Bytes of the page.
    len: usize,
    pub(super) flags: u8,
    pub(super) count: usize,
    pub(super) prefix_len: usize,
    pub(super) common_len: usize,
    pub(super) fixed: usize,
    pub(super) heads_at: usize,
    pub(super) prefixes_at: usize,
    pub(super) slots_at: usize,
    heap_at: usize,
    pub(super) low_len: usize,
    pub(super) high_len: usize,
}

/// The variable part of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest<'a> {
    /// It lies in the page (or the delta record).
    Inline(&'a [u8]),
    /// It lies in an extent of its own.
    Overflow(OverflowRef),
}

/// Where a rest too large for its page lies in the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverflowRef {
    /// Arena offset of its first byte.
    pub offset: u64,
    /// Its bytes.
    pub len: u32,
    /// The server's number for the extent; means nothing elsewhere.
    pub extent: u32,
}

impl OverflowRef {
    /// Reads the 16-byte form; `None` if there are fewer bytes.
    pub fn parse(bytes: &[u8]) -> Option<OverflowRef> {
        let b = bytes.first_chunk::<16>()?;
        Some(OverflowRef { offset: u64_at(b, 0), len: u32_at(b, 8), extent: u32_at(b, 12) })
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let mut b = [0; 16];
        b[..8].copy_from_slice(&self.offset.to_le_bytes());
        b[8..12].copy_from_slice(&self.len.to_le_bytes());
        b[12..].copy_from_slice(&self.extent.to_le_bytes());
        b
    }
}

impl Rest<'_> {
    /// Bytes of the rest, wherever it lies.
    pub fn len(&self) -> usize {
        match self {
            Rest::Inline(bytes) => bytes.len(),
            Rest::Overflow(o) => o.len as usize,
        }
    }

    /// Whether the value has no variable part.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Deref for Leaf<'_> {
    type Target = Sections;

    #[inline]
    fn deref(&self) -> &Sections {
        &self.sections
    }
}

impl Sections {
    /// Checks in O(1) that the sections which a page's header names lie in order inside the page.
    /// `have`: bytes that are there, of which the page may be the first ones.
    ///
    /// # Errors
    /// No header of this version, or of a page that is longer, or whose sections lie otherwise.
    pub fn parse(header: &[u8; HEADER_BYTES], have: usize) -> Result<Sections, Malformed> {
        if u32_at(header, 0) != MAGIC || header[4] != VERSION {
            return Err(Malformed::Magic);
        }
        let len = u32_at(header, AT_PAGE_LEN) as usize;
        if len > have || len < HEADER_BYTES {
            return Err(Malformed::Truncated { have, need: len.max(HEADER_BYTES) });
        }
        let sections = Sections::of(header, len);
        sections.check(u32_at(header, AT_TAILS) as usize)?;
        Ok(sections)
    }

    #[inline]
    fn of(header: &[u8; HEADER_BYTES], len: usize) -> Sections {
        Sections {
            len,
            flags: header[5],
            count: u32_at(header, AT_COUNT) as usize,
            prefix_len: u16_at(header, AT_PREFIX_LEN) as usize,
            common_len: u16_at(header, AT_COMMON) as usize,
            fixed: (u16_at(header, AT_FIXED) as usize).min(8),
            heads_at: u32_at(header, AT_HEADS) as usize,
            prefixes_at: u32_at(header, AT_PREFIXES) as usize,
            slots_at: u32_at(header, AT_SLOTS) as usize,
            heap_at: u32_at(header, AT_HEAP) as usize,
            low_len: u16_at(header, AT_LOW_LEN) as usize,
            high_len: u16_at(header, AT_HIGH_LEN) as usize,
        }
    }

    fn check(&self, tails_at: usize) -> Result<(), Malformed> {
        let slots = if self.slots_at == 0 { 0 } else { 4 * (self.count as u64 + 1) };
        let key_slots = if self.is_fixed() { 0 } else { 4 * (self.count as u64 + 1) };
        let slots_at = if self.slots_at == 0 { self.heap_at } else { self.slots_at };
        let ends = [
            ("hints", (self.hints_at() + 8 * self.hints()) as u64, self.heads_at as u64),
            ("key prefix", (self.common_at() + self.common_len) as u64, self.heads_at as u64),
            ("heads", self.heads_at as u64 + 8 * self.count as u64 + key_slots, tails_at as u64),
            ("key tails", tails_at as u64, self.prefixes_at as u64),
            ("prefixes", self.prefixes_at as u64 + self.count as u64 * self.prefix_len as u64, slots_at as u64),
            ("rest slots", slots_at as u64 + slots, self.heap_at as u64),
            ("heap", self.heap_at as u64, self.len as u64),
        ];
        match ends.iter().find(|(_, end, next)| end > next) {
            Some((section, ..)) => Err(Malformed::Section(section)),
            None => Ok(()),
        }
    }

    /// Rows in the page.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of each row's fixed-length value prefix.
    #[inline]
    pub fn prefix_len(&self) -> usize {
        self.prefix_len
    }

    /// Whether some row's rest lies in an overflow extent.
    pub fn has_overflow(&self) -> bool {
        self.flags & FLAG_OVERFLOW != 0
    }

    /// Bytes `[start, end)` of the page that hold the prefixes of `rows`.
    pub fn prefixes_at(&self, rows: Range<usize>) -> Range<usize> {
        let rows = self.clip(rows);
        self.prefixes_at + rows.start * self.prefix_len..self.prefixes_at + rows.end * self.prefix_len
    }

    /// Bytes of the page that hold the `rows.len() + 1` rest slots of `rows`; empty when the page
    /// has no rests.
    pub fn slots_at(&self, rows: Range<usize>) -> Range<usize> {
        let rows = self.clip(rows);
        if self.slots_at == 0 {
            return 0..0;
        }
        self.slots_at + 4 * rows.start..self.slots_at + 4 * (rows.end + 1)
    }

    /// Bytes of the page that hold the rests of `rows` (overflow references included); `slot` loads
    /// the four bytes at a place of the page as a little-endian number.
    pub fn heap_at(&self, rows: Range<usize>, slot: impl Fn(usize) -> u32) -> Range<usize> {
        let rows = self.clip(rows);
        if self.slots_at == 0 {
            return 0..0;
        }
        if rows == (0..self.count) {
            // The heap is the page's end: no need to fetch two lines of slots out of memory.
            return self.heap_at.min(self.len)..self.len;
        }
        let [from, to] =
            [rows.start, rows.end].map(|row| (slot(self.slots_at.saturating_add(4 * row)) & SLOT_AT) as usize);
        if from <= to && to <= self.len { from..to } else { 0..0 }
    }

    /// Bytes of the page that hold the heads of `rows`.
    pub fn heads_at(&self, rows: Range<usize>) -> Range<usize> {
        let rows = self.clip(rows);
        self.heads_at + 8 * rows.start..self.heads_at + 8 * rows.end
    }

    #[inline]
    pub(super) fn is_fixed(&self) -> bool {
        self.flags & FLAG_FIXED != 0
    }

    pub(super) fn hints(&self) -> usize {
        self.count.saturating_sub(1) / HINT_STRIDE
    }

    #[inline]
    pub(super) fn hints_at(&self) -> usize {
        align8(HEADER_BYTES + self.low_len + self.high_len)
    }

    fn common_at(&self) -> usize {
        self.hints_at() + 8 * self.hints()
    }

    fn clip(&self, rows: Range<usize>) -> Range<usize> {
        let end = rows.end.min(self.count);
        rows.start.min(end)..end
    }
}

impl<'a> Leaf<'a> {
    /// Checks in O(1) that the header's sections lie in order inside `page` and gives the view.
    /// Bytes past the page's own length are ignored.
    pub fn parse(page: &'a [u8]) -> Result<Leaf<'a>, Malformed> {
        let header = page.first_chunk::<HEADER_BYTES>();
        let header = header.ok_or(Malformed::Truncated { have: page.len(), need: HEADER_BYTES })?;
        let sections = Sections::parse(header, page.len())?;
        Ok(Leaf { page: &page[..sections.len], sections })
    }

    /// The view without the checks, for pages of one's own tree (`page` is exactly the page).
    #[inline]
    pub(crate) fn open(page: &'a [u8]) -> Leaf<'a> {
        let header: &[u8; HEADER_BYTES] = match page.first_chunk() {
            Some(h) => h,
            None => &[0; HEADER_BYTES],
        };
        Leaf { page, sections: Sections::of(header, page.len()) }
    }

    /// The page's bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.page
    }

    /// Keys of this page and nothing below; empty at the left end.
    pub fn low_fence(&self) -> &'a [u8] {
        self.part(HEADER_BYTES, self.low_len)
    }

    /// Every key of this page is below; `None` at the right end.
    pub fn high_fence(&self) -> Option<&'a [u8]> {
        (self.flags & FLAG_HIGH != 0).then(|| self.part(HEADER_BYTES + self.low_len, self.high_len))
    }

    /// Whether some value has a variable part.
    #[inline]
    pub(crate) fn has_rests(&self) -> bool {
        self.slots_at != 0
    }

    /// The key of row `i`, where it lies; the empty key when there is no such row.
    #[inline]
    pub fn key_parts(&self, i: usize) -> KeyParts<'a> {
        if i >= self.count {
            return KeyParts::default();
        }
        let head = self.part(self.heads_at + 8 * i, 8);
        let common = self.common();
        if self.is_fixed() {
            return KeyParts { common, head: head.get(..self.fixed).unwrap_or(head), tail: &[] };
        }
        let (head_len, from) = self.key_slot(i);
        let (_, to) = self.key_slot(i + 1);
        let tail = if head_len < 8 { &[] } else { self.page.get(from..to).unwrap_or(&[]) };
        KeyParts { common, head: head.get(..head_len).unwrap_or(head), tail }
    }

    /// Appends the key of row `i` to `out`.
    pub fn key(&self, i: usize, out: &mut Vec<u8>) {
        self.key_parts(i).append_to(out);
    }

    /// The fixed-length prefix of row `i`'s value.
    #[inline]
    pub fn prefix(&self, i: usize) -> &'a [u8] {
        if i >= self.count {
            return &[];
        }
        self.part(self.prefixes_at + i * self.prefix_len, self.prefix_len)
    }

    /// All prefixes, one after another.
    #[inline]
    pub fn prefixes(&self) -> &'a [u8] {
        self.part(self.prefixes_at, self.count.saturating_mul(self.prefix_len))
    }

    /// The heads: of each row's key the (up to) 8 bytes after the page's common prefix,
    /// zero-padded.
    #[inline]
    pub fn heads(&self) -> &'a [[u8; 8]] {
        self.part(self.heads_at, self.count.saturating_mul(8)).as_chunks().0
    }

    /// When all keys have the same length: bytes of the common prefix, and bytes of each head that
    /// belong to the key.
    pub fn fixed_keys(&self) -> Option<(&'a [u8], usize)> {
        self.is_fixed().then(|| (self.common(), self.fixed))
    }

    /// The variable part of row `i`'s value.
    #[inline]
    pub fn rest(&self, i: usize) -> Rest<'a> {
        if self.slots_at == 0 || i >= self.count {
            return Rest::Inline(&[]);
        }
        let (from, to) = (self.slot(i), self.slot(i + 1));
        let bytes = self.page.get((from & SLOT_AT) as usize..(to & SLOT_AT) as usize).unwrap_or(&[]);
        if from & SLOT_OVERFLOW != 0 {
            return OverflowRef::parse(bytes).map_or(Rest::Inline(&[]), Rest::Overflow);
        }
        Rest::Inline(bytes)
    }

    /// Bytes of the page that hold the rests of `rows` (overflow references included).
    pub fn heap_at(&self, rows: Range<usize>) -> Range<usize> {
        self.sections.heap_at(rows, |at| u32_at(self.page, at))
    }

    /// The prefix shared by all keys.
    #[inline]
    pub fn common(&self) -> &'a [u8] {
        if self.common_len == 0 {
            return &[];
        }
        self.part(self.common_at(), self.common_len)
    }

    pub(crate) fn right(&self) -> u32 {
        u32_at(self.page, AT_RIGHT)
    }

    pub(crate) fn unit(&self) -> u32 {
        u32_at(self.page, AT_UNIT)
    }

    #[inline]
    pub(super) fn high_head(&self) -> u64 {
        u64_at(self.page, AT_HIGH_HEAD)
    }

    /// Bytes of the head that belong to row `i`'s key, and where its tail starts.
    #[inline]
    pub(super) fn key_slot(&self, i: usize) -> (usize, usize) {
        let slot = u32_at(self.page, self.heads_at.saturating_add(8 * self.count + 4 * i));
        ((slot >> KEY_SLOT_SHIFT) as usize, (slot & KEY_SLOT_AT) as usize)
    }

    #[inline]
    pub(super) fn slot(&self, i: usize) -> u32 {
        u32_at(self.page, self.slots_at.saturating_add(4 * i))
    }

    #[inline]
    pub(super) fn part(&self, at: usize, len: usize) -> &'a [u8] {
        self.page.get(at..at.saturating_add(len)).unwrap_or(&[])
    }
}

pub(super) const SLOT_OVERFLOW: u32 = 1 << 31;
pub(super) const SLOT_AT: u32 = SLOT_OVERFLOW - 1;
pub(super) const KEY_SLOT_SHIFT: u32 = 28;
pub(super) const KEY_SLOT_AT: u32 = (1 << KEY_SLOT_SHIFT) - 1;
