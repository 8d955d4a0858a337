//! A client's session: what is in flight, over all connections.

mod away;
mod error;
mod options;
mod own;
mod requests;
mod session;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_verbs::watch::Watch;
use overside_verbs::{Clock, Provider, VerbsError};

pub use error::LinkError;
pub use options::{LinkOptions, Spare};

use options::within;

use super::connection::{Connection, Message};
use super::handle::LinkHandle;
use super::kept::Kept;
use super::volume::Volume;
use crate::array::Array;
use crate::device::{Completion, Device, DeviceError, Geometry, Request, SECTOR_BYTES, Work};
use crate::files::PIECE_BYTES;
use crate::overlaps::Overlaps;
use crate::wire::{Operation, RequestHeader};

/// A volume of a node. Requests are no longer than the node takes: [`Link::attach`] gives a device
/// that cuts longer ones.
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

/// Requests that are taken at once; more wait with the caller.
const REQUESTS_MAX: usize = 1024;
/// Numbers between the lowest that is unanswered and the newest: fewer than a node remembers.
const NUMBERS_MAX: u64 = 8192;
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(200);
