//! Waking a thread that waits by the server's clock.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use overside_verbs::VerbsError;
use rustix::event::EventfdFlags;

use super::sync::AtomicBool;

/// A descriptor that a thread waits for, and whether it was signalled since
/// that thread last looked.
#[derive(Debug)]
pub(crate) struct Wake {
    signalled: AtomicBool,
    fd: OwnedFd,
}

impl Wake {
    /// # Errors
    /// When the system has no descriptor for it.
    pub(crate) fn new() -> Result<Wake, VerbsError> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| VerbsError::System { what: "eventfd", reason: e.to_string() })?;
        Ok(Wake { signalled: AtomicBool::new(false), fd })
    }

    /// Ends the wait, or the next one. Only the first of several signals costs a system call.
    pub(crate) fn signal(&self) {
        if !self.signalled.swap(true, Ordering::SeqCst) {
            // A full counter is awake enough.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Forgets the signals so far; to be called before looking at what they may be for.
    pub(crate) fn look(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8][..]);
        // Last. The other way round, a signal between the two would be drained while it counts as given, and all behind it would be
        // lost. Now one that is under way may make the next wait short, and nothing else.
        self.signalled.swap(false, Ordering::SeqCst);
    }

    /// Readable once it was signalled.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// Signals come one after another, while the one who is woken looks more often than it sleeps.
    #[test]
    fn no_signal_is_lost_that_comes_while_somebody_looks() {
        const SIGNALS: u64 = 3000;
        const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
        let (wake, sent, seen) = (Wake::new().unwrap(), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=SIGNALS {
                    sent.store(number, Ordering::SeqCst);
                    wake.signal();
                    while seen.load(Ordering::SeqCst) < number {
                        std::thread::yield_now();
                    }
                }
            });
            for look in 1.. {
                wake.look();
                seen.store(sent.load(Ordering::SeqCst), Ordering::SeqCst);
                if seen.load(Ordering::SeqCst) == SIGNALS {
                    break;
                }
                // There is another one to come.
                let fd = PollFd::from_borrowed_fd(wake.fd(), PollFlags::IN);
                if look % 4 == 0 && poll(&mut [fd], Some(&PATIENCE)) != Ok(1) {
                    seen.store(SIGNALS, Ordering::SeqCst);
                    panic!("a signal is lost: look {look}, behind signal {}", sent.load(Ordering::SeqCst));
                }
            }
        });
    }
}
