//! Two ends that come into the rings again while either forks or ends it for good: in every order in which they can be run.
//!
//! What an end does is decided by `again` itself (`next`, `promised`, `withdrawn`); each read and each write of a shared word is a step,
//! in the order of `advance`, `renew`, `resume` and of entering behind them. An end holds its connection's lock while it advances, so its own
//! forks come between such calls; the other end comes in anywhere.

use std::collections::HashSet;

use super::{BUSY, DEAD, LIVE, NONE, Next, OPEN, next, promised, withdrawn};

/// Bytes that each end sends over rings.
const BYTES: u8 = 2;

/// What is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Nothing,
    /// An end forks although the other has begun.
    TooLate,
    /// Who begins does not look whether the word is still what it read.
    Exchange,
    /// A word stands for good, once it is said.
    Withdrawal,
}

/// Where an end is in its own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Resting,
    /// Has read the pact.
    Read(u64),
    /// So many shared words are in order.
    Renewing(u8),
    Resuming,
    Entering,
    /// Is about to say that it expects the ring.
    Expecting,
    Ring,
    /// Both directions are switched; what the peer did not take is to be sent again.
    Leaving,
    Plain,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct End {
    at: At,
    /// No other process has it open.
    alone: bool,
    /// Forks, and calls that nobody counts, that are still to come.
    forks: u8,
    ends: u8,
    started: bool,
    sent: u8,
    head: u8,
    /// The position of the next byte to take; how many were taken out of rings.
    tail: u8,
    received: u8,
    /// Bytes that the kernel carried.
    again: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    pact: u64,
    /// By direction.
    head: [u8; 2],
    tail: [u8; 2],
    switched: [bool; 2],
    start: [bool; 2],
    present: [bool; 2],
    ends: [End; 2],
}

impl World {
    /// All that may happen next to one end.
    fn steps(&self, who: usize, missing: Missing) -> Vec<Self> {
        let (mut steps, peer) = (Vec::new(), who ^ 1);
        let mut step = |change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            change(&mut next);
            steps.push(next);
        };
        let end = &self.ends[who];
        match end.at {
            At::Resting => {
                step(&|world| world.ends[who].at = At::Read(world.pact));
                if !end.alone {
                    step(&|world| world.ends[who].alone = true);
                }
                if end.forks > 0 {
                    step(&|world| world.fork_at_rest(who, missing));
                }
                if end.ends > 0 {
                    step(&|world| world.give_up(who));
                }
            }
            At::Read(now) => step(&|world| world.act(who, now, missing)),
            At::Renewing(done) => step(&|world| world.renew(who, done)),
            At::Resuming => step(&|world| {
                let end = &mut world.ends[who];
                (end.tail, end.at) = (world.head[peer], At::Entering);
            }),
            At::Entering => step(&|world| {
                let switched = world.switched[0] || world.switched[1];
                world.ends[who].at = match switched {
                    false => At::Expecting,
                    true if world.pact & (OPEN | DEAD) == OPEN => At::Resting,
                    true => At::Plain,
                };
            }),
            At::Expecting => step(&|world| {
                world.present[who] = true;
                world.ends[who].at = At::Ring;
            }),
            At::Ring => self.steps_in_ring(who, &mut step),
            At::Leaving => step(&|world| {
                let open = world.pact & (OPEN | DEAD) == OPEN;
                let end = &mut world.ends[who];
                end.again += end.head - world.tail[who];
                (end.started, end.at) = (false, if open { At::Resting } else { At::Plain });
            }),
            At::Plain => {}
        }
        steps
    }

    fn steps_in_ring(&self, who: usize, step: &mut impl FnMut(&dyn Fn(&mut Self))) {
        let (end, peer) = (&self.ends[who], who ^ 1);
        if self.switched[who] || self.switched[peer] {
            return step(&|world| world.switch(who));
        }
        if !end.started && self.present[peer] {
            step(&|world| (world.start[who], world.ends[who].started) = (true, true));
        }
        if end.started && end.sent < BYTES {
            step(&|world| {
                let end = &mut world.ends[who];
                (end.sent, end.head) = (end.sent + 1, end.head + 1);
                world.head[who] = end.head;
            });
        }
        if self.start[peer] && self.head[peer] != end.tail {
            step(&|world| {
                let end = &mut world.ends[who];
                (end.tail, end.received) = (end.tail + 1, end.received + 1);
                world.tail[peer] = end.tail;
            });
        }
        if end.forks > 0 {
            step(&|world| {
                world.pact = promised(world.pact).unwrap_or(world.pact);
                let end = &mut world.ends[who];
                (end.forks, end.alone) = (end.forks - 1, false);
                world.switch(who);
            });
        }
        if end.ends > 0 {
            step(&|world| {
                world.pact |= DEAD;
                world.ends[who].ends -= 1;
                world.switch(who);
            });
        }
    }

    fn switch(&mut self, who: usize) {
        self.switched = [true; 2];
        self.ends[who].at = At::Leaving;
    }

    fn fork_at_rest(&mut self, who: usize, missing: Missing) {
        self.ends[who].forks -= 1;
        match withdrawn(self.pact, who) {
            Some(pact) if missing != Missing::Withdrawal => (self.pact, self.ends[who].alone) = (pact, false),
            None if missing != Missing::TooLate => self.give_up(who),
            _ => self.ends[who].alone = false,
        }
    }

    /// `meeting::call_off`.
    fn give_up(&mut self, who: usize) {
        self.pact |= DEAD;
        self.switched = [true; 2];
        self.ends[who].at = At::Plain;
    }

    fn act(&mut self, who: usize, now: u64, missing: Missing) {
        let again = At::Read(self.pact);
        let same = self.pact == now;
        let alone = self.ends[who].alone;
        self.ends[who].at = match next(now, who, alone) {
            Next::Over => return self.give_up(who),
            Next::Wait => At::Resting,
            Next::Join => At::Resuming,
            Next::Say(said) if same => {
                self.pact = said;
                At::Resting
            }
            Next::Begin if same || missing == Missing::Exchange => {
                self.pact = BUSY;
                At::Renewing(0)
            }
            Next::Say(_) | Next::Begin => again,
        };
    }

    fn renew(&mut self, who: usize, done: u8) {
        let direction = usize::from(done / 3) & 1;
        let own = self.ends[who].head;
        self.ends[who].at = At::Renewing(done + 1);
        match done {
            0 | 3 => self.start[direction] = false,
            1 | 4 => self.present[direction] = false,
            2 | 5 => {
                self.tail[direction] = if direction == who { own } else { self.head[direction] };
                self.switched[direction] = false;
            }
            _ if self.pact == BUSY => {
                self.pact = LIVE;
                self.ends[who].at = At::Resuming;
            }
            _ => self.give_up(who),
        }
    }

    /// What must hold in every state; a word about what does not.
    fn breach(&self) -> Option<&'static str> {
        let renewing = |end: &End| matches!(end.at, At::Renewing(_));
        if self.ends.iter().all(renewing) {
            return Some("both put the words in order");
        }
        for (who, end) in self.ends.iter().enumerate() {
            let in_ring = end.at == At::Ring && !self.switched[0] && !self.switched[1];
            if in_ring && !end.alone {
                return Some("in the rings beside another process");
            }
            if in_ring && (end.head != self.head[who] || self.tail[who ^ 1] != end.tail || !self.present[who]) {
                return Some("the words are not those of this end");
            }
            if in_ring && end.started && (!self.start[who] || renewing(&self.ends[who ^ 1])) {
                return Some("put in order under one who sends");
            }
        }
        let rest = |end: &End| end.at == At::Resting && end.alone;
        if self.ends.iter().all(rest) && (0..2).all(|who| next(self.pact, who, true) == Next::Wait) {
            return Some("both wait for ever");
        }
        None
    }

    /// Bytes that nobody will have, once nothing can happen any more.
    fn loses(&self) -> bool {
        (0..2).any(|who| {
            let (end, peer) = (&self.ends[who], &self.ends[who ^ 1]);
            let gone = |end: &End| end.at == At::Plain;
            gone(end) && gone(peer) && peer.received + end.again != end.sent
                || end.at == At::Ring && peer.at == At::Ring && peer.received + end.again != end.sent
        })
    }
}

/// What goes wrong in some order; else in how many states the ends can be, and whether they come into the rings.
fn explore(forks: [u8; 2], ends: [u8; 2], missing: Missing) -> Result<(usize, bool), &'static str> {
    let end = |who: usize| End {
        at: At::Ring,
        alone: true,
        forks: forks[who],
        ends: ends[who],
        started: true,
        sent: 0,
        head: 0,
        tail: 0,
        received: 0,
        again: 0,
    };
    let both = [true; 2];
    let start = World {
        pact: NONE,
        head: [0; 2],
        tail: [0; 2],
        switched: [false; 2],
        start: both,
        present: both,
        ends: [end(0), end(1)],
    };
    let (mut seen, mut open, mut came) = (HashSet::new(), vec![start], false);
    while let Some(world) = open.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        if let Some(what) = world.breach() {
            return Err(what);
        }
        let steps: Vec<World> = (0..2).flat_map(|who| world.steps(who, missing)).collect();
        if steps.is_empty() && world.loses() {
            return Err("bytes are lost");
        }
        came |= world.pact == LIVE && world.ends.iter().all(|end| end.at == At::Ring);
        open.extend(steps);
    }
    Ok((seen.len(), came))
}

#[test]
fn ends_come_again_or_stay_away_and_lose_nothing_in_any_order() {
    for (forks, ends) in [([1, 0], [0, 0]), ([1, 1], [0, 0]), ([2, 1], [0, 0]), ([2, 0], [0, 1]), ([1, 1], [1, 0])] {
        let (states, came) =
            explore(forks, ends, Missing::Nothing).unwrap_or_else(|what| panic!("{forks:?} {ends:?}: {what}"));
        assert!(came && states > 300, "{forks:?} {ends:?}: {states} states");
    }
    for missing in [Missing::TooLate, Missing::Exchange, Missing::Withdrawal] {
        assert!(explore([2, 1], [0, 0], missing).is_err(), "{missing:?}: the rule is needed");
    }
}
