//! One volume: its device, and the thread that waits for it.
//!
//! A worker that has a request hands it to the device and takes what has ended, on its own thread:
//! a request that memory answers costs no hand-over. The worker that first had a request that ends
//! later takes those, as long as that connection lasts. It sends its own answers without another
//! wake-up, and hands on those of other workers. The volume's thread takes them where no worker
//! does, and sees to times.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use overside_memory::Bytes;
use overside_service::{Attended, Context, Going, Ticket};
use overside_verbs::watch::Signal;
use overside_verbs::{Clock, VerbsError};
use overside_volume::files::{PIECE_BYTES, Preset};
use overside_volume::wire::{Counts, HEADER, Operation, Reply, Status};
use overside_volume::{Completion, Device, DeviceError, Geometry, Hint, Request, SECTOR_BYTES, Work};

use super::attachment::Attachment;
use super::blocks::{Block, Blocks, Registered};
use super::door::Ended;
use super::processes::Processes;
use super::slot::Slot;
use super::writer::{LastWriter, WriterRecord};
use super::{About, NodeOptions, Writes, lock};
use crate::cache::{Cache, CacheOptions, CacheStatistics};
use crate::files::Files;
use crate::members::Absent;

#[derive(Debug)]
pub(super) struct Volume {
    geometry: Geometry,
    bytes: u64,
    pub(super) writes: Writes,
    /// What it lies on: another member may take the place of one.
    about: Mutex<About>,
    /// It keeps files.
    pub(super) files: Option<Preset>,
    core: Mutex<Core>,
    /// Who writes it: one, or sessions of one group.
    pub(super) writers: Mutex<Vec<Arc<Attachment>>>,
    /// Writers before it that had requests under way. Not the last of them alone: it may have been
    /// replaced while it waited itself.
    leaving: Mutex<Vec<Arc<Attachment>>>,
    /// Of a group.
    pub(super) processes: Processes,
    /// Who wrote it last, in whichever life of the node.
    record: Mutex<Option<WriterRecord>>,
    since: Instant,
    /// Somebody wrote it in the last life, who may come again.
    was_awaited: bool,
    clock: Arc<dyn Clock>,
    /// Wakes the volume's thread.
    signal: Signal,
    stopping: AtomicBool,
    /// Requests wait for the device.
    is_wanted: AtomicBool,
}

#[derive(Debug)]
struct Core {
    store: Store,
    fd: Option<Arc<OwnedFd>>,
    /// Which worker goes on when the device has ended something; none: the volume's thread does.
    attended: Option<u64>,
    /// How many did, ever.
    attendances: u64,
    next: u64,
    routes: BTreeMap<u64, Route>,
    /// DISCARDs and ZEROs whose FLUSH is under way: first byte, length, whether it is a ZERO.
    flushing: BTreeMap<u64, (u64, u64, bool)>,
    /// What the device had no room for yet.
    waiting: VecDeque<Request>,
    polled: Vec<Completion>,
    counts: Counts,
    /// Until when the volume's thread sleeps, if it does; within, none is until it is woken.
    sleeps: Option<Option<Instant>>,
}

/// A worker that goes on when the device has ended something.
#[derive(Debug)]
struct Attending {
    volume: Arc<Volume>,
    blocks: Arc<Blocks>,
    number: u64,
    fd: OwnedFd,
}

/// Where its blocks are.
#[derive(Debug)]
enum Store {
    Plain(Slot),
    /// Some of them in memory, too.
    Cached(Box<Cache<Slot>>),
    /// The same, with files over them.
    Files(Box<Files<Slot>>),
    CachedFiles(Box<Files<Cache<Slot>>>),
}

impl Store {
    fn device(&mut self) -> &mut dyn Device {
        match self {
            Store::Plain(slot) => slot,
            Store::Cached(cache) => &mut **cache,
            Store::Files(files) => &mut **files,
            Store::CachedFiles(files) => &mut **files,
        }
    }

    fn cache(&mut self) -> Option<&mut Cache<Slot>> {
        match self {
            Store::Plain(_) | Store::Files(_) => None,
            Store::Cached(cache) => Some(cache),
            Store::CachedFiles(files) => Some(files.under_mut()),
        }
    }

    fn slot(&mut self) -> &mut Slot {
        match self {
            Store::Plain(slot) => slot,
            Store::Cached(cache) => cache.below(),
            Store::Files(files) => files.under_mut(),
            Store::CachedFiles(files) => files.under_mut().below(),
        }
    }

    /// With files of this preset over it.
    fn with_files(self, preset: Preset, clock: &dyn Clock) -> Result<Store, VerbsError> {
        let failed = |why: DeviceError| VerbsError::System { what: "the volume's files", reason: why.to_string() };
        Ok(match self {
            Store::Plain(device) => Store::Files(Box::new(Files::open(device, preset, clock).map_err(failed)?)),
            Store::Cached(cache) => Store::CachedFiles(Box::new(Files::open(*cache, preset, clock).map_err(failed)?)),
            files => files,
        })
    }
}

/// Where a request's answer goes.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) attachment: Arc<Attachment>,
    pub(super) to: To,
    /// It is answered only after a FLUSH.
    pub(super) flushes: bool,
}

#[derive(Debug)]
pub(super) enum To {
    /// Over a connection.
    Client { ticket: Ticket, reply: Reply, block: Option<Block> },
    /// Within this process.
    Door { ended: Arc<Ended>, number: u64, tag: u64, fua: bool },
}

impl Volume {
    pub(super) fn new(
        device: Box<dyn Device>,
        options: &NodeOptions,
        clock: Arc<dyn Clock>,
        about: About,
        record: Option<WriterRecord>,
        memory: Arc<Registered>,
    ) -> Result<Volume, VerbsError> {
        let fd = device.fd().map(|fd| fd.try_clone_to_owned()).transpose();
        let fd = fd.map_err(|e| VerbsError::System { what: "dup", reason: e.to_string() })?;
        let mut geometry = device.geometry();
        let (bytes, files) = (geometry.bytes, about.files);
        let device = Slot::new(device);
        let mut store = if options.cache.bytes == 0 {
            Store::Plain(device)
        } else {
            // Its share is known when all volumes are.
            let none = CacheOptions { bytes: 0, ..options.cache };
            let cache = Cache::lying_in(memory, device, none);
            Store::Cached(Box::new(cache.map_err(|reason| VerbsError::System { what: "the cache", reason })?))
        };
        if let Some(preset) = files {
            store = store.with_files(preset, &*clock)?;
            geometry = store.device().geometry();
        }
        let core = Core {
            store,
            fd: fd.map(Arc::new),
            attended: None,
            attendances: 0,
            next: 0,
            routes: BTreeMap::new(),
            flushing: BTreeMap::new(),
            waiting: VecDeque::new(),
            polled: Vec::new(),
            counts: Counts::default(),
            sleeps: None,
        };
        Ok(Volume {
            geometry,
            bytes,
            // What makes a file longer is written down at once, and so are its bytes.
            writes: if files.is_some() { Writes::Through } else { options.writes },
            about: Mutex::new(about),
            files,
            core: Mutex::new(core),
            writers: Mutex::default(),
            leaving: Mutex::default(),
            processes: Processes::default(),
            was_awaited: record.as_ref().is_some_and(WriterRecord::is_awaited),
            record: Mutex::new(record),
            since: clock.now(),
            clock,
            signal: Signal::new()?,
            stopping: AtomicBool::new(false),
            is_wanted: AtomicBool::new(false),
        })
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Of its device, whatever lies over that.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What LBAs count.
    pub(super) fn lba_bytes(&self) -> u64 {
        if self.files.is_some() { 1 } else { SECTOR_BYTES }
    }

    /// Bytes of one request at most, where the node takes `bytes`.
    pub(super) fn request_bytes_max(&self, bytes: u32) -> u32 {
        if self.files.is_some() { bytes.min(PIECE_BYTES as u32) } else { bytes }
    }

    /// A writer's place is another's, or free: what it has under way must end
    /// before the next one begins.
    pub(super) fn replaced(&self, writer: &Arc<Attachment>) {
        self.processes.leave(writer.session);
        lock(&self.leaving).push(writer.clone());
    }

    /// Writers that were replaced and have something under way.
    pub(super) fn still_writing(&self) -> Vec<Arc<Attachment>> {
        let mut leaving = lock(&self.leaving);
        leaving.retain(|writer| !writer.with(|ledger| ledger.is_quiet()));
        leaving.clone()
    }

    /// Whether somebody else has written it since this session of an earlier life did. Of
    /// some volumes nobody knows.
    pub(super) fn has_replaced(&self, session: u64) -> bool {
        lock(&self.record).as_ref().is_some_and(|record| record.is_replaced(session))
    }

    /// Whether this session of an earlier life wrote it last.
    pub(super) fn goes_on_with(&self, session: u64) -> bool {
        lock(&self.record).as_ref().is_some_and(|record| record.goes_on(session))
    }

    /// Whether the writer of the last life may come again: its place is kept for a while.
    pub(super) fn awaits_writer(&self, group: u64, now: Instant, linger: Duration) -> bool {
        now.saturating_duration_since(self.since) < linger
            && lock(&self.record).as_ref().is_some_and(|record| record.is_awaited() && !record.goes_on(group))
    }

    /// Whether writers of the last life may still be on their way.
    pub(super) fn lacks_writers(&self, now: Instant, linger: Duration) -> bool {
        self.was_awaited && now.saturating_duration_since(self.since) < linger
    }

    /// Whether it is noted who writes it from now on.
    pub(super) fn note_writer(&self, last: LastWriter) -> bool {
        lock(&self.record).as_mut().is_none_or(|record| record.note(last))
    }

    /// A volume and its writers hold each other.
    pub(super) fn forget_writers(&self) {
        lock(&self.writers).clear();
        lock(&self.leaving).clear();
        self.processes.forget();
    }

    /// Hands a request to the device, and answers all that has ended.
    pub(super) fn submit(
        self: &Arc<Self>,
        work: Work,
        route: Route,
        blocks: &Arc<Blocks>,
        mut context: Option<&mut Context<'_>>,
    ) {
        if work.writes() && route.attachment.group != 0 {
            self.processes.fence_ended(route.attachment.session);
        }
        let mut core = lock(&self.core);
        let tag = core.next;
        core.next += 1;
        // Under the lock: whoever has fenced it off hands over what comes after it.
        let is_late = work.writes() && route.attachment.is_fenced();
        core.routes.insert(tag, route);
        if is_late {
            let result = Err(DeviceError::Fenced);
            core.ended(Completion { tag, work, result }, blocks, context.as_deref_mut());
        } else {
            core.waiting.push_back(Request { tag, work });
        }
        core.turn(blocks, context.as_deref_mut());
        self.note(&core);
        let attends = if context.is_some() { core.attend() } else { None };
        // Without a descriptor the volume's thread does not know that there is something to wait for.
        let unwatched = core.fd.is_none() && !core.routes.is_empty();
        // It knows of no earlier time than that which it went to sleep with.
        let oversleeps = core.wakes_too_late();
        drop(core);
        if unwatched || oversleeps {
            self.signal.notify();
        }
        if let (Some(context), Some((number, fd))) = (context, attends) {
            let (volume, blocks) = (self.clone(), blocks.clone());
            context.attend(Arc::new(Attending { volume, blocks, number, fd }));
        }
    }

    fn note(&self, core: &Core) {
        self.is_wanted.store(!core.routes.is_empty(), Ordering::Relaxed);
    }

    /// What it has carried out.
    pub(super) fn counts(&self) -> Counts {
        let mut core = lock(&self.core);
        let counts = core.counts;
        match core.store.cache() {
            None => counts,
            Some(cache) => {
                let CacheStatistics { bytes, hits, misses, .. } = cache.statistics();
                Counts { cache_bytes: bytes, hits, misses, ..counts }
            }
        }
    }

    /// Its cache may hold as many bytes as this.
    pub(super) fn share(&self, bytes: u64) {
        if let Some(cache) = lock(&self.core).store.cache() {
            cache.resize(bytes);
        }
        // What waits for that goes on.
        self.signal.notify();
    }

    /// Of a READ, the bytes that lie in the cache, to be sent from there, if it has no more parts.
    pub(super) fn lookup(&self, operation: Operation, at: u64, length: usize, parts_max: usize) -> Option<Vec<Bytes>> {
        if operation != Operation::Read {
            return None;
        }
        let whole =
            at.is_multiple_of(self.geometry.unit_bytes) && (length as u64).is_multiple_of(self.geometry.unit_bytes);
        let mut core = lock(&self.core);
        let Store::Cached(cache) = &mut core.store else { return None };
        let found = if whole { cache.lookup(at, length, parts_max) } else { None }?;
        core.counts.reads += 1;
        core.counts.read_bytes += length as u64;
        Some(found)
    }

    /// The volume's thread. It ends when everything has ended that the device has.
    pub(super) fn run(&self, blocks: &Blocks) {
        let mut until = None;
        loop {
            let mut core = lock(&self.core);
            core.sleeps = None;
            core.turn(blocks, None);
            self.note(&core);
            if self.stopping.load(Ordering::Acquire) {
                core.attended = None;
                let now = self.clock.now();
                let until = *until.get_or_insert(now + END_PATIENCE);
                let is_quiet = core.routes.is_empty();
                if is_quiet {
                    // Whoever ends a node may turn its host off next. A device that fails has failed before.
                    let all = Work::Hint { at: 0, length: self.geometry.bytes, hint: Hint::DontNeed };
                    for work in [Work::Flush, all] {
                        let _ = overside_volume::complete(core.store.device(), &*self.clock, work, until - now);
                    }
                }
                if is_quiet || now >= until {
                    return;
                }
            }
            let sleeps = core.store.device().arm();
            let (due, fd) = (core.store.device().due(), core.fd.clone().filter(|_| core.attended.is_none()));
            let due = [due, until].into_iter().flatten().min();
            core.sleeps = sleeps.then_some(due);
            drop(core);
            if sleeps {
                let slept = match &fd {
                    Some(fd) => self.clock.wait(&[fd.as_fd(), self.signal.as_fd()], due),
                    None => self.clock.wait(&[self.signal.as_fd()], due),
                };
                self.signal.drain();
                if slept.is_err() {
                    return;
                }
            }
        }
    }

    /// What it lies on.
    pub(super) fn about(&self) -> About {
        lock(&self.about).clone()
    }

    /// Takes its device away once that has ended what it has, with nothing left to be settled.
    /// Requests wait from then on.
    ///
    /// # Errors
    /// The device does not end what it has; it stays, and goes on.
    pub(super) fn take_device(&self) -> Result<(), DeviceError> {
        let until = self.clock.now() + END_PATIENCE;
        let mut device = loop {
            if let Some(device) = lock(&self.core).store.slot().close() {
                break device;
            }
            if self.clock.now() >= until {
                self.go_on(None);
                return Err(DeviceError::Failed);
            }
            self.clock.sleep(LOOK_AGAIN);
        };
        // Not under the lock: whoever has a request meanwhile does not wait for the disks. One that fails has failed before.
        let all = Work::Hint { at: 0, length: self.geometry.bytes, hint: Hint::DontNeed };
        for work in [Work::Flush, all] {
            let _ = overside_volume::complete(&mut *device, &*self.clock, work, END_PATIENCE);
        }
        Ok(())
    }

    /// Goes on with this device, which has the same bytes, or with none: then all requests fail.
    pub(super) fn put_device(&self, found: Option<(Box<dyn Device>, About)>) {
        let found = found.filter(|(device, _)| device.geometry().bytes == self.bytes);
        let geometry = Geometry { bytes: self.bytes, ..self.geometry };
        let (device, about) = found.unwrap_or_else(|| (Box::new(Absent::new(geometry)), About::default()));
        *lock(&self.about) = about;
        self.go_on(Some(device));
    }

    fn go_on(&self, device: Option<Box<dyn Device>>) {
        let mut core = lock(&self.core);
        if let Some(device) = &device {
            // Without a descriptor, its thread looks as soon as somebody asks for something.
            core.fd = device.fd().and_then(|fd| fd.try_clone_to_owned().ok()).map(Arc::new);
            core.attended = None;
        }
        core.store.slot().open(device);
        drop(core);
        self.signal.notify();
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.signal.notify();
    }
}

impl Attended for Attending {
    fn is_wanted(&self) -> bool {
        self.volume.is_wanted.load(Ordering::Relaxed)
    }

    fn go_on(&self) -> Going {
        let mut core = lock(&self.volume.core);
        if core.attended != Some(self.number) {
            return Going::Over;
        }
        core.turn(&self.blocks, None);
        self.volume.note(&core);
        let sleeps = core.store.device().arm();
        let oversleeps = core.wakes_too_late();
        drop(core);
        if oversleeps {
            self.volume.signal.notify();
        }
        if sleeps { Going::Sleeps } else { Going::Again }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn leave(&self) {
        let mut core = lock(&self.volume.core);
        if core.attended == Some(self.number) {
            core.attended = None;
            drop(core);
            self.volume.signal.notify();
        }
    }
}

impl Core {
    /// The number of a worker that attends to the device from now on, where none does and
    /// something is to be waited for.
    fn attend(&mut self) -> Option<(u64, OwnedFd)> {
        if self.attended.is_some() || self.routes.is_empty() {
            return None;
        }
        let fd = self.fd.as_ref()?.try_clone().ok()?;
        self.attendances += 1;
        self.attended = Some(self.attendances);
        Some((self.attendances, fd))
    }

    /// Whether the device is to be polled before the volume's thread wakes.
    /// Once: that is told to it.
    fn wakes_too_late(&mut self) -> bool {
        let Some(until) = self.sleeps else { return false };
        let due = self.store.device().due();
        let too_late = due.is_some_and(|due| until.is_none_or(|until| due < until));
        if too_late {
            self.sleeps = None;
        }
        too_late
    }

    /// Hands over what waits, and answers what has ended.
    fn turn(&mut self, blocks: &Blocks, mut context: Option<&mut Context<'_>>) {
        loop {
            if !self.waiting.is_empty() {
                self.store.device().submit(&mut self.waiting);
            }
            let mut polled = std::mem::take(&mut self.polled);
            self.store.device().poll(&mut polled);
            let found = !polled.is_empty();
            for completion in polled.drain(..) {
                self.ended(completion, blocks, context.as_deref_mut());
            }
            self.polled = polled;
            if !found {
                return;
            }
        }
    }

    fn ended(&mut self, completion: Completion, blocks: &Blocks, context: Option<&mut Context<'_>>) {
        let Completion { tag, work, result } = completion;
        let Some(mut route) = self.routes.remove(&tag) else { return };
        if route.flushes && result.is_ok() {
            // A door gives its request back as it came.
            let (at, length) = work.range().unwrap_or_default();
            route.flushes = false;
            self.flushing.insert(tag, (at, length, matches!(work, Work::Zero { .. })));
            self.routes.insert(tag, route);
            return self.waiting.push_back(Request { tag, work: Work::Flush });
        }
        let mut work = match self.flushing.remove(&tag) {
            Some((at, length, true)) => Work::Zero { at, length },
            Some((at, length, false)) => Work::Discard { at, length },
            None => work,
        };
        self.count(&work, result.is_ok());
        let attachment = route.attachment;
        let (ticket, mut reply, block) = match route.to {
            To::Client { ticket, reply, block } => (ticket, reply, block),
            To::Door { ended, number, tag, fua: asked } => {
                if let Work::Write { fua, .. } = &mut work {
                    *fua = asked;
                }
                attachment.end(number, Status::from(result), false);
                return ended.push(Completion { tag, work, result });
            }
        };
        let remember = !matches!(work, Work::Read { .. } | Work::Hint { .. } | Work::Check { .. });
        if let Work::Check { wrong, .. } = &work {
            reply.wrong = *wrong;
        }
        reply.status = Status::from(result);
        match (work, block) {
            (Work::Read { length, into, .. }, Some(block)) if result.is_ok() => {
                reply.length = length as u32;
                let message = blocks.message(block, into, length, &reply.bytes());
                attachment.end(reply.number, reply.status, remember);
                match context {
                    Some(context) => context.answer(ticket, message),
                    None => ticket.answer(message),
                }
                return;
            }
            (Work::Read { into, .. }, Some(block)) => blocks.put(block, into),
            (Work::Write { from, .. }, Some(block)) => blocks.put_bytes(block, from),
            _ => {}
        }
        // Ended in the ledger first: the client may ask for more as soon as it has the answer.
        attachment.end(reply.number, reply.status, remember);
        answer(ticket, &reply, context);
    }

    fn count(&mut self, work: &Work, is_done: bool) {
        let counts = &mut self.counts;
        if !is_done {
            counts.failed += 1;
            return;
        }
        match work {
            Work::Read { length, .. } => {
                counts.reads += 1;
                counts.read_bytes += *length as u64;
            }
            Work::Write { from, .. } => {
                counts.writes += 1;
                counts.written_bytes += from.len() as u64;
            }
            _ => counts.others += 1,
        }
    }
}

/// Answers a request without a payload.
pub(super) fn answer(ticket: Ticket, reply: &Reply, context: Option<&mut Context<'_>>) {
    let bytes = reply.bytes();
    let body = |out: &mut Vec<u8>| out.extend_from_slice(&bytes[HEADER - BODY..]);
    match context {
        Some(context) => context.complete(ticket, body),
        None => ticket.complete(body),
    }
}

/// Bytes of a header behind the envelope, which the service writes.
const BODY: usize = HEADER - overside_service::CONTROL_HEADER;

/// While a device ends what it has.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// How long a node that ends waits for its disks.
const END_PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use overside_memory::Segment;
    use overside_verbs::SystemClock;
    use overside_volume::MemoryDevice;

    use super::*;

    /// It has passed every look but the last one by then.
    #[test]
    fn a_write_that_waits_for_the_device_is_none_once_its_session_is_fenced_off() {
        let (device, clock) = (Box::new(MemoryDevice::new(1 << 20).unwrap()), SystemClock::handle());
        let (options, memory) = (NodeOptions::default(), Arc::new(Registered::new(0)));
        let blocks = Arc::new(Blocks::new(4096, 1, &memory, options.cache).unwrap());
        let volume = Volume::new(device, &options, clock.clone(), About::default(), None, memory).unwrap();
        let volume = Arc::new(volume);
        let attachment = Arc::new(Attachment::new(1, volume.clone(), true, (0, 0)));
        attachment.with(|ledger| ledger.begin(0, 4096, clock.now()));
        let from = Bytes::from(Segment::private(4096).unwrap().carve(4096).pop().unwrap());
        let to = To::Door { ended: Arc::new(Ended::new().unwrap()), number: 0, tag: 0, fua: false };
        let route = Route { attachment: attachment.clone(), to, flushes: false };
        std::thread::scope(|scope| {
            let another = lock(&volume.core);
            scope.spawn(|| volume.submit(Work::Write { at: 0, from, fua: false }, route, &blocks, None));
            std::thread::sleep(Duration::from_millis(100));
            attachment.fence();
            drop(another);
        });
        let counts = volume.counts();
        assert_eq!((counts.writes, counts.failed), (0, 1));
    }
}
