//! Search in a leaf: hints, then 32 heads, then (rarely) whole keys.

use std::cmp::Ordering;

use super::key::head_of;
use super::layout::HINT_STRIDE;
use super::leaf::Leaf;
use crate::inner::Target;

impl Leaf<'_> {
    /// Whether `target` lies right of this page.
    #[inline]
    pub(crate) fn beyond(&self, target: Target<'_>) -> bool {
        match target {
            Target::At(key) | Target::Below(key) if head_of(key) < self.high_head() => false,
            _ => target.beyond(self.high_fence()),
        }
    }

    /// Row that has `key`, or else the row before which it would go.
    #[inline]
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
        self.search_for::<false>(key)
    }

    /// As [`search`](Leaf::search); `VALUE`: the row's value prefix will be read next, so it is
    /// asked for along with the keys.
    #[inline]
    pub(crate) fn search_for<const VALUE: bool>(&self, key: &[u8]) -> Result<usize, usize> {
        if self.common_len == 0 {
            return self.search_suffix::<VALUE>(key);
        }
        let common = self.common();
        let n = common.len().min(key.len());
        match key[..n].cmp(&common[..n]) {
            Ordering::Less => Err(0),
            Ordering::Greater => Err(self.count),
            Ordering::Equal if n < common.len() => Err(0),
            Ordering::Equal => self.search_suffix::<VALUE>(&key[n..]),
        }
    }

    #[inline]
    fn search_suffix<const VALUE: bool>(&self, suffix: &[u8]) -> Result<usize, usize> {
        let head = head_of(suffix);
        let heads = self.heads();
        let at = self.lower_bound::<VALUE>(heads, head);
        if self.is_fixed() {
            if heads.get(at).is_some_and(|h| u64::from_be_bytes(*h) == head) {
                return match suffix.len().cmp(&self.fixed) {
                    Ordering::Equal => Ok(at),
                    Ordering::Less => Err(at),
                    Ordering::Greater => Err(at + 1),
                };
            }
            return Err(at);
        }
        self.search_ties(suffix, head, heads, at)
    }

    /// Asks for the keys' heads and the prefixes of `rows`.
    #[inline]
    pub(crate) fn prefetch(&self, rows: std::ops::Range<usize>) {
        super::prefetch::lines(self.part(self.heads_at + 8 * rows.start, 8 * rows.len()));
        let prefixes = self.part(self.prefixes_at + self.prefix_len * rows.start, self.prefix_len * rows.len());
        super::prefetch::lines(prefixes);
    }

    /// Among the rows from `from` on whose head is `head`, decides by length and tail.
    fn search_ties(&self, suffix: &[u8], head: u64, heads: &[[u8; 8]], from: usize) -> Result<usize, usize> {
        let tied = heads.get(from..).unwrap_or(&[]).partition_point(|h| u64::from_be_bytes(*h) == head);
        let (mut low, mut high) = (from, from + tied);
        while low < high {
            let middle = low + (high - low) / 2;
            let row = self.key_parts(middle);
            let order =
                row.head.len().cmp(&suffix.len().min(8)).then_with(|| row.tail.cmp(suffix.get(8..).unwrap_or(&[])));
            match order {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// First row whose head is not below `head`.
    #[inline]
    fn lower_bound<const VALUE: bool>(&self, heads: &[[u8; 8]], head: u64) -> usize {
        let hints = self.part(self.hints_at(), 8 * self.hints()).as_chunks::<8>().0;
        let below: usize = hints.iter().map(|h| usize::from(u64::from_le_bytes(*h) < head)).sum();
        let start = (below * HINT_STRIDE).min(heads.len());
        let block = &heads[start..heads.len().min(start + HINT_STRIDE)];
        super::prefetch::lines(block.as_flattened());
        if VALUE && self.prefix_len * HINT_STRIDE <= 512 {
            super::prefetch::lines(
                self.part(self.prefixes_at + start * self.prefix_len, block.len() * self.prefix_len),
            );
        }
        let mut base = 0;
        let mut size = block.len();
        while size > 1 {
            let half = size / 2;
            // A conditional move, not a branch: the outcome is a coin toss and a mispredicted one costs more than it all.
            base =
                std::hint::select_unpredictable(u64::from_be_bytes(block[base + half - 1]) < head, base + half, base);
            size -= half;
        }
        start + base + usize::from(size == 1 && u64::from_be_bytes(block[base]) < head)
    }
}
