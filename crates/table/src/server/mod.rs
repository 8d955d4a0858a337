//! The server: tables in registered memory, any number of clients.
//!
//! One accepting thread, and workers that own a completion queue each with the connections on it. A
//! worker answers requests and feeds scans page by page, as fast as its clients take them: it never
//! waits for one of them.
//!
//! What a slow client holds back is bounded: a scan has at most [`ServerOptions::window`] messages in
//! flight, each with at most a page pinned; what it may hold beyond retirement is budgeted, past the
//! budget pages are copied out, and past [`ServerOptions::deadline`] without progress its connection is
//! closed (docs/ARCHITECTURE.md, rules of memory 4).

mod answer;
mod apply;
mod connection;
mod message;
mod meter;
mod notices;
mod remembered;
mod scan;
mod store;
mod transmit;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use overside_bwtree::{Exhausted, SegmentObserver};
use overside_memory::{Segment, SegmentId};
use overside_planner::{Goal, Profile};
use overside_verbs::{Access, Link, Listener, Memory, MemoryRegion, ProtectionDomain, Provider, VerbsError};

use meter::Meter;
pub use notices::Notices;
use store::{MemoryLimit, Store};
use worker::{Waker, Worker};

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Threads that serve connections. Default: half of the processors.
    pub workers: usize,
    /// Bytes of memory that one table may commit. Default: 3/4 of what is available now, or 64 GiB.
    pub memory_max: usize,
    /// Bytes of one segment: the step in which tables grow.
    pub segment_bytes: usize,
    /// Messages of one scan in flight: as many as a client takes while a server that slept over the first half wakes up.
    pub window: usize,
    /// Bytes that one connection's transmissions may keep from being reclaimed before its pages
    /// are copied out instead.
    pub pinned_max: u64,
    /// How long a client may not take what was sent before its connection is closed.
    pub deadline: Duration,
    /// What `auto` makes small.
    pub goal: Goal,
    /// Told of every peer that is turned away, closed for cause or lost.
    pub notices: Option<Notices>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            workers: (processors / 2).max(1),
            memory_max: 64 << 30,
            segment_bytes: 8 << 20,
            window: 128,
            pinned_max: 4 << 20,
            deadline: Duration::from_secs(10),
            goal: Goal::Throughput,
            notices: None,
        }
    }
}

/// A running server. Dropping it shuts it down.
#[derive(Debug)]
pub struct Server {
    house: Arc<House>,
    threads: Vec<JoinHandle<()>>,
    wakers: Vec<Waker>,
}

/// A way to reach a server: a provider, and the names it listens at.
#[derive(Clone, Debug)]
pub struct Front {
    /// The provider.
    pub provider: Arc<dyn Provider>,
    /// The provider's part of each address.
    pub names: Vec<String>,
    /// Its prices, where they were measured; else its defaults.
    pub profile: Option<Profile>,
}

/// What all threads of a front have.
#[derive(Debug)]
struct Shared {
    provider: Arc<dyn Provider>,
    domain: ProtectionDomain,
    house: Arc<House>,
    options: ServerOptions,
    profile: Profile,
    sge_max: usize,
    meter: Meter,
}

/// What all fronts of a server have.
#[derive(Debug)]
struct House {
    store: Store,
    stop: AtomicBool,
    connections: AtomicU64,
    closed_for_cause: AtomicU64,
    empty_poll_ns: AtomicU64,
}

impl Server {
    /// Listens on the provider's part of each address and serves in the background.
    ///
    /// # Errors
    /// When an address is taken or the system has no room.
    pub fn start(provider: Arc<dyn Provider>, names: &[&str], options: ServerOptions) -> Result<Server, VerbsError> {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Self::start_on(vec![Front { provider, names, profile: None }], options)
    }

    /// As [`start`](Self::start), by several providers at once: the same tables, each front with workers of its own.
    ///
    /// # Errors
    /// When an address is taken or the system has no room.
    pub fn start_on(fronts: Vec<Front>, options: ServerOptions) -> Result<Server, VerbsError> {
        raise_descriptor_limit();
        let mut grounds = Vec::new();
        for front in fronts {
            let domain = front.provider.allocate_domain()?;
            let listeners =
                front.names.iter().map(|n| front.provider.listen(&domain, n)).collect::<Result<Vec<_>, _>>()?;
            grounds.push((front.provider, domain, listeners, front.profile));
        }
        let places = grounds.iter().map(|(provider, domain, ..)| (provider.clone(), domain.clone())).collect();
        let registrar = Arc::new(Registrar { places, regions: Mutex::default() });
        let memory = MemoryLimit { bytes_max: options.memory_max, segment_bytes: options.segment_bytes };
        let house = Arc::new(House {
            store: Store::new(memory, registrar),
            stop: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            closed_for_cause: AtomicU64::new(0),
            empty_poll_ns: AtomicU64::new(0),
        });
        let mut server = Server { house: house.clone(), threads: Vec::new(), wakers: Vec::new() };
        for (provider, domain, listeners, profile) in grounds {
            let shared = Arc::new(Shared {
                sge_max: provider.capabilities().sge_max,
                profile: profile.unwrap_or_else(|| provider.profile()),
                provider,
                domain,
                house: house.clone(),
                options: options.clone(),
                meter: Meter::default(),
            });
            server.open(&shared, listeners)?;
        }
        Ok(server)
    }

    /// Starts the threads of a front.
    fn open(&mut self, shared: &Arc<Shared>, listeners: Vec<Box<dyn Listener>>) -> Result<(), VerbsError> {
        let mut doors = Vec::new();
        for index in 0..shared.options.workers.max(1) {
            let (sender, links) = channel();
            let worker = Worker::new(shared.clone(), links)?;
            doors.push((sender, worker.waker()));
            self.wakers.push(worker.waker());
            self.spawn(format!("worker-{index}"), move || worker.run())?;
        }
        for (index, listener) in listeners.into_iter().enumerate() {
            let (shared, doors) = (shared.clone(), doors.clone());
            self.spawn(format!("accept-{index}"), move || accept(&shared, listener, &doors))?;
        }
        Ok(())
    }

    /// Stops accepting, closes every connection, frees every table.
    pub fn shutdown(mut self) {
        self.stop();
    }

    fn spawn(&mut self, name: String, run: impl FnOnce() + Send + 'static) -> Result<(), VerbsError> {
        let thread = std::thread::Builder::new().name(name).spawn(run);
        let thread = thread.map_err(|e| VerbsError::System { what: "starting a thread", reason: e.to_string() })?;
        self.threads.push(thread);
        Ok(())
    }

    fn stop(&mut self) {
        self.house.stop.store(true, Ordering::Release);
        self.wakers.iter().for_each(Waker::wake);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A connection takes a few descriptors, a segment one: the usual 1,024 are soon spent, and the system
/// allows more to whoever asks. Refusal leaves what there is.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}

/// Hands new connections to the workers in turn.
fn accept(shared: &Shared, mut listener: Box<dyn Listener>, doors: &[(Sender<Link>, Waker)]) {
    for (sender, waker) in doors.iter().cycle() {
        let link = loop {
            if shared.house.stop.load(Ordering::Acquire) {
                return;
            }
            if let Some(notices) = &shared.options.notices {
                notices.look();
                listener.refused().iter().for_each(|refused| notices.say(&refused.to_string()));
            }
            match listener.accept(ACCEPT_LOOK) {
                Ok(Some(link)) => break link,
                Ok(None) => {}
                // Out of descriptors, say: others close theirs, and looking again is all there is to do.
                Err(_) => std::thread::sleep(ACCEPT_LOOK),
            }
        };
        if sender.send(link).is_ok() {
            waker.wake();
        }
    }
}

/// Registers the tables' segments with every provider as they come and deregisters them as they go.
#[derive(Debug)]
struct Registrar {
    places: Vec<(Arc<dyn Provider>, ProtectionDomain)>,
    /// Of each segment, one for each place that took it.
    regions: Mutex<std::collections::HashMap<SegmentId, Vec<MemoryRegion>>>,
}

impl Registrar {
    fn end(&self, regions: Vec<MemoryRegion>) {
        for (region, (provider, _)) in regions.into_iter().zip(&self.places) {
            let _ = provider.deregister(region);
        }
    }
}

impl SegmentObserver for Registrar {
    fn committed(&self, segment: &Arc<Segment>) -> Result<(), Exhausted> {
        let memory = Memory::Segment(segment.clone());
        let mut regions = Vec::new();
        for (provider, domain) in &self.places {
            match provider.register(domain, &memory, Access::LOCAL) {
                Ok(region) => regions.push(region),
                Err(_) => {
                    self.end(regions);
                    return Err(Exhausted);
                }
            }
        }
        self.regions.lock().unwrap_or_else(|e| e.into_inner()).insert(segment.id(), regions);
        Ok(())
    }

    fn decommitted(&self, segment: SegmentId) {
        let regions = self.regions.lock().unwrap_or_else(|e| e.into_inner()).remove(&segment);
        self.end(regions.unwrap_or_default());
    }
}

/// How often the accepting thread looks whether it shall stop.
const ACCEPT_LOOK: Duration = Duration::from_millis(200);
