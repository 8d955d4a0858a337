//! What a connection's life and its two directions come to: one pure step.
//!
//! The rim says what has happened, an [`Event`], with all that has to be known of shared
//! words, counts and the kernel. [`step`] says where the connection stands then, and what the
//! rim does about it, an [`Action`]. There is no system call here, no shared word, no
//! eventfd. `leaving` decides in the same way, access by access, how a direction leaves its
//! ring. `explore` walks both.

use crate::diagnosis::Reason;
use crate::layout::SharedMemory;
use crate::state::{Begun, Incoming, Life, Outgoing};

/// Where a connection stands.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Standing {
    pub(crate) life: Life,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
}

/// What has happened to it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// The memory is there, of this end's own if it has `called`; or the rings are as they were
    /// at the first rendezvous.
    Attaches { shared: SharedMemory, called: bool },
    /// Is it time to expect the ring?
    Looks(Sight),
    /// The socket allows it, too.
    Enters,
    /// A call that nobody counts, a fork, or the other end: it goes back to the kernel.
    Leaves(Reason),
    /// Nothing of the rings is left in the kernel's stream. The ends may come again
    /// if a fork was the reason.
    Returns { may_reattach: bool },
    /// The last moment before a fork. The other end may be about to come by if
    /// this one is `searching`.
    Forks { searching: bool },
    /// In a forked child, of one that is its parent's alone.
    IsParents,
    /// The last descriptor is closed; a relative may have it still if this process is not `alone`.
    Closes { alone: bool },
    /// Nobody looks at the memory any more.
    IsUnwatched,
    /// This end begins to send by the ring, and has put so many wake bytes into the stream before.
    Begins { given: u64 },
    /// The sending direction leaves, and its bytes from `resend` up to the head are sent again.
    StopsSending { resend: u64, head: u64 },
    /// What is sent again, and wake bytes that are owed, have come so far.
    Pushed { to: u64, owed: u32, head: u64 },
    /// One more wake byte is issued, and not in the stream yet.
    Owes { head: u64 },
    /// The receiving direction leaves, behind so many wake bytes in all; none where
    /// the peer is to say more.
    StopsReceiving { wake_bytes: Option<u64> },
    /// It does not: the peer has said that the ring is read on.
    ReadsOn,
}

/// What the end of a counted call finds of one that has the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sight {
    /// The other end has left before this one came.
    pub(crate) has_left: bool,
    /// It did so for a fork, and may come again.
    pub(crate) may_reattach: bool,
    pub(crate) peer_is_there: bool,
    /// A call is in the kernel with the program's buffers, or a thread sleeps in poll
    /// that knows nothing of rings.
    pub(crate) is_busy: bool,
    /// Another process may have it, or move bytes uncounted.
    pub(crate) is_shared: bool,
}

/// What the rim does about it.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum Action {
    Nothing,
    /// Asks whether the socket allows the rings; if so, `Enters`.
    Enter,
    /// The kernel's for good, for this reason: what was offered or left at the
    /// other end is taken back.
    Refuse(Reason),
    /// The same, when something was uncounted.
    Cancel,
    /// Both directions leave; before that this is said of coming again.
    Leave(SharedMemory, Agreement),
    /// All is new for the next time.
    Rest,
    /// The memory is of no more use here.
    Release,
    /// It is ended.
    Unmap(SharedMemory),
    /// This end has been ready to come again, and takes that back; if it cannot, it `Leaves`.
    Withdraw(SharedMemory),
    /// Counts move to where a child sees them.
    Share,
    /// The same of one that still has something in the rings; with
    /// `Agreement::End`, it never comes again.
    ShareRings(SharedMemory, Agreement),
    /// What is unread goes another way, or stays in the ring.
    CloseRings(SharedMemory),
}

/// What is said of coming into the rings again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Agreement {
    Keep,
    Promise,
    End,
}

/// The step.
pub(crate) fn step(now: Standing, event: Event) -> (Standing, Action) {
    let live = |life, action| (Standing { life, ..now }, action);
    let same = |action| (now, action);
    let plain = |action| live(Life::Plain(now.life.shared()), action);
    match (event, now.life) {
        (Event::Attaches { shared, called }, Life::Unattached | Life::Resting(_)) => {
            live(Life::Attached { shared, called }, Action::Nothing)
        }
        (Event::Looks(sight), Life::Attached { shared, .. }) => match sight {
            Sight { has_left: true, may_reattach: true, .. } => live(Life::Resting(shared), Action::Nothing),
            Sight { has_left: true, .. } => plain(Action::Refuse(Reason::Peer)),
            Sight { peer_is_there: false, .. } | Sight { is_busy: true, .. } => same(Action::Nothing),
            Sight { is_shared: true, .. } => plain(Action::Refuse(Reason::SharedMemory)),
            Sight { .. } => same(Action::Enter),
        },
        (Event::Enters, Life::Attached { shared, .. }) => live(Life::Ring(shared), Action::Nothing),
        (Event::Leaves(_), Life::Unattached | Life::Attached { .. } | Life::Resting(_)) => plain(Action::Cancel),
        (Event::Leaves(reason), Life::Ring(shared) | Life::Forked(shared)) => {
            let agreement = match reason {
                Reason::Fork => Agreement::Promise,
                Reason::Peer => Agreement::Keep,
                _ => Agreement::End,
            };
            same(Action::Leave(shared, agreement))
        }
        (Event::Returns { may_reattach: true }, Life::Ring(shared) | Life::Forked(shared)) => {
            let fresh = Standing { life: Life::Resting(shared), outgoing: Outgoing::Before, incoming: Incoming::Open };
            (fresh, Action::Rest)
        }
        (Event::Returns { .. }, Life::Ring(_) | Life::Forked(_)) => plain(Action::Release),
        (Event::Forks { searching: false }, Life::Unattached) => same(Action::Share),
        (Event::Forks { .. }, Life::Unattached | Life::Attached { .. }) => plain(Action::Cancel),
        (Event::Forks { .. }, Life::Resting(shared)) => same(Action::Withdraw(shared)),
        (Event::Forks { .. }, Life::Ring(shared) | Life::Forked(shared)) => {
            let agreement = if now.outgoing.has_backlog() { Agreement::End } else { Agreement::Keep };
            live(Life::Forked(shared), Action::ShareRings(shared, agreement))
        }
        (Event::IsParents, _) => live(Life::Plain(None), Action::Nothing),
        (Event::Closes { .. }, Life::Ring(shared)) => same(Action::CloseRings(shared)),
        (Event::Closes { .. }, Life::Unattached | Life::Attached { .. }) => same(Action::Cancel),
        // Else a relative goes on with it, and may still come into the rings again.
        (Event::Closes { alone: true }, Life::Resting(_)) => same(Action::Cancel),
        (Event::IsUnwatched, life) => match life.shared() {
            Some(shared) => live(Life::Plain(None), Action::Unmap(shared)),
            None => same(Action::Nothing),
        },
        (Event::Begins { .. } | Event::StopsSending { .. } | Event::Pushed { .. } | Event::Owes { .. }, _) => {
            (Standing { outgoing: sends(now.outgoing, event), ..now }, Action::Nothing)
        }
        (Event::StopsReceiving { wake_bytes }, _) => {
            let incoming = wake_bytes.map_or(Incoming::Unsettled, |wake_bytes| Incoming::Left { wake_bytes });
            (Standing { incoming, ..now }, Action::Nothing)
        }
        (Event::ReadsOn, _) => (Standing { incoming: Incoming::Open, ..now }, Action::Nothing),
        // A wake byte, or a byte taken for one, is to be had once: who closes such a one leaves the stream alone.
        (Event::Closes { .. }, Life::Forked(_) | Life::Resting(_) | Life::Plain(_)) => same(Action::Nothing),
        // All is said of one that is the kernel's, and what comes too late changes nothing.
        (
            Event::Attaches { .. }
            | Event::Looks(_)
            | Event::Enters
            | Event::Leaves(_)
            | Event::Returns { .. }
            | Event::Forks { .. },
            _,
        ) => same(Action::Nothing),
    }
}

/// The same of the direction in which this end sends.
fn sends(now: Outgoing, event: Event) -> Outgoing {
    let left = |begun, resend, owed, head| {
        if resend < head || owed > 0 { Outgoing::Owing { begun, resend, owed } } else { Outgoing::Kernel { begun } }
    };
    match (event, now) {
        (Event::Begins { given }, Outgoing::Before) => Outgoing::Ring { begun: Begun { given }, owed: 0 },
        // Once it has left, it may still send wake bytes.
        (Event::Begins { given }, Outgoing::Owing { begun: None, resend, owed }) => {
            Outgoing::Owing { begun: Some(Begun { given }), resend, owed }
        }
        (Event::Begins { given }, Outgoing::Kernel { begun: None }) => {
            Outgoing::Kernel { begun: Some(Begun { given }) }
        }
        (Event::StopsSending { resend, head }, now) => left(now.begun(), resend, now.owed(), head),
        (Event::Pushed { owed, .. }, Outgoing::Ring { begun, .. }) => Outgoing::Ring { begun, owed },
        (Event::Pushed { to, owed, head }, Outgoing::Owing { begun, .. } | Outgoing::Kernel { begun }) => {
            left(begun, to, owed, head)
        }
        (Event::Owes { .. }, Outgoing::Ring { begun, owed }) => Outgoing::Ring { begun, owed: owed + 1 },
        (Event::Owes { .. }, Outgoing::Owing { begun, resend, owed }) => {
            Outgoing::Owing { begun, resend, owed: owed + 1 }
        }
        (Event::Owes { head }, Outgoing::Kernel { begun }) => Outgoing::Owing { begun, resend: head, owed: 1 },
        (_, now) => now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGUN: Begun = Begun { given: 3 };

    fn send(mut out: Outgoing, events: &[Event]) -> Outgoing {
        events.iter().for_each(|event| out = sends(out, *event));
        out
    }

    #[test]
    fn a_direction_owes_until_all_is_in_the_stream() {
        let out = send(Outgoing::Before, &[Event::Begins { given: 3 }, Event::Owes { head: 10 }]);
        assert_eq!(out, Outgoing::Ring { begun: BEGUN, owed: 1 });
        let out = send(out, &[Event::StopsSending { resend: 7, head: 10 }]);
        assert_eq!(out, Outgoing::Owing { begun: Some(BEGUN), resend: 7, owed: 1 });
        let out = send(out, &[Event::Pushed { to: 10, owed: 1, head: 10 }]);
        assert!(out.has_backlog() && out.resend(10) == 10, "the wake byte is not there yet");
        let out = send(out, &[Event::Pushed { to: 10, owed: 0, head: 10 }]);
        assert_eq!(out, Outgoing::Kernel { begun: Some(BEGUN) });
        let out = send(out, &[Event::Owes { head: 10 }]);
        assert_eq!(out, Outgoing::Owing { begun: Some(BEGUN), resend: 10, owed: 1 });
        // Its own last bytes are taken back.
        assert_eq!(send(out, &[Event::Pushed { to: 8, owed: 0, head: 8 }]), Outgoing::Kernel { begun: Some(BEGUN) });
    }

    #[test]
    fn one_that_left_before_it_began_may_send_wake_bytes_later_and_never_enters() {
        let out = send(Outgoing::Before, &[Event::Owes { head: 0 }, Event::StopsSending { resend: 0, head: 0 }]);
        assert_eq!(out, Outgoing::Kernel { begun: None });
        let out = send(out, &[Event::Begins { given: 3 }, Event::Begins { given: 9 }]);
        assert_eq!(out, Outgoing::Kernel { begun: Some(BEGUN) });
    }

    /// Every event in every life that can be reached, whatever has been seen.
    #[test]
    fn no_event_brings_back_what_is_the_kernels_and_a_rest_begins_anew() {
        let (shared, _) = SharedMemory::create().unwrap();
        let all = [false, true];
        let mut events = vec![
            Event::Attaches { shared, called: false },
            Event::Enters,
            Event::Leaves(Reason::Fork),
            Event::Leaves(Reason::Peer),
            Event::Leaves(Reason::Call("a call")),
            Event::IsParents,
            Event::IsUnwatched,
            Event::Begins { given: 0 },
            Event::StopsSending { resend: 0, head: 1 },
            Event::Pushed { to: 1, owed: 0, head: 1 },
            Event::Owes { head: 1 },
            Event::StopsReceiving { wake_bytes: Some(1) },
            Event::ReadsOn,
        ];
        for yes in all {
            events.push(Event::Returns { may_reattach: yes });
            events.push(Event::Forks { searching: yes });
            events.push(Event::Closes { alone: yes });
        }
        for bits in 0..32 {
            let [has_left, may_reattach, peer_is_there, is_busy, is_shared] =
                [0, 1, 2, 3, 4].map(|bit| bits >> bit & 1 == 1);
            events.push(Event::Looks(Sight { has_left, may_reattach, peer_is_there, is_busy, is_shared }));
        }
        let key = |standing: &Standing| format!("{standing:?}");
        let first = Standing { life: Life::Unattached, outgoing: Outgoing::Before, incoming: Incoming::Open };
        let (mut seen, mut open) = (std::collections::HashSet::from([key(&first)]), vec![first]);
        let mut cancelled = 0;
        while let Some(now) = open.pop() {
            for event in &events {
                let (next, action) = step(now, *event);
                let was_kernels = matches!(now.life, Life::Plain(_));
                assert!(!was_kernels || matches!(next.life, Life::Plain(_)), "{now:?} {event:?}");
                assert!(!was_kernels || matches!(action, Action::Nothing | Action::Unmap(_)), "{now:?} {event:?}");
                if matches!(action, Action::Rest) {
                    assert!(next.outgoing == Outgoing::Before && next.incoming == Incoming::Open);
                }
                // Only what asked for it gets into the rings, and only from where both ends have the memory.
                let enters = next.life.ring().is_some() && now.life.ring().is_none();
                assert!(!enters || matches!((now.life, event), (Life::Attached { .. }, Event::Enters)));
                // What a fork finds in the rings is closed by parent and child without a word.
                let forks = matches!((event, now.life), (Event::Forks { .. }, Life::Ring(_)));
                let closes = step(next, Event::Closes { alone: true }).1;
                assert!(!forks || matches!(closes, Action::Nothing), "{now:?}");
                cancelled += usize::from(matches!(action, Action::Cancel | Action::Refuse(_)));
                if next.outgoing.owed() < 3 && seen.insert(key(&next)) {
                    open.push(next);
                }
            }
        }
        assert!(seen.len() > 50 && cancelled > 10, "{} {cancelled}", seen.len());
        // SAFETY: [preload-shared] not used afterwards.
        unsafe { shared.unmap() };
    }
}
