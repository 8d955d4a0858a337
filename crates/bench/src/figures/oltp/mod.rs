//! `oltp`: a database on an attached volume (kDSA), and one whose files are on a volume (wDSA),
//! beside the same on a disk of its own (figures 7 and 8 of vi-attached-storage).

mod files;
mod layers;
pub(super) mod place;
mod tpcc;

use super::{
    Setting,
    charts::bars,
    durability::folder,
    figure::{Figure, Table, shown},
    sockets::{
        keeper::{Keeper, Launch, TICK_NS},
        postgresql::{account, programs},
    },
};
use crate::{
    measure::{Ratio, Spread, Switches, alternate},
    svg::Group,
};
use anyhow::{Context, Result, ensure};
use layers::{Layers, Sampling, Who};
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
    ControlGroup::clear()?;
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
    let mut databases = Databases::start(&mut keeper, &tpcc, &data)?;
    let mut absent = Vec::new();
    match files::start(&mut keeper, &tpcc, &data, setting.library) {
        Ok(database) => databases.all.push(database),
        Err(error) => absent.push(format!("{WDSA}: {error:#}")),
    }
    fs::remove_dir_all(&data)?;
    let mut figure = Figure::new("oltp", "shm", "TPC-C on an Attached Volume");
    let looked = layers::try_out(keeper.folder());
    let lost = rounds(setting, &mut figure, &mut keeper, (&tpcc, looked.is_ok()), &databases)?;
    absent.extend(looked.err().map(|error| format!("shares of processor time: {error:#}")));
    let whole = if lost.is_some() { WDSA_AT } else { databases.all.len() };
    absent.extend(lost.map(|error| format!("{error:#}")));
    for database in databases.all.iter().take(whole) {
        tpcc.check(&mut keeper, database.port)?;
    }
    databases.stop();
    databases.deregistered(&mut figure);
    figure.count("database, bytes over memory and cache", 0, None, bytes as f64 / (MEMORY + CACHE) as f64);
    tell(&mut figure, warehouses, bytes, &absent);
    figure.more.insert("not_measured".into(), absent.into());
    Ok(figure)
}

/// Databases, in the order in which they are started: local, attached, and that whose files are on
/// a volume.
struct Databases {
    all: Vec<Database>,
}

/// A server of a database, and what its disk is.
struct Database {
    process: u32,
    port: u16,
    /// Of these so many requests a second are held.
    disks: Vec<(ControlGroup, String)>,
    /// What stands between.
    attached: Option<u32>,
    node: Option<Served>,
    /// What the attaching process says.
    log: Option<PathBuf>,
}

/// The node that it asks.
struct Served {
    process: u32,
    address: String,
    /// Whose node it is, where it is not this process' user's.
    user: Option<(u32, u32)>,
}

impl Databases {
    fn start(keeper: &mut Keeper, tpcc: &Tpcc, data: &Path) -> Result<Databases> {
        let size = (folder_bytes(data)? * 2).next_multiple_of(64 << 20);
        let disk = image(keeper, "local.img", size)?;
        let (process, group, number) = database(keeper, tpcc, data, "local", &disk, PORTS[0])?;
        let local =
            Database { process, port: PORTS[0], disks: vec![(group, number)], attached: None, node: None, log: None };
        let mut all = vec![local];
        for (at, data_words) in STEPS.into_iter().enumerate() {
            let name = format!("attached-{data_words}");
            all.push(attached(keeper, tpcc, data, (&name, data_words), size, PORTS[1] + at as u16)?);
        }
        Ok(Databases { all })
    }

    /// What is not of the host while this one is asked: all nodes, what attaches the others, and
    /// who measures.
    fn apart(&self, asked: usize) -> Vec<u32> {
        let nodes = self.all.iter().filter_map(|database| Some(database.node.as_ref()?.process));
        let others = self.all.iter().enumerate().filter(|(at, _)| *at != asked);
        nodes.chain(others.filter_map(|(_, other)| other.attached)).chain([std::process::id()]).collect()
    }

    /// Databases first, so that what they write at their end has a disk; then what attaches.
    fn stop(&self) {
        stop(self.all.iter().map(|database| database.process).collect(), Signal::INT);
        stop(self.all.iter().filter_map(|database| database.attached).collect(), Signal::TERM);
    }

    /// Of so many WRITEs the node read the bytes from the client's memory, and so often that was
    /// deregistered; known at the end.
    fn deregistered(&self, figure: &mut Figure) {
        for (name, at, _) in SIDES.iter().filter(|(name, ..)| STEP_NAMES.contains(name)) {
            let log = self.all.get(*at).and_then(|database| database.log.as_ref());
            // Who deregistered nothing because it registered nothing has batched nothing.
            let ended = log.and_then(|log| ended_of(&fs::read_to_string(log).ok()?));
            let Some((granted, deregistered)) = ended.filter(|(granted, _)| *granted > 0) else { continue };
            figure.count(&format!("WRITEs that the node read from memory: {name}"), 0, None, granted as f64);
            let each = deregistered as f64 / granted as f64;
            figure.count(&format!("deregistrations for a WRITE: {name}"), 0, None, each);
        }
    }
}

/// A node, its volume attached as a file with a loop device over it, and a database there. The name
/// is of all that is made; what follows it is how the bytes of writes get to the node.
fn attached(
    keeper: &mut Keeper,
    tpcc: &Tpcc,
    data: &Path,
    (name, way): (&str, &str),
    size: u64,
    port: u16,
) -> Result<Database> {
    let folder = keeper.folder().to_owned();
    let own = env::current_exe().context("this program does not know where it lies")?.display().to_string();
    // The node's disk holds checksums and maps as well.
    let disk = image(keeper, &format!("{name}-node.img"), size + size / 8 + (128 << 20))?;
    let group = ControlGroup::new(keeper, &format!("{name}-node"))?;
    let (log, at) = (folder.join(format!("{name}-node.log")), folder.join(format!("{name}-node")));
    let address = format!("shm:overside-oltp-{}-{name}", std::process::id());
    let runs = node_words(&own, size, &at, &address, "");
    let on = Mounted { from: &disk, at: &at, copied: None, group: &group, runs, log: &log, stops: Signal::TERM };
    let node = Served { process: on.start(keeper)?, address: address.clone(), user: None };
    node.is_there(keeper, &own).with_context(|| words_of(&log))?;
    let disks = vec![(group, Mounted::device(&log).context("the node's disk has no number")?)];

    let (file, log) = (folder.join(format!("{name}.img")), folder.join(format!("{name}-attached.log")));
    let volume = format!("{address}/{VOLUME}");
    let words = ["volume", "attach", &volume, "--fuse", &file.display().to_string(), "--loop", "--json", "--data", way];
    let stays = Some((log.clone(), Signal::TERM.as_raw()));
    let arguments = words.map(str::to_owned).to_vec();
    let attached = keeper.serve(&Launch { program: own.into(), arguments, stays, ..Launch::default() })?;
    let device = until(|| device_of(&log)).with_context(|| words_of(&log))?;
    format(keeper, &device)?;
    let (process, ..) = database(keeper, tpcc, data, name, &device, port)?;
    Ok(Database { process, port, disks, attached: Some(attached), node: Some(node), log: Some(log) })
}

/// A database with a copy of the data, on a file system that is made already: its process, its
/// control group, its disk.
fn database(
    keeper: &mut Keeper,
    tpcc: &Tpcc,
    data: &Path,
    name: &str,
    from: &Path,
    port: u16,
) -> Result<(u32, ControlGroup, String)> {
    let folder = keeper.folder().to_owned();
    let group = ControlGroup::new(keeper, name)?;
    group.memory(MEMORY)?;
    let (at, log) = (folder.join(format!("{name}-mount")), folder.join(format!("{name}.log")));
    let runs = [tpcc.as_user(), tpcc.server(&at.join("data"), port, SHARED)].concat();
    let on = Mounted { from, at: &at, copied: Some(data), group: &group, runs, log: &log, stops: Signal::INT };
    let process = on.start(keeper)?;
    tpcc.is_there(keeper, port).with_context(|| words_of(&log))?;
    let device = Mounted::device(&log).context("the database's disk has no number")?;
    Ok((process, group, device))
}

impl Served {
    fn order(&self, own: &str, what: &[&str]) -> Launch {
        let arguments = what.iter().map(|word| (*word).to_owned()).collect();
        Launch { program: own.into(), arguments, user: self.user, ..Launch::default() }
    }

    fn is_there(&self, keeper: &mut Keeper, own: &str) -> Result<()> {
        keeper.until_it_succeeds(&self.order(own, &["volume", "list", &self.address]))
    }

    /// Over shared memory a node answers its own user alone.
    fn counts(&self, keeper: &mut Keeper) -> Result<Counts> {
        if self.user.is_none() {
            let report = overside::at(&self.address).node_status(VOLUME, PATIENCE)?;
            return Ok(report.volumes.first().context("the node knows nothing of its volume")?.counts);
        }
        let own = files::program(keeper).display().to_string();
        let said =
            keeper.must(&self.order(&own, &["volume", "status", &format!("{}/{VOLUME}", self.address), "--json"]))?;
        counts_of(&said.said).with_context(|| format!("the node said {:?}", said.said))
    }
}

/// What `overside volume status --json` says of its only volume.
fn counts_of(said: &str) -> Option<Counts> {
    let said: serde_json::Value = serde_json::from_str(said).ok()?;
    let of = |name: &str| said["volumes"][0][name].as_u64();
    let (reads, writes, hits, misses) = (of("reads")?, of("writes_done")?, of("hits")?, of("misses")?);
    Some(Counts { reads, writes, hits, misses, ..Counts::default() })
}

/// Words that make a volume, and serve it.
fn node_words(own: &str, size: u64, at: &Path, address: &str, more: &str) -> Vec<String> {
    let (size, at, cache) = (size.to_string(), at.display().to_string(), CACHE.to_string());
    ["/bin/sh", "-c", NODE, own, &size, &at, address, &cache, more].map(str::to_owned).to_vec()
}

/// A file with a file system.
fn image(keeper: &mut Keeper, name: &str, bytes: u64) -> Result<PathBuf> {
    let file = keeper.folder().join(name);
    File::create(&file)?.set_len(bytes)?;
    format(keeper, &file)?;
    Ok(file)
}

/// Tells processes to end, and waits for that.
fn stop(processes: Vec<u32>, signal: Signal) {
    for process in &processes {
        let _ = Pid::from_raw(*process as i32).map(|process| kill_process(process, signal));
    }
    let deadline = Instant::now() + PATIENCE;
    while processes.iter().any(|process| runs(*process)) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(20));
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
    keeper.must(&Launch { program, arguments, ..Launch::default() }).map(drop)
}

/// What `overside volume attach --json` says.
fn device_of(log: &Path) -> Option<PathBuf> {
    let said = fs::read_to_string(log).ok()?;
    // Warnings may come before.
    let mut said = said.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    said.find_map(|said| said["device"].as_str().map(PathBuf::from))
}

/// WRITEs whose bytes the node read, and deregistrations, from what `overside volume attach --json`
/// says at its end.
fn ended_of(said: &str) -> Option<(u64, u64)> {
    let mut said = said.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    said.find_map(|said| Some((said["ended"]["granted"].as_u64()?, said["ended"]["deregistrations"].as_u64()?)))
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
    /// None where nobody may look.
    layers: Option<Layers>,
    /// All that the machine did, for a transaction.
    cpu_ns: f64,
    /// Of the node's cache, and of the requests that it got.
    hits: f64,
    reads: f64,
    /// Of the attaching process, for a request.
    wake_ups: f64,
}

/// Ticks in which the machine did anything, from `/proc/stat`.
fn busy(stat: &str) -> Option<u64> {
    let fields: Vec<u64> =
        stat.lines().next()?.split_ascii_whitespace().skip(1).filter_map(|f| f.parse().ok()).collect();
    // user nice system idle iowait irq softirq
    (fields.len() >= 7).then(|| fields[0] + fields[1] + fields[2] + fields[5] + fields[6])
}

/// Lets sides alternate. Why the database whose files are on a volume fell out, if it did: it is
/// left out from then on.
fn rounds(
    setting: &Setting<'_>,
    figure: &mut Figure,
    keeper: &mut Keeper,
    (tpcc, may_look): (&Tpcc, bool),
    databases: &Databases,
) -> Result<Option<anyhow::Error>> {
    let (rounds, seconds) = if setting.quick { (3, 4) } else { (setting.rounds(), 10) };
    let (mut done, mut lost) = (0, None);
    let sides: Vec<_> = SIDES.iter().filter(|(_, at, _)| *at < databases.all.len()).collect();
    // Once for every side before: caches are filled by what they are asked.
    let samples = alternate(sides.len(), rounds + 1, |side, _| -> Result<Option<Round>> {
        done += 1;
        setting.progress.part("oltp", done, (rounds + 1) * sides.len());
        let (name, at, disks) = sides[side];
        if *name == WDSA && lost.is_some() {
            return Ok(None);
        }
        let apart = may_look.then(|| databases.apart(*at));
        match round(keeper, tpcc, (&databases.all[*at], *disks), seconds, apart.as_deref()).with_context(|| *name) {
            Err(error) if *name == WDSA => {
                // What it still does would be in the way of the others.
                databases.all[*at].disks.iter().for_each(|(group, _)| group.kill());
                lost = Some(error);
                Ok(None)
            }
            other => other.map(Some),
        }
    })?;
    for ((name, at, _), rounds) in sides.iter().zip(&samples) {
        // A side that fell out has no median.
        let Some(rounds) = rounds.iter().map(Option::as_ref).collect::<Option<Vec<_>>>() else { continue };
        let (attached, node) = (databases.all[*at].attached, &databases.all[*at].node);
        let mut record = |what: &str, of: &dyn Fn(&Round) -> f64| {
            figure.record(format!("{what}: {name}"), 0, rounds.iter().skip(1).map(|round| of(round)).collect());
        };
        record("transactions/s", &|round| round.done.per_s);
        record("new orders/min", &|round| round.done.new_orders_per_s * 60.0);
        record("CPU ns of a transaction", &|round| round.cpu_ns);
        if attached.is_some() {
            record("wake-ups of the attaching process for a request", &|round| round.wake_ups);
        }
        if node.is_some() {
            record("hits of the node's cache", &|round| round.hits);
            record("reads among requests", &|round| round.reads);
        }
        if let Some(layers) = rounds.iter().map(|round| round.layers).collect::<Option<Vec<_>>>() {
            for (what, share) in LAYERS {
                figure.record(format!("{what}: {name}"), 0, layers.iter().skip(1).map(share).collect());
            }
        }
    }
    Ok(lost)
}

/// So many disks, and terminals for so long.
fn round(
    keeper: &mut Keeper,
    tpcc: &Tpcc,
    (database, disks): (&Database, u64),
    seconds: u64,
    apart: Option<&[u32]>,
) -> Result<Round> {
    let hold = |a_second: u64| database.disks.iter().try_for_each(|(group, device)| group.disk(device, a_second));
    // What is not measured need not wait: a file on a volume is written page by page.
    hold(UNHELD)?;
    tpcc.checkpoint(keeper, database.port)?;
    hold(disks * A_DISK)?;
    let counts = |keeper: &mut Keeper| database.node.as_ref().map_or(Ok(Counts::default()), |node| node.counts(keeper));
    let counted = counts(keeper)?;
    let slept = || database.attached.map(Switches::of).transpose();
    let all = || busy(&fs::read_to_string("/proc/stat")?).context("the kernel does not say how busy it is");
    let who = apart.map(|apart| Who { attached: database.attached, apart });
    let sampling = who.map(|who| Sampling::start(keeper.folder(), who)).transpose()?;
    let (before, slept_before) = (all()?, slept()?);
    let done = tpcc.run(keeper, database.port, seconds)?;
    let (used, slept_after) = (all()?.saturating_sub(before), slept()?);
    // Transactions count without it, too.
    let layers = sampling.and_then(|sampling| sampling.end().ok());
    let after = counts(keeper)?;
    let wake_ups = slept_after.zip(slept_before).map_or(0, |(after, before)| after.since(before));
    let requests = (after.reads - counted.reads) + (after.writes - counted.writes);
    let share = |part: u64, other: u64| part as f64 / (part + other).max(1) as f64;
    Ok(Round {
        done,
        layers,
        cpu_ns: (used * TICK_NS) as f64 / done.transactions.max(1) as f64,
        hits: share(after.hits - counted.hits, after.misses - counted.misses),
        reads: share(after.reads - counted.reads, after.writes - counted.writes),
        wake_ups: wake_ups as f64 / requests.max(1) as f64,
    })
}

fn tell(figure: &mut Figure, warehouses: u32, bytes: u64, absent: &[String]) {
    let absent = if absent.is_empty() { String::new() } else { format!(" Not measured: {}.", absent.join("; ")) };
    figure.text = format!(
        "PostgreSQL with {warehouses} warehouses ({} MiB), {} terminals that never think, and {} MiB of memory with what the kernel caches \
         for it. <i>Local</i>: ext4 on a disk of its own. <i>Attached</i>: ext4 on a volume by FUSE and a loop device, whose node has \
         {} MiB of cache and a third of the disks; or as many. <i>Registered</i> sides have as many, and register \
         the attaching process' memory for WRITEs: each time, or deregister it by 1,000; the others register where a price says so. \
         Nothing here batches interrupts, and no lock is taken less often: answers that come together share a wake-up on every side. \
         <i>wDSA</i>: tables, indexes and the log are files on a volume \
         under <code>overside run --volume</code>, whose node has as much cache and a third of the disks too; what else a database writes \
         is on a disk of the same kind. There the kernel caches no table, so the database has {} of shared buffers within its memory, \
         and {SHARED} elsewhere; sessions of its processes with the node may take {} MiB more. \
         A disk is {A_DISK} reads and as many writes a second, held by the kernel's \
         control groups alike on both sides. Each side begins a round with nothing to be written. Shares are of the host's processor time \
         without the node's and the terminals', by the function in which <code>perf</code> finds a processor: <i>locks</i> are taken or waited for \
         by anybody, the kernel included; the <i>client</i> is DSA with what brings requests to it; the <i>transport</i> carries its messages. At the end every database that was measured keeps TPC-C's conditions 1 to 4.{absent}",
        bytes >> 20,
        tpcc::TERMINALS,
        MEMORY >> 20,
        CACHE >> 20,
        files::SHARED,
        files::SESSIONS >> 20
    );
    draw(figure);
}

/// The table and the chart, of the sides that were measured.
fn draw(figure: &mut Figure) {
    let measured = |name: &&str| !figure.values_of(&format!("transactions/s: {name}")).is_empty();
    let sides: Vec<&str> = SIDES.iter().map(|(name, ..)| *name).filter(measured).collect();
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
            median(LAYERS[0].0, 100.0, 0),
            median(LAYERS[1].0, 100.0, 0),
            median(LAYERS[2].0, 100.0, 0),
            median(LAYERS[3].0, 100.0, 1),
            median(LAYERS[4].0, 100.0, 1),
            median(LAYERS[5].0, 100.0, 0),
            median("wake-ups of the attaching process for a request", 1.0, 2),
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
        "locks %",
        "client %",
        "transport %",
        "rest %",
        "wake-ups a request",
        "hits %",
        "reads %",
    ];
    let table = Table {
        caption: "TPC-C; shares of the host's processor time".into(),
        head: head.map(str::to_owned).to_vec(),
        rows: sides.iter().map(|name| row(name)).collect(),
    };
    figure.tables.push(table);
    let group = |name: &&str| Group {
        name: (*name).to_owned(),
        bars: vec![bars::of(figure.spread_of(&format!("new orders/min: {name}")), 1.0)],
    };
    let chart = bars::draw("new orders a minute", &["new orders"], sides.iter().map(group).collect());
    figure.charts.push((chart, "What TPC-C counts, by where the database lies.".into()));
}

/// In the order in which they alternate: which database, and how many disks it has.
const SIDES: [(&str, usize, u64); 6] = [
    ("local", 0, DISKS),
    ("attached", 1, DISKS / 3),
    ("attached, as many disks", 1, DISKS),
    (STEP_NAMES[0], 2, DISKS),
    (STEP_NAMES[1], 3, DISKS),
    (WDSA, WDSA_AT, DISKS / 3),
];
/// How the bytes of writes get to the node of each attached database: first as they do unless it is
/// said, then the steps.
const STEPS: [&str; 3] = ["auto", "each", "regions"];
const STEP_NAMES: [&str; 2] = ["registered each time", "registered by 1,000"];
const WDSA: &str = "wDSA";
const WDSA_AT: usize = 4;
type Share = fn(&Layers) -> f64;
/// Of the host's processor time.
const LAYERS: [(&str, Share); 7] = [
    ("the database's share", |layers| layers.database),
    ("the kernel's share", |layers| layers.kernel),
    ("the locks' share", |layers| layers.locks),
    ("the client's share", |layers| layers.client),
    ("the transport's share", |layers| layers.transport),
    ("the rest's share", |layers| layers.rest),
    ("the kernel's and the client's share", |layers| layers.kernel + layers.client),
];
/// A node that makes its volume first: what it lies on, where, and how it is found; bytes of its
/// cache, and what else the volume is.
const NODE: &str = r#""$0" volume create db --size "$1" --on "$2/member" --home "$2/home" $5 >&2
exec "$0" volume serve --listen "$3" --home "$2/home" --cache "$4""#;
const VOLUME: &str = "db";
/// Of the sockets, in a folder of their own; the attached databases count up from the second.
const PORTS: [u16; 3] = [6001, 6002, 6009];
/// Buffers of a database that has the page cache below it.
const SHARED: &str = "32MB";
/// Of PostgreSQL and its page cache. To the node's cache it is as 4 to 6.4 GB (table 1 and section
/// 7.2 of the paper).
const MEMORY: u64 = 80 << 20;
/// Of the node.
const CACHE: u64 = 128 << 20;
/// Of the local side.
const DISKS: u64 = 12;
/// Requests a second: one that turns 15,000 times a minute, with a queue.
const A_DISK: u64 = 300;
/// More than any disk carries out.
const UNHELD: u64 = 1_000_000;
/// What stands on the disk meanwhile, beside the databases; and for each warehouse.
const ROOM: u64 = 1 << 30;
const ROOM_EACH: u64 = 1400 << 20;
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
    fn what_a_node_has_carried_out_is_read_as_its_command_says_it() {
        let said = r#"{"volumes": [{"name": "db", "reads": 7, "writes": "through", "writes_done": 3, "hits": 5, "misses": 2}]}"#;
        let counts = counts_of(said).unwrap();
        assert_eq!((counts.reads, counts.writes, counts.hits, counts.misses), (7, 3, 5, 2));
        assert!(counts_of(r#"{"volumes": []}"#).is_none() && counts_of("no node listens").is_none());
    }

    #[test]
    fn deregistrations_are_read_from_the_last_words_of_who_attached() {
        let said = "warning\n{\"attached\": \"shm:a/db\", \"device\": \"/dev/loop0\"}\n{\"ended\": {\"granted\": 500, \"deregistrations\": 2}}\n";
        assert_eq!(ended_of(said), Some((500, 2)));
        assert_eq!(ended_of("{\"attached\": \"shm:a/db\"}\n"), None, "one that was killed counts nothing");
    }
}
