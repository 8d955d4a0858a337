//! `durability`: what tables that survive cost, beside tables in memory and beside the bare disk.

mod bare;
mod checkpoint;
pub(super) mod folder;
mod ours;
mod recovery;

use super::{
    Over, Setting,
    charts::bars,
    figure::{Figure, Table},
    tables::{
        clients::{BATCH_ROWS, Stretch, Work, Worker, quantile, scattered, together},
        server::{Kept, Served, VALUE_BYTES},
    },
};
use crate::{
    measure::{Cpu, Spread, alternate, elapsed_ns, now_ns},
    svg::Group,
};
use anyhow::{Context, Result, ensure};
use bare::Bare;
use folder::DataFolder;
use overside::table::wire::DataStatus;
use serde_json::json;
use std::{fs, path::Path, thread, time::Duration};

pub use ours::{Batches, Ours, Testbed, Values};

pub(super) fn measure(setting: &Setting<'_>) -> Result<Figure> {
    let room = folder::room(&folder::parent(setting.dir)?, if setting.quick { ROOM_QUICK } else { ROOM })?;
    setting.progress.tell(&format!("durability: {room}"));
    let place = DataFolder::new(setting.dir)?;
    let folder = place.folder();
    let mut figure = Figure::new("durability", setting.over.name(), "Tables That Survive");
    figure.more.insert("load_average_before".into(), load_average().into());
    let mut sides = Kept::ALL
        .into_iter()
        .map(|kept| DurableServer::start(setting.over, kept, folder))
        .collect::<Result<Vec<_>>>()?;
    let bare_folder = folder.join("bare");
    let mut disk = Disk { waiting: Bare::waiting(&bare_folder)?, queued: Bare::queued(&bare_folder)? };
    let mut table = Vec::new();
    one_row(setting, &mut figure, &mut sides, &mut disk, &mut table)?;
    batches(setting, &mut figure, &mut sides, &mut disk, folder, &mut table)?;
    beside_puts(setting, &mut figure, &mut sides, &mut table)?;
    let sync = sides.pop().context("no server")?;
    // The others have processor time of their own.
    sides.into_iter().for_each(|side| side.served.end());
    idle(setting, &mut figure, &sync)?;
    sync.served.end();
    checkpoint::measure(setting, &mut figure, folder)?;
    recovery::measure(setting, &mut figure, folder)?;
    figure.more.insert("load_average_after".into(), load_average().into());
    tell(&mut figure, setting, table);
    Ok(figure)
}

/// A server with its clients.
struct DurableServer {
    kept: Kept,
    served: Served,
    workers: Vec<Worker>,
}

/// The disk with nothing around it.
struct Disk {
    waiting: Bare,
    queued: Bare,
}

impl DurableServer {
    fn start(over: &Over, kept: Kept, folder: &Path) -> Result<DurableServer> {
        let served = Served::start(over, kept, &folder.join(kept.name()), true)?;
        let mut workers: Vec<Worker> =
            (0..CLIENTS).map(|seed| Worker::new(&served, ROWS, seed)).collect::<Result<_>>()?;
        workers[0].fill(|number| scattered(number, ROWS))?;
        Ok(DurableServer { kept, served, workers })
    }

    fn run(&mut self, clients: usize, work: Work, ns: u64) -> Result<Stretch> {
        together(&self.served, &mut self.workers[..clients], work, ns)
    }

    fn status(&self) -> Result<Option<DataStatus>> {
        Ok(self.served.connect()?.status()?)
    }
}

/// One client puts a row and waits, again and again; and gets one.
fn one_row(
    setting: &Setting<'_>,
    figure: &mut Figure,
    sides: &mut [DurableServer],
    disk: &mut Disk,
    table: &mut Vec<Vec<String>>,
) -> Result<()> {
    let slice = slice(setting, 200);
    let (mut bare, mut gets) = (Vec::new(), Vec::new());
    let samples = rounds(setting, "one client, one row", sides.len() + 2, |side| {
        if side == sides.len() {
            let (times, _) = disk.waiting.writes(4096, 1, slice / 2)?;
            bare.push(quantile(&times, 0.5));
            return Ok(Stretch::default());
        }
        if side > sides.len() {
            let stretch = sides[0].run(1, Work::Get, slice)?;
            gets.push([quantile(&stretch.gets, 0.5), quantile(&stretch.gets, TAIL)]);
            return Ok(stretch);
        }
        sides[side].run(1, Work::PutOne, slice)
    })?;
    figure.record("bare write of 4 KiB, p50 ns", 0, bare.clone());
    figure.record("one get, p50 ns", 0, gets.iter().map(|get| get[0]).collect());
    figure.record("one get, p99.9 ns", 0, gets.iter().map(|get| get[1]).collect());
    for (side, rounds) in sides.iter().zip(&samples) {
        let name = side.kept.name();
        let of = |share: f64| rounds.iter().map(|round| quantile(&round.puts, share)).collect::<Vec<_>>();
        figure.record(format!("one row, p50 ns: {name}"), 0, of(0.5));
        figure.record(format!("one row, p99.9 ns: {name}"), 0, of(TAIL));
        table.push(line(&format!("one client, a row: {name}"), &of(0.5), &of(TAIL), rounds));
    }
    table.push(vec!["bare write of 4 KiB".into(), micro(&bare)]);
    Ok(())
}

/// Eight clients put batches.
fn batches(
    setting: &Setting<'_>,
    figure: &mut Figure,
    sides: &mut [DurableServer],
    disk: &mut Disk,
    folder: &Path,
    table: &mut Vec<Vec<String>>,
) -> Result<()> {
    let slice = slice(setting, 250);
    let at = sides.len() - 1;
    // How large groups are is known once some were written.
    let before = sides[at].status()?.context("sync has a log")?;
    let trial = sides[at].run(CLIENTS as usize, Work::PutBatch, slice)?;
    let after = sides[at].status()?.context("sync has a log")?;
    let dir = folder.join(sides[at].kept.name());
    let group = bare::group_bytes(&dir, before.log_position, after.log_position)?.context("no group was written")?;
    let row_bytes = (after.log_position - before.log_position) as f64 / trial.rows.max(1) as f64;
    let mut bare = Vec::new();
    let samples = rounds(setting, "8 clients, batches", sides.len() + 1, |side| {
        if side < sides.len() {
            return sides[side].run(CLIENTS as usize, Work::PutBatch, slice);
        }
        let (times, ns) = disk.queued.writes(group as usize, WRITES, slice)?;
        bare.push(times.len() as f64 * group / row_bytes * 1e9 / ns as f64);
        Ok(Stretch::default())
    })?;
    figure.record("batches, rows/s: bare writes of a group's size", 0, bare.clone());
    for (side, rounds) in sides.iter().zip(&samples) {
        let name = side.kept.name();
        figure.record(format!("batches, rows/s: {name}"), 0, rounds.iter().map(Stretch::rows_per_s).collect());
        let of = |share: f64| rounds.iter().map(|round| quantile(&round.puts, share)).collect::<Vec<_>>();
        table.push(line(&format!("8 clients, batches: {name}"), &of(0.5), &of(TAIL), rounds));
    }
    let rate = format!("{:.0}", Spread::of(&bare).median / 1e3);
    table.push(vec!["bare writes of a group's size".into(), "–".into(), "–".into(), rate]);
    figure.more.insert(
        "log".into(),
        json!({"way": after.way, "group_bytes": group, "bytes_a_row": row_bytes, "writes_at_a_time": WRITES}),
    );
    Ok(())
}

/// Two clients, each with gets and puts in turn.
fn beside_puts(
    setting: &Setting<'_>,
    figure: &mut Figure,
    sides: &mut [DurableServer],
    table: &mut Vec<Vec<String>>,
) -> Result<()> {
    let slice = slice(setting, 250);
    let last = sides.len() - 1;
    let samples = rounds(setting, "gets beside puts", 2, |side| sides[side * last].run(2, Work::GetAndPut, slice))?;
    for (side, rounds) in [0, last].into_iter().zip(&samples) {
        let name = sides[side].kept.name();
        let of = |share: f64| rounds.iter().map(|round| quantile(&round.gets, share)).collect::<Vec<_>>();
        figure.record(format!("gets beside puts, p50 ns: {name}"), 0, of(0.5));
        table.push(line(&format!("2 clients, gets beside 50 % puts: {name}"), &of(0.5), &of(TAIL), rounds));
    }
    Ok(())
}

/// A server that has written, and now does nothing.
fn idle(setting: &Setting<'_>, figure: &mut Figure, side: &DurableServer) -> Result<()> {
    setting.progress.say("durability: idle");
    let pid = side.served.pid();
    ensure!(written_bytes(pid)? > 0, "the kernel does not say what a process writes; is /proc/PID/io there?");
    // It says what is durable once more, and the checkpoint that was due is written.
    thread::sleep(Duration::from_secs(1));
    let step = Duration::from_millis(if setting.quick { 300 } else { 2000 });
    let (mut shares, before) = (Vec::new(), written_bytes(pid)?);
    for _ in 0..IDLE_ROUNDS {
        let (start, cpu) = (now_ns(), Cpu::of(pid)?);
        thread::sleep(step);
        shares.push((Cpu::of(pid)? - cpu) as f64 / elapsed_ns(start) as f64);
    }
    figure.record("idle, share of a core", 0, shares);
    figure.count("idle, bytes written", 0, None, (written_bytes(pid)? - before) as f64);
    Ok(())
}

/// Bytes that a process has sent to the disk.
fn written_bytes(pid: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).context("what a process writes cannot be read")?;
    let value = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    value.and_then(|value| value.parse().ok()).context("/proc/PID/io has no write_bytes")
}

/// Sides alternate, with progress.
fn rounds(
    setting: &Setting<'_>,
    what: &str,
    sides: usize,
    mut run: impl FnMut(usize) -> Result<Stretch>,
) -> Result<Vec<Vec<Stretch>>> {
    let (count, mut done) = (setting.rounds(), 0);
    alternate(sides, count, |side, _| {
        done += 1;
        setting.progress.part(&format!("durability: {what}"), done, count * sides);
        run(side)
    })
}

/// So many milliseconds of a quick run, and four times as many of a full one.
fn slice(setting: &Setting<'_>, quick_ms: u64) -> u64 {
    quick_ms * 1_000_000 * if setting.quick { 1 } else { 4 }
}

fn micro(ns: &[f64]) -> String {
    format!("{:.0}", Spread::of(ns).median / 1e3)
}

/// Latency, rate and processor time of a side.
fn line(name: &str, middle: &[f64], tail: &[f64], rounds: &[Stretch]) -> Vec<String> {
    let each = |of: &dyn Fn(&Stretch) -> u64| {
        let each: Vec<f64> =
            rounds.iter().map(|s| of(s) as f64 / (s.rows + s.gets.len() as u64).max(1) as f64).collect();
        format!("{:.2}", Spread::of(&each).median / 1e3)
    };
    let rates: Vec<f64> = rounds.iter().map(Stretch::rows_per_s).collect();
    let rate = format!("{:.1}", Spread::of(&rates).median / 1e3);
    vec![name.to_owned(), micro(middle), micro(tail), rate, each(&|s| s.server_ns), each(&|s| s.client_ns)]
}

fn load_average() -> String {
    fs::read_to_string("/proc/loadavg").unwrap_or_default().split(' ').next().unwrap_or("unknown").to_owned()
}

fn tell(figure: &mut Figure, setting: &Setting<'_>, rows: Vec<Vec<String>>) {
    let way = figure.more["log"]["way"].as_str().unwrap_or("unknown").to_owned();
    let (group, row) = (&figure.more["log"]["group_bytes"], &figure.more["log"]["bytes_a_row"]);
    let (group, row) = (group.as_f64().unwrap_or(0.0) / 1024.0, row.as_f64().unwrap_or(0.0));
    let bytes = figure.more["checkpoint"]["bytes"].as_u64().unwrap_or(0) >> 20;
    let recovered = recovery::rows(setting);
    figure.text = format!(
        "Servers in memory alone and in each durability, side by side, their clients threads of the process that measures; rows of 8 bytes of key \
         and {VALUE_BYTES} of value, {ROWS} in each table; batches of {BATCH_ROWS}, one under way a client. The log is written by {way}; \
         a row takes {row:.0} bytes of it, and groups of 8 clients had {group:.0} KiB. <i>Bare</i> writes go to a file that was written through before, with \
         RWF_DSYNC; those of a group's size {WRITES} at a time, as the log has them. A checkpoint of {bytes} MiB is written beside one client that \
         gets and puts in turn, or scans. Recovery is of {recovered} rows in the order in which they were put, by the server's clock; \
         behind a checkpoint it looks for the log's end, which is counted apart; reading and checksumming goes past the page cache by all processors; inserting is that of one thread into a \
         tree without a server, the rows encoded before. Processor time is said of the server with all its threads, and of the process with \
         all clients."
    );
    let head = ["", "p50 µs", "p99.9 µs", "thousand rows/s", "server CPU µs each", "clients CPU µs each"];
    figure.tables.push(Table {
        caption: "Requests, and what each row or get took of processors".into(),
        head: head.map(str::to_owned).to_vec(),
        rows: rows
            .into_iter()
            .map(|mut row| {
                row.resize(head.len(), "–".into());
                row
            })
            .collect(),
    });
    let chart = |value: &str, scale: f64, all: &[(&str, &[&str])], series: &[&str]| {
        let groups = all.iter().map(|(name, of)| Group {
            name: (*name).to_owned(),
            bars: of.iter().map(|series| bars::of(figure.spread_of(series), scale)).collect(),
        });
        bars::draw(value, series, groups.collect())
    };
    let kept = Kept::ALL.map(Kept::name);
    let names = |what: &str| kept.map(|name| format!("{what}: {name}"));
    let (middle, tail, batched) = (names("one row, p50 ns"), names("one row, p99.9 ns"), names("batches, rows/s"));
    let both: Vec<[&str; 2]> = middle.iter().zip(&tail).map(|(middle, tail)| [&middle[..], tail]).collect();
    let mut one: Vec<(&str, &[&str])> = kept.iter().zip(&both).map(|(name, both)| (*name, &both[..])).collect();
    one.push(("bare write", &["bare write of 4 KiB, p50 ns"]));
    let latency = chart("µs", 1e-3, &one, &["p50", "p99.9"]);
    let single: Vec<[&str; 1]> = batched.iter().map(|name| [&name[..]]).collect();
    let mut rate: Vec<(&str, &[&str])> = kept.iter().zip(&single).map(|(name, one)| (*name, &one[..])).collect();
    rate.push(("bare writes", &["batches, rows/s: bare writes of a group's size"]));
    let rates = chart("million rows/s", 1e-6, &rate, &["8 clients, batches"]);
    let recovery = chart(
        "million rows/s",
        1e-6,
        &[
            ("adopted", &["rows/s: adopted from a checkpoint"]),
            ("read alone", &["rows/s: checkpoint read and checksummed"]),
            ("replayed", &["rows/s: replayed from the log"]),
            ("inserted", &["rows/s: inserted into a tree"]),
        ],
        &["recovery"],
    );
    figure.charts.push((latency, "One client puts one row and waits for the reply.".into()));
    figure.charts.push((rates, "Eight clients put batches, one under way each.".into()));
    figure.charts.push((recovery, "The same rows come back from a checkpoint, from a log, or are inserted.".into()));
}

pub(super) const CLIENTS: u64 = 8;
/// Rows of the tables that requests go to.
pub(super) const ROWS: u64 = 100_000;
const TAIL: f64 = 0.999;
/// Writes that a log has under way at most.
const WRITES: usize = 4;
const IDLE_ROUNDS: usize = 5;
/// Bytes on the disk at most: segments of each log, checkpoints, and the tables that are recovered.
const ROOM: u64 = 7 << 30;
const ROOM_QUICK: u64 = 3 << 30;
