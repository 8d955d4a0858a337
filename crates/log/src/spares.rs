//! Segments that are not begun: made ahead, so that what was promised has its place on the disk,
//! and recycled.

use std::io;
use std::time::Duration;

use overside_disk::{AlignedBuffer, BLOCK_BYTES, Completion, Disk, FileId, Open, Request};

use crate::{Options, layout};

/// Segments that are not begun.
#[derive(Debug)]
pub(crate) struct Spares {
    /// The number of the next file. None is used twice.
    next: u64,
    ready: Vec<Spare>,
    /// One that has no blocks yet.
    making: Option<Spare>,
    /// Bytes for groups in those that became ready since somebody asked.
    granted: u64,
    /// The last attempt to make one failed, because the disk is full or otherwise, and when that
    /// was.
    failed: bool,
    full: bool,
    tried: Option<Duration>,
    zeros: Option<AlignedBuffer>,
}

#[derive(Debug)]
struct Spare {
    /// Of its name.
    number: u64,
    file: FileId,
    /// Written through so far, in bytes.
    through: u64,
    /// It has its blocks and its length.
    allocated: bool,
    /// A request for it is under way.
    busy: bool,
}

/// A spare that became a segment.
#[derive(Debug)]
pub(crate) struct Begun {
    pub number: u64,
    pub file: FileId,
}

impl Spares {
    /// None yet; files are numbered from `next` on.
    pub fn new(next: u64) -> Spares {
        Spares {
            next,
            ready: Vec::new(),
            making: None,
            granted: 0,
            failed: false,
            full: false,
            tried: None,
            zeros: None,
        }
    }

    /// Takes over what a server before left. What is no whole segment is taken away.
    pub fn adopt(&mut self, disk: &mut dyn Disk, names: &[String], options: &Options) -> io::Result<()> {
        for name in names {
            let name = format!("{}/{name}", layout::LOG);
            let number = layout::number(&name, layout::SPARE);
            let file = disk.open(&name, Open::Write { direct: options.is_direct() })?;
            let whole = disk.length(file)? == options.segment_bytes && self.ready.len() < options.spares_max;
            match number {
                Some(number) if whole && disk.lock(file, options.deadline)? => {
                    overside_disk::complete(disk, Request::Sync { file }, options.deadline)?;
                    self.add(number, file, options);
                }
                _ => {
                    disk.close(file);
                    disk.unlink(&name)?;
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, number: u64, file: FileId, options: &Options) {
        self.granted += options.capacity();
        self.ready.push(Spare { number, file, through: options.segment_bytes, allocated: true, busy: false });
    }

    /// The segment that a server begins with: a spare, or a new file. This waits.
    pub fn first(&mut self, disk: &mut dyn Disk, number: u64, options: &Options) -> io::Result<FileId> {
        if let Some(spare) = self.ready.pop() {
            self.granted -= options.capacity();
            disk.rename(&layout::spare(spare.number), &layout::segment(number))?;
            return Ok(spare.file);
        }
        // Under another name until it has its blocks, for a segment's name says that it is one.
        let name = layout::spare(number);
        let file = disk.open(&name, Open::Create { direct: options.is_direct() })?;
        let locked = disk.lock(file, options.deadline)?;
        let length = options.segment_bytes;
        match overside_disk::complete(disk, Request::Allocate { file, length }, options.deadline) {
            Ok(_) if locked => {}
            Ok(_) => return Err(io::Error::other("another process has locked a file that was just made")),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                let at = length - BLOCK_BYTES as u64;
                let buffer = AlignedBuffer::zeroed(BLOCK_BYTES)?;
                let last = Request::Write { file, at, buffer, length: BLOCK_BYTES, sync: false };
                overside_disk::complete(disk, last, options.deadline)?;
            }
            Err(error) => {
                disk.close(file);
                disk.unlink(&name)?;
                return Err(error);
            }
        }
        overside_disk::complete(disk, Request::Sync { file }, options.deadline)?;
        disk.rename(&name, &layout::segment(number))?;
        Ok(file)
    }

    /// Makes a spare out of a segment that nobody needs, or takes it away where there are enough.
    pub fn recycle(&mut self, disk: &mut dyn Disk, number: u64, options: &Options) -> io::Result<()> {
        let name = layout::segment(number);
        if self.ready.len() >= options.spares_max {
            return disk.unlink(&name);
        }
        let file = disk.open(&name, Open::Write { direct: options.is_direct() })?;
        let whole = disk.length(file)? == options.segment_bytes && disk.lock(file, Duration::ZERO)?;
        if whole {
            disk.rename(&name, &layout::spare(number))?;
            self.add(number, file, options);
            return Ok(());
        }
        disk.close(file);
        disk.unlink(&name)
    }

    /// Begins to make a spare where there are too few; what the disk must do for it.
    pub fn maintain(&mut self, disk: &mut dyn Disk, options: &Options, now: Duration, wanted: bool) -> Option<Request> {
        if let Some(spare) = &mut self.making {
            let sync = spare.allocated && !spare.busy;
            spare.busy |= sync;
            // A segment that is shorter than its header says has lost something, so its length is on the disk before.
            return sync.then_some(Request::Sync { file: spare.file });
        }
        if self.ready.len() >= options.spares {
            return None;
        }
        let pause = if wanted { options.retry / 20 } else { options.retry };
        if self.failed && self.tried.is_some_and(|tried| now.saturating_sub(tried) < pause) {
            return None;
        }
        self.tried = Some(now);
        let number = self.next;
        let name = layout::spare(number);
        match disk.open(&name, Open::Create { direct: options.is_direct() }) {
            Ok(file) if disk.lock(file, Duration::ZERO).unwrap_or(false) => {
                self.next += 1;
                self.making = Some(Spare { number, file, through: 0, allocated: false, busy: true });
                Some(Request::Allocate { file, length: options.segment_bytes })
            }
            Ok(file) => {
                disk.close(file);
                let _ = disk.unlink(&name);
                self.failed = true;
                None
            }
            // Nothing was promised of it yet: there may be a descriptor for it later.
            Err(error) => {
                (self.failed, self.full) = (true, is_full(&error));
                None
            }
        }
    }

    /// The next piece to be written through, so that later writes change no metadata. Of one whose
    /// blocks could not be set aside, this finds out whether there are any.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn write_through(&mut self, options: &Options) -> io::Result<Option<Request>> {
        let bytes = options.segment_bytes;
        let some = |spare: &&mut Spare| spare.through < bytes && !spare.busy;
        // One that is being made has blocks to come, or its length to be synced.
        let making = self.making.iter_mut().filter(|spare| !spare.allocated);
        let Some(spare) = making.chain(&mut self.ready).find(some) else { return Ok(None) };
        let piece = (bytes - spare.through).min(PIECE_BYTES as u64) as usize;
        let buffer = match self.zeros.take() {
            Some(zeros) => zeros,
            None => AlignedBuffer::zeroed(PIECE_BYTES)?,
        };
        spare.busy = true;
        let last = spare.through + piece as u64 == bytes;
        Ok(Some(Request::Write { file: spare.file, at: spare.through, buffer, length: piece, sync: last }))
    }

    /// Something that was asked for a spare has ended.
    ///
    /// # Errors
    /// The disk fails, other than by being full; or one that was promised to somebody cannot be
    /// written.
    pub fn ended(&mut self, disk: &mut dyn Disk, completion: Completion, options: &Options) -> io::Result<()> {
        let file = completion.request.file();
        let length = match completion.request {
            Request::Write { buffer, length, .. } => {
                self.zeros = Some(buffer);
                Some(length as u64)
            }
            _ => None,
        };
        if let Some(spare) = self.ready.iter_mut().find(|spare| spare.file == file) {
            spare.busy = false;
            completion.result?;
            spare.through += length.unwrap_or(0);
            return Ok(());
        }
        let Some(mut spare) = self.making.take() else { return Ok(()) };
        spare.busy = false;
        match (completion.result, length) {
            (Ok(_), Some(piece)) => {
                spare.through += piece;
                spare.allocated = spare.through == options.segment_bytes;
                self.making = Some(spare);
            }
            (Ok(_), None) if !spare.allocated => {
                spare.allocated = true;
                self.making = Some(spare);
            }
            (Ok(_), None) => {
                self.granted += options.capacity();
                (self.failed, self.full) = (false, false);
                self.ready.push(spare);
            }
            // Without the call, writing it through shows whether there are blocks.
            (Err(error), None) if !spare.allocated && error.kind() == io::ErrorKind::Unsupported => {
                self.making = Some(spare)
            }
            (Err(error), _) if is_full(&error) => {
                disk.close(spare.file);
                disk.unlink(&layout::spare(spare.number))?;
                (self.failed, self.full) = (true, true);
            }
            (Err(error), _) => return Err(error),
        }
        Ok(())
    }

    /// The spare that was written through furthest, under a segment's name.
    ///
    /// # Errors
    /// There is none, or the name could not be changed.
    pub fn take(&mut self, disk: &mut dyn Disk) -> io::Result<Begun> {
        let idle = self.ready.iter().enumerate().filter(|(_, spare)| !spare.busy);
        let best = idle.max_by_key(|(_, spare)| spare.through).map(|(at, _)| at);
        let spare = self.ready.remove(best.ok_or_else(|| io::Error::other("no segment to go on in"))?);
        let number = self.next;
        self.next += 1;
        disk.rename(&layout::spare(spare.number), &layout::segment(number))?;
        Ok(Begun { number, file: spare.file })
    }

    /// Whether [`take`](Self::take) has one.
    pub fn has_idle(&self) -> bool {
        self.ready.iter().any(|spare| !spare.busy)
    }

    /// How many can be promised.
    pub fn ready(&self) -> u64 {
        self.ready.len() as u64
    }

    /// How many files there are.
    pub fn count(&self) -> u64 {
        self.ready() + u64::from(self.making.is_some())
    }

    /// Whether the disk had no room for another.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Bytes for groups in those that became ready since the last call.
    pub fn take_granted(&mut self) -> u64 {
        std::mem::take(&mut self.granted)
    }

    /// When there is something to do that no completion brings.
    pub fn wake(&self, now: Duration, options: &Options) -> Option<Duration> {
        if self.ready.iter().any(|spare| spare.through < options.segment_bytes && !spare.busy) {
            return Some(now);
        }
        let few = self.failed && self.making.is_none() && self.ready.len() < options.spares;
        self.tried.filter(|_| few).map(|tried| tried + options.retry)
    }
}

/// Whether there is no room, for this user or at all.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

/// Of a file that is written through.
const PIECE_BYTES: usize = 1 << 20;
