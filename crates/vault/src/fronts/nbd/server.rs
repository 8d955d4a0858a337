//! The loop: connections on one side, devices on the other. It sleeps when neither has anything.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_verbs::watch::{Signal, failed, timespec};
use overside_verbs::{Clock, VerbsError};
use overside_volume::{Device, Geometry, Work};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::connection::{Broken, Connection, Reply};
use super::negotiation::Offers;
use super::socket_file::SocketFile;
use super::wire::Refusal;
use super::{Exports, NbdError, NbdOptions, NotOpened};
use crate::fronts::room::Room;
use crate::fronts::routed::{Ended, Routed, give_back, watch};

/// Where clients find a server. Nobody answers them before there is one.
#[derive(Debug)]
pub struct NbdSocket(SocketFile);

impl NbdSocket {
    /// Listens at `path`, where a dead server's socket is replaced. Only this user may connect.
    ///
    /// # Errors
    /// Somebody else listens there, or something is in the way.
    pub fn bind(path: &Path) -> Result<NbdSocket, NbdError> {
        SocketFile::open(path).map(NbdSocket).map_err(|source| NbdError::Path { path: PathBuf::from(path), source })
    }
}

/// Serves exports over NBD on a Unix socket.
#[derive(Debug)]
pub struct NbdServer {
    place: SocketFile,
    clock: Arc<dyn Clock>,
    options: NbdOptions,
    epoll: OwnedFd,
    signal: Arc<Signal>,
    connections: BTreeMap<u64, Watched>,
    opened: Opened,
    room: Room,
    next: u64,
    /// Connections that something has happened to.
    active: BTreeSet<u64>,
    ended: Vec<Ended<Route>>,
    /// The system had no descriptor for one that waits: looked at again after a while.
    accepts_at: Option<Instant>,
    stops_until: Option<Instant>,
}

#[derive(Debug)]
struct Watched {
    connection: Connection,
    interest: EventFlags,
    /// Until when it must have chosen an export.
    greets_until: Instant,
}

/// Exports, and their devices while somebody uses them.
#[derive(Debug)]
struct Opened {
    exports: Box<dyn Exports>,
    epoll: OwnedFd,
    devices: BTreeMap<u64, Export>,
    next: u64,
}

#[derive(Debug)]
struct Export {
    name: String,
    geometry: Geometry,
    requests: Routed<Route>,
}

/// Where a request's answer goes.
#[derive(Debug)]
struct Route {
    connection: u64,
    reply: Reply,
    flushes: bool,
}

impl NbdServer {
    /// Serves exports on a socket.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new(
        socket: NbdSocket,
        exports: Box<dyn Exports>,
        clock: Arc<dyn Clock>,
        options: NbdOptions,
    ) -> Result<NbdServer, NbdError> {
        let NbdSocket(place) = socket;
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|errno| failed("epoll_create", errno))?;
        let signal = Arc::new(Signal::new()?);
        watch(&epoll, &place, PLACE)?;
        watch(&epoll, &*signal, SIGNAL)?;
        let shared = epoll.try_clone().map_err(|e| VerbsError::System { what: "dup", reason: e.to_string() })?;
        Ok(NbdServer {
            place,
            clock,
            options,
            epoll,
            signal,
            connections: BTreeMap::new(),
            opened: Opened { exports, epoll: shared, devices: BTreeMap::new(), next: 0 },
            room: Room::default(),
            next: 0,
            active: BTreeSet::new(),
            ended: Vec::new(),
            accepts_at: None,
            stops_until: None,
        })
    }

    /// Ends [`run`](Self::run) when it is notified.
    pub fn stopper(&self) -> Arc<Signal> {
        self.signal.clone()
    }

    /// Serves until it is stopped. Then requests that were taken end first, for a while.
    ///
    /// # Errors
    /// When the system refuses to wait.
    pub fn run(mut self) -> Result<Box<dyn Exports>, NbdError> {
        if self.opened.exports.keeps_open() {
            for name in self.opened.names() {
                let _ = self.opened.look(&name);
            }
        }
        loop {
            let sleeps = self.turn();
            if let Some(until) = self.stops_until {
                let ended = self.connections.is_empty() && self.opened.devices.values().all(|e| e.requests.is_idle());
                if ended || self.clock.now() >= until {
                    break;
                }
            }
            let timeout = if sleeps { self.due() } else { Some(Duration::ZERO) };
            self.wait(timeout)?;
        }
        self.connections.clear();
        self.opened.close(|_| true);
        Ok(self.opened.exports)
    }

    /// All that can be done without waiting. Whether there is nothing left but to sleep.
    fn turn(&mut self) -> bool {
        loop {
            let mut again = self.take();
            again |= self.drive();
            again |= self.send();
            if !again {
                break;
            }
        }
        for id in std::mem::take(&mut self.active) {
            self.settle(id);
        }
        self.end_silent();
        if !self.opened.exports.keeps_open() {
            let connections = &self.connections;
            let is_used = |number| connections.values().any(|watched| watched.connection.export() == Some(number));
            self.opened.close(|(number, export)| export.requests.is_idle() && !is_used(**number));
        }
        // Each is armed, whatever the others say.
        self.opened.devices.values_mut().fold(true, |sleeps, export| export.requests.device.arm() & sleeps)
    }

    /// Takes the requests that have come whole.
    fn take(&mut self) -> bool {
        let mut found = false;
        let mut broken = Vec::new();
        for id in &self.active {
            let Some(Watched { connection, .. }) = self.connections.get_mut(id) else { continue };
            loop {
                match connection.next(&mut self.opened, &mut self.room) {
                    Ok(Some(taken)) => {
                        let export = connection.export().and_then(|number| self.opened.devices.get_mut(&number));
                        if let Some(export) = export {
                            let route = Route { connection: *id, reply: taken.reply, flushes: taken.flushes };
                            export.requests.push(taken.work, route);
                            found = true;
                        }
                    }
                    Ok(None) => break,
                    Err(Broken) => {
                        broken.push(*id);
                        break;
                    }
                }
            }
        }
        broken.into_iter().for_each(|id| self.remove(id));
        found
    }

    /// Hands requests to devices, and replies to connections.
    fn drive(&mut self) -> bool {
        let mut found = false;
        let mut ended = std::mem::take(&mut self.ended);
        for export in self.opened.devices.values_mut() {
            found |= export.requests.drive(&mut ended);
            for (route, work, result) in ended.drain(..) {
                if route.flushes && result.is_ok() {
                    export.requests.push(Work::Flush, Route { flushes: false, ..route });
                    give_back(work, &mut self.room);
                    continue;
                }
                match self.connections.get_mut(&route.connection) {
                    Some(watched) => {
                        watched.connection.answer(route.reply, work, result, &mut self.room);
                        self.active.insert(route.connection);
                    }
                    // The client has gone.
                    None => give_back(work, &mut self.room),
                }
            }
        }
        self.ended = ended;
        found
    }

    /// Sends what there is. Whether a client that had asked for too much may go on.
    fn send(&mut self) -> bool {
        let (mut goes_on, mut broken) = (false, Vec::new());
        for id in &self.active {
            let Some(Watched { connection, .. }) = self.connections.get_mut(id) else { continue };
            let was_full = connection.is_full();
            match connection.send(&mut self.room) {
                Ok(()) => goes_on |= was_full && !connection.is_full(),
                Err(Broken) => broken.push(*id),
            }
        }
        broken.into_iter().for_each(|id| self.remove(id));
        goes_on
    }

    /// Says what a connection is waited for, or ends it.
    fn settle(&mut self, id: u64) {
        let Some(Watched { connection, interest, .. }) = self.connections.get_mut(&id) else { return };
        if connection.is_over() {
            return self.remove(id);
        }
        let mut wanted = EventFlags::empty();
        wanted.set(EventFlags::IN, connection.reads());
        wanted.set(EventFlags::OUT, connection.blocked);
        if wanted != *interest {
            *interest = wanted;
            let data = EventData::new_u64(id << KIND_BITS | CONNECTION);
            if epoll::modify(&self.epoll, connection.as_fd(), data, wanted).is_err() {
                self.remove(id);
            }
        }
    }

    /// Ends connections that have not chosen an export in time.
    fn end_silent(&mut self) {
        let Some(first) = self.connections.values().filter_map(Watched::greets_until).min() else { return };
        let now = self.clock.now();
        if now < first {
            return;
        }
        let is_late = |watched: &Watched| watched.greets_until().is_some_and(|until| until <= now);
        let late: Vec<u64> =
            self.connections.iter().filter(|(_, watched)| is_late(watched)).map(|(id, _)| *id).collect();
        late.into_iter().for_each(|id| self.remove(id));
    }

    fn remove(&mut self, id: u64) {
        if let Some(Watched { connection, .. }) = self.connections.remove(&id) {
            let _ = epoll::delete(&self.epoll, connection.as_fd());
        }
    }

    /// How long it may sleep; none: until something comes.
    fn due(&self) -> Option<Duration> {
        let devices = self.opened.devices.values().filter_map(|export| export.requests.device.due());
        let greets = self.connections.values().filter_map(Watched::greets_until);
        let first = devices.chain(greets).chain(self.stops_until).chain(self.accepts_at).min()?;
        Some(first.saturating_duration_since(self.clock.now()))
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), NbdError> {
        let timeout = timeout.map(timespec);
        let mut events: [MaybeUninit<Event>; EVENTS] = [const { MaybeUninit::uninit() }; EVENTS];
        let (found, _) = match epoll::wait(&self.epoll, &mut events[..], timeout.as_ref()) {
            Err(Errno::INTR) => return Ok(()),
            found => found.map_err(|errno| failed("epoll_wait", errno))?,
        };
        let (mut accepts, mut broken) = (false, Vec::new());
        for event in found {
            let (token, flags) = (event.data.u64(), event.flags);
            let id = token >> KIND_BITS;
            match token & KIND_MASK {
                CONNECTION => {
                    let Some(Watched { connection, .. }) = self.connections.get_mut(&id) else { continue };
                    self.active.insert(id);
                    let reads = flags.contains(EventFlags::IN);
                    // Of a client that has gone, what is still there is read: it may have asked for a WRITE.
                    let gone = flags.intersects(EventFlags::HUP | EventFlags::ERR) && !reads;
                    if gone || (reads && connection.receive().is_err()) {
                        broken.push(id);
                    }
                }
                SIGNAL => {
                    self.signal.drain();
                    self.stop();
                }
                PLACE => accepts = true,
                // Every device is polled in every turn.
                _ => {}
            }
        }
        broken.into_iter().for_each(|id| self.remove(id));
        let is_time = self.accepts_at.is_some_and(|when| self.clock.now() >= when);
        if is_time {
            self.accepts_at = None;
            watch(&self.epoll, &self.place, PLACE)?;
        }
        if accepts {
            self.accept();
        }
        Ok(())
    }

    fn accept(&mut self) {
        if self.stops_until.is_some() {
            return;
        }
        match self.place.accept() {
            // One too many: it sees the connection end.
            Ok(Some(_)) if self.connections.len() >= self.options.connections_max => {}
            Ok(Some(socket)) => {
                self.next += 1;
                let connection = Connection::new(socket);
                let (interest, data) = (EventFlags::IN, EventData::new_u64(self.next << KIND_BITS | CONNECTION));
                if epoll::add(&self.epoll, connection.as_fd(), data, interest).is_ok() {
                    let greets_until = self.clock.now() + self.options.greeting;
                    self.connections.insert(self.next, Watched { connection, interest, greets_until });
                    self.active.insert(self.next);
                }
            }
            Ok(None) => {}
            Err(_) => {
                let _ = epoll::delete(&self.epoll, &self.place);
                self.accepts_at = Some(self.clock.now() + ACCEPT_PAUSE);
            }
        }
    }

    /// Takes nothing more.
    fn stop(&mut self) {
        if self.stops_until.is_none() {
            self.stops_until = Some(self.clock.now() + self.options.patience);
            if self.accepts_at.take().is_none() {
                let _ = epoll::delete(&self.epoll, &self.place);
            }
        }
        for (id, Watched { connection, .. }) in &mut self.connections {
            connection.close();
            self.active.insert(*id);
        }
    }
}

impl Watched {
    /// None once it has chosen an export.
    fn greets_until(&self) -> Option<Instant> {
        self.connection.export().is_none().then_some(self.greets_until)
    }
}

impl Opened {
    /// Gives those devices back.
    fn close(&mut self, which: impl Fn(&(&u64, &Export)) -> bool) {
        let unused: Vec<u64> = self.devices.iter().filter(which).map(|(number, _)| *number).collect();
        for number in unused {
            let Some(Export { name, requests: Routed { device, .. }, .. }) = self.devices.remove(&number) else {
                continue;
            };
            if let Some(fd) = device.fd() {
                let _ = epoll::delete(&self.epoll, fd);
            }
            self.exports.close(&name, device);
        }
    }
}

impl Offers for Opened {
    fn names(&self) -> Vec<String> {
        self.exports.names()
    }

    fn look(&mut self, name: &str) -> Result<(u64, Geometry), (Refusal, String)> {
        let names = if name.is_empty() { self.exports.names() } else { Vec::new() };
        // Without a name the only one there is is meant.
        let name = if let [only] = &names[..] { only } else { name };
        if let Some((number, export)) = self.devices.iter().find(|(_, export)| export.name == name) {
            return Ok((*number, export.geometry));
        }
        let device = self.exports.open(name).map_err(|error| match error {
            NotOpened::Unknown => (Refusal::Unknown, "there is no such export here".to_owned()),
            NotOpened::Refused(why) => (Refusal::Policy, why),
        })?;
        self.next += 1;
        if let Some(fd) = device.fd()
            && let Err(errno) =
                epoll::add(&self.epoll, fd, EventData::new_u64(self.next << KIND_BITS | DEVICE), EventFlags::IN)
        {
            self.exports.close(name, device);
            return Err((Refusal::Policy, format!("the server has no room to wait for the export: {errno}")));
        }
        let geometry = device.geometry();
        let export = Export { name: name.to_owned(), geometry, requests: Routed::new(device) };
        self.devices.insert(self.next, export);
        Ok((self.next, geometry))
    }
}

/// What a token names is in its lowest bits.
const KIND_BITS: u32 = 2;
const KIND_MASK: u64 = 3;
const CONNECTION: u64 = 0;
const DEVICE: u64 = 1;
const PLACE: u64 = 2;
const SIGNAL: u64 = 3;
/// Events that are taken at once.
const EVENTS: usize = 64;
/// After the system had no descriptor for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
