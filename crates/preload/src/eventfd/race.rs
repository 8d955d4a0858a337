//! Two threads that sleep for one connection, and a peer that sends and takes: in every order.
//!
//! The steps are those of `poll`, `wait`, `epoll` and `drain_own`, each as fine as another thread or
//! process can come in between; the word is changed by `wake_bytes` itself. As in the kernel, who sleeps
//! goes on if what wakes him is there *when he runs*, not when it came.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use crate::word::Word;

use crate::wake::{self, DATA, ROOM, Wake};

const GONE: u8 = 50;
const WAITS: u8 = 20;
/// What the peer does, one after the other.
const EVENTS: [u64; 3] = [DATA, ROOM, DATA];

/// How a thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// In poll or select: for the eventfd where there is one, and for the wake byte.
    Poll,
    /// In a receive: for the wake byte alone.
    Receive,
    /// In a set of epoll of its own: for the eventfd's edge, and the wake byte by level.
    Set,
    /// In poll, from before the ends have met.
    Early,
}

/// What a program does that is told of what it wants.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reported {
    /// Takes all that is there, and waits again.
    Takes,
    /// The same, but the first has other things to do from then on, for ever.
    FirstLeaves,
    Leaves,
}

/// A fault that the model must find.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// Who is woken by the eventfd reads it at once, and writes it again for others, once for what is new.
    OnceForNews,
    /// The wake byte is taken though others have not run yet.
    Impatient,
    /// The ends meet while a thread sleeps in the kernel that knows nothing of it.
    AttachesEarly,
    /// Wake requests are taken back though others sleep.
    DisarmsAlways,
    /// Those in sets are told nothing of an eventfd that was read.
    SetsUntold,
    /// Sets are told by EPOLLOUT alone, whether the kernel grants it or not.
    Deaf,
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    kinds: [Kind; 2],
    wants: [u64; 2],
    /// Whether there are eventfds.
    eventfds: bool,
    /// The kernel's buffer is full, so a set that asks for EPOLLOUT is not woken by that.
    full: bool,
    reported: Reported,
    fault: Option<Fault>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    /// The peer: steps done, what its last claim came to.
    step: u8,
    wake: (bool, bool),
    word: u64,
    /// Messages that came and were taken; room that came and was filled.
    head: u8,
    tail: u8,
    room: u8,
    used: u8,
    /// Whether the ends have met, and bytes lie in the kernel from before.
    met: bool,
    kernel: bool,
    /// The eventfd can be read; somebody knows; wake bytes that are unread.
    issued: bool,
    noted: bool,
    unread: u8,
    signalled: (u8, u8),
    /// Each thread: where it is, whether it is counted, and who the lock has.
    at: [u8; 2],
    counted: [bool; 2],
    saw: [bool; 2],
    edge: [bool; 2],
    kick: [bool; 2],
    lock: Option<usize>,
}

impl World {
    fn word(&mut self, change: impl FnOnce(&Word)) {
        let word = Word::new(self.word);
        change(&word);
        self.word = word.load(Ordering::SeqCst);
    }

    fn signal(&mut self) {
        (self.issued, self.edge) = (true, [true; 2]);
    }

    /// One step of the peer; None when it is done.
    fn peer(&self) -> Option<Self> {
        let event = *EVENTS.get(usize::from(self.step / 3))?;
        let mut next = self.clone();
        match self.step % 3 {
            0 if event == DATA => {
                next.head += 1;
                next.kernel |= !self.met;
            }
            0 => next.room += 1,
            1 if self.met => {
                let mut wake = Wake::default();
                next.word(|word| wake = wake::claim(word, event));
                next.wake = (wake.byte, wake.eventfd);
            }
            1 => {}
            _ => {
                let (byte, eventfd) = std::mem::take(&mut next.wake);
                next.unread += u8::from(byte);
                if eventfd {
                    next.signal();
                }
            }
        }
        next.step += 1;
        Some(next)
    }

    /// The ends meet, at the end of any call.
    fn attach(&self, rules: Rules) -> Option<Self> {
        let early = (0..2).any(|who| rules.kinds[who] != Kind::Set && self.at[who] == 31);
        // The peer's own calls and this one take turns in the kernel.
        let may = !self.met && self.lock.is_none() && self.step.is_multiple_of(3) && !self.kernel;
        (may && (!early || rules.fault == Some(Fault::AttachesEarly))).then(|| {
            let mut next = Self { met: true, ..self.clone() };
            next.word(|word| wake::arm(word, DATA | ROOM));
            next
        })
    }

    fn take_lock(&self, who: usize) -> Option<Self> {
        self.lock.is_none().then(|| Self { lock: Some(who), ..self.clone() })
    }

    fn stands(&self, request: u64) -> bool {
        request & DATA != 0 && self.head != self.tail || request & ROOM != 0 && self.room != self.used
    }

    /// Others who sleep, are counted, and whom this wakes.
    fn others(&self, who: usize, rules: Rules, by_eventfd: bool) -> bool {
        let other = who ^ 1;
        let waited_for = match rules.kinds[other] {
            Kind::Receive => !by_eventfd,
            Kind::Set => rules.full && !rules.eventfds && rules.fault != Some(Fault::Deaf),
            _ => true,
        };
        self.counted[other] && waited_for
    }

    /// What wakes was taken away: sets that sleep are to hear of what stands. True if the eventfd is
    /// written for that.
    fn drained(&mut self, who: usize, rules: Rules) -> bool {
        let other = who ^ 1;
        let asleep = rules.kinds[other] == Kind::Set && self.counted[other];
        if !asleep || rules.fault == Some(Fault::SetsUntold) {
            return false;
        }
        self.arm(rules, DATA | ROOM);
        let news = self.stands(rules.wants[other]);
        let by_eventfd = rules.eventfds && rules.fault != Some(Fault::Deaf);
        if news && by_eventfd {
            self.signal();
        }
        self.kick[other] |= news && !by_eventfd && !rules.full;
        news && by_eventfd
    }

    fn arm(&mut self, rules: Rules, request: u64) {
        let request = if rules.eventfds { wake::by_eventfd(request) } else { request };
        self.word(|word| wake::arm(word, request));
    }

    /// The program is told, and does what it does.
    fn report(&mut self, who: usize, rules: Rules) {
        let leaves = rules.reported == Reported::Leaves || rules.reported == Reported::FirstLeaves && who == 0;
        if !leaves && rules.wants[who] & DATA != 0 {
            (self.tail, self.kernel) = (self.head, false);
        }
        if !leaves && rules.wants[who] & ROOM != 0 {
            self.used = self.room;
        }
        self.counted[who] = false;
        self.lock = None;
        self.at[who] = if leaves { GONE } else { 0 };
    }

    /// One step of a thread; None when it cannot go on.
    fn thread(&self, who: usize, rules: Rules) -> Option<Self> {
        let (kind, request, fault) = (rules.kinds[who], rules.wants[who], rules.fault);
        let eventfds = rules.eventfds && kind != Kind::Receive;
        let mut next = self.clone();
        next.at[who] = match self.at[who] {
            GONE => return None,
            0 => {
                next = self.take_lock(who)?;
                // In a set one is counted before the look, among those of the set.
                next.counted[who] |= kind == Kind::Set || fault == Some(Fault::OnceForNews);
                if self.met { 1 } else { 30 }
            }
            1 | 5 if self.stands(request) => {
                next.report(who, rules);
                return next.after(self);
            }
            // A wake-up that has come is taken away, if all have run.
            1 if eventfds && kind != Kind::Set && self.noted => {
                if self.others(who, rules, true) {
                    (next.lock, next.counted[who]) = (None, false);
                    WAITS
                } else {
                    (next.noted, next.issued) = (false, false);
                    if next.drained(who, rules) {
                        (next.noted, next.lock) = (true, None);
                        WAITS
                    } else {
                        2
                    }
                }
            }
            1 => 2,
            2 if self.unread > 0 => {
                if self.others(who, rules, false) && fault != Some(Fault::Impatient) {
                    (next.lock, next.counted[who]) = (None, false);
                    WAITS
                } else {
                    next.unread = 0;
                    next.drained(who, rules);
                    3
                }
            }
            2 => 3,
            3 => {
                if kind == Kind::Receive {
                    next.word(|word| wake::arm(word, request));
                } else {
                    next.arm(rules, request);
                }
                5
            }
            5 => {
                next.counted[who] = true;
                next.lock = None;
                6
            }
            // Asleep in the kernel, which looks again.
            6 => {
                let eventfd = eventfds && self.issued && (kind != Kind::Set || self.edge[who]);
                if !eventfd && self.unread == 0 && !self.kick[who] && !self.kernel {
                    return None;
                }
                // It says so while it is still counted, so it is true until all have run.
                next.noted |= eventfd && kind != Kind::Set;
                (next.counted[who], next.saw[who]) = (false, eventfd);
                (next.edge[who], next.kick[who]) = (false, false);
                match kind {
                    Kind::Set => 0,
                    _ => 7,
                }
            }
            7 => {
                next = self.take_lock(who)?;
                if self.saw[who] && fault == Some(Fault::OnceForNews) {
                    (next.issued, next.noted) = (false, false);
                    next.drained(who, rules);
                    if self.others(who, rules, true) {
                        next.arm(rules, DATA | ROOM);
                        if (self.head, self.used) != self.signalled {
                            next.signalled = (self.head, self.used);
                            next.signal();
                        }
                    }
                }
                8
            }
            // What others would ring for is taken back.
            8 => {
                let tagged = rules.kinds.contains(&Kind::Set);
                if !self.others(who, rules, true) && !tagged || fault == Some(Fault::DisarmsAlways) {
                    next.word(wake::disarm_eventfd);
                }
                next.lock = None;
                0
            }
            // Until the others have run. No time ends it here.
            WAITS => return None,
            // Before the ends meet: the kernel's until bytes are there; only a rendezvous knows of it.
            30 => {
                next.lock = None;
                31
            }
            _ => {
                let by_kernel = self.kernel || !self.met && self.stands(request);
                // A set has the eventfd from the rendezvous on.
                let edge = kind == Kind::Set && eventfds && self.edge[who] && self.issued;
                if !by_kernel && self.unread == 0 && !self.kick[who] && !edge {
                    return None;
                }
                (next.counted[who], next.kick[who], next.edge[who]) = (false, false, false);
                0
            }
        };
        next.after(self)
    }

    /// Who waits for others goes on when they are counted no more.
    fn after(mut self, before: &Self) -> Option<Self> {
        for who in 0..2 {
            if before.counted[who] && !self.counted[who] && self.at[who ^ 1] == WAITS {
                self.at[who ^ 1] = 0;
            }
        }
        Some(self)
    }
}

/// Whether in any order somebody sleeps, or waits for others, for ever while he has something to
/// do; and in how many states they can be.
fn explore(rules: Rules) -> (bool, usize) {
    let early = rules.kinds.contains(&Kind::Early);
    let mut start = World {
        step: 0,
        wake: (false, false),
        word: 0,
        head: 0,
        tail: 0,
        room: 0,
        used: 0,
        met: !early,
        kernel: false,
        issued: false,
        noted: false,
        unread: 0,
        signalled: (0, 0),
        at: [0; 2],
        counted: [false; 2],
        saw: [false; 2],
        edge: [false; 2],
        kick: [false; 2],
        lock: None,
    };
    start.word(|word| wake::arm(word, DATA | ROOM));
    let (mut seen, mut open) = (HashSet::new(), vec![start]);
    let mut lost = false;
    while let Some(world) = open.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        let mut steps: Vec<World> = (0..2).filter_map(|who| world.thread(who, rules)).collect();
        steps.extend(world.peer());
        let sleeps = |who: usize| world.at[who] != GONE && (world.stands(rules.wants[who]) || world.at[who] == WAITS);
        lost |= steps.is_empty() && (0..2).any(sleeps);
        steps.extend(world.attach(rules));
        open.extend(steps);
    }
    (lost, seen.len())
}

/// All mixtures of two threads, of what they want, with eventfds and without.
fn mixtures(fault: Option<Fault>) -> impl Iterator<Item = Rules> {
    let kinds = [Kind::Poll, Kind::Receive, Kind::Set, Kind::Early];
    let pairs = kinds.into_iter().flat_map(move |first| kinds.map(|second| [first, second]));
    let wants = [[DATA, ROOM], [DATA, DATA]];
    let reported = [Reported::Takes, Reported::FirstLeaves, Reported::Leaves];
    pairs.flat_map(move |kinds| {
        // Where there are eventfds, nobody asks for EPOLLOUT.
        let full = kinds.contains(&Kind::Set);
        let means = [(true, full), (false, full), (false, false)];
        let means = means.into_iter().take(if full { 3 } else { 2 });
        wants.into_iter().flat_map(move |wants| {
            means.clone().flat_map(move |(eventfds, full)| {
                reported.map(|reported| Rules { kinds, wants, eventfds, full, reported, fault })
            })
        })
    })
}

#[test]
fn nobody_sleeps_on_what_he_waits_for_in_any_order() {
    for rules in mixtures(None) {
        let (lost, states) = explore(rules);
        assert!(!lost && states > 50, "{rules:?}: {states} states");
    }
}

#[test]
fn each_rule_is_needed() {
    let faults = [
        Fault::OnceForNews,
        Fault::Impatient,
        Fault::AttachesEarly,
        Fault::DisarmsAlways,
        Fault::SetsUntold,
        Fault::Deaf,
    ];
    for fault in faults {
        assert!(mixtures(Some(fault)).any(|rules| explore(rules).0), "{fault:?} is not found");
    }
}
