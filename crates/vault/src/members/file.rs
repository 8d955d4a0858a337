//! Blocks in a file, by a disk's queue.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;

use overside_disk::{AlignedBuffer, BLOCK_BYTES, Disk, FileId, Request as DiskRequest};
use overside_volume::{Completion, Device, DeviceError, Geometry, Request, Work};

/// A part of a file as a device. Its units are the disk's blocks
/// ([`Sectors`](overside_volume::Sectors) makes them smaller).
///
/// It has the disk's queue alone. A WRITE that was given back is in the kernel's hands and survives
/// this process; FLUSH and FUA bring it to the disk.
#[derive(Debug)]
pub struct FileMember {
    disk: Box<dyn Disk>,
    file: FileId,
    /// Place in the file of the device's first byte.
    start: u64,
    geometry: Geometry,
    next: u64,
    under_way: BTreeMap<u64, InFlight>,
    done: Vec<Completion>,
    polled: Vec<overside_disk::Completion>,
    /// The queue itself is broken: nothing more can be carried out.
    broken: bool,
}

#[derive(Debug)]
struct InFlight {
    request: Request,
    /// How far a DISCARD or ZERO has come, in bytes.
    zeroed: u64,
}

impl FileMember {
    /// The bytes of `file` from `start` on, as many as `bytes`. Both are rounded to whole blocks.
    pub fn new(disk: Box<dyn Disk>, file: FileId, start: u64, bytes: u64) -> FileMember {
        let block = BLOCK_BYTES as u64;
        FileMember {
            disk,
            file,
            start: start.next_multiple_of(block),
            geometry: Geometry { bytes: bytes - bytes % block, unit_bytes: block, read_only: false },
            next: 0,
            under_way: BTreeMap::new(),
            done: Vec::new(),
            polled: Vec::new(),
            broken: false,
        }
    }

    /// The disk, and the file in it.
    pub fn disk(&mut self) -> (&mut dyn Disk, FileId) {
        (&mut *self.disk, self.file)
    }

    fn take(&mut self, request: Request) {
        let checked =
            self.geometry.check(&request.work).and(if self.broken { Err(DeviceError::Failed) } else { Ok(()) });
        if checked.is_err() || matches!(request.work, Work::Hint { .. }) {
            return self.done.push(request.ended(checked));
        }
        let token = self.next;
        self.next += 1;
        self.push(token, InFlight { request, zeroed: 0 });
    }

    /// Asks the disk for a request's next step.
    fn push(&mut self, token: u64, entry: InFlight) {
        match self.described(&entry) {
            Ok(described) => {
                self.disk.push(token, described);
                self.under_way.insert(token, entry);
            }
            Err(error) => self.done.push(entry.request.ended(Err(device_error(&error)))),
        }
    }

    fn described(&self, entry: &InFlight) -> io::Result<DiskRequest> {
        let file = self.file;
        Ok(match &entry.request.work {
            Work::Read { at, length, .. } => {
                DiskRequest::Read { file, at: self.start + at, buffer: AlignedBuffer::zeroed(*length)? }
            }
            // Without sums all that can be seen is whether the disk gives it.
            Work::Check { at, length, .. } => {
                let length = usize::try_from(*length).map_err(|_| io::ErrorKind::OutOfMemory)?;
                DiskRequest::Read { file, at: self.start + at, buffer: AlignedBuffer::zeroed(length)? }
            }
            Work::Write { at, from, fua } => {
                let mut buffer = AlignedBuffer::zeroed(from.len())?;
                buffer[..from.len()].copy_from_slice(from);
                DiskRequest::Write { file, at: self.start + at, buffer, length: from.len(), sync: *fua }
            }
            Work::Discard { at, length } | Work::Zero { at, length } => {
                let length = (length - entry.zeroed).min(ZEROS_BYTES) as usize;
                let buffer = AlignedBuffer::zeroed(length)?;
                DiskRequest::Write { file, at: self.start + at + entry.zeroed, buffer, length, sync: false }
            }
            Work::Flush | Work::Hint { .. } => DiskRequest::Sync { file },
        })
    }

    fn ended(&mut self, completion: overside_disk::Completion) {
        let Some(mut entry) = self.under_way.remove(&completion.token) else { return };
        let moved = match completion.result {
            Ok(moved) => moved,
            Err(error) => return self.done.push(entry.request.ended(Err(device_error(&error)))),
        };
        match (&mut entry.request.work, completion.request) {
            (Work::Read { into, length, .. }, DiskRequest::Read { buffer, .. }) => {
                // Past the file's end nothing was ever written.
                let moved = usize::try_from(moved).unwrap_or(*length).min(*length);
                into[..moved].copy_from_slice(&buffer[..moved]);
                into[moved..*length].fill(0);
            }
            (Work::Check { wrong, .. }, _) => *wrong = 0,
            (Work::Discard { length, .. } | Work::Zero { length, .. }, _) => {
                entry.zeroed += moved;
                if entry.zeroed < *length {
                    return self.push(completion.token, entry);
                }
            }
            _ => {}
        }
        self.done.push(entry.request.ended(Ok(())));
    }

    fn kick(&mut self) {
        if self.disk.submit().is_err() {
            self.give_up();
        }
    }

    /// The queue is broken: whether what is under way happens is not known.
    fn give_up(&mut self) {
        self.broken = true;
        let under_way = std::mem::take(&mut self.under_way);
        self.done.extend(under_way.into_values().map(|entry| entry.request.ended(Err(DeviceError::Failed))));
    }
}

impl Device for FileMember {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        while self.under_way.len() < REQUESTS_MAX
            && let Some(request) = batch.pop_front()
        {
            self.take(request);
        }
        self.kick();
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.collect();
        let found = self.done.len();
        out.append(&mut self.done);
        found
    }

    fn arm(&mut self) -> bool {
        // What the disk refused ends without its descriptor.
        self.collect();
        self.done.is_empty()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.disk.fd()
    }
}

impl FileMember {
    /// Takes what the disk has ended.
    fn collect(&mut self) {
        loop {
            let mut polled = std::mem::take(&mut self.polled);
            if self.disk.poll(&mut polled).is_err() {
                self.give_up();
            }
            let found = !polled.is_empty();
            polled.drain(..).for_each(|completion| self.ended(completion));
            self.polled = polled;
            if !found {
                break;
            }
            // Zeros go on, stretch by stretch.
            self.kick();
        }
    }
}

/// What a disk's error means to a device's caller.
pub(crate) fn device_error(error: &io::Error) -> DeviceError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => DeviceError::NoSpace,
        io::ErrorKind::OutOfMemory => DeviceError::NoMemory,
        io::ErrorKind::ReadOnlyFilesystem => DeviceError::ReadOnly,
        _ => DeviceError::Failed,
    }
}

/// Requests in flight; more wait with the caller.
const REQUESTS_MAX: usize = 256;
/// Zeros that are written at once.
const ZEROS_BYTES: u64 = 1 << 20;
