//! What happens in the world of a seed.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use overside_bwtree::Waits;
use overside_reference as reference;
use overside_sim::{Chance, Drive, DriveOptions, Handle, Process, World};
use overside_table::server::{DataOptions, Notices, OnFailure, Server, ServerOptions, parts};
use overside_table::wire::Durability;
use overside_verbs::Clock;
use rustix::event::EventfdFlags;

use super::check::check;
use super::client::{Caller, Load};
use super::history::History;

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
    /// Where tables survive the server.
    kept: Option<Kept>,
}

/// How tables are kept, and what may befall their server.
#[derive(Clone, Copy, Debug)]
struct Kept {
    durability: Durability,
    group: Duration,
    segment_bytes: u64,
    checkpoint_bytes: u64,
    drive: DriveOptions,
    /// Crashes, and within how many operations of the disk each comes.
    crashes: u64,
    reach: u64,
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
            calls: 10 + chance.below(40) as usize,
            page_bytes: [512, 1024, 4096, 16384][chance.below(4) as usize],
            weather,
            kill_one_in: [0, 2][chance.below(2) as usize],
            kept: (!chance.one_in(4)).then(|| Kept::new(chance)),
        }
    }
}

impl Kept {
    fn new(chance: &mut Chance) -> Kept {
        let segment_bytes = 256 << 10;
        let durability = if chance.one_in(4) { Durability::Group } else { Durability::Sync };
        // In `group` a failed sync takes what only the kernel had.
        let fails = [0, 0, 0, 150][chance.below(4) as usize];
        let drive = DriveOptions {
            capacity: if chance.one_in(6) { segment_bytes * 4 } else { 1 << 30 },
            latency_max: Duration::from_micros([20, 300, 5000, 40_000][chance.below(4) as usize]),
            stall_one_in: [0, 50][chance.below(2) as usize],
            stall: Duration::from_millis(100),
            fail_one_in: if durability == Durability::Sync { fails } else { 0 },
        };
        Kept {
            durability,
            group: Duration::from_millis(1 + chance.below(20)),
            segment_bytes,
            checkpoint_bytes: [400, 4_000, 40_000, u64::MAX][chance.below(4) as usize],
            drive,
            crashes: chance.below(5),
            reach: [60, 300, 1000][chance.below(3) as usize],
        }
    }
}

/// Runs the world of a seed; its trace's hash, or what is wrong.
pub fn run(seed: u64) -> Result<u64, String> {
    let plan = Plan::new(&mut Chance::of(seed, "plan"));
    let ended = World::run(seed, move |world| scene(world, plan)).map_err(|failed| format!("{failed}{plan:?}"))?;
    ended.value.map(|()| ended.trace.hash()).map_err(|why| format!("{why}\n{plan:?}"))
}

fn scene(world: &World, plan: Plan) -> Result<(), String> {
    world.end_within(Duration::from_secs(3600));
    let network = reference::World::under(world.clock(), plan.weather);
    let courier = network.courier().expect("the system has a descriptor");
    world.process("network").spawn("courier", move || courier.run());
    let drive = plan.kept.map(|kept| Drive::new(world, kept.drive));
    let history = History::default();
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
            serving = stage.after_crash(serving, life)?;
        }
        world.clock().sleep(Duration::from_millis(2));
    }
    let ended = stage.drive.as_ref().map(Drive::forget_plan);
    if serving.has_ended() {
        serving = stage.after_crash(serving, life + 1)?;
    }
    serving.stop()?;
    if ended.is_some() {
        // What a clean end leaves is all there.
        history.server_ended(false);
        let serving = stage.serve(LAST)?;
        stage.read_all(life + 2);
        serving.stop()?;
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
        let Plan { keys, calls, kept, .. } = self.plan;
        let load = Load { keys, calls, kept: kept.is_some(), history: self.history.clone() };
        let world = self.world.clone();
        let running = process.spawn("caller", move || run(Caller::new(&world, provider, number, load)));
        (process, running)
    }

    /// All rows are read, after a recovery.
    fn read_all(&self, life: u64) {
        let (_, running) = self.client(&format!("reader-{life}"), 100 + life as usize, Caller::read_all);
        running.join().expect("nobody kills it");
    }

    /// The next server after one that crashed or gave up, with all that it must have recovered.
    fn after_crash(&self, serving: Serving, life: u64) -> Result<Serving, String> {
        serving.complaints()?;
        serving.process.kill();
        // In `group` what somebody was shown need not survive, only what was acknowledged.
        let lost = self.plan.kept.is_some_and(|kept| kept.durability == Durability::Group);
        self.history.server_ended(lost);
        let mut serving = self.serve(life)?;
        if !serving.has_ended() {
            // A reader loses its server where that crashes soon; what it asked is then without an answer.
            let (_, running) = self.client(&format!("reader-{life}"), 100 + life as usize, Caller::read_all);
            while !running.has_ended() && !serving.has_ended() {
                self.world.clock().sleep(Duration::from_millis(2));
            }
            if !running.has_ended() {
                serving = self.after_crash(serving, life + 100)?;
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
        let mut data = None;
        if let (Some(kept), Some(drive)) = (plan.kept, &self.drive) {
            let options = DataOptions {
                durability: kept.durability,
                group: kept.group,
                checkpoint_bytes: kept.checkpoint_bytes,
                recovery_threads: plan.workers,
                ..DataOptions::new("/simulated")
            };
            data = Some(options);
            self.plan_crash(&process, drive, kept, life);
        }
        let serving = Serving::new(process.clone(), data.is_some() && self.excuses());
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

    fn plan_crash(&self, process: &Process, drive: &Drive, kept: Kept, life: u64) {
        let mut chance = self.world.chance(&format!("crash {life}"));
        if life >= kept.crashes {
            // From now on the disk is sound, so that the world comes to its end.
            drive.set(DriveOptions { fail_one_in: 0, capacity: 1 << 30, ..kept.drive });
            return;
        }
        let doomed = process.clone();
        // In `group`, a power loss takes what was acknowledged; crates/log has that in its own worlds.
        if kept.durability == Durability::Sync && chance.one_in(2) {
            let powered = drive.clone();
            process.at_kill(move || powered.lose_power());
        }
        drive.at_operation(1 + chance.below(kept.reach), move || doomed.kill());
    }
}

/// A server in a process of its own.
struct Serving {
    process: Process,
    running: Mutex<Option<Handle<Result<(), String>>>>,
    stop: Arc<OwnedFd>,
    up: Arc<AtomicBool>,
    failed: Arc<AtomicBool>,
    /// A server that gives up is excused by its disk.
    excused: bool,
    /// What its operator was told.
    complaints: Arc<Mutex<Vec<String>>>,
}

impl Serving {
    fn new(process: Process, excused: bool) -> Serving {
        let stop = rustix::event::eventfd(0, EventfdFlags::NONBLOCK).expect("the system has a descriptor");
        let (up, failed) = (Arc::default(), Arc::default());
        Serving {
            process,
            running: Mutex::new(None),
            stop: Arc::new(stop),
            up,
            failed,
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

    /// A clean end.
    fn stop(self) -> Result<(), String> {
        rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).expect("its descriptor can be written");
        self.ended()?;
        self.complaints()
    }

    fn ended(&self) -> Result<(), String> {
        let running = lock(&self.running).take();
        match running.map(Handle::join) {
            Some(Ok(Err(why))) if !self.excused => Err(format!("a server does not start: {why}")),
            _ => Ok(()),
        }
    }

    /// Only a disk that fails or is full may make it complain.
    fn complaints(&self) -> Result<(), String> {
        if self.has_ended() {
            self.ended()?;
        }
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

/// Appends to the file that was asked for, a line a call.
fn write_history(history: &History) {
    let Some(path) = std::env::var_os("OVERSIDE_SIM_HISTORY") else { return };
    let lines: Vec<String> = history.all().iter().filter(|record| !record.is_void()).map(|r| r.json() + "\n").collect();
    std::fs::write(path, lines.concat()).expect("the history's file can be written");
}

/// The life that only looks at what a clean end left.
const LAST: u64 = 1000;
