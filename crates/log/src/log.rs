//! Writing the log: groups into segments, in order, as the disk completes them.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use overside_disk::{AlignedBuffer, BLOCK_BYTES, Completion, Disk, FileId, IoPath, Open, Request, mutant};

use crate::checkpoint::{Facts, Manifest};
use crate::gather::{Gathered, Segment, Shared};
use crate::group::{DirectoryId, GROUP_HEADER_BYTES, GroupHeader, GroupKind, SegmentHeader, padded};
use crate::spares::Spares;
use crate::{Appender, Checkpoints, Durability, Options, layout};

/// The writing end of a log. One thread at a time steps it; nothing here waits for the disk where
/// that has io_uring.
#[derive(Debug)]
pub struct Log<D: Disk> {
    disk: D,
    shared: Arc<Shared>,
    options: Options,
    directory: DirectoryId,
    incarnation: u64,
    /// The folder of segments, to be synced.
    folder: FileId,
    current: Option<Current>,
    spares: Spares,
    /// Groups that wait until the current segment can be written.
    queue: VecDeque<(FileId, u64, AlignedBuffer, usize)>,
    /// Groups in the order of the log, from the first that is not written.
    flights: VecDeque<Flight>,
    jobs: Vec<(u64, Job)>,
    token: u64,
    /// Checksum of the last group that was taken.
    previous: u32,
    /// All below is written, in order.
    written: u64,
    /// All below is on the disk.
    synced: u64,
    /// The last group that was taken says so.
    stated: u64,
    /// Files with writes that no sync has covered.
    dirty: Vec<FileId>,
    /// Syncs under way, and the position below which all is on the disk after them.
    syncing: (u32, u64),
    /// Full segments, to be closed after their last sync.
    full: Vec<FileId>,
    synced_at: Duration,
    /// Since then nothing was written.
    quiet_since: Option<Duration>,
    /// Stamps below the second are all appended below the first, or never will be.
    floors: VecDeque<(u64, u64)>,
    /// The floor of what is written.
    floor_passed: u64,
    /// The same, of what is written and not on the disk.
    unsynced_floors: VecDeque<(u64, u64)>,
    done: Vec<Completion>,
    /// What has ended of spares, for who sees to them.
    left: Vec<Completion>,
    closing: bool,
    /// A statement was due and had no place: the disk is full.
    unstated: bool,
    /// What the disk has done, in requests.
    completed: u64,
    facts: Facts,
    checkpoint: Option<Manifest>,
}

/// The segment that is being written.
#[derive(Debug)]
struct Current {
    number: u64,
    file: FileId,
    /// Place of the next group in the file.
    at: u64,
    bytes: u64,
    /// Steps until its header and name are on the disk.
    pending: u8,
    /// What to write into the segment before it when they are: a block that says that the log goes
    /// on here.
    mark: Option<(FileId, u64, AlignedBuffer)>,
}

#[derive(Debug)]
struct Flight {
    token: u64,
    file: FileId,
    end: u64,
    written: bool,
}

/// What a completion is for.
#[derive(Debug)]
enum Job {
    Group,
    /// A step of beginning the current segment.
    Begin,
    /// The mark at a segment's end, which is closed then.
    Mark,
    Sync,
    Spare,
}

/// Who steps a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// It sees to everything.
    Owner,
    /// It waits for records, and does nothing that may make it wait for anything else.
    Waiter,
}

/// What a step came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// [`Appender::durable`] or [`Appender::durable_floor`] went on: held replies may leave.
    pub advanced: bool,
    /// Step again then, even if nothing is appended and nothing completes.
    pub wake: Option<Duration>,
}

/// What a log begins with.
#[derive(Debug)]
pub(crate) struct Beginning {
    pub directory: DirectoryId,
    pub incarnation: u64,
    pub folder: FileId,
    /// The next group's position.
    pub position: u64,
    pub previous: u32,
    pub floor: u64,
    /// The last segment of the log, which this one follows; 0 if there is none.
    pub after: u64,
    /// The number of the next segment.
    pub number: u64,
    pub segments: VecDeque<Segment>,
    /// Damage was passed over.
    pub salvaged: bool,
    /// The newest one that counts.
    pub checkpoint: Option<Manifest>,
}

impl<D: Disk> Log<D> {
    /// Takes up a log where it ended. Its first segment is on the disk when this returns.
    pub(crate) fn begin(disk: D, options: Options, beginning: Beginning, spares: Vec<String>) -> io::Result<Log<D>> {
        let path = disk.path().display().to_string();
        let none = options.durability == Durability::None;
        // Without a log no segment is wanted.
        let spares_max = if none { 0 } else { options.spares_max };
        let options = Options { spares_max, ..options };
        let position = beginning.position;
        let facts = Facts {
            directory: beginning.directory,
            incarnation: beginning.incarnation,
            deadline: options.deadline,
            part_bytes: options.part_bytes,
            logged: !none,
            unused_segment: beginning.number,
            position,
            salvaged: beginning.salvaged,
        };
        let shared = Shared::new(path, position, beginning.floor, none, beginning.segments, options.limits());
        // Without a checkpoint that counts no segment is given up.
        shared.need(beginning.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.segment));
        let mut log = Log {
            disk,
            shared: Arc::new(shared),
            directory: beginning.directory,
            incarnation: beginning.incarnation,
            folder: beginning.folder,
            current: None,
            spares: Spares::new(beginning.number + 1),
            queue: VecDeque::new(),
            flights: VecDeque::new(),
            jobs: Vec::new(),
            token: 0,
            previous: beginning.previous,
            written: position,
            synced: position,
            stated: position,
            dirty: Vec::new(),
            syncing: (0, position),
            full: Vec::new(),
            synced_at: Duration::ZERO,
            quiet_since: None,
            floors: VecDeque::new(),
            floor_passed: beginning.floor,
            unsynced_floors: VecDeque::new(),
            done: Vec::new(),
            left: Vec::new(),
            closing: false,
            unstated: false,
            completed: 0,
            facts,
            checkpoint: beginning.checkpoint,
            options,
        };
        log.spares.adopt(&mut log.disk, &spares, &log.options)?;
        if !none {
            log.first_segment(beginning.number, beginning.after)?;
        }
        Ok(log)
    }

    /// Where workers put records.
    pub fn appender(&self) -> Appender {
        Appender { shared: self.shared.clone() }
    }

    /// The directory's checkpoints, with a queue of their own, for the thread that writes them.
    /// There is one such thread.
    ///
    /// # Errors
    /// The system has no descriptor or memory for it, or the folder cannot be read.
    pub fn checkpoints(&mut self) -> io::Result<Checkpoints> {
        Checkpoints::new(self.disk.another()?, self.facts.clone(), self.checkpoint.take())
    }

    /// How the log is written.
    pub fn way(&self) -> IoPath {
        let way = self.disk.way();
        IoPath { direct: way.direct && self.options.is_direct(), ..way }
    }

    /// The disk, whose descriptor its owner waits on.
    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// Bytes of those of them that are kept for a recovery. Each start of a server begins one,
    /// however little the last one has.
    pub fn bytes_kept(&self) -> u64 {
        self.shared.lock().segments.len() as u64 * self.options.segment_bytes
    }

    /// Waits for a completion, at most for `timeout`.
    ///
    /// # Errors
    /// The disk's queue is broken.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.disk.wait(timeout)
    }

    /// Bytes of the segments that are there for the log, begun or not.
    pub fn bytes_on_disk(&self) -> u64 {
        let kept = self.shared.lock().segments.len() as u64;
        (kept + self.spares.count()) * self.options.segment_bytes
    }

    /// Goes on as far as the disk allows: takes completions, writes what was gathered, sees to
    /// segments. `floor` was read from the stamps before this call: every stamp below it was
    /// appended by then, or never will be. `now` is the time, from any beginning.
    ///
    /// # Errors
    /// A write or a sync failed. That is final: nothing is tried again and nothing more becomes
    /// durable.
    pub fn step(&mut self, floor: u64, now: Duration) -> Result<Step, LogFailed> {
        self.step_by(Who::Owner, floor, now)
    }

    /// As [`step`](Self::step), for who waits for records and must not wait for the disk: it
    /// touches no name and sees to no segment. Where that is due, the step's [`wake`](Step::wake)
    /// is `now`.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn go_on(&mut self, floor: u64, now: Duration) -> Result<Step, LogFailed> {
        self.step_by(Who::Waiter, floor, now)
    }

    /// Whether the disk has something to complete.
    pub fn is_under_way(&self) -> bool {
        !self.jobs.is_empty()
    }

    fn step_by(&mut self, who: Who, floor: u64, now: Duration) -> Result<Step, LogFailed> {
        if let Some(text) = self.shared.failed() {
            return Err(LogFailed(text.to_owned()));
        }
        if self.options.durability == Durability::None {
            return Ok(Step::default());
        }
        match self.stepped(who, floor, now) {
            Ok(step) => Ok(step),
            Err(error) => {
                let path = self.disk.path().display();
                let text = format!(
                    "writing the log in {path} failed: {error}; what was acknowledged is on the disk, restart after you have looked at it"
                );
                self.shared.fail(text.clone());
                Err(LogFailed(text))
            }
        }
    }

    /// Writes all that was appended and states in an empty group that it is on the disk. Step until
    /// [`is_closed`](Self::is_closed).
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Whether nothing is left to write after [`close`](Self::close).
    pub fn is_closed(&self) -> bool {
        let idle = self.flights.is_empty() && self.syncing.0 == 0 && self.shared.lock().waiting() == 0;
        self.options.durability == Durability::None || (self.closing && idle && (self.is_stated() || self.unstated))
    }

    /// Gives up segments in which every record's stamp is below `stamp`: a checkpoint that replays
    /// from there counts. They are used again.
    ///
    /// # Errors
    /// A name could not be changed.
    pub fn release(&mut self, stamp: u64) -> io::Result<()> {
        loop {
            let mut gather = self.shared.lock();
            // The one that is written stays, and so does one whose successor's beginning is not on the disk.
            let keep = if self.current.as_ref().is_some_and(|current| current.pending > 0) { 2 } else { 1 };
            let keep = if self.current.is_none() { 0 } else { keep };
            let Some(oldest) = gather.segments.front().copied() else { return Ok(()) };
            // What the checkpoint named when it was completed, it is replayed from.
            let needed = oldest.newest >= stamp || oldest.number >= self.shared.needed();
            let needed = needed && !mutant("segment-freed-early");
            if gather.segments.len() <= keep || needed {
                return Ok(());
            }
            drop(gather);
            self.spares.recycle(&mut self.disk, oldest.number, &self.options)?;
            gather = self.shared.lock();
            gather.segments.pop_front();
        }
    }

    /// Requests that the disk has carried out: whoever waits for it sees whether it does anything.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    fn stepped(&mut self, who: Who, floor: u64, now: Duration) -> io::Result<Step> {
        let mut step = Step::default();
        if who == Who::Owner {
            for completion in std::mem::take(&mut self.left) {
                self.spares.ended(&mut self.disk, completion, &self.options)?;
            }
        }
        {
            let gather = self.shared.lock();
            let appended = gather.appended();
            // Floors ascend with positions.
            match self.floors.back_mut() {
                Some((at, below)) if *at == appended => *below = floor.max(*below),
                Some((_, below)) if *below >= floor => {}
                _ => self.floors.push_back((appended, floor)),
            }
        }
        let mut first = true;
        loop {
            self.disk.poll(&mut self.done)?;
            let ended = std::mem::take(&mut self.done);
            let some = !ended.is_empty();
            for completion in ended {
                self.ended(who, completion)?;
            }
            step.advanced |= self.advance();
            let started = self.start(who, now, first)?;
            first = false;
            self.disk.submit()?;
            if !some && !started {
                break;
            }
        }
        step.wake = if who == Who::Waiter && self.owner_is_due() { Some(now) } else { self.wake(now) };
        Ok(step)
    }

    /// Whether there is something to do that touches names.
    fn owner_is_due(&self) -> bool {
        let next = self.shared.lock().next_bytes();
        let no_room = next.is_some_and(|bytes| self.current.as_ref().is_none_or(|current| current.room() < bytes));
        no_room || !self.left.is_empty() || !self.full.is_empty()
    }

    /// Starts what can be started; whether anything was.
    fn start(&mut self, who: Who, now: Duration, first: bool) -> io::Result<bool> {
        let before = self.token;
        if who == Who::Owner {
            self.see_to_segments(now, first)?;
        }
        self.write_groups(who, now)?;
        self.sync(now);
        Ok(self.token != before)
    }

    fn see_to_segments(&mut self, now: Duration, first: bool) -> io::Result<()> {
        self.close_full();
        let wanted = self.shared.take_wanted();
        if let Some(request) = self.spares.maintain(&mut self.disk, &self.options, now, wanted) {
            self.push(request, Job::Spare);
        }
        // Where requests complete at once, no more than one piece goes before the groups of the next step.
        if first || self.disk.way().uring {
            let piece = self.spares.write_through(&self.options)?;
            piece.into_iter().for_each(|request| _ = self.push(request, Job::Spare));
        }
        {
            let mut gather = self.shared.lock();
            gather.room.granted += self.spares.take_granted();
            gather.room.spares = self.spares.ready();
            gather.room.full = self.spares.is_full();
        }
        Ok(())
    }

    /// Closes full segments of which nothing is under way or to be synced.
    fn close_full(&mut self) {
        let (dirty, flights, disk) = (&self.dirty, &self.flights, &mut self.disk);
        self.full.retain(|file| {
            let busy = dirty.contains(file) || flights.iter().any(|flight| flight.file == *file && !flight.written);
            if !busy {
                disk.close(*file);
            }
            busy
        });
    }

    fn write_groups(&mut self, who: Who, now: Duration) -> io::Result<()> {
        while self.may_write(who) {
            let Some(group) = self.shared.lock().take() else { break };
            self.put(group)?;
            self.quiet_since = None;
            self.unstated = false;
        }
        let idle = self.flights.is_empty() && self.dirty.is_empty() && self.syncing.0 == 0 && !self.is_stated();
        if !idle {
            return Ok(());
        }
        let since = *self.quiet_since.get_or_insert(now);
        let due = self.closing || now.saturating_sub(since) >= self.options.quiet;
        self.unstated |= due;
        if due && self.has_place(who, BLOCK_BYTES as u64) {
            let group = self.shared.lock().take_empty();
            if let Some(group) = group {
                self.unstated = false;
                self.stated = group.position + BLOCK_BYTES as u64;
                self.put(group)?;
            }
        }
        Ok(())
    }

    /// Alone a group goes at once. Behind others it goes when enough has gathered to be worth a
    /// write of its own.
    fn may_write(&self, who: Who) -> bool {
        let (waiting, next) = {
            let gather = self.shared.lock();
            (gather.waiting(), gather.next_bytes())
        };
        let flights = self.flights.len();
        let worth = flights == 0 || (flights < self.options.writes_max && waiting >= self.options.gather_bytes);
        worth && next.is_some_and(|bytes| self.has_place(who, bytes))
    }

    /// Whether a group can be put into this segment, or into another that can be begun.
    fn has_place(&self, who: Who, bytes: u64) -> bool {
        let Some(current) = &self.current else { return false };
        let another = who == Who::Owner && current.pending == 0 && self.spares.has_idle();
        current.room() >= bytes || another
    }

    fn is_stated(&self) -> bool {
        self.stated >= self.shared.lock().appended()
    }

    /// Puts a group behind the last one.
    fn put(&mut self, mut group: Gathered) -> io::Result<()> {
        let whole = padded(group.length);
        if self.current.as_ref().is_none_or(|current| current.room() < whole as u64) {
            self.next_segment(group.position)?;
        }
        let header = GroupHeader {
            directory: self.directory,
            position: group.position,
            floor: self.floor_by(group.position + whole as u64),
            synced: self.synced,
            incarnation: self.incarnation,
            length: group.length as u32,
            records: group.records,
            previous: self.previous,
            kind: GroupKind::Records,
        };
        self.previous = header.write(&mut group.buffer[..whole]);
        let Some(current) = &mut self.current else { return Err(io::Error::other("the log has no segment")) };
        let (file, at) = (current.file, current.at);
        current.at += whole as u64;
        let (number, waits) = (current.number, current.pending > 0);
        {
            let mut gather = self.shared.lock();
            gather.room.granted = gather.room.granted.saturating_sub(whole as u64);
            if let Some(segment) = gather.segments.back_mut() {
                debug_assert_eq!(segment.number, number);
                segment.newest = segment.newest.max(group.newest);
            }
        }
        let end = group.position + whole as u64;
        if waits {
            self.queue.push_back((file, at, group.buffer, whole));
            self.flights.push_back(Flight { token: 0, file, end, written: false });
        } else {
            let token = self.write(file, at, group.buffer, whole, Job::Group);
            self.flights.push_back(Flight { token, file, end, written: false });
        }
        Ok(())
    }

    /// The greatest floor of what was appended below a position: groups behind it may hold older
    /// changes.
    fn floor_by(&self, end: u64) -> u64 {
        let noted = self.floors.iter().take_while(|(position, _)| *position <= end || mutant("header-floor-of-all"));
        let noted = noted.last();
        noted.map_or(self.floor_passed, |(_, floor)| *floor)
    }

    fn write(&mut self, file: FileId, at: u64, buffer: AlignedBuffer, length: usize, job: Job) -> u64 {
        let group = matches!(job, Job::Group);
        let early = group && mutant("reply-before-sync");
        let sync = (self.options.durability == Durability::Sync || !group) && !early;
        self.push(Request::Write { file, at, buffer, length, sync }, job)
    }

    fn push(&mut self, request: Request, job: Job) -> u64 {
        self.token += 1;
        self.jobs.push((self.token, job));
        self.disk.push(self.token, request);
        self.token
    }

    /// Begins the next segment where `position` is: gives a spare its name, writes its header and
    /// brings both to the disk. Groups wait for that.
    fn next_segment(&mut self, position: u64) -> io::Result<()> {
        let old = self.current.take();
        let after = old.as_ref().map_or(0, |old| old.number);
        // What is left over at its end was never to be used.
        let left_over = old.as_ref().map_or(0, Current::room);
        let spare = self.spares.take(&mut self.disk)?;
        let mark = match &old {
            Some(old) => Some((old.file, old.at, self.mark(position)?)),
            None => None,
        };
        let header = self.header(spare.number, after, position)?;
        self.push(
            Request::Write { file: spare.file, at: 0, buffer: header, length: BLOCK_BYTES, sync: true },
            Job::Begin,
        );
        let synced = if mutant("directory-not-synced") { spare.file } else { self.folder };
        self.push(Request::Sync { file: synced }, Job::Begin);
        let bytes = self.options.segment_bytes;
        self.current =
            Some(Current { number: spare.number, file: spare.file, at: BLOCK_BYTES as u64, bytes, pending: 2, mark });
        let mut gather = self.shared.lock();
        gather.room.granted = gather.room.granted.saturating_sub(left_over);
        gather.room.spares = self.spares.ready();
        gather.segments.push_back(Segment { number: spare.number, newest: 0, begun: false });
        Ok(())
    }

    fn header(&self, number: u64, after: u64, first: u64) -> io::Result<AlignedBuffer> {
        let header = SegmentHeader {
            directory: self.directory,
            number,
            after,
            first,
            incarnation: self.incarnation,
            bytes: self.options.segment_bytes,
            synced: self.synced,
            previous: self.previous,
        };
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES)?;
        header.write(&mut block);
        Ok(block)
    }

    /// The block at a segment's end that says that the log goes on in the next.
    fn mark(&self, position: u64) -> io::Result<AlignedBuffer> {
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES)?;
        let header = GroupHeader {
            directory: self.directory,
            position,
            floor: 0,
            synced: self.synced,
            incarnation: self.incarnation,
            length: GROUP_HEADER_BYTES as u32,
            records: 0,
            previous: self.previous,
            kind: GroupKind::Continued,
        };
        header.write(&mut block);
        Ok(block)
    }

    /// The segment that a server begins with, and the mark in the one that it follows. This waits.
    fn first_segment(&mut self, number: u64, after: u64) -> io::Result<()> {
        let bytes = self.options.segment_bytes;
        let file = self.spares.first(&mut self.disk, number, &self.options)?;
        let header = self.header(number, after, self.written)?;
        let write = Request::Write { file, at: 0, buffer: header, length: BLOCK_BYTES, sync: true };
        overside_disk::complete(&mut self.disk, write, self.options.deadline)?;
        overside_disk::complete(&mut self.disk, Request::Sync { file: self.folder }, self.options.deadline)?;
        let current = Current { number, file, at: BLOCK_BYTES as u64, bytes, pending: 0, mark: None };
        let mut gather = self.shared.lock();
        gather.room.granted += current.room();
        gather.segments.push_back(Segment { number, newest: 0, begun: true });
        drop(gather);
        self.current = Some(current);
        Ok(())
    }

    /// Writes over the end of the segment before, which may hold what was torn. After
    /// `first_segment`.
    pub(crate) fn mark_predecessor(&mut self, number: u64, at: u64) -> io::Result<()> {
        let file = self.disk.open(&layout::segment(number), Open::Write { direct: self.options.is_direct() })?;
        // Its last block is kept for this; what another program made may have none.
        if self.disk.length(file)? >= at + BLOCK_BYTES as u64 {
            if !self.disk.lock(file, self.options.deadline)? {
                return Err(io::Error::other("the last segment is being written by another process"));
            }
            let buffer = self.mark(self.written)?;
            let write = Request::Write { file, at, buffer, length: BLOCK_BYTES, sync: true };
            overside_disk::complete(&mut self.disk, write, self.options.deadline)?;
        }
        self.disk.close(file);
        Ok(())
    }

    fn ended(&mut self, who: Who, completion: Completion) -> io::Result<()> {
        self.completed += 1;
        let Some(at) = self.jobs.iter().position(|(token, _)| *token == completion.token) else {
            return Err(io::Error::other("the disk completed what was never asked"));
        };
        let (token, job) = self.jobs.swap_remove(at);
        if let Job::Spare = job {
            if who == Who::Waiter {
                self.left.push(completion);
                return Ok(());
            }
            return self.spares.ended(&mut self.disk, completion, &self.options);
        }
        if matches!(job, Job::Sync) && completion.result.is_err() && mutant("failed-sync-retried") {
            self.push(completion.request, Job::Sync);
            return Ok(());
        }
        completion.result?;
        match job {
            Job::Group => {
                if let Some(flight) = self.flights.iter_mut().find(|flight| flight.token == token) {
                    flight.written = true;
                }
                if let Request::Write { file, buffer, sync, .. } = completion.request {
                    // A sync covers what completed before it, so the file counts from now on.
                    if !sync && !self.dirty.contains(&file) {
                        self.dirty.push(file);
                    }
                    self.shared.lock().give_back(buffer);
                }
            }
            Job::Begin => self.begun(),
            Job::Mark => self.full.push(completion.request.file()),
            Job::Sync => {
                self.syncing.0 -= 1;
                if self.syncing.0 == 0 {
                    self.synced = self.synced.max(self.syncing.1);
                }
            }
            Job::Spare => unreachable!("handed on above"),
        }
        Ok(())
    }

    /// One step of beginning a segment is done; after the last its groups go.
    fn begun(&mut self) {
        let Some(current) = &mut self.current else { return };
        current.pending -= 1;
        if current.pending > 0 {
            return;
        }
        if let Some(segment) = self.shared.lock().segments.back_mut() {
            segment.begun = true;
        }
        if let Some((file, at, block)) = current.mark.take() {
            self.write(file, at, block, BLOCK_BYTES, Job::Mark);
        }
        for (file, at, buffer, length) in std::mem::take(&mut self.queue) {
            let token = self.write(file, at, buffer, length, Job::Group);
            if let Some(flight) = self.flights.iter_mut().find(|flight| flight.token == 0) {
                flight.token = token;
            }
        }
    }

    /// Moves what is durable on; whether it did.
    fn advance(&mut self) -> bool {
        while self.flights.front().is_some_and(|flight| flight.written) {
            self.written = self.flights.pop_front().map_or(self.written, |flight| flight.end);
        }
        if self.options.durability == Durability::Sync {
            self.synced = self.written;
        }
        let early = mutant("group-reply-before-write") && self.options.durability != Durability::Sync;
        let written = if early { self.shared.lock().appended() } else { self.written };
        let mut advanced = self.shared.reached(written);
        while self.floors.front().is_some_and(|(position, _)| *position <= self.written) {
            let Some((position, floor)) = self.floors.pop_front() else { break };
            self.floor_passed = floor;
            advanced |= self.shared.reached_floor(floor);
            self.unsynced_floors.push_back((position, floor));
        }
        self.shared.synced(self.synced);
        while self.unsynced_floors.front().is_some_and(|(position, _)| *position <= self.synced) {
            let Some((_, floor)) = self.unsynced_floors.pop_front() else { break };
            self.shared.synced_floor(floor);
        }
        advanced
    }

    /// In `group`, brings what the kernel has to the disk, now and then.
    fn sync(&mut self, now: Duration) {
        let Durability::Group { every } = self.options.durability else { return };
        let due = self.closing || (now.saturating_sub(self.synced_at) >= every && !mutant("group-never-synced"));
        if self.syncing.0 > 0 || self.dirty.is_empty() || !due {
            return;
        }
        self.synced_at = now;
        let dirty = std::mem::take(&mut self.dirty);
        self.syncing = (dirty.len() as u32, self.written);
        for file in dirty {
            self.push(Request::Sync { file }, Job::Sync);
        }
    }

    /// When to step again, whatever happens.
    fn wake(&self, now: Duration) -> Option<Duration> {
        let sync = match self.options.durability {
            Durability::Group { every } if !self.dirty.is_empty() => Some(self.synced_at + every),
            _ => None,
        };
        let quiet =
            self.quiet_since.filter(|_| !self.is_stated() && !self.unstated).map(|since| since + self.options.quiet);
        let spares = self.spares.wake(now, &self.options);
        let earliest = [sync, quiet, spares].into_iter().flatten().min();
        earliest.map(|at| at.max(now))
    }
}

impl Current {
    /// Bytes for groups. The last block is kept for the mark that the log goes on elsewhere.
    fn room(&self) -> u64 {
        self.bytes - self.at - BLOCK_BYTES as u64
    }
}

/// Why a log is not written any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LogFailed(pub String);
