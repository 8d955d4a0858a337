//! What is walked, and up to which bound.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use libc::{POLLIN, POLLOUT};

use super::PLANTED;
use super::programs::Call::{self, *};
use super::world::{Rig, Start, World};
use crate::fault::Fault;
use crate::settle::Reader;

/// A scenario: how it begins, and what each thread does, by its process: 0 and 1 are
/// the ends, 2 a child of 1's.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    start: Start,
    threads: &'static [(usize, &'static [Call])],
    /// Threads that may sleep for ever.
    idle: &'static [usize],
}

/// There are many states, and the standard hash takes most of the time.
#[derive(Default)]
struct Fold(u64);

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        bytes.chunks(8).for_each(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        });
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }

    fn write_u32(&mut self, half: u32) {
        self.write_u64(u64::from(half));
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 29
    }
}

fn hash(world: &World) -> u64 {
    let mut hasher = Fold::default();
    world.hash(&mut hasher);
    hasher.finish()
}

type Numbers = HashMap<u64, u32, BuildHasherDefault<Fold>>;

/// What goes wrong in some order; else how many states there are.
fn walk(scenario: Scenario) -> Result<usize, String> {
    let rig = Rig::new(scenario.start, scenario.threads.iter().any(|(process, _)| *process == 2));
    let mut first = rig.begin(scenario.start, scenario.threads);
    scenario.idle.iter().for_each(|who| first.threads[*who].idles = true);
    let mut numbers = Numbers::default();
    // For each state, those from which it is reached.
    let (mut steps, mut over, mut from) = (Vec::new(), Vec::new(), vec![0]);
    numbers.insert(hash(&first), 0);
    let (mut open, mut next) = (vec![(first.clone(), 0)], Vec::new());
    while let Some((world, number)) = open.pop() {
        if world.is_over() {
            over.push(number);
        }
        next.clear();
        if let Err(what) = world.successors(&rig, &mut next) {
            return Err(format!("{what}: {}", way(&rig, first, &numbers, &from, number)));
        }
        for world in next.drain(..) {
            let fresh = numbers.len() as u32;
            let to = *numbers.entry(hash(&world)).or_insert(fresh);
            steps.push((to, number));
            if to == fresh {
                from.push(number);
                open.push((world, to));
            }
        }
        assert!(numbers.len() < MOST, "{scenario:?}: too many states");
    }
    match stuck(numbers.len(), steps, over) {
        None => Ok(numbers.len()),
        Some(stuck) => Err(format!("from here nobody comes to an end: {}", way(&rig, first, &numbers, &from, stuck))),
    }
}

/// A state from which no program's end is reached.
fn stuck(states: usize, mut steps: Vec<(u32, u32)>, mut open: Vec<u32>) -> Option<u32> {
    steps.sort_unstable();
    let mut ends = vec![false; states];
    while let Some(state) = open.pop() {
        if std::mem::replace(&mut ends[state as usize], true) {
            continue;
        }
        let first = steps.partition_point(|(to, _)| *to < state);
        open.extend(steps[first..].iter().take_while(|(to, _)| *to == state).map(|(_, from)| *from));
    }
    // The last one found has the fewest steps behind it, mostly.
    ends.iter().rposition(|ends| !ends).map(|state| state as u32)
}

/// The states on the way to this one.
fn way(rig: &Rig, first: World, numbers: &Numbers, from: &[u32], mut at: u32) -> String {
    let mut wanted = vec![at];
    while at != 0 {
        at = from[at as usize];
        wanted.push(at);
    }
    let (mut shown, mut open, mut next) = (HashMap::new(), vec![first], Vec::new());
    while let Some(world) = open.pop() {
        let Some(number) = numbers.get(&hash(&world)) else { continue };
        if let Entry::Vacant(place) = shown.entry(*number) {
            place.insert(if wanted.contains(number) { format!("{:?}\n", Shown(&world)) } else { String::new() });
            next.clear();
            let _ = world.successors(rig, &mut next);
            open.append(&mut next);
        }
    }
    wanted.iter().rev().filter_map(|number| shown.remove(number)).collect()
}

/// What of a state tells most.
struct Shown<'a>(&'a World);

impl std::fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let World { kernel, threads, sent, got, processes, .. } = self.0;
        let phases: Vec<_> = threads.iter().map(|thread| (thread.process, thread.phase, thread.log.len())).collect();
        let lives: Vec<_> = processes.iter().map(|process| (process.inner.outgoing, process.inner.incoming)).collect();
        write!(f, "threads {phases:?}\n{kernel:?}\nsent {sent:?} got {got:?}\n{lives:?}\n{:x?}", self.0.words())
    }
}

fn walk_with(fault: Option<Fault>, scenario: Scenario) -> Result<usize, String> {
    PLANTED.set(fault);
    let result = walk(scenario);
    PLANTED.set(None);
    result
}

const ENDS: Start = Start { switches: Some(2), ..Start::PLAIN };
const BRIEFLY: Start = Start { switches: Some(1), ..Start::PLAIN };
/// The kernel's stream takes one byte.
const NARROW: Start = Start { room: 1, ..ENDS };
/// End 1 can send no more.
const FULL: Start = Start { full: true, ..ENDS };
const EVENTFDS: Start = Start { eventfds: true, ..ENDS };
const FORKS: Start = Start { attaches: true, ..BRIEFLY };
/// More than all rings but the deep one hold.
const MUCH: u32 = 140_000;

const fn of(start: Start, threads: &'static [(usize, &'static [Call])]) -> Scenario {
    Scenario { start, threads, idle: &[] }
}

/// The third thread may sleep for ever: what it waits for does not come.
const fn beside(start: Start, threads: &'static [(usize, &'static [Call])]) -> Scenario {
    Scenario { start, threads, idle: &[2] }
}

const LEAVES_BESIDE: Scenario = of(ENDS, &[(0, &[Send(1)]), (1, &[Receive(1)]), (1, &[Leave(Reader::Here)])]);
const LEAVES: Scenario = of(ENDS, &[(0, &[Send(1), Send(2), Close]), (1, &[Leave(Reader::Here), ReceiveAll])]);
const LEAVES_NARROW: Scenario = of(NARROW, LEAVES.threads);
/// The kernel takes a part of what is sent again for a program started beside, and the
/// sender makes no more calls.
const PARTLY_SENT_AGAIN: Scenario =
    of(NARROW, &[(0, &[Send(2)]), (1, &[Leave(Reader::Beside), Receive(1), Poll(POLLIN), Receive(1)])]);
const PARTLY_SENT_AGAIN_TO_SET: Scenario = of(
    Start { set: SET.set, ..NARROW },
    &[(0, &[Send(2)]), (1, &[Leave(Reader::Beside), Receive(1), Wait, Receive(1)])],
);
const LEAVE_BOTH_WAYS: Scenario =
    of(ENDS, &[(0, &[Send(1), Leave(Reader::Here), Send(1)]), (1, &[Leave(Reader::Here), Receive(2)])]);
const LEAVES_TO_ANOTHER: Scenario =
    of(ENDS, &[(0, &[Send(1), Send(2), Close]), (1, &[Leave(Reader::Stranger), ReadPast])]);
const LEAVES_TO_ANOTHER_NARROW: Scenario = of(NARROW, LEAVES_TO_ANOTHER.threads);
const SENDER_KILLED: Scenario =
    of(Start { kills: [true, false], ..ENDS }, &[(0, &[Send(1), Send(2)]), (1, &[Leave(Reader::Here), ReceiveAll])]);
const RECEIVER_KILLED: Scenario = of(
    Start { kills: [false, true], ..ENDS },
    &[(0, &[Send(1), Send(2), Close]), (1, &[Receive(1), Leave(Reader::Here), ReceiveAll])],
);
/// What is the first in the ring comes at once before the end.
const BEGINNER_KILLED: Scenario = of(
    Start { kills: [true, false], fresh: true, attaches: true, ..ENDS },
    &[(0, &[Send(1), Send(1)]), (1, &[ReceiveAll])],
);
const BEGINNER_CLOSES: Scenario =
    of(Start { fresh: true, attaches: true, ..NARROW }, &[(0, &[Send(2), Close]), (1, &[ReceiveAll])]);
const SENDER_LEAVES: Scenario =
    of(NARROW, &[(0, &[Send(2), Leave(Reader::Here), Send(1)]), (1, &[Poll(POLLIN), Receive(3)])]);
/// Either has bytes of the other's unread when one leaves, which may have asked to
/// be woken before they came.
const LEAVES_OVER_UNREAD: Scenario =
    of(ENDS, &[(0, &[Send(1), Leave(Reader::Here), Receive(1)]), (1, &[Send(1), Receive(1)])]);
const CLOSES: Scenario = of(Start::PLAIN, &[(0, &[Send(1), Close]), (1, &[ReceiveAll])]);
const BOTH_CLOSE: Scenario = of(ENDS, &[(0, &[Send(1), Close]), (1, &[Send(1), Close])]);
/// One that is reset reads first what was sent to it before, whatever it has
/// seen of the reset by then.
const CLOSES_OVER_UNREAD: Scenario = of(ENDS, &[(0, &[Send(1), Close]), (1, &[Send(1), ReceiveAll])]);
const RESETS_OVER_UNREAD: Scenario = of(Start { tcp: true, ..ENDS }, CLOSES_OVER_UNREAD.threads);
const RESETS_BEFORE_IT_BEGINS: Scenario =
    of(Start { tcp: true, ..BEGINNER_CLOSES.start }, &[(0, &[Send(1), Close]), (1, &[Send(1), ReceiveAll])]);
const TWO_RECEIVERS: Scenario = of(ENDS, &[(0, &[Send(1), Send(1)]), (1, &[Receive(1)]), (1, &[Receive(1)])]);
const POLL_FOR_EITHER: Scenario =
    beside(Start { eventfds: true, ..FULL }, &[(0, &[Send(1)]), (1, &[Poll(POLLIN)]), (1, &[Poll(POLLOUT)])]);
const POLL_BY_WAKE_BYTES: Scenario = beside(FULL, POLL_FOR_EITHER.threads);
const RECEIVE_BESIDE_POLL: Scenario = beside(FULL, &[(0, &[Send(1)]), (1, &[Receive(1)]), (1, &[Poll(POLLOUT)])]);
const RECEIVE_BESIDE_POLL_OF_EVENTFD: Scenario = beside(POLL_FOR_EITHER.start, RECEIVE_BESIDE_POLL.threads);
const RECEIVE_BESIDE_SEND: Scenario = beside(FULL, &[(0, &[Send(1)]), (1, &[Receive(1)]), (1, &[Send(1)])]);
const ROOM_FOR_POLLS: Scenario =
    of(POLL_FOR_EITHER.start, &[(0, &[Receive(2)]), (1, &[Poll(POLLOUT)]), (1, &[Poll(POLLOUT)])]);
const ROOM_FOR_SEND: Scenario = of(FULL, &[(0, &[Receive(2)]), (1, &[Send(1)]), (1, &[Poll(POLLOUT)])]);
const TWO_POLLS: Scenario = of(EVENTFDS, &[(0, &[Send(1)]), (1, &[Poll(POLLIN)]), (1, &[Poll(POLLIN)])]);
const POLL_BESIDE_RECEIVE: Scenario =
    of(EVENTFDS, &[(0, &[Send(1), Send(1)]), (1, &[Poll(POLLIN), Receive(1)]), (1, &[Receive(1)])]);
const LEAVES_BESIDE_POLL: Scenario = of(
    Start { eventfds: true, ..BRIEFLY },
    &[(0, &[Send(1), Close]), (1, &[Poll(POLLIN)]), (1, &[Leave(Reader::Here)])],
);
const EARLY_POLL: Scenario = beside(
    Start { early: true, attaches: true, armed: true, ..NARROW },
    &[(0, &[Send(1)]), (1, &[Poll(POLLIN)]), (1, &[Advance, Poll(POLLOUT)])],
);
const BOTH_WRITE_FIRST: Scenario =
    of(Start { timed: true, ..BRIEFLY }, &[(0, &[Send(MUCH), Receive(1)]), (1, &[Send(MUCH), Receive(1)])]);
const FORK: Scenario = of(BRIEFLY, &[(0, &[Send(2), Close]), (1, &[Fork, ReceiveAll]), (2, &[Close])]);
/// Bytes are in the ring when the child closes, which its peer must not take for a reset.
const CHILD_CLOSES: Scenario =
    of(Start { room: 1, ..BRIEFLY }, &[(0, &[Send(2), Receive(1)]), (1, &[Fork, Receive(2), Send(1)]), (2, &[Close])]);
const FORK_AND_READ: Scenario = of(BRIEFLY, &[(0, &[Send(2), Close]), (1, &[Fork, ReceiveAll]), (2, &[ReceiveAll])]);
const REATTACH: Scenario =
    of(FORKS, &[(0, &[Send(1), Advance, Advance, Send(1)]), (1, &[Fork, Advance, Advance, Receive(2)]), (2, &[Close])]);
const FORKS_ON_BOTH_ENDS: Scenario = of(
    FORKS,
    &[
        (0, &[Send(1), Leave(Reader::Both), Advance, Advance, Send(1)]),
        (1, &[Fork, Advance, Advance, Receive(2)]),
        (2, &[Close]),
    ],
);
const FORK_AT_REST: Scenario = of(
    FORKS,
    &[
        (0, &[Leave(Reader::Both), Advance, Advance, Send(2)]),
        (1, &[Leave(Reader::Both), Advance, Fork, Advance, Receive(1)]),
        (2, &[Receive(1)]),
    ],
);
const TWO_AND_TWO: Scenario = of(
    Start { eventfds: true, ..BRIEFLY },
    &[(0, &[Send(2)]), (0, &[Leave(Reader::Here)]), (1, &[Poll(POLLIN)]), (1, &[Receive(1)])],
);

/// A set that hears of bytes by level, and by edges; by wake bytes, and by the eventfd.
const SET: Start = Start { set: Some(libc::EPOLLIN as u32), ..BRIEFLY };
const SET_BY_EDGE: Start = Start { set: Some((libc::EPOLLIN | libc::EPOLLET) as u32), ..BRIEFLY };
const SET_OF_EVENTFD: Start = Start { eventfds: true, ..SET };
const SET_OF_EVENTFD_BY_EDGE: Start = Start { eventfds: true, ..SET_BY_EDGE };
/// One that hears of room.
const SET_FOR_ROOM: Start = Start { full: true, set: Some(libc::EPOLLOUT as u32), ..BRIEFLY };

/// One that could be woken by EPOLLOUT alone, which is not granted.
const CLOGGED_SET: Start = Start { room: 1, clogged: true, ..SET };
const DATA_THEN_ROOM: Scenario =
    of(POLL_FOR_EITHER.start, &[(0, &[Send(1), Receive(2)]), (1, &[Poll(POLLIN)]), (1, &[Poll(POLLOUT)])]);

const WAIT: &[(usize, &[Call])] = &[(0, &[Send(1)]), (1, &[Wait, Receive(1)])];
const TWO_WAITS: &[(usize, &[Call])] = &[(0, &[Send(1)]), (1, &[Wait]), (1, &[Wait])];
const WAIT_BESIDE_RECEIVE: &[(usize, &[Call])] =
    &[(0, &[Send(1), Send(1)]), (1, &[Wait, Receive(1)]), (1, &[Receive(1)])];
const WAIT_BESIDE_POLL: &[(usize, &[Call])] = &[(0, &[Send(1)]), (1, &[Wait]), (1, &[Poll(POLLIN)])];
const WAIT_BESIDE_LEAVE: &[(usize, &[Call])] = &[(0, &[Send(1), Close]), (1, &[Wait]), (1, &[Leave(Reader::Here)])];
const WAIT_FOR_ROOM: &[(usize, &[Call])] = &[(0, &[Receive(2)]), (1, &[Wait]), (1, &[Poll(POLLOUT)])];

/// What a thread of end 1 does beside another, of which one waits for bytes and has a set or not.
const FOR_BYTES: [Call; 3] = [Poll(POLLIN), Receive(1), Wait];
const FOR_EITHER: [Call; 5] = [Poll(POLLIN), Poll(POLLOUT), Receive(1), Send(1), Wait];

/// All mixtures of two threads, by wake bytes and by eventfds, in rings that
/// are full in one direction.
fn mixtures() -> impl Iterator<Item = Scenario> {
    let set = Some(libc::EPOLLIN as u32);
    let pairs = FOR_BYTES.into_iter().flat_map(|first| FOR_EITHER.map(|second| [first, second]));
    pairs.flat_map(move |[first, second]| {
        let own = |call: Call| (1, &*Box::leak(Box::new([call])) as &[Call]);
        let threads = Box::leak(Box::new([(0, &[Send(1), Send(1), Receive(2)] as &[Call]), own(first), own(second)]));
        [false, true].map(|eventfds| of(Start { eventfds, full: true, set, ..BRIEFLY }, &*threads))
    })
}

/// All of them end, and in so many states at least.
fn all_end(least: usize, scenarios: &[Scenario]) {
    for scenario in scenarios {
        match walk_with(None, *scenario) {
            Ok(states) => assert!(states > least, "{scenario:?}: {states} states"),
            Err(what) => panic!("{scenario:?}: {what}"),
        }
    }
}

#[test]
fn bytes_arrive_once_however_an_end_leaves_the_rings() {
    all_end(1_000, &[PARTLY_SENT_AGAIN, PARTLY_SENT_AGAIN_TO_SET]);
    all_end(
        10_000,
        &[
            CLOSES,
            BOTH_CLOSE,
            CLOSES_OVER_UNREAD,
            RESETS_OVER_UNREAD,
            LEAVES,
            LEAVES_BESIDE,
            LEAVES_NARROW,
            LEAVE_BOTH_WAYS,
            SENDER_LEAVES,
        ],
    );
    all_end(10_000, &[LEAVES_TO_ANOTHER, LEAVES_TO_ANOTHER_NARROW, LEAVES_BESIDE_POLL, LEAVES_OVER_UNREAD]);
}

#[test]
fn bytes_arrive_once_whoever_is_killed() {
    all_end(10_000, &[SENDER_KILLED, RECEIVER_KILLED]);
    all_end(100, &[BEGINNER_KILLED, BEGINNER_CLOSES, RESETS_BEFORE_IT_BEGINS]);
}

#[test]
fn nobody_sleeps_on_what_he_waits_for() {
    all_end(10_000, &[TWO_RECEIVERS, RECEIVE_BESIDE_POLL, RECEIVE_BESIDE_POLL_OF_EVENTFD, POLL_BESIDE_RECEIVE]);
    all_end(
        1_000,
        &[POLL_FOR_EITHER, POLL_BY_WAKE_BYTES, RECEIVE_BESIDE_SEND, ROOM_FOR_POLLS, ROOM_FOR_SEND, TWO_POLLS],
    );
    all_end(1_000, &[EARLY_POLL, BOTH_WRITE_FIRST]);
}

#[test]
fn nobody_sleeps_in_a_set_on_what_he_waits_for() {
    for start in [SET, SET_BY_EDGE, SET_OF_EVENTFD, SET_OF_EVENTFD_BY_EDGE] {
        all_end(300, &[of(start, WAIT)]);
        all_end(3_000, &[of(start, WAIT_BESIDE_POLL)]);
        all_end(50_000, &[of(start, WAIT_BESIDE_RECEIVE), of(start, WAIT_BESIDE_LEAVE)]);
    }
    // An edge is one thread's alone, as the kernel has it.
    all_end(3_000, &[of(SET, TWO_WAITS), of(SET_OF_EVENTFD, TWO_WAITS)]);
    all_end(3_000, &[of(CLOGGED_SET, WAIT_BESIDE_POLL), DATA_THEN_ROOM]);
    for eventfds in [false, true] {
        all_end(2_000, &[of(Start { eventfds, ..SET_FOR_ROOM }, WAIT_FOR_ROOM)]);
    }
}

#[test]
fn two_sleepers_of_any_kind() {
    mixtures().for_each(|scenario| all_end(500, &[scenario]));
}

#[test]
fn bytes_arrive_once_beside_forks() {
    all_end(5_000, &[FORK, CHILD_CLOSES, FORK_AND_READ, REATTACH, FORKS_ON_BOTH_ENDS, FORK_AT_REST]);
}

#[test]
fn two_threads_on_either_end() {
    all_end(100_000, &[TWO_AND_TWO]);
}

#[test]
fn each_planted_fault_is_found() {
    for (fault, scenario) in [
        (Fault::LeavesUnread, LEAVES_BESIDE),
        (Fault::LeavesUnread, LEAVES_NARROW),
        (Fault::LeavesUnread, SENDER_KILLED),
        (Fault::NoLookForStart, BEGINNER_KILLED),
        (Fault::NothingDue, LEAVES_NARROW),
        (Fault::NoLookForLeft, LEAVES_NARROW),
        (Fault::NotifiesLate, LEAVES_OVER_UNREAD),
        (Fault::ClosesWithout, LEAVES),
        (Fault::DrainsEventfdAtOnce, POLL_FOR_EITHER),
        (Fault::DrainsAtOnce, POLL_BY_WAKE_BYTES),
        (Fault::DrainsAtOnce, RECEIVE_BESIDE_POLL),
        (Fault::NoLookAgain, TWO_RECEIVERS),
        (Fault::NoLookAgain, TWO_POLLS),
        (Fault::AttachesEarly, EARLY_POLL),
        (Fault::StaysShallow, BOTH_WRITE_FIRST),
        (Fault::NoLookAgain, of(SET, WAIT)),
        (Fault::DrainsAtOnce, of(SET, WAIT_BESIDE_POLL)),
        (Fault::DrainsWithoutSets, of(SET, WAIT_BESIDE_POLL)),
        (Fault::DrainsWithoutSets, of(SET_FOR_ROOM, WAIT_FOR_ROOM)),
        (Fault::NoLookForSets, of(SET, WAIT_BESIDE_RECEIVE)),
        (Fault::NoLookForSets, of(SET_BY_EDGE, WAIT_BESIDE_POLL)),
        (Fault::KeepsEvent, of(SET_OF_EVENTFD, TWO_WAITS)),
        (Fault::DisarmsAlways, DATA_THEN_ROOM),
        (Fault::TakesSetsForWakeable, of(CLOGGED_SET, WAIT_BESIDE_POLL)),
    ] {
        let found = walk_with(Some(fault), scenario);
        assert!(found.is_err(), "{fault:?} is not found in {found:?} states");
    }
}

/// A scenario that has more is cut down.
const MOST: usize = 700_000;
