//! How long it pays to watch memory before sleeping.
//!
//! Sleeping and being woken costs some microseconds of processor time on each side, and on an idle core some tens of them of waiting. So
//! a wait watches first for about what a sleep costs. If nothing has come by then it goes on watching and yielding: that takes the core
//! from nobody, and whoever answers may be among those who want it. Where more want a core than there are (`oversubscription`), waits sleep soon. How far it goes on is halved by each time that was in vain, and tried to the full now
//! and then: two ends that both sleep answer each other too late for a short watch, and would never find out that a longer one pays.

use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};

use crate::oversubscription::Oversubscription;

/// What the waits of one connection have taught.
#[derive(Debug)]
pub(crate) struct SpinBudget {
    /// Waits in a row in vain.
    misses: AtomicU8,
    /// Watches of the first, short kind in a row that were in vain.
    brief_misses: AtomicU8,
    /// Waits in a row beside whoever is waited for.
    beside: AtomicU16,
}

/// Whether to sleep without a watch: in a oversubscription nearly every one is in vain, and some callers have much to do for one. Counts as a wait.
pub(crate) fn is_in_vain(spin: &SpinBudget) -> bool {
    if spin.briefly() || !OVERSUBSCRIPTION.is_there(now_ns()) {
        return false;
    }
    spin.missed_briefly();
    true
}

/// The processor that this thread runs on. By the C library, which mostly knows it without a call, and is not confused by a program that
/// runs this one under its eyes.
pub(crate) fn processor() -> u64 {
    // SAFETY: [preload-real] a question without memory, and not hooked.
    u64::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// Watches until something stirs, or until that pays no longer. `beside`: whoever is waited for was last seen on this very core, where
/// watching only keeps it from running.
pub(crate) fn watch(spin: &SpinBudget, beside: bool, stirring: impl Fn() -> bool) -> bool {
    watch_among(&OVERSUBSCRIPTION, spin, beside, stirring)
}

fn watch_among(
    oversubscription: &Oversubscription,
    spin: &SpinBudget,
    beside: bool,
    stirring: impl Fn() -> bool,
) -> bool {
    if !beside {
        // Time passes without a look at the clock: a message that is on its way comes within the first few.
        if spin.briefly() {
            for _ in 0..BRIEF_PAUSES {
                if stirring() {
                    spin.paid();
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        spin.missed_briefly();
    }
    let begun = now_ns();
    if oversubscription.is_there(begun) {
        return stirring();
    }
    spin.brief_misses.store(0, Ordering::Relaxed);
    let limit_ns = spin.limit_ns();
    let mut now = begun;
    while now.saturating_sub(begun) < limit_ns {
        rustix::thread::sched_yield();
        let yielded_ns = now_ns().saturating_sub(now);
        let found = stirring();
        if yielded_ns > SLICE_NS {
            oversubscription.found();
            return found;
        }
        if found || !beside && (0..PAUSES_A_YIELD).any(|_| stirs_after_a_pause(&stirring)) {
            spin.paid();
            return true;
        }
        now = now_ns();
    }
    if now > begun {
        oversubscription.none();
    }
    spin.missed();
    stirring()
}

#[inline]
fn stirs_after_a_pause(stirring: &impl Fn() -> bool) -> bool {
    std::hint::spin_loop();
    stirring()
}

impl SpinBudget {
    pub(crate) const fn new() -> Self {
        Self { misses: AtomicU8::new(0), brief_misses: AtomicU8::new(0), beside: AtomicU16::new(0) }
    }

    /// As new.
    pub(crate) fn forget(&self) {
        self.paid();
        self.beside.store(0, Ordering::Relaxed);
    }

    /// Whether to sleep at once on a word. Two ends that share a core and yield to one another stay there, though another may be idle;
    /// the scheduler looks for one when it wakes a sleeper, so each end sleeps now and then, less and less often.
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

    #[inline]
    fn paid(&self) {
        if self.misses.load(Ordering::Relaxed) | self.brief_misses.load(Ordering::Relaxed) != 0 {
            self.misses.store(0, Ordering::Relaxed);
            self.brief_misses.store(0, Ordering::Relaxed);
        }
    }

    fn missed_briefly(&self) {
        let misses = self.brief_misses.load(Ordering::Relaxed) + 1;
        self.brief_misses.store(if misses == 2 * BRIEF_AGAIN { BRIEF_AGAIN } else { misses }, Ordering::Relaxed);
    }

    fn missed(&self) {
        // Past the number at which the full length is tried it begins anew below it.
        let misses = self.misses.load(Ordering::Relaxed) + 1;
        self.misses.store(if misses > TRIAL { HALVINGS } else { misses }, Ordering::Relaxed);
    }

    /// How long a watch may go on while nobody else wants the core.
    fn limit_ns(&self) -> u64 {
        match self.misses.load(Ordering::Relaxed) {
            TRIAL => LONGEST_NS,
            misses if misses >= HALVINGS => 0,
            misses => LONGEST_NS >> misses,
        }
    }

    /// Whether to watch for a short time at all. Among others that compute that is tried now and then, if it has been in vain.
    #[inline]
    fn briefly(&self) -> bool {
        let misses = self.brief_misses.load(Ordering::Relaxed);
        misses < BRIEF_TRIALS || misses.is_multiple_of(BRIEF_AGAIN)
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
/// In vain so often, it is made once in so many waits.
const BRIEF_TRIALS: u8 = 16;
const BRIEF_AGAIN: u8 = 64;
const PAUSES_A_YIELD: u32 = 64;
/// Longer than waking an idle core and being answered takes, or two ends that both sleep would never find each other awake.
const LONGEST_NS: u64 = 160_000;
/// Misses after which a watch ends at the first, short one; and with which the full length is tried.
const HALVINGS: u8 = 5;
const TRIAL: u8 = 32;
/// Waits beside the other end before a sleep is to part them: so many at first, half of so many in the end.
const PART_MIN: u16 = 8;
const PART_MAX: u16 = 1024;
/// A yield that took longer went to one who computes: shorter than a slice of the scheduler's, longer than a few threads that pass
/// small messages keep each other waiting. Those are better off with yields than with sleeps.
const SLICE_NS: u64 = 500_000;

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn watching_in_vain_is_shortened_and_tried_to_the_full_again_for_ever() {
        let spin = SpinBudget::new();
        let limits: Vec<u64> = (0..200)
            .map(|_| {
                let limit = spin.limit_ns();
                spin.missed();
                limit
            })
            .collect();
        assert_eq!(limits[..7], [LONGEST_NS, 80_000, 40_000, 20_000, 10_000, 0, 0]);
        let trials = limits[7..].iter().filter(|limit| **limit == LONGEST_NS).count();
        assert!((5..=8).contains(&trials) && limits[7..].iter().all(|limit| [0, LONGEST_NS].contains(limit)));
        spin.paid();
        assert_eq!(spin.limit_ns(), LONGEST_NS);
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
    fn when_oversubscribed_the_short_watch_that_is_in_vain_is_made_now_and_then_only() {
        let (oversubscription, spin, looks) = (Oversubscription::new(), SpinBudget::new(), Cell::new(0u32));
        (0..20).for_each(|_| oversubscription.found());
        for _ in 0..1000 {
            assert!(!watch_among(&oversubscription, &spin, false, || {
                looks.set(looks.get() + 1);
                false
            }));
        }
        assert!((1000 + 25 * BRIEF_PAUSES..1000 + 35 * BRIEF_PAUSES).contains(&looks.get()), "{}", looks.get());
        assert!(watch_among(&oversubscription, &spin, true, || true), "one look is made always");
        let spin = SpinBudget::new();
        assert!(watch_among(&oversubscription, &spin, false, || true) && spin.briefly());
    }
}
