//! One map's turn in a round: it is filled, asked everything, and dropped.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;

use super::peers::{Handle, Peer};
use super::workload::{Column, Kind, Op, Zipf};

/// The operations of all columns.
pub struct Work {
    records: usize,
    fill: Vec<Op>,
    columns: Vec<(&'static str, Vec<Op>)>,
    puts: Vec<Op>,
}

impl Work {
    /// For `records` keys and `count` operations a column (a tenth of them scans).
    pub fn new(records: usize, count: usize) -> Work {
        let (zipf, mut fresh) = (Zipf::new(records as u64), 0);
        let mut ops = |column: Column, count| column.ops(records as u64, count, &mut fresh, &zipf);
        let fill = ops(Column::Insert, records);
        let columns = vec![
            ("read", ops(Column::Read, count)),
            ("C", ops(Column::C, count)),
            ("B", ops(Column::B, count)),
            ("A", ops(Column::A, count)),
            ("E", ops(Column::E, count / 10)),
        ];
        let puts = ops(Column::Puts, count / 2);
        Work { records, fill, columns, puts }
    }
}

/// What a session measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Millions of operations (rows, for `scan`) a second, by column.
    pub rates: Vec<(&'static str, f64)>,
    /// Bytes a record once it is filled, and at the end; by one thread only.
    pub bytes_a_record: Option<(f64, f64)>,
    /// Puts under splits and consolidation, in ns: median, 99th and 99.9th percentile.
    pub put_ns: [u64; 3],
    /// Over all that was read, the same for every map that is asked by one thread.
    pub checksum: u64,
    /// Reads of a key that is there which did not find it: a map that replaces by removing and inserting.
    pub missed: u64,
}

/// Fills a map by `threads` threads and asks it everything.
pub fn run<P: Peer>(work: &Work, threads: usize) -> Result<Measured> {
    let mut measured = Measured::default();
    let mut peer = None;
    let mut failed = Ok(());
    // One thread does all of its work here, so that its allocations can be counted.
    let filled = allocation_counter::measure(|| match P::new(work.records) {
        Ok(new) => {
            let rate = timed(&new, &work.fill, threads, &mut measured);
            measured.rates.push(("insert", rate));
            peer = Some(new);
        }
        Err(error) => failed = Err(error),
    });
    failed?;
    let Some(peer) = peer else { anyhow::bail!("no map was made") };
    let own = peer.bytes_of_its_own() as f64;
    let asked = allocation_counter::measure(|| {
        for (name, ops) in &work.columns {
            let rate = timed(&peer, ops, threads, &mut measured);
            measured.rates.push((name, rate));
        }
    });
    let inserted = work.columns.iter().flat_map(|(_, ops)| ops).filter(|op| op.kind == Kind::Insert).count();
    if threads == 1 {
        let (filled, asked) = (filled.bytes_current as f64, asked.bytes_current as f64);
        let end = filled + asked + peer.bytes_of_its_own() as f64;
        let records = work.records as f64;
        measured.bytes_a_record = Some(((filled + own) / records, end / (records + inserted as f64)));
    }
    let (rate, rows) = full_scans(&peer, threads, &mut measured.checksum);
    measured.rates.push(("scan", rate));
    ensure!(rows == threads * (work.records + inserted), "{}: a full scan found {rows} rows", P::NAME);
    ensure!(threads > 1 || measured.missed == 0, "{}: {} reads missed, by one thread", P::NAME, measured.missed);
    measured.put_ns = put_latency(&peer, &work.puts, threads)?;
    Ok(measured)
}

/// Runs a column by `threads` threads, each on its part; millions of operations a second.
fn timed<P: Peer>(peer: &P, ops: &[Op], threads: usize, measured: &mut Measured) -> f64 {
    let (seconds, found) = in_parallel(peer, ops, threads, |handle, ops| {
        let mut found = Found::default();
        ops.iter().for_each(|op| step(handle, op, &mut found));
        found
    });
    for found in found {
        measured.checksum = measured.checksum.rotate_left(7) ^ found.sum;
        measured.missed += found.missed;
    }
    ops.len() as f64 / seconds / 1e6
}

#[derive(Default)]
struct Found {
    sum: u64,
    missed: u64,
}

#[inline]
fn step(handle: &mut impl Handle, op: &Op, found: &mut Found) {
    let value = u64::from(op.arg);
    match op.kind {
        Kind::Read => match handle.read(op.key) {
            Some(value) => found.sum = found.sum.wrapping_add(value),
            None => found.missed += 1,
        },
        Kind::Update => handle.put(op.key, value),
        Kind::Insert => handle.insert(op.key, value),
        Kind::Scan => {
            let (rows, sum) = handle.scan(op.key, op.arg as usize);
            found.sum = found.sum.wrapping_add(sum ^ rows as u64);
        }
    }
}

/// Every thread scans everything.
fn full_scans<P: Peer>(peer: &P, threads: usize, checksum: &mut u64) -> (f64, usize) {
    let one_each = vec![Op { key: 0, arg: 0, kind: Kind::Scan }; threads];
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
        let mut found = Found::default();
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

/// Seconds from the moment when the first thread began until the last one was done, and what each returned.
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

/// Full scans of each thread.
const SCANS: usize = 5;
/// A put that takes a minute would be told as one of a minute.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
