//! `overside volume list` and `overside volume status`

use super::named;
use crate::args::{At, VolumeStatus, Wire};
use crate::output::{self, Grid, grouped};
use anyhow::{Context, Result};
use arrow_schema::TimeUnit;
use overside::volume::wire::{Report, SessionReport, SessionRole, VolumeReport, VolumeState};
use overside_files::calendar;
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};

/// Shows which volumes a node has.
///
/// # Errors
/// Nobody serves there, or standard output is closed.
pub fn list(args: &At) -> Result<()> {
    let report = report(&args.addr, "", &args.network)?;
    if args.json {
        let volumes: Vec<Value> = report
            .volumes
            .iter()
            .map(|volume| {
                let (state, sessions) = (name_of(volume.state), volume.sessions.len());
                json!({
                    "volume": volume.name,
                    "state": state,
                    "layout": volume.layout,
                    "bytes": volume.bytes,
                    "members": volume.members.len(),
                    "sessions": sessions,
                    "writer": writer(volume).map(|session| session.process),
                })
            })
            .collect();
        return output::line(&json!({ "volumes": volumes }).to_string());
    }
    if report.volumes.is_empty() {
        return output::line("no volumes; `overside volume create` makes one");
    }
    let names = ["volume", "state", "layout", "bytes", "members", "clients", "writer"];
    let mut grid = Grid::new(&names, &[false, false, false, true, true, true, false]);
    for volume in &report.volumes {
        grid.push(vec![
            volume.name.clone(),
            name_of(volume.state).to_owned(),
            volume.layout.clone(),
            grouped(volume.bytes),
            volume.members.len().to_string(),
            volume.sessions.len().to_string(),
            writer(volume).map_or("-".to_owned(), |session| format!("process {}", session.process)),
        ]);
    }
    output::text(&grid.render())
}

/// Shows how a node and its volumes do.
///
/// # Errors
/// Nobody serves there, there is no such volume, or standard output is closed.
pub fn run(args: &VolumeStatus) -> Result<()> {
    let (address, volume) = if args.volume.contains('/') { named(&args.volume)? } else { (&args.volume[..], "") };
    let report = report(address, volume, &args.network)?;
    let now = SystemTime::now();
    if args.json {
        let volumes: Vec<Value> = report.volumes.iter().map(|volume| described(volume, now)).collect();
        let json = json!({
            "node": {
                "pid": report.process,
                "incarnation": format!("{:016x}", report.incarnation),
                "up_us": report.up_us,
                "cpu_us": report.cpu_us,
                "max_request": report.request_bytes_max,
            },
            "volumes": volumes,
        });
        return output::line(&json.to_string());
    }
    let seconds = |us: u64| us as f64 / 1e6;
    let (up, cpu) = (seconds(report.up_us), seconds(report.cpu_us));
    let (process, longest) = (report.process, grouped(report.request_bytes_max.into()));
    let node = format!(
        "node: process {process}, up {up:.1} s, {cpu:.2} s of processor time, requests of up to {longest} bytes"
    );
    output::line(&node)?;
    report.volumes.iter().try_for_each(|volume| output::text(&shown(volume, now)))
}

/// What the node says of itself.
pub fn report(address: &str, volume: &str, network: &Wire) -> Result<Report> {
    let node = overside::at(address).network(&network.network());
    node.node_status(volume, PATIENCE).with_context(|| format!("the status of {address} cannot be had"))
}

fn writer(volume: &VolumeReport) -> Option<&SessionReport> {
    volume.sessions.iter().find(|session| session.role == SessionRole::Writer)
}

fn shown(volume: &VolumeReport, now: SystemTime) -> String {
    let counts = &volume.counts;
    let why = if volume.reason.is_empty() { String::new() } else { format!(": {}", volume.reason) };
    let mut text = format!("\n{} is {}{why}\n", volume.name, name_of(volume.state));
    if volume.state == VolumeState::Failed {
        return text;
    }
    let writes = if volume.writes_back { "back" } else { "through" };
    text += &format!("  {} bytes, {}, writes go {writes}\n", grouped(volume.bytes), volume.layout);
    text += &format!(
        "  {} reads of {} bytes, {} writes of {} bytes, {} others, {} failed\n",
        grouped(counts.reads),
        grouped(counts.read_bytes),
        grouped(counts.writes),
        grouped(counts.written_bytes),
        grouped(counts.others),
        grouped(counts.failed),
    );
    if counts.cache_bytes > 0 {
        let (bytes, hits, misses) = (grouped(counts.cache_bytes), grouped(counts.hits), grouped(counts.misses));
        text += &format!("  cache of {bytes} bytes: {hits} hits, {misses} misses\n");
    }
    let mut grid = Grid::new(&["member", "bytes", "state", "checksums"], &[false, true, false, false]);
    for member in &volume.members {
        let state = if member.stale { "stale" } else { "current" };
        let sums = if member.sums { "crc32c" } else { "none" };
        grid.push(vec![member.place.clone(), grouped(member.bytes), state.to_owned(), sums.to_owned()]);
    }
    text += &indented(&grid);
    if volume.sessions.is_empty() {
        return text + "  nobody is attached\n";
    }
    let names = ["client", "role", "requests", "bytes", "under way", "waiting since"];
    let mut grid = Grid::new(&names, &[false, false, true, true, true, false]);
    for session in &volume.sessions {
        let away = if session.connections == 0 { ", away" } else { "" };
        grid.push(vec![
            format!("process {}{away}", session.process),
            role(session.role).to_owned(),
            grouped(session.requests),
            grouped(session.bytes),
            session.in_flight.to_string(),
            waiting_since(session, now).unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    text + &indented(&grid)
}

/// Below its volume's name.
fn indented(grid: &Grid) -> String {
    grid.render().lines().map(|line| format!("  {line}\n")).collect()
}

fn described(volume: &VolumeReport, now: SystemTime) -> Value {
    let counts = &volume.counts;
    let members: Vec<Value> = volume
        .members
        .iter()
        .map(|member| {
            json!({ "place": member.place, "bytes": member.bytes, "stale": member.stale, "checksums": member.sums })
        })
        .collect();
    let sessions: Vec<Value> = volume
        .sessions
        .iter()
        .map(|session| {
            json!({
                "session": format!("{:016x}", session.session),
                "pid": session.process,
                "role": role(session.role),
                "connections": session.connections,
                "in_flight": session.in_flight,
                "waiting_us": session.waiting_us,
                "waiting_since": waiting_since(session, now),
                "requests": session.requests,
                "bytes": session.bytes,
            })
        })
        .collect();
    json!({
        "volume": volume.name,
        "state": name_of(volume.state),
        "reason": volume.reason,
        "layout": volume.layout,
        "writes": if volume.writes_back { "back" } else { "through" },
        "bytes": volume.bytes,
        "reads": counts.reads,
        "writes_done": counts.writes,
        "others": counts.others,
        "failed": counts.failed,
        "read_bytes": counts.read_bytes,
        "written_bytes": counts.written_bytes,
        "cache_bytes": counts.cache_bytes,
        "hits": counts.hits,
        "misses": counts.misses,
        "members": members,
        "sessions": sessions,
    })
}

/// When its oldest request came.
fn waiting_since(session: &SessionReport, now: SystemTime) -> Option<String> {
    let since = now.checked_sub(Duration::from_micros(session.waiting_us?))?;
    let ms = since.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_millis() as i64;
    let mut text = String::new();
    calendar::write_timestamp(ms, &TimeUnit::Millisecond, true, &mut text);
    Some(text)
}

fn name_of(state: VolumeState) -> &'static str {
    match state {
        VolumeState::Ok => "ok",
        VolumeState::Degraded => "degraded",
        VolumeState::Failed => "failed",
    }
}

fn role(role: SessionRole) -> &'static str {
    match role {
        SessionRole::Reader => "reader",
        SessionRole::Writer => "writer",
        SessionRole::Fenced => "fenced",
    }
}

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
