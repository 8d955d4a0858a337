//! Requests that finish later.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use overside_verbs::{QueuePair, VerbsError};
use rustix::event::EventfdFlags;

use crate::envelope::message;
use crate::ordered::Parcel;
use crate::state::State;
use crate::sync::{AtomicBool, AtomicU64};
use crate::transmit::Message;

/// What a request that finishes later keeps back of its connection's later requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOrder {
    /// Nothing: later requests are carried out and answered meanwhile.
    Free,
    /// Their replies: they are carried out meanwhile and answered after this one.
    Replies,
    /// They themselves: they are carried out after this one is answered.
    Requests,
}

/// The duty to answer a request, from any thread.
///
/// A ticket that is dropped answers with the system's fault ([`System::unfinished`]). One whose
/// connection has ended does nothing.
///
/// [`System::unfinished`]: crate::System::unfinished
#[derive(Debug)]
#[must_use = "a ticket that is dropped answers with a fault"]
pub struct Ticket {
    /// None once it was used.
    mailbox: Option<Arc<Mailbox>>,
    pub(crate) to: ConnectionId,
    pub(crate) number: u32,
    pub(crate) place: Turn,
}

/// Names a connection of a worker and never another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionId {
    pub(crate) queue_pair: QueuePair,
    pub(crate) serial: u64,
}

/// Where a later reply stands among the others of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Behind the entry that was the newest when the request came, if there was one.
    Behind(Option<u64>),
    /// An entry of its own.
    Entry(u64),
}

impl Ticket {
    pub(crate) fn new(mailbox: &Arc<Mailbox>, to: ConnectionId, number: u32, place: Turn) -> Ticket {
        mailbox.state.unfinished.fetch_add(1, Ordering::Relaxed);
        Ticket { mailbox: Some(mailbox.clone()), to, number, place }
    }

    /// The request's number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Answers the request: `body` appends the reply's body. Where the worker itself is at hand,
    /// [`Context::complete`](crate::Context::complete) spares the way through its mailbox.
    pub fn complete(mut self, body: impl FnOnce(&mut Vec<u8>)) {
        if let Some(mailbox) = &self.mailbox {
            let reply = Parcel::Bytes(message(self.number, body));
            mailbox.post(Letter::Reply { to: self.to, place: self.place, reply });
        }
        self.used();
    }

    /// Answers the request with a message from where it lies: a whole reply, with its header, no
    /// longer than the peer's buffers. Where the worker itself is at hand,
    /// [`Context::answer`](crate::Context::answer) spares the way through its mailbox.
    pub fn answer(mut self, reply: Message) {
        if let Some(mailbox) = &self.mailbox {
            mailbox.post(Letter::Reply { to: self.to, place: self.place, reply: Parcel::Message(reply) });
        }
        self.used();
    }

    /// It is used up: nothing more comes of it.
    pub(crate) fn used(&mut self) {
        if let Some(mailbox) = self.mailbox.take() {
            mailbox.state.unfinished.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(mailbox) = &self.mailbox {
            mailbox.post(Letter::Dropped { to: self.to, place: self.place, number: self.number });
        }
        self.used();
    }
}

/// Wakes a session from any thread: [`Session::woken`](crate::Session::woken) is called soon. Does
/// nothing once the connection has ended.
#[derive(Clone, Debug)]
pub struct SessionWaker {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) to: ConnectionId,
}

impl SessionWaker {
    /// Wakes it.
    pub fn wake(&self) {
        self.mailbox.post(Letter::Wake(self.to));
    }
}

/// What reaches a worker from other threads. It outlives a worker that panics.
#[derive(Debug)]
pub(crate) struct Mailbox {
    pub(crate) state: Arc<State>,
    letters: Mutex<Letters>,
    /// Something came since the worker last looked.
    signalled: AtomicBool,
    /// The worker holds messages back, and is to be woken when a watermark rises.
    holds: AtomicBool,
    wake: OwnedFd,
    serial: AtomicU64,
}

#[derive(Debug, Default)]
struct Letters {
    waiting: Vec<Letter>,
    /// The worker has ended and takes none any more.
    closed: bool,
}

/// A word to a connection.
#[derive(Debug)]
pub(crate) enum Letter {
    Reply { to: ConnectionId, place: Turn, reply: Parcel },
    Dropped { to: ConnectionId, place: Turn, number: u32 },
    Wake(ConnectionId),
}

impl Mailbox {
    /// # Errors
    /// When the system has no descriptor for it.
    pub(crate) fn new(state: &Arc<State>) -> Result<Arc<Mailbox>, VerbsError> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| VerbsError::System { what: "eventfd", reason: e.to_string() })?;
        let (letters, serial) = (Mutex::default(), AtomicU64::new(0));
        let (signalled, holds) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Arc::new(Mailbox { state: state.clone(), letters, signalled, holds, wake, serial }))
    }

    /// A number that no connection of this worker has had.
    pub(crate) fn serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    fn post(&self, letter: Letter) {
        {
            let mut letters = self.letters();
            if letters.closed {
                return;
            }
            letters.waiting.push(letter);
        }
        self.signal();
    }

    /// Tells the worker to look, and wakes it. Only the first of several signals costs a system
    /// call.
    pub(crate) fn signal(&self) {
        if !self.signalled.swap(true, Ordering::AcqRel) {
            // A full counter is awake enough.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// The worker looks before it sleeps: who has a letter for it need not wake it. Who stops the
    /// server does not wake it either.
    pub(crate) fn will_look(&self) {
        self.signalled.store(true, Ordering::Release);
    }

    /// Whether the worker holds messages back.
    pub(crate) fn holds(&self) -> bool {
        self.holds.load(Ordering::SeqCst)
    }

    /// Says whether it does; the watermarks are looked at afterwards.
    pub(crate) fn set_holds(&self, holds: bool) {
        self.holds.store(holds, Ordering::SeqCst);
    }

    /// Whether there was a signal since the last look.
    #[inline]
    pub(crate) fn look(&self) -> bool {
        self.signalled.load(Ordering::Relaxed) && self.signalled.swap(false, Ordering::AcqRel)
    }

    /// All that came.
    pub(crate) fn take(&self) -> Vec<Letter> {
        std::mem::take(&mut self.letters().waiting)
    }

    /// No letter is kept any more.
    pub(crate) fn close(&self) {
        let mut letters = self.letters();
        letters.closed = true;
        letters.waiting = Vec::new();
    }

    /// What a sleeping worker watches.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Drains what woke the worker, after a sleep. A signal that comes at the same time is not
    /// lost: the worker looks before it sleeps again.
    pub(crate) fn drain(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8][..]);
    }

    fn letters(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(|e| e.into_inner())
    }
}
