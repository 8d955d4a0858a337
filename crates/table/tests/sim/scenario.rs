//! What happens in the world of a seed.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use overside_bwtree::Waits;
use overside_reference as reference;
use overside_sim::{Handle, Process, World};
use overside_table::server::{Notices, OnFailure, Server, ServerOptions, parts};
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
}

impl Plan {
    fn new(world: &World) -> Plan {
        let mut chance = world.chance("plan");
        let weather = reference::Weather {
            delay_max: Duration::from_micros([50, 500, 5000][chance.below(3) as usize]),
            cut_one_in: [0, 0, 100, 25][chance.below(4) as usize],
        };
        Plan {
            workers: 1 + chance.below(3) as usize,
            clients: 2 + chance.below(3) as usize,
            keys: 2 + chance.below(10),
            calls: 10 + chance.below(40) as usize,
            page_bytes: [512, 1024, 4096, 16384][chance.below(4) as usize],
            weather,
            kill_one_in: [0, 2][chance.below(2) as usize],
        }
    }
}

/// Runs the world of a seed; its trace's hash, or what is wrong.
pub fn run(seed: u64) -> Result<u64, String> {
    let ended = World::run(seed, scene).map_err(|failed| failed.to_string())?;
    ended.value.map(|()| ended.trace.hash()).map_err(|why| why.to_string())
}

fn scene(world: &World) -> Result<(), String> {
    world.end_within(Duration::from_secs(3600));
    let plan = Plan::new(world);
    let network = reference::World::under(world.clock(), plan.weather);
    let courier = network.courier().expect("the system has a descriptor");
    world.process("network").spawn("courier", move || courier.run());
    let server = Serving::start(world, &network, &plan);
    let history = History::default();
    let mut clients = Vec::new();
    for number in 0..plan.clients {
        let process = world.process(&format!("client-{number}"));
        let provider = Arc::new(network.provider());
        let (doomed, load) = (provider.clone(), Load { keys: plan.keys, calls: plan.calls, history: history.clone() });
        process.at_kill(move || doomed.kill());
        let inside = world.clone();
        let running = process.spawn("caller", move || Caller::new(&inside, provider, number, load).run());
        clients.push((process, running));
    }
    kill_some(world, &plan, &clients);
    for (_, running) in clients {
        let _killed_or_done = running.join();
    }
    server.stop();
    write_history(&history);
    check(&history)
}

/// Kills some of the clients, each after a while.
fn kill_some(world: &World, plan: &Plan, clients: &[(Process, Handle<()>)]) {
    let mut chance = world.chance("kills");
    for (process, _) in clients {
        if chance.one_in(plan.kill_one_in) {
            world.clock().sleep(Duration::from_millis(chance.below(50)));
            process.kill();
        }
    }
}

/// A server in a process of its own.
struct Serving {
    running: Handle<()>,
    stop: Arc<OwnedFd>,
    /// What its operator was told that must not be.
    complaints: Arc<Mutex<Vec<String>>>,
}

impl Serving {
    fn start(world: &World, network: &reference::World, plan: &Plan) -> Serving {
        let process = world.process("server");
        let provider = Arc::new(network.provider());
        let doomed = provider.clone();
        process.at_kill(move || doomed.kill());
        let complaints = Arc::new(Mutex::new(Vec::new()));
        let (told, failed) = (complaints.clone(), complaints.clone());
        let options = ServerOptions {
            workers: plan.workers,
            memory_max: 64 << 20,
            segment_bytes: 4 << 20,
            notices: Some(Notices::new(move |line| {
                if line.contains("a bug") {
                    told.lock().unwrap_or_else(|e| e.into_inner()).push(line.to_owned());
                }
            })),
            on_failure: Some(OnFailure::new(move |line| {
                failed.lock().unwrap_or_else(|e| e.into_inner()).push(line.to_owned());
            })),
            world: parts::World {
                threads: process.threads(),
                waits: Some(Box::leak(Box::new(TreeWaits(world.clone())))),
                page_bytes: Some(plan.page_bytes),
                ..parts::World::default()
            },
            ..ServerOptions::default()
        };
        let stop = Arc::new(rustix::event::eventfd(0, EventfdFlags::NONBLOCK).expect("the system has a descriptor"));
        let (stopped, clock) = (stop.clone(), world.clock());
        let (ready, listening) = (Arc::new(Mutex::new(false)), world.clock());
        let up = ready.clone();
        let running = process.spawn("main", move || {
            let server = Server::start(provider, &["tables"], options).expect("the server starts");
            *up.lock().unwrap_or_else(|e| e.into_inner()) = true;
            clock.wait(&[stopped.as_fd()], None).expect("the world waits");
            server.shutdown();
        });
        while !*ready.lock().unwrap_or_else(|e| e.into_inner()) {
            listening.sleep(Duration::from_millis(1));
        }
        Serving { running, stop, complaints }
    }

    /// A clean end.
    fn stop(self) {
        rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).expect("its descriptor can be written");
        self.running.join().expect("nobody killed it");
        let complaints = self.complaints.lock().unwrap_or_else(|e| e.into_inner());
        assert!(complaints.is_empty(), "{complaints:?}");
    }
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
