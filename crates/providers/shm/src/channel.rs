//! The socket of a connection, shared by the port that owns it and by whoever registers memory.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use overside_memory::{Segment, Window};
use rustix::io::Errno;

use crate::fate::{Fate, OUT_OF_MEMORY};
use crate::messages::{BYTES_MAX, Message};
use crate::socket::{self, Arrival, Connected, Passed};

/// Sends control messages in order; what does not fit waits here. Never blocks.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: Connected,
    /// Whether this side connected, so that the peer lets it share only so much.
    pub(crate) made: bool,
    waiting: Mutex<VecDeque<Outgoing>>,
    /// Whether something waits, or will never be sent.
    blocked: AtomicBool,
    /// Why nothing is sent any more.
    fault: OnceLock<Fate>,
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
    Message(Message, Option<Passed>),
    Nothing,
    End,
    Malformed,
    NoDescriptor,
}

impl Channel {
    pub(crate) fn new(socket: Connected, made: bool) -> Self {
        let (waiting, blocked) = (Mutex::default(), AtomicBool::new(false));
        Self { socket, made, waiting, blocked, fault: OnceLock::new() }
    }

    /// Sends a message after all earlier ones, now or when there is room. A connection that is
    /// gone swallows it: whoever reads from it will notice. So he will where it cannot be sent at
    /// all: the channel comes to its end.
    pub(crate) fn send(&self, message: &Message, carried: Carried) {
        let mut bytes = [0; BYTES_MAX];
        let len = message.encode(&mut bytes);
        let mut waiting = self.lock();
        if self.fault.get().is_some() {
            return;
        }
        if waiting.is_empty() {
            match socket::send(&self.socket, &bytes[..len], carried.fd()) {
                Err(Errno::AGAIN) => {}
                sent => return self.sent(sent, &mut waiting),
            }
        }
        self.blocked.store(true, Ordering::Release);
        if waiting.len() >= WAITING_MAX {
            return self.fail(UNREAD, &mut waiting);
        }
        waiting.push_back(Outgoing { bytes, len, carried });
    }

    /// Nothing is heard any more but what was said by now.
    pub(crate) fn close_to_receiving(&self) {
        self.socket.close_to_receiving();
    }

    /// Why nothing is sent any more, if that is so.
    pub(crate) fn fault(&self) -> Option<Fate> {
        self.fault.get().copied()
    }

    /// Sees to what came of sending.
    fn sent(&self, sent: Result<(), Errno>, waiting: &mut VecDeque<Outgoing>) {
        match sent {
            Err(Errno::TOOMANYREFS) => self.fail(IN_FLIGHT, waiting),
            Err(Errno::NOBUFS | Errno::NOMEM) => self.fail(OUT_OF_MEMORY, waiting),
            // Whoever is gone shows to who reads.
            _ => {}
        }
    }

    /// Ends the channel: what is to come relies on what was not sent. The port sees the socket's
    /// end, also if it sleeps.
    fn fail(&self, why: Fate, waiting: &mut VecDeque<Outgoing>) {
        waiting.clear();
        self.blocked.store(true, Ordering::Release);
        let _ = self.fault.set(why);
        self.socket.close_to_receiving();
    }

    /// Wakes the peer. When the socket is full, the peer has something to wake up for already.
    pub(crate) fn ring(&self) {
        let mut bytes = [0; BYTES_MAX];
        let len = Message::Doorbell.encode(&mut bytes);
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
            let sent = socket::send(&self.socket, &next.bytes[..next.len], next.carried.fd());
            if sent == Err(Errno::AGAIN) {
                return;
            }
            waiting.pop_front();
            self.sent(sent, &mut waiting);
        }
        self.blocked.store(self.fault.get().is_some(), Ordering::Release);
    }

    /// The next message.
    pub(crate) fn receive(&self) -> Incoming {
        // One byte more than any message has, so that longer ones show.
        let mut bytes = [0; BYTES_MAX + 1];
        match socket::receive(&self.socket, &mut bytes) {
            Arrival::Nothing => Incoming::Nothing,
            Arrival::End => Incoming::End,
            Arrival::Malformed => Incoming::Malformed,
            Arrival::NoDescriptor => Incoming::NoDescriptor,
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

/// Messages that wait for a peer which reads none: all regions that a domain may grant at once,
/// many times over.
const WAITING_MAX: usize = 1 << 16;
const UNREAD: Fate = Fate::Exhausted("the peer does not read what it is told of this process' memory");
const IN_FLIGHT: Fate = Fate::Exhausted(
    "this user's processes have passed as many descriptors as they may without their being received; raise the limit (ulimit -n), or end \
     the program that does not take them",
);
