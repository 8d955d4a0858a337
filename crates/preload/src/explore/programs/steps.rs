//! What may happen next: a thread's step in its phase, or a kill.

use rustix::event::PollFlags;
use rustix::io::Errno;

use super::super::kernel::end_of;
use super::super::set::Caught;
use super::super::world::{Rig, World};
use super::{Call, MOST, Next, Phase, Section, byte};
use crate::ready::Others;
use crate::sleepers::Present;
use crate::wake;

impl World {
    /// All that may happen next.
    pub(in crate::explore) fn successors(&self, rig: &Rig, next: &mut Vec<World>) -> Next {
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
}

/// How long a short sleep lasts, and when the clock stands still.
const NAP_NS: u64 = 10_000_000;
const LAST_NS: u64 = 20_000_001;
