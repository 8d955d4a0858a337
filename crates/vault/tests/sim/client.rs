//! A client: it writes and reads as a database does, several requests at a time, and checks all that it reads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use overside_memory::{Buffer, Bytes, Segment};
use overside_planner::Profile;
use overside_reference::Reference;
use overside_service::client::{Link as Raw, LinkOptions as RawOptions};
use overside_sim::{Chance, World};
use overside_verbs::Provider;
use overside_volume::client::{Link, LinkOptions, Registration, Volume};
use overside_volume::wire::{Hello, Operation, Reply, RequestHeader, Role, Status, Welcome};
use overside_volume::{Completion, Device, DeviceError, Request, Work};

use super::model::{self, Known, Model, SECTOR};

/// What a client does.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub requests: usize,
    pub depth: usize,
    /// Places that are written again and again.
    pub spots: u64,
    pub volume_sectors: u64,
    /// A WRITE is durable when it is acknowledged.
    pub through: bool,
    pub deadline: Duration,
    pub kept_bytes_max: u64,
    /// It has members look whether they have what was written.
    pub checks: bool,
    /// It writes over two sessions of this group, as two threads do; 0: over one.
    pub group: u64,
}

pub struct Client {
    world: World,
    chance: Chance,
    model: Model,
    load: Load,
    /// Sessions: one, or those of a group.
    links: Vec<Volume>,
    pending: BTreeMap<u64, InFlight>,
    next: u64,
}

/// A request, and over which session it was asked.
struct InFlight {
    link: usize,
    /// Where, how many bytes, and whether it may change them.
    range: Option<(u64, u64)>,
    changes: bool,
    asked: Pending,
}

enum Pending {
    Write { sectors: std::ops::Range<u64>, version: u64, durable: bool },
    Read { first: u64, then: Known },
    Flush { then: Known },
    Check { names_nobody: bool },
}

impl Client {
    /// Attaches the volume, as soon as there is a node.
    pub fn attach(world: &World, provider: Arc<Reference>, name: &str, role: Role, model: Model, load: Load) -> Client {
        let options = LinkOptions {
            role,
            deadline: load.deadline,
            patience: Duration::from_millis(50),
            request_bytes_max: 16 << 10,
            receives: 16,
            kept_bytes_max: load.kept_bytes_max,
            group: load.group,
            registration: registration(world, name),
            prices: Some(Profile { send_request_ns: 0.0, send_byte_ns: 0.0, ..provider.profile() }),
            ..LinkOptions::default()
        };
        let attach = |role| loop {
            let provider: Arc<dyn Provider> = provider.clone();
            match Link::attach(provider, "node", "v", LinkOptions { role, ..options.clone() }) {
                Ok(volume) => break volume,
                Err(_) => world.clock().sleep(Duration::from_millis(3)),
            }
        };
        let mut links = vec![attach(role)];
        world.note("client: attached", 0);
        if load.group != 0 {
            // A second one joins; it fences nobody off.
            links.push(attach(Role::Writer));
            world.note("client: attached twice", 0);
        }
        let chance = world.chance(name);
        Client { world: world.clone(), chance, model, load, links, pending: BTreeMap::new(), next: 0 }
    }

    /// All that it is to do.
    pub fn run(mut self) {
        for _ in 0..self.load.requests {
            self.ask();
            while self.pending.len() >= self.load.depth {
                self.turn();
            }
            if self.chance.one_in(12) {
                self.world.clock().sleep(Duration::from_millis(self.chance.below(20)));
            }
        }
        self.end();
    }

    /// Reads all that was ever written.
    pub fn read_all(mut self) {
        for sector in self.model.sectors() {
            let then = self.model.known(Some(sector..sector + 1));
            let work = Work::Read { at: sector * SECTOR, length: SECTOR as usize, into: buffer(SECTOR) };
            self.submit(work, Pending::Read { first: sector, then });
            while self.pending.len() >= self.load.depth {
                self.turn();
            }
        }
        self.end();
    }

    /// Has everything mended that is wrong; then nothing is.
    pub fn check_all(mut self) {
        for names_nobody in [false, true] {
            let bytes = self.load.volume_sectors * SECTOR;
            for at in (0..bytes).step_by(64 << 10) {
                let work = Work::Check { at, length: (64 << 10).min(bytes - at), mend: !names_nobody, wrong: 0 };
                self.submit(work, Pending::Check { names_nobody });
            }
            while !self.pending.is_empty() {
                self.turn();
            }
        }
        self.end();
    }

    fn end(mut self) {
        while !self.pending.is_empty() {
            self.turn();
        }
        // From here on nobody makes good what the power takes.
        self.model.client_gone();
        for link in self.links {
            if link.handle().rewrites() > 0 {
                self.world.note("client: wrote again", 0);
            }
            if link.handle().granted() > 0 {
                self.world.note("client: its memory was read", 0);
            }
            link.close(Duration::from_millis(200));
        }
    }

    fn ask(&mut self) {
        // Neighbours, so that requests overlap, in a few regions.
        let spot = self.chance.below(self.load.spots) * (self.load.volume_sectors / self.load.spots);
        let first = (spot + self.chance.below(40)).min(self.load.volume_sectors - 1);
        let count = [1, 1, 4, 8, 24, 128][self.chance.below(6) as usize];
        let sectors = first..(first + count).min(self.load.volume_sectors);
        let (at, length) = (first * SECTOR, (sectors.end - first) * SECTOR);
        if self.load.checks && self.chance.one_in(8) {
            let work = Work::Check { at, length, mend: self.chance.one_in(2), wrong: 0 };
            return self.submit(work, Pending::Check { names_nobody: false });
        }
        match self.chance.below(20) {
            0..10 => {
                let version = self.model.writes(sectors.clone(), false);
                let mut from = buffer(length);
                for (number, bytes) in sectors.clone().zip(from.chunks_mut(SECTOR as usize)) {
                    model::fill(bytes, version, number);
                }
                let fua = self.chance.one_in(5);
                let durable = fua || self.load.through;
                let work = Work::Write { at, from: Bytes::prefix(from, length as usize), fua };
                self.submit(work, Pending::Write { sectors, version, durable });
            }
            10 => {
                let version = self.model.writes(sectors.clone(), true);
                let work = if self.chance.one_in(2) { Work::Zero { at, length } } else { Work::Discard { at, length } };
                self.submit(work, Pending::Write { sectors, version, durable: self.load.through });
            }
            11 | 12 => {
                let then = self.model.known(None);
                self.submit(Work::Flush, Pending::Flush { then });
            }
            _ => {
                let then = self.model.known(Some(sectors));
                let work = Work::Read { at, length: length as usize, into: buffer(length) };
                self.submit(work, Pending::Read { first, then });
            }
        }
    }

    fn submit(&mut self, work: Work, asked: Pending) {
        let (range, changes) = (work.range(), work.writes() || matches!(work, Work::Check { .. }));
        let link = self.link_for(range, changes);
        let tag = self.next;
        self.next += 1;
        self.pending.insert(tag, InFlight { link, range, changes, asked });
        let mut batch = [Request { tag, work }].into();
        self.links[link].submit(&mut batch);
        assert!(batch.is_empty(), "a client takes few requests");
    }

    /// Any session, but requests that overlap have an order over one alone: who has several waits for the others.
    fn link_for(&mut self, range: Option<(u64, u64)>, changes: bool) -> usize {
        if self.links.len() == 1 {
            return 0;
        }
        let link = self.chance.below(2) as usize;
        let meets = |other: &InFlight| match (range, other.range) {
            (Some((at, length)), Some((other_at, other_length))) => {
                at < other_at + other_length && other_at < at + length && (changes || other.changes)
            }
            _ => false,
        };
        while self.pending.values().any(|other| other.link != link && meets(other)) {
            self.turn();
        }
        link
    }

    fn turn(&mut self) {
        let mut done = Vec::new();
        let found: usize = self.links.iter_mut().map(|link| link.poll(&mut done)).sum();
        if found == 0 {
            let clock = self.world.clock();
            let until = clock.now() + Duration::from_secs(60);
            // Each is armed, whatever the others say.
            if self.links.iter_mut().fold(true, |sleeps, link| link.arm() & sleeps) {
                let due = self.links.iter().filter_map(|link| link.due()).chain([until]).min();
                let fds: Vec<_> = self.links.iter().filter_map(|link| link.fd()).collect();
                if clock.wait(&fds, due).is_err() {
                    self.model.fail("a client cannot wait".to_owned());
                }
            }
            return;
        }
        done.into_iter().for_each(|completion| self.ended(completion));
    }

    fn ended(&mut self, Completion { tag, work, result }: Completion) {
        let Some(InFlight { asked, .. }) = self.pending.remove(&tag) else { return };
        if result == Err(DeviceError::Corrupt) && self.model.has_changed() == Some(true) {
            if let Pending::Write { sectors, version, .. } = asked {
                // A part of a unit that is lost cannot be written.
                self.model.failed(sectors, version);
            }
            return self.world.note("bytes: corrupt to a client", 0);
        }
        if let Err(error) = result {
            self.world.note("client: request failed", 0);
            return self.model.fail(format!("a request failed: {error} ({:?})", work.range()));
        }
        match (asked, work) {
            (Pending::Write { sectors, version, durable }, Work::Write { from, .. }) => {
                self.model.wrote(sectors, version, durable);
                match from.into_buffer() {
                    // It is the client's own again: nobody reads it from here on.
                    Ok(mut buffer) => buffer.fill(0xee),
                    Err(_) => self.model.fail("what has been written is still shared".to_owned()),
                }
            }
            (Pending::Write { sectors, version, durable }, _) => self.model.wrote(sectors, version, durable),
            (Pending::Flush { then }, _) => self.model.flushed(&then),
            (Pending::Check { names_nobody: true }, Work::Check { at, wrong, .. }) if wrong != 0 => {
                self.model.fail(format!("a member has something wrong at {at} that was mended: {wrong:b}"));
            }
            (Pending::Check { .. }, Work::Check { at, wrong, .. }) if wrong != 0 => {
                self.world.note("bytes: named under load", at);
            }
            (Pending::Read { first, then }, Work::Read { into, length, .. }) => {
                if self.model.has_changed().is_some() {
                    self.world.note("bytes: right in spite of that", first);
                }
                for (number, bytes) in (first..).zip(into[..length].chunks(SECTOR as usize)) {
                    match model::version(bytes, number) {
                        Some(found) => self.model.read(number, &then, found),
                        None => self.model.fail(format!("sector {number} is a mix, or another's: {:?}", &bytes[..16])),
                    }
                }
            }
            _ => {}
        }
    }
}

/// The node reads what is written from the client's memory in half of the worlds.
fn registration(world: &World, name: &str) -> Option<Registration> {
    let mut chance = world.chance(&format!("{name}: registers"));
    let writes = [1, 3, u32::MAX][chance.below(3) as usize];
    chance.one_in(2).then_some(Registration { writes, bytes_max: 256 << 10, by_price: true })
}

/// A client whose first connection is thought to be lost and speaks late: its WRITE has been asked again and answered
/// over a second connection, and written over. A node that carried it out now would bring old bytes back.
pub fn speak_late(world: &World, provider: &Arc<Reference>, model: &Model) {
    // Whatever is cut off on its way has happened or not.
    let _ = spoken_late(world, provider, model);
    model.client_gone();
}

fn spoken_late(world: &World, provider: &Arc<Reference>, model: &Model) -> Option<()> {
    let connect = || {
        let options = RawOptions { buffer_bytes: 17 << 10, transmit_bytes: 17 << 10, ..RawOptions::default() };
        Raw::connect(provider.clone(), "node", options).ok()
    };
    let greet = |link: &mut Raw, session, generation| {
        let (name, role, buffer_bytes) = ("v".to_owned(), Role::TakeOver, 17 << 10);
        let hello = Hello {
            number: 0,
            name,
            role,
            session,
            incarnation: 0,
            generation,
            buffer_bytes,
            features: 0,
            process: 0,
            group: 0,
        };
        say(link, &hello.bytes())?;
        Welcome::parse(link.message().ok()?.as_ref()).ok().filter(|welcome| welcome.status == Status::Done)
    };
    let (mut first, mut second) = (connect()?, connect()?);
    let session = greet(&mut first, 0, 1)?.session;
    greet(&mut second, session, 2)?;
    let sectors = LATE..LATE + 1;
    let write = |link: &mut Raw, generation, number, version| {
        let operation = Operation::Write { fua: true };
        let request =
            RequestHeader { operation, session, generation, number, lowest: number, lba: LATE, length: SECTOR as u32 };
        let mut bytes = [0; SECTOR as usize];
        model::fill(&mut bytes, version, LATE);
        say(link, &[&request.bytes()[..], &bytes].concat())?;
        Reply::parse(link.message().ok()?.as_ref()).ok().filter(|(reply, _)| reply.status == Status::Done).map(drop)
    };
    let old = model.writes(sectors.clone(), false);
    write(&mut second, 2, 2, old)?;
    model.wrote(sectors.clone(), old, true);
    let new = model.writes(sectors.clone(), false);
    write(&mut second, 2, 3, new)?;
    model.wrote(sectors, new, true);
    world.note("client: speaks late", 0);
    if write(&mut first, 1, 2, old).is_some() {
        model.fail("a request of an older generation is answered".to_owned());
    }
    Some(())
}

/// A message behind the envelope, which the link writes; none: the connection has ended.
fn say(link: &mut Raw, message: &[u8]) -> Option<()> {
    link.send(|out| out.extend_from_slice(&message[overside_service::CONTROL_HEADER..])).ok().map(drop)
}

/// The sector that is written late.
const LATE: u64 = 7;

pub fn buffer(bytes: u64) -> Buffer {
    let mut buffer = Segment::private(bytes as usize).expect("there is memory").carve(bytes as usize);
    buffer.pop().expect("a segment holds itself")
}
