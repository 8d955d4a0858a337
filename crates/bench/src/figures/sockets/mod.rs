//! `sockets`: unmodified programs plainly and under the sockets library
//! (`overside run`), sides alternating.

pub(super) mod installed;
pub(super) mod keeper;
mod pair;
pub(super) mod postgresql;
mod program;
mod redis;
mod table;

use super::{
    Setting,
    figure::Figure,
    messages::{
        self, ANYWHERE, MESSAGE_BYTES, PLACEMENTS, Placement,
        play::{Match, Seats},
    },
};
use crate::measure::{Bar, Ratio, alternate};
use anyhow::{Context, Result, ensure};
use keeper::Keeper;
use pair::{Ends, Pair, side_name};
use program::{Family, Job, STREAM_BYTES};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use std::{ffi::OsString, path::Path};
use table::{Series, SideRounds};

/// The role of this figure's own programs.
pub(super) const ROLE: &str = "figure-sockets";

/// One of the figure's own programs, or who keeps those that are not.
pub(super) fn program(arguments: &[OsString]) -> Result<()> {
    match arguments {
        [role, folder] if role == "keep" => keeper::keep(folder.to_str().context("the folder's name is no text")?),
        _ => program::run(arguments),
    }
}

pub(super) fn measure(setting: &Setting<'_>) -> Result<Figure> {
    let mut figure = Figure::new("sockets", "the kernel, and shared memory", "Sockets of unmodified programs");
    let library = setting.library.context("there is no sockets library")?;
    let mut names: Vec<String> = PLACEMENTS.iter().map(echo_name).collect();
    names.extend([Job::Stream, Job::Connect, Job::Idle].map(|job| job.name().to_owned()));
    names.extend(postgresql::names().chain(redis::names()).map(str::to_owned));
    // Of all figures it may choose among those of another.
    ensure!(
        !setting.installed || names.iter().any(|name| setting.wants(name)),
        "no series of sockets has that in its name; --only chooses among {}",
        names.join(", ")
    );
    let mut all = Vec::new();
    for placement in PLACEMENTS.into_iter().filter(|placement| setting.wants(&echo_name(placement))) {
        all.push(echo(setting, library, placement)?);
    }
    for job in [Job::Stream, Job::Connect].into_iter().filter(|job| setting.wants(job.name())) {
        all.push(own(setting, library, job)?);
    }
    if setting.installed {
        programs(setting, library, &mut all, &mut figure)?;
    }
    for series in &all {
        series.record(&mut figure);
        figure.tables.push(series.table());
    }
    bars(setting, &mut figure, &all);
    if setting.wants(Job::Idle.name()) {
        idle(setting, library, &mut figure)?;
    }
    figure.more.insert("series".into(), all.iter().map(Series::data).collect());
    figure.text = format!(
        "Two processes each, unmodified: they know the C library's sockets. Plainly they go through the kernel, under the library \
         (<code>overside run</code>) over shared memory where it carries them. <i>Echo</i>: {MESSAGE_BYTES} bytes there and back, one \
         at a time, on two processors with nothing else to do, pinned to one, and on two beside two other programs that never \
         sleep. <i>Bare</i> is what shared memory gives with nothing around it: a ring whose two ends spin, and a word that the kernel \
         hands over (a futex). <i>Stream</i>: {} KiB after another, one way. <i>Connect</i>: a connection for one exchange of \
         {MESSAGE_BYTES} bytes, and the next. Processor time is that of both processes. Ratios are of paired rounds.",
        STREAM_BYTES >> 10
    );
    Ok(figure)
}

/// Programs that nobody here wrote; what is absent is skipped and said.
fn programs(setting: &Setting<'_>, library: &Path, all: &mut Vec<Series>, figure: &mut Figure) -> Result<()> {
    let mut keeper = Keeper::start()?;
    let library = installed::copied(&keeper, library)?;
    let mut skipped = Vec::new();
    match postgresql::measure(setting, &mut keeper, &library).context("PostgreSQL")? {
        Ok(series) => all.extend(series),
        Err(why) => skipped.push(format!("PostgreSQL ({why})")),
    }
    match redis::measure(setting, &mut keeper, &library).context("redis")? {
        Some(series) => all.extend(series),
        None => skipped.push("redis (not installed)".into()),
    }
    if !skipped.is_empty() {
        figure.more.insert("skipped".into(), skipped.join(", ").into());
    }
    Ok(())
}

/// Plainly and under the library, over both families.
fn pairs(seats: &Seats, library: &Path, job: Job) -> Result<Vec<Pair>> {
    let ways = [Family::Tcp, Family::Unix].into_iter().flat_map(|family| [(family, None), (family, Some(library))]);
    ways.map(|(family, library)| Pair::start(seats, job, family, library)).collect()
}

fn echo_name(placement: &Placement) -> String {
    format!("echo, {}", placement.name)
}

fn echo(setting: &Setting<'_>, library: &Path, placement: Placement) -> Result<Series> {
    let seats = placement.take()?;
    let bare = messages::bare_sides(&seats)?;
    alternately(setting, echo_name(&placement), bare, pairs(&seats, library, Job::Echo)?)
}

fn own(setting: &Setting<'_>, library: &Path, job: Job) -> Result<Series> {
    let seats = ANYWHERE.take()?;
    alternately(setting, job.name().to_owned(), Vec::new(), pairs(&seats, library, job)?)
}

fn alternately(setting: &Setting<'_>, name: String, mut bare: Vec<Match>, mut pairs: Vec<Pair>) -> Result<Series> {
    let (rounds, sides) = (setting.rounds(), bare.len() + pairs.len());
    let slice_ns = if setting.quick { 20_000_000 } else { 60_000_000 };
    let mut done = 0;
    let samples = alternate(sides, rounds, |side, _| {
        done += 1;
        setting.progress.part(&format!("sockets, {name}"), done, rounds * sides);
        match bare.get_mut(side) {
            Some(bare) => bare.play(slice_ns, MESSAGE_BYTES),
            None => pairs[side - bare.len()].play(slice_ns),
        }
    })?;
    let names: Vec<String> =
        bare.iter().map(|side| side.name.clone()).chain(pairs.iter().map(|side| side.name.clone())).collect();
    let mut ends = vec![None; bare.len()];
    for pair in pairs {
        ends.push(Some(pair.end()?));
    }
    let side = |((name, stretches), ends)| SideRounds { name, stretches, ends };
    Ok(Series { name, sides: names.into_iter().zip(samples).zip(ends).map(side).collect() })
}

fn bars(setting: &Setting<'_>, figure: &mut Figure, all: &[Series]) {
    let tcp = |library| side_name(Family::Tcp, library);
    let unix = |library| side_name(Family::Unix, library);
    let (ring, futex) = (messages::SPIN.to_owned(), messages::FUTEX.to_owned());
    let two = messages::play::Pinned::processors() >= 2;
    let name = |placement: usize| echo_name(&PLACEMENTS[placement]);
    let wanted = [
        (name(0), tcp(true), ring, 0.4),
        (name(1), tcp(true), futex, 0.7),
        (name(1), unix(true), unix(false), 1.3),
        (name(1), tcp(true), tcp(false), 1.7),
        (name(2), unix(true), unix(false), 1.0),
        (name(2), tcp(true), unix(false), 1.0),
        ("stream".into(), tcp(true), tcp(false), 2.0),
        ("connect".into(), tcp(true), tcp(false), 0.9),
        (SELECT_1.into(), tcp(true), tcp(false), 2.0),
        (SELECT_1.into(), unix(true), unix(false), 1.2),
        (TPC_B_1.into(), tcp(true), tcp(false), 1.0),
        (TPC_B_1.into(), unix(true), unix(false), 1.0),
        (SELECT_8.into(), tcp(true), tcp(false), 1.15),
        (SELECT_8.into(), unix(true), unix(false), 1.0),
        (REPLAY.into(), tcp(true), tcp(false), 1.56),
        (GET_1.into(), tcp(true), tcp(false), 2.0),
        (GET_50.into(), tcp(true), tcp(false), 1.0),
    ];
    // What nobody asked for is not missing.
    for (series, ours, theirs, least) in wanted.into_iter().filter(|(series, ..)| setting.wants(series)) {
        // With one processor in all there is no such placement.
        let possible = two || series == name(1);
        let measured = all.iter().find(|other| other.name == series).filter(|_| possible);
        let ratio = measured.and_then(|series| series.ratio(&ours, &theirs));
        figure.bars.push(Bar::at_least(format!("{series}: {ours} over {theirs}"), least, ratio));
    }
}

/// What connections cost that have met and do nothing.
fn idle(setting: &Setting<'_>, library: &Path, figure: &mut Figure) -> Result<()> {
    let wanted = if setting.quick { CONNECTIONS / 10 } else { CONNECTIONS };
    let count = wanted.min(descriptors(wanted + SPARE).saturating_sub(SPARE));
    let mut cost = Vec::new();
    let mut ends = Ends::default();
    for library in [None, Some(library)] {
        setting.progress.say("sockets, idle");
        let mut pair = Pair::start(&ANYWHERE.take()?, Job::Idle, Family::Tcp, library)?;
        // What the first one costs is not each one's.
        pair.play(1)?;
        let before = pair.memory()?;
        pair.play(count)?;
        cost.push(pair.memory()?.saturating_sub(before));
        ends = pair.end()?;
    }
    let more = cost[1].saturating_sub(cost[0]);
    // Where anything is in doubt a connection stays with the kernel, and costs nothing more.
    let in_rings = count as f64 * ends.in_rings as f64 / ends.all.max(1) as f64;
    let all = more as f64 * CONNECTIONS as f64 / in_rings.max(1.0);
    let nearly_all = ends.in_rings > 0 && ends.in_rings * 100 >= ends.all * 99;
    let ratio = Ratio::of(&[MEMORY_BAR / all.max(1.0)]).filter(|_| nearly_all);
    let mut name =
        format!("64 MiB over the memory of {CONNECTIONS} idle accelerated connections ({:.1} MiB", all / MIB);
    name += &match count {
        CONNECTIONS => ")".into(),
        _ if count < wanted => format!(", from {count}: no more descriptors are allowed)"),
        _ => format!(", from {count})"),
    };
    figure.bars.push(Bar::at_least(name, 1.0, ratio));
    figure.more.insert(
        "idle".into(),
        json!({"connections": count, "bytes_plain": cost[0], "bytes_library": cost[1],
               "ends": ends.all, "ends_in_rings": ends.in_rings, "why_not": ends.why_not, "mib_for_10000": all / MIB}),
    );
    Ok(())
}

/// How many descriptors processes that are started from here may have open:
/// `wanted`, where that can be had.
fn descriptors(wanted: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < wanted) {
        // Who may not raise it keeps what there is.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.current, maximum: Some(wanted) });
    }
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// Series of programs for which there are bars.
const SELECT_1: &str = "pgbench select-only, prepared, 1 client";
const SELECT_8: &str = "pgbench select-only, prepared, 8 clients";
const TPC_B_1: &str = "pgbench TPC-B, prepared, 1 client";
const TPC_B_8: &str = "pgbench TPC-B, prepared, 8 clients";
/// These two differ in nothing but where the connection is set up: once, or for each transaction.
const TPC_B_KEPT: &str = "pgbench TPC-B, simple, 1 client";
const TPC_B_AGAIN: &str = "pgbench TPC-B, simple, 1 client, a connection each";
const REPLAY: &str = "psql replays a session of pgbench";
const GET_1: &str = "redis GET, 1 client";
const GET_50: &str = "redis GET, 50 clients";
const CONNECTIONS: u64 = 10_000;
/// Descriptors for other things.
const SPARE: u64 = 100;
const MIB: f64 = (1 << 20) as f64;
const MEMORY_BAR: f64 = 64.0 * MIB;
