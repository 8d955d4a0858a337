//! The suite of sentences over each kind of device that this crate has.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use overside_memory::{Buffer, Bytes, Segment};
use overside_verbs::SystemClock;
use overside_verbs::watch::Signal;
use overside_volume::{
    Array, Completion, Device, DeviceError, Geometry, MemberState, MemoryDevice, Pieces, Raid, Request, Scattered,
    Sectors, Staged, SumPlaces, Sums, Work, complete,
};

fn memory(bytes: u64) -> Box<dyn Device> {
    Box::new(MemoryDevice::new(bytes).unwrap())
}

/// Memory that carries requests out in any order, by units of its own choice: what a disk may do.
#[derive(Debug)]
struct Unruly {
    memory: MemoryDevice,
    unit_bytes: u64,
    waiting: Vec<Request>,
    signal: Signal,
    chance: u64,
}

impl Unruly {
    fn boxed(unit_bytes: u64, seed: u64) -> Box<dyn Device> {
        Self::of(unit_bytes, seed, 1 << 20)
    }

    fn of(unit_bytes: u64, seed: u64, bytes: u64) -> Box<dyn Device> {
        let memory = MemoryDevice::new(bytes).unwrap();
        Box::new(Unruly { memory, unit_bytes, waiting: Vec::new(), signal: Signal::new().unwrap(), chance: seed })
    }
}

impl Device for Unruly {
    fn geometry(&self) -> Geometry {
        Geometry { unit_bytes: self.unit_bytes, ..self.memory.geometry() }
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        while self.waiting.len() < 40
            && let Some(request) = batch.pop_front()
        {
            self.waiting.push(request);
        }
        self.signal.notify();
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.signal.drain();
        let before = out.len();
        for _ in 0..self.waiting.len().min(2) {
            self.chance = self.chance.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let request = self.waiting.swap_remove((self.chance >> 33) as usize % self.waiting.len());
            match self.geometry().check(&request.work) {
                Ok(()) => self.memory.submit(&mut [request].into()),
                Err(error) => out.push(request.ended(Err(error))),
            }
            self.memory.poll(out);
        }
        if !self.waiting.is_empty() {
            self.signal.notify();
        }
        out.len() - before
    }
    fn arm(&mut self) -> bool {
        true
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.signal.as_fd())
    }
}

mod of_unruly_memory {
    use super::*;

    fn open() -> Box<dyn Device> {
        Unruly::boxed(4096, 1)
    }

    overside_conformance::device_tests!(open);
}

/// What is asked for as usual, with memory in pieces.
#[derive(Debug)]
struct Cut {
    device: Staged<Box<dyn Device>>,
    next: u64,
    under_way: HashMap<u64, Held>,
}

/// What a request is when it is whole again.
#[derive(Debug)]
enum Held {
    /// Its tag and length, and what of its buffer is past that.
    Read(u64, usize, Buffer),
    Write(u64, Bytes),
}

impl Device for Cut {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        for Request { tag, work } in batch.drain(..) {
            let (held, at, pieces) = match work {
                Work::Read { at, length, into } if length <= into.len() => {
                    let (mut pieces, mut rest, mut left) = (Vec::new(), into, length);
                    for most in [1, 700, usize::MAX] {
                        let (piece, behind) = rest.split_at(most.min(left));
                        left -= piece.len();
                        pieces.push(piece);
                        rest = behind;
                    }
                    (Held::Read(tag, length, rest), at, Pieces::Into(pieces))
                }
                Work::Write { at, from, fua } => {
                    let cuts = [0, 1.min(from.len()), 700.min(from.len()), from.len()];
                    let pieces = cuts.windows(2).map(|cut| from.slice(cut[0]..cut[1])).collect();
                    (Held::Write(tag, from), at, Pieces::From { pieces, fua })
                }
                work => {
                    self.device.submit(&mut [Request { tag, work }].into());
                    continue;
                }
            };
            self.under_way.insert(self.next, held);
            self.device.submit_scattered(&mut [Scattered { tag: self.next, at, pieces }].into());
            self.next += 1;
        }
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let (mut ended, before) = (Vec::new(), out.len());
        self.device.poll(out);
        self.device.poll_scattered(&mut ended);
        for (Scattered { tag, at, pieces }, result) in ended {
            let (tag, work) = match (self.under_way.remove(&tag).unwrap(), pieces) {
                (Held::Read(tag, length, behind), Pieces::Into(mut pieces)) => {
                    pieces.push(behind);
                    let into = pieces.into_iter().reduce(|whole, piece| whole.join(piece).unwrap()).unwrap();
                    (tag, Work::Read { at, length, into })
                }
                (Held::Write(tag, from), Pieces::From { pieces, fua }) => {
                    drop(pieces);
                    (tag, Work::Write { at, from, fua })
                }
                other => panic!("{other:?}"),
            };
            out.push(Completion { tag, work, result });
        }
        out.len() - before
    }
    fn arm(&mut self) -> bool {
        self.device.arm()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.device.fd()
    }
}

mod of_memory_in_pieces_over_an_unruly_device {
    use super::*;

    fn open() -> Box<dyn Device> {
        let device = Staged::new(Unruly::boxed(512, 4));
        Box::new(Cut { device, next: 0, under_way: HashMap::new() })
    }

    overside_conformance::device_tests!(open);
}

mod of_a_mirror_of_unruly_members {
    use super::*;

    fn open() -> Box<dyn Device> {
        Box::new(Raid::mirror(vec![Unruly::boxed(512, 1), Unruly::boxed(512, 2)]).unwrap())
    }

    overside_conformance::device_tests!(open);
}

mod of_sectors_over_an_unruly_member {
    use super::*;

    fn open() -> Box<dyn Device> {
        Box::new(Sectors::over(Unruly::boxed(4096, 3)))
    }

    overside_conformance::device_tests!(open);
}

mod of_memory {
    use super::*;

    struct Harness;

    impl overside_conformance::device::DeviceHarness for Harness {
        fn open(&self) -> Box<dyn Device> {
            memory(1 << 20)
        }
        fn frozen(&self) -> Option<Box<dyn Device>> {
            Some(Box::new(MemoryDevice::new(1 << 20).unwrap().frozen()))
        }
    }

    overside_conformance::device_tests!(Harness);
}

mod of_a_concatenation {
    use super::*;

    fn open() -> Box<dyn Device> {
        Box::new(Array::concat(vec![memory(700 * 512), memory(512), memory(1 << 20)]).unwrap())
    }

    overside_conformance::device_tests!(open);
}

mod of_stripes {
    use super::*;

    fn open() -> Box<dyn Device> {
        Box::new(Array::stripes(vec![memory(1 << 19), memory(1 << 20), memory(1 << 19)], 1024).unwrap())
    }

    overside_conformance::device_tests!(open);
}

mod of_a_mirror {
    use super::*;

    struct Harness;

    impl overside_conformance::device::DeviceHarness for Harness {
        fn open(&self) -> Box<dyn Device> {
            Box::new(Raid::mirror(vec![memory(1 << 20), memory((1 << 20) + 512)]).unwrap())
        }
        fn frozen(&self) -> Option<Box<dyn Device>> {
            let frozen = Box::new(MemoryDevice::new(1 << 20).unwrap().frozen());
            Some(Box::new(Raid::mirror(vec![memory(1 << 20), frozen]).unwrap()))
        }
    }

    overside_conformance::device_tests!(Harness);
}

mod of_raid_5 {
    use super::*;

    fn open() -> Box<dyn Device> {
        Box::new(Raid::parity(vec![memory(1 << 20), memory(1 << 19), memory(1 << 20)], 1024).unwrap())
    }

    overside_conformance::device_tests!(open);
}

mod of_raid_5_of_unruly_members {
    use super::*;

    fn open() -> Box<dyn Device> {
        let members = (0..5).map(|seed| Unruly::boxed(512, seed)).collect();
        let mut raid = Raid::parity(members, 2048).unwrap();
        let mut store = Unruly::boxed(512, 9);
        raid.format_store(&mut *store, &SystemClock).unwrap();
        raid.with_intents(store, SystemClock::handle(), 0).unwrap();
        Box::new(raid)
    }

    overside_conformance::device_tests!(open);
}

mod of_raid_5_without_a_member {
    use super::*;

    fn open() -> Box<dyn Device> {
        let members = (0..3).map(|seed| Unruly::boxed(4096, seed)).collect();
        let mut raid = Raid::parity(members, 8192).unwrap();
        raid.set_absent(1);
        let mut store = Unruly::boxed(4096, 9);
        raid.format_store(&mut *store, &SystemClock).unwrap();
        raid.with_intents(store, SystemClock::handle(), 0).unwrap();
        Box::new(raid)
    }

    overside_conformance::device_tests!(open);
}

mod of_a_mirror_that_is_resynced {
    use super::*;

    fn open() -> Box<dyn Device> {
        let mut raid = Raid::mirror(vec![Unruly::boxed(512, 1), Unruly::boxed(512, 2)]).unwrap();
        raid.set_stale(0);
        raid.with_clock(SystemClock::handle());
        Box::new(raid)
    }

    overside_conformance::device_tests!(open);
}

mod of_sums_over_an_unruly_member {
    use super::*;

    pub fn of(seed: u64) -> Box<dyn Device> {
        let places = SumPlaces { bitmap: 8192, table: 0, data: 16384, bytes: 1 << 20 };
        let mut below = Unruly::of(4096, seed, 16384 + (1 << 20));
        let mut bitmap = Segment::private(8192).unwrap().carve(8192).pop().unwrap();
        bitmap.copy_from_slice(&places.empty_bitmap());
        let write = Work::Write { at: 8192, from: bitmap.into(), fua: true };
        complete(&mut *below, &SystemClock, write, Duration::from_secs(60)).1.unwrap();
        Box::new(Sums::open(below, places, SystemClock::handle()).unwrap())
    }

    fn open() -> Box<dyn Device> {
        of(1)
    }

    overside_conformance::device_tests!(open);
}

mod of_raid_5_of_sums {
    use super::*;

    fn open() -> Box<dyn Device> {
        let members = (0..3).map(of_sums_over_an_unruly_member::of).collect();
        Box::new(Sectors::over(Raid::parity(members, 8192).unwrap()))
    }

    overside_conformance::device_tests!(open);
}

mod of_a_mirror_of_stripes {
    use super::*;

    fn open() -> Box<dyn Device> {
        let stripes = || Box::new(Array::stripes(vec![memory(1 << 20), memory(1 << 20)], 4096).unwrap());
        Box::new(Raid::mirror(vec![stripes(), stripes()]).unwrap())
    }

    overside_conformance::device_tests!(open);
}

/// Memory that fails once it is told to.
#[derive(Debug)]
struct Failing(MemoryDevice, Arc<AtomicBool>, Vec<Completion>);

impl Device for Failing {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        if self.1.load(Ordering::Relaxed) {
            self.2.extend(batch.drain(..).map(|request| request.ended(Err(DeviceError::Failed))));
        } else {
            self.0.submit(batch);
        }
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        out.append(&mut self.2);
        self.0.poll(out);
        out.len() - before
    }
    fn arm(&mut self) -> bool {
        self.2.is_empty() && self.0.arm()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Or a restart would read what that side has missed.
#[test]
fn a_side_that_misses_a_write_is_noted_before_the_write_is_done() {
    let fails = Arc::new(AtomicBool::new(false));
    let failing = Failing(MemoryDevice::new(1 << 20).unwrap(), fails.clone(), Vec::new());
    let mut mirror = Raid::mirror(vec![memory(1 << 20), Box::new(failing)]).unwrap();
    let (noted, can_note) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (notes, may) = (noted.clone(), can_note.clone());
    mirror.on_change(move |side, state| {
        assert_eq!((side, state), (1, MemberState::Stale));
        notes.fetch_add(1, Ordering::Relaxed);
        may.load(Ordering::Relaxed)
    });
    let zero = |mirror: &mut Raid| {
        let zero = Work::Zero { at: 0, length: 512 };
        complete(mirror, &SystemClock, zero, Duration::from_secs(60)).1
    };
    let health = mirror.health();
    assert_eq!((zero(&mut mirror), noted.load(Ordering::Relaxed)), (Ok(()), 0));
    fails.store(true, Ordering::Relaxed);
    for asked in 1..3 {
        assert_eq!(zero(&mut mirror), Err(DeviceError::Failed), "nothing says at the next start that a side is stale");
        assert_eq!((noted.load(Ordering::Relaxed), health.state(1)), (asked, MemberState::Stale));
    }
    can_note.store(true, Ordering::Relaxed);
    assert_eq!((zero(&mut mirror), zero(&mut mirror), noted.load(Ordering::Relaxed)), (Ok(()), Ok(()), 3));
    assert_eq!(health.state(0), MemberState::Current);
}
