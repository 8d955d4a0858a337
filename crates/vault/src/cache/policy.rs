//! Which block makes room for another one.

use std::fmt;

/// What an access to a block did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// It was in the cache.
    pub hit: bool,
    /// It is now.
    pub admitted: bool,
    /// Which block it took the place of.
    pub evicted: Option<u64>,
}

impl Access {
    pub(super) const HIT: Access = Access { hit: true, admitted: true, evicted: None };

    pub(super) fn miss(evicted: Option<u64>) -> Access {
        Access { hit: false, admitted: true, evicted }
    }

    /// Every block is pinned: it passes by the cache.
    pub(super) const PASSED: Access = Access { hit: false, admitted: false, evicted: None };
}

/// Decides which blocks a cache of a fixed number of blocks holds. It knows numbers, no bytes.
///
/// A policy is pure: the same accesses and the same pins give the same decisions.
pub trait Policy: Send + fmt::Debug {
    /// A block is read or written. Where another one must go, `may_go` says of each candidate
    /// whether it can: a pinned block cannot.
    fn access(&mut self, block: u64, may_go: &mut dyn FnMut(u64) -> bool) -> Access;

    /// A block has left the cache for another reason: it was discarded, or could not be read.
    fn remove(&mut self, block: u64);

    /// Blocks in the cache.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The policies there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PolicyKind {
    /// Multi-queue: for caches below another cache (vi-attached-storage §2.2).
    Mq,
    /// Least recently used.
    Lru,
    /// Adaptive replacement.
    Arc,
    /// Two queues.
    TwoQ,
    /// Low inter-reference recency set.
    Lirs,
    /// Three first-in first-out queues.
    S3Fifo,
    /// A window in front of a frequency filter. The default: over the traces of the figure
    /// `policies` it keeps the most, or next to it.
    #[default]
    WTinyLfu,
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [PolicyKind; 7] = [
        PolicyKind::Mq,
        PolicyKind::Lru,
        PolicyKind::Arc,
        PolicyKind::TwoQ,
        PolicyKind::Lirs,
        PolicyKind::S3Fifo,
        PolicyKind::WTinyLfu,
    ];

    /// As the command line has it.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Mq => "mq",
            PolicyKind::Lru => "lru",
            PolicyKind::Arc => "arc",
            PolicyKind::TwoQ => "2q",
            PolicyKind::Lirs => "lirs",
            PolicyKind::S3Fifo => "s3-fifo",
            PolicyKind::WTinyLfu => "w-tinylfu",
        }
    }

    /// The policy of that name.
    pub fn named(name: &str) -> Option<PolicyKind> {
        PolicyKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// A policy for a cache of so many blocks, one at least.
    pub fn policy(self, blocks: usize) -> Box<dyn Policy> {
        let blocks = blocks.max(1);
        match self {
            PolicyKind::Mq => Box::new(super::mq::Mq::new(blocks)),
            PolicyKind::Lru => Box::new(super::lru::Lru::new(blocks)),
            PolicyKind::Arc => Box::new(super::arc::Arc::new(blocks)),
            PolicyKind::TwoQ => Box::new(super::two_q::TwoQ::new(blocks)),
            PolicyKind::Lirs => Box::new(super::lirs::Lirs::new(blocks)),
            PolicyKind::S3Fifo => Box::new(super::s3_fifo::S3Fifo::new(blocks)),
            PolicyKind::WTinyLfu => Box::new(super::w_tinylfu::WTinyLfu::new(blocks)),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
