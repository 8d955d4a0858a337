//! Ranges of bytes of which something holds.

use std::collections::BTreeMap;

/// Ranges that neither overlap nor touch, by first bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// It holds of these bytes, too.
    pub(super) fn insert(&mut self, (mut at, mut end): (u64, u64)) {
        while let Some((from, to)) =
            self.0.range(..=end).next_back().map(|(from, to)| (*from, *to)).filter(|(_, to)| *to >= at)
        {
            self.0.remove(&from);
            (at, end) = (at.min(from), end.max(to));
        }
        if at < end {
            self.0.insert(at, end);
        }
    }

    /// It does not hold of these any more.
    pub(super) fn remove(&mut self, (at, end): (u64, u64)) {
        while let Some((from, to)) = self.first_in(at, end) {
            self.0.remove(&from);
            if from < at {
                self.0.insert(from, at);
            }
            if end < to {
                self.0.insert(end, to);
            }
        }
    }

    /// Whether it holds of any of these.
    pub(super) fn touches(&self, at: u64, end: u64) -> bool {
        self.first_in(at, end).is_some()
    }

    /// The first range from `at` on, or the one around it.
    pub(super) fn first_from(&self, at: u64) -> Option<(u64, u64)> {
        self.first_in(at, u64::MAX).map(|(from, to)| (from.max(at), to))
    }

    /// All of them: first bytes and ends.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|(at, end)| (*at, *end))
    }

    fn first_in(&self, at: u64, end: u64) -> Option<(u64, u64)> {
        let before = self.0.range(..=at).next_back().filter(|(_, to)| **to > at);
        before.or_else(|| self.0.range(at..end).next()).map(|(from, to)| (*from, *to)).filter(|_| at < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Held against a bit for each byte.
        #[test]
        fn ranges_are_the_bytes_of_which_it_holds(
            steps in proptest::collection::vec((any::<bool>(), 0u64..64, 0u64..20), 1..40),
        ) {
            let (mut ranges, mut model) = (Ranges::default(), [false; 96]);
            for (holds, at, length) in steps {
                let range = (at, at + length);
                if holds { ranges.insert(range) } else { ranges.remove(range) }
                model[at as usize..(at + length) as usize].fill(holds);
                for at in 0..90u64 {
                    prop_assert_eq!(ranges.touches(at, at + 1), model[at as usize], "byte {}", at);
                    prop_assert_eq!(ranges.touches(at, at + 5), model[at as usize..at as usize + 5].contains(&true));
                    let first = (at..96).find(|at| model[*at as usize]);
                    prop_assert_eq!(ranges.first_from(at).map(|(from, _)| from), first);
                    prop_assert!(!ranges.touches(at, at));
                }
            }
        }
    }
}
