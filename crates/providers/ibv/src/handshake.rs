//! What a connection begins with (`verbs::handshake`): a side channel between two that have shaken
//! hands.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use overside_verbs::Instance;
use overside_verbs::handshake::{Keys, Party, Terms};

use crate::channel::SideChannel;
use crate::provider::Options;

/// A connection that has shaken hands, as it rests in a [`Link`](overside_verbs::Link).
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) channel: SideChannel,
}

impl Wire {
    pub(crate) fn new(socket: OwnedFd, keys: Option<Keys>) -> Self {
        Self { channel: SideChannel::new(socket, keys) }
    }
}

/// Who a provider is to its peers, and what it asks of them.
pub(crate) fn party(instance: Arc<Instance>, options: &Options) -> Arc<Party> {
    let terms = Terms { protocol: "rdma", version: VERSION, key: options.key.clone(), tags: options.mac };
    Party::new(instance, terms, options.anyone, options.connections_max)
}

/// Version of everything that travels on a connection.
const VERSION: u32 = 3;
