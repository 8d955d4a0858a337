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
mod aside;
mod connection;
mod house;
mod message;
mod meter;
mod notices;
mod pace;
#[doc(hidden)]
pub mod parts;
mod registrar;
mod remembered;
mod scan;
mod store;
#[cfg(test)]
mod tests;
mod transmit;
mod used;
mod worker;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use overside_planner::{Goal, Profile};
use overside_verbs::{Listener, ProtectionDomain, Provider, VerbsError};

use house::{Admitted, House};
use meter::Meter;
pub use notices::{Notices, OnFailure};
use registrar::Registrar;
use store::{MemoryLimit, Store};
use worker::{Waker, Worker};

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Threads that serve connections. Default: half of the processors.
    pub workers: usize,
    /// Bytes of memory that all tables together may commit. Default: 3/4 of what is available now, or 64 GiB where the system does
    /// not say; at most a quarter of what a limit of the address space leaves, of which each table reserves twice as much and more.
    pub memory_max: usize,
    /// Connections at once; who comes when there are so many is told so. Default: 4,096.
    pub connections_max: usize,
    /// Bytes of one segment: the step in which tables grow.
    pub segment_bytes: usize,
    /// Messages of one scan in flight: as many as a client takes while a server that slept over the first half wakes up, and so many that
    /// waking it, which the client does, costs little. Of a client whose buffers are longer than usual (36 KiB) fewer, so that as many
    /// bytes are under way. Default: 256.
    pub window: usize,
    /// Bytes that one connection's transmissions may keep from being reclaimed before its pages
    /// are copied out instead; what is under way by then stays under way. Looked at once an eighth of it was sent.
    pub pinned_max: u64,
    /// How long a client may not take what was sent, or not introduce itself, before its connection is closed; and how long a delete
    /// waits for memory that others hold back, but not longer than 20 s.
    pub deadline: Duration,
    /// What `auto` makes small.
    pub goal: Goal,
    /// Told of every peer that is turned away, closed for cause or lost.
    pub notices: Option<Notices>,
    /// Told when the server cannot go on. It is to be dropped then.
    pub on_failure: Option<OnFailure>,
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
            window: 256,
            pinned_max: 4 << 20,
            deadline: Duration::from_secs(10),
            goal: Goal::Throughput,
            notices: None,
            on_failure: None,
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
        let (house, grounds) = prepare(fronts, &options)?;
        let mut server = Server { house, threads: Vec::new(), wakers: Vec::new() };
        for (shared, listeners) in grounds {
            server.open(&shared, listeners)?;
        }
        Ok(server)
    }

    /// Starts the threads of a front.
    fn open(&mut self, shared: &Arc<Shared>, listeners: Vec<Box<dyn Listener>>) -> Result<(), VerbsError> {
        let mut doors = Vec::new();
        for index in 0..shared.options.workers.max(1) {
            let (sender, links) = channel();
            let waker = Waker::new()?;
            let worker = Worker::new(shared.clone(), waker.clone())?;
            doors.push((sender, waker.clone()));
            self.wakers.push(waker.clone());
            let (shared, name) = (shared.clone(), format!("worker-{index}"));
            self.spawn(name.clone(), move || serve(&shared, &name, worker, &waker, &links))?;
        }
        for (index, listener) in listeners.into_iter().enumerate() {
            let (shared, doors) = (shared.clone(), doors.clone());
            let name = format!("accept-{index}");
            self.spawn(name.clone(), move || accept(&shared, &name, listener, &doors))?;
        }
        Ok(())
    }

    /// Stops accepting, closes every connection, frees every table.
    pub fn shutdown(mut self) {
        self.stop();
    }

    fn spawn(&mut self, name: String, run: impl FnOnce() + Send + 'static) -> Result<(), VerbsError> {
        let thread = std::thread::Builder::new().name(name).spawn(run);
        self.threads.push(thread.map_err(|e| VerbsError::no_thread(&e))?);
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

/// A front, and where it listens.
type Ground = (Arc<Shared>, Vec<Box<dyn Listener>>);

/// All of a server but its threads.
fn prepare(fronts: Vec<Front>, options: &ServerOptions) -> Result<(Arc<House>, Vec<Ground>), VerbsError> {
    raise_descriptor_limit();
    let mut grounds = Vec::new();
    for front in fronts {
        let domain = front.provider.allocate_domain()?;
        let listeners = front.names.iter().map(|n| front.provider.listen(&domain, n)).collect::<Result<Vec<_>, _>>()?;
        grounds.push((front.provider, domain, listeners, front.profile));
    }
    let places = grounds.iter().map(|(provider, domain, ..)| (provider.clone(), domain.clone())).collect();
    let registrar = Arc::new(Registrar::new(places, options.memory_max));
    let memory = MemoryLimit { bytes_max: options.memory_max, segment_bytes: options.segment_bytes };
    let store = Store::new(memory, registrar);
    let (notices, on_failure) = (options.notices.clone(), options.on_failure.clone());
    let house = Arc::new(House::new(store, options.connections_max, notices, on_failure));
    let shared = |(provider, domain, listeners, profile): (Arc<dyn Provider>, _, _, Option<Profile>)| {
        let shared = Shared {
            sge_max: provider.capabilities().sge_max,
            profile: profile.unwrap_or_else(|| provider.profile()),
            provider,
            domain,
            house: house.clone(),
            options: options.clone(),
            meter: Meter::default(),
        };
        (Arc::new(shared), listeners)
    };
    let grounds = grounds.into_iter().map(shared).collect();
    Ok((house, grounds))
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

/// Hands new connections to the workers in turn, until the server ends.
fn accept(shared: &Shared, name: &str, mut listener: Box<dyn Listener>, doors: &[(Sender<Admitted>, Waker)]) {
    let mut turn = 0;
    let meant = "the connections that it was greeting are lost";
    while !shared.house.survives(name, meant, || accept_from(shared, &mut *listener, doors, &mut turn)) {
        std::thread::sleep(ACCEPT_LOOK);
    }
}

fn accept_from(shared: &Shared, listener: &mut dyn Listener, doors: &[(Sender<Admitted>, Waker)], turn: &mut usize) {
    while !shared.house.stop.load(Ordering::Acquire) {
        if let Some(notices) = &shared.options.notices {
            notices.look();
            listener.refused().iter().for_each(|refused| notices.say(&refused.to_string()));
        }
        let link = match listener.accept(ACCEPT_LOOK) {
            Ok(Some(link)) => link,
            Ok(None) => continue,
            // Out of descriptors, say: others close theirs, and looking again is all there is to do.
            Err(_) => {
                std::thread::sleep(ACCEPT_LOOK);
                continue;
            }
        };
        let Some(place) = shared.house.admit() else {
            shared.house.say(&format!("no place for the connection of {}", link.peer.description));
            continue;
        };
        let (sender, waker) = &doors[*turn % doors.len()];
        *turn += 1;
        if sender.send(Admitted { link, place }).is_ok() {
            waker.wake();
        }
    }
}

/// A worker's thread. A panic costs the worker's clients their connections and nobody else anything: it begins anew.
fn serve(shared: &Arc<Shared>, name: &str, mut worker: Worker, waker: &Waker, links: &Receiver<Admitted>) {
    let meant = "its clients are disconnected, and it serves on";
    while !shared.house.survives(name, meant, || worker.run(links)) {
        worker = match Worker::new(shared.clone(), waker.clone()) {
            Ok(again) => again,
            Err(error) => {
                return shared
                    .house
                    .fail(&format!("the thread {name} cannot begin again: {error}; start the server again"));
            }
        };
    }
}

/// How often the accepting thread looks whether it shall stop.
const ACCEPT_LOOK: Duration = Duration::from_millis(200);
