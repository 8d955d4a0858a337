//! What lies in the node's cache: reads of it beside other servers, a bare copy and a local file;
//! by depth, by size, and with one processor or two.

use super::{
    BLOCK_BYTES, KIB,
    clients::attach::Attached,
    disks::Disks,
    load::{Client, LoadSpec, Stretch, known},
    looped,
    nbd::Nbd,
    node::{Launch, Node},
    peers,
    reader::{Found, Reader},
};
use crate::{
    figures::{Setting, figure::Figure, messages, sockets::keeper::Keeper},
    measure::{Cpu, alternate, elapsed_ns, now_ns},
};
use anyhow::{Context, Result, ensure};
use overside::volume::wire::Role;
use overside_evidence::SplitMix64;
use std::{
    fs::{self, File},
    hint::black_box,
    os::unix::fs::FileExt,
    path::Path,
    thread,
    time::Duration,
};

/// What is asked, and of whom.
struct Side {
    name: String,
    end: End,
    server: u32,
    /// Who stands between.
    between: Option<u32>,
}

enum End {
    Volume(Client),
    Nbd(Nbd),
    File(Reader),
}

pub(super) fn measure(setting: &Setting<'_>, figure: &mut Figure) -> Result<()> {
    setting.progress.say("blocks: what is in the cache");
    let mut keeper = Keeper::start()?;
    let socket = keeper.folder().join("node");
    let cached = cached_order();
    // A file system has what it is known by beside its bytes.
    let disk = (DISK.into(), Disks::Memory(BYTES + BYTES / 4));
    let volumes = [cached.volumes.clone(), vec![with_files(), disk]].concat();
    let order = Launch { nbd: Some(socket.clone()), tcp: true, volumes, cache_bytes: 3 * cached.cache_bytes, ..cached };
    let node = Node::start(order)?;
    node.fill(VOLUME, BYTES)?;
    let mut sides = Vec::new();
    for (name, transport, polls_ns) in
        [("shm", "shm", Some(POLLS_NS)), ("shm, asleep", "shm", Some(0)), ("tcp", "tcp", None)]
    {
        let client = node.client(transport, VOLUME, Role::Reader, LONGEST)?;
        let client = if let Some(ns) = polls_ns { client.polling(ns) } else { client };
        sides.push(Side::new(name, End::Volume(client), node.pid()));
    }
    sides.push(Side::new("NBD", End::Nbd(Nbd::unix(&socket, VOLUME)?), node.pid()));
    let (found, mut absent) = peers::start(&mut keeper, BYTES);
    for peer in found {
        sides.push(Side::new(peer.name, End::Nbd(peer.nbd), peer.pid));
    }
    let mut attached = Vec::new();
    let files = [
        (FUSE, as_file(&node, &keeper, &mut attached)),
        ("wDSA", as_program(&node, &keeper, setting.library)),
        (LOOPS[0], on_a_loop(&node, &keeper, &mut attached)),
        (LOOPS[1], on_nbdfuse(&mut keeper)),
    ];
    for (name, side) in files {
        match side {
            Ok((reader, server, between)) => {
                let by_io_uring = name == FUSE && attached.iter().any(Attached::is_by_io_uring);
                let name = if by_io_uring { BY_IO_URING } else { name };
                sides.push(Side { between, ..Side::new(name, End::File(reader), server) });
            }
            Err(error) => absent.push(format!("{name}: {error:#}")),
        }
    }
    for side in &mut sides {
        side.prepare(node.pid())?;
    }
    figure.more.insert("not_measured".into(), absent.into());
    let missed = || [VOLUME, FILES, DISK].into_iter().map(|name| Ok(node.found(name)?[1])).sum::<Result<u64>>();
    let before = missed()?;
    by_depth(setting, figure, &mut sides)?;
    by_size(setting, figure, &mut sides[0], &keeper.folder().join("local"))?;
    let after = missed()?;
    ensure!(after == before, "{} blocks were not in the node's cache, which holds them all", after - before);
    drop(sides);
    drop(attached);
    drop(node);
    by_processors(setting, figure)?;
    idle(setting, figure)
}

/// A node whose cache holds all of its volume.
pub(super) fn cached_order() -> Launch {
    Launch {
        volumes: vec![(VOLUME.into(), Disks::Memory(BYTES))],
        cache_bytes: 2 * BYTES,
        request_bytes_max: LONGEST,
        blocks: 64,
        ..Launch::default()
    }
}

/// A volume that keeps files: they have what they are known by beside their bytes.
pub(super) fn with_files() -> (String, Disks) {
    (FILES.into(), Disks::Files(BYTES + BYTES / 4))
}

/// A program that reads a file, who serves it, and who stands between.
pub(super) type AsFile = Result<(Reader, u32, Option<u32>)>;

/// A volume as a file, where this process may mount one.
pub(super) fn as_file(node: &Node, keeper: &Keeper, all: &mut Vec<Attached>) -> AsFile {
    let path = keeper.folder().join("file");
    let attached = Attached::as_file(node, VOLUME, &path)?;
    let between = Some(attached.pid());
    all.push(attached);
    Ok((Reader::start(&[], Found::There, &path)?, node.pid(), between))
}

/// A file on a volume, of a program that knows nothing of it.
pub(super) fn as_program(node: &Node, keeper: &Keeper, library: Option<&Path>) -> AsFile {
    library.context("the library is not beside this executable; `cargo build --release` puts it there")?;
    let folder = keeper.folder().join("files");
    fs::create_dir(&folder)?;
    let own = std::env::current_exe()?;
    let own = own.to_str().context("this program's path is no text")?;
    let volume = format!("{}={}/{FILES}", folder.display(), node.address("shm")?);
    let reader = Reader::start(&[own, "run", "--volume", &volume, "--"], Found::Makes, &folder.join("file.db"))?;
    // Bytes that are not below are on the volume.
    let below = fs::metadata(folder.join("file.db"))?.len();
    ensure!(below < BYTES, "the file of {below} bytes is not on the volume");
    Ok((reader, node.pid(), None))
}

/// A file in ext4 on a loop device over a volume as a file.
fn on_a_loop(node: &Node, keeper: &Keeper, all: &mut Vec<Attached>) -> AsFile {
    let path = keeper.folder().join("disk");
    let attached = Attached::as_disk(node, DISK, &path)?;
    let between = Some(attached.pid());
    all.push(attached);
    Ok((looped::start(&path, &keeper.folder().join("mounted"))?, node.pid(), between))
}

/// The same over nbdfuse.
fn on_nbdfuse(keeper: &mut Keeper) -> AsFile {
    let (server, between, path) = peers::nbdfuse(keeper, BYTES + BYTES / 4)?;
    Ok((looped::start(&path, &keeper.folder().join("mounted-nbdfuse"))?, server, Some(between)))
}

impl Side {
    fn new(name: &str, end: End, server: u32) -> Side {
        Side { name: name.into(), end, server, between: None }
    }

    /// All that it reads is right, and in the cache from now on.
    fn prepare(&mut self, node: u32) -> Result<()> {
        match &mut self.end {
            End::Volume(client) => client.check(BYTES),
            End::Nbd(nbd) => {
                if self.server != node {
                    nbd.fill(BYTES)?;
                }
                nbd.check(BYTES)
            }
            // It has looked.
            End::File(_) => Ok(()),
        }
    }

    /// Reads at random places for so long.
    fn reads(&mut self, bytes: usize, depth: usize, ns: u64, seed: u64) -> Result<Stretch> {
        let (mut random, load) = (SplitMix64(seed), LoadSpec { writes: false, bytes, depth });
        let before = self.used()?;
        let start = now_ns();
        let mut place = || (elapsed_ns(start) < ns).then(|| random.below(BYTES / bytes as u64) * bytes as u64);
        let mut done = match &mut self.end {
            End::Volume(client) => client.run(load, &mut place)?,
            End::Nbd(nbd) => nbd.run(load, &mut place)?,
            End::File(reader) => reader.reads(load, ns, seed)?,
        };
        done.server_ns = self.used()? - before;
        Ok(done)
    }

    /// By who serves, and who stands between.
    fn used(&self) -> Result<Cpu> {
        let between = self.between.map_or(Ok(Cpu::default()), settled)?;
        Ok(Cpu { ns: settled(self.server)?.ns + between.ns })
    }
}

/// Processor time of a process that has nothing to do any more: of one that
/// runs the kernel knows less.
fn settled(pid: u32) -> Result<Cpu> {
    thread::sleep(SETTLING);
    Ok(Cpu::of(pid)?)
}

/// 8 KiB, more and more of them outstanding: all sides where there are bars, and shm in between.
fn by_depth(setting: &Setting<'_>, figure: &mut Figure, sides: &mut [Side]) -> Result<()> {
    let (all, rounds) = (sides.len(), setting.rounds());
    let depths = |side: &Side| if matches!(side.end, End::File(_)) { &[1][..] } else { &[1, 16] };
    let mut cases: Vec<(usize, usize)> =
        (0..all).flat_map(|side| depths(&sides[side]).iter().map(move |depth| (side, *depth))).collect();
    cases.extend([2, 4, 8, 32].map(|depth| (0, depth)));
    let mut done = 0;
    let samples = alternate(cases.len(), rounds, |at, round| {
        done += 1;
        setting.progress.part("blocks: cached, by depth", done, rounds * cases.len());
        let (side, depth) = cases[at];
        sides[side].reads(BLOCK_BYTES, depth, slice(setting), round as u64)
    })?;
    for ((side, depth), stretches) in cases.into_iter().zip(&samples) {
        let name = &sides[side].name;
        let mut record = |what: &str, of: fn(&Stretch) -> f64| {
            figure.record(format!("cached, {what}: {name}"), depth as u64, stretches.iter().map(of).collect());
        };
        record("p50 ns", Stretch::p50);
        record("mean ns", Stretch::mean);
        record("CPU ns", Stretch::cpu_each);
        record("requests/s", Stretch::per_s);
    }
    Ok(())
}

/// Any size, one and four outstanding, beside a copy and a file of this host.
fn by_size(setting: &Setting<'_>, figure: &mut Figure, side: &mut Side, path: &Path) -> Result<()> {
    let (sizes, rounds) = (sizes(setting), setting.rounds());
    let local = Local::new(path)?;
    let mut target = vec![0; LONGEST as usize];
    let kinds = SERIES.len();
    let mut done = 0;
    let samples = alternate(kinds * sizes.len(), rounds, |at, round| -> Result<f64> {
        done += 1;
        setting.progress.part("blocks: cached, by size", done, rounds * kinds * sizes.len());
        let (bytes, ns, seed) = (sizes[at / kinds], slice(setting) / 2, round as u64);
        Ok(match at % kinds {
            0 => side.reads(bytes, 1, ns, seed)?.bytes_per_s(),
            1 => side.reads(bytes, 4, ns, seed)?.bytes_per_s(),
            kind => local.bytes_per_s(kind == 2, &mut target[..bytes], ns, seed)?,
        })
    })?;
    for (at, values) in samples.into_iter().enumerate() {
        figure.record(SERIES[at % kinds], sizes[at / kinds] as u64, values);
    }
    Ok(())
}

/// The same bytes with no node around them.
struct Local {
    memory: Vec<u8>,
    file: File,
}

impl Local {
    /// A file that was just written is in the page cache.
    fn new(path: &Path) -> Result<Local> {
        let mut memory = vec![0; BYTES as usize];
        known(0, &mut memory);
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        file.write_all_at(&memory, 0)?;
        Ok(Local { memory, file })
    }

    fn bytes_per_s(&self, copies: bool, target: &mut [u8], ns: u64, seed: u64) -> Result<f64> {
        let (mut random, length) = (SplitMix64(seed), target.len());
        let (start, mut times) = (now_ns(), 0u64);
        while elapsed_ns(start) < ns {
            let at = random.below((BYTES as usize / length) as u64) as usize * length;
            if copies {
                black_box(&mut *target).copy_from_slice(&self.memory[at..at + length]);
            } else {
                self.file.read_exact_at(black_box(&mut *target), at as u64)?;
            }
            times += 1;
        }
        Ok((times * length as u64) as f64 * 1e9 / elapsed_ns(start) as f64)
    }
}

/// Two nodes alike, pinned to one processor and to two: not the client's, where there are others.
fn by_processors(setting: &Setting<'_>, figure: &mut Figure) -> Result<()> {
    let seats = messages::PLACEMENTS[0].take()?;
    let node = |processors: usize| -> Result<(Side, Node)> {
        let node = seats.on(processors, || Node::start(cached_order()))?;
        node.fill(VOLUME, BYTES)?;
        let client = node.client("shm", VOLUME, Role::Reader, LONGEST)?.polling(POLLS_NS);
        let mut side = Side::new("shm", End::Volume(client), node.pid());
        side.prepare(node.pid())?;
        Ok((side, node))
    };
    let mut nodes = [node(1)?, node(2)?];
    let (sizes, rounds) = (sizes(setting), setting.rounds());
    let mut done = 0;
    let samples = alternate(2 * sizes.len(), rounds, |at, round| {
        done += 1;
        setting.progress.part("blocks: processors of the node", done, 2 * rounds * sizes.len());
        nodes[at % 2].0.reads(sizes[at / 2], 1, slice(setting) / 2, round as u64)
    })?;
    for (at, stretches) in samples.iter().enumerate() {
        let name = ["one processor", "two processors"][at % 2];
        let values = stretches.iter().map(Stretch::p50).collect();
        figure.record(format!("{name}, p50 ns"), sizes[at / 2] as u64, values);
    }
    Ok(())
}

/// What a node takes with sessions that ask nothing: at rest, and a second after one of them has
/// asked as much as it could.
fn idle(setting: &Setting<'_>, figure: &mut Figure) -> Result<()> {
    setting.progress.say("blocks: idle sessions");
    let node = Node::start(cached_order())?;
    node.fill(VOLUME, BYTES)?;
    let session = |_| node.client("shm", VOLUME, Role::Reader, BLOCK_BYTES as u32);
    let mut sessions = (0..SESSIONS).map(session).collect::<Result<Vec<_>>>()?;
    let share = || -> Result<f64> {
        let (before, start) = (node.cpu()?, now_ns());
        thread::sleep(WATCHED);
        Ok((node.cpu()? - before) as f64 / elapsed_ns(start) as f64)
    };
    let rounds = if setting.quick { 3 } else { setting.rounds() };
    let (mut rests, mut later) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        setting.progress.part("blocks: idle sessions", round + 1, rounds);
        thread::sleep(AFTER_LOAD);
        rests.push(share()?);
        let (mut random, start) = (SplitMix64(round as u64), now_ns());
        let blocks = BYTES / BLOCK_BYTES as u64;
        let mut place = || (elapsed_ns(start) < slice(setting)).then(|| random.below(blocks) * BLOCK_BYTES as u64);
        sessions[0].run(LoadSpec { writes: false, bytes: BLOCK_BYTES, depth: 16 }, &mut place)?;
        thread::sleep(AFTER_LOAD);
        later.push(share()?);
    }
    for (when, shares) in RESTS.into_iter().zip([rests, later]) {
        figure.record(format!("idle sessions, share of a processor: {when}"), SESSIONS, shares);
    }
    Ok(())
}

/// Longer than a turn of the scheduler.
fn slice(setting: &Setting<'_>) -> u64 {
    if setting.quick { 24_000_000 } else { 200_000_000 }
}

fn sizes(setting: &Setting<'_>) -> Vec<usize> {
    if setting.quick {
        vec![512, BLOCK_BYTES, 64 * KIB, 128 * KIB]
    } else {
        vec![512, 2 * KIB, BLOCK_BYTES, 32 * KIB, 64 * KIB, 128 * KIB]
    }
}

/// In this order at each size.
pub(super) const SERIES: [&str; 4] =
    ["cached, bytes/s: 1 outstanding", "cached, bytes/s: 4 outstanding", "copied, bytes/s", "local file, bytes/s"];
/// When idle sessions are looked at.
pub(super) const RESTS: [&str; 2] = ["at rest", "1 s after full load"];
pub(super) const SESSIONS: u64 = 100;
const WATCHED: Duration = Duration::from_millis(500);
const AFTER_LOAD: Duration = Duration::from_secs(1);
/// By `/dev/fuse`, or as this says.
const FUSE: &str = "FUSE";
const BY_IO_URING: &str = "FUSE by io_uring";
pub(super) const VOLUME: &str = "cached";
const FILES: &str = "files";
const DISK: &str = "disk";
const LOOPS: [&str; 2] = ["ext4 on a loop, FUSE", "ext4 on a loop, nbdfuse"];
/// More than processors keep near them.
pub(super) const BYTES: u64 = 64 << 20;
const LONGEST: u32 = 128 << 10;
/// How long a client polls before it sleeps: a few times as long as an answer takes.
pub(super) const POLLS_NS: u64 = 50_000;
/// A worker that has nothing to do sleeps long before.
const SETTLING: Duration = Duration::from_millis(2);
