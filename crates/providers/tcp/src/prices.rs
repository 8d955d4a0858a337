//! What is decided below a port by what things cost: which pieces of a list are copied together,
//! and which the kernel sends from where they lie.

use std::sync::atomic::{AtomicUsize, Ordering};

use overside_planner::{Bends, Profile};

use crate::stage::STAGE_BYTES;

/// Lengths that decide, by the built-in prices until the device's own are known. Read by every
/// queue pair, whichever thread drives it.
#[derive(Debug)]
pub(crate) struct Prices {
    copied_max: AtomicUsize,
    zero_copy_from: AtomicUsize,
}

impl Prices {
    /// The pieces of a list that are cheaper copied together than named to the kernel one by one:
    /// up to so many bytes.
    pub(crate) fn copied_max(&self) -> usize {
        self.copied_max.load(Ordering::Relaxed)
    }

    /// The length from which on a stretch of posted memory is cheaper left to the kernel to send
    /// from than copied.
    pub(crate) fn zero_copy_from(&self) -> usize {
        self.zero_copy_from.load(Ordering::Relaxed)
    }

    /// From here on by these prices, as far as they were measured. `tags`: what they say of a byte
    /// is not of the copy alone.
    pub(crate) fn learn(&self, found: &Profile, tags: bool) {
        let copied = found.bends.copied_bytes;
        if copied > 0.0 {
            self.copied_max.store((copied as usize).min(STAGE_BYTES), Ordering::Relaxed);
        }
        if !tags {
            self.zero_copy_from
                .store(zero_copy_from(found.send(ZERO_COPY_MIN as u64, false).byte_ns), Ordering::Relaxed);
        }
    }
}

impl Default for Prices {
    fn default() -> Self {
        let before = default_profile(false);
        Self {
            copied_max: AtomicUsize::new((ENTRY_NS / before.pack_byte_ns) as usize),
            zero_copy_from: AtomicUsize::new(zero_copy_from(before.send_byte_ns)),
        }
    }
}

fn zero_copy_from(byte_ns: f64) -> usize {
    ((ZERO_COPY_NS / byte_ns) as usize).max(ZERO_COPY_MIN)
}

/// Before anything was measured: figures of a two-core server of 2024, loopback.
pub(crate) fn default_profile(tags: bool) -> Profile {
    let tag_byte_ns = if tags { 0.3 } else { 0.0 };
    Profile {
        send_request_ns: 1500.0,
        send_fragment_ns: 15.0,
        send_byte_ns: 0.15 + tag_byte_ns,
        pack_byte_ns: 0.09,
        pack_piece_ns: 12.0,
        pack_request_ns: 280.0,
        row_ns: 4.0,
        receive_request_ns: 1500.0,
        // They arrive as one stream.
        receive_fragment_ns: 0.0,
        receive_byte_ns: 0.15 + tag_byte_ns,
        wire_byte_ns: 0.0,
        bends: Bends::default(),
        source: "default".to_owned(),
        elsewhere: None,
    }
}

/// What the kernel takes for an entry of a call's list whose bytes no cache holds, beyond what it
/// takes for bytes that were just copied: of that server too (docs/design/004-tcp-credits.md).
const ENTRY_NS: f64 = 140.0;
/// What it costs to pin pages for a send, and to hear that they are needed no longer.
const ZERO_COPY_NS: f64 = 5000.0;
/// Below this the kernel's own documentation expects nothing of it.
const ZERO_COPY_MIN: usize = 10 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_decides_and_what_was_not_stays_as_it_was() {
        let (prices, mut found) = (Prices::default(), default_profile(false));
        let lengths = |prices: &Prices| (prices.copied_max(), prices.zero_copy_from());
        let before = lengths(&prices);
        assert_eq!(before, (1555, 33_333));
        prices.learn(&found, false);
        assert_eq!(lengths(&prices), before, "nothing is known of copies, and a byte costs what it did");
        (found.bends.copied_bytes, found.send_byte_ns) = (700.0, 0.1);
        prices.learn(&found, true);
        assert_eq!(lengths(&prices), (700, before.1), "what a byte with a tag costs says nothing of the copy");
        prices.learn(&found, false);
        assert_eq!(lengths(&prices), (700, 50_000));
        (found.bends.copied_bytes, found.send_byte_ns) = (1e12, 0.0);
        prices.learn(&found, false);
        assert_eq!(lengths(&prices), (STAGE_BYTES, usize::MAX), "no piece is longer than the stage");
    }
}
