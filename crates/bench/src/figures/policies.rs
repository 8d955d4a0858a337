//! `policies`: what each policy of a node's cache makes of a trace, beside the best
//! that there can be (Belady).
//!
//! Nothing is timed: the same traces give the same numbers on every machine.

use super::{
    Setting,
    charts::{Curve, Curves, curves},
    figure::{Figure, Table},
};
use crate::svg::Scale;
use anyhow::{Context, Result, ensure};
use overside::vault::{
    cache::{CacheOptions, PolicyKind},
    trace::{TraceRequest, belady, replay},
};
use overside_evidence::SplitMix64;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

/// Blocks that are accessed, in their order.
struct Trace {
    name: &'static str,
    says: &'static str,
    accesses: Vec<u64>,
}

pub(super) fn measure(setting: &Setting<'_>) -> Result<Figure> {
    let mut figure = Figure::new("policies", "none", "Policies of a Node's Cache");
    let mut traces = made(if setting.quick { 2_000 } else { 20_000 });
    if let Some(path) = setting.trace {
        traces.push(Trace { name: GIVEN, says: "the file that was given", accesses: read(path)? });
    }
    let all = traces.len() * SHARES.len();
    for (number, trace) in traces.iter().enumerate() {
        let touched = distinct(&trace.accesses);
        for (at, share) in SHARES.into_iter().enumerate() {
            setting.progress.part("policies", number * SHARES.len() + at + 1, all);
            ratios(&mut figure, trace, share, (touched * share as usize / 100).max(1))?;
        }
        let warmest = concentrated(&trace.accesses);
        figure.count(&format!("{}: accesses to the warmest fifth, share", trace.name), 0, None, warmest);
    }
    let default = CacheOptions::default().policy;
    figure.text = format!(
        "Hit ratios of the policies that <code>overside volume serve --policy</code> has, by the cache's share of the blocks that a trace \
         touches; {default} is used unless another one is asked for. Belady's policy knows what comes. {}.",
        traces.iter().map(|trace| format!("<i>{}</i>: {}", trace.name, trace.says)).collect::<Vec<_>>().join("; ")
    );
    for trace in &traces {
        figure.tables.push(table(&figure, trace));
        let mut chart = Curves::new("hits of a hundred", "blocks of a hundred that the cache holds", Scale::Log);
        for (colour, policy) in DRAWN.into_iter().enumerate() {
            let places = counts(&figure, &format!("{}: {policy}", trace.name));
            chart.add(Curve::values(policy, colour, places.map(|(x, hits)| (x, 100.0 * hits)).collect()));
        }
        figure.charts.push((curves(&chart), format!("Trace {}: {}.", trace.name, trace.says)));
    }
    Ok(figure)
}

/// What each policy makes of a trace in a cache of so many blocks.
fn ratios(figure: &mut Figure, trace: &Trace, share: u64, blocks: usize) -> Result<()> {
    let best = belady(blocks, &trace.accesses);
    for kind in PolicyKind::ALL {
        let found = replay(kind, blocks, trace.accesses.iter().copied());
        ensure!(found.hits <= best.hits, "{kind} beats the best there can be on {}: one of both is wrong", trace.name);
        figure.count(&format!("{}: {kind}", trace.name), share, None, found.hit_ratio());
    }
    figure.count(&format!("{}: {BELADY}", trace.name), share, None, best.hit_ratio());
    Ok(())
}

/// Traces over so many blocks, ten times as long.
fn made(blocks: u64) -> Vec<Trace> {
    let count = 10 * blocks as usize;
    let mut random = SplitMix64(0x0DB5);
    let mut zipf = Zipf::new(blocks);
    let skewed: Vec<u64> = (0..count).map(|_| zipf.next(&mut random)).collect();
    // Each fifth of it is followed by a pass over blocks that do not come again.
    let mut scanned = Vec::new();
    for (number, part) in skewed.chunks(count / 5).enumerate() {
        scanned.extend(part);
        let first = blocks * (number as u64 + 1);
        scanned.extend(first..first + blocks / 2);
    }
    let looped = (0..count as u64).map(|number| number % blocks).collect();
    // Some accesses as they come, some round and round, some once.
    let mixed = (0..count as u64)
        .map(|number| match random.below(10) {
            0..=5 => skewed[number as usize],
            6..=8 => blocks + number % (blocks / 5),
            _ => 2 * blocks + number,
        })
        .collect();
    let behind = misses(blocks as usize / 20, &skewed);
    vec![
        Trace { name: "zipf", says: "few blocks often and many seldom, by the law of Zipf", accesses: skewed },
        Trace {
            name: "scan",
            says: "the same, and now and then a pass over blocks that do not come again",
            accesses: scanned,
        },
        Trace { name: "loop", says: "all blocks, round and round", accesses: looped },
        Trace { name: "mixed", says: "all of these at once", accesses: mixed },
        Trace {
            name: SECOND,
            says: "what the cache of a database misses of zipf, which has a twentieth of the blocks by LRU",
            accesses: behind,
        },
    ]
}

/// Numbers of which the first come most often.
struct Zipf {
    /// How often each or one before it comes, of all.
    below: Vec<f64>,
}

impl Zipf {
    fn new(count: u64) -> Zipf {
        let mut sum = 0.0;
        let mut below: Vec<f64> = (1..=count)
            .map(|rank| {
                sum += 1.0 / rank as f64;
                sum
            })
            .collect();
        below.iter_mut().for_each(|share| *share /= sum);
        Zipf { below }
    }

    fn next(&mut self, random: &mut SplitMix64) -> u64 {
        let share = (random.word() >> 11) as f64 / (1u64 << 53) as f64;
        self.below.partition_point(|below| *below <= share) as u64
    }
}

/// What a first cache does not have.
fn misses(blocks: usize, accesses: &[u64]) -> Vec<u64> {
    let mut first = PolicyKind::Lru.policy(blocks);
    accesses.iter().copied().filter(|block| !first.access(*block, &mut |_| true).hit).collect()
}

fn distinct(accesses: &[u64]) -> usize {
    by_block(accesses).len()
}

fn by_block(accesses: &[u64]) -> BTreeMap<u64, u64> {
    let mut times = BTreeMap::new();
    accesses.iter().for_each(|block| *times.entry(*block).or_default() += 1);
    times
}

/// Which share of all accesses goes to the fifth of the blocks that come most often.
fn concentrated(accesses: &[u64]) -> f64 {
    let mut times: Vec<u64> = by_block(accesses).into_values().collect();
    times.sort_unstable_by(|a, b| b.cmp(a));
    let warmest: u64 = times.iter().take(times.len().div_ceil(5)).sum();
    warmest as f64 / accesses.len().max(1) as f64
}

/// As `overside volume trace record` writes it.
fn read(path: &Path) -> Result<Vec<u64>> {
    let file = File::open(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let block = CacheOptions::default().block_bytes;
    let mut accesses = Vec::new();
    for (number, line) in BufReader::new(file).lines().enumerate() {
        let at = || format!("{}, line {}", path.display(), number + 1);
        let request = TraceRequest::parse(&line.with_context(at)?).with_context(at)?;
        accesses.extend(request.iter().flat_map(|request| request.blocks(block)));
    }
    ensure!(!accesses.is_empty(), "{} has no requests; `overside volume trace record` writes some", path.display());
    Ok(accesses)
}

fn policies() -> impl Iterator<Item = &'static str> {
    PolicyKind::ALL.into_iter().map(PolicyKind::name).chain([BELADY])
}

fn counts<'f>(figure: &'f Figure, series: &str) -> impl Iterator<Item = (u64, f64)> + use<'f> {
    let series = series.to_owned();
    figure.measured.iter().filter(move |one| one.series == series).filter_map(|one| Some((one.x, one.exact?)))
}

fn table(figure: &Figure, trace: &Trace) -> Table {
    let row = |policy: &'static str| {
        let cells = counts(figure, &format!("{}: {policy}", trace.name)).map(|(_, hits)| format!("{hits:.4}"));
        std::iter::once(policy.to_owned()).chain(cells).collect()
    };
    let head = std::iter::once(String::new()).chain(SHARES.map(|share| format!("{share} % of the blocks")));
    let caption = format!(
        "Hit ratios of trace {}: {} accesses to {} blocks",
        trace.name,
        trace.accesses.len(),
        distinct(&trace.accesses)
    );
    Table { caption, head: head.collect(), rows: policies().map(row).collect() }
}

/// Blocks that a cache holds of those that a trace touches, in a hundred.
const SHARES: [u64; 3] = [5, 10, 20];
/// There are as many colours.
const DRAWN: [&str; 6] = ["mq", "lru", "arc", "lirs", "w-tinylfu", BELADY];
const BELADY: &str = "belady";
const SECOND: &str = "second level";
const GIVEN: &str = "given";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_traces_are_what_they_are_called() {
        let traces = made(1000);
        let of = |name: &str| &traces.iter().find(|trace| trace.name == name).unwrap().accesses;
        assert!(concentrated(of("zipf")) > 0.6, "{}", concentrated(of("zipf")));
        assert!((concentrated(of("loop")) - 0.2).abs() < 1e-9 && distinct(of("loop")) == 1000);
        assert_eq!(distinct(of("scan")), distinct(of("zipf")) + 5 * 500);
        // Blocks that came often are in the first cache, and the second sees less of them.
        assert!(of(SECOND).len() < of("zipf").len() / 2 + of("zipf").len() / 4);
        assert!(concentrated(of(SECOND)) < concentrated(of("zipf")));
        // The same again.
        assert!(made(1000).iter().zip(&traces).all(|(again, first)| again.accesses == first.accesses));
    }

    /// It is the default because of that.
    #[test]
    fn the_default_keeps_the_most_or_nearly() {
        let default = CacheOptions::default().policy;
        for trace in made(2_000) {
            let blocks = distinct(&trace.accesses) / 10;
            let of = |kind: PolicyKind| replay(kind, blocks, trace.accesses.iter().copied()).hit_ratio();
            let best = PolicyKind::ALL.into_iter().map(of).fold(0.0, f64::max);
            assert!(of(default) > 0.97 * best, "{}: {} of {best}", trace.name, of(default));
        }
    }

    #[test]
    fn a_trace_is_read_by_its_blocks_and_a_bad_line_is_named() {
        let path = std::env::temp_dir().join(format!("overside-policies-test-{}", std::process::id()));
        std::fs::write(&path, "r,0,8192\n# remark\nw,8191,2\n").unwrap();
        assert_eq!(read(&path).unwrap(), [0, 0, 1]);
        std::fs::write(&path, "r,0,8192\nr,0\n").unwrap();
        assert!(format!("{:#}", read(&path).unwrap_err()).contains("line 2"));
        std::fs::write(&path, "# nothing\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("has no requests"));
        std::fs::remove_file(&path).unwrap();
    }
}
