//! How a tree tells time and waits for other threads.
//!
//! A tree waits for one thing alone: for memory that a thread which was put to sleep inside of it
//! still holds back. A simulation puts its scheduler there.

use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time and waiting, as a tree needs them.
pub trait Waits: Send + Sync + fmt::Debug {
    /// Time since any one moment; it never goes back.
    fn now(&self) -> Duration;

    /// Lets other threads run; `times` counts the calls of one wait, from 1 on.
    fn pause(&self, times: usize);
}

/// The operating system's.
#[derive(Clone, Copy, Debug)]
pub struct System;

impl Waits for System {
    fn now(&self) -> Duration {
        // By the C library's clock: rustix looks for the kernel's own page of code, which programs
        // that run under callgrind do not have.
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }

    /// Yields first. Then it sleeps for a time that grows to 32 ms: who is waited for may have no
    /// processor.
    #[cfg(not(shuttle))]
    fn pause(&self, times: usize) {
        let pause = match times.checked_sub(YIELDS) {
            None => return std::thread::yield_now(),
            Some(more) => Duration::from_millis(1 << more.min(5)),
        };
        let until = self.now() + pause;
        while let Some(left) = until.checked_sub(self.now()).filter(|left| !left.is_zero()) {
            let left = rustix::time::Timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) };
            let _ = rustix::thread::nanosleep(&left);
        }
    }

    #[cfg(shuttle)]
    fn pause(&self, _: usize) {
        shuttle::thread::yield_now();
    }
}

#[cfg(not(shuttle))]
const YIELDS: usize = 12;
