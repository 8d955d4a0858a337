//! Whether more threads want processors than there are: then watching memory takes time
//! from those that have work.
//!
//! The kernel counts who runs or could run (`/proc/loadavg`). Asking costs some 2 µs, so it is done
//! once in a few milliseconds, and only by waits that have watched for a moment in vain. Where it
//! cannot be asked, and where one core alone is oversubscribed only, a yield tells: one that lasts
//! as long as a scheduler's slice went to somebody who computes.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};

use crate::policy;

/// What is known of it.
#[derive(Debug)]
pub(crate) struct Oversubscription {
    /// Waits for which it is believed in, since a yield found it; and for how many
    /// when it was last found so.
    left: AtomicU16,
    last: AtomicU16,
    /// Whether the kernel's count is believed to say so; when to ask again; how often it
    /// has said otherwise since.
    counted: AtomicBool,
    next_ns: AtomicU64,
    calm: AtomicU8,
}

impl Oversubscription {
    pub(crate) const fn new() -> Self {
        Self {
            left: AtomicU16::new(0),
            last: AtomicU16::new(0),
            counted: AtomicBool::new(false),
            next_ns: AtomicU64::new(0),
            calm: AtomicU8::new(1),
        }
    }

    /// Counts a wait, at this time.
    pub(crate) fn is_there(&self, now_ns: u64) -> bool {
        self.ask(now_ns, count);
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        left > 0 || self.counted.load(Ordering::Relaxed)
    }

    /// A yield to others costs a whole slice: each time they are found again there is none
    /// for twice as many waits.
    pub(crate) fn found(&self) {
        let waits = self.last.load(Ordering::Relaxed).saturating_mul(2).clamp(WAITS_MIN, WAITS_MAX);
        self.last.store(waits, Ordering::Relaxed);
        self.left.store(waits, Ordering::Relaxed);
    }

    pub(crate) fn none(&self) {
        self.last.store(0, Ordering::Relaxed);
    }

    /// Whether more run than there are processors, if it is time to ask. Who runs at one
    /// moment is chance: the second count in a row that is too high is believed, and so
    /// are `CALM` that are not.
    fn ask(&self, now_ns: u64, count: impl FnOnce() -> Option<bool>) {
        let next = self.next_ns.load(Ordering::Relaxed);
        if now_ns < next {
            return;
        }
        let then = now_ns.saturating_add(if self.counted.load(Ordering::Relaxed) { AGAIN_NS } else { FIRST_NS });
        if self.next_ns.compare_exchange(next, then, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        match count() {
            Some(true) => {
                if self.calm.swap(0, Ordering::Relaxed) == 0 {
                    self.counted.store(true, Ordering::Relaxed);
                } else {
                    self.next_ns.store(now_ns.saturating_add(SOON_NS), Ordering::Relaxed);
                }
            }
            Some(false) => {
                let calm = self.calm.load(Ordering::Relaxed).saturating_add(1);
                self.calm.store(calm, Ordering::Relaxed);
                if calm >= CALM {
                    self.counted.store(false, Ordering::Relaxed);
                }
            }
            None => {
                self.counted.store(false, Ordering::Relaxed);
                self.next_ns.store(u64::MAX, Ordering::Relaxed);
            }
        }
    }
}

/// Processors that are there. At start-up; before it nothing is asked.
pub(crate) fn find_processors() {
    // SAFETY: [preload-real] a question without memory.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    PROCESSORS.store(u32::try_from(count).unwrap_or(0), Ordering::Relaxed);
}

/// Whether more threads run, or could, than there are processors. None when that cannot be known.
fn count() -> Option<bool> {
    let processors = PROCESSORS.load(Ordering::Relaxed);
    if processors == 0 || policy::is_barred() {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = rustix::fs::open(LOADAVG, flags, Mode::empty()).ok()?;
    let mut text = [0; 128];
    let len = rustix::io::read(&file, &mut text).ok()?;
    Some(running(text.get(..len)?)? > processors)
}

/// From a text like `0.52 0.58 0.59 3/467 12345`: how many run.
fn running(text: &[u8]) -> Option<u32> {
    let word = text.split(|byte| *byte == b' ').nth(3)?;
    let digits = word.split(|byte| *byte == b'/').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

static PROCESSORS: AtomicU32 = AtomicU32::new(0);
const LOADAVG: &CStr = c"/proc/loadavg";
/// Between two questions: as long as nobody was found, and afterwards.
const FIRST_NS: u64 = 1_000_000;
const AGAIN_NS: u64 = 8_000_000;
const CALM: u8 = 3;
/// After the first count that is too high.
const SOON_NS: u64 = 250_000;
/// Waits without yields: the most are some tens of milliseconds of small messages.
const WAITS_MIN: u16 = 64;
const WAITS_MAX: u16 = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oversubscription_that_a_yield_found_is_believed_in_for_longer_each_time() {
        let oversubscription = Oversubscription::new();
        assert!(!oversubscription.is_there(0));
        for waits in [64, 128, 256] {
            oversubscription.found();
            assert_eq!((0..1000).take_while(|_| oversubscription.is_there(0)).count(), waits);
        }
        (0..20).for_each(|_| oversubscription.found());
        assert_eq!((0..10_000).take_while(|_| oversubscription.is_there(0)).count(), usize::from(WAITS_MAX));
        oversubscription.none();
        oversubscription.found();
        assert_eq!((0..1000).take_while(|_| oversubscription.is_there(0)).count(), 64);
    }

    #[test]
    fn two_counts_that_are_too_high_are_believed_until_several_say_otherwise() {
        let oversubscription = Oversubscription::new();
        let mut now = 0;
        let mut ask = |answer| {
            now += AGAIN_NS;
            oversubscription.ask(now, || answer);
            oversubscription.ask(now, || panic!("not asked twice in so short a time"));
            oversubscription.counted.load(Ordering::Relaxed)
        };
        assert_eq!(
            [Some(false), Some(true), Some(false), Some(true), Some(true)].map(&mut ask),
            [false, false, false, false, true]
        );
        assert_eq!([Some(false), Some(false), Some(true), Some(false)].map(&mut ask), [true; 4]);
        assert_eq!([Some(false), Some(false), Some(false)].map(&mut ask), [true, false, false]);
        assert!(!ask(None), "what cannot be asked is not believed");
        oversubscription.ask(now + AGAIN_NS, || panic!("and never asked again"));
    }

    #[test]
    fn the_kernels_text_is_read_and_nonsense_is_nothing() {
        assert_eq!(running(b"1.25 1.44 1.54 17/109 3836\n"), Some(17));
        assert_eq!((running(b""), running(b"1 2 3"), running(b"a b c d/e")), (None, None, None));
        assert_eq!(count(), None, "how many processors there are has not been asked");
        find_processors();
        assert!(count().is_some());
    }
}
