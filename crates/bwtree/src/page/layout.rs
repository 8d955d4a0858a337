//! The leaf page's header: where each section lies.
//!
//! All numbers are little-endian, all offsets count bytes from the page's start. Sections in order:
//!
//! ```text
//!   0  header, 64 bytes (table below)
//!  64  low fence | high fence
//!      hints: heads of rows 32, 64, 96 … as little-endian u64 (8-aligned)
//!      key prefix shared by every row of the page
//!      heads: count × 8 bytes, the next 8 bytes of each key, zero-padded (8-aligned)
//!      key slots: (count + 1) × u32, only in pages with variable keys: bits 28..32 are how many of the head's bytes
//!                 belong to the key, bits 0..28 say where the key's remaining bytes start (they end at the next slot's)
//!      key tails: what of the keys does not fit prefix and head, in row order
//!      prefixes: count × prefix_len bytes, constant stride (8-aligned)
//!      rest slots: (count + 1) × u32, absent when no row has a rest: bits 0..31 say where the rest starts, bit 31 says
//!                 that what lies there is a 16-byte reference to an overflow extent (4-aligned)
//!      heap: the rests in row order, to the page's end
//!
//! header:  0 u32 magic "OLF1"    4 u8 version   5 u8 flags     6 u16 prefix_len
//!          8 u32 page_len       12 u32 count   16 u16 key prefix length   18 u16 suffix length (fixed keys)
//!         20 u32 heads_at       24 u32 tails_at    28 u32 prefixes_at   32 u32 slots_at (0: absent)
//!         36 u32 heap_at        40 u16 low fence length   42 u16 high fence length   44 u32 right page (server's)
//!         48 u32 unit (server's)   52 u32 unused, 0   56 u64 first 8 bytes of the high fence, as a number
//! ```

use thiserror::Error;

/// Bytes of the header of a leaf page.
pub const HEADER_BYTES: usize = 64;

/// Every how many rows a head is repeated in the page's hint section.
pub const HINT_STRIDE: usize = 32;

/// Why bytes are no leaf page or delta record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Malformed {
    /// Fewer bytes than the header or than the header announces.
    #[error(
        "truncated: {have} bytes where {need} are needed; the sender or the framing is broken, drop the connection"
    )]
    Truncated {
        /// Bytes there.
        have: usize,
        /// Bytes needed.
        need: usize,
    },
    /// Not made by this version of Overside.
    #[error("magic or version unknown; both ends must run the same version of Overside")]
    Magic,
    /// A section lies outside the page or over another one.
    #[error("section `{0}` lies outside the page or over another one; drop the connection")]
    Section(&'static str),
}

pub(super) const MAGIC: u32 = u32::from_le_bytes(*b"OLF1");
pub(super) const VERSION: u8 = 1;
/// Keys are all `common + fixed` bytes long, no key slots and no tails.
pub(super) const FLAG_FIXED: u8 = 1;
/// The page has a high fence; without it the page reaches to the end of the key space.
pub(super) const FLAG_HIGH: u8 = 2;
/// Some row's rest is an overflow reference.
pub(super) const FLAG_OVERFLOW: u8 = 4;
/// "No page" where a page id is expected.
pub(crate) const NO_PAGE: u32 = u32::MAX;

pub(super) const AT_PREFIX_LEN: usize = 6;
pub(super) const AT_PAGE_LEN: usize = 8;
pub(super) const AT_COUNT: usize = 12;
pub(super) const AT_COMMON: usize = 16;
pub(super) const AT_FIXED: usize = 18;
pub(super) const AT_HEADS: usize = 20;
pub(super) const AT_TAILS: usize = 24;
pub(super) const AT_PREFIXES: usize = 28;
pub(super) const AT_SLOTS: usize = 32;
pub(super) const AT_HEAP: usize = 36;
pub(super) const AT_LOW_LEN: usize = 40;
pub(super) const AT_HIGH_LEN: usize = 42;
pub(super) const AT_RIGHT: usize = 44;
pub(super) const AT_UNIT: usize = 48;
pub(super) const AT_HIGH_HEAD: usize = 56;

/// Fills in what only the tree knows: the page to the right and the unit that holds this page.
pub(crate) fn set_link(page: &mut [u8], right: u32, unit: u32) {
    page[AT_RIGHT..AT_RIGHT + 4].copy_from_slice(&right.to_le_bytes());
    page[AT_UNIT..AT_UNIT + 4].copy_from_slice(&unit.to_le_bytes());
}

#[inline]
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    match bytes.get(at..at + 2) {
        Some(b) => u16::from_le_bytes([b[0], b[1]]),
        None => 0,
    }
}

#[inline]
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    match bytes.get(at..).and_then(|b| b.first_chunk::<4>()) {
        Some(b) => u32::from_le_bytes(*b),
        None => 0,
    }
}

#[inline]
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..).and_then(|b| b.first_chunk::<8>()) {
        Some(b) => u64::from_le_bytes(*b),
        None => 0,
    }
}

pub(super) fn align8(n: usize) -> usize {
    n.next_multiple_of(8)
}

/// The page's length, from its header.
#[inline]
pub(crate) fn page_len(header: &[u8]) -> usize {
    u32_at(header, AT_PAGE_LEN) as usize
}
