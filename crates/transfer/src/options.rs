//! How channels are to be.

use overside_planner::{Capabilities, Goal, Profile};

use crate::error::Error;

/// How a [`Channel`](crate::Channel) or a [`Scatter`](crate::Scatter) is to be; both ends of a
/// connection should have the same [`Buffers::message_bytes`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// What things cost on this device. Without it, plans are made by the provider's own figures,
    /// which nobody measured here.
    pub profile: Option<Profile>,
    /// What is to be small.
    pub goal: Goal,
    /// Memory for messages; what fits the kind of connection unless said otherwise.
    pub buffers: Option<Buffers>,
}

/// Memory for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Bytes of each buffer: the longest message.
    pub message_bytes: usize,
    /// Buffers that are received into.
    pub receives: usize,
    /// Buffers that are packed into; made with the first send.
    pub transmits: usize,
}

impl Buffers {
    /// Of a channel.
    pub const CHANNEL: Buffers = Buffers { message_bytes: 1 << 20, receives: 16, transmits: 4 };
    /// Of a scatter: small ones, for each destination needs some.
    pub const SCATTER: Buffers = Buffers { message_bytes: 128 << 10, receives: 0, transmits: 64 };

    pub(crate) fn check(self, capabilities: &Capabilities) -> Result<Buffers, Error> {
        let max = capabilities.message_max.min(BYTES_MAX as u64);
        let refuse = |field, reason| Err(Error::Field { field, reason });
        if self.message_bytes == 0 || self.message_bytes as u64 > max {
            return refuse("message_bytes", format!("{} is not from 1 to {max}", self.message_bytes));
        }
        for (field, count) in [("receives", self.receives), ("transmits", self.transmits)] {
            if count == 0 || count > COUNT_MAX {
                return refuse(field, format!("{count} is not from 1 to {COUNT_MAX}"));
            }
            if count * self.message_bytes > ALL_BYTES_MAX {
                let reason = format!("{count} of {} bytes each are too many; give fewer", self.message_bytes);
                return refuse(field, reason);
            }
        }
        Ok(self)
    }
}

const BYTES_MAX: usize = 1 << 30;
const COUNT_MAX: usize = 4096;
/// More than any ring needs, and less than what an address space has.
const ALL_BYTES_MAX: usize = 1 << 40;
