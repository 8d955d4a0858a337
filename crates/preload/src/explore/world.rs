//! All that a step may change, and how a section of the library is run on it.

use std::hash::{Hash, Hasher};
use std::sync::atomic::Ordering;

use super::kernel::{Kernel, end_of};
use super::programs::{Call, Phase, Thread};
use super::set::{Guarded, SIDE, Watched};
use super::{EVENTFDS, PROCESSES, RUN, Run, SOCKETS, Visible, run};
use crate::connection::{Connection, Inner};
use crate::count::Counts;
use crate::layout::{SharedMemory, WORDS_AT, WORDS_UNTIL};
use crate::slab::SlabEntry;
use crate::sleepers::Present;
use crate::state::{Begun, Family, Life, Outgoing};
use crate::wake;
use crate::word::Word;

const WORDS: usize = (WORDS_UNTIL - WORDS_AT) / 8;
/// Bytes of each ring that differ from order to order.
const RING: usize = 8;

/// A process, as it is between sections.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) alive: bool,
    /// What the lock guards.
    pub(super) inner: Inner,
    /// What is changed without it: sleepers of three kinds, and whether the eventfd was readable.
    live: [u64; 4],
    fulls: u32,
    /// The thread that has the lock.
    pub(super) locked: Option<usize>,
    /// Its time, as far as it matters.
    pub(super) clock: u64,
    /// A fork is under way, and no connection comes into the rings.
    pub(super) forks: bool,
}

impl Process {
    pub(super) fn live(&self) -> [u64; 4] {
        self.live
    }
}

impl Hash for Process {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.alive, &self.inner, self.live, self.fulls, self.locked, self.clock, self.forks).hash(state);
    }
}

#[derive(Clone, Debug, Hash)]
pub(super) struct World {
    words: [u64; WORDS],
    rings: [[u8; RING]; 2],
    common: [u64; Counts::WORDS],
    pub(super) kernel: Kernel,
    pub(super) timed: bool,
    pub(super) processes: [Process; PROCESSES],
    pub(super) threads: Vec<Thread>,
    /// Bytes that sends have reported, and that receives have, by the sending end.
    pub(super) sent: [u32; 2],
    pub(super) got: [u32; 2],
    /// Bytes whose content nobody looks at, by the sending end: they were there before all began.
    pub(super) unchecked: [u32; 2],
    /// There was a reason for an error.
    pub(super) excused: bool,
    /// Ends that are to be told of a reset: the other one began to close over bytes of theirs.
    pub(super) owed: [bool; 2],
    /// The thread that was last in the midst of a section, and how often another
    /// may still come in there.
    pub(super) current: Option<usize>,
    pub(super) switches: Option<u8>,
    /// Ends that may still be killed.
    pub(super) may_die: [bool; 2],
    /// Of the set of epoll: what its locks guard, and the threads that sleep in it.
    pub(super) set: Option<Guarded>,
    sleepers: u64,
}

/// Memory and connections, as the library has them.
pub(super) struct Rig {
    pub(super) shared: SharedMemory,
    connections: [&'static Connection; PROCESSES],
    common: &'static Counts,
    words: u128,
    forks: bool,
    watched: Option<Watched>,
}

/// What running a section came to.
pub(super) enum Ended<T> {
    Whole(T),
    /// One step more is done.
    Step,
    /// The next cannot be done as things stand.
    Blocked,
}

/// How a scenario begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    /// Bytes that the kernel's stream holds.
    pub(super) room: usize,
    pub(super) eventfds: bool,
    /// End 1 has filled its ring, of which end 0 has read nothing; no other memory can be had.
    pub(super) full: bool,
    /// The kernel's stream to end 0 is full of bytes of before the ring.
    pub(super) clogged: bool,
    /// End 1 has not come into the rings yet, and the kernel's stream to end 0 is full.
    pub(super) early: bool,
    /// End 0 has not begun to send by its ring.
    pub(super) fresh: bool,
    /// Both ends ask to be woken, as they do when they have just met.
    pub(super) armed: bool,
    /// The time goes on.
    pub(super) timed: bool,
    /// Each may be killed, once, at any moment.
    pub(super) kills: [bool; 2],
    /// How often a thread may come in where another is in the midst of a section and could
    /// go on; none for no limit.
    pub(super) switches: Option<u8>,
    /// What end 1 waits for in a set of epoll, if it has one.
    pub(super) set: Option<u32>,
    /// It is a connection of TCP, which the kernel resets; else a Unix socket.
    pub(super) tcp: bool,
    /// The directions' beginnings and the word about coming again are steps, too.
    pub(super) attaches: bool,
}

impl Start {
    pub(super) const PLAIN: Self = Self {
        room: 8,
        eventfds: false,
        full: false,
        clogged: false,
        early: false,
        fresh: false,
        armed: false,
        timed: false,
        kills: [false; 2],
        switches: None,
        set: None,
        tcp: false,
        attaches: false,
    };
}

impl Rig {
    pub(super) fn new(start: Start, forks: bool) -> Self {
        let (shared, _fd) = SharedMemory::create().unwrap();
        let connections = std::array::from_fn(|_| &*Box::leak(Box::new(Connection::fresh())));
        let common: &'static Counts = Box::leak(Box::new(Counts::new()));
        for connection in &connections {
            // The memory stays when the library ends it.
            connection.watchers.store(1, Ordering::Relaxed);
        }
        let words = SharedMemory::visible_words(start.attaches);
        let watched = start.set.map(|_| Watched::new());
        Self { shared, connections, common, words, forks, watched }
    }

    fn page(&self) -> *mut u64 {
        // SAFETY: within the mapping.
        unsafe { self.shared.base().as_ptr().add(WORDS_AT).cast() }
    }

    /// Runs a section of a thread, up to its next step but one.
    pub(super) fn run<T>(
        &self,
        world: &mut World,
        thread: usize,
        section: impl FnOnce(&'static Connection) -> T,
    ) -> Result<Ended<T>, String> {
        let process = world.threads[thread].process;
        let connection = self.connections[process];
        self.write(world, process);
        let log = std::mem::take(&mut world.threads[thread].log);
        let kernel = world.kernel;
        let (visible, connections, common) = (self.visible(process), self.connections, self.common);
        let begun = Run {
            log,
            at: 0,
            spent: false,
            within: false,
            blocked: false,
            kernel,
            clock: world.processes[process].clock,
            visible,
            connections,
            shared: self.shared,
            process,
            common,
            watched: self.watched,
        };
        let (run, ended) = run(begun, || section(connection));
        if run.blocked {
            return Ok(Ended::Blocked);
        }
        world.kernel = run.kernel;
        self.read(world, process);
        let ended = match ended? {
            Some(value) => {
                self.read_guarded(world, process);
                Ended::Whole(value)
            }
            None => {
                world.threads[thread].log = run.log;
                Ended::Step
            }
        };
        let woken = std::mem::take(&mut world.kernel.woken);
        for sleeper in &mut world.threads {
            if woken[end_of(sleeper.process)] && matches!(sleeper.phase, Phase::OnWord { asleep: true, .. }) {
                sleeper.phase = Phase::Woken;
            }
        }
        Ok(ended)
    }

    fn visible(&self, process: usize) -> Visible {
        let common = self.common.words();
        let end = end_of(process);
        Visible {
            page: self.shared.base().addr().get(),
            words: self.words,
            known: if self.forks && end == 1 { 0 } else { SharedMemory::words_of(end) },
            common: (common.start, common.end),
            live: self.live(process).map(|word| word.map_or(0, |word| std::ptr::from_ref(word).addr())),
        }
    }

    /// The words that a process' threads change without a lock.
    fn live(&self, process: usize) -> [Option<&Word>; 5] {
        let [sleepers, pollers, early, signalled] = self.connections[process].live();
        let of_set = self.watched.filter(|_| process == SIDE).map(|watched| &watched.set.sleepers);
        [Some(sleepers), Some(pollers), Some(early), Some(signalled), of_set]
    }

    fn write(&self, world: &World, process: usize) {
        // SAFETY: the first page of the mapping, which nobody else uses.
        unsafe { self.page().copy_from_nonoverlapping(world.words.as_ptr(), WORDS) };
        for (direction, bytes) in world.rings.iter().enumerate() {
            // SAFETY: a ring of the mapping.
            unsafe { self.ring(direction).copy_from_nonoverlapping(bytes.as_ptr(), RING) };
        }
        self.common.set_words(world.common);
        let (own, connection) = (&world.processes[process], self.connections[process]);
        for (word, value) in connection.live().into_iter().zip(own.live) {
            word.store(value, Ordering::Relaxed);
        }
        connection.fulls.store(own.fulls, Ordering::Relaxed);
        connection.unlock();
        let mut held = connection.hold().unwrap();
        *held = own.inner.clone();
        connection.set_state(own.inner.life().state());
        let own = own.inner.eventfds.map_or(crate::connection::NO_EVENTFD, |eventfds| eventfds[own.inner.end]);
        connection.eventfd.store(own, Ordering::Relaxed);
        if let Some((watched, now)) = self.watched.filter(|_| process == SIDE).zip(world.set) {
            watched.write(now, connection);
            watched.set.sleepers.store(world.sleepers, Ordering::Relaxed);
        }
    }

    fn read(&self, world: &mut World, process: usize) {
        // SAFETY: as in `write`.
        unsafe { self.page().copy_to_nonoverlapping(world.words.as_mut_ptr(), WORDS) };
        for direction in 0..2 {
            // SAFETY: as in `write`.
            unsafe { self.ring(direction).copy_to_nonoverlapping(world.rings[direction].as_mut_ptr(), RING) };
        }
        world.common = self.common.get_words();
        world.processes[process].live = self.connections[process].live().map(|word| word.load(Ordering::Relaxed));
        if let Some(watched) = self.watched.filter(|_| process == SIDE) {
            world.sleepers = watched.set.sleepers.load(Ordering::Relaxed);
        }
    }

    /// What the section has changed under the lock.
    pub(super) fn read_guarded(&self, world: &mut World, process: usize) {
        let connection = self.connections[process];
        let mut inner = connection.hold().unwrap().clone();
        inner.forget_figures();
        world.processes[process].inner = inner;
        world.processes[process].fulls = connection.fulls.load(Ordering::Relaxed);
        if world.set.is_some() && process == SIDE {
            world.set = self.watched.map(|watched| watched.read(connection));
        }
    }

    fn ring(&self, direction: usize) -> *mut u8 {
        self.shared.place(direction, 0, crate::layout::Home::FIRST).0
    }

    pub(super) fn begin(&self, start: Start, threads: &[(usize, &'static [Call])]) -> World {
        let shared = self.shared;
        let mut kernel = Kernel::new(start.room);
        let mut processes: [Process; PROCESSES] = std::array::from_fn(|process| {
            let mut inner = Inner::new(end_of(process));
            inner.family = if start.tcp { Family::Tcp { nagle: false, cork: false } } else { Family::Unix };
            inner.set_life_of_test(Life::Ring(shared));
            inner.outgoing = Outgoing::Ring { begun: Begun { given: 0 }, owed: 0 };
            inner.eventfds = start.eventfds.then_some([EVENTFDS, EVENTFDS + 1]);
            Process { alive: process < 2, inner, live: [0; 4], fulls: 1, locked: None, clock: 1, forks: false }
        });
        // SAFETY: the first page of the mapping, which nobody else uses.
        unsafe { self.page().write_bytes(0, WORDS) };
        for end in 0..2 {
            shared.start(end).store(1, Ordering::Relaxed);
            shared.present(end).store(1, Ordering::Relaxed);
            shared.eventfds(end).store(u64::from(start.eventfds), Ordering::Relaxed);
            if start.armed {
                wake::arm(shared.wake_word(end), wake::DATA | wake::ROOM);
            }
        }
        let mut got = [0; 2];
        let mut sent = [0; 2];
        if start.full {
            let inner = &mut processes[1].inner;
            inner.out.fill();
            shared.head(1).store(inner.out.head, Ordering::Relaxed);
            (sent[1], got[1]) = (inner.out.head as u32, 0);
        }
        if start.clogged {
            processes[1].inner.count_sent(start.room);
            let _ = kernel.send(1, &[1; super::kernel::STREAM][..start.room]);
            shared.start(1).store(1 + start.room as u64, Ordering::Relaxed);
            sent[1] = start.room as u32;
        }
        if start.early {
            let inner = &mut processes[1].inner;
            inner.set_life_of_test(Life::Attached { shared, called: false });
            inner.outgoing = Outgoing::Before;
            inner.count_sent(start.room);
            let _ = kernel.send(1, &[1; super::kernel::STREAM][..start.room]);
            for word in [shared.start(1), shared.present(1)] {
                word.store(0, Ordering::Relaxed);
            }
            sent[1] = start.room as u32;
        }
        if start.fresh {
            processes[0].inner.outgoing = Outgoing::Before;
            shared.start(0).store(0, Ordering::Relaxed);
        }
        let mut world = World {
            words: [0; WORDS],
            rings: [[0; RING]; 2],
            common: [0; Counts::WORDS],
            kernel,
            timed: start.timed,
            processes,
            threads: threads.iter().map(|(process, program)| Thread::new(*process, program)).collect(),
            sent,
            got,
            unchecked: if start.timed { [u32::MAX; 2] } else { sent },
            excused: false,
            owed: [false; 2],
            current: None,
            switches: start.switches,
            may_die: start.kills,
            set: None,
            sleepers: 0,
        };
        // SAFETY: as in `write`.
        unsafe { self.page().copy_to_nonoverlapping(world.words.as_mut_ptr(), WORDS) };
        for process in 0..PROCESSES {
            self.write(&world, process);
            self.read_guarded(&mut world, process);
        }
        if let Some((watched, events)) = self.watched.zip(start.set) {
            world.set = Some(watched.begin(events, self.connections[SIDE], &mut world.kernel));
        }
        world
    }
}

impl World {
    /// What is the same state with other numbers becomes the same.
    pub(super) fn settle(&mut self) {
        for process in 0..PROCESSES {
            let own = &mut self.processes[process];
            if own.inner.awaits_no_time() {
                own.clock = 1;
            }
            let theirs = |thread: &&Thread| thread.process == process;
            let open = |thread: &Thread| matches!(thread.phase, Phase::Outwaits(_)) || !thread.log.is_empty();
            if !self.threads.iter().filter(theirs).any(open) {
                // Which generation it is that nobody is counted in.
                let own = &mut self.processes[process].live;
                own[..3].iter_mut().filter(|word| !Present::of(**word).is_anybody()).for_each(|word| *word = 0);
            }
        }
    }

    /// What a process that has closed its end knew is of no matter any more.
    pub(super) fn forget(&mut self, process: usize) {
        let own = &mut self.processes[process];
        own.inner = Inner::new(end_of(process));
        (own.live, own.fulls) = ([0; 4], 1);
    }

    /// Those words that are not 0, with their places.
    pub(super) fn words(&self) -> Vec<(usize, u64)> {
        let all = self.words.iter().enumerate().map(|(at, word)| (WORDS_AT + 8 * at, *word));
        all.filter(|(_, word)| *word != 0).collect()
    }

    /// The word that an end sleeps on.
    pub(super) fn word_of(&self, rig: &Rig, end: usize) -> u64 {
        let at = std::ptr::from_ref(rig.shared.wake_word(end)).addr() - rig.page().addr();
        self.words[at / 8]
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // SAFETY: the scenario is over.
        unsafe { self.shared.unmap() };
    }
}

/// Whose sleep this word is for.
pub(super) fn end_of_word(word: &Word) -> usize {
    RUN.with_borrow(|run| usize::from(!std::ptr::eq(run.as_ref().unwrap().shared.wake_word(0), word)))
}

pub(super) fn socket(process: usize) -> std::ffi::c_int {
    SOCKETS + process as std::ffi::c_int
}
