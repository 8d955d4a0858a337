//! A scan's way through the leaves: by fences, never by page numbers, so splits and merges between two pages change nothing.

use std::ops::Bound;
use std::sync::Arc;

use crate::account::PinAccount;
use crate::core::Core;
use crate::inner::Target;
use crate::page::Leaf;
use crate::pinned::PinnedPage;

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
/// No snapshot: a page shows its state when the cursor came by. Rows that are there throughout come exactly once. Nothing is
/// held between two pages but the bounds, so a cursor left open costs nothing; pages hold pins as long as they are kept.
pub struct Pages {
    core: Arc<Core>,
    account: Option<Arc<PinAccount>>,
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
    direction: Direction,
    done: bool,
}

impl Pages {
    pub(crate) fn new(core: Arc<Core>, from: Bound<&[u8]>, to: Bound<&[u8]>, direction: Direction) -> Pages {
        let done = match (from, to) {
            (Bound::Included(from), Bound::Included(to)) => from > to,
            (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => from >= to,
            _ => false,
        };
        Pages { core, account: None, from: from.map(<[u8]>::to_vec), to: to.map(<[u8]>::to_vec), direction, done }
    }

    /// Takes the pins on `account`.
    pub fn on_account(mut self, account: Arc<PinAccount>) -> Pages {
        self.account = Some(account);
        self
    }

    /// Which way it goes.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    fn step(&mut self) -> PinnedPage {
        let guard = self.core.enter();
        let (from, to) = (as_slice(&self.from), as_slice(&self.to));
        let target = match (self.direction, from, to) {
            (Direction::Forward, Bound::Included(key) | Bound::Excluded(key), _) => Target::At(key),
            (Direction::Forward, Bound::Unbounded, _) => Target::At(&[]),
            (Direction::Backward, _, Bound::Included(key)) => Target::At(key),
            (Direction::Backward, _, Bound::Excluded(key)) => Target::Below(key),
            (Direction::Backward, _, Bound::Unbounded) => Target::Max,
        };
        let found = self.core.find_leaf(&guard, target);
        let leaf = found.state.leaf;
        let (clip_from, clip_to) = clip(&leaf, from, to);
        let page = PinnedPage::new(&self.core, &guard, &found.state, self.account.as_ref(), (clip_from, clip_to));
        let next = match self.direction {
            Direction::Forward => leaf.high_fence().filter(|_| clip_to == Bound::Unbounded),
            Direction::Backward => {
                Some(leaf.low_fence()).filter(|low| !low.is_empty() && clip_from == Bound::Unbounded)
            }
        };
        if self.direction == Direction::Forward && next.is_some() {
            self.core.look_ahead(&guard, &leaf);
        }
        let next = next.map(<[u8]>::to_vec);
        drop(guard);
        match (next, self.direction) {
            (None, _) => self.done = true,
            (Some(high), Direction::Forward) => self.from = Bound::Included(high),
            (Some(low), Direction::Backward) => self.to = Bound::Excluded(low),
        }
        page
    }
}

impl Iterator for Pages {
    type Item = PinnedPage;

    /// The next page with something in it.
    fn next(&mut self) -> Option<PinnedPage> {
        while !self.done {
            let page = self.step();
            if !page.is_empty() {
                return Some(page);
            }
        }
        None
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

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}
