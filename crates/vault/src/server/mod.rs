//! The node: volumes served to clients, each request carried out once.
//!
//! | in the order of a request | files |
//! |---|---|
//! | one connection: greetings, requests, what they are answered with | `connection` |
//! | who may attach which volume | `access` |
//! | volumes that are changed: while nobody uses them, or by another member in the place of one | `changes`, `slot` |
//! | one client, over its connections and reconnects: what it has in flight, what it was answered | `attachment`, `ledger` |
//! | processes that write a volume together, and their ends | `processes` |
//! | a volume in the node's own process, for fronts | `door` |
//! | how it all does, for those who ask | `report`, [`status`] |
//! | one volume: its device, and the thread that waits for it | `volume` |
//! | who wrote a volume last, in whichever life of the node | `writer` |
//! | memory for blocks, registered where connections come in | `blocks` |
//! | WRITEs whose bytes are read from the client's memory first | `reads` |
//!
//! # One READ
//!
//! 1. The client takes credits (a request, and its bytes) and sends 64 bytes inline: session,
//!    number, lowest unacknowledged number, LBA, length.
//! 2. A worker of the node checks bounds and hands the request to the volume's device. What is in
//!    the cache ends at once; anything else when the disk has ended it.
//! 3. The node sends a header of 64 bytes and the block from where it lies. The receiver copies
//!    once.
//!
//! # One WRITE
//!
//! 1. The bytes ride behind the 64 bytes of the request, in the same message. Or the message names
//!    memory of the client's: the worker READs the bytes from there, and only then has the request
//!    come.
//! 2. The node writes them from a buffer of its own, and answers when the policy says so.
//! 3. The node remembers the outcome until the client says that it has the answer. A request that
//!    is replayed after a reconnect is answered from that memory.

mod access;
mod attachment;
mod blocks;
mod changes;
mod connection;
mod door;
mod ledger;
mod processes;
mod reads;
mod report;
mod slot;
mod status;
mod volume;
mod writer;

pub use access::{Access, BadAccess};
#[doc(hidden)]
pub use access::{fuzz_access, seeds_access};
pub use changes::{ChangeError, Keeper, Reopened, change};
pub use door::Door;
pub use status::{StatusError, status};
pub use writer::{LastWriter, WriterRecord};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use overside_memory::Buffer;
use overside_service::{Listening, Running, Server, ServiceOptions, System, Threads};
use overside_verbs::{Clock, VerbsError};
use overside_volume::files::Preset;
use overside_volume::wire::{HEADER, Role, Status};
use overside_volume::{Device, DeviceError, Health};

use crate::cache::CacheOptions;
use attachment::Attachment;
use blocks::{Blocks, ReadBlock, Registered};
use connection::Connection;
use volume::Volume;

/// How a node is set up.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// When a WRITE is acknowledged.
    pub writes: Writes,
    /// The cache, which all volumes share in equal parts; of no bytes: none.
    pub cache: CacheOptions,
    /// Bytes of one request at most, of which 16 MiB is the longest; clients cut longer ones.
    pub request_bytes_max: u32,
    /// Requests that a client may have in flight: fewer where they have more than 32 MiB together.
    pub requests_max: u16,
    /// Buffers for blocks on their way to clients, and as many for those that come. No more than
    /// 128 MiB of either.
    pub blocks: usize,
    /// Clients at once.
    pub sessions_max: usize,
    /// How long a client that vanished keeps its place as a volume's writer.
    pub linger: Duration,
    /// Who may attach volumes over connections; none: whoever may connect.
    pub access: Option<Access>,
    /// Who changes volumes; none: they are not changed over connections.
    pub keeper: Option<Arc<dyn Keeper>>,
    /// How much processor time the node's process has used, for its reports.
    pub cpu: Option<fn() -> Duration>,
}

/// What a volume lies on and is for, apart from its blocks.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// How, as the command line says it.
    pub layout: String,
    /// Places as the command line says them, and bytes of each.
    pub members: Vec<(String, u64)>,
    /// Which of them have a checksum of each block.
    pub sums: Vec<bool>,
    /// Which of them have missed a write.
    pub health: Health,
    /// It keeps files of this preset.
    pub files: Option<Preset>,
}

/// When a WRITE is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// When it is on stable storage.
    Through,
    /// When the node's kernel has it.
    Back,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            writes: Writes::Through,
            cache: CacheOptions { bytes: 0, ..CacheOptions::default() },
            request_bytes_max: 128 << 10,
            requests_max: 64,
            blocks: 128,
            sessions_max: 1024,
            linger: Duration::from_secs(10),
            access: None,
            keeper: None,
            cpu: None,
        }
    }
}

/// A storage node. What it serves can be added while it runs.
#[derive(Debug)]
pub struct Node {
    options: NodeOptions,
    clock: Arc<dyn Clock>,
    /// One life of the node: no other has the same.
    incarnation: u64,
    volumes: Mutex<BTreeMap<String, Arc<Volume>>>,
    /// Volumes that could not be opened, and why.
    failed: Mutex<BTreeMap<String, String>>,
    /// Volumes that are being changed: nobody has them meanwhile.
    changing: Mutex<BTreeSet<String>>,
    /// While it is served.
    serving: Mutex<Option<Serving>>,
    attachments: Mutex<BTreeMap<u64, Arc<Attachment>>>,
    blocks: OnceLock<Arc<Blocks>>,
    registered: Arc<Registered>,
}

#[derive(Debug)]
struct Serving {
    threads: Arc<dyn Threads>,
    /// Threads, by names.
    running: BTreeMap<String, Running>,
    since: Instant,
}

/// A node that is being served. Dropping it ends that: what is under way is completed, what was
/// written is brought to stable storage, and the node has no volume any more.
#[derive(Debug)]
pub struct Served {
    node: Arc<Node>,
    server: Option<Server<Node>>,
}

/// Why a volume cannot be used in its node's process.
#[derive(Debug, thiserror::Error)]
pub enum NoDoor {
    /// There is none of this name.
    #[error("the node has no such volume; `overside volume list` says which there are")]
    Unknown,
    /// Another client writes it.
    #[error("another client writes the volume; detach that one first")]
    Busy,
    /// It has no blocks for others.
    #[error("the volume keeps files; `overside run --volume` takes it")]
    Files,
    /// There are too many clients.
    #[error("the node has no room for another client; try again later")]
    Full,
    /// The system has no descriptor.
    #[error(transparent)]
    System(#[from] VerbsError),
}

/// A new client.
struct Who {
    role: Role,
    process: u32,
    /// Whose sessions write together; 0: it writes alone.
    group: u64,
    /// As the system says, where the process is on this host.
    vouched: Option<u32>,
    /// The session of an earlier life of the node that it goes on with.
    goes_on: Option<u64>,
    /// It may come again in the next life.
    returns: bool,
}

/// What a node says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStatistics {
    /// Clients that are attached.
    pub sessions: usize,
    /// Volumes.
    pub volumes: usize,
}

impl Node {
    /// With no volume yet.
    ///
    /// # Errors
    /// When the system has no chance to give.
    pub fn new(clock: Arc<dyn Clock>, options: NodeOptions) -> Result<Arc<Node>, VerbsError> {
        let mut chance = [0; 8];
        clock.fill(&mut chance)?;
        let request_bytes_max = options.request_bytes_max.min(REQUEST_BYTES_MAX);
        let together = (IN_FLIGHT_BYTES_MAX / request_bytes_max.max(1)).min(u16::MAX.into()) as u16;
        let requests_max = options.requests_max.min(together);
        let options = NodeOptions { request_bytes_max, requests_max, ..options };
        let registered = Arc::new(Registered::new(options.cache.bytes));
        Ok(Arc::new(Node {
            options,
            clock,
            incarnation: u64::from_le_bytes(chance).max(1),
            volumes: Mutex::default(),
            failed: Mutex::default(),
            changing: Mutex::default(),
            serving: Mutex::default(),
            attachments: Mutex::default(),
            blocks: OnceLock::new(),
            registered,
        }))
    }

    /// Adds a volume, before the node is served or while it is.
    ///
    /// # Errors
    /// When the system has no descriptor or no thread for it, or the cache's blocks are smaller
    /// than the device's units.
    pub fn add(self: &Arc<Self>, name: &str, device: Box<dyn Device>) -> Result<(), VerbsError> {
        self.add_described(name, device, About::default(), None)
    }

    /// The same, with what reports say of it, and who wrote it last in the lives before.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_described(
        self: &Arc<Self>,
        name: &str,
        device: Box<dyn Device>,
        about: About,
        record: Option<WriterRecord>,
    ) -> Result<(), VerbsError> {
        let volume =
            Arc::new(Volume::new(device, &self.options, self.clock.clone(), about, record, self.registered.clone())?);
        let mut serving = lock(&self.serving);
        if let Some(serving) = &mut *serving {
            let running = self.start(&*serving.threads, name, volume.clone())?;
            serving.running.insert(name.to_owned(), running);
        }
        lock(&self.failed).remove(name);
        let mut volumes = lock(&self.volumes);
        volumes.insert(name.to_owned(), volume);
        self.share_cache(&volumes);
        Ok(())
    }

    /// Each volume gets its part of the cache.
    fn share_cache(&self, volumes: &BTreeMap<String, Arc<Volume>>) {
        let share = self.options.cache.bytes / volumes.len().max(1) as u64;
        volumes.values().for_each(|volume| volume.share(share));
    }

    /// A volume that there is and that cannot be opened: clients are refused, and reports say why.
    pub fn add_failed(&self, name: &str, reason: &str) {
        lock(&self.failed).insert(name.to_owned(), reason.to_owned());
    }

    /// A volume that could not be opened is no more.
    pub fn remove_failed(&self, name: &str) {
        lock(&self.failed).remove(name);
    }

    /// Whether it has a volume of this name, or has let go of it to be changed.
    pub fn serves(&self, name: &str) -> bool {
        let is_here = lock(&self.volumes).contains_key(name);
        is_here || lock(&self.changing).contains(name)
    }

    /// What a client hears of a volume that the node does not have.
    fn why_not(&self, name: &str) -> Status {
        if lock(&self.changing).contains(name) {
            // It is there again soon.
            return Status::Full;
        }
        let is_there = lock(&self.failed).contains_key(name);
        if is_there { Status::Device(DeviceError::Failed) } else { Status::Unknown }
    }

    /// Serves it, on threads of `options`.
    ///
    /// # Errors
    /// When the system has no memory or threads for it.
    pub fn serve(self: &Arc<Self>, listening: Vec<Listening>, options: ServiceOptions) -> Result<Served, VerbsError> {
        let room = self.options.request_bytes_max as usize;
        self.registered.serve(&listening);
        let count = self.options.blocks.min(BLOCKS_BYTES_MAX / room.max(1));
        let blocks = Blocks::new(room, count, &self.registered, self.options.cache)?;
        let _ = self.blocks.set(Arc::new(blocks));
        let options = ServiceOptions { request_bytes_max: options.request_bytes_max.max(room + HEADER), ..options };
        let mut served = Served { node: self.clone(), server: None };
        {
            let mut serving = lock(&self.serving);
            let (threads, since) = (options.threads.clone(), self.clock.now());
            let serving = serving.insert(Serving { threads, running: BTreeMap::new(), since });
            for (name, volume) in lock(&self.volumes).iter() {
                let running = self.start(&*serving.threads, name, volume.clone())?;
                serving.running.insert(name.clone(), running);
            }
        }
        let listening = listening.into_iter().map(|listening| (listening, self.clone())).collect();
        served.server = Some(Server::start(listening, options)?);
        Ok(served)
    }

    /// A volume's thread.
    fn start(self: &Arc<Self>, threads: &dyn Threads, name: &str, volume: Arc<Volume>) -> Result<Running, VerbsError> {
        let node = self.clone();
        let run = move || {
            if let Some(blocks) = node.blocks() {
                volume.run(blocks);
            }
        };
        threads.start(&format!("volume-{name}"), Box::new(run))
    }

    /// How it does.
    pub fn statistics(&self) -> NodeStatistics {
        NodeStatistics { sessions: lock(&self.attachments).len(), volumes: lock(&self.volumes).len() }
    }

    /// A volume as a device of this process. It is a client as those are that connect.
    ///
    /// # Errors
    /// There is no such volume, another client writes it, or the node has no room for one more
    /// client.
    pub fn door(self: &Arc<Self>, name: &str, role: Role) -> Result<Door, NoDoor> {
        let now = self.clock.now();
        // It ends with the node, and never comes again.
        let who = Who { role, process: std::process::id(), group: 0, vouched: None, goes_on: None, returns: false };
        let mut attachments = lock(&self.attachments);
        let volume = self.volume(name).ok_or(NoDoor::Unknown)?;
        if volume.files.is_some() {
            return Err(NoDoor::Files);
        }
        let attached = self.attach(&mut attachments, &volume, who, now);
        drop(attachments);
        let (to, before) =
            attached.map_err(|status| if status == Status::Busy { NoDoor::Busy } else { NoDoor::Full })?;
        Ok(Door::new(self.clone(), to, before)?)
    }

    /// The names of its volumes.
    pub fn names(&self) -> Vec<String> {
        lock(&self.volumes).keys().cloned().collect()
    }

    /// A new client, and whose requests must end before it is welcome.
    fn attach(
        &self,
        attachments: &mut BTreeMap<u64, Arc<Attachment>>,
        volume: &Arc<Volume>,
        Who { role, process, group, vouched, goes_on, returns }: Who,
        now: Instant,
    ) -> Result<(Arc<Attachment>, Vec<Arc<Attachment>>), Status> {
        attachments.retain(|_, attachment| attachment.writes || !attachment.is_gone(now, self.options.linger));
        if attachments.len() >= self.options.sessions_max {
            // Writers that vanished keep their places for longer only while nobody needs one.
            attachments.retain(|_, writer| {
                let stays = !writer.is_gone(now, self.options.linger);
                if !stays {
                    writer.let_go();
                }
                stays
            });
        }
        if attachments.len() >= self.options.sessions_max {
            return Err(Status::Full);
        }
        // Before anybody is fenced off for it. No number is given twice.
        let session = goes_on.map_or_else(|| self.new_session(), Ok).ok();
        let session = session.filter(|session| !attachments.contains_key(session)).ok_or(Status::Full)?;
        let writes = role != Role::Reader;
        if writes && group != 0 {
            volume.processes.fence_ended(0);
        }
        let mut writers = lock(&volume.writers);
        let joins = group != 0 && writers.iter().all(|other| other.group == group);
        if writes {
            let linger = self.options.linger;
            let is_held = match writers.is_empty() {
                false => !joins && writers.iter().any(|other| !other.is_gone(now, linger)),
                true => goes_on.is_none() && volume.awaits_writer(group, now, linger),
            };
            if role != Role::TakeOver && is_held {
                return Err(Status::Busy);
            }
            if !volume.note_writer(LastWriter { session: writer_of(session, group), returns }) {
                return Err(Status::Device(DeviceError::Failed));
            }
            // Of its own group, those that will not return.
            writers.retain(|other| {
                let stays = joins && !other.is_gone(now, linger);
                if !stays {
                    other.fence();
                    attachments.remove(&other.session);
                    volume.replaced(other);
                }
                stays
            });
        }
        let mut before = if writes { volume.still_writing() } else { Vec::new() };
        if writes {
            // What a process that ended had under way ends before the next one of its group begins.
            let has_ended = |other: &&Arc<Attachment>| other.is_fenced() || other.is_gone(now, Duration::ZERO);
            before.extend(writers.iter().filter(has_ended).cloned());
        }
        let new = Arc::new(Attachment::new(session, volume.clone(), writes, (process, group)));
        if writes {
            writers.push(new.clone());
            if group != 0 {
                volume.processes.enter(&new, vouched);
            }
        }
        attachments.insert(session, new.clone());
        Ok((new, before))
    }

    /// A client's place is free, and nothing of it is carried out any more.
    fn leave(&self, client: &Arc<Attachment>) {
        client.fence();
        lock(&self.attachments).remove(&client.session);
        let mut writers = lock(&client.volume.writers);
        let before = writers.len();
        writers.retain(|writer| !Arc::ptr_eq(writer, client));
        if writers.len() < before {
            client.volume.replaced(client);
            // Others of its group may not have come again yet.
            let lacks = client.volume.lacks_writers(self.clock.now(), self.options.linger);
            if client.group == 0 || (writers.is_empty() && !lacks) {
                let session = writer_of(client.session, client.group);
                client.volume.note_writer(LastWriter { session, returns: false });
            }
        }
    }

    fn volume(&self, name: &str) -> Option<Arc<Volume>> {
        lock(&self.volumes).get(name).cloned()
    }

    fn blocks(&self) -> Option<&Arc<Blocks>> {
        self.blocks.get()
    }

    /// A number that nobody can guess: who knows it may go on with the session.
    ///
    /// # Errors
    /// When the system has no chance to give.
    fn new_session(&self) -> Result<u64, VerbsError> {
        let mut chance = [0; 8];
        self.clock.fill(&mut chance)?;
        Ok(u64::from_le_bytes(chance).max(1))
    }
}

impl Served {
    /// How its service does.
    pub fn service(&self) -> overside_service::Statistics {
        self.server.as_ref().map(Server::statistics).unwrap_or_default()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // From here on nobody is answered: clients ask again, of whoever serves the volumes next.
        drop(self.server.take());
        let serving = lock(&self.node.serving).take();
        let volumes = std::mem::take(&mut *lock(&self.node.volumes));
        volumes.values().for_each(|volume| volume.stop());
        serving.into_iter().flat_map(|serving| serving.running.into_values()).for_each(Running::join);
        volumes.values().for_each(|volume| volume.forget_writers());
        lock(&self.node.attachments).clear();
    }
}

impl System for Node {
    type Session = Connection;

    fn session(self: &Arc<Self>) -> Connection {
        Connection::new(self.clone())
    }

    fn unread(&self, buffer: Buffer) {
        if let Some(blocks) = self.blocks() {
            drop(ReadBlock::new(blocks.clone(), buffer));
        }
    }

    fn unfinished(&self, body: &mut Vec<u8>) {
        // A fault of this program: the client breaks the connection off and asks again.
        body.clear();
    }
}

/// Who is noted as a volume's writer: the session, or its group.
fn writer_of(session: u64, group: u64) -> u64 {
    if group == 0 { session } else { group }
}

/// What one thread left in the middle of is single steps: they stand.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// The longest request that a node takes. Two of them, and their headers, wait together for a
/// client that is slower than the node.
pub const REQUEST_BYTES_MAX: u32 = 16 << 20;
/// What one client has in flight, and a node memory for beyond its blocks.
const IN_FLIGHT_BYTES_MAX: u32 = 32 << 20;
/// Memory of blocks of a kind, which is taken at once.
const BLOCKS_BYTES_MAX: usize = 128 << 20;
