//! One client of a volume, over all of its connections.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use overside_service::SessionWaker;
use overside_volume::wire::{SessionReport, SessionRole, Status};

use super::ledger::Ledger;
use super::volume::Volume;
use super::{Writes, lock};

/// One client of a volume.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) session: u64,
    pub(super) volume: Arc<Volume>,
    /// It may write, as long as it is not fenced off.
    pub(super) writes: bool,
    /// The client's process, as it says itself.
    process: u32,
    /// Sessions that write together have the same; 0: it writes alone.
    pub(super) group: u64,
    fenced: AtomicBool,
    connections: AtomicUsize,
    /// When its last connection ended.
    left: Mutex<Option<Instant>>,
    requests: Mutex<Requests>,
}

#[derive(Debug, Default)]
struct Requests {
    ledger: Ledger,
    /// Connections that wait until nothing is in flight.
    waiting: Vec<SessionWaker>,
    /// What was carried out for it.
    ended: u64,
    bytes: u64,
}

impl Attachment {
    pub(super) fn new(session: u64, volume: Arc<Volume>, writes: bool, (process, group): (u32, u64)) -> Attachment {
        Attachment {
            session,
            volume,
            writes,
            process,
            group,
            fenced: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            left: Mutex::default(),
            requests: Mutex::default(),
        }
    }

    /// Whether a write is on stable storage when it is acknowledged. Of a group's sessions each one
    /// is: a client that kept what it wrote would write it again, after a loss of power, over what
    /// another of them wrote there since.
    pub(super) fn is_through(&self) -> bool {
        let is_one_of_several = self.group != 0 && !overside_disk::mutant("volume-group-writes-back");
        self.volume.writes == Writes::Through || is_one_of_several
    }

    /// Another writer takes its place: from now on it is refused.
    pub(super) fn fence(&self) {
        self.fenced.store(true, Ordering::Release);
    }

    /// Its place as a writer is free: from now on it is refused, and what it has under way ends
    /// before the next one begins.
    pub(super) fn let_go(self: &Arc<Self>) {
        self.fence();
        lock(&self.volume.writers).retain(|writer| !Arc::ptr_eq(writer, self));
        self.volume.replaced(self);
    }

    /// The client's process, as it says itself.
    pub(super) fn process(&self) -> u32 {
        self.process
    }

    pub(super) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    pub(super) fn connected(&self) {
        self.connections.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn disconnected(&self, now: Instant) {
        if self.connections.fetch_sub(1, Ordering::AcqRel) == 1 {
            *lock(&self.left) = Some(now);
        }
    }

    /// Nobody has been connected for longer than `linger`.
    pub(super) fn is_gone(&self, now: Instant, linger: Duration) -> bool {
        self.connections.load(Ordering::Acquire) == 0
            && lock(&self.left).is_some_and(|left| now.saturating_duration_since(left) >= linger)
    }

    pub(super) fn with<T>(&self, what: impl FnOnce(&mut Ledger) -> T) -> T {
        what(&mut lock(&self.requests).ledger)
    }

    /// Whether nothing is in flight; if something is, `waker` is used once that has changed.
    pub(super) fn is_quiet_or_wakes(&self, waker: impl FnOnce() -> SessionWaker) -> bool {
        let mut requests = lock(&self.requests);
        let quiet = requests.ledger.is_quiet();
        if !quiet {
            requests.waiting.push(waker());
        }
        quiet
    }

    /// A request has ended.
    pub(super) fn end(&self, number: u64, status: Status, remember: bool) {
        let mut requests = lock(&self.requests);
        if let Some(bytes) = requests.ledger.end(number, status, remember) {
            requests.ended += 1;
            requests.bytes += bytes;
        }
        if requests.ledger.is_quiet() {
            requests.waiting.drain(..).for_each(|waker| waker.wake());
        }
    }

    /// How it does.
    pub(super) fn report(&self, now: Instant) -> SessionReport {
        let requests = lock(&self.requests);
        let waiting = requests.ledger.oldest().map(|since| now.saturating_duration_since(since));
        SessionReport {
            session: self.session,
            process: self.process,
            role: match self.writes {
                _ if self.is_fenced() => SessionRole::Fenced,
                true => SessionRole::Writer,
                false => SessionRole::Reader,
            },
            connections: self.connections.load(Ordering::Acquire) as u32,
            in_flight: requests.ledger.in_flight() as u32,
            waiting_us: waiting.map(|waiting| waiting.as_micros() as u64),
            requests: requests.ended,
            bytes: requests.bytes,
        }
    }
}
