//! Control memories: our own, which we alone write, and the peer's, which we only read.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use overside_memory::{Foreign, MemoryError, Segment, kernels};

use crate::doorbell::{OwnRing, OwnWords, PeerRing, PeerWords, Ring, later};
use crate::ring::{CELL_BYTES, DESCRIPTOR_BYTES, Geometry, INLINE_INSIDE, Word, stamp_of, unstamped};

/// Our side of a connection. The peer has it mapped read-only. Clones are the same memory.
#[derive(Clone, Debug)]
pub(crate) struct OwnControl {
    segment: Arc<Segment>,
    words: NonNull<[AtomicU64]>,
    geometry: Geometry,
}

// SAFETY: [shm-control] only atomics are reached through the pointer.
unsafe impl Send for OwnControl {}
// SAFETY: [shm-control] as above.
unsafe impl Sync for OwnControl {}

impl OwnControl {
    pub(crate) fn new(geometry: Geometry) -> Result<Self, MemoryError> {
        let segment = Arc::new(Segment::shared(geometry.bytes())?);
        let words = NonNull::slice_from_raw_parts(segment.base().cast(), segment.len() / 8);
        Ok(Self { segment, words, geometry })
    }

    /// To be passed to the peer.
    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Whether this side sleeps, or is about to.
    pub(crate) fn is_armed(&self) -> bool {
        self.words()[Word::Armed as usize / 8].load(Ordering::Acquire) != 0
    }

    /// Ends the peer's sleep number `sleep` on our word.
    pub(crate) fn wake(&self, sleep: u64) {
        let [a, b, c, d] = (sleep as u32).to_ne_bytes();
        let rung = u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]);
        // Whoever ends a loan rings too, on any thread. A late one must not undo what a later sleep was ended by.
        let later = |was: u64| {
            let [a, b, c, d, ..] = was.to_ne_bytes();
            later(sleep as u32, u32::from_ne_bytes([a, b, c, d])).then_some(rung)
        };
        let _ = self.words()[Word::Rung as usize / 8].fetch_update(Ordering::SeqCst, Ordering::SeqCst, later);
        // Within the segment: the layout says so.
        let _ = self.segment.wake(Word::Rung as usize);
    }

    /// Ends the peer's sleep as it asked for; `socket` sends the message for it.
    #[inline]
    pub(crate) fn end_sleep(&self, how: Ring, socket: impl FnOnce()) {
        match how {
            Ring::Socket => socket(),
            Ring::Word(sleep) => self.wake(sleep),
        }
    }

    /// Changes any word, for those who play a peer that does so.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn scribble(&self, word: usize, change: impl FnOnce(u64) -> u64) {
        let place = &self.words()[word % self.words().len()];
        place.store(change(place.load(Ordering::Relaxed)), Ordering::Release);
    }

    #[inline]
    fn put(&self, at: usize, words: &[u64]) {
        let place = &self.words()[at / 8..at / 8 + words.len()];
        for (to, from) in place.iter().zip(words) {
            to.store(*from, Ordering::Relaxed);
        }
    }

    /// Writes bytes from a word's first on.
    #[inline]
    fn put_any(&self, at: usize, bytes: &[u8]) {
        let place = &self.words()[at / 8..(at + bytes.len()).div_ceil(8)];
        // SAFETY: [shm-control] within those words; the copy is opaque, as the peer may read them meanwhile.
        unsafe { kernels::copy_racing(place.as_ptr().cast_mut().cast(), bytes.as_ptr(), bytes.len()) };
    }

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: [shm-control] the segment's whole memory, mapped as long as `self` keeps it.
        unsafe { self.words.as_ref() }
    }
}

impl OwnRing for OwnControl {
    #[inline]
    fn put_descriptor(&self, index: u64, words: &[u64; DESCRIPTOR_BYTES / 8]) {
        self.put(self.geometry.descriptor_at(index), words);
    }

    #[inline]
    fn put_cell(&self, index: u64, words: &[u64; CELL_BYTES / 8]) {
        self.put(self.geometry.cell_at(index), words);
    }

    #[inline]
    fn put_bytes(&self, index: u64, bytes: &[u8]) {
        let room = self.geometry.until_wrap(index);
        if bytes.len() <= room {
            self.put_any(self.geometry.cell_at(index), bytes);
        } else {
            let (before, after) = bytes.split_at(room);
            self.put_any(self.geometry.cell_at(index), before);
            self.put_any(self.geometry.cell_at(0), after);
        }
    }

    #[inline]
    fn put_inside(&self, index: u64, bytes: &[u8]) {
        self.put_any(self.geometry.descriptor_at(index) + DESCRIPTOR_BYTES - INLINE_INSIDE, bytes);
    }

    #[inline]
    fn put_head(&self, index: u64, [first, second]: [u64; 2]) {
        let at = self.geometry.descriptor_at(index);
        self.put(at, &[first]);
        self.words()[at / 8 + 1].store(unstamped(second) | self.geometry.stamp(index), Ordering::Release);
    }

    #[inline]
    fn stamp(&self, index: u64) {
        let word = &self.words()[self.geometry.descriptor_at(index) / 8 + 1];
        word.store(unstamped(word.load(Ordering::Relaxed)) | self.geometry.stamp(index), Ordering::Release);
    }

    #[inline]
    fn put_return(&self, index: u64, number: u32) {
        let word = &self.words()[self.geometry.return_at(index) / 8];
        word.store(self.geometry.returned(index, number), Ordering::Release);
    }

    #[inline]
    fn put_stamped(&self, index: u64, words: &[u64; DESCRIPTOR_BYTES / 8]) {
        let at = self.geometry.descriptor_at(index);
        let [first, second, rest @ ..] = words;
        self.put(at + 16, rest);
        self.put(at, &[*first]);
        self.words()[at / 8 + 1].store(unstamped(*second) | self.geometry.stamp(index), Ordering::Release);
    }
}

impl OwnWords for OwnControl {
    #[inline]
    fn store(&self, word: Word, value: u64) {
        self.words()[word as usize / 8].store(value, Ordering::Release);
    }

    #[inline]
    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// The peer's side. It may hold anything at any moment: whoever reads copies first and checks then.
/// A clone keeps it mapped, too.
#[derive(Clone, Debug)]
pub(crate) struct PeerControl {
    memory: Foreign,
    geometry: Geometry,
}

impl PeerControl {
    #[cfg(any(test, fuzzing))]
    pub(crate) fn map(fd: OwnedFd, geometry: Geometry) -> Result<Self, MemoryError> {
        Self::map_keeping(fd, geometry, ())
    }

    /// With what counts the mapping.
    pub(crate) fn map_keeping(
        fd: OwnedFd,
        geometry: Geometry,
        kept: impl Any + Send + Sync,
    ) -> Result<Self, MemoryError> {
        Ok(Self { memory: Foreign::map_keeping(fd, geometry.bytes() as u64, kept)?, geometry })
    }

    /// The number of our sleep that the peer ended last.
    pub(crate) fn rung(&self) -> u32 {
        self.memory.load_half(Word::Rung as u64).unwrap_or(0)
    }

    /// Sleeps until the peer ends a sleep after the one it had ended when `rung` was read, at most
    /// `timeout`; whether it did.
    pub(crate) fn doze(&self, rung: u32, timeout: Duration) -> bool {
        self.memory.doze(Word::Rung as u64, rung, timeout).unwrap_or(true)
    }

    #[inline]
    fn read<const WORDS: usize>(&self, at: usize) -> [u64; WORDS] {
        // In bounds: the memory has exactly the geometry's size. A zeroed descriptor is malformed anyway.
        self.memory.load_words(at as u64).unwrap_or([0; WORDS])
    }
}

impl PeerRing for PeerControl {
    #[inline]
    fn shows(&self, index: u64, stamp: u64) -> bool {
        let word = self.memory.load(self.geometry.descriptor_at(index) as u64 + 8).unwrap_or(0);
        stamp_of(word) == stamp
    }

    #[inline]
    fn descriptor(&self, index: u64) -> [u64; DESCRIPTOR_BYTES / 8] {
        self.read(self.geometry.descriptor_at(index))
    }

    #[inline]
    fn cell(&self, index: u64) -> [u64; CELL_BYTES / 8] {
        self.read(self.geometry.cell_at(index))
    }

    #[inline]
    fn head(&self, index: u64, stamp: u64) -> Option<[u64; 2]> {
        let at = self.geometry.descriptor_at(index) as u64;
        let second = self.memory.load(at + 8).unwrap_or(0);
        (stamp_of(second) == stamp).then(|| [self.memory.load(at).unwrap_or(0), second])
    }

    #[inline]
    fn inside(&self, index: u64, out: &mut [u8]) {
        // In bounds: as `read`.
        let _ = self.memory.read((self.geometry.descriptor_at(index) + DESCRIPTOR_BYTES - INLINE_INSIDE) as u64, out);
    }

    #[inline]
    fn bytes(&self, index: u64, out: &mut [u8]) {
        // In bounds: the memory has exactly the geometry's size, and no payload is longer than the cells.
        let room = self.geometry.until_wrap(index);
        if out.len() <= room {
            let _ = self.memory.read(self.geometry.cell_at(index) as u64, out);
        } else {
            let (before, after) = out.split_at_mut(room);
            let _ = self.memory.read(self.geometry.cell_at(index) as u64, before);
            let _ = self.memory.read(self.geometry.cell_at(0) as u64, after);
        }
    }

    #[inline]
    fn returned(&self, index: u64) -> Option<u32> {
        let word = self.memory.load(self.geometry.return_at(index) as u64).unwrap_or(0);
        (word == self.geometry.returned(index, word as u32)).then_some(word as u32)
    }

    #[inline]
    fn prefetch_descriptor(&self, index: u64) {
        self.memory.prefetch(self.geometry.descriptor_at(index) as u64);
    }

    #[inline]
    fn prefetch_cell(&self, index: u64) {
        self.memory.prefetch(self.geometry.cell_at(index) as u64);
    }
}

impl PeerWords for PeerControl {
    #[inline]
    fn load(&self, word: Word) -> u64 {
        self.memory.load(word as u64).unwrap_or(u64::MAX)
    }
}
