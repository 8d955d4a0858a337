//! A worker that halts at a point of its way, while others go on: what they see of a change that is half done. Or it has a bug
//! there.

use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use overside_table::client::Client;
use overside_verbs::{Clock, SystemClock, VerbsError};

/// The system's time, in which the worker that comes to a point halts or fails there once.
#[derive(Debug)]
pub struct Halting {
    at: &'static str,
    fails: bool,
    wanted: AtomicBool,
    halted: AtomicBool,
    goes_on: AtomicBool,
}

impl Halting {
    pub fn new(at: &'static str) -> Halting {
        let [wanted, halted, goes_on] = [const { AtomicBool::new(false) }; 3];
        Halting { at, fails: false, wanted, halted, goes_on }
    }

    /// It panics instead.
    #[allow(dead_code, reason = "not every test target has one that fails")]
    pub fn failing(at: &'static str) -> Halting {
        Halting { fails: true, ..Halting::new(at) }
    }

    /// The next worker that comes to the point is the one.
    pub fn expect(&self) {
        self.wanted.store(true, Ordering::Release);
    }

    /// The worker that carries out `first` halts, and goes on when `then` is done. Others, of which one goes to the other worker,
    /// make the calls of `then`; the first outcome is given back. `crash` comes before the worker goes on.
    pub fn halted<T: Send>(
        &self,
        first: impl FnOnce() + Send,
        others: Vec<Client>,
        then: impl Fn(&mut Client) -> Option<T> + Sync,
        crash: impl FnOnce(),
    ) -> T {
        let done = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            self.expect();
            scope.spawn(first);
            until("a worker halts", || self.halted.load(Ordering::Acquire));
            for mut other in others {
                let (then, done) = (&then, &done);
                scope.spawn(move || {
                    if let Some(outcome) = then(&mut other) {
                        done.lock().unwrap().push(outcome);
                    }
                });
            }
            until("the other worker has answered", || !done.lock().unwrap().is_empty());
            crash();
            self.goes_on.store(true, Ordering::Release);
        });
        done.into_inner().unwrap().remove(0)
    }
}

impl Clock for Halting {
    fn now(&self) -> Instant {
        SystemClock.now()
    }
    fn wait(&self, descriptors: &[BorrowedFd<'_>], until: Option<Instant>) -> Result<(), VerbsError> {
        SystemClock.wait(descriptors, until)
    }
    fn fill(&self, bytes: &mut [u8]) -> Result<(), VerbsError> {
        SystemClock.fill(bytes)
    }
    fn point(&self, what: &'static str) {
        if what == self.at && self.wanted.swap(false, Ordering::AcqRel) {
            assert!(!self.fails, "planted");
            self.halted.store(true, Ordering::Release);
            until("it may go on", || self.goes_on.load(Ordering::Acquire));
        }
    }
}

pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
