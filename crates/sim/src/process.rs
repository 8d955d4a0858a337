//! Processes: threads that live and die together.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use overside_service::{Running, Threads};
use overside_verbs::VerbsError;

use crate::scheduler::Wait;
use crate::world::World;

/// What is done when a process ends by being killed.
type AtKill = Box<dyn FnOnce() + Send>;

/// A process of a world: threads that are killed together.
#[derive(Clone)]
pub struct Process {
    world: World,
    number: usize,
    name: Arc<str>,
    at_kill: Arc<Mutex<Vec<AtKill>>>,
}

/// The process of a thread was killed before the thread returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Killed;

/// A thread that was started; [`join`](Self::join) waits for what it returns.
#[derive(Debug)]
pub struct Handle<T> {
    world: World,
    thread: usize,
    value: Arc<Mutex<Option<T>>>,
}

impl Process {
    pub(crate) fn new(world: World, number: usize, name: &str) -> Process {
        Process { world, number, name: name.into(), at_kill: Arc::default() }
    }

    /// Starts a thread.
    ///
    /// # Panics
    /// When the system has no room for it.
    pub fn spawn<T: Send + 'static>(&self, name: &str, run: impl FnOnce() -> T + Send + 'static) -> Handle<T> {
        let value = Arc::new(Mutex::new(None));
        let run = {
            let value = value.clone();
            move || *value.lock().unwrap_or_else(|e| e.into_inner()) = Some(run())
        };
        let thread = self.start(name, Box::new(run)).expect("the system has room for a thread");
        Handle { world: self.world.clone(), thread, value }
    }

    /// Kills it: its threads never run again, no destructor runs, and what was said by
    /// [`at_kill`](Self::at_kill) is done. Returns only to a caller that does not belong to it.
    pub fn kill(&self) {
        self.world.scheduler.kill(self.number);
        let at_kill = std::mem::take(&mut *self.at_kill.lock().unwrap_or_else(|e| e.into_inner()));
        at_kill.into_iter().for_each(|done| done());
        self.world.scheduler.give_up_if_killed();
    }

    /// What the rest of the world notices of its being killed: that connections end, for example.
    /// It must not wait.
    pub fn at_kill(&self, done: impl FnOnce() + Send + 'static) {
        self.at_kill.lock().unwrap_or_else(|e| e.into_inner()).push(Box::new(done));
    }

    /// Its thread that comes to the marked point `what` as the `number`-th from now on stays there
    /// until the process is killed. That is a thread that sleeps at the worst of times, and a crash
    /// before it wakes.
    pub fn stay_at(&self, what: &'static str, number: u64) {
        self.world.scheduler.stay_at(self.number, what, number);
    }

    /// No thread stays any more; the one that does goes on.
    pub fn stay_nowhere(&self) {
        self.world.scheduler.stay_nowhere(self.number);
    }

    /// Since when a thread stays, in virtual time.
    pub fn stays_since(&self) -> Option<Duration> {
        self.world.scheduler.stays_since(self.number)
    }

    /// Whether a thread of it can still run.
    pub fn is_alive(&self) -> bool {
        self.world.scheduler.lives(self.number)
    }

    /// Starts threads of this process for a server.
    pub fn threads(&self) -> Arc<dyn Threads> {
        Arc::new(self.clone())
    }

    pub(crate) fn start(&self, name: &str, run: Box<dyn FnOnce() + Send>) -> Result<usize, VerbsError> {
        let scheduler = &self.world.scheduler;
        let full = format!("{}/{name}", self.name);
        let number = scheduler.add(&mut scheduler.state(), &full, self.number);
        let world = self.world.clone();
        let thread = std::thread::Builder::new().name(full).stack_size(STACK_BYTES);
        let started = thread.spawn(move || world.carry_out(number, run));
        started.map_err(|e| VerbsError::System { what: "thread", reason: e.to_string() })?;
        Ok(number)
    }
}

impl Threads for Process {
    fn start(&self, name: &str, run: Box<dyn FnOnce() + Send>) -> Result<Running, VerbsError> {
        let (world, thread) = (self.world.clone(), Process::start(self, name, run)?);
        Ok(Running::new(move || await_end(&world, thread)))
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<T> Handle<T> {
    /// Waits for the thread's end.
    ///
    /// # Errors
    /// [`Killed`] when its process was killed before.
    pub fn join(self) -> Result<T, Killed> {
        await_end(&self.world, self.thread);
        self.value.lock().unwrap_or_else(|e| e.into_inner()).take().ok_or(Killed)
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.world.scheduler.has_ended(self.thread)
    }
}

fn await_end(world: &World, thread: usize) {
    while !world.scheduler.has_ended(thread) {
        let wait = Wait { why: "waits for the end", descriptors: Vec::new(), until: None, end_of: Some(thread) };
        world.scheduler.wait(wait);
    }
}

/// Only what is touched of it is memory; a killed thread keeps its own.
const STACK_BYTES: usize = 1 << 20;
