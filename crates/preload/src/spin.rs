//! How long it pays to watch memory before sleeping: the policy of `overside_verbs::spin`, for
//! connections that several threads share.
//!
//! What is this library's own: a watch yields, which takes the core from nobody, and whoever
//! answers may be among those who want it. Where more want a core than there are
//! (`oversubscription`), waits sleep soon. And two ends that share a core are parted.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use overside_verbs::spin::{Expects, Spin, Wait};

use crate::oversubscription::Oversubscription;

/// What the waits of one connection have taught.
#[derive(Debug)]
pub(crate) struct SpinBudget {
    /// A [`Spin`]. Threads that change it at once lose one of the changes, and no more.
    learned: AtomicU32,
    /// When the sleep began whose length the policy wants to know, twice that, and one more behind
    /// a watch in vain; 0: none.
    asleep: AtomicU64,
    /// Waits in a row beside whoever is waited for.
    beside: AtomicU16,
}

/// Whether to sleep without a watch, which some callers have much to do for. Counts as a wait then.
pub(crate) fn is_in_vain(spin: &SpinBudget) -> bool {
    spin.learned().is_to_skip() && spin.begin().is_none()
}

/// The processor that this thread runs on. By the C library, which mostly knows it without a call,
/// and is not confused by a program that runs this one under its eyes.
pub(crate) fn processor() -> u64 {
    // SAFETY: [preload-real] a question without memory, and not hooked.
    u64::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// Watches until something stirs, or until that pays no longer. `beside`: whoever is waited for was
/// last seen on this very core, where watching only keeps it from running.
pub(crate) fn watch(spin: &SpinBudget, beside: bool, stirring: impl Fn() -> bool) -> bool {
    watch_among(&OVERSUBSCRIPTION, spin, beside, stirring)
}

fn watch_among(
    oversubscription: &Oversubscription,
    spin: &SpinBudget,
    beside: bool,
    stirring: impl Fn() -> bool,
) -> bool {
    let Some(limit) = spin.begin() else { return stirring() };
    if !beside {
        // Time passes without a look at the clock: a message that is on its way comes within the first few.
        for _ in 0..BRIEF_PAUSES {
            if stirring() {
                spin.found();
                return true;
            }
            std::hint::spin_loop();
        }
    }
    let begun = now_ns();
    let mut now = begun;
    if !oversubscription.is_there(begun) {
        let limit_ns = limit.as_nanos() as u64;
        while now.saturating_sub(begun) < limit_ns {
            rustix::thread::sched_yield();
            let yielded_ns = now_ns().saturating_sub(now);
            let found = stirring();
            if yielded_ns > SLICE_NS {
                oversubscription.found();
                return found;
            }
            if found || !beside && (0..PAUSES_A_YIELD).any(|_| stirs_after_a_pause(&stirring)) {
                spin.found();
                return true;
            }
            now = now_ns();
        }
        oversubscription.none();
    }
    spin.missed(now);
    stirring()
}

#[inline]
fn stirs_after_a_pause(stirring: &impl Fn() -> bool) -> bool {
    std::hint::spin_loop();
    stirring()
}

impl SpinBudget {
    pub(crate) const fn new() -> Self {
        Self { learned: AtomicU32::new(0), asleep: AtomicU64::new(0), beside: AtomicU16::new(0) }
    }

    /// As new.
    pub(crate) fn forget(&self) {
        self.learned.store(0, Ordering::Relaxed);
        self.asleep.store(0, Ordering::Relaxed);
        self.beside.store(0, Ordering::Relaxed);
    }

    #[inline]
    fn learned(&self) -> Spin {
        Spin::of_word(MAX, self.learned.load(Ordering::Relaxed))
    }

    /// A word that says the same is not written: the other threads' processors have it, too.
    #[inline]
    fn keep(&self, spin: &Spin) {
        let word = spin.to_word();
        if self.learned.load(Ordering::Relaxed) != word {
            self.learned.store(word, Ordering::Relaxed);
        }
    }

    /// How long to watch; `None`: sleep at once.
    #[inline]
    fn begin(&self) -> Option<Duration> {
        let mut spin = self.learned();
        // How long the sleep before was is asked when the next wait begins: by then it is over, wherever it was.
        let asleep = self.asleep.load(Ordering::Relaxed);
        if asleep != 0 {
            self.asleep.store(0, Ordering::Relaxed);
            let before = if asleep & 1 == 1 { Wait::Poll(MAX) } else { Wait::Unpolled { watched: true } };
            spin.slept(before, Some(Duration::from_nanos(now_ns().saturating_sub(asleep >> 1))), true);
        }
        let wait = spin.begin(Expects::Answer);
        self.keep(&spin);
        match wait {
            Wait::Poll(limit) => Some(limit),
            Wait::Unpolled { watched: true } => {
                self.asleep.store(now_ns() << 1, Ordering::Relaxed);
                None
            }
            _ => None,
        }
    }

    #[inline]
    fn found(&self) {
        let mut spin = self.learned();
        spin.found();
        self.keep(&spin);
    }

    /// Watched in vain until `now_ns`; a sleep follows.
    fn missed(&self, now_ns: u64) {
        self.asleep.store(now_ns << 1 | 1, Ordering::Relaxed);
    }

    /// Whether to sleep at once on a word. Two ends that share a core and yield to one another stay
    /// there, though another may be idle. The scheduler looks for one when it wakes a sleeper, so
    /// each end sleeps now and then, less and less often.
    #[inline]
    pub(crate) fn is_to_part(&self, beside: bool) -> bool {
        let waits = self.beside.load(Ordering::Relaxed);
        if !beside {
            if waits != 0 {
                self.beside.store(0, Ordering::Relaxed);
            }
            return false;
        }
        // Past the longest time between two sleeps the count goes on from half of it.
        let next = if waits == PART_MAX { PART_MAX / 2 + 1 } else { waits + 1 };
        self.beside.store(next, Ordering::Relaxed);
        next >= PART_MIN && next.is_power_of_two()
    }
}

/// By the monotonic clock.
pub(crate) fn now_ns() -> u64 {
    #[cfg(test)]
    if let Some(now) = crate::explore::now_ns() {
        return now;
    }
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: [preload-real] a timespec of ours. The C library's, which asks no kernel and is not hooked.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Processors are the machine's, so what is learned of them holds for all connections.
static OVERSUBSCRIPTION: Oversubscription = Oversubscription::new();

/// About 4 µs: what sleeping and being woken costs in processor time.
const BRIEF_PAUSES: u32 = 100;
const PAUSES_A_YIELD: u32 = 64;
/// A try of the policy is three times as long: longer than waking an idle core and being answered
/// takes, or two ends that both sleep would never find each other awake.
const MAX: Duration = Duration::from_micros(50);
/// Waits beside the other end before a sleep is to part them: so many at first,
/// half of so many in the end.
const PART_MIN: u16 = 8;
const PART_MAX: u16 = 1024;
/// A yield that took longer went to one who computes: shorter than a slice of the scheduler's,
/// longer than a few threads that pass small messages keep each other waiting. Those are better off
/// with yields than with sleeps.
const SLICE_NS: u64 = 500_000;

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn watch_in_vain(oversubscription: &Oversubscription, spin: &SpinBudget) -> u32 {
        let looks = Cell::new(0);
        assert!(!watch_among(oversubscription, spin, false, || {
            looks.set(looks.get() + 1);
            false
        }));
        looks.get()
    }

    #[test]
    fn watching_in_vain_becomes_rare_and_an_answer_restores_it() {
        let (calm, spin) = (Oversubscription::new(), SpinBudget::new());
        let watched = (0..2000).filter(|_| watch_in_vain(&calm, &spin) > 1).count();
        assert!((3..200).contains(&watched), "{watched}");
        // One that is due finds something.
        while !watch_among(&calm, &spin, false, || true) || spin.learned.load(Ordering::Relaxed) != 0 {}
        assert!(watch_in_vain(&calm, &spin) > 1 && watch_in_vain(&calm, &spin) > 1, "two in vain change nothing");
    }

    #[test]
    fn ends_on_one_core_part_now_and_then() {
        let spin = SpinBudget::new();
        let sleeps: Vec<usize> = (1..5000).filter(|_| spin.is_to_part(true)).collect();
        assert_eq!(sleeps.len(), 15, "at 8, 16 … 1024 and then every 512");
        let spin = SpinBudget::new();
        assert_eq!((1..2000).filter(|_| spin.is_to_part(true)).take(4).collect::<Vec<_>>(), [8, 16, 32, 64]);
        assert!(!spin.is_to_part(false) && !spin.is_to_part(true), "it begins anew");
    }

    #[test]
    fn when_oversubscribed_only_a_short_watch_is_made_and_rarely() {
        let (crowded, spin) = (Oversubscription::new(), SpinBudget::new());
        (0..20).for_each(|_| crowded.found());
        let looks: u32 = (0..1000).map(|_| watch_in_vain(&crowded, &spin)).sum();
        assert!((1000 + 3 * BRIEF_PAUSES..1000 + 35 * BRIEF_PAUSES).contains(&looks), "{looks}");
        assert!(watch_among(&crowded, &spin, true, || true), "one look is made always");
    }
}
