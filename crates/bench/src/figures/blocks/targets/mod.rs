//! `targets`: a volume beside other people's servers of blocks and a file of this host (figures 9
//! and 10 of vi-attached-storage). Throughput, response time and processor time, by size and by
//! requests outstanding; in memory, and on a disk.

mod iscsi;
mod tgt;

use super::{
    BLOCK_BYTES, KIB, cell,
    disks::{self, Disks},
    load::{Client, LoadSpec, Stretch},
    nbd::Nbd,
    node::{Launch, Node},
    peers, table, values,
};
use crate::{
    figures::{
        Setting,
        charts::{Curve, Curves, curves},
        durability::folder,
        figure::{Figure, Table},
        sockets::keeper::Keeper,
    },
    measure::{Cpu, Spread, alternate, elapsed_ns, now_ns},
    svg::Scale,
};
use anyhow::Result;
use iscsi::Iscsi;
use overside_evidence::SplitMix64;
use std::{ffi::OsStr, thread, time::Duration};

pub(in crate::figures) fn measure(setting: &Setting<'_>) -> Result<Figure> {
    let mut figure = Figure::new("targets", "shm and tcp", "A Volume beside Other Targets");
    let parent = folder::parent(setting.dir)?;
    let room = folder::room(&parent, 4 * DISK_BYTES + 3 * CACHED_BYTES)?;
    setting.progress.tell(&format!("targets: {room}"));
    let mut absent = Vec::new();
    for medium in [CACHED, DISK] {
        setting.progress.say(&format!("targets: {medium}"));
        let mut keeper = Keeper::start_in(&parent)?;
        // The node ends after its clients.
        let (_node, mut sides) = match medium {
            CACHED => in_memory(&mut keeper, &mut absent)?,
            _ => on_disk(&mut keeper, &mut absent)?,
        };
        for side in &mut sides {
            side.prepare(bytes_of(medium))?;
        }
        rounds(setting, &mut figure, medium, &mut sides)?;
    }
    absent.push(spdk(std::env::var_os("PATH").unwrap_or_default().as_os_str()));
    absent.dedup();
    tell(&mut figure, &absent);
    figure.more.insert("not_measured".into(), absent.into());
    Ok(figure)
}

/// Who is asked.
struct Side {
    name: &'static str,
    end: End,
    /// Who serves; nobody where the disk is this process' own.
    server: Option<u32>,
}

enum End {
    Device(Client),
    Nbd(Nbd),
    Iscsi(Box<(Iscsi, tgt::Leaves)>),
}

/// What is asked of a side.
#[derive(Clone, Copy)]
struct Case {
    side: usize,
    load: LoadSpec,
}

/// All bytes are in the servers' memory, or in the page cache. No write need be on stable storage.
fn in_memory(keeper: &mut Keeper, absent: &mut Vec<String>) -> Result<(Node, Vec<Side>)> {
    let socket = keeper.folder().join("node");
    // One writer a volume: whoever comes by NBD has another one.
    let volumes = [IN_MEMORY, BY_NBD].map(|name| (name.to_owned(), Disks::Memory(CACHED_BYTES))).to_vec();
    let cached = super::cached::cached_order();
    let order = Launch { nbd: Some(socket.clone()), tcp: true, volumes, cache_bytes: 2 * cached.cache_bytes, ..cached };
    let node = Node::start(order)?;
    let mut sides = ours(&node, IN_MEMORY)?;
    let nbd = Nbd::unix(&socket, BY_NBD)?;
    sides.push(Side { name: "volume, NBD", end: End::Nbd(nbd), server: Some(node.pid()) });
    let (found, lacks) = peers::start(keeper, CACHED_BYTES);
    absent.extend(lacks);
    sides.extend(found.into_iter().map(|peer| Side {
        name: peer.name,
        end: End::Nbd(peer.nbd),
        server: Some(peer.pid),
    }));
    add_tgt(keeper, CACHED_BYTES, tgt::Writes::Cached, &mut sides, absent);
    let local = disks::file(&keeper.folder().join("local"), CACHED_BYTES, false)?;
    sides.push(Side { name: "local", end: End::Device(Client::over(local).volatile()), server: None });
    Ok((node, sides))
}

/// Nothing is in anybody's memory, and a write has ended when it is on the disk.
fn on_disk(keeper: &mut Keeper, absent: &mut Vec<String>) -> Result<(Node, Vec<Side>)> {
    let member = Disks::File(keeper.folder().join("member"), DISK_BYTES);
    let volumes = vec![(ON_DISK.to_owned(), member)];
    let node = Node::start(Launch { volumes, tcp: true, request_bytes_max: LONGEST, blocks: 64, ..Launch::default() })?;
    let mut sides = ours(&node, ON_DISK)?;
    match peers::qemu_past_the_page_cache(keeper, DISK_BYTES) {
        Ok((pid, nbd)) => sides.push(Side { name: "qemu-nbd", end: End::Nbd(nbd), server: Some(pid) }),
        Err(error) => absent.push(format!("qemu-nbd on a disk: {error:#}")),
    }
    absent.push("nbdkit on a disk: it has no way past the page cache".into());
    add_tgt(keeper, DISK_BYTES, tgt::Writes::Through, &mut sides, absent);
    let local = disks::file(&keeper.folder().join("local"), DISK_BYTES, true)?;
    sides.push(Side { name: "local", end: End::Device(Client::over(local)), server: None });
    Ok((node, sides))
}

/// The volume's native clients, which write it together.
fn ours(node: &Node, volume: &str) -> Result<Vec<Side>> {
    let server = Some(node.pid());
    let shm = node.writer("shm", volume, LONGEST, GROUP)?.polling(super::cached::POLLS_NS);
    let tcp = node.writer("tcp", volume, LONGEST, GROUP)?;
    Ok(vec![
        Side { name: "volume, shm", end: End::Device(shm), server },
        Side { name: "volume, tcp", end: End::Device(tcp), server },
    ])
}

fn add_tgt(keeper: &mut Keeper, bytes: u64, writes: tgt::Writes, sides: &mut Vec<Side>, absent: &mut Vec<String>) {
    match tgt::start(keeper, bytes, writes) {
        Ok((pid, iscsi, leaves)) => {
            sides.push(Side { name: "tgt", end: End::Iscsi(Box::new((iscsi, leaves))), server: Some(pid) });
        }
        Err(error) => absent.push(format!("tgt: {error:#}")),
    }
}

/// Why its target is not measured: nothing here was tried with it.
fn spdk(path: &OsStr) -> String {
    let places = std::env::split_paths(path).flat_map(|folder| SPDK.map(|name| folder.join(name)));
    match places.into_iter().find(|place| place.is_file()) {
        Some(place) => format!("SPDK: {} is there, and this figure has no side for it", place.display()),
        None => format!("SPDK: neither {} nor {} is on the search path", SPDK[0], SPDK[1]),
    }
}

impl Side {
    /// All that it reads is what it has written.
    fn prepare(&mut self, bytes: u64) -> Result<()> {
        match &mut self.end {
            End::Device(client) => client.fill(bytes).and_then(|()| client.check(bytes)),
            End::Nbd(nbd) => nbd.fill(bytes).and_then(|()| nbd.check(bytes)),
            End::Iscsi(target) => target.0.fill(bytes).and_then(|()| target.0.check(bytes)),
        }
    }

    /// Requests at random places for so long.
    fn run(&mut self, load: LoadSpec, of: u64, ns: u64, seed: u64) -> Result<Stretch> {
        let mut random = SplitMix64(seed);
        let used = |server: Option<u32>| {
            // Of a process that runs the kernel knows less.
            thread::sleep(SETTLING);
            server.map_or(Ok(Cpu::default()), |server| Ok::<_, anyhow::Error>(Cpu::of(server)?))
        };
        let before = used(self.server)?;
        let start = now_ns();
        let mut place = || (elapsed_ns(start) < ns).then(|| random.below(of / load.bytes as u64) * load.bytes as u64);
        let mut done = match &mut self.end {
            End::Device(client) => client.run(load, &mut place)?,
            End::Nbd(nbd) => nbd.run(load, &mut place)?,
            End::Iscsi(target) => target.0.run(load, &mut place)?,
        };
        done.server_ns = used(self.server)? - before;
        Ok(done)
    }
}

fn rounds(setting: &Setting<'_>, figure: &mut Figure, medium: &str, sides: &mut [Side]) -> Result<()> {
    let slice = match (setting.quick, medium) {
        (true, _) => 20_000_000,
        (false, CACHED) => 50_000_000,
        (false, _) => 100_000_000,
    };
    let cases = cases(setting, sides);
    let rounds = setting.rounds();
    let mut done = 0;
    let samples = alternate(cases.len(), rounds, |at, round| {
        done += 1;
        setting.progress.part(&format!("targets: {medium}"), done, rounds * cases.len());
        let Case { side, load } = cases[at];
        sides[side].run(load, bytes_of(medium), slice, round as u64)
    })?;
    for (Case { side, load }, stretches) in cases.into_iter().zip(&samples) {
        let name = sides[side].name;
        let mut record = |what: &str, of: fn(&Stretch) -> f64| {
            let series = series(medium, load.writes, load.depth, what, name);
            figure.record(series, load.bytes as u64, stretches.iter().map(of).collect());
        };
        record("p50 ns", Stretch::p50);
        record("mean ns", Stretch::mean);
        record("bytes/s", Stretch::bytes_per_s);
        record("CPU ns", Stretch::cpu_each);
    }
    Ok(())
}

/// Every size with one request outstanding and with many, and reads of 8 KiB with
/// every number in between.
fn cases(setting: &Setting<'_>, sides: &[Side]) -> Vec<Case> {
    let sizes: &[usize] = if setting.quick {
        &[512, BLOCK_BYTES, 128 * KIB]
    } else {
        &[512, 2 * KIB, BLOCK_BYTES, 32 * KIB, 64 * KIB, 128 * KIB]
    };
    let mut cases = Vec::new();
    for side in 0..sides.len() {
        for (writes, depth) in [(false, 1), (false, MANY), (true, 1), (true, MANY)] {
            cases.extend(sizes.iter().map(|bytes| Case { side, load: LoadSpec { writes, bytes: *bytes, depth } }));
        }
        let load = |depth| LoadSpec { writes: false, bytes: BLOCK_BYTES, depth };
        cases.extend(
            DEPTHS.into_iter().filter(|depth| ![1, MANY].contains(depth)).map(|depth| Case { side, load: load(depth) }),
        );
    }
    cases
}

fn series(medium: &str, writes: bool, depth: usize, what: &str, side: &str) -> String {
    format!("{medium}, {}, {depth} outstanding, {what}: {side}", if writes { "writes" } else { "reads" })
}

fn bytes_of(medium: &str) -> u64 {
    if medium == CACHED { CACHED_BYTES } else { DISK_BYTES }
}

fn tell(figure: &mut Figure, absent: &[String]) {
    let absent = if absent.is_empty() { String::new() } else { format!(" Not measured: {}.", absent.join("; ")) };
    figure.text = format!(
        "Requests at random places, from one process. The <i>volume</i> is a node's, asked by its native client over shm and tcp, and by NBD. \
         nbdkit and qemu-nbd are asked by a plain client of NBD, tgt (iSCSI, a target at user level) over TCP by a plain initiator at user \
         level, where the paper has one in the kernel; <i>local</i> is a file of this process. <i>In memory</i>: {} MiB that the \
         node's cache, nbdkit's memory or the page cache holds; no write need be on a disk. <i>On a disk</i>: {} MiB of a file that is \
         read and written past the page cache, and a write has ended when it is on stable storage; nobody caches. Processor time is that of \
         both ends, with what they poll. All are on one host: a network would cost all of them the same.{absent}",
        CACHED_BYTES >> 20,
        DISK_BYTES >> 20,
    );
    for medium in [CACHED, DISK] {
        figure.tables.push(at_8_kib(figure, medium));
    }
    let mut charts = Vec::new();
    for medium in [CACHED, DISK] {
        let spreads = |series: &str| {
            let all: Vec<_> = figure.recorded(series).map(|(x, values)| (x, Spread::of(values))).collect();
            all.into_iter()
        };
        let mut size = Curves::new("MB/s", "bytes of a read", Scale::Log).logarithmic();
        let mut depth = Curves::new("µs", "requests outstanding", Scale::Log).logarithmic();
        for (colour, side) in SIDES.into_iter().enumerate() {
            let rate = series(medium, false, MANY, "bytes/s", side);
            size.add(Curve::spreads(side, colour, spreads(&rate), 1e-6));
            let at = |depth: usize| {
                let values = values(figure, &series(medium, false, depth, "mean ns", side), BLOCK_BYTES as u64);
                (!values.is_empty()).then(|| (depth as u64, Spread::of(&values)))
            };
            depth.add(Curve::spreads(side, colour, DEPTHS.into_iter().filter_map(at), 1e-3));
        }
        charts.push((curves(&size), format!("Reads {medium}, {MANY} outstanding: throughput by their length.")));
        charts.push((curves(&depth), format!("Reads of 8 KiB {medium}: response time by requests outstanding.")));
    }
    figure.charts = charts;
}

fn at_8_kib(figure: &Figure, medium: &str) -> Table {
    let row = |side: &&str| {
        let mut row = vec![(*side).to_owned()];
        for writes in [false, true] {
            let of = |depth: usize, what: &str, factor: f64| {
                cell(&values(figure, &series(medium, writes, depth, what, side), BLOCK_BYTES as u64), factor, 1)
            };
            row.extend([
                of(1, "p50 ns", 1e-3),
                of(MANY, "bytes/s", 1e-6),
                of(1, "CPU ns", 1e-3),
                of(MANY, "CPU ns", 1e-3),
            ]);
        }
        row
    };
    let measured =
        |side: &&&str| !values(figure, &series(medium, false, 1, "p50 ns", side), BLOCK_BYTES as u64).is_empty();
    let rows = SIDES.iter().filter(measured).map(row).collect();
    let head = [
        "",
        "read, p50 µs",
        "16 outstanding, MB/s",
        "CPU µs each",
        "16 outstanding",
        "write, p50 µs",
        "16 outstanding, MB/s",
        "CPU µs each",
        "16 outstanding",
    ];
    table(&format!("Requests of 8 KiB {medium}"), &head, rows)
}

const CACHED: &str = "in memory";
const DISK: &str = "on a disk";
/// For tables and charts.
const SIDES: [&str; 8] =
    ["volume, shm", "volume, tcp", "volume, NBD", "nbdkit", "nbdkit over TCP", "qemu-nbd", "tgt", "local"];
const DEPTHS: [usize; 6] = [1, 2, 4, 8, 16, 32];
const MANY: usize = 16;
const SPDK: [&str; 2] = ["nvmf_tgt", "spdk_tgt"];
const IN_MEMORY: &str = "memory";
const BY_NBD: &str = "front";
const ON_DISK: &str = "disk";
const GROUP: u64 = 1;
const CACHED_BYTES: u64 = super::cached::BYTES;
const DISK_BYTES: u64 = 256 << 20;
const LONGEST: u32 = 128 << 10;
/// A worker that has nothing to do sleeps long before.
const SETTLING: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_of_spdks_is_found_on_the_search_path() {
        let folder = std::env::temp_dir().join(format!("overside-spdk-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let without = spdk(folder.as_os_str());
        std::fs::write(folder.join("spdk_tgt"), "").unwrap();
        let with = spdk(folder.as_os_str());
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(
            without.contains("neither nvmf_tgt nor spdk_tgt") && with.contains("spdk_tgt is there"),
            "{without}; {with}"
        );
    }
}
