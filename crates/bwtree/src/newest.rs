//! The newest change of each key of a chain, in key order.

use std::cmp::Ordering;

use smallvec::SmallVec;

use crate::page::{DeltaRecord, Draft, Op, POSITION_EXACT, Rest};
use crate::store::LeafState;

/// One key's newest change, and where it goes in the base page.
#[derive(Clone, Copy)]
pub(crate) struct Edit<'a> {
    pub(crate) place: Rank,
    /// The record's offset from the base page; 0: it is in none yet.
    pub(crate) at: u32,
    pub(crate) key: &'a [u8],
    /// The new row's value; `None`: the key is deleted.
    pub(crate) value: Option<(&'a [u8], Rest<'a>)>,
}

/// Where in the order of keys a change belongs, up to ties between keys that go before the same
/// row: twice the row, and one more if it replaces that row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank(u32);

impl Rank {
    /// From a record's position.
    #[inline]
    pub(crate) fn of(raw_position: u32) -> Rank {
        const { assert!(POSITION_EXACT == 1 << 31) };
        Rank(raw_position.rotate_left(1))
    }

    /// Base rows before this one come before the change.
    #[inline]
    pub(crate) fn row(self) -> usize {
        (self.0 >> 1) as usize
    }

    /// Whether the change takes the place of the base row there.
    #[inline]
    pub(crate) fn replaces(self) -> bool {
        self.0 & 1 != 0
    }
}

/// The newest change of each key.
pub(crate) struct Newest<'a> {
    edits: SmallVec<[Edit<'a>; SHORT]>,
    /// Places and indexes in `edits`, in key order.
    order: SmallVec<[(Rank, u32); SHORT]>,
}

impl<'a> Newest<'a> {
    pub(crate) fn new() -> Newest<'a> {
        Newest { edits: SmallVec::new(), order: SmallVec::new() }
    }

    /// Adds a change that is newer than the chain, with the position that the chain's page has for
    /// it.
    pub(crate) fn add_draft(&mut self, draft: &Draft<'a>, raw_position: u32) {
        let value = (draft.op == Op::Put).then_some((draft.prefix, draft.rest));
        self.put(Edit { place: Rank::of(raw_position), at: 0, key: draft.key, value });
    }

    /// Adds those of the chain's records that pass, which must depend on the key alone.
    #[inline]
    pub(crate) fn add_chain(&mut self, state: &LeafState<'a>, passes: impl Fn(&DeltaRecord<'a>) -> bool) {
        for (at, record) in state.records() {
            if passes(&record) {
                let value = (record.op() == Op::Put).then(|| (record.prefix(), record.rest()));
                let place = Rank::of(record.raw_position());
                self.put(Edit { place, at: at as u32, key: record.key(), value });
            }
        }
    }

    /// In key order.
    #[inline]
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &Edit<'a>> {
        self.order.iter().map(|&(_, i)| &self.edits[i as usize])
    }

    /// Puts a change where it belongs, unless there is one of its key already, which is newer.
    /// Insertion into a few words is what sorts a short chain fastest.
    #[inline]
    fn put(&mut self, edit: Edit<'a>) {
        let mut to = self.order.len();
        for &(place, i) in self.order.iter().rev() {
            if place < edit.place {
                break;
            }
            if place == edit.place {
                match self.edits[i as usize].key.cmp(edit.key) {
                    Ordering::Less => break,
                    Ordering::Equal => return,
                    Ordering::Greater => {}
                }
            }
            to -= 1;
        }
        let mut carried = (edit.place, self.edits.len() as u32);
        self.edits.push(edit);
        self.order.push(carried);
        self.order[to..].iter_mut().for_each(|slot| std::mem::swap(slot, &mut carried));
    }
}

/// Changes for which no memory is allocated: a default chain, and the change that consolidates it.
const SHORT: usize = 17;
