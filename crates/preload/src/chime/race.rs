//! Two threads that sleep in poll for one connection, one chime, and a peer that sends: in every order in which it can be run.
//!
//! The steps are those of `poll` and `hear`; the word is changed by `bells` itself. Poll returns when the chime is rung at the moment
//! at which it looks, so whoever makes it silent may leave the other asleep.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::bells;

const MESSAGES: u8 = 2;
const GONE: u8 = 20;

/// What is being tried.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// Whoever makes the chime silent rings it again for others, once for what is new.
    again: bool,
    /// Who is told reads all that is there, and waits again; else it does neither.
    reads: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    head: u8,
    tail: u8,
    word: u64,
    rung: bool,
    /// Those who have asked for it, and sleep or are about to.
    listeners: u8,
    heard: u8,
    lock: Option<usize>,
    sender: u8,
    claimed: bool,
    at: [u8; 2],
}

impl World {
    fn word(&mut self, change: impl FnOnce(&AtomicU64)) {
        let word = AtomicU64::new(self.word);
        change(&word);
        self.word = word.load(Ordering::SeqCst);
    }

    /// One step of the sender; None when it is done.
    fn send(&self) -> Option<Self> {
        let mut next = self.clone();
        match self.sender % 3 {
            _ if self.sender == 3 * MESSAGES => return None,
            0 => next.head += 1,
            1 => {
                let mut claimed = false;
                next.word(|word| claimed = bells::claim(word, bells::DATA).chime);
                next.claimed = claimed;
            }
            _ => {
                next.rung |= self.claimed;
                next.claimed = false;
            }
        }
        next.sender += 1;
        Some(next)
    }

    fn take_lock(&self, who: usize) -> Option<Self> {
        self.lock.is_none().then(|| Self { lock: Some(who), ..self.clone() })
    }

    /// One step of a thread in poll; None when it cannot go on.
    fn poll(&self, who: usize, rules: Rules) -> Option<Self> {
        let mut next = self.clone();
        let data = self.head != self.tail;
        let arm = |word: &AtomicU64| bells::arm(word, bells::by_chime(bells::DATA));
        next.at[who] = match self.at[who] {
            GONE => return None,
            0 => {
                next.listeners += 1;
                10
            }
            10 => {
                next = self.take_lock(who)?;
                1
            }
            1 | 3 if data => {
                next.listeners -= 1;
                next.tail = if rules.reads { self.head } else { self.tail };
                next.lock = None;
                if rules.reads { 0 } else { GONE }
            }
            1 => {
                next.word(arm);
                3
            }
            3 => {
                next.lock = None;
                4
            }
            // Asleep in the kernel.
            4 if !self.rung => return None,
            4 => {
                next.listeners -= 1;
                6
            }
            6 => {
                next = self.take_lock(who)?;
                7
            }
            7 => {
                next.rung = false;
                8
            }
            8 => {
                if rules.again && self.listeners > 0 {
                    next.word(arm);
                    9
                } else {
                    next.lock = None;
                    0
                }
            }
            _ => {
                next.rung |= self.head != self.heard;
                next.heard = self.head;
                next.lock = None;
                0
            }
        };
        Some(next)
    }
}

/// Whether in any order somebody sleeps for ever while bytes lie in the ring; and in how many states the two can be.
fn explore(rules: Rules) -> (bool, usize) {
    let start = World {
        head: 0,
        tail: 0,
        word: 0,
        rung: false,
        listeners: 0,
        heard: 0,
        lock: None,
        sender: 0,
        claimed: false,
        at: [0; 2],
    };
    let (mut seen, mut open) = (HashSet::new(), vec![start]);
    let mut lost = false;
    while let Some(world) = open.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        let mut steps: Vec<World> = (0..2).filter_map(|who| world.poll(who, rules)).collect();
        steps.extend(world.send());
        lost |= steps.is_empty() && world.head != world.tail && world.at.iter().any(|at| *at != GONE);
        open.extend(steps);
    }
    (lost, seen.len())
}

#[test]
fn nobody_sleeps_on_bytes_in_any_order_and_two_do_not_wake_one_another_for_ever() {
    for reads in [false, true] {
        let (lost, states) = explore(Rules { again: true, reads });
        assert!(!lost && states > 500, "reads {reads}: {states} states");
    }
    assert!(explore(Rules { again: false, reads: false }).0, "the rule is needed");
}
