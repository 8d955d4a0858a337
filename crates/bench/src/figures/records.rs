//! Records scattered over a large region, and how fast a processor can copy them at all.

use super::sender::Sender;
use crate::measure::{elapsed_ns, now_ns};
use anyhow::Result;
use overside::{
    memory::{
        Buffer, Segment,
        kernels::{self, Kernel, LINES_AHEAD, RANGES_AHEAD, lines_of, prefetch_range},
    },
    shape::Run,
};
use std::{hint::black_box, sync::Arc};

/// A region cut into places of one size, visited in an order in which neighbours lie far apart and
/// every place comes before any comes again: what is sent was not touched lately.
#[derive(Clone, Debug)]
pub struct Records {
    region: Arc<Buffer>,
    record_bytes: usize,
    /// Bytes from one place to the next.
    pitch: usize,
    places: usize,
    next: usize,
}

impl Records {
    /// A region to cut, of a power of two bytes, filled with what tells places apart.
    ///
    /// # Errors
    /// The memory is not there.
    pub fn region(sender: &mut Sender, bytes: usize) -> Result<Arc<Buffer>> {
        let mut region = sender.memory(bytes)?;
        for (at, word) in region.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = (at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        }
        Ok(Arc::new(region))
    }

    /// Records of `record_bytes` in `region`.
    pub fn new(region: &Arc<Buffer>, record_bytes: usize) -> Records {
        let pitch = record_bytes.next_power_of_two();
        Records { region: region.clone(), record_bytes, pitch, places: (region.len() / pitch).max(1), next: 0 }
    }

    /// Bytes of a record.
    pub fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// The memory they lie in.
    pub fn memory(&self) -> &Arc<Buffer> {
        &self.region
    }

    /// The same records, beginning with part `part` of `parts`: destinations that each have a part
    /// of their own get the same whatever the order they are served in.
    pub fn part(&self, part: usize, parts: usize) -> Records {
        Records { next: self.places / parts.max(1) * part, ..self.clone() }
    }

    /// The next record's place. An odd step over a power of two of places visits each once.
    #[inline]
    pub fn take(&mut self) -> Run {
        let place = self.next.wrapping_mul(STEP) & (self.places - 1);
        self.next += 1;
        Run::new((place * self.pitch) as u64, self.record_bytes as u64)
    }

    /// Asks the processor for the record that comes `behind` the next one.
    #[inline]
    fn ask_for(&self, behind: usize) {
        let place = (self.next + behind).wrapping_mul(STEP) & (self.places - 1);
        prefetch_range(self.region[place * self.pitch..].as_ptr(), self.record_bytes);
    }

    /// Copies the next `count` records to the start of `out`; returns their bytes.
    #[inline]
    pub fn pack(&mut self, count: usize, out: &mut [u8]) -> usize {
        let size = self.record_bytes;
        for slot in out.chunks_exact_mut(size).take(count) {
            let at = self.take().at as usize;
            slot.copy_from_slice(&self.region[at..at + size]);
        }
        count * size
    }
}

/// Where the limit for copies is measured: a ring as a receiver has it.
pub struct Ring {
    slots: Vec<Buffer>,
    kernel: Kernel,
    /// How many records ahead the next ones are asked for; 0 where they are not.
    ahead: usize,
    message_bytes: usize,
}

impl Ring {
    /// As many buffers of `message_bytes` as a receiver has; copies by the kernel that is fastest
    /// for `records`, asking for those that come next or not.
    ///
    /// # Errors
    /// The memory is not there.
    pub fn new(message_bytes: usize, records: &mut Records, per_message: usize) -> Result<Ring> {
        let mut ring = Ring::empty(message_bytes)?;
        let ahead = (LINES_AHEAD / lines_of(records.record_bytes()).max(1)).clamp(1, RANGES_AHEAD);
        let mut best = (0.0, Kernel::Libc, 0);
        for (kernel, ahead) in Kernel::available().into_iter().flat_map(|kernel| [(kernel, 0), (kernel, ahead)]) {
            (ring.kernel, ring.ahead) = (kernel, ahead);
            let speed = ring.limit(records, per_message, TRIAL_NS);
            if speed > best.0 {
                best = (speed, kernel, ahead);
            }
        }
        (ring.kernel, ring.ahead) = (best.1, best.2);
        Ok(ring)
    }

    fn empty(message_bytes: usize) -> Result<Ring> {
        let slot = message_bytes.max(64).next_multiple_of(64);
        let count = super::receiver::receives(message_bytes, false);
        let mut slots = Segment::private(slot * count)?.carve(slot);
        slots.iter_mut().for_each(|slot| slot.fill(1));
        Ok(Ring { slots, kernel: Kernel::Libc, ahead: 0, message_bytes })
    }

    /// Bytes per second at which one processor copies the same records in the same order into
    /// the same ring, for `ns`.
    pub fn limit(&mut self, records: &mut Records, per_message: usize, ns: u64) -> f64 {
        let size = records.record_bytes();
        let region = records.memory().clone();
        let (start, mut bytes, mut message) = (now_ns(), 0u64, 0);
        loop {
            for _ in 0..LOOK_EVERY.div_ceil(per_message) {
                let slots = self.slots.len();
                let slot = &mut self.slots[message % slots];
                for target in slot.chunks_exact_mut(size).take(per_message) {
                    if self.ahead > 0 {
                        records.ask_for(self.ahead);
                    }
                    let at = records.take().at as usize;
                    kernels::copy(self.kernel, target, &region[at..at + size]);
                }
                bytes += (per_message * size) as u64;
                message += 1;
            }
            let took = elapsed_ns(start);
            if took >= ns {
                black_box(self.slots[0][0]);
                return bytes as f64 * 1e9 / took as f64;
            }
        }
    }
}

/// The limit for a memory that is read from one end to the other.
pub struct Copying {
    ring: Ring,
    at: usize,
    chosen: bool,
}

impl Copying {
    /// Into a ring of buffers of `message_bytes`.
    ///
    /// # Errors
    /// The memory is not there.
    pub fn new(message_bytes: usize) -> Result<Copying> {
        Ok(Copying { ring: Ring::empty(message_bytes)?, at: 0, chosen: false })
    }

    /// Bytes per second at which one processor copies `memory` piece by piece, going on where it
    /// stopped, for `ns`; by the kernel that was fastest at first.
    pub fn limit(&mut self, memory: &[u8], ns: u64) -> f64 {
        if !self.chosen {
            self.chosen = true;
            let speed = |kernel| {
                self.ring.kernel = kernel;
                self.copy(memory, TRIAL_NS)
            };
            let speeds: Vec<f64> = Kernel::available().into_iter().map(speed).collect();
            let best = speeds.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(at, _)| at);
            self.ring.kernel = Kernel::available()[best];
        }
        self.copy(memory, ns)
    }

    fn copy(&mut self, memory: &[u8], ns: u64) -> f64 {
        let (start, mut bytes, mut slot) = (now_ns(), 0, 0);
        let Ring { slots, kernel, message_bytes, .. } = &mut self.ring;
        let piece = (*message_bytes).min(memory.len());
        loop {
            for _ in 0..8 {
                if self.at + piece > memory.len() {
                    self.at = 0;
                }
                let count = slots.len();
                kernels::copy(*kernel, &mut slots[slot % count], &memory[self.at..self.at + piece]);
                (self.at, slot, bytes) = (self.at + piece, slot + 1, bytes + piece);
            }
            let took = elapsed_ns(start);
            if took >= ns {
                black_box(slots[0][0]);
                return bytes as f64 * 1e9 / took as f64;
            }
        }
    }
}

/// Odd, and no small fraction of a power of two.
const STEP: usize = 0x9E37_79B1;
/// Records between two looks at the clock.
const LOOK_EVERY: usize = 256;
const TRIAL_NS: u64 = 2_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn region(bytes: usize) -> Arc<Buffer> {
        let mut buffer = Segment::private(bytes).unwrap().carve(bytes).pop().unwrap();
        buffer.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 128) as u8);
        Arc::new(buffer)
    }

    #[test]
    fn every_place_comes_once_before_any_comes_again() {
        let mut records = Records::new(&region(1 << 14), 100);
        let mut seen: Vec<u64> = (0..128).map(|_| records.take().at).collect();
        assert_eq!(records.take().at, seen[0]);
        seen.sort_unstable();
        assert_eq!(seen, (0..128).map(|at| at * 128).collect::<Vec<_>>());
    }

    #[test]
    fn packing_follows_the_order() {
        let region = region(1 << 14);
        let mut records = Records::new(&region, 100);
        let mut out = vec![0; 1000];
        assert_eq!(records.pack(7, &mut out), 700);
        let mut again = Records::new(&region, 100);
        for packed in out[..700].chunks(100) {
            let at = again.take().at as usize;
            assert_eq!(packed, &region[at..at + 100]);
        }
        assert!(out[700..].iter().all(|byte| *byte == 0));
        let mut ring = Ring::new(700, &mut records, 7).unwrap();
        assert!(ring.limit(&mut records, 7, 1_000_000) > 0.0);
    }
}
