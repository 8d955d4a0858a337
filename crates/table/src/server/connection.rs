//! One client: what it asked for and what it has not taken yet.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use overside_bwtree::PinAccount;
use overside_verbs::{QueuePair, WorkRequest};

use super::apply::{self, Deleting, Parked};
use super::house::{Place, Waiting};
use super::scan::ActiveScan;
use super::store::{Store, Table, fault};
use super::transmit::{Lent, Message, Transmit};
use super::used::Used;
use super::{ServerOptions, Shared};
use crate::schema::SCHEMA_BYTES_MAX;
use crate::wire::{
    self, BLOCK_BYTES, BadMessage, Fault, FaultCode, REQUEST_BYTES_MAX, Reply, Request, ScanRequest, ServerStats, cut,
};

/// A connected client.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) queue_pair: QueuePair,
    /// Who it is, for people.
    pub(crate) peer: String,
    /// Bytes of the client's receive buffers; 0 before its Hello.
    pub(crate) block_bytes: usize,
    /// Its Hello was answered by one.
    welcome: bool,
    /// Messages that the queue pair had no room for yet.
    pub(crate) outbox: VecDeque<WorkRequest>,
    pub(crate) in_flight: usize,
    /// Transmit buffers of what waits and what is in flight.
    pub(crate) lent: Lent,
    pub(crate) scan: Option<ActiveScan>,
    /// By table, what its transmissions pin. Accounts end with the scans and pages that have them, and keep no table.
    pins: Vec<(u32, Weak<PinAccount>)>,
    /// When it last took something that was sent, or had nothing to take.
    pub(crate) progressed: Instant,
    /// A delete that waits for memory, and what counts it.
    parked: Option<(u32, Parked, Waiting)>,
    /// Requests that came meanwhile: they are carried out in order.
    behind: VecDeque<Vec<u8>>,
    place: Place,
    /// When it came.
    since: Instant,
    tables: Used,
}

impl Connection {
    pub(crate) fn new(queue_pair: QueuePair, peer: String, place: Place) -> Self {
        let now = Instant::now();
        Self {
            queue_pair,
            peer,
            block_bytes: 0,
            welcome: false,
            outbox: VecDeque::new(),
            in_flight: 0,
            lent: Lent::default(),
            scan: None,
            pins: Vec::new(),
            progressed: now,
            parked: None,
            behind: VecDeque::new(),
            place,
            since: now,
            tables: Used::default(),
        }
    }

    /// Carries out a request.
    ///
    /// # Errors
    /// [`BadMessage`]: the client does not speak the protocol and is to be disconnected.
    pub(crate) fn request(&mut self, shared: &Shared, transmit: &Transmit, message: &[u8]) -> Result<(), BadMessage> {
        let (number, request) = wire::decode::<Request<'_>>(message)?;
        if self.parked.is_some() && !matches!(request, Request::Cancel) {
            self.behind.push_back(message.to_vec());
            return Ok(());
        }
        if let Request::Hello { version, block_bytes } = request {
            return self.hello(shared, number, version, block_bytes, transmit);
        }
        if self.is_strange() {
            return Err(BadMessage("a request before Hello"));
        }
        let outcome = self.carry_out(shared, number, request);
        self.answer(number, outcome, transmit);
        Ok(())
    }

    /// Goes on with a delete that waited for memory, and, when it is done, with what came behind it.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    pub(crate) fn resume(&mut self, shared: &Shared, transmit: &Transmit) -> Result<(), BadMessage> {
        let Some((number, parked, waiting)) = self.parked.take() else { return Ok(()) };
        // By then, whoever does not take what was sent is closed, and holds nothing back any more.
        let patience = (shared.options.deadline + LET_GO).min(PARKED_MAX);
        let outcome = parked.resume(patience).map(|deleting| self.deleted(number, deleting, waiting));
        self.answer(number, outcome, transmit);
        while self.parked.is_none() && !self.overflows() {
            let Some(message) = self.behind.pop_front() else { break };
            self.request(shared, transmit, &message)?;
        }
        Ok(())
    }

    /// Messages that may be under way to it: as many bytes, and with them pages kept from being reclaimed, however long its
    /// buffers are.
    pub(crate) fn window(&self, options: &ServerOptions) -> usize {
        let of_its_length = options.window.saturating_mul(BLOCK_BYTES) / self.block_bytes.max(1);
        of_its_length.clamp(WINDOW_MIN.min(options.window), options.window)
    }

    /// When a delete that waits for memory is to be tried again.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.parked.as_ref().map(|(_, parked, _)| parked.due())
    }

    /// Whether it has not introduced itself yet.
    pub(crate) fn is_strange(&self) -> bool {
        !self.welcome
    }

    /// Whether it should have introduced itself by now, or be gone.
    pub(crate) fn is_overdue(&self, deadline: Duration) -> bool {
        self.is_strange() && self.since.elapsed() > deadline
    }

    fn answer(&mut self, number: u32, outcome: Result<Option<Reply>, Fault>, transmit: &Transmit) {
        match outcome {
            Ok(Some(reply)) => self.reply(number, &reply, transmit),
            Ok(None) => {}
            Err(fault) => self.reply(number, &Reply::Fault(fault), transmit),
        }
    }

    /// The reply to a delete, if it is done.
    fn deleted(&mut self, number: u32, deleting: Deleting, waiting: Waiting) -> Option<Reply> {
        match deleting {
            Deleting::Done(applied) => Some(Reply::Applied(applied)),
            Deleting::Parked(parked) => {
                self.parked = Some((number, parked, waiting));
                None
            }
        }
    }

    fn hello(
        &mut self,
        shared: &Shared,
        number: u32,
        version: u16,
        block_bytes: u32,
        transmit: &Transmit,
    ) -> Result<(), BadMessage> {
        if self.block_bytes != 0 {
            return Err(BadMessage("a second Hello"));
        }
        if !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&(block_bytes as usize)) {
            return Err(BadMessage("receive buffers of an absurd size"));
        }
        self.block_bytes = block_bytes as usize;
        let reply = if self.place.is_turned_away() {
            let text = format!(
                "the server has {} connections and takes no more; close some, or serve with a higher --max-connections",
                shared.options.connections_max
            );
            Reply::Fault(fault(FaultCode::TooManyConnections, text))
        } else if version == wire::VERSION {
            self.welcome = true;
            Reply::Hello {
                version: wire::VERSION,
                request_bytes_max: REQUEST_BYTES_MAX as u32,
                pid: std::process::id(),
            }
        } else {
            let text =
                format!("this server speaks version {}, the client {version}; update the older one", wire::VERSION);
            Reply::Fault(fault(FaultCode::BadRequest, text))
        };
        self.reply(number, &reply, transmit);
        Ok(())
    }

    fn carry_out(&mut self, shared: &Shared, number: u32, request: Request<'_>) -> Result<Option<Reply>, Fault> {
        let store = &shared.house.store;
        Ok(Some(match request {
            Request::Hello { .. } => return Err(fault(FaultCode::BadRequest, "a second Hello".into())),
            Request::Create { name, schema } => {
                if schema.len() > SCHEMA_BYTES_MAX {
                    return Err(fault(FaultCode::BadRequest, "the schema is too long".into()));
                }
                Reply::Table(store.create(name, schema)?.info())
            }
            Request::Drop { name } => {
                store.drop_table(name)?;
                Reply::Dropped
            }
            Request::List { after } => {
                let (tables, more) = store.listed(after);
                Reply::Tables { tables, more }
            }
            Request::Describe { name } => Reply::Table(store.named(name)?.info()),
            Request::Put { table, mode, rows } => {
                Reply::Applied(apply::put(&*self.tables.table(store, table)?, mode, rows)?)
            }
            Request::Get { table, key } => Reply::Row(apply::get(&*self.tables.table(store, table)?, key)?),
            Request::Delete { table, keys } => {
                let deleting = apply::delete(&self.tables.table(store, table)?, keys)?;
                return Ok(self.deleted(number, deleting, shared.house.waiting()));
            }
            Request::Scan(scan) => {
                self.start_scan(store, number, &scan)?;
                return Ok(None);
            }
            Request::Cancel => {
                if let Some(scan) = &mut self.scan {
                    scan.cancel();
                }
                return Ok(None);
            }
            Request::Stats => Reply::Stats(stats(shared)),
        }))
    }

    fn start_scan(&mut self, store: &Store, number: u32, request: &ScanRequest<'_>) -> Result<(), Fault> {
        if self.scan.is_some() {
            let text = "a scan is running on this connection; finish or cancel it, or open another connection";
            return Err(fault(FaultCode::BadRequest, text.into()));
        }
        let table = self.tables.table(store, request.table)?;
        let account = self.pin_account(&table);
        self.scan = Some(ActiveScan::new(number, table, request, account)?);
        Ok(())
    }

    fn pin_account(&mut self, table: &Table) -> Arc<PinAccount> {
        self.pins.retain(|(_, account)| account.strong_count() > 0);
        let known = self.pins.iter().find(|(id, _)| *id == table.id).and_then(|(_, account)| account.upgrade());
        if let Some(account) = known {
            return account;
        }
        let account = table.tree.pin_account();
        self.pins.push((table.id, Arc::downgrade(&account)));
        account
    }

    /// Whether more than `bytes` stay in memory only because this client has not taken them yet.
    pub(crate) fn holds_more_than(&self, bytes: u64) -> bool {
        let accounts = || self.pins.iter().filter_map(|(_, account)| account.upgrade());
        let pinned = accounts().map(|account| account.pinned_bytes()).sum::<u64>();
        pinned > bytes && accounts().map(|account| account.held_bytes()).sum::<u64>() > bytes
    }

    /// Whether more waits for the client than one may leave untaken, by number or by bytes; or more of its requests for a delete.
    pub(crate) fn overflows(&self) -> bool {
        self.outbox.len() + self.behind.len() > OUTBOX_MAX || self.waiting_bytes() > OUTBOX_BYTES_MAX
    }

    /// Bytes that wait for the client, or for a delete of its.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        let behind = self.behind.iter().map(|message| message.len() as u64).sum::<u64>();
        behind + self.outbox.iter().map(WorkRequest::bytes).sum::<u64>()
    }

    /// Forgets what was of tables that are gone.
    pub(crate) fn forget_dropped(&mut self) {
        self.tables.forget_dropped();
        self.pins.retain(|(_, account)| account.strong_count() > 0);
    }

    /// Queues a reply, in parts where it does not fit into the client's buffers.
    pub(crate) fn reply(&mut self, number: u32, reply: &Reply, transmit: &Transmit) {
        self.send_bytes(wire::encode(number, reply), transmit);
    }

    /// Queues bytes as one message, or in parts.
    pub(crate) fn send_bytes(&mut self, bytes: Vec<u8>, transmit: &Transmit) {
        if bytes.len() <= self.block_bytes {
            let message = transmit.packed(bytes, &self.lent);
            return self.send(message);
        }
        for (header, range) in cut(bytes.len(), self.block_bytes) {
            let part = [&header[..], &bytes[range]].concat();
            let message = transmit.packed(part, &self.lent);
            self.send(message);
        }
    }

    /// Queues one message.
    pub(crate) fn send(&mut self, Message { view, size }: Message) {
        self.lent.queued(size);
        self.outbox.push_back(WorkRequest::send(0, view));
    }

    /// The first message in flight is sent, or never will be.
    pub(crate) fn completed(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.lent.sent();
        self.progressed = Instant::now();
    }
}

fn stats(shared: &Shared) -> ServerStats {
    use std::sync::atomic::Ordering::Relaxed;
    let mut stats = ServerStats {
        pid: std::process::id(),
        connections: shared.house.connections.load(Relaxed),
        cpu_ns: process_cpu_ns(),
        empty_poll_ns: shared.house.empty_poll_ns.load(Relaxed),
        closed_for_cause: shared.house.closed_for_cause.load(Relaxed),
        waiting: shared.house.waiting.load(Relaxed),
        ..ServerStats::default()
    };
    for table in shared.house.store.all() {
        let tree = table.tree.stats();
        stats.bytes_committed += tree.committed_bytes;
        stats.bytes_allocated += tree.used_bytes;
        stats.bytes_pinned += tree.held_by_pins_bytes;
        stats.consolidations += tree.consolidations;
    }
    stats
}

fn process_cpu_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// How long after the deadline slow clients are noticed at the latest, and what they held is let go.
const LET_GO: Duration = Duration::from_secs(2);
/// A delete waits no longer: a client's own patience is half a minute.
const PARKED_MAX: Duration = Duration::from_secs(20);
/// One that is copied, one that is next, and as many again while the server is told.
const WINDOW_MIN: usize = 4;
/// Smallest and largest receive buffers of a client.
const BLOCK_BYTES_MIN: usize = 1 << 10;
const BLOCK_BYTES_MAX: usize = 4 << 20;
/// Messages that wait for one client. Parts of the longest message for the smallest buffers stay below; a
/// client that asks on and on and takes no answer does not.
const OUTBOX_MAX: usize = 8192;
/// Bytes of them: several times what a scan produces ahead and the longest reply.
const OUTBOX_BYTES_MAX: u64 = 64 << 20;
