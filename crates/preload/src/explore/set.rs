//! A set of epoll that end 1 has, with the connection as its member.

use std::hash::{Hash, Hasher};
use std::sync::atomic::Ordering;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLRDHUP};

use super::kernel::{Kernel, end_of};
use super::world::socket;
use super::{EVENTFDS, RUN, is_on, step};
use crate::connection::{Connection, NO_EVENTFD};
use crate::lock::Lock;
use crate::sets::member::{Entry, Member};
use crate::sets::set::{Queue, Set};
use crate::sets::{given, wanted};
use crate::slab::SlabEntry;

/// The library's own, for as long as the tests run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watched {
    pub(super) set: &'static Set,
    pub(super) member: &'static Member,
    /// In the place of the lock of all lists.
    pub(super) lists: &'static Lock,
}

/// What its locks guard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guarded {
    queue: Queue,
    entry: Entry,
    tagged: u32,
}

impl Hash for Guarded {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Entry { given, tagged, ring, eventfd, hot, reported, call, place, .. } = self.entry;
        (given, tagged, ring, eventfd, hot, reported, call, place, self.tagged).hash(state);
    }
}

impl Guarded {
    /// The wait of this number is over.
    pub(super) fn end(&mut self, call: u64) {
        if self.entry.call == call {
            (self.entry.call, self.entry.place) = (0, 0);
        }
    }
}

impl Watched {
    pub(super) fn new() -> Self {
        let set: &'static Set = Box::leak(Box::new(Set::fresh()));
        let member = Member::alone(set, socket(SIDE));
        Self { set, member, lists: Box::leak(Box::new(Lock::new())) }
    }

    /// As it is when the connection has come into the rings; and what the kernel has of it.
    pub(super) fn begin(&self, events: u32, connection: &Connection, kernel: &mut Kernel) -> Guarded {
        let given = given(wanted(events), events, false);
        let eventfd = connection.eventfd.load(Ordering::Relaxed);
        let eventfd = (eventfd != NO_EVENTFD).then_some(eventfd);
        kernel.control(EPOLL_CTL_ADD, socket(SIDE), given, self.member.tag());
        if let Some(eventfd) = eventfd {
            kernel.control(EPOLL_CTL_ADD, eventfd, (EPOLLIN | EPOLLET) as u32, self.member.eventfd_tag());
        }
        self.unlock();
        let mut members = self.set.hold().unwrap();
        *members.queue() = Queue::NEW;
        *members.entry(self.member).unwrap() =
            Entry { events, data: 1, given, tagged: true, ring: true, eventfd, ..Entry::default() };
        members.heat(self.member);
        Guarded { queue: *members.queue(), entry: *members.entry(self.member).unwrap(), tagged: 1 }
    }

    /// A section that was left may have had them.
    fn unlock(&self) {
        [self.set.lock(), &self.set.scan, self.lists].iter().for_each(|lock| lock.renew());
    }

    pub(super) fn write(&self, now: Guarded, connection: &Connection) {
        self.unlock();
        let mut members = self.set.hold().unwrap();
        *members.queue() = now.queue;
        *members.entry(self.member).unwrap() = now.entry;
        connection.tagged().store(now.tagged, Ordering::Relaxed);
    }

    pub(super) fn read(&self, connection: &Connection) -> Guarded {
        self.unlock();
        let mut members = self.set.hold().unwrap();
        let (queue, mut entry) = (*members.queue(), *members.entry(self.member).unwrap());
        // How many looks there were before a member is left to its wake byte changes no more than when that is done.
        entry.fruitless = 0;
        Guarded { queue, entry, tagged: connection.tagged().load(Ordering::Relaxed) }
    }
}

/// What the kernel's set has of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Interest {
    events: u32,
    data: u64,
    /// Something happened to it that a wait has not looked at.
    queued: bool,
}

/// Events with their data, as a wait returns them.
pub(super) type Caught = [(u32, u64); 2];

impl Kernel {
    /// As `epoll_ctl`.
    pub(super) fn control(&mut self, op: i32, fd: i32, events: u32, data: u64) -> bool {
        let which = usize::from(fd != socket(SIDE));
        assert!(which == 0 || fd == EVENTFDS + SIDE as i32, "a descriptor that is none of the connection's: {fd}");
        let there = self.interests[which].is_some();
        if there == (op == EPOLL_CTL_ADD) {
            return false;
        }
        let queued = self.stands(which) & (events | ALWAYS) != 0;
        self.interests[which] = (op != EPOLL_CTL_DEL).then_some(Interest { events, data, queued });
        true
    }

    /// Something happens to the socket, or the eventfd, of an end.
    pub(super) fn stir(&mut self, end: usize, eventfd: bool, events: u32) {
        if let Some(interest) = self.interests[usize::from(eventfd)].as_mut().filter(|_| end == SIDE) {
            interest.queued |= events & (interest.events | ALWAYS) != 0;
        }
    }

    fn stands(&self, which: usize) -> u32 {
        if which == 0 {
            u32::from(self.events(SIDE).bits())
        } else if self.is_signalled(SIDE) {
            EPOLLIN as u32
        } else {
            0
        }
    }

    /// What a wait returns now.
    pub(super) fn harvest(&mut self) -> Caught {
        let mut caught = Caught::default();
        for (which, place) in caught.iter_mut().enumerate() {
            let stands = self.stands(which);
            if let Some(interest) = self.interests[which].as_mut().filter(|interest| interest.queued) {
                let events = stands & (interest.events | ALWAYS);
                interest.queued = events != 0 && interest.events & EPOLLET as u32 == 0;
                *place = (events, interest.data);
            }
        }
        caught
    }
}

pub(crate) fn epoll_ctl(op: i32, fd: i32, events: u32, data: u64) -> Option<bool> {
    is_on().then(|| {
        step(|| RUN.with_borrow_mut(|run| run.as_mut().is_some_and(|run| run.kernel.control(op, fd, events, data))))
    })
}

/// The member, for who has the set.
pub(crate) fn member() -> Option<&'static Member> {
    watched().map(|watched| watched.member)
}

pub(crate) fn lists() -> Option<&'static Lock> {
    watched().map(|watched| watched.lists)
}

fn watched() -> Option<Watched> {
    RUN.with_borrow(|run| run.as_ref().filter(|run| run.process == SIDE).and_then(|run| run.watched))
}

/// The end that has the set.
pub(super) const SIDE: usize = 1;
const _: () = assert!(SIDE < super::PROCESSES);
const ALWAYS: u32 = (EPOLLERR | EPOLLHUP) as u32;
/// What a close stirs.
pub(super) const ALL: u32 = (EPOLLIN | libc::EPOLLOUT | EPOLLRDHUP | EPOLLHUP) as u32;
