//! Time, waiting and chance, from one handle.
//!
//! Whatever takes time from a [`Clock`] can be run by another one: a test steps it by hand, a
//! simulation draws it from a seed. A provider hands out the clock that its ports wait by
//! ([`Provider::clock`](crate::Provider::clock)), so what stands on a provider asks that one.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;
use smallvec::SmallVec;

use crate::VerbsError;
use crate::watch::{failed, timespec};

/// Where time, sleep and chance come from.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The time. It never goes back.
    fn now(&self) -> Instant;

    /// Waits until one of `descriptors` is readable or the time is `until`; for ever where that is
    /// none. It may return earlier, as after a signal, so the caller looks again.
    ///
    /// # Errors
    /// When the system refuses.
    fn wait(&self, descriptors: &[BorrowedFd<'_>], until: Option<Instant>) -> Result<(), VerbsError>;

    /// Fills `bytes` by chance: for nonces, keys and jitter.
    ///
    /// # Errors
    /// When the system has no entropy.
    fn fill(&self, bytes: &mut [u8]) -> Result<(), VerbsError>;

    /// A place between two steps that another thread may see apart. A simulation may let others run
    /// here; every other clock does nothing. The caller must hold no lock.
    fn point(&self, _what: &'static str) {}
}

impl dyn Clock {
    /// Waits for `duration`, however often it is interrupted.
    pub fn sleep(&self, duration: Duration) {
        let until = self.now() + duration;
        while self.now() < until && self.wait(&[], Some(until)).is_ok() {}
    }
}

/// The operating system's clock, poll and entropy.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl SystemClock {
    /// The same as a handle.
    pub fn handle() -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn wait(&self, descriptors: &[BorrowedFd<'_>], until: Option<Instant>) -> Result<(), VerbsError> {
        let left = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        let mut watched: SmallVec<[PollFd<'_>; 4]> =
            descriptors.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        match rustix::event::poll(&mut watched, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(failed("poll", errno)),
        }
    }

    fn fill(&self, bytes: &mut [u8]) -> Result<(), VerbsError> {
        let mut filled = 0;
        while filled < bytes.len() {
            // At most so many come whole, whatever the system's pool holds.
            let mut some = [MaybeUninit::<u8>::uninit(); 256];
            let wanted = some.len().min(bytes.len() - filled);
            match rustix::rand::getrandom(&mut some[..wanted], GetRandomFlags::empty()) {
                Ok((got, _)) => {
                    bytes[filled..filled + got.len()].copy_from_slice(got);
                    filled += got.len();
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed("getrandom", errno)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_wait_ends_with_its_time_or_its_descriptor() {
        let clock = SystemClock::handle();
        let (reader, writer) = std::io::pipe().unwrap();
        let start = clock.now();
        clock.wait(&[reader.as_fd()], Some(start + Duration::from_millis(20))).unwrap();
        assert!(clock.now() >= start + Duration::from_millis(20), "nothing was readable");
        std::io::Write::write_all(&mut &writer, b"x").unwrap();
        clock.wait(&[reader.as_fd()], None).unwrap();
        clock.wait(&[], Some(start)).unwrap();
    }

    #[test]
    fn chance_fills_all_of_it() {
        let mut bytes = [0; 1000];
        SystemClock.fill(&mut bytes).unwrap();
        // Of 125 words of eight bytes none is zero, but for a chance of one in 2^57.
        assert!(bytes.chunks(8).all(|word| word.iter().any(|byte| *byte != 0)));
    }
}
