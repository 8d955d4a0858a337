//! `overside calibrate`

use crate::args::Calibrate;
use crate::output::{self, Grid, Progress};
use crate::signals::Signals;
use anyhow::{Context, Result, bail};
use overside::calibrate::{self, Calibration, Effort, Misses, Processors, Store};
use overside::planner::{Distance, Profile};
use overside::verbs::Provider;
use overside::{Address, Transport, prices};
use overside_bench::figures::{PricesApart, prices_apart};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

/// Measures one provider or all, shows the prices and stores them.
///
/// # Errors
/// A provider cannot be had or measured, or the prices cannot be stored; a signal came, and nothing
/// was stored.
pub fn run(args: &Calibrate, signals: &Signals) -> Result<()> {
    let store = Store::of_user()?;
    let with_key = args.network.key_file.is_some();
    let all = Transport::all().filter(|transport| transport.is_here() && (transport.prices_tags || !with_key));
    let transports: Vec<&str> = match &args.provider {
        Some(one) => vec![one],
        None => all.map(|transport| transport.name).collect(),
    };
    // Read before anything is measured: what cannot be read is said at once.
    let before = args.against.as_deref().map(calibrate::read).transpose()?;
    let (mut all, mut refused) = (Vec::new(), Vec::new());
    for transport in transports {
        let address = prices::unused(transport)?;
        let network = args.network.network();
        let provider = address.provider(&network)?;
        let mut found = measure(&address, &provider, signals)?;
        signals.check()?;
        let label = prices::label(&address, &network);
        let measured_elsewhere = found.profile.elsewhere.is_some();
        // What cannot be read says so when prices are needed, and is replaced now.
        if let Ok(Some(stored)) = store.load(&label) {
            found.profile = found.profile.with_elsewhere_of(&stored);
        }
        let doubt = found.doubt();
        let keep = !args.dry_run && (doubt.is_none() || args.force);
        let path = if keep { Some(store.save(&label, &found.profile)?) } else { None };
        let apart = match &before {
            Some(before) => {
                let line_ns = found.profile.bends.line_ns;
                let alike = before.at(Some(line_ns).filter(|ns| *ns > 0.0));
                Some(prices_apart(&provider.capabilities(), alike, &found.profile)?)
            }
            None => None,
        };
        if args.json {
            all.push(described(&label, &found, path, apart.as_ref()));
        } else {
            shown(&label, &found, args, path, apart.as_ref(), measured_elsewhere)?;
        }
        refused.extend(doubt.filter(|_| !keep && !args.dry_run).map(|doubt| format!("{label}: {doubt}")));
    }
    if args.json {
        output::line(&json!({ "calibrations": all }).to_string())?;
    }
    if !refused.is_empty() {
        bail!(
            "nothing was stored of {}; calibrate again when the machine is quiet, or store it with --force",
            refused.join("; ")
        );
    }
    Ok(())
}

fn measure(address: &Address, provider: &Arc<dyn Provider>, signals: &Signals) -> Result<Calibration> {
    let transport = address.transport().name;
    let progress = Progress::new("calibrating", 1000);
    let found = calibrate::calibrate(provider, address.name(), Effort::Full, &mut |part| {
        progress.at((part * 1000.0) as u64, || transport.to_owned());
        signals.check().is_ok()
    });
    progress.clear();
    if matches!(found, Err(calibrate::Error::Stopped)) {
        signals.check()?;
    }
    found.with_context(|| format!("{transport} could not be measured"))
}

fn shown(
    label: &str,
    found: &Calibration,
    args: &Calibrate,
    path: Option<PathBuf>,
    apart: Option<&PricesApart>,
    measured_elsewhere: bool,
) -> Result<()> {
    let profile = &found.profile;
    output::line(&format!("{label}: {} points in {:.1} s", found.seen.len(), found.took.as_secs_f64()))?;
    output::line(&format!(
        "  a request {:.0} ns sent, {:.0} ns received; with a transmit buffer {:.0} ns more",
        profile.send_request_ns, profile.receive_request_ns, profile.pack_request_ns
    ))?;
    if let Some(at) = &found.processors {
        let (ns, part) = (at.round_trip_ns, at.part * 100.0);
        output::line(&format!(
            "  between processors that a cache line crosses and comes back in {ns:.0} ns, as {part:.0} % of the samples were"
        ))?;
    }
    if let Some(words) = elsewhere(found, measured_elsewhere) {
        output::line(&format!("  {words}"))?;
    }
    let busy = profile.bends.both_busy;
    output::line(&format!("  work at one end takes {busy:.2} times as long while the other works as well"))?;
    output::text(&by_length(profile).render())?;
    if let Some(bitmaps) = by_width(profile) {
        output::text(&bitmaps.render())?;
    }
    output::line(&format!("  prices against what they were made from: {}", percent(&found.fitted)))?;
    if let Some(held_out) = &found.held_out {
        output::line(&format!("  against points that were held out:      {}", percent(held_out)))?;
    }
    output::line(&format!("  the first half of the time against the second: {}", percent(&found.halves)))?;
    if let (Some(apart), Some(file)) = (apart, &args.against) {
        output::line(&format!("  against {}: {}", file.display(), apart.in_words()))?;
    }
    // Where it keeps the prices from being stored, it is the error.
    if let Some(doubt) = found.doubt().filter(|_| args.dry_run || args.force) {
        output::line(&format!("  {doubt}: calibrate again when the machine is quiet"))?;
    }
    match path {
        Some(path) => output::line(&format!("  stored in {}", path.display())),
        None if args.dry_run => output::line("  not stored (--dry-run)"),
        None => Ok(()),
    }
}

fn processors(at: Processors) -> Value {
    json!({"round_trip_ns": at.round_trip_ns, "part": at.part})
}

/// What is known of the other distance between the processors.
fn elsewhere(found: &Calibration, measured: bool) -> Option<String> {
    let kept = found.profile.elsewhere.as_ref().map(|prices| prices.bends.line_ns);
    let seen = found.elsewhere.map(|at| format!("{:.0} % came back in {:.0} ns", at.part * 100.0, at.round_trip_ns));
    Some(match (seen, kept) {
        (Some(seen), Some(_)) if measured => format!("{seen}, and have prices of their own"),
        (Some(seen), Some(_)) => format!("{seen}: too few, so the prices of before are kept for them"),
        (Some(seen), None) => format!("{seen}: too few for prices of their own; calibrate again to add them"),
        (None, Some(line_ns)) => {
            format!("the prices of before are kept for where a line takes {line_ns:.0} ns to come")
        }
        (None, None) => return None,
    })
}

/// What a piece costs by its length, in nanoseconds.
fn by_length(profile: &Profile) -> Grid {
    let names = ["  bytes", "sent", "packed", "in cache", "near", "far", "received", "near", "once packed"];
    let mut grid = Grid::new(&names, &[true; 9]);
    let near = Distance::of_gap(0.0);
    for bytes in [8u64, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10] {
        let lines = [
            profile.send(bytes, false),
            profile.pack(bytes, false),
            profile.pack(bytes, true),
            profile.pack_regular(bytes, near),
            profile.pack_regular(bytes, Distance::SCATTERED),
            profile.receive(bytes),
            profile.receive_regular(bytes, near),
            profile.receive_packed(bytes),
        ];
        let costs = lines.iter().map(|line| format!("{:.1}", line.at(1.0, bytes as f64)));
        grid.push(std::iter::once(output::grouped(bytes)).chain(costs).collect());
    }
    grid
}

/// What packing a bitmapped column costs by the width of its values.
fn by_width(profile: &Profile) -> Option<Grid> {
    let mut grid = Grid::new(&["  width", "a row", "a run of set rows"], &[true; 3]);
    for (width, _) in profile.bends.bitmap_row.points() {
        let (row, run) = profile.pack_bitmapped(*width)?;
        grid.push(vec![width.to_string(), format!("{row:.2}"), format!("{run:.2}")]);
    }
    (grid.len() > 0).then_some(grid)
}

fn percent(misses: &Misses) -> String {
    let [median, p90, worst] = [misses.median, misses.p90, misses.worst].map(|part| part * 100.0);
    format!("{median:.1} % off in the median, {p90:.1} % at nine tenths, {worst:.1} % at most")
}

fn described(label: &str, found: &Calibration, path: Option<PathBuf>, apart: Option<&PricesApart>) -> Value {
    let misses = |misses: &Misses| json!({"median": misses.median, "p90": misses.p90, "worst": misses.worst});
    let points: Vec<Value> = found
        .seen
        .iter()
        .map(|seen| {
            json!({
                "what": seen.point.case.describe(),
                "way": seen.point.way.to_string(),
                "warm": seen.point.warm,
                "held_out": seen.point.held_out,
                "seen_ns": {"sender": seen.cost.sender_ns, "receiver": seen.cost.receiver_ns, "wall": seen.cost.wall_ns},
                "predicted_ns": {"sender": seen.predicted.sender_ns, "receiver": seen.predicted.receiver_ns},
                "samples": seen.samples.0,
                "undisturbed": seen.samples.1,
            })
        })
        .collect();
    json!({
        "provider": label,
        "took_s": found.took.as_secs_f64(),
        "profile": found.profile.to_string(),
        "fitted": misses(&found.fitted),
        "held_out": found.held_out.as_ref().map(misses),
        "halves": misses(&found.halves),
        "processors": found.processors.map(processors),
        "elsewhere": found.elsewhere.map(processors),
        "doubt": found.doubt().map(|doubt| doubt.to_string()),
        "against": apart,
        "points": points,
        "stored": path.map(|path| path.display().to_string()),
    })
}
