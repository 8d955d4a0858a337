//! A disk that keeps only what it must.
//!
//! Unsynced writes vanish, come in any order and tear at 512 bytes. A name needs its folder's sync.
//! Any write or sync may fail; the bytes are anything then, and a second sync after a failed one
//! says that all is well although it is not. A disk may be full and slow. [`Drive::lose_power`]
//! leaves what a power loss leaves; a process that is killed leaves all that the kernel had.

mod file;
mod names;
mod queue;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use overside_disk::{Completion, Disk, Request};
use overside_verbs::Clock;
use rustix::event::EventfdFlags;

use crate::chance::Chance;
use crate::process::Process;
use crate::world::World;
use file::File;
use names::Folder;
use queue::Queue;

/// How a disk behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveOptions {
    /// Bytes of all files together, beyond which it is full.
    pub capacity: u64,
    /// How long a request takes at most.
    pub latency_max: Duration,
    /// One request in so many takes [`stall`](Self::stall) longer; none where it is 0.
    pub stall_one_in: u64,
    /// How much longer.
    pub stall: Duration,
    /// One write or sync in so many fails; none where it is 0.
    pub fail_one_in: u64,
}

impl Default for DriveOptions {
    fn default() -> Self {
        Self {
            capacity: 1 << 30,
            latency_max: Duration::from_micros(300),
            stall_one_in: 0,
            stall: Duration::from_millis(200),
            fail_one_in: 0,
        }
    }
}

/// A disk of a world, with a folder that processes open.
#[derive(Clone)]
pub struct Drive(Arc<Shared>);

struct Shared {
    world: World,
    clock: Arc<dyn Clock>,
    /// Wakes the thread that completes requests.
    wake: OwnedFd,
    state: Mutex<State>,
}

struct State {
    options: DriveOptions,
    chance: Chance,
    nodes: BTreeMap<u64, Node>,
    next: u64,
    queues: BTreeMap<u64, QueueState>,
    under_way: Vec<InFlight>,
    /// Operations so far.
    operations: u64,
    /// What is done at an operation.
    planned: Option<Planned>,
    /// A sector that is under way when the power goes is old or new.
    whole_sectors: bool,
    /// What befell it since that was last noted.
    befell: Vec<&'static str>,
}

/// Done at the operation before which so many others of its kind, or of any, take place.
struct Planned {
    kind: Option<&'static str>,
    others: u64,
    done: Box<dyn FnOnce() + Send>,
}

enum Node {
    File { file: File, lock: Option<Lock> },
    Folder(Folder),
}

/// Who locked a file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Lock {
    queue: u64,
    /// It lets go as soon as its last request to the file has ended.
    ends: bool,
}

/// What the kernel has of one queue.
struct QueueState {
    done: Vec<Completion>,
    wake: Arc<OwnedFd>,
    /// Nodes of its open files.
    open: Vec<u64>,
    /// Its process was killed: nobody takes its completions.
    dead: bool,
}

/// A request that was submitted.
struct InFlight {
    number: u64,
    due: Instant,
    queue: u64,
    token: u64,
    node: u64,
    request: Request,
    /// Writes or changes of names that a sync covers.
    covers: u64,
    /// It goes past the kernel's memory.
    direct: bool,
}

impl Drive {
    /// An empty disk.
    ///
    /// # Panics
    /// When the system has no descriptor or thread for it.
    pub fn new(world: &World, options: DriveOptions) -> Drive {
        let state = State {
            options,
            chance: world.chance("disk"),
            nodes: BTreeMap::from([(ROOT, Node::Folder(Folder::default()))]),
            next: ROOT + 1,
            queues: BTreeMap::new(),
            under_way: Vec::new(),
            operations: 0,
            planned: None,
            whole_sectors: false,
            befell: Vec::new(),
        };
        let wake = eventfd().expect("the system has a descriptor for a disk");
        let drive =
            Drive(Arc::new(Shared { world: world.clone(), clock: world.clock(), wake, state: Mutex::new(state) }));
        let device = drive.clone();
        world.process("disk").spawn("disk", move || device.complete_all());
        drive
    }

    /// Opens the folder for a process. When that is killed, what it has submitted still lands.
    ///
    /// # Panics
    /// When the system has no descriptor for it.
    pub fn open(&self, process: &Process) -> Box<dyn Disk> {
        Box::new(Queue::new(self, process.clone()).expect("the system has a descriptor for a queue"))
    }

    /// Changes how it behaves.
    pub fn set(&self, options: DriveOptions) {
        self.state().options = options;
    }

    /// How it behaves.
    pub fn options(&self) -> DriveOptions {
        self.state().options
    }

    /// Operations so far: changes of names, requests, and their completions.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Does something at an operation from now on, the next being 1: kills the process, for
    /// example. It must not wait.
    pub fn at_operation(&self, number: u64, done: impl FnOnce() + Send + 'static) {
        self.plan(None, number, Box::new(done));
    }

    /// The same at an operation of one kind: one of [`KINDS`](Self::KINDS).
    pub fn at_operation_of(&self, kind: &'static str, number: u64, done: impl FnOnce() + Send + 'static) {
        self.plan(Some(kind), number, Box::new(done));
    }

    fn plan(&self, kind: Option<&'static str>, number: u64, done: Box<dyn FnOnce() + Send>) {
        self.state().planned = Some(Planned { kind, others: number.saturating_sub(1), done });
    }

    /// What there is of operations.
    pub const KINDS: [&'static str; STRUCK.len()] = {
        let mut kinds = [""; STRUCK.len()];
        let mut at = 0;
        while at < kinds.len() {
            kinds[at] = STRUCK[at].0;
            at += 1;
        }
        kinds
    };

    /// From now on a sector that is under way when the power goes is old or new; else it may be
    /// anything.
    pub fn keep_sectors_whole(&self) {
        self.state().whole_sectors = true;
    }

    /// Forgets what was planned.
    pub fn forget_plan(&self) {
        self.state().planned = None;
    }

    /// Bytes of all files.
    pub fn used(&self) -> u64 {
        self.state().used()
    }

    /// The power fails. Processes that used the disk must have been killed; it can be opened again.
    pub fn lose_power(&self) {
        let mut state = self.state();
        let State { chance, under_way, nodes, befell, whole_sectors, .. } = &mut *state;
        befell.push(LOSES_POWER);
        for InFlight { node, request, .. } in under_way.drain(..) {
            if let (Some(Node::File { file, .. }), Request::Write { at, buffer, length, .. }) =
                (nodes.get_mut(&node), &request)
            {
                file.tear(*at, &buffer[..*length], *whole_sectors, chance);
                befell.push(TEARS);
            }
        }
        for node in nodes.values_mut() {
            match node {
                Node::File { file, lock } => {
                    if file.lose_power(chance) > 0 {
                        befell.push(LOSES_BYTES);
                    }
                    *lock = None;
                }
                Node::Folder(folder) => {
                    if folder.lose_power(chance) {
                        befell.push(LOSES_NAMES);
                    }
                }
            }
        }
        state.queues.clear();
        state.forget_unnamed();
        drop(state);
        self.note_befell();
    }

    /// All files with their lengths, by name.
    pub fn files(&self) -> Vec<(String, u64)> {
        let state = self.state();
        let mut found = Vec::new();
        state.files_below(ROOT, "", &mut found);
        found
    }

    /// The bytes of a file as the kernel shows them.
    ///
    /// # Panics
    /// When there is none of this name.
    pub fn read(&self, name: &str) -> Vec<u8> {
        let state = self.state();
        let Some(Node::File { file, .. }) = state.find(name).and_then(|node| state.nodes.get(&node)) else {
            panic!("there is no file {name}");
        };
        let mut bytes = vec![0; file.len() as usize];
        file.read(0, &mut bytes);
        bytes
    }

    /// Flips a bit of a file that nobody has open.
    pub fn flip(&self, name: &str, at: u64, bit: u32) {
        let mut state = self.state();
        let node = state.find(name);
        if let Some(Node::File { file, .. }) = node.and_then(|node| state.nodes.get_mut(&node)) {
            file.flip(at, bit);
        }
        state.befell.push(FLIPS);
        drop(state);
        self.note_befell();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operation: others may run before it, and what was planned for it is done.
    fn operation(&self, what: &'static str, number: u64) {
        self.0.world.point(what, number);
        let planned = {
            let mut state = self.state();
            state.operations += 1;
            state.planned.take_if(|planned| {
                let counts = planned.kind.is_none_or(|kind| kind == what);
                let now = counts && planned.others == 0;
                planned.others -= u64::from(counts && !now);
                now
            })
        };
        if let Some(Planned { done, .. }) = planned {
            let struck = STRUCK.iter().find(|(at, _)| *at == what).map_or("is struck", |(_, struck)| struck);
            self.0.world.note(struck, number);
            done();
        }
    }

    /// Enters into the trace what befell the disk.
    fn note_befell(&self) {
        let befell = std::mem::take(&mut self.state().befell);
        befell.into_iter().for_each(|what| self.0.world.note(what, 0));
    }

    /// The disk's own thread: requests complete when their time has come.
    fn complete_all(&self) {
        let Shared { clock, wake, .. } = &*self.0;
        loop {
            drain(wake);
            let now = clock.now();
            let due = {
                let state = self.state();
                let due = state.under_way.iter().filter(|request| request.due <= now);
                due.min_by_key(|request| (request.due, request.number)).map(|request| request.number)
            };
            if let Some(number) = due {
                self.operation("completes", number);
                self.state().complete(number);
                self.note_befell();
                continue;
            }
            let next = self.state().under_way.iter().map(|request| request.due).min();
            if clock.wait(&[wake.as_fd()], next).is_err() {
                return;
            }
        }
    }
}

impl State {
    /// Carries a request out, and puts its completion where its queue finds it. After a power loss
    /// it is gone.
    fn complete(&mut self, number: u64) {
        let Some(at) = self.under_way.iter().position(|request| request.number == number) else { return };
        let InFlight { queue, token, node, mut request, covers, direct, .. } = self.under_way.remove(at);
        let overtaken = |other: &InFlight| other.queue == queue && other.number < number;
        if self.under_way.iter().any(overtaken) {
            self.befell.push(OVERTAKES);
        }
        let result = self.carry_out(node, &mut request, covers, direct);
        if let Some(state) = self.queues.get_mut(&queue)
            && !state.dead
        {
            state.done.push(Completion { token, request, result });
            signal(&state.wake);
        }
        self.let_go(queue, node);
        self.forget_unnamed();
    }

    fn carry_out(&mut self, number: u64, request: &mut Request, covers: u64, direct: bool) -> io::Result<u64> {
        let used = self.used();
        let State { options, chance, nodes, befell, .. } = self;
        let room = options.capacity.saturating_sub(used);
        let fails =
            matches!(request, Request::Write { .. } | Request::Sync { .. }) && chance.one_in(options.fail_one_in);
        let failed = || io::Error::other("the device failed");
        match (nodes.get_mut(&number), request) {
            (Some(Node::File { file, .. }), Request::Read { at, buffer, .. }) => {
                if direct {
                    file.forget_phantoms();
                }
                Ok(file.read(*at, &mut buffer[..]) as u64)
            }
            (Some(Node::File { file, .. }), Request::Write { at, buffer, length, sync, .. }) => {
                let bytes = &buffer[..*length];
                if (*at + *length as u64).saturating_sub(file.len()) > room {
                    befell.push(IS_FULL);
                    return Err(full());
                }
                if fails {
                    befell.push(FAILS_A_WRITE);
                    file.tear(*at, bytes, false, chance);
                    return Err(failed());
                }
                file.write(*at, bytes, *sync);
                Ok(*length as u64)
            }
            (Some(Node::File { file, .. }), Request::Sync { .. }) => {
                if fails {
                    befell.push(FAILS_A_SYNC);
                    file.sync_in_vain(covers, chance);
                    return Err(failed());
                }
                file.sync(covers);
                Ok(0)
            }
            (Some(Node::Folder(folder)), Request::Sync { .. }) => {
                if fails {
                    befell.push(FAILS_A_SYNC);
                    folder.sync_in_vain(covers as usize, chance);
                    return Err(failed());
                }
                folder.sync(covers as usize);
                Ok(0)
            }
            (Some(Node::File { file, .. }), Request::Allocate { length, .. }) => {
                if length.saturating_sub(file.len()) > room {
                    befell.push(IS_FULL);
                    return Err(full());
                }
                file.set_len(file.len().max(*length));
                Ok(0)
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "that cannot be done with a folder")),
        }
    }

    /// A lock ends with the last request of the process that closed its file.
    fn let_go(&mut self, queue: u64, node: u64) {
        let busy = self.under_way.iter().any(|request| (request.queue, request.node) == (queue, node));
        if let Some(Node::File { lock, .. }) = self.nodes.get_mut(&node)
            && *lock == Some(Lock { queue, ends: true })
            && !busy
        {
            *lock = None;
        }
    }

    /// A queue's files are closed.
    fn close_all(&mut self, queue: u64) {
        if let Some(state) = self.queues.get_mut(&queue) {
            (state.dead, state.open) = (true, Vec::new());
        }
        let mut locked = Vec::new();
        for (number, node) in &mut self.nodes {
            if let Node::File { lock: Some(lock), .. } = node
                && lock.queue == queue
            {
                lock.ends = true;
                locked.push(*number);
            }
        }
        locked.into_iter().for_each(|node| self.let_go(queue, node));
    }

    fn used(&self) -> u64 {
        let len = |node: &Node| match node {
            Node::File { file, .. } => file.len(),
            Node::Folder(_) => 0,
        };
        self.nodes.values().map(len).sum()
    }

    fn find(&self, name: &str) -> Option<u64> {
        let parts = name.split('/').filter(|part| !part.is_empty());
        parts.into_iter().try_fold(ROOT, |at, part| match self.nodes.get(&at)? {
            Node::Folder(folder) => folder.get(part),
            Node::File { .. } => None,
        })
    }

    fn files_below(&self, node: u64, path: &str, found: &mut Vec<(String, u64)>) {
        match self.nodes.get(&node) {
            Some(Node::Folder(folder)) => {
                for (name, number) in folder.iter() {
                    let path = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
                    self.files_below(number, &path, found);
                }
            }
            Some(Node::File { file, .. }) => found.push((path.to_owned(), file.len())),
            None => {}
        }
    }

    /// Drops nodes that no name leads to, now or after a power loss, that nobody has open and no
    /// request is for.
    fn forget_unnamed(&mut self) {
        let mut named = vec![ROOT];
        let mut at = 0;
        while let Some(number) = named.get(at) {
            if let Some(Node::Folder(folder)) = self.nodes.get(number) {
                let below: Vec<u64> = folder.numbers().filter(|number| !named.contains(number)).collect();
                named.extend(below);
            }
            at += 1;
        }
        named.extend(self.under_way.iter().map(|request| request.node));
        named.extend(self.queues.values().flat_map(|queue| queue.open.iter().copied()));
        self.nodes.retain(|number, _| named.contains(number));
    }
}

impl fmt::Debug for Drive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drive").field("files", &self.files()).finish()
    }
}

fn full() -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, "no space left on the disk")
}

fn eventfd() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
}

fn signal(fd: &OwnedFd) {
    // A full counter is awake enough.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

fn drain(fd: &OwnedFd) {
    let _ = rustix::io::read(fd, &mut [0; 8][..]);
}

fn path() -> PathBuf {
    PathBuf::from("/simulated")
}

const ROOT: u64 = 0;

/// What is noted when something that was planned comes at an operation, which is not done then.
const STRUCK: [(&str, &str); 11] = [
    ("lists", "is struck: lists"),
    ("makes a folder", "is struck: makes a folder"),
    ("opens", "is struck: opens"),
    ("renames", "is struck: renames"),
    ("unlinks", "is struck: unlinks"),
    ("reads", "is struck: reads"),
    ("writes", "is struck: writes"),
    ("writes through", "is struck: writes through"),
    ("syncs", "is struck: syncs"),
    ("allocates", "is struck: allocates"),
    ("completes", "is struck: completes"),
];
const LOSES_POWER: &str = "disk: power lost";
const TEARS: &str = "disk: write torn";
const LOSES_BYTES: &str = "disk: bytes lost";
const LOSES_NAMES: &str = "disk: names lost";
const FAILS_A_WRITE: &str = "disk: write failed";
const FAILS_A_SYNC: &str = "disk: sync failed";
const IS_FULL: &str = "disk: full";
const OVERTAKES: &str = "disk: reordered";
const FLIPS: &str = "disk: bit flipped";
const STALLS: &str = "disk: stalled";
