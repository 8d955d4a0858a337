//! Walks the shipped code of two ends through every order in which their threads can run.
//!
//! What a thread does under a connection's lock is one *section*: a receive, a send, a look before
//! a sleep, the way back to the kernel, a close. A section runs the library's own functions. Each
//! access to a shared word, to the kernel's stream, to an eventfd or to the count of sleepers is
//! one step, and any other thread may come in before it. To go on with a section, its function is
//! run again from the start, on a stack of its own (`fiber`). A log answers the steps done so far.
//! The next step is done, and at the one behind it the function is left. So nothing of the library
//! is written down here a second time.
//!
//! The kernel is a model (`kernel`): a bounded stream each way, eventfds, a set of epoll (`set`),
//! and sleeps that end only if what wakes is still there when the sleeper runs.
//!
//! Checked in every state: bytes arrive once and in order. The end of the stream is reported when
//! all bytes were read, and an error only when there is a reason for one. No descriptor is used but
//! those of the connection. Checked of the whole: from every state that can be reached all programs
//! can still come to their end. A lost wake-up, a deadlock, bytes that nobody brings: each is a
//! state from which they cannot.

mod fiber;
mod kernel;
mod programs;
mod scenarios;
mod set;
mod world;

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::Pid;

use crate::connection::Connection;
use crate::count::Counts;
use crate::fault::Fault;
use crate::layout::SharedMemory;

use kernel::Kernel;
pub(crate) use kernel::{
    borrow, break_off, events, futex_wake, give, pending, read_eventfd, reset_by_close, take, takes, write_eventfd,
};
use set::Watched;
pub(crate) use set::{epoll_ctl, lists, member};

/// What a step came to, as it is kept in a log.
pub(crate) type Packed = [u64; 2];

pub(crate) trait Outcome {
    fn pack(&self) -> Packed;
    fn unpack(packed: Packed) -> Self;
}

impl Outcome for () {
    fn pack(&self) -> Packed {
        [0; 2]
    }
    fn unpack(_: Packed) {}
}

impl Outcome for u64 {
    fn pack(&self) -> Packed {
        [*self, 0]
    }
    fn unpack(packed: Packed) -> Self {
        packed[0]
    }
}

impl Outcome for bool {
    fn pack(&self) -> Packed {
        [u64::from(*self), 0]
    }
    fn unpack(packed: Packed) -> Self {
        packed[0] != 0
    }
}

impl Outcome for Result<u64, u64> {
    fn pack(&self) -> Packed {
        match *self {
            Ok(value) => [value, 0],
            Err(value) => [value, 1],
        }
    }
    fn unpack(packed: Packed) -> Self {
        if packed[1] == 0 { Ok(packed[0]) } else { Err(packed[0]) }
    }
}

impl Outcome for Result<usize, Errno> {
    fn pack(&self) -> Packed {
        match *self {
            Ok(value) => [value as u64, 0],
            Err(error) => [error.raw_os_error() as u64, 1],
        }
    }
    fn unpack(packed: Packed) -> Self {
        if packed[1] == 0 { Ok(packed[0] as usize) } else { Err(Errno::from_raw_os_error(packed[0] as i32)) }
    }
}

impl Outcome for PollFlags {
    fn pack(&self) -> Packed {
        [u64::from(self.bits()), 0]
    }
    fn unpack(packed: Packed) -> Self {
        Self::from_bits_retain(packed[0] as u16)
    }
}

/// The section that is run.
struct Run {
    log: Vec<Packed>,
    at: usize,
    spent: bool,
    /// Within a step; and one that cannot be done as things stand.
    within: bool,
    blocked: bool,
    kernel: Kernel,
    clock: u64,
    visible: Visible,
    connections: [&'static Connection; PROCESSES],
    shared: SharedMemory,
    process: usize,
    common: &'static Counts,
    watched: Option<Watched>,
}

thread_local! {
    static RUN: RefCell<Option<Run>> = const { RefCell::new(None) };
    static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
}

/// Whether this fault is planted into the code that is run.
pub(crate) fn is_planted(fault: Fault) -> bool {
    PLANTED.get() == Some(fault)
}

/// Which words' accesses are steps.
#[derive(Clone, Copy, Debug)]
struct Visible {
    page: usize,
    /// Of the words there, a bit each; and those that the end which runs alone writes, of
    /// which it knows what they say.
    words: u128,
    known: u128,
    /// The counts of those that a fork has made share them.
    common: (usize, usize),
    live: [usize; 5],
}

impl Visible {
    fn has(&self, at: usize) -> bool {
        match at.checked_sub(self.page).filter(|at| *at < BITS) {
            Some(at) => self.words >> (at / 8) & 1 == 1,
            None => (self.common.0..self.common.1).contains(&at) || self.live.contains(&at),
        }
    }

    fn knows(&self, at: usize) -> bool {
        at.checked_sub(self.page).is_some_and(|at| at < BITS && self.known >> (at / 8) & 1 == 1)
    }
}

/// Whether nobody but the end that runs writes this word.
pub(crate) fn is_known(at: usize) -> bool {
    RUN.with_borrow(|run| run.as_ref().is_some_and(|run| run.visible.knows(at)))
}

/// One access to memory.
pub(crate) fn access<T: Outcome>(at: usize, f: impl FnOnce() -> T) -> T {
    let visible = RUN.with_borrow(|run| run.as_ref().is_some_and(|run| run.visible.has(at)));
    if visible { step(f) } else { f() }
}

/// One step of a section.
fn step<T: Outcome>(f: impl FnOnce() -> T) -> T {
    enum Next {
        Again(Packed),
        Now,
        Plainly,
        Leave,
    }
    let next = RUN.with_borrow_mut(|run| {
        let Some(run) = run.as_mut().filter(|run| !run.within) else { return Next::Plainly };
        if let Some(said) = run.log.get(run.at) {
            run.at += 1;
            Next::Again(*said)
        } else if run.spent {
            Next::Leave
        } else {
            run.spent = true;
            Next::Now
        }
    });
    match next {
        Next::Again(said) => T::unpack(said),
        Next::Plainly => f(),
        Next::Leave => fiber::leave(),
        Next::Now => {
            let value = f();
            RUN.with_borrow_mut(|run| {
                if let Some(run) = run {
                    run.log.push(value.pack());
                    run.at += 1;
                }
            });
            value
        }
    }
}

/// What a copy out of a ring has brought: the ring may be written anew before
/// the section is run again.
pub(crate) fn note_bytes(at: *mut u8, len: usize) {
    let len = len.min(8);
    RUN.with_borrow_mut(|run| {
        let Some(run) = run else { return };
        if let Some(said) = run.log.get(run.at) {
            // SAFETY: the caller's buffer, of so many bytes.
            unsafe { at.copy_from_nonoverlapping(said[0].to_le_bytes().as_ptr(), len) };
        } else {
            let mut bytes = [0; 8];
            // SAFETY: as above.
            unsafe { at.copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
            run.log.push([u64::from_le_bytes(bytes), 0]);
        }
        run.at += 1;
    });
}

/// One step, which can be done once this comes to something.
pub(crate) fn when(mut come: impl FnMut() -> Option<u64>) -> u64 {
    step(|| {
        within(true);
        let came = come();
        within(false);
        came.unwrap_or_else(|| {
            RUN.with_borrow_mut(|run| run.as_mut().unwrap().blocked = true);
            fiber::leave();
        })
    })
}

fn within(now: bool) {
    RUN.with_borrow_mut(|run| run.as_mut().unwrap().within = now);
}

/// Runs a section up to its next step but one. None when it is not at its end.
fn run<T>(run: Run, section: impl FnOnce() -> T) -> (Run, Result<Option<T>, String>) {
    RUN.set(Some(run));
    let (mut section, mut ended) = (Some(section), None);
    fiber::enter(&mut || ended = section.take().map(|section| catch_unwind(AssertUnwindSafe(section))));
    let run = RUN.take().unwrap();
    let ended = match ended {
        None => Ok(None),
        Some(Ok(value)) => Ok(Some(value)),
        Some(Err(what)) => Err(what.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic".to_owned())),
    };
    (run, ended)
}

pub(crate) fn is_on() -> bool {
    RUN.with_borrow(Option::is_some)
}

/// The connection that a descriptor of the explorer's names.
pub(crate) fn connection(fd: c_int) -> Option<&'static Connection> {
    RUN.with_borrow(|run| {
        let process = usize::try_from(fd.checked_sub(SOCKETS)?).ok()?;
        run.as_ref()?.connections.get(process).copied()
    })
}

/// The time, which goes on when a short sleep ends.
pub(crate) fn now_ns() -> Option<u64> {
    RUN.with_borrow(|run| run.as_ref().map(|run| run.clock))
}

/// Whether nobody else has the socket of the process that runs: a step.
pub(crate) fn is_alone() -> Option<bool> {
    let process = RUN.with_borrow(|run| run.as_ref().map(|run| run.process))?;
    Some(step(|| RUN.with_borrow(|run| run.as_ref().is_some_and(|run| run.kernel.is_alone(process)))))
}

/// The number of the process that runs.
pub(crate) fn own_number() -> Option<Pid> {
    RUN.with_borrow(|run| run.as_ref().and_then(|run| Pid::from_raw(run.process as i32 + 1)))
}

/// Whether the process of this number has ended: a step.
pub(crate) fn is_dead(process: Pid) -> Option<bool> {
    let process = process.as_raw_nonzero().get() as usize - 1;
    let is_open = || RUN.with_borrow(|run| run.as_ref().is_some_and(|run| run.kernel.open[process]));
    is_on().then(|| !step(is_open))
}

/// Where counts lie that a fork has made common.
pub(crate) fn common_page() -> Option<NonNull<Counts>> {
    RUN.with_borrow(|run| run.as_ref().map(|run| NonNull::from(run.common)))
}

/// End 0, end 1, and a child of end 1's.
const PROCESSES: usize = 3;
/// Their sockets' numbers, and those of the eventfds of end 0 and end 1.
const SOCKETS: c_int = 1_000_000;
const EVENTFDS: c_int = 1_000_100;
/// Bytes of words that a bit each stands for.
const BITS: usize = 1024;
