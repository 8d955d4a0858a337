//! A device that knows what was written: a checksum of every block of 4,096 bytes, over a device
//! that may lose or change them.
//!
//! | part of the device below | what |
//! |---|---|
//! | bitmap | two blocks: regions whose sums may be older than their bytes ([`intents`](crate::intents)) |
//! | table | a sum for each block, 4 bytes each, little-endian; 0 is the sum of zeros |
//! | data | the blocks |
//!
//! A region is noted in the bitmap before a byte of it is written, and the note is taken away when
//! its sums are on stable storage behind their bytes. So a crash costs no WRITE a second one: what
//! was noted then is summed again in the background, and READs of it are not checked until it is.
//! All else must match, or the READ fails as `Corrupt`. An array over such devices reads it from
//! another one then, and writes it again.
//!
//! A READ and a WRITE of the same block are never under way together, so a READ sees old bytes and
//! their sum or new bytes and theirs.

mod ranges;
mod table;

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_memory::{Buffer, Bytes};
use overside_verbs::Clock;

use crate::below::Below;
use crate::device::{Completion, Device, DeviceError, Geometry, Hint, Request, Work};
use crate::intents::{self, Image, Intents, get, put};
use crate::mutant::mutant;
use crate::overlaps::Overlaps;
use crate::slots::Slots;
use ranges::Ranges;
use table::{PageState, Table};

/// Where the parts lie in the device below, in whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumPlaces {
    /// First byte of the bitmap's two blocks.
    pub bitmap: u64,
    /// First byte of the table.
    pub table: u64,
    /// First byte of the data.
    pub data: u64,
    /// Bytes of the data.
    pub bytes: u64,
}

/// A device with a checksum of each block.
#[derive(Debug)]
pub struct Sums {
    inner: Below<Box<dyn Device>>,
    places: SumPlaces,
    geometry: Geometry,
    clock: Arc<dyn Clock>,
    intents: Intents<()>,
    table: Table,
    requests: Slots<InFlight>,
    steps: Slots<Step>,
    overlaps: Overlaps,
    admitted: Vec<u64>,
    /// What writes to regions that are not noted yet.
    claiming: Vec<u64>,
    /// For the device below.
    /// Bytes whose sums say nothing.
    unverified: Ranges,
    /// Where they are summed next.
    resum_from: u64,
    resums: bool,
    retry_at: Option<Instant>,
    /// Regions are being let go of.
    clean: Option<Clean>,
    clean_at: Option<Instant>,
    /// Regions that were written since regions were let go of last.
    touched: BTreeSet<usize>,
    /// Hints that nothing is needed any more.
    closing: Vec<u64>,
    sum_of_zeros: u32,
    done: Vec<Completion>,
}

#[derive(Debug)]
struct InFlight {
    /// Of a caller's request; none sums its bytes again.
    tag: Option<u64>,
    /// None while the device below has it.
    work: Option<Work>,
    /// What was read to be checked, or summed again.
    held: Option<Buffer>,
    at: u64,
    end: u64,
    /// Where the part begins and ends that is under way now: of a long DISCARD less than all.
    part: (u64, u64),
    phase: Phase,
    /// Its regions are noted, or about to be.
    noted: bool,
    /// Steps under way.
    left: usize,
    result: Result<(), DeviceError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Something that it overlaps is under way.
    Waits,
    /// Pages of the table are being read, or its regions being noted.
    Prepares,
    /// The device below carries it out.
    Below,
}

/// What the device below does.
#[derive(Debug)]
enum Step {
    /// A part of a request.
    Part(u64),
    /// Reads a page of the table.
    Page(u64),
    /// Writes one.
    Write(u64),
    /// Flushes before regions are let go of.
    Flush,
    /// Writes the bitmap.
    Image,
}

#[derive(Debug)]
struct Clean {
    regions: BTreeSet<usize>,
    /// Pages that are being written.
    left: usize,
    result: Result<(), DeviceError>,
}

impl SumPlaces {
    /// Bytes of the table for so many bytes of data: whole blocks.
    pub fn table_bytes(data: u64) -> u64 {
        data.div_ceil(BLOCK as u64 * SUMS_OF_PAGE as u64) * BLOCK as u64
    }

    /// Both blocks of the bitmap of an empty device, whose table is zeros.
    pub fn empty_bitmap(&self) -> Vec<u8> {
        Image::new(self.bytes, self.region_bytes()).bytes().repeat(2)
    }

    /// Whether two blocks are bitmaps of such a device, and note no region.
    pub fn notes_nothing(&self, copies: &[u8]) -> bool {
        copies.len() == 2 * BLOCK && Intents::of((), copies, self.bytes, self.region_bytes()).1.is_empty()
    }

    /// Regions are so large that those of a database's hot pages stay noted, and of a small device
    /// still several.
    fn region_bytes(&self) -> u64 {
        if self.bytes >= 64 * SPAN { SPAN } else { BLOCK as u64 }
    }

    /// Whether the parts are apart, and the device has them.
    fn fit(&self, inner: Geometry) -> bool {
        let block = BLOCK as u64;
        let parts = [(self.bitmap, 2 * block), (self.table, Self::table_bytes(self.bytes)), (self.data, self.bytes)];
        let mut parts = parts.map(|(at, length)| (at, at.saturating_add(length)));
        parts.sort_unstable();
        inner.unit_bytes <= block
            && self.bytes > 0
            && parts.iter().all(|(at, end)| at % block == 0 && end % block == 0 && *end <= inner.bytes)
            && parts.windows(2).all(|pair| pair[0].1 <= pair[1].0)
    }
}

impl Sums {
    /// Over a device whose bitmap was written [empty](SumPlaces::empty_bitmap) once. What the last
    /// life left noted is summed again while it is used.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] where the device has no such places, or why its bitmap cannot be
    /// read or written.
    pub fn open(mut inner: Box<dyn Device>, places: SumPlaces, clock: Arc<dyn Clock>) -> Result<Sums, DeviceError> {
        let below = inner.geometry();
        if !places.fit(below) {
            return Err(DeviceError::Invalid);
        }
        let copies = get(&mut *inner, &*clock, places.bitmap, 2 * BLOCK)?;
        let (mut intents, noted) = Intents::of((), &copies[..2 * BLOCK], places.bytes, places.region_bytes());
        let mut unverified = Ranges::default();
        for region in noted {
            let (at, length) = intents.range(region);
            if !mutant("volume-sums-not-made-again") {
                unverified.insert((at, at + length));
            }
        }
        if !below.read_only {
            let (place, image) = intents.first_image();
            put(&mut *inner, &*clock, places.bitmap + place, &image)?;
            intents.begun();
        }
        let clean_at = Some(clock.now() + CLEAN_AFTER);
        Ok(Sums {
            inner: Below::new(inner),
            places,
            geometry: Geometry { bytes: places.bytes, unit_bytes: BLOCK as u64, read_only: below.read_only },
            clock,
            intents,
            table: Table::default(),
            requests: Slots::default(),
            steps: Slots::default(),
            overlaps: Overlaps::default(),
            admitted: Vec::new(),
            claiming: Vec::new(),
            unverified,
            resum_from: 0,
            resums: false,
            retry_at: None,
            clean: None,
            clean_at,
            touched: BTreeSet::new(),
            closing: Vec::new(),
            sum_of_zeros: crc32c::crc32c(&[0; BLOCK]),
            done: Vec::new(),
        })
    }

    /// Whether nothing is left to be summed again.
    pub fn is_verified(&self) -> bool {
        self.unverified.is_empty()
    }

    fn take(&mut self, request: Request) {
        let checked = self.geometry.check(&request.work);
        let is_end =
            matches!(request.work, Work::Hint { at: 0, length, hint: Hint::DontNeed } if length == self.geometry.bytes);
        if checked.is_err() || matches!(request.work, Work::Hint { .. }) && !is_end {
            return self.done.push(request.ended(checked));
        }
        let Request { tag, work } = request;
        let (range, writes) = (work.range(), work.writes());
        let id = self.requests.insert(InFlight::new(Some(tag), work));
        if is_end {
            // Whoever opens it next has nothing to sum again.
            return self.closing.push(id);
        }
        match range {
            None => self.push_part(id, Work::Flush),
            Some((at, length)) if self.overlaps.enter(id, at, length, writes) => self.prepare(id),
            Some(_) => {}
        }
    }

    /// The next part's pages of the table. What a READ or a CHECK needs of the data is read at the
    /// same time.
    fn prepare(&mut self, id: u64) {
        let Some(asked) = self.requests.get_mut(id) else { return };
        asked.phase = Phase::Prepares;
        let from = asked.part.0;
        let is_long = matches!(asked.work, Some(Work::Discard { .. } | Work::Zero { .. }));
        let to = if is_long { asked.end.min((from / SPAN + PARTS) * SPAN) } else { asked.end };
        asked.part = (from, to);
        // It must not go on before all are asked for.
        asked.left += 1;
        for page in pages(from, to) {
            let found = self.table.take(page, id);
            if found == PageState::Absent {
                self.read_page(page);
            }
            let Some(asked) = self.requests.get_mut(id) else { return };
            match found {
                PageState::Here => {}
                PageState::Absent | PageState::Comes => asked.left += 1,
                PageState::Failed => asked.result = asked.result.and(Err(DeviceError::Failed)),
            }
        }
        self.read(id);
        self.step_ended(id);
    }

    fn read(&mut self, id: u64) {
        let Some(asked) = self.requests.get_mut(id) else { return };
        let data = self.places.data;
        let work = match asked.work.take() {
            Some(Work::Read { at, length, into }) => Work::Read { at: data + at, length, into },
            Some(Work::Check { at, length, mend, wrong }) => {
                asked.work = Some(Work::Check { at, length, mend, wrong });
                let Some(into) = usize::try_from(length).ok().and_then(intents::buffer) else {
                    (asked.phase, asked.result) = (Phase::Below, Err(DeviceError::NoMemory));
                    return;
                };
                Work::Read { at: data + at, length: length as usize, into }
            }
            other => return asked.work = other,
        };
        self.push_part(id, work);
    }

    fn read_page(&mut self, page: u64) {
        match intents::buffer(BLOCK) {
            Some(into) => {
                let at = self.places.table + page * BLOCK as u64;
                self.push(Step::Page(page), Work::Read { at, length: BLOCK, into });
            }
            // Whoever needs it is told in the order of all others.
            None => self.push(Step::Page(page), Work::Flush),
        }
    }

    fn push(&mut self, step: Step, work: Work) {
        let tag = self.steps.insert(step);
        self.inner.push(tag, work);
    }

    fn push_part(&mut self, id: u64, work: Work) {
        if let Some(asked) = self.requests.get_mut(id) {
            asked.left += 1;
            asked.phase = Phase::Below;
        }
        self.push(Step::Part(id), work);
    }

    /// One step fewer.
    fn step_ended(&mut self, id: u64) {
        let Some(asked) = self.requests.get_mut(id) else { return };
        asked.left -= 1;
        if asked.left > 0 {
            return;
        }
        match asked.phase {
            Phase::Waits => {}
            Phase::Below => self.ended(id),
            Phase::Prepares if asked.result.is_err() => self.ended(id),
            Phase::Prepares => self.write(id),
        }
    }

    /// The pages of what writes are here: it goes on once its regions are noted.
    fn write(&mut self, id: u64) {
        let Some(asked) = self.requests.get_mut(id) else { return };
        let (at, length) = (asked.at, asked.end - asked.at);
        if !asked.noted {
            let is_same = !self.intents.is_ready(at, length) && self.is_same(id);
            if is_same || mutant("volume-sums-not-noted") {
                return self.put(id);
            }
            if let Some(asked) = self.requests.get_mut(id) {
                asked.noted = true;
            }
            self.intents.enter(at, length);
            self.touched.extend(self.intents.regions_of(at, length));
        }
        if self.intents.is_ready(at, length) {
            self.put(id);
        } else {
            self.claiming.push(id);
        }
    }

    /// Whether a WRITE writes what was there. It is not noted: in a crash its sums stay true, and
    /// what was wrong on the disk and is being mended does not become right.
    fn is_same(&mut self, id: u64) -> bool {
        let Some(InFlight { work: Some(Work::Write { from, .. }), at, end, .. }) = self.requests.get_mut(id) else {
            return false;
        };
        let (from, at, end) = (from.clone(), *at, *end);
        !self.unverified.touches(at, end) && self.is_right(at, &from)
    }

    fn put(&mut self, id: u64) {
        let Some(asked) = self.requests.get_mut(id) else { return };
        let (from, to) = asked.part;
        let at = self.places.data + from;
        let work = match &asked.work {
            Some(Work::Discard { .. }) => Work::Discard { at, length: to - from },
            Some(Work::Zero { .. }) => Work::Zero { at, length: to - from },
            Some(Work::Write { from, fua, .. }) => Work::Write { at, from: from.clone(), fua: *fua },
            _ => return self.ended(id),
        };
        self.push_part(id, work);
    }

    /// Regions have been noted, or could not be.
    fn claimed(&mut self, result: Result<(), DeviceError>) {
        for id in std::mem::take(&mut self.claiming) {
            let Some(asked) = self.requests.get_mut(id) else { continue };
            if self.intents.is_ready(asked.at, asked.end - asked.at) {
                self.put(id);
            } else if let Err(error) = result {
                asked.result = Err(error);
                self.ended(id);
            } else {
                self.claiming.push(id);
            }
        }
    }

    /// All steps of a part have ended.
    fn ended(&mut self, id: u64) {
        let Some(asked) = self.requests.get_mut(id) else { return };
        let (from, to) = asked.part;
        let (work, held, result) = (asked.work.take(), asked.held.take(), asked.result);
        let (may_differ, is_own) = (asked.phase == Phase::Below && asked.noted, asked.tag.is_none());
        let (work, result) = self.judge((from, to), may_differ, is_own, work, held, result);
        if !matches!(work, Some(Work::Flush)) {
            pages(from, to).for_each(|page| self.table.release(page));
        }
        let Some(asked) = self.requests.get_mut(id) else { return };
        (asked.work, asked.result) = (work, result);
        if result.is_ok() && to < asked.end {
            asked.part = (to, asked.end);
            return self.prepare(id);
        }
        self.conclude(id);
    }

    /// What has been read is held against its sums; what has been written gets its own.
    fn judge(
        &mut self,
        (from, to): (u64, u64),
        may_differ: bool,
        is_own: bool,
        mut work: Option<Work>,
        held: Option<Buffer>,
        mut result: Result<(), DeviceError>,
    ) -> (Option<Work>, Result<(), DeviceError>) {
        let is_done = result.is_ok();
        match &mut work {
            Some(Work::Read { length, into, .. }) if is_done => {
                let is_right = self.is_right(from, &into[..*length]);
                result = if is_right { Ok(()) } else { Err(DeviceError::Corrupt) };
            }
            Some(Work::Check { length, .. }) if is_done && is_own => {
                if let Some(bytes) = &held {
                    self.set_sums(from, &bytes[..*length as usize]);
                }
            }
            Some(Work::Check { length, wrong, mend, .. }) if is_done => {
                let is_right = held.is_some_and(|bytes| self.is_right(from, &bytes[..*length as usize]));
                *wrong = u64::from(!is_right);
                if *mend && !is_right {
                    result = Err(DeviceError::Corrupt);
                }
            }
            Some(Work::Write { from: bytes, .. }) if is_done => self.set_sums(from, bytes),
            Some(Work::Discard { .. } | Work::Zero { .. }) if is_done => {
                (from / BLOCK as u64..to / BLOCK as u64).for_each(|block| self.table.set(block, 0));
            }
            Some(Work::Write { .. } | Work::Discard { .. } | Work::Zero { .. }) if may_differ => {
                // Which of its sectors are new is not known.
                self.unverified.insert((from, to));
            }
            _ => {}
        }
        (work, result)
    }

    fn set_sums(&mut self, at: u64, bytes: &[u8]) {
        for (block, bytes) in (at / BLOCK as u64..).zip(bytes.chunks_exact(BLOCK)) {
            self.table.set(block, sum(bytes, self.sum_of_zeros));
        }
    }

    /// Whether bytes that lie at `at` are those that were written, as far as that is known.
    fn is_right(&self, at: u64, bytes: &[u8]) -> bool {
        if mutant("volume-sums-not-checked") {
            return true;
        }
        let mut blocks = (at / BLOCK as u64..).zip(bytes.chunks_exact(BLOCK));
        blocks.all(|(block, bytes)| {
            let at = block * BLOCK as u64;
            self.table.sum(block) == Some(sum(bytes, self.sum_of_zeros))
                || self.unverified.touches(at, at + BLOCK as u64)
        })
    }

    /// A request is given back.
    fn conclude(&mut self, id: u64) {
        let Some(InFlight { tag, work, at, end, noted, result, .. }) = self.requests.remove(id) else { return };
        let Some(work) = work else { return };
        if work.range().is_some() && !matches!(work, Work::Hint { .. }) {
            self.overlaps.leave(id, &mut self.admitted);
        }
        if noted {
            self.intents.leave(at, end - at);
            self.clean_later();
        }
        match tag {
            Some(tag) => self.done.push(Completion { tag, work, result }),
            None => self.resummed((at, end), result),
        }
    }

    /// The device below has ended a step.
    fn below_ended(&mut self, Completion { tag, work, result }: Completion) {
        let Some(step) = self.steps.remove(tag) else { return };
        match step {
            Step::Part(id) => self.part_ended(id, work, result),
            Step::Page(page) => {
                let bytes = match &work {
                    Work::Read { into, .. } if result.is_ok() => Some(&into[..BLOCK]),
                    _ => None,
                };
                let is_there = bytes.is_some();
                for id in self.table.came(page, bytes) {
                    if let Some(asked) = self.requests.get_mut(id).filter(|_| !is_there) {
                        asked.result = asked.result.and(Err(DeviceError::Failed));
                    }
                    self.step_ended(id);
                }
            }
            Step::Write(page) => {
                if result.is_err() {
                    self.table.not_written(page);
                }
                self.clean_went_on(result);
            }
            Step::Flush => self.cleaned(result),
            Step::Image => {
                self.intents.written(result);
                self.claimed(result);
            }
        }
    }

    fn part_ended(&mut self, id: u64, work: Work, result: Result<(), DeviceError>) {
        let Some(asked) = self.requests.get_mut(id) else { return };
        asked.result = asked.result.and(result);
        match (&mut asked.work, work) {
            (Some(Work::Check { .. }), Work::Read { into, .. }) => asked.held = Some(into),
            (work @ None, Work::Read { length, into, .. }) => *work = Some(Work::Read { at: asked.at, length, into }),
            // Of a WRITE's bytes there are two handles: the caller's goes back.
            _ => {}
        }
        self.step_ended(id);
    }

    /// Begins what is to be done unasked; whether it did.
    fn begin_background(&mut self) -> bool {
        if self.geometry.read_only {
            let found = !self.closing.is_empty();
            self.end_closing();
            return found;
        }
        self.begin_resum() | self.begin_clean()
    }

    fn begin_resum(&mut self) -> bool {
        if self.unverified.is_empty() || self.resums {
            return false;
        }
        let now = self.clock.now();
        if self.retry_at.is_some_and(|at| at > now) {
            return false;
        }
        self.retry_at = None;
        let Some((at, end)) = self.unverified.first_from(self.resum_from) else {
            // What is left could not be read.
            (self.resum_from, self.retry_at) = (0, Some(now + RETRY));
            return false;
        };
        let end = end.min(at + RESUM_BYTES);
        self.resums = true;
        let work = Work::Check { at, length: end - at, mend: false, wrong: 0 };
        let id = self.requests.insert(InFlight::new(None, work));
        if self.overlaps.enter(id, at, end - at, true) {
            self.prepare(id);
        }
        true
    }

    fn resummed(&mut self, range: (u64, u64), result: Result<(), DeviceError>) {
        self.resums = false;
        self.resum_from = range.1;
        if result.is_ok() {
            self.unverified.remove(range);
            self.clean_later();
        }
    }

    fn clean_later(&mut self) {
        if self.clean_at.is_none() && self.clean.is_none() {
            self.clean_at = Some(self.clock.now() + CLEAN_AFTER);
        }
    }

    /// Lets go of regions that were not written lately; of all of them, where nobody needs the
    /// device any more.
    fn begin_clean(&mut self) -> bool {
        let closes = !self.closing.is_empty();
        if closes && !self.unverified.is_empty() && self.retry_at.is_none() {
            // Whoever ends a node waits for it.
            return false;
        }
        if self.clean.is_some() || !closes && self.clean_at.is_none_or(|at| at > self.clock.now()) {
            return false;
        }
        self.clean_at = None;
        let unverified = self.unverified_regions();
        let hot = std::mem::take(&mut self.touched);
        let idle = self.intents.idle(&unverified);
        let regions = if closes { idle.clone() } else { &idle - &hot };
        if regions.is_empty() {
            if !idle.is_empty() {
                self.clean_later();
            }
            if closes && self.intents.is_still() {
                self.end_closing();
                return true;
            }
            return false;
        }
        let of = |region: &usize| {
            let (at, length) = self.intents.range(*region);
            pages(at, at + length)
        };
        let dirty: BTreeSet<u64> = regions.iter().flat_map(|region| self.table.dirty(of(region))).collect();
        self.clean = Some(Clean { regions, left: 1, result: Ok(()) });
        for page in dirty {
            let written = intents::buffer(BLOCK).map(|mut buffer| {
                self.table.bytes(page, &mut buffer);
                Bytes::prefix(buffer, BLOCK)
            });
            let Some(clean) = &mut self.clean else { break };
            let Some(from) = written else {
                clean.result = Err(DeviceError::NoMemory);
                break;
            };
            clean.left += 1;
            self.push(Step::Write(page), Work::Write { at: self.places.table + page * BLOCK as u64, from, fua: false });
        }
        self.clean_went_on(Ok(()));
        true
    }

    fn unverified_regions(&self) -> BTreeSet<usize> {
        self.unverified.iter().flat_map(|(at, end)| self.intents.regions_of(at, end - at)).collect()
    }

    /// A page has been written. When all have been, they and what they are of come to stable
    /// storage.
    fn clean_went_on(&mut self, result: Result<(), DeviceError>) {
        let Some(clean) = &mut self.clean else { return };
        clean.left -= 1;
        clean.result = clean.result.and(result);
        match (clean.left, clean.result) {
            (0, Ok(())) => self.push(Step::Flush, Work::Flush),
            (0, failed) => self.cleaned(failed),
            _ => {}
        }
    }

    fn cleaned(&mut self, result: Result<(), DeviceError>) {
        let Some(Clean { regions, .. }) = self.clean.take() else { return };
        if result.is_ok() {
            let settled = &(&regions - &self.touched) - &self.unverified_regions();
            self.intents.clear(&settled);
        } else {
            self.end_closing();
        }
        self.clean_later();
    }

    /// Whatever a hint says is done.
    fn end_closing(&mut self) {
        for id in std::mem::take(&mut self.closing) {
            self.conclude(id);
        }
    }

    /// Hands everybody what waits for them; whether anything has happened.
    fn turn(&mut self) -> bool {
        let mut found = false;
        while let Some(id) = self.admitted.pop() {
            found = true;
            self.prepare(id);
        }
        found |= self.begin_background();
        match self.intents.next_image() {
            Some(Ok(Work::Write { at, from, fua })) => {
                self.push(Step::Image, Work::Write { at: self.places.bitmap + at, from, fua });
            }
            Some(Err(error)) => self.claimed(Err(error)),
            _ => {}
        }
        found |= self.inner.turn();
        while let Some(completion) = self.inner.ended() {
            self.below_ended(completion);
        }
        found
    }
}

impl InFlight {
    fn new(tag: Option<u64>, work: Work) -> InFlight {
        let (at, length) = work.range().unwrap_or_default();
        let end = at + length;
        InFlight {
            tag,
            work: Some(work),
            held: None,
            at,
            end,
            part: (at, end),
            phase: Phase::Waits,
            noted: false,
            left: 0,
            result: Ok(()),
        }
    }
}

impl Device for Sums {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        while self.requests.len() < REQUESTS_MAX
            && let Some(request) = batch.pop_front()
        {
            self.take(request);
        }
        while self.turn() {}
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        while self.turn() {}
        let found = self.done.len();
        out.append(&mut self.done);
        found
    }

    fn arm(&mut self) -> bool {
        self.done.is_empty() && self.admitted.is_empty() && self.inner.device.arm()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.device.fd()
    }

    fn due(&self) -> Option<Instant> {
        let clean = self.clean_at.filter(|_| self.clean.is_none());
        let resum = self.retry_at.filter(|_| !self.resums && !self.unverified.is_empty());
        [clean, resum, self.inner.device.due()].into_iter().flatten().min()
    }
}

/// The sum of a block, 0 for zeros.
fn sum(block: &[u8], of_zeros: u32) -> u32 {
    crc32c::crc32c(block) ^ of_zeros
}

/// Pages of the table for these bytes.
fn pages(from: u64, to: u64) -> std::ops::Range<u64> {
    from / SPAN..to.div_ceil(SPAN)
}

/// What has a sum.
const BLOCK: usize = 4096;
/// Sums on a page of the table.
const SUMS_OF_PAGE: usize = BLOCK / 4;
/// Bytes of data that a page has the sums of.
const SPAN: u64 = BLOCK as u64 * SUMS_OF_PAGE as u64;
/// Pages' worth of a DISCARD or ZERO that are carried out at once.
const PARTS: u64 = 16;
/// How long a region stays noted at least after it was written: most are written again soon.
const CLEAN_AFTER: Duration = Duration::from_secs(2);
/// After the device below has failed.
const RETRY: Duration = Duration::from_secs(5);
/// Bytes that are summed again at once.
const RESUM_BYTES: u64 = 1 << 20;
/// Requests in flight; more wait with the caller.
const REQUESTS_MAX: usize = 1024;
