//! One map's turn in a round: it is filled, asked everything, and dropped.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;

use super::peers::{Handle, Peer};
use super::workload::{Column, Op, Operation, Zipf};

/// The operations of all columns that are measured.
pub struct Work {
    records: usize,
    fill: Vec<Op>,
    /// Whether filling is measured; if not, all processors do it.
    fill_counts: bool,
    columns: Vec<(&'static str, Vec<Op>)>,
    scans: bool,
    puts: Vec<Op>,
}

impl Work {
    /// For `records` keys and `count` operations a column (a quarter of them for scans), of which
    /// `only` some are wanted.
    pub fn new(records: usize, count: usize, only: &[&'static str]) -> Work {
        let (zipf, mut fresh) = (Zipf::new(records as u64), 0);
        let mut ops = |column: Column, count| column.ops(records as u64, count, &mut fresh, &zipf);
        let wanted = |name: &str| only.contains(&name);
        let fill = ops(Column::Insert, records);
        let columns = [
            ("read", Column::Read, count),
            ("C", Column::C, count),
            ("B", Column::B, count),
            ("A", Column::A, count),
            ("E", Column::E, count / 4),
        ];
        let columns = columns.into_iter().filter(|(name, ..)| wanted(name));
        let columns = columns.map(|(name, column, count)| (name, ops(column, count))).collect();
        let puts = if wanted(PUT) { ops(Column::Puts, count / 2) } else { Vec::new() };
        Work { records, fill, fill_counts: wanted("insert"), columns, scans: wanted("scan"), puts }
    }
}

/// What a session measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Columns in millions of operations (rows, for `scan`) a second, and the figures named below.
    pub figures: Vec<(&'static str, f64)>,
    /// Over all that was read, the same for every map that is asked by one thread.
    pub checksum: u64,
}

/// Fills a map by `threads` threads and asks it everything.
pub fn run<P: Peer>(work: &Work, threads: usize) -> Result<Measured> {
    let (mut measured, mut found) = (Measured::default(), Lookups::default());
    let mut peer = None;
    let mut failed = Ok(());
    let fillers = if work.fill_counts { threads } else { FILLERS };
    // One thread does all of its work here, so that its allocations can be counted.
    let filled = allocation_counter::measure(|| match P::new(work.records) {
        Ok(new) => {
            let rate = timed(&new, &work.fill, fillers, &mut found);
            if work.fill_counts {
                measured.figures.push(("insert", rate));
            }
            peer = Some(new);
        }
        Err(error) => failed = Err(error),
    });
    failed?;
    let Some(peer) = peer else { anyhow::bail!("no map was made") };
    let own = peer.bytes_of_its_own() as f64;
    let asked = allocation_counter::measure(|| {
        for (name, ops) in &work.columns {
            let rate = timed(&peer, ops, threads, &mut found);
            measured.figures.push((name, rate));
        }
    });
    let inserted = work.columns.iter().flat_map(|(_, ops)| ops).filter(|op| op.kind == Operation::Insert).count();
    if fillers == 1 {
        let (filled, asked) = (filled.bytes_current as f64, asked.bytes_current as f64);
        let end = filled + asked + peer.bytes_of_its_own() as f64;
        let records = work.records as f64;
        measured.figures.push((BYTES_FILLED, (filled + own) / records));
        measured.figures.push((BYTES_AT_END, end / (records + inserted as f64)));
    }
    if work.scans {
        let (rate, rows) = full_scans(&peer, threads, &mut found.sum);
        measured.figures.push(("scan", rate));
        ensure!(rows == threads * (work.records + inserted), "{}: a full scan found {rows} rows", P::NAME);
    }
    ensure!(threads > 1 || found.missed == 0, "{}: {} reads missed, by one thread", P::NAME, found.missed);
    measured.figures.push((MISSED, found.missed as f64));
    if !work.puts.is_empty() {
        let put_ns = put_latency(&peer, &work.puts, threads)?;
        measured.figures.extend(PUT_NS.into_iter().zip(put_ns.map(|ns| ns as f64)));
    }
    measured.checksum = found.sum;
    Ok(measured)
}

/// Runs a column by `threads` threads, each on its part; millions of operations a second.
fn timed<P: Peer>(peer: &P, ops: &[Op], threads: usize, all: &mut Lookups) -> f64 {
    let (seconds, found) = in_parallel(peer, ops, threads, |handle, ops| {
        let mut found = Lookups::default();
        ops.iter().for_each(|op| step(handle, op, &mut found));
        found
    });
    for found in found {
        all.sum = all.sum.rotate_left(7) ^ found.sum;
        // Reads of a key that is there which did not find it: a map that replaces by removing and inserting.
        all.missed += found.missed;
    }
    ops.len() as f64 / seconds / 1e6
}

#[derive(Default)]
struct Lookups {
    sum: u64,
    missed: u64,
}

#[inline]
fn step(handle: &mut impl Handle, op: &Op, found: &mut Lookups) {
    let value = u64::from(op.arg);
    match op.kind {
        Operation::Read => match handle.read(op.key) {
            Some(value) => found.sum = found.sum.wrapping_add(value),
            None => found.missed += 1,
        },
        Operation::Update => handle.put(op.key, value),
        Operation::Insert => handle.insert(op.key, value),
        Operation::Scan => {
            let (rows, sum) = handle.scan(op.key, op.arg as usize);
            found.sum = found.sum.wrapping_add(sum ^ rows as u64);
        }
    }
}

/// Every thread scans everything.
fn full_scans<P: Peer>(peer: &P, threads: usize, checksum: &mut u64) -> (f64, usize) {
    let one_each = vec![Op { key: 0, arg: 0, kind: Operation::Scan }; threads];
    // Several times: one scan of a million rows is over in two milliseconds.
    let (seconds, scans) = in_parallel(peer, &one_each, threads, |handle, _| {
        (1..SCANS).for_each(|_| _ = std::hint::black_box(handle.scan(0, usize::MAX)));
        handle.scan(0, usize::MAX)
    });
    let rows: usize = scans.iter().map(|(rows, _)| rows).sum();
    *checksum = scans.iter().fold(*checksum, |all, (_, sum)| all.rotate_left(7) ^ sum);
    ((rows * SCANS) as f64 / seconds / 1e6, rows)
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("bounds and digits that the crate allows")
}

fn put_latency<P: Peer>(peer: &P, ops: &[Op], threads: usize) -> Result<[u64; 3]> {
    let (_, histograms) = in_parallel(peer, ops, threads, |handle, ops| {
        let mut histogram = histogram();
        let mut found = Lookups::default();
        for op in ops {
            let start = Instant::now();
            step(handle, op, &mut found);
            histogram.saturating_record(start.elapsed().as_nanos() as u64);
        }
        histogram
    });
    let mut all = histogram();
    for histogram in histograms {
        all.add(histogram)?;
    }
    Ok([0.5, 0.99, 0.999].map(|quantile| all.value_at_quantile(quantile)))
}

/// Seconds from the moment when the first thread began until the last one was done, and what each
/// returned.
fn in_parallel<P: Peer, T: Send>(
    peer: &P,
    ops: &[Op],
    threads: usize,
    run: impl Fn(&mut P::Handle, &[Op]) -> T + Sync,
) -> (f64, Vec<T>) {
    let part = |handle: &mut P::Handle, ops: &[Op]| {
        let start = Instant::now();
        let done = run(handle, ops);
        (start, Instant::now(), done)
    };
    let parts = if threads == 1 {
        vec![part(&mut peer.handle(), ops)]
    } else {
        let ready = Barrier::new(threads);
        let mut chunks = ops.chunks(ops.len().div_ceil(threads));
        std::thread::scope(|scope| {
            let worker = |_| {
                let (mut handle, ops) = (peer.handle(), chunks.next().unwrap_or_default());
                let (ready, part) = (&ready, &part);
                scope.spawn(move || {
                    ready.wait();
                    part(&mut handle, ops)
                })
            };
            let workers: Vec<_> = (0..threads).map(worker).collect();
            workers.into_iter().map(|worker| worker.join().expect("a worker does not panic")).collect()
        })
    };
    // By the workers' own clocks: with all cores busy, nobody else gets to look at one in time.
    let begun = parts.iter().map(|(start, ..)| *start).min();
    let done = parts.iter().map(|(_, end, _)| *end).max();
    let seconds = begun.zip(done).map_or(0.0, |(begun, done)| (done - begun).as_secs_f64());
    (seconds, parts.into_iter().map(|(.., done)| done).collect())
}

/// The column of put latencies.
pub const PUT: &str = "put";
/// Puts under splits and consolidation, in ns: median, 99th and 99.9th percentile.
pub const PUT_NS: [&str; 3] = ["put p50 ns", "put p99 ns", "put p99.9 ns"];
/// Bytes a record once the map is filled, by one thread.
pub const BYTES_FILLED: &str = "bytes a record, filled";
/// And after all columns.
pub const BYTES_AT_END: &str = "bytes a record, at the end";
/// Reads of a key that is there which did not find it.
pub const MISSED: &str = "missed reads";
/// Threads that fill a map when nobody looks at the clock.
const FILLERS: usize = 2;
/// Full scans of each thread.
const SCANS: usize = 5;
/// A put that takes a minute would be told as one of a minute.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
