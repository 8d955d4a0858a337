use std::collections::BTreeSet;

use overside_verbs::SystemClock;
use overside_volume::MemoryDevice;

use super::*;

/// Memory that outlives the device over it.
#[derive(Clone, Debug)]
struct Kept(Arc<Mutex<MemoryDevice>>);

impl Kept {
    fn new(bytes: u64) -> Kept {
        Kept(Arc::new(Mutex::new(MemoryDevice::new(bytes).unwrap())))
    }
}

impl Device for Kept {
    fn geometry(&self) -> Geometry {
        lock(&self.0).geometry()
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        lock(&self.0).submit(batch);
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        lock(&self.0).poll(out)
    }
    fn arm(&mut self) -> bool {
        lock(&self.0).arm()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

fn carry_out(device: &mut dyn Device, work: Work) -> Work {
    let (work, result) = complete(device, &SystemClock, work, PATIENCE);
    assert_eq!(result, Ok(()));
    work.unwrap()
}

fn write(device: &mut dyn Device, sector: u64, count: usize, byte: u8, fua: bool) {
    let length = count * SECTOR_BYTES as usize;
    let mut bytes = buffer(length).unwrap();
    bytes.fill(byte);
    carry_out(device, Work::Write { at: sector * SECTOR_BYTES, from: Bytes::prefix(bytes, length), fua });
}

fn content(device: &mut dyn Device) -> Vec<u8> {
    let work = carry_out(device, Work::Read { at: 0, length: 8 * 512, into: buffer(4096).unwrap() });
    let Work::Read { into, .. } = work else { panic!("another request came back") };
    into[..8 * 512].chunks(512).map(|sector| sector[0]).collect()
}

/// What a FLUSH and FUA cover, and what not.
fn written(device: &mut dyn Device) {
    write(device, 0, 2, 1, false);
    carry_out(device, Work::Flush);
    write(device, 2, 1, 9, false);
    write(device, 2, 1, 2, true);
    write(device, 1, 3, 3, false);
    write(device, 3, 1, 4, false);
    assert_eq!(content(device), [1, 3, 3, 4, 0, 0, 0, 0]);
}

fn is_allowed(left: &[u8]) -> bool {
    left[0] == 1 && [1, 3].contains(&left[1]) && [2, 3].contains(&left[2]) && [0, 3, 4].contains(&left[3])
}

#[test]
fn what_a_flush_covers_stays_and_the_rest_may_go() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let mut device = Volatile::over(Box::new(MemoryDevice::new(8 * 512).unwrap())).unwrap();
        written(&mut device);
        let lost = device.lose_power(&mut XorShift::of(seed), &SystemClock).unwrap();
        let left = content(&mut device);
        assert!(lost.cached == 3 && is_allowed(&left), "seed {seed}: {left:?}");
        seen.insert(left);
    }
    assert_eq!(seen.len(), 12, "each way is possible: {seen:?}");
}

#[test]
fn a_life_that_ends_leaves_what_its_seed_says() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let (base, side) = (Kept::new(8 * 512), Kept::new(SIDE_BYTES / 64));
        let open = || Volatile::open(Box::new(base.clone()), Box::new(side.clone()), seed, &SystemClock).unwrap();
        let (mut device, lost) = open();
        assert_eq!(lost, Lost::default());
        written(&mut device);
        // No destructor is needed.
        std::mem::forget(device);
        let (mut device, lost) = open();
        let left = content(&mut device);
        assert!(lost.cached == 3 && is_allowed(&left), "seed {seed}: {left:?}");
        seen.insert(left.clone());
        // What is left is stable.
        drop(device);
        let (mut device, lost) = open();
        assert_eq!((content(&mut device), lost), (left, Lost::default()));
    }
    assert_eq!(seen.len(), 12, "each way is possible: {seen:?}");
}

#[test]
fn a_full_side_file_is_begun_again() {
    let (base, side) = (Kept::new(8 * 512), Kept::new(8 * BLOCK as u64));
    let (mut device, _) = Volatile::open(Box::new(base.clone()), Box::new(side.clone()), 1, &SystemClock).unwrap();
    for byte in 1..200 {
        write(&mut device, u64::from(byte) % 8, 1, byte, false);
    }
    assert_eq!(content(&mut device), [192, 193, 194, 195, 196, 197, 198, 199]);
    carry_out(&mut device, Work::Flush);
    drop(device);
    let (mut device, lost) = Volatile::open(Box::new(base), Box::new(side), 1, &SystemClock).unwrap();
    assert_eq!((lost.cached, content(&mut device)), (0, vec![192, 193, 194, 195, 196, 197, 198, 199]));
}

#[test]
fn it_stops_when_it_is_told_to_and_lies_when_it_is_told_to() {
    let mut device = Volatile::over(Box::new(MemoryDevice::new(8 * 512).unwrap())).unwrap();
    let handle = device.handle();
    handle.stop_after(1);
    write(&mut device, 0, 1, 1, false);
    write(&mut device, 1, 1, 1, true);
    assert!(!handle.has_stopped());
    let one = Bytes::prefix(buffer(512).unwrap(), 512);
    device.submit(&mut [Request { tag: 1, work: Work::Write { at: 0, from: one, fua: false } }].into());
    assert!(device.poll(&mut Vec::new()) == 0 && handle.has_stopped(), "behind the second write into the cache");
    handle.lie();
    device.lose_power(&mut XorShift::of(1), &SystemClock).unwrap();
    write(&mut device, 0, 1, 5, false);
    carry_out(&mut device, Work::Flush);
    assert_eq!(handle.cached(), 1);
}
