//! A port's thread: carries out what peers ask while the port's owner is away, and sleeps
//! otherwise.
//!
//! While the owner calls in, the thread looks once every few milliseconds whether it still does,
//! and sends what was posted since and still waits for company (`holding`). When it no longer does,
//! the thread waits at the sockets itself, and nothing waits for company. So an active port has a
//! few wake-ups a second, an idle one none, and a target that never calls in answers all the same.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use overside_verbs::VerbsError;

use crate::port::Inner;
use crate::watch::wait_readable;

/// Starts the thread of a port.
pub(crate) fn start(inner: Arc<Inner>) -> Result<(), VerbsError> {
    let thread = std::thread::Builder::new().name("overside-tcp".to_owned()).stack_size(STACK_BYTES);
    thread.spawn(move || run(&inner)).map(drop).map_err(|e| VerbsError::no_thread(&e))
}

fn run(inner: &Inner) {
    let ended = || inner.ended.load(Ordering::Acquire);
    let calls = || inner.calls.load(Ordering::Relaxed);
    while !ended() {
        let seen = calls();
        {
            let mut engine = inner.lock();
            engine.watch_over();
            engine.tick();
        }
        rest(inner, &[], Some(TICK));
        if calls() != seen {
            continue;
        }
        stand_in(inner, seen);
    }
}

/// Until the owner calls in again.
fn stand_in(inner: &Inner, seen: u64) {
    let away = || inner.calls.load(Ordering::Relaxed) == seen && !inner.ended.load(Ordering::Acquire);
    let mut sure = false;
    while away() {
        let (quiet, timed) = {
            let mut engine = inner.lock();
            engine.may_hold = false;
            engine.settle();
            engine.ring();
            let quiet = !engine.has_more();
            engine.thread_sleeps = quiet;
            (quiet, engine.is_timed())
        };
        if quiet {
            rest(inner, &[inner.watch.as_fd()], timed.then_some(TIMED));
            inner.lock().thread_sleeps = false;
        }
        // The owner may have been woken by the same: it goes first.
        if !sure {
            rest(inner, &[], Some(GRACE));
            sure = true;
        }
        if !away() {
            return;
        }
        let mut engine = inner.lock();
        engine.turn(usize::MAX);
        engine.tick();
        engine.ring();
    }
}

/// Sleeps until the port's signal or one of `others` is readable, or the time is over.
fn rest(inner: &Inner, others: &[BorrowedFd<'_>], limit: Option<Duration>) {
    let mut all = vec![inner.signal.as_fd()];
    all.extend(others);
    wait_readable(&all, limit);
    inner.signal.drain();
}

/// Between two looks whether the owner calls in.
const TICK: Duration = Duration::from_millis(5);
/// How long an owner that was woken may take to call in.
const GRACE: Duration = Duration::from_millis(1);
/// Between two looks at deadlines.
const TIMED: Duration = Duration::from_millis(250);
const STACK_BYTES: usize = 256 << 10;
