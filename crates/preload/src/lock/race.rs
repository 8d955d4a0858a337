//! Threads that want one lock, in every order in which they can be run. The steps of a waiter, and
//! what each of them does, are the lock's own. The kernel's part is played here: it compares the
//! word and sleeps in one step, and wakes all that sleep.

use std::collections::HashSet;

use super::*;

const THREADS: usize = 3;
const ROUNDS: u8 = 2;

/// Where a thread is: in `lock`, `contend` or `reset`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Try,
    Waiting(Step),
    Asleep,
    Dequeue,
    LockHeld,
    Freed,
    Call,
    Wake,
    Gone,
}

/// What is being tried.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Shipped,
    /// A waiter counts itself after its try.
    CountedLate,
    /// It reads its turn after its try.
    LookedLate,
    /// Who gives the lock back wakes without a new turn.
    SameTurn,
    /// The first thread's handler jumps away once the lock is free, and it never comes again;
    /// others sleep until they are woken.
    Jumps,
    /// The same, and nobody sleeps for longer than `AT_MOST`.
    JumpsAndTimes,
    /// The first thread gives up where it finds the lock held.
    GivesUp,
}

impl Order {
    /// How a thread waits, from the start after each sleep.
    fn waiting(self) -> [Step; 4] {
        match self {
            Self::CountedLate => [Step::Look, Step::Try, Step::Enqueue, Step::Sleep],
            Self::LookedLate => [Step::Enqueue, Step::Try, Step::Look, Step::Sleep],
            _ => WAITING,
        }
    }

    fn begin(self) -> At {
        At::Waiting(self.waiting()[0])
    }

    fn after(self, step: Step) -> At {
        let steps = self.waiting();
        let place = steps.iter().position(|other| *other == step).unwrap();
        At::Waiting(steps[(place + 1) % steps.len()])
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct World {
    owner: u64,
    waiters: u32,
    turn: u32,
    at: [At; THREADS],
    counted: [bool; THREADS],
    seen: [u32; THREADS],
    rounds: [u8; THREADS],
}

impl World {
    /// Does this to the lock.
    fn lock<T>(&mut self, change: impl FnOnce(&Lock) -> T) -> T {
        let (owner, waiters, turn) = (self.owner, self.waiters, self.turn);
        let lock = Lock {
            owner: AtomicU64::new(owner),
            refusals: AtomicU32::new(0),
            waiters: AtomicU32::new(waiters),
            turn: AtomicU32::new(turn),
            kept: AtomicBool::new(false),
        };
        let value = change(&lock);
        (self.owner, self.waiters, self.turn) =
            (lock.owner.into_inner(), lock.waiters.into_inner(), lock.turn.into_inner());
        value
    }

    /// One step of a thread; None when it cannot go on.
    fn step(mut self, who: usize, order: Order) -> Option<Self> {
        let at = self.at[who];
        let jumps = who == 0 && matches!(order, Order::Jumps | Order::JumpsAndTimes);
        self.at[who] = match at {
            At::Gone => return None,
            At::Try if self.take(who) => At::LockHeld,
            At::Try => order.begin(),
            At::Waiting(step @ Step::Enqueue) => {
                if !std::mem::replace(&mut self.counted[who], true) {
                    self.lock(Lock::enqueue);
                }
                order.after(step)
            }
            At::Waiting(step @ Step::Look) => {
                self.seen[who] = self.lock(|lock| lock.turn());
                order.after(step)
            }
            At::Waiting(Step::Try) if self.take(who) => At::Dequeue,
            At::Waiting(Step::Try) if who == 0 && order == Order::GivesUp => {
                self.dequeue(who);
                At::Gone
            }
            At::Waiting(step @ Step::Try) => order.after(step),
            At::Waiting(Step::Sleep) if self.seen[who] == self.turn => At::Asleep,
            At::Asleep if order != Order::JumpsAndTimes => return None,
            At::Waiting(Step::Sleep) | At::Asleep => order.begin(),
            At::Dequeue => {
                self.dequeue(who);
                At::LockHeld
            }
            At::LockHeld => {
                self.lock(Lock::free);
                At::Freed
            }
            At::Freed if jumps => At::Gone,
            At::Freed => match self.lock(|lock| lock.is_awaited()) {
                true if order == Order::SameTurn => At::Wake,
                true => At::Call,
                false => self.again(who),
            },
            At::Call => {
                self.lock(Lock::next_turn);
                At::Wake
            }
            At::Wake => {
                self.at.iter_mut().filter(|at| **at == At::Asleep).for_each(|at| *at = order.begin());
                self.again(who)
            }
        };
        Some(self)
    }

    fn dequeue(&mut self, who: usize) {
        if std::mem::take(&mut self.counted[who]) {
            self.lock(Lock::dequeue);
        }
    }

    fn take(&mut self, who: usize) -> bool {
        self.lock(|lock| lock.take(Holder::of((who + 1) << 2, 0))).is_ok()
    }

    fn again(&mut self, who: usize) -> At {
        self.rounds[who] += 1;
        if self.rounds[who] == ROUNDS { At::Gone } else { At::Try }
    }
}

/// Whether in any order somebody waits for ever; and in how many states the threads can
/// be. No two ever hold it.
fn explore(order: Order) -> (bool, usize) {
    let start = World {
        owner: FREE,
        waiters: 0,
        turn: 0,
        at: [At::Try; THREADS],
        counted: [false; THREADS],
        seen: [0; THREADS],
        rounds: [0; THREADS],
    };
    let (mut seen, mut open) = (HashSet::new(), vec![start]);
    let mut lost = false;
    while let Some(world) = open.pop() {
        if !seen.insert(world) {
            continue;
        }
        let holders = world.at.iter().filter(|at| matches!(**at, At::LockHeld | At::Dequeue)).count();
        assert!(holders <= 1, "{order:?}: {holders} hold it");
        let steps: Vec<World> = (0..THREADS).filter_map(|who| world.step(who, order)).collect();
        lost |= steps.is_empty() && world.at.iter().any(|at| *at != At::Gone);
        open.extend(steps);
    }
    (lost, seen.len())
}

#[test]
fn nobody_waits_for_ever_in_any_order() {
    for order in [Order::Shipped, Order::JumpsAndTimes, Order::GivesUp] {
        let (lost, states) = explore(order);
        assert!(!lost && states > 1000, "{order:?}: {states} states");
    }
    for order in [Order::CountedLate, Order::LookedLate, Order::SameTurn, Order::Jumps] {
        assert!(explore(order).0, "{order:?}: the rule is needed");
    }
}
