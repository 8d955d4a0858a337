//! Writing into the send ring.

use crate::doorbell::OwnRing;
use crate::ring::{DESCRIPTOR_BYTES, Descriptor, Geometry, INLINE_INSIDE, RegionWords, SGES_INSIDE, Sge};

/// Where the next descriptor goes, and what the peer has given back.
#[derive(Debug)]
pub(crate) struct Producer {
    geometry: Geometry,
    /// Descriptors written, ever.
    head: u64,
    /// Descriptors that the peer was told of, ever.
    published: u64,
    /// Descriptors that the peer has consumed, ever.
    consumed: u64,
    cells_used: u64,
    cells_freed: u64,
    /// The last descriptor, while it is not in the ring: it goes there with its stamp, in one go. A
    /// receiver that waits for it looks at its cache line all the time, and would fetch the line
    /// between two writes.
    last: Option<[u64; WORDS]>,
}

impl Producer {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self { geometry, head: 0, published: 0, consumed: 0, cells_used: 0, cells_freed: 0, last: None }
    }

    /// Whether a descriptor with so many cells fits now.
    #[inline]
    pub(crate) fn room(&self, cells: usize) -> bool {
        self.head - self.consumed < u64::from(self.geometry.depth())
            && self.cells_used - self.cells_freed + cells as u64 <= u64::from(self.geometry.cells())
    }

    /// Writes a gather list. There must be room.
    pub(crate) fn gather(&mut self, own: &impl OwnRing, descriptor: Descriptor, sges: &[Sge]) {
        let mut words = begin(descriptor);
        if sges.len() <= SGES_INSIDE {
            for (pair, sge) in words[2..].chunks_exact_mut(2).zip(sges) {
                pair.copy_from_slice(&sge.to_words());
            }
        } else {
            for (i, sge) in sges.iter().enumerate() {
                own.put_cell(self.cells_used + i as u64, &sge.to_words());
            }
        }
        self.finish(own, descriptor, &words);
    }

    /// Writes bytes that ride along. There must be room.
    pub(crate) fn inline(&mut self, own: &impl OwnRing, descriptor: Descriptor, bytes: &[u8]) {
        let mut words = begin(descriptor);
        if bytes.len() <= INLINE_INSIDE {
            let mut inside = [0; INLINE_INSIDE];
            inside[..bytes.len()].copy_from_slice(bytes);
            for (word, part) in words[2..].iter_mut().zip(inside.as_chunks::<8>().0) {
                *word = u64::from_ne_bytes(*part);
            }
            self.finish(own, descriptor, &words);
        } else {
            own.put_bytes(self.cells_used, bytes);
            self.finish(own, descriptor, &words);
        }
    }

    /// Writes bytes that ride along and tells the peer of them. There must be room, and nothing
    /// that the peer was not told of.
    #[inline]
    pub(crate) fn inline_now(&mut self, own: &impl OwnRing, descriptor: Descriptor, bytes: &[u8]) {
        debug_assert!(!self.unpublished());
        if bytes.len() <= INLINE_INSIDE {
            own.put_inside(self.head, bytes);
        } else {
            own.put_bytes(self.cells_used, bytes);
            self.cells_used += descriptor.cells() as u64;
        }
        own.put_head(self.head, descriptor.to_words());
        self.head += 1;
        self.published = self.head;
    }

    /// Writes a region. There must be room.
    pub(crate) fn region(&mut self, own: &impl OwnRing, descriptor: Descriptor, region: RegionWords) {
        let mut words = begin(descriptor);
        words[2..].copy_from_slice(&region.to_words());
        self.finish(own, descriptor, &words);
    }

    /// Writes a descriptor that stands alone. There must be room.
    pub(crate) fn alone(&mut self, own: &impl OwnRing, descriptor: Descriptor) {
        self.finish(own, descriptor, &begin(descriptor));
    }

    fn finish(&mut self, own: &impl OwnRing, descriptor: Descriptor, words: &[u64; WORDS]) {
        if let Some(before) = self.last.replace(*words) {
            own.put_descriptor(self.head - 1, &before);
        }
        self.head += 1;
        self.cells_used += descriptor.cells() as u64;
    }

    /// Whether there are descriptors that the peer was not told of.
    #[inline]
    pub(crate) fn unpublished(&self) -> bool {
        self.head != self.published
    }

    /// Tells the peer of all that was written.
    #[inline]
    pub(crate) fn publish(&mut self, own: &impl OwnRing) {
        let Some(last) = self.last.take() else { return };
        (self.published..self.head - 1).for_each(|index| own.stamp(index));
        own.put_stamped(self.head - 1, &last);
        self.published = self.head;
    }

    /// Descriptors written, ever.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Descriptors the peer has consumed, as last seen.
    #[inline]
    pub(crate) fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Takes in the peer's consumed index; how many descriptors that completes, or none when it
    /// cannot be.
    pub(crate) fn observe(&mut self, consumed: u64) -> Option<u64> {
        if consumed < self.consumed || consumed > self.published {
            return None;
        }
        let done = consumed - self.consumed;
        self.consumed = consumed;
        Some(done)
    }

    /// Cells of a completed descriptor may be used again.
    #[inline]
    pub(crate) fn free_cells(&mut self, cells: u32) {
        self.cells_freed += u64::from(cells);
    }
}

fn begin(descriptor: Descriptor) -> [u64; WORDS] {
    let [first, second] = descriptor.to_words();
    [first, second, 0, 0, 0, 0, 0, 0]
}

const WORDS: usize = DESCRIPTOR_BYTES / 8;
