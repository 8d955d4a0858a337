//! What a queue pair has lent: a bounded table of loans, ended by the peer's returns.
//!
//! A loan's number is the lower half of its descriptor's. The peer returns each that it was
//! offered: those that it copied before it says that it has consumed them, the others when it is
//! done.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use overside_verbs::ByNumber;

use crate::doorbell::{PeerRing, Returns};
use crate::fate::Fate;
use crate::ring::Geometry;

/// Loans that were offered and have not ended.
#[derive(Debug)]
pub(crate) struct Lent {
    loans: ByNumber<Loan>,
    /// Those of them whose SEND has not completed and whose bytes are not back.
    offered: usize,
    /// Those that the peer has accepted.
    out: usize,
    /// Loans there may be: as many as the peer has places to return them.
    max: usize,
    /// Returns taken in, ever.
    returned: u64,
    /// Requests whose loan has ended, which is to be reported.
    ended: VecDeque<u32>,
    /// Loans and ends together: what every poll looks at.
    busy: usize,
}

#[derive(Clone, Copy, Debug)]
struct Loan {
    /// The request's number.
    slot: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its SEND has not completed.
    Offered,
    /// Nor has it, but the peer needs the bytes no more.
    Returned,
    /// The peer reads the bytes.
    Out,
}

impl Lent {
    /// Before the peer attached: it has some places in any case.
    pub(crate) fn new() -> Self {
        let max = Geometry::for_options(0, 0).returns() as usize;
        Self { loans: ByNumber::default(), offered: 0, out: 0, max, returned: 0, ended: VecDeque::new(), busy: 0 }
    }

    /// The peer attached, with so many places.
    pub(crate) fn attached(&mut self, places: u32) {
        self.max = places as usize;
    }

    /// Whether there may be another loan, with this descriptor's number.
    pub(crate) fn room(&self, index: u64) -> bool {
        // One that is kept for the time of 2^32 descriptors has its number for itself.
        self.loans.len() < self.max && !self.loans.contains_key(&(index as u32))
    }

    /// Descriptor number `index` offers the bytes of a request. There must be room.
    pub(crate) fn offer(&mut self, index: u64, slot: u32) {
        self.loans.insert(index as u32, Loan { slot, state: State::Offered });
        self.offered += 1;
        self.busy += 1;
    }

    /// Whether nothing is out and nothing is to be reported.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.busy == 0
    }

    /// The SEND of descriptor number `index` has completed: whether its bytes are lent from now on.
    pub(crate) fn completed(&mut self, index: u64) -> bool {
        let Entry::Occupied(mut offered) = self.loans.entry(index as u32) else { return false };
        if offered.get().state == State::Returned {
            offered.remove();
            self.busy -= 1;
            return false;
        }
        offered.get_mut().state = State::Out;
        self.offered -= 1;
        self.out += 1;
        true
    }

    /// The SEND of descriptor number `index` ends with the queue pair.
    pub(crate) fn flushed(&mut self, index: u64) {
        let Some(loan) = self.loans.remove(&(index as u32)) else { return };
        self.busy -= 1;
        self.offered -= usize::from(loan.state == State::Offered);
    }

    /// Takes in what the peer has returned; whether there was anything. To be called after its
    /// consumed index was read.
    pub(crate) fn observe(&mut self, peer: &impl PeerRing) -> Result<bool, Fate> {
        let before = self.returned;
        while let Some(number) = peer.returned(self.returned) {
            self.returned += 1;
            let Entry::Occupied(mut loan) = self.loans.entry(number) else { return Err(NOT_LENT) };
            match loan.get().state {
                State::Out => {
                    self.ended.push_back(loan.remove().slot);
                    self.out -= 1;
                }
                State::Offered => {
                    loan.get_mut().state = State::Returned;
                    self.offered -= 1;
                }
                State::Returned => return Err(NOT_LENT),
            }
        }
        Ok(self.returned != before)
    }

    /// How many SENDs that have not completed offer bytes that are not back.
    pub(crate) fn offered(&self) -> usize {
        self.offered
    }

    /// Returns taken in, ever, and how many there must have been until it is worth waking up for
    /// them; none when nothing is out. At half, those that are only offered count as well: each
    /// ends by a return.
    pub(crate) fn worth_waking_for(&self, at_half: bool) -> Option<Returns> {
        let all = if at_half { self.offered + self.out } else { self.out };
        let wanted = if at_half { all.div_ceil(2) } else { 1 };
        (all > 0).then_some(Returns { seen: self.returned, wanted: self.returned + wanted as u64 })
    }

    /// Whether there is a return that was not taken in.
    pub(crate) fn any_back(&self, peer: &impl PeerRing) -> bool {
        peer.returned(self.returned).is_some()
    }

    /// The next request whose loan has ended.
    pub(crate) fn ended(&mut self) -> Option<u32> {
        let ended = self.ended.pop_front();
        self.busy -= usize::from(ended.is_some());
        ended
    }

    /// Whether there is one.
    #[inline]
    pub(crate) fn any_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Every loan ends with the queue pair.
    pub(crate) fn revoke(&mut self) {
        self.ended.extend(self.loans.drain().map(|(_, loan)| loan.slot));
        (self.offered, self.out) = (0, 0);
    }
}

const NOT_LENT: Fate = Fate::Malformed("the peer returned what it was not lent, or returned it twice");

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use proptest::prelude::*;

    use super::*;
    use crate::doorbell::PeerWords;
    use crate::ring::{CELL_BYTES, DESCRIPTOR_BYTES, Word};

    /// A peer's places for returns, in which anything may be written.
    struct Places(Geometry, Vec<AtomicU64>);

    impl Places {
        fn new() -> Self {
            let geometry = Geometry::for_options(0, 0);
            Self(geometry, (0..geometry.returns()).map(|_| AtomicU64::new(0)).collect())
        }

        fn store(&self, index: u64, word: u64) {
            self.1[index as usize % self.1.len()].store(word, Ordering::Relaxed);
        }

        fn give_back(&self, index: u64, number: u32) {
            self.store(index, self.0.returned(index, number));
        }
    }

    impl PeerWords for Places {
        fn load(&self, _: Word) -> u64 {
            0
        }
    }

    impl PeerRing for Places {
        fn shows(&self, _: u64, _: u64) -> bool {
            false
        }

        fn head(&self, _: u64, _: u64) -> Option<[u64; 2]> {
            None
        }

        fn descriptor(&self, _: u64) -> [u64; DESCRIPTOR_BYTES / 8] {
            [0; 8]
        }

        fn cell(&self, _: u64) -> [u64; CELL_BYTES / 8] {
            [0; 2]
        }

        fn returned(&self, index: u64) -> Option<u32> {
            let word = self.1[index as usize % self.1.len()].load(Ordering::Relaxed);
            (word == self.0.returned(index, word as u32)).then_some(word as u32)
        }
    }

    fn lent(count: u64, completed: u64) -> Lent {
        let mut lent = Lent::new();
        (0..count).for_each(|index| lent.offer(index, 100 + index as u32));
        (0..completed).for_each(|index| assert!(lent.completed(index)));
        lent
    }

    /// Returns that are worth waking up for: any, and half.
    fn wanted(lent: &Lent) -> (Option<u64>, Option<u64>) {
        let [any, half] = [false, true].map(|at_half| lent.worth_waking_for(at_half).map(|returns| returns.wanted));
        (any, half)
    }

    #[test]
    fn each_loan_ends_once_in_any_order() {
        let (mut lent, places) = (lent(4, 3), Places::new());
        assert_eq!(wanted(&lent), (Some(1), Some(2)));
        // The fourth was copied: its SEND has not completed here yet.
        [(0, 2), (1, 3), (2, 0)].iter().for_each(|(index, number)| places.give_back(*index, *number));
        assert_eq!(lent.observe(&places), Ok(true));
        assert_eq!([lent.ended(), lent.ended(), lent.ended()], [Some(102), Some(100), None]);
        assert!(!lent.completed(3), "it was copied");
        assert_eq!((lent.observe(&places), wanted(&lent)), (Ok(false), (Some(4), Some(4))));
        assert!(!lent.is_empty());
        lent.revoke();
        assert_eq!((lent.ended(), lent.ended(), lent.is_empty()), (Some(101), None, true));
        assert_eq!(wanted(&lent), (None, None));
    }

    #[test]
    fn what_was_not_lent_is_not_returned() {
        for (what, numbers) in [
            ("a number of nothing", &[9][..]),
            ("twice", &[1, 1]),
            ("twice, with its SEND not completed", &[3, 3]),
            ("of long ago", &[0, 1, 2, 0]),
        ] {
            let (mut lent, places) = (lent(4, 3), Places::new());
            numbers.iter().zip(0..).for_each(|(number, index)| places.give_back(index, *number));
            assert_eq!(lent.observe(&places), Err(NOT_LENT), "{what}");
        }
    }

    #[test]
    fn there_are_as_many_loans_as_places() {
        let max = u64::from(Geometry::for_options(0, 0).returns());
        assert!(lent(max - 1, 0).room(max) && !lent(max, max).room(max));
        let mut more = lent(max, max);
        more.attached(Geometry::for_options(64, 0).returns());
        assert!(more.room(max), "the peer has more places than the fewest");
        // The number of one that is out is nobody else's.
        assert!(!lent(5, 5).room(1 << 32 | 4) && lent(5, 5).room(1 << 32 | 5));
    }

    proptest! {
        /// Words of any value, and valid ones among them: a loan ends at most once, and only one
        /// that was lent.
        #[test]
        fn garbage_among_the_returns_ends_nothing_twice(
            words in proptest::collection::vec((0u8..4, 0u32..12, any::<u64>(), 0u32..64), 0..40),
        ) {
            let (mut lent, places) = (lent(8, 6), Places::new());
            let mut ended = Vec::new();
            for (index, (kind, number, word, bit)) in words.into_iter().enumerate() {
                let index = index as u64;
                match kind {
                    0 => places.store(index, word),
                    1 => places.store(index, places.0.returned(index, number) ^ 1 << bit),
                    _ => places.give_back(index, number),
                }
                let observed = lent.observe(&places);
                ended.extend(std::iter::from_fn(|| lent.ended()));
                if observed.is_err() {
                    break;
                }
            }
            lent.revoke();
            ended.extend(std::iter::from_fn(|| lent.ended()));
            let count = ended.len();
            ended.sort_unstable();
            ended.dedup();
            prop_assert_eq!(ended.len(), count, "one ended twice");
            prop_assert!(ended.iter().all(|slot| (100..108).contains(slot)));
            prop_assert!((0..6).all(|slot| ended.contains(&(100 + slot))), "one that was out did not end");
        }
    }
}
