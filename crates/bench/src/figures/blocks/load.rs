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
pub(super) struct LoadSpec {
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

/// Where the time of requests went, all of them together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parts {
    pub(super) requests: u64,
    /// Until it was on its way.
    pub(super) before_ns: u64,
    /// From the look that found the answer until its caller had it.
    pub(super) reply_ns: u64,
    pub(super) whole_ns: u64,
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

    /// Polls for so long before it sleeps, as an application may that has nothing else to do
    /// (vi-attached-storage §4.2); of 0, sleeps at once.
    pub(super) fn polling(self, ns: u64) -> Client {
        Client { waits: Waits::Polls(ns), ..self }
    }

    /// Its writes need not be on stable storage when they end.
    pub(super) fn volatile(self) -> Client {
        Client { durable: false, ..self }
    }

    /// Requests go to these places, in their order.
    pub(super) fn places(&mut self, load: LoadSpec, places: &[u64]) -> Result<Stretch> {
        let mut left = places.iter().copied();
        self.run(load, &mut || left.next())
    }

    /// The same, once the arm of a disk is where the first one leaves it: that one is not counted.
    pub(super) fn places_after(&mut self, load: LoadSpec, places: &[u64]) -> Result<Stretch> {
        let (first, rest) = places.split_first().context("no place")?;
        self.places(LoadSpec { depth: 1, ..load }, &[*first])?;
        self.places(load, rest)
    }

    /// Requests go where `place` says, until it says no more.
    pub(super) fn run(&mut self, load: LoadSpec, place: &mut dyn FnMut() -> Option<u64>) -> Result<Stretch> {
        let mut free = self.room(load)?;
        let (mut begun, mut tags) = (vec![0; load.depth], (0..load.depth as u64).collect::<Vec<_>>());
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
                let work = match load.writes {
                    true => Work::Write { at, from: Bytes::prefix(buffer, load.bytes), fua: self.durable },
                    false => Work::Read { at, length: load.bytes, into: buffer },
                };
                begun[tag as usize] = now_ns();
                queue.push_back(Request { tag, work });
            }
            if tags.len() == load.depth {
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
                    Work::Write { from, .. } => from.into_buffer().or_else(|_| buffer(load.bytes))?,
                    _ => continue,
                });
            }
        }
        (done.wall_ns, done.client_ns) = (elapsed_ns(start), Cpu::own() - cpu);
        done.bytes = done.times.len() as u64 * load.bytes as u64;
        self.free.insert(load.bytes, free);
        Ok(done)
    }

    /// Reads one after another, polling all the time, and sees what of each is this process' own.
    pub(super) fn parts(&mut self, bytes: usize, place: &mut dyn FnMut() -> Option<u64>) -> Result<Parts> {
        let load = LoadSpec { writes: false, bytes, depth: 1 };
        let mut free = self.room(load)?;
        let (mut queue, mut ended, mut done) = (VecDeque::new(), Vec::new(), Parts::default());
        while let Some(at) = place() {
            let into = free.pop().context("no buffer")?;
            let begun = now_ns();
            queue.push_back(Request { tag: 0, work: Work::Read { at, length: bytes, into } });
            self.device.submit(&mut queue);
            let sent = now_ns();
            let mut looked = sent;
            while self.device.poll(&mut ended) == 0 {
                ensure!(elapsed_ns(begun) < PATIENCE.as_nanos() as u64, "a request does not end within {PATIENCE:?}");
                spin_loop();
                looked = now_ns();
            }
            let there = now_ns();
            done.requests += 1;
            done.before_ns += sent - begun;
            done.reply_ns += there - looked;
            done.whole_ns += there - begun;
            for Completion { work, result, .. } in ended.drain(..) {
                result.context("a request failed")?;
                let Work::Read { into, .. } = work else { continue };
                free.push(into);
            }
        }
        self.free.insert(bytes, free);
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
    fn room(&mut self, load: LoadSpec) -> Result<Vec<Buffer>> {
        let mut free = self.free.remove(&load.bytes).unwrap_or_default();
        while free.len() < load.depth {
            let mut one = buffer(load.bytes)?;
            one.fill(0xA5);
            free.push(one);
        }
        Ok(free)
    }
}

/// Requests of a server that answers one after another, as many outstanding as are asked for, where
/// `place` says and until it says no more. `asks` sends the request of a number for a place;
/// `ended` waits until one has ended, and gives its number.
pub(super) fn closed_loop<S>(
    server: &mut S,
    load: LoadSpec,
    place: &mut dyn FnMut() -> Option<u64>,
    asks: impl Fn(&mut S, u32, u64) -> Result<()>,
    ended: impl Fn(&mut S) -> Result<u64>,
) -> Result<Stretch> {
    let (mut begun, mut done) = (Vec::with_capacity(load.depth), Stretch::default());
    let (cpu, start) = (Cpu::own(), now_ns());
    while begun.len() < load.depth
        && let Some(at) = place()
    {
        begun.push(now_ns());
        asks(server, begun.len() as u32 - 1, at)?;
    }
    let mut outstanding = begun.len();
    while outstanding > 0 {
        let number = ended(server)?;
        let since = usize::try_from(number).ok().and_then(|number| begun.get_mut(number));
        let since = since.context("the server answers what was not asked")?;
        done.times.push(elapsed_ns(*since));
        match place() {
            Some(at) => {
                *since = now_ns();
                asks(server, number as u32, at)?;
            }
            None => outstanding -= 1,
        }
    }
    (done.wall_ns, done.client_ns) = (elapsed_ns(start), Cpu::own() - cpu);
    done.bytes = done.times.len() as u64 * load.bytes as u64;
    Ok(done)
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
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers the one in the middle of what it was asked, and writes down all places.
    #[derive(Default)]
    struct Server {
        outstanding: Vec<u64>,
        places: Vec<u64>,
        most: usize,
    }

    impl Server {
        fn ask(&mut self, number: u32, at: u64) -> Result<()> {
            ensure!(!self.outstanding.contains(&number.into()), "it is under way");
            self.outstanding.push(number.into());
            self.places.push(at);
            self.most = self.most.max(self.outstanding.len());
            Ok(())
        }
    }

    #[test]
    fn as_many_are_outstanding_as_are_asked_for_and_each_place_is_asked_once() {
        for (depth, requests) in [(1, 9), (4, 9), (16, 9), (4, 0)] {
            let (mut server, mut places) = (Server::default(), 0..requests);
            let load = LoadSpec { writes: false, bytes: 512, depth };
            let middle = |server: &mut Server| Ok(server.outstanding.swap_remove(server.outstanding.len() / 2));
            let done = closed_loop(&mut server, load, &mut || places.next(), Server::ask, middle).unwrap();
            assert_eq!(server.places, (0..requests).collect::<Vec<_>>());
            assert_eq!((server.most as u64, server.outstanding.len()), ((depth as u64).min(requests), 0));
            assert_eq!((done.times.len() as u64, done.bytes), (requests, requests * 512));
        }
    }

    #[test]
    fn an_answer_to_what_was_not_asked_ends_it() {
        for number in [2, u64::from(u32::MAX) + 1, u64::MAX] {
            let load = LoadSpec { writes: false, bytes: 512, depth: 2 };
            let done = closed_loop(&mut Server::default(), load, &mut || Some(0), Server::ask, |_| Ok(number));
            assert!(done.unwrap_err().to_string().contains("not asked"), "{number}");
        }
    }
}
