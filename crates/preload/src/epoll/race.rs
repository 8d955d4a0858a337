//! The race between who sends, who sleeps in a set, and who takes wake bytes away, in every order in which it can be run.
//!
//! The steps are those of `wait` and `control::drained`, each as fine as another thread or process can come in between; the words
//! are changed by `wake_bytes` itself. A connection's lock keeps our own threads apart, not the sender, who is another process.

use std::collections::HashSet;

use crate::wake::{self, sender::Sender};

const MESSAGES: u8 = 3;
const WAITERS: usize = 2;
/// The thread that receives without the set.
const READER: usize = 2;
const READS: u8 = 4;
const GONE: u8 = 20;

/// What is being tried.
#[derive(Clone, Copy)]
struct Rules {
    /// The kernel's entry is edge-triggered: one waiter gets a wake byte, once.
    edge: bool,
    /// Whoever takes wake bytes away, or an edge, arms again for those who sleep.
    rearm: bool,
    /// There is an eventfd, whose edge is what wakes; the thread beside is one in poll, which drains it.
    eventfd: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    sender: Sender,
    tail: u8,
    /// Wake bytes in the kernel; an edge that nobody has taken; a request for EPOLLOUT that wakes.
    wake_bytes: u8,
    event: bool,
    kick: bool,
    sleepers: u8,
    lock: Option<usize>,
    at: [u8; WAITERS],
    reads: u8,
    reader: u8,
}

impl World {
    /// One step of the sender; None when it is done.
    fn send(&self, rules: Rules) -> Option<Self> {
        let (sender, rings) = self.sender.next()?;
        let wake_bytes = self.wake_bytes + u8::from(rings && !rules.eventfd);
        Some(Self { sender, wake_bytes, event: self.event | rings, ..self.clone() })
    }

    fn take_lock(&self, who: usize) -> Option<Self> {
        self.lock.is_none().then(|| Self { lock: Some(who), ..self.clone() })
    }

    /// Wake bytes are taken out of the kernel by one who has the lock.
    fn drain_wake_bytes(&mut self, rules: Rules) {
        let any = self.wake_bytes > 0;
        self.wake_bytes = 0;
        if any && rules.rearm && self.sleepers > 0 {
            self.arm(rules);
        }
    }

    /// An eventfd that was signalled is drained, before the set has said so to anybody.
    fn hear(&mut self, rules: Rules) {
        if std::mem::take(&mut self.event) && rules.rearm && self.sleepers > 0 {
            self.arm(rules);
        }
    }

    fn arm(&mut self, rules: Rules) {
        let request = if rules.eventfd { wake::by_eventfd(wake::DATA) } else { wake::DATA };
        self.sender.word(|word| wake::arm(word, request));
    }

    /// One step of a waiter; None when it cannot go on.
    fn wait(&self, who: usize, rules: Rules) -> Option<Self> {
        let mut next = self.clone();
        let data = self.sender.head != self.tail;
        let to = match self.at[who] {
            0 => {
                next.sleepers += 1;
                1
            }
            1 => {
                next = self.take_lock(who)?;
                2
            }
            // The pass before sleeping: a ring that has something is reported, and read by the program.
            2 | 4 if data => 6,
            2 => {
                next.drain_wake_bytes(rules);
                10
            }
            10 => {
                next.kick |= rules.rearm && data;
                3
            }
            3 => {
                next.arm(rules);
                4
            }
            4 => {
                next.lock = None;
                5
            }
            // Asleep in the kernel.
            5 => {
                let woken = if rules.eventfd { self.event } else { self.wake_bytes > 0 && (self.event || !rules.edge) };
                if !woken && !self.kick {
                    return None;
                }
                (next.event, next.kick) = (false, false);
                next.sleepers -= 1;
                7
            }
            6 => {
                next.report(rules);
                next.sleepers -= 1;
                after_a_report(who)
            }
            GONE => return None,
            // An event is translated.
            7 => {
                next = self.take_lock(who)?;
                8
            }
            8 => {
                if rules.rearm && self.sleepers > 0 {
                    next.arm(rules);
                    // By level, whoever sleeps beside is to hear of it too.
                    next.event |= rules.eventfd && !rules.edge && data;
                }
                9
            }
            _ if data => {
                next.report(rules);
                after_a_report(who)
            }
            _ => {
                next.lock = None;
                0
            }
        };
        next.at[who] = to;
        Some(next)
    }

    /// The program reads: one message, or all of them as who waits for edges must.
    fn report(&mut self, rules: Rules) {
        self.tail = if rules.edge { self.sender.head } else { self.tail + 1 };
        self.lock = None;
    }

    /// One step of a thread that receives from the connection itself.
    fn receive(&self, rules: Rules) -> Option<Self> {
        let mut next = self.clone();
        next.reader = match self.reader {
            _ if self.reads == READS => return None,
            0 => {
                next = self.take_lock(READER)?;
                1
            }
            1 if self.sender.head != self.tail => {
                next.tail += 1;
                3
            }
            1 => {
                if rules.eventfd {
                    next.hear(rules);
                } else {
                    next.drain_wake_bytes(rules);
                }
                2
            }
            2 => {
                next.kick |= rules.rearm && self.sleepers > 0 && self.sender.head != self.tail;
                3
            }
            _ => {
                (next.lock, next.reads) = (None, self.reads + 1);
                0
            }
        };
        Some(next)
    }
}

/// The first waiter has other things to do after its first report, for ever.
fn after_a_report(who: usize) -> u8 {
    if who == 0 { GONE } else { 0 }
}

/// Whether in any order somebody sleeps for ever while bytes lie in the ring.
fn loses_a_wake(rules: Rules, with_reader: bool) -> bool {
    let start = World {
        sender: Sender::of(MESSAGES),
        tail: 0,
        wake_bytes: 0,
        event: false,
        kick: false,
        sleepers: 0,
        lock: None,
        at: [0; WAITERS],
        reads: if with_reader { 0 } else { READS },
        reader: 0,
    };
    let (mut seen, mut open) = (HashSet::new(), vec![start]);
    while let Some(world) = open.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        let mut steps: Vec<World> = (0..WAITERS).filter_map(|who| world.wait(who, rules)).collect();
        steps.extend(world.send(rules));
        steps.extend(world.receive(rules));
        if steps.is_empty() && world.sender.head != world.tail {
            return true;
        }
        open.extend(steps);
    }
    false
}

#[test]
fn nobody_sleeps_on_bytes_in_any_order() {
    for (edge, eventfd) in [(false, false), (true, false), (false, true), (true, true)] {
        for with_reader in [false, true] {
            let rules = |rearm| Rules { edge, rearm, eventfd };
            let what = format!("edge {edge}, eventfd {eventfd}, reader {with_reader}");
            assert!(!loses_a_wake(rules(true), with_reader), "{what}");
            if edge || eventfd || with_reader {
                assert!(loses_a_wake(rules(false), with_reader), "{what}: the rule is needed");
            }
        }
    }
}
