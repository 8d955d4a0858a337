//! Which requests may be under way together.

use std::collections::VecDeque;

/// Admits requests so that no two are under way that overlap and of which one writes. Who has to
/// wait waits for those before it alone, so requests that conflict are carried out in their order.
///
/// A mirror needs it, or its sides could differ; so does whoever reads, changes and writes back.
#[derive(Debug, Default)]
pub struct Overlaps {
    /// In the order of arrival.
    entries: VecDeque<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: u64,
    at: u64,
    end: u64,
    writes: bool,
    admitted: bool,
}

impl Entry {
    fn conflicts(&self, other: &Entry) -> bool {
        (self.writes || other.writes) && self.at < other.end && other.at < self.end
    }
}

impl Overlaps {
    /// A request for `length` bytes at `at` arrives under a number that no other has. Whether it
    /// may go at once; else [`leave`](Self::leave) says when.
    pub fn enter(&mut self, id: u64, at: u64, length: u64, writes: bool) -> bool {
        let mut entry = Entry { id, at, end: at.saturating_add(length), writes, admitted: false };
        entry.admitted = !self.entries.iter().any(|before| before.conflicts(&entry));
        self.entries.push_back(entry);
        entry.admitted
    }

    /// A request has ended; appends to `admitted` those that may go now.
    pub fn leave(&mut self, id: u64, admitted: &mut Vec<u64>) {
        let Some(place) = self.entries.iter().position(|entry| entry.id == id) else { return };
        let Some(left) = self.entries.remove(place) else { return };
        for later in place..self.entries.len() {
            let entry = self.entries[later];
            let waits = !entry.admitted && entry.conflicts(&left);
            if waits && !self.entries.iter().take(later).any(|before| before.conflicts(&entry)) {
                self.entries[later].admitted = true;
                admitted.push(entry.id);
            }
        }
    }

    /// All numbers are higher by so much from now on.
    pub(crate) fn renumber(&mut self, by: u64) {
        self.entries.iter_mut().for_each(|entry| entry.id += by);
    }

    /// Requests that are under way or wait.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Held against what it promises at every step: requests come and end in any order.
        #[test]
        fn no_two_that_conflict_are_under_way_and_nobody_waits_for_nothing(
            steps in proptest::collection::vec((any::<bool>(), 0u64..12, 1u64..6, any::<bool>(), any::<prop::sample::Index>()), 1..80),
        ) {
            let mut overlaps = Overlaps::default();
            let mut here: Vec<(Entry, bool)> = Vec::new();
            let mut next = 0;
            for (ends, at, length, writes, which) in steps {
                let going: Vec<usize> = (0..here.len()).filter(|i| here[*i].1).collect();
                if ends && !going.is_empty() {
                    let (left, _) = here.remove(going[which.index(going.len())]);
                    let mut admitted = Vec::new();
                    overlaps.leave(left.id, &mut admitted);
                    for (entry, goes) in &mut here {
                        let now = admitted.contains(&entry.id);
                        prop_assert!(!(*goes && now), "admitted twice");
                        *goes |= now;
                    }
                } else {
                    let entry = Entry { id: next, at, end: at + length, writes, admitted: false };
                    next += 1;
                    here.push((entry, overlaps.enter(entry.id, at, length, writes)));
                }
                for (place, (entry, goes)) in here.iter().enumerate() {
                    let blocked = here[..place].iter().any(|(before, _)| before.conflicts(entry));
                    prop_assert_eq!(*goes, !blocked, "{:?} among {:?}", entry, here);
                }
                prop_assert_eq!(overlaps.len(), here.len());
            }
        }
    }
}
