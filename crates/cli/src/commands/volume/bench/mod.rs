//! `overside volume bench`

mod load;
mod pattern;

use super::trace::requests;
use super::{attach, going, named, processor_time, status};
use crate::args::BenchVolume;
use crate::output::{self, grouped};
use crate::signals::{Interrupted, Signals};
use anyhow::{Result, bail, ensure};
use load::{CLOSE_PATIENCE, Load, Mix, Outcome, Plan};
use overside::vault::trace::TraceRequest;
use overside::volume::client::LinkOptions;
use overside::volume::wire::{Report, Role};
use overside::volume::{Completions, Device, Geometry};
use serde_json::json;
use std::path::Path;
use std::time::Duration;

/// Reads and writes a volume at random places, and says how fast that went.
///
/// # Errors
/// The volume cannot be attached, requests failed, or what was read is not what was written.
/// Results come first where there are any.
pub fn run(args: &BenchVolume) -> Result<()> {
    let (address, name) = named(&args.at.volume)?;
    let trace = args.trace.as_deref().map(recorded).transpose()?;
    let mix = match &trace {
        Some(trace) if trace.iter().any(|request| request.writes) => Mix::Both,
        Some(_) => Mix::Reads,
        None => Mix::parse(&args.rw),
    };
    let role = match mix {
        Mix::Reads => Role::Reader,
        _ if args.take_over => Role::TakeOver,
        _ => Role::Writer,
    };
    let give_up = args.give_up.map(|seconds| Duration::from_secs(seconds.into()));
    let options = going(&args.ways, LinkOptions { role, give_up, ..LinkOptions::default() });
    let signals = Signals::take()?;
    let longest = trace.iter().flatten().map(|request| request.bytes).max();
    let (bs, depth) = (longest.unwrap_or(args.bs as u64), usize::from(args.depth));
    ensure!(
        bs * depth as u64 <= BUFFERS_BYTES_MAX,
        "a request's bytes times --depth are more than a GiB; ask for less at once"
    );
    let volume = attach(&args.at, options)?;
    if let Err(refused) = fits(args, bs, volume.geometry()) {
        // So that nobody waits for its place.
        volume.close(CLOSE_PATIENCE);
        return Err(refused);
    }
    let handle = volume.handle();
    let node = || status::report(address, name, &args.at.network).ok();
    let before = (node(), processor_time());
    let time = args.time.or(trace.is_none().then_some(TIME_S)).map(|seconds| Duration::from_secs(seconds.into()));
    let plan = Plan { mix, bs, depth, time, verifies: args.verify, seed: args.seed };
    let completions = match &args.completions[..] {
        "interrupt" => Completions::Interrupt,
        "poll" => Completions::Poll,
        _ => Completions::Auto,
    };
    let mut load = Load::new(volume, plan, completions, trace)?;
    let outcome = load.run(&signals)?;
    let client = processor_time().saturating_sub(before.1);
    let after = node();
    load.close();
    let figures = Figures {
        reconnects: handle.reconnects(),
        granted: handle.granted(),
        deregistrations: handle.deregistrations(),
        client_us: per(client.as_micros() as u64, outcome.ios()),
        node_us: spent(before.0.as_ref(), after.as_ref()).and_then(|us| per(us, outcome.ios())),
        outcome,
    };
    figures.show(args)?;
    figures.judge()
}

/// Whether there can be such requests of the volume.
fn fits(args: &BenchVolume, bs: u64, geometry: Geometry) -> Result<()> {
    let (unit, all) = (geometry.unit_bytes, geometry.bytes);
    if let Some(path) = &args.trace {
        return requests(path, |TraceRequest { offset, bytes, .. }| {
            let whole = offset.is_multiple_of(unit) && bytes.is_multiple_of(unit);
            let within = bytes > 0 && offset.checked_add(bytes).is_some_and(|end| end <= all);
            ensure!(
                whole && within,
                "{bytes} bytes at {offset} are no units of {unit} bytes, or lie past the volume's {}",
                grouped(all)
            );
            Ok(())
        });
    }
    ensure!(
        bs.is_multiple_of(unit) && bs <= all,
        "--bs must be a multiple of {unit} and at most the volume's {} bytes",
        grouped(all)
    );
    Ok(())
}

/// A trace, whole.
fn recorded(path: &Path) -> Result<Vec<TraceRequest>> {
    let mut all = Vec::new();
    requests(path, |request| {
        all.push(request);
        Ok(())
    })?;
    Ok(all)
}

/// Processor time of the node between two reports of the same life.
fn spent(before: Option<&Report>, after: Option<&Report>) -> Option<u64> {
    let (before, after) = (before?, after?);
    (before.incarnation == after.incarnation).then(|| after.cpu_us.saturating_sub(before.cpu_us))
}

fn per(us: u64, ios: u64) -> Option<f64> {
    (ios > 0).then(|| us as f64 / ios as f64)
}

struct Figures {
    outcome: Outcome,
    reconnects: u64,
    /// WRITEs whose bytes the node read from this process's memory.
    granted: u64,
    deregistrations: u64,
    client_us: Option<f64>,
    /// None where the node was started anew meanwhile.
    node_us: Option<f64>,
}

impl Figures {
    fn show(&self, args: &BenchVolume) -> Result<()> {
        let Outcome { reads, writes, took, latencies, corrupt, errors, checked, is_interrupted, .. } = &self.outcome;
        let seconds = took.as_secs_f64();
        let iops = if seconds > 0.0 { self.outcome.ios() as f64 / seconds } else { 0.0 };
        let us = |quantile| latencies.value_at_quantile(quantile) as f64 / 1000.0;
        let (p50, p99) = (us(0.5), us(0.99));
        if args.at.json {
            let json = json!({
                "volume": args.at.volume,
                "rw": args.trace.is_none().then_some(&args.rw),
                "bs": args.trace.is_none().then_some(args.bs),
                "trace": args.trace,
                "depth": args.depth,
                "seconds": seconds,
                "reads": reads,
                "writes": writes,
                "iops": iops,
                "p50_us": p50,
                "p99_us": p99,
                "cpu_us_per_io": { "client": self.client_us, "node": self.node_us },
                "verified": args.verify.then_some(checked),
                "corrupt": args.verify.then_some(corrupt),
                "errors": errors,
                "granted": self.granted,
                "deregistrations": self.deregistrations,
                "reconnects": self.reconnects,
                "interrupted": is_interrupted,
            });
            return output::line(&json.to_string());
        }
        let cpu = |us: Option<f64>| us.map_or("unknown".to_owned(), |us| format!("{us:.1} µs"));
        output::text(&format!(
            "{} requests in {seconds:.1} s: {} reads, {} writes of {}, {} under way\n\
             iops     {}\n\
             p50      {p50:.1} µs\n\
             p99      {p99:.1} µs\n\
             cpu/io   {} here, {} in the node\n",
            grouped(self.outcome.ios()),
            grouped(*reads),
            grouped(*writes),
            args.trace
                .as_ref()
                .map_or_else(|| format!("{} bytes", grouped(args.bs as u64)), |trace| trace.display().to_string()),
            args.depth,
            grouped(iops as u64),
            cpu(self.client_us),
            cpu(self.node_us),
        ))?;
        if args.verify {
            output::line(&format!(
                "verified {} sectors, of which {} are corrupt",
                grouped(*checked),
                grouped(*corrupt)
            ))?;
        }
        output::line(&format!("{} requests failed; connected again {} times", grouped(*errors), self.reconnects))
    }

    /// The command fails where the volume has.
    fn judge(&self) -> Result<()> {
        let Outcome { corrupt, errors, first_corrupt, first_error, is_interrupted, .. } = &self.outcome;
        if let Some(first) = first_corrupt {
            bail!("{corrupt} sectors are not what was written; the first: {first}");
        }
        if let Some(first) = first_error {
            bail!("{errors} requests failed; the first: {first}");
        }
        if *is_interrupted {
            return Err(Interrupted.into());
        }
        Ok(())
    }
}

/// Seconds, unless said.
const TIME_S: u32 = 10;
const BUFFERS_BYTES_MAX: u64 = 1 << 30;
