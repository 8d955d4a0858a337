//! Files on a volume, against a model, over every crash.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use overside_memory::{Bytes, Segment};
use overside_vault::files::Files;
use overside_verbs::SystemClock;
use overside_volume::files::{About, Attributes, Command, ENTRY_BYTES, PIECE_BYTES, Preset, entry, place};
use overside_volume::{Completion, Device, DeviceError, Geometry, Hint, Request, Work, complete};
use proptest::prelude::*;

const PATIENCE: Duration = Duration::from_secs(10);
/// Two halves of a journal, and 24 chunks.
const BYTES: u64 = PIECE_BYTES + 2 * (256 << 10) + 24 * PIECE_BYTES;

/// A disk that outlives its device: what a FLUSH or FUA has covered, and what only its cache has.
#[derive(Debug)]
struct Disk {
    safe: Vec<u8>,
    cached: Vec<(usize, Vec<u8>)>,
    /// Requests that are carried out before it stops.
    left: u64,
    /// The first that fails is carried out all the same.
    lies: bool,
    /// Places and lengths of hints.
    hints: Vec<(u64, u64)>,
}

#[derive(Clone, Debug)]
struct Shared(Arc<Mutex<Disk>>);

impl Shared {
    fn new() -> Shared {
        let disk =
            Disk { safe: vec![0; BYTES as usize], cached: Vec::new(), left: u64::MAX, lies: false, hints: Vec::new() };
        Shared(Arc::new(Mutex::new(disk)))
    }

    fn device(&self) -> Box<dyn Device> {
        Box::new(OfDisk(self.clone(), Vec::new()))
    }

    fn files(&self) -> Files<Box<dyn Device>> {
        Files::open(self.device(), Preset::Sqlite, &SystemClock).unwrap()
    }

    /// It carries out so many requests more, and none after.
    fn stop_after(&self, left: u64) {
        self.0.lock().unwrap().left = left;
    }

    /// The power is gone and comes back: of what is not safe, the bits of `kept` say which writes are there.
    fn power(&self, mut kept: u64) {
        let mut disk = self.0.lock().unwrap();
        for (at, bytes) in std::mem::take(&mut disk.cached) {
            if kept & 1 == 1 {
                disk.safe[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            kept = kept.rotate_right(1);
        }
        disk.left = u64::MAX;
    }
}

#[derive(Debug)]
struct OfDisk(Shared, Vec<Completion>);

impl Disk {
    fn carry_out(&mut self, work: &mut Work) -> Result<(), DeviceError> {
        if self.left == 0 {
            if std::mem::take(&mut self.lies) {
                self.left = 1;
                self.carry_out(work)?;
            }
            return Err(DeviceError::Failed);
        }
        self.left -= 1;
        match work {
            Work::Read { at, length, into } => {
                let (at, length) = (*at as usize, *length);
                into[..length].copy_from_slice(&self.safe[at..at + length]);
                for (start, bytes) in &self.cached {
                    let (first, last) = (at.max(*start), (at + length).min(start + bytes.len()));
                    if first < last {
                        into[first - at..last - at].copy_from_slice(&bytes[first - start..last - start]);
                    }
                }
            }
            Work::Write { at, from, fua: true } => {
                let (first, last) = (*at as usize, *at as usize + from.len());
                self.safe[first..last].copy_from_slice(from);
                for (start, bytes) in &mut self.cached {
                    let (first, last) = (first.max(*start), last.min(*start + bytes.len()));
                    if first < last {
                        bytes[first - *start..last - *start]
                            .copy_from_slice(&from[first - *at as usize..last - *at as usize]);
                    }
                }
            }
            Work::Write { at, from, .. } => self.cached.push((*at as usize, from.to_vec())),
            Work::Zero { at, length } | Work::Discard { at, length } => {
                self.cached.push((*at as usize, vec![0; *length as usize]));
            }
            Work::Flush => {
                for (at, bytes) in std::mem::take(&mut self.cached) {
                    self.safe[at..at + bytes.len()].copy_from_slice(&bytes);
                }
            }
            Work::Hint { at, length, .. } => self.hints.push((*at, *length)),
            Work::Check { .. } => {}
        }
        Ok(())
    }
}

impl Device for OfDisk {
    fn geometry(&self) -> Geometry {
        Geometry { bytes: BYTES, unit_bytes: 512, read_only: false }
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        for mut request in batch.drain(..) {
            let result = self.geometry().check(&request.work);
            let result = result.and_then(|()| self.0.0.lock().unwrap().carry_out(&mut request.work));
            self.1.push(request.ended(result));
        }
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let found = self.1.len();
        out.append(&mut self.1);
        found
    }
    fn arm(&mut self) -> bool {
        self.1.is_empty()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

fn write(files: &mut dyn Device, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
    let mut buffer = Segment::private(bytes.len()).unwrap().carve(bytes.len()).pop().unwrap();
    buffer[..bytes.len()].copy_from_slice(bytes);
    let work = Work::Write { at, from: Bytes::prefix(buffer, bytes.len()), fua: true };
    let (work, result) = complete(files, &SystemClock, work, PATIENCE);
    let Some(Work::Write { at: back, from, .. }) = work else { panic!("another request came back") };
    assert!(back == at && from[..] == *bytes && from.into_buffer().is_ok(), "as it came, and nobody shares it");
    result
}

fn read(files: &mut dyn Device, at: u64, length: usize) -> Result<Vec<u8>, DeviceError> {
    let mut into = Segment::private(length).unwrap().carve(length).pop().unwrap();
    into.fill(0xee);
    let (work, result) = complete(files, &SystemClock, Work::Read { at, length, into }, PATIENCE);
    let Some(Work::Read { into, length: back, .. }) = work else { panic!("another request came back") };
    assert_eq!(back, length);
    result.map(|()| into[..length].to_vec())
}

fn about(files: &mut dyn Device) -> About {
    About::parse(&read(files, 0, ENTRY_BYTES).unwrap().try_into().unwrap()).unwrap()
}

fn attributes(files: &mut dyn Device, id: u32) -> Attributes {
    Attributes::parse(&read(files, entry(id), ENTRY_BYTES).unwrap().try_into().unwrap()).unwrap()
}

/// All of a file, piece by piece.
fn whole(files: &mut dyn Device, id: u32) -> Vec<u8> {
    let size = attributes(files, id).size;
    let pieces = (0..size).step_by(PIECE_BYTES as usize);
    pieces.flat_map(|at| read(files, place(id, at), (size - at).min(PIECE_BYTES) as usize).unwrap()).collect()
}

#[derive(Clone, Debug)]
enum Op {
    Create(u32),
    Remove(u32),
    Resize(u32, u64),
    Reserve(u32, u64),
    /// Bytes of this value, none across a piece.
    Write(u32, u64, usize, u8),
    Open,
}

fn ops() -> impl Strategy<Value = Op> {
    let id = 1u32..4;
    let size = prop_oneof![0..4 * PIECE_BYTES, (0u64..8).prop_map(|piece| piece * PIECE_BYTES / 2)];
    prop_oneof![
        2 => id.clone().prop_map(Op::Create),
        1 => id.clone().prop_map(Op::Remove),
        3 => (id.clone(), size.clone()).prop_map(|(id, size)| Op::Resize(id, size)),
        2 => (id.clone(), size.clone()).prop_map(|(id, size)| Op::Reserve(id, size.max(1))),
        8 => (id, size, prop_oneof![1usize..700, Just(512), Just(8192)], 1u8..).prop_map(|(id, at, length, value)| {
            let room = (PIECE_BYTES - at % PIECE_BYTES) as usize;
            Op::Write(id, at, length.min(room), value)
        }),
        1 => Just(Op::Open),
    ]
}

type Model = BTreeMap<u32, Vec<u8>>;

fn after(op: &Op, mut model: Model) -> Model {
    match *op {
        Op::Create(id) => drop(model.entry(id).or_default()),
        Op::Remove(id) => drop(model.remove(&id)),
        Op::Resize(id, size) => {
            model.entry(id).and_modify(|file| file.resize(size as usize, 0)).or_default().truncate(usize::MAX)
        }
        Op::Reserve(id, size) => {
            let file = model.get_mut(&id).unwrap();
            file.resize(file.len().max(size as usize), 0);
        }
        Op::Write(id, at, length, value) => {
            let (at, file) = (at as usize, model.get_mut(&id).unwrap());
            file.resize(file.len().max(at + length), 0);
            file[at..at + length].fill(value);
        }
        Op::Open => {}
    }
    model
}

/// Whether the op means anything to these files.
fn may(op: &Op, model: &Model) -> bool {
    match op {
        Op::Resize(id, _) | Op::Reserve(id, _) | Op::Write(id, ..) => model.contains_key(id),
        _ => true,
    }
}

fn carry_out(op: &Op, files: &mut dyn Device) -> Result<(), DeviceError> {
    let token = |id: u32| u64::from(id) + 100;
    let command = |id: u32, command: Command| (entry(id), command.bytes(token(id)).to_vec());
    let (at, bytes) = match *op {
        Op::Create(id) => command(id, Command::Create),
        Op::Remove(id) => command(id, Command::Remove),
        Op::Resize(id, size) => command(id, Command::Resize(size)),
        Op::Reserve(id, size) => command(id, Command::Reserve(size)),
        Op::Write(id, at, length, value) => (place(id, at), vec![value; length]),
        Op::Open => return Ok(()),
    };
    write(files, at, &bytes)
}

fn found(files: &mut dyn Device) -> Model {
    let ids: Vec<u32> = (1..4).filter(|id| attributes(files, *id).token != 0).collect();
    ids.into_iter().map(|id| (id, whole(files, id))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn files_are_what_the_model_says(ops in proptest::collection::vec(ops(), 1..60)) {
        let disk = Shared::new();
        let (mut files, mut model) = (disk.files(), Model::new());
        let empty = about(&mut files).free_bytes;
        for op in ops.iter() {
            if !may(op, &model) {
                prop_assert_eq!(carry_out(op, &mut files), Err(DeviceError::Invalid));
                continue;
            }
            match op {
                Op::Open => files = disk.files(),
                op => carry_out(op, &mut files).unwrap(),
            }
            model = after(op, model);
            if let Op::Reserve(id, size) = *op {
                let free = about(&mut files).free_bytes;
                write(&mut files, place(id, size - 1), &model[&id][size as usize - 1..][..1]).unwrap();
                prop_assert_eq!(about(&mut files).free_bytes, free, "{:?}: its last byte has a place", op);
            }
            if let Op::Write(id, at, length, _) = *op {
                let expected = &model[&id][at as usize..at as usize + length];
                prop_assert!(read(&mut files, place(id, at), length).unwrap() == *expected, "{:?}", op);
            }
        }
        prop_assert!(found(&mut files) == model);
        (1..4).for_each(|id| carry_out(&Op::Remove(id), &mut files).unwrap());
        prop_assert_eq!(about(&mut files).free_bytes, empty, "all is given back");
    }

    /// The disk stops after so many requests, and the power goes: all that was acknowledged is there, and what was under way
    /// is there or not, or of a write in part, by sectors. It goes on from there, in the same way.
    #[test]
    fn no_crash_loses_what_was_acknowledged(ops in proptest::collection::vec(ops(), 20..60), stops in proptest::collection::vec((1u64..40, any::<u64>()), 1..6)) {
        let disk = Shared::new();
        let (mut files, mut model) = (disk.files(), Model::new());
        let mut stops = stops.into_iter();
        let mut kept = stops.next();
        kept.iter().for_each(|(left, _)| disk.stop_after(*left));
        for op in ops.iter().filter(|op| !matches!(op, Op::Open)) {
            if !may(op, &model) {
                continue;
            }
            let next = after(op, model.clone());
            if carry_out(op, &mut files).is_ok() {
                model = next;
                continue;
            }
            let Some((_, bits)) = kept else { panic!("{op:?} failed without a crash") };
            disk.power(bits);
            files = disk.files();
            let is = found(&mut files);
            let is_between = |id: &u32| {
                let (is, was, will) = (is.get(id), model.get(id), next.get(id));
                let mixed = || match (is, was, will) {
                    (Some(is), Some(was), Some(will)) => (is.len() == was.len() || is.len() == will.len())
                        && is.iter().enumerate().all(|(at, byte)| was.get(at) == Some(byte) || will.get(at) == Some(byte) || *byte == 0 && at >= was.len()),
                    _ => false,
                };
                is == was || is == will || (matches!(op, Op::Write(..)) && mixed())
            };
            prop_assert!((1..4).all(|id| is_between(&id)), "{:?}", op);
            model = is;
            kept = stops.next();
            kept.iter().for_each(|(left, _)| disk.stop_after(*left));
        }
        disk.power(0);
        let mut files = disk.files();
        prop_assert!(found(&mut files) == model, "after the last");
    }
}

/// A half of the journal is full many times over.
#[test]
fn the_journal_goes_round_and_round() {
    let disk = Shared::new();
    let mut files = disk.files();
    carry_out(&Op::Create(2), &mut files).unwrap();
    for size in 0..1500u64 {
        carry_out(&Op::Resize(2, size * 7 % 9000), &mut files).unwrap();
        carry_out(&Op::Write(2, size, 3, size as u8 | 1), &mut files).unwrap();
    }
    let before = found(&mut files);
    assert!(before[&2].len() > 1000);
    assert_eq!(found(&mut disk.files()), before);
}

/// A half of the journal is full, and the disk stops at each of the steps by which the other one takes over.
#[test]
fn no_crash_while_the_journal_turns_loses_a_change() {
    for (stop, kept) in (0..9).flat_map(|stop| [0, 1, 2, u64::MAX].map(|kept| (stop, kept))) {
        let disk = Shared::new();
        let mut files = disk.files();
        carry_out(&Op::Create(2), &mut files).unwrap();
        let half = (256 << 10) / 512;
        (1..half).for_each(|size| carry_out(&Op::Resize(2, size), &mut files).unwrap());
        disk.stop_after(stop);
        let mut size = half - 1;
        while carry_out(&Op::Resize(2, size + 1), &mut files).is_ok() {
            size += 1;
        }
        assert_eq!(carry_out(&Op::Resize(2, 9), &mut files), Err(DeviceError::Failed), "the disk stands still");
        disk.power(kept);
        let is = attributes(&mut disk.files(), 2).size;
        assert!(is == size || is == size + 1, "{is} of {size}, stopped after {stop}, {kept:x} kept");
    }
}

/// The disk fails for a while, as a full one does, at each of a change's steps; whether what failed is there nobody knows. It
/// goes on then, and what was acknowledged since is there, whenever the power goes.
#[test]
fn a_disk_that_failed_for_a_while_is_written_again() {
    let half = (256 << 10) / 512;
    // In the middle of a half, at its end, and when the other one takes over.
    let all = (0..9).flat_map(|stop| [9, half, half + 1].map(|first| (stop, first)));
    for (lies, (stop, first)) in [false, true].into_iter().flat_map(|lies| all.clone().map(move |one| (lies, one))) {
        for (then, kept) in (0..9).map(|then| (then, [0, u64::MAX][then as usize % 2])) {
            let of = format!("lies {lies}, {first} changes, fails after {stop}, stops after {then}");
            let disk = Shared::new();
            let mut files = disk.files();
            (2..4).for_each(|id| carry_out(&Op::Create(id), &mut files).unwrap());
            write(&mut files, place(2, 0), &[7; 2000]).unwrap();
            (4..first).for_each(|size| carry_out(&Op::Resize(3, size), &mut files).unwrap());
            disk.stop_after(stop);
            disk.0.lock().unwrap().lies = lies;
            let cut = carry_out(&Op::Resize(2, 1000), &mut files).is_ok();
            disk.stop_after(u64::MAX);
            disk.0.lock().unwrap().lies = false;
            assert_eq!(attributes(&mut files, 2).size, if cut { 1000 } else { 2000 }, "{of}");
            // Over what a truncation would take away that failed, and into what it would make free.
            let written = write(&mut files, place(2, 500), &[8; 1500]);
            assert_eq!(written, Ok(()), "{of}");
            disk.stop_after(then);
            let grown = write(&mut files, place(3, PIECE_BYTES), &[9; 100]).is_ok();
            disk.power(kept);
            let found = found(&mut disk.files());
            let expected: Vec<u8> = [[7; 500].as_slice(), &[8; 1500]].concat();
            assert!(found[&2] == expected, "{of}: {} bytes", found[&2].len());
            assert!(!grown || found[&3][PIECE_BYTES as usize..] == [9; 100], "{of}");
        }
    }
}

#[test]
fn a_full_volume_refuses_that_write_and_nothing_else() {
    let disk = Shared::new();
    let mut files = disk.files();
    (1..3).for_each(|id| carry_out(&Op::Create(id), &mut files).unwrap());
    for piece in 0..24 {
        write(&mut files, place(1, piece * PIECE_BYTES), &[7; 4096]).unwrap();
    }
    assert_eq!(write(&mut files, place(2, 0), &[1]), Err(DeviceError::NoSpace));
    assert_eq!((attributes(&mut files, 2).size, about(&mut files).free_bytes), (0, 0));
    write(&mut files, place(1, 100), &[8; 100]).unwrap();
    carry_out(&Op::Resize(1, PIECE_BYTES), &mut files).unwrap();
    write(&mut files, place(2, 5), &[1]).unwrap();
    assert_eq!(whole(&mut files, 2), [0, 0, 0, 0, 0, 1], "what another file had is not seen");
}

/// Whoever sent the first may be no more, and who sent the second know that.
#[test]
fn what_is_written_over_what_is_being_written_comes_last() {
    let disk = Shared::new();
    let mut files = disk.files();
    carry_out(&Op::Create(1), &mut files).unwrap();
    write(&mut files, place(1, 0), &[1; 4096]).unwrap();
    let request = |tag: u64, length: usize| {
        let mut buffer = Segment::private(8192).unwrap().carve(8192).pop().unwrap();
        buffer.fill(tag as u8);
        Request { tag, work: Work::Write { at: place(1, 0), from: Bytes::prefix(buffer, length), fua: true } }
    };
    // The first makes the file longer; for the second all is there.
    let (mut batch, mut done) = (VecDeque::from([request(2, 8192), request(3, 4096)]), Vec::new());
    files.submit(&mut batch);
    while done.len() < 2 {
        files.poll(&mut done);
    }
    assert!(batch.is_empty() && done.iter().all(|one| one.result == Ok(())));
    assert!(whole(&mut files, 1) == [[3; 4096], [2; 4096]].concat());
}

/// Made small and made larger, as `volume resize` does it: its journal is as long as it was. Two files that grow by turns
/// leave more to be written down than that has room for.
#[test]
fn a_volume_that_became_larger_fills_up_and_gives_back_all() {
    let mut disk = Sparse { bytes: BYTES, sectors: BTreeMap::new(), done: Vec::new() };
    drop(Files::open(&mut disk, Preset::Sqlite, &SystemClock).unwrap());
    disk.bytes = 4 << 30;
    let mut files = Files::open(&mut disk, Preset::Sqlite, &SystemClock).unwrap();
    let empty = about(&mut files).free_bytes;
    (1..3).for_each(|id| carry_out(&Op::Create(id), &mut files).unwrap());
    let grow =
        |files: &mut dyn Device, piece: u64| write(files, place(1 + piece as u32 % 2, piece / 2 * PIECE_BYTES), &[7]);
    let full = (0..).find(|piece| grow(&mut files, *piece) != Ok(())).unwrap();
    assert!((10_000..60_000).contains(&full), "{full} pieces");
    assert_eq!(grow(&mut files, full), Err(DeviceError::NoSpace));
    // Over what is there, and by what is not written down anew.
    write(&mut files, place(1, 100), &[8; 100]).unwrap();
    for size in [5, 4] {
        carry_out(&Op::Resize(2, full / 2 * PIECE_BYTES - size), &mut files).unwrap();
    }
    drop(files);
    let mut files = Files::open(&mut disk, Preset::Sqlite, &SystemClock).unwrap();
    carry_out(&Op::Remove(1), &mut files).unwrap();
    (0..600).for_each(|size| carry_out(&Op::Resize(2, full / 4 * PIECE_BYTES - size), &mut files).unwrap());
    grow(&mut files, full / 4 * 2 + 1).unwrap();
    carry_out(&Op::Remove(2), &mut files).unwrap();
    assert_eq!(about(&mut files).free_bytes, empty);
}

/// Memory of what is not zero alone.
#[derive(Debug)]
struct Sparse {
    bytes: u64,
    sectors: BTreeMap<u64, [u8; 512]>,
    done: Vec<Completion>,
}

impl Sparse {
    fn carry_out(&mut self, work: &mut Work) {
        let Some((at, length)) = work.range() else { return };
        let sectors = (at..at + length).step_by(512).zip(0usize..);
        match work {
            Work::Read { into, .. } => sectors.for_each(|(at, number)| {
                let found = self.sectors.get(&at).copied().unwrap_or([0; 512]);
                into[number * 512..][..512].copy_from_slice(&found);
            }),
            Work::Write { from, .. } => sectors.for_each(|(at, number)| {
                let sector = from[number * 512..][..512].try_into().unwrap();
                self.sectors.insert(at, sector);
            }),
            _ => {
                let covered: Vec<u64> = self.sectors.range(at..at + length).map(|(place, _)| *place).collect();
                covered.iter().for_each(|place| _ = self.sectors.remove(place));
            }
        }
    }
}

impl Device for &mut Sparse {
    fn geometry(&self) -> Geometry {
        Geometry { bytes: self.bytes, unit_bytes: 512, read_only: false }
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        for mut request in batch.drain(..) {
            self.carry_out(&mut request.work);
            self.done.push(request.ended(Ok(())));
        }
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let found = self.done.len();
        out.append(&mut self.done);
        found
    }
    fn arm(&mut self) -> bool {
        self.done.is_empty()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[test]
fn what_means_nothing_is_refused_and_changes_nothing() {
    let disk = Shared::new();
    let mut files = disk.files();
    carry_out(&Op::Create(1), &mut files).unwrap();
    write(&mut files, place(1, 0), &[5; 100]).unwrap();
    let before = found(&mut files);
    let across = PIECE_BYTES - 10;
    assert_eq!(read(&mut files, place(1, across), 20), Err(DeviceError::Invalid), "across a piece");
    assert_eq!(write(&mut files, place(1, across), &[1; 20]), Err(DeviceError::Invalid));
    assert_eq!(write(&mut files, place(9, 0), &[1]), Err(DeviceError::Invalid), "no such file");
    assert_eq!(read(&mut files, place(9, 0), 1), Err(DeviceError::Invalid));
    assert_eq!(write(&mut files, place(1, (1 << 40) - 1), &[1]), Err(DeviceError::Invalid), "too long");
    assert_eq!(write(&mut files, entry(1), &Command::Create.bytes(7)), Err(DeviceError::Invalid), "another's id");
    assert_eq!(write(&mut files, entry(1), &Command::Resize(1).bytes(7)), Err(DeviceError::Invalid), "another's token");
    assert_eq!(write(&mut files, entry(1), &Command::Remove.bytes(7)), Ok(()), "it is not there");
    assert_eq!(write(&mut files, entry(0), &Command::Create.bytes(7)), Err(DeviceError::Invalid));
    assert_eq!(write(&mut files, entry(1) + 1, &[0; 64]), Err(DeviceError::Invalid));
    for work in [Work::Zero { at: place(1, 0), length: 10 }, Work::Discard { at: place(1, 0), length: 10 }] {
        assert_eq!(complete(&mut files, &SystemClock, work, PATIENCE).1, Err(DeviceError::Invalid));
    }
    assert!(found(&mut files) == before);
}

/// An array below has nothing to settle then when it is opened again.
#[test]
fn that_nobody_uses_any_of_it_is_told_to_what_lies_below() {
    let disk = Shared::new();
    let mut files = disk.files();
    let all = files.geometry().bytes;
    for length in [64, all] {
        let hint = Work::Hint { at: 0, length, hint: Hint::DontNeed };
        let (back, result) = complete(&mut files, &SystemClock, hint, PATIENCE);
        assert!(result == Ok(()) && matches!(back, Some(Work::Hint { at: 0, length: same, .. }) if same == length));
    }
    assert_eq!(disk.0.lock().unwrap().hints, [(0, BYTES)]);
}

#[test]
fn what_is_no_journal_of_this_version_is_not_opened() {
    let disk = Shared::new();
    drop(disk.files());
    let other = Files::open(disk.device(), Preset::Postgresql, &SystemClock);
    assert_eq!(other.err(), Some(DeviceError::Corrupt), "another preset");
    disk.0.lock().unwrap().safe[512 + 9] ^= 1;
    assert_eq!(Files::open(disk.device(), Preset::Sqlite, &SystemClock).err(), Some(DeviceError::Corrupt));
}
