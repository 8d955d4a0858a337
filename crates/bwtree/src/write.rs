//! Changes: decide on what is there, put a delta on the chain, or consolidate with the change
//! included.

use crate::core::Core;
use crate::descend::FoundLeaf;
use crate::epoch::Guard;
use crate::inner::Target;
use crate::options::Error;
use crate::page::{Draft, Op, OverflowRef, POSITION_EXACT, Rest, head_of};
use crate::stats::Counter;
use crate::store::LeafState;

/// A change to one key.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change<'a> {
    Insert(&'a [u8]),
    Upsert(&'a [u8]),
    Update(&'a [u8]),
    Delete,
    Swap { expected: Option<&'a [u8]>, new: Option<&'a [u8]> },
}

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeOutcome {
    /// The tree is as the change wants it.
    Done {
        /// Whether the key was there before.
        was_there: bool,
        /// The [stamp](crate::Stamps) that it was installed with; where nothing had to be changed,
        /// the newest one of the leaf that showed it. 0 in a tree without stamps.
        stamp: u64,
    },
    /// The condition does not hold.
    Refused {
        /// Whether the key is there.
        is_there: bool,
        /// The newest stamp of the leaf that showed it. 0 in a tree without stamps.
        stamp: u64,
    },
}

impl ChangeOutcome {
    /// Its stamp, either way.
    #[inline]
    pub fn stamp(self) -> u64 {
        let (ChangeOutcome::Done { stamp, .. } | ChangeOutcome::Refused { stamp, .. }) = self;
        stamp
    }

    /// Whether it was done to a key that was there.
    #[inline]
    pub(crate) fn replaced(self) -> bool {
        matches!(self, ChangeOutcome::Done { was_there: true, .. })
    }
}

/// A key in a leaf.
pub(crate) struct Hit<'g> {
    /// For a delta: index in the base page and POSITION_EXACT.
    pub(crate) position: u32,
    pub(crate) value: Option<(&'g [u8], Rest<'g>)>,
}

impl<'g> LeafState<'g> {
    /// The newest state of `key`: the chain first, then the base page. `VALUE`: the value will be
    /// read.
    #[inline]
    pub(crate) fn lookup<const VALUE: bool>(&self, key: &[u8]) -> Hit<'g> {
        if self.chain() > 0 {
            let head = head_of(key).to_be_bytes();
            for (_, record) in self.records() {
                if record.head_bytes() == head && record.key() == key {
                    let value = (record.op() == Op::Put).then(|| (record.prefix(), record.rest()));
                    return Hit { position: record.raw_position(), value };
                }
            }
        }
        match self.leaf.search_for::<VALUE>(key) {
            Ok(i) => Hit { position: i as u32 | POSITION_EXACT, value: Some((self.leaf.prefix(i), self.leaf.rest(i))) },
            Err(i) => Hit { position: i as u32, value: None },
        }
    }
}

impl Core {
    pub(crate) fn change(&self, key: &[u8], change: Change<'_>) -> Result<ChangeOutcome, Error> {
        let removes = matches!(change, Change::Delete | Change::Swap { new: None, .. });
        self.change_within(key, change, if removes { DELETE_TRIES } else { TRIES })
    }

    /// As `change`, waiting for nobody.
    pub(crate) fn change_now(&self, key: &[u8], change: Change<'_>) -> Result<ChangeOutcome, Error> {
        self.change_within(key, change, TRIES)
    }

    fn change_within(&self, key: &[u8], change: Change<'_>, tries: usize) -> Result<ChangeOutcome, Error> {
        self.check(key, &change)?;
        let value = match change {
            Change::Insert(v) | Change::Upsert(v) | Change::Update(v) | Change::Swap { new: Some(v), .. } => Some(v),
            _ => None,
        };
        let mut draft = Draft { op: Op::Delete, key, prefix: &[], rest: Rest::Inline(&[]) };
        if let Some(value) = value {
            let (prefix, rest) = value.split_at(self.options.prefix_len);
            let rest =
                if rest.len() > self.inline_max() { Rest::Overflow(self.extent(rest)?) } else { Rest::Inline(rest) };
            draft = Draft { op: Op::Put, key, prefix, rest };
        }
        let mut failed = 0;
        let outcome = loop {
            let guard = self.enter();
            match self.attempt(&guard, &draft, change) {
                Ok(None) => guard.count(Counter::Retries as usize, 1),
                Ok(Some(outcome)) => break Ok(outcome),
                Err(_) if failed < tries => {
                    // What is retired but not let go yet may be all that is missing. The first of these only starts the epoch
                    // in which the next attempt's guard no longer holds it back.
                    self.collect(&guard, true);
                    self.relieve(&guard);
                    failed += 1;
                }
                Err(error) => break Err(error),
            }
            if failed > TRIES {
                // Somebody who was put to sleep inside the tree may hold back what is missing.
                guard.count(Counter::Waits as usize, 1);
                drop(guard);
                self.epochs.waits.pause(failed - TRIES);
            }
        };
        self.store.let_go(draft.rest);
        outcome
    }

    /// A longer rest lies in an extent of its own.
    pub(crate) fn inline_max(&self) -> usize {
        self.options.page_bytes / 4
    }

    /// An overflow extent, if need be after what others let go.
    fn extent(&self, rest: &[u8]) -> Result<OverflowRef, Error> {
        for _ in 0..TRIES {
            if let Ok(extent) = self.store.overflow(rest) {
                return Ok(extent);
            }
            let guard = self.enter();
            self.collect(&guard, true);
            self.relieve(&guard);
        }
        Ok(self.store.overflow(rest)?)
    }

    fn check(&self, key: &[u8], change: &Change<'_>) -> Result<(), Error> {
        let o = &self.options;
        if key.len() > o.key_max {
            return Err(Error::KeyTooLong { len: key.len(), max: o.key_max });
        }
        match *change {
            Change::Insert(v) | Change::Upsert(v) | Change::Update(v) | Change::Swap { new: Some(v), .. } => {
                if v.len() > o.value_max {
                    return Err(Error::ValueTooLong { len: v.len(), max: o.value_max });
                }
                if v.len() < o.prefix_len {
                    return Err(Error::ValueTooShort { len: v.len(), prefix: o.prefix_len });
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// One try under one guard; `None`: somebody was faster.
    #[inline]
    fn attempt(
        &self,
        guard: &Guard<'_>,
        draft: &Draft<'_>,
        change: Change<'_>,
    ) -> Result<Option<ChangeOutcome>, Error> {
        #[cfg(mutants)]
        self.draw_early(guard);
        let found = self.find_leaf(guard, Target::At(draft.key));
        self.attempt_in(guard, &found, draft, change)
    }

    /// The same in the leaf that was found for the key.
    #[inline]
    pub(crate) fn attempt_in(
        &self,
        guard: &Guard<'_>,
        found: &FoundLeaf<'_>,
        draft: &Draft<'_>,
        change: Change<'_>,
    ) -> Result<Option<ChangeOutcome>, Error> {
        let hit = found.state.lookup::<false>(draft.key);
        let is_there = hit.value.is_some();
        let goes = match change {
            Change::Insert(_) => !is_there,
            Change::Upsert(_) => true,
            Change::Update(_) | Change::Delete => is_there,
            Change::Swap { expected, new } => {
                let same = self.same(&hit, expected);
                if same && new.is_none() && !is_there {
                    return Ok(Some(ChangeOutcome::Done { was_there: false, stamp: self.newest(&found.state) }));
                }
                same
            }
        };
        if !goes {
            return Ok(Some(ChangeOutcome::Refused { is_there, stamp: self.newest(&found.state) }));
        }
        if found.frozen {
            return Err(Error::Exhausted);
        }
        // After the leaf's word was read, and before the change is installed: see `stamps`.
        let stamp = self.draw(guard);
        let done = self.put(guard, found, draft, hit.position, stamp)?;
        Ok(done.then_some(ChangeOutcome::Done { was_there: is_there, stamp }))
    }

    /// Puts the change on the chain, or into a new base page when the chain or its room is at the
    /// end.
    #[inline]
    fn put(
        &self,
        guard: &Guard<'_>,
        found: &FoundLeaf<'_>,
        draft: &Draft<'_>,
        position: u32,
        stamp: u64,
    ) -> Result<bool, Error> {
        if found.state.chain() < self.chain_max()
            && let Some(word) = self.store.append(&found.state, draft, position)
        {
            guard.count(Counter::Deltas as usize, 1);
            self.raise(&found.state, stamp);
            if self.install(found.pid, found.state.word, word) {
                return Ok(true);
            }
            self.store.let_go(draft.rest);
            return Ok(false);
        }
        self.consolidate(guard, found, (draft, position), stamp)
    }

    fn same(&self, hit: &Hit<'_>, expected: Option<&[u8]>) -> bool {
        match (&hit.value, expected) {
            (None, None) => true,
            (Some((prefix, rest)), Some(expected)) => {
                let Some(tail) = expected.strip_prefix(*prefix) else { return false };
                match rest {
                    Rest::Inline(bytes) => *bytes == tail,
                    Rest::Overflow(o) => self.store.overflow_bytes(*o, hit) == tail,
                }
            }
            _ => false,
        }
    }

    /// Whether the key is there, and the newest stamp of its leaf.
    pub(crate) fn get(&self, key: &[u8], out: &mut Vec<u8>) -> (bool, u64) {
        out.clear();
        let guard = self.enter();
        let found = self.find_leaf(&guard, Target::At(key));
        let newest = self.newest(&found.state);
        let hit = found.state.lookup::<true>(key);
        let Some((prefix, rest)) = hit.value else { return (false, newest) };
        out.extend_from_slice(prefix);
        match rest {
            Rest::Inline(bytes) => out.extend_from_slice(bytes),
            Rest::Overflow(o) => out.extend_from_slice(self.store.overflow_bytes(o, &hit)),
        }
        (true, newest)
    }
}

/// Attempts to find memory for a change. It answers at once: only a delete waits for others.
pub(crate) const TRIES: usize = 6;
/// For a delete, which must not fail because of what others are about to let go: for over half a
/// second.
const DELETE_TRIES: usize = 40;
