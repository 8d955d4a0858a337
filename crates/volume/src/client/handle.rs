//! What is known of a link, and asked of it, while it lies under other devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use overside_verbs::Clock;

use crate::device::Device;

/// A link's state, for those who have no hold of the link itself.
#[derive(Clone, Debug, Default)]
pub struct LinkHandle(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    welcomes: AtomicU64,
    rewrites: AtomicU64,
    granted: AtomicU64,
    deregistrations: AtomicU64,
    is_away: AtomicBool,
    is_refused: AtomicBool,
    leaves: AtomicBool,
    has_left: AtomicBool,
}

impl LinkHandle {
    /// How often it has connected again.
    pub fn reconnects(&self) -> u64 {
        self.0.welcomes.load(Ordering::Relaxed).saturating_sub(1)
    }

    /// How many pieces it has written again for a node that may have lost them.
    pub fn rewrites(&self) -> u64 {
        self.0.rewrites.load(Ordering::Relaxed)
    }

    /// Of how many WRITEs it had the node read the bytes from their caller's memory.
    pub fn granted(&self) -> u64 {
        self.0.granted.load(Ordering::Relaxed)
    }

    /// How often it has deregistered memory that the node could read.
    pub fn deregistrations(&self) -> u64 {
        self.0.deregistrations.load(Ordering::Relaxed)
    }

    pub(super) fn deregistered(&self) {
        self.0.deregistrations.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn grants(&self) {
        self.0.granted.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn rewrote(&self) {
        self.0.rewrites.fetch_add(1, Ordering::Relaxed);
    }

    /// It has no connection now, and I/O waits for one.
    pub fn is_away(&self) -> bool {
        self.0.is_away.load(Ordering::Relaxed)
    }

    /// The node has refused to let it in again, and nothing more can be carried out.
    pub fn is_refused(&self) -> bool {
        self.0.is_refused.load(Ordering::Relaxed)
    }

    pub(super) fn refused(&self) {
        self.0.is_refused.store(true, Ordering::Relaxed);
    }

    /// Polls `device`, under which the link lies, until the node knows that the session is over, at
    /// most for `patience`. What is in flight ends first. A writer's place is free then.
    pub fn close(&self, device: &mut dyn Device, clock: &dyn Clock, patience: Duration) {
        self.0.leaves.store(true, Ordering::Relaxed);
        let (until, mut ended) = (clock.now() + patience, Vec::new());
        loop {
            device.poll(&mut ended);
            ended.clear();
            if self.has_left() || clock.now() >= until || crate::wait(device, clock, Some(until)).is_err() {
                return;
            }
        }
    }

    pub(super) fn leaves(&self) -> bool {
        self.0.leaves.load(Ordering::Relaxed)
    }

    pub(super) fn has_left(&self) -> bool {
        self.0.has_left.load(Ordering::Relaxed)
    }

    /// The session has ended.
    pub(super) fn left(&self) {
        self.0.has_left.store(true, Ordering::Relaxed);
    }

    pub(super) fn welcomed(&self) {
        self.0.welcomes.fetch_add(1, Ordering::Relaxed);
        self.0.is_away.store(false, Ordering::Relaxed);
    }

    pub(super) fn lost(&self) {
        self.0.is_away.store(true, Ordering::Relaxed);
    }
}
