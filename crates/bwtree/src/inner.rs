//! Inner nodes: immutable arrays in private memory, replaced as a whole.
//!
//! They change once per some hundreds of inserts (when a leaf splits or merges), and are never
//! transmitted, so they carry no deltas. They are a flat array of 8-byte key heads to search in,
//! the children's numbers, and the separators' bytes for ties.

use std::cmp::Ordering;

use crate::page::{NO_PAGE, head_of, order};

/// Where a traversal goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target<'k> {
    /// To the page with low ≤ key < high.
    At(&'k [u8]),
    /// To the page with low < key ≤ high: the one that holds what is just below the key.
    Below(&'k [u8]),
    /// To the last page.
    Max,
}

impl Target<'_> {
    /// Whether the target lies right of a page that ends at `high`.
    #[inline]
    pub(crate) fn beyond(&self, high: Option<&[u8]>) -> bool {
        match (self, high) {
            (_, None) => false,
            (Target::At(key), Some(high)) => *key >= high,
            (Target::Below(key), Some(high)) => *key > high,
            (Target::Max, Some(_)) => true,
        }
    }
}

/// An inner node.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) birth: u64,
    /// 1: the children are leaves.
    pub(crate) level: u32,
    /// Next node of the level; `NO_PAGE` at the end.
    pub(crate) right: u32,
    /// Child that is being merged into its left neighbour; `NO_PAGE`: none.
    pub(crate) merging: u32,
    pub(crate) high: Option<Box<[u8]>>,
    high_head: u64,
    /// Bytes that all separators but the first share.
    common: usize,
    heads: Box<[u64]>,
    pids: Box<[u32]>,
    /// Where each separator ends in `bytes`.
    ends: Box<[u32]>,
    bytes: Box<[u8]>,
}

/// Children with the separators left of them; the first one is the node's low fence.
pub(crate) type Entries<'a> = Vec<(&'a [u8], u32)>;

impl Inner {
    pub(crate) fn new(
        birth: u64,
        level: u32,
        entries: &Entries<'_>,
        high: Option<&[u8]>,
        right: u32,
        merging: u32,
    ) -> Inner {
        let mut bytes = Vec::with_capacity(entries.iter().map(|e| e.0.len()).sum());
        let mut ends = Vec::with_capacity(entries.len());
        for (separator, _) in entries {
            bytes.extend_from_slice(separator);
            ends.push(bytes.len() as u32);
        }
        let common = match entries.get(1..) {
            Some([first, .., last]) => first.0.iter().zip(last.0).take_while(|(a, b)| a == b).count(),
            Some([only]) => only.0.len(),
            _ => 0,
        };
        let head = |(i, e): (usize, &(&[u8], u32))| if i == 0 { 0 } else { head_of(&e.0[common..]) };
        Inner {
            birth,
            level,
            right,
            merging,
            high: high.map(Box::from),
            high_head: high.map_or(u64::MAX, head_of),
            common,
            heads: entries.iter().enumerate().map(head).collect(),
            pids: entries.iter().map(|e| e.1).collect(),
            ends: ends.into(),
            bytes: bytes.into(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.pids.len()
    }

    #[inline]
    pub(crate) fn pid(&self, i: usize) -> u32 {
        self.pids[i]
    }

    pub(crate) fn separator(&self, i: usize) -> &[u8] {
        let from = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.bytes[from..self.ends[i] as usize]
    }

    pub(crate) fn low(&self) -> &[u8] {
        self.separator(0)
    }

    pub(crate) fn entries(&self) -> Entries<'_> {
        (0..self.len()).map(|i| (self.separator(i), self.pid(i))).collect()
    }

    /// Bytes of private memory.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Inner>() + self.len() * 16 + self.bytes.len()
    }

    /// Index of the child `pid`.
    pub(crate) fn index_of(&self, pid: u32) -> Option<usize> {
        self.pids.iter().position(|&p| p == pid)
    }

    #[inline]
    pub(crate) fn beyond(&self, target: Target<'_>) -> bool {
        match target {
            Target::At(key) | Target::Below(key) if head_of(key) < self.high_head => false,
            _ => target.beyond(self.high.as_deref()),
        }
    }

    /// The child to go to: the last one whose separator is at or below the target (strictly below
    /// for `Below`).
    #[inline]
    pub(crate) fn child(&self, target: Target<'_>) -> usize {
        match target {
            Target::At(key) => self.rank(key, true),
            Target::Below(key) => self.rank(key, false),
            Target::Max => self.len() - 1,
        }
    }

    #[inline]
    fn rank(&self, key: &[u8], inclusive: bool) -> usize {
        let mut suffix = key;
        if self.common > 0 {
            let common = &self.separator(1)[..self.common];
            let n = self.common.min(key.len());
            match key[..n].cmp(&common[..n]) {
                Ordering::Less => return 0,
                Ordering::Greater => return self.len() - 1,
                Ordering::Equal if n < self.common => return 0,
                Ordering::Equal => suffix = &key[n..],
            }
        }
        let head = head_of(suffix);
        let heads = &self.heads[1..];
        let from = lower_bound(heads, head);
        if heads.get(from).is_none_or(|h| *h != head) {
            return from;
        }
        let mut at = from;
        for &h in &heads[from..] {
            let order = if h == head {
                order(&self.separator(at + 1)[self.common..], h, suffix, head)
            } else {
                Ordering::Greater
            };
            if order == Ordering::Greater || (order == Ordering::Equal && !inclusive) {
                break;
            }
            at += 1;
        }
        at
    }
}

/// First index whose head is not below `head`, without branches that depend on data.
#[inline]
fn lower_bound(heads: &[u64], head: u64) -> usize {
    let mut base = 0;
    let mut size = heads.len();
    if size == 0 {
        return 0;
    }
    while size > 1 {
        let half = size / 2;
        base = std::hint::select_unpredictable(heads[base + half - 1] < head, base + half, base);
        size -= half;
    }
    base + usize::from(heads[base] < head)
}

/// The shortest separator between two keys: above `left`, at or below `right`.
pub(crate) fn separator(left: &[u8], right: &[u8]) -> Vec<u8> {
    let same = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    right[..(same + 1).min(right.len())].to_vec()
}

/// A node that covers everything and has one child.
pub(crate) fn root(birth: u64, child: u32) -> Inner {
    Inner::new(birth, 1, &vec![(&[][..], child)], None, NO_PAGE, NO_PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn child_is_the_last_separator_not_above(
            keys in prop::collection::btree_set(prop::collection::vec(0u8..3, 1..12), 0..40),
            prefix in prop::collection::vec(0u8..3, 0..10),
            probe in prop::collection::vec(0u8..3, 0..14), with_prefix: bool,
        ) {
            let keys: Vec<Vec<u8>> = keys.into_iter().map(|k| [prefix.as_slice(), &k].concat()).collect();
            let mut entries: Entries<'_> = vec![(&[], 0)];
            entries.extend(keys.iter().enumerate().map(|(i, k)| (k.as_slice(), i as u32 + 1)));
            let node = Inner::new(1, 1, &entries, None, NO_PAGE, NO_PAGE);
            let probe = if with_prefix { [prefix.as_slice(), &probe].concat() } else { probe };
            prop_assert_eq!(node.child(Target::At(&probe)), keys.iter().filter(|k| **k <= probe).count());
            prop_assert_eq!(node.child(Target::Below(&probe)), keys.iter().filter(|k| **k < probe).count());
        }

        #[test]
        fn separators_separate(a in prop::collection::vec(0u8..3, 0..8), b in prop::collection::vec(0u8..3, 0..8)) {
            prop_assume!(a < b);
            let s = separator(&a, &b);
            prop_assert!(a < s && s <= b);
        }
    }
}
