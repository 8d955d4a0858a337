//! What happens in the world of a seed.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use overside_disk::{Open, Request as DiskRequest};
use overside_reference as reference;
use overside_service::{Listening, ServiceOptions};
use overside_sim::{Chance, Drive, DriveOptions, Handle, Process, World};
use overside_vault::cache::{CacheOptions, PolicyKind};
use overside_vault::members::FileMember;
use overside_vault::server::{About, LastWriter, Node, NodeOptions, WriterRecord, Writes};
use overside_verbs::watch::Signal;
use overside_verbs::{Clock, VerbsError};
use overside_volume::wire::Role;
use overside_volume::{
    Array, Completion, Device, DeviceError, Geometry, LostRange, MemberState, MemoryDevice, Raid, Request, Sectors,
    SumPlaces, Sums, Work,
};
use rustix::event::EventfdFlags;

use super::client::{self, Client, Load};
use super::model::{self, Model, SECTOR};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Single,
    Stripes,
    Mirror,
    Parity,
}

impl Layout {
    fn kind(self) -> &'static str {
        match self {
            Layout::Single => "volume: single",
            Layout::Stripes => "volume: stripes",
            Layout::Mirror => "volume: mirror",
            Layout::Parity => "volume: parity",
        }
    }
}

/// What the seed chose.
#[derive(Clone, Copy, Debug)]
struct Plan {
    layout: Layout,
    members: usize,
    weather: reference::Weather,
    drive: DriveOptions,
    writes: Writes,
    workers: usize,
    cache: bool,
    load: Load,
    /// Nodes that do not live to the end, and how long each lives at most.
    ends: u64,
    lifetime: Duration,
    /// The power goes with some of them.
    loses_power: bool,
    /// A client that is killed in the middle, before another takes its place.
    kills_client: bool,
    /// Before all others a client whose lost connection speaks late.
    speaks_late: bool,
    /// A member fails for a while.
    member_fails: bool,
    /// Even before what a crash left is settled: what it has there is lost until it is back.
    fails_unsettled: bool,
    /// Members have checksums, and at the end bytes of them change on the disk.
    sums: bool,
    /// And while the volume is used: nothing else happens to the node then. What a crash has noted is summed again as
    /// it is, so a change there is not seen.
    changes_under_load: bool,
}

impl Plan {
    fn new(chance: &mut Chance) -> Plan {
        let layout = [Layout::Single, Layout::Stripes, Layout::Mirror, Layout::Mirror, Layout::Parity, Layout::Parity]
            [chance.below(6) as usize];
        let members = match layout {
            Layout::Single => 1,
            Layout::Stripes | Layout::Mirror => 2 + chance.below(2) as usize,
            Layout::Parity => 3 + chance.below(3) as usize,
        };
        let writes = if chance.one_in(2) { Writes::Through } else { Writes::Back };
        let load = Load {
            requests: 30 + chance.below(90) as usize,
            depth: [1, 4, 12][chance.below(3) as usize],
            spots: 1 + chance.below(4),
            volume_sectors: BYTES / SECTOR,
            through: writes == Writes::Through,
            deadline: Duration::from_millis([15, 60, 400][chance.below(3) as usize]),
            kept_bytes_max: [32 << 10, 256 << 10, 32 << 20][chance.below(3) as usize],
            checks: false,
            group: 0,
        };
        let mut plan = Plan {
            layout,
            members,
            weather: reference::Weather {
                delay_max: Duration::from_micros([50, 500, 5000][chance.below(3) as usize]),
                cut_one_in: [0, 100, 25][chance.below(3) as usize],
            },
            drive: DriveOptions {
                latency_max: Duration::from_micros([20, 300, 5000][chance.below(3) as usize]),
                stall_one_in: [0, 50][chance.below(2) as usize],
                stall: Duration::from_millis(100),
                ..DriveOptions::default()
            },
            writes,
            workers: 1 + chance.below(3) as usize,
            cache: chance.one_in(3),
            load,
            ends: chance.below(5),
            lifetime: Duration::from_millis([20, 100, 500][chance.below(3) as usize]),
            loses_power: chance.one_in(2),
            kills_client: chance.one_in(3),
            speaks_late: chance.one_in(5),
            member_fails: matches!(layout, Layout::Mirror | Layout::Parity) && !chance.one_in(3),
            sums: !chance.one_in(4),
            changes_under_load: false,
            fails_unsettled: false,
        };
        let is_redundant = matches!(layout, Layout::Mirror | Layout::Parity);
        if plan.sums && is_redundant && chance.one_in(4) {
            plan.load.checks = true;
            plan = Plan { changes_under_load: true, ends: 0, member_fails: false, ..plan };
        }
        // A client that writes again what a loss of power took waits until that succeeds. A part of a lost unit does not.
        let may_lose = plan.member_fails && layout == Layout::Parity && writes == Writes::Through;
        plan.fails_unsettled = may_lose && !chance.one_in(4);
        if plan.fails_unsettled {
            plan.ends = 4;
        }
        // By what was drawn already, so that the worlds of all other seeds stay as they were.
        if plan.load.requests.is_multiple_of(4) {
            plan.load = Load { group: 1, through: true, ..plan.load };
        }
        plan
    }
}

/// What the world of a seed came to.
pub struct Held {
    pub hash: u64,
    /// How often each of [`KINDS`] happened.
    pub counts: Vec<u64>,
}

/// What some of many worlds must have seen, or they do not test it.
pub const KINDS: &[&str] = &[
    "volume: single",
    "volume: stripes",
    "volume: mirror",
    "volume: parity",
    "client: attached",
    "client: attached twice",
    "client: killed",
    "client: wrote again",
    "client: its memory was read",
    "client: speaks late",
    "member: fails",
    "member: fails unsettled",
    "member: away after a crash",
    "member: is back",
    "member: stale",
    "member: current again",
    "node: up",
    "node: killed",
    "node: power lost",
    "node: ended cleanly",
    "disk: power lost",
    "disk: write torn",
    "disk: bytes lost",
    "disk: reordered",
    "members: compared",
    "bytes: noted as lost",
    "bytes: changed",
    "bytes: changed under load",
    "bytes: named under load",
    "bytes: corrupt to a client",
    "bytes: right in spite of that",
];

/// Runs the world of a seed; what it came to, or what is wrong.
pub fn run(seed: u64) -> Result<Held, String> {
    let plan = Plan::new(&mut Chance::of(seed, "plan"));
    let ended = World::run(seed, move |world| scene(world, plan)).map_err(|failed| format!("{failed}{plan:?}"))?;
    let trace = ended.trace;
    let held = Held { hash: trace.hash(), counts: KINDS.iter().map(|kind| trace.count_of(kind)).collect() };
    ended.value.map(|()| held).map_err(|why| format!("{why}\n{plan:?}"))
}

fn scene(world: &World, plan: Plan) -> Result<(), String> {
    world.end_within(Duration::from_secs(3600));
    let network = reference::World::under(world.clock(), plan.weather);
    let courier = network.courier().expect("the system has a descriptor");
    world.process("network").spawn("courier", move || courier.run());
    world.note(plan.layout.kind(), 0);
    let drive = Drive::new(world, plan.drive);
    // What the node promises of its sectors its disks promise.
    drive.keep_sectors_whole();
    let stage = Stage {
        world: world.clone(),
        network,
        plan,
        drive,
        model: Model::default(),
        stale: Arc::default(),
        lost: Arc::default(),
        writer: Arc::default(),
        fails: Arc::default(),
    };
    stage.make();
    let mut chance = world.chance("fate");
    let (mut life, mut node) = (0, stage.serve(0));
    if plan.speaks_late {
        stage.speak_late();
    }
    let mut client = stage.client("client-0", Role::Writer, Client::run);
    let mut clients = 1;
    let until = world.passed() + Duration::from_millis(chance.below(400));
    let victim = chance.below(plan.members as u64);
    let fails_at = world.passed() + Duration::from_millis(chance.below(200));
    let mut fails = fails_at..fails_at + Duration::from_millis([50, 400, 7000][chance.below(3) as usize]);
    let mut killed = !plan.kills_client;
    let mut next_end = node_end(world, plan, &mut chance, life);
    let (mut bytes, mut changed) = (world.chance("bytes under load"), BTreeSet::new());
    while !client.1.has_ended() || clients < 1 {
        let now = world.passed();
        stage.fail_member(&node, victim, &fails);
        if !killed && now >= until {
            killed = true;
            client = stage.succeed(&client.0, clients);
            clients += 1;
        }
        if next_end.is_some_and(|at| now >= at) {
            let lost = stage.end(&node, &mut chance);
            if lost && !killed {
                // It ran on the same host.
                killed = true;
                client = stage.succeed(&client.0, clients);
                clients += 1;
            }
            if plan.fails_unsettled && chance.one_in(2) {
                let (from, is_away) = (world.passed(), chance.one_in(2));
                fails = from..from + Duration::from_millis([50, 400, 7000][chance.below(3) as usize]);
                if is_away {
                    lock(&stage.fails).insert(victim);
                    world.note("member: fails", victim);
                }
            }
            life += 1;
            node = stage.serve(life);
            next_end = node_end(world, plan, &mut chance, life);
        }
        stage.change_one(&mut bytes, &mut changed);
        if let Some(why) = stage.wrong(&node) {
            return Err(why);
        }
        world.clock().sleep(Duration::from_millis(2));
    }
    lock(&stage.fails).clear();
    stage.settle(&node)?;
    stage.finish(node, life)
}

/// When a life ends, unless it is the last.
fn node_end(world: &World, plan: Plan, chance: &mut Chance, life: u64) -> Option<Duration> {
    let within = plan.lifetime.mul_f64(chance.below(1000) as f64 / 1000.0);
    (life < plan.ends).then(|| world.passed() + within)
}

struct Stage {
    world: World,
    network: reference::World,
    plan: Plan,
    drive: Drive,
    model: Model,
    /// As a home folder has it.
    stale: Arc<Mutex<BTreeSet<usize>>>,
    lost: Arc<Mutex<BTreeSet<LostRange>>>,
    writer: Arc<Mutex<Option<LastWriter>>>,
    /// Members that fail now.
    fails: Arc<Mutex<BTreeSet<u64>>>,
}

/// A node in a process of its own.
struct Serving {
    process: Process,
    running: Handle<Result<(), String>>,
    up: Arc<AtomicBool>,
    current: Arc<Mutex<Option<overside_volume::Health>>>,
    stop: Arc<OwnedFd>,
}

impl Stage {
    /// The members' files, on stable storage.
    fn make(&self) {
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

    /// Bytes of a member's file.
    fn member_bytes(&self) -> u64 {
        if self.plan.sums { SUMS.data + SUMS.bytes } else { BYTES }
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
    fn serve(&self, life: u64) -> Serving {
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

    /// A member fails for a while.
    fn fail_member(&self, node: &Serving, victim: u64, within: &std::ops::Range<Duration>) {
        let now = self.world.passed();
        // One that fails before a crash is settled is one too many.
        let may_fail = self.plan.fails_unsettled || self.is_settled(node);
        let may_fail = self.plan.member_fails && within.contains(&now) && may_fail;
        if may_fail && !lock(&self.fails).contains(&victim) {
            lock(&self.fails).insert(victim);
            self.world.note("member: fails", victim);
            if !self.is_settled(node) {
                self.model.changed(true);
                self.world.note("member: fails unsettled", victim);
            }
        }
        if now >= within.end && lock(&self.fails).remove(&victim) {
            self.world.note("member: is back", victim);
        }
    }

    /// Nothing is left of the last crash.
    fn is_settled(&self, node: &Serving) -> bool {
        lock(&node.current).as_ref().is_some_and(|health| health.unsettled() == 0)
    }

    /// A client is killed, and another one takes its place.
    fn succeed(&self, client: &Process, number: u64) -> (Process, Handle<()>) {
        self.world.note("client: killed", 0);
        client.kill();
        self.model.client_gone();
        self.client(&format!("client-{number}"), Role::TakeOver, Client::run)
    }

    /// Ends a node's life in one way or another; whether the power goes.
    fn end(&self, node: &Serving, chance: &mut Chance) -> bool {
        if lock(&self.stale).is_empty() && !self.plan.fails_unsettled {
            // A crash, and a member that failed before anybody heard of it, are two failures.
            lock(&self.fails).clear();
        }
        if chance.one_in(4) {
            self.stop(node);
        } else {
            node.process.kill();
            self.world.note("node: killed", 0);
        }
        let lost = self.plan.loses_power && chance.one_in(2);
        if lost {
            node.process.kill();
            self.world.note("node: power lost", 0);
            self.drive.lose_power();
            self.model.power_lost();
        }
        lost
    }

    fn stop(&self, node: &Serving) {
        rustix::io::write(&*node.stop, &1u64.to_ne_bytes()).expect("its descriptor can be written");
        while !node.running.has_ended() {
            self.world.clock().sleep(Duration::from_millis(2));
        }
        self.world.note("node: ended cleanly", 0);
        node.process.kill();
    }

    fn client(&self, name: &str, role: Role, run: fn(Client)) -> (Process, Handle<()>) {
        let process = self.world.process(name);
        let provider = Arc::new(self.network.provider());
        let doomed = provider.clone();
        process.at_kill(move || doomed.kill());
        let (world, model, load, name) = (self.world.clone(), self.model.clone(), self.plan.load, name.to_owned());
        let running = process.spawn("caller", move || run(Client::attach(&world, provider, &name, role, model, load)));
        (process, running)
    }

    /// Ends with that client.
    fn speak_late(&self) {
        let process = self.world.process("late");
        let provider = Arc::new(self.network.provider());
        let doomed = provider.clone();
        process.at_kill(move || doomed.kill());
        let (world, model) = (self.world.clone(), self.model.clone());
        let running = process.spawn("caller", move || client::speak_late(&world, &provider, &model));
        while !running.has_ended() {
            self.world.clock().sleep(Duration::from_millis(2));
        }
        process.kill();
    }

    fn wrong(&self, node: &Serving) -> Option<String> {
        if node.running.has_ended() && node.process.is_alive() {
            return Some("a node does not start, or ended by itself".to_owned());
        }
        self.model.wrong()
    }

    /// All members have all that was written.
    fn settle(&self, node: &Serving) -> Result<(), String> {
        let Some(health) = lock(&node.current).clone() else { return Ok(()) };
        let until = self.world.passed() + Duration::from_secs(600);
        while health.unsettled() > 0 || (0..self.plan.members).any(|member| health.state(member) == MemberState::Stale)
        {
            if self.world.passed() > until {
                return Err("a member that is back does not get what it has missed".to_owned());
            }
            self.world.clock().sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// What was acknowledged is there after the last life, too; and members have the same.
    fn finish(&self, node: Serving, life: u64) -> Result<(), String> {
        self.stop(&node);
        let node = self.serve(life + 1);
        self.read_all(&node)?;
        if self.plan.changes_under_load {
            self.run_client(&node, Client::check_all)?;
        }
        self.stop(&node);
        if let Some(why) = self.model.wrong() {
            return Err(why);
        }
        self.compare()?;
        if self.plan.sums {
            self.change_bytes();
            let node = self.serve(life + 2);
            self.read_all(&node)?;
            self.stop(&node);
            if let Some(why) = self.model.wrong() {
                return Err(why);
            }
        }
        Ok(())
    }

    /// A client reads all that was ever written.
    fn read_all(&self, node: &Serving) -> Result<(), String> {
        self.run_client(node, Client::read_all)
    }

    fn run_client(&self, node: &Serving, run: fn(Client)) -> Result<(), String> {
        let (_, running) = self.client("reader", Role::TakeOver, run);
        while !running.has_ended() {
            if let Some(why) = self.wrong(node) {
                return Err(why);
            }
            self.world.clock().sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// A bit changes where a client may be reading or writing: of the same bytes on one member alone.
    fn change_one(&self, chance: &mut Chance, changed: &mut BTreeSet<u64>) {
        if !self.plan.changes_under_load || !chance.one_in(4) {
            return;
        }
        self.model.changed(false);
        let (block, member) = (chance.below(24), chance.below(self.plan.members as u64));
        // A WRITE of a part of a row needs what lies there of all members but one, stripe by stripe.
        let unit = if self.plan.layout == Layout::Parity { block * 4096 / STRIPE } else { block };
        if changed.insert(unit) {
            let at = SUMS.data + block * 4096 + chance.below(4096);
            self.drive.flip(&format!("m{member}"), at, chance.below(8) as u32);
            self.world.note("bytes: changed under load", at);
        }
    }

    /// Bits change on the disk while nobody has it open: of the same bytes on one member at most.
    fn change_bytes(&self) {
        let mut chance = self.world.chance("bytes");
        for block in 0..BYTES / 4096 {
            if chance.one_in(2) {
                let member = chance.below(self.plan.members as u64);
                let at = SUMS.data + block * 4096 + chance.below(4096);
                self.drive.flip(&format!("m{member}"), at, chance.below(8) as u32);
                self.world.note("bytes: changed", at);
            }
        }
        let may_be_lost = matches!(self.plan.layout, Layout::Single | Layout::Stripes);
        self.model.changed(may_be_lost);
    }

    /// Members have the same.
    fn compare(&self) -> Result<(), String> {
        let files: Vec<Vec<u8>> = (0..self.plan.members)
            .map(|member| {
                let mut bytes = self.drive.read(&format!("m{member}"));
                bytes.resize(self.member_bytes() as usize, 0);
                bytes.split_off(if self.plan.sums { SUMS.data as usize } else { 0 })
            })
            .collect();
        let differ = match self.plan.layout {
            Layout::Mirror => files.windows(2).any(|pair| pair[0] != pair[1]),
            Layout::Parity => (0..BYTES as usize).any(|at| files.iter().fold(0, |sum, file| sum ^ file[at]) != 0),
            Layout::Single | Layout::Stripes => false,
        };
        self.world.note("members: compared", 0);
        if differ { Err("members differ, although nothing is left to be settled".to_owned()) } else { Ok(()) }
    }
}

impl Clone for Stage {
    fn clone(&self) -> Stage {
        Stage {
            world: self.world.clone(),
            network: self.network.clone(),
            plan: self.plan,
            drive: self.drive.clone(),
            model: self.model.clone(),
            stale: self.stale.clone(),
            lost: self.lost.clone(),
            writer: self.writer.clone(),
            fails: self.fails.clone(),
        }
    }
}

/// A member that fails for a while.
#[derive(Debug)]
struct Failing {
    device: Box<dyn Device>,
    number: u64,
    fails: Arc<Mutex<BTreeSet<u64>>>,
    done: Vec<Completion>,
}

impl Device for Failing {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        if lock(&self.fails).contains(&self.number) {
            self.done.extend(batch.drain(..).map(|request| request.ended(Err(DeviceError::Failed))));
        } else {
            self.device.submit(batch);
        }
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        out.append(&mut self.done);
        self.device.poll(out);
        out.len() - before
    }
    fn arm(&mut self) -> bool {
        self.device.arm() && self.done.is_empty()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.device.fd()
    }
    fn due(&self) -> Option<Instant> {
        self.device.due()
    }
}

/// A device on a thread of its own: its disk gives up turns, and the node holds a lock while it hands requests over.
#[derive(Debug)]
struct Apart {
    geometry: Geometry,
    passed: Arc<Mutex<Passed>>,
    asked: Arc<Signal>,
    ended: Arc<Signal>,
}

#[derive(Debug, Default)]
struct Passed {
    requests: VecDeque<Request>,
    done: Vec<Completion>,
}

impl Apart {
    fn over(mut device: impl Device + 'static, process: &Process, clock: &Arc<dyn Clock>) -> Result<Apart, VerbsError> {
        let [asked, ended] = [Arc::new(Signal::new()?), Arc::new(Signal::new()?)];
        let apart = Apart { geometry: device.geometry(), passed: Arc::default(), asked, ended };
        let (passed, asked, ended) = (apart.passed.clone(), apart.asked.clone(), apart.ended.clone());
        let clock = clock.clone();
        process.spawn("device", move || {
            let (mut batch, mut done) = (VecDeque::new(), Vec::new());
            loop {
                asked.drain();
                batch.append(&mut lock(&passed).requests);
                device.submit(&mut batch);
                if device.poll(&mut done) > 0 {
                    lock(&passed).done.append(&mut done);
                    ended.notify();
                    continue;
                }
                if device.arm() {
                    let fds: Vec<BorrowedFd<'_>> = device.fd().into_iter().chain([asked.as_fd()]).collect();
                    if clock.wait(&fds, device.due()).is_err() {
                        return;
                    }
                }
            }
        });
        Ok(apart)
    }
}

impl Device for Apart {
    fn geometry(&self) -> Geometry {
        self.geometry
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        lock(&self.passed).requests.append(batch);
        self.asked.notify();
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.ended.drain();
        let mut passed = lock(&self.passed);
        let found = passed.done.len();
        out.append(&mut passed.done);
        found
    }
    fn arm(&mut self) -> bool {
        lock(&self.passed).done.is_empty()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ended.as_fd())
    }
}

/// Every WRITE comes once in a node's life.
#[derive(Debug)]
struct Once<D> {
    device: D,
    model: Model,
    seen: BTreeSet<(u64, u64)>,
}

impl<D: Device> Device for Once<D> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        let before = batch.len();
        let writes: Vec<Option<(u64, u64)>> = batch
            .iter()
            .map(|request| match &request.work {
                Work::Write { at, from, .. } => {
                    let number = at / SECTOR;
                    Some((number, model::version(&from[..SECTOR as usize], number).unwrap_or(u64::MAX)))
                }
                _ => None,
            })
            .collect();
        self.device.submit(batch);
        for write in writes.into_iter().take(before - batch.len()).flatten() {
            if !self.seen.insert(write) {
                self.model.fail(format!("a WRITE is carried out twice: sector and version {write:?}"));
            }
        }
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.device.poll(out)
    }
    fn arm(&mut self) -> bool {
        self.device.arm()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.device.fd()
    }
    fn due(&self) -> Option<Instant> {
        self.device.due()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Of each member, and of a volume at most.
const BYTES: u64 = 768 << 10;
const STRIPE: u64 = 8 << 10;
/// Where a member's checksums lie.
const SUMS: SumPlaces = SumPlaces { bitmap: 0, table: 8192, data: 12 << 10, bytes: BYTES };
const PATIENCE: Duration = Duration::from_secs(60);
