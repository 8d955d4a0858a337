//! The sets that are known, and each one's queue of members to look at.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLET, EPOLLIN};

use super::member::{self, Entry, LISTS, Member};
use crate::connection::{Connection, NO_EVENTFD};
use crate::lock::{Guard, Lock};
use crate::policy::DESCRIPTORS;
use crate::slab::{Slab, SlabEntry};
use crate::table;
use crate::word::Word;
use crate::{own, real};

/// A set. Never unmapped.
#[derive(Debug)]
pub(crate) struct Set {
    lock: Lock,
    /// Held while the queue is gone through: each pass sees all of it.
    pub(crate) scan: Lock,
    /// A descriptor of it, and how many there are.
    fd: AtomicI32,
    descriptors: AtomicU32,
    /// Not to be translated any more; because the program's own data look like tags.
    foreign: AtomicBool,
    collides: AtomicBool,
    /// Threads that sleep in it, or are about to.
    pub(crate) sleepers: Word,
    next_free: AtomicPtr<Set>,
    queue: UnsafeCell<Queue>,
}

// SAFETY: [preload-members] `queue` is reached under the lock alone.
unsafe impl Sync for Set {}

/// What the lock guards, beside its members' entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    front: Option<&'static Member>,
    back: Option<&'static Member>,
    hot: usize,
    /// Numbers the waits.
    pub(crate) calls: u64,
    /// Waits in a row that did not ask the kernel.
    pub(crate) without_kernel: u8,
}

impl Queue {
    pub(crate) const NEW: Self = Self { front: None, back: None, hot: 0, calls: 0, without_kernel: 0 };
}

/// A signal handler that came in between could not say which members are to be looked at.
pub(crate) static MISSED: AtomicBool = AtomicBool::new(false);
static SETS: [AtomicPtr<Set>; DESCRIPTORS] = [const { AtomicPtr::new(null_mut()) }; DESCRIPTORS];
/// One more than the highest descriptor that ever was a set.
static TOP: AtomicUsize = AtomicUsize::new(0);
/// Guarded by `LISTS`.
static FREE: Slab<Set> = Slab::new();

/// The set behind a descriptor.
#[inline]
pub(crate) fn find(fd: c_int) -> Option<&'static Set> {
    let pointer = SETS.get(fd as usize)?.load(Ordering::Acquire);
    // SAFETY: [preload-members] sets are never unmapped.
    unsafe { pointer.as_ref() }
}

/// Whether there is any.
#[inline]
pub(crate) fn has_any() -> bool {
    TOP.load(Ordering::Relaxed) > 0
}

/// A new set of the kernel's; whatever stood under this descriptor is forgotten.
pub(crate) fn create(fd: c_int) {
    let Some(place) = SETS.get(fd as usize) else { return };
    if !table::is_ours() {
        return;
    }
    disown(fd);
    let Some(_guard) = LISTS.lock() else { return };
    let Some(set) = FREE.take() else { return };
    set.fd.store(fd, Ordering::Relaxed);
    set.descriptors.store(1, Ordering::Relaxed);
    set.foreign.store(false, Ordering::Relaxed);
    set.collides.store(false, Ordering::Relaxed);
    set.sleepers.store(0, Ordering::Relaxed);
    TOP.fetch_max(fd as usize + 1, Ordering::AcqRel);
    place.store(std::ptr::from_ref(set).cast_mut(), Ordering::Release);
}

/// Another descriptor of the same set; false where it cannot be noted.
pub(crate) fn add_descriptor(set: &'static Set, new: c_int) -> bool {
    let Some(place) = SETS.get(new as usize).filter(|_| table::is_ours()) else { return false };
    set.descriptors.fetch_add(1, Ordering::Relaxed);
    TOP.fetch_max(new as usize + 1, Ordering::AcqRel);
    place.store(std::ptr::from_ref(set).cast_mut(), Ordering::Release);
    true
}

/// A descriptor is closed; with the last one of a set its members are gone.
pub(crate) fn disown(fd: c_int) {
    let Some(place) = SETS.get(fd as usize) else { return };
    let Some(set) = find(fd) else { return };
    place.store(null_mut(), Ordering::Release);
    if set.descriptors.fetch_sub(1, Ordering::AcqRel) > 1 {
        if let Some((other, _)) = all().find(|(_, other)| std::ptr::eq(*other, set)) {
            set.fd.store(other, Ordering::Relaxed);
        }
        return;
    }
    let Some(_guard) = LISTS.lock() else { return };
    for member in member::all().filter(|member| member.is_of(set)) {
        if let Some(mut held) = set.hold() {
            held.forget(member);
        }
        member::remove(member);
    }
    FREE.give_back(set);
}

fn all() -> impl Iterator<Item = (c_int, &'static Set)> {
    (0..TOP.load(Ordering::Acquire)).filter_map(|fd| find(fd as c_int).map(|set| (fd as c_int, set)))
}

/// Whether a number still names the eventfd that was kept under it.
fn is_ours(eventfd: c_int) -> bool {
    #[cfg(test)]
    if crate::explore::is_on() {
        return true;
    }
    own::is(eventfd)
}

/// All members of a set are to be looked at.
pub(crate) fn look_everywhere() {
    for member in member::all() {
        if let Some(mut members) = member.set().and_then(Set::hold) {
            members.heat(member);
        }
    }
}

/// Before a fork: the child is to find the lists whole.
pub(crate) fn prepare() {
    LISTS.keep();
}

/// After it, in the parent.
pub(crate) fn adopt() {
    LISTS.let_go();
}

/// After it, in the child: the sets are the parent's, and what comes out of them may be as well.
pub(crate) fn in_child() {
    LISTS.renew();
    for (_, set) in all() {
        set.lock.renew();
        set.scan.renew();
        set.sleepers.store(0, Ordering::Relaxed);
        set.foreign.store(true, Ordering::SeqCst);
    }
}

/// The set's lock is held.
pub(crate) struct SetHeld {
    pub(crate) set: &'static Set,
    _guard: Guard<'static>,
}

impl SlabEntry for Set {
    fn fresh() -> Self {
        Self {
            lock: Lock::new(),
            scan: Lock::new(),
            fd: AtomicI32::new(-1),
            descriptors: AtomicU32::new(0),
            foreign: AtomicBool::new(false),
            collides: AtomicBool::new(false),
            sleepers: Word::new(0),
            next_free: AtomicPtr::new(null_mut()),
            queue: UnsafeCell::new(Queue::NEW),
        }
    }

    fn next_free(&self) -> &AtomicPtr<Self> {
        &self.next_free
    }
}

impl Set {
    /// It is not to be translated from now on. False if that was so before.
    pub(crate) fn become_foreign(&self) -> bool {
        !self.foreign.swap(true, Ordering::SeqCst)
    }

    /// The program's own data could be taken for tags.
    pub(crate) fn collide(&self) {
        self.collides.store(true, Ordering::SeqCst);
    }

    pub(crate) fn collides(&self) -> bool {
        self.collides.load(Ordering::SeqCst)
    }

    pub(crate) fn is_foreign(&self) -> bool {
        self.foreign.load(Ordering::SeqCst)
    }

    /// For the explorer.
    #[cfg(test)]
    pub(crate) fn lock(&self) -> &Lock {
        &self.lock
    }

    /// None when this thread has it already (a signal handler).
    pub(crate) fn hold(&'static self) -> Option<SetHeld> {
        self.lock.lock().map(|guard| SetHeld { set: self, _guard: guard })
    }
}

impl SetHeld {
    pub(crate) fn queue(&mut self) -> &mut Queue {
        // SAFETY: [preload-members] the lock is held, and `self` is borrowed alone.
        unsafe { &mut *self.set.queue.get() }
    }

    /// A member's entry, while it is one of this set.
    pub(crate) fn entry(&mut self, member: &'static Member) -> Option<&mut Entry> {
        // SAFETY: [preload-members] the lock of the member's set is held, and `self` is borrowed alone.
        member.is_of(self.set).then(|| unsafe { &mut *member.entry.get() })
    }

    /// To be looked at from now on.
    pub(crate) fn heat(&mut self, member: &'static Member) {
        let back = self.queue().back;
        let Some(entry) = self.entry(member) else { return };
        entry.fruitless = 0;
        if entry.hot || entry.spent || !entry.ring {
            return;
        }
        (entry.hot, entry.before, entry.after) = (true, back, None);
        match back.and_then(|back| self.entry(back)) {
            Some(last) => last.after = Some(member),
            None => self.queue().front = Some(member),
        }
        self.queue().back = Some(member);
        self.queue().hot += 1;
    }

    /// No longer: a wake byte will announce it.
    pub(crate) fn cool(&mut self, member: &'static Member) {
        let Some(entry) = self.entry(member) else { return };
        if !entry.hot {
            return;
        }
        entry.hot = false;
        let (before, after) = (entry.before.take(), entry.after.take());
        match before.and_then(|before| self.entry(before)) {
            Some(entry) => entry.after = after,
            None => self.queue().front = after,
        }
        match after.and_then(|after| self.entry(after)) {
            Some(entry) => entry.before = before,
            None => self.queue().back = before,
        }
        self.queue().hot -= 1;
    }

    /// How many are to be looked at.
    pub(crate) fn hot(&mut self) -> usize {
        self.queue().hot
    }

    /// The next to look at, which goes to the end of the queue.
    pub(crate) fn turn(&mut self) -> Option<&'static Member> {
        let member = self.queue().front?;
        if self.queue().hot > 1 {
            let fruitless = self.entry(member)?.fruitless;
            self.cool(member);
            self.heat(member);
            self.entry(member)?.fruitless = fruitless;
        }
        Some(member)
    }

    /// Those in the queue, from the front.
    pub(crate) fn queued(&mut self, mut each: impl FnMut(&'static Member, &Entry) -> bool) {
        let mut next = self.queue().front;
        while let Some(member) = next {
            let Some(entry) = self.entry(member) else { return };
            if !each(member, entry) {
                return;
            }
            next = entry.after;
        }
    }

    /// Has the kernel's entry of a member be this. False when it is not there any more.
    pub(crate) fn give(&mut self, op: c_int, fd: c_int, events: u32, data: u64) -> bool {
        #[cfg(test)]
        if let Some(done) = crate::explore::epoll_ctl(op, fd, events, data) {
            return done;
        }
        let mut event = libc::epoll_event { events, u64: data };
        // SAFETY: [preload-real] an event of ours.
        unsafe { real::epoll_ctl(self.set.fd.load(Ordering::Relaxed), op, fd, &mut event) == 0 }
    }

    /// Has the kernel's set wait for the eventfd of a member's connection,
    /// if it has one that works.
    pub(crate) fn listen(&mut self, member: &'static Member, connection: &Connection) {
        let eventfd = connection.eventfd.load(Ordering::Relaxed);
        if eventfd == NO_EVENTFD || self.entry(member).is_none_or(|entry| entry.eventfd.is_some()) {
            return;
        }
        if self.give(EPOLL_CTL_ADD, eventfd, (EPOLLIN | EPOLLET) as u32, member.eventfd_tag()) {
            if let Some(entry) = self.entry(member) {
                entry.eventfd = Some(eventfd);
            }
        } else {
            // Who cannot hear it must not ask for it.
            connection.eventfd.store(NO_EVENTFD, Ordering::Relaxed);
        }
    }

    /// The kernel's set has a member's eventfd no more. The peer has it open too, so
    /// closing it would not do.
    pub(crate) fn mute(&mut self, member: &'static Member) {
        if let Some(eventfd) = self.entry(member).and_then(|entry| entry.eventfd.take())
            && is_ours(eventfd)
        {
            self.give(EPOLL_CTL_DEL, eventfd, 0, 0);
        }
    }

    /// Takes a member's record apart; it can be removed then.
    pub(crate) fn forget(&mut self, member: &'static Member) {
        self.cool(member);
        self.mute(member);
        let Some(entry) = self.entry(member) else { return };
        let ring = std::mem::take(entry).ring;
        if ring && let Some(connection) = table::find(member.fd()) {
            connection.count_tagged(-1);
        }
    }
}
