//! What a process of the receiver's may do next.

use super::*;

impl World {
    pub(super) fn steps_of_reader(&self, which: usize, bound: &Bound, next: &mut Vec<Self>) -> Breach {
        let process = self.processes[which];
        let mut step = |change: &dyn Fn(&mut Self) -> Breach| {
            let mut world = *self;
            change(&mut world)?;
            if world != *self {
                next.push(world);
            }
            Ok(())
        };
        if self.over {
            return Ok(());
        }
        match (process.at, process.left) {
            (Reading::Gone, _) => {}
            (Reading::Idle, None) => {
                if self.may_leave {
                    for unread in [Unread::TakenAlong, Unread::SentAgain] {
                        step(&|world| {
                            (world.may_leave, world.processes[which].settles) = (false, unread == Unread::SentAgain);
                            world.leave(which, unread);
                            Ok(())
                        })?;
                    }
                }
                step(&|world| world.read_in_ring(which))?;
                let waiting = self.head - self.input_tail;
                for bytes in 1..=waiting.min(2) {
                    step(&|world| {
                        world.processes[which].at = Reading::Copied(bytes as u8, world.input_tail);
                        Ok(())
                    })?;
                }
            }
            (Reading::Copied(bytes, at), _) => step(&|world| {
                world.idle(which);
                if world.tail & SWITCHED != 0 {
                    world.leave(which, Unread::TakenAlong);
                    return Ok(());
                }
                world.input_tail += u64::from(bytes);
                world.tail = world.input_tail;
                world.deliver_from_ring(at, bytes)
            })?,
            (Reading::Leave(machine), _) => step(&|world| {
                let mut machine = machine;
                if let Some(action) = machine.next(world.processes[which].event) {
                    world.processes[which].event = world.act(2, action, bound);
                    world.processes[which].at = Reading::Leave(machine);
                } else {
                    (world.taken, world.input_tail) = (world.input_tail, 0);
                    world.idle(which);
                    world.border = machine.border;
                    world.processes[which].left = Some(machine.bells);
                }
                Ok(())
            })?,
            (Reading::InPlace(machine), _) => step(&|world| {
                let mut machine = machine;
                if let Some(action) = machine.next(world.processes[which].event) {
                    world.processes[which].event = world.act(2, action, bound);
                    world.processes[which].at = Reading::InPlace(machine);
                } else {
                    world.idle(which);
                }
                Ok(())
            })?,
            (Reading::Along(machine, ended), _) => step(&|world| {
                let mut machine = machine;
                if let Some(action) = machine.next(world.processes[which].event) {
                    world.processes[which].event = world.act(2, action, bound);
                    world.processes[which].at = Reading::Along(machine, ended);
                    return Ok(());
                }
                world.idle(which);
                // An end that cannot be one is an error.
                if ended && !machine.taken { world.fail() } else { Ok(()) }
            })?,
            (Reading::Idle, Some(bells)) => {
                let (border, rest) = (self.border, self.border.saturating_sub(self.taken));
                let due = match bound.wrong {
                    Wrong::NothingDue => 0,
                    _ => due(border, self.head, self.pushed),
                };
                let missing = bells.saturating_sub(self.eaten);
                if process.stranger {
                    return step(&|world| world.read_stream(which, 1, false));
                }
                if missing > 0 && self.len > 0 {
                    return step(&|world| {
                        world.eaten += 1;
                        if world.get() == BELL { Ok(()) } else { Err("a byte is taken for a bell") }
                    });
                }
                if process.settles {
                    if due > 0 {
                        step(&|world| {
                            world.begin(
                                which,
                                Reading::InPlace(InPlace::new(border, bells, bound.reader == Reader::Stranger)),
                            )
                        })?;
                    }
                    if due > 0 && (bound.reader != Reader::Stranger || self.ended) {
                        step(&|world| world.begin(which, Reading::Along(TakeAlong::default(), false)))?;
                    }
                    // The sender, where it runs, is done before that.
                    let stuck = self.ended || self.len == bound.stream;
                    let is_done = (missing == 0 || self.ended) && (due == 0 || stuck);
                    if is_done || bound.reader != Reader::Stranger {
                        step(&|world| {
                            world.processes[which].settles = false;
                            match bound.reader {
                                Reader::Here => {}
                                Reader::Both => world.processes[1] = world.processes[which],
                                // What cannot be there is broken off.
                                Reader::Stranger
                                    if rest > 0 || world.ended && due > 0 && bound.wrong != Wrong::NotBrokenOff =>
                                {
                                    return world.fail();
                                }
                                Reader::Stranger => world.processes[which].stranger = true,
                            }
                            Ok(())
                        })?;
                    }
                    return Ok(());
                }
                for bytes in 1..=rest.min(2) as u8 {
                    step(&|world| {
                        let at = world.taken;
                        world.taken += u64::from(bytes);
                        world.deliver_from_ring(at, bytes)
                    })?;
                }
                if rest == 0 {
                    for bytes in 1..=2 {
                        step(&|world| world.read_stream(which, bytes, due > 0))?;
                    }
                    if self.len == 0 && due > 0 && !self.ended && bound.wrong != Wrong::NoHelp {
                        step(&|world| world.begin(which, Reading::InPlace(InPlace::new(border, bells, true))))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn idle(&mut self, which: usize) {
        let _ = self.begin(which, Reading::Idle);
    }

    fn begin(&mut self, which: usize, at: Reading) -> Breach {
        (self.processes[which].at, self.processes[which].event) = (at, Event::Done);
        Ok(())
    }

    fn leave(&mut self, which: usize, unread: Unread) {
        let _ = self.begin(which, Reading::Leave(Leave::new(unread, self.input_tail)));
    }

    /// The ring is open and has nothing: arms, eats, or sees the end.
    fn read_in_ring(&mut self, which: usize) -> Breach {
        if self.head != self.input_tail {
            return Ok(());
        }
        if self.tail & SWITCHED != 0 {
            self.leave(which, Unread::TakenAlong);
        } else if self.len > 0 {
            if self.eaten >= bells::rung(&AtomicU64::new(self.bell)) {
                return Err("a byte in the stream of an open ring");
            }
            self.eaten += 1;
            return if self.get() == BELL { Ok(()) } else { Err("a byte is taken for a bell") };
        } else if self.ended {
            return self.end();
        } else {
            self.bells(|word| bells::arm(word, bells::DATA));
        }
        Ok(())
    }

    fn read_stream(&mut self, which: usize, bytes: usize, due: bool) -> Breach {
        let process = self.processes[which];
        if self.len > 0 {
            if bytes > self.len {
                return Ok(());
            }
            for _ in 0..bytes {
                let byte = self.get();
                self.deliver(byte)?;
            }
            return Ok(());
        }
        if process.stranger {
            return if self.ended { self.end() } else { Ok(()) };
        }
        if due {
            return self.begin(which, Reading::Along(TakeAlong::default(), self.ended));
        }
        if self.ended { self.end() } else { Ok(()) }
    }

    fn deliver_from_ring(&mut self, at: u64, bytes: u8) -> Breach {
        (at..at + u64::from(bytes)).try_for_each(|at| self.deliver(self.ring[at as usize % RING]))
    }

    fn deliver(&mut self, byte: u8) -> Breach {
        let wanted = self.got;
        self.got += 1;
        match byte {
            BELL => Err("a bell is taken for a byte"),
            _ if byte < wanted => Err("a byte comes twice"),
            _ if byte > wanted => Err("a byte is lost"),
            _ => Ok(()),
        }
    }

    /// The program is told an error.
    fn fail(&mut self) -> Breach {
        self.over = true;
        if self.full || self.killed { Ok(()) } else { Err("an error without need") }
    }

    fn end(&mut self) -> Breach {
        self.over = true;
        if self.got >= self.sent || self.reset || self.full && self.processes[0].stranger {
            Ok(())
        } else {
            Err("a clean end too early")
        }
    }
}
