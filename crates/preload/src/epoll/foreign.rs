//! Sets that are not to be translated: what they have goes back to the kernel.

use std::ffi::c_int;

use crate::connection::State;
use crate::diagnosis::Reason;
use crate::sets::{self, member};
use crate::{settle, table};

/// Another descriptor of the same set.
pub(crate) fn alias(fd: c_int, new: c_int) {
    let Some(set) = sets::find(fd) else { return };
    if !sets::set::add_descriptor(set, new) {
        make_foreign(fd, "a set of epoll that others have");
    }
}

/// Somebody who knows nothing of tags may wait for this set, or get its events: what it has
/// goes back to the kernel.
pub(crate) fn make_foreign(fd: c_int, reason: &'static str) {
    let Some(set) = sets::find(fd) else { return };
    if !set.become_foreign() {
        return;
    }
    for member in member::all().filter(|member| member.is_of(set)) {
        give_up(member.fd(), reason);
        if let Some(mut members) = set.hold()
            && members.entry(member).is_some_and(|entry| entry.tagged && !entry.ring)
        {
            sets::give_back(&mut members, member);
        }
    }
}

/// The program's own data could be taken for tags.
pub(super) fn collide(fd: c_int) {
    if let Some(set) = sets::find(fd) {
        set.collide();
    }
    make_foreign(fd, "data that look like this library's in a set of epoll");
}

pub(super) fn give_up(fd: c_int, reason: &'static str) {
    if let Some(connection) = table::find(fd)
        && matches!(connection.state(), State::Counting | State::Ring)
    {
        settle::settle(fd, connection, Reason::Call(reason), settle::Reader::Kernel);
    }
}
