//! What changes a member: the program's `epoll_ctl`, and its connection's way
//! into the rings and back.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event};

use super::foreign::{collide, give_up, make_foreign};
use crate::connection::State;
use crate::ready::{self, Look};
use crate::sets::member::{self, Entry, LISTS, Member};
use crate::sets::set::SetHeld;
use crate::sets::{self, Reported, Set, given, is_marked, wanted};
use crate::{errno, eventfd, policy, real, table};

/// `epoll_ctl` on a known set.
pub(crate) fn apply(set: &'static Set, set_fd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: [preload-program] the program's event; of MOD and ADD it must be one.
    let user = unsafe { event.as_ref() }.copied();
    // SAFETY: [preload-real] the program's arguments.
    let by_kernel = || unsafe { real::epoll_ctl(set_fd, op, fd, event) };
    let user = match (op, user) {
        (EPOLL_CTL_ADD | EPOLL_CTL_MOD, Some(user)) => user,
        (EPOLL_CTL_DEL, _) => epoll_event { events: 0, u64: 0 },
        _ => return by_kernel(),
    };
    if op == EPOLL_CTL_ADD {
        errno::kept(|| beware(set, set_fd, fd, &user));
    } else if member::looks_like_a_tag(user.u64) {
        errno::kept(|| collide(set_fd));
    }
    let mut held = table::find(fd).and_then(|connection| table::hold(fd, connection));
    let wanted = wanted(user.events);
    let somebody_sleeps = set.sleepers.load(Ordering::SeqCst) > 0;
    let look = held
        .as_mut()
        .filter(|held| op != EPOLL_CTL_DEL && held.connection.state() == State::Ring)
        .map(|held| ready::look_held(held, fd, wanted, somebody_sleeps, None))
        .filter(|look| !look.plain);
    let (Some(_lists), Some(mut members)) = (LISTS.lock(), set.hold()) else {
        table::note_in_set(fd, true);
        return by_kernel();
    };
    // Whoever sleeps already would not look: the socket can always be written to, so asking for that wakes.
    let kick = look.is_some_and(|look| look.ready != 0) && somebody_sleeps;
    let known = member::of(fd).find(|member| member.is_of(set));
    match (op, known) {
        (EPOLL_CTL_ADD, _) => add(&mut members, fd, known, &user, look, kick),
        (_, None) => by_kernel(),
        (EPOLL_CTL_MOD, Some(member)) => modify(&mut members, fd, member, &user, look, kick),
        (_, Some(member)) => delete(&mut members, fd, member),
    }
}

/// What is not to be translated is the kernel's before it gets into the set.
fn beware(set: &'static Set, set_fd: c_int, fd: c_int, user: &epoll_event) {
    if member::looks_like_a_tag(user.u64) {
        collide(set_fd);
    }
    // A set within a set is looked at by nobody but the kernel.
    make_foreign(fd, "nested sets of epoll");
    if set.is_foreign() {
        give_up(fd, "a set of epoll that others have");
    } else if user.events & libc::EPOLLEXCLUSIVE as u32 != 0 {
        give_up(fd, "EPOLLEXCLUSIVE");
    }
}

fn add(
    members: &mut SetHeld,
    fd: c_int,
    known: Option<&'static Member>,
    user: &epoll_event,
    look: Option<Look>,
    kick: bool,
) -> c_int {
    if let Some(member) = known
        && members.entry(member).is_some_and(|entry| entry.parked)
    {
        return errno::fail(libc::EEXIST) as c_int;
    }
    let Some(member) = known.or_else(|| member::add(members.set, fd)) else {
        return errno::fail(libc::ENOMEM) as c_int;
    };
    let given = look.map_or(user.events, |look| given(look.ask, user.events, kick));
    let tagged = look.is_some() || is_marked(members, user.events);
    if !members.give(EPOLL_CTL_ADD, fd, given, if tagged { member.tag() } else { user.u64 }) {
        if known.is_none() {
            member::remove(member);
        }
        return -1;
    }
    // Whatever stood there was closed behind our back.
    members.forget(member);
    if let Some(entry) = members.entry(member) {
        let ring = look.is_some();
        *entry = Entry { events: user.events, data: user.u64, given, tagged, ring, ..Entry::default() };
        if ring && let Some(connection) = table::find(fd) {
            connection.count_tagged(1);
            members.listen(member, connection);
            if kick {
                // The kernel grants EPOLLOUT only where its buffer is not full.
                eventfd::pass_on(connection);
            }
        }
    }
    members.heat(member);
    0
}

fn modify(
    members: &mut SetHeld,
    fd: c_int,
    member: &'static Member,
    user: &epoll_event,
    look: Option<Look>,
    kick: bool,
) -> c_int {
    let marked = is_marked(members, user.events);
    let Some(entry) = members.entry(member) else { return errno::fail(libc::ENOENT) as c_int };
    let op = if entry.parked { EPOLL_CTL_ADD } else { EPOLL_CTL_MOD };
    // The kernel refuses to change EXCLUSIVE, and is to do so.
    let ring = entry.ring && user.events & libc::EPOLLEXCLUSIVE as u32 == 0;
    let given = match look {
        _ if !ring => user.events,
        Some(look) => given(look.ask, user.events, kick),
        // Nobody could look now: whoever is woken does.
        None => given(wanted(user.events) | libc::POLLIN, user.events, true),
    };
    if !members.give(op, fd, given, if ring || marked { member.tag() } else { user.u64 }) {
        return -1;
    }
    if let Some(entry) = members.entry(member) {
        (entry.events, entry.data, entry.given, entry.tagged) = (user.events, user.u64, given, ring || marked);
        (entry.spent, entry.parked, entry.reported) = (false, false, Reported::default());
        if kick
            && entry.eventfd.is_some()
            && let Some(connection) = table::find(fd)
        {
            eventfd::pass_on(connection);
        }
    }
    members.heat(member);
    0
}

fn delete(members: &mut SetHeld, fd: c_int, member: &'static Member) -> c_int {
    let parked = members.entry(member).is_some_and(|entry| entry.parked);
    if !parked && !members.give(EPOLL_CTL_DEL, fd, 0, 0) {
        return -1;
    }
    members.forget(member);
    member::remove(member);
    0
}

/// As `closing`, and sets among them are closed too.
pub(crate) fn closing_range(first: u32, last: u32) {
    if !sets::has_any() {
        return;
    }
    for fd in first..=last.min(policy::DESCRIPTORS as u32 - 1) {
        closing(fd as c_int);
        sets::disown(fd as c_int);
    }
}

/// A descriptor is about to be closed. Under another one the kernel would go on with the tag, so
/// such a connection goes back first; and then nothing is known of it here.
pub(crate) fn closing(fd: c_int) {
    if !member::has_any(fd) || !errno::kept(table::is_ours) {
        return;
    }
    errno::kept(|| {
        if let Some(connection) = table::find(fd)
            && connection.is_tagged()
            && connection.descriptors.load(Ordering::Relaxed) > 1
        {
            give_up(fd, "closing a descriptor in a set of epoll");
        }
        let Some(_lists) = LISTS.lock() else { return };
        while let Some(member) = member::of(fd).next() {
            if let Some(mut members) = member.set().and_then(Set::hold) {
                members.forget(member);
            }
            member::remove(member);
        }
    });
}
