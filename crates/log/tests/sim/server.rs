//! A server as far as the log goes: rows in memory, writers, and the thread that steps the log.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use overside_disk::Disk;
use overside_log::{Appender, Change, Checkpoints, Claim, Log, Page, Position, Record, Records, Refused};
use overside_sim::{Chance, World};
use rustix::event::EventfdFlags;

use super::book::{Book, Bytes, Made, State};

/// Rows in memory, with stamps as a tree draws them.
#[derive(Debug, Default)]
pub struct Rows {
    pub rows: State,
    pub next: u64,
    /// Lower bounds of the writers that are under way.
    pub under_way: BTreeMap<usize, u64>,
}

impl Rows {
    fn floor(&self) -> u64 {
        self.under_way.values().copied().min().unwrap_or(self.next).min(self.next)
    }
}

/// What the threads of a server share.
pub struct Server {
    pub world: World,
    pub rows: Mutex<Rows>,
    pub book: Arc<Mutex<Book>>,
    pub appender: Appender,
    /// Wakes the thread that steps the log.
    wake: OwnedFd,
    /// Wakes writers that wait.
    waiting: Mutex<Vec<Arc<OwnedFd>>>,
    /// Nothing more is begun.
    pub stop: AtomicBool,
    /// Nothing more is appended.
    pub done: AtomicBool,
    /// Records below are in a checkpoint that counts.
    release: Mutex<u64>,
    /// The log said that it failed.
    pub failed: AtomicBool,
    /// The disk had no room for somebody.
    pub was_full: AtomicBool,
}

pub fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::NONBLOCK).expect("the system has a descriptor")
}

pub fn signal(fd: &OwnedFd) {
    rustix::io::write(fd, &1u64.to_ne_bytes()).expect("the descriptor can be written");
}

fn drain(fd: &OwnedFd) {
    let _ = rustix::io::read(fd, &mut [0; 8][..]);
}

/// Rows as a page: of each its key and stamp, and the length of its value, which follows or, where it is
/// long, is an extent.
fn to_page(rows: &State) -> (Vec<u8>, Vec<Vec<u8>>) {
    let (mut base, mut extents) = (Vec::new(), Vec::new());
    for (key, (stamp, value)) in rows {
        let len = value.as_ref().map_or(u64::MAX, |value| value.0.len() as u64);
        [*key, *stamp, len].iter().for_each(|word| base.extend(word.to_le_bytes()));
        match value {
            Some(value) if value.0.len() > LONG => extents.push(value.0.clone()),
            value => base.extend(value.iter().flat_map(|value| &value.0)),
        }
    }
    (base, extents)
}

/// The same rows again; none where it is no such page.
pub fn from_page(mut base: &[u8], extents: &[&[u8]]) -> Option<State> {
    let (mut rows, mut extents) = (State::new(), extents.iter());
    while !base.is_empty() {
        let mut words = [0; 3];
        for word in &mut words {
            let (bytes, rest) = base.split_first_chunk()?;
            (*word, base) = (u64::from_le_bytes(*bytes), rest);
        }
        let [key, stamp, len] = words;
        let value = match usize::try_from(len) {
            Ok(usize::MAX) | Err(_) => None,
            Ok(len) if len > LONG => Some(Bytes(extents.next().filter(|bytes| bytes.len() == len)?.to_vec())),
            Ok(len) => {
                let (bytes, rest) = base.split_at_checked(len)?;
                base = rest;
                Some(Bytes(bytes.to_vec()))
            }
        };
        rows.insert(key, (stamp, value));
    }
    Some(rows)
}

/// Values of more bytes are extents.
const LONG: usize = 500;
const KEYS_OF_A_PAGE: u64 = 2;
/// The table of all rows.
pub const TABLE: u32 = 1;

impl Server {
    pub fn new(world: &World, rows: Rows, book: Arc<Mutex<Book>>, appender: Appender) -> Server {
        Server {
            world: world.clone(),
            rows: Mutex::new(rows),
            book,
            appender,
            wake: eventfd(),
            waiting: Mutex::default(),
            stop: AtomicBool::new(false),
            done: AtomicBool::new(false),
            release: Mutex::new(0),
            failed: AtomicBool::new(false),
            was_full: AtomicBool::new(false),
        }
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub fn wake_log(&self) {
        signal(&self.wake);
    }

    fn wake_writers(&self) {
        self.waiting.lock().unwrap_or_else(|e| e.into_inner()).iter().for_each(|fd| signal(fd));
    }

    /// Steps the log until the server stops and all is written, or it fails.
    pub fn step_log(&self, mut log: Log<Box<dyn Disk>>) {
        let clock = self.world.clock();
        let start = clock.now();
        loop {
            drain(&self.wake);
            if self.done.load(Ordering::Relaxed) {
                log.close();
            }
            let release = *self.release.lock().unwrap_or_else(|e| e.into_inner());
            if log.release(release).is_err() {
                self.failed.store(true, Ordering::Relaxed);
                return self.wake_writers();
            }
            let floor = self.rows().floor();
            self.world.point("read the floor", floor);
            match log.step(floor, clock.now() - start) {
                Err(_) => {
                    self.failed.store(true, Ordering::Relaxed);
                    return self.wake_writers();
                }
                Ok(step) => {
                    if step.advanced {
                        self.wake_writers();
                    }
                    if log.is_closed() {
                        return;
                    }
                    let until = step.wake.map(|wake| start + wake);
                    let fd = log.disk().fd().expect("a simulated disk has a descriptor");
                    clock.wait(&[fd, self.wake.as_fd()], until).expect("the world waits");
                }
            }
        }
    }

    /// Writes checkpoints until the server stops.
    pub fn write_checkpoints(&self, mut checkpoints: Checkpoints, keys: u64, every: Duration) {
        let clock = self.world.clock();
        while !self.stop.load(Ordering::Relaxed) && !self.failed.load(Ordering::Relaxed) {
            clock.sleep(every);
            // One that fails leaves the last as it was; the disk is full, say.
            let _ = self.checkpoint(&mut checkpoints, keys);
        }
    }

    fn checkpoint(&self, checkpoints: &mut Checkpoints, keys: u64) -> io::Result<()> {
        let floor = self.rows().floor();
        let mut checkpoint = checkpoints.begin(floor);
        checkpoint.table(TABLE, b"rows")?;
        for first in (0..keys).step_by(KEYS_OF_A_PAGE as usize) {
            self.world.point("reads a page", first);
            let some: State = {
                let rows = self.rows();
                rows.rows.range(first..first + KEYS_OF_A_PAGE).map(|(key, row)| (*key, row.clone())).collect()
            };
            let (base, extents) = to_page(&some);
            let extents: Vec<&[u8]> = extents.iter().map(Vec::as_slice).collect();
            let (low, high) = (first.to_be_bytes(), (first + KEYS_OF_A_PAGE).to_be_bytes());
            let newest = some.values().map(|(stamp, _)| *stamp).max().unwrap_or(0);
            let count = some.len() as u32;
            checkpoint.page(&Page {
                low: &low,
                high: Some(&high),
                base: &base,
                rows: (0, count),
                deltas: &[],
                extents: &extents,
                newest,
                count,
            })?;
        }
        checkpoint.written()?;
        let clock = self.world.clock();
        while !checkpoint.is_covered(&self.appender) {
            if self.failed.load(Ordering::Relaxed) || self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.wake_log();
            clock.sleep(Duration::from_millis(2));
        }
        let next = self.rows().next;
        checkpoint.finish(&self.appender, next, TABLE + 1)?;
        self.world.note("checkpoint: complete", 0);
        *self.release.lock().unwrap_or_else(|e| e.into_inner()) = floor;
        self.wake_log();
        Ok(())
    }

    /// Waits until something holds; false when the log failed before.
    fn wait_until(&self, mine: &Arc<OwnedFd>, holds: impl Fn() -> bool) -> bool {
        let clock = self.world.clock();
        loop {
            drain(mine);
            if holds() {
                return true;
            }
            if self.failed.load(Ordering::Relaxed) {
                return false;
            }
            let until = clock.now() + Duration::from_secs(120);
            clock.wait(&[mine.as_fd()], Some(until)).expect("the world waits");
            assert!(clock.now() < until || holds(), "nothing becomes durable");
        }
    }

    /// A writer: requests by chance until `requests` are done, the log fails or the server stops.
    pub fn write(&self, number: usize, keys: u64, requests: usize) {
        let mut chance = Chance::new(self.world.chance(&format!("writer {number}")).word() ^ self.book().requests);
        let mine = Arc::new(eventfd());
        self.waiting.lock().unwrap_or_else(|e| e.into_inner()).push(mine.clone());
        for _ in 0..requests {
            if chance.one_in(4) {
                self.world.clock().sleep(Duration::from_micros(chance.below(20_000)));
            }
            let goes_on = if chance.one_in(4) {
                self.read(&mine, chance.below(keys))
            } else {
                self.change(number, &mine, &mut chance, keys)
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Changes some rows and waits until that is durable.
    fn change(&self, number: usize, mine: &Arc<OwnedFd>, chance: &mut Chance, keys: u64) -> bool {
        let mut changes: Vec<(u64, Option<Vec<u8>>)> = Vec::new();
        let deletes = chance.one_in(4);
        let (count, longest) = if chance.one_in(4) { (1 + chance.below(6), 300) } else { (1, 2500) };
        for _ in 0..count {
            let key = chance.below(keys);
            if changes.iter().all(|(other, _)| *other != key) {
                let mut value = vec![0; 1 + chance.below(longest) as usize];
                chance.fill(&mut value);
                changes.push((key, (!deletes).then_some(value)));
            }
        }
        let bytes = changes.iter().map(|(_, value)| Records::bytes_of(8, value.as_ref().map_or(0, Vec::len))).sum();
        let claim = if deletes { Claim::Delete } else { Claim::Put };
        let room = match self.appender.reserve(bytes, claim) {
            Ok(room) => room,
            Err(Refused::Failed(_)) => return false,
            Err(Refused::TooLarge { .. }) => panic!("a request of {bytes} bytes is refused for its length"),
            Err(refused) => {
                if matches!(refused, Refused::Full { .. }) {
                    self.world.note("client: refused, disk full", 0);
                    self.was_full.store(true, Ordering::Relaxed);
                }
                self.wake_log();
                self.world.clock().sleep(Duration::from_millis(1 + chance.below(30)));
                return true;
            }
        };
        let request = {
            let mut book = self.book();
            book.requests += 1;
            book.requests
        };
        {
            let mut rows = self.rows();
            let bound = rows.next;
            rows.under_way.insert(number, bound);
        }
        let mut records = Records::new();
        let mut stamps = Vec::new();
        for (key, value) in changes {
            self.world.point("begun", key);
            let stamp = {
                let mut rows = self.rows();
                rows.next += 1;
                let stamp = rows.next - 1;
                rows.rows.insert(key, (stamp, value.clone().map(Bytes)));
                stamp
            };
            let name = key.to_be_bytes();
            let change = match &value {
                Some(value) => Change::Put { key: &name, value },
                None => Change::Delete { key: &name },
            };
            records.push(Record { stamp, table: TABLE, change });
            stamps.push(stamp);
            let value = value.map(Bytes);
            self.book().made.push(Made { stamp, key, value, request, position: None, acknowledged: false });
        }
        self.world.point("installed", request);
        // In the book first: from the append on it may be found.
        let position = {
            let mut book = self.book();
            let position = self.appender.append(room, &records);
            let of_it = book.made.iter_mut().filter(|made| made.request == request);
            of_it.for_each(|made| made.position = Some(position.0));
            position
        };
        self.world.point("appended", position.0);
        self.rows().under_way.remove(&number);
        self.wake_log();
        let durable = self.wait_until(mine, || self.appender.durable() >= Position(position.0));
        if durable {
            let mut book = self.book();
            book.made.iter_mut().filter(|made| made.request == request).for_each(|made| made.acknowledged = true);
        }
        durable
    }

    /// Reads a row, and is shown it once all that it stands on is durable.
    fn read(&self, mine: &Arc<OwnedFd>, key: u64) -> bool {
        let Some(stamp) = self.rows().rows.get(&key).map(|(stamp, _)| *stamp) else { return true };
        self.wake_log();
        let durable = self.wait_until(mine, || self.appender.durable_floor() > stamp);
        if durable {
            let mut book = self.book();
            // Only what was not overwritten by the same recovery's older value.
            let shown = book.shown.entry(key).or_insert(stamp);
            *shown = (*shown).max(stamp);
        }
        durable
    }
}
