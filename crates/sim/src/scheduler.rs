//! Who runs: one thread at a time, chosen by the seed, in virtual time.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use overside_verbs::{Clock, SystemClock};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::thread::CpuSet;

use crate::chance::Chance;
use crate::trace::{Event, Trace};
use crate::world::Failure;

/// The threads of a world, and whose turn it is.
#[derive(Debug)]
pub(crate) struct Scheduler {
    start: Instant,
    /// Virtual time since the start, in ns. Written only by the thread that has the turn.
    passed: AtomicU64,
    /// How often its time was asked for since the last change of hands.
    asked: AtomicU32,
    /// The processor that all threads run on: handing over within one costs a tenth of waking
    /// another.
    processor: CpuSet,
    state: Mutex<State>,
    /// The world has come to its end.
    over: Condvar,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) chance: Chance,
    pub(crate) trace: Trace,
    pub(crate) ended: Option<Result<(), Failure>>,
    /// Where every event is written to, when the environment names a file.
    events: Option<BufWriter<File>>,
    threads: Vec<Thread>,
    turn: Option<usize>,
    /// Of the marked points that are passed, one in so many gives up the turn.
    points: u64,
    /// And one in so many sleeps there.
    naps: u64,
    /// Where threads of processes stay, by the number of the process.
    stays: BTreeMap<usize, Stay>,
    time_max: Duration,
}

/// The point at which a thread of a process stays for good.
#[derive(Debug)]
struct Stay {
    what: &'static str,
    /// Passes before that one.
    others: u64,
    /// When it came there.
    since: Option<Duration>,
}

#[derive(Debug)]
struct Thread {
    name: String,
    process: usize,
    doing: Doing,
    /// How likely it goes on when several can.
    weight: u64,
    wake: Arc<Condvar>,
}

#[derive(Debug)]
enum Doing {
    /// It runs, or could.
    Ready,
    Waits(Wait),
    Ended,
    /// Its process was killed: it never runs again.
    Killed,
}

/// What a thread waits for: whichever comes first.
#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) why: &'static str,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// In virtual time.
    pub(crate) until: Option<Duration>,
    /// The end of a thread.
    pub(crate) end_of: Option<usize>,
}

impl Wait {
    pub(crate) fn until(why: &'static str, until: Duration) -> Wait {
        Wait { why, descriptors: Vec::new(), until: Some(until), end_of: None }
    }
}

thread_local! {
    /// This thread's number in its world.
    static ME: Cell<Option<usize>> = const { Cell::new(None) };
}

impl Scheduler {
    pub(crate) fn new(seed: u64) -> Scheduler {
        let mut chance = Chance::of(seed, "schedule");
        // Some worlds change hands at every point, others rarely: each finds what the other does not.
        let (points, naps) = (1 << chance.below(5), [0, 200, 40][chance.below(3) as usize]);
        let state = State {
            chance,
            trace: Trace::default(),
            ended: None,
            events: std::env::var_os(EVENTS).and_then(|path| File::create(path).ok()).map(BufWriter::new),
            threads: Vec::new(),
            turn: None,
            points,
            naps,
            stays: BTreeMap::new(),
            time_max: TIME_MAX,
        };
        let (passed, asked) = (AtomicU64::new(0), AtomicU32::new(0));
        let mut processor = CpuSet::new();
        processor.set(rustix::thread::sched_getcpu());
        let start = SystemClock.now();
        Scheduler { start, passed, asked, processor, state: Mutex::new(state), over: Condvar::new() }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Virtual time since the start.
    pub(crate) fn passed(&self) -> Duration {
        Duration::from_nanos(self.passed.load(Ordering::Relaxed))
    }

    /// A moment as virtual time since the start.
    pub(crate) fn since_start(&self, moment: Instant) -> Duration {
        moment.saturating_duration_since(self.start)
    }

    /// The time, a little later at every look: code that polls until a time must come to its end.
    pub(crate) fn look(&self) -> Instant {
        if ME.get().is_some() {
            let asked = self.asked.fetch_add(1, Ordering::Relaxed);
            let later = TICK_NS << (asked / LOOKS_BEFORE_LEAPS).min(LEAP_MAX);
            self.passed.fetch_add(later, Ordering::Relaxed);
        }
        self.start + self.passed()
    }

    /// Adds a thread, which runs when its turn comes.
    pub(crate) fn add(&self, state: &mut State, name: &str, process: usize) -> usize {
        let weight = [1, 4, 16][state.chance.below(3) as usize];
        let wake = Arc::new(Condvar::new());
        state.threads.push(Thread { name: name.to_owned(), process, doing: Doing::Ready, weight, wake });
        let number = state.threads.len() - 1;
        self.note(state, "starts", number as u64);
        number
    }

    /// Begins with thread 0.
    pub(crate) fn begin(&self) {
        self.state().turn = Some(0);
        self.state().threads[0].wake.notify_all();
    }

    /// What a thread does first: it takes its number, and waits for its turn.
    pub(crate) fn enter(&self, number: usize) {
        ME.set(Some(number));
        // Where the system refuses, it is slower and nothing else.
        let _ = rustix::thread::sched_setaffinity(None, &self.processor);
        drop(self.await_turn(self.state(), number));
    }

    /// What a thread does last.
    pub(crate) fn leave(&self) {
        let me = me();
        let mut state = self.state();
        self.note(&mut state, "ends", 0);
        state.threads[me].doing = Doing::Ended;
        self.pass(&mut state);
    }

    /// Waits; others run meanwhile.
    pub(crate) fn wait(&self, wait: Wait) {
        let me = me();
        let mut state = self.state();
        self.note(&mut state, wait.why, wait.descriptors.len() as u64);
        state.threads[me].doing = Doing::Waits(wait);
        self.pass(&mut state);
        drop(self.await_turn(state, me));
    }

    /// A marked point: others may run.
    pub(crate) fn point(&self, what: &'static str, number: u64) {
        let Some(me) = ME.get() else { return };
        let mut state = self.state();
        self.note(&mut state, what, number);
        let (points, naps) = (state.points, state.naps);
        if state.stays(me, what, self.passed()) {
            let for_good = Wait { why: STAYS, descriptors: Vec::new(), until: None, end_of: None };
            state.threads[me].doing = Doing::Waits(for_good);
        } else if state.chance.one_in(naps) {
            let nap = Duration::from_micros(1 << state.chance.below(NAPS));
            state.threads[me].doing = Doing::Waits(Wait::until("naps", self.passed() + nap));
        } else if !state.chance.one_in(points) {
            return;
        }
        self.pass(&mut state);
        drop(self.await_turn(state, me));
    }

    /// Of a process, the thread that comes to a marked point as the `number`-th stays there.
    pub(crate) fn stay_at(&self, process: usize, what: &'static str, number: u64) {
        let stay = Stay { what, others: number.saturating_sub(1), since: None };
        self.state().stays.insert(process, stay);
    }

    /// No thread of a process stays any more; the one that does goes on.
    pub(crate) fn stay_nowhere(&self, process: usize) {
        let mut state = self.state();
        state.stays.remove(&process);
        for thread in state.threads.iter_mut().filter(|thread| thread.process == process) {
            if matches!(&thread.doing, Doing::Waits(wait) if wait.why == STAYS) {
                thread.doing = Doing::Ready;
            }
        }
    }

    /// Since when a thread of a process stays at a marked point.
    pub(crate) fn stays_since(&self, process: usize) -> Option<Duration> {
        self.state().stays.get(&process).and_then(|stay| stay.since)
    }

    /// An event that changes nothing.
    pub(crate) fn note(&self, state: &mut State, what: &'static str, number: u64) {
        let thread = ME.get().unwrap_or(usize::MAX);
        if let Some(events) = &mut state.events {
            let name = state.threads.get(thread).map_or("outside", |thread| &thread.name);
            let at = self.passed().as_secs_f64();
            // Only to be looked at: a full disk costs the rest of it.
            let _ = if what == "goes on" {
                let next = &state.threads[number as usize].name;
                writeln!(events, "{at:.6}  {name}: {next} {what}")
            } else {
                writeln!(events, "{at:.6}  {name} {what} {number}")
            };
        }
        state.trace.note(Event { at: self.passed(), thread, what, number });
    }

    /// Kills the threads of a process, all or this one among them.
    pub(crate) fn kill(&self, process: usize) {
        let mut state = self.state();
        self.note(&mut state, "is killed", process as u64);
        for thread in state.threads.iter_mut().filter(|thread| thread.process == process) {
            if !matches!(thread.doing, Doing::Ended) {
                thread.doing = Doing::Killed;
            }
        }
    }

    /// Gives the turn up for good, where this thread was killed.
    pub(crate) fn give_up_if_killed(&self) {
        let Some(me) = ME.get() else { return };
        let mut state = self.state();
        if matches!(state.threads[me].doing, Doing::Killed) {
            self.pass(&mut state);
            drop(self.await_turn(state, me));
        }
    }

    /// Whether any thread of a process can still run.
    pub(crate) fn lives(&self, process: usize) -> bool {
        let state = self.state();
        state.threads.iter().any(|t| t.process == process && matches!(t.doing, Doing::Ready | Doing::Waits(_)))
    }

    /// Whether a thread has come to its end or was killed.
    pub(crate) fn has_ended(&self, thread: usize) -> bool {
        self.state().threads[thread].has_ended()
    }

    /// The world ends, and nobody runs any more.
    pub(crate) fn end(&self, state: &mut State, how: Result<(), Failure>) {
        state.ended.get_or_insert(how);
        // The file is whole then, though the world's threads stay.
        drop(state.events.take());
        state.turn = None;
        self.over.notify_all();
    }

    /// Waits outside of the world for its end; what is stuck for good ends it, too.
    pub(crate) fn await_end(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        let (mut seen, mut since) = (state.trace.count(), SystemClock.now());
        while state.ended.is_none() {
            state = self.over.wait_timeout(state, STUCK / 8).unwrap_or_else(PoisonError::into_inner).0;
            if state.trace.count() != seen {
                (seen, since) = (state.trace.count(), SystemClock.now());
            } else if SystemClock.now() - since > STUCK {
                let who = state.turn.map_or("nobody".into(), |turn| state.threads[turn].name.clone());
                self.end(&mut state, Err(Failure::Stuck { thread: who }));
            }
        }
        state
    }

    fn await_turn<'a>(&self, mut state: MutexGuard<'a, State>, me: usize) -> MutexGuard<'a, State> {
        let wake = state.threads[me].wake.clone();
        while state.turn != Some(me) {
            state = wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        self.asked.store(0, Ordering::Relaxed);
        state
    }

    /// Gives the turn to a thread that can run, if need be at the next deadline.
    fn pass(&self, state: &mut State) {
        if state.ended.is_some() {
            return;
        }
        if state.trace.count() > EVENTS_MAX {
            return self.end(state, Err(Failure::Endless { waiting: state.waiting() }));
        }
        let next = loop {
            let able = state.able(self.passed());
            if let Some(next) = state.choose(&able) {
                break next;
            }
            match state.deadline() {
                Some(deadline) if deadline < state.time_max => {
                    self.passed.store(deadline.as_nanos() as u64, Ordering::Relaxed);
                }
                Some(_) => return self.end(state, Err(Failure::Endless { waiting: state.waiting() })),
                None => return self.end(state, Err(Failure::Deadlock { waiting: state.waiting() })),
            }
        };
        state.turn = Some(next);
        state.threads[next].doing = Doing::Ready;
        self.note(state, "goes on", next as u64);
        state.threads[next].wake.notify_all();
    }
}

impl State {
    /// The threads that can run now.
    fn able(&self, now: Duration) -> Vec<usize> {
        let mut able = Vec::new();
        let mut watched = Vec::new();
        let mut owners = Vec::new();
        for (number, thread) in self.threads.iter().enumerate() {
            match &thread.doing {
                Doing::Ready => able.push(number),
                Doing::Waits(wait)
                    if wait.is_due(now) || wait.end_of.is_some_and(|of| self.threads[of].has_ended()) =>
                {
                    able.push(number);
                }
                Doing::Waits(wait) => {
                    for descriptor in &wait.descriptors {
                        watched.push(PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN));
                        owners.push(number);
                    }
                }
                Doing::Ended | Doing::Killed => {}
            }
        }
        if !watched.is_empty() {
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            // Only a signal interrupts it, which a simulation has no use for.
            while rustix::event::poll(&mut watched, Some(&at_once)).is_err() {}
            let readable = watched.iter().zip(owners).filter(|(fd, _)| !fd.revents().is_empty());
            able.extend(readable.map(|(_, owner)| owner));
            able.sort_unstable();
            able.dedup();
        }
        able
    }

    /// One of `able`, by weight.
    fn choose(&mut self, able: &[usize]) -> Option<usize> {
        let weights: u64 = able.iter().map(|number| self.threads[*number].weight).sum();
        let mut at = if able.len() > 1 { self.chance.below(weights) } else { 0 };
        able.iter().copied().find(|number| {
            let weight = self.threads[*number].weight;
            let found = at < weight;
            at = at.saturating_sub(weight);
            found
        })
    }

    /// Whether a thread that comes to a point stays there.
    fn stays(&mut self, me: usize, what: &'static str, now: Duration) -> bool {
        let process = self.threads[me].process;
        let Some(stay) = self.stays.get_mut(&process).filter(|stay| stay.what == what && stay.since.is_none()) else {
            return false;
        };
        let comes = stay.others == 0;
        stay.others = stay.others.saturating_sub(1);
        stay.since = comes.then_some(now);
        comes
    }

    fn deadline(&self) -> Option<Duration> {
        let deadline = |thread: &Thread| match &thread.doing {
            Doing::Waits(wait) => wait.until,
            _ => None,
        };
        self.threads.iter().filter_map(deadline).min()
    }

    /// Who waits for what.
    pub(crate) fn waiting(&self) -> Vec<String> {
        let waits = |thread: &Thread| match &thread.doing {
            Doing::Waits(Wait { why, end_of, until, .. }) => {
                let of = end_of.map_or(String::new(), |of| format!(" of {}", self.threads[of].name));
                let until = until.map_or(String::new(), |until| format!(" until {:.6} s", until.as_secs_f64()));
                Some(format!("{} {why}{of}{until}", thread.name))
            }
            Doing::Ready => Some(format!("{} can run", thread.name)),
            Doing::Ended | Doing::Killed => None,
        };
        self.threads.iter().filter_map(waits).collect()
    }

    pub(crate) fn set_time_max(&mut self, time_max: Duration) {
        self.time_max = time_max;
    }

    pub(crate) fn nap_max(&self) -> Duration {
        if self.naps > 0 { Duration::from_micros(1 << (NAPS - 1)) } else { Duration::ZERO }
    }

    pub(crate) fn name(&self, thread: usize) -> &str {
        &self.threads[thread].name
    }
}

impl Thread {
    fn has_ended(&self) -> bool {
        matches!(self.doing, Doing::Ended | Doing::Killed)
    }
}

impl Wait {
    fn is_due(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

/// This thread's number.
///
/// # Panics
/// On a thread that no world started.
pub(crate) fn me() -> usize {
    ME.get().expect("a thread that no world started waits by a world's clock; start it by `Process::spawn`")
}

/// Names the file for all events.
const EVENTS: &str = "OVERSIDE_SIM_EVENTS";
/// How much later it is at every look.
const TICK_NS: u64 = 20_000;
/// Who looks so often without waiting polls for time to pass: from then on it leaps.
const LOOKS_BEFORE_LEAPS: u32 = 64;
const LEAP_MAX: u32 = 16;
/// A nap takes a power of two below this one, in µs.
const NAPS: u64 = 17;
/// Why a thread waits that stays at a point.
const STAYS: &str = "stays";
/// Virtual time in which a world must have ended, unless said.
const TIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// Events after which a world must have ended: its threads go round in circles.
const EVENTS_MAX: u64 = 200_000;
/// Time of the machine without any event: a thread waits where the world does not see it.
const STUCK: Duration = Duration::from_secs(40);
