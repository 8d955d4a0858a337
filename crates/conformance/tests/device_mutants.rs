//! The suite of devices under test: a device that keeps every sentence passes, and each that breaks
//! one on purpose fails by the sentence it breaks.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_conformance::Outcome;
use overside_conformance::device::{DEVICE_SENTENCES, DeviceHarness, check_device};
use overside_memory::{Bytes, Segment};
use overside_verbs::watch::Signal;
use overside_volume::{Completion, Device, DeviceError, Geometry, Hint, MemoryDevice, Request, Work};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    Grows,
    TakesTheLast,
    TakesNothing,
    GivesTwice,
    Loses,
    ReadsPastTheLength,
    LeavesTheLastUnit,
    SkipsWrites,
    MixesSectors,
    Wavers,
    TakesTheAbsurd,
    FailsTheRest,
    WritesThoughFrozen,
    FlushesNothing,
    IgnoresFua,
    TearsSectors,
    DiscardsOnHints,
    NamesTheSound,
    MendsWithZeros,
    Blocks,
    Deaf,
    DeafUntilItsTime,
    GivesLate,
    Restless,
}

/// A device with a descriptor and with power to lose, sound but for one fault. Two sides, as a mirror
/// has; one that holds what is durable.
#[derive(Debug)]
struct Broken {
    wrong: Wrong,
    sides: [MemoryDevice; 2],
    stable: MemoryDevice,
    unflushed: Vec<(u64, Bytes)>,
    signal: Signal,
    done: Vec<Completion>,
    late: Vec<Completion>,
    frozen: bool,
    reads: usize,
    writes: u64,
    submitted: Option<Instant>,
}

const BYTES: u64 = 1 << 20;
const MOMENT: Duration = Duration::from_millis(100);

impl Broken {
    fn new(wrong: Wrong) -> Broken {
        let memory = || MemoryDevice::new(BYTES).unwrap();
        Broken {
            wrong,
            sides: [memory(), memory()],
            stable: memory(),
            unflushed: Vec::new(),
            signal: Signal::new().unwrap(),
            done: Vec::new(),
            late: Vec::new(),
            frozen: false,
            reads: 0,
            writes: 0,
            submitted: None,
        }
    }

    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == wrong
    }

    /// What takes a moment is there.
    fn has_ended(&self) -> bool {
        !self.done.is_empty() && self.submitted.is_some_and(|at| at.elapsed() > MOMENT)
    }

    fn on(memory: &mut MemoryDevice, work: Work) -> Completion {
        memory.submit(&mut [Request { tag: 0, work }].into());
        let mut out = Vec::new();
        memory.poll(&mut out);
        out.pop().unwrap()
    }

    fn both(&mut self, at: u64, from: &Bytes) {
        for side in &mut self.sides {
            Self::on(side, Work::Write { at, from: from.clone(), fua: false });
        }
    }

    fn carry_out(&mut self, work: Work) -> (Work, Result<(), DeviceError>) {
        let geometry = Geometry { read_only: self.frozen && !self.is(Wrong::WritesThoughFrozen), ..self.geometry() };
        if let Err(error) = geometry.check(&work) {
            let result = if self.is(Wrong::TakesTheAbsurd) { Ok(()) } else { Err(error) };
            return (work, result);
        }
        match work {
            Work::Read { at, length, into } => {
                let side = if self.is(Wrong::Wavers) { self.reads % 2 } else { 0 };
                self.reads += 1;
                let past = self.is(Wrong::ReadsPastTheLength) && into.len() > length;
                let Completion { mut work, result, .. } =
                    Self::on(&mut self.sides[side], Work::Read { at, length, into });
                if let (true, Work::Read { into, .. }) = (past, &mut work) {
                    into[length] = 0;
                }
                return (work, result);
            }
            Work::Write { at, ref from, fua } => {
                self.writes += 1;
                if !(self.is(Wrong::SkipsWrites) && self.writes.is_multiple_of(50)) {
                    self.both(at, from);
                    self.unflushed.push((at, from.clone()));
                }
                if fua && !self.is(Wrong::IgnoresFua) {
                    Self::on(&mut self.stable, Work::Write { at, from: from.clone(), fua });
                }
            }
            Work::Zero { at, length } | Work::Discard { at, length } => {
                let less = u64::from(self.is(Wrong::LeavesTheLastUnit)) * 512;
                if length > less {
                    self.both(at, &zeros(length - less));
                    self.unflushed.push((at, zeros(length - less)));
                }
            }
            Work::Flush if self.is(Wrong::FlushesNothing) => {}
            Work::Flush => {
                for (at, from) in self.unflushed.drain(..) {
                    Self::on(&mut self.stable, Work::Write { at, from, fua: true });
                }
            }
            Work::Hint { at, length, hint: Hint::DontNeed } if self.is(Wrong::DiscardsOnHints) => {
                self.both(at, &zeros(length));
            }
            Work::Check { at, length, mend: true, .. } if self.is(Wrong::MendsWithZeros) => {
                self.both(at, &zeros(length));
                return (Work::Check { at, length, mend: true, wrong: 0 }, Ok(()));
            }
            Work::Check { at, length, mend, .. } => {
                let wrong = u64::from(self.is(Wrong::NamesTheSound));
                return (Work::Check { at, length, mend, wrong }, Ok(()));
            }
            Work::Hint { .. } => {}
        }
        (work, Ok(()))
    }

    /// What is left is what was durable, and some of what was not.
    fn lose_power(mut self) -> Broken {
        if let Some((at, from)) = self.unflushed.pop() {
            let whole = if self.is(Wrong::TearsSectors) { 256 } else { 512 };
            let mut part = copied(&from, 512);
            let mut before = Segment::private(4096).unwrap().carve(4096).pop().unwrap();
            before.fill(0);
            part[whole..512].copy_from_slice(&before[whole..512]);
            Self::on(&mut self.stable, Work::Write { at, from: Bytes::prefix(part, 512), fua: true });
        }
        let mut left = Broken::new(self.wrong);
        let read = Work::Read { at: 0, length: BYTES as usize, into: room(BYTES as usize) };
        let all = Self::on(&mut self.stable, read).buffer().unwrap();
        left.both(0, &Bytes::from(all));
        left
    }
}

fn room(length: usize) -> overside_memory::Buffer {
    Segment::private(length).unwrap().carve(length).pop().unwrap()
}

fn zeros(length: u64) -> Bytes {
    Bytes::prefix(room(length as usize), length as usize)
}

fn copied(from: &[u8], length: usize) -> overside_memory::Buffer {
    let mut buffer = room(length);
    buffer[..length].copy_from_slice(&from[..length]);
    buffer
}

impl Device for Broken {
    fn geometry(&self) -> Geometry {
        let more = if self.is(Wrong::Grows) { self.writes * 512 } else { 0 };
        Geometry { bytes: BYTES + more, unit_bytes: 512, read_only: self.frozen }
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        if self.is(Wrong::Blocks) {
            std::thread::sleep(Duration::from_secs(6));
        }
        if self.is(Wrong::TakesNothing) && batch.len() > 64 {
            return;
        }
        let (mut failed, mut written): (bool, Vec<(u64, Bytes)>) = (false, Vec::new());
        loop {
            let next = if self.is(Wrong::TakesTheLast) { batch.pop_back() } else { batch.pop_front() };
            let Some(Request { tag, work }) = next else { break };
            if failed && self.is(Wrong::FailsTheRest) {
                self.done.push(Completion { tag, work, result: Err(DeviceError::Failed) });
                continue;
            }
            if let Work::Write { at, from, .. } = &work {
                written.push((*at, from.clone()));
            }
            let (work, result) = self.carry_out(work);
            failed |= result.is_err();
            if self.is(Wrong::GivesTwice) && matches!(work, Work::Flush) {
                self.done.push(Completion { tag, work: Work::Flush, result });
            }
            if self.is(Wrong::Loses) && tag % 40 == 39 {
                continue;
            }
            self.done.push(Completion { tag, work, result });
            // So that what comes in one batch is not in the way of the next: batches that are taken in part.
            if self.is(Wrong::TakesTheLast) {
                break;
            }
        }
        if self.is(Wrong::MixesSectors) && written.len() > 1 {
            // The first of them once more, half a sector each.
            let (at, from) = &written[0];
            for sector in 0..from.len() / 512 {
                let place = at + sector as u64 * 512;
                let Completion { work, .. } =
                    Self::on(&mut self.sides[0], Work::Read { at: place, length: 512, into: room(512) });
                let Work::Read { mut into, .. } = work else { continue };
                into[..256].copy_from_slice(&from[sector * 512..sector * 512 + 256]);
                self.both(place, &Bytes::prefix(into, 512));
            }
        }
        if self.is(Wrong::Wavers) {
            // The other side meets them in another order.
            for (at, from) in written.iter().rev() {
                Self::on(&mut self.sides[1], Work::Write { at: *at, from: from.clone(), fua: false });
            }
        }
        self.submitted = Some(Instant::now());
        if !self.is(Wrong::Deaf) && !self.is(Wrong::DeafUntilItsTime) {
            self.signal.notify();
        }
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        if !self.is(Wrong::Restless) {
            self.signal.drain();
        }
        if self.is(Wrong::GivesLate) {
            let found = self.late.len();
            out.append(&mut self.late);
            self.late.append(&mut self.done);
            return found;
        }
        if self.is(Wrong::DeafUntilItsTime) && !self.has_ended() {
            return 0;
        }
        let found = self.done.len();
        out.append(&mut self.done);
        found
    }

    fn arm(&mut self) -> bool {
        // With a descriptor that tells, it may sleep although something is there.
        !self.is(Wrong::DeafUntilItsTime) || !self.has_ended()
    }

    fn due(&self) -> Option<Instant> {
        self.is(Wrong::DeafUntilItsTime).then(|| Instant::now() + Duration::from_secs(2))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        (!self.is(Wrong::GivesLate)).then(|| self.signal.as_fd())
    }
}

struct Harness(Wrong);

impl DeviceHarness for Harness {
    fn open(&self) -> Box<dyn Device> {
        Box::new(Power::on(Broken::new(self.0)))
    }

    fn frozen(&self) -> Option<Box<dyn Device>> {
        Some(Box::new(Broken { frozen: true, ..Broken::new(self.0) }))
    }

    fn lose_power(&self, device: Box<dyn Device>) -> Option<Box<dyn Device>> {
        // The suite gives back the device that it was given, which has said where it keeps itself.
        drop(device);
        let broken = LAST.with(|last| last.borrow_mut().take())?;
        Some(Box::new(broken.lose_power()))
    }
}

thread_local! {
    /// The device of this check's thread, when it was dropped.
    static LAST: std::cell::RefCell<Option<Broken>> = const { std::cell::RefCell::new(None) };
}

/// Leaves the device where the harness finds it again.
#[derive(Debug)]
struct Power(Option<Broken>);

impl Power {
    fn on(broken: Broken) -> Power {
        Power(Some(broken))
    }

    fn device(&mut self) -> &mut Broken {
        self.0.as_mut().unwrap()
    }
}

impl Drop for Power {
    fn drop(&mut self) {
        LAST.with(|last| *last.borrow_mut() = self.0.take());
    }
}

impl Device for Power {
    fn geometry(&self) -> Geometry {
        self.0.as_ref().unwrap().geometry()
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        self.device().submit(batch);
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.device().poll(out)
    }
    fn arm(&mut self) -> bool {
        self.device().arm()
    }
    fn due(&self) -> Option<Instant> {
        self.0.as_ref().unwrap().due()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().unwrap().fd()
    }
}

#[test]
fn a_sound_device_keeps_every_sentence() {
    let harness: Arc<dyn DeviceHarness> = Arc::new(Harness(Wrong::Nothing));
    for sentence in DEVICE_SENTENCES {
        assert_eq!(check_device(sentence.id, &harness), Outcome::Kept, "{}", sentence.id);
    }
}

fn caught(wrong: Wrong, sentences: &[&str]) {
    for sentence in sentences {
        let harness: Arc<dyn DeviceHarness> = Arc::new(Harness(wrong));
        match check_device(sentence, &harness) {
            Outcome::Broken(what) => println!("{sentence}: {what}"),
            other => panic!("**{sentence}** did not catch it: {other:?}"),
        }
    }
}

macro_rules! mutants {
    ($($name:ident: $wrong:ident by $($sentence:literal)+;)*) => {
        $(#[test] fn $name() { caught(Wrong::$wrong, &[$($sentence),+]); })*
    };
}

mutants! {
    grows: Grows by "geometry";
    takes_the_last_of_a_batch: TakesTheLast by "accept";
    takes_nothing_of_a_long_batch: TakesNothing by "accept";
    gives_a_flush_back_twice: GivesTwice by "once";
    loses_one_of_many: Loses by "accept";
    reads_past_the_length: ReadsPastTheLength by "own";
    leaves_the_last_unit: LeavesTheLastUnit by "zeros";
    skips_a_write: SkipsWrites by "written";
    mixes_sectors: MixesSectors by "overlap";
    has_sides_that_differ: Wavers by "overlap";
    takes_what_there_cannot_be: TakesTheAbsurd by "range";
    fails_what_comes_with_a_failure: FailsTheRest by "apart";
    writes_though_it_is_frozen: WritesThoughFrozen by "read-only";
    flushes_nothing: FlushesNothing by "durable";
    ignores_fua: IgnoresFua by "durable";
    tears_sectors: TearsSectors by "durable";
    discards_on_hints: DiscardsOnHints by "hint";
    names_a_member_that_is_sound: NamesTheSound by "check";
    mends_with_zeros: MendsWithZeros by "check";
    waits_in_submit: Blocks by "nonblocking";
    is_never_readable: Deaf by "arm";
    is_not_readable_before_its_time: DeafUntilItsTime by "arm";
    gives_back_by_a_later_poll: GivesLate by "arm";
    is_always_readable: Restless by "idle";
}

/// Every sentence has caught something.
#[test]
fn no_sentence_is_idle_talk() {
    let this = include_str!("device_mutants.rs");
    for sentence in DEVICE_SENTENCES {
        let by = this.lines().filter_map(|line| line.split_once(" by ")).map(|(_, by)| by);
        assert!(
            by.into_iter().any(|by| by.contains(&format!("\"{}\"", sentence.id))),
            "no mutant shows that **{}** can fail",
            sentence.id
        );
    }
}
