//! A word that several threads or processes read and write.
//!
//! The tests' explorer comes in before each access to one (`explore`), so it walks
//! the code that is shipped.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// An `AtomicU64`.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Word(AtomicU64);

impl Word {
    pub(crate) const fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    #[inline]
    pub(crate) fn load(&self, order: Ordering) -> u64 {
        #[cfg(test)]
        if crate::explore::is_known(std::ptr::from_ref(self).addr()) {
            return self.0.load(order);
        }
        self.access(|word| word.load(order))
    }

    #[inline]
    pub(crate) fn store(&self, value: u64, order: Ordering) {
        self.access(|word| word.store(value, order));
    }

    #[inline]
    pub(crate) fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.access(|word| word.swap(value, order))
    }

    #[inline]
    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.access(|word| word.fetch_add(value, order))
    }

    #[inline]
    pub(crate) fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.access(|word| word.fetch_sub(value, order))
    }

    #[inline]
    pub(crate) fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.access(|word| word.fetch_or(value, order))
    }

    #[inline]
    pub(crate) fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.access(|word| word.fetch_and(value, order))
    }

    #[inline]
    pub(crate) fn compare_exchange(&self, now: u64, next: u64, order: Ordering, failure: Ordering) -> Result<u64, u64> {
        self.access(|word| word.compare_exchange(now, next, order, failure))
    }

    #[inline]
    pub(crate) fn fetch_update(
        &self,
        order: Ordering,
        look: Ordering,
        next: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        self.access(|word| word.fetch_update(order, look, next))
    }

    /// The half with the lowest bits, to sleep on.
    pub(crate) fn half(&self) -> &AtomicU32 {
        let at = std::ptr::from_ref(self).cast::<AtomicU32>();
        // SAFETY: [preload-shared] within the word, aligned to four bytes; no wider access of it needs to see halves in order.
        unsafe { &*at.add(usize::from(cfg!(target_endian = "big"))) }
    }

    #[cfg(not(test))]
    #[inline(always)]
    fn access<T>(&self, f: impl FnOnce(&AtomicU64) -> T) -> T {
        f(&self.0)
    }

    #[cfg(test)]
    fn access<T: crate::explore::Outcome>(&self, f: impl FnOnce(&AtomicU64) -> T) -> T {
        crate::explore::access(std::ptr::from_ref(self).addr(), || f(&self.0))
    }
}
