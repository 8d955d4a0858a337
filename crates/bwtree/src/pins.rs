//! Pins of leaves that were taken together: what all of them share is paid for once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use smallvec::SmallVec;

use crate::account::PinAccount;
use crate::core::Core;
use crate::epoch::Guard;
use crate::page::Rest;
use crate::stats::Counter;
use crate::store::{LeafState, Store};

/// Pins of some leaves. Dropping it releases all of them, on any thread, in time constant for each.
pub(crate) struct Pins {
    core: Arc<Core>,
    account: Option<Arc<PinAccount>>,
    pinned: SmallVec<[Pinned; 8]>,
    /// What the account was charged.
    bytes: u64,
    /// The base row behind the last one whose extent was asked for: where the next one is sought
    /// first.
    sought: AtomicU32,
}

struct Pinned {
    unit: u32,
    /// Its place in the account.
    place: u32,
}

impl Pins {
    pub(crate) fn new(core: &Arc<Core>, account: Option<&Arc<PinAccount>>) -> Pins {
        let (core, account) = (core.clone(), account.cloned());
        Pins { core, account, pinned: SmallVec::new(), bytes: 0, sought: AtomicU32::new(0) }
    }

    /// Pins one more leaf.
    pub(crate) fn add(&mut self, state: &LeafState<'_>) {
        let unit = self.core.store.pin(state);
        let place = self.account.as_ref().map_or(0, |account| {
            let bytes = (self.core.store.units.entry(unit).bytes() + overflow_bytes(state)) as u64;
            self.bytes += bytes;
            account.enter(unit, bytes)
        });
        self.pinned.push(Pinned { unit, place });
    }

    /// Counts what was added. Once, when all are.
    pub(crate) fn count(&self, guard: &Guard<'_>) {
        self.core.store.pinned.fetch_add(self.pinned.len() as u64, Ordering::Relaxed);
        guard.count(Counter::Pages as usize, self.pinned.len() as u64);
        if let Some(account) = &self.account {
            account.charge(self.bytes);
        }
    }

    #[inline]
    pub(crate) fn store(&self) -> &Store {
        &self.core.store
    }

    pub(crate) fn sought(&self) -> usize {
        self.sought.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn seek(&self, row: usize) {
        self.sought.store(row as u32, Ordering::Relaxed);
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if let Some(account) = &self.account {
            self.pinned.iter().for_each(|pinned| account.leave(pinned.place));
            account.refund(self.bytes);
        }
        self.core.store.pinned.fetch_sub(self.pinned.len() as u64, Ordering::Relaxed);
        self.pinned.iter().for_each(|pinned| self.core.store.unpin(pinned.unit));
    }
}

fn overflow_bytes(state: &LeafState<'_>) -> usize {
    let overflow = |rest: Rest<'_>| match rest {
        Rest::Overflow(o) => o.len as usize,
        Rest::Inline(_) => 0,
    };
    let base: usize = match state.leaf.has_overflow() {
        true => (0..state.leaf.count()).map(|i| overflow(state.leaf.rest(i))).sum(),
        false => 0,
    };
    base + state.records().map(|(_, record)| overflow(record.rest())).sum::<usize>()
}
