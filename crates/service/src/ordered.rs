//! Replies that wait for an earlier one.
//!
//! An entry is a request whose reply is not there yet and must precede the replies to later
//! requests. What is sent meanwhile waits with the newest entry. Entries leave from the front, each
//! with its reply and all that waited for it.

use std::collections::VecDeque;

use crate::hold::Hold;
use crate::transmit::Message;

/// The unfinished requests of a connection that keep later replies back, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Ordered {
    /// Numbered without gaps.
    entries: VecDeque<Entry>,
    /// Number of the first entry, or of the next where there is none.
    first: u64,
    /// What waits with the entries: messages and bytes.
    held: usize,
    held_bytes: u64,
}

#[derive(Debug, Default)]
struct Entry {
    reply: Option<HeldReply>,
    after: Vec<HeldReply>,
}

/// What waits behind an entry, and what it waits for besides.
#[derive(Debug)]
pub(crate) struct HeldReply {
    pub(crate) what: Parcel,
    pub(crate) hold: Hold,
}

/// Bytes take no transmit buffer before they are sent.
#[derive(Debug)]
pub(crate) enum Parcel {
    Bytes(Vec<u8>),
    Message(Message),
}

impl HeldReply {
    fn bytes(&self) -> u64 {
        match &self.what {
            Parcel::Bytes(bytes) => bytes.len() as u64,
            Parcel::Message(message) => message.bytes(),
        }
    }
}

impl Ordered {
    /// A new entry, behind all others; its number.
    pub(crate) fn open(&mut self) -> u64 {
        self.entries.push_back(Entry::default());
        self.first + self.entries.len() as u64 - 1
    }

    /// The newest entry, if there is any.
    pub(crate) fn newest(&self) -> Option<u64> {
        (!self.entries.is_empty()).then(|| self.first + self.entries.len() as u64 - 1)
    }

    /// Whether an entry up to `entry` is still here.
    pub(crate) fn keeps(&self, entry: Option<u64>) -> bool {
        entry.is_some_and(|entry| !self.entries.is_empty() && entry >= self.first)
    }

    /// Keeps something until `entry` and all before it have left. The entry is still here.
    pub(crate) fn hold(&mut self, entry: u64, held: HeldReply) {
        if let Some(kept) = self.entries.get_mut(entry.saturating_sub(self.first) as usize) {
            self.held += 1;
            self.held_bytes += held.bytes();
            kept.after.push(held);
        }
    }

    /// An entry's reply is there; what may be sent now goes to `release`, in order.
    pub(crate) fn finish(&mut self, entry: u64, reply: HeldReply, mut release: impl FnMut(HeldReply)) {
        let Some(finished) = entry.checked_sub(self.first).and_then(|at| self.entries.get_mut(at as usize)) else {
            return;
        };
        self.held += 1;
        self.held_bytes += reply.bytes();
        finished.reply = Some(reply);
        while let Some(reply) = self.entries.front_mut().and_then(|front| front.reply.take()) {
            let after = self.entries.pop_front().map(|front| front.after).unwrap_or_default();
            self.first += 1;
            for held in std::iter::once(reply).chain(after) {
                self.held -= 1;
                self.held_bytes -= held.bytes();
                release(held);
            }
        }
    }

    /// Messages that wait here.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Their bytes.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(number: u8) -> HeldReply {
        HeldReply { what: Parcel::Bytes(vec![number]), hold: Hold::NONE }
    }

    proptest! {
        /// Requests come one after another: each is answered at once or later. Whatever the order
        /// in which they finish, the replies leave in the order of the requests.
        #[test]
        fn replies_leave_in_the_order_of_requests(
            later in proptest::collection::vec(any::<bool>(), 1..40),
            finishing in proptest::collection::vec(any::<prop::sample::Index>(), 40),
            after in any::<prop::sample::Index>(),
        ) {
            let (mut ordered, mut open, mut sent) = (Ordered::default(), Vec::new(), Vec::new());
            let finish = |ordered: &mut Ordered, open: &mut Vec<(u64, u8)>, sent: &mut Vec<u8>| {
                let (entry, number) = open.swap_remove(finishing[open.len() - 1].index(open.len()));
                ordered.finish(entry, bytes(number), |held| match held.what {
                    Parcel::Bytes(bytes) => sent.extend(bytes),
                    Parcel::Message(_) => unreachable!("only bytes were held"),
                });
            };
            // Some finish while others are still to come.
            let after = after.index(later.len());
            for (number, later) in later.iter().enumerate() {
                match (later, ordered.newest()) {
                    (true, _) => open.push((ordered.open(), number as u8)),
                    (false, Some(newest)) => ordered.hold(newest, bytes(number as u8)),
                    (false, None) => sent.push(number as u8),
                }
                if number > after && !open.is_empty() {
                    finish(&mut ordered, &mut open, &mut sent);
                }
            }
            while !open.is_empty() {
                prop_assert!(ordered.keeps(ordered.newest()));
                finish(&mut ordered, &mut open, &mut sent);
            }
            prop_assert_eq!(sent, (0..later.len() as u8).collect::<Vec<_>>());
            prop_assert_eq!((ordered.held(), ordered.held_bytes(), ordered.newest()), (0, 0, None));
        }
    }
}
