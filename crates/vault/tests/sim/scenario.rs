//! What happens in the world of a seed.

mod checks;
mod devices;
mod node;

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use overside_reference as reference;
use overside_sim::{Chance, Drive, DriveOptions, Handle, Process, World, seeds::Held};
use overside_vault::server::{LastWriter, Writes};
use overside_volume::wire::Role;
use overside_volume::{LostRange, SumPlaces};

use super::client::{self, Client, Load};
use super::model::{Model, SECTOR};

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

/// What some of many worlds must have seen, or they do not test it.
const KINDS: &[&str] = &[
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
    let held = Held::of(&trace, KINDS);
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Of each member, and of a volume at most.
const BYTES: u64 = 768 << 10;
const STRIPE: u64 = 8 << 10;
/// Where a member's checksums lie.
const SUMS: SumPlaces = SumPlaces { bitmap: 0, table: 8192, data: 12 << 10, bytes: BYTES };
const PATIENCE: Duration = Duration::from_secs(60);
