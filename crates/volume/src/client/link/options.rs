//! How a volume is attached.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use overside_planner::Profile;
use overside_verbs::Provider;
use overside_verbs::handshake::Key;

use super::super::registered::Registration;
use crate::wire::{HEADER, Role};

/// How a volume is attached.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// What is wanted of it.
    pub role: Role,
    /// How long one request may take before it is asked again over another connection.
    pub deadline: Duration,
    /// How long I/O waits for a node that is away; for ever where there is none.
    pub give_up: Option<Duration>,
    /// Giving up ends requests alone: once the node is back, the session goes on with those that
    /// come then.
    pub returns: bool,
    /// Who is asked before it gives up, where it [returns](Self::returns).
    pub spare: Option<Arc<dyn Spare>>,
    /// How long one attempt to connect may take.
    pub patience: Duration,
    /// Bytes of one request at most, unless the node takes less, or the provider's messages are
    /// shorter.
    pub request_bytes_max: u32,
    /// Receive buffers: answers on their way. No more than 128 MiB of them, and two in any case.
    pub receives: usize,
    /// The caller's process, which the node tells those who ask for its status; 0 tells nothing.
    pub process: u32,
    /// The volume's key, where its node asks for one.
    pub key: Option<Key>,
    /// It is for a volume that keeps files: places are those of [`files`](crate::files).
    pub files: bool,
    /// Sessions that write one volume together have the same number, drawn by chance; 0: it writes
    /// alone. So that threads write without a lock between them, each attaches for itself. A
    /// group's writes are on stable storage when they end.
    pub group: u64,
    /// Bytes that are kept at most of what a node has acknowledged and no FLUSH has covered. At
    /// half of it the link flushes.
    pub kept_bytes_max: u64,
    /// The node reads what a WRITE writes from the caller's memory, which is registered for that:
    /// where it can be, where the provider reads it by itself, and where that costs less. Without
    /// it all is copied. It can read all of the segment that a WRITE's bytes lie in, and over
    /// shared memory keeps what it mapped: None where a node is not to be trusted with that.
    pub registration: Option<Registration>,
    /// What things cost over the provider; its own word where it is none.
    pub prices: Option<Profile>,
}

/// What others have of a volume that is one of several.
pub trait Spare: Send + Sync + fmt::Debug {
    /// Whether they do without it from now on. Else its requests wait.
    fn let_go(&self) -> bool;

    /// It is there again.
    fn is_back(&self);
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            role: Role::Writer,
            deadline: Duration::from_secs(30),
            give_up: None,
            returns: false,
            spare: None,
            patience: Duration::from_secs(1),
            request_bytes_max: 128 << 10,
            receives: 64,
            process: 0,
            key: None,
            files: false,
            group: 0,
            kept_bytes_max: 32 << 20,
            registration: Some(Registration::default()),
            prices: None,
        }
    }
}

/// A request and its header are a message, and receive buffers have room for it.
pub(super) fn within(provider: &Arc<dyn Provider>, options: LinkOptions) -> LinkOptions {
    let message = provider.capabilities().message_max.saturating_sub(HEADER as u64) / PAGE * PAGE;
    let request_bytes_max = message.min(options.request_bytes_max.into()) as u32;
    let receives = options.receives.min((RECEIVES_BYTES_MAX / request_bytes_max.max(1) as usize).max(2));
    LinkOptions { request_bytes_max, receives, ..options }
}

/// What units of all devices fit.
const PAGE: u64 = 4096;
/// Memory of receive buffers, which is taken at once.
const RECEIVES_BYTES_MAX: usize = 128 << 20;
