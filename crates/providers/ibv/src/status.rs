//! How the device says that something ended, in the project's words.

use overside_verbs::Status;

use crate::ffi::{
    IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_RD_REQ_ERR, IBV_WC_REM_INV_REQ_ERR,
    IBV_WC_REM_OP_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR,
};

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

/// How a send-side request ended, and with it its queue pair; none for success. `message`: it met a receive.
pub(crate) fn sent(status: u32, message: bool) -> Option<(Status, Option<Fate>)> {
    Some(match status {
        IBV_WC_SUCCESS => return None,
        IBV_WC_WR_FLUSH_ERR => (Status::Flushed, None),
        // A NIC that has no room for a message calls the request invalid, soft-RoCE its own operation impossible.
        IBV_WC_REM_INV_REQ_ERR | IBV_WC_REM_OP_ERR if message => (Status::TooLong, Some(Fate::TooLong)),
        IBV_WC_REM_ACCESS_ERR | IBV_WC_REM_INV_REQ_ERR | IBV_WC_REM_INV_RD_REQ_ERR | IBV_WC_REM_OP_ERR => {
            (Status::RemoteAccess, Some(Fate::RemoteAccess))
        }
        IBV_WC_RETRY_EXC_ERR | IBV_WC_RNR_RETRY_EXC_ERR => (Status::PeerDied, Some(Fate::PeerDied)),
        _ => (Status::Malformed, Some(Fate::Malformed("the device refused a request"))),
    })
}

/// How a receive ended, and with it its queue pair; none for success.
pub(crate) fn received(status: u32) -> Option<(Status, Option<Fate>)> {
    Some(match status {
        IBV_WC_SUCCESS => return None,
        IBV_WC_WR_FLUSH_ERR => (Status::Flushed, None),
        // A NIC calls it a length error, soft-RoCE an impossible operation or the peer's invalid request.
        IBV_WC_LOC_LEN_ERR | IBV_WC_LOC_QP_OP_ERR | IBV_WC_REM_INV_REQ_ERR => (Status::TooLong, Some(Fate::TooLong)),
        _ => (Status::Malformed, Some(Fate::Malformed("the device could not place a message"))),
    })
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

    #[test]
    fn the_devices_words_are_the_projects() {
        assert_eq!(sent(IBV_WC_SUCCESS, true), None);
        assert_eq!(sent(IBV_WC_REM_INV_REQ_ERR, true).unwrap().0, Status::TooLong);
        assert_eq!(sent(IBV_WC_REM_INV_REQ_ERR, false).unwrap().0, Status::RemoteAccess);
        assert_eq!(sent(IBV_WC_REM_ACCESS_ERR, true).unwrap().0, Status::RemoteAccess);
        assert_eq!(sent(IBV_WC_RETRY_EXC_ERR, true).unwrap().0, Status::PeerDied);
        assert_eq!(sent(IBV_WC_WR_FLUSH_ERR, true).unwrap(), (Status::Flushed, None));
        assert_eq!(received(IBV_WC_LOC_LEN_ERR).unwrap().0, Status::TooLong);
        assert!((1..30).all(|status| sent(status, true).is_some() && received(status).is_some()));
    }
}
