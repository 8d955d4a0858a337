//! A connection as this process sees it.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, Ordering};

use rustix::io::Errno;

use crate::count::Counts;
use crate::diagnosis::Reason;
use crate::layout::SharedMemory;
use crate::lock::{Guard, Lock};
use crate::policy;
use crate::ring::{Receiver, Sender};
use crate::slab::SlabEntry;
use crate::sleepers::{Patience, Sleepers};
use crate::spin::SpinBudget;
use crate::state::{Family, Host, Incoming, Life, Outgoing, Search, Source};
use crate::step::{Action, Event, Standing, step};
use crate::word::Word;

pub(crate) use crate::state::State;

/// One connection. It is never unmapped, so a stale pointer from the table is harmless: whoever
/// uses it takes the lock and looks whether the table still names it.
#[derive(Debug)]
pub(crate) struct Connection {
    lock: Lock,
    state: AtomicU8,
    /// Descriptors of this process that name it.
    pub(crate) descriptors: AtomicU32,
    /// Threads that look at the shared memory without the lock, hence must find it mapped.
    pub(crate) watchers: AtomicU32,
    /// Threads that sleep in the kernel, and that a wake byte in its socket wakes.
    pub(crate) sleepers: Sleepers,
    /// O_NONBLOCK, as far as the ring is concerned.
    pub(crate) nonblocking: AtomicBool,
    /// SO_RCVTIMEO has been set: the kernel is to count the time of a sleep.
    pub(crate) timed: AtomicBool,
    /// Bytes may have passed uncounted: the ends must not meet.
    pub(crate) tainted: AtomicBool,
    /// Sets of epoll that have a tag for it.
    tagged: AtomicU32,
    /// How often the ring was full for a sender who would not wait.
    pub(crate) fulls: AtomicU32,
    /// Threads in poll that this end's eventfd wakes; whether one was woken by it since it was
    /// last drained.
    pub(crate) pollers: Sleepers,
    pub(crate) signalled: Word,
    /// Threads in poll or select that began when the bytes still came through the kernel.
    pub(crate) early: Sleepers,
    /// The eventfd that this end waits for in sets and lists, if it has one that can be waited for.
    pub(crate) eventfd: AtomicI32,
    /// Polls that found something in its ring or in those beside it.
    pub(crate) polls: AtomicU8,
    /// Whether watching has paid lately.
    pub(crate) spin: SpinBudget,
    pub(crate) next_free: AtomicPtr<Connection>,
    inner: UnsafeCell<Inner>,
}

// SAFETY: [preload-lock] `inner` is reached under the lock alone.
unsafe impl Sync for Connection {}

/// What the lock guards.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Inner {
    /// 0 connected, 1 accepted: our end, and the direction that we send in.
    pub(crate) end: usize,
    counts: Counting,
    /// Calls that are in the kernel with the program's own buffers.
    pub(crate) sending: u32,
    pub(crate) receiving: u32,
    /// Finished calls that carried bytes; how often the ends have tried to meet.
    pub(crate) operations: u32,
    pub(crate) next_try: u32,
    life: Life,
    pub(crate) host: Host,
    pub(crate) search: Search,
    /// The eventfds of end 0 and of end 1.
    pub(crate) eventfds: Option<[c_int; 2]>,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    pub(crate) out: Sender,
    pub(crate) input: Receiver,
    /// Consecutive receives that found nothing, sends that found unread bytes.
    pub(crate) dry: Dry,
    pub(crate) unread: u32,
    /// Bytes have come out of the ring since the last send.
    pub(crate) answered: bool,
    /// With other sleepers, for whose sake a wake byte is left unread, or
    /// the eventfd is not drained.
    pub(crate) patience: Patience,
    pub(crate) patience_of_pollers: Patience,
    pub(crate) reason: Reason,
    pub(crate) family: Family,
    /// One that our own calls have taken from the socket, and that is the program's.
    pub(crate) error: Option<Errno>,
    pub(crate) tally: Tally,
}

/// Receives that found nothing, in a row. Counting them changes nothing that
/// matters to one who comes after.
#[derive(Clone, Debug)]
pub(crate) struct Dry(Cell<u32>);

impl Dry {
    pub(crate) fn forget(&self) {
        self.0.set(0);
    }

    /// The next one looks for the end of the stream.
    pub(crate) fn look_next(&self) {
        self.0.set(self.0.get() | LOOK_MASK);
    }

    /// One more. Whether it is to look.
    pub(crate) fn count(&self) -> bool {
        self.0.set(self.0.get().wrapping_add(1));
        self.0.get() & LOOK_MASK == 0
    }

    /// The next one looks as well.
    pub(crate) fn again(&self) {
        self.0.set(self.0.get().wrapping_sub(1));
    }
}

impl std::hash::Hash for Dry {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.get().hash(state);
    }
}

/// Where a connection's counts lie.
#[derive(Clone, Debug, Hash)]
enum Counting {
    Own(Counts),
    /// In a page that a fork has made, for all that have the connection since.
    Common(NonNull<Counts>),
}

/// What went through rings.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(crate) struct Tally {
    pub(crate) bytes_out: u64,
    pub(crate) messages_out: u64,
    pub(crate) bytes_in: u64,
    pub(crate) messages_in: u64,
}

/// The lock is held, `inner` can be used.
///
/// Whoever only looks at `inner` may be jumped out of by a signal handler. Whoever changes it says
/// so before, by the way it is reached.
pub(crate) struct LockHeld<'a> {
    pub(crate) connection: &'a Connection,
    guard: Guard<'a>,
}

impl std::ops::Deref for LockHeld<'_> {
    type Target = Inner;
    #[inline]
    fn deref(&self) -> &Inner {
        // SAFETY: [preload-lock] the guard lives as long as this.
        unsafe { &*self.connection.inner.get() }
    }
}

impl std::ops::DerefMut for LockHeld<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Inner {
        self.guard.changes();
        // SAFETY: [preload-lock] the guard lives as long as this, and `self` is borrowed alone.
        unsafe { &mut *self.connection.inner.get() }
    }
}

impl LockHeld<'_> {
    /// This has happened: what is to be done about it.
    pub(crate) fn step(&mut self, event: Event) -> Action {
        let action = Inner::step(self, event);
        self.connection.set_state(self.life.state());
        action
    }

    /// As good as new, under a descriptor that had another.
    pub(crate) fn renew(&mut self, inner: Inner) {
        **self = inner;
        self.connection.set_state(self.life.state());
    }

    /// What the lock guards is being changed, though not by way of this.
    pub(crate) fn changes(&self) {
        self.guard.changes();
    }

    /// The lock stays held, over a fork.
    pub(crate) fn keep(mut self) {
        self.publish();
        self.connection.lock.mark_kept();
        // Whoever jumps out of the fork leaves it held.
        self.guard.changes();
        std::mem::forget(self);
    }

    /// What is new is told to another host before anybody else, or the program, goes on.
    #[inline]
    fn publish(&mut self) {
        if let Some(shared) = self.shared() {
            shared.publish();
        }
    }
}

impl Drop for LockHeld<'_> {
    #[inline]
    fn drop(&mut self) {
        self.publish();
    }
}

impl SlabEntry for Connection {
    fn fresh() -> Self {
        Self {
            lock: Lock::new(),
            state: AtomicU8::new(State::Free as u8),
            descriptors: AtomicU32::new(0),
            watchers: AtomicU32::new(0),
            sleepers: Sleepers::new(),
            nonblocking: AtomicBool::new(false),
            timed: AtomicBool::new(false),
            tainted: AtomicBool::new(false),
            tagged: AtomicU32::new(0),
            fulls: AtomicU32::new(1),
            pollers: Sleepers::new(),
            signalled: Word::new(0),
            early: Sleepers::new(),
            eventfd: AtomicI32::new(NO_EVENTFD),
            polls: AtomicU8::new(0),
            spin: SpinBudget::new(),
            next_free: AtomicPtr::new(null_mut()),
            inner: UnsafeCell::new(Inner::new(0)),
        }
    }

    fn next_free(&self) -> &AtomicPtr<Self> {
        &self.next_free
    }
}

impl Connection {
    #[inline]
    pub(crate) fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            1 => State::Counting,
            2 => State::Ring,
            3 => State::Plain,
            _ => State::Free,
        }
    }

    /// Of a new one, or one that is no more; else by [`LockHeld::set_life`].
    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// None when this thread has it already (a signal handler), or it `is_broken`.
    #[inline]
    pub(crate) fn hold(&self) -> Option<LockHeld<'_>> {
        self.lock.look().map(|guard| LockHeld { connection: self, guard })
    }

    /// Whether a thread has jumped out of a call that was changing it: nobody
    /// knows what of it is true.
    pub(crate) fn is_broken(&self) -> bool {
        self.lock.is_broken()
    }

    /// What a call says that could not have it: the program's handler has interrupted
    /// another, or it is broken.
    pub(crate) fn refusal(&self) -> c_int {
        if self.is_broken() { libc::ECONNRESET } else { libc::EINTR }
    }

    /// The same for who holds others.
    pub(crate) fn hold_soon(&self) -> Option<LockHeld<'_>> {
        self.lock.lock_soon().map(|guard| LockHeld { connection: self, guard })
    }

    /// Its place is free for another: a lock that this thread has left behind is given back.
    pub(crate) fn abandon(&self) {
        self.lock.abandon();
    }

    /// As good as new, for its first descriptor. The caller holds the lock.
    pub(crate) fn renew(&self) {
        self.descriptors.store(1, Ordering::Relaxed);
        self.forget_sleepers();
        self.signalled.store(0, Ordering::Relaxed);
        self.nonblocking.store(false, Ordering::Relaxed);
        self.timed.store(false, Ordering::Relaxed);
        self.tainted.store(false, Ordering::Relaxed);
        self.tagged.store(0, Ordering::Relaxed);
        self.fulls.store(1, Ordering::Relaxed);
        self.eventfd.store(NO_EVENTFD, Ordering::Relaxed);
        self.spin.forget();
    }

    /// Whether any set of epoll has a tag for it.
    #[inline]
    pub(crate) fn is_tagged(&self) -> bool {
        self.tagged.load(Ordering::SeqCst) > 0
    }

    /// One set more or less.
    pub(crate) fn count_tagged(&self, by: i32) {
        let _ = self.tagged.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_add_signed(by));
    }

    /// After a fork, in the parent: its lock was held.
    pub(crate) fn let_go(&self) {
        self.lock.let_go();
    }

    /// Whether who forked held its lock.
    pub(crate) fn is_kept(&self) -> bool {
        self.lock.is_kept()
    }

    /// In a forked child, which has one thread, and whose sets are its parent's.
    pub(crate) fn forget_other_threads(&self) {
        self.lock.renew();
        self.tagged.store(0, Ordering::Relaxed);
        self.watchers.store(0, Ordering::Relaxed);
        self.forget_sleepers();
    }

    fn forget_sleepers(&self) {
        self.sleepers.forget();
        self.pollers.forget();
        self.early.forget();
    }
}

impl Inner {
    pub(crate) fn new(end: usize) -> Self {
        Self {
            end,
            counts: Counting::Own(Counts::new()),
            sending: 0,
            receiving: 0,
            operations: 0,
            next_try: if policy::is_soon() { 0 } else { FIRST_TRY },
            life: Life::Unattached,
            host: Host::This,
            search: Search::Idle,
            eventfds: None,
            outgoing: Outgoing::Before,
            incoming: Incoming::Open,
            out: Sender::NEW,
            input: Receiver::NEW,
            dry: Dry(Cell::new(0)),
            unread: 0,
            answered: false,
            patience: Patience::default(),
            patience_of_pollers: Patience::default(),
            reason: Reason::Short,
            family: Family::Tcp { nagle: false, cork: false },
            error: None,
            tally: Tally { bytes_out: 0, messages_out: 0, bytes_in: 0, messages_in: 0 },
        }
    }

    /// The other end.
    #[inline]
    pub(crate) fn peer(&self) -> usize {
        self.end ^ 1
    }

    /// The memory, as long as it is mapped.
    #[inline]
    pub(crate) fn shared(&self) -> Option<SharedMemory> {
        self.life.shared()
    }

    /// The memory of one that is in the rings.
    #[inline]
    pub(crate) fn ring(&self) -> Option<SharedMemory> {
        self.life.ring()
    }

    pub(crate) fn life(&self) -> Life {
        self.life
    }

    /// As [`LockHeld::step`], of an event that leaves the connection where others see it.
    pub(crate) fn step(&mut self, event: Event) -> Action {
        let now = Standing { life: self.life, outgoing: self.outgoing, incoming: self.incoming };
        let (next, action) = step(now, event);
        (self.life, self.outgoing, self.incoming) = (next.life, next.outgoing, next.incoming);
        action
    }

    /// There is memory, of this end's own if it has `called`; or the rings are as they were
    /// at the first rendezvous.
    pub(crate) fn attach(&mut self, shared: SharedMemory, called: bool) {
        self.step(Event::Attaches { shared, called });
    }

    #[inline]
    pub(crate) fn counts(&self) -> &Counts {
        match &self.counts {
            Counting::Own(counts) => counts,
            // SAFETY: [preload-counts] a page of this process and its forked relatives, mapped until the connection is closed.
            Counting::Common(page) => unsafe { page.as_ref() },
        }
    }

    /// Whether other processes have had it open since a fork, and count with this one.
    pub(crate) fn has_relatives(&self) -> bool {
        matches!(self.counts, Counting::Common(_))
    }

    /// The counts go on in this page, which is the caller's to map.
    pub(crate) fn count_in(&mut self, page: NonNull<Counts>) {
        if self.has_relatives() {
            return;
        }
        // SAFETY: [preload-counts] the caller's new page.
        unsafe { page.as_ref() }.copy_from(self.counts());
        self.counts = Counting::Common(page);
    }

    /// The page is not this connection's any more.
    pub(crate) fn count_apart(&mut self) -> Option<NonNull<Counts>> {
        match std::mem::replace(&mut self.counts, Counting::Own(Counts::new())) {
            Counting::Common(page) => Some(page),
            own @ Counting::Own(_) => {
                self.counts = own;
                None
            }
        }
    }

    /// So many bytes more, of the program's or ours, have gone to the kernel.
    #[inline]
    pub(crate) fn count_sent(&self, bytes: usize) {
        self.counts().sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// So many bytes more have come out of it.
    #[inline]
    pub(crate) fn count_received(&self, bytes: usize) {
        self.counts().received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// So many wake bytes have come out of the kernel.
    #[inline]
    pub(crate) fn count_drained(&mut self, wake_bytes: usize) {
        self.counts().drained.fetch_add(wake_bytes as u64, Ordering::Relaxed);
        self.counts().received.fetch_add(wake_bytes as u64, Ordering::Relaxed);
    }

    /// Whether every wake byte that was issued has been read.
    pub(crate) fn drained_all(&self, shared: &SharedMemory) -> bool {
        self.drained() >= crate::wake::issued(shared.wake_word(self.end))
    }

    /// Wake bytes read from the kernel's stream.
    #[inline]
    pub(crate) fn drained(&self) -> u64 {
        self.counts().drained.load(Ordering::Relaxed)
    }

    /// Up to where the ring is read, once the receiving direction is switched. What a
    /// relative has taken along counts.
    #[inline]
    pub(crate) fn border(&self) -> u64 {
        self.counts().border.load(Ordering::SeqCst)
    }

    /// Bytes that still lie in the ring before the border, once the
    /// receiving direction is switched.
    #[inline]
    pub(crate) fn rest(&self) -> u64 {
        if !self.incoming.has_left() {
            return 0;
        }
        self.border().saturating_sub(self.counts().taken.load(Ordering::Acquire))
    }

    /// In a forked child: what there is to send again is the parent's, as are the
    /// calls of its other threads.
    pub(crate) fn in_child(&mut self) {
        if matches!(self.life, Life::Forked(_)) {
            let head = self.out.head;
            self.step(Event::Pushed { to: head, owed: 0, head });
        }
        (self.sending, self.receiving) = (0, 0);
    }

    /// In a forked child, of what another thread was in the midst of, or the code that a signal
    /// handler has interrupted: it is the parent's.
    pub(crate) fn forsake(&mut self) {
        self.step(Event::IsParents);
        (self.search, self.eventfds) = (Search::Idle, None);
        self.counts = Counting::Own(Counts::new());
    }

    /// Where the next byte comes from, by the word of the sender on where its ring begins.
    #[inline]
    pub(crate) fn source(&self, shared: &SharedMemory) -> Source {
        let Some(before) = shared.start(self.peer()).load(Ordering::SeqCst).checked_sub(1) else {
            return Source::NotBegun;
        };
        match before.saturating_sub(self.counts().received.load(Ordering::Relaxed)) {
            0 if !self.incoming.has_left() => Source::Ring,
            0 => match self.rest() {
                0 => Source::Kernel,
                rest => Source::Along(rest),
            },
            left => Source::Before(left),
        }
    }

    /// Whether no other process can have it open, and none has moved bytes of it uncounted.
    pub(crate) fn is_ours_alone(&self) -> bool {
        !self.has_relatives() || self.counts().is_ours_alone()
    }
}

/// A receive that finds nothing looks for the end of the stream so often.
const LOOK_MASK: u32 = 3;
/// It has no eventfd.
pub(crate) const NO_EVENTFD: c_int = -1;
/// The ends look for each other after so many calls: a connection of one
/// exchange never pays for it.
const FIRST_TRY: u32 = 4;

/// For the explorer, which writes down connections and makes them again.
#[cfg(test)]
mod explored {
    use super::*;

    impl Connection {
        /// A section that was left may have had it.
        pub(crate) fn unlock(&self) {
            self.lock.renew();
        }

        /// Sets that have a tag for it.
        pub(crate) fn tagged(&self) -> &AtomicU32 {
            &self.tagged
        }

        /// What is changed without the lock.
        pub(crate) fn live(&self) -> [&Word; 4] {
            [self.sleepers.word(), self.pollers.word(), self.early.word(), &self.signalled]
        }
    }

    impl Inner {
        pub(crate) fn set_life_of_test(&mut self, life: Life) {
            self.life = life;
        }

        pub(crate) fn awaits_no_time(&self) -> bool {
            self.out.is_fresh()
                && self.patience == Patience::default()
                && self.patience_of_pollers == Patience::default()
        }

        /// What is counted for reports and habits, and would make one state many.
        pub(crate) fn forget_figures(&mut self) {
            self.tally = Tally::default();
            self.operations = 0;
            self.next_try = 0;
            self.dry.0.set(self.dry.0.get() % 4);
            self.unread = self.unread.min(2);
            self.reason = Reason::None;
        }
    }
}
