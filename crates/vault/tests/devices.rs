//! The suite of sentences over each kind of device that this crate has.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use overside_disk::{Disk, Open, Plain};
use overside_vault::members::{FileMember, Spindle, SpindleTimes, Volatile};
use overside_verbs::SystemClock;
use overside_volume::{Array, Device, Raid, Sectors};

/// Folders of devices that are in use.
struct Files {
    folder: Arc<tempfile::TempDir>,
    next: AtomicUsize,
    plain: bool,
}

impl Files {
    fn new(plain: bool) -> Files {
        Files { folder: Arc::new(tempfile::tempdir().unwrap()), next: AtomicUsize::new(0), plain }
    }

    fn member(&self, start: u64) -> FileMember {
        let name = format!("member-{}", self.next.fetch_add(1, Ordering::Relaxed));
        let path = self.folder.path().join("disk");
        let mut disk: Box<dyn Disk> =
            if self.plain { Box::new(Plain::open(&path).unwrap()) } else { overside_disk::open(&path).unwrap() };
        let file = disk.open(&name, Open::Create { direct: true }).unwrap();
        FileMember::new(disk, file, start, 1 << 20)
    }
}

mod of_a_file {
    use super::*;

    fn open() -> Box<dyn Device> {
        Box::new(Files::new(false).member(4096))
    }

    overside_conformance::device_tests!(open);
}

mod of_a_file_by_system_calls {
    use super::*;

    fn open() -> Box<dyn Device> {
        Box::new(Files::new(true).member(0))
    }

    overside_conformance::device_tests!(open);
}

mod of_sectors_of_a_mirror_of_files {
    use super::*;

    fn open() -> Box<dyn Device> {
        let files = Files::new(false);
        Box::new(Sectors::over(Raid::mirror(vec![Box::new(files.member(0)), Box::new(files.member(0))]).unwrap()))
    }

    overside_conformance::device_tests!(open);
}

mod of_stripes_of_files {
    use super::*;

    fn open() -> Box<dyn Device> {
        let files = Files::new(false);
        Box::new(Array::stripes(vec![Box::new(files.member(0)), Box::new(files.member(0))], 8192).unwrap())
    }

    overside_conformance::device_tests!(open);
}

/// Times so short that the suite does not wait.
fn turning(base: Box<dyn Device>) -> Box<dyn Device> {
    let (seek, turn) = (Duration::from_micros(10), Duration::from_micros(20));
    let times = SpindleTimes { seek_min: seek, seek_max: seek * 5, turn, bytes_per_s: 4_000_000_000 };
    Box::new(Spindle::over(base, times, SystemClock::handle()).unwrap())
}

mod of_a_spindle_over_memory {
    use super::*;
    use overside_volume::MemoryDevice;

    fn open() -> Box<dyn Device> {
        turning(Box::new(MemoryDevice::new(1 << 20).unwrap()))
    }

    overside_conformance::device_tests!(open);
}

mod of_a_spindle_over_a_file {
    use super::*;

    fn open() -> Box<dyn Device> {
        turning(Box::new(Files::new(false).member(0)))
    }

    overside_conformance::device_tests!(open);
}

mod of_volatile_memory {
    use super::*;
    use overside_volume::MemoryDevice;

    fn open() -> Box<dyn Device> {
        Box::new(Volatile::over(Box::new(MemoryDevice::new(1 << 20).unwrap())).unwrap())
    }

    overside_conformance::device_tests!(open);
}

mod of_a_volatile_file {
    use super::*;

    fn open() -> Box<dyn Device> {
        let files = Files::new(false);
        let [base, side] = [(); 2].map(|()| Box::new(files.member(0)));
        Box::new(Volatile::open(base, side, 1, &overside_verbs::SystemClock).unwrap().0)
    }

    overside_conformance::device_tests!(open);
}

mod of_a_cache {
    use super::*;
    use overside_vault::cache::{Cache, CacheOptions, PolicyKind};
    use overside_volume::MemoryDevice;

    /// So small that blocks come and go.
    fn over(below: Box<dyn Device>) -> Box<dyn Device> {
        let options = CacheOptions { bytes: 16 * 8192, block_bytes: 8192, policy: PolicyKind::Mq };
        Box::new(Cache::over(below, options).unwrap())
    }

    mod over_memory {
        fn open() -> Box<dyn super::Device> {
            super::over(Box::new(super::MemoryDevice::new(1 << 20).unwrap()))
        }

        overside_conformance::device_tests!(open);
    }

    mod over_a_file {
        fn open() -> Box<dyn super::Device> {
            super::over(Box::new(super::Sectors::over(super::Files::new(false).member(0))))
        }

        overside_conformance::device_tests!(open);
    }

    mod of_no_blocks {
        fn open() -> Box<dyn super::Device> {
            let below = super::MemoryDevice::new(1 << 20).unwrap();
            let options = super::CacheOptions { bytes: 0, ..super::CacheOptions::default() };
            Box::new(super::Cache::over(below, options).unwrap())
        }

        overside_conformance::device_tests!(open);
    }
}
