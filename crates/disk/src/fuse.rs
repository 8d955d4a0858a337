//! The kernel's way of FUSE by io_uring (Linux 6.14, where `enable_uring` is Y): a queue for each
//! processor, whose entries have memory for a request and its answer.
//!
//! What messages mean is not known here. Source: `linux/fuse.h`.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::ublk::submit_all;

/// The queues of one mounted file system.
pub struct FuseRing {
    file: OwnedFd,
    // Dropped by hand, after the kernel has let go of all entries.
    ring: ManuallyDrop<IoUring<Entry128, cqueue::Entry>>,
    entries: ManuallyDrop<Vec<FuseEntry>>,
    /// Places that the kernel has.
    held: usize,
}

/// Memory for one request at a time, and whose it is.
struct FuseEntry {
    queue: u16,
    /// Its request is this side's; else the kernel may write to the memory.
    ours: bool,
    head: Box<[u8]>,
    payload: Box<[u8]>,
    /// Where both are and how long, as the kernel is told.
    parts: Box<[usize; 4]>,
}

impl FuseRing {
    /// Queues for a mounted file system, with entries for `payload_bytes`: as many as `entries_max`
    /// in all, but some for each processor.
    ///
    /// # Errors
    /// The kernel has no io_uring for this process.
    pub fn new(fuse: BorrowedFd<'_>, entries_max: usize, payload_bytes: usize) -> io::Result<FuseRing> {
        let queues = processors()?;
        let depth = (entries_max / queues).max(DEPTH_MIN);
        let ring_entries = (queues * depth).next_power_of_two() as u32;
        // The kernel need not interrupt this thread for a request: it looks before it sleeps.
        let ring = IoUring::builder().setup_coop_taskrun().build(ring_entries)?;
        let entries =
            (0..queues * depth).map(|number| FuseEntry::new((number % queues) as u16, payload_bytes)).collect();
        Ok(FuseRing {
            file: fuse.try_clone_to_owned()?,
            ring: ManuallyDrop::new(ring),
            entries: ManuallyDrop::new(entries),
            held: 0,
        })
    }

    /// Gives all entries to the kernel, once the file system has agreed to it. From the thread that
    /// does all that follows.
    ///
    /// # Errors
    /// The kernel takes nothing.
    pub fn register(&mut self) -> io::Result<()> {
        (0..self.entries.len()).try_for_each(|entry| self.give(entry, REGISTER, 0))?;
        self.submit()
    }

    /// The kernel has an entry from now on.
    fn give(&mut self, number: usize, code: u32, commit: u64) -> io::Result<()> {
        let entry = self.entries.get_mut(number).filter(|entry| entry.ours).ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = [0; 80];
        command[8..16].copy_from_slice(&commit.to_ne_bytes());
        command[16..18].copy_from_slice(&entry.queue.to_ne_bytes());
        let parts = entry.parts.as_ptr().expose_provenance() as u64;
        let sqe = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), code).cmd(command).addr(Some(parts));
        let mut sqe = sqe.build().user_data(number as u64);
        // SAFETY: [disk-under-way] a submission is the kernel's structure, whose seventh word is a length that the builder cannot set: of
        // the parts that the address names.
        unsafe { (&raw mut sqe).cast::<u32>().add(6).write(2) };
        // SAFETY: [disk-under-way] the entry is not touched until its completion was taken.
        unsafe { self.ring.submission().push(&sqe) }.map_err(|_| io::ErrorKind::ResourceBusy)?;
        entry.ours = false;
        self.held += 1;
        Ok(())
    }

    /// Tells the kernel of what was committed.
    ///
    /// # Errors
    /// It takes nothing.
    pub fn submit(&mut self) -> io::Result<()> {
        submit_all(&mut self.ring)
    }

    /// The next entry that has a request, or ends. Never waits.
    pub fn event(&mut self) -> Option<(usize, Result<(), Errno>)> {
        let ended = self.ring.completion().next()?;
        let (number, result) = (ended.user_data() as usize, ended.result());
        let entry = self.entries.get_mut(number)?;
        entry.ours = true;
        self.held = self.held.saturating_sub(1);
        Some((number, if result < 0 { Err(Errno::from_raw_os_error(-result)) } else { Ok(()) }))
    }

    /// The request at an entry: header, arguments, and what comes behind them.
    pub fn request(&self, entry: usize) -> Option<(&[u8], &[u8], &[u8])> {
        let entry = self.entries.get(entry).filter(|entry| entry.ours)?;
        let length = u32::from_ne_bytes(*entry.head[PAYLOAD_LENGTH_AT..].first_chunk()?) as usize;
        Some((&entry.head[..ARGUMENTS_AT], &entry.head[ARGUMENTS_AT..LENGTHS_AT], entry.payload.get(..length)?))
    }

    /// Answers the request at an entry by a header and what comes behind it, in parts. Fetches the
    /// next one.
    ///
    /// # Errors
    /// There is no request, or the answer is too long.
    pub fn commit(&mut self, number: usize, unique: u64, header: &[u8], parts: &[&[u8]]) -> io::Result<()> {
        let entry = self.entries.get_mut(number).filter(|entry| entry.ours).ok_or(io::ErrorKind::InvalidInput)?;
        entry.head.get_mut(..header.len()).ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(header);
        let mut length = 0;
        for part in parts {
            let into = entry.payload.get_mut(length..length + part.len()).ok_or(io::ErrorKind::InvalidInput)?;
            into.copy_from_slice(part);
            length += part.len();
        }
        entry.head[PAYLOAD_LENGTH_AT..][..4].copy_from_slice(&(length as u32).to_ne_bytes());
        self.give(number, COMMIT_AND_FETCH, unique)
    }
}

impl FuseEntry {
    fn new(queue: u16, payload_bytes: usize) -> FuseEntry {
        let (mut head, mut payload) =
            (vec![0; HEAD_BYTES].into_boxed_slice(), vec![0; payload_bytes].into_boxed_slice());
        let address = |part: &mut [u8]| part.as_mut_ptr().expose_provenance();
        let parts = Box::new([address(&mut head), HEAD_BYTES, address(&mut payload), payload_bytes]);
        FuseEntry { queue, ours: true, head, payload, parts }
    }
}

impl AsFd for FuseRing {
    /// Readable when something has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: [disk-under-way] the ring's descriptor is open as long as the ring, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Drop for FuseRing {
    /// Waits for the entries, which come when the file system is unmounted. What the
    /// kernel keeps is never freed.
    fn drop(&mut self) {
        for _ in 0..DROP_WAITS {
            while self.event().is_some() {}
            if self.held == 0 {
                break;
            }
            let _ = rustix::event::poll(&mut [PollFd::new(&*self, PollFlags::IN)], Some(&DROP_WAIT));
        }
        if self.held == 0 {
            // SAFETY: [disk-under-way] the kernel has no entry; neither is used again.
            unsafe {
                ManuallyDrop::drop(&mut self.ring);
                ManuallyDrop::drop(&mut self.entries);
            }
        }
    }
}

impl fmt::Debug for FuseRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FuseRing").field("entries", &self.entries.len()).field("held", &self.held).finish()
    }
}

/// How many processors there may be: the kernel wants a queue for each.
fn processors() -> io::Result<usize> {
    let listed = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first).map(|more| more + 1)
    };
    let counts: Option<Vec<usize>> = listed.trim().split(',').map(count).collect();
    let all = counts.map(|counts| counts.into_iter().sum()).filter(|all| (1..=4096).contains(all));
    all.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// An entry's head: a header, arguments, and how long the rest is.
const HEAD_BYTES: usize = 288;
const ARGUMENTS_AT: usize = 128;
const LENGTHS_AT: usize = 256;
const PAYLOAD_LENGTH_AT: usize = 272;
/// Of a processor's queue.
const DEPTH_MIN: usize = 4;
const DROP_WAITS: u32 = 100;
const DROP_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
