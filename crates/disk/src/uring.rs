//! Requests carried out by io_uring, without a thread and without waiting.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, types};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::folder::{File, Folder};
use crate::plain::{carry_out, whole_blocks};
use crate::{Completion, Disk, Entry, FileId, IoPath, Open, Request};

/// A folder whose requests the kernel carries out while this process does other things.
pub struct Uring {
    folder: Folder,
    // Dropped by hand, after the kernel has let go of what is under way.
    ring: ManuallyDrop<IoUring>,
    /// What the kernel has, by the number that its completion carries. Never freed while it is
    /// there.
    under_way: ManuallyDrop<Vec<Option<InFlight>>>,
    free: Vec<usize>,
    /// What waits for a place in the ring.
    pushed: VecDeque<InFlight>,
    /// What ended without the kernel.
    refused: Vec<Completion>,
    /// Entries were put into the ring that the kernel has not been told of.
    untold: bool,
}

struct InFlight {
    token: u64,
    request: Request,
    /// Keeps the descriptor open, and with it the file's lock.
    file: File,
    /// Bytes of a read or write that were transferred by now.
    moved: usize,
    /// It was carried out without the ring, which only says so.
    result: Option<io::Result<u64>>,
}

impl Uring {
    /// The folder at `path`, made if there is none.
    ///
    /// # Errors
    /// Kind `Unsupported` where the kernel has no io_uring for this process; else `path` is no
    /// folder of this user's alone.
    pub fn open(path: &Path) -> io::Result<Uring> {
        let ring = ring()?;
        Ok(Uring::over(Folder::open(path)?, ring))
    }

    fn over(folder: Folder, ring: IoUring) -> Uring {
        let mut under_way = Vec::new();
        under_way.resize_with(ENTRIES as usize, || None);
        Uring {
            folder,
            ring: ManuallyDrop::new(ring),
            under_way: ManuallyDrop::new(under_way),
            free: (0..ENTRIES as usize).rev().collect(),
            pushed: VecDeque::new(),
            refused: Vec::new(),
            untold: false,
        }
    }

    /// Puts into the ring what there is room for. There are as many places as entries, so neither
    /// of the ring's queues overflows.
    fn fill(&mut self) {
        while let (Some(place), false) = (self.free.last().copied(), self.pushed.is_empty()) {
            let Some(entry) = self.pushed.pop_front() else { return };
            self.free.pop();
            let slot = self.under_way[place].insert(entry);
            slot.copy_at_once();
            let described = slot.described(place as u64);
            // SAFETY: [disk-under-way] buffer and descriptor stay in `under_way` until this entry's completion was taken.
            let pushed = unsafe { self.ring.submission().push(&described) };
            if pushed.is_err() {
                // The kernel has not taken what was pushed before; it will at the next submission.
                let entry = self.under_way[place].take();
                entry.into_iter().for_each(|entry| self.pushed.push_front(entry));
                self.free.push(place);
                return;
            }
            self.untold = true;
        }
    }

    /// What becomes of a request that the kernel has ended with `result`: none if there is more of
    /// it to do.
    fn ended(&mut self, place: usize, result: i32) -> Option<Completion> {
        let mut entry = self.under_way.get_mut(place)?.take()?;
        self.free.push(place);
        match entry.after(result) {
            Some(result) => Some(Completion { token: entry.token, request: entry.request, result }),
            None => {
                self.pushed.push_front(entry);
                None
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.free.len() == ENTRIES as usize && self.pushed.is_empty()
    }
}

impl InFlight {
    /// A write that only copies into the page cache. The kernel would hand it to a thread of its
    /// own, and the wake-up of that takes longer than the copy.
    fn copy_at_once(&mut self) {
        let copies = matches!(&self.request, Request::Write { sync: false, length, .. } if *length <= COPIED_BYTES_MAX);
        if copies && !self.file.direct && self.result.is_none() && self.moved == 0 {
            self.result = Some(carry_out(&self.file, &mut self.request));
        }
    }

    fn described(&mut self, place: u64) -> io_uring::squeue::Entry {
        let fd = types::Fd(self.file.fd.as_raw_fd());
        let moved = self.moved;
        if self.result.is_some() {
            return opcode::Nop::new().build().user_data(place);
        }
        let entry = match &mut self.request {
            Request::Read { at, buffer, .. } => {
                let rest = &mut buffer[moved..];
                let length = rest.len().min(TRANSFER_BYTES_MAX) as u32;
                opcode::Read::new(fd, rest.as_mut_ptr(), length).offset(*at + moved as u64).build()
            }
            Request::Write { at, buffer, length, sync, .. } => {
                let rest = &buffer[moved..*length];
                let length = rest.len().min(TRANSFER_BYTES_MAX) as u32;
                let flags = if *sync { RWF_DSYNC } else { 0 };
                opcode::Write::new(fd, rest.as_ptr(), length).offset(*at + moved as u64).rw_flags(flags).build()
            }
            // A folder's names are no data to fdatasync.
            Request::Sync { .. } if self.file.folder => opcode::Fsync::new(fd).build(),
            Request::Sync { .. } => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            Request::Allocate { length, .. } => opcode::Fallocate::new(fd, *length).build(),
        };
        entry.user_data(place)
    }

    /// The request's result after the kernel said `result`; none if it goes on.
    fn after(&mut self, result: i32) -> Option<io::Result<u64>> {
        if let Some(result) = self.result.take() {
            return Some(result);
        }
        if result < 0 {
            let errno = Errno::from_raw_os_error(-result);
            // None says anything about the file. What a thread has asked for is cancelled when the thread ends.
            let again = matches!(errno, Errno::INTR | Errno::AGAIN | Errno::CANCELED);
            return (!again).then(|| Err(errno.into()));
        }
        let bytes = result as usize;
        let wanted = match &self.request {
            Request::Read { buffer, .. } => buffer.len(),
            Request::Write { length, .. } => *length,
            Request::Sync { .. } | Request::Allocate { .. } => return Some(Ok(0)),
        };
        let writes = matches!(self.request, Request::Write { .. });
        let moved = self.moved + bytes;
        // A read that is short of a block has met the file's end.
        let ends = moved >= wanted || (!writes && (bytes == 0 || !moved.is_multiple_of(crate::BLOCK_BYTES)));
        if ends {
            return Some(Ok(moved as u64));
        }
        let whole = whole_blocks(moved, wanted);
        if whole == self.moved {
            return Some(Err(io::ErrorKind::WriteZero.into()));
        }
        self.moved = whole;
        None
    }
}

impl Disk for Uring {
    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn way(&self) -> IoPath {
        IoPath { uring: true, direct: self.folder.direct() }
    }

    fn list(&mut self, folder: &str) -> io::Result<Vec<Entry>> {
        self.folder.list(folder)
    }

    fn create_folder(&mut self, name: &str) -> io::Result<()> {
        self.folder.create_folder(name)
    }

    fn open(&mut self, name: &str, how: Open) -> io::Result<FileId> {
        self.folder.open_file(name, how)
    }

    fn close(&mut self, file: FileId) {
        self.folder.close(file);
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.folder.rename(from, to)
    }

    fn unlink(&mut self, name: &str) -> io::Result<()> {
        self.folder.unlink(name)
    }

    fn length(&mut self, file: FileId) -> io::Result<u64> {
        self.folder.length(file)
    }

    fn lock(&mut self, file: FileId, wait: Duration) -> io::Result<bool> {
        self.folder.lock(file, wait)
    }

    fn space(&mut self) -> io::Result<u64> {
        self.folder.space()
    }

    fn push(&mut self, token: u64, request: Request) {
        match self.folder.file(request.file()) {
            Ok(file) => self.pushed.push_back(InFlight { token, request, file, moved: 0, result: None }),
            Err(error) => self.refused.push(Completion { token, request, result: Err(error) }),
        }
    }

    fn submit(&mut self) -> io::Result<()> {
        self.fill();
        while self.untold {
            match self.ring.submit() {
                Ok(_) => self.untold = !self.ring.submission().is_empty(),
                // The kernel has no memory or no room for completions at the moment: after they were polled.
                Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::AGAIN | Errno::BUSY)) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        done.append(&mut self.refused);
        loop {
            let Some((place, result)) = self.ring.completion().next().map(|ended| (ended.user_data(), ended.result()))
            else {
                break;
            };
            done.extend(self.ended(place as usize, result));
        }
        if self.pushed.is_empty() && !self.untold { Ok(()) } else { self.submit() }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: [disk-under-way] the ring's descriptor is open as long as the ring, which is borrowed.
        Some(unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) })
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        if !self.refused.is_empty() || self.is_idle() {
            return Ok(());
        }
        let timeout = rustix::fs::Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // SAFETY: [disk-under-way] as in `fd`.
        let fd = unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) };
        match rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn another(&self) -> io::Result<Box<dyn Disk>> {
        Ok(Box::new(Uring::over(self.folder.another(), ring()?)))
    }
}

impl Drop for Uring {
    /// Waits for what the kernel has. A disk that does not answer keeps its buffers for good.
    fn drop(&mut self) {
        self.pushed.clear();
        let mut done = Vec::new();
        for _ in 0..DROP_WAITS {
            if self.is_idle() {
                break;
            }
            let polled = self.poll(&mut done).and_then(|()| self.wait(DROP_WAIT));
            done.clear();
            if polled.is_err() {
                break;
            }
        }
        if self.is_idle() {
            // SAFETY: [disk-under-way] nothing is under way; neither is used again.
            unsafe {
                ManuallyDrop::drop(&mut self.ring);
                ManuallyDrop::drop(&mut self.under_way);
            }
        }
    }
}

impl fmt::Debug for Uring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uring").field("path", &self.folder.path()).field("free", &self.free.len()).finish()
    }
}

/// A ring that has every operation.
fn ring() -> io::Result<IoUring> {
    let unsupported = |error: io::Error| io::Error::new(io::ErrorKind::Unsupported, error);
    let ring = IoUring::new(ENTRIES).map_err(unsupported)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(unsupported)?;
    let wanted = [opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE, opcode::Fallocate::CODE];
    if wanted.into_iter().all(|code| probe.is_supported(code)) {
        Ok(ring)
    } else {
        Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel's io_uring lacks an operation"))
    }
}

/// Requests that the kernel has at a time.
const ENTRIES: u32 = 64;
/// Of a write that is copied at once: a longer one is worth a thread.
const COPIED_BYTES_MAX: usize = 256 << 10;
/// Of one system call; longer transfers are cut.
const TRANSFER_BYTES_MAX: usize = 1 << 30;
const RWF_DSYNC: i32 = rustix::io::ReadWriteFlags::DSYNC.bits() as i32;
const DROP_WAITS: u32 = 100;
const DROP_WAIT: Duration = Duration::from_millis(100);
