//! What a connection begins with (`verbs::handshake`).

use std::os::fd::OwnedFd;

use overside_verbs::handshake::{Keys, Terms};

use crate::options::Options;

/// A connection that has shaken hands, as it rests in a [`Link`](overside_verbs::Link).
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) socket: OwnedFd,
    pub(crate) keys: Option<Keys>,
}

impl Wire {
    pub(crate) fn new(socket: OwnedFd, keys: Option<Keys>) -> Self {
        Self { socket, keys }
    }
}

/// What these options ask of a peer.
pub(crate) fn terms(options: &Options) -> Terms {
    Terms { protocol: "tcp", version: VERSION, key: options.key.clone(), tags: options.mac }
}

/// Version of everything that travels on a connection.
const VERSION: u32 = 4;
