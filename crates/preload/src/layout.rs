//! What two ends of a connection share: one memfd, a page of words and small
//! rings, then two large rings.
//!
//! ```text
//! page 0     64 … 511   words, one cache line for each writer
//!          1024         small ring, connecting end → accepting end
//!          2560         small ring, the other way
//! page 1 …              large rings, whose memory is there only once a direction has outgrown its small ring
//! behind                deep rings, for what a kernel socket would have buffered: memory comes by pieces, and goes
//! ```
//!
//! Direction 0 goes from the connecting end (end 0) to the accepting end (end 1). The peer may
//! write anything anywhere at any time: words are atomics, bytes are copied by racing kernels, and
//! what was read is checked where it is used.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::word::Word;

/// What the peer wrote into the shared memory makes no sense.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Corrupt;

/// What moves words and bytes between hosts; `rim` knows what it is.
#[derive(Debug)]
pub(crate) struct Device(());

/// A mapping of a connection's shared memory. Ended by [`SharedMemory::unmap`] alone.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct SharedMemory {
    base: NonNull<u8>,
    /// What keeps it true where the other end is on another host; the words
    /// are this end's own then.
    device: Option<NonNull<Device>>,
}

// SAFETY: [preload-shared] only atomics and racing copies reach the memory.
unsafe impl Send for SharedMemory {}

impl SharedMemory {
    /// New memory and the descriptor to pass on. The size is sealed, the first page is there.
    pub(crate) fn create() -> Result<(Self, OwnedFd), Errno> {
        // Where files may not be so large, the system would send a signal.
        if rustix::process::getrlimit(rustix::process::Resource::Fsize).current.is_some_and(|most| most < BYTES as u64)
        {
            return Err(Errno::FBIG);
        }
        let fd = rustix::fs::memfd_create("overside-socket", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, BYTES as u64)?;
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, PAGE as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let shared = Self::mapped(&fd)?;
        Ok((shared, fd))
    }

    /// A peer's memory, when it is what it must be: of this size, never to
    /// shrink, its first page there.
    pub(crate) fn passed(fd: &OwnedFd) -> Result<Self, Errno> {
        let wanted = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let stat = rustix::fs::fstat(fd)?;
        let there = (stat.st_blocks as u64).wrapping_mul(512) >= PAGE as u64;
        if !rustix::fs::fcntl_get_seals(fd)?.contains(wanted) || stat.st_size != BYTES as i64 || !there {
            return Err(Errno::PERM);
        }
        Self::mapped(fd)
    }

    fn mapped(fd: impl AsFd) -> Result<Self, Errno> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: [preload-shared] a new mapping at an address of the system's choice.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), BYTES, prot, flags, fd, 0) }?;
        NonNull::new(base.cast()).map(|base| Self { base, device: None }).ok_or(Errno::NOMEM)
    }

    /// Ends the mapping.
    ///
    /// # Safety
    /// No copy of it is used any more, on any thread.
    pub(crate) unsafe fn unmap(self) {
        // SAFETY: [preload-shared] the caller's promise.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), BYTES) };
    }

    /// Words of this end's own, zeroed, and what brings the other's in. They never come into the
    /// rings a second time: both ends would have to write one word.
    pub(crate) fn distant(base: NonNull<u8>, device: NonNull<Device>) -> Self {
        let shared = Self { base, device: Some(device) };
        shared.agreement().store(NEVER_AGAIN, Ordering::Relaxed);
        shared
    }

    /// For `rim`.
    #[inline]
    pub(crate) fn device(&self) -> Option<NonNull<Device>> {
        self.device
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes that the sender has written, ever.
    #[inline]
    pub(crate) fn head(&self, direction: usize) -> &Word {
        self.word(direction, HEAD)
    }

    /// One more than the bytes that went through the kernel before the first of the ring; 0
    /// before the sender has started.
    #[inline]
    pub(crate) fn start(&self, direction: usize) -> &Word {
        self.word(direction, START)
    }

    /// In which ring bytes lie, as [`Home`] packs it.
    #[inline]
    pub(crate) fn home(&self, direction: usize) -> &Word {
        self.word(direction, HOME)
    }

    /// One more than the position at which the sender has left the small ring;
    /// 0 as long as it has not.
    #[inline]
    pub(crate) fn small_until(&self, direction: usize) -> &Word {
        self.word(direction, SMALL_UNTIL)
    }

    /// Where bytes lie now. Read behind the sender's position, it holds for all bytes before that.
    #[inline]
    pub(crate) fn home_now(&self, direction: usize) -> Home {
        let word = self.home(direction).load(Ordering::Acquire);
        Home::unpack(word, self.small_until(direction).load(Ordering::Acquire))
    }

    /// Bytes that the receiver has taken, ever. With [`SWITCHED`], the border: what lies before it
    /// is read from the ring, what comes behind it travels through the kernel.
    #[inline]
    pub(crate) fn tail(&self, direction: usize) -> &Word {
        self.word(direction, TAIL)
    }

    /// Whether this end sleeps and for what, and how many wake bytes were issued for it.
    #[inline]
    pub(crate) fn wake_word(&self, end: usize) -> &Word {
        self.word(end, WAKE_BYTE)
    }

    /// 1 once this end has mapped the memory and expects the ring.
    #[inline]
    pub(crate) fn present(&self, end: usize) -> &Word {
        self.word(end, PRESENT)
    }

    /// The processor on which this end was last seen waiting, plus 1.
    #[inline]
    pub(crate) fn processor(&self, end: usize) -> &Word {
        self.word(end, PROCESSOR)
    }

    /// 1 when this end was closed with bytes unread, which the other is to learn as a reset.
    #[inline]
    pub(crate) fn reset(&self, end: usize) -> &Word {
        self.word(end, RESET)
    }

    /// 1 once this end is closed: it wakes nobody any more.
    #[inline]
    pub(crate) fn gone(&self, end: usize) -> &Word {
        self.word(end, GONE)
    }

    /// 1 once this end has switched the direction in which it receives. The tail word says so for
    /// good; this lies beside words that hardly ever change, where a sender looks at every message.
    /// [`LEFT_TO_ANOTHER`] where a program reads the socket that has no ring.
    #[inline]
    pub(crate) fn left(&self, end: usize) -> &Word {
        self.word(end, LEFT)
    }

    /// 1 as long as this end can signal the other's eventfd.
    #[inline]
    pub(crate) fn eventfds(&self, end: usize) -> &Word {
        self.word(end, EVENTFDS)
    }

    /// Who sends the bytes between border and head of a direction again: 0 nobody;
    /// `resend` has what else it says.
    #[inline]
    pub(crate) fn pusher(&self, direction: usize) -> &Word {
        self.word(direction, PUSHER)
    }

    /// One more than the position up to which they have been sent again; 0
    /// before the first of them.
    #[inline]
    pub(crate) fn pushed(&self, direction: usize) -> &Word {
        self.word(direction, PUSHED)
    }

    /// Wake bytes that this end has put into the kernel's stream, of those that are counted.
    #[inline]
    pub(crate) fn given(&self, end: usize) -> &Word {
        self.word(end, GIVEN)
    }

    /// Where this end's socket is to be found: the process, one more than a descriptor there, and
    /// the socket's own number.
    #[inline]
    pub(crate) fn process(&self, end: usize) -> &Word {
        self.word(end, PROCESS)
    }

    #[inline]
    pub(crate) fn descriptor(&self, end: usize) -> &Word {
        self.word(end, DESCRIPTOR)
    }

    #[inline]
    pub(crate) fn cookie(&self, end: usize) -> &Word {
        self.word(end, COOKIE)
    }

    /// How far the ends are with coming into the rings again; see `again`.
    #[inline]
    pub(crate) fn agreement(&self) -> &Word {
        self.word(0, AGREEMENT)
    }

    /// Between hosts: where the next frame will begin, the number of the peer's words that were
    /// taken in, and whether something is to be done at once.
    pub(crate) fn next_frame(&self) -> &Word {
        self.word(0, NEXT_FRAME)
    }

    pub(crate) fn copies(&self) -> &Word {
        self.word(0, COPIES)
    }

    pub(crate) fn news(&self) -> &Word {
        self.word(0, NEWS)
    }

    /// For the explorer, a bit for each word: those whose accesses are steps, not what is said once
    /// before all else unless the ends meet; and those that an end writes alone.
    #[cfg(test)]
    pub(crate) fn visible_words(attaches: bool) -> u128 {
        let once = [START, PRESENT, HOME, SMALL_UNTIL, AGREEMENT];
        let never = [PROCESSOR, EVENTFDS, PROCESS, DESCRIPTOR, COOKIE];
        let lines = (WORDS_AT..SECOND + WORDS_AT).step_by(8);
        let seen = lines.filter(|line| !never.contains(line) && (attaches || !once.contains(line)));
        seen.fold(0, |bits, line| {
            bits | 1 << (line / 8) | if line + SECOND < WORDS_UNTIL { 1 << ((line + SECOND) / 8) } else { 0 }
        })
    }

    #[cfg(test)]
    pub(crate) fn words_of(end: usize) -> u128 {
        [HEAD, START, GIVEN, LEFT, GONE, PRESENT, HOME, SMALL_UNTIL]
            .iter()
            .fold(0, |bits, line| bits | 1 << ((line + end * SECOND) / 8))
    }

    #[inline]
    fn word(&self, which: usize, line: usize) -> &Word {
        let at = line + (which & 1) * SECOND;
        // SAFETY: [preload-shared] an aligned word of the first page, mapped as long as anybody uses this.
        unsafe { &*self.base.as_ptr().add(at).cast::<Word>() }
    }

    /// Where the byte at `position` of a direction lies, and how many follow it there in one run.
    #[inline]
    pub(crate) fn place(&self, direction: usize, position: u64, home: Home) -> (*mut u8, u64) {
        let direction = (direction & 1) as u64;
        let (ring, until) = home.at(position);
        let (first, len) = match ring {
            Ring::Small => (SMALL_AT + direction * SMALL, SMALL),
            Ring::Large => (PAGE as u64 + direction * LARGE, LARGE),
            Ring::Deep => (DEEP_AT + direction * DEEP, DEEP),
        };
        let at = position % len;
        // SAFETY: [preload-shared] within the ring by the remainder, and the rings lie within the mapping.
        (unsafe { self.base.as_ptr().add((first + at) as usize) }, until.min(len - at))
    }

    /// Has the large ring's memory allocated; false when there is none left.
    pub(crate) fn populate(&self, direction: usize) -> bool {
        self.advise(PAGE as u64 + (direction & 1) as u64 * LARGE, LARGE, Advice::LinuxPopulateWrite)
    }

    /// The same for one piece of the deep ring.
    pub(crate) fn populate_piece(&self, direction: usize, piece: u64) -> bool {
        let at = DEEP_AT + (direction & 1) as u64 * DEEP + piece % PIECES * PIECE;
        self.advise(at, PIECE, Advice::LinuxPopulateWrite)
    }

    /// Gives the deep ring's memory back to the system. Nothing that anybody will read lies there.
    pub(crate) fn empty_deep(&self, direction: usize) {
        let _ = self.advise(DEEP_AT + (direction & 1) as u64 * DEEP, DEEP, Advice::LinuxRemove);
    }

    fn advise(&self, at: u64, len: u64, advice: Advice) -> bool {
        // SAFETY: [preload-shared] within the mapping.
        let at = unsafe { self.base.as_ptr().add(at as usize) };
        // SAFETY: [preload-shared] advice on our own mapping, which racing copies alone reach.
        unsafe { rustix::mm::madvise(at.cast(), len as usize, advice) }.is_ok()
    }
}

/// One of the three rings of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Ring {
    Small,
    Large,
    Deep,
}

impl Ring {
    fn of(bits: u64) -> Self {
        match bits & 3 {
            0 => Self::Small,
            1 => Self::Large,
            _ => Self::Deep,
        }
    }
}

/// In which ring a byte lies: the first of all in the small one, of the others those before `from`
/// in the one, those behind it in the other. The sender moves to another ring only when all bytes
/// before `from` are taken; it leaves the small one for good, at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Home {
    pub(crate) before: Ring,
    pub(crate) now: Ring,
    pub(crate) from: u64,
    pub(crate) small_until: u64,
}

impl Home {
    pub(crate) const FIRST: Self = Self { before: Ring::Small, now: Ring::Small, from: 0, small_until: u64::MAX };

    /// The ring of a position, and how many bytes from there on lie in it at most.
    #[inline]
    fn at(self, position: u64) -> (Ring, u64) {
        if position < self.small_until {
            (Ring::Small, self.small_until - position)
        } else if position >= self.from {
            (self.now, u64::MAX)
        } else {
            (self.before, self.from - position)
        }
    }

    #[inline]
    fn unpack(word: u64, small_until: u64) -> Self {
        let small_until = small_until.checked_sub(1).unwrap_or(u64::MAX);
        Self { before: Ring::of(word >> 2), now: Ring::of(word), from: word >> 4, small_until }
    }

    #[inline]
    pub(crate) fn pack(self) -> u64 {
        self.from << 4 | (self.before as u64) << 2 | self.now as u64
    }
}

/// Of the word that says that a receiver has left: what is not in the
/// kernel's stream will be missed.
pub(crate) const LEFT_TO_ANOTHER: u64 = 2;
/// Of the word about coming into the rings again: that is over for good.
pub(crate) const NEVER_AGAIN: u64 = 32;
/// Bit of the tail word: the position beside it is the border, from which on bytes travel through
/// the kernel. Either end sets it, once; it is cleared only where both have come to rest (`again`).
pub(crate) const SWITCHED: u64 = 1 << 63;

pub(crate) const PAGE: usize = 4096;
pub(crate) const SMALL: u64 = 1536;
pub(crate) const LARGE: u64 = 128 << 10;
/// As much as a TCP socket of the kernel buffers where nobody reads, its own limits unchanged.
pub(crate) const DEEP: u64 = 4 << 20;
/// What of it becomes memory at once.
pub(crate) const PIECE: u64 = 128 << 10;
pub(crate) const PIECES: u64 = DEEP / PIECE;
/// Bytes that can lie unread in the rings of a direction, whatever the peer says.
pub(crate) const UNREAD_MAX: u64 = SMALL + LARGE + DEEP;
pub(crate) const BYTES: usize = (DEEP_AT + 2 * DEEP) as usize;
const SMALL_AT: u64 = 1024;
const DEEP_AT: u64 = PAGE as u64 + 2 * LARGE;

/// Lines of direction 0 or end 0; those of 1 lie `SECOND` behind.
const HEAD: usize = 64;
const START: usize = 72;
const HOME: usize = 80;
const SMALL_UNTIL: usize = 88;
const TAIL: usize = 128;
const WAKE_BYTE: usize = 192;
const PRESENT: usize = 256;
const PROCESSOR: usize = 264;
const RESET: usize = 272;
const GONE: usize = 280;
const EVENTFDS: usize = 288;
const LEFT: usize = 296;
const PUSHER: usize = 304;
const PUSHED: usize = 312;
const AGREEMENT: usize = 320;
const PROCESS: usize = 328;
const DESCRIPTOR: usize = 336;
const COOKIE: usize = 344;
const GIVEN: usize = 352;
const NEXT_FRAME: usize = 384;
const COPIES: usize = 392;
const NEWS: usize = 400;
const SECOND: usize = 512;
/// Where words lie.
#[cfg(test)]
pub(crate) const WORDS_AT: usize = 64;
#[cfg(test)]
pub(crate) const WORDS_UNTIL: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_and_rings_do_not_overlap() {
        assert!(NEWS + 8 + SECOND <= SMALL_AT as usize && (SMALL_AT + 2 * SMALL) as usize <= PAGE);
        let (shared, _) = SharedMemory::create().unwrap();
        let rings = [(Ring::Small, SMALL_AT, SMALL), (Ring::Large, PAGE as u64, LARGE), (Ring::Deep, DEEP_AT, DEEP)];
        for direction in 0..2u64 {
            for (before, now) in rings.iter().flat_map(|before| rings.iter().map(move |now| (before, now))) {
                for from in [0, 1, 1000, LARGE + 7] {
                    let home = Home { before: before.0, now: now.0, from, small_until: from / 2 };
                    assert_eq!(Home::unpack(home.pack(), from / 2 + 1), home);
                    let mut position = 0;
                    while position < DEEP + LARGE {
                        let (at, run) = shared.place(direction as usize, position, home);
                        let at = at as u64 - shared.base.as_ptr() as u64;
                        let small = &rings[0];
                        let (_, first, len) = if position < from / 2 {
                            small
                        } else if position < from {
                            before
                        } else {
                            now
                        };
                        let first = first + direction * len;
                        assert!(run > 0 && at >= first && at + run <= first + len && at + run <= BYTES as u64);
                        assert!(position >= from || position + run <= from);
                        position += run;
                    }
                }
            }
        }
        // SAFETY: [preload-shared] not used afterwards.
        unsafe { shared.unmap() };
    }

    #[test]
    fn only_sealed_memory_of_the_right_size_is_mapped() {
        let fd = rustix::fs::memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, BYTES as u64).unwrap();
        assert!(SharedMemory::passed(&fd).is_err(), "it may still shrink");
        let (_, fd) = SharedMemory::create().unwrap();
        assert!(SharedMemory::passed(&fd).is_ok());
    }
}
