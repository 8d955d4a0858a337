//! The socket of a connection, shared by the port that owns it and by whoever registers memory.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use overside_memory::{Segment, Window};
use rustix::io::Errno;

use crate::messages::{BYTES_MAX, Message};
use crate::socket::{self, Arrival};

/// Sends control messages in order; what does not fit waits here. Never blocks.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: OwnedFd,
    waiting: Mutex<VecDeque<Outgoing>>,
    /// Whether something waits.
    blocked: AtomicBool,
}

/// The memory whose descriptor a message carries.
#[derive(Clone, Debug)]
pub(crate) enum Carried {
    Nothing,
    Segment(Arc<Segment>),
    /// To be written, or to be read and no more.
    Window(Arc<Window>, bool),
}

impl Carried {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Carried::Nothing => None,
            Carried::Segment(segment) => segment.fd(),
            // Refused before it was registered, if at all.
            Carried::Window(window, write) => window.share(*write).ok(),
        }
    }
}

#[derive(Debug)]
struct Outgoing {
    bytes: [u8; BYTES_MAX],
    len: usize,
    carried: Carried,
}

/// What arrived on a channel.
#[derive(Debug)]
pub(crate) enum Incoming {
    Message(Message, Option<OwnedFd>),
    Nothing,
    End,
    Malformed,
}

impl Channel {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, waiting: Mutex::default(), blocked: AtomicBool::new(false) }
    }

    /// Sends a message after all earlier ones, now or when there is room. A connection that is
    /// gone swallows it: whoever reads from it will notice.
    pub(crate) fn send(&self, message: &Message, carried: Carried) {
        let mut bytes = [0; BYTES_MAX];
        let len = message.encode(&mut bytes);
        let mut waiting = self.lock();
        if waiting.is_empty() && socket::send(&self.socket, &bytes[..len], carried.fd()) != Err(Errno::AGAIN) {
            return;
        }
        waiting.push_back(Outgoing { bytes, len, carried });
        self.blocked.store(true, Ordering::Release);
    }

    /// Wakes the peer. When the socket is full, the peer has something to wake up for already.
    pub(crate) fn ring(&self) {
        let mut bytes = [0; BYTES_MAX];
        let len = Message::Bell.encode(&mut bytes);
        let _ = socket::send(&self.socket, &bytes[..len], None);
    }

    /// Whether messages wait for room. Descriptors that rely on them must not be published yet.
    #[inline]
    pub(crate) fn blocked(&self) -> bool {
        self.blocked.load(Ordering::Acquire)
    }

    /// Sends what waits, as far as there is room.
    pub(crate) fn flush(&self) {
        let mut waiting = self.lock();
        while let Some(next) = waiting.front() {
            if socket::send(&self.socket, &next.bytes[..next.len], next.carried.fd()) == Err(Errno::AGAIN) {
                return;
            }
            waiting.pop_front();
        }
        self.blocked.store(false, Ordering::Release);
    }

    /// The next message.
    pub(crate) fn receive(&self) -> Incoming {
        // One byte more than any message has, so that longer ones show.
        let mut bytes = [0; BYTES_MAX + 1];
        match socket::receive(&self.socket, &mut bytes) {
            Arrival::Nothing => Incoming::Nothing,
            Arrival::End => Incoming::End,
            Arrival::Malformed => Incoming::Malformed,
            Arrival::Message(len, fd) => match Message::decode(&bytes[..len]) {
                Some(message) if message.carries() == fd.is_some() => Incoming::Message(message, fd),
                _ => Incoming::Malformed,
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Outgoing>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
