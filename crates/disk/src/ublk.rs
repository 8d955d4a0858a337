//! The kernel's driver of block devices that a program serves (ublk), by the commands that io_uring
//! passes on to it.
//!
//! The driver copies the bytes of requests by system calls (`UBLK_F_USER_COPY`), so a command of a
//! queue carries no address. What messages mean is not known here. Source: `linux/ublk_cmd.h`.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// The driver, and the queue of one device. Whoever fetches its first request must do all that
/// follows, so it stays on one thread.
pub struct Ublk {
    control: OwnedFd,
    // Dropped by hand, after the kernel has let go of `passed`.
    ring: ManuallyDrop<IoUring<Entry128, cqueue::Entry>>,
    /// What the driver was asked last, until it answers. The kernel reads and writes these bytes.
    passed: ManuallyDrop<Option<Vec<u8>>>,
    queue: Option<Queue>,
}

/// What the driver can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UblkControl {
    /// Add a device; passed are its `ublksrv_ctrl_dev_info`, which come back as they are now.
    Add,
    /// Take a device away that is stopped, once nobody has its queue open.
    Delete,
    /// Make the block device. Answered when the kernel has read the partitions from it.
    Start,
    /// Take the block device away. Answered when what was written to it is carried out.
    Stop,
    /// Say how large it is and the like; passed are its `ublk_params`.
    SetParameters,
    /// Read a device's `ublksrv_ctrl_dev_info`.
    Information,
}

/// What has come from the driver.
#[derive(Debug)]
pub enum UblkEvent {
    /// A request, under the number of its place, as `ublksrv_io_desc` describes it.
    Request(u16, [u8; DESCRIPTOR_BYTES]),
    /// Nothing more comes at this place.
    Ended(u16, Errno),
    /// The answer to what the driver was asked, with what was passed.
    Answered(io::Result<Vec<u8>>),
}

/// The requests of a device.
struct Queue {
    file: OwnedFd,
    /// As the kernel describes them, one behind the other.
    descriptors: NonNull<u64>,
    bytes: usize,
    depth: u16,
    /// Places that the driver has.
    fetching: usize,
}

impl Ublk {
    /// The driver of this kernel.
    ///
    /// # Errors
    /// There is none, or it is not for this user.
    pub fn open() -> io::Result<Ublk> {
        let control = rustix::fs::open("/dev/ublk-control", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        // The kernel need not interrupt this thread for a request: it looks before it sleeps.
        let ring = IoUring::builder().setup_coop_taskrun().build(ENTRIES)?;
        Ok(Ublk { control, ring: ManuallyDrop::new(ring), passed: ManuallyDrop::new(None), queue: None })
    }

    /// Asks the driver for something that is answered by an [`UblkEvent`]. `number`: what
    /// [`Start`](UblkControl::Start) needs, the process that serves the device.
    ///
    /// # Errors
    /// It has not answered the last one, or too much is passed.
    pub fn begin(&mut self, what: UblkControl, device: u32, number: u64, mut passed: Vec<u8>) -> io::Result<()> {
        if self.passed.is_some() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let length = u16::try_from(passed.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let address = if length == 0 { 0 } else { passed.as_mut_ptr().expose_provenance() as u64 };
        let mut command = [0; 80];
        command[..4].copy_from_slice(&device.to_ne_bytes());
        // Of no queue.
        command[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
        command[6..8].copy_from_slice(&length.to_ne_bytes());
        command[8..16].copy_from_slice(&address.to_ne_bytes());
        command[16..24].copy_from_slice(&number.to_ne_bytes());
        *self.passed = Some(passed);
        let entry = opcode::UringCmd80::new(types::Fd(self.control.as_raw_fd()), what.code()).cmd(command);
        let pushed = self.push(&entry.build().user_data(CONTROL));
        if pushed.is_err() {
            self.passed.take();
        }
        pushed
    }

    /// Asks the driver and waits for its answer.
    ///
    /// # Errors
    /// As it says; or a queue is open, whose events would be lost.
    pub fn ask(&mut self, what: UblkControl, device: u32, passed: Vec<u8>) -> io::Result<Vec<u8>> {
        if self.queue.is_some() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        self.begin(what, device, 0, passed)?;
        loop {
            if let Some(UblkEvent::Answered(answer)) = self.event() {
                return answer;
            }
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
    }

    /// Opens the queue of a device that was added with this depth, and fetches at each of its
    /// places.
    ///
    /// # Errors
    /// There is no such device, or somebody serves it.
    pub fn open_queue(&mut self, device: u32, depth: u16) -> io::Result<()> {
        if self.queue.is_some() || depth == 0 || depth > DEPTH_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let path = format!("/dev/ublkc{device}");
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let bytes = (usize::from(depth) * DESCRIPTOR_BYTES).next_multiple_of(rustix::param::page_size());
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: [mapping] a new one at an address of the system's choice.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, flags, &file, 0) }?;
        let descriptors = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        self.queue = Some(Queue { file, descriptors, bytes, depth, fetching: 0 });
        (0..depth).try_for_each(|place| self.give_back(FETCH, place, 0))
    }

    /// Closes the queue. What was fetched and not committed fails.
    pub fn close_queue(&mut self) {
        self.queue = None;
    }

    /// Places of the queue that the driver has; the others hold requests, or have ended.
    pub fn fetching(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.fetching)
    }

    /// Ends the request of a place: bytes that were read or written, or a negative number of an
    /// error. Fetches the next one.
    ///
    /// # Errors
    /// There is no such place.
    pub fn commit(&mut self, place: u16, result: i32) -> io::Result<()> {
        self.give_back(COMMIT_AND_FETCH, place, result)
    }

    fn give_back(&mut self, code: u32, place: u16, result: i32) -> io::Result<()> {
        let queue = self.queue.as_mut().filter(|queue| place < queue.depth).ok_or(io::ErrorKind::InvalidInput)?;
        let file = types::Fd(queue.file.as_raw_fd());
        queue.fetching += 1;
        let mut command = [0; 80];
        command[2..4].copy_from_slice(&place.to_ne_bytes());
        command[4..8].copy_from_slice(&result.to_ne_bytes());
        let entry = opcode::UringCmd80::new(file, code).cmd(command).build();
        self.push(&entry.user_data(u64::from(place)))
    }

    fn push(&mut self, entry: &Entry128) -> io::Result<()> {
        // SAFETY: [disk-under-way] a command of a queue has no address; what another one's names stays in `passed`.
        if unsafe { self.ring.submission().push(entry) }.is_err() {
            self.submit()?;
            // SAFETY: [disk-under-way] as above.
            unsafe { self.ring.submission().push(entry) }.map_err(|_| io::ErrorKind::ResourceBusy)?;
        }
        Ok(())
    }

    /// Tells the kernel of what was begun and committed.
    ///
    /// # Errors
    /// It takes nothing.
    pub fn submit(&mut self) -> io::Result<()> {
        submit_all(&mut self.ring)
    }

    /// The next of what has come. Never waits.
    pub fn event(&mut self) -> Option<UblkEvent> {
        let ended = self.ring.completion().next()?;
        let (who, result) = (ended.user_data(), ended.result());
        if who == CONTROL {
            let passed = self.passed.take().unwrap_or_default();
            let failed = || Err(Errno::from_raw_os_error(-result).into());
            return Some(UblkEvent::Answered(if result < 0 { failed() } else { Ok(passed) }));
        }
        let place = who as u16;
        let queue = self.queue.as_mut()?;
        queue.fetching = queue.fetching.saturating_sub(1);
        Some(match result {
            0 => UblkEvent::Request(place, queue.descriptor(place)),
            _ => UblkEvent::Ended(place, Errno::from_raw_os_error(-result)),
        })
    }

    /// Copies the bytes that the write at a place brings.
    ///
    /// # Errors
    /// There is no such write any more.
    pub fn bytes_of(&self, place: u16, mut into: &mut [u8]) -> io::Result<()> {
        let (file, mut at) = self.place(place, into.len())?;
        while !into.is_empty() {
            match rustix::io::pread(file, &mut *into, at) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => (into, at) = (&mut into[bytes..], at + bytes as u64),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Copies bytes to the read at a place.
    ///
    /// # Errors
    /// There is no such read any more.
    pub fn bytes_for(&self, place: u16, mut from: &[u8]) -> io::Result<()> {
        let (file, mut at) = self.place(place, from.len())?;
        while !from.is_empty() {
            match rustix::io::pwrite(file, from, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => (from, at) = (&from[bytes..], at + bytes as u64),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Where a request's bytes lie in the queue's file.
    fn place(&self, place: u16, length: usize) -> io::Result<(BorrowedFd<'_>, u64)> {
        let queue = self.queue.as_ref().filter(|_| length <= 1 << PLACE_BITS).ok_or(io::ErrorKind::InvalidInput)?;
        Ok((queue.file.as_fd(), BYTES_AT + (u64::from(place) << PLACE_BITS)))
    }
}

impl AsFd for Ublk {
    /// Readable when something has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: [disk-under-way] the ring's descriptor is open as long as the ring, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

/// Tells the kernel of all that was put into a ring.
pub(crate) fn submit_all(ring: &mut IoUring<Entry128, cqueue::Entry>) -> io::Result<()> {
    while !ring.submission().is_empty() {
        match ring.submit() {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

impl Drop for Ublk {
    /// What the kernel may still write to is never freed.
    fn drop(&mut self) {
        if self.passed.is_none() {
            // SAFETY: [disk-under-way] the kernel has nothing of this process's memory; neither is used again.
            unsafe {
                ManuallyDrop::drop(&mut self.ring);
                ManuallyDrop::drop(&mut self.passed);
            }
        }
    }
}

impl fmt::Debug for Ublk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ublk").field("asks", &self.passed.is_some()).field("fetching", &self.fetching()).finish()
    }
}

impl Queue {
    fn descriptor(&self, place: u16) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        if place < self.depth {
            for (word, part) in bytes.chunks_exact_mut(8).enumerate() {
                let at = usize::from(place) * (DESCRIPTOR_BYTES / 8) + word;
                // SAFETY: [mapping] within it; places lie one behind the other, aligned to their words.
                let value = unsafe { self.descriptors.add(at).read_volatile() };
                part.copy_from_slice(&value.to_ne_bytes());
            }
        }
        bytes
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: [mapping] nobody has a pointer into it but this.
        let _ = unsafe { rustix::mm::munmap(self.descriptors.as_ptr().cast(), self.bytes) };
    }
}

impl UblkControl {
    /// As ioctls are numbered: that it reads or also writes, 32 bytes, `u`, and its own number.
    fn code(self) -> u32 {
        match self {
            UblkControl::Information => 0x8020_7502,
            UblkControl::Add => 0xc020_7504,
            UblkControl::Delete => 0xc020_7505,
            UblkControl::Start => 0xc020_7506,
            UblkControl::Stop => 0xc020_7507,
            UblkControl::SetParameters => 0xc020_7508,
        }
    }
}

/// Bytes of a request's description.
pub const DESCRIPTOR_BYTES: usize = 24;
/// Places of a queue; and one more entry, for what the driver is asked.
const DEPTH_MAX: u16 = 128;
const ENTRIES: u32 = 256;
const FETCH: u32 = 0xc010_7520;
const COMMIT_AND_FETCH: u32 = 0xc010_7521;
/// Whom a completion is for that is of no place.
const CONTROL: u64 = u64::MAX;
/// Where the bytes of requests lie in the file, and how many places apart they are.
const BYTES_AT: u64 = 0x8000_0000;
const PLACE_BITS: u32 = 25;
