//! `clients`: one cached read by each way to it (figure 4 of vi-attached-storage). Ways are the
//! bare transport, the native client (cDSA), a volume attached as a file (kDSA) or for NBD, the
//! node's own NBD server, and a file on a volume (wDSA). It also says whose time a read takes.

pub(super) mod attach;
mod calls;
mod raw;
mod steps;

use super::{
    BLOCK_BYTES, KIB, cached, cell,
    load::{Client, LoadSpec, Parts, Stretch},
    nbd::Nbd,
    node::{Launch, Node},
    places,
    reader::Reader,
    table, values,
};
use crate::{
    figures::{
        Setting,
        charts::{Curve, Curves, curves},
        figure::{Figure, Table},
        sockets::keeper::Keeper,
    },
    measure::{Cpu, Spread, Switches, alternate, elapsed_ns, now_ns},
    svg::Scale,
};
use anyhow::Result;
use attach::Attached;
use calls::{Calls, Counting};
use overside::{
    service::ServiceOptions,
    vault::{
        cache::{Cache, CacheOptions},
        server::{self, NodeOptions},
    },
    verbs::SystemClock,
    volume::{MemoryDevice, wire::Role},
};
use overside_evidence::SplitMix64;
use raw::Raw;
use std::{ffi::OsString, path::Path, thread, time::Duration};

/// Another process of this figure; `None` when the words are not one's.
pub(super) fn serve(words: &[OsString]) -> Option<Result<()>> {
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    match words[..] {
        [RAW, address] => Some(raw::serve(address)),
        [ATTACH, address, volume, socket] => Some(attach::serve(address, volume, socket)),
        [ATTACH_FILE, address, volume, file] => Some(attach::serve_file(address, volume, file, Role::Reader)),
        [ATTACH_DISK, address, volume, file] => Some(attach::serve_file(address, volume, file, Role::Writer)),
        _ => None,
    }
}

pub(in crate::figures) fn measure(setting: &Setting<'_>) -> Result<Figure> {
    let mut figure = Figure::new("clients", "shm", "Clients of a Storage Node");
    setting.progress.say("clients");
    let keeper = Keeper::start()?;
    let socket = |name: &str| keeper.folder().join(name);
    let order = cached::cached_order();
    let volumes = [order.volumes.clone(), vec![cached::with_files()]].concat();
    let order = Launch { nbd: Some(socket("node")), volumes, cache_bytes: 2 * order.cache_bytes, ..order };
    let mut node = Node::start(order)?;
    node.fill(VOLUME, BYTES)?;
    let attached = Attached::start(&node, VOLUME, &socket("attached"))?;
    let mut sides = sides(&node, &attached, &socket("attached"), &socket("node"))?;
    let (mut files, mut absent) = (Vec::new(), Vec::new());
    for (name, side) in [
        (FUSE, cached::as_file(&node, &keeper, &mut files)),
        (WDSA, cached::as_program(&node, &keeper, setting.library)),
    ] {
        match side {
            Ok((reader, server, between)) => sides.push(Side { name, end: End::File(reader), server, between }),
            Err(error) => absent.push(format!("{name}: {error:#}")),
        }
    }
    ways(setting, &mut figure, &mut sides, &mut node)?;
    if let Err(error) = called(setting, &mut figure, &mut sides) {
        absent.push(format!("system calls: {error:#}"));
    }
    parts(setting, &mut figure, &mut node)?;
    drop(sides);
    drop(files);
    steps::measure(setting, &mut figure)?;
    layers(setting, &mut figure)?;
    let not = if absent.is_empty() { String::new() } else { format!(" Not measured: {}.", absent.join("; ")) };
    figure.more.insert("not_measured".into(), absent.into());
    figure.text = format!(
        "One read at a time, at random places of {} MiB that the node's cache holds, over shared memory. <i>Bare transport</i>: register the \
         client's memory, send 64 bytes, be written to, wake up, deregister; nothing is looked up. <i>Native</i> polls for {} µs before it \
         sleeps; <i>asleep</i> sleeps at once. <i>Attached</i> is a process beside the client that offers the volume over NBD; the node's own \
         front is a hop shorter. <i>FUSE</i> is the volume attached as a file, by such a process too, and <i>wDSA</i> a file on a volume \
         under <code>overside run --volume</code>: one program reads both by <code>pread</code>, and both poll where that has paid of late. \
         Of the node's processor time, work is what its workers did not poll for nothing. Wake-ups are the times \
         that a process slept. System calls are counted by <code>perf stat</code>, in stretches of their own; calls of futex among \
         them are to sleep, to wake, or for a lock that another thread holds. Parts are of native reads that are polled for: before the request is \
         sent, from the look that found the answer until the caller has it, the node's work, and what is left, the transport. Steps are \
         requests of 8 KiB by how long the client's memory is registered for WRITEs, and by whether it polls before it sleeps. Layers are \
         parts of the same read on one thread of one process: the node's cache alone, and the node without a connection.{not}",
        BYTES >> 20,
        cached::POLLS_NS / 1000
    );
    figure.tables.extend([by_way(&figure), by_call(&figure), by_part(&figure), by_layer(&figure)]);
    let mut chart = Curves::new("µs", "bytes of a read", Scale::Log).logarithmic();
    for (colour, name) in WAYS.into_iter().enumerate() {
        let series = format!("a read, p50 ns: {name}");
        let all: Vec<_> = figure.recorded(&series).map(|(x, values)| (x, Spread::of(values))).collect();
        chart.add(Curve::spreads(name, colour, all.into_iter(), 1e-3));
    }
    figure.charts.push((curves(&chart), "A cached read by each way to it.".into()));
    Ok(figure)
}

/// A way to a block.
struct Side {
    name: &'static str,
    end: End,
    /// Who serves it, and who stands between.
    server: u32,
    between: Option<u32>,
}

enum End {
    Raw(Box<Raw>),
    Volume(Client),
    Nbd(Nbd),
    File(Reader),
}

/// Those that every host has.
fn sides(node: &Node, attached: &Attached, by_attach: &Path, by_node: &Path) -> Result<Vec<Side>> {
    let volume = |polls_ns: u64| -> Result<End> {
        let mut client = node.client("shm", VOLUME, Role::Reader, LONGEST as u32)?.polling(polls_ns);
        client.check(BYTES)?;
        Ok(End::Volume(client))
    };
    let nbd = |path: &Path| -> Result<End> {
        let mut nbd = Nbd::unix(path, VOLUME)?;
        nbd.check(BYTES)?;
        Ok(End::Nbd(nbd))
    };
    let mut raw = Raw::start()?;
    raw.run(LONGEST, 1)?;
    raw.check(LONGEST)?;
    let (bare, served) = (raw.pid(), node.pid());
    let side = |name, end, server, between| Side { name, end, server, between };
    Ok(vec![
        side(BARE, End::Raw(Box::new(raw)), bare, None),
        side(NATIVE, volume(cached::POLLS_NS)?, served, None),
        side("native, asleep", volume(0)?, served, None),
        side("attached", nbd(by_attach)?, served, Some(attached.pid())),
        side("node's front", nbd(by_node)?, served, None),
    ])
}

/// What a stretch took of whom.
struct Shares {
    stretch: Stretch,
    /// Of the process between.
    between_ns: u64,
    /// Of the serving process's time, polling for nothing; none where nothing counts it.
    polled_ns: Option<u64>,
    wake_ups: u64,
}

impl Shares {
    /// Work of the serving process for a read.
    fn work_each(&self) -> Option<f64> {
        let work = self.stretch.server_ns.saturating_sub(self.polled_ns?);
        Some(work as f64 / self.stretch.times.len().max(1) as f64)
    }
}

impl Side {
    /// The process that asks.
    fn client(&self) -> u32 {
        if let End::File(reader) = &self.end { reader.pid() } else { std::process::id() }
    }

    /// Reads at random places for so long.
    fn ask(&mut self, bytes: usize, ns: u64, seed: u64) -> Result<Stretch> {
        let load = LoadSpec { writes: false, bytes, depth: 1 };
        match &mut self.end {
            End::Raw(raw) => raw.run(bytes, ns),
            End::Volume(client) => client.run(load, &mut places_for(ns, bytes, seed)),
            End::Nbd(nbd) => nbd.run(load, &mut places_for(ns, bytes, seed)),
            End::File(reader) => reader.reads(load, ns, seed),
        }
    }

    fn reads(&mut self, node: &mut Node, bytes: usize, ns: u64, seed: u64) -> Result<Shares> {
        let (server, between) = (self.server, self.between);
        // The node's workers count it. NBD has a thread of its own there, and the bare transport another process.
        let counts = between.is_some() || matches!(self.end, End::Volume(_) | End::File(_));
        let mut polled = || if counts { node.polled_ns().map(Some) } else { Ok(None) };
        let polled_before = polled()?;
        let client = self.client();
        let processes = || [Some(client), Some(server), between].into_iter().flatten();
        let slept = || processes().map(|pid| Ok(Switches::of(pid)?)).collect::<Result<Vec<_>>>();
        let used = |pid: Option<u32>| pid.map_or(Ok(Cpu::default()), |pid| Ok::<_, anyhow::Error>(Cpu::of(pid)?));
        // Of a process that runs the kernel knows less.
        thread::sleep(SETTLING);
        let before = (used(Some(server))?, used(between)?, slept()?);
        let mut stretch = self.ask(bytes, ns, seed)?;
        thread::sleep(SETTLING);
        stretch.server_ns = used(Some(server))? - before.0;
        let wake_ups = slept()?.into_iter().zip(before.2).map(|(after, before)| after.since(before)).sum();
        let between_ns = used(between)? - before.1;
        let polled_ns = polled()?.zip(polled_before).map(|(after, before)| after - before);
        Ok(Shares { stretch, between_ns, polled_ns, wake_ups })
    }
}

/// Any places, for so long.
fn places_for(ns: u64, bytes: usize, seed: u64) -> impl FnMut() -> Option<u64> {
    within(BYTES, ns, bytes, seed)
}

fn within(all: u64, ns: u64, bytes: usize, seed: u64) -> impl FnMut() -> Option<u64> {
    let (mut random, start) = (SplitMix64(seed), now_ns());
    move || (elapsed_ns(start) < ns).then(|| random.below(all / bytes as u64) * bytes as u64)
}

fn ways(setting: &Setting<'_>, figure: &mut Figure, sides: &mut [Side], node: &mut Node) -> Result<()> {
    let sizes: &[usize] = if setting.quick {
        &[2 * KIB, BLOCK_BYTES, 64 * KIB]
    } else {
        &[512, 2 * KIB, BLOCK_BYTES, 32 * KIB, 64 * KIB, 128 * KIB]
    };
    let slice = if setting.quick { 20_000_000 } else { 200_000_000 };
    let (rounds, kinds) = (setting.rounds(), sides.len());
    let mut done = 0;
    let samples = alternate(kinds * sizes.len(), rounds, |at, round| {
        done += 1;
        setting.progress.part("clients", done, rounds * kinds * sizes.len());
        sides[at % kinds].reads(node, sizes[at / kinds], slice, round as u64)
    })?;
    for (at, shares) in samples.iter().enumerate() {
        let (name, bytes) = (sides[at % kinds].name, sizes[at / kinds] as u64);
        let mut record = |what: &str, of: &dyn Fn(&Shares) -> f64| {
            figure.record(format!("a read, {what}: {name}"), bytes, shares.iter().map(of).collect());
        };
        let each = |all: u64, of: &Shares| all as f64 / of.stretch.times.len().max(1) as f64;
        record("p50 ns", &|of| of.stretch.p50());
        record("client's CPU ns", &|of| each(of.stretch.client_ns + of.between_ns, of));
        record("node's CPU ns", &|of| each(of.stretch.server_ns, of));
        record("wake-ups", &|of| each(of.wake_ups, of));
        if shares.iter().all(|of| of.polled_ns.is_some()) {
            let work = |of: &Shares| of.work_each().unwrap_or_default();
            record("node's work ns", &work);
            record("node's work over its time", &|of| work(of) / of.stretch.mean().max(1.0));
        }
    }
    Ok(())
}

/// What is called for a read of 8 KiB, by who asks with who stands between, and by who serves.
fn called(setting: &Setting<'_>, figure: &mut Figure, sides: &mut [Side]) -> Result<()> {
    let slice = if setting.quick { 20_000_000 } else { 100_000_000 };
    let samples = alternate(sides.len(), setting.rounds(), |at, round| -> Result<[[f64; 2]; 2]> {
        let side = &mut sides[at];
        let asking: Vec<u32> = [Some(side.client()), side.between].into_iter().flatten().collect();
        let mut counting = [Counting::of(&asking)?, Counting::of(&[side.server])?];
        counting.iter_mut().try_for_each(Counting::start)?;
        let reads = side.ask(BLOCK_BYTES, slice, round as u64)?.times.len().max(1) as f64;
        let [asking, serving] = counting.map(Counting::end);
        Ok([asking?, serving?].map(|Calls { all, futexes }| [all as f64 / reads, futexes as f64 / reads]))
    })?;
    for (side, rounds) in sides.iter().zip(&samples) {
        for (who, name) in ["client's", "node's"].into_iter().enumerate() {
            for (of, what) in ["system calls", "calls of futex"].into_iter().enumerate() {
                let values = rounds.iter().map(|calls| calls[who][of]).collect();
                figure.record(format!("a read, {name} {what}: {}", side.name), BLOCK_BYTES as u64, values);
            }
        }
    }
    Ok(())
}

/// Where the time of a native read goes that is polled for.
fn parts(setting: &Setting<'_>, figure: &mut Figure, node: &mut Node) -> Result<()> {
    let sizes = [2 * KIB, BLOCK_BYTES, 64 * KIB];
    let slice = if setting.quick { 20_000_000 } else { 200_000_000 };
    let mut client = node.client("shm", VOLUME, Role::Reader, LONGEST as u32)?;
    let samples = alternate(sizes.len(), setting.rounds(), |at, round| -> Result<[f64; 5]> {
        let polled = node.polled_ns()?;
        // Of a process that runs the kernel knows less.
        thread::sleep(SETTLING);
        let used = node.cpu()?;
        let done = client.parts(sizes[at], &mut places_for(slice, sizes[at], round as u64))?;
        thread::sleep(SETTLING);
        let work = (node.cpu()? - used).saturating_sub(node.polled_ns()? - polled);
        let each = |ns: u64| ns as f64 / done.requests.max(1) as f64;
        let Parts { before_ns, reply_ns, whole_ns, .. } = done;
        let rest = whole_ns.saturating_sub(before_ns + reply_ns + work);
        Ok([before_ns, rest, work, reply_ns, whole_ns].map(each))
    })?;
    for (bytes, rounds) in sizes.into_iter().zip(&samples) {
        for (at, part) in PARTS.into_iter().enumerate() {
            let values = rounds.iter().map(|parts| parts[at]).collect();
            figure.record(format!("a native read that is polled for, ns: {part}"), bytes as u64, values);
        }
        let share = |[before, _, _, reply, _]: &[f64; 5]| reply / (before + reply);
        figure.record(REPLY_SHARE, bytes as u64, rounds.iter().map(share).collect());
    }
    Ok(())
}

/// Parts of a native read, on one thread.
fn layers(setting: &Setting<'_>, figure: &mut Figure) -> Result<()> {
    let options = CacheOptions { bytes: 2 * LAYER_BYTES, ..CacheOptions::default() };
    let mut cache = Cache::over(MemoryDevice::new(LAYER_BYTES)?, CacheOptions { bytes: 0, ..options })
        .map_err(anyhow::Error::msg)?;
    cache.resize(options.bytes);
    let node = server::Node::new(SystemClock::handle(), NodeOptions { cache: options, ..NodeOptions::default() })?;
    node.add(VOLUME, Box::new(MemoryDevice::new(LAYER_BYTES)?))?;
    let served = node.serve(Vec::new(), ServiceOptions::default())?;
    let mut ends = [Client::over(cache), Client::over(node.door(VOLUME, Role::Writer)?)];
    for end in &mut ends {
        end.fill(LAYER_BYTES)?;
        end.check(LAYER_BYTES)?;
    }
    let slice = if setting.quick { 5_000_000 } else { 50_000_000 };
    let samples = alternate(ends.len(), setting.rounds(), |at, round| -> Result<f64> {
        let load = LoadSpec { writes: false, bytes: BLOCK_BYTES, depth: 1 };
        let (mut random, start) = (SplitMix64(round as u64), now_ns());
        let blocks = LAYER_BYTES / BLOCK_BYTES as u64;
        let mut place = || (elapsed_ns(start) < slice).then(|| random.below(blocks) * BLOCK_BYTES as u64);
        Ok(ends[at].run(load, &mut place)?.p50())
    })?;
    for (name, values) in LAYERS.into_iter().zip(samples) {
        figure.record(format!("a layer, ns: {name}"), BLOCK_BYTES as u64, values);
    }
    drop(ends);
    drop(served);
    Ok(())
}

fn by_way(figure: &Figure) -> Table {
    let mut rows = Vec::new();
    for name in WAYS {
        for bytes in places(figure, &format!("a read, p50 ns: {name}")) {
            let of = |what: &str| values(figure, &format!("a read, {what}: {name}"), bytes);
            rows.push(vec![
                name.to_owned(),
                bytes.to_string(),
                cell(&of("p50 ns"), 1e-3, 1),
                cell(&of("client's CPU ns"), 1e-3, 1),
                cell(&of("node's CPU ns"), 1e-3, 1),
                cell(&of("node's work ns"), 1e-3, 1),
                cell(&of("node's work over its time"), 100.0, 0),
                cell(&of("wake-ups"), 1.0, 2),
            ]);
        }
    }
    let head =
        ["", "bytes", "p50 µs", "client's CPU µs", "node's CPU µs", "of it work", "over its time, %", "wake-ups"];
    table("One cached read at a time; the client's processor time is with what stands between", &head, rows)
}

fn by_call(figure: &Figure) -> Table {
    let at = BLOCK_BYTES as u64;
    let mut rows = Vec::new();
    for name in WAYS {
        let of = |what: &str| values(figure, &format!("a read, {what}: {name}"), at);
        if of("client's system calls").is_empty() {
            continue;
        }
        let called =
            ["client's system calls", "client's calls of futex", "node's system calls", "node's calls of futex"];
        rows.push(std::iter::once(name.to_owned()).chain(called.map(|what| cell(&of(what), 1.0, 2))).collect());
    }
    let head = ["", "client's system calls", "of them futex", "node's system calls", "of them futex"];
    table("System calls for a cached read of 8 KiB; the client's with those of what stands between", &head, rows)
}

fn by_part(figure: &Figure) -> Table {
    let series = |part: &str| format!("a native read that is polled for, ns: {part}");
    let row = |bytes: u64| {
        let each = PARTS.map(|part| cell(&values(figure, &series(part), bytes), 1e-3, 2));
        std::iter::once(bytes.to_string()).chain(each).collect()
    };
    let rows = places(figure, &series(PARTS[0])).into_iter().map(row).collect();
    let head: Vec<&str> = std::iter::once("bytes").chain(PARTS).collect();
    table("Where the time of a native read goes that is polled for, mean µs", &head, rows)
}

fn by_layer(figure: &Figure) -> Table {
    let at = BLOCK_BYTES as u64;
    let mut rows: Vec<Vec<String>> = LAYERS
        .into_iter()
        .map(|name| vec![name.to_owned(), cell(&values(figure, &format!("a layer, ns: {name}"), at), 1e-3, 2)])
        .collect();
    for name in [BARE, NATIVE] {
        rows.push(vec![name.to_owned(), cell(&values(figure, &format!("a read, p50 ns: {name}"), at), 1e-3, 2)]);
    }
    table("What a cached read of 8 KiB passes", &["", "µs"], rows)
}

const WAYS: [&str; 7] = [BARE, NATIVE, "native, asleep", "attached", "node's front", FUSE, WDSA];
const BARE: &str = "bare transport";
const NATIVE: &str = "native";
const FUSE: &str = "FUSE";
const WDSA: &str = "wDSA";
/// Of a read, in their order; and all of them.
const PARTS: [&str; 5] = ["before it is sent", "transport", "node", "reply", "whole"];
const REPLY_SHARE: &str = "a read, the reply's share of the client's time: native";
const LAYERS: [&str; 2] = ["the cache", "the node without a connection"];
const RAW: &str = "raw";
const ATTACH: &str = "attach";
const ATTACH_FILE: &str = "attach-file";
const ATTACH_DISK: &str = "attach-disk";
const VOLUME: &str = cached::VOLUME;
const BYTES: u64 = cached::BYTES;
const LAYER_BYTES: u64 = 8 << 20;
const LONGEST: usize = 128 << 10;
const SETTLING: Duration = Duration::from_millis(2);
