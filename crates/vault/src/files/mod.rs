//! Files on a volume: which file has which bytes, journalled, one truth for all processes.
//!
//! [`Files`] lies over a volume's device and takes the requests of `overside_volume::files`: places
//! name a file and a byte of it. What reads, or writes over what is there, goes through to where it
//! lies. What makes a file longer, or changes it otherwise, is carried out one after the other:
//!
//! 1. what becomes visible and is not written is zeroed;
//! 2. the bytes are written;
//! 3. then the journal says so, on stable storage, and the request ends.
//!
//! A crash in the middle leaves the file as it was: what the journal does not name is free. Bytes
//! of a chunk past its file's end may be anything, and are never read. What is given back is not
//! used again before all that reads or writes it has ended. WRITEs of the same bytes are carried
//! out in the order in which they came, whichever client sent them.
//!
//! - `table`: the truth in memory. `journal`: the same on the volume.

mod journal;
mod table;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use overside_memory::{Buffer, Bytes, Segment};
use overside_verbs::Clock;
use overside_volume::files::{Command, ENTRY_BYTES, FILE_BYTES_MAX, IDS, PIECE_BYTES, Preset, SPACE_BYTES, file_at};
use overside_volume::{Below, Completion, Device, DeviceError, Geometry, Hint, Request, Sectors, Work};

use journal::{Header, SECTOR};
use table::{Change, Table};

/// Files over a device. Unlike other devices its units are bytes.
#[derive(Debug)]
pub struct Files<D> {
    inner: Below<Sectors<D>>,
    geometry: Geometry,
    header: Header,
    table: Table,
    /// The next change's number in its half.
    number: u64,
    /// A sector of the journal could not be written, and what is there nobody knows. Before
    /// anything else is written, it is made nothing.
    doubt: Option<u64>,
    /// The journal says what cannot be: nothing is changed any more.
    failed: bool,
    next: u64,
    /// Requests that are the device's now, by its tags.
    passed: BTreeMap<u64, Passed>,
    /// What changes files, in the order in which it came.
    changes: VecDeque<Request>,
    /// The first of them, once it has begun.
    current: Option<Current>,
    /// What waits while chunks are given back.
    held: VecDeque<Request>,
    done: Vec<Completion>,
}

#[derive(Debug)]
struct Passed {
    tag: u64,
    at: u64,
    /// As it was asked for; past the file's end the device reads none of it.
    length: usize,
}

/// A change that is carried out.
#[derive(Debug)]
struct Current {
    request: Request,
    steps: VecDeque<Step>,
    /// What the table becomes when all steps are done.
    change: Option<Change>,
    /// Under way.
    tag: Option<u64>,
}

#[derive(Debug)]
enum Step {
    /// Bytes, the change itself last.
    Do(Work),
    /// The journal's sector, as the half has room by then.
    Note,
    /// From now on the other half holds.
    Turn(Header),
    /// The sector there means nothing.
    Settle(u64),
}

impl<D: Device> Files<D> {
    /// Reads what is written down on a device; on one that has nothing yet, begins.
    ///
    /// # Errors
    /// The device fails, is too small, or says what no program of this version writes.
    pub fn open(device: D, preset: Preset, clock: &dyn Clock) -> Result<Files<D>, DeviceError> {
        let mut inner = Sectors::bytes_over(device);
        let volume = inner.geometry().bytes;
        let heads = read(&mut inner, clock, 0, 2 * SECTOR)?;
        let (first, second) = heads.split_at(SECTOR);
        let parsed = [first, second].into_iter().filter_map(|sector| Header::parse(sector, volume));
        let header = match parsed.max_by_key(|header| header.generation) {
            Some(header) => header,
            None if heads.iter().all(|byte| *byte == 0) => Self::format(&mut inner, preset, clock)?,
            None => return Err(DeviceError::Corrupt),
        };
        if header.preset != preset {
            return Err(DeviceError::Corrupt);
        }
        let mut table = Table::new(header.preset, header.chunks(volume), header.most());
        let snapshot = read(&mut inner, clock, header.start(), header.snapshot as usize)?;
        if crc32c::crc32c(&snapshot) != header.crc || journal::read_snapshot(&snapshot, &mut table).is_err() {
            return Err(DeviceError::Corrupt);
        }
        let (mut number, mut at) = (0, header.changes());
        'half: while at < header.end() {
            let length = (header.end() - at).min(PIECE_BYTES) as usize;
            for sector in read(&mut inner, clock, at, length)?.chunks_exact(SECTOR) {
                let Some(change) = journal::change_of(sector, header.generation, number) else { break 'half };
                table.apply(change).map_err(|_| DeviceError::Corrupt)?;
                number += 1;
            }
            at += length as u64;
        }
        Ok(Files {
            geometry: Geometry { bytes: SPACE_BYTES, unit_bytes: 1, read_only: inner.geometry().read_only },
            inner: Below::new(inner),
            header,
            table,
            number,
            doubt: None,
            failed: false,
            next: 0,
            passed: BTreeMap::new(),
            changes: VecDeque::new(),
            current: None,
            held: VecDeque::new(),
            done: Vec::new(),
        })
    }

    fn format(inner: &mut Sectors<D>, preset: Preset, clock: &dyn Clock) -> Result<Header, DeviceError> {
        let volume = inner.geometry().bytes;
        let half = journal::half_bytes(volume);
        let header = Header { generation: 1, half, snapshot: 0, crc: crc32c::crc32c(&[]), preset };
        if header.chunks(volume) == 0 {
            return Err(DeviceError::NoSpace);
        }
        let work = Work::Write { at: Header::place(1), from: bytes_of(&header.sector())?, fua: true };
        overside_volume::complete(inner, clock, work, PATIENCE).1.map(|()| header)
    }

    /// The device under it.
    pub fn under(&self) -> &D {
        self.inner.device.inner()
    }

    /// The device under it.
    pub fn under_mut(&mut self) -> &mut D {
        self.inner.device.inner_mut()
    }

    fn take(&mut self, mut request: Request) {
        let checked = self.geometry.check(&request.work);
        let Some((at, length)) = request.work.range().filter(|_| checked.is_ok()) else {
            return match (&request.work, checked) {
                (Work::Flush, Ok(())) => self.pass(request, 0),
                (_, checked) => self.done.push(request.ended(checked.and(Err(DeviceError::Invalid)))),
            };
        };
        let (id, offset) = file_at(at);
        let in_one = offset / PIECE_BYTES == (offset + length - 1) / PIECE_BYTES;
        let result = match &mut request.work {
            // Nobody will use any of it for now: what lies below is let go of.
            Work::Hint { at: 0, length, hint: Hint::DontNeed } if *length == self.geometry.bytes => {
                *length = self.inner.device.geometry().bytes;
                return self.pass(request, 0);
            }
            Work::Hint { .. } => Ok(()),
            Work::Read { into, .. } if id == 0 => self.read_entry(offset, length, into),
            Work::Read { .. } if in_one => return self.read_file(request, (id, offset)),
            Work::Write { .. } if id == 0 || in_one => {
                let waits = self.doubt.is_some() || self.is_to_be_written(at, length);
                if id == 0 || waits || !self.is_there(id, offset, length) {
                    self.changes.push_back(request);
                } else {
                    self.write_over(request, (id, offset));
                }
                return;
            }
            _ => Err(DeviceError::Invalid),
        };
        self.done.push(request.ended(result));
    }

    fn read_entry(&self, offset: u64, length: u64, into: &mut Buffer) -> Result<(), DeviceError> {
        let id = entry_of(offset, length)?;
        let bytes = if id == 0 { self.table.about().bytes() } else { self.table.attributes(id).bytes() };
        into[..ENTRY_BYTES].copy_from_slice(&bytes);
        Ok(())
    }

    /// Whether all of it lies within the file and has a place.
    fn is_there(&self, id: u32, offset: u64, length: u64) -> bool {
        let chunk = (offset / PIECE_BYTES) as u32;
        self.table.file(id).is_some_and(|file| offset + length <= file.size && file.chunks.contains_key(&chunk))
    }

    /// Whether a change that came before writes any of it, too.
    fn is_to_be_written(&self, at: u64, length: u64) -> bool {
        let meets = |change: &Request| {
            change.work.range().is_some_and(|(other, bytes)| other < at + length && at < other + bytes)
        };
        self.current.as_ref().is_some_and(|current| meets(&current.request)) || self.changes.iter().any(meets)
    }

    /// Where a chunk of a file lies, and a byte of it.
    fn lies(&self, chunk: u32, offset: u64) -> u64 {
        self.header.data() + u64::from(chunk) * PIECE_BYTES + offset % PIECE_BYTES
    }

    fn read_file(&mut self, request: Request, (id, offset): (u32, u64)) {
        let Request { tag, work: Work::Read { at, length, mut into } } = request else { return };
        let Some(file) = self.table.file(id) else {
            let work = Work::Read { at, length, into };
            return self.done.push(Completion { tag, work, result: Err(DeviceError::Invalid) });
        };
        let within = file.size.saturating_sub(offset).min(length as u64) as usize;
        match file.chunks.get(&((offset / PIECE_BYTES) as u32)).copied().filter(|_| within > 0) {
            None => {
                into[..length].fill(0);
                self.done.push(Completion { tag, work: Work::Read { at, length, into }, result: Ok(()) });
            }
            Some(chunk) => {
                let work = Work::Read { at: self.lies(chunk, offset), length: within, into };
                self.submit_as(Passed { tag, at, length }, work);
            }
        }
    }

    fn write_over(&mut self, mut request: Request, (id, offset): (u32, u64)) {
        let chunk = self.table.file(id).and_then(|file| file.chunks.get(&((offset / PIECE_BYTES) as u32)).copied());
        let place = chunk.map(|chunk| self.lies(chunk, offset));
        if let (Work::Write { at, .. }, Some(place)) = (&mut request.work, place) {
            let was = std::mem::replace(at, place);
            self.pass(request, was);
        }
    }

    fn pass(&mut self, Request { tag, work }: Request, at: u64) {
        self.submit_as(Passed { tag, at, length: 0 }, work);
    }

    fn submit_as(&mut self, passed: Passed, work: Work) {
        let tag = self.next;
        self.next += 1;
        self.passed.insert(tag, passed);
        self.inner.push(tag, work);
    }

    /// Begins the next change, if it may. Whether it did.
    fn begin(&mut self) -> bool {
        if self.current.is_some() {
            return false;
        }
        let Some(request) = self.changes.front() else { return false };
        if self.gives_back(request) && !self.passed.is_empty() {
            // What is under way may be about what is given back.
            return false;
        }
        let Some(request) = self.changes.pop_front() else { return false };
        let failed = if self.failed { Err(DeviceError::Failed) } else { Ok(()) };
        match failed.and_then(|()| self.plan(&request)) {
            Ok((steps, change)) if !steps.is_empty() => {
                self.current = Some(Current { request, steps, change, tag: None });
            }
            Ok(_) => self.done.push(request.ended(Ok(()))),
            Err(error) => self.done.push(request.ended(Err(error))),
        }
        true
    }

    /// Whether it makes chunks free.
    fn gives_back(&self, request: &Request) -> bool {
        match command_of(&request.work) {
            Some(Ok((id, Command::Resize(size), _))) => self.table.file(id).is_some_and(|file| size < file.size),
            Some(Ok((_, Command::Remove, _))) => true,
            _ => false,
        }
    }

    /// What is to be done for a change, and what the table becomes by it; nothing where all is so
    /// already.
    fn plan(&self, request: &Request) -> Result<(VecDeque<Step>, Option<Change>), DeviceError> {
        let mut steps = VecDeque::new();
        let change = match command_of(&request.work) {
            Some(command) => self.plan_command(command?, &mut steps)?,
            None => self.plan_write(request, &mut steps)?,
        };
        if change.is_some() {
            self.make_room(&mut steps)?;
            steps.push_back(Step::Note);
        }
        if let Some(at) = self.doubt.filter(|_| !steps.is_empty()) {
            steps.push_front(Step::Settle(at));
        }
        Ok((steps, change))
    }

    fn plan_command(
        &self,
        (id, command, token): (u32, Command, u64),
        steps: &mut VecDeque<Step>,
    ) -> Result<Option<Change>, DeviceError> {
        let file = self.table.file(id);
        let is_it = file.is_some_and(|file| file.token == token);
        Ok(match command {
            Command::Create if is_it => None,
            Command::Create if file.is_some() => return Err(DeviceError::Invalid),
            Command::Create if !self.table.has_room() => return Err(DeviceError::NoSpace),
            Command::Create => Some(Change::Create { id, token }),
            Command::Remove => is_it.then_some(Change::Remove { id }),
            Command::Resize(_) if !is_it => return Err(DeviceError::Invalid),
            Command::Resize(size) => {
                let was = file.map_or(0, |file| file.size);
                if size > was && self.zero(id, was, size, steps) {
                    steps.push_back(Step::Do(Work::Flush));
                }
                (size != was).then_some(Change::Resize { id, size })
            }
            Command::Reserve(_) if !is_it => return Err(DeviceError::Invalid),
            Command::Reserve(size) => {
                let number = ((size - 1) / PIECE_BYTES) as u32;
                let (_, zeroed, change) = self.plan_place(id, number, &(size..size), steps)?;
                if zeroed {
                    steps.push_back(Step::Do(Work::Flush));
                }
                change
            }
        })
    }

    /// Zeroes what lies in the chunk of byte `from` and not behind `to`. Whether there was
    /// anything.
    fn zero(&self, id: u32, from: u64, to: u64, steps: &mut VecDeque<Step>) -> bool {
        let chunk = self.table.file(id).and_then(|file| file.chunks.get(&((from / PIECE_BYTES) as u32)).copied());
        let Some(chunk) = chunk else { return false };
        let length = to.min((from / PIECE_BYTES + 1) * PIECE_BYTES) - from;
        if length > 0 {
            steps.push_back(Step::Do(Work::Zero { at: self.lies(chunk, from), length }));
        }
        length > 0
    }

    fn plan_write(&self, request: &Request, steps: &mut VecDeque<Step>) -> Result<Option<Change>, DeviceError> {
        let Work::Write { at, from, .. } = &request.work else { return Err(DeviceError::Invalid) };
        let (id, offset) = file_at(*at);
        let written = offset..offset + from.len() as u64;
        let (chunk, zeroed, change) = self.plan_place(id, (offset / PIECE_BYTES) as u32, &written, steps)?;
        steps.push_back(Step::Do(Work::Write { at: self.lies(chunk, offset), from: from.clone(), fua: true }));
        if zeroed {
            steps.push_back(Step::Do(Work::Flush));
        }
        Ok(change)
    }

    /// A piece of a file gets a place where it has none, and the file is as long as what is written
    /// there then. What it shows of that, and what is not written, is zeroed. The place, whether
    /// anything is zeroed, and what the table becomes.
    fn plan_place(
        &self,
        id: u32,
        number: u32,
        written: &Range<u64>,
        steps: &mut VecDeque<Step>,
    ) -> Result<(u32, bool, Option<Change>), DeviceError> {
        let file = self.table.file(id).filter(|_| written.end < FILE_BYTES_MAX).ok_or(DeviceError::Invalid)?;
        let (begins, size) = (u64::from(number) * PIECE_BYTES, file.size.max(written.end));
        let mut zeroed = false;
        // What lies between the file's end and these bytes becomes visible.
        if written.start > file.size {
            zeroed |= self.zero(id, file.size, written.start, steps);
        }
        let there = file.chunks.get(&number).copied();
        let chunk = there.or_else(|| self.table.chunk_for(id, number)).ok_or(DeviceError::NoSpace)?;
        if there.is_none() {
            // Of a chunk that is new, all that the file shows and that is not written.
            for (from, to) in [(begins, written.start), (written.end, size.min(begins + PIECE_BYTES))] {
                if from < to {
                    steps.push_back(Step::Do(Work::Zero { at: self.lies(chunk, from), length: to - from }));
                    zeroed = true;
                }
            }
        }
        let new = there.is_none().then_some((number, chunk));
        let change = (new.is_some() || size > file.size).then_some(Change::Grow { id, size, chunk: new });
        Ok((chunk, zeroed, change))
    }

    /// Where the half is full, a snapshot goes to the other one first.
    fn make_room(&self, steps: &mut VecDeque<Step>) -> Result<(), DeviceError> {
        if self.note_at() + SECTOR as u64 <= self.header.end() {
            return Ok(());
        }
        let snapshot = journal::snapshot(&self.table);
        let (length, crc) = (snapshot.len() as u64, crc32c::crc32c(&snapshot));
        let header = Header { generation: self.header.generation + 1, snapshot: length, crc, ..self.header };
        if header.changes() + SECTOR as u64 > header.end() {
            return Err(DeviceError::NoSpace);
        }
        for (number, piece) in snapshot.chunks(PIECE_BYTES as usize).enumerate() {
            let at = header.start() + number as u64 * PIECE_BYTES;
            steps.push_back(Step::Do(Work::Write { at, from: bytes_of(piece)?, fua: false }));
        }
        steps.push_back(Step::Do(Work::Flush));
        steps.push_back(Step::Turn(header));
        Ok(())
    }

    fn note_at(&self) -> u64 {
        self.header.changes() + self.number * SECTOR as u64
    }

    /// Goes on with the change that is carried out. Whether there was anything to do.
    fn step(&mut self) -> bool {
        let Some(mut current) = self.current.take() else { return false };
        if current.tag.is_some() {
            self.current = Some(current);
            return false;
        }
        let work = match (current.steps.front_mut(), current.change) {
            (None, _) => {
                self.end(current);
                return true;
            }
            (Some(Step::Do(work)), _) => Ok(std::mem::replace(work, Work::Flush)),
            (Some(Step::Turn(header)), _) => {
                let at = Header::place(header.generation);
                bytes_of(&header.sector()).map(|from| Work::Write { at, from, fua: true })
            }
            (Some(Step::Settle(at)), _) => {
                let at = *at;
                bytes_of(&[0; SECTOR]).map(|from| Work::Write { at, from, fua: true })
            }
            (Some(Step::Note), Some(change)) => {
                let sector = journal::change_sector(self.header.generation, self.number, change);
                let at = self.note_at();
                bytes_of(&sector).map(|from| Work::Write { at, from, fua: true })
            }
            (Some(Step::Note), None) => Ok(Work::Flush),
        };
        match work {
            Ok(work) => {
                let tag = self.next;
                self.next += 1;
                current.tag = Some(tag);
                self.inner.push(tag, work);
                self.current = Some(current);
            }
            Err(error) => self.done.push(current.request.ended(Err(error))),
        }
        true
    }

    /// A step has ended.
    fn stepped(&mut self, result: Result<(), DeviceError>) {
        let Some(mut current) = self.current.take() else { return };
        current.tag = None;
        if let Err(error) = result {
            self.doubt = match (current.steps.front(), current.change) {
                (Some(Step::Turn(header)), _) => Some(Header::place(header.generation)),
                (Some(Step::Note), Some(_)) => Some(self.note_at()),
                _ => self.doubt,
            };
            return self.done.push(without_steps(current).ended(Err(error)));
        }
        match current.steps.pop_front() {
            Some(Step::Turn(header)) => (self.header, self.number) = (header, 0),
            Some(Step::Note) => self.number += 1,
            Some(Step::Settle(_)) => self.doubt = None,
            Some(Step::Do(_)) | None => {}
        }
        self.current = Some(current);
    }

    /// All steps are done.
    fn end(&mut self, current: Current) {
        let applied = current.change.map_or(Ok(()), |change| self.table.apply(change));
        debug_assert!(applied.is_ok(), "{applied:?}");
        self.failed |= applied.is_err();
        let result = applied.map_err(|_| DeviceError::Failed);
        self.done.push(without_steps(current).ended(result));
    }

    fn ended(&mut self, Completion { tag, mut work, result }: Completion) {
        if self.current.as_ref().is_some_and(|current| current.tag == Some(tag)) {
            drop(work);
            return self.stepped(result);
        }
        let Some(passed) = self.passed.remove(&tag) else { return };
        match &mut work {
            Work::Read { at, length, into } => {
                into[*length..passed.length].fill(0);
                (*at, *length) = (passed.at, passed.length);
            }
            Work::Write { at, .. } => *at = passed.at,
            Work::Hint { length, .. } => *length = self.geometry.bytes,
            _ => {}
        }
        self.done.push(Completion { tag: passed.tag, work, result });
    }

    /// A change that gives chunks back waits for what is under way, and what comes now waits for
    /// it.
    fn is_closed(&self) -> bool {
        let first = self.current.as_ref().map(|current| &current.request).or(self.changes.front());
        first.is_some_and(|request| self.gives_back(request))
    }

    fn turn(&mut self) -> bool {
        let mut found = false;
        while self.begin() || self.step() {
            found = true;
        }
        while !self.is_closed()
            && let Some(request) = self.held.pop_front()
        {
            self.take(request);
            found = true;
        }
        found |= self.inner.turn();
        while let Some(completion) = self.inner.ended() {
            self.ended(completion);
        }
        found
    }
}

impl<D: Device> Device for Files<D> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        while self.passed.len() + self.changes.len() + self.held.len() < REQUESTS_MAX
            && let Some(request) = batch.pop_front()
        {
            if self.is_closed() || !self.held.is_empty() { self.held.push_back(request) } else { self.take(request) }
        }
        while self.begin() || self.step() {}
        self.inner.submit();
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        while self.turn() {}
        let found = self.done.len();
        out.append(&mut self.done);
        found
    }

    fn arm(&mut self) -> bool {
        self.done.is_empty() && self.inner.device.arm()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.device.fd()
    }

    fn due(&self) -> Option<Instant> {
        self.inner.device.due()
    }
}

/// The request of a change, whose bytes nobody shares any more.
fn without_steps(Current { request, steps, .. }: Current) -> Request {
    drop(steps);
    request
}

fn entry_of(offset: u64, length: u64) -> Result<u32, DeviceError> {
    let id = u32::try_from(offset / ENTRY_BYTES as u64).ok().filter(|id| *id < IDS);
    let whole = offset.is_multiple_of(ENTRY_BYTES as u64) && length == ENTRY_BYTES as u64;
    id.filter(|_| whole).ok_or(DeviceError::Invalid)
}

/// Of a WRITE to the table, which file it changes, and how. None: it writes a file.
fn command_of(work: &Work) -> Option<Result<(u32, Command, u64), DeviceError>> {
    let Work::Write { at, from, .. } = work else { return None };
    let (0, offset) = file_at(*at) else { return None };
    let parse = || {
        let id = entry_of(offset, from.len() as u64)?;
        let bytes = from[..].try_into().map_err(|_| DeviceError::Invalid)?;
        let (command, token) = Command::parse(bytes).map_err(|_| DeviceError::Invalid)?;
        if id == 0 { Err(DeviceError::Invalid) } else { Ok((id, command, token)) }
    };
    Some(parse())
}

fn bytes_of(bytes: &[u8]) -> Result<Bytes, DeviceError> {
    let room = bytes.len().next_multiple_of(SECTOR);
    let buffer = Segment::private(room).ok().and_then(|segment| segment.carve(room).pop());
    let mut buffer = buffer.ok_or(DeviceError::NoMemory)?;
    buffer[..bytes.len()].copy_from_slice(bytes);
    Ok(Bytes::prefix(buffer, room))
}

/// Reads while nothing else is under way.
fn read(device: &mut dyn Device, clock: &dyn Clock, at: u64, length: usize) -> Result<Vec<u8>, DeviceError> {
    let mut all = Vec::new();
    while all.len() < length {
        let piece = (length - all.len()).min(PIECE_BYTES as usize);
        let into = Segment::private(piece).ok().and_then(|segment| segment.carve(piece).pop());
        let work = Work::Read { at: at + all.len() as u64, length: piece, into: into.ok_or(DeviceError::NoMemory)? };
        let (work, result) = overside_volume::complete(device, clock, work, PATIENCE);
        match (work, result) {
            (Some(Work::Read { into, .. }), Ok(())) => all.extend_from_slice(&into[..piece]),
            (_, result) => return Err(result.err().unwrap_or(DeviceError::Failed)),
        }
    }
    Ok(all)
}

/// Halves of a journal.
#[doc(hidden)]
pub fn seeds_files() -> Vec<Vec<u8>> {
    journal::seeds()
}

/// Reads a half of a journal. What it says must be said again by a snapshot of it. Whether it says
/// anything sound.
#[doc(hidden)]
pub fn fuzz_files(input: &[u8]) -> bool {
    journal::fuzz(input)
}

/// Of a device, that there is room for one piece of a file.
pub const BYTES_MIN: u64 = 2 * PIECE_BYTES + 2 * journal::HALF_MIN;
/// Requests that are taken at once.
const REQUESTS_MAX: usize = 1024;
/// For each request while it is opened.
const PATIENCE: Duration = Duration::from_secs(60);
