//! What the kernel has of a connection in the sets that have it: on its way into
//! the rings, there, and back.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD};
use rustix::event::PollFlags;

use super::member::{self, Entry, Member};
use super::set::{Set, SetHeld};
use super::{READS, Reported, WRITES};
use crate::connection::{Connection, LockHeld};
use crate::fault::Fault;
use crate::layout::SharedMemory;
use crate::{errno, eventfd, fault, kernel, table, wake};

/// Events as poll has them.
pub(crate) fn wanted(events: u32) -> i16 {
    events as u16 as i16
}

/// What the kernel gets in the place of what the program wants.
pub(crate) fn given(ask: i16, events: u32, kick: bool) -> u32 {
    let kick = if kick { libc::EPOLLOUT as u32 } else { 0 };
    u32::from(ask as u16) | events & (libc::EPOLLET | libc::EPOLLWAKEUP) as u32 | kick
}

/// For those that are told of changes only.
pub(crate) fn reported(entry: &Entry) -> Option<Reported> {
    (entry.events & libc::EPOLLET as u32 != 0).then_some(entry.reported)
}

/// All members of a connection, by any of its descriptors. The caller holds its lock. False when a
/// signal handler found a lock held by its own thread, and not all were visited.
fn each(fd: c_int, connection: &Connection, mut visit: impl FnMut(&mut SetHeld, &'static Member)) -> bool {
    let Some(_lists) = member::lists().lock() else { return false };
    let mut all = true;
    let mut visit_all = |fd| {
        for member in member::of(fd) {
            match member.set().map(Set::hold) {
                Some(Some(mut members)) => visit(&mut members, member),
                Some(None) => all = false,
                None => {}
            }
        }
    };
    if connection.descriptors.load(Ordering::Relaxed) <= 1 {
        visit_all(fd);
    } else {
        table::all().filter(|(_, other)| std::ptr::eq(*other, connection)).for_each(|(fd, _)| visit_all(fd));
    }
    all
}

/// Whether nothing about the sets that have it speaks against the rings.
pub(crate) fn may_enter(fd: c_int, connection: &Connection) -> bool {
    let mut fine = true;
    let seen = each(fd, connection, |members, member| {
        let exclusive = |entry: &mut Entry| entry.events & libc::EPOLLEXCLUSIVE as u32 != 0;
        fine &= !members.set.is_foreign() && !members.entry(member).is_some_and(exclusive);
    });
    seen && fine
}

/// Whether any set has it.
pub(crate) fn is_watched(fd: c_int, connection: &Connection) -> bool {
    let mut watched = false;
    let seen = each(fd, connection, |_, _| watched = true);
    watched || !seen
}

/// A connection has come into the rings: the sets that have it get a tag.
pub(crate) fn enter(fd: c_int, connection: &Connection) {
    errno::kept(|| {
        each(fd, connection, |members, member| {
            let Some(entry) = members.entry(member) else { return };
            if entry.ring {
                return;
            }
            let wants = wanted(entry.events);
            // Its own direction has not begun: whether there is room to send is the kernel's to say.
            let given = given(wants & (libc::POLLPRI | libc::POLLRDHUP | WRITES) | libc::POLLIN, entry.events, false);
            let given = if entry.spent { NOTHING } else { given };
            // One whose shot was had when it went back from the rings is not in the kernel's set.
            let op = if std::mem::take(&mut entry.parked) { EPOLL_CTL_ADD } else { EPOLL_CTL_MOD };
            (entry.given, entry.tagged, entry.ring, entry.reported) = (given, true, true, Reported::default());
            if members.give(op, member.fd(), given, member.tag()) {
                connection.count_tagged(1);
                members.listen(member, connection);
                members.heat(member);
            } else {
                members.forget(member);
            }
        });
    });
}

/// A connection is the kernel's again: the sets have what the program gave.
pub(crate) fn restore(fd: c_int, connection: &Connection) {
    if !connection.is_tagged() {
        return;
    }
    errno::kept(|| {
        each(fd, connection, |members, member| {
            let ring = members.entry(member).is_some_and(|entry| std::mem::take(&mut entry.ring));
            if ring {
                connection.count_tagged(-1);
                give_back(members, member);
            }
        });
    });
}

/// No set waits for a connection's eventfd any more.
pub(crate) fn mute(fd: c_int, connection: &Connection) {
    each(fd, connection, |members, member| members.mute(member));
}

/// The kernel gets what the program gave.
pub(crate) fn give_back(members: &mut SetHeld, member: &'static Member) {
    members.cool(member);
    members.mute(member);
    let tag = members.entry(member).map(|entry| entry.events).filter(|events| is_marked(members, *events));
    let tag = tag.map(|_| member.tag());
    let Some(entry) = members.entry(member) else { return };
    // The kernel cannot be told that the shot was had; so it does not have the member until the program asks again.
    (entry.parked, entry.tagged) = (entry.spent, tag.is_some() && !entry.spent);
    let op = if entry.parked { EPOLL_CTL_DEL } else { EPOLL_CTL_MOD };
    let (events, data) = (entry.events, tag.unwrap_or(entry.data));
    members.give(op, member.fd(), events, data);
}

/// Whether a thread sleeps in a set that has it, and only a wake byte could wake it: there is no
/// eventfd, and the kernel's buffer is full, so that EPOLLOUT is not granted.
pub(crate) fn is_unwakeable(held: &LockHeld<'_>, fd: c_int, shared: &SharedMemory) -> bool {
    if !held.connection.is_tagged()
        || eventfd::to_wait_for(held, shared).is_some()
        || fault::is_planted(Fault::TakesSetsForWakeable)
    {
        return false;
    }
    let mut asleep = false;
    each(fd, held.connection, |members, member| {
        let listens = members.entry(member).is_some_and(|entry| entry.ring && !entry.spent);
        asleep |= listens && members.set.sleepers.load(Ordering::SeqCst) > 0;
    });
    asleep && !errno::kept(|| kernel::events(fd, PollFlags::OUT)).contains(PollFlags::OUT)
}

/// Wake bytes were taken out of the kernel, or an eventfd was read, which may have been all that
/// would have woken a sleeper. Each sleeper gets a new wake request, or is woken if there is
/// something for it already. All other threads look. True if the eventfd was signalled for that.
pub(crate) fn drained(held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory) -> bool {
    if !held.connection.is_tagged() || fault::is_planted(Fault::DrainsWithoutSets) {
        return false;
    }
    let mut asleep = false;
    let all = each(fd, held.connection, |members, member| {
        members.heat(member);
        asleep |= members.set.sleepers.load(Ordering::SeqCst) > 0;
    });
    if !all {
        super::set::MISSED.store(true, Ordering::SeqCst);
        asleep = true;
    }
    if !asleep {
        return false;
    }
    eventfd::arm(held, shared, wake::DATA | wake::ROOM);
    if fault::is_planted(Fault::NoLookForSets) {
        return false;
    }
    let head = shared.head(held.peer()).load(Ordering::SeqCst);
    let end = held.end;
    let room = held.out.taken(shared, end).is_err() || held.out.has_room();
    let (data, fulls) = (head != held.input.tail || shared.is_new(), held.connection.fulls.load(Ordering::Relaxed));
    let mut rings = false;
    errno::kept(|| {
        each(fd, held.connection, |members, member| {
            let sleepers = members.set.sleepers.load(Ordering::SeqCst);
            let Some(entry) = members.entry(member) else { return };
            let (wants, reported) = (wanted(entry.events), reported(entry));
            let news = data && wants & READS != 0 && reported.is_none_or(|reported| reported.head != head)
                || room && wants & WRITES != 0 && reported.is_none_or(|reported| reported.fulls != fulls);
            if news && sleepers > 0 && entry.ring && !entry.spent {
                if entry.eventfd.is_some() {
                    rings = true;
                    return;
                }
                entry.given |= libc::EPOLLOUT as u32;
                let given = entry.given;
                members.give(EPOLL_CTL_MOD, member.fd(), given, member.tag());
            }
        });
    });
    if rings {
        eventfd::pass_on(held.connection);
    }
    rings
}

/// Whether the kernel has a tag whatever carries the connection: that a shot
/// was had is to be noticed.
pub(crate) fn is_marked(members: &SetHeld, events: u32) -> bool {
    events & libc::EPOLLONESHOT as u32 != 0 && !members.set.is_foreign()
}

/// What the kernel gets of one whose shot was had: what it cannot be kept
/// from saying, and that once.
pub(crate) const NOTHING: u32 = libc::EPOLLET as u32;
