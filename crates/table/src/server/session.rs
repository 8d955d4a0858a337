//! One client: what it asks for, and the scan that it is fed.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use overside_bwtree::PinAccount;
use overside_service::{BadMessage, Context, Produced, RequestOrder, Session, System, Ticket};

use super::apply::{self, Deleting, Parked};
use super::durable::Denied;
use super::held;
use super::index::{Build, Building, Index};
use super::scan::ActiveScan;
use super::store::{Store, Table, fault};
use super::used::Used;
use super::{Prices, ServerOptions};
use crate::schema::SCHEMA_BYTES_MAX;
use crate::wire::{
    self, Fault, FaultCode, Features, Mode, REQUEST_BYTES_MAX, Reply, Request, ScanRequest, ServerStats, VERSION,
};

/// The tables as the connections of one provider see them.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(super) store: Arc<Store>,
    pub(super) prices: Prices,
    pub(super) options: ServerOptions,
    /// The number of their provider among the server's.
    pub(super) domain: usize,
}

impl System for Tables {
    type Session = TableSession;

    fn session(self: &Arc<Self>) -> TableSession {
        TableSession {
            tables: self.clone(),
            state: State::New,
            features: Features::default(),
            scan: None,
            pins: Pins::default(),
            unfinished: None,
            building: None,
            used: Used::default(),
        }
    }

    fn outlives_a_panic(&self) -> bool {
        self.store.journal().is_none_or(|journal| journal.is_whole())
    }

    fn unfinished(&self, body: &mut Vec<u8>) {
        let text = "the server gave the request up; this is a bug of the server, please report it";
        wire::append(body, &Reply::Fault(fault(FaultCode::Closing, text.into())));
    }
}

/// A connected client.
#[derive(Debug)]
pub(crate) struct TableSession {
    pub(super) tables: Arc<Tables>,
    state: State,
    /// What the client can do.
    features: Features,
    pub(super) scan: Option<ActiveScan>,
    pub(super) pins: Pins,
    /// A request that holds up later ones.
    unfinished: Option<(Unfinished, Ticket)>,
    /// The index that it makes, request after request.
    building: Option<Build>,
    used: Used,
}

/// A request that is carried out in steps.
#[derive(Debug)]
enum Unfinished {
    /// A delete that waits for memory.
    Delete(Parked),
    /// One that waits until the log is longer, as it came, and since when.
    Again(Vec<u8>, Instant),
    /// An index that is being made, and until when before its client is told how far it is.
    Index(Instant),
}

/// What came of a request.
enum Outcome {
    Reply(Reply),
    Parked(Parked),
    /// Rows are being given entries.
    Building,
    /// No reply, or not by this.
    Nothing,
}

/// By table, what a client's transmissions pin. Accounts end with the scans and pages that have
/// them, and keep no table.
#[derive(Debug, Default)]
pub(super) struct Pins(Vec<(u32, Weak<PinAccount>)>);

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has said nothing.
    New,
    /// It said Hello, and was told why it is not served.
    Refused,
    /// Both sides said Hello.
    Welcome,
}

impl Session for TableSession {
    fn request(&mut self, context: &mut Context<'_>, number: u32, body: &[u8]) -> Result<(), BadMessage> {
        if let Some(version) = wire::other_version(body) {
            return self.refuse_version(context, number, version);
        }
        let request = wire::decode_body(body)?;
        if let Request::Hello { block_bytes, features, .. } = request {
            self.features = features;
            return self.hello(context, number, block_bytes);
        }
        if self.state != State::Welcome {
            return Err(BadMessage("a request before Hello"));
        }
        match self.carry_out(context, number, request) {
            Ok(Outcome::Reply(reply)) => context.reply(number, |body| wire::append(body, &reply)),
            Ok(Outcome::Nothing) => {}
            // What the client asks for next is carried out after it.
            Ok(Outcome::Parked(parked)) => {
                let ticket = context.later(number, RequestOrder::Requests);
                self.park(context, parked, ticket);
            }
            Ok(Outcome::Building) => {
                let ticket = context.later(number, RequestOrder::Requests);
                self.build_on(context, ticket);
            }
            Err(Denied::Now(fault)) => context.reply(number, |body| wire::append(body, &Reply::Fault(fault))),
            Err(Denied::Later(_)) => {
                let ticket = context.later(number, RequestOrder::Requests);
                self.try_again(context, body.to_vec(), context.clock().now(), ticket);
            }
        }
        Ok(())
    }

    fn overtakes(&self, body: &[u8]) -> bool {
        matches!(wire::decode_body(body), Ok(Request::Cancel))
    }

    fn produce(&mut self, context: &mut Context<'_>) -> Produced {
        self.produce_answer(context)
    }

    /// Goes on with a request that waited for memory, or for the log.
    fn woken(&mut self, context: &mut Context<'_>) -> Result<(), BadMessage> {
        // By then, whoever does not take what was sent is closed, and holds nothing back any more.
        let patience = (self.tables.options.deadline + LET_GO).min(PARKED_MAX);
        let now = context.clock().now();
        match self.unfinished.take() {
            None => {}
            Some((Unfinished::Delete(parked), ticket)) => match parked.resume(patience, now) {
                Ok(Deleting::Parked(parked)) => self.park(context, parked, ticket),
                Ok(Deleting::Done(applied, hold)) => {
                    context.hold(hold);
                    finish(context, ticket, &Reply::Applied(applied));
                }
                Err(fault) => finish(context, ticket, &Reply::Fault(fault)),
            },
            Some((Unfinished::Index(until), ticket)) => self.build(context, until, ticket),
            Some((Unfinished::Again(body, since), ticket)) => {
                match self.carry_out(context, ticket.number(), wire::decode_body(&body)?) {
                    Ok(Outcome::Reply(reply)) => finish(context, ticket, &reply),
                    Ok(Outcome::Parked(parked)) => self.park(context, parked, ticket),
                    Ok(Outcome::Building) => self.build_on(context, ticket),
                    // Only what takes room in the log is tried again, and that has a reply.
                    Ok(Outcome::Nothing) => {}
                    Err(Denied::Later(_)) if now.duration_since(since) < patience => {
                        self.try_again(context, body, since, ticket);
                    }
                    Err(Denied::Now(fault) | Denied::Later(fault)) => finish(context, ticket, &Reply::Fault(fault)),
                }
            }
        }
        Ok(())
    }

    fn tidy(&mut self) {
        self.used.forget_dropped();
        self.pins.tidy();
    }
}

impl TableSession {
    fn hello(&mut self, context: &mut Context<'_>, number: u32, block_bytes: u32) -> Result<(), BadMessage> {
        if self.state != State::New {
            return Err(BadMessage("a second Hello"));
        }
        if !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&(block_bytes as usize)) {
            return Err(BadMessage("receive buffers of an absurd size"));
        }
        context.set_buffer_bytes(block_bytes as usize);
        if context.is_turned_away() {
            let max = self.tables.options.connections_max;
            let text = format!(
                "the server has {max} connections and takes no more; close some, or serve with a higher --max-connections"
            );
            self.refuse(context, number, FaultCode::TooManyConnections, text);
            return Ok(());
        }
        self.state = State::Welcome;
        context.admit();
        let reply = Reply::Hello {
            version: VERSION,
            request_bytes_max: REQUEST_BYTES_MAX as u32,
            pid: std::process::id(),
            features: Features::ALL,
        };
        context.reply(number, |body| wire::append(body, &reply));
        Ok(())
    }

    /// Of such a client only the version is known, and that it reads a fault.
    fn refuse_version(&mut self, context: &mut Context<'_>, number: u32, version: u16) -> Result<(), BadMessage> {
        if self.state != State::New {
            return Err(BadMessage("a second Hello"));
        }
        let text = format!("this server speaks version {VERSION}, the client {version}; update the older one");
        self.refuse(context, number, FaultCode::BadRequest, text);
        Ok(())
    }

    fn refuse(&mut self, context: &mut Context<'_>, number: u32, code: FaultCode, text: String) {
        self.state = State::Refused;
        context.reply(number, |body| wire::append(body, &Reply::Fault(fault(code, text))));
    }

    /// Carries a request out; what its reply waits for is [held](Context::hold).
    fn carry_out(&mut self, context: &mut Context<'_>, number: u32, request: Request<'_>) -> Result<Outcome, Denied> {
        let outcome = self.answer(context, number, request);
        if let Err(Denied::Now(Fault { code: FaultCode::UnknownTable | FaultCode::TableExists, .. })) = &outcome {
            context.hold(self.tables.store.shown());
        }
        outcome
    }

    fn checkpoint(&self, context: &mut Context<'_>, number: u32) -> Result<Outcome, Denied> {
        let Some(journal) = self.tables.store.journal() else {
            let text = "this server keeps its tables in memory alone; start it with --data DIR";
            return Err(fault(FaultCode::BadRequest, text.into()).into());
        };
        journal.checkpoint(context.later(number, RequestOrder::Free));
        Ok(Outcome::Nothing)
    }

    fn answer(&mut self, context: &mut Context<'_>, number: u32, request: Request<'_>) -> Result<Outcome, Denied> {
        let store = &self.tables.store;
        Ok(Outcome::Reply(match request {
            Request::Hello { .. } => return Err(fault(FaultCode::BadRequest, "a second Hello".into()).into()),
            Request::Create { name, schema } => {
                if schema.len() > SCHEMA_BYTES_MAX {
                    return Err(fault(FaultCode::BadRequest, "the schema is too long".into()).into());
                }
                let (table, hold) = store.create(name, schema)?;
                context.hold(hold);
                Reply::Table(table.info())
            }
            Request::Drop { name } => {
                context.hold(store.drop_table(name)?);
                Reply::Dropped
            }
            Request::List { after } => {
                let (tables, more) = store.listed(after);
                context.hold(store.shown());
                Reply::Tables { tables, more }
            }
            Request::Describe { name } => {
                let info = store.named(name)?.info();
                context.hold(store.shown());
                Reply::Table(info)
            }
            Request::Put { table, mode, rows } => {
                let (applied, hold) = apply::put(&*self.used.table(store, table)?, mode, rows)?;
                context.hold(hold);
                Reply::Applied(applied)
            }
            Request::Get { table, key } => {
                let (value, hold) = apply::get(&*self.used.table(store, table)?, key);
                context.hold(hold);
                Reply::Row(value)
            }
            Request::Delete { table, keys } => {
                let table = self.used.table(store, table)?;
                match apply::delete(&table, keys, || context.clock().now())? {
                    Deleting::Done(applied, hold) => {
                        context.hold(hold);
                        Reply::Applied(applied)
                    }
                    Deleting::Parked(parked) => return Ok(Outcome::Parked(parked)),
                }
            }
            Request::Scan(scan) => {
                self.start_scan(number, &scan, None, None)?;
                context.stream();
                return Ok(Outcome::Nothing);
            }
            Request::ScanInPlace { scan, lent_bytes_max } => {
                self.start_scan_in_place(context, number, &scan, lent_bytes_max, None)?;
                return Ok(Outcome::Nothing);
            }
            Request::Cancel => {
                if let Some(scan) = &mut self.scan {
                    scan.cancel();
                }
                return Ok(Outcome::Nothing);
            }
            Request::Stats => Reply::Stats(self.stats(context)),
            Request::Status => Reply::Status(store.journal().map(|journal| journal.status())),
            Request::Checkpoint => return self.checkpoint(context, number),
            other => return self.of_scans(context, number, other),
        }))
    }

    fn park(&mut self, context: &mut Context<'_>, parked: Parked, ticket: Ticket) {
        context.wake_at(parked.due());
        self.unfinished = Some((Unfinished::Delete(parked), ticket));
    }

    fn try_again(&mut self, context: &mut Context<'_>, body: Vec<u8>, since: Instant, ticket: Ticket) {
        context.wake_at(context.clock().now() + TRY_AGAIN);
        self.unfinished = Some((Unfinished::Again(body, since), ticket));
    }

    /// Answers a request about indexes or what scans choose, the kinds that are left.
    fn of_scans(&mut self, context: &mut Context<'_>, number: u32, request: Request<'_>) -> Result<Outcome, Denied> {
        let store = &self.tables.store;
        match request {
            Request::CreateIndex { table, columns } => self.create_index(table, &columns),
            Request::DropIndex { table, columns } => self.drop_index(context, table, &columns),
            Request::Indexes { table } => {
                let indexes = self.used.table(store, table)?.indexes.whole();
                context.hold(store.shown());
                Ok(Outcome::Reply(Reply::Indexes(indexes.iter().map(|index| index.info()).collect())))
            }
            Request::Choices { table } => {
                let table = self.used.table(store, table)?;
                Ok(Outcome::Reply(Reply::Choices(table.chains.choices(&table.tree))))
            }
            Request::Prices => Ok(Outcome::Reply(Reply::Prices(self.tables.prices.list()))),
            Request::Open { table, from } => {
                let table = self.used.table(store, table)?;
                Ok(Outcome::Reply(Reply::Opened(store.open(&table, self.tables.domain, from)?)))
            }
            Request::Held => Ok(Outcome::Reply(Reply::Held(held::held(store)))),
            Request::ScanIndex { scan, index, lent_bytes_max } => {
                self.start_scan_index(context, number, &scan, &index, lent_bytes_max)?;
                Ok(Outcome::Nothing)
            }
            _ => Err(fault(FaultCode::BadRequest, "a request that this server does not know".into()).into()),
        }
    }

    /// Begins to make an index, or goes on with it.
    fn create_index(&mut self, table: u32, columns: &[u16]) -> Result<Outcome, Denied> {
        let store = &self.tables.store;
        let table = self.used.table(store, table)?;
        if !self.building.as_ref().is_some_and(|build| build.is_of(&table, columns)) {
            // Another that it has begun is given up.
            self.building = None;
            self.building = Some(Build::begin(store, &table, columns)?);
        }
        Ok(Outcome::Building)
    }

    fn drop_index(&mut self, context: &mut Context<'_>, table: u32, columns: &[u16]) -> Result<Outcome, Denied> {
        let store = &self.tables.store;
        let table = self.used.table(store, table)?;
        let dropped = store.drop_index(&table, columns);
        if dropped.is_err() {
            context.hold(store.shown());
        }
        context.hold(dropped?);
        Ok(Outcome::Reply(Reply::Dropped))
    }

    fn start_scan_index(
        &mut self,
        context: &mut Context<'_>,
        number: u32,
        scan: &ScanRequest<'_>,
        columns: &[u16],
        lent_bytes_max: u32,
    ) -> Result<(), Fault> {
        let store = &self.tables.store;
        let table = self.used.table(store, scan.table)?;
        let index = table.indexes.of(&table, columns).inspect_err(|_| context.hold(store.shown()))?;
        if lent_bytes_max > 0 {
            return self.start_scan_in_place(context, number, scan, lent_bytes_max, Some(index));
        }
        self.start_scan(number, scan, None, Some(index))?;
        context.stream();
        Ok(())
    }

    /// Goes on with an index for a while, and then tells its client how far it is.
    fn build_on(&mut self, context: &mut Context<'_>, ticket: Ticket) {
        let now = context.clock().now();
        context.wake_at(now);
        self.unfinished = Some((Unfinished::Index(now + BUILD_TOLD), ticket));
    }

    fn build(&mut self, context: &mut Context<'_>, until: Instant, ticket: Ticket) {
        let Some(mut build) = self.building.take() else { return };
        let now = context.clock().now();
        let reply = match build.step() {
            Ok(Building::Done(hold)) => {
                context.hold(hold);
                finish(context, ticket, &Reply::Index(build.index().info()));
                return;
            }
            Err(Denied::Now(fault)) => {
                context.hold(self.tables.store.shown());
                finish(context, ticket, &Reply::Fault(fault));
                return;
            }
            Ok(Building::More) | Err(Denied::Later(_)) if now < until => None,
            Ok(Building::More) | Err(Denied::Later(_)) => {
                let (rows, of) = build.progress();
                Some(Reply::Indexing { rows, of })
            }
        };
        self.building = Some(build);
        match reply {
            Some(reply) => finish(context, ticket, &reply),
            None => {
                context.wake_at(now);
                self.unfinished = Some((Unfinished::Index(until), ticket));
            }
        }
    }

    /// A scan whose pages are lent, in messages of as many bytes as the client takes at a time.
    fn start_scan_in_place(
        &mut self,
        context: &mut Context<'_>,
        number: u32,
        scan: &ScanRequest<'_>,
        lent_bytes_max: u32,
        index: Option<Arc<Index>>,
    ) -> Result<(), Fault> {
        let usual = context.buffer_bytes();
        let lent_bytes = (lent_bytes_max as usize).clamp(usual, LENT_BYTES_MAX.max(usual));
        self.start_scan(number, scan, Some(lent_bytes), index)?;
        context.stream();
        Ok(())
    }

    fn start_scan(
        &mut self,
        number: u32,
        request: &ScanRequest<'_>,
        lent: Option<usize>,
        index: Option<Arc<Index>>,
    ) -> Result<(), Fault> {
        let may_lend = lent.is_some() && self.features.contains(Features::IN_PLACE);
        if (lent.is_some() || request.mode == Mode::InPlace) && !may_lend {
            let text = "a scan in place is asked for by a client that did not say that it reads in place";
            return Err(fault(FaultCode::BadRequest, text.into()));
        }
        if self.scan.is_some() {
            let text = "a scan is running on this connection; finish or cancel it, or open another connection";
            return Err(fault(FaultCode::BadRequest, text.into()));
        }
        let table = self.used.table(&self.tables.store, request.table)?;
        let account = self.pins.account(&table);
        self.scan = Some(ActiveScan::new(number, table, request, lent, account, index)?);
        Ok(())
    }

    fn stats(&self, context: &Context<'_>) -> ServerStats {
        let service = context.statistics();
        let mut stats = ServerStats {
            pid: std::process::id(),
            connections: service.connections,
            cpu_ns: process_cpu_ns(),
            empty_poll_ns: service.empty_poll_ns,
            closed_for_cause: service.closed_for_cause,
            waiting: service.unfinished,
            ..ServerStats::default()
        };
        for table in self.tables.store.all() {
            let tree = table.tree.stats();
            stats.bytes_committed += tree.committed_bytes;
            stats.bytes_allocated += tree.used_bytes;
            stats.bytes_pinned += tree.held_by_pins_bytes;
            stats.consolidations += tree.consolidations;
        }
        stats
    }
}

impl Pins {
    fn account(&mut self, table: &Table) -> Arc<PinAccount> {
        self.tidy();
        let known = self.0.iter().find(|(id, _)| *id == table.id).and_then(|(_, account)| account.upgrade());
        if let Some(account) = known {
            return account;
        }
        let account = table.tree.pin_account();
        self.0.push((table.id, Arc::downgrade(&account)));
        account
    }

    fn tidy(&mut self) {
        self.0.retain(|(_, account)| account.strong_count() > 0);
    }

    /// Whether more than `bytes` stay in memory only because this client has not taken them yet.
    pub(super) fn hold_more_than(&self, bytes: u64) -> bool {
        let accounts = || self.0.iter().filter_map(|(_, account)| account.upgrade());
        let pinned = accounts().map(|account| account.pinned_bytes()).sum::<u64>();
        pinned > bytes && accounts().map(|account| account.held_bytes()).sum::<u64>() > bytes
    }
}

fn finish(context: &mut Context<'_>, ticket: Ticket, reply: &Reply) {
    context.complete(ticket, |body| wire::append(body, reply));
}

fn process_cpu_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// How long after the deadline slow clients are noticed at the latest, and what they held is let
/// go.
const LET_GO: Duration = Duration::from_secs(2);
/// A request that found no room in the log, which is being extended, is tried again after this.
const TRY_AGAIN: Duration = Duration::from_millis(1);
/// How long an index is made before its client hears how far it is.
const BUILD_TOLD: Duration = Duration::from_millis(500);
/// A delete waits no longer: a client's own patience is half a minute.
const PARKED_MAX: Duration = Duration::from_secs(20);
/// Smallest and largest receive buffers of a client.
const BLOCK_BYTES_MIN: usize = 1 << 10;
const BLOCK_BYTES_MAX: usize = 4 << 20;
/// Longest message that is lent to a client with the usual buffers: a window of them is what it can
/// hold back.
const LENT_BYTES_MAX: usize = 128 << 10;
