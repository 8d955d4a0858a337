//! A node of the world: its members' files, the array over them, and the process that serves it.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use overside_disk::{Open, Request as DiskRequest};
use overside_service::{Listening, ServiceOptions};
use overside_sim::Process;
use overside_vault::cache::{CacheOptions, PolicyKind};
use overside_vault::members::FileMember;
use overside_vault::server::{About, Node, NodeOptions, WriterRecord};
use overside_volume::{Array, Device, MemberState, MemoryDevice, Raid, Sectors, Sums, Work};
use rustix::event::EventfdFlags;

use super::devices::{Apart, Failing, Once};
use super::{BYTES, Layout, PATIENCE, STRIPE, SUMS, Serving, Stage, lock};
use crate::client;

impl Stage {
    /// The members' files, on stable storage.
    pub(super) fn make(&self) {
        let mut disk = self.drive.open(&self.world.process("maker"));
        for name in (0..self.plan.members).map(|member| format!("m{member}")).chain(["intents".to_owned()]) {
            let file = disk.open(&name, Open::Create { direct: true }).expect("it is the first");
            overside_disk::complete(&mut *disk, DiskRequest::Sync { file }, PATIENCE).expect("the disk is sound");
        }
        let folder = disk.open("", Open::Folder).expect("it is there");
        overside_disk::complete(&mut *disk, DiskRequest::Sync { file: folder }, PATIENCE).expect("the disk is sound");
        let mut store = self.file(&self.world.process("formatter"), "intents", 4 << 20).expect("nobody has it");
        let absent = |member: usize| {
            let process = self.world.process("formatter");
            let mut file = self.file(&process, &format!("m{member}"), self.member_bytes()).expect("nobody has it");
            if self.plan.sums {
                let mut bitmap = client::buffer(8192);
                bitmap.copy_from_slice(&SUMS.empty_bitmap());
                let work = Work::Write { at: SUMS.bitmap, from: bitmap.into(), fua: true };
                let clock = self.world.clock();
                overside_volume::complete(&mut file, &*clock, work, PATIENCE).1.expect("the disk is sound");
            }
            Box::new(file) as Box<dyn Device>
        };
        let members: Vec<Box<dyn Device>> = (0..self.plan.members).map(absent).collect();
        // Their geometry is what the members' will be.
        let members = members.into_iter().map(|member| match self.plan.sums {
            true => Box::new(MemoryDevice::new(BYTES).expect("there is memory")) as Box<dyn Device>,
            false => member,
        });
        if let Some(raid) = self.raid(members.collect()) {
            raid.format_store(&mut store, &*self.world.clock()).expect("the disk is sound");
        }
    }

    fn raid(&self, members: Vec<Box<dyn Device>>) -> Option<Raid> {
        match self.plan.layout {
            Layout::Mirror => Some(Raid::mirror(members).expect("they are a mirror")),
            Layout::Parity => Some(Raid::parity(members, STRIPE).expect("they are RAID 5")),
            Layout::Single | Layout::Stripes => None,
        }
    }

    fn file(&self, process: &Process, name: &str, bytes: u64) -> Result<FileMember, String> {
        let mut disk = self.drive.open(process);
        let file = disk.open(name, Open::Write { direct: true }).map_err(|error| format!("{name}: {error}"))?;
        match disk.lock(file, PATIENCE) {
            Ok(true) => Ok(FileMember::new(disk, file, 0, bytes)),
            locked => Err(format!("{name} is not to be had: {locked:?}")),
        }
    }

    fn device(&self, process: &Process) -> Result<(Box<dyn Device>, Option<overside_volume::Health>), String> {
        let clock = self.world.clock();
        let mut members: Vec<Box<dyn Device>> = Vec::new();
        for number in 0..self.plan.members {
            let file = self.file(process, &format!("m{number}"), self.member_bytes())?;
            let device: Box<dyn Device> = if self.plan.sums {
                Box::new(Sums::open(Box::new(file), SUMS, clock.clone()).map_err(|error| error.to_string())?)
            } else {
                Box::new(file)
            };
            members.push(Box::new(Failing {
                device,
                number: number as u64,
                fails: self.fails.clone(),
                done: Vec::new(),
            }));
        }
        let said = |error: &dyn std::fmt::Display| error.to_string();
        match self.plan.layout {
            Layout::Single => return Ok((members.pop().ok_or("no member")?, None)),
            Layout::Stripes => {
                return Ok((Box::new(Array::stripes(members, STRIPE).map_err(|e| said(&e))?), None));
            }
            _ => {}
        }
        let mut raid = self.raid(members).ok_or("no array")?;
        lock(&self.stale).iter().for_each(|member| raid.set_stale(*member));
        let store = self.file(process, "intents", 4 << 20)?;
        let (lost, world) = (self.lost.clone(), self.world.clone());
        raid.set_lost(&lock(&lost));
        raid.on_lost(move |ranges| {
            world.note("bytes: noted as lost", ranges.iter().map(|range| range.length).sum());
            lock(&lost).clone_from(ranges);
            true
        });
        let mut absent = 0;
        if self.plan.fails_unsettled && lock(&self.stale).is_empty() {
            // As a member whose node cannot be reached yet.
            absent = lock(&self.fails).iter().fold(0, |bits, member| bits | 1 << member);
            for member in (0..self.plan.members).filter(|member| absent & 1 << member != 0) {
                self.world.note("member: away after a crash", member as u64);
                self.model.changed(true);
                raid.set_stale(member);
            }
        }
        raid.with_intents(Box::new(store), clock, absent).map_err(|e| said(&e))?;
        lock(&self.stale).extend((0..self.plan.members).filter(|member| absent & 1 << member != 0));
        let (stale, world) = (self.stale.clone(), self.world.clone());
        raid.on_change(move |member, state| {
            match state {
                MemberState::Stale => {
                    world.note("member: stale", member as u64);
                    lock(&stale).insert(member);
                }
                MemberState::Current => {
                    world.note("member: current again", member as u64);
                    lock(&stale).remove(&member);
                }
            }
            true
        });
        let health = raid.health();
        Ok((Box::new(raid), Some(health)))
    }

    /// A node, which serves when this returns.
    pub(super) fn serve(&self, life: u64) -> Serving {
        let process = self.world.process(&format!("node-{life}"));
        let provider = Arc::new(self.network.provider());
        let doomed = provider.clone();
        process.at_kill(move || doomed.kill());
        let stop = Arc::new(rustix::event::eventfd(0, EventfdFlags::NONBLOCK).expect("the system has a descriptor"));
        let (up, current) = (Arc::<AtomicBool>::default(), Arc::<Mutex<_>>::default());
        let (inside, stopped, is_up, health) = (self.clone(), stop.clone(), up.clone(), current.clone());
        let own = process.clone();
        let running = process.spawn("main", move || {
            let clock = inside.world.clock();
            let (device, found) = inside.device(&own)?;
            *lock(&health) = found;
            let blocks = if inside.plan.cache { 24 * 8192 } else { 0 };
            let options = NodeOptions {
                writes: inside.plan.writes,
                cache: CacheOptions { bytes: blocks, block_bytes: 8192, policy: PolicyKind::Mq },
                request_bytes_max: 16 << 10,
                requests_max: 8,
                blocks: 16,
                sessions_max: 8,
                linger: Duration::from_millis(500),
                access: None,
                keeper: None,
                cpu: None,
            };
            let apart = Apart::over(Sectors::over(device), &own, &clock).map_err(|error| error.to_string())?;
            let once = Once { device: apart, model: inside.model.clone(), seen: BTreeSet::new() };
            let node = Node::new(clock.clone(), options).map_err(|error| error.to_string())?;
            let writer = inside.writer.clone();
            let last = *lock(&writer);
            let record = WriterRecord::new(last, move |last| {
                *lock(&writer) = Some(last);
                true
            });
            let about = About::default();
            node.add_described("v", Box::new(once), about, Some(record)).map_err(|error| error.to_string())?;
            let listening = Listening::open(provider, &["node"]).map_err(|error| error.to_string())?;
            let options =
                ServiceOptions { workers: inside.plan.workers, threads: own.threads(), ..ServiceOptions::default() };
            let served = node.serve(vec![listening], options).map_err(|error| error.to_string())?;
            inside.world.note("node: up", 0);
            is_up.store(true, Ordering::Relaxed);
            clock.wait(&[stopped.as_fd()], None).map_err(|error| error.to_string())?;
            drop(served);
            Ok(())
        });
        let serving = Serving { process, running, up, current, stop };
        while !serving.up.load(Ordering::Relaxed) && !serving.running.has_ended() {
            self.world.clock().sleep(Duration::from_millis(1));
        }
        serving
    }

    /// Bytes of a member's file.
    pub(super) fn member_bytes(&self) -> u64 {
        if self.plan.sums { SUMS.data + SUMS.bytes } else { BYTES }
    }
}
