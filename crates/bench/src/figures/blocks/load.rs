//! Requests to a volume or a disk: of one length, so many outstanding.

use crate::{
    figures::tables::clients::quantile,
    measure::{Cpu, elapsed_ns, now_ns},
};
use anyhow::{Context, Result, ensure};
use overside::{
    memory::{Buffer, Bytes, Segment},
    verbs::{Clock, SystemClock},
    volume::{Completion, Device, Request, Waiter, Work, client::LinkHandle, wait},
};
use std::{
    collections::{BTreeMap, VecDeque},
    hint::spin_loop,
    time::Duration,
};

/// What is asked for again and again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) writes: bool,
    pub(super) bytes: usize,
    /// Requests outstanding.
    pub(super) depth: usize,
}

/// What a stretch came to.
#[derive(Clone, Debug, Default)]
pub(super) struct Stretch {
    /// Nanoseconds that each request took.
    pub(super) times: Vec<u64>,
    pub(super) bytes: u64,
    pub(super) wall_ns: u64,
    /// Processor time of this process, and of the one that serves.
    pub(super) client_ns: u64,
    pub(super) server_ns: u64,
}

/// A device, and memory for its requests, which is used again.
pub(super) struct Client {
    device: Box<dyn Device>,
    waiter: Waiter,
    free: BTreeMap<usize, Vec<Buffer>>,
    waits: Waits,
    /// A write has ended when it is on stable storage.
    durable: bool,
}

/// How one who has nothing else to do waits.
#[derive(Clone, Copy, Debug)]
enum Waits {
    /// It polls where that has paid of late.
    ByPolicy,
    /// It polls for so many nanoseconds, then sleeps.
    Polls(u64),
}

impl Stretch {
    pub(super) fn p50(&self) -> f64 {
        quantile(&self.times, 0.5)
    }

    pub(super) fn mean(&self) -> f64 {
        self.times.iter().sum::<u64>() as f64 / self.times.len().max(1) as f64
    }

    pub(super) fn per_s(&self) -> f64 {
        self.times.len() as f64 * 1e9 / self.wall_ns.max(1) as f64
    }

    pub(super) fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 * 1e9 / self.wall_ns.max(1) as f64
    }

    /// Processor time of both ends for a request.
    pub(super) fn cpu_each(&self) -> f64 {
        (self.client_ns + self.server_ns) as f64 / self.times.len().max(1) as f64
    }
}

impl Client {
    pub(super) fn over(device: impl Device + 'static) -> Client {
        Client {
            device: Box::new(device),
            waiter: Waiter::default(),
            free: BTreeMap::new(),
            waits: Waits::ByPolicy,
            durable: true,
        }
    }

    /// Polls for so long before it sleeps, as an application may that has nothing else to do (vi-attached-storage §4.2); of 0, sleeps at once.
    pub(super) fn polling(self, ns: u64) -> Client {
        Client { waits: Waits::Polls(ns), ..self }
    }

    /// Its writes need not be on stable storage when they end.
    pub(super) fn volatile(self) -> Client {
        Client { durable: false, ..self }
    }

    /// Requests go to these places, in their order.
    pub(super) fn places(&mut self, asked: Asked, places: &[u64]) -> Result<Stretch> {
        let mut left = places.iter().copied();
        self.run(asked, &mut || left.next())
    }

    /// The same, once the arm of a disk is where the first one leaves it: that one is not counted.
    pub(super) fn places_after(&mut self, asked: Asked, places: &[u64]) -> Result<Stretch> {
        let (first, rest) = places.split_first().context("no place")?;
        self.places(Asked { depth: 1, ..asked }, &[*first])?;
        self.places(asked, rest)
    }

    /// Requests go where `place` says, until it says no more.
    pub(super) fn run(&mut self, asked: Asked, place: &mut dyn FnMut() -> Option<u64>) -> Result<Stretch> {
        let mut free = self.room(asked)?;
        let (mut begun, mut tags) = (vec![0; asked.depth], (0..asked.depth as u64).collect::<Vec<_>>());
        let (mut queue, mut ended): (VecDeque<Request>, Vec<Completion>) = (VecDeque::new(), Vec::new());
        let (mut done, mut is_over) = (Stretch::default(), false);
        let (cpu, start) = (Cpu::own(), now_ns());
        loop {
            while !is_over && let Some(tag) = tags.pop() {
                let Some(at) = place() else {
                    is_over = true;
                    tags.push(tag);
                    break;
                };
                let buffer = free.pop().context("no buffer")?;
                let work = match asked.writes {
                    true => Work::Write { at, from: Bytes::prefix(buffer, asked.bytes), fua: self.durable },
                    false => Work::Read { at, length: asked.bytes, into: buffer },
                };
                begun[tag as usize] = now_ns();
                queue.push_back(Request { tag, work });
            }
            if tags.len() == asked.depth {
                break;
            }
            self.device.submit(&mut queue);
            if self.device.poll(&mut ended) == 0 && !self.polled(&mut ended) {
                ensure!(elapsed_ns(start) < PATIENCE.as_nanos() as u64, "requests do not end within {PATIENCE:?}");
                let until = Some(SystemClock.now() + LOOK);
                match self.waits {
                    Waits::ByPolicy => _ = self.waiter.poll(&mut *self.device, &SystemClock, until, &mut ended)?,
                    Waits::Polls(_) => wait(&mut *self.device, &SystemClock, until)?,
                }
            }
            for Completion { tag, work, result } in ended.drain(..) {
                result.context("a request failed")?;
                done.times.push(elapsed_ns(begun[tag as usize]));
                tags.push(tag);
                free.push(match work {
                    Work::Read { into, .. } => into,
                    Work::Write { from, .. } => from.into_buffer().or_else(|_| buffer(asked.bytes))?,
                    _ => continue,
                });
            }
        }
        (done.wall_ns, done.client_ns) = (elapsed_ns(start), Cpu::own() - cpu);
        done.bytes = done.times.len() as u64 * asked.bytes as u64;
        self.free.insert(asked.bytes, free);
        Ok(done)
    }

    /// Whether anything has ended before it is time to sleep.
    fn polled(&mut self, ended: &mut Vec<Completion>) -> bool {
        let Waits::Polls(ns @ 1..) = self.waits else { return false };
        let start = now_ns();
        loop {
            if self.device.poll(ended) > 0 {
                return true;
            }
            if elapsed_ns(start) >= ns {
                return false;
            }
            spin_loop();
        }
    }

    /// Writes what every block is known by.
    pub(super) fn fill(&mut self, bytes: u64) -> Result<()> {
        for at in (0..bytes).step_by(STEP_BYTES) {
            let mut into = buffer(STEP_BYTES)?;
            known(at, &mut into);
            self.one(Work::Write { at, from: into.into(), fua: false })?;
        }
        self.one(Work::Flush)?;
        Ok(())
    }

    /// Reads all of it, and holds it against that.
    pub(super) fn check(&mut self, bytes: u64) -> Result<()> {
        let mut wanted = vec![0; STEP_BYTES];
        for at in (0..bytes).step_by(STEP_BYTES) {
            let Work::Read { into, .. } = self.one(Work::Read { at, length: STEP_BYTES, into: buffer(STEP_BYTES)? })?
            else {
                anyhow::bail!("a READ came back as something else");
            };
            known(at, &mut wanted);
            ensure!(into[..STEP_BYTES] == wanted[..], "what was read at {at} is not what was written");
        }
        Ok(())
    }

    /// Ends the session, so that another writer need not wait.
    pub(super) fn close(mut self, handle: &LinkHandle) {
        handle.close(&mut *self.device, &SystemClock, PATIENCE);
    }

    fn one(&mut self, work: Work) -> Result<Work> {
        let (work, result) = overside::volume::complete(&mut *self.device, &SystemClock, work, PATIENCE);
        result.context("a request failed")?;
        work.context("a request did not come back")
    }

    /// As many buffers as requests, touched before time is taken.
    fn room(&mut self, asked: Asked) -> Result<Vec<Buffer>> {
        let mut free = self.free.remove(&asked.bytes).unwrap_or_default();
        while free.len() < asked.depth {
            let mut one = buffer(asked.bytes)?;
            one.fill(0xA5);
            free.push(one);
        }
        Ok(free)
    }
}

/// What the bytes from `at` on are: each sector begins with its number.
pub(super) fn known(at: u64, bytes: &mut [u8]) {
    for (sector, bytes) in (at / SECTOR as u64..).zip(bytes.chunks_mut(SECTOR)) {
        bytes.fill(sector as u8);
        bytes[..8].copy_from_slice(&sector.to_le_bytes());
    }
}

fn buffer(bytes: usize) -> Result<Buffer> {
    Segment::private(bytes)?.carve(bytes).pop().context("no memory for a request")
}

pub(super) const STEP_BYTES: usize = 128 << 10;
const SECTOR: usize = 512;
const LOOK: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(60);
