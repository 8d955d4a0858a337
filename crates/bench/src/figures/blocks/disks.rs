//! What volumes lie on here: memory, and disks that turn over memory, whose requests are counted.

use super::load;
use anyhow::{Context, Result};
use overside::{
    vault::members::{FileMember, Spindle, SpindleTimes},
    verbs::SystemClock,
    volume::{Array, Completion, Device, Geometry, MemoryDevice, Raid, Request, Sectors, Work, complete},
};
use overside_disk::Open;
use serde::{Deserialize, Serialize};
use std::{
    collections::VecDeque,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

/// What a volume lies on. Disks turn 15,000 times a minute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Disks {
    /// Memory of so many bytes.
    Memory(u64),
    /// The same, for files of programs.
    Files(u64),
    /// A file of so many bytes in a folder of its own, past the page cache.
    File(PathBuf, u64),
    /// One disk.
    One,
    /// RAID 0 of so many disks.
    Stripes(usize),
    /// RAID 5 of so many disks.
    Parity(usize),
}

/// Requests that disks were given.
#[derive(Clone, Debug, Default)]
pub(super) struct Ios(Arc<[AtomicU64; 2]>);

impl Disks {
    /// The volume, and what its disks are asked.
    pub(super) fn open(&self) -> Result<(Box<dyn Device>, Ios)> {
        let ios = Ios::default();
        let disk = || -> Result<Box<dyn Device>> {
            let blocks = Box::new(written(DISK_BYTES)?);
            let base = Box::new(Spindle::over(blocks, SpindleTimes::FIFTEEN_K, SystemClock::handle())?);
            Ok(Box::new(Counted { base, ios: ios.clone() }))
        };
        let several = |count: usize| (0..count).map(|_| disk()).collect::<Result<Vec<_>>>();
        let device: Box<dyn Device> = match *self {
            Disks::File(ref folder, bytes) => file(folder, bytes, true)?,
            Disks::Memory(bytes) | Disks::Files(bytes) => Box::new(MemoryDevice::new(bytes)?),
            Disks::One => disk()?,
            Disks::Stripes(count) => Box::new(Array::stripes(several(count)?, STRIPE_BYTES)?),
            Disks::Parity(count) => Box::new(Raid::parity(several(count)?, STRIPE_BYTES)?),
        };
        Ok((device, ios))
    }
}

/// Memory that was written once, as the system finds a page only when it is touched.
fn written(bytes: u64) -> Result<MemoryDevice> {
    let mut blocks = MemoryDevice::new(bytes)?;
    let zeros = Work::Zero { at: 0, length: bytes };
    complete(&mut blocks, &SystemClock, zeros, load::PATIENCE).1.context("memory could not be written")?;
    Ok(blocks)
}

/// A new file of so many bytes in a folder that is made for it.
pub(super) fn file(folder: &Path, bytes: u64, direct: bool) -> Result<Box<dyn Device>> {
    let mut disk = overside_disk::open(folder)?;
    let file = disk.open("member", Open::Create { direct })?;
    Ok(Box::new(Sectors::over(FileMember::new(disk, file, 0, bytes))))
}

impl Ios {
    /// READs and WRITEs.
    pub(super) fn counts(&self) -> [u64; 2] {
        [0, 1].map(|kind| self.0[kind].load(Ordering::Relaxed))
    }
}

/// A disk that counts what it is given.
#[derive(Debug)]
struct Counted {
    base: Box<dyn Device>,
    ios: Ios,
}

impl Device for Counted {
    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        let kinds: Vec<Option<usize>> = batch
            .iter()
            .map(|request| match request.work {
                Work::Read { .. } => Some(0),
                Work::Write { .. } => Some(1),
                _ => None,
            })
            .collect();
        self.base.submit(batch);
        let taken = kinds.len() - batch.len();
        kinds.into_iter().take(taken).flatten().for_each(|kind| {
            self.ios.0[kind].fetch_add(1, Ordering::Relaxed);
        });
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.base.poll(out)
    }

    fn arm(&mut self) -> bool {
        self.base.arm()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.base.fd()
    }

    fn due(&self) -> Option<Instant> {
        self.base.due()
    }
}

/// Times follow from the share of a disk that lies between two places, whatever its size.
pub(super) const DISK_BYTES: u64 = 32 << 20;
pub(super) const STRIPE_BYTES: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::super::load::{Client, LoadSpec};
    use super::*;

    /// What the paper's argument of RAID 5 counts: a whole row is written without a
    /// read, a part of it is not.
    #[test]
    fn a_row_at_once_costs_its_disks_one_write_each() {
        let (device, ios) = Disks::Parity(10).open().unwrap();
        let mut client = Client::over(device);
        let mut write = |bytes: u64| {
            let before = ios.counts();
            let load = LoadSpec { writes: true, bytes: bytes as usize, depth: 1 };
            client.places(load, &[0]).unwrap();
            let after = ios.counts();
            [after[0] - before[0], after[1] - before[1]]
        };
        assert_eq!(write(9 * STRIPE_BYTES), [0, 10]);
        assert_eq!(write(18 * STRIPE_BYTES), [0, 20]);
        assert_eq!(write(STRIPE_BYTES), [2, 2]);
        assert_eq!(write(8192), [2, 2]);
    }
}
