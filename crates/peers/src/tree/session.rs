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
}

/// Fills a map by `threads` threads and asks it everything.
pub fn run<P: Peer>(work: &Work, threads: usize) -> Result<Measured> {
    let mut measured = Measured::default();
    let mut peer = None;
    let mut failed = Ok(());
    // One thread does all of its work here, so that its allocations can be counted.
    let filled = allocation_counter::measure(|| match P::new(work.records) {
        Ok(new) => {
            measured.rates.push(("insert", timed(&new, &work.fill, threads, &mut measured.checksum)));
            peer = Some(new);
        }
        Err(error) => failed = Err(error),
    });
    failed?;
    let Some(peer) = peer else { anyhow::bail!("no map was made") };
    let own = peer.bytes_of_its_own() as f64;
    let asked = allocation_counter::measure(|| {
        for (name, ops) in &work.columns {
            measured.rates.push((name, timed(&peer, ops, threads, &mut measured.checksum)));
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
    measured.put_ns = put_latency(&peer, &work.puts, threads)?;
    Ok(measured)
}

/// Runs a column by `threads` threads, each on its part; millions of operations a second.
fn timed<P: Peer>(peer: &P, ops: &[Op], threads: usize, checksum: &mut u64) -> f64 {
    let (seconds, sums) = in_parallel(peer, ops, threads, |handle, ops| ops.iter().fold(0, |sum, op| sum + step(handle, op)));
    *checksum = sums.iter().fold(*checksum, |all, sum| all.rotate_left(7) ^ sum);
    ops.len() as f64 / seconds / 1e6
}

#[inline]
fn step(handle: &mut impl Handle, op: &Op) -> u64 {
    let value = u64::from(op.arg);
    match op.kind {
        Kind::Read => handle.read(op.key).expect("every key that is read is there") & 0xFFFF,
        Kind::Update => {
            handle.put(op.key, value);
            1
        }
        Kind::Insert => {
            handle.insert(op.key, value);
            1
        }
        Kind::Scan => (handle.scan(op.key, op.arg as usize).1 & 0xFFFF) + 1,
    }
}

/// Every thread scans everything.
fn full_scans<P: Peer>(peer: &P, threads: usize, checksum: &mut u64) -> (f64, usize) {
    let one_each = vec![Op { key: 0, arg: 0, kind: Kind::Scan }; threads];
    let (seconds, scans) = in_parallel(peer, &one_each, threads, |handle, _| handle.scan(0, usize::MAX));
    let rows = scans.iter().map(|(rows, _)| rows).sum();
    *checksum = scans.iter().fold(*checksum, |all, (_, sum)| all.rotate_left(7) ^ sum);
    (rows as f64 / seconds / 1e6, rows)
}

fn put_latency<P: Peer>(peer: &P, ops: &[Op], threads: usize) -> Result<[u64; 3]> {
    let (_, histograms) = in_parallel(peer, ops, threads, |handle, ops| {
        let mut histogram = Histogram::<u64>::new(3).expect("three digits");
        for op in ops {
            let start = Instant::now();
            step(handle, op);
            histogram.saturating_record(start.elapsed().as_nanos() as u64);
        }
        histogram
    });
    let mut all = Histogram::<u64>::new(3)?;
    for histogram in histograms {
        all.add(histogram)?;
    }
    Ok([0.5, 0.99, 0.999].map(|quantile| all.value_at_quantile(quantile)))
}

/// Seconds from the moment when all threads were ready until the last one was done, and what each returned.
fn in_parallel<P: Peer, T: Send>(
    peer: &P,
    ops: &[Op],
    threads: usize,
    run: impl Fn(&mut P::Handle, &[Op]) -> T + Sync,
) -> (f64, Vec<T>) {
    let mut first = peer.handle();
    if threads == 1 {
        let start = Instant::now();
        let done = run(&mut first, ops);
        return (start.elapsed().as_secs_f64(), vec![done]);
    }
    let ready = Barrier::new(threads + 1);
    let mut parts = ops.chunks(ops.len().div_ceil(threads));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let (mut handle, ops) = (peer.handle(), parts.next().unwrap_or_default());
                let (ready, run) = (&ready, &run);
                scope.spawn(move || {
                    ready.wait();
                    run(&mut handle, ops)
                })
            })
            .collect();
        ready.wait();
        let start = Instant::now();
        let done = workers.into_iter().map(|worker| worker.join().expect("a worker does not panic")).collect();
        (start.elapsed().as_secs_f64(), done)
    })
}
