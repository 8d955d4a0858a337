//! Closing descriptors of which nobody knows what they are.
//!
//! A close may wait: a TCP socket's for its last bytes as long as its last owner wished
//! (`SO_LINGER`), a file's for whoever serves its file system. So a thread of its own closes what a
//! peer passed, unless it is a memory file, whose close never waits. The thread is made when there
//! is something to close and ends when there is nothing. Threads that stand still are few, what
//! waits for them is bounded, and what comes then stays open for good, counted; connections are
//! refused as long as that is so.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Hands a descriptor over to be closed. Never waits.
pub(crate) fn close(descriptor: OwnedFd) {
    let mut closing = lock();
    if closing.waiting.len() >= WAITING_MAX {
        std::mem::forget(descriptor);
        closing.left_open += 1;
        return;
    }
    closing.waiting.push_back(descriptor);
    if closing.waiting.len() > closing.idle && closing.threads < THREADS_MAX {
        let spawned = std::thread::Builder::new().name("shm-close".to_owned()).spawn(run);
        closing.threads += usize::from(spawned.is_ok());
    }
    WORK.notify_one();
}

/// Why nobody is let in for now: what earlier ones passed does not close.
pub(crate) fn overwhelmed() -> Option<String> {
    let closing = lock();
    let (waiting, left) = (closing.waiting.len(), closing.left_open);
    (waiting >= WAITING_MAX).then(|| {
        format!(
            "{waiting} descriptors that peers passed wait to be closed and {left} were left open; end the program that passes files whose \
             close waits"
        )
    })
}

/// Closes what comes, until nothing has come for a while.
fn run() {
    let mut closing = lock();
    loop {
        if let Some(descriptor) = closing.waiting.pop_front() {
            drop(closing);
            // Only sockets linger, and no longer where they are told not to; everything else
            // refuses this at once.
            let _ = rustix::net::sockopt::set_socket_linger(descriptor.as_fd(), None);
            drop(descriptor);
            closing = lock();
            continue;
        }
        closing.idle += 1;
        let waited = WORK.wait_timeout(closing, IDLE).unwrap_or_else(PoisonError::into_inner);
        closing = waited.0;
        closing.idle -= 1;
        if waited.1.timed_out() && closing.waiting.is_empty() {
            closing.threads -= 1;
            return;
        }
    }
}

fn lock() -> MutexGuard<'static, Closing> {
    CLOSING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct Closing {
    waiting: VecDeque<OwnedFd>,
    threads: usize,
    /// Threads that wait for something to close.
    idle: usize,
    /// Descriptors that nobody closes any more.
    left_open: u64,
}

static CLOSING: Mutex<Closing> = Mutex::new(Closing { waiting: VecDeque::new(), threads: 0, idle: 0, left_open: 0 });
static WORK: Condvar = Condvar::new();
/// Threads that may stand still at once.
const THREADS_MAX: usize = 8;
/// Descriptors that wait for a thread: as many as a few messages carry, and far fewer than a
/// process may have open.
const WAITING_MAX: usize = 512;
/// How long a thread waits for more.
const IDLE: Duration = Duration::from_secs(1);
