//! The rows of ibv-bench, by which the authors of *To Copy or Not to Copy* measured (§5). They have
//! its sizes and names, so that a run of each over the same card can be laid side by side.

use super::{
    Setting,
    figure::{Figure, Point, Table},
    records::Records,
    sender::{Sample, Sender, Until},
    transmit::{self, Transmit, TransmitWay},
};
use crate::measure::alternate;
use anyhow::{Result, ensure};
use overside::memory::Buffer;
use std::sync::Arc;

/// Records packed first and records gathered, to one client, in every length of list that ibv-bench
/// has; over other providers than an RDMA device in a few of them.
pub(super) fn measure(
    setting: &Setting<'_>,
    sender: &mut Sender,
    region: &Arc<Buffer>,
    figure: &mut Figure,
) -> Result<()> {
    let chunks = chunks(setting.over.name() == "rdma" && !setting.quick, sender.capabilities.sge_max);
    let all = SIZES.len() * chunks.len();
    let cells = SIZES.into_iter().flat_map(|size| chunks.iter().map(move |chunks| (size, *chunks)));
    let mut rows = Vec::with_capacity(2 * all);
    for (at, (size, chunks)) in cells.enumerate() {
        setting.progress.part("verbs: ibv-bench's rows", at, all);
        let pool = sender.pool(size * chunks, BUFFERS)?;
        sender.connect(1, size * chunks, pool.capacity())?;
        let records = Records::new(region, size);
        let mut sides = WAYS.map(|way| Transmit::new(way, &records, chunks, &pool, sender));
        let mut brought = Vec::new();
        for side in &mut sides {
            brought.push(transmit::check(sender, side)?);
        }
        ensure!(brought[0] == brought[1], "records packed and records gathered are not the same");
        let samples = alternate(sides.len(), setting.rounds(), |side, _| -> Result<Sample> {
            Ok(sender.run(&mut sides[side], Until::Elapsed(setting.slice_ns()), false)?.0)
        })?;
        for (way, rounds) in WAYS.into_iter().zip(samples) {
            rows.push(row(way, size, chunks, &rounds));
            let point = Point::of(format!("ibv-bench, {} {size} B", way.name()), chunks as u64, rounds, &[]);
            figure.points.push(point.with("record_bytes", size).with("way", way.name()));
        }
    }
    figure.tables.push(Table {
        caption: "As ibv-bench prints it, with one client; all rounds together, mbs is MiB a second".into(),
        head: HEAD.map(str::to_owned).to_vec(),
        rows,
    });
    Ok(())
}

/// A row as ibv-bench prints one, but for the columns of its own profile.
fn row(way: TransmitWay, size: usize, chunks: usize, rounds: &[Sample]) -> Vec<String> {
    let mut all = Sample::default();
    rounds.iter().for_each(|round| all.add(*round));
    let seconds = all.wall_ns as f64 / 1e9;
    let copied = way == TransmitWay::CopyOut;
    let sent = all.requests * chunks as u64;
    let values = [chunks as u64, size as u64, 0, 0].map(|value| value.to_string()).into_iter();
    let counts = [sent, if copied { 0 } else { sent }, all.requests, all.bytes].map(|value| value.to_string());
    let mbs = all.bytes as f64 / seconds.max(f64::MIN_POSITIVE) / f64::from(1 << 20);
    std::iter::once(u8::from(copied).to_string())
        .chain(values)
        .chain([format!("{seconds:.6}")])
        .chain(counts)
        .chain([format!("{mbs:.6}")])
        .collect()
}

/// Records a send: each number that ibv-bench has, or a few of them.
fn chunks(each: bool, sge_max: usize) -> Vec<usize> {
    (1..=CHUNKS_MAX.min(sge_max)).filter(|chunks| each || chunks.is_power_of_two()).collect()
}

const HEAD: [&str; 11] = [
    "copied",
    "chunksPerMessage",
    "chunkSize",
    "deltasPerMessage",
    "deltaSize",
    "seconds",
    "chunksTx",
    "chunksTxZeroCopy",
    "transmissions",
    "transmittedBytes",
    "mbs",
];
const WAYS: [TransmitWay; 2] = [TransmitWay::ZeroCopy, TransmitWay::CopyOut];
/// Of a record: those of the paper's figures 3 to 5.
const SIZES: [usize; 2] = [128, 1024];
const CHUNKS_MAX: usize = 32;
const BUFFERS: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_read_as_those_of_ibv_bench() {
        let round = Sample { bytes: 4 << 20, requests: 8192, wall_ns: 500_000_000, ..Sample::default() };
        let wanted = ["0", "4", "128", "0", "0", "1.000000", "65536", "65536", "16384", "8388608", "8.000000"];
        assert_eq!(row(TransmitWay::ZeroCopy, 128, 4, &[round; 2]), wanted);
        let copied = row(TransmitWay::CopyOut, 128, 4, &[round; 2]);
        assert_eq!((copied.len(), &copied[0][..], &copied[7][..]), (HEAD.len(), "1", "0"));
    }

    #[test]
    fn over_a_device_every_length_is_there() {
        assert_eq!(chunks(true, 256), (1..=32).collect::<Vec<_>>());
        assert_eq!(chunks(false, 256), [1, 2, 4, 8, 16, 32]);
        assert_eq!(chunks(true, 5), [1, 2, 3, 4, 5]);
    }
}
