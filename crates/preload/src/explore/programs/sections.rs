//! A section of the library, run up to its next step.

use std::sync::atomic::Ordering;

use libc::iovec;

use super::super::kernel::end_of;
use super::super::set::Caught;
use super::super::world::{Ended, Rig, World, socket};
use super::super::{PROCESSES, member};
use super::{Call, MOST, Next, Phase, Section, byte};
use crate::connection::{Connection, LockHeld};
use crate::diagnosis::Reason;
use crate::epoll::explored;
use crate::incoming::{self, How};
use crate::iovecs::Cursor;
use crate::ready::{self, Others, Seat};
use crate::reattach::{self, Progress};
use crate::rendezvous;
use crate::sets::Set;
use crate::sets::member::Member;
use crate::settle::{self, Reader, Settled};
use crate::state::{Life, State};
use crate::step::{Action, Event};
use crate::wait::{self, BeforeNap, BeforeSleep};
use crate::{end, eventfd, fallback, fork, outgoing, table, wake};

impl World {
    /// One step of a section. False when its thread waits for the lock.
    pub(super) fn section(&mut self, who: usize, section: Section, rig: &Rig) -> Result<bool, String> {
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
