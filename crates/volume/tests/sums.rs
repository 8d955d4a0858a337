//! What a checksum finds, what mends it, and what a crash leaves of both.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use overside_memory::Segment;
use overside_verbs::{Clock, SystemClock};
use overside_volume::{
    Completion, Device, DeviceError, Geometry, Hint, LostRange, MemberState, MemoryDevice, Raid, Request, SumPlaces,
    Sums, Work, complete,
};

/// A disk that outlives the device over it, and whose bytes a test may change.
#[derive(Clone, Debug)]
struct Disk(Arc<Mutex<Medium>>);

#[derive(Debug)]
struct Medium {
    memory: MemoryDevice,
    /// What is asked of it fails, where it writes to these bytes.
    fails: std::ops::Range<u64>,
    done: Vec<Completion>,
    /// WRITEs of each part.
    bitmaps: usize,
}

impl Device for Disk {
    fn geometry(&self) -> Geometry {
        self.0.lock().unwrap().memory.geometry()
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        let mut medium = self.0.lock().unwrap();
        for request in batch.drain(..) {
            let at = request.work.range().map_or(u64::MAX, |(at, _)| at);
            if request.work.writes() && medium.fails.contains(&at) {
                medium.done.push(request.ended(Err(DeviceError::Failed)));
            } else {
                let notes = matches!(request.work, Work::Write { at, .. } if at < 2 * BLOCK);
                medium.bitmaps += usize::from(notes);
                medium.memory.submit(&mut [request].into());
            }
        }
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let mut medium = self.0.lock().unwrap();
        let before = out.len();
        out.append(&mut medium.done);
        medium.memory.poll(out);
        out.len() - before
    }
    fn arm(&mut self) -> bool {
        let mut medium = self.0.lock().unwrap();
        medium.done.is_empty() && medium.memory.arm()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

const BLOCK: u64 = 4096;
const BYTES: u64 = 9 << 20;
/// The bitmap, a table of three pages, the data.
const PLACES: SumPlaces = SumPlaces { bitmap: 0, table: 2 * BLOCK, data: 8 * BLOCK, bytes: BYTES };

impl Disk {
    fn new() -> Disk {
        let memory = MemoryDevice::new(8 * BLOCK + BYTES).unwrap();
        let mut disk = Disk(Arc::new(Mutex::new(Medium { memory, fails: 0..0, done: Vec::new(), bitmaps: 0 })));
        disk.put(0, &PLACES.empty_bitmap());
        disk
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        carry_out(self, Work::Write { at, from: filled(bytes), fua: true }).unwrap();
    }

    /// Changes a bit of the data.
    fn flip(&mut self, at: u64) {
        let mut block = read(self, PLACES.data + at / BLOCK * BLOCK, BLOCK).unwrap();
        block[(at % BLOCK) as usize] ^= 4;
        self.put(PLACES.data + at / BLOCK * BLOCK, &block);
    }

    fn open(&self) -> Sums {
        Sums::open(Box::new(self.clone()), PLACES, SystemClock::handle()).unwrap()
    }

    /// Lets all that is noted go, as the end of a node does.
    fn close(mut sums: Sums) {
        carry_out(&mut sums, Work::Flush).unwrap();
        let all = Work::Hint { at: 0, length: sums.geometry().bytes, hint: Hint::DontNeed };
        carry_out(&mut sums, all).unwrap();
    }
}

fn carry_out(device: &mut dyn Device, work: Work) -> Result<Work, DeviceError> {
    let (work, result) = complete(device, &SystemClock, work, Duration::from_secs(60));
    result.map(|()| work.expect("it came back"))
}

fn filled(bytes: &[u8]) -> overside_memory::Bytes {
    let mut buffer = Segment::private(bytes.len()).unwrap().carve(bytes.len()).pop().unwrap();
    buffer.copy_from_slice(bytes);
    buffer.into()
}

fn write(device: &mut dyn Device, at: u64, byte: u8, length: u64) {
    carry_out(device, Work::Write { at, from: filled(&vec![byte; length as usize]), fua: false }).unwrap();
}

fn read(device: &mut dyn Device, at: u64, length: u64) -> Result<Vec<u8>, DeviceError> {
    let into = Segment::private(length as usize).unwrap().carve(length as usize).pop().unwrap();
    match carry_out(device, Work::Read { at, length: length as usize, into })? {
        Work::Read { into, .. } => Ok(into[..length as usize].to_vec()),
        _ => panic!("another request came back"),
    }
}

fn check(device: &mut dyn Device, at: u64, length: u64, mend: bool) -> Result<u64, DeviceError> {
    match carry_out(device, Work::Check { at, length, mend, wrong: 0 })? {
        Work::Check { wrong, .. } => Ok(wrong),
        _ => panic!("another request came back"),
    }
}

/// Lets it do what it does unasked.
fn settle(sums: &mut Sums) {
    while !sums.is_verified() {
        sums.poll(&mut Vec::new());
    }
}

#[test]
fn a_byte_that_changes_is_found_wherever_it_lies() {
    let mut disk = Disk::new();
    let mut sums = disk.open();
    write(&mut sums, 0, 1, 4 * BLOCK);
    write(&mut sums, BYTES - 2 * BLOCK, 2, 2 * BLOCK);
    Disk::close(sums);
    for at in [0, 4 * BLOCK - 1, 5 << 20, BYTES - 1] {
        disk.flip(at);
        let mut sums = disk.open();
        assert_eq!(read(&mut sums, at / BLOCK * BLOCK, BLOCK), Err(DeviceError::Corrupt), "{at}");
        assert_eq!(check(&mut sums, at / BLOCK * BLOCK, BLOCK, false), Ok(1), "{at}");
        assert_eq!(check(&mut sums, 0, BYTES, false), Ok(1), "{at}");
        assert_eq!(check(&mut sums, 0, BYTES, true), Err(DeviceError::Corrupt), "nothing has it right");
        disk.flip(at);
        assert_eq!(check(&mut sums, 0, BYTES, false), Ok(0), "{at}");
        // What covers it makes it right.
        disk.flip(at);
        let zero = Work::Zero { at: at / BLOCK * BLOCK, length: BLOCK };
        carry_out(&mut sums, zero).unwrap();
        assert_eq!(read(&mut sums, at / BLOCK * BLOCK, BLOCK), Ok(vec![0; BLOCK as usize]));
        Disk::close(sums);
    }
}

/// Regions in which something was written when the power went have bytes and sums of different times.
#[test]
fn what_a_crash_left_is_summed_again_and_nothing_else_is() {
    let mut disk = Disk::new();
    let mut sums = disk.open();
    write(&mut sums, 0, 1, BLOCK);
    write(&mut sums, 6 << 20, 1, BLOCK);
    Disk::close(sums);
    let mut sums = disk.open();
    write(&mut sums, 0, 2, BLOCK);
    // Killed. Its sum was never written.
    drop(sums);
    disk.flip(6 << 20);
    let mut sums = disk.open();
    assert_eq!(read(&mut sums, 0, BLOCK), Ok(vec![2; BLOCK as usize]));
    settle(&mut sums);
    assert_eq!(read(&mut sums, 0, BLOCK), Ok(vec![2; BLOCK as usize]));
    assert_eq!(read(&mut sums, 6 << 20, BLOCK), Err(DeviceError::Corrupt));
    disk.flip(17);
    assert_eq!(read(&mut sums, 0, BLOCK), Err(DeviceError::Corrupt), "it has a sum again");
    disk.flip(17);
    Disk::close(sums);
    disk.flip(17);
    assert_eq!(read(&mut disk.open(), 0, BLOCK), Err(DeviceError::Corrupt), "in the next life, too");
}

#[test]
fn a_write_that_failed_leaves_a_block_that_can_be_read() {
    let disk = Disk::new();
    let mut sums = disk.open();
    write(&mut sums, 0, 1, BLOCK);
    disk.0.lock().unwrap().fails = PLACES.data..PLACES.data + BLOCK;
    let failing = Work::Write { at: 0, from: filled(&[2; BLOCK as usize]), fua: false };
    assert_eq!(carry_out(&mut sums, failing).err(), Some(DeviceError::Failed));
    assert_eq!(read(&mut sums, 0, BLOCK), Ok(vec![1; BLOCK as usize]));
    settle(&mut sums);
    assert_eq!(read(&mut sums, 0, BLOCK), Ok(vec![1; BLOCK as usize]));
    // A region that cannot be noted is not written.
    disk.0.lock().unwrap().fails = 0..2 * BLOCK;
    let unnoted = Work::Write { at: 7 << 20, from: filled(&[2; BLOCK as usize]), fua: false };
    assert_eq!(carry_out(&mut sums, unnoted).err(), Some(DeviceError::Failed));
    assert_eq!(read(&mut sums, 7 << 20, BLOCK), Ok(vec![0; BLOCK as usize]));
}

#[test]
fn a_region_that_is_written_all_the_time_is_noted_once() {
    let disk = Disk::new();
    let mut sums = disk.open();
    write(&mut sums, 0, 1, BLOCK);
    let before = disk.0.lock().unwrap().bitmaps;
    (0..100).for_each(|round| write(&mut sums, round % 8 * BLOCK, round as u8, BLOCK));
    assert_eq!(disk.0.lock().unwrap().bitmaps, before);
}

fn array(disks: &[Disk], parity: bool) -> Raid {
    let members = disks.iter().map(|disk| Box::new(disk.open()) as Box<dyn Device>).collect();
    let mut raid = if parity { Raid::parity(members, 2 * BLOCK) } else { Raid::mirror(members) }.unwrap();
    raid.with_clock(SystemClock::handle());
    raid
}

#[test]
fn an_array_gives_what_was_written_and_mends_what_was_changed() {
    for parity in [false, true] {
        let mut disks: Vec<Disk> = (0..3).map(|_| Disk::new()).collect();
        let mut raid = array(&disks, parity);
        let bytes = raid.geometry().bytes;
        write(&mut raid, 0, 7, 8 * BLOCK);
        let all = Work::Hint { at: 0, length: bytes, hint: Hint::DontNeed };
        carry_out(&mut raid, Work::Flush).unwrap();
        carry_out(&mut raid, all).unwrap();
        drop(raid);
        // One of each member, none of the same bytes.
        (0..).zip(&mut disks).for_each(|(block, disk)| disk.flip(block % 2 * BLOCK + block * 2 * BLOCK + 9));
        let mut raid = array(&disks, parity);
        for _ in 0..4 {
            let found = read(&mut raid, 0, 8 * BLOCK).expect("each block is right somewhere");
            assert!(found.iter().all(|byte| *byte == 7), "parity {parity}");
        }
        // Whatever no READ came upon.
        let block = |raid: &mut Raid, mend| {
            (0..bytes / BLOCK)
                .map(|block| check(raid, block * BLOCK, BLOCK, mend).unwrap())
                .fold(0, |all, bad| all | bad)
        };
        block(&mut raid, true);
        assert_eq!(check(&mut raid, 0, bytes, false), Ok(0));
        // Each member alone, found by a CHECK.
        for (number, disk) in disks.iter_mut().enumerate() {
            disk.flip(5 * BLOCK);
            assert_eq!(check(&mut raid, 0, bytes, false), Ok(1 << number), "parity {parity}");
            assert_eq!(block(&mut raid, true), 1 << number);
            assert_eq!(check(&mut raid, 0, bytes, false), Ok(0));
        }
        // The same bytes of too many.
        disks.iter_mut().for_each(|disk| disk.flip(0));
        let once = read(&mut raid, 0, BLOCK);
        assert_eq!(once, Err(DeviceError::Corrupt), "parity {parity}");
    }
}

/// It is current in spite of that, and its old bytes are not read.
#[test]
fn what_nobody_has_right_does_not_keep_a_member_stale() {
    let mut disks = [Disk::new(), Disk::new()];
    let close = |mut raid: Raid| {
        carry_out(&mut raid, Work::Flush).unwrap();
        let all = Work::Hint { at: 0, length: raid.geometry().bytes, hint: Hint::DontNeed };
        carry_out(&mut raid, all).unwrap();
    };
    let without_clock = |stale: usize| {
        let members = disks.iter().map(|disk| Box::new(disk.open()) as Box<dyn Device>).collect();
        let mut raid = Raid::mirror(members).unwrap();
        raid.set_stale(stale);
        raid
    };
    let mut raid = array(&disks, false);
    write(&mut raid, 0, 1, 8 * BLOCK);
    close(raid);
    let mut raid = without_clock(1);
    write(&mut raid, 0, 2, 8 * BLOCK);
    close(raid);
    disks[0].flip(3 * BLOCK + 5);
    let noted = Arc::new(Mutex::new(BTreeSet::new()));
    let opened = |disks: &[Disk]| {
        let (mut raid, told) = (array(disks, false), noted.clone());
        raid.set_lost(&noted.lock().unwrap());
        raid.on_lost(move |units| {
            told.lock().unwrap().clone_from(units);
            true
        });
        raid
    };
    let mut raid = opened(&disks);
    raid.set_stale(1);
    let (health, known) = (raid.health(), noted.clone());
    raid.on_change(move |member, state| {
        assert_eq!((member, state), (1, MemberState::Current));
        let lost = LostRange { member: 1, at: 3 * BLOCK, length: BLOCK, kept: false };
        assert_eq!(*known.lock().unwrap(), [lost].into(), "it is noted before");
        true
    });
    let until = Instant::now() + Duration::from_secs(60);
    while health.state(1) == MemberState::Stale {
        assert!(Instant::now() < until, "it stays stale");
        raid.poll(&mut Vec::new());
    }
    let found = |raid: &mut Raid, block: u64| read(raid, block * BLOCK, BLOCK).map(|bytes| bytes[0]);
    for _ in 0..4 {
        assert_eq!((found(&mut raid, 3), found(&mut raid, 4)), (Err(DeviceError::Corrupt), Ok(2)));
        assert_eq!(read(&mut raid, 0, 8 * BLOCK), Err(DeviceError::Corrupt));
    }
    assert_eq!(check(&mut raid, 0, 8 * BLOCK, false), Ok(0b11));
    assert_eq!(check(&mut raid, 3 * BLOCK, BLOCK, true), Err(DeviceError::Corrupt), "nothing has it right");
    assert_eq!(found(&mut raid, 3), Err(DeviceError::Corrupt));
    close(raid);
    // The next life, and without the other side.
    let mut raid = opened(&disks);
    raid.set_absent(0);
    assert_eq!((found(&mut raid, 3), found(&mut raid, 4)), (Err(DeviceError::Corrupt), Ok(2)));
    drop(raid);
    // What is written there is read from both.
    let mut raid = opened(&disks);
    write(&mut raid, 3 * BLOCK, 5, BLOCK);
    (0..4).for_each(|_| assert_eq!((found(&mut raid, 3), found(&mut raid, 2)), (Ok(5), Ok(2))));
    assert!(noted.lock().unwrap().is_empty());
    assert_eq!(check(&mut raid, 0, 8 * BLOCK, false), Ok(0));
}

/// Mending writes what the sums say: a crash in its middle must not make true what was wrong.
#[test]
fn what_is_mended_is_not_noted() {
    let mut disk = Disk::new();
    let mut sums = disk.open();
    write(&mut sums, 0, 1, BLOCK);
    Disk::close(sums);
    disk.flip(3);
    let mut sums = disk.open();
    disk.0.lock().unwrap().fails = PLACES.data..PLACES.data + BLOCK;
    let mend = Work::Write { at: 0, from: filled(&[1; BLOCK as usize]), fua: false };
    assert_eq!(carry_out(&mut sums, mend).err(), Some(DeviceError::Failed));
    assert_eq!(read(&mut sums, 0, BLOCK), Err(DeviceError::Corrupt));
    drop(sums);
    let mut sums = disk.open();
    settle(&mut sums);
    assert_eq!(read(&mut sums, 0, BLOCK), Err(DeviceError::Corrupt));
}

#[test]
fn places_that_overlap_or_end_too_late_are_refused() {
    let clock: Arc<dyn Clock> = SystemClock::handle();
    for places in [
        SumPlaces { table: 0, ..PLACES },
        SumPlaces { bytes: BYTES + BLOCK, ..PLACES },
        SumPlaces { data: 4 * BLOCK, ..PLACES },
        SumPlaces { data: u64::MAX - BLOCK + 1, ..PLACES },
        SumPlaces { bytes: 0, ..PLACES },
        SumPlaces { bitmap: 100, ..PLACES },
    ] {
        assert!(Sums::open(Box::new(Disk::new()), places, clock.clone()).is_err(), "{places:?}");
    }
}
