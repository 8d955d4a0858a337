//! `oltp`: a database on an attached volume beside the same on a disk of its own (figures 7 and 8 of vi-attached-storage).

pub(super) mod place;
mod tpcc;

use super::{
    Setting,
    charts::bars,
    durability::folder,
    figure::{Figure, Table, shown},
    sockets::{
        keeper::{Keeper, Order, TICK_NS, reaped, tree},
        postgresql::{account, programs},
    },
};
use crate::{
    measure::{Ratio, Split, Spread, alternate},
    svg::Group,
};
use anyhow::{Context, Result, ensure};
use overside::volume::wire::Counts;
use place::{ControlGroup, Mounted, program_at};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};
use tpcc::{Done, Tpcc};

pub(super) fn measure(setting: &Setting<'_>) -> Result<Figure> {
    place::check()?;
    let programs = programs().context("PostgreSQL is not installed; Debian's package postgresql has it")?;
    let user = account("postgres").context("there is no user postgres, and PostgreSQL does not run as root")?;
    let parent = folder::parent(setting.dir)?;
    let warehouses = if setting.quick { 2 } else { 8 };
    let room = folder::room(&parent, ROOM + u64::from(warehouses) * ROOM_EACH)?;
    setting.progress.tell(&format!("oltp: {room}"));
    let mut keeper = Keeper::start_in(&parent)?;
    let tpcc = Tpcc::new(&keeper, programs, user, warehouses)?;
    let data = keeper.folder().join("tpcc/data");
    tpcc.load(&mut keeper, &data, PORTS[0], |done| {
        setting.progress.part("oltp: warehouses loaded", done as usize, warehouses as usize);
    })?;
    let bytes = folder_bytes(&data)?;
    let mut ground = Ground::start(&mut keeper, &tpcc, &data)?;
    fs::remove_dir_all(&data)?;
    let mut figure = Figure::new("oltp", "shm", "TPC-C on an Attached Volume");
    rounds(setting, &mut figure, &mut keeper, &tpcc, &mut ground)?;
    for port in PORTS {
        tpcc.check(&mut keeper, port)?;
    }
    ground.stop();
    figure.count("database, bytes over memory and cache", 0, None, bytes as f64 / (MEMORY + CACHE) as f64);
    tell(&mut figure, warehouses, bytes);
    Ok(figure)
}

/// The three programs of a side on a volume, and the one of the other.
struct Ground {
    node: u32,
    attached: u32,
    /// PostgreSQL of both.
    databases: [u32; 2],
    address: String,
    disks: Disks,
}

/// Whose disks are how many.
struct Disks {
    local: (ControlGroup, String),
    node: (ControlGroup, String),
}

impl Ground {
    fn start(keeper: &mut Keeper, tpcc: &Tpcc, data: &Path) -> Result<Ground> {
        let folder = keeper.folder().to_owned();
        let own = env::current_exe().context("this program does not know where it lies")?.display().to_string();
        let size = (folder_bytes(data)? * 2).next_multiple_of(64 << 20);
        let image = |keeper: &mut Keeper, name: &str, bytes: u64| -> Result<PathBuf> {
            let file = folder.join(name);
            File::create(&file)?.set_len(bytes)?;
            format(keeper, &file)?;
            Ok(file)
        };
        // The node's disk holds checksums and maps as well.
        let disk = image(keeper, "node.img", size + size / 8 + (128 << 20))?;
        let (group, log, at) = (ControlGroup::new(keeper, "node")?, folder.join("node.log"), folder.join("node"));
        let address = format!("shm:overside-oltp-{}", std::process::id());
        let words = ["/bin/sh", "-c", NODE, &own, &size.to_string(), &at.display().to_string(), &address];
        let runs = words.iter().map(|word| (*word).to_owned()).chain([CACHE.to_string()]).collect();
        let on = Mounted { from: &disk, at: &at, copied: None, group: &group, runs, log: &log, stops: Signal::TERM };
        let node = on.start(keeper)?;
        let list = ["volume", "list", &address].map(str::to_owned).to_vec();
        keeper
            .until_it_succeeds(&Order { program: own.clone().into(), arguments: list, ..Order::default() })
            .with_context(|| words_of(&log))?;
        let node_disk = (group, Mounted::device(&log).context("the node's disk has no number")?);

        let (file, log) = (folder.join("volume.img"), folder.join("attached.log"));
        let volume = format!("{address}/{VOLUME}");
        let words = ["volume", "attach", &volume, "--fuse", &file.display().to_string(), "--loop", "--json"];
        let stays = Some((log.clone(), Signal::TERM.as_raw()));
        let arguments = words.map(str::to_owned).to_vec();
        let attached = keeper.serve(&Order { program: own.into(), arguments, stays, ..Order::default() })?;
        let device = until(|| device_of(&log)).with_context(|| words_of(&log))?;
        format(keeper, &device)?;

        let disk = image(keeper, "local.img", size)?;
        let mut started = Vec::new();
        for ((name, port), from) in ["local", "attached"].into_iter().zip(PORTS).zip([&disk, &device]) {
            let group = ControlGroup::new(keeper, name)?;
            group.memory(MEMORY)?;
            let (at, log) = (folder.join(format!("{name}-mount")), folder.join(format!("{name}.log")));
            let runs = tpcc.server(&at.join("data"), port);
            let on = Mounted { from, at: &at, copied: Some(data), group: &group, runs, log: &log, stops: Signal::INT };
            let process = on.start(keeper)?;
            tpcc.is_there(keeper, port).with_context(|| words_of(&log))?;
            let device = Mounted::device(&log).context("the database's disk has no number")?;
            started.push((process, group, device));
        }
        let [(local, group, number), (other, ..)] =
            <[_; 2]>::try_from(started).ok().context("a database was not started")?;
        let disks = Disks { local: (group, number), node: node_disk };
        Ok(Ground { node, attached, databases: [local, other], address, disks })
    }

    fn counts(&self) -> Result<Counts> {
        let report = overside::at(&self.address).node_status(VOLUME, PATIENCE)?;
        Ok(report.volumes.first().context("the node knows nothing of its volume")?.counts)
    }

    /// Databases first, so that what they write at their end has a disk.
    fn stop(&self) {
        for process in self.databases {
            let _ = Pid::from_raw(process as i32).map(|process| kill_process(process, Signal::INT));
        }
        let deadline = Instant::now() + PATIENCE;
        while self.databases.iter().any(|process| runs(*process)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whether a process has not ended, though nobody may have asked for its status.
fn runs(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim_start().starts_with('Z'))
}

fn format(keeper: &mut Keeper, on: &Path) -> Result<()> {
    let program = program_at("mkfs.ext4").context("there is no mkfs.ext4")?;
    let arguments = ["-q", "-F", &on.display().to_string()].map(str::to_owned).to_vec();
    keeper.must(&Order { program, arguments, ..Order::default() }).map(drop)
}

/// What `overside volume attach --json` says.
fn device_of(log: &Path) -> Option<PathBuf> {
    let said = fs::read_to_string(log).ok()?;
    // Warnings may come before.
    let mut said = said.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    said.find_map(|said| said["device"].as_str().map(PathBuf::from))
}

fn words_of(log: &Path) -> String {
    format!("its last words: {}", fs::read_to_string(log).unwrap_or_default().trim())
}

fn until<T>(mut there: impl FnMut() -> Option<T>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(there) = there() {
            return Ok(there);
        }
        ensure!(Instant::now() < deadline, "nothing came within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn folder_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let of = entry.metadata()?;
        bytes += if of.is_dir() { folder_bytes(&entry.path())? } else { of.len() };
    }
    Ok(bytes)
}

/// What a round of a side came to.
struct Round {
    done: Done,
    shares: Shares,
    /// All that the machine did, for a transaction.
    cpu_ns: f64,
    /// Of the node's cache, and of the requests that it got.
    hits: f64,
    reads: f64,
}

/// Of the host's processor time without the node's and the terminals'.
#[derive(Clone, Copy, Default)]
struct Shares {
    database: f64,
    kernel: f64,
    attached: f64,
}

/// Processor time so far, in ticks.
struct Used {
    all: u64,
    database: Split,
    attached: Split,
    node: Split,
    terminals: Split,
}

impl Used {
    fn now(keeper: &Keeper, ground: &Ground, database: u32) -> Result<Used> {
        let all = busy(&fs::read_to_string("/proc/stat")?).context("the kernel does not say how busy it is")?;
        let (database, attached, node) = (tree(database), tree(ground.attached), tree(ground.node));
        Ok(Used { all, database, attached, node, terminals: reaped(keeper.process()) })
    }

    fn since(&self, before: &Used) -> Used {
        Used {
            all: self.all.saturating_sub(before.all),
            database: self.database.since(before.database),
            attached: self.attached.since(before.attached),
            node: self.node.since(before.node),
            terminals: self.terminals.since(before.terminals),
        }
    }

    fn shares(&self) -> Shares {
        let host = self.all.saturating_sub(self.node.total() + self.terminals.total()).max(1) as f64;
        // What no process is said to have done is the kernel's, too: interrupts, and its own threads.
        let processes = self.database.total() + self.attached.total();
        let kernel = (host - processes as f64).max(0.0) + (self.database.system + self.attached.system) as f64;
        Shares {
            database: self.database.user as f64 / host,
            kernel: kernel / host,
            attached: self.attached.user as f64 / host,
        }
    }
}

/// Ticks in which the machine did anything, from `/proc/stat`.
fn busy(stat: &str) -> Option<u64> {
    let fields: Vec<u64> =
        stat.lines().next()?.split_ascii_whitespace().skip(1).filter_map(|f| f.parse().ok()).collect();
    // user nice system idle iowait irq softirq
    (fields.len() >= 7).then(|| fields[0] + fields[1] + fields[2] + fields[5] + fields[6])
}

fn rounds(
    setting: &Setting<'_>,
    figure: &mut Figure,
    keeper: &mut Keeper,
    tpcc: &Tpcc,
    ground: &mut Ground,
) -> Result<()> {
    let (rounds, seconds) = if setting.quick { (3, 4) } else { (setting.rounds(), 15) };
    let mut done = 0;
    // Once for every side before: caches are filled by what they are asked.
    let samples = alternate(SIDES.len(), rounds + 1, |side, _| {
        done += 1;
        setting.progress.part("oltp", done, (rounds + 1) * SIDES.len());
        let (at, disks) = [(0, DISKS), (1, DISKS / 3), (1, DISKS)][side];
        let (group, device) = if at == 0 { &ground.disks.local } else { &ground.disks.node };
        group.disk(device, disks * A_DISK)?;
        tpcc.checkpoint(keeper, PORTS[at])?;
        let (before, counted) = (Used::now(keeper, ground, ground.databases[at])?, ground.counts()?);
        let done = tpcc.run(keeper, PORTS[at], seconds).with_context(|| SIDES[side])?;
        let used = Used::now(keeper, ground, ground.databases[at])?.since(&before);
        let after = ground.counts()?;
        let share = |part: u64, other: u64| part as f64 / (part + other).max(1) as f64;
        Ok::<_, anyhow::Error>(Round {
            done,
            shares: used.shares(),
            cpu_ns: (used.all * TICK_NS) as f64 / done.transactions.max(1) as f64,
            hits: share(after.hits - counted.hits, after.misses - counted.misses),
            reads: share(after.reads - counted.reads, after.writes - counted.writes),
        })
    })?;
    for (name, rounds) in SIDES.into_iter().zip(&samples) {
        let mut record = |what: &str, of: &dyn Fn(&Round) -> f64| {
            figure.record(format!("{what}: {name}"), 0, rounds.iter().skip(1).map(of).collect());
        };
        record("transactions/s", &|round| round.done.per_s);
        record("new orders/min", &|round| round.done.new_orders_per_s * 60.0);
        record("CPU ns of a transaction", &|round| round.cpu_ns);
        record("the database's share", &|round| round.shares.database);
        record("the kernel's share", &|round| round.shares.kernel);
        if name != SIDES[0] {
            record("the attaching process' share", &|round| round.shares.attached);
            record("hits of the node's cache", &|round| round.hits);
            record("reads among requests", &|round| round.reads);
        }
    }
    Ok(())
}

fn tell(figure: &mut Figure, warehouses: u32, bytes: u64) {
    figure.text = format!(
        "PostgreSQL with {warehouses} warehouses ({} MiB), {} terminals that never think, and {} MiB of memory with what the kernel caches \
         for it. <i>Local</i>: ext4 on a disk of its own. <i>Attached</i>: ext4 on a volume by FUSE and a loop device, whose node has \
         {} MiB of cache and a third of the disks; or as many. A disk is {A_DISK} reads and as many writes a second, held by the kernel's \
         control groups alike on both sides. Each side begins a round with nothing to be written. Shares are of the host's processor time \
         without the node's and the terminals'. At the end both databases keep TPC-C's conditions 1 to 4.",
        bytes >> 20,
        tpcc::TERMINALS,
        MEMORY >> 20,
        CACHE >> 20
    );
    let local = figure.values_of("transactions/s: local").to_vec();
    let row = |name: &str| {
        let median = |what: &str, factor: f64, digits: usize| {
            let values = figure.values_of(&format!("{what}: {name}"));
            if values.is_empty() { "–".into() } else { format!("{:.digits$}", Spread::of(values).median * factor) }
        };
        vec![
            name.to_owned(),
            median("transactions/s", 1.0, 0),
            shown(Ratio::paired(figure.values_of(&format!("transactions/s: {name}")), &local)),
            median("new orders/min", 1.0, 0),
            median("CPU ns of a transaction", 1e-3, 0),
            median("the database's share", 100.0, 0),
            median("the kernel's share", 100.0, 0),
            median("the attaching process' share", 100.0, 0),
            median("hits of the node's cache", 100.0, 0),
            median("reads among requests", 100.0, 0),
        ]
    };
    let head = [
        "",
        "transactions/s",
        "over local",
        "new orders/min",
        "CPU µs each",
        "database %",
        "kernel %",
        "attaching %",
        "hits %",
        "reads %",
    ];
    let table = Table {
        caption: "TPC-C; shares of the host's processor time".into(),
        head: head.map(str::to_owned).to_vec(),
        rows: SIDES.map(row).to_vec(),
    };
    figure.tables.push(table);
    let groups = SIDES.map(|name| Group {
        name: name.to_owned(),
        bars: vec![bars::of(figure.spread_of(&format!("new orders/min: {name}")), 1.0)],
    });
    let chart = bars::draw("new orders a minute", &["new orders"], groups.into());
    figure.charts.push((chart, "What TPC-C counts, by where the database lies.".into()));
}

/// In the order in which they alternate.
const SIDES: [&str; 3] = ["local", "attached", "attached, as many disks"];
/// A node that makes its volume first: what it lies on, where, and how it is found; bytes of its cache last.
const NODE: &str = r#""$0" volume create db --size "$1" --on "$2/member" --home "$2/home" >&2
exec "$0" volume serve --listen "$3" --home "$2/home" --cache "$4""#;
const VOLUME: &str = "db";
/// Of the sockets, in a folder of their own.
const PORTS: [u16; 2] = [6001, 6002];
/// Of PostgreSQL and its page cache.
const MEMORY: u64 = 128 << 20;
/// Of the node.
const CACHE: u64 = 64 << 20;
/// Of the local side.
const DISKS: u64 = 12;
/// Requests a second: one that turns 15,000 times a minute, with a queue.
const A_DISK: u64 = 300;
/// What stands on the disk meanwhile, beside the databases; and for each warehouse.
const ROOM: u64 = 1 << 30;
const ROOM_EACH: u64 = 600 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_and_waiting_for_disks_are_not_busy() {
        assert_eq!(busy("cpu  10 1 20 1000 500 3 4 5 0 0\ncpu0 1 2 3\n"), Some(38));
        assert_eq!(busy("cpu 1 2\n"), None);
    }

    #[test]
    fn what_nobody_did_is_the_kernels() {
        let split = |user, system| Split { user, system };
        let used = Used {
            all: 150,
            database: split(40, 20),
            attached: split(5, 15),
            node: split(20, 10),
            terminals: split(15, 5),
        };
        let shares = used.shares();
        assert_eq!((shares.database, shares.attached, shares.kernel), (0.4, 0.05, 0.55));
    }
}
