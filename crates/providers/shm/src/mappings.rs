//! How much of its peers' memory this process maps: a bound for each connection, and one for all of
//! them.
//!
//! The system lets a process have so many mappings (`vm.max_map_count`), and who has none left gets
//! no memory of his own either: no table, no thread. So peers take up a part of them, in which
//! nobody takes what others need.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{Mode, OFlags};

use crate::fate::Fate;

/// How much a peer may make this process map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Segments, and as many granted regions.
    pub(crate) segments: usize,
    /// Bytes of either.
    pub(crate) bytes: u64,
    /// Whether this process chose the peer, by connecting to it.
    pub(crate) chosen: bool,
}

impl Limits {
    /// Whether one more of `bytes` bytes may come to the `held` there are, of `held_bytes` bytes.
    pub(crate) fn allow(&self, held: usize, held_bytes: u64, bytes: u64) -> bool {
        let segments = if self.chosen { usize::MAX } else { self.segments };
        held < segments && held_bytes.saturating_add(bytes) <= self.bytes
    }
}

/// One mapping of a peer's memory, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    bytes: u64,
}

impl Counted {
    /// Counts a mapping of `bytes` bytes, where the connection has `held` already.
    ///
    /// # Errors
    /// When the peers of this process have all that they may have together.
    pub(crate) fn claim(limits: &Limits, held: usize, bytes: u64) -> Result<Self, Fate> {
        let (maps_max, bytes_max) = match limits.chosen {
            true => (maps_max() / 4 * 3, BYTES_MAX * 2),
            false => (maps_max() / 4, BYTES_MAX),
        };
        let mapped = MAPPED.fetch_add(1, Ordering::Relaxed);
        let mapped_bytes = MAPPED_BYTES.fetch_add(bytes, Ordering::Relaxed);
        let counted = Self { bytes };
        let left = maps_max.saturating_sub(mapped);
        // A peer that was let in has at most an eighth of what is left for all, so that who comes
        // next finds some.
        let share = if limits.chosen || held < HELD_FREELY { 1 } else { held.saturating_mul(8) };
        if left < share.max(1) || mapped_bytes.saturating_add(bytes) > bytes_max {
            return Err(ALL_TAKEN);
        }
        Ok(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        MAPPED.fetch_sub(1, Ordering::Relaxed);
        MAPPED_BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The descriptor of a memory file that a peer passed.
pub(crate) fn memory(passed: crate::socket::Passed) -> Result<OwnedFd, Fate> {
    passed.memory().ok_or(Fate::Malformed("the peer passed a file that is no memory"))
}

/// How many mappings the system lets a process have.
fn maps_max() -> usize {
    static READ: OnceLock<usize> = OnceLock::new();
    *READ.get_or_init(|| {
        let mut text = [0; 32];
        let file = rustix::fs::open("/proc/sys/vm/max_map_count", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let len = file.and_then(|file| rustix::io::read(file, &mut text)).unwrap_or(0);
        let number = std::str::from_utf8(&text[..len]).ok().and_then(|text| text.trim().parse().ok());
        number.unwrap_or(MAPS_USUAL)
    })
}

static MAPPED: AtomicUsize = AtomicUsize::new(0);
static MAPPED_BYTES: AtomicU64 = AtomicU64::new(0);
/// Mappings that any connection may have while there is one left: its control memory, its transmit
/// buffers, what it bounces.
const HELD_FREELY: usize = 8;
/// Addresses: a quarter of what x86-64 gives a process, and half of it to peers that were chosen.
const BYTES_MAX: u64 = 32 << 40;
/// Where the system does not say.
const MAPS_USUAL: usize = 65_530;
const ALL_TAKEN: Fate = Fate::Exhausted(
    "this process maps as much of its peers' memory as it may; raise vm.max_map_count, end other connections, or share fewer, larger segments",
);

#[cfg(test)]
mod tests {
    use super::*;

    const LET_IN: Limits = Limits { segments: 1024, bytes: 1 << 40, chosen: false };

    /// Other tests of this process map a little, so what is left is not known to the last one.
    #[test]
    fn nobody_takes_what_the_next_one_needs() {
        let mut all = Vec::new();
        for _ in 0..2000 {
            let before = all.len();
            while LET_IN.allow(all.len() - before, 0, 4096)
                && let Ok(one) = Counted::claim(&LET_IN, all.len() - before, 4096)
            {
                all.push(one);
            }
            assert!(all.len() - before >= 4, "connection after connection finds room: {} are taken", all.len());
            if all.len() > maps_max() / 4 - maps_max() / 32 {
                break;
            }
        }
        assert!(all.len() < maps_max() / 4);
        let chosen = Limits { chosen: true, ..LET_IN };
        assert!(Counted::claim(&chosen, 10_000, 4096).is_ok(), "who connects himself is not held up by others");
        assert_eq!(Counted::claim(&chosen, 0, 1 << 50).unwrap_err(), ALL_TAKEN);
        drop(all);
        assert!(Counted::claim(&LET_IN, 1000, 4096).is_ok());
    }
}
