//! A scan's way through the leaves: by fences, never by page numbers, so splits and merges between
//! two pages change nothing.

use std::ops::Bound;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::account::PinAccount;
use crate::core::Core;
use crate::inner::Target;
use crate::page::Leaf;
use crate::pinned::{PinnedPage, Taken};
use crate::pins::Pins;

/// Which way a scan goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Keys ascend.
    Forward,
    /// Keys descend from page to page.
    Backward,
}

/// Iterator over the leaves of a key range, each pinned as it was at one instant.
///
/// No snapshot: a page shows its state when the cursor came by. Rows that are there throughout come
/// exactly once. Between two pages nothing is held but the bounds, so a cursor left open costs
/// nothing, and pages that were taken [together](Self::together) and not yet given out. Pages hold
/// pins as long as they are kept.
pub struct Pages {
    core: Arc<Core>,
    account: Option<Arc<PinAccount>>,
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
    direction: Direction,
    done: bool,
    /// Pages to take in one go at most, and by the next one.
    together: [usize; 2],
    /// Taken and not given out, the next one last.
    taken: SmallVec<[PinnedPage; 1]>,
    /// The newest stamp of all leaves up to the last with a page, and of those passed over since.
    newest: u64,
    passed: u64,
}

impl Pages {
    pub(crate) fn new(core: Arc<Core>, from: Bound<&[u8]>, to: Bound<&[u8]>, direction: Direction) -> Pages {
        let done = match (from, to) {
            (Bound::Included(from), Bound::Included(to)) => from > to,
            (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => from >= to,
            _ => false,
        };
        let (from, to) = (from.map(<[u8]>::to_vec), to.map(<[u8]>::to_vec));
        let taken = SmallVec::new();
        Pages { core, account: None, from, to, direction, done, together: [1; 2], taken, newest: 0, passed: 0 }
    }

    /// Takes up to so many pages in one go, one at first and ever more, where the scan goes
    /// forward: one way down and one pin's expense for all of them. They stay in memory until the
    /// last of them is dropped. Default: one.
    pub fn together(mut self, pages: usize) -> Pages {
        self.together = [pages.clamp(1, TOGETHER_MAX), 1];
        self
    }

    /// Takes the pins on `account`.
    ///
    /// # Panics
    /// When another tree made the account: it would look these pins up among that tree's pages.
    pub fn on_account(mut self, account: Arc<PinAccount>) -> Pages {
        assert!(account.is_of(&self.core), "a pin account of another tree");
        self.account = Some(account);
        self
    }

    /// No change that its pages so far, or their absence, shows has a larger
    /// [stamp](crate::Stamps): of the end of a scan, which may have passed over pages that others
    /// emptied. 0 in a tree without stamps.
    pub fn newest(&self) -> u64 {
        self.newest.max(self.passed)
    }

    /// Which way it goes.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Takes pages, perhaps none with something in it.
    fn step(&mut self) {
        let guard = self.core.enter();
        let (from, to) = (as_slice(&self.from), as_slice(&self.to));
        let forward = self.direction == Direction::Forward;
        let target = match (self.direction, from, to) {
            (Direction::Forward, Bound::Included(key) | Bound::Excluded(key), _) => Target::At(key),
            (Direction::Forward, Bound::Unbounded, _) => Target::At(&[]),
            (Direction::Backward, _, Bound::Included(key)) => Target::At(key),
            (Direction::Backward, _, Bound::Excluded(key)) => Target::Below(key),
            (Direction::Backward, _, Bound::Unbounded) => Target::Max,
        };
        let found = self.core.find_leaf(&guard, target);
        let (mut state, frozen) = (found.state, found.frozen);
        let [most, wanted] = self.together;
        let mut pins = Pins::new(&self.core, self.account.as_ref());
        let mut pages = SmallVec::<[Taken; TOGETHER_MAX]>::new();
        let mut visited = 0;
        let next = loop {
            visited += 1;
            let bounds = clip(&state.leaf, from, to);
            self.passed = self.passed.max(self.core.newest(&state));
            let page = Taken::new(&state, bounds, self.passed);
            if !page.is_empty() {
                self.newest = self.newest.max(self.passed);
                self.passed = 0;
                pins.add(&state);
                pages.push(page);
            }
            if !forward {
                break Some(state.leaf.low_fence()).filter(|low| !low.is_empty() && bounds.0 == Bound::Unbounded);
            }
            let high = state.leaf.high_fence().filter(|_| bounds.1 == Bound::Unbounded);
            if high.is_none() {
                break high;
            }
            // Along the side link: under the guard that showed it, it leads to the page that begins where this one ends.
            match self.core.next_leaf(&guard, &state.leaf) {
                Some(next) if visited < wanted && !frozen && high == Some(next.leaf.low_fence()) => state = next,
                _ => break high,
            }
        };
        pins.count(&guard);
        let next = next.map(<[u8]>::to_vec);
        drop(guard);
        match next {
            None => self.done = true,
            Some(high) if forward => self.from = Bound::Included(high),
            Some(low) => self.to = Bound::Excluded(low),
        }
        self.together[1] = (2 * wanted).min(most);
        let pins = Arc::new(pins);
        while let Some(page) = pages.pop() {
            self.taken.push(PinnedPage::new(pins.clone(), page));
        }
    }
}

impl Iterator for Pages {
    type Item = PinnedPage;

    /// The next page with something in it.
    fn next(&mut self) -> Option<PinnedPage> {
        while self.taken.is_empty() && !self.done {
            self.step();
        }
        self.taken.pop()
    }
}

/// The bounds as they concern `leaf`: at or beyond its fences they clip nothing.
#[inline]
pub(crate) fn clip<'a>(
    leaf: &Leaf<'_>,
    from: Bound<&'a [u8]>,
    to: Bound<&'a [u8]>,
) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
    let clip_from = match from {
        Bound::Included(key) if key <= leaf.low_fence() => Bound::Unbounded,
        Bound::Excluded(key) if key < leaf.low_fence() => Bound::Unbounded,
        bound => bound,
    };
    let clip_to = match (to, leaf.high_fence()) {
        (Bound::Included(key) | Bound::Excluded(key), Some(high)) if key >= high => Bound::Unbounded,
        (bound, _) => bound,
    };
    (clip_from, clip_to)
}

/// More would be pinned for one that is not sent yet.
const TOGETHER_MAX: usize = 16;

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}
