//! A thread that serves connections: requests in, replies and scans out, nobody waited for.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use overside_memory::{Buffer, Segment};
use overside_verbs::{CompletionQueue, Opcode, PortEvent, PortOptions, QueuePair, Status, VerbsError, WorkCompletion};
use rustix::event::EventfdFlags;

use super::Shared;
use super::aside::Aside;
use super::connection::Connection;
use super::house::Admitted;
use super::pace::{DOZE, Pace, Wait};
use super::transmit::Transmit;
use crate::wire::{BadMessage, REQUEST_BYTES_MAX};

/// Wakes a worker that sleeps.
#[derive(Clone, Debug)]
pub(crate) struct Waker(Arc<OwnedFd>);

impl Waker {
    /// # Errors
    /// When the system has no descriptor for it.
    pub(crate) fn new() -> Result<Self, VerbsError> {
        let descriptor = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| VerbsError::System { what: "eventfd", reason: e.to_string() })?;
        Ok(Self(Arc::new(descriptor)))
    }

    pub(crate) fn wake(&self) {
        // A full counter is awake enough.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    fn quiet(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0u8; 8][..]);
    }
}

/// A worker's state; lives on its thread.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    queue: CompletionQueue,
    waker: Waker,
    transmit: Transmit,
    connections: HashMap<QueuePair, Connection>,
    /// Connections with a scan or messages to send.
    busy: Vec<QueuePair>,
    /// Connections with a delete that waits for memory.
    parked: Vec<QueuePair>,
    pace: Pace,
    aside: Aside,
    spare: Vec<(u64, Buffer)>,
    swept: Instant,
}

impl Worker {
    /// # Errors
    /// When the system has no room for the worker's buffers and descriptors.
    pub(crate) fn new(shared: Arc<Shared>, waker: Waker) -> Result<Self, VerbsError> {
        let options = PortOptions { shared_receives: RECEIVES, wake_at_half: true, ..PortOptions::default() };
        // Room for a window, or the worker would never be sated.
        let options = PortOptions { depth: shared.options.window.clamp(options.depth, DEPTH_MAX), ..options };
        let queue = CompletionQueue::new(shared.provider.open_port(&shared.domain, options)?);
        let buffers = Segment::private(RECEIVE_BYTES * RECEIVES)?.carve(RECEIVE_BYTES);
        Ok(Self {
            transmit: Transmit::new(&shared, buffers[0].segment())?,
            shared,
            queue,
            waker,
            connections: HashMap::new(),
            busy: Vec::new(),
            parked: Vec::new(),
            pace: Pace::default(),
            aside: Aside::default(),
            spare: buffers.into_iter().map(|b| (0, b)).collect(),
            swept: Instant::now(),
        })
    }

    /// Serves until the server stops: the connections that come in through `links`.
    pub(crate) fn run(mut self, links: &Receiver<Admitted>) {
        let mut done = Vec::new();
        while !self.shared.house.stop.load(Ordering::Acquire) {
            self.round(links, &mut done, true);
        }
        let open: Vec<QueuePair> = self.connections.keys().copied().collect();
        open.into_iter().for_each(|qp| self.forget(qp));
    }

    /// Does what there is to do, and then waits for more if it `may_wait`; false when there was nothing.
    pub(super) fn round(&mut self, links: &Receiver<Admitted>, done: &mut Vec<WorkCompletion>, may_wait: bool) -> bool {
        self.take_links(links);
        self.retry();
        let _ = self.queue.post_receive(None, &mut self.spare);
        let waits = self.feed();
        if waits && may_wait {
            self.wait(done);
        } else {
            self.queue.poll(done);
        }
        let found = !done.is_empty();
        for completion in done.drain(..) {
            self.complete(completion);
        }
        while let Some(PortEvent::Disconnected { queue_pair, status, reason }) = self.queue.next_event() {
            // A client that says goodbye is no news.
            if status != Status::Flushed {
                self.tell(queue_pair, &reason);
            }
            self.forget(queue_pair);
        }
        self.sweep();
        found || !waits
    }

    /// Waits until something is done.
    fn wait(&mut self, done: &mut Vec<WorkCompletion>) {
        let (patience, sated) = (self.patience(), self.sated());
        if sated {
            self.aside.sated(self.shared.options.window);
        }
        let (spun, slept) = (self.queue.spun(), self.queue.sleeps());
        let waker = Some(self.waker.0.as_fd());
        let wait = self.pace.wait(sated, self.connections.len() == 1);
        // Only a failing system call ends the wait with an error; the next turn tries again.
        let _ = match wait {
            Wait::Poll => self.queue.poll_wait_or(done, patience, waker),
            Wait::Sleep => self.queue.sleep_or(done, patience, waker),
            Wait::Doze => self.queue.sleep_or(done, Some(patience.map_or(DOZE, |patience| patience.min(DOZE))), None),
        };
        let spun = self.queue.spun() - spun;
        self.shared.house.empty_poll_ns.fetch_add(spun.as_nanos() as u64, Ordering::Relaxed);
        let slept = self.queue.sleeps() > slept;
        if slept {
            self.waker.quiet();
        }
        self.pace.waited(wait, slept, !done.is_empty());
    }

    fn take_links(&mut self, links: &Receiver<Admitted>) {
        while let Ok(Admitted { link, place }) = links.try_recv() {
            let peer = link.peer.description.clone();
            match self.queue.attach(link) {
                Ok(queue_pair) => drop(self.connections.insert(queue_pair, Connection::new(queue_pair, peer, place))),
                Err(error) => self.shared.house.say(&format!("the connection of {peer} could not be set up: {error}")),
            }
        }
    }

    /// Goes on with deletes that waited for memory, if it is time.
    fn retry(&mut self) {
        let now = Instant::now();
        for at in (0..self.parked.len()).rev() {
            let queue_pair = self.parked[at];
            let due = self.connections.get(&queue_pair).and_then(Connection::due);
            if due.is_none_or(|due| due <= now) {
                self.parked.swap_remove(at);
                self.attend(queue_pair, |connection, shared, transmit| connection.resume(shared, transmit));
            }
        }
    }

    /// Lets a connection do something of what it was asked for, and sees to what comes of it.
    fn attend(
        &mut self,
        queue_pair: QueuePair,
        what: impl FnOnce(&mut Connection, &Shared, &Transmit) -> Result<(), BadMessage>,
    ) {
        let Some(connection) = self.connections.get_mut(&queue_pair) else { return };
        if let Err(BadMessage(what)) = what(connection, &self.shared, &self.transmit) {
            return self.dismiss(queue_pair, what);
        }
        if connection.overflows() {
            return self.dismiss(queue_pair, "it asks on and on and takes no answer");
        }
        if connection.due().is_some() && !self.parked.contains(&queue_pair) {
            self.parked.push(queue_pair);
        }
        if !self.busy.contains(&queue_pair) {
            self.busy.push(queue_pair);
        }
        // Many that leave a little must not fill the memory either.
        if connection.waiting_bytes() > WAITING_BYTES_EACH && self.waits_too_much() {
            self.dismiss(queue_pair, "it takes no answer, and too many bytes wait for clients that take none");
        }
    }

    /// Whether more waits for all its clients together than may.
    fn waits_too_much(&self) -> bool {
        self.connections.values().map(Connection::waiting_bytes).sum::<u64>() > WAITING_BYTES_MAX
    }

    fn complete(&mut self, completion: WorkCompletion) {
        let connection = completion.queue_pair.and_then(|qp| self.connections.get_mut(&qp));
        if completion.opcode == Opcode::Send {
            if let Some(connection) = connection {
                connection.completed();
                self.aside.taken();
            }
            return;
        }
        let Some(buffer) = completion.buffer else { return };
        if completion.status == Status::Success
            && let Some(queue_pair) = completion.queue_pair
        {
            let message = &buffer[..completion.bytes as usize];
            self.attend(queue_pair, |connection, shared, transmit| connection.request(shared, transmit, message));
        }
        self.spare.push((0, buffer));
    }

    /// Gives every busy connection a turn; true when nothing can be done before something completes.
    fn feed(&mut self) -> bool {
        let mut waits = true;
        let mut at = 0;
        while at < self.busy.len() {
            let Some(connection) = self.connections.get_mut(&self.busy[at]) else {
                self.busy.swap_remove(at);
                continue;
            };
            let produced = connection.produce(&self.shared, &self.transmit);
            let room = connection.window(&self.shared.options).saturating_sub(connection.in_flight);
            if !connection.outbox.is_empty() && room > 0 {
                if connection.in_flight == 0 {
                    connection.progressed = Instant::now();
                }
                let before = connection.outbox.len();
                let posted = self.queue.post(connection.queue_pair, &mut connection.outbox);
                connection.in_flight += before - connection.outbox.len();
                self.aside.posted(before - connection.outbox.len());
                if let Err(error) = posted {
                    let queue_pair = connection.queue_pair;
                    self.dismiss(queue_pair, &error.to_string());
                    continue;
                }
                waits &= before == connection.outbox.len() && !produced;
            }
            if connection.scan.is_none() && connection.outbox.is_empty() {
                self.busy.swap_remove(at);
            } else {
                at += 1;
            }
        }
        waits
    }

    /// Whether nothing is to be done before clients have taken half of what is under way to them.
    fn sated(&self) -> bool {
        let sated = |qp| {
            let connection: Option<&Connection> = self.connections.get(qp);
            connection.is_some_and(|c| c.scan.is_some() && c.in_flight >= c.window(&self.shared.options))
        };
        !self.busy.is_empty() && self.busy.iter().all(sated)
    }

    /// How long it may sleep: for ever when nobody owes anything.
    fn patience(&self) -> Option<Duration> {
        let owed = self.busy.iter().any(|qp| self.connections.contains_key(qp))
            || self.connections.values().any(|c| c.in_flight > 0 || c.is_strange());
        let retry = self.parked.iter().filter_map(|qp| self.connections.get(qp)?.due()).min();
        let retry = retry.map(|due| due.saturating_duration_since(Instant::now()));
        owed.then_some(SWEEP).into_iter().chain(retry).min()
    }

    /// Closes connections that have not taken anything for too long.
    fn sweep(&mut self) {
        if self.swept.elapsed() < SWEEP {
            return;
        }
        self.swept = Instant::now();
        self.transmit.trim();
        self.connections.values_mut().for_each(Connection::forget_dropped);
        let deadline = self.shared.options.deadline;
        let late = |c: &&Connection| c.in_flight > 0 && c.progressed.elapsed() > deadline;
        let late: Vec<QueuePair> = self.connections.values().filter(late).map(|c| c.queue_pair).collect();
        late.into_iter().for_each(|qp| self.dismiss(qp, "it did not take what was sent in time"));
        let strange = self.connections.values().filter(|c| c.is_overdue(deadline)).map(|c| c.queue_pair);
        let strange: Vec<QueuePair> = strange.collect();
        strange.into_iter().for_each(|qp| self.dismiss(qp, "it did not introduce itself in time"));
    }

    /// Closes a connection for cause.
    fn dismiss(&mut self, queue_pair: QueuePair, why: &str) {
        self.tell(queue_pair, why);
        self.shared.house.closed_for_cause.fetch_add(1, Ordering::Relaxed);
        self.forget(queue_pair);
    }

    /// Tells the operator how a connection ended.
    fn tell(&self, queue_pair: QueuePair, why: &str) {
        if let Some(connection) = self.connections.get(&queue_pair) {
            self.shared.house.say(&format!("the connection of {} ended: {why}", connection.peer));
        }
    }

    fn forget(&mut self, queue_pair: QueuePair) {
        self.queue.close(queue_pair);
        self.connections.remove(&queue_pair);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.transmit.close();
    }
}

/// Receive buffers of a worker, shared by all its connections.
const RECEIVES: usize = 32;
/// Each takes the longest request. Untouched memory is not there, so their length costs nothing.
const RECEIVE_BYTES: usize = REQUEST_BYTES_MAX;
/// Requests of one connection in its provider's rings, whatever the window.
const DEPTH_MAX: usize = 1024;
/// How often late clients are looked for.
const SWEEP: Duration = Duration::from_secs(1);
/// Bytes that may wait for all clients of a worker together, and what each may have of them in any case: the longest reply but one.
const WAITING_BYTES_MAX: u64 = 256 << 20;
const WAITING_BYTES_EACH: u64 = 2 << 20;
