//! What happens in the world of a seed.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use overside_bwtree::Waits;
use overside_reference as reference;
use overside_sim::{Chance, Drive, DriveOptions, Handle, Process, World, seeds::Held};
use overside_table::client::ScanOptions;
use overside_table::server::{
    DataOptions, Notices, OnFailure, SavedOptions, SavedTables, Server, ServerOptions, parts,
};
use overside_table::wire::Durability;
use overside_verbs::Clock;
use rustix::event::EventfdFlags;

use super::check::check;
use super::client::{self, Caller, Load, MAIN, checked};
use super::history::{Answer, Call, Ended, History, Subject};

/// What the seed chose.
#[derive(Clone, Copy, Debug)]
struct Plan {
    workers: usize,
    clients: usize,
    keys: u64,
    calls: usize,
    page_bytes: usize,
    weather: reference::Weather,
    /// One client in so many is killed at some moment.
    kill_one_in: u64,
    /// Tables come and go often.
    restless: bool,
    /// Names of tables that come and go.
    names: u64,
    /// Most rows are there already, or not there, when a client would insert or delete them.
    refusing: bool,
    /// Where tables survive the server.
    kept: Option<Kept>,
}

impl Plan {
    /// Enters into the trace what kind of world it is.
    fn note(&self, world: &World) {
        if self.weather.delay_max > Duration::ZERO {
            world.note("network: delays", 0);
        }
        if self.weather.cut_one_in > 0 {
            world.note("network: cuts", 0);
        }
        world.note(
            match self.kept.map(|kept| kept.durability) {
                None => "server: keeps nothing",
                Some(Durability::Sync) => "server: sync",
                Some(Durability::Group) => "server: group",
                Some(Durability::None) => "server: none",
            },
            0,
        );
    }
}

/// How tables are kept, and what may befall their server.
#[derive(Clone, Copy, Debug)]
struct Kept {
    durability: Durability,
    group: Duration,
    segment_bytes: u64,
    checkpoint_bytes: u64,
    /// One call in so many asks for a checkpoint.
    checkpoint_one_in: u64,
    /// Of a checkpoint, in bytes a second.
    pace_min: u64,
    drive: DriveOptions,
    /// Servers that do not live to the end.
    ends: u64,
    /// Each crashes within so many operations of the disk,
    reach: u64,
    /// or within this time.
    lifetime: Duration,
}

impl Plan {
    fn new(chance: &mut Chance) -> Plan {
        let weather = reference::Weather {
            delay_max: Duration::from_micros([50, 500, 5000][chance.below(3) as usize]),
            cut_one_in: [0, 0, 100, 25][chance.below(4) as usize],
        };
        Plan {
            workers: 1 + chance.below(3) as usize,
            clients: 2 + chance.below(3) as usize,
            // Few keys meet often, many make pages split.
            keys: [1, 2, 3, 12][chance.below(4) as usize],
            calls: 10 + chance.below(60) as usize,
            page_bytes: [512, 1024, 4096, 16384][chance.below(4) as usize],
            weather,
            kill_one_in: [0, 2][chance.below(2) as usize],
            restless: chance.one_in(3),
            names: 1 + chance.below(2),
            refusing: chance.one_in(3),
            kept: (!chance.one_in(6)).then(|| Kept::new(chance)),
        }
    }
}

impl Kept {
    fn new(chance: &mut Chance) -> Kept {
        // A segment holds the longest batch. Small ones are changed often, and small disks are soon full.
        let tight = chance.one_in(4);
        let segment_bytes = if tight { 80 << 10 } else { [80 << 10, 256 << 10][chance.below(2) as usize] };
        let durability = match chance.below(8) {
            0..4 => Durability::Sync,
            4..6 => Durability::Group,
            _ => Durability::None,
        };
        let none = durability == Durability::None;
        let drive = DriveOptions {
            capacity: if tight { segment_bytes * (3 + chance.below(3)) } else { 1 << 30 },
            latency_max: Duration::from_micros([20, 300, 5000, 40_000][chance.below(4) as usize]),
            stall_one_in: [0, 50][chance.below(2) as usize],
            stall: Duration::from_millis(100),
            fail_one_in: [0, 0, 0, 60][chance.below(4) as usize],
        };
        Kept {
            durability,
            group: Duration::from_millis(1 + chance.below(20)),
            segment_bytes,
            checkpoint_bytes: if tight { u64::MAX } else { [400, 4_000, 40_000, u64::MAX][chance.below(4) as usize] },
            // Without a log they are all that a crash leaves.
            checkpoint_one_in: if none { 4 << chance.below(3) } else { [0, 40][chance.below(2) as usize] },
            drive,
            // A disk takes time to fill.
            ends: if tight { 1 + chance.below(3) } else { chance.below(6) },
            reach: if tight { 2000 } else { [12, 60, 120, 300, 600][chance.below(5) as usize] },
            lifetime: Duration::from_millis(if tight { 2000 } else { [20, 100, 500][chance.below(3) as usize] }),
            // Slow enough that it pauses between the pages of a small table.
            pace_min: [8 << 20, 256 << 10, 64 << 10][chance.below(3) as usize],
        }
    }

    /// Whether its disk is soon full.
    fn is_tight(self) -> bool {
        self.drive.capacity < 1 << 30
    }

    /// How far back of what was acknowledged a loss of power may reach in `group`: the time between two syncs, and what
    /// slow disks and sleeping threads add.
    fn window(&self, world: &World) -> Duration {
        let DriveOptions { latency_max, stall_one_in, stall, .. } = self.drive;
        let sync = latency_max + if stall_one_in > 0 { stall } else { Duration::ZERO };
        self.group + 2 * sync + 8 * world.nap_max() + Duration::from_millis(20)
    }
}

/// What some of many worlds must have seen, or they do not test it.
const KINDS: &[&str] = &[
    "call: insert",
    "call: upsert",
    "call: upsert-among",
    "call: update",
    "call: delete",
    "call: read",
    "call: create",
    "call: drop",
    "call: describe",
    "call: checkpoint",
    "put: batch",
    "put: overflow",
    "scan: auto",
    "scan: copy",
    "scan: gather",
    "scan: delta",
    "scan: in place, copied out",
    "scan: read in place",
    "scan: through an index",
    "scan: through an index that moves",
    "dump: read without a server",
    "index: created",
    "index: dropped",
    "client: killed",
    "client: connection lost",
    "client: refused, disk full",
    "network: delays",
    "network: cuts",
    "server: keeps nothing",
    "server: sync",
    "server: group",
    "server: none",
    "server: checkpoint complete",
    "server: killed",
    "server: killed in recovery",
    "server: power lost",
    "server: ended cleanly",
    "server: killed while it ends",
    "server: killed in the middle of a change",
    "server: gave up",
    "server: refuses damage",
    "server: unharmed by a flipped bit",
    "is struck: lists",
    "is struck: makes a folder",
    "is struck: opens",
    "is struck: renames",
    "is struck: unlinks",
    "is struck: reads",
    "is struck: writes",
    "is struck: writes through",
    "is struck: syncs",
    "is struck: allocates",
    "is struck: completes",
    "disk: power lost",
    "disk: write torn",
    "disk: bytes lost",
    "disk: names lost",
    "disk: write failed",
    "disk: sync failed",
    "disk: full",
    "disk: reordered",
    "disk: stalled",
    "disk: bit flipped",
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
    let drive = plan.kept.map(|kept| Drive::new(world, kept.drive));
    plan.note(world);
    let history = History::new(world);
    let stage = Stage { world: world.clone(), network, plan, drive, history: history.clone() };
    let mut serving = stage.serve(0)?;
    let mut clients = Vec::new();
    for number in 0..plan.clients {
        clients.push(stage.client(&format!("client-{number}"), number, Caller::run));
    }
    let doomed: Vec<Process> = clients.iter().map(|(process, _)| process.clone()).collect();
    let (inside, kill_one_in) = (world.clone(), plan.kill_one_in);
    world.process("fate").spawn("fate", move || kill_some(&inside, kill_one_in, &doomed));
    let mut life = 0;
    while clients.iter().any(|(_, running)| !running.has_ended()) {
        if serving.has_ended() {
            life += 1;
            serving = stage.next(serving, life)?;
        }
        serving.end_in_time(&stage);
        world.clock().sleep(Duration::from_millis(2));
    }
    // Nothing befalls the last servers, so that the world comes to its end.
    stage.drive.iter().for_each(Drive::forget_plan);
    while serving.has_ended() {
        life += 1;
        serving = stage.next(serving, LAST + life)?;
    }
    serving.process.stay_nowhere();
    stage.stop(serving)?;
    if stage.drive.is_some() {
        // What a clean end leaves is all there.
        let serving = stage.serve(LAST + life)?;
        stage.read_all(life + 1);
        stage.stop(serving)?;
        stage.flip_a_bit(life + 2)?;
    }
    write_history(&history);
    check(&history)
}

/// Kills some of the clients, each after a while.
fn kill_some(world: &World, one_in: u64, clients: &[Process]) {
    let mut chance = world.chance("kills");
    for process in clients {
        if chance.one_in(one_in) {
            world.clock().sleep(Duration::from_millis(chance.below(50)));
            world.note("client: killed", 0);
            process.kill();
        }
    }
}

/// What all servers and clients of a world have in common.
struct Stage {
    world: World,
    network: reference::World,
    plan: Plan,
    drive: Option<Drive>,
    history: History,
}

impl Stage {
    /// A client in a process of its own.
    fn client(&self, name: &str, number: usize, run: fn(Caller)) -> (Process, Handle<()>) {
        let process = self.world.process(name);
        let provider = Arc::new(self.network.provider());
        let doomed = provider.clone();
        process.at_kill(move || doomed.kill());
        let Plan { keys, calls, kept, page_bytes, restless, names, refusing, .. } = self.plan;
        let load = Load {
            keys,
            calls: if kept.is_some_and(Kept::is_tight) { 3 * calls } else { calls },
            kept: kept.map(|kept| kept.durability),
            inline_max: page_bytes / 4,
            checkpoint_one_in: kept.map_or(0, |kept| kept.checkpoint_one_in),
            restless,
            names,
            refusing,
            heavy: kept.is_some_and(Kept::is_tight),
            history: self.history.clone(),
        };
        let world = self.world.clone();
        let running = process.spawn("caller", move || run(Caller::new(&world, provider, number, load)));
        (process, running)
    }

    /// All rows are read, after a recovery.
    fn read_all(&self, life: u64) {
        let (_, running) = self.client(&format!("reader-{life}"), 100 + life as usize, Caller::read_all);
        running.join().expect("nobody kills it");
    }

    /// Enters what a server leaves to the next one; whether no loss of power takes anything of it any more.
    fn ended(&self, serving: &Serving) -> Result<bool, String> {
        let how = serving.how()?;
        // A clean end needs no power afterwards, and what was killed may lose it.
        serving.process.kill();
        let was_up = serving.up.load(Ordering::Relaxed);
        let lost_power = serving.lost_power.load(Ordering::Relaxed);
        let note = |what| self.world.note(what, 0);
        match how {
            How::Cleanly => note("server: ended cleanly"),
            How::GaveUp => note("server: gave up"),
            How::Killed if !was_up => note("server: killed in recovery"),
            How::Killed if serving.stopping.load(Ordering::Relaxed) => note("server: killed while it ends"),
            How::Killed => note("server: killed"),
        }
        if lost_power {
            note("server: power lost");
        }
        let Some(kept) = self.plan.kept else { return Ok(true) };
        let left = match (kept.durability, how) {
            (Durability::Sync, _) | (_, How::Cleanly) => Ended::All,
            (Durability::None, _) => Ended::Checkpoint,
            // After a failure of the disk nobody knows what it has of what was not synced.
            (Durability::Group, How::GaveUp) => Ended::Prefix,
            (Durability::Group, How::Killed) if lost_power => Ended::Prefix,
            (Durability::Group, How::Killed) => Ended::Acknowledged,
        };
        self.history.server_ended(left, was_up, kept.window(&self.world));
        Ok(lost_power || how == How::Cleanly)
    }

    /// Reads what a server left without another one, as the next one must find it.
    fn dump(&self, life: u64) -> Result<(), String> {
        let Some(drive) = self.drive.clone() else { return Ok(()) };
        drive.forget_plan();
        if !drive.files().iter().any(|(name, _)| name == "IDENTITY") {
            return Ok(());
        }
        let process = self.world.process(&format!("dump-{life}"));
        let (world, history, inside) = (self.world.clone(), self.history.clone(), process.clone());
        let Plan { keys, page_bytes, .. } = self.plan;
        let read = move || {
            let parts = parts::World {
                threads: inside.threads(),
                waits: Some(Box::leak(Box::new(TreeWaits(world.clone())))),
                page_bytes: Some(page_bytes),
                disk: Some(parts::OpenDisk::new(move |_| Ok(drive.open(&inside)))),
                ..parts::World::default()
            };
            let options = SavedOptions { memory_max: 256 << 20, ..SavedOptions::default() };
            let saved = SavedTables::open_in(&parts, world.clock(), "/simulated".as_ref(), &options);
            let saved = saved.map_err(|error| format!("a dump: {error}"))?;
            let Ok(table) = saved.table(MAIN) else { return Ok(()) };
            let mut found = BTreeMap::new();
            for block in table.rows(&ScanOptions::default()).map_err(|error| format!("a dump: {error}"))? {
                let block = block.map_err(|error| format!("a dump: {error}"))?;
                found.extend(block.rows().map(|row| checked(client::read(&row, true))));
            }
            let id = table.described().info().id;
            let reads: Vec<_> = (0..keys).map(|key| (Subject::Row(id, key), Call::Read)).collect();
            let begun = history.begin(300 + life as usize, &reads);
            let answer = |key| Answer(found.contains_key(&key), found.get(&key).copied());
            history.end(&begun, &(0..keys).map(answer).collect::<Vec<_>>());
            history.note("dump: read without a server");
            Ok(())
        };
        let read = process.spawn("main", read).join().expect("nobody kills it");
        if self.excuses() { Ok(()) } else { read }
    }

    /// Ends a server cleanly. Nothing excuses it any more.
    fn stop(&self, serving: Serving) -> Result<(), String> {
        serving.begin_stop(&self.history);
        while !serving.has_ended() {
            self.world.clock().sleep(Duration::from_millis(2));
        }
        self.ended(&serving).map(drop)
    }

    /// A bit flips in what a clean end left: the next server refuses it, or has all rows nevertheless.
    fn flip_a_bit(&self, life: u64) -> Result<(), String> {
        let Some(drive) = &self.drive else { return Ok(()) };
        let mut chance = self.world.chance("flip");
        let files: Vec<(String, u64)> = drive.files().into_iter().filter(|(_, len)| *len > 0).collect();
        let Some((name, len)) = files.get(chance.below(files.len().max(1) as u64) as usize) else { return Ok(()) };
        // Beginnings have more that matters.
        let at = if chance.one_in(2) { chance.below(*len) } else { chance.below((*len).min(8192)) };
        drive.flip(name, at, chance.below(8) as u32);
        let serving = self.serve(LAST + life)?;
        if serving.has_ended() {
            self.world.note("server: refuses damage", 0);
            return Ok(());
        }
        self.world.note("server: unharmed by a flipped bit", 0);
        self.read_all(life);
        serving.begin_stop(&self.history);
        Ok(())
    }

    /// The next server after one that has ended, with all that it must have recovered.
    fn next(&self, serving: Serving, life: u64) -> Result<Serving, String> {
        if self.ended(&serving)? {
            self.dump(life)?;
        }
        let mut serving = self.serve(life)?;
        if !serving.has_ended() {
            // A reader loses its server where that crashes soon; what it asked is then without an answer.
            let (_, running) = self.client(&format!("reader-{life}"), 100 + life as usize, Caller::read_all);
            while !running.has_ended() && !serving.has_ended() {
                self.world.clock().sleep(Duration::from_millis(2));
                serving.end_in_time(self);
            }
            if !running.has_ended() {
                serving = self.next(serving, life + LAST)?;
                running.join().expect("nobody kills it");
            }
        }
        Ok(serving)
    }

    /// A server, which listens when this returns, or has ended.
    fn serve(&self, life: u64) -> Result<Serving, String> {
        let Stage { world, network, plan, .. } = self;
        let process = world.process(&format!("server-{life}"));
        let provider = Arc::new(network.provider());
        let doomed = provider.clone();
        process.at_kill(move || doomed.kill());
        let (mut data, mut fate) = (None, Fate::default());
        if let (Some(kept), Some(drive)) = (plan.kept, &self.drive) {
            let options = DataOptions {
                durability: kept.durability,
                group: kept.group,
                checkpoint_bytes: kept.checkpoint_bytes,
                recovery_threads: plan.workers,
                ..DataOptions::new("/simulated")
            };
            data = Some(options);
            self.plan_end(&mut fate, &process, drive, kept, life);
        }
        let serving = Serving::new(process.clone(), data.is_some() && self.excuses(), fate);
        let (bugs, failed, told, giving_up) =
            (serving.complaints.clone(), serving.failed.clone(), serving.complaints.clone(), process.clone());
        let drive = self.drive.clone();
        let inside = process.clone();
        let options = ServerOptions {
            workers: plan.workers,
            memory_max: 64 << 20,
            segment_bytes: 4 << 20,
            notices: Some(Notices::new(move |line| {
                if line.contains("a bug") {
                    push(&bugs, line);
                }
            })),
            // As the command does: the process ends.
            on_failure: Some(OnFailure::new(move |line| {
                push(&told, line);
                failed.store(true, Ordering::Relaxed);
                giving_up.kill();
            })),
            data,
            world: parts::World {
                threads: process.threads(),
                waits: Some(Box::leak(Box::new(TreeWaits(world.clone())))),
                page_bytes: Some(plan.page_bytes),
                disk: drive.map(|drive| parts::OpenDisk::new(move |_| Ok(drive.open(&inside)))),
                log_segment_bytes: plan.kept.map(|kept| kept.segment_bytes),
                // So short that a recovery deals them out.
                checkpoint_part_bytes: Some(4096),
                pace_min: plan.kept.map(|kept| kept.pace_min),
            },
            ..ServerOptions::default()
        };
        serving.start(world, provider, options);
        Ok(serving)
    }

    /// Whether the disk may fail or be full, which excuses a server that gives up.
    fn excuses(&self) -> bool {
        self.drive.as_ref().is_some_and(|drive| {
            let options = drive.options();
            options.fail_one_in > 0 || options.capacity < 1 << 30
        })
    }

    fn plan_end(&self, fate: &mut Fate, process: &Process, drive: &Drive, kept: Kept, life: u64) {
        let mut chance = self.world.chance(&format!("end {life}"));
        drive.forget_plan();
        if life >= kept.ends {
            // From now on the disk is sound, so that the world comes to its end.
            drive.set(DriveOptions { fail_one_in: 0, capacity: 1 << 30, ..kept.drive });
            return;
        }
        if chance.one_in(2) {
            let (powered, lost) = (drive.clone(), fate.lost_power.clone());
            process.at_kill(move || {
                lost.store(true, Ordering::Relaxed);
                powered.lose_power();
            });
        }
        let within = self.world.passed() + kept.lifetime.mul_f64(chance.below(1000) as f64 / 1000.0);
        let way = chance.below(12);
        if way >= 8 {
            // A change sleeps before its record is in the log, others go on, and then comes the crash.
            if self.plan.restless && chance.one_in(2) {
                process.stay_at("dropped", 1 + chance.below(5));
            } else {
                process.stay_at("installed", 1 + chance.below(12));
            }
            fate.stays_for = Some(Duration::from_millis([5, 50, 200][chance.below(3) as usize]));
            fate.killed_at = Some(within + Duration::from_secs(1));
        } else if way < 3 {
            fate.stops_at = Some(within);
        } else if way < 5 || (way == 5 && kept.durability == Durability::None) {
            // Where little goes to the disk.
            fate.killed_at = Some(within);
        }
        // A clean end may be cut off, too.
        if fate.killed_at.is_none() && way > 0 {
            let doomed = process.clone();
            // What is done rarely is struck as often as what is done all the time.
            if life == 0 && chance.one_in(4) {
                // Only the first server makes them.
                drive.at_operation_of("makes a folder", 1 + chance.below(3), move || doomed.kill());
            } else if chance.one_in(2) {
                let kind = Drive::KINDS[chance.below(Drive::KINDS.len() as u64) as usize];
                drive.at_operation_of(kind, 1 + chance.below(6), move || doomed.kill());
            } else {
                drive.at_operation(1 + chance.below(kept.reach), move || doomed.kill());
            }
        }
    }
}

/// What is planned for a server.
#[derive(Default)]
struct Fate {
    stops_at: Option<Duration>,
    killed_at: Option<Duration>,
    /// It is killed so long after one of its threads came to where it stays.
    stays_for: Option<Duration>,
    lost_power: Arc<AtomicBool>,
}

/// How a server ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Cleanly,
    Killed,
    /// Its disk failed.
    GaveUp,
}

/// A server in a process of its own.
struct Serving {
    process: Process,
    running: Mutex<Option<Handle<Result<(), String>>>>,
    stop: Arc<OwnedFd>,
    up: Arc<AtomicBool>,
    failed: Arc<AtomicBool>,
    /// Its clean end has begun.
    stopping: AtomicBool,
    stops_at: Option<Duration>,
    killed_at: Option<Duration>,
    stays_for: Option<Duration>,
    lost_power: Arc<AtomicBool>,
    /// A server that gives up is excused by its disk.
    excused: bool,
    /// What its operator was told.
    complaints: Arc<Mutex<Vec<String>>>,
}

impl Serving {
    fn new(process: Process, excused: bool, fate: Fate) -> Serving {
        let Fate { stops_at, killed_at, stays_for, lost_power } = fate;
        let stop = rustix::event::eventfd(0, EventfdFlags::NONBLOCK).expect("the system has a descriptor");
        let (up, failed) = (Arc::default(), Arc::default());
        Serving {
            process,
            running: Mutex::new(None),
            stop: Arc::new(stop),
            up,
            failed,
            stopping: AtomicBool::new(false),
            stops_at,
            killed_at,
            stays_for,
            lost_power,
            excused,
            complaints: Arc::default(),
        }
    }

    /// Starts it, and waits until it listens or has ended.
    fn start(&self, world: &World, provider: Arc<reference::Reference>, options: ServerOptions) {
        let (stopped, clock, up) = (self.stop.clone(), world.clock(), self.up.clone());
        let running = self.process.spawn("main", move || {
            let server = Server::start(provider, &["tables"], options).map_err(|error| error.to_string())?;
            up.store(true, Ordering::Relaxed);
            clock.wait(&[stopped.as_fd()], None).map_err(|error| error.to_string())?;
            server.shutdown();
            Ok(())
        });
        *lock(&self.running) = Some(running);
        while !self.up.load(Ordering::Relaxed) && !self.has_ended() {
            world.clock().sleep(Duration::from_millis(1));
        }
    }

    fn has_ended(&self) -> bool {
        lock(&self.running).as_ref().is_none_or(Handle::has_ended)
    }

    /// Asks for a clean end, which writes a checkpoint where nothing else is kept.
    fn begin_stop(&self, history: &History) {
        if !self.stopping.swap(true, Ordering::Relaxed) {
            history.checkpoint_asked();
            rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).expect("its descriptor can be written");
        }
    }

    /// Ends it when its time has come.
    fn end_in_time(&self, stage: &Stage) {
        let now = stage.world.passed();
        let stays = self.process.stays_since().zip(self.stays_for).map(|(since, time)| since + time);
        if let Some(at) = stays {
            if at <= now {
                stage.world.note("server: killed in the middle of a change", 0);
                self.process.kill();
            }
        } else if self.killed_at.is_some_and(|at| at <= now) {
            self.process.kill();
        } else if self.stops_at.is_some_and(|at| at <= now) {
            self.begin_stop(&stage.history);
        }
    }

    /// How it ended. Only a disk that fails or is full may make it complain.
    fn how(&self) -> Result<How, String> {
        self.complaints()?;
        let running = lock(&self.running).take();
        match running.map(Handle::join) {
            Some(Ok(Err(why))) if !self.excused => Err(format!("a server does not start: {why}")),
            Some(Ok(Err(_))) => Ok(How::GaveUp),
            _ if self.failed.load(Ordering::Relaxed) => Ok(How::GaveUp),
            Some(Ok(Ok(()))) => Ok(How::Cleanly),
            Some(Err(_)) | None => Ok(How::Killed),
        }
    }

    fn complaints(&self) -> Result<(), String> {
        let complaints = lock(&self.complaints);
        let bugs: BTreeSet<&String> =
            complaints.iter().filter(|line| line.contains("a bug") || !self.excused).collect();
        if bugs.is_empty() { Ok(()) } else { Err(format!("the operator was told: {bugs:?}")) }
    }
}

fn push(lines: &Mutex<Vec<String>>, line: &str) {
    lock(lines).push(line.to_owned());
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// How the server's trees tell time and wait.
#[derive(Debug)]
struct TreeWaits(World);

impl Waits for TreeWaits {
    fn now(&self) -> Duration {
        self.0.passed()
    }

    fn pause(&self, times: usize) {
        let clock: Arc<dyn Clock> = self.0.clock();
        clock.sleep(Duration::from_micros(1 << times.min(15)));
    }
}

/// Writes the file that was asked for, a line a call.
fn write_history(history: &History) {
    let Ok(path) = std::env::var("OVERSIDE_SIM_HISTORY") else { return };
    let path = path.replace("{seed}", &history.seed().to_string());
    std::fs::write(path, history.json()).expect("the history's file can be written");
}

/// Lives from this one on come to their end.
const LAST: u64 = 1000;
