//! A world: what it is started with, and how it ended.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use overside_verbs::Clock;

use crate::chance::Chance;
use crate::clock::WorldClock;
use crate::process::Process;
use crate::scheduler::Scheduler;
use crate::trace::Trace;

/// A handle to a running world.
#[derive(Clone, Debug)]
pub struct World {
    seed: u64,
    pub(crate) scheduler: Arc<Scheduler>,
    clock: Arc<WorldClock>,
    processes: Arc<Mutex<usize>>,
}

/// How a world ended.
#[derive(Clone, Debug)]
pub struct Ended<T> {
    /// What its main thread returned.
    pub value: T,
    /// What happened in it.
    pub trace: Trace,
}

/// Why a world did not end well, with what happened last.
#[derive(Clone, Debug)]
pub struct Failed {
    /// Why.
    pub failure: Failure,
    /// What happened in it.
    pub trace: Trace,
}

/// Why a world did not end well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No thread can run, and none waits for a time.
    Deadlock {
        /// Who waits for what.
        waiting: Vec<String>,
    },
    /// It goes on beyond the virtual time that it may take.
    Endless {
        /// Who waits for what.
        waiting: Vec<String>,
    },
    /// A thread panicked.
    Panicked {
        /// Which.
        thread: String,
        /// With what.
        message: String,
    },
    /// The thread that has its turn waits for another one where the world does not see it: it holds
    /// a lock over a wait, or waits for a thread by other means than the world's.
    Stuck {
        /// Which.
        thread: String,
    },
}

impl World {
    /// Runs `main` as the first thread of the world of `seed`. The world ends with it: threads that
    /// are left are never scheduled again.
    ///
    /// # Errors
    /// When a thread panicked, or none can run any more.
    pub fn run<T, F>(seed: u64, main: F) -> Result<Ended<T>, Failed>
    where
        T: Send + 'static,
        F: FnOnce(&World) -> T + Send + 'static,
    {
        let scheduler = Arc::new(Scheduler::new(seed));
        let clock = Arc::new(WorldClock::new(scheduler.clone(), Chance::of(seed, "clock")));
        let world = World { seed, scheduler, clock, processes: Arc::default() };
        let process = world.process("main");
        let value = Arc::new(Mutex::new(None));
        let run = {
            let (world, value) = (world.clone(), value.clone());
            move || *value.lock().unwrap_or_else(|e| e.into_inner()) = Some(main(&world))
        };
        process.start("main", Box::new(run)).expect("the system has room for a thread");
        world.scheduler.begin();
        let mut state = world.scheduler.await_end();
        let (ended, trace) = (state.ended.clone(), std::mem::take(&mut state.trace));
        drop(state);
        let value = value.lock().unwrap_or_else(|e| e.into_inner()).take();
        match (ended, value) {
            (Some(Ok(())), Some(value)) => Ok(Ended { value, trace }),
            (Some(Err(failure)), _) => Err(Failed { failure, trace }),
            (_, _) => Err(Failed { failure: Failure::Stuck { thread: "main".into() }, trace }),
        }
    }

    /// Its seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Its time, waits and chance.
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    /// Virtual time since its beginning.
    pub fn passed(&self) -> Duration {
        self.scheduler.passed()
    }

    /// A stream of chance for `what`.
    pub fn chance(&self, what: &str) -> Chance {
        Chance::of(self.seed, what)
    }

    /// A new process.
    pub fn process(&self, name: &str) -> Process {
        let mut processes = self.processes.lock().unwrap_or_else(|e| e.into_inner());
        *processes += 1;
        Process::new(self.clone(), *processes - 1, name)
    }

    /// A marked point of this thread: it enters the trace, and another thread may go on.
    pub fn point(&self, what: &'static str, number: u64) {
        self.scheduler.point(what, number);
    }

    /// Enters into the trace what a thread saw, and goes on.
    pub fn note(&self, what: &'static str, number: u64) {
        self.scheduler.note(&mut self.scheduler.state(), what, number);
    }

    /// How long a thread sleeps at most at a marked point; zero where none does in this world.
    pub fn nap_max(&self) -> Duration {
        self.scheduler.state().nap_max()
    }

    /// The virtual time within which the world must have ended; a day unless said.
    pub fn end_within(&self, time: Duration) {
        self.scheduler.state().set_time_max(time);
    }

    /// Calls what a thread is there for, and ends the world with its panic.
    pub(crate) fn carry_out(&self, thread: usize, run: impl FnOnce()) {
        self.scheduler.enter(thread);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            let message = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let message = message.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            let mut state = self.scheduler.state();
            let thread = state.name(thread).to_owned();
            return self.scheduler.end(&mut state, Err(Failure::Panicked { thread, message }));
        }
        if thread == 0 {
            let mut state = self.scheduler.state();
            self.scheduler.end(&mut state, Ok(()));
        } else {
            self.scheduler.leave();
        }
    }
}

impl std::error::Error for Failed {}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.failure)?;
        let Failed { trace, .. } = self;
        writeln!(f, "trace {:016x} of {} events, the last of them:", trace.hash(), trace.count())?;
        trace.last().try_for_each(|event| writeln!(f, "{event}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Deadlock { waiting } => {
                write!(f, "deadlock: no thread can run and no time is waited for: {}", waiting.join("; "))
            }
            Failure::Endless { waiting } => {
                write!(f, "the world did not end within its virtual time: {}", waiting.join("; "))
            }
            Failure::Panicked { thread, message } => write!(f, "{thread} panicked: {message}"),
            Failure::Stuck { thread } => write!(
                f,
                "{thread} has its turn and does nothing that the world sees: it waits for a lock \
                 that another thread holds over a wait, or outside of the world's clock"
            ),
        }
    }
}
