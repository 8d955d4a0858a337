//! How the device says that something ended, in the project's words.

use overside_verbs::Status;

use crate::ffi::*;

/// Why a queue pair is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Somebody closed it.
    Closed,
    /// The peer's process, or the way there, is gone.
    PeerDied,
    /// A message was longer than its receive.
    TooLong,
    /// A range, key or right did not allow it.
    RemoteAccess,
    /// The peer, or the device, did what none of ours does.
    Malformed(&'static str),
}

impl Fate {
    /// How what is pending ends.
    pub(crate) fn pending(self) -> Status {
        match self {
            Fate::Closed | Fate::TooLong | Fate::RemoteAccess => Status::Flushed,
            Fate::PeerDied => Status::PeerDied,
            Fate::Malformed(_) => Status::Malformed,
        }
    }

    /// How the queue pair itself ended.
    pub(crate) fn status(self) -> Status {
        match self {
            Fate::TooLong => Status::TooLong,
            Fate::RemoteAccess => Status::RemoteAccess,
            other => other.pending(),
        }
    }

    pub(crate) fn reason(self) -> &'static str {
        match self {
            Fate::Closed => "the peer closed the connection",
            Fate::PeerDied => "the peer's process, or the way to it, is gone",
            Fate::TooLong => "a message was longer than the receive it met",
            Fate::RemoteAccess => "a remote range, key or right did not allow a request",
            Fate::Malformed(what) => what,
        }
    }

    /// As the peer is told.
    pub(crate) fn byte(self) -> u8 {
        match self {
            Fate::Closed | Fate::PeerDied => 1,
            Fate::TooLong => 2,
            Fate::RemoteAccess => 3,
            Fate::Malformed(_) => 4,
        }
    }

    /// What the peer tells; any byte.
    pub(crate) fn from_byte(byte: u8) -> Self {
        match byte {
            1 => Fate::Closed,
            2 => Fate::TooLong,
            3 => Fate::RemoteAccess,
            4 => Fate::Malformed("the peer says that we broke the protocol"),
            _ => Fate::Malformed("the peer closed with a reason that does not exist"),
        }
    }
}

/// How a send-side request ended, and with it its queue pair; none for success. `message`: it met a
/// receive.
pub(crate) fn sent(status: u32, message: bool) -> Option<(Status, Option<Fate>)> {
    Some(match status {
        IBV_WC_SUCCESS => return None,
        IBV_WC_WR_FLUSH_ERR => (Status::Flushed, None),
        // A NIC that has no room for a message calls the request invalid, soft-RoCE its own operation impossible.
        IBV_WC_REM_INV_REQ_ERR | IBV_WC_REM_OP_ERR if message => (Status::TooLong, Some(Fate::TooLong)),
        IBV_WC_REM_ACCESS_ERR | IBV_WC_REM_INV_REQ_ERR | IBV_WC_REM_INV_RD_REQ_ERR | IBV_WC_REM_OP_ERR => {
            (Status::RemoteAccess, Some(Fate::RemoteAccess))
        }
        // Nobody answers: the peer is gone, or the way to it.
        IBV_WC_RETRY_EXC_ERR | IBV_WC_RNR_RETRY_EXC_ERR | IBV_WC_RESP_TIMEOUT_ERR | IBV_WC_REM_ABORT_ERR => {
            (Status::PeerDied, Some(Fate::PeerDied))
        }
        other => (Status::Malformed, Some(Fate::Malformed(broken(other)))),
    })
}

/// Why a queue pair is over of which the device says so by an event.
pub(crate) fn event(kind: u32) -> Fate {
    match kind {
        // What the peer asked of it.
        IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => Fate::RemoteAccess,
        _ => Fate::Malformed("the device has given the queue pair up (fatal error); the system's log may say more"),
    }
}

/// How a receive ended, and with it its queue pair; none for success.
pub(crate) fn received(status: u32) -> Option<(Status, Option<Fate>)> {
    Some(match status {
        IBV_WC_SUCCESS => return None,
        IBV_WC_WR_FLUSH_ERR => (Status::Flushed, None),
        // A NIC calls it a length error, soft-RoCE an impossible operation or the peer's invalid request.
        IBV_WC_LOC_LEN_ERR | IBV_WC_LOC_QP_OP_ERR | IBV_WC_REM_INV_REQ_ERR => (Status::TooLong, Some(Fate::TooLong)),
        other => (Status::Malformed, Some(Fate::Malformed(broken(other)))),
    })
}

/// What the device says of what neither we nor the peer should have done, in words.
fn broken(status: u32) -> &'static str {
    match status {
        IBV_WC_LOC_LEN_ERR => "the device says that a request is longer than its message (local length error)",
        IBV_WC_LOC_QP_OP_ERR => "the device cannot carry out a request (local queue pair operation error)",
        IBV_WC_LOC_PROT_ERR => {
            "the device finds no registered memory where a request names it (local protection error)"
        }
        IBV_WC_LOC_ACCESS_ERR => "the device may not write where the peer's WRITE goes (local access error)",
        IBV_WC_BAD_RESP_ERR => "the peer's device answered what was not asked (bad response error)",
        IBV_WC_REM_ACCESS_ERR | IBV_WC_REM_OP_ERR | IBV_WC_REM_INV_RD_REQ_ERR => {
            "the peer's device refused what this one received (remote error)"
        }
        IBV_WC_RETRY_EXC_ERR | IBV_WC_RNR_RETRY_EXC_ERR | IBV_WC_RESP_TIMEOUT_ERR | IBV_WC_REM_ABORT_ERR => {
            "the device gave up a receive because nobody answers"
        }
        IBV_WC_FATAL_ERR => "the device or its driver has failed (fatal error); the system's log may say more",
        IBV_WC_MW_BIND_ERR | IBV_WC_TM_ERR | IBV_WC_TM_RNDV_INCOMPLETE => {
            "the device reports a memory window or tag that nobody here uses"
        }
        IBV_WC_LOC_EEC_OP_ERR | IBV_WC_LOC_RDD_VIOL_ERR | IBV_WC_INV_EECN_ERR | IBV_WC_INV_EEC_STATE_ERR => {
            "the device reports an error of reliable datagrams, which nobody here uses"
        }
        IBV_WC_GENERAL_ERR => "the device reports an error that it does not explain (general error)",
        _ => "the device reports an error that this release does not know; a newer one may",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_travel() {
        for fate in [Fate::Closed, Fate::TooLong, Fate::RemoteAccess] {
            assert_eq!(Fate::from_byte(fate.byte()), fate);
        }
        assert_eq!(Fate::from_byte(Fate::PeerDied.byte()), Fate::Closed, "who dies says nothing");
        assert!((5..=255).chain([0]).all(|byte| matches!(Fate::from_byte(byte), Fate::Malformed(_))));
    }

    /// Of each status of the device: how a message, another request and a receive end.
    const WORDS: [(u32, Status, Status, Status); 23] = {
        use Status::{Flushed, Malformed, PeerDied, RemoteAccess, TooLong};
        [
            (IBV_WC_LOC_LEN_ERR, Malformed, Malformed, TooLong),
            (IBV_WC_LOC_QP_OP_ERR, Malformed, Malformed, TooLong),
            (IBV_WC_LOC_EEC_OP_ERR, Malformed, Malformed, Malformed),
            (IBV_WC_LOC_PROT_ERR, Malformed, Malformed, Malformed),
            (IBV_WC_WR_FLUSH_ERR, Flushed, Flushed, Flushed),
            (IBV_WC_MW_BIND_ERR, Malformed, Malformed, Malformed),
            (IBV_WC_BAD_RESP_ERR, Malformed, Malformed, Malformed),
            (IBV_WC_LOC_ACCESS_ERR, Malformed, Malformed, Malformed),
            (IBV_WC_REM_INV_REQ_ERR, TooLong, RemoteAccess, TooLong),
            (IBV_WC_REM_ACCESS_ERR, RemoteAccess, RemoteAccess, Malformed),
            (IBV_WC_REM_OP_ERR, TooLong, RemoteAccess, Malformed),
            (IBV_WC_RETRY_EXC_ERR, PeerDied, PeerDied, Malformed),
            (IBV_WC_RNR_RETRY_EXC_ERR, PeerDied, PeerDied, Malformed),
            (IBV_WC_LOC_RDD_VIOL_ERR, Malformed, Malformed, Malformed),
            (IBV_WC_REM_INV_RD_REQ_ERR, RemoteAccess, RemoteAccess, Malformed),
            (IBV_WC_REM_ABORT_ERR, PeerDied, PeerDied, Malformed),
            (IBV_WC_INV_EECN_ERR, Malformed, Malformed, Malformed),
            (IBV_WC_INV_EEC_STATE_ERR, Malformed, Malformed, Malformed),
            (IBV_WC_FATAL_ERR, Malformed, Malformed, Malformed),
            (IBV_WC_RESP_TIMEOUT_ERR, PeerDied, PeerDied, Malformed),
            (IBV_WC_GENERAL_ERR, Malformed, Malformed, Malformed),
            (IBV_WC_TM_ERR, Malformed, Malformed, Malformed),
            (IBV_WC_TM_RNDV_INCOMPLETE, Malformed, Malformed, Malformed),
        ]
    };

    #[test]
    fn each_of_the_devices_words_is_one_of_the_projects() {
        assert!(sent(IBV_WC_SUCCESS, true).is_none() && received(IBV_WC_SUCCESS).is_none());
        for (at, (status, message, request, receive)) in WORDS.into_iter().enumerate() {
            assert_eq!(status as usize, at + 1, "none is left out");
            for (end, expected) in
                [(sent(status, true), message), (sent(status, false), request), (received(status), receive)]
            {
                let (found, fate) = end.expect("no success");
                assert_eq!(found, expected, "status {status}");
                // Whatever is no consequence of an earlier end ends the queue pair, and says so itself.
                assert_eq!(fate.map(Fate::status), (found != Status::Flushed).then_some(expected), "status {status}");
            }
        }
        // Of a device newer than this code.
        assert_eq!(sent(99, true).unwrap().0, Status::Malformed);
    }

    #[test]
    fn what_nobody_should_have_done_is_said_in_words() {
        let all: std::collections::HashSet<&str> = (0..30).map(broken).collect();
        assert_eq!(all.len(), 12);
    }
}
