//! How many bytes a connection has carried through the kernel, and in how many processes it is open.
//!
//! Both ends leave the kernel's stream at a counted byte, so the counts must hold across `fork`: before one, those of all
//! connections move into a page that parent and child share.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Counts of one connection.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    /// Processes that have it open, as far as known: never too few.
    pub(crate) holders: AtomicU32,
}

impl Counts {
    pub(crate) const fn new() -> Self {
        Self { sent: AtomicU64::new(0), received: AtomicU64::new(0), holders: AtomicU32::new(1) }
    }

    pub(crate) fn copy_from(&self, other: &Counts) {
        self.sent.store(other.sent.load(Ordering::Relaxed), Ordering::Relaxed);
        self.received.store(other.received.load(Ordering::Relaxed), Ordering::Relaxed);
        self.holders.store(other.holders.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
