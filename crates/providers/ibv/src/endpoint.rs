//! What a provider brings to every connection, whatever device it has: who it is, what it asks of peers, how many there may be.

use std::sync::atomic::{AtomicUsize, Ordering};

use overside_verbs::handshake::{Keys, Terms};
use overside_verbs::{ForkMark, VerbsError};

use crate::process::Process;
use crate::provider::Options;

/// One end of all connections of a provider.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// Tells this provider's links from another's.
    pub(crate) id: u64,
    pub(crate) fork: ForkMark,
    pub(crate) terms: Terms,
    /// Whether the kernel is asked whose a peer is.
    pub(crate) asks_owner: bool,
    /// Whose end peers of this host watch.
    pub(crate) process: Option<Process>,
    open: AtomicUsize,
    connections_max: usize,
}

impl Endpoint {
    pub(crate) fn new(id: u64, options: &Options) -> Result<Self, VerbsError> {
        let terms = Terms { protocol: "rdma", version: VERSION, key: options.key.clone(), tags: options.mac };
        let asks_owner = options.key.is_none() && !options.anyone;
        let fork = ForkMark::new()?;
        let (process, open) = (Process::this(), AtomicUsize::new(0));
        Ok(Self { id, fork, terms, asks_owner, process, open, connections_max: options.connections_max })
    }

    /// Keys of the side channel's tags, where there are tags.
    pub(crate) fn tags(&self, keys: Keys) -> Option<Keys> {
        (self.terms.tags && self.terms.key.is_some()).then_some(keys)
    }

    /// Whether there are as many queue pairs as there may be.
    pub(crate) fn full(&self) -> bool {
        self.open.load(Ordering::Relaxed) >= self.connections_max
    }

    /// A queue pair came.
    pub(crate) fn opened(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// A queue pair is over.
    pub(crate) fn ended(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Version of everything that travels on a connection.
const VERSION: u32 = 3;
