//! An arena whose chunks are segments that a provider can register, so that pages and deltas are
//! sent from where they lie.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use overside_memory::{MemoryError, Reservation, Segment, SegmentId};

use crate::arena::{ARENA_BYTES_MAX, Arena, Exhausted};

/// Learns of segments as an arena grows and shrinks, to register and deregister them.
///
/// It is called under locks of the arena and the tree, so it must not use that tree: it would wait
/// for itself. Nothing unsafe relies on what it does: if it panics, so does the call of the tree
/// that made the arena grow or shrink, and the tree goes on.
pub trait SegmentObserver: Send + Sync + fmt::Debug {
    /// Whether a segment of `bytes` bytes may come at all: asked before one is made, which takes a
    /// while.
    fn has_room(&self, bytes: usize) -> bool {
        let _ = bytes;
        true
    }

    /// A segment came; refusing it makes the tree's write fail as exhausted.
    ///
    /// # Errors
    /// [`Exhausted`] when it cannot be registered.
    fn committed(&self, segment: &Arc<Segment>) -> Result<(), Exhausted>;

    /// A segment is not used by the tree any more. Transmissions of it are over: their pins were.
    fn decommitted(&self, segment: SegmentId);
}

/// Nothing is registered: no provider sends from the tree's segments.
impl SegmentObserver for () {
    fn committed(&self, _: &Arc<Segment>) -> Result<(), Exhausted> {
        Ok(())
    }

    fn decommitted(&self, _: SegmentId) {}
}

/// Chunks are shared segments of one reservation: peers may map them read-only. The first chunk
/// comes in parts, each twice what there is so far, so that a small tree is small and a large one
/// has few segments.
#[derive(Debug)]
pub struct SegmentArena {
    reservation: Reservation,
    /// By chunk, and where in it they begin.
    segments: Mutex<BTreeMap<(usize, usize), Arc<Segment>>>,
    /// The segment's number in each place, for whoever sends from it; 0 while there is none,
    /// [`IN_PARTS`] where there are several.
    numbers: Box<[AtomicU32]>,
    /// Of the chunk that comes in parts the number of the segment in each 64th.
    parts: [AtomicU32; 64],
    bytes_max: usize,
    observer: Arc<dyn SegmentObserver>,
}

impl SegmentArena {
    /// Reserves addresses for `bytes_max` bytes in segments of `segment_bytes` (a power of two, at
    /// least twice the largest value). Memory is taken as the tree grows.
    ///
    /// # Errors
    /// [`MemoryError::Exhausted`] when the address space is not there.
    ///
    /// # Panics
    /// When `segment_bytes` is not a power of two of at least a page.
    pub fn new(
        segment_bytes: usize,
        bytes_max: usize,
        observer: Arc<dyn SegmentObserver>,
    ) -> Result<SegmentArena, MemoryError> {
        assert!(segment_bytes.is_power_of_two(), "segments of {segment_bytes} bytes; take a power of two");
        let chunks = (bytes_max / segment_bytes).max(1);
        // A place is free only once its last segment is forgotten everywhere, which a provider may defer:
        // there are more places than segments, so that nobody waits for that.
        let places = (chunks * 2 + SPARE_PLACES).min(ARENA_BYTES_MAX / segment_bytes).max(chunks);
        let reservation = Reservation::new(segment_bytes, places)?;
        let numbers = (0..places).map(|_| AtomicU32::new(0)).collect();
        Ok(SegmentArena {
            reservation,
            segments: Mutex::default(),
            numbers,
            parts: [const { AtomicU32::new(0) }; 64],
            bytes_max: chunks * segment_bytes,
            observer,
        })
    }

    /// Tells the observer of segments that go, whatever it does: one that it does not hear of stays
    /// registered, and its memory with it.
    fn tell(&self, segments: impl Iterator<Item = Arc<Segment>>) {
        let mut panicked = None;
        for segment in segments {
            let told = catch_unwind(AssertUnwindSafe(|| self.observer.decommitted(segment.id())));
            match (told, &panicked) {
                (Ok(()), _) => {}
                (Err(payload), None) => panicked = Some(payload),
                (Err(payload), Some(_)) => std::mem::forget(payload),
            }
        }
        match panicked {
            // A second panic would abort the process.
            Some(payload) if std::thread::panicking() => std::mem::forget(payload),
            Some(payload) => resume_unwind(payload),
            None => {}
        }
    }

    /// The 64ths of a chunk that are its bytes `part`.
    fn parts(&self, part: &Range<usize>) -> &[AtomicU32] {
        let grain = self.reservation.chunk_bytes() / 64;
        &self.parts[part.start / grain..part.end / grain]
    }
}

impl Drop for SegmentArena {
    fn drop(&mut self) {
        let segments = std::mem::take(self.segments.get_mut().unwrap_or_else(PoisonError::into_inner));
        self.tell(segments.into_values());
    }
}

// SAFETY: [bwtree-arena] chunks are equal parts of one reservation, each of segments of its own that `segments` keeps.
unsafe impl Arena for SegmentArena {
    fn base(&self) -> NonNull<u8> {
        self.reservation.base()
    }

    fn chunk_bytes(&self) -> usize {
        self.reservation.chunk_bytes()
    }

    fn chunks_max(&self) -> usize {
        self.reservation.chunks_max()
    }

    fn commit(&self, chunk: usize, part: Range<usize>) -> Result<(), Exhausted> {
        let mut segments = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = part == (0..self.reservation.chunk_bytes());
        let held: usize = segments.values().map(|segment| segment.len()).sum();
        // One chunk at a time comes in parts.
        let other = |other: usize| self.numbers[other].load(Ordering::Relaxed) == IN_PARTS && other != chunk;
        let taken = !whole && segments.keys().any(|(chunk, _)| other(*chunk));
        if taken || part.len() > self.bytes_max - held || !self.observer.has_room(part.len()) {
            return Err(Exhausted);
        }
        let segment = Arc::new(self.reservation.commit_part(chunk, part.clone()).map_err(|_| Exhausted)?);
        self.observer.committed(&segment)?;
        let number = segment.id().get();
        if !whole {
            self.parts(&part).iter().for_each(|place| place.store(number, Ordering::Release));
        }
        self.numbers[chunk].store(if whole { number } else { IN_PARTS }, Ordering::Release);
        segments.insert((chunk, part.start), segment);
        Ok(())
    }

    unsafe fn decommit(&self, chunk: usize) {
        let mut segments = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<(usize, usize)> = segments.range((chunk, 0)..(chunk + 1, 0)).map(|(place, _)| *place).collect();
        let gone: Vec<Arc<Segment>> = gone.iter().filter_map(|place| segments.remove(place)).collect();
        drop(segments);
        self.numbers[chunk].store(0, Ordering::Release);
        self.tell(gone.into_iter());
    }

    fn segment(&self, at: u64) -> SegmentId {
        let (chunk, byte) = (at as usize / self.chunk_bytes(), at as usize % self.chunk_bytes());
        let number = match self.numbers[chunk].load(Ordering::Acquire) {
            IN_PARTS => self.parts[byte / (self.chunk_bytes() / 64)].load(Ordering::Acquire),
            number => number,
        };
        SegmentId::from_number(number)
    }

    fn segments(&self) -> Vec<(u64, u64, SegmentId)> {
        let segments = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        let at = |(chunk, byte): &(usize, usize)| (chunk * self.reservation.chunk_bytes() + byte) as u64;
        segments.iter().map(|(place, segment)| (at(place), segment.len() as u64, segment.id())).collect()
    }
}

/// No segment has this number: the chunk is of several.
const IN_PARTS: u32 = u32::MAX;

/// Places beyond twice the segments.
const SPARE_PLACES: usize = 8;
