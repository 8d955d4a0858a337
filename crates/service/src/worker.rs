//! A thread that serves connections: requests in, replies and streams out. It waits for no peer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use overside_memory::Buffer;
use overside_transfer::{Ended, Endpoint, Ring, RingOptions};
use overside_verbs::spin::{Expects, Spin, Wait};
use overside_verbs::{
    Link, Opcode, PortOptions, ProtectionDomain, Provider, QueuePair, Status, VerbsError, WorkCompletion, WorkRequest,
};

use crate::attended::{Attends, Went};
use crate::carry::{Carry, Watch};
use crate::connection::Outgoing;
use crate::context::{Context, Lends};
use crate::envelope::{self, BadMessage, MessageKind};
use crate::latency::Recorder;
use crate::options::ServiceOptions;
use crate::ordered::Parcel;
use crate::state::Permit;
use crate::system::{Produced, Session, System};
use crate::ticket::{ConnectionId, Letter, Mailbox};
use crate::transmit::Transmit;

/// A connection on its way to a worker.
pub(crate) struct Arrival<S> {
    pub(crate) link: Link,
    pub(crate) origin: Origin<S>,
}

/// Who opened a connection.
pub(crate) enum Origin<S> {
    Peer(Permit),
    /// This side, for this session; and the length of the peer's receive buffers.
    Us(S, usize),
}

/// What all workers of a provider share.
#[derive(Debug)]
pub(crate) struct WorkerConfig<S> {
    pub(crate) system: Arc<S>,
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) domain: ProtectionDomain,
    pub(crate) options: Arc<ServiceOptions>,
}

struct Connection<S> {
    out: Outgoing,
    session: S,
}

/// A worker's state; lives on its thread.
pub(crate) struct Worker<S: System> {
    system: Arc<S>,
    endpoint: Endpoint,
    /// Receives, shared by all connections. Each takes the longest request; untouched memory is not
    /// there, so their length costs nothing.
    ring: Ring,
    lends: Lends,
    connections: BTreeMap<QueuePair, Box<Connection<S::Session>>>,
    /// Connections with a stream or messages to send.
    busy: Vec<QueuePair>,
    /// Connections whose session is to be woken at some time.
    timed: Vec<QueuePair>,
    /// Connections with messages that wait for a watermark, and what is known of the marks.
    holding: Vec<QueuePair>,
    watch: Watch,
    /// Where what requests take is recorded, if it is.
    recorder: Option<Arc<Recorder>>,
    /// Any of what it attends to may have something: it has slept.
    looks: bool,
    /// When it last looked at all of that.
    looked: Instant,
    /// When this round began.
    now: Instant,
    swept: Instant,
}

impl<S: System> Worker<S> {
    /// # Errors
    /// When the system has no room for the worker's buffers and descriptors.
    pub(crate) fn new(config: &WorkerConfig<S>, mailbox: Arc<Mailbox>) -> Result<Self, VerbsError> {
        let WorkerConfig { system, provider, domain, options } = config;
        let count = (RECEIVES_BYTES_MAX / options.request_bytes_max.max(1)).clamp(2, RECEIVES);
        let port = PortOptions { shared_receives: count, wake_at_half: true, ..PortOptions::default() };
        // Room for a window, or the window would never be full.
        let port = PortOptions { depth: options.window.clamp(port.depth, DEPTH_MAX), ..port };
        let mut endpoint = Endpoint::builder(provider.clone()).domain(domain.clone()).port(port).open()?;
        let receives = RingOptions { bytes: options.request_bytes_max, count, ..RingOptions::default() };
        let ring = endpoint.ring(receives)?;
        let transmit = Transmit::new(provider.clone(), domain.clone(), options.transmit)?;
        let watch = Watch::new(options.watermarks.clone(), &mailbox, Spin::new(SPIN_MAX))?;
        let recorder = options.latencies.as_ref().map(|latencies| latencies.enlist());
        let (state, clock) = (mailbox.state.clone(), provider.clock());
        let attends = Attends::new(&mailbox)?;
        let now = clock.now();
        Ok(Self {
            system: system.clone(),
            endpoint,
            ring,
            lends: Lends { state, options: options.clone(), transmit, mailbox, attends, clock },
            connections: BTreeMap::new(),
            busy: Vec::new(),
            timed: Vec::new(),
            holding: Vec::new(),
            watch,
            recorder,
            looks: false,
            looked: now,
            now,
            swept: now,
        })
    }

    /// Serves until the server stops: the connections that come in through `arrivals`.
    pub(crate) fn run(mut self, arrivals: &Receiver<Arrival<S::Session>>) {
        let mut done = Vec::new();
        while !self.lends.state.stop.load(Ordering::Acquire) {
            self.round(arrivals, &mut done, true);
        }
        self.lends.mailbox.close();
        let open: Vec<QueuePair> = self.connections.keys().copied().collect();
        open.into_iter().for_each(|qp| self.forget(qp, "the server stops"));
    }

    /// Does what there is to do, and then waits for more if it `may_wait`; false when there was
    /// nothing.
    pub(crate) fn round(
        &mut self,
        arrivals: &Receiver<Arrival<S::Session>>,
        done: &mut Vec<WorkCompletion>,
        may_wait: bool,
    ) -> bool {
        self.now = self.lends.clock.now();
        let mut found = false;
        let went = self.go_on();
        if self.lends.mailbox.look() {
            let arrived = self.take_arrivals(arrivals);
            found = self.take_letters() || arrived || went == Went::Nowhere;
        }
        self.wake_due();
        self.watch.go_on(!self.holding.is_empty());
        if !self.holding.is_empty() {
            self.release();
        }
        let _ = self.ring.post(self.endpoint.queue());
        // Who went on had the mailbox look signalled, so that whoever stops the server did not wake this thread.
        let stops = went == Went::On && self.lends.state.stop.load(Ordering::Acquire);
        let waits = self.feed() && went != Went::Again && !stops;
        if waits && may_wait {
            self.wait(done);
        } else {
            self.endpoint.queue().poll(done);
        }
        found |= !done.is_empty();
        for completion in done.drain(..) {
            self.complete(completion);
        }
        while let Some(Ended { queue_pair, status, reason }) = self.endpoint.next_end() {
            // A client that says goodbye is no news.
            if status != Status::Flushed {
                self.tell(queue_pair, &reason);
            }
            self.forget(queue_pair, &reason);
        }
        self.sweep();
        found || !waits
    }

    /// Goes on with what it attends to. With all of it after a sleep, and now and then where it
    /// never sleeps: no request waits for what a device does of its own accord.
    fn go_on(&mut self) -> Went {
        if self.lends.attends.is_empty() {
            return Went::Nowhere;
        }
        let all = self.looks || self.now.saturating_duration_since(self.looked) >= LOOK;
        if all {
            self.looked = self.now;
        }
        let went = self.lends.attends.go_on(all, &self.lends.mailbox);
        self.looks = went == Went::Again;
        went
    }

    /// Waits until something is done.
    fn wait(&mut self, done: &mut Vec<WorkCompletion>) {
        if self.watch.carry.as_ref().is_some_and(Carry::attends) {
            return self.wait_for_log(done);
        }
        let (patience, full) = (self.patience(), self.windows_full());
        let Self { endpoint, lends, connections, .. } = self;
        let queue = endpoint.queue();
        let (spun, slept) = (queue.spun(), queue.sleeps());
        let attends = !lends.attends.is_empty();
        let other = Some(if attends { lends.attends.fd() } else { lends.mailbox.fd() });
        // Who sleeps without a look at the mailbox would notice a finished request late.
        let is_alone = |c: &Connection<S::Session>| c.out.unfinished == 0 && !c.out.holds();
        let alone = !attends && connections.len() == 1 && connections.values().all(|c| is_alone(c));
        // Only a failing system call ends the wait with an error; the next turn tries again.
        let _ = match full {
            false => queue.poll_wait_or(done, patience, other),
            true => queue.poll_wait_half(done, patience, other, alone),
        };
        let spun = queue.spun() - spun;
        lends.state.empty_poll_ns.fetch_add(spun.as_nanos() as u64, Ordering::Relaxed);
        if queue.sleeps() > slept {
            lends.mailbox.drain();
            self.looks = attends;
        }
        self.now = self.lends.clock.now();
    }

    /// Waits until something is done, or the log can go on.
    fn wait_for_log(&mut self, done: &mut Vec<WorkCompletion>) {
        let patience = self.patience();
        let Self { endpoint, lends, watch: Watch { carry: Some(carry), .. }, looks, .. } = self else { return };
        let queue = endpoint.queue();
        let (start, wait) = (lends.clock.now(), carry.spin.begin(Expects::Answer));
        let mut found = queue.poll(done) > 0;
        let mut polled = Duration::ZERO;
        if let Wait::Poll(budget) = wait {
            while !found && polled < budget {
                found = queue.poll(done) > 0 || carry.is_readable();
                polled = lends.clock.now().saturating_duration_since(start);
            }
            lends.state.empty_poll_ns.fetch_add(polled.as_nanos() as u64, Ordering::Relaxed);
        }
        if found {
            carry.spin.found();
        } else {
            // Where the system refuses to wait, the next turn tries again. What wakes by the mailbox is looked at there.
            if queue.arm().unwrap_or(false) {
                let until = patience.map(|patience| lends.clock.now() + patience);
                let all = [queue.fd(), carry.fd(), lends.attends.fd()];
                let watched = if lends.attends.is_empty() { &all[..2] } else { &all[..] };
                let _ = lends.clock.wait(watched, until);
                lends.mailbox.drain();
                *looks = true;
            }
            queue.poll(done);
            let slept = lends.clock.now().saturating_duration_since(start).saturating_sub(polled);
            carry.spin.slept(wait, Some(slept), true);
        }
        self.now = self.lends.clock.now();
    }

    /// Takes new connections. Whether there were any.
    fn take_arrivals(&mut self, arrivals: &Receiver<Arrival<S::Session>>) -> bool {
        let mut found = false;
        while let Ok(Arrival { link, origin }) = arrivals.try_recv() {
            found = true;
            let peer = link.peer.clone();
            let queue_pair = match self.endpoint.attach(link) {
                Ok(queue_pair) => queue_pair,
                Err(error) => {
                    let peer = &peer.description;
                    self.lends.state.say(&format!("the connection of {peer} could not be set up: {error}"));
                    if let Origin::Us(mut session, _) = origin {
                        session.ended(&error.to_string());
                    }
                    continue;
                }
            };
            let (session, permit, buffer_bytes) = match origin {
                Origin::Peer(permit) => (self.system.session(), Some(permit), self.lends.options.buffer_bytes),
                Origin::Us(session, buffer_bytes) => (session, None, buffer_bytes),
            };
            let id = ConnectionId { queue_pair, serial: self.lends.mailbox.serial() };
            let out = Outgoing::new(id, peer, permit, buffer_bytes, self.now);
            self.connections.insert(queue_pair, Box::new(Connection { out, session }));
            self.attend(queue_pair, |session, context| {
                session.opened(context);
                Ok(())
            });
        }
        found
    }

    /// Takes what has ended, and what other threads have to say to sessions. Whether there was
    /// anything.
    fn take_letters(&mut self) -> bool {
        let letters = self.lends.mailbox.take();
        let found = !letters.is_empty();
        for letter in letters {
            let (Letter::Reply { to, .. } | Letter::Dropped { to, .. } | Letter::Wake(to)) = letter;
            // Its connection may be gone, and its queue pair another's in a worker that began again.
            if self.connections.get(&to.queue_pair).is_none_or(|c| c.out.id != to) {
                continue;
            }
            let system = self.system.clone();
            self.attend(to.queue_pair, |session, context| match letter {
                Letter::Wake(_) => session.woken(context),
                Letter::Reply { place, reply, .. } => {
                    context.finish(place, reply);
                    Ok(())
                }
                Letter::Dropped { place, number, .. } => {
                    let reply = envelope::message(number, |body| system.unfinished(body));
                    context.finish(place, Parcel::Bytes(reply));
                    Ok(())
                }
            });
        }
        found
    }

    /// Wakes the sessions whose time has come.
    fn wake_due(&mut self) {
        for at in (0..self.timed.len()).rev() {
            let queue_pair = self.timed[at];
            let out = self.connections.get_mut(&queue_pair).map(|c| &mut c.out);
            if out.as_ref().and_then(|out| out.due).is_some_and(|due| due > self.now) {
                continue;
            }
            self.timed.swap_remove(at);
            if let Some(out) = out {
                out.is_timed = false;
                if out.due.take().is_some() {
                    self.attend(queue_pair, |session, context| session.woken(context));
                }
            }
        }
    }

    /// Sends what waited for watermarks that were reached meanwhile.
    fn release(&mut self) {
        let Some(reached) = self.watch.look() else { return };
        for at in (0..self.holding.len()).rev() {
            let queue_pair = self.holding[at];
            let Some(Connection { out, .. }) = self.connections.get_mut(&queue_pair).map(|c| &mut **c) else {
                self.holding.swap_remove(at);
                continue;
            };
            out.release(reached);
            if !out.holds() {
                out.is_holding = false;
                self.holding.swap_remove(at);
            }
            if !out.outbox.is_empty() && !std::mem::replace(&mut out.is_busy, true) {
                self.busy.push(queue_pair);
            }
        }
        if self.holding.is_empty() {
            self.watch.holds_nothing();
        }
    }

    /// Calls a session, and sees to what comes of it.
    #[inline]
    fn attend(
        &mut self,
        queue_pair: QueuePair,
        what: impl FnOnce(&mut S::Session, &mut Context<'_>) -> Result<(), BadMessage>,
    ) {
        let Some(connection) = self.connections.get_mut(&queue_pair) else { return };
        let Connection { out, session } = &mut **connection;
        let outcome = what(session, &mut Context::new(out, &self.lends));
        let outcome = outcome.and_then(|()| catch_up(out, session, &self.lends));
        if let Err(BadMessage(what)) = outcome {
            return self.dismiss(queue_pair, what);
        }
        if out.overflows() {
            return self.dismiss(queue_pair, "it asks on and on and takes no answer");
        }
        if out.due.is_some() && !std::mem::replace(&mut out.is_timed, true) {
            self.timed.push(queue_pair);
        }
        if out.holds() && !std::mem::replace(&mut out.is_holding, true) {
            self.holding.push(queue_pair);
        }
        let waiting = out.waiting_bytes();
        if !std::mem::replace(&mut out.is_busy, true) {
            self.busy.push(queue_pair);
        }
        // Many that leave a little must not fill the memory either.
        if waiting > WAITING_BYTES_EACH && self.waits_too_much() {
            self.dismiss(queue_pair, "it takes no answer, and too many bytes wait for clients that take none");
        }
    }

    /// Whether more waits for all its peers together than may.
    fn waits_too_much(&self) -> bool {
        self.connections.values().map(|c| c.out.waiting_bytes()).sum::<u64>() > WAITING_BYTES_MAX
    }

    fn complete(&mut self, completion: WorkCompletion) {
        if let Opcode::Send | Opcode::Release = completion.opcode {
            if let Some(connection) = completion.queue_pair.and_then(|qp| self.connections.get_mut(&qp)) {
                match completion.opcode {
                    Opcode::Release => connection.out.released(completion.id, self.now),
                    _ => connection.out.sent(completion.id, self.now),
                }
            }
            return;
        }
        let Some(buffer) = completion.buffer else { return };
        if completion.opcode == Opcode::Read {
            return self.has_read(completion.queue_pair, completion.id, completion.status, buffer);
        }
        self.ring.completed();
        if completion.status == Status::Success
            && let Some(queue_pair) = completion.queue_pair
        {
            self.receive(queue_pair, &buffer[..completion.bytes as usize]);
        }
        self.ring.put(buffer);
    }

    /// A READ has ended.
    fn has_read(&mut self, queue_pair: Option<QueuePair>, id: u64, status: Status, buffer: Buffer) {
        let connection = queue_pair.and_then(|qp| Some((qp, self.connections.get_mut(&qp)?)));
        let Some((queue_pair, connection)) = connection else { return self.system.unread(buffer) };
        let out = &mut connection.out;
        out.reading.pop_front();
        if status != Status::Success {
            self.system.unread(buffer);
            return self.dismiss(queue_pair, "it does not let memory be read that it grants");
        }
        self.attend(queue_pair, |session, context| session.read(context, id, buffer));
    }

    /// Hands a message to its session, unless an unfinished request holds it up.
    fn receive(&mut self, queue_pair: QueuePair, message: &[u8]) {
        let Some(connection) = self.connections.get_mut(&queue_pair) else { return };
        let Connection { out, session } = &mut **connection;
        let held_up = out.barrier.is_some()
            && envelope::open(message).is_ok_and(|(_, body)| out.permit.is_none() || !session.overtakes(body));
        if held_up {
            out.hold_up(message);
        }
        let arrived = self.recorder.as_ref().filter(|_| out.permit.is_some()).map(|_| self.now);
        self.attend(queue_pair, |session, context| match arrived {
            _ if held_up => Ok(()),
            None => heard(session, context, message),
            Some(at) => context.timed(at, |context| heard(session, context, message)),
        });
    }

    /// Gives every busy connection a turn; true when nothing can be done before something
    /// completes.
    fn feed(&mut self) -> bool {
        let mut waits = true;
        let mut at = 0;
        while at < self.busy.len() {
            let Some(connection) = self.connections.get_mut(&self.busy[at]) else {
                self.busy.swap_remove(at);
                continue;
            };
            let Connection { out, session } = &mut **connection;
            let window = out.window(self.lends.options.window, self.lends.options.buffer_bytes);
            let produced = out.streams() && produce(out, session, &self.lends, window);
            if out.holds() {
                // The marks are looked at before a wait.
                let is_new = !std::mem::replace(&mut out.is_holding, true);
                if is_new {
                    self.holding.push(out.id.queue_pair);
                }
                waits &= !produced && !is_new;
            }
            if !out.outbox.is_empty() && window > out.in_flight {
                if out.in_flight == 0 {
                    out.progressed = self.now;
                }
                let before = out.outbox.len();
                let posted = self.endpoint.queue().post(out.id.queue_pair, &mut out.outbox);
                out.posted(before - out.outbox.len());
                if let Some(recorder) = self.recorder.as_ref().filter(|_| out.is_measured()) {
                    recorder.record(self.lends.clock.now(), out.take_posted());
                }
                if let Err(error) = posted {
                    let queue_pair = out.id.queue_pair;
                    self.dismiss(queue_pair, &error.to_string());
                    continue;
                }
                waits &= before == out.outbox.len() && !produced;
            }
            if !out.reads.is_empty() {
                let before = out.reads.len();
                let posted = self.endpoint.queue().post(out.id.queue_pair, &mut out.reads);
                out.reading.extend(std::iter::repeat_n(self.now, before - out.reads.len()));
                if let Err(error) = posted {
                    let queue_pair = out.id.queue_pair;
                    self.dismiss(queue_pair, &error.to_string());
                    continue;
                }
                waits &= before == out.reads.len();
            }
            if out.stream.is_none() && out.outbox.is_empty() && out.reads.is_empty() {
                out.is_busy = false;
                self.busy.swap_remove(at);
            } else {
                at += 1;
            }
        }
        waits
    }

    /// Whether nothing can be done before peers have taken half of what is in flight to them.
    fn windows_full(&self) -> bool {
        let options = &self.lends.options;
        let full = |qp: &QueuePair| {
            self.connections.get(qp).is_some_and(|connection| {
                let out = &connection.out;
                let full = out.in_flight >= out.window(options.window, options.buffer_bytes);
                // Or it waits for its own messages to end, for their transmit buffers or their places in the queue.
                let waits = out.in_flight > 0 && (out.starved || !out.outbox.is_empty());
                out.stream.is_some() && (full || waits)
            })
        };
        !self.busy.is_empty() && self.busy.iter().all(full)
    }

    /// How long it may sleep: for ever when nothing is owed.
    fn patience(&self) -> Option<Duration> {
        let owed = self.busy.iter().any(|qp| self.connections.contains_key(qp))
            || self.connections.values().any(|c| c.out.in_flight > 0 || !c.out.reading.is_empty() || !c.out.admitted);
        let due = self.timed.iter().filter_map(|qp| self.connections.get(qp)?.out.due).min();
        let due = due.map(|due| due.saturating_duration_since(self.now));
        owed.then_some(SWEEP).into_iter().chain(due).min()
    }

    /// Closes connections that have not taken anything for too long.
    fn sweep(&mut self) {
        if self.now.saturating_duration_since(self.swept) < SWEEP {
            return;
        }
        self.swept = self.now;
        self.lends.transmit.trim();
        self.connections.values_mut().for_each(|c| c.session.tidy());
        let overdue = |since| self.now.saturating_duration_since(since) > self.lends.options.deadline;
        let late = |out: &Outgoing| {
            let untaken = out.in_flight > 0 && overdue(out.progressed);
            let strange = !out.admitted && overdue(out.since);
            let kept = out.lent.kept_since().is_some_and(overdue);
            let why = (strange, "it did not introduce itself in time");
            // Each by itself: one that ends now and then must not keep the buffers of all others.
            let unread = out.reading.front().is_some_and(|since| overdue(*since));
            [
                (unread, "it did not let its memory be read in time"),
                (untaken, "it did not take what was sent in time"),
                (kept, "it kept what it was lent too long"),
                why,
            ]
            .into_iter()
            .find_map(|(so, why)| so.then_some(why))
        };
        let late = self.connections.iter().filter_map(|(qp, c)| Some((*qp, late(&c.out)?)));
        let late: Vec<(QueuePair, &str)> = late.collect();
        late.into_iter().for_each(|(qp, why)| self.dismiss(qp, why));
    }

    /// Closes a connection for cause.
    fn dismiss(&mut self, queue_pair: QueuePair, why: &str) {
        self.tell(queue_pair, why);
        self.lends.state.closed_for_cause.fetch_add(1, Ordering::Relaxed);
        self.forget(queue_pair, why);
    }

    /// Tells the operator how a connection ended.
    fn tell(&self, queue_pair: QueuePair, why: &str) {
        if let Some(connection) = self.connections.get(&queue_pair) {
            self.lends.state.say(&format!("the connection of {} ended: {why}", connection.out.peer.description));
        }
    }

    fn forget(&mut self, queue_pair: QueuePair, why: &str) {
        self.endpoint.close(queue_pair);
        self.lends.attends.end(queue_pair);
        if let Some(mut connection) = self.connections.remove(&queue_pair) {
            let unread = connection.out.reads.drain(..).filter_map(WorkRequest::into_sink);
            unread.for_each(|buffer| self.system.unread(buffer));
            connection.session.ended(why);
        }
    }
}

/// A message, to the method of a session that it is for.
#[inline]
fn heard<S: Session>(session: &mut S, context: &mut Context<'_>, message: &[u8]) -> Result<(), BadMessage> {
    if context.is_accepted() {
        let (number, body) = envelope::open(message)?;
        return session.request(context, number, body);
    }
    if envelope::kind(message) != MessageKind::Part {
        return answered(session, context, message);
    }
    match context.assemble(message)? {
        Some(whole) => answered(session, context, &whole),
        None => Ok(()),
    }
}

/// A whole message on a connection that this side opened.
fn answered<S: Session>(session: &mut S, context: &mut Context<'_>, message: &[u8]) -> Result<(), BadMessage> {
    match envelope::kind(message) {
        MessageKind::Control => {
            let (number, body) = envelope::open(message)?;
            session.reply(context, number, body)
        }
        MessageKind::Data => session.data(context, message),
        MessageKind::Part => Err(BadMessage("parts within parts")),
    }
}

/// Carries out the requests that were held up, once nothing holds them up any more.
#[inline]
fn catch_up<S: Session>(out: &mut Outgoing, session: &mut S, lends: &Lends) -> Result<(), BadMessage> {
    while let Some(message) = out.held_up() {
        heard(session, &mut Context::new(out, lends), &message)?;
    }
    Ok(())
}

/// Queues messages of the running stream as far as the window reaches; true when it queued any.
fn produce<S: Session>(out: &mut Outgoing, session: &mut S, lends: &Lends, window: usize) -> bool {
    let until = window.min(out.in_flight + out.queued() + PRODUCE_AT_ONCE);
    let mut produced = false;
    out.starved = false;
    while out.in_flight + out.queued() < until {
        match session.produce(&mut Context::of_stream(out, lends)) {
            Produced::Message => produced = true,
            Produced::Wait => {
                out.starved = true;
                return false;
            }
            Produced::End => {
                out.stream = None;
                return true;
            }
        }
    }
    produced
}

/// Receive buffers of a worker, shared by all its connections.
const RECEIVES: usize = 32;
/// And of so many bytes; two have room in any case.
const RECEIVES_BYTES_MAX: usize = 64 << 20;
/// Requests of one connection in its provider's rings, whatever the window.
const DEPTH_MAX: usize = 1024;
/// How often a worker that never sleeps looks at what it attends to.
const LOOK: Duration = Duration::from_millis(1);
/// How often late clients are looked for.
const SWEEP: Duration = Duration::from_secs(1);
/// Of a wait for the log, as of one for a peer.
const SPIN_MAX: Duration = Duration::from_micros(50);
/// Messages produced before they are posted: the client should not wait for a whole window.
const PRODUCE_AT_ONCE: usize = 4;
/// Bytes that may wait for all clients of a worker together, and what each may have of them in any
/// case: the longest reply but one.
const WAITING_BYTES_MAX: u64 = 256 << 20;
const WAITING_BYTES_EACH: u64 = 2 << 20;
