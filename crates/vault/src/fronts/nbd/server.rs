//! The loop: connections on one side, devices on the other. It sleeps when neither has anything.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_verbs::Clock;
use overside_verbs::watch::Signal;
use overside_volume::{Device, Geometry, Work};
use rustix::event::epoll::{self, EventData, EventFlags};

use super::connection::{Broken, Connection, Reply};
use super::negotiation::Offers;
use super::socket_file::SocketFile;
use super::wire::Refusal;
use super::{Exports, NbdError, NbdOptions, NotOpened};
use crate::fronts::room::Room;
use crate::fronts::routed::{Ended, Routed, give_back};
use crate::fronts::wakes::{Wakes, watch, watch_device};

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
    options: NbdOptions,
    wakes: Wakes,
    connections: BTreeMap<u64, Watched>,
    opened: Opened,
    room: Room,
    next: u64,
    /// Connections that something has happened to.
    active: BTreeSet<u64>,
    ended: Vec<Ended<Route>>,
    /// The system had no descriptor for one that waits: looked at again after a while.
    accepts_at: Option<Instant>,
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
    epoll: Arc<OwnedFd>,
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
        let wakes = Wakes::new(clock, options.patience)?;
        watch(&wakes.epoll, &place, PLACE)?;
        let opened = Opened { exports, epoll: wakes.epoll.clone(), devices: BTreeMap::new(), next: 0 };
        Ok(NbdServer {
            place,
            options,
            wakes,
            connections: BTreeMap::new(),
            opened,
            room: Room::default(),
            next: PLACE,
            active: BTreeSet::new(),
            ended: Vec::new(),
            accepts_at: None,
        })
    }

    /// Ends [`run`](Self::run) when it is notified.
    pub fn stopper(&self) -> Arc<Signal> {
        self.wakes.stopper()
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
            if self.wakes.stops_until.is_some() {
                let ended = self.connections.is_empty() && self.opened.devices.values().all(|e| e.requests.is_idle());
                if ended || self.wakes.is_late() {
                    break;
                }
            }
            self.wait(sleeps)?;
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
            if epoll::modify(&self.wakes.epoll, connection.as_fd(), EventData::new_u64(id), wanted).is_err() {
                self.remove(id);
            }
        }
    }

    /// Ends connections that have not chosen an export in time.
    fn end_silent(&mut self) {
        let Some(first) = self.connections.values().filter_map(Watched::greets_until).min() else { return };
        let now = self.wakes.now();
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
            let _ = epoll::delete(&self.wakes.epoll, connection.as_fd());
        }
    }

    fn wait(&mut self, sleeps: bool) -> Result<(), NbdError> {
        let devices = self.opened.devices.values().filter_map(|export| export.requests.device.due());
        let greets = self.connections.values().filter_map(Watched::greets_until);
        let until = devices.chain(greets).chain(self.wakes.stops_until).chain(self.accepts_at).min();
        let (mut accepts, mut broken, stopped) = (false, Vec::new(), self.wakes.stops_until.is_some());
        self.wakes.wait(sleeps, until, |token, flags| {
            if token == PLACE {
                accepts = true;
            } else if let Some(Watched { connection, .. }) = self.connections.get_mut(&token) {
                self.active.insert(token);
                let reads = flags.contains(EventFlags::IN);
                // Of a client that has gone, what is still there is read: it may have asked for a WRITE.
                let gone = flags.intersects(EventFlags::HUP | EventFlags::ERR) && !reads;
                if gone || (reads && connection.receive().is_err()) {
                    broken.push(token);
                }
            }
        })?;
        broken.into_iter().for_each(|id| self.remove(id));
        if self.wakes.stops_until.is_some() {
            if !stopped {
                self.close();
            }
            return Ok(());
        }
        if self.accepts_at.is_some_and(|when| self.wakes.now() >= when) {
            self.accepts_at = None;
            watch(&self.wakes.epoll, &self.place, PLACE)?;
        }
        if accepts {
            self.accept();
        }
        Ok(())
    }

    fn accept(&mut self) {
        match self.place.accept() {
            // One too many: it sees the connection end.
            Ok(Some(_)) if self.connections.len() >= self.options.connections_max => {}
            Ok(Some(socket)) => {
                self.next += 1;
                let connection = Connection::new(socket);
                if watch(&self.wakes.epoll, &connection, self.next).is_ok() {
                    let greets_until = self.wakes.now() + self.options.greeting;
                    self.connections.insert(self.next, Watched { connection, interest: EventFlags::IN, greets_until });
                    self.active.insert(self.next);
                }
            }
            Ok(None) => {}
            Err(_) => {
                let _ = epoll::delete(&self.wakes.epoll, &self.place);
                self.accepts_at = Some(self.wakes.now() + ACCEPT_PAUSE);
            }
        }
    }

    /// Takes nothing more.
    fn close(&mut self) {
        if self.accepts_at.take().is_none() {
            let _ = epoll::delete(&self.wakes.epoll, &self.place);
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
        if let Err(error) = watch_device(&self.epoll, &*device) {
            self.exports.close(name, device);
            return Err((Refusal::Policy, format!("the server has no room to wait for the export: {error}")));
        }
        let geometry = device.geometry();
        let export = Export { name: name.to_owned(), geometry, requests: Routed::new(device) };
        self.devices.insert(self.next, export);
        Ok((self.next, geometry))
    }
}

/// The socket's token; those of connections come after it.
const PLACE: u64 = 0;
/// After the system had no descriptor for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
