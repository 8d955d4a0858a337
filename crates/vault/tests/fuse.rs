//! A device as a file, by the kernel's own FUSE. Where it is not to be had, the tests say so and pass.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use overside_vault::fronts::fuse::{FuseError, FuseMount, FuseServer};
use overside_verbs::SystemClock;
use overside_verbs::watch::Signal;
use overside_volume::{Completion, Device, Geometry, MemoryDevice, Request, Work};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

const BYTES: u64 = 1 << 20;

struct Served {
    folder: tempfile::TempDir,
    stopper: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
    log: Log,
}

impl Served {
    /// None where this machine has no FUSE for this user.
    fn of(device: impl Device + 'static) -> Option<Served> {
        let (folder, log) = (tempfile::tempdir().unwrap(), Log::default());
        let device = Box::new(Logged { device: Box::new(device), log: log.clone() });
        let path = folder.path().join("volume");
        match FuseMount::new(&path, device.geometry().read_only) {
            Ok(mount) => {
                let server = FuseServer::new(mount, device, SystemClock::handle()).unwrap();
                // Where a test of one way is meant, the other one must not pass for it.
                let meant = std::env::var("OVERSIDE_FUSE_BY").is_ok_and(|by| by == "io_uring");
                assert!(!meant || server.is_by_io_uring(), "not by io_uring");
                let stopper = server.stopper();
                let thread = Some(std::thread::spawn(move || drop(server.run().unwrap())));
                Some(Served { folder, stopper, thread, log })
            }
            Err(FuseError::Path { source, .. }) => {
                println!("skipped: {source}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn memory() -> Option<Served> {
        Served::of(MemoryDevice::new(BYTES).unwrap())
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("volume")
    }

    fn open(&self) -> File {
        OpenOptions::new().read(true).write(true).open(self.path()).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stopper.notify();
        let ended = self.thread.take().is_none_or(|thread| thread.join().is_ok());
        assert!(ended || std::thread::panicking(), "the server panicked");
    }
}

type Log = Arc<Mutex<Vec<String>>>;

/// Writes down what changes a device or makes it durable.
#[derive(Debug)]
struct Logged {
    device: Box<dyn Device>,
    log: Log,
}

impl Device for Logged {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        for request in batch.iter() {
            let line = match &request.work {
                Work::Write { at, from, fua } => format!("write {at} {} {fua}", from.len()),
                Work::Flush => "flush".into(),
                Work::Discard { at, length } => format!("discard {at} {length}"),
                Work::Zero { at, length } => format!("zero {at} {length}"),
                _ => continue,
            };
            self.log.lock().unwrap().push(line);
        }
        self.device.submit(batch);
        assert!(batch.is_empty(), "memory takes all");
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.device.poll(out)
    }

    fn arm(&mut self) -> bool {
        self.device.arm()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.device.fd()
    }
}

#[test]
fn any_bytes_are_read_as_they_were_written() {
    let Some(served) = Served::memory() else { return };
    let file = served.open();
    assert_eq!(file.metadata().unwrap().len(), BYTES);
    let (mut model, mut state) = (vec![0u8; BYTES as usize], 7u64);
    let mut chance = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for round in 0..600u32 {
        // A third is whole units; some are longer than the kernel puts into one request.
        let (unit, longest) = if round % 3 == 0 { (512, 1 << 11) } else { (1, BYTES) };
        let at = chance(BYTES / unit) * unit;
        let length = ((chance(longest / 8 + 1) + 1) * unit).min(BYTES - at) as usize;
        if chance(2) == 0 {
            let bytes: Vec<u8> = (0..length).map(|i| (i as u32 ^ round) as u8).collect();
            file.write_all_at(&bytes, at).unwrap();
            model[at as usize..][..length].copy_from_slice(&bytes);
        } else {
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, at).unwrap();
            assert!(bytes == model[at as usize..][..length], "round {round}: {length} bytes at {at}");
        }
    }
    let mut all = Vec::new();
    File::open(served.path()).unwrap().read_to_end(&mut all).unwrap();
    assert!(all == model);
}

#[test]
fn threads_that_write_into_the_same_sectors_lose_nothing() {
    let Some(served) = Served::memory() else { return };
    // Bytes by turns of four: every sector is everybody's.
    std::thread::scope(|scope| {
        for who in 0..4u8 {
            let file = served.open();
            scope.spawn(move || {
                for at in (u64::from(who) * 13..40_000).step_by(52) {
                    file.write_all_at(&[who + 1; 13], at).unwrap();
                }
            });
        }
    });
    let mut all = vec![0; 39_000];
    served.open().read_exact_at(&mut all, 0).unwrap();
    let wrong = all.iter().enumerate().find(|(at, byte)| **byte != (at / 13 % 4) as u8 + 1);
    assert_eq!(wrong, None, "written by one, undone by another");
}

#[test]
fn syncing_reaches_the_device_and_holes_are_discarded() {
    let Some(served) = Served::memory() else { return };
    let file = served.open();
    file.write_all_at(&[7; 8192], 4096).unwrap();
    file.sync_data().unwrap();
    let synced = OpenOptions::new().write(true).custom_flags(O_DSYNC).open(served.path()).unwrap();
    synced.write_all_at(&[8; 512], 0).unwrap();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, hole, 8192, 4096).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 4096, 512).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, BYTES).unwrap();
    let wanted = ["write 4096 8192 false", "flush", "write 0 512 true", "discard 8192 4096", "zero 4096 512"];
    assert_eq!(*served.log.lock().unwrap(), wanted);
    let mut bytes = vec![9; 4096 + 512];
    file.read_exact_at(&mut bytes, 8192).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "a hole, and what was never written");
    let partly = rustix::fs::fallocate(&file, hole, 100, 1000);
    assert_eq!(partly, Err(Errno::OPNOTSUPP), "programs write zeros then");
}

#[test]
fn the_size_is_the_volumes() {
    let Some(served) = Served::memory() else { return };
    let file = served.open();
    assert_eq!(file.set_len(0).unwrap_err().kind(), ErrorKind::PermissionDenied);
    file.set_len(BYTES).unwrap();
    assert_eq!(file.read_at(&mut [0; 9], BYTES).unwrap(), 0);
    assert_eq!(file.read_at(&mut [0; 9], BYTES - 4).unwrap(), 4);
    assert_eq!(file.write_at(&[0; 9], BYTES).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(file.write_at(&[0; 9], BYTES - 4).unwrap(), 4);
    assert_eq!(file.metadata().unwrap().len(), BYTES);
    let again = FuseMount::new(&served.path(), false);
    assert!(matches!(again, Err(FuseError::Path { source, .. }) if source.kind() == ErrorKind::AlreadyExists));
}

#[test]
fn what_can_only_be_read_is_not_written() {
    let Some(served) = Served::of(Frozen(MemoryDevice::new(BYTES).unwrap())) else { return };
    let refused = OpenOptions::new().write(true).open(served.path()).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied), "{refused}");
    File::open(served.path()).unwrap().read_exact(&mut [1; 4096]).unwrap();
}

#[derive(Debug)]
struct Frozen(MemoryDevice);

impl Device for Frozen {
    fn geometry(&self) -> Geometry {
        Geometry { read_only: true, ..self.0.geometry() }
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        self.0.submit(batch);
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.0.poll(out)
    }

    fn arm(&mut self) -> bool {
        self.0.arm()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd()
    }
}

#[test]
fn it_ends_when_it_is_stopped_or_unmounted_and_the_file_goes() {
    let Some(mut served) = Served::memory() else { return };
    let file = served.open();
    file.write_all_at(b"overside", 3).unwrap();
    served.stopper.notify();
    served.thread.take().unwrap().join().unwrap();
    assert!(!served.path().exists(), "what was made for it goes with it");
    let gone = file.read_at(&mut [0; 9], 0).unwrap_err();
    assert_eq!(gone.raw_os_error(), Some(Errno::NOTCONN.raw_os_error()), "fd {}: {gone}", file.as_raw_fd());
    let Some(mut served) = Served::memory() else { return };
    if rustix::mount::unmount(served.path(), rustix::mount::UnmountFlags::empty()).is_err() {
        return;
    }
    served.thread.take().unwrap().join().unwrap();
}

/// A device that ends nothing.
#[derive(Debug)]
struct Stuck {
    geometry: Geometry,
    held: VecDeque<Request>,
    /// Requests that it has, and how often it was looked at.
    counts: Arc<[AtomicUsize; 2]>,
}

impl Device for Stuck {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        self.held.append(batch);
        self.counts[0].store(self.held.len(), Ordering::Relaxed);
    }

    fn poll(&mut self, _: &mut Vec<Completion>) -> usize {
        self.counts[1].fetch_add(1, Ordering::Relaxed);
        0
    }

    fn arm(&mut self) -> bool {
        true
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// As many requests are under way as a server takes, and the file is unmounted by force.
#[test]
fn a_full_server_hears_that_its_file_is_gone() {
    let (geometry, counts) = (Geometry { bytes: BYTES, unit_bytes: 512, read_only: false }, Arc::default());
    let stuck = Stuck { geometry, held: VecDeque::new(), counts: Arc::clone(&counts) };
    let Some(mut served) = Served::of(stuck) else { return };
    let count = |which: usize| counts[which].load(Ordering::Relaxed);
    let file = served.open();
    std::thread::scope(|scope| {
        for _ in 0..200 {
            scope.spawn(|| file.read_at(&mut [0; 512], 0).unwrap_err());
        }
        // By io_uring each processor has places of its own, which may not all be taken.
        let (limit, mut before) = (Instant::now() + Duration::from_secs(60), usize::MAX);
        while count(0) < 64 && count(0) != before {
            before = count(0);
            assert!(Instant::now() < limit, "{before} requests arrive");
            std::thread::sleep(Duration::from_millis(300));
        }
        // It is busy, and in error all the same. Who may not do that has it ended otherwise.
        if rustix::mount::unmount(served.path(), rustix::mount::UnmountFlags::FORCE) == Err(Errno::PERM) {
            served.stopper.notify();
        }
    });
    let looked = count(1);
    std::thread::sleep(Duration::from_millis(300));
    assert!(count(1) - looked < 20, "it looked {} times although nothing came", count(1) - looked);
    // What it has taken may end for a while.
    let limit = Instant::now() + Duration::from_secs(60);
    while !served.thread.as_ref().unwrap().is_finished() {
        assert!(Instant::now() < limit, "it goes on without its file");
        std::thread::sleep(Duration::from_millis(20));
    }
    served.thread.take().unwrap().join().unwrap();
}

const O_DSYNC: i32 = 0o10_000;
