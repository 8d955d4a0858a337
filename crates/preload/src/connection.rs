//! A connection as this process sees it.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, Ordering};

use crate::chime;
use crate::count::Counts;
use crate::diagnosis::Reason;
use crate::far;
use crate::layout::Shared;
use crate::lock::{Guard, Lock};
use crate::pace::Pace;
use crate::ring::{Receiver, Sender};
use crate::slab::Place;
use crate::sleepers::Sleepers;

/// Where a connection stands. It only ever moves forwards, but for a fork, after which it is counted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// No connection.
    Free,
    /// Through the kernel, every byte counted; the ends may still meet.
    Counting,
    /// Shared memory is mapped and both ends know it; each direction starts when its sender finds it can.
    Ring,
    /// The kernel's for good.
    Plain,
}

/// One connection. It is never unmapped, so a stale pointer from the table is harmless: whoever uses it takes the lock and
/// looks whether the table still names it.
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
    /// Threads in poll that this end's chime wakes; whether one was woken by it since it was
    /// last made silent.
    pub(crate) listeners: Sleepers,
    pub(crate) heard: AtomicBool,
    /// Threads in poll or select that began when the bytes still came through the kernel.
    pub(crate) early: Sleepers,
    /// The chime that this end waits for in sets and lists, if it has one that can be waited for.
    pub(crate) chime: AtomicI32,
    /// Polls that found something in its ring or in those beside it.
    pub(crate) polls: AtomicU8,
    /// Whether watching has paid lately.
    pub(crate) pace: Pace,
    pub(crate) next_free: AtomicPtr<Connection>,
    inner: UnsafeCell<Inner>,
}

// SAFETY: [preload-lock] `inner` is reached under the lock alone.
unsafe impl Sync for Connection {}

/// What the lock guards.
#[derive(Debug)]
pub(crate) struct Inner {
    /// 0 connected, 1 accepted: our end, and the direction that we send in.
    pub(crate) end: usize,
    pub(crate) own: Counts,
    /// In place of `own` once a fork has shared them.
    pub(crate) common: *const Counts,
    /// Calls that are in the kernel with the program's own buffers.
    pub(crate) sending: u32,
    pub(crate) receiving: u32,
    /// Finished calls that carried bytes; how often the ends have tried to meet.
    pub(crate) operations: u32,
    pub(crate) next_try: u32,
    /// A listening socket on which the other end may come by, or the one on which it has; -1 if there is neither.
    pub(crate) offer: c_int,
    pub(crate) called: bool,
    pub(crate) shared: Option<Shared>,
    /// The chimes of end 0 and of end 1, or none.
    pub(crate) chimes: [c_int; 2],
    /// The other end is on another host, as far as addresses tell; and the number made up for meeting it.
    pub(crate) distant: bool,
    pub(crate) nonce: [u8; 16],
    /// The one that the other end has made up, once it is known.
    pub(crate) nonce_of_peer: [u8; 16],
    /// We dialled: ours is the memory, and the other may never come.
    pub(crate) dialled: bool,
    /// It was in the rings, a fork has brought it back, and it may come again.
    pub(crate) resting: bool,
    /// There was a fork before all of the rings had been brought back: parent and child take what is left by counts that they share.
    /// Whoever closes it leaves the stream alone.
    pub(crate) forked: bool,
    /// Our sending direction is in the ring.
    pub(crate) started: bool,
    pub(crate) out: Sender,
    pub(crate) input: Receiver,
    /// Our sending direction is back in the kernel; from `resend` on the ring's bytes must go through it first.
    pub(crate) out_switched: bool,
    pub(crate) resend: u64,
    /// The receiving direction is back in the kernel once what lies before the border is taken from the ring, and `bells_last` bells
    /// are eaten.
    pub(crate) in_switched: bool,
    pub(crate) bells_last: u64,
    /// Bells counted but not sent yet; those that were sent before our direction began.
    pub(crate) owed: u32,
    pub(crate) given_before: u64,
    /// Consecutive receives that found nothing, sends that found unread bytes.
    pub(crate) dry: u32,
    pub(crate) unread: u32,
    /// Bytes have come out of the ring since the last send.
    pub(crate) answered: bool,
    /// Since when a bell is left unread for the sake of other sleepers, and since when the chime is
    /// not made silent; 0 if it is not so.
    pub(crate) patience: u64,
    pub(crate) patience_of_listeners: u64,
    pub(crate) reason: Reason,
    /// The program wants Nagle's algorithm; bells must not wait for it.
    pub(crate) nagle: bool,
    /// It has put the cork in, which means nothing in the rings.
    pub(crate) cork: bool,
    /// A Unix socket: the kernel makes no reset of bytes that lie in a ring.
    pub(crate) unix: bool,
    /// An error that one of our own calls has taken from the socket, and that is the program's.
    pub(crate) error: c_int,
    pub(crate) tally: Tally,
}

/// What went through rings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) bytes_out: u64,
    pub(crate) messages_out: u64,
    pub(crate) bytes_in: u64,
    pub(crate) messages_in: u64,
}

/// The lock is held, `inner` can be used.
pub(crate) struct Held<'a> {
    pub(crate) connection: &'a Connection,
    _guard: Guard<'a>,
}

impl std::ops::Deref for Held<'_> {
    type Target = Inner;
    #[inline]
    fn deref(&self) -> &Inner {
        // SAFETY: [preload-lock] the guard lives as long as this.
        unsafe { &*self.connection.inner.get() }
    }
}

impl std::ops::DerefMut for Held<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Inner {
        // SAFETY: [preload-lock] the guard lives as long as this, and `self` is borrowed alone.
        unsafe { &mut *self.connection.inner.get() }
    }
}

impl Held<'_> {
    /// The lock stays held, over a fork.
    pub(crate) fn keep(mut self) {
        self.tell();
        self.connection.lock.mark_kept();
        std::mem::forget(self);
    }

    /// What is new is told to another host before anybody else, or the program, goes on.
    #[inline]
    fn tell(&mut self) {
        if let Some(shared) = self.shared.filter(Shared::is_far) {
            crate::errno::kept(|| shared.far(|far| far.tell(&shared, far::PATIENCE_NS)));
        }
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.tell();
    }
}

impl Place for Connection {
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
            listeners: Sleepers::new(),
            heard: AtomicBool::new(false),
            early: Sleepers::new(),
            chime: AtomicI32::new(chime::NONE),
            polls: AtomicU8::new(0),
            pace: Pace::new(),
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

    /// The caller holds the lock.
    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// None when this thread has it already (a signal handler).
    #[inline]
    pub(crate) fn hold(&self) -> Option<Held<'_>> {
        self.lock.lock().map(|guard| Held { connection: self, _guard: guard })
    }

    /// The same for who holds others.
    pub(crate) fn hold_soon(&self) -> Option<Held<'_>> {
        self.lock.lock_soon().map(|guard| Held { connection: self, _guard: guard })
    }

    /// Its place is free for another: a lock that this thread has left behind is given back.
    pub(crate) fn abandon(&self) {
        self.lock.abandon();
    }

    /// As good as new, for its first descriptor. The caller holds the lock.
    pub(crate) fn renew(&self) {
        self.descriptors.store(1, Ordering::Relaxed);
        self.forget_sleepers();
        self.heard.store(false, Ordering::Relaxed);
        self.nonblocking.store(false, Ordering::Relaxed);
        self.timed.store(false, Ordering::Relaxed);
        self.tainted.store(false, Ordering::Relaxed);
        self.tagged.store(0, Ordering::Relaxed);
        self.fulls.store(1, Ordering::Relaxed);
        self.chime.store(chime::NONE, Ordering::Relaxed);
        self.pace.forget();
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
        self.listeners.forget();
        self.early.forget();
    }
}

impl Inner {
    pub(crate) fn new(end: usize) -> Self {
        Self {
            end,
            own: Counts::new(),
            common: std::ptr::null(),
            sending: 0,
            receiving: 0,
            operations: 0,
            next_try: if crate::meeting::is_soon() { 0 } else { FIRST_TRY },
            offer: -1,
            called: false,
            shared: None,
            chimes: [chime::NONE; 2],
            distant: false,
            nonce: [0; 16],
            nonce_of_peer: [0; 16],
            dialled: false,
            resting: false,
            forked: false,
            started: false,
            out: Sender::NEW,
            input: Receiver::NEW,
            out_switched: false,
            resend: 0,
            in_switched: false,
            bells_last: 0,
            owed: 0,
            given_before: 0,
            dry: 0,
            unread: 0,
            answered: false,
            patience: 0,
            patience_of_listeners: 0,
            reason: Reason::Short,
            nagle: false,
            cork: false,
            unix: false,
            error: 0,
            tally: Tally { bytes_out: 0, messages_out: 0, bytes_in: 0, messages_in: 0 },
        }
    }

    /// The other end.
    #[inline]
    pub(crate) fn peer(&self) -> usize {
        self.end ^ 1
    }

    #[inline]
    pub(crate) fn counts(&self) -> &Counts {
        // SAFETY: [preload-counts] a page of this process and its forked relatives, mapped until the connection is closed.
        unsafe { self.common.as_ref() }.unwrap_or(&self.own)
    }

    /// So many bytes more, of the program's or ours, have gone to the kernel.
    #[inline]
    pub(crate) fn count_sent(&self, bytes: usize) {
        self.counts().sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// So many bells have come out of the kernel.
    #[inline]
    pub(crate) fn count_eaten(&mut self, bells: usize) {
        self.counts().eaten.fetch_add(bells as u64, Ordering::Relaxed);
        self.counts().received.fetch_add(bells as u64, Ordering::Relaxed);
    }

    /// Whether every bell that was rung has been read.
    pub(crate) fn eaten_all(&self, shared: &Shared) -> bool {
        self.eaten() >= crate::bells::rung(shared.bell(self.end))
    }

    /// Bells read from the kernel's stream.
    #[inline]
    pub(crate) fn eaten(&self) -> u64 {
        self.counts().eaten.load(Ordering::Relaxed)
    }

    /// Up to where the ring is read, once the receiving direction is switched. What a relative has taken along counts.
    #[inline]
    pub(crate) fn border(&self) -> u64 {
        self.counts().border.load(Ordering::SeqCst)
    }

    /// Bytes that still lie in the ring before the border, once the receiving direction is switched.
    #[inline]
    pub(crate) fn rest(&self) -> u64 {
        if self.in_switched { self.border().saturating_sub(self.counts().taken.load(Ordering::Acquire)) } else { 0 }
    }

    /// In a forked child, of what another thread was in the midst of, or the code that a signal handler has interrupted: it is the parent's.
    pub(crate) fn forsake(&mut self) {
        (self.shared, self.common, self.offer, self.chimes) = (None, std::ptr::null(), -1, [chime::NONE; 2]);
    }

    /// Whether no other process can have it open, and none has moved bytes of it uncounted.
    pub(crate) fn is_ours_alone(&self) -> bool {
        self.common.is_null() || self.counts().is_ours_alone()
    }
}

/// The ends look for each other after so many calls: a connection of one exchange never pays for it.
const FIRST_TRY: u32 = 4;
