//! What changes a member: the program's `epoll_ctl`, and its connection's way into the rings and back.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event};
use rustix::event::PollFlags;

use super::member::{self, Entry, LISTS, Member};
use super::set::{self, Set, SetHeld, give_up};
use crate::connection::{Connection, Held, State};
use crate::layout::Shared;
use crate::ready::{self, Look, READS, Reported, WRITES};
use crate::{errno, eventfd, kernel, real, table, wake};

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
        errno::kept(|| set::collide(set_fd));
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
        set::collide(set_fd);
    }
    // A set within a set is looked at by nobody but the kernel.
    set::make_foreign(fd, "nested sets of epoll");
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

/// Whether the kernel has a tag whatever carries the connection: that a shot was had is to be noticed.
fn is_marked(members: &SetHeld, events: u32) -> bool {
    events & libc::EPOLLONESHOT as u32 != 0 && !members.set.is_foreign()
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

/// Events as poll has them.
pub(super) fn wanted(events: u32) -> i16 {
    events as u16 as i16
}

/// What the kernel gets in the place of what the program wants.
pub(super) fn given(ask: i16, events: u32, kick: bool) -> u32 {
    let kick = if kick { libc::EPOLLOUT as u32 } else { 0 };
    u32::from(ask as u16) | events & (libc::EPOLLET | libc::EPOLLWAKEUP) as u32 | kick
}

/// For those that are told of changes only.
pub(super) fn reported(entry: &Entry) -> Option<Reported> {
    (entry.events & libc::EPOLLET as u32 != 0).then_some(entry.reported)
}

/// All members of a connection, by any of its descriptors. The caller holds its lock. False when a signal handler found a lock
/// held by its own thread, and not all were visited.
fn each(fd: c_int, connection: &Connection, mut visit: impl FnMut(&mut SetHeld, &'static Member)) -> bool {
    let Some(_lists) = LISTS.lock() else { return false };
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
pub(super) fn give_back(members: &mut SetHeld, member: &'static Member) {
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

/// Whether a thread sleeps in a set that has it, and only a wake byte could wake it: there is no eventfd, and
/// the kernel's buffer is full, so that EPOLLOUT is not granted.
pub(crate) fn is_unwakeable(held: &Held<'_>, fd: c_int, shared: &Shared) -> bool {
    if !held.connection.is_tagged() || eventfd::to_wait_for(held, shared).is_some() {
        return false;
    }
    let mut asleep = false;
    each(fd, held.connection, |members, member| {
        let listens = members.entry(member).is_some_and(|entry| entry.ring && !entry.spent);
        asleep |= listens && members.set.sleepers.load(Ordering::SeqCst) > 0;
    });
    asleep && !errno::kept(|| kernel::events(fd, PollFlags::OUT)).contains(PollFlags::OUT)
}

/// Wake bytes were taken out of the kernel, or an eventfd was read, which may have been all that would have
/// woken somebody: whoever sleeps gets a new wake request, or is woken if there is something for him already;
/// all others look. True if the eventfd was signalled for that.
pub(crate) fn drained(held: &mut Held<'_>, fd: c_int, shared: &Shared) -> bool {
    if !held.connection.is_tagged() {
        return false;
    }
    let mut asleep = false;
    let all = each(fd, held.connection, |members, member| {
        members.heat(member);
        asleep |= members.set.sleepers.load(Ordering::SeqCst) > 0;
    });
    if !all {
        set::MISSED.store(true, Ordering::SeqCst);
        asleep = true;
    }
    if !asleep {
        return false;
    }
    eventfd::arm(held, shared, wake::DATA | wake::ROOM);
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

/// As `closing`, and sets among them are closed too.
pub(crate) fn closing_range(first: u32, last: u32) {
    if !set::has_any() {
        return;
    }
    for fd in first..=last.min(table::DESCRIPTORS as u32 - 1) {
        closing(fd as c_int);
        set::disown(fd as c_int);
    }
}

/// A descriptor is about to be closed. Under another one the kernel would go on with the tag, so such a connection goes back
/// first; and then nothing is known of it here.
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

/// What the kernel gets of one whose shot was had: what it cannot be kept from saying, and that once.
pub(super) const NOTHING: u32 = libc::EPOLLET as u32;
