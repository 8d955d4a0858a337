//! The fragments of a message that is sent from where its bytes lie.

use std::ops::Range;

/// Bytes of the arena that are part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Arena offset of the first byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Fragments in message order. Ranges that touch, or that a small gap divides, become one: where a
/// gather entry costs as much as some bytes on the wire, sending a gap of that many along is
/// cheaper. With a cost that is a sum over entries and bytes, deciding each gap for itself is
/// optimal.
#[derive(Clone, Debug, Default)]
pub(super) struct Fragments {
    list: Vec<Fragment>,
    bytes: u64,
}

impl Fragments {
    /// Adds arena bytes `range`; answers where in the message (behind its head) they come to lie.
    ///
    /// `gap_bytes_max`: may be sent along between the range before and this one, which then ascends
    /// and may overlap it; the caller knows that those bytes are as immutable and as pinned as the
    /// ranges. None when it does not.
    #[inline]
    pub(super) fn push(&mut self, range: Range<u64>, gap_bytes_max: Option<u64>) -> u64 {
        if let (Some(last), Some(gap)) = (self.list.last_mut(), gap_bytes_max) {
            let end = last.offset + last.len;
            if last.offset <= range.start && range.start <= end.saturating_add(gap) {
                let at = self.bytes - last.len + (range.start - last.offset);
                let grown = range.end.saturating_sub(end);
                last.len += grown;
                self.bytes += grown;
                return at;
            }
        }
        let at = self.bytes;
        if range.end > range.start {
            self.list.push(Fragment { offset: range.start, len: range.end - range.start });
            self.bytes += range.end - range.start;
        }
        at
    }

    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.bytes = 0;
    }

    /// Takes everything back that was pushed since there were `list` fragments of `bytes` bytes in
    /// all. Of a page that began with a fragment of its own, that leaves nothing.
    pub(super) fn rewind(&mut self, (list, bytes): (usize, u64)) {
        self.list.truncate(list);
        self.bytes = bytes;
    }

    pub(super) fn mark(&self) -> (usize, u64) {
        (self.list.len(), self.bytes)
    }

    pub(super) fn list(&self) -> &[Fragment] {
        &self.list
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(ranges: &[(u64, u64)], gap: Option<u64>) -> (Vec<u64>, Vec<(u64, u64)>, u64) {
        let mut fragments = Fragments::default();
        let places = ranges.iter().map(|&(start, end)| fragments.push(start..end, gap)).collect();
        (places, fragments.list().iter().map(|f| (f.offset, f.len)).collect(), fragments.bytes())
    }

    #[test]
    fn gaps_travel_up_to_the_limit() {
        assert_eq!(push(&[(10, 20), (25, 30)], Some(4)), (vec![0, 10], vec![(10, 10), (25, 5)], 15));
        assert_eq!(push(&[(10, 20), (25, 30)], Some(5)), (vec![0, 15], vec![(10, 20)], 20));
        assert_eq!(push(&[(10, 20), (20, 30)], Some(0)), (vec![0, 10], vec![(10, 20)], 20));
        assert_eq!(push(&[(10, 20), (20, 30)], None), (vec![0, 10], vec![(10, 10), (20, 10)], 20));
    }

    #[test]
    fn overlaps_share_their_bytes_and_descents_do_not() {
        assert_eq!(push(&[(10, 20), (16, 24), (12, 14)], Some(0)), (vec![0, 6, 2], vec![(10, 14)], 14));
        assert_eq!(push(&[(10, 20), (5, 8)], Some(100)), (vec![0, 10], vec![(10, 10), (5, 3)], 13));
        assert_eq!(push(&[(10, 10), (5, 8)], Some(0)), (vec![0, 0], vec![(5, 3)], 3));
    }
}
