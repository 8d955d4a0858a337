//! A client's session: what is in flight, over all connections.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_planner::Profile;
use overside_verbs::handshake::Key;
use overside_verbs::watch::Watch;
use overside_verbs::{Clock, Provider, VerbsError};

use super::connection::{Connection, Message};
use super::handle::LinkHandle;
use super::kept::{Kept, What};
use super::registered::{Registered, Registration};
use super::volume::Volume;
use crate::array::{Array, ArrayError};
use crate::device::{Completion, Device, DeviceError, Geometry, Request, SECTOR_BYTES, Work};
use crate::files::PIECE_BYTES;
use crate::mutant::mutant;
use crate::overlaps::Overlaps;
use crate::wire::{FILES, GRANTS, HEADER, Hello, KEEPS, Operation, Proof, Reply, RequestHeader, Role, Status, Welcome};

/// How a volume is attached.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// What is wanted of it.
    pub role: Role,
    /// How long one request may take before it is asked again over another connection.
    pub deadline: Duration,
    /// How long I/O waits for a node that is away; for ever where there is none.
    pub give_up: Option<Duration>,
    /// Giving up ends requests alone: once the node is back, the session goes on with those that come then.
    pub returns: bool,
    /// Who is asked before it gives up, where it [returns](Self::returns).
    pub spare: Option<Arc<dyn Spare>>,
    /// How long one attempt to connect may take.
    pub patience: Duration,
    /// Bytes of one request at most, unless the node takes less, or the provider's messages are
    /// shorter.
    pub request_bytes_max: u32,
    /// Receive buffers: answers on their way. No more than 128 MiB of them, and two in any case.
    pub receives: usize,
    /// The caller's process, which the node tells those who ask for its status; 0 tells nothing.
    pub process: u32,
    /// The volume's key, where its node asks for one.
    pub key: Option<Key>,
    /// It is for a volume that keeps files: places are those of [`files`](crate::files).
    pub files: bool,
    /// Sessions that write one volume together have the same number, drawn by chance; 0: it writes alone. So that threads write
    /// without a lock between them, each attaches for itself. A group's writes are on stable storage when they end.
    pub group: u64,
    /// Bytes that are kept at most of what a node has acknowledged and no FLUSH has covered. At half of it the link flushes.
    pub kept_bytes_max: u64,
    /// The node reads what a WRITE writes from the caller's memory, which is registered for that: where it can be, where the
    /// provider reads it by itself, and where that costs less. Without it all is copied.
    /// It can read all of the segment that a WRITE's bytes lie in, and over shared memory keeps what it mapped: None where a
    /// node is not to be trusted with that.
    pub registration: Option<Registration>,
    /// What things cost over the provider; its own word where it is none.
    pub prices: Option<Profile>,
}

/// What others have of a volume that is one of several.
pub trait Spare: Send + Sync + fmt::Debug {
    /// Whether they do without it from now on. Else its requests wait.
    fn let_go(&self) -> bool;

    /// It is there again.
    fn is_back(&self);
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            role: Role::Writer,
            deadline: Duration::from_secs(30),
            give_up: None,
            returns: false,
            spare: None,
            patience: Duration::from_secs(1),
            request_bytes_max: 128 << 10,
            receives: 64,
            process: 0,
            key: None,
            files: false,
            group: 0,
            kept_bytes_max: 32 << 20,
            registration: Some(Registration::default()),
            prices: None,
        }
    }
}

/// Why a volume cannot be attached.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Nobody answers there.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The node does not let this side in.
    #[error("{}", refusal(*.0))]
    Refused(Status),
    /// The node says what no node says.
    #[error("the node does not speak this program's protocol; are both of the same version?")]
    Malformed,
    /// The system has no descriptor.
    #[error(transparent)]
    Array(#[from] ArrayError),
}

fn refusal(status: Status) -> &'static str {
    match status {
        Status::Unknown => {
            "the node has no such volume, or the key is another one; `overside volume list` says which there are"
        }
        Status::Busy => "another client writes the volume; attach it with --read-only, or take it over (--take-over)",
        Status::Version => "the node is of another version; update one of the two",
        Status::Full => "the node has no room for another client; try again later",
        Status::Device(DeviceError::ReadOnly) => "the volume's key allows to read alone; attach it with --read-only",
        Status::Device(DeviceError::Fenced) => "another client has taken the volume over",
        Status::Prove => "the node asks for the volume's key; give it with --access-key FILE",
        Status::Kind => {
            "the volume keeps files and is not attached as blocks, or keeps none; `overside run --volume` takes those made with --files"
        }
        Status::Device(_) | Status::Done | Status::Refused => "the node refuses the volume; its own messages say why",
    }
}

/// A volume of a node. Requests are no longer than the node takes: [`Link::attach`] gives a device that
/// cuts longer ones.
#[derive(Debug)]
pub struct Link {
    provider: Arc<dyn Provider>,
    clock: Arc<dyn Clock>,
    address: String,
    volume: String,
    options: LinkOptions,
    geometry: Geometry,
    request_bytes_max: u32,
    requests_max: usize,
    session: u64,
    /// The node's life that gave it.
    incarnation: u64,
    generation: u32,
    connection: Option<Connection>,
    /// Since when each try to connect has been refused.
    refused_since: Option<Instant>,
    /// When to connect again, and how long to wait after that.
    next_try: Instant,
    pause: Duration,
    away_since: Option<Instant>,
    /// Nothing more can be carried out.
    over: Option<DeviceError>,
    /// Nobody waits for the node any more, until it is back.
    gave_up: bool,
    /// It was not to give up yet.
    ask_again: Option<Instant>,
    handle: LinkHandle,
    /// Under which number the node was told that nothing more comes.
    farewell: Option<u64>,
    /// The next request's number.
    next: u64,
    pending: BTreeMap<u64, Pending>,
    overlaps: Overlaps,
    /// The node acknowledges writes before they are on stable storage.
    keeps: bool,
    /// Nothing is granted to the node over the next connection.
    copies: bool,
    kept: Kept,
    /// What this node's life must be given again before anything else, by first byte.
    rewrites: VecDeque<u64>,
    /// The number of the next of them.
    next_rewrite: u64,
    /// Requests of the link's own.
    own: BTreeMap<u64, Own>,
    /// The link's own FLUSH failed: the next write hears of it.
    own_flush: Result<(), DeviceError>,
    /// Admitted and not sent, in the order in which they are to be sent.
    ready: VecDeque<u64>,
    sent: usize,
    sent_bytes: u64,
    watch: Watch,
    done: Vec<Completion>,
    messages: Vec<Message>,
    admitted: Vec<u64>,
}

#[derive(Debug)]
struct Pending {
    tag: u64,
    work: Work,
    /// It may be in flight beside those that may.
    admitted: bool,
    /// When it was sent over this connection.
    sent: Option<Instant>,
    /// The region of the connection's memory that the node reads its bytes from.
    region: Option<u64>,
    /// Of a FLUSH, what was kept when it was sent first.
    covers: Option<u64>,
}

/// A request of the link's own.
#[derive(Debug)]
struct Own {
    work: OwnWork,
    /// When it was sent over this connection.
    sent: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
enum OwnWork {
    /// What is kept there is written again.
    Rewrite { at: u64 },
    /// So that not too much is kept.
    Flush { covers: u64 },
}

impl Pending {
    fn bytes(&self) -> u64 {
        match &self.work {
            Work::Read { length, .. } => *length as u64,
            Work::Write { from, .. } => from.len() as u64,
            _ => 0,
        }
    }
}

impl Link {
    /// Attaches a volume as a device that takes requests of any length.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn attach(
        provider: Arc<dyn Provider>,
        address: &str,
        volume: &str,
        options: LinkOptions,
    ) -> Result<Volume, LinkError> {
        let link = Link::connect(provider, address, volume, options)?;
        let bytes = match link.options.files {
            true => PIECE_BYTES,
            false => u64::from(link.request_bytes_max) / link.geometry.unit_bytes * link.geometry.unit_bytes,
        };
        let (handle, clock) = (link.handle.clone(), link.clock.clone());
        Ok(Volume::new(Array::in_pieces(Box::new(link), bytes)?, handle, clock))
    }

    /// Connects to the node at the provider's part of an address, and waits for its welcome.
    ///
    /// # Errors
    /// Nobody answers there, or the node does not let this side in.
    pub fn connect(
        provider: Arc<dyn Provider>,
        address: &str,
        volume: &str,
        options: LinkOptions,
    ) -> Result<Link, LinkError> {
        let options = within(&provider, options);
        let clock = provider.clock();
        let now = clock.now();
        let mut link = Link {
            geometry: Geometry { bytes: 0, unit_bytes: SECTOR_BYTES, read_only: true },
            request_bytes_max: options.request_bytes_max,
            requests_max: 0,
            session: 0,
            incarnation: 0,
            generation: 0,
            connection: None,
            refused_since: None,
            next_try: now,
            pause: PAUSE_MIN,
            away_since: None,
            over: None,
            gave_up: false,
            ask_again: None,
            handle: LinkHandle::default(),
            farewell: None,
            next: 1,
            pending: BTreeMap::new(),
            overlaps: Overlaps::default(),
            keeps: false,
            copies: false,
            kept: Kept::default(),
            rewrites: VecDeque::new(),
            next_rewrite: 0,
            own: BTreeMap::new(),
            own_flush: Ok(()),
            ready: VecDeque::new(),
            sent: 0,
            sent_bytes: 0,
            watch: Watch::new()?,
            done: Vec::new(),
            messages: Vec::new(),
            admitted: Vec::new(),
            provider,
            clock,
            address: address.to_owned(),
            volume: volume.to_owned(),
            options,
        };
        link.dial()?;
        let until = now + link.options.deadline;
        loop {
            if let Some(welcome) = link.greeted()? {
                link.welcome(welcome)?;
                return Ok(link);
            }
            if link.clock.now() >= until {
                return Err(VerbsError::TimedOut(link.options.deadline).into());
            }
            if link.connection.as_mut().is_some_and(Connection::arm) {
                link.clock.wait(&[link.watch.as_fd()], Some(until))?;
            }
        }
    }

    /// Bytes of one request at most.
    pub fn request_bytes_max(&self) -> u32 {
        self.request_bytes_max
    }

    /// What others may know of it, and ask of it.
    pub fn handle(&self) -> LinkHandle {
        self.handle.clone()
    }

    /// Ends the session, so that another writer need not wait; at most for `patience`.
    pub fn close(mut self, patience: Duration) {
        let (handle, clock) = (self.handle.clone(), self.clock.clone());
        handle.close(&mut self, &*clock, patience);
    }

    /// Tells the node that nothing more comes, once that is so and wanted.
    fn leave(&mut self) {
        let is_busy = !self.pending.is_empty() || !self.own.is_empty() || self.is_rewriting();
        if !self.handle.leaves() || is_busy || self.handle.has_left() {
            return;
        }
        let away = self.connection.as_ref().is_none_or(|connection| !connection.welcomed);
        if self.over.is_some() || (away && self.session == 0) {
            return self.handle.left();
        }
        if self.farewell.is_some() || away {
            return;
        }
        let number = self.next;
        self.next += 1;
        let header = self.request(number, Operation::Goodbye, 0, 0).bytes();
        let Some(connection) = &mut self.connection else { return };
        connection.send(&header);
        self.farewell = Some(number);
        if connection.post().is_err() {
            self.lost();
        }
    }

    /// Connects, and greets the node with a new generation.
    fn dial(&mut self) -> Result<(), VerbsError> {
        let length = (HEADER + self.options.request_bytes_max as usize, self.options.receives.max(1));
        let prices = || self.options.prices.clone().unwrap_or_else(|| self.provider.profile());
        let registration = self.options.registration.filter(|_| self.options.role != Role::Reader && !self.copies);
        let counts = || self.handle.clone();
        let registered = registration.and_then(|options| Registered::new(&self.provider, options, &prices(), counts()));
        let mut connection =
            Connection::open(&self.provider, &self.address, self.options.patience, length, registered)?;
        self.generation = self.generation.wrapping_add(1);
        connection.watched_by(&self.watch, true)?;
        connection.send(&self.hello().bytes());
        connection.post()?;
        self.connection = Some(connection);
        Ok(())
    }

    fn hello(&self) -> Hello {
        Hello {
            number: 0,
            name: self.volume.clone(),
            role: self.options.role,
            session: self.session,
            incarnation: self.incarnation,
            generation: self.generation,
            buffer_bytes: (HEADER + self.options.request_bytes_max as usize) as u32,
            features: if self.options.files { FILES | GRANTS } else { crate::wire::FEATURES },
            process: self.options.process,
            group: self.options.group,
        }
    }

    /// The node's answer to the greeting, if it is there. Where it asks for a proof it gets one, and answers again.
    fn greeted(&mut self) -> Result<Option<Welcome>, LinkError> {
        let Some(connection) = &mut self.connection else { return Err(VerbsError::Closed.into()) };
        connection.post()?;
        let lives = connection.receive(&mut self.messages);
        let Some(message) = self.messages.pop() else {
            return if lives { Ok(None) } else { Err(VerbsError::Closed.into()) };
        };
        let parsed = message.header().and_then(|header| Welcome::parse(&header).ok());
        let parsed = parsed.filter(|_| message.payload() == 0 && self.messages.is_empty());
        connection.put(message.into_buffer());
        let welcome = parsed.ok_or(LinkError::Malformed)?;
        let (Status::Prove, Some(key)) = (welcome.status, &self.options.key) else { return Ok(Some(welcome)) };
        let proof = Proof::new(key, &self.hello(), &welcome).bytes();
        if let Some(connection) = &mut self.connection {
            connection.send(&proof);
            connection.post()?;
        }
        Ok(None)
    }

    /// The node lets this side in: what is unanswered is asked again.
    fn welcome(&mut self, welcome: Welcome) -> Result<(), LinkError> {
        if welcome.status != Status::Done {
            return Err(LinkError::Refused(welcome.status));
        }
        let unit_bytes = u64::from(welcome.unit_bytes);
        let geometry = Geometry { bytes: welcome.bytes, unit_bytes, read_only: welcome.read_only };
        let max = welcome.request_bytes_max.min(self.options.request_bytes_max);
        let files = self.options.files;
        let (unit_min, max_min) = if files { (1, PIECE_BYTES) } else { (SECTOR_BYTES, unit_bytes) };
        let sane = unit_bytes.is_power_of_two() && unit_bytes >= unit_min && u64::from(max) >= max_min;
        let sane = sane && files == (welcome.features & FILES != 0) && (!files || unit_bytes == 1);
        // Of files each piece is as long as every node takes.
        let shorter = !files && max < self.request_bytes_max;
        let other = self.session != 0 && (geometry != self.geometry || shorter);
        if !sane || welcome.requests_max == 0 || welcome.generation != self.generation || other {
            return Err(LinkError::Malformed);
        }
        self.handle.welcomed();
        self.geometry = geometry;
        self.request_bytes_max = max;
        self.requests_max = usize::from(welcome.requests_max).min(self.options.receives);
        if welcome.incarnation != self.incarnation {
            // The power may have gone between the two lives.
            self.own.clear();
            let lost = !mutant("volume-lost-writes-not-written-again");
            self.rewrites = self.kept.places().filter(|_| lost).collect();
        }
        self.number_rewrites();
        self.keeps = welcome.features & KEEPS != 0;
        (self.session, self.incarnation) = (welcome.session, welcome.incarnation);
        if let Some(connection) = &mut self.connection {
            connection.welcomed = true;
            if welcome.features & GRANTS == 0 {
                connection.grants_nothing();
            }
        }
        self.is_back();
        self.ready = self.pending.iter().filter(|(_, pending)| pending.admitted).map(|(number, _)| *number).collect();
        (self.sent, self.sent_bytes) = (0, 0);
        Ok(())
    }

    /// What is written again has the numbers before those of requests, of which none was sent to
    /// this life of the node. Else it would run ahead of the lowest that is unanswered, further
    /// than the node remembers.
    fn number_rewrites(&mut self) {
        if !self.is_rewriting() {
            return;
        }
        for Own { work, .. } in std::mem::take(&mut self.own).into_values() {
            // Nothing else is under way meanwhile.
            if let OwnWork::Rewrite { at } = work {
                self.rewrites.push_back(at);
            }
        }
        let first = self.first_pending();
        self.next_rewrite = self.next;
        let by = self.next + self.rewrites.len() as u64 - first;
        let pending = std::mem::take(&mut self.pending);
        self.pending = pending.into_iter().map(|(number, pending)| (number + by, pending)).collect();
        self.overlaps.renumber(by);
        self.next += by;
    }

    /// The node is there, and has all that it had acknowledged.
    fn is_back(&mut self) {
        if !self.is_rewriting() {
            (self.away_since, self.pause, self.ask_again) = (None, PAUSE_MIN, None);
            if std::mem::take(&mut self.gave_up)
                && let Some(spare) = &self.options.spare
            {
                spare.is_back();
            }
        }
    }

    /// The node may lack what it had acknowledged.
    fn is_rewriting(&self) -> bool {
        let rewrites = |own: &Own| matches!(own.work, OwnWork::Rewrite { .. });
        !self.rewrites.is_empty() || self.own.values().any(rewrites)
    }

    fn first_pending(&self) -> u64 {
        self.pending.first_key_value().map_or(self.next, |(number, _)| *number)
    }

    fn lowest(&self) -> u64 {
        let pending = self.first_pending();
        self.own.first_key_value().map_or(pending, |(number, _)| pending.min(*number))
    }

    fn request(&self, number: u64, operation: Operation, at: u64, length: u64) -> RequestHeader {
        RequestHeader {
            operation,
            session: self.session,
            generation: self.generation,
            number,
            lowest: self.lowest().min(number),
            lba: at / self.lba_bytes(),
            length: length as u32,
        }
    }

    /// What LBAs count.
    fn lba_bytes(&self) -> u64 {
        if self.options.files { 1 } else { SECTOR_BYTES }
    }

    fn take(&mut self, request: Request) {
        let over = self.over.or(self.gave_up.then_some(DeviceError::Unreachable));
        let refused = over.map_or(Ok(()), Err).and(self.geometry.check(&request.work));
        let too_long = |work: &Work| {
            let length = work.range().map_or(0, |(_, length)| length);
            length > u64::from(self.request_bytes_max)
        };
        let refused = refused.and(if too_long(&request.work) { Err(DeviceError::Invalid) } else { Ok(()) });
        if refused.is_err() {
            return self.done.push(request.ended(refused));
        }
        let number = self.next;
        self.next += 1;
        let (range, writes) = (request.work.range(), request.work.writes());
        let admitted = range.is_none_or(|(at, length)| {
            mutant("volume-overlap-rule-off") || self.overlaps.enter(number, at, length, writes)
        });
        if admitted {
            self.ready.push_back(number);
        }
        self.pending.insert(
            number,
            Pending { tag: request.tag, work: request.work, admitted, sent: None, region: None, covers: None },
        );
    }

    /// Sends what may be sent.
    fn send(&mut self) {
        let now = self.clock.now();
        if self.send_own(now) {
            self.send_ready(now);
        }
        if self.connection.as_mut().is_some_and(|connection| connection.post().is_err()) {
            self.lost();
        }
    }

    /// Bytes of requests that may be under way.
    fn bytes_max(&self) -> u64 {
        self.requests_max as u64 * u64::from(self.request_bytes_max)
    }

    fn send_ready(&mut self, now: Instant) {
        let (bytes_max, lba_bytes) = (self.bytes_max(), self.lba_bytes());
        while let Some(number) = self.ready.front().copied() {
            let lowest = self.lowest();
            let Some(connection) = self.connection.as_mut().filter(|connection| connection.welcomed) else { return };
            let Some(pending) = self.pending.get_mut(&number) else {
                self.ready.pop_front();
                continue;
            };
            let bytes = pending.bytes();
            if self.sent >= self.requests_max || self.sent_bytes + bytes > bytes_max {
                break;
            }
            if pending.work.writes() && self.kept.bytes() >= self.options.kept_bytes_max {
                // Its own FLUSH makes room.
                match std::mem::replace(&mut self.own_flush, Ok(())) {
                    Ok(()) => break,
                    Err(error) => {
                        self.ready.pop_front();
                        self.ended(number, Err(error));
                        continue;
                    }
                }
            }
            if matches!(pending.work, Work::Flush) {
                pending.covers.get_or_insert(self.kept.mark());
            }
            let (at, length) = pending.work.range().unwrap_or_default();
            let operation = match &pending.work {
                Work::Read { .. } => Operation::Read,
                Work::Write { fua, .. } => Operation::Write { fua: *fua },
                Work::Flush => Operation::Flush,
                Work::Discard { .. } => Operation::Discard,
                Work::Zero { .. } => Operation::Zero,
                Work::Hint { hint, .. } => Operation::Hint(*hint),
                Work::Check { mend, .. } => Operation::Check { mend: *mend },
            };
            let request = RequestHeader {
                operation,
                session: self.session,
                generation: self.generation,
                number,
                lowest,
                lba: at / lba_bytes,
                length: length as u32,
            };
            match &pending.work {
                Work::Write { from, .. } => {
                    pending.region = connection.grant(&request, from);
                    match pending.region {
                        Some(_) => self.handle.grants(),
                        None if connection.send_with(&request.bytes(), from) => {}
                        None => break,
                    }
                }
                _ => connection.send(&request.bytes()),
            }
            pending.sent = Some(now);
            self.sent += 1;
            self.sent_bytes += bytes;
            self.ready.pop_front();
        }
    }

    /// Sends what is the link's own: whether requests may follow.
    fn send_own(&mut self, now: Instant) -> bool {
        if self.connection.as_ref().is_none_or(|connection| !connection.welcomed) {
            return false;
        }
        let flushes = |own: &Own| matches!(own.work, OwnWork::Flush { .. });
        let is_full = self.kept.bytes() >= self.options.kept_bytes_max / 2 && self.own_flush.is_ok();
        if self.keeps && is_full && !self.is_rewriting() && !self.own.values().any(flushes) {
            self.begin_own(OwnWork::Flush { covers: self.kept.mark() });
        }
        let unsent = |(number, own): (&u64, &Own)| own.sent.is_none().then_some(*number);
        while self.sent < self.requests_max {
            let number = match self.own.iter().find_map(unsent) {
                Some(number) => number,
                None if self.next_rewrite.saturating_sub(self.lowest()) >= NUMBERS_MAX => break,
                None => match self.rewrites.pop_front() {
                    Some(at) => self.begin_own(OwnWork::Rewrite { at }),
                    None => break,
                },
            };
            if !self.send_one(number, now) {
                break;
            }
        }
        !self.is_rewriting()
    }

    fn begin_own(&mut self, work: OwnWork) -> u64 {
        let next = if let OwnWork::Rewrite { .. } = work { &mut self.next_rewrite } else { &mut self.next };
        let number = *next;
        *next += 1;
        self.own.insert(number, Own { work, sent: None });
        number
    }

    /// Sends one of the link's own requests; false where there is no room for it yet.
    fn send_one(&mut self, number: u64, now: Instant) -> bool {
        let Some(work) = self.own.get(&number).map(|own| own.work) else { return true };
        let (operation, at, what) = match work {
            OwnWork::Flush { .. } => (Operation::Flush, 0, None),
            OwnWork::Rewrite { at } => match self.kept.piece(at) {
                Some(what @ What::Bytes(_)) => (Operation::Write { fua: false }, at, Some(what)),
                Some(what @ What::Zero(_)) => (Operation::Zero, at, Some(what)),
                Some(what @ What::Discard(_)) => (Operation::Discard, at, Some(what)),
                // Nothing is asked for before all is written again, so it is there.
                None => {
                    self.own.remove(&number);
                    return true;
                }
            },
        };
        let (length, bytes) = (what.map_or(0, What::length), what.map_or(0, What::payload));
        if self.sent_bytes + bytes > self.bytes_max() {
            return false;
        }
        let header = self.request(number, operation, at, length).bytes();
        let Some(connection) = &mut self.connection else { return false };
        match what {
            Some(What::Bytes(bytes)) if !connection.send_with(&header, bytes) => return false,
            Some(What::Bytes(_)) => {}
            _ => connection.send(&header),
        }
        if let Some(own) = self.own.get_mut(&number) {
            own.sent = Some(now);
        }
        self.sent += 1;
        self.sent_bytes += bytes;
        true
    }

    /// Takes what the node says.
    fn receive(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        if !connection.welcomed {
            let welcomed = match self.greeted() {
                Ok(Some(welcome)) => self.welcome(welcome),
                Ok(None) => return,
                Err(error) => Err(error),
            };
            return match welcomed {
                Ok(()) => self.tried(false),
                Err(LinkError::Refused(Status::Device(error))) => self.end(error),
                Err(error) => {
                    self.lost();
                    self.tried(match error {
                        LinkError::Verbs(_) => false,
                        // It may be starting, or another writer may go. That may be this session, which left when it heard
                        // of another length.
                        LinkError::Refused(Status::Busy | Status::Full) => self.refused_since.is_some(),
                        _ => true,
                    });
                }
            };
        }
        let mut messages = std::mem::take(&mut self.messages);
        let mut lives = connection.receive(&mut messages);
        for message in messages.drain(..) {
            lives &= self.answered(&message);
            if let Some(connection) = &mut self.connection {
                connection.put(message.into_buffer());
            }
        }
        self.messages = messages;
        if !lives {
            self.lost();
        }
    }

    /// An answer. False: it is none that a node gives.
    fn answered(&mut self, message: &Message) -> bool {
        let Some(reply) = message.header().and_then(|header| Reply::of(&header, message.payload()).ok()) else {
            return false;
        };
        if self.farewell == Some(reply.number) {
            self.handle.left();
            return true;
        }
        if (reply.session, reply.generation) != (self.session, self.generation) {
            return false;
        }
        let result = match reply.status {
            Status::Done => Ok(()),
            Status::Device(error) => Err(error),
            _ => return false,
        };
        if self.own.get(&reply.number).is_some_and(|own| own.sent.is_some()) {
            return reply.length == 0 && self.own_ended(reply.number, result);
        }
        let Some(pending) = self.pending.get_mut(&reply.number).filter(|pending| pending.sent.is_some()) else {
            return false;
        };
        if reply.wrong != 0 && !matches!(pending.work, Work::Check { .. }) {
            return false;
        }
        let expected = match (&mut pending.work, result) {
            (Work::Read { length, into, .. }, Ok(())) => {
                if u64::from(reply.length) != *length as u64 || !message.copy(&mut into[..*length]) {
                    return false;
                }
                reply.length
            }
            (Work::Check { wrong, .. }, _) => {
                *wrong = reply.wrong;
                0
            }
            _ => 0,
        };
        if reply.length != expected {
            return false;
        }
        self.ended(reply.number, result);
        true
    }

    /// One of the link's own requests has ended. False: it is asked again over another connection.
    fn own_ended(&mut self, number: u64, result: Result<(), DeviceError>) -> bool {
        let Some(Own { work, .. }) = self.own.remove(&number) else { return false };
        self.sent -= 1;
        match (work, result) {
            (_, Err(DeviceError::Fenced)) => self.end(DeviceError::Fenced),
            (OwnWork::Flush { covers }, Ok(())) => self.kept.flushed(covers),
            (OwnWork::Flush { .. }, Err(error)) => self.own_flush = Err(error),
            (OwnWork::Rewrite { at }, _) => {
                let what = self.kept.piece(at);
                let (length, bytes) = (what.map_or(0, What::length), what.map_or(0, What::payload));
                self.sent_bytes -= bytes;
                if result.is_err() {
                    // I/O waits until the node has it.
                    self.rewrites.push_back(at);
                    return false;
                }
                self.handle.rewrote();
                if !self.keeps {
                    self.kept.forget(at, length);
                }
                self.is_back();
            }
        }
        true
    }

    /// What a node has acknowledged is kept until it is on stable storage.
    fn keep(&mut self, pending: &Pending) {
        let keeps = self.keeps;
        match &pending.work {
            Work::Write { at, from, fua } if *fua || !keeps => self.kept.forget(*at, from.len() as u64),
            Work::Write { at, from, .. } => self.kept.remember(*at, What::Bytes(from.to_vec())),
            Work::Zero { at, length } | Work::Discard { at, length } if !keeps => self.kept.forget(*at, *length),
            Work::Zero { at, length } => self.kept.remember(*at, What::Zero(*length)),
            Work::Discard { at, length } => self.kept.remember(*at, What::Discard(*length)),
            Work::Flush => {
                self.own_flush = Ok(());
                self.kept.flushed(pending.covers.unwrap_or(0));
            }
            Work::Read { .. } | Work::Hint { .. } | Work::Check { .. } => {}
        }
    }

    fn ended(&mut self, number: u64, result: Result<(), DeviceError>) {
        let Some(pending) = self.pending.remove(&number) else { return };
        if result.is_ok() {
            self.keep(&pending);
        }
        if let (Some(region), Some(connection)) = (pending.region, &mut self.connection) {
            connection.written(region);
        }
        if pending.sent.is_some() {
            self.sent -= 1;
            self.sent_bytes -= pending.bytes();
        }
        if pending.work.range().is_some() {
            self.overlaps.leave(number, &mut self.admitted);
            for admitted in self.admitted.drain(..) {
                if let Some(pending) = self.pending.get_mut(&admitted) {
                    pending.admitted = true;
                    self.ready.push_back(admitted);
                }
            }
        }
        self.done.push(Completion { tag: pending.tag, work: pending.work, result });
    }

    /// The connection is of no use any more: another one is tried soon.
    fn lost(&mut self) {
        let now = self.clock.now();
        if let Some(mut connection) = self.connection.take() {
            let _ = connection.watched_by(&self.watch, false);
            // Of what was granted the node has read nothing: over the next connection it is sent.
            self.copies = !connection.was_read() && self.pending.values().any(|pending| pending.region.is_some());
        }
        self.messages.clear();
        self.farewell = None;
        self.handle.lost();
        self.away_since.get_or_insert(now);
        self.next_try = now + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.ready.clear();
        (self.sent, self.sent_bytes) = (0, 0);
        self.pending.values_mut().for_each(|pending| (pending.sent, pending.region) = (None, None));
        self.own.values_mut().for_each(|own| own.sent = None);
    }

    /// Nothing more can be carried out.
    fn end(&mut self, error: DeviceError) {
        self.lost();
        self.over = Some(error);
        self.own.clear();
        self.rewrites.clear();
        self.kept.clear();
        let numbers: Vec<u64> = self.pending.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.ended(number, Err(error)));
    }

    /// What time has come for.
    fn look_at_the_clock(&mut self) {
        if self.over.is_some() {
            return;
        }
        let now = self.clock.now();
        if self.given_up().is_some_and(|when| now >= when) {
            match &self.options.spare {
                _ if !self.options.returns => return self.end(DeviceError::Unreachable),
                Some(spare) if !spare.let_go() => self.ask_again = Some(now + PAUSE_MAX),
                _ => self.give_up(),
            }
        }
        let is_time = self.connection.is_none() && now >= self.next_try;
        let dialled = if is_time { self.dial() } else { Ok(()) };
        // What a try that has come through is told says whether it is refused.
        let refused = dialled.as_ref().err().map(|error| matches!(error, VerbsError::Key(_)));
        let is_late = self.too_late().is_some_and(|when| now >= when);
        if refused.is_some() || is_late {
            self.lost();
            self.tried(refused.unwrap_or(false));
        }
    }

    /// A try to connect was refused, or has met something else. Any stranger may refuse where a
    /// node is away: it counts once nothing else has been heard for long. One of several members
    /// waits: the others do without it.
    fn tried(&mut self, refused: bool) {
        let now = self.clock.now();
        self.refused_since = refused.then(|| self.refused_since.unwrap_or(now));
        let for_long = |since| now.saturating_duration_since(since) >= self.options.deadline;
        if !self.options.returns && self.refused_since.is_some_and(for_long) {
            self.handle.refused();
            self.end(DeviceError::Refused);
        }
    }

    /// Requests end, and the session stays. What is kept, and written again, is the node's once it is back.
    fn give_up(&mut self) {
        self.gave_up = true;
        let numbers: Vec<u64> = self.pending.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.ended(number, Err(DeviceError::Unreachable)));
        self.ready.clear();
    }

    /// When requests end that wait for a node that is away.
    fn given_up(&self) -> Option<Instant> {
        if self.gave_up {
            return None;
        }
        let first = self.options.give_up.and_then(|give_up| Some(self.away_since? + give_up));
        self.ask_again.or(first)
    }

    /// When an answer is overdue.
    fn too_late(&self) -> Option<Instant> {
        let connection = self.connection.as_ref()?;
        if !connection.welcomed {
            return Some(connection.since + self.options.deadline);
        }
        let own = self.own.values().filter_map(|own| own.sent);
        let oldest = self.pending.values().filter_map(|pending| pending.sent).chain(own).min();
        oldest.map(|sent| sent + self.options.deadline)
    }
}

impl Device for Link {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        // Of what is written again nothing is left when the first of them is sent.
        let lowest = if self.is_rewriting() { self.first_pending() } else { self.lowest() };
        while self.pending.len() < REQUESTS_MAX
            && self.next - lowest < NUMBERS_MAX
            && let Some(request) = batch.pop_front()
        {
            self.take(request);
        }
        self.send();
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.look_at_the_clock();
        self.receive();
        self.send();
        self.leave();
        let found = self.done.len();
        out.append(&mut self.done);
        found
    }

    fn arm(&mut self) -> bool {
        self.done.is_empty() && self.connection.as_mut().is_none_or(Connection::arm)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watch.as_fd())
    }

    fn due(&self) -> Option<Instant> {
        if self.over.is_some() {
            return None;
        }
        let next_try = self.connection.is_none().then_some(self.next_try);
        [next_try, self.given_up(), self.too_late()].into_iter().flatten().min()
    }
}

/// A request and its header are a message, and receive buffers have room for it.
fn within(provider: &Arc<dyn Provider>, options: LinkOptions) -> LinkOptions {
    let message = provider.capabilities().message_max.saturating_sub(HEADER as u64) / PAGE * PAGE;
    let request_bytes_max = message.min(options.request_bytes_max.into()) as u32;
    let receives = options.receives.min((RECEIVES_BYTES_MAX / request_bytes_max.max(1) as usize).max(2));
    LinkOptions { request_bytes_max, receives, ..options }
}

/// What units of all devices fit.
const PAGE: u64 = 4096;
/// Memory of receive buffers, which is taken at once.
const RECEIVES_BYTES_MAX: usize = 128 << 20;
/// Requests that are taken at once; more wait with the caller.
const REQUESTS_MAX: usize = 1024;
/// Numbers between the lowest that is unanswered and the newest: fewer than a node remembers.
const NUMBERS_MAX: u64 = 8192;
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(200);
