//! Some fragments packed, the others gathered: what such a division costs.

use crate::plan::{Goal, Price, weigh_stream};
use crate::planner::Planner;
use crate::tables::Ends;
use crate::tally::range_of;

impl Planner {
    /// What both ends do for one division between packing and gathering; none where it cannot be
    /// done, or where it is found not to be cheaper than `known` before all of it is reckoned.
    #[inline]
    pub(crate) fn priced(&self, load: &Load, part: &Part, goal: Goal, known: f64) -> Option<Price> {
        let requests = load.requests(part)?;
        let profile = self.profile();
        // Differences of sums leave crumbs.
        let mut sender = requests * profile.send_request_ns + part.pack_ns.max(0.0) + part.ends.sender_ns.max(0.0);
        let mut receiver = requests * profile.receive_request_ns + part.ends.receiver_ns.max(0.0);
        if part.pieces > 0.0 {
            sender += requests * profile.pack_begin(load.warm);
            sender += if part.gathered > 0.0 { requests * profile.bends.mixture_ns } else { 0.0 };
            // The entries that packed pieces make cost something as well.
            if self.weighed(sender, receiver, load.bytes, goal).ns >= known {
                return None;
            }
            let runs = (part.runs + requests - 1.0).min(part.pieces.max(requests));
            if runs > 0.0 {
                let range = range_of((part.bytes / runs) as i64 as u64);
                let ends = if part.gathered > 0.0 { &self.tables().beside } else { &self.tables().whole }[range];
                sender += ends.send.at(runs, part.bytes);
                receiver += ends.receive.at(runs, part.bytes);
            }
        }
        Some(self.weighed(sender, receiver, load.bytes, goal)).filter(|price| price.ns < known)
    }

    #[inline]
    pub(crate) fn weighed(&self, sender_ns: f64, receiver_ns: f64, wire_bytes: f64, goal: Goal) -> Price {
        let profile = self.profile();
        weigh_stream(goal, sender_ns, receiver_ns, wire_bytes * profile.wire_byte_ns, profile.bends.both_busy)
    }
}

/// What is to be sent, whichever way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) bytes: f64,
    pub(crate) messages: f64,
    /// Bytes of the longest message.
    pub(crate) longest: f64,
    /// Bytes that tell messages apart.
    pub(crate) lengths: f64,
    /// Bytes up to which messages share a request, and those of the longest request.
    pub(crate) bytes_max: f64,
    pub(crate) request_max: f64,
    pub(crate) sge_max: f64,
    /// Its bytes are in the sender's cache.
    pub(crate) warm: bool,
}

/// How it is divided between packing and gathering.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    /// Fragments packed, their bytes and the entries they make.
    pub(crate) pieces: f64,
    pub(crate) bytes: f64,
    pub(crate) runs: f64,
    pub(crate) pack_ns: f64,
    /// Fragments gathered and what both ends do for them.
    pub(crate) gathered: f64,
    pub(crate) ends: Ends,
}

/// What the fragments of a range cost, gathered at both ends or packed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    pub(crate) ends: Ends,
    pub(crate) pack_ns: f64,
}

impl Load {
    /// Requests, each of whole messages; none when one message has too many entries for a request.
    #[inline]
    pub(crate) fn requests(&self, part: &Part) -> Option<f64> {
        let entries = part.gathered + part.runs;
        if self.messages <= 1.0 {
            return (entries <= self.sge_max).then_some(1.0);
        }
        let each = entries / self.messages;
        if each > self.sge_max {
            return None;
        }
        let by_bytes = if self.longest > 0.0 { (self.bytes_max / self.longest).floor().max(1.0) } else { f64::MAX };
        let by_entries = if each > 0.0 { (self.sge_max / each).floor().max(1.0) } else { f64::MAX };
        Some((self.messages / by_bytes.min(by_entries)).ceil().max(1.0))
    }
}
