//! What happens in the world of a seed: servers come one after another, each ends by a crash, a failure
//! of its disk, or cleanly, and each begins with what recovery finds.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use overside_disk::{BLOCK_BYTES, Disk};
use overside_log::{Change, Directory, Durability, Mode, Options, Refusal};
use overside_sim::{Chance, Drive, DriveOptions, Process, World, seeds::Held};

use super::book::{Book, Bytes, Found, Kept, Recovered};
use super::server::{Rows, Server, from_page};

/// What the seed chose.
#[derive(Clone, Copy, Debug)]
struct Plan {
    log: Options,
    drive: DriveOptions,
    writers: usize,
    keys: u64,
    requests: usize,
    lives: u64,
    /// Time between two checkpoints.
    checkpoints: Option<Duration>,
}

impl Plan {
    fn new(chance: &mut Chance) -> Plan {
        let block = BLOCK_BYTES as u64;
        let durability = match chance.below(3) {
            0 => Durability::Group { every: Duration::from_millis(1 + chance.below(20)) },
            _ => Durability::Sync,
        };
        let log = Options {
            durability,
            segment_bytes: (8 + chance.below(10)) * block,
            spares: 1 + chance.below(2) as usize,
            spares_max: 1 + chance.below(3) as usize,
            group_bytes: [block, 2 * block, 1 << 20][chance.below(3) as usize],
            gather_bytes: [1, block, 64 << 10][chance.below(3) as usize],
            writes_max: 1 + chance.below(4) as usize,
            quiet: Duration::from_millis([1, 20, 200][chance.below(3) as usize]),
            retry: Duration::from_millis(50),
            deadline: Duration::from_secs(60),
            part_bytes: BLOCK_BYTES,
        };
        let drive = DriveOptions {
            capacity: if chance.one_in(4) { log.segment_bytes * (3 + chance.below(4)) } else { 1 << 30 },
            latency_max: Duration::from_micros([20, 300, 5000][chance.below(3) as usize]),
            stall_one_in: [0, 50][chance.below(2) as usize],
            stall: Duration::from_millis(50),
            fail_one_in: [0, 0, 60][chance.below(3) as usize],
        };
        Plan {
            log,
            drive,
            writers: 1 + chance.below(4) as usize,
            keys: 1 + chance.below(8),
            requests: 4 + chance.below(20) as usize,
            lives: 1 + chance.below(5),
            checkpoints: [None, Some(5), Some(40)][chance.below(3) as usize].map(Duration::from_millis),
        }
    }
}

/// How a server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Clean,
    Kill,
    Power,
}

/// What some of many worlds must have seen, or they do not test it.
const KINDS: &[&str] = &[
    "server: sync",
    "server: group",
    "server: ended cleanly",
    "server: killed",
    "server: ended in recovery",
    "server: lost power",
    "server: refuses damage",
    "server: unharmed by a flipped bit",
    "client: refused, disk full",
    "checkpoint: complete",
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
    let ended = World::run(seed, scene).map_err(|failed| format!("{failed}{plan:?}"))?;
    let trace = ended.trace;
    let held = Held::of(&trace, KINDS);
    ended.value.map(|()| held).map_err(|why| format!("{why}\n{plan:?}"))
}

fn scene(world: &World) -> Result<(), String> {
    world.end_within(Duration::from_secs(4 * 3600));
    let mut chance = world.chance("plan");
    let plan = Plan::new(&mut chance);
    let drive = Drive::new(world, plan.drive);
    let book = Arc::new(Mutex::new(Book::default()));
    let mut kept = Kept::Acknowledged;
    world.note(if plan.log.durability == Durability::Sync { "server: sync" } else { "server: group" }, 0);
    for life in 0..=plan.lives {
        let last = life == plan.lives;
        if last {
            drive.set(DriveOptions { capacity: 1 << 30, fail_one_in: 0, ..plan.drive });
        }
        let end = match chance.below(4) {
            _ if last => End::Clean,
            0 => End::Clean,
            1 => End::Kill,
            _ => End::Power,
        };
        let reach = [40, 400, 400][chance.below(3) as usize];
        let crash_at = 1 + chance.below(reach);
        let lived = Life { world: world.clone(), plan, drive: drive.clone(), book: book.clone(), kept };
        let ended = lived.run(life, end, crash_at).map_err(|why| format!("life {life}: {why}"))?;
        let ending = match ended {
            Ended::Cleanly => "server: ended cleanly",
            Ended::Killed => "server: killed",
            Ended::Lost => "server: lost power",
            Ended::InRecovery => "server: ended in recovery",
        };
        world.note(ending, 0);
        kept = match (ended, plan.log.durability) {
            (Ended::Cleanly, _) => Kept::Acknowledged,
            // The page cache is gone.
            (Ended::Lost, Durability::Group { .. }) => Kept::Prefix,
            // Where recovery was cut off, what the crash before it left is still as it was.
            (Ended::InRecovery, _) if kept == Kept::Prefix => Kept::Prefix,
            _ => Kept::Acknowledged,
        };
        if ended == Ended::Cleanly && chance.one_in(3) {
            flip(world, &drive, &plan, &book, &mut chance)?;
        }
    }
    Ok(())
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Cleanly,
    /// Killed, or by a failure of its disk: the kernel lives on.
    Killed,
    /// The kernel's memory is lost, or was not what the disk has.
    Lost,
    /// Before it had recovered.
    InRecovery,
}

/// One server.
struct Life {
    world: World,
    plan: Plan,
    drive: Drive,
    book: Arc<Mutex<Book>>,
    kept: Kept,
}

/// What a server did, as far as it came.
type Outcome = Result<bool, String>;

impl Life {
    fn run(self, life: u64, end: End, crash_at: u64) -> Result<Ended, String> {
        let process = self.world.process(&format!("server-{life}"));
        if end != End::Clean {
            let (doomed, drive) = (process.clone(), self.drive.clone());
            if end == End::Power {
                process.at_kill(move || drive.lose_power());
            }
            self.drive.at_operation(crash_at, move || doomed.kill());
        }
        let recovered = Arc::new(Mutex::new(false));
        let drive = self.drive.clone();
        let done = recovered.clone();
        let inner = process.clone();
        let outcome = process.spawn("main", move || self.serve(&inner, &done)).join();
        drive.forget_plan();
        let recovered = *recovered.lock().unwrap_or_else(|e| e.into_inner());
        match outcome {
            Ok(outcome) => {
                let clean = outcome?;
                process.kill();
                // After a failure of the disk nobody knows what it has of what was not synced.
                Ok(if clean { Ended::Cleanly } else { Ended::Lost })
            }
            Err(_) if end == End::Power => Ok(Ended::Lost),
            Err(_) if !recovered => Ok(Ended::InRecovery),
            Err(_) => Ok(Ended::Killed),
        }
    }

    /// Recovers, checks, and serves; whether it ended cleanly.
    fn serve(self, process: &Process, recovered: &Arc<Mutex<bool>>) -> Outcome {
        let disk = self.drive.open(process);
        let mut directory = match open(&self.world, disk, &self.plan) {
            Ok(directory) => directory,
            Err(refusal) => return self.refused(&refusal),
        };
        let found = match recover(&mut directory) {
            Ok(found) => found,
            Err(refusal) => return self.refused(&refusal),
        };
        self.book.lock().unwrap_or_else(|e| e.into_inner()).check(&found, self.kept)?;
        let (mut log, appender) = match directory.start() {
            Ok(started) => started,
            Err(refusal) => return self.refused(&refusal),
        };
        let checkpoints = match log.checkpoints() {
            Ok(checkpoints) => checkpoints,
            Err(source) => return self.refused(&Refusal::Io { what: "checkpoints".into(), source }),
        };
        self.book.lock().unwrap_or_else(|e| e.into_inner()).forget_lost(&found);
        *recovered.lock().unwrap_or_else(|e| e.into_inner()) = true;
        let rows = Rows { rows: found.state, next: found.next_stamp, ..Rows::default() };
        let server = Arc::new(Server::new(&self.world, rows, self.book.clone(), appender));
        let stepping = server.clone();
        let stepper = process.spawn("log", move || stepping.step_log(log));
        let Plan { writers, keys, requests, checkpoints: every, .. } = self.plan;
        let checkpointing = server.clone();
        let checkpointer = every.map(|every| {
            process.spawn("checkpoints", move || checkpointing.write_checkpoints(checkpoints, keys, every))
        });
        let mut threads = Vec::new();
        for number in 0..writers {
            let server = server.clone();
            threads.push(process.spawn(&format!("writer-{number}"), move || server.write(number, keys, requests)));
        }
        for thread in threads {
            thread.join().map_err(|_| "a writer was killed alone".to_owned())?;
        }
        server.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = checkpointer {
            thread.join().map_err(|_| "the checkpoints' thread was killed alone".to_owned())?;
        }
        server.done.store(true, Ordering::Relaxed);
        server.wake_log();
        stepper.join().map_err(|_| "the log's thread was killed alone".to_owned())?;
        // A segment that could not be made, by a failure, counts as one that had no room.
        let drive = self.drive.options();
        let full = drive.capacity < 1 << 30 || drive.fail_one_in > 0;
        if server.was_full.load(Ordering::Relaxed) && !full {
            return Err("the disk was called full and was not".into());
        }
        Ok(!server.failed.load(Ordering::Relaxed))
    }

    /// Only a disk that fails or is full excuses a refusal: nothing was damaged.
    fn refused(&self, refusal: &Refusal) -> Outcome {
        let options = self.drive.options();
        match refusal {
            Refusal::Io { .. } if options.fail_one_in > 0 || options.capacity < 1 << 30 => Ok(false),
            refusal => Err(format!("refused without damage: {refusal}")),
        }
    }
}

fn open(world: &World, disk: Box<dyn Disk>, plan: &Plan) -> Result<Directory<Box<dyn Disk>>, Refusal> {
    let mut fresh = [0; 16];
    world.clock().fill(&mut fresh).expect("a world has chance");
    Directory::open(disk, fresh, plan.log, Mode::Serve)
}

/// The checkpoint, the records that come after it, and what they come to.
fn recover(directory: &mut Directory<Box<dyn Disk>>) -> Result<Recovered, Refusal> {
    let mut found = Recovered::default();
    if let Some(manifest) = directory.checkpoint()? {
        for table in &manifest.tables {
            let mut pages = directory.pages(table)?;
            for part in 0..pages.parts().len() {
                pages.read(part, &mut |page| {
                    found.state.append(&mut from_page(page.base, &page.extents).ok_or("a page that nobody wrote")?);
                    Ok(())
                })?;
            }
        }
    }
    let replayed = directory.replay(&mut |record| {
        let (key, value) = match record.change {
            Change::Put { key, value } => (key, Some(Bytes(value.to_vec()))),
            Change::Delete { key } => (key, None),
            other => return Err(format!("{other:?} was never written")),
        };
        let key = key.try_into().map(u64::from_be_bytes).map_err(|_| "a key of another length".to_owned())?;
        // A checkpoint's page may be newer than the floor that it is replayed from.
        if found.state.get(&key).is_none_or(|(stamp, _)| *stamp <= record.stamp) {
            found.state.insert(key, (record.stamp, value.clone()));
        }
        found.records.push(Found { stamp: record.stamp, key, value });
        Ok(())
    })?;
    found.next_stamp = replayed.next_stamp;
    Ok(found)
}

/// Bits flip in what a clean end left behind: recovery refuses, or finds all nevertheless.
fn flip(world: &World, drive: &Drive, plan: &Plan, book: &Arc<Mutex<Book>>, chance: &mut Chance) -> Result<(), String> {
    let files: Vec<(String, u64)> = drive.files().into_iter().filter(|(_, len)| *len > 0).collect();
    if files.is_empty() {
        return Ok(());
    }
    let (name, len) = files[chance.below(files.len() as u64) as usize].clone();
    let (at, bit) = (chance.below(len), chance.below(8) as u32);
    drive.flip(&name, at, bit);
    let process = world.process("reader");
    let (reader, inside, plan, drive_inside, book) =
        (process.clone(), world.clone(), *plan, drive.clone(), book.clone());
    let read = process.spawn("reader", move || {
        let disk = drive_inside.open(&reader);
        let read = open(&inside, disk, &plan).and_then(|mut directory| recover(&mut directory));
        match read {
            Ok(found) => {
                inside.note("server: unharmed by a flipped bit", 0);
                book.lock().unwrap_or_else(|e| e.into_inner()).check(&found, Kept::Acknowledged)
            }
            Err(_) => {
                inside.note("server: refuses damage", 0);
                Ok(())
            }
        }
    });
    let checked = read.join().map_err(|_| "the reader was killed".to_owned())?;
    process.kill();
    drive.flip(&name, at, bit);
    checked.map_err(|why| format!("after bit {bit} of byte {at} of {name} flipped: {why}"))
}
