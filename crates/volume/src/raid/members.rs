//! The members of an array: how each stands, and who hears of it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::below::Below;
use crate::device::Device;

/// Whether a member has what it should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It has all that was written.
    Current,
    /// It has missed a write, and is not read until it is resynced.
    Stale,
}

/// Which members of an array are stale, for those who have no hold of the array itself.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// The stale ones, as bits.
    stale: Arc<AtomicU64>,
    /// Bytes of the volume up to which the member is resynced whose turn it is.
    resynced: Arc<AtomicU64>,
    /// How often resyncing a member was given up.
    failures: Arc<AtomicU64>,
    /// Regions that a crash left to be settled.
    unsettled: Arc<AtomicU64>,
    /// Bytes of each member that nobody has right.
    lost: Arc<LostBytes>,
}

#[derive(Debug)]
struct LostBytes([AtomicU64; MEMBERS_MAX]);

impl Default for LostBytes {
    fn default() -> LostBytes {
        LostBytes([const { AtomicU64::new(0) }; MEMBERS_MAX])
    }
}

impl Health {
    /// Bytes of the volume that the member has again that is being resynced.
    pub fn resynced(&self) -> u64 {
        self.resynced.load(Ordering::Relaxed)
    }

    /// How often resyncing a member was given up until later.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Regions whose members may differ since a crash. What a member of RAID 5 has there is lost if
    /// it goes before there are none.
    pub fn unsettled(&self) -> u64 {
        self.unsettled.load(Ordering::Relaxed)
    }

    /// Bytes that a member should have and that nobody has right. READs of them fail until they are
    /// written.
    pub fn lost(&self, member: usize) -> u64 {
        self.lost.0.get(member).map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }

    pub(super) fn set_lost(&self, member: usize, bytes: u64) {
        self.lost.0[member].store(bytes, Ordering::Relaxed);
    }

    pub(super) fn set_unsettled(&self, regions: usize) {
        self.unsettled.store(regions as u64, Ordering::Relaxed);
    }

    pub(super) fn set_resynced(&self, bytes: u64) {
        self.resynced.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn resync_failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// How a member stands.
    pub fn state(&self, member: usize) -> MemberState {
        let is_stale = member < MEMBERS_MAX && self.stale.load(Ordering::Acquire) & 1 << member != 0;
        if is_stale { MemberState::Stale } else { MemberState::Current }
    }

    fn set(&self, member: usize, state: MemberState) {
        match state {
            MemberState::Current => self.stale.fetch_and(!(1 << member), Ordering::AcqRel),
            MemberState::Stale => self.stale.fetch_or(1 << member, Ordering::AcqRel),
        };
    }
}

/// Notes for good how a member stands; whether it could.
pub(super) struct OnChange(pub(super) Box<dyn FnMut(usize, MemberState) -> bool + Send>);

impl fmt::Debug for OnChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnChange").finish_non_exhaustive()
    }
}

/// All of them, by number. Sets of them are the bits of a word.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) all: Vec<Below<Box<dyn Device>>>,
    stale: u64,
    /// Of the stale ones: it gets what is written, and what it missed.
    resyncing: u64,
    /// There is nothing in its place.
    pub(super) absent: u64,
    pub(super) health: Health,
}

impl Members {
    pub(super) fn new(devices: Vec<Box<dyn Device>>) -> Members {
        let all = devices.into_iter().map(Below::new).collect();
        Members { all, stale: 0, resyncing: 0, absent: 0, health: Health::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn is_current(&self, member: usize) -> bool {
        self.stale & 1 << member == 0
    }

    /// It has all that was written, and may be asked for it.
    pub(super) fn is_readable(&self, member: usize) -> bool {
        self.is_current(member) || crate::mutant::mutant("volume-stale-member-read")
    }

    /// It gets what is written.
    pub(super) fn is_writable(&self, member: usize) -> bool {
        (!self.stale | self.resyncing) & 1 << member != 0
    }

    /// It is stale, and gets what it missed.
    pub(super) fn is_resyncing(&self, member: usize) -> bool {
        self.resyncing & 1 << member != 0
    }

    pub(super) fn stale(&self) -> u64 {
        self.stale
    }

    pub(super) fn are_all_current(&self) -> bool {
        self.stale == 0
    }

    pub(super) fn set_stale(&mut self, member: usize) {
        self.stale |= 1 << member;
        self.resyncing &= !(1 << member);
        self.health.set(member, MemberState::Stale);
    }

    pub(super) fn set_resyncing(&mut self, member: usize) {
        self.resyncing |= 1 << member;
    }

    pub(super) fn set_current(&mut self, member: usize) {
        self.stale &= !(1 << member);
        self.resyncing &= !(1 << member);
        self.health.set(member, MemberState::Current);
    }
}

/// Which of them failed is told by the bits of a word.
pub(super) const MEMBERS_MAX: usize = 64;
