//! The sets of epoll that a process has, and their members; `epoll` has what programs do with them.

mod entries;
pub(crate) mod member;
pub(crate) mod set;

use libc::{POLLIN, POLLOUT, POLLRDNORM, POLLWRNORM};

pub(crate) use entries::{
    NOTHING, drained, enter, give_back, given, is_marked, is_unwakeable, is_watched, may_enter, mute, reported,
    restore, wanted,
};
pub(crate) use set::{Set, adopt, create, disown, find, has_any, in_child, prepare};

/// How far a connection's news have been told to one who wants to hear of changes only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Reported {
    /// Bytes that had arrived by the ring.
    pub(crate) head: u64,
    /// How often our own ring had been full.
    pub(crate) fulls: u32,
}

pub(crate) const READS: i16 = POLLIN | POLLRDNORM;
pub(crate) const WRITES: i16 = POLLOUT | POLLWRNORM;
