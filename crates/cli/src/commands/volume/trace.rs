//! `overside volume trace`

use super::attach::{GOODBYE_PATIENCE, by_nbd};
use super::named;
use crate::args::{CacheRoom, RecordTrace, ReplayTrace, Trace, TraceCommand};
use crate::output::{self, Grid, grouped};
use crate::signals::Doorbell;
use anyhow::{Context, Result, bail};
use overside::vault::cache::PolicyKind;
use overside::vault::fronts::nbd::NbdSocket;
use overside::vault::trace::{Recorder, TraceRequest, belady, replay};
use overside::verbs::SystemClock;
use overside::volume::client::LinkOptions;
use overside::volume::wire::Role;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter};
use std::path::Path;

/// Records a trace, or shows what policies make of one.
///
/// # Errors
/// As each of them.
pub fn run(args: &Trace) -> Result<()> {
    match &args.what {
        TraceCommand::Record(args) => record(args),
        TraceCommand::Replay(args) => replayed(args),
    }
}

fn record(args: &RecordTrace) -> Result<()> {
    let doorbell = Doorbell::new()?;
    let (_, name) = named(&args.at.volume)?;
    let role = if args.read_only { Role::Reader } else { Role::Writer };
    let options = LinkOptions { role, ..LinkOptions::default() };
    // Before the node lets this side in, as `attach` does.
    let socket = NbdSocket::bind(&args.nbd)?;
    let volume = super::attach(&args.at, options)?;
    let out = File::create_new(&args.file).with_context(|| format!("{} cannot be made", args.file.display()))?;
    let handle = volume.handle();
    let (recorder, trace) = Recorder::over(volume, BufWriter::new(out));
    let device = by_nbd((socket, &args.nbd), name, Box::new(recorder), doorbell, |uri| match args.at.json {
        true => output::line(&json!({ "attached": args.at.volume, "nbd": uri, "pid": std::process::id() }).to_string()),
        false => output::line(&format!("{} is attached, and what it is asked for is recorded: {uri}", args.at.volume)),
    })?;
    if let Some(mut device) = device {
        handle.close(&mut *device, &SystemClock, GOODBYE_PATIENCE);
    }
    let requests = trace.written().with_context(|| format!("{} lacks requests", args.file.display()))?;
    match args.at.json {
        true => output::line(&json!({ "trace": args.file, "requests": requests }).to_string()),
        false => output::line(&format!("{} requests are in {}", grouped(requests), args.file.display())),
    }
}

fn replayed(args: &ReplayTrace) -> Result<()> {
    let accesses = accesses(&args.file, args.block as u64)?;
    let touched = accesses.iter().collect::<BTreeSet<_>>().len();
    let blocks = match args.cache {
        CacheRoom::Bytes(bytes) => bytes / args.block,
        CacheRoom::Percent(percent) => (touched as f64 * percent / 100.0) as usize,
    };
    if blocks == 0 {
        bail!("the cache has no room for a block of {} bytes; give it more (--cache)", args.block);
    }
    let kinds = PolicyKind::ALL.into_iter().filter(|kind| args.policy == "all" || kind.name() == args.policy);
    let ratios = kinds.map(|kind| (kind.name(), replay(kind, blocks, accesses.iter().copied()).hit_ratio()));
    let ratios = ratios.chain([("belady", belady(blocks, &accesses).hit_ratio())]);
    if args.json {
        let ratios: Map<String, Value> = ratios.map(|(name, ratio)| (name.to_owned(), json!(ratio))).collect();
        let json = json!({
            "trace": args.file,
            "accesses": accesses.len(),
            "blocks_touched": touched,
            "block_bytes": args.block,
            "cache_blocks": blocks,
            "hit_ratio": ratios,
        });
        return output::line(&json.to_string());
    }
    let (all, touched, room) = (grouped(accesses.len() as u64), grouped(touched as u64), grouped(blocks as u64));
    output::line(&format!("{all} accesses to {touched} blocks of {} bytes; {room} fit the cache", args.block))?;
    let mut grid = Grid::new(&["policy", "hit ratio"], &[false, true]);
    ratios.for_each(|(name, ratio)| grid.push(vec![name.to_owned(), format!("{ratio:.4}")]));
    output::text(&grid.render())
}

/// The blocks that a trace touches, in order.
fn accesses(path: &Path, block_bytes: u64) -> Result<Vec<u64>> {
    let mut accesses = Vec::new();
    requests(path, |request| {
        accesses.extend(request.blocks(block_bytes));
        Ok(())
    })?;
    Ok(accesses)
}

/// Hands over a trace's requests, in order. What `take` refuses is said with its line.
///
/// # Errors
/// The file cannot be read, a line is no request or is refused, or there is none.
pub(super) fn requests(path: &Path, mut take: impl FnMut(TraceRequest) -> Result<()>) -> Result<()> {
    let file = File::open(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let mut is_empty = true;
    for (number, line) in BufReader::new(file).lines().enumerate() {
        let at = || format!("{}, line {}", path.display(), number + 1);
        if let Some(request) = TraceRequest::parse(&line.with_context(at)?).with_context(at)? {
            take(request).with_context(at)?;
            is_empty = false;
        }
    }
    if is_empty {
        bail!("{} has no requests", path.display());
    }
    Ok(())
}
