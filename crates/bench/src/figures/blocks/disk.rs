//! A node without a cache beside the same disks in this process: by size, by requests
//! outstanding, by the longest request.

use super::{
    BLOCK_BYTES, KIB,
    disks::{DISK_BYTES, Disks, STRIPE_BYTES},
    load::{Client, LoadSpec},
    node::{Launch, Node},
};
use crate::{
    figures::{Setting, figure::Figure},
    measure::{alternate, elapsed_ns, now_ns},
};
use anyhow::Result;
use overside::volume::wire::Role;
use overside_evidence::SplitMix64;

pub(super) fn measure(setting: &Setting<'_>, figure: &mut Figure) -> Result<()> {
    setting.progress.say("blocks: without a cache");
    let volumes = [(ONE, Disks::One), (FIVE, Disks::Stripes(5)), (PARITY, Disks::Parity(10))];
    let mut node = Node::start(Launch {
        volumes: volumes.map(|(name, disks)| (name.to_owned(), disks)).into(),
        request_bytes_max: WHOLE,
        blocks: 24,
        ..Launch::default()
    })?;
    by_size(setting, figure, &node)?;
    by_depth(setting, figure, &node)?;
    shares(setting, figure, &node)?;
    stripes(setting, figure, &node)?;
    parity(setting, figure, &mut node)
}

/// The node's disk, and one of this process.
fn both(node: &Node) -> Result<[Client; 2]> {
    Ok([node.client("shm", ONE, Role::TakeOver, 128 << 10)?, Client::over(Disks::One.open()?.0)])
}

/// One request at a time.
fn by_size(setting: &Setting<'_>, figure: &mut Figure, node: &Node) -> Result<()> {
    let sizes: &[usize] = if setting.quick {
        &[512, BLOCK_BYTES, 32 * KIB, 128 * KIB]
    } else {
        &[512, 2 * KIB, BLOCK_BYTES, 32 * KIB, 64 * KIB, 128 * KIB]
    };
    let (rounds, count) = (setting.rounds(), if setting.quick { 3 } else { 12 });
    let mut clients = both(node)?;
    let mut done = 0;
    let samples = alternate(4 * sizes.len(), rounds, |at, round| {
        done += 1;
        setting.progress.part("blocks: without a cache, by size", done, 4 * rounds * sizes.len());
        let bytes = sizes[at / 4];
        let load = LoadSpec { writes: at % 4 / 2 == 1, bytes, depth: 1 };
        Ok::<_, anyhow::Error>(clients[at % 2].places_after(load, &places(DISK_BYTES, bytes, round, count))?.mean())
    })?;
    for (at, values) in samples.into_iter().enumerate() {
        let kind = ["read", "write"][at % 4 / 2];
        figure.record(format!("cache off, a {kind}, ns: {}", BOTH[at % 2]), sizes[at / 4] as u64, values);
    }
    Ok(())
}

/// Rates of 8 KiB.
fn by_depth(setting: &Setting<'_>, figure: &mut Figure, node: &Node) -> Result<()> {
    let cases: &[(bool, usize)] = if setting.quick {
        &[(false, 2), (true, 8)]
    } else {
        &[(false, 1), (false, 2), (false, 4), (false, 8), (true, 1), (true, 2), (true, 4), (true, 8)]
    };
    let (rounds, count) = (setting.rounds(), if setting.quick { 12 } else { 48 });
    let mut clients = both(node)?;
    let mut done = 0;
    let samples = alternate(2 * cases.len(), rounds, |at, round| {
        done += 1;
        setting.progress.part("blocks: without a cache, by depth", done, 2 * rounds * cases.len());
        let (writes, depth) = cases[at / 2];
        let places = places(DISK_BYTES, BLOCK_BYTES, round, count);
        let load = LoadSpec { writes, bytes: BLOCK_BYTES, depth };
        Ok::<_, anyhow::Error>(clients[at % 2].places_after(load, &places)?.per_s())
    })?;
    for (at, values) in samples.into_iter().enumerate() {
        let (writes, depth) = cases[at / 2];
        let kind = if writes { "writes" } else { "reads" };
        figure.record(format!("cache off, {kind}/s: {}", BOTH[at % 2]), depth as u64, values);
    }
    Ok(())
}

/// What the node's processor does while its disks are busy.
fn shares(setting: &Setting<'_>, figure: &mut Figure, node: &Node) -> Result<()> {
    let mut clients =
        [node.client("shm", ONE, Role::Reader, 128 << 10)?, node.client("shm", FIVE, Role::Reader, 128 << 10)?];
    let count = if setting.quick { 12 } else { 100 };
    let samples = alternate(2, setting.rounds(), |side, round| -> Result<f64> {
        let load = LoadSpec { writes: false, bytes: BLOCK_BYTES, depth: [2, 10][side] };
        let disks = [1, 5][side];
        let places = places(disks * DISK_BYTES, BLOCK_BYTES, round, count * disks);
        let (before, start) = (node.cpu()?, now_ns());
        clients[side].places(load, &places)?;
        Ok((node.cpu()? - before) as f64 / elapsed_ns(start) as f64)
    })?;
    for (disks, values) in [1, 5].into_iter().zip(samples) {
        figure.record("node's share of a processor", disks, values);
    }
    Ok(())
}

/// A long read of five disks in stripes, cut by the client or by the node.
fn stripes(setting: &Setting<'_>, figure: &mut Figure, node: &Node) -> Result<()> {
    let mut clients =
        [node.client("shm", FIVE, Role::Reader, STRIPE_BYTES as u32)?, node.client("shm", FIVE, Role::Reader, WHOLE)?];
    let bytes = 10 * STRIPE_BYTES as usize;
    let count = if setting.quick { 3 } else { 20 };
    let samples = alternate(2, setting.rounds(), |side, round| {
        let load = LoadSpec { writes: false, bytes, depth: 1 };
        Ok::<_, anyhow::Error>(clients[side].places_after(load, &places(5 * DISK_BYTES, bytes, round, count))?.mean())
    })?;
    for (name, values) in ["at most 64 KiB", "all at once"].into_iter().zip(samples) {
        figure.record(format!("five disks, a read, ns: {name}"), bytes as u64, values);
    }
    Ok(())
}

/// Writes of RAID 5 over ten disks, from a row's start on; what they ask of the disks is counted.
fn parity(setting: &Setting<'_>, figure: &mut Figure, node: &mut Node) -> Result<()> {
    let (local, local_ios) = Disks::Parity(10).open()?;
    let mut clients = vec![Client::over(local)];
    for (_, bytes_max) in RAID {
        clients.push(node.writer("shm", PARITY, bytes_max, GROUP)?);
    }
    let row = 9 * STRIPE_BYTES;
    let sizes: Vec<u64> = if setting.quick {
        vec![BLOCK_BYTES as u64, 2 * row]
    } else {
        vec![BLOCK_BYTES as u64, STRIPE_BYTES, 4 * STRIPE_BYTES, row, 2 * row]
    };
    let (rounds, count, kinds) = (setting.rounds(), if setting.quick { 1 } else { 4 }, clients.len());
    let mut ios = vec![[0; 2]; kinds * sizes.len()];
    let mut done = 0;
    let samples = alternate(kinds * sizes.len(), rounds, |at, round| -> Result<f64> {
        done += 1;
        setting.progress.part("blocks: RAID 5", done, rounds * kinds * sizes.len());
        let (side, bytes) = (at % kinds, sizes[at / kinds]);
        let places = places(9 * DISK_BYTES - row, row as usize, round, count);
        let mut counts = || match side {
            0 => Ok(local_ios.counts()),
            _ => node.ios(PARITY),
        };
        let before = counts()?;
        let load = LoadSpec { writes: true, bytes: bytes as usize, depth: 1 };
        let mean = clients[side].places_after(load, &places)?.mean();
        let after = counts()?;
        (0..2).for_each(|kind| ios[at][kind] += after[kind] - before[kind]);
        Ok(mean)
    })?;
    for (at, values) in samples.into_iter().enumerate() {
        let (name, bytes) = (raid(at % kinds), sizes[at / kinds]);
        let each = |kind: usize| ios[at][kind] as f64 / (rounds as u64 * (count + 1)) as f64;
        figure.record(format!("RAID 5, a write, ns: {name}"), bytes, values);
        figure.count(&format!("RAID 5, I/Os of a write: {name}"), bytes, None, each(0) + each(1));
        figure.count(&format!("RAID 5, reads of a write: {name}"), bytes, None, each(0));
    }
    Ok(())
}

/// How the sides of RAID 5 are called.
pub(super) fn raid(side: usize) -> &'static str {
    if side == 0 { "local disks" } else { RAID[side - 1].0 }
}

/// So many random places of a volume after a first one: the same in the same round, and as far
/// apart whatever the length.
fn places(volume: u64, bytes: usize, round: usize, count: u64) -> Vec<u64> {
    let (mut random, bytes) = (SplitMix64(round as u64), bytes as u64);
    (0..=count).map(|_| random.below(volume / bytes) * bytes).collect()
}

pub(super) const BOTH: [&str; 2] = ["node", "local disk"];
/// Name, and bytes of one request at most.
const RAID: [(&str, u32); 3] = [("at most 64 KiB", 64 << 10), ("at most 256 KiB", 256 << 10), ("all at once", WHOLE)];
const ONE: &str = "one";
const FIVE: &str = "five";
const PARITY: &str = "parity";
/// Sessions that write it together.
const GROUP: u64 = 1;
/// More than any request has.
const WHOLE: u32 = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_random_within_the_volume_and_as_far_apart_whatever_the_length() {
        let (short, long) = (places(DISK_BYTES, 512, 3, 1000), places(DISK_BYTES, 128 * KIB, 3, 1000));
        assert_eq!(short, places(DISK_BYTES, 512, 3, 1000), "both sides go to the same places");
        assert_ne!(short, places(DISK_BYTES, 512, 4, 1000), "no round goes where another went");
        assert!(short.iter().zip(&long).all(|(short, long)| short.abs_diff(*long) < 128 << 10));
        assert!(long.iter().all(|at| at + (128 << 10) <= DISK_BYTES));
        let ways: Vec<f64> = short.windows(2).map(|two| two[0].abs_diff(two[1]) as f64 / DISK_BYTES as f64).collect();
        let mean = ways.iter().sum::<f64>() / ways.len() as f64;
        let spread = ways.iter().map(|way| (way - mean).abs()).sum::<f64>() / ways.len() as f64;
        // Of two random places: a third of the disk, and 0.2 more or less.
        assert!((0.28..0.38).contains(&mean) && spread > 0.15, "{mean} {spread}");
    }
}
