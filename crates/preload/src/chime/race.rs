//! Two threads that sleep in poll for one connection, one chime, and a peer that sends: in every order in which it can be run.
//!
//! The steps are those of `poll`, `hear` and `hush`; the word is changed by `bells` itself. Poll returns when the chime is rung at the moment
//! at which it looks, so whoever makes it silent may leave the other asleep.

use std::collections::HashSet;
use std::sync::atomic::AtomicU64;

use crate::bells::{self, sender::Sender};

const MESSAGES: u8 = 3;
const GONE: u8 = 20;

/// What a program does that is told of bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Told {
    /// Reads all that is there, and waits again.
    Reads,
    /// The same, but the first has other things to do from then on, for ever.
    FirstLeaves,
    Leaves,
}

/// What is being tried.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// Whoever makes the chime silent rings it again for others, once for what is new.
    again: bool,
    told: Told,
    /// Wishes are taken back by one who was woken only where nobody else listens.
    alone: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    sender: Sender,
    tail: u8,
    rung: bool,
    /// Those who have asked for it, and sleep or are about to.
    listeners: u8,
    heard: u8,
    lock: Option<usize>,
    at: [u8; 2],
}

impl World {
    /// One step of the sender; None when it is done.
    fn send(&self) -> Option<Self> {
        let (sender, rings) = self.sender.next()?;
        Some(Self { sender, rung: self.rung | rings, ..self.clone() })
    }

    fn take_lock(&self, who: usize) -> Option<Self> {
        self.lock.is_none().then(|| Self { lock: Some(who), ..self.clone() })
    }

    /// One step of a thread in poll; None when it cannot go on.
    fn poll(&self, who: usize, rules: Rules) -> Option<Self> {
        let mut next = self.clone();
        let data = self.sender.head != self.tail;
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
                next.tail = if rules.told == Told::Leaves { self.tail } else { self.sender.head };
                next.lock = None;
                if rules.told == Told::Reads || rules.told == Told::FirstLeaves && who == 1 { 0 } else { GONE }
            }
            1 => {
                next.sender.word(arm);
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
                    next.sender.word(arm);
                    9
                } else {
                    next.lock = None;
                    11
                }
            }
            9 => {
                next.rung |= self.sender.head != self.heard;
                next.heard = self.sender.head;
                next.lock = None;
                11
            }
            // What others would ring for is taken back.
            11 => {
                next = self.take_lock(who)?;
                12
            }
            _ => {
                if self.listeners == 0 || !rules.alone {
                    next.sender.word(bells::hush);
                }
                next.lock = None;
                0
            }
        };
        Some(next)
    }
}

/// Whether in any order somebody sleeps for ever while bytes lie in the ring; and in how many states the two can be.
fn explore(rules: Rules) -> (bool, usize) {
    let start =
        World { sender: Sender::of(MESSAGES), tail: 0, rung: false, listeners: 0, heard: 0, lock: None, at: [0; 2] };
    let (mut seen, mut open) = (HashSet::new(), vec![start]);
    let mut lost = false;
    while let Some(world) = open.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        let mut steps: Vec<World> = (0..2).filter_map(|who| world.poll(who, rules)).collect();
        steps.extend(world.send());
        lost |= steps.is_empty() && world.sender.head != world.tail && world.at.iter().any(|at| *at != GONE);
        open.extend(steps);
    }
    (lost, seen.len())
}

#[test]
fn nobody_sleeps_on_bytes_in_any_order_and_two_do_not_wake_one_another_for_ever() {
    for told in [Told::Reads, Told::FirstLeaves, Told::Leaves] {
        let (lost, states) = explore(Rules { again: true, told, alone: true });
        assert!(!lost && states > 300, "{told:?}: {states} states");
    }
    assert!(explore(Rules { again: false, told: Told::Leaves, alone: true }).0, "the rule is needed");
    assert!(explore(Rules { again: true, told: Told::FirstLeaves, alone: false }).0, "and so is this one");
}
