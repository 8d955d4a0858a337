//! RAID 5 and what of it nobody can make anew: named, not read, healed by a write, and no reason to stay without a member.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use overside_memory::Segment;
use overside_verbs::SystemClock;
use overside_volume::{
    Completion, Device, DeviceError, Geometry, Health, Hint, LostRange, MemberState, MemoryDevice, Raid, Request, Work,
    complete,
};

/// A disk that outlives the device over it. Some of its bytes may be wrong, which a READ finds, and it may fail.
#[derive(Clone, Debug)]
struct Disk(Arc<Mutex<Medium>>);

#[derive(Debug)]
struct Medium {
    memory: MemoryDevice,
    wrong: BTreeSet<u64>,
    fails: bool,
    done: Vec<Completion>,
}

impl Disk {
    fn new(bytes: u64) -> Disk {
        let memory = MemoryDevice::new(bytes).unwrap();
        Disk(Arc::new(Mutex::new(Medium { memory, wrong: BTreeSet::new(), fails: false, done: Vec::new() })))
    }

    fn set_failing(&self, fails: bool) {
        self.0.lock().unwrap().fails = fails;
    }

    /// Its checksum does not fit any more.
    fn spoil(&self, unit: u64) {
        self.0.lock().unwrap().wrong.insert(unit);
    }
}

impl Device for Disk {
    fn geometry(&self) -> Geometry {
        Geometry { unit_bytes: UNIT, ..self.0.lock().unwrap().memory.geometry() }
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        let mut medium = self.0.lock().unwrap();
        for request in batch.drain(..) {
            let range = request.work.range().map_or(0..0, |(at, length)| at / UNIT..(at + length).div_ceil(UNIT));
            let is_wrong = medium.wrong.range(range.clone()).next().is_some();
            if medium.fails {
                medium.done.push(request.ended(Err(DeviceError::Failed)));
            } else if is_wrong && !request.work.writes() {
                let mut request = request;
                if let Work::Check { wrong, .. } = &mut request.work {
                    *wrong = 1;
                    medium.done.push(request.ended(Ok(())));
                } else {
                    medium.done.push(request.ended(Err(DeviceError::Corrupt)));
                }
            } else {
                if request.work.writes() {
                    medium.wrong.retain(|unit| !range.contains(unit));
                }
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

const UNIT: u64 = 4096;
const STRIPE: u64 = 2 * UNIT;
/// Three members: a row of the volume is two stripes.
const ROW: u64 = 2 * STRIPE;
/// The volume has three regions of the bitmap.
const MEMBER: u64 = 384 << 10;

/// Disks of a volume, and what a home folder would know of them.
struct Volume {
    disks: Vec<Disk>,
    store: Disk,
    lost: Arc<Mutex<BTreeSet<LostRange>>>,
    stale: Arc<Mutex<BTreeSet<usize>>>,
}

impl Volume {
    fn new() -> Volume {
        let disks: Vec<Disk> = (0..3).map(|_| Disk::new(MEMBER)).collect();
        let mut store = Disk::new(1 << 20);
        let members = disks.iter().map(|disk| Box::new(disk.clone()) as Box<dyn Device>).collect();
        Raid::parity(members, STRIPE).unwrap().format_store(&mut store, &SystemClock).unwrap();
        Volume { disks, store, lost: Arc::default(), stale: Arc::default() }
    }

    /// Its next life; members that are `away` are not there at its start.
    fn open(&self, away: &[usize]) -> Raid {
        let members = self.disks.iter().map(|disk| Box::new(disk.clone()) as Box<dyn Device>).collect();
        let mut raid = Raid::parity(members, STRIPE).unwrap();
        let stale = self.stale.lock().unwrap().clone();
        let news = away.iter().filter(|member| !stale.contains(member)).fold(0, |bits, member| bits | 1 << member);
        stale.iter().chain(away).for_each(|member| raid.set_stale(*member));
        let (noted, lost) = (self.lost.clone(), self.lost.clone());
        raid.set_lost(&lost.lock().unwrap());
        raid.on_lost(move |ranges| {
            noted.lock().unwrap().clone_from(ranges);
            true
        });
        raid.with_intents(Box::new(self.store.clone()), SystemClock::handle(), news).unwrap();
        self.stale.lock().unwrap().extend(away);
        let stale = self.stale.clone();
        raid.on_change(move |member, state| {
            match state {
                MemberState::Stale => stale.lock().unwrap().insert(member),
                MemberState::Current => stale.lock().unwrap().remove(&member),
            };
            true
        });
        raid
    }

    /// Everything has been written, and then the node was killed in the middle of row 0: of member 1, which has its second
    /// stripe, the first unit is newer than the parity.
    fn killed() -> Volume {
        let volume = Volume::new();
        let mut raid = volume.open(&[]);
        let bytes = raid.geometry().bytes;
        (0..bytes / UNIT).for_each(|unit| write(&mut raid, unit * UNIT, first(unit), UNIT).unwrap());
        close(&mut raid);
        write(&mut raid, 0, first(0), UNIT).unwrap();
        drop(raid);
        write(&mut volume.disks[1].clone(), 0, NEWER, UNIT).unwrap();
        volume
    }

    /// Members fit each other.
    fn assert_whole(&self) {
        let all: Vec<Vec<u8>> = self.disks.iter().map(|disk| read(&mut disk.clone(), 0, MEMBER).unwrap()).collect();
        let wrong = (0..MEMBER as usize).find(|at| all.iter().fold(0, |sum, disk| sum ^ disk[*at]) != 0);
        assert_eq!(wrong, None, "parity is that of its stripes");
    }
}

fn first(unit: u64) -> u8 {
    (unit * 7 + 1) as u8
}

const NEWER: u8 = 0xee;
/// Of the volume: what member 1 has in row 0.
const TORN: u64 = STRIPE;

fn write(device: &mut dyn Device, at: u64, byte: u8, length: u64) -> Result<(), DeviceError> {
    let mut from = Segment::private(length as usize).unwrap().carve(length as usize).pop().unwrap();
    from.fill(byte);
    complete(device, &SystemClock, Work::Write { at, from: from.into(), fua: false }, PATIENCE).1
}

fn read(device: &mut dyn Device, at: u64, length: u64) -> Result<Vec<u8>, DeviceError> {
    let into = Segment::private(length as usize).unwrap().carve(length as usize).pop().unwrap();
    match complete(device, &SystemClock, Work::Read { at, length: length as usize, into }, PATIENCE) {
        (Some(Work::Read { into, .. }), Ok(())) => Ok(into[..length as usize].to_vec()),
        (_, error) => Err(error.unwrap_err()),
    }
}

/// The unit's byte: all are the same.
fn unit(device: &mut dyn Device, at: u64) -> Result<u8, DeviceError> {
    let bytes = read(device, at, UNIT)?;
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mix at {at}");
    Ok(bytes[0])
}

fn check(raid: &mut Raid, at: u64, length: u64, mend: bool) -> Result<u64, DeviceError> {
    let (work, result) = complete(raid, &SystemClock, Work::Check { at, length, mend, wrong: 0 }, PATIENCE);
    result.map(|()| if let Some(Work::Check { wrong, .. }) = work { wrong } else { panic!("another came back") })
}

/// Nothing is left to be settled, and nobody has written anything since.
fn close(raid: &mut Raid) {
    let all = Work::Hint { at: 0, length: raid.geometry().bytes, hint: Hint::DontNeed };
    for work in [Work::Flush, all] {
        complete(raid, &SystemClock, work, PATIENCE).1.unwrap();
    }
}

fn until_current(raid: &mut Raid, health: &Health, member: usize) {
    let until = Instant::now() + PATIENCE;
    while health.state(member) == MemberState::Stale {
        assert!(Instant::now() < until, "it stays stale");
        raid.poll(&mut Vec::new());
    }
}

const PATIENCE: Duration = Duration::from_secs(30);
/// What was written lies in one region of the bitmap.
const REGION_ROWS: u64 = (256 << 10) / ROW;

/// Faults: volume-lost-unit-read
#[test]
fn what_a_crash_left_of_a_missing_member_is_not_read_until_it_is_written() {
    #[cfg(mutants)]
    std::env::var("OVERSIDE_MUTANT").iter().for_each(|name| overside_volume::plant(name));
    let volume = Volume::killed();
    volume.disks[1].set_failing(true);
    let mut raid = volume.open(&[1]);
    let health = raid.health();
    let noted = LostRange { member: 1, at: 0, length: REGION_ROWS * STRIPE, kept: true };
    assert_eq!(*volume.lost.lock().unwrap(), [noted].into());
    // Of three rows, one has its parity there.
    assert_eq!(health.lost(1), noted.length - REGION_ROWS / 3 * STRIPE);
    assert_eq!((unit(&mut raid, TORN), unit(&mut raid, TORN + UNIT)), (Err(CORRUPT), Err(CORRUPT)));
    assert_eq!(read(&mut raid, 0, 2 * ROW), Err(CORRUPT));
    // What others have of the row, and what nobody wrote then.
    assert_eq!((unit(&mut raid, 0), unit(&mut raid, UNIT)), (Ok(first(0)), Ok(first(1))));
    let behind = REGION_ROWS * ROW;
    assert!((behind / UNIT..behind / UNIT + 12).all(|one| unit(&mut raid, one * UNIT) == Ok(first(one))));
    // A CHECK names it.
    assert_eq!(check(&mut raid, TORN, UNIT, false), Ok(1 << 1));
    assert_eq!((check(&mut raid, TORN, UNIT, true), check(&mut raid, 0, UNIT, false)), (Err(CORRUPT), Ok(0)));
    // Others of the row are written as ever, and that does not make up what is lost.
    write(&mut raid, 0, 3, STRIPE).unwrap();
    assert_eq!((unit(&mut raid, 0), unit(&mut raid, TORN)), (Ok(3), Err(CORRUPT)));
    // A write heals what it covers, and nothing else.
    write(&mut raid, TORN, 5, UNIT).unwrap();
    assert_eq!((unit(&mut raid, TORN), unit(&mut raid, TORN + UNIT)), (Ok(5), Err(CORRUPT)));
    write(&mut raid, ROW, 6, ROW).unwrap();
    assert!((ROW / UNIT..2 * ROW / UNIT).all(|one| unit(&mut raid, one * UNIT) == Ok(6)));
    // In the next lives, too, of which the first is killed.
    drop(raid);
    for _ in 0..2 {
        let mut raid = volume.open(&[1]);
        assert_eq!((unit(&mut raid, TORN), unit(&mut raid, TORN + UNIT)), (Ok(5), Err(CORRUPT)));
        assert_eq!((unit(&mut raid, 0), unit(&mut raid, ROW + STRIPE)), (Ok(3), Ok(6)));
        close(&mut raid);
    }
}

#[test]
fn a_member_that_is_back_brings_what_was_lost_without_it() {
    for writes in [false, true] {
        let volume = Volume::killed();
        volume.disks[1].set_failing(true);
        let mut raid = volume.open(&[1]);
        let health = raid.health();
        if writes {
            write(&mut raid, 0, 3, STRIPE).unwrap();
            write(&mut raid, TORN + UNIT, 9, UNIT).unwrap();
        }
        assert_eq!(unit(&mut raid, TORN), Err(CORRUPT));
        volume.disks[1].set_failing(false);
        until_current(&mut raid, &health, 1);
        assert_eq!((health.lost(1), volume.lost.lock().unwrap().len()), (0, 0));
        let expected = if writes { (3, NEWER, 9) } else { (first(0), NEWER, first(3)) };
        let found = |raid: &mut Raid| {
            let [first, torn, behind] = [0, TORN, TORN + UNIT].map(|at| unit(raid, at).unwrap());
            (first, torn, behind)
        };
        assert_eq!(found(&mut raid), expected);
        close(&mut raid);
        drop(raid);
        volume.assert_whole();
        // Its bytes can be made anew.
        volume.disks[1].set_failing(true);
        assert_eq!(found(&mut volume.open(&[1])), expected);
    }
}

#[test]
fn a_member_in_anothers_place_gets_all_but_what_is_lost() {
    let mut volume = Volume::killed();
    drop(volume.open(&[1]));
    volume.disks[1] = Disk::new(MEMBER);
    // As a home folder does where a member is replaced.
    let lost: BTreeSet<LostRange> =
        volume.lost.lock().unwrap().iter().map(|range| LostRange { kept: false, ..*range }).collect();
    volume.lost.lock().unwrap().clone_from(&lost);
    let mut raid = volume.open(&[]);
    let health = raid.health();
    until_current(&mut raid, &health, 1);
    assert_eq!(*volume.lost.lock().unwrap(), lost);
    let is_right = |raid: &mut Raid, one: u64| {
        let row = one * UNIT / ROW;
        // In row 0, its last member has the parity.
        let of_one = match row % 3 {
            0 => one * UNIT % ROW >= STRIPE,
            1 => false,
            _ => one * UNIT % ROW < STRIPE,
        };
        let expected = if of_one && row < REGION_ROWS { Err(CORRUPT) } else { Ok(first(one)) };
        assert_eq!(unit(raid, one * UNIT), expected, "unit {one}");
    };
    let units = raid.geometry().bytes / UNIT;
    (0..units).for_each(|one| is_right(&mut raid, one));
    assert_eq!(check(&mut raid, 0, ROW, false), Ok(1 << 1), "it is named");
    close(&mut raid);
    drop(raid);
    volume.assert_whole();
    // Any other member may go now: what is lost stays so, and nothing else is.
    volume.disks[0].set_failing(true);
    let mut raid = volume.open(&[0]);
    (0..units).for_each(|one| is_right(&mut raid, one));
    write(&mut raid, TORN, 5, UNIT).unwrap();
    assert_eq!((unit(&mut raid, TORN), unit(&mut raid, 0)), (Ok(5), Ok(first(0))));
    volume.disks[0].set_failing(false);
    let health = raid.health();
    until_current(&mut raid, &health, 0);
    close(&mut raid);
    drop(raid);
    volume.assert_whole();
    assert_eq!(unit(&mut volume.open(&[]), TORN), Ok(5));
}

#[test]
fn a_member_that_fails_before_a_crash_is_settled_leaves_what_it_had() {
    let volume = Volume::killed();
    let mut raid = volume.open(&[]);
    let health = raid.health();
    volume.disks[1].set_failing(true);
    // Of a row that is not settled, and then of one that was.
    write(&mut raid, 0, 3, UNIT).unwrap();
    assert_eq!(health.state(1), MemberState::Stale);
    assert_eq!((unit(&mut raid, 0), unit(&mut raid, TORN)), (Ok(3), Err(CORRUPT)));
    write(&mut raid, TORN + UNIT, 4, UNIT).unwrap();
    assert_eq!(unit(&mut raid, TORN + UNIT), Ok(4));
    // And killed again.
    drop(raid);
    let mut raid = volume.open(&[]);
    let health = raid.health();
    assert_eq!((unit(&mut raid, 0), unit(&mut raid, TORN), unit(&mut raid, TORN + UNIT)), (Ok(3), Err(CORRUPT), Ok(4)));
    volume.disks[1].set_failing(false);
    until_current(&mut raid, &health, 1);
    assert_eq!((unit(&mut raid, 0), unit(&mut raid, TORN), unit(&mut raid, TORN + UNIT)), (Ok(3), Ok(NEWER), Ok(4)));
    close(&mut raid);
    drop(raid);
    volume.assert_whole();
}

#[test]
fn wrong_bytes_on_another_member_do_not_keep_one_stale() {
    let volume = Volume::new();
    let mut raid = volume.open(&[]);
    let units = raid.geometry().bytes / UNIT;
    (0..units).for_each(|one| write(&mut raid, one * UNIT, first(one), UNIT).unwrap());
    close(&mut raid);
    drop(raid);
    // Member 1 misses a write, and then member 0, or the one with the parity, has bytes that are wrong.
    volume.disks[1].set_failing(true);
    let mut raid = volume.open(&[1]);
    write(&mut raid, TORN, 5, STRIPE).unwrap();
    drop(raid);
    volume.disks[1].set_failing(false);
    // In row 0 of data, in row 1 where member 1 has the parity, in row 3 of the parity.
    volume.disks[0].spoil(0);
    volume.disks[0].spoil(STRIPE / UNIT);
    volume.disks[2].spoil(3 * STRIPE / UNIT);
    let mut raid = volume.open(&[]);
    let health = raid.health();
    until_current(&mut raid, &health, 1);
    let range = |member, at| LostRange { member, at, length: UNIT, kept: false };
    let expected = [range(0, 0), range(1, 0), range(0, STRIPE), range(1, 3 * STRIPE)];
    assert_eq!(*volume.lost.lock().unwrap(), expected.into());
    let lost = [0, TORN, ROW + STRIPE, 3 * ROW + STRIPE];
    for at in (0..units).map(|one| one * UNIT) {
        let written = if (TORN..TORN + STRIPE).contains(&at) { 5 } else { first(at / UNIT) };
        assert_eq!(unit(&mut raid, at), if lost.contains(&at) { Err(CORRUPT) } else { Ok(written) }, "at {at}");
    }
    close(&mut raid);
    drop(raid);
    volume.assert_whole();
    let mut raid = volume.open(&[]);
    for at in lost {
        write(&mut raid, at, 8, UNIT).unwrap();
        assert_eq!(unit(&mut raid, at), Ok(8));
    }
    assert!(volume.lost.lock().unwrap().is_empty());
    close(&mut raid);
    drop(raid);
    volume.assert_whole();
}

/// Or the next life would not read what was acknowledged.
#[test]
fn a_write_that_heals_is_done_when_that_is_noted() {
    let volume = Volume::killed();
    volume.disks[1].set_failing(true);
    let mut raid = volume.open(&[1]);
    raid.on_lost(|_| false);
    assert_eq!(write(&mut raid, TORN, 5, UNIT), Err(DeviceError::Failed));
    let noted = volume.lost.clone();
    raid.on_lost(move |ranges| {
        noted.lock().unwrap().clone_from(ranges);
        true
    });
    assert_eq!(write(&mut raid, TORN, 6, UNIT), Ok(()));
    drop(raid);
    assert_eq!(unit(&mut volume.open(&[1]), TORN), Ok(6));
}

const CORRUPT: DeviceError = DeviceError::Corrupt;
