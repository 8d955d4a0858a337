//! Memory for blocks on their way between clients and a device.

use overside_memory::{Buffer, Bytes, Segment};

/// Buffers by powers of two, kept for the next request up to a bound. They lie on pages, in memory
/// that a node may read from: a device that is remote need not copy what is written.
#[derive(Debug, Default)]
pub(super) struct Room {
    free: [Vec<Buffer>; CLASSES],
    kept: usize,
}

impl Room {
    /// A buffer of at least `length` bytes; none where the system has no memory.
    pub(super) fn take(&mut self, length: usize) -> Option<Buffer> {
        let class = class_of(length)?;
        if let Some(buffer) = self.free[class].pop() {
            self.kept -= buffer.len();
            return Some(buffer);
        }
        let bytes = SMALLEST << class;
        // Small ones are made several at a time: each segment costs the system, and a node that maps it, as much as a large one.
        let together = bytes.max(TOGETHER_BYTES);
        // Whoever has no descriptor left has memory yet.
        let mut made = Segment::shared(together).or_else(|_| Segment::private(together)).ok()?.carve(bytes);
        let buffer = made.pop();
        made.into_iter().for_each(|buffer| self.put(buffer));
        buffer
    }

    /// A buffer is free again.
    pub(super) fn put(&mut self, buffer: Buffer) {
        let fits = class_of(buffer.len()).filter(|class| SMALLEST << class == buffer.len());
        if let Some(class) = fits
            && self.kept + buffer.len() <= KEPT_BYTES_MAX
        {
            self.kept += buffer.len();
            self.free[class].push(buffer);
        }
    }

    /// What was written is free again, unless somebody still reads it.
    pub(super) fn put_bytes(&mut self, bytes: Bytes) {
        if let Ok(buffer) = bytes.into_buffer() {
            self.put(buffer);
        }
    }
}

fn class_of(length: usize) -> Option<usize> {
    let class = length.max(SMALLEST).checked_next_power_of_two()?.trailing_zeros() - SMALLEST.trailing_zeros();
    Some(class as usize).filter(|class| *class < CLASSES)
}

const SMALLEST: usize = 4096;
/// Up to the longest request, 32 MiB.
const CLASSES: usize = 14;
const TOGETHER_BYTES: usize = 1 << 20;
const KEPT_BYTES_MAX: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_and_no_more_are_kept_than_the_bound() {
        let mut room = Room::default();
        for length in [1, 512, 4096, 4097, 100_000, 32 << 20] {
            let buffer = room.take(length).unwrap();
            assert!(buffer.len() >= length, "{length}");
            let (address, kept) = (buffer.address(), room.kept);
            room.put(buffer);
            if length < KEPT_BYTES_MAX {
                assert_eq!(room.take(length).unwrap().address(), address, "{length}");
            }
            assert!(room.kept <= KEPT_BYTES_MAX && kept <= KEPT_BYTES_MAX);
        }
        assert!(room.take((32 << 20) + 1).is_none() && room.take(usize::MAX).is_none());
        let many: Vec<_> = (0..40).map(|_| room.take(1 << 20).unwrap()).collect();
        many.into_iter().for_each(|buffer| room.put(buffer));
        assert!(room.kept <= KEPT_BYTES_MAX, "{}", room.kept);
    }
}
