//! A clock that a test steps by hand.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use overside_verbs::watch::Signal;
use overside_verbs::{Clock, SystemClock, VerbsError};

/// Time that passes only by [`step`](Self::step). Who waits for a descriptor is woken by it as
/// ever; who waits for a time is woken by the step that reaches it.
#[derive(Debug)]
pub struct SteppedClock {
    start: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    passed: Duration,
    /// Chance: the same for every clock with the same seed and the same questions.
    seed: u64,
    next: u64,
    sleepers: BTreeMap<u64, (Option<Instant>, Arc<Signal>)>,
}

impl SteppedClock {
    /// At its beginning, with chance from `seed`.
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self { start: SystemClock.now(), state: Mutex::new(State { seed, ..State::default() }) })
    }

    /// Lets time pass.
    pub fn step(&self, by: Duration) {
        let mut state = self.state();
        state.passed += by;
        let now = self.start + state.passed;
        let due = state.sleepers.values().filter(|(until, _)| until.is_some_and(|until| until <= now));
        due.for_each(|(_, signal)| signal.notify());
    }

    /// Time that has passed.
    pub fn passed(&self) -> Duration {
        self.state().passed
    }

    /// Threads that wait for a time or for a descriptor now.
    pub fn sleepers(&self) -> usize {
        self.state().sleepers.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for SteppedClock {
    fn now(&self) -> Instant {
        self.start + self.state().passed
    }

    fn wait(&self, descriptors: &[BorrowedFd<'_>], until: Option<Instant>) -> Result<(), VerbsError> {
        let stepped = Arc::new(Signal::new()?);
        let number = {
            let mut state = self.state();
            if until.is_some_and(|until| until <= self.start + state.passed) {
                return Ok(());
            }
            state.next += 1;
            let number = state.next;
            state.sleepers.insert(number, (until, stepped.clone()));
            number
        };
        let mut all: Vec<BorrowedFd<'_>> = descriptors.to_vec();
        all.push(stepped.as_fd());
        let waited = SystemClock.wait(&all, None);
        self.state().sleepers.remove(&number);
        stepped.drain();
        waited
    }

    fn fill(&self, bytes: &mut [u8]) -> Result<(), VerbsError> {
        let mut state = self.state();
        for chunk in bytes.chunks_mut(8) {
            // SplitMix64.
            state.seed = state.seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut word = state.seed;
            word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            chunk.copy_from_slice(&(word ^ (word >> 31)).to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_ends_with_the_step_that_reaches_it() {
        let clock = SteppedClock::new(1);
        let handle: Arc<dyn Clock> = clock.clone();
        let sleeper = std::thread::spawn(move || handle.sleep(Duration::from_secs(3600)));
        while clock.sleepers() == 0 {
            std::thread::yield_now();
        }
        clock.step(Duration::from_secs(3599));
        assert!(!sleeper.is_finished());
        clock.step(Duration::from_secs(1));
        sleeper.join().unwrap();
        assert_eq!(clock.passed(), Duration::from_secs(3600));
    }

    #[test]
    fn chance_is_of_the_seed() {
        let drawn = |seed| {
            let mut bytes = [0; 21];
            SteppedClock::new(seed).fill(&mut bytes).unwrap();
            bytes
        };
        assert_eq!(drawn(7), drawn(7));
        assert_ne!(drawn(7), drawn(8));
    }
}
