//! Pages as a checkpoint has them.

use std::ops::Range;

use overside_disk::mutant;

use crate::group::{number32, number64};

/// A leaf at one instant, in the tree's own bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Page<'a> {
    /// Its least key can be this.
    pub low: &'a [u8],
    /// Its keys are below; none for the last page.
    pub high: Option<&'a [u8]>,
    /// The base page.
    pub base: &'a [u8],
    /// The rows of the base page that count: the first of them, and the one behind the last.
    pub rows: (u32, u32),
    /// The newest delta of each key.
    pub deltas: &'a [&'a [u8]],
    /// What the rows refer to outside of the page.
    pub extents: &'a [&'a [u8]],
    /// The newest change in it.
    pub newest: u64,
    /// Rows of it, deltas counted.
    pub count: u32,
}

/// A page that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRef<'a> {
    /// Its least key can be this.
    pub low: &'a [u8],
    /// Its keys are below; none for the last page.
    pub high: Option<&'a [u8]>,
    /// The base page.
    pub base: &'a [u8],
    /// The rows of the base page that count.
    pub rows: Range<u32>,
    /// The newest delta of each key.
    pub deltas: Vec<&'a [u8]>,
    /// What the rows refer to outside of the page.
    pub extents: Vec<&'a [u8]>,
    /// The newest change in it.
    pub newest: u64,
    /// Rows of it, deltas counted.
    pub count: u32,
}

impl Page<'_> {
    /// Bytes that [`write`](Self::write) appends.
    pub fn bytes(&self) -> usize {
        let listed = |list: &[&[u8]]| list.iter().map(|bytes| 4 + bytes.len()).sum::<usize>();
        let fences = self.low.len() + self.high.map_or(0, <[u8]>::len);
        HEADER_BYTES + fences + self.base.len() + listed(self.deltas) + listed(self.extents)
    }

    /// Puts the page at the start of `out`, which is as long; gives its checksum.
    ///
    /// # Panics
    /// When a part of it has 2³² bytes or more.
    pub(crate) fn write(&self, out: &mut [u8]) -> u32 {
        let length = |bytes: usize| u32::try_from(bytes).expect("a page has less than 2^32 bytes");
        let all = length(out.len());
        out[4..12].copy_from_slice(&self.newest.to_le_bytes());
        let high = self.high.map_or(NO_FENCE, |high| length(high.len()));
        let words = [
            all,
            self.count,
            self.rows.0,
            self.rows.1,
            length(self.low.len()),
            high,
            length(self.base.len()),
            length(self.deltas.len()),
            length(self.extents.len()),
        ];
        let mut at = 12;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        words.iter().for_each(|word| put(&word.to_le_bytes()));
        [self.low, self.high.unwrap_or(&[]), self.base].into_iter().for_each(&mut put);
        for bytes in self.deltas.iter().chain(self.extents) {
            put(&length(bytes.len()).to_le_bytes());
            put(bytes);
        }
        debug_assert_eq!(at, out.len());
        let checksum = crc32c::crc32c(&out[4..]);
        out[..4].copy_from_slice(&checksum.to_le_bytes());
        checksum
    }
}

/// Appends a page to a part; gives its checksum.
///
/// # Panics
/// When a part of it has 2³² bytes or more.
pub fn write_page(page: &Page<'_>, part: &mut Vec<u8>) -> u32 {
    let at = part.len();
    part.resize(at + page.bytes(), 0);
    page.write(&mut part[at..])
}

/// The pages of a part, in order: each with its checksum. `Err` is where something is wrong, and
/// what.
pub fn parse_part(bytes: &[u8]) -> impl Iterator<Item = Result<(PageRef<'_>, u32), (usize, &'static str)>> {
    let mut at = 0;
    let mut broken = false;
    std::iter::from_fn(move || {
        if broken || at == bytes.len() {
            return None;
        }
        let here = at;
        let parsed = parse(&bytes[at..]);
        match &parsed {
            Ok((_, _, all)) => at += all,
            Err(_) => broken = true,
        }
        Some(parsed.map(|(page, checksum, _)| (page, checksum)).map_err(|what| (here, what)))
    })
}

fn parse(bytes: &[u8]) -> Result<(PageRef<'_>, u32, usize), &'static str> {
    let header = bytes.get(..HEADER_BYTES).ok_or("a page is cut off")?;
    let word = |at: usize| number32(header, 12 + 4 * at);
    let all = word(0) as usize;
    let whole = bytes.get(..all).filter(|whole| whole.len() >= HEADER_BYTES).ok_or("a page is cut off")?;
    let checksum = number32(header, 0);
    if crc32c::crc32c(&whole[4..]) != checksum && !mutant("page-checksum-ignored") {
        return Err("a page's checksum is wrong");
    }
    const LEAVES: &str = "what a page lists leaves it";
    let mut rest = &whole[HEADER_BYTES..];
    let mut take = |length: usize| {
        let (taken, left) = rest.split_at_checked(length).ok_or(LEAVES)?;
        rest = left;
        Ok::<_, &'static str>(taken)
    };
    let low = take(word(4) as usize)?;
    let high = if word(5) == NO_FENCE { None } else { Some(take(word(5) as usize)?) };
    let base = take(word(6) as usize)?;
    // Each takes four bytes at least, so no list is longer than the page.
    let mut list = |count: u32| {
        let mut list = Vec::with_capacity((count as usize).min(all / 4));
        for _ in 0..count {
            let length = number32(take(4)?, 0) as usize;
            list.push(take(length)?);
        }
        Ok::<_, &'static str>(list)
    };
    let (deltas, extents) = (list(word(7))?, list(word(8))?);
    if !rest.is_empty() || word(2) > word(3) {
        return Err("a page is longer than what it lists");
    }
    let rows = word(2)..word(3);
    let page = PageRef { low, high, base, rows, deltas, extents, newest: number64(header, 4), count: word(1) };
    Ok((page, checksum, all))
}

/// Checksum u32, newest u64; bytes, count, rows from and to, bytes of low and high fence and base,
/// how many deltas and extents, each u32.
const HEADER_BYTES: usize = 48;
const NO_FENCE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_back_and_every_changed_byte_is_seen() {
        let full = Page {
            low: b"a",
            high: Some(b""),
            base: b"base page",
            rows: (1, 3),
            deltas: &[b"delta", b""],
            extents: &[b"an extent"],
            newest: 77,
            count: 4,
        };
        let pages = [Page::default(), full, Page { high: None, ..full }];
        let mut bytes = Vec::new();
        for page in pages {
            let at = bytes.len();
            bytes.resize(at + page.bytes(), 0);
            page.write(&mut bytes[at..]);
        }
        let back: Vec<_> = parse_part(&bytes).map(|page| page.unwrap().0).collect();
        for (back, page) in back.iter().zip(pages) {
            assert_eq!((back.low, back.high, back.base), (page.low, page.high, page.base));
            assert_eq!((back.deltas.as_slice(), back.extents.as_slice()), (page.deltas, page.extents));
            assert_eq!(
                (back.rows.clone(), back.newest, back.count),
                (page.rows.0..page.rows.1, page.newest, page.count)
            );
        }
        assert_eq!(back.len(), 3);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x40;
            assert!(parse_part(&changed).any(|page| page.is_err()), "byte {at}");
            assert!(
                parse_part(&bytes[..at]).all(|page| page.is_ok()) == [0, 48, 48 + pages[1].bytes()].contains(&at),
                "cut at {at}"
            );
        }
    }
}
