//! What the reader of a column and the pages below it say to each other: when to stop between
//! pages.
//!
//! The `parquet` crate's column reader goes on from page to page until it has as many values as
//! were asked for. Texts and binaries lie in their pages, or are copied out of them one by one, so
//! a few thousand values can hold gigabytes. Pages therefore end early where they were told to,
//! which the crate takes for the column's end until it is called again.

use super::super::budget::Charge;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Shared by a column's reader and its pages, which one thread uses.
#[derive(Default)]
pub struct Flow {
    /// Bytes of data pages that the decoder or values still lie in.
    held: AtomicU64,
    /// No further page is begun from so many on.
    held_max: AtomicU64,
    /// Bytes that may be copied out of a page before they are looked at.
    copied_max: AtomicU64,
    /// Values that the reader has asked for.
    asked: AtomicU64,
    /// Bytes that a value of the page in hand may be copied into; 0 where values stay where they
    /// lie.
    copy_bytes: AtomicU64,
    stopped: AtomicU8,
}

/// Why pages ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// They did not.
    None,
    /// Enough of them are held.
    HeldBody,
    /// Fewer values must be asked for at once.
    Asked,
}

impl Flow {
    /// Before `values` are asked for, of which texts and binaries shall hold `room` bytes: how many
    /// may be. From `held_max` bytes of held pages on none is begun.
    pub fn ask(&self, values: usize, room: u64, held_max: u64) -> usize {
        let copied_max = room.min(COPIED_BYTES_MAX);
        let copies = copied_max.checked_div(self.copy_bytes.load(Ordering::Relaxed)).unwrap_or(u64::MAX);
        let asked = (values as u64).min(copies.max(1));
        self.asked.store(asked, Ordering::Relaxed);
        self.copied_max.store(copied_max, Ordering::Relaxed);
        self.held_max.store(held_max, Ordering::Relaxed);
        self.stopped.store(0, Ordering::Relaxed);
        asked as usize
    }

    /// Why pages ended early since the last [`Flow::ask`].
    pub fn stopped(&self) -> Stop {
        match self.stopped.load(Ordering::Relaxed) {
            0 => Stop::None,
            1 => Stop::HeldBody,
            _ => Stop::Asked,
        }
    }

    /// Bytes of data pages that are not dropped yet.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether another page may be begun.
    pub fn admits_a_page(&self) -> bool {
        let admits = self.held() < self.held_max.load(Ordering::Relaxed);
        if !admits {
            self.stopped.store(1, Ordering::Relaxed);
        }
        admits
    }

    /// Whether a page whose values are copied into at most `copy_bytes` each may be given to the
    /// decoder now.
    pub fn admits_values(&self, copy_bytes: u64) -> bool {
        self.copy_bytes.store(copy_bytes, Ordering::Relaxed);
        let asked = self.asked.load(Ordering::Relaxed);
        let admits = asked <= 1 || asked.saturating_mul(copy_bytes) <= self.copied_max.load(Ordering::Relaxed);
        if !admits {
            self.stopped.store(2, Ordering::Relaxed);
        }
        admits
    }

    /// A page's bytes, counted and charged until the last value that lies in them is dropped.
    pub fn page(self: &Arc<Self>, bytes: Vec<u8>, charge: Charge) -> Bytes {
        self.held.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Bytes::from_owner(HeldBody { bytes, flow: self.clone(), _charge: charge })
    }
}

struct HeldBody {
    bytes: Vec<u8>,
    flow: Arc<Flow>,
    _charge: Charge,
}

impl AsRef<[u8]> for HeldBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for HeldBody {
    fn drop(&mut self) {
        self.flow.held.fetch_sub(self.bytes.len() as u64, Ordering::Relaxed);
    }
}

/// Bytes that may be copied out of a page before they are looked at. A page of a MiB still yields
/// some values at once.
const COPIED_BYTES_MAX: u64 = 16 << 20;
