//! What a provider is told when it is made.

use overside_verbs::handshake::Key;

/// How a provider behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// The pre-shared key. Without one nothing is proved: a listener must have a loopback address,
    /// and both ends take processes of this user only, as the kernel has it (the connector root's,
    /// too).
    pub key: Option<Key>,
    /// Without a key, take every user of this host, and connect to any: who can reach the port may
    /// do all that a peer may.
    pub anyone: bool,
    /// Whether every frame carries a tag made with the key. Without a key there is none.
    pub mac: bool,
    /// Whether a thread of each port carries out what peers ask while nobody polls.
    pub progress: bool,
    /// Whether large payloads are left to the kernel to send from where they lie (MSG_ZEROCOPY)
    /// where that is the cheaper way and the kernel does not copy them all the same.
    pub zero_copy: bool,
    /// Connections that a listener has made and that have not ended, at most.
    pub connections_max: usize,
}

impl Options {
    /// Whether frames carry tags.
    pub fn tags(&self) -> bool {
        self.mac && self.key.is_some()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { key: None, anyone: false, mac: true, progress: true, zero_copy: true, connections_max: 4096 }
    }
}
