//! What the threads of a scenario do: calls, each of them sections of the library and sleeps of the kernel.

use std::hash::{Hash, Hasher};
use std::sync::atomic::Ordering;

use libc::{POLLIN, iovec};
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::kernel::end_of;
use super::set::Caught;
use super::world::{Ended, Rig, World, socket};
use super::{PROCESSES, Packed, member};
use crate::connection::{Connection, LockHeld};
use crate::diagnosis::Reason;
use crate::epoll::explored;
use crate::incoming::{self, How};
use crate::iovecs::Cursor;
use crate::ready::{self, Look, Others, Seat};
use crate::reattach::{self, Progress};
use crate::rendezvous;
use crate::sets::Set;
use crate::sets::member::Member;
use crate::settle::{self, Reader, Settled};
use crate::sleepers::{Counted, Present};
use crate::state::{Life, Outgoing, State};
use crate::step::{Action, Event};
use crate::wait::{self, BeforeNap, BeforeSleep};
use crate::{end, eventfd, fallback, fork, outgoing, send, table, wake};

/// A call of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Call {
    /// A blocking send of so many bytes.
    Send(u32),
    /// Blocking receives until there were so many bytes, or an end.
    Receive(u32),
    /// Until the end.
    ReceiveAll,
    /// Until one of these stands.
    Poll(i16),
    /// Until the set has something to say.
    Wait,
    /// A call that rings do not cover comes next, and such a one reads then.
    Leave(Reader),
    /// Reads the socket without the library, until the end.
    ReadPast,
    /// The end of a counted call, at which ends come into the rings.
    Advance,
    Fork,
    Close,
}

/// The library's part of a call, under the connection's lock but for `Rise` and `Awake`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Section {
    Receive,
    Send,
    Nap(u64),
    Doze(u64),
    Awake {
        counted: Option<Counted>,
        reset: bool,
    },
    AfterSleep {
        reset: bool,
    },
    Look,
    Rise {
        got: i16,
        signalled: bool,
        look: Look,
    },
    Disarm {
        got: i16,
        look: Look,
    },
    /// A wait looks at the rings, and says what stands.
    Pass {
        arm: bool,
    },
    /// It is counted among those who sleep in the set; and is not any more, with what it has found and caught.
    Join,
    Part {
        found: u32,
        caught: Caught,
        ends: bool,
    },
    Understand {
        found: u32,
        caught: Caught,
        ends: bool,
    },
    Translate {
        got: i16,
        look: Look,
    },
    Leave(Reader, bool),
    Split,
    Close,
    Begin(bool),
    Counted {
        bytes: u32,
        sends: bool,
    },
    Advance,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// Its next call.
    Ready,
    In(Section),
    /// Sleeps on the word of its end, or is about to.
    OnWord {
        armed: u32,
        request: u64,
        asleep: bool,
    },
    Woken,
    /// In the kernel's incoming, that only looks.
    InKernel(Option<Counted>),
    /// Until the stream has room.
    ForRoom,
    InPoll(Look),
    /// In the kernel's wait, which may be short.
    InSet {
        brief: bool,
    },
    /// Asks it what it has beside what the rings have.
    AskKernel {
        found: u32,
    },
    /// Until others, who were woken, have run.
    Outwaits(Others),
    /// In a call of the program's own.
    Plainly {
        sends: bool,
        counted: bool,
    },
    Closing,
    Unborn,
    Done,
}

#[derive(Clone, Debug)]
pub(super) struct Thread {
    pub(super) process: usize,
    program: &'static [Call],
    at: usize,
    /// Bytes of this call that are done.
    done: u32,
    pub(super) phase: Phase,
    pub(super) log: Vec<Packed>,
    seat: Seat,
    /// It may sleep for ever.
    pub(super) idles: bool,
}

impl Hash for Thread {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.at, self.done, self.phase, &self.log, self.seat.counted()).hash(state);
    }
}

impl Thread {
    pub(super) fn new(process: usize, program: &'static [Call]) -> Self {
        let phase = if process == PROCESSES - 1 { Phase::Unborn } else { Phase::Ready };
        Self { process, program, at: 0, done: 0, phase, log: Vec::new(), seat: Seat::default(), idles: false }
    }

    fn call(&self) -> Option<Call> {
        self.program.get(self.at).copied()
    }

    fn next_call(&mut self) {
        (self.at, self.done) = (self.at + 1, 0);
        self.phase = if self.at == self.program.len() { Phase::Done } else { Phase::Ready };
    }

    fn stop(&mut self) {
        self.phase = Phase::Done;
    }
}

/// What a section came to, and what follows.
type Next = Result<(), String>;

/// A byte of a program's, by its number.
pub(super) fn byte(number: u32) -> u8 {
    (number % 250) as u8 + 1
}

impl World {
    /// All that may happen next.
    pub(super) fn successors(&self, rig: &Rig, next: &mut Vec<World>) -> Next {
        let all_before = next.len();
        let ended = self.all_successors(rig, next);
        next[all_before..].iter_mut().for_each(World::settle);
        ended
    }

    fn all_successors(&self, rig: &Rig, next: &mut Vec<World>) -> Next {
        let mut goes_on = false;
        if let Some(current) = self.current {
            let before = next.len();
            self.steps(current, rig, next)?;
            goes_on = next.len() > before;
            self.note_current(current, &mut next[before..]);
        }
        let switches = match self.switches {
            Some(0) if goes_on => return self.deaths(next),
            Some(left) if goes_on => Some(left - 1),
            left => left,
        };
        for who in (0..self.threads.len()).filter(|who| Some(*who) != self.current) {
            let before = next.len();
            self.steps(who, rig, next)?;
            self.note_current(who, &mut next[before..]);
            next[before..].iter_mut().for_each(|world| world.switches = switches);
        }
        self.deaths(next)
    }

    /// Where the thread that has just done a step is in the midst of a section.
    fn note_current(&self, who: usize, next: &mut [World]) {
        if self.switches.is_some() {
            for world in next {
                let thread = &world.threads[who];
                let within = matches!(thread.phase, Phase::In(_)) && !thread.log.is_empty();
                world.current = within.then_some(who);
            }
        }
    }

    /// An end may be killed at any moment.
    fn deaths(&self, next: &mut Vec<World>) -> Next {
        for end in 0..2 {
            if self.may_die[end] && self.processes[end].alive {
                let mut world = self.clone();
                (world.may_die[end], world.current) = (false, None);
                world.excused = true;
                world.die(end);
                next.push(world);
            }
        }
        Ok(())
    }

    /// Whether all programs are at their end.
    pub(super) fn is_over(&self) -> bool {
        self.threads.iter().all(|thread| {
            matches!(thread.phase, Phase::Done | Phase::Unborn) || thread.idles || !self.processes[thread.process].alive
        })
    }

    fn die(&mut self, process: usize) {
        self.processes[process].alive = false;
        for thread in self.threads.iter_mut().filter(|thread| thread.process == process) {
            (thread.phase, thread.seat) = (Phase::Done, Seat::default());
            thread.log.clear();
        }
        self.processes[process].locked = None;
        self.close(process);
    }

    fn close(&mut self, process: usize) {
        self.processes[process].alive = false;
        self.forget(process);
        self.kernel.close(process);
    }

    fn steps(&self, who: usize, rig: &Rig, next: &mut Vec<World>) -> Next {
        let thread = &self.threads[who];
        let process = thread.process;
        let end = end_of(process);
        if !self.processes[process].alive {
            return Ok(());
        }
        let mut step = |change: &mut dyn FnMut(&mut World) -> Next| {
            let mut world = self.clone();
            change(&mut world)?;
            next.push(world);
            Ok(())
        };
        match thread.phase {
            Phase::Done | Phase::Unborn => Ok(()),
            Phase::Ready => step(&mut |world| {
                world.begin(who);
                Ok(())
            }),
            Phase::In(Section::Leave(reader, false)) if thread.log.is_empty() && self.may_begin(who) => {
                // Whether its patience is over is for the clock to say.
                for over in [false, true] {
                    step(&mut |world| {
                        world.threads[who].phase = Phase::In(Section::Leave(reader, over));
                        world.section(who, Section::Leave(reader, over), rig).map(drop)
                    })?;
                }
                Ok(())
            }
            Phase::In(section) => {
                let mut world = self.clone();
                if world.section(who, section, rig)? {
                    next.push(world);
                }
                Ok(())
            }
            Phase::OnWord { armed, request, asleep } => {
                let changed = self.word_of(rig, end) as u32 != armed;
                if !asleep {
                    step(&mut |world| {
                        world.threads[who].phase =
                            if changed { Phase::Woken } else { Phase::OnWord { armed, request, asleep: true } };
                        Ok(())
                    })?;
                } else {
                    // Its time is over.
                    step(&mut |world| {
                        if world.timed {
                            let clock = &mut world.processes[process].clock;
                            *clock = (*clock + NAP_NS).min(LAST_NS);
                        }
                        world.threads[who].phase =
                            if request == wake::ROOM { Phase::Woken } else { Phase::In(Section::Doze(request)) };
                        Ok(())
                    })?;
                }
                Ok(())
            }
            Phase::Woken => step(&mut |world| {
                world.again(who);
                Ok(())
            }),
            Phase::InKernel(counted) => {
                if self.kernel.events(end).intersects(PollFlags::IN | PollFlags::ERR) {
                    step(&mut |world| {
                        let looked = world.kernel.receive(process, 1, true);
                        // A look that finds the reset takes it.
                        let reset = looked.is_err();
                        world.threads[who].phase = Phase::In(Section::Awake { counted, reset });
                        Ok(())
                    })?;
                }
                Ok(())
            }
            Phase::ForRoom => {
                if self.kernel.events(end).contains(PollFlags::OUT) {
                    step(&mut |world| {
                        world.again(who);
                        Ok(())
                    })?;
                }
                Ok(())
            }
            Phase::InPoll(look) => {
                let got = self.kernel.events(end).bits() as i16 & (look.ask | libc::POLLERR | libc::POLLHUP);
                let signalled = look.eventfd.is_some() && self.kernel.is_signalled(end);
                if got != 0 || signalled {
                    step(&mut |world| {
                        world.threads[who].phase = Phase::In(Section::Rise { got, signalled, look });
                        Ok(())
                    })?;
                }
                Ok(())
            }
            Phase::InSet { brief } => {
                let mut kernel = self.kernel;
                let caught = kernel.harvest();
                let came = caught.iter().any(|(events, _)| *events != 0);
                let part = |caught| Phase::In(Section::Part { found: 0, caught, ends: false });
                if came {
                    step(&mut |world| {
                        world.kernel = kernel;
                        world.threads[who].phase = part(caught);
                        Ok(())
                    })?;
                }
                if brief {
                    step(&mut |world| {
                        world.threads[who].phase = part(Caught::default());
                        Ok(())
                    })?;
                }
                Ok(())
            }
            Phase::AskKernel { found } => step(&mut |world| {
                let caught = world.kernel.harvest();
                world.threads[who].phase = Phase::In(Section::Understand { found, caught, ends: true });
                Ok(())
            }),
            Phase::Outwaits(others) => {
                // For a millisecond at most: where nobody is counted, for one who sleeps in a set.
                if !self.are_there(process, others) || !others.is_anybody() {
                    step(&mut |world| {
                        world.again(who);
                        Ok(())
                    })?;
                }
                Ok(())
            }
            Phase::Plainly { sends, counted } => {
                next.extend(self.plainly(who, sends, counted)?);
                Ok(())
            }
            Phase::Closing => step(&mut |world| {
                // What was sent since the library closed its end.
                world.excused |= world.is_unread(process);
                world.close(process);
                world.threads[who].stop();
                Ok(())
            }),
        }
    }

    fn may_begin(&self, who: usize) -> bool {
        self.processes[self.threads[who].process].locked.is_none_or(|other| other == who)
    }

    /// Whether those whom a thread waits for are the same as they were then.
    fn are_there(&self, process: usize, others: Others) -> bool {
        let live = self.processes[process].live();
        match others {
            Others::OfWakeByte(present) => present == Present::of(live[0]),
            Others::OfEventfd(present) => present == Present::of(live[1]),
        }
    }

    fn begin(&mut self, who: usize) {
        let process = self.threads[who].process;
        let state = self.processes[process].inner.life().state();
        let (peer, unread) = (end_of(process) ^ 1, self.is_unread(process));
        let thread = &mut self.threads[who];
        let Some(call) = thread.call() else { return thread.stop() };
        thread.phase = match (call, state) {
            (Call::Send(_), State::Ring) => Phase::In(Section::Send),
            (Call::Receive(_) | Call::ReceiveAll, State::Ring) => Phase::In(Section::Receive),
            (Call::Send(_), State::Counting) => Phase::In(Section::Begin(true)),
            (Call::Receive(_) | Call::ReceiveAll, State::Counting) => Phase::In(Section::Begin(false)),
            (Call::Send(_), _) => Phase::Plainly { sends: true, counted: false },
            (Call::Receive(_) | Call::ReceiveAll | Call::ReadPast, _) => {
                Phase::Plainly { sends: false, counted: false }
            }
            (Call::Poll(_), _) => Phase::In(Section::Look),
            (Call::Wait, _) => Phase::In(Section::Pass { arm: false }),
            (Call::Leave(reader), State::Ring) => Phase::In(Section::Leave(reader, false)),
            (Call::Fork, State::Ring) => {
                self.processes[process].forks = true;
                Phase::In(Section::Leave(Reader::Both, false))
            }
            (Call::Fork, _) => {
                self.processes[process].forks = true;
                Phase::In(Section::Split)
            }
            (Call::Leave(_), _) => return thread.next_call(),
            (Call::Advance, _) => Phase::In(Section::Advance),
            (Call::Close, _) => {
                self.owed[peer] |= unread;
                Phase::In(Section::Close)
            }
        };
    }

    /// Whether another process has the same end. What it still reads is no reason for a reset.
    fn has_relatives(&self, process: usize) -> bool {
        let end = end_of(process);
        (0..PROCESSES).any(|other| other != process && end_of(other) == end && self.processes[other].alive)
    }

    /// Whether a close of it is a reset.
    fn is_unread(&self, process: usize) -> bool {
        let peer = end_of(process) ^ 1;
        self.got[peer] < self.sent[peer] && !self.has_relatives(process)
    }

    /// The call goes on where it looks what to do.
    fn again(&mut self, who: usize) {
        self.threads[who].phase = Phase::Ready;
    }

    /// The kernel's own part of a call that goes through it; none while it waits.
    fn plainly(&self, who: usize, sends: bool, counted: bool) -> Result<Option<World>, String> {
        let (process, end) = (self.threads[who].process, end_of(self.threads[who].process));
        let (call, done) = (self.threads[who].call(), self.threads[who].done);
        let mut world = self.clone();
        if sends {
            let Some(Call::Send(want)) = call else { return Ok(None) };
            let bytes: Vec<u8> = (0..(want - done).min(8)).map(|at| byte(self.sent[end] + at)).collect();
            match world.kernel.send(end, &bytes) {
                Err(Errno::AGAIN) => return Ok(None),
                Ok(sent) => world.carried(who, sent as u32, true, counted),
                Err(_) => {
                    world.owed[end] = false;
                    world.threads[who].stop();
                }
            }
            return Ok(Some(world));
        }
        let want = if let Some(Call::Receive(want)) = call { (want - done).min(MOST) } else { MOST };
        match world.kernel.receive(process, want as usize, false) {
            Err(Errno::AGAIN) => return Ok(None),
            Ok((_, 0)) => world.ended(who)?,
            Ok((bytes, len)) => {
                world.deliver(end, &bytes[..len])?;
                world.carried(who, len as u32, false, counted);
            }
            Err(error) => world.failed(who, error)?,
        }
        Ok(Some(world))
    }

    fn carried(&mut self, who: usize, bytes: u32, sends: bool, counted: bool) {
        let end = end_of(self.threads[who].process);
        if sends {
            self.sent[end] += bytes;
        }
        if counted {
            self.threads[who].phase = Phase::In(Section::Counted { bytes, sends });
        } else {
            self.progress(who, bytes);
        }
    }

    /// So many bytes more of this call are done.
    fn progress(&mut self, who: usize, bytes: u32) {
        let thread = &mut self.threads[who];
        thread.done += bytes;
        match thread.call() {
            Some(Call::Send(want) | Call::Receive(want)) if thread.done >= want => thread.next_call(),
            _ => thread.phase = Phase::Ready,
        }
    }

    fn deliver(&mut self, end: usize, bytes: &[u8]) -> Next {
        let from = end ^ 1;
        for got in bytes {
            let number = self.got[from];
            if *got != byte(number) && number >= self.unchecked[from] {
                return Err(format!("byte {number} of end {from} is {got}"));
            }
            self.got[from] += 1;
        }
        Ok(())
    }

    /// The program is told the end of the stream.
    fn ended(&mut self, who: usize) -> Next {
        let from = end_of(self.threads[who].process) ^ 1;
        if self.got[from] < self.sent[from] {
            return Err(format!("a clean end after {} bytes of {}", self.got[from], self.sent[from]));
        }
        if self.owed[from ^ 1] {
            return Err("a clean end of a stream that was reset".to_owned());
        }
        self.threads[who].next_call();
        Ok(())
    }

    fn failed(&mut self, who: usize, error: Errno) -> Next {
        if !self.excused && !self.kernel.was_full {
            return Err(format!("an error without need: {error}"));
        }
        self.owed[end_of(self.threads[who].process)] = false;
        self.threads[who].stop();
        Ok(())
    }

    /// One step of a section. False when its thread waits for the lock.
    fn section(&mut self, who: usize, section: Section, rig: &Rig) -> Result<bool, String> {
        let process = self.threads[who].process;
        let guarded =
            !matches!(section, Section::Awake { .. } | Section::Rise { .. } | Section::Join | Section::Part { .. });
        if guarded {
            match self.processes[process].locked {
                Some(other) if other != who => return Ok(false),
                _ => self.processes[process].locked = Some(who),
            }
        }
        let ended = self.run_section(who, section, rig)?;
        if matches!(ended, Ended::Whole(())) && guarded {
            self.processes[process].locked = None;
        }
        Ok(!matches!(ended, Ended::Blocked))
    }

    fn run_section(&mut self, who: usize, section: Section, rig: &Rig) -> Result<Ended<()>, String> {
        let process = self.threads[who].process;
        let (fd, end) = (socket(process), end_of(process));
        let hold = |connection: &'static Connection| -> LockHeld<'static> { table::hold(fd, connection).unwrap() };
        macro_rules! run {
            ($section:expr) => {
                match rig.run(self, who, $section)? {
                    Ended::Whole(value) => value,
                    Ended::Step => return Ok(Ended::Step),
                    Ended::Blocked => return Ok(Ended::Blocked),
                }
            };
        }
        match section {
            Section::Receive => {
                let want = match self.threads[who].call() {
                    Some(Call::Receive(want)) => want - self.threads[who].done,
                    _ => MOST,
                };
                let mut bytes = vec![0; want.min(MOST) as usize];
                let list = [iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
                let step = run!(|connection| {
                    let mut held = hold(connection);
                    if held.ring().is_none() {
                        return incoming::Step::Plain;
                    }
                    incoming::once(&mut held, fd, &mut Cursor::new(&list), false, How::Bytes)
                });
                match step {
                    incoming::Step::Bytes(got) => {
                        self.deliver(end, &bytes[..got])?;
                        self.progress(who, got as u32);
                    }
                    incoming::Step::Nothing => self.threads[who].phase = Phase::In(Section::Nap(wake::DATA)),
                    incoming::Step::End => self.ended(who)?,
                    incoming::Step::Error(error) => self.failed(who, error)?,
                    incoming::Step::Plain | incoming::Step::Again => self.again(who),
                }
            }
            Section::Send => {
                let Some(Call::Send(want)) = self.threads[who].call() else { return Ok(Ended::Whole(())) };
                let from = self.sent[end];
                let bytes: Vec<u8> = (0..want - self.threads[who].done).map(|at| byte(from + at)).collect();
                let list = [iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }];
                let step = run!(|connection| {
                    let mut held = hold(connection);
                    if held.ring().is_none() {
                        return outgoing::Step::Plain;
                    }
                    let step = outgoing::once(&mut held, fd, &mut Cursor::new(&list));
                    if matches!(step, outgoing::Step::NotStarted) {
                        held.sending += 1;
                    }
                    step
                });
                match step {
                    outgoing::Step::Bytes(sent) => {
                        self.sent[end] += sent as u32;
                        self.progress(who, sent as u32);
                    }
                    outgoing::Step::Full => self.threads[who].phase = Phase::In(Section::Nap(wake::ROOM)),
                    outgoing::Step::KernelFull => self.threads[who].phase = Phase::ForRoom,
                    outgoing::Step::NotStarted => {
                        self.threads[who].phase = Phase::Plainly { sends: true, counted: true }
                    }
                    // Of a connection in the rings it is the kernel that says what is wrong.
                    outgoing::Step::Plain if self.processes[process].inner.ring().is_some() => self.threads[who].stop(),
                    outgoing::Step::Plain => self.again(who),
                    outgoing::Step::Error(error) => self.failed(who, error)?,
                }
            }
            Section::Nap(request) => {
                let nap = run!(|connection| wait::before_nap(&mut hold(connection), fd, request));
                self.threads[who].phase = match nap {
                    BeforeNap::Awake => Phase::Ready,
                    BeforeNap::Kernel | BeforeNap::GoneSoon if request == wake::DATA => {
                        Phase::In(Section::Doze(request))
                    }
                    BeforeNap::Kernel | BeforeNap::GoneSoon => Phase::Ready,
                    BeforeNap::Word(armed) => Phase::OnWord { armed: armed as u32, request, asleep: false },
                };
            }
            Section::Doze(request) => {
                let sleep = run!(|connection| wait::before_sleep(&mut hold(connection), fd, request));
                self.threads[who].phase = match sleep {
                    BeforeSleep::Look | BeforeSleep::Soon => Phase::Ready,
                    BeforeSleep::Others(present) => Phase::Outwaits(Others::OfWakeByte(present)),
                    BeforeSleep::Kernel(counted) => Phase::InKernel(counted),
                };
            }
            Section::Awake { counted, reset } => {
                run!(|connection| wait::awake(connection, counted));
                self.threads[who].phase = Phase::In(Section::AfterSleep { reset });
            }
            Section::AfterSleep { reset } => {
                run!(|connection| wait::after_sleep(fd, connection, reset));
                self.again(who);
            }
            Section::Look => {
                let Some(Call::Poll(wanted)) = self.threads[who].call() else { return Ok(Ended::Whole(())) };
                let mut seat = Seat::default();
                let look = run!(|connection| ready::look(fd, connection, wanted, Some(&mut seat), false));
                let thread = &mut self.threads[who];
                thread.seat = seat;
                if look.ready != 0 {
                    thread.next_call();
                } else if let Some(others) = look.others {
                    thread.phase = Phase::Outwaits(others);
                } else if look.brief {
                    thread.phase = Phase::Ready;
                } else {
                    thread.phase = Phase::InPoll(look);
                }
            }
            Section::Rise { got, signalled, look } => {
                let seat = self.threads[who].seat;
                run!(|_| {
                    let mut seat = seat;
                    seat.rise(signalled);
                });
                self.threads[who].seat = Seat::default();
                self.threads[who].phase = Phase::In(Section::Disarm { got, look });
            }
            Section::Disarm { got, look } => {
                run!(|connection| eventfd::disarm_eventfd(&hold(connection)));
                self.threads[who].phase = Phase::In(Section::Translate { got, look });
            }
            Section::Translate { got, look } => {
                let Some(Call::Poll(wanted)) = self.threads[who].call() else { return Ok(Ended::Whole(())) };
                let ready = run!(|connection| ready::translate(fd, connection, wanted, look, got));
                if ready != 0 { self.threads[who].next_call() } else { self.again(who) }
            }
            Section::Pass { arm } => {
                let (found, brief) = run!(|_| with_set(|set| explored::pass(set, who as u64 + 1, arm)));
                self.threads[who].phase = match (found, arm) {
                    (0, false) => Phase::In(Section::Join),
                    (0, true) => Phase::InSet { brief },
                    (found, false) => Phase::AskKernel { found },
                    (found, true) => Phase::In(Section::Part { found, caught: Caught::default(), ends: true }),
                };
            }
            Section::Join => {
                run!(|_| with_set(|set| set.sleepers.fetch_add(1, Ordering::SeqCst)));
                self.threads[who].phase = Phase::In(Section::Pass { arm: true });
            }
            Section::Part { found, caught, ends } => {
                run!(|_| with_set(|set| set.sleepers.fetch_sub(1, Ordering::SeqCst)));
                self.threads[who].phase = if ends {
                    Phase::AskKernel { found }
                } else {
                    Phase::In(Section::Understand { found, caught, ends })
                };
            }
            Section::Understand { found, caught, ends } => {
                let found = run!(|_| with_set(|set| explored::translate(set, who as u64 + 1, found, caught)));
                if found == 0 {
                    assert!(!ends, "what a pass has found is still there");
                    self.threads[who].phase = Phase::In(Section::Join);
                } else {
                    self.set.iter_mut().for_each(|set| set.end(who as u64 + 1));
                    self.threads[who].next_call();
                }
            }
            Section::Leave(reader, over) => {
                let reason = if reader == Reader::Both { Reason::Fork } else { Reason::Call("a test") };
                let settled = run!(|connection| settle::attempt_at(&mut hold(connection), fd, reason, reader, over));
                let thread = &mut self.threads[who];
                match settled {
                    Settled::Not => thread.phase = Phase::In(Section::Leave(reader, false)),
                    Settled::Done if thread.call() == Some(Call::Fork) => thread.phase = Phase::In(Section::Split),
                    Settled::Done => thread.next_call(),
                }
            }
            Section::Split => {
                run!(|connection| fork::put_in_order(fd, &mut hold(connection)));
                self.split(who)?;
            }
            Section::Close => {
                // What is being sent may lie there already.
                let sends = self.threads.iter().any(|thread| {
                    end_of(thread.process) != end
                        && matches!(thread.call(), Some(Call::Send(_)))
                        && !thread.log.is_empty()
                });
                let unread = self.is_unread(process) || sends && !self.has_relatives(process);
                run!(|connection| end::finish(&mut hold(connection), fd));
                self.excused |= unread;
                self.threads[who].phase = Phase::Closing;
            }
            Section::Begin(sends) => {
                let counts = run!(|connection| {
                    let mut held = hold(connection);
                    let counts = held.connection.state() == State::Counting;
                    if counts && sends {
                        held.sending += 1;
                    } else if counts {
                        held.receiving += 1;
                    }
                    counts
                });
                self.threads[who].phase = if counts { Phase::Plainly { sends, counted: true } } else { Phase::Ready };
            }
            Section::Counted { bytes, sends } => {
                run!(|connection| {
                    let mut held = hold(connection);
                    if sends {
                        held.sending -= 1;
                        held.count_sent(bytes as usize);
                        fallback::announce(&mut held, fd);
                    } else {
                        held.receiving -= 1;
                        held.count_received(bytes as usize);
                    }
                });
                self.progress(who, bytes);
            }
            Section::Advance => {
                let forks = self.processes[process].forks;
                run!(|connection| advance(&mut hold(connection), forks));
                self.threads[who].next_call();
            }
        }
        Ok(Ended::Whole(()))
    }

    /// A child that has what its parent had.
    fn split(&mut self, who: usize) -> Next {
        let (parent, child) = (self.threads[who].process, PROCESSES - 1);
        self.processes[parent].forks = false;
        let mut inner = self.processes[parent].inner.clone();
        inner.in_child();
        self.processes[child].inner = inner;
        self.processes[child].alive = true;
        self.kernel.open[child] = true;
        self.threads[who].next_call();
        for thread in self.threads.iter_mut().filter(|thread| thread.process == child) {
            thread.phase = Phase::Ready;
        }
        Ok(())
    }
}

fn with_set<T>(f: impl FnOnce(&'static Set) -> T) -> T {
    f(member().and_then(Member::set).unwrap())
}

/// As the end of a counted call: one step towards the rings.
fn advance(held: &mut LockHeld<'_>, forks: bool) {
    if forks {
        return;
    }
    if let Life::Resting(_) = held.life() {
        let alone = reattach::may(held);
        match reattach::advance(held, alone) {
            Progress::Live => {}
            Progress::Waiting => return,
            Progress::Over => {
                held.step(Event::Leaves(Reason::Peer));
                return fallback::cancel(held);
            }
        }
    }
    match rendezvous::look(held) {
        Action::Refuse(_) => fallback::cancel(held),
        Action::Enter => {
            if let Some(shared) = held.shared() {
                rendezvous::come_in(held, &shared);
            }
        }
        _ => {}
    }
}

/// A receive takes no more at once.
const MOST: u32 = 2;
/// How long a short sleep lasts, and when the clock stands still.
const NAP_NS: u64 = 10_000_000;
const LAST_NS: u64 = 20_000_001;
