//! The server: tables in registered memory, any number of clients.
//!
//! Threads, connections and windows are [`overside_service`]'s. Here is what a worker does with a
//! request: rows are put, got and deleted, and scans are fed page by page, as fast as their clients
//! take them.
//!
//! What a slow client holds back is bounded. A scan has at most [`ServerOptions::window`] messages
//! in flight, each with at most a page pinned. What it may hold beyond retirement is budgeted; past
//! the budget pages are copied out. Past [`ServerOptions::deadline`] without progress its
//! connection is closed (docs/architecture.md, rules of memory 4).

mod answer;
mod apply;
mod chains;
mod durable;
mod governor;
mod held;
mod index;
mod message;
mod meter;
#[doc(hidden)]
pub mod parts;
mod registrar;
mod remembered;
mod scan;
mod session;
mod store;
mod sync;
#[cfg(test)]
mod tests;
mod used;
mod wake;

use std::sync::Arc;
use std::time::Duration;

pub use durable::{
    DataError, DataOptions, OnProgress, Recovering, Recovery, SavedOptions, SavedRows, SavedTable, SavedTables,
    check_data,
};
pub use overside_log::Checked;
use overside_planner::{Goal, Line, Planner, Profile};
use overside_service::{Listening, ServiceOptions, TransmitOptions};
pub use overside_service::{Notices, OnFailure};
use overside_verbs::{Provider, SystemClock, VerbsError};

use durable::{Checkpointer, Journal, Keeper, Opened, Writer};
use meter::Meter;
use registrar::Registrar;
use session::Tables;
use store::{MemoryLimit, Store};

use crate::wire::{BLOCK_BYTES, MODES, PiecePrice, PriceList, REQUEST_BYTES_MAX};

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Threads that serve connections. Default: half of the processors.
    pub workers: usize,
    /// Bytes of memory that all tables together may commit. Default: 3/4 of what is available now,
    /// or 64 GiB where the system does not say. A limit of the address space makes it at most a
    /// quarter of what that leaves, for each table reserves twice as much and more.
    pub memory_max: usize,
    /// Connections at once; who comes when there are so many is told so. Default: 4,096.
    pub connections_max: usize,
    /// Bytes of one segment: the step in which tables grow.
    pub segment_bytes: usize,
    /// Messages of one scan in flight: as many as a client takes while a server that slept over the
    /// first half wakes up, and so many that waking it, which the client does, costs little. Of a
    /// client whose buffers are longer than usual (36 KiB) fewer, so that as many bytes are under
    /// way. Messages that are lent have up to 128 KiB: 16 MiB of pages, with room for their deltas
    /// a third more. Default: 128.
    pub window: usize,
    /// Bytes that one connection's transmissions may keep from being reclaimed before its pages are
    /// copied out instead; what is under way by then stays under way. Looked at once an eighth of
    /// it was sent.
    pub pinned_max: u64,
    /// How long a client may not take what was sent, or not introduce itself, before its connection
    /// is closed. A delete waits as long for memory that others hold back, but not longer than 20
    /// s.
    pub deadline: Duration,
    /// Deltas on a page before the next change consolidates it, of every table: 1 to 200. None: 8,
    /// and 4 while more pages of a table are copied out than rows of it are changed.
    pub chain_max: Option<usize>,
    /// What `auto` makes small.
    pub goal: Goal,
    /// Told of every peer that is turned away, closed for cause or lost.
    pub notices: Option<Notices>,
    /// Told when the server cannot go on. It is to be dropped then.
    pub on_failure: Option<OnFailure>,
    /// Where the tables are kept; in memory alone where it is none.
    pub data: Option<DataOptions>,
    /// Clients may read the memory of all tables by themselves, all of it: what scans leave out,
    /// and what was deleted and not overwritten yet. It never shrinks then. Not with
    /// [`data`](Self::data): they would see what is not on the disk yet.
    pub one_sided: bool,
    /// What it runs in.
    #[doc(hidden)]
    pub world: parts::World,
}

impl Default for ServerOptions {
    fn default() -> Self {
        let memory = overside_memory::available_bytes().map_or(64 << 30, |bytes| bytes / 4 * 3);
        let addresses = overside_memory::address_space_left().map_or(u64::MAX, |bytes| bytes / 4);
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            workers: (processors / 2).max(1),
            memory_max: memory.min(addresses) as usize,
            connections_max: 4096,
            segment_bytes: 8 << 20,
            window: 128,
            pinned_max: 4 << 20,
            deadline: Duration::from_secs(10),
            chain_max: None,
            goal: Goal::Throughput,
            notices: None,
            on_failure: None,
            data: None,
            one_sided: false,
            world: parts::World::default(),
        }
    }
}

impl ServerOptions {
    fn service(&self, journal: Option<&Arc<Journal>>) -> ServiceOptions {
        ServiceOptions {
            workers: self.workers,
            connections_max: self.connections_max,
            window: self.window,
            buffer_bytes: BLOCK_BYTES,
            request_bytes_max: REQUEST_BYTES_MAX,
            deadline: self.deadline,
            transmit: TransmitOptions { large_bytes: LARGE_BYTES, ..TransmitOptions::default() },
            notices: self.notices.clone(),
            on_failure: self.on_failure.clone(),
            watermarks: journal.map(|journal| journal.marks.clone()),
            latencies: journal.map(|journal| journal.pace.latencies().clone()),
            threads: self.world.threads.clone(),
        }
    }
}

/// A running server. Dropping it shuts it down.
#[derive(Debug)]
pub struct Server {
    service: overside_service::Server<Tables>,
    /// Dropped behind the service, whose workers append to it.
    keeper: Option<Keeper>,
    recovery: Option<Recovery>,
    #[cfg(test)]
    store: Arc<Store>,
}

/// A server whose tables are there, and which nobody can reach yet.
#[derive(Debug)]
pub struct Recovered {
    open: Vec<(Listening, ListenerConfig)>,
    store: Arc<Store>,
    threads: Option<(Writer, Checkpointer)>,
    recovery: Option<Recovery>,
    options: ServerOptions,
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address is taken, or the system has no room.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The directory of its data cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
}

/// A way to reach a server: a provider, and the names it listens at.
#[derive(Clone, Debug)]
pub struct ListenerConfig {
    /// The provider.
    pub provider: Arc<dyn Provider>,
    /// The provider's part of each address.
    pub names: Vec<String>,
    /// Its prices, where they were measured; else its defaults.
    pub profile: Option<Profile>,
}

/// What sending costs over one provider: by its profile, and as measured while serving.
#[derive(Debug)]
struct Prices {
    planner: Planner,
    sge_max: usize,
    /// Whether the provider lends messages.
    lends: bool,
    meter: Meter,
}

impl Prices {
    fn list(&self) -> PriceList {
        let profile = self.planner.profile();
        let of = |line: Line, bytes: u64| line.at(1.0, bytes as f64);
        let pieces = PRICED.map(|bytes| {
            let copied = of(profile.pack(bytes, false), bytes) + of(profile.send(bytes, true), bytes);
            PiecePrice {
                bytes,
                copied_ns: (copied, of(profile.receive_packed(bytes), bytes)),
                gathered_ns: (of(profile.send(bytes, false), bytes), of(profile.receive(bytes), bytes)),
            }
        });
        PriceList {
            source: profile.source.clone(),
            request_ns: (profile.send_request_ns, profile.receive_request_ns),
            pieces: pieces.to_vec(),
            beyond_ns: MODES.map(|way| self.meter.measured(way)),
        }
    }
}

impl Server {
    /// Listens on the provider's part of each address and serves in the background.
    ///
    /// # Errors
    /// When an address is taken, the system has no room, or the [data](ServerOptions::data) cannot
    /// be used.
    pub fn start(provider: Arc<dyn Provider>, names: &[&str], options: ServerOptions) -> Result<Server, StartError> {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Self::start_on(vec![ListenerConfig { provider, names, profile: None }], options)
    }

    /// As [`start`](Self::start), by several providers at once: the same tables, each provider with
    /// workers of its own.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_on(listeners: Vec<ListenerConfig>, options: ServerOptions) -> Result<Server, StartError> {
        Self::recover(listeners, options)?.serve()
    }

    /// Opens the directory of the data, and recovers the tables in it; nothing listens yet.
    ///
    /// # Errors
    /// The [data](ServerOptions::data) cannot be used, or the system has no room.
    pub fn recover(listeners: Vec<ListenerConfig>, options: ServerOptions) -> Result<Recovered, StartError> {
        if options.one_sided && options.data.is_some() {
            let what = "one-sided reads of tables that are kept on a disk, which would show what is not there yet";
            return Err(VerbsError::Unsupported(what).into());
        }
        let clock = listeners.first().map_or_else(SystemClock::handle, |first| first.provider.clock());
        let mut open = Vec::new();
        for listener in listeners {
            open.push((Listening::open(listener.provider.clone(), NOWHERE)?, listener));
        }
        let domains = open.iter().map(|(at, _)| (at.provider().clone(), at.domain().clone())).collect();
        let registrar = Arc::new(Registrar::new(domains, options.memory_max, options.one_sided));
        let memory = MemoryLimit { bytes_max: options.memory_max, segment_bytes: options.segment_bytes };
        let chain_max = options.chain_max;
        let new_store = |journal| {
            let store = Store::new(memory, registrar.clone(), options.world.clone(), chain_max, journal);
            Arc::new(if options.one_sided { store.opened(registrar) } else { store })
        };
        let (store, threads, recovery) = match &options.data {
            None => (new_store(None), None, None),
            Some(data) => {
                let Opened { store, writer, checkpointer, recovery } = durable::open(data, &options, clock, new_store)?;
                (store, Some((writer, checkpointer)), Some(recovery))
            }
        };
        Ok(Recovered { open, store, threads, recovery, options })
    }

    /// What it found in the directory of its data; none where it has no such.
    pub fn recovery(&self) -> Option<&Recovery> {
        self.recovery.as_ref()
    }

    /// Stops accepting, closes every connection, frees every table; what was acknowledged is on the
    /// disk, where there is one.
    pub fn shutdown(self) {
        self.service.shutdown();
        drop(self.keeper);
    }
}

impl Recovered {
    /// Sets what transfers cost over each listener's provider, where that is not known yet.
    ///
    /// # Errors
    /// Those of `price`.
    pub fn price<E>(&mut self, mut price: impl FnMut(&ListenerConfig) -> Result<Option<Profile>, E>) -> Result<(), E> {
        for (_, listener) in self.open.iter_mut().filter(|(_, listener)| listener.profile.is_none()) {
            listener.profile = price(listener)?;
        }
        Ok(())
    }

    /// Listens, and serves in the background.
    ///
    /// # Errors
    /// When an address is taken, or the system has no room.
    pub fn serve(self) -> Result<Server, StartError> {
        let service = self.options.service(self.store.journal());
        let Prepared { store: _store, served, keeper, recovery } = self.prepared()?;
        Ok(Server {
            service: overside_service::Server::start(served, service)?,
            keeper,
            recovery,
            #[cfg(test)]
            store: _store,
        })
    }

    fn prepared(self) -> Result<Prepared, StartError> {
        let Recovered { open, store, threads, recovery, options } = self;
        let mut served = Vec::new();
        for (domain, (mut at, ListenerConfig { provider, names, profile })) in open.into_iter().enumerate() {
            let capabilities = provider.capabilities();
            let (sge_max, lends, meter) = (capabilities.sge_max, capabilities.lends, Meter::default());
            let planner = Planner::new(capabilities, profile.unwrap_or_else(|| provider.profile()));
            let prices = Prices { planner, sge_max, lends, meter };
            at.listen(&names)?;
            served.push((at, Arc::new(Tables { store: store.clone(), prices, options: options.clone(), domain })));
        }
        let start = |(writer, checkpointer)| Keeper::start(writer, checkpointer, &*options.world.threads);
        let keeper = threads.map(start).transpose()?;
        Ok(Prepared { store, served, keeper, recovery })
    }
}

/// A server that is to be started.
struct Prepared {
    store: Arc<Store>,
    /// Each provider with the tables as its connections see them.
    served: Vec<(Listening, Arc<Tables>)>,
    keeper: Option<Keeper>,
    recovery: Option<Recovery>,
}

/// Nobody connects before the tables are there.
const NOWHERE: &[&str] = &[];

/// Lengths of pieces whose prices are named: the papers' records, and a page.
const PRICED: [u64; 3] = [128, 1024, 16 << 10];

/// A packed answer: at least a page's rows and their header. No power of two, so that the buffers
/// do not fall into the same sets of a cache.
const LARGE_BYTES: usize = 36 << 10;
