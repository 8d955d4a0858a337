//! Sleeping on a word in shared memory, for a moment: a hand-over by futex, without a
//! byte in the kernel's stream.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::thread::{ClockId, Timespec, futex};

use crate::spin;
use crate::word::Word;

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slept {
    /// The word has changed, or somebody says so.
    Woken,
    /// By a signal whose handler does not want calls to go on.
    Interrupted,
    /// Nobody came.
    InVain,
}

/// Whether this kernel can do it; a filter of system calls may forbid it.
#[inline]
pub(crate) fn is_possible() -> bool {
    !IMPOSSIBLE.load(Ordering::Relaxed)
}

/// Sleeps as long as the word has this value, some milliseconds at most. Restarted after a
/// signal as `recv` would be.
pub(crate) fn sleep(word: &Word, value: u64) -> Slept {
    sleep_for(word, value, AT_MOST_NS)
}

/// The same, for no longer than that, and ended by every signal that is handled: the kernel
/// restarts no call that has a limit.
pub(crate) fn sleep_within(word: &Word, value: u64, limit_ns: u64) -> Slept {
    let limit = Timespec { tv_sec: 0, tv_nsec: limit_ns.min(AT_MOST_NS) as i64 };
    match futex::wait(word.half(), futex::Flags::empty(), value as u32, Some(&limit)) {
        Ok(()) | Err(Errno::AGAIN) => Slept::Woken,
        Err(Errno::INTR) => Slept::Interrupted,
        Err(_) => Slept::InVain,
    }
}

/// Wakes all that sleep on it.
#[cold]
pub(crate) fn wake(word: &Word) {
    #[cfg(test)]
    if crate::explore::futex_wake(word) {
        return;
    }
    let _ = futex::wake(word.half(), futex::Flags::empty(), i32::MAX as u32);
}

fn sleep_for(word: &Word, value: u64, limit_ns: u64) -> Slept {
    // Of all ways to wait for a word with a limit this one alone goes on after signals as SA_RESTART says.
    let mut waiter = futex::Wait::new();
    waiter.val = value & u64::from(u32::MAX);
    waiter.uaddr = futex::WaitPtr::new(std::ptr::from_ref(word.half()).cast_mut().cast());
    waiter.flags = futex::WaitFlags::SIZE_U32;
    let until = spin::now_ns().saturating_add(limit_ns);
    let until = Timespec { tv_sec: (until / 1_000_000_000) as i64, tv_nsec: (until % 1_000_000_000) as i64 };
    match futex::waitv(&[waiter], futex::WaitvFlags::empty(), Some(&until), ClockId::Monotonic) {
        Ok(_) | Err(Errno::AGAIN) => Slept::Woken,
        Err(Errno::INTR) => Slept::Interrupted,
        Err(Errno::TIMEDOUT) => Slept::InVain,
        Err(_) => {
            IMPOSSIBLE.store(true, Ordering::Relaxed);
            Slept::InVain
        }
    }
}

static IMPOSSIBLE: AtomicBool = AtomicBool::new(false);
/// What else happens to a connection is noticed with this delay: its peer killed, or
/// shut down by another thread.
const AT_MOST_NS: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    const LONG_NS: u64 = 60_000_000_000;
    static CAUGHT: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn caught(_: libc::c_int) {
        CAUGHT.fetch_add(1, Ordering::SeqCst);
    }

    fn handle(flags: libc::c_int) {
        // SAFETY: a handler that counts.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = caught as *const () as usize;
            action.sa_flags = flags;
            assert_eq!(libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()), 0);
        }
    }

    #[test]
    fn a_sleeper_is_woken_and_signals_end_its_sleep_as_they_end_a_receive() {
        let word = Word::new(7);
        assert_eq!(sleep_for(&word, 8, LONG_NS), Slept::Woken, "it has changed already");
        assert_eq!(sleep_for(&word, 7, 1), Slept::InVain);
        assert_eq!((sleep_within(&word, 8, LONG_NS), sleep_within(&word, 7, 1)), (Slept::Woken, Slept::InVain));
        for (flags, wanted) in [(libc::SA_RESTART, Slept::Woken), (0, Slept::Interrupted)] {
            handle(flags);
            std::thread::scope(|scope| {
                let (send, receive) = std::sync::mpsc::channel();
                let word = &word;
                let sleeper = scope.spawn(move || {
                    // SAFETY: this very thread.
                    send.send(unsafe { libc::pthread_self() }).unwrap();
                    let slept = sleep_for(word, word.load(Ordering::SeqCst), LONG_NS);
                    // SAFETY: this very thread.
                    send.send(unsafe { libc::pthread_self() }).unwrap();
                    slept
                });
                let thread = receive.recv().unwrap();
                let before = CAUGHT.load(Ordering::SeqCst);
                // Until one has ended the sleep, or many have come that must not.
                let goes_on = flags == libc::SA_RESTART;
                while receive.try_recv().is_err() && !(goes_on && CAUGHT.load(Ordering::SeqCst) > before + 20) {
                    // SAFETY: not joined yet.
                    unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
                    std::thread::sleep(Duration::from_millis(1));
                }
                word.fetch_add(1, Ordering::SeqCst);
                while !sleeper.is_finished() {
                    wake(word);
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(sleeper.join().unwrap(), wanted);
            });
        }
    }
}
