//! The scheduler: one thread at a time, time that jumps, deadlocks that are named, and traces that
//! are the seed's.

use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use overside_sim::{Ended, Failure, Killed, World};
use rustix::event::EventfdFlags;

fn eventfd() -> Arc<OwnedFd> {
    Arc::new(rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap())
}

fn signal(fd: &OwnedFd) {
    rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
}

fn drain(fd: &OwnedFd) {
    let _ = rustix::io::read(fd, &mut [0; 8][..]);
}

/// Threads that wake each other, sleep, pass points and poll for time; what they did, in order.
fn lively(seed: u64) -> Ended<Vec<u64>> {
    let ended = World::run(seed, |world| {
        let process = world.process("workers");
        let (seen, inside) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let bells: Vec<Arc<OwnedFd>> = (0..3).map(|_| eventfd()).collect();
        let threads: Vec<_> = (0..3u64)
            .map(|number| {
                let (world, clock, seen, inside) = (world.clone(), world.clock(), seen.clone(), inside.clone());
                let (mine, next) = (bells[number as usize].clone(), bells[(number as usize + 1) % 3].clone());
                process.spawn(&format!("worker-{number}"), move || {
                    for round in 0..20 {
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "two threads run at once");
                        seen.lock().unwrap().push(number << 8 | round);
                        inside.fetch_sub(1, Ordering::Relaxed);
                        world.point("between", round);
                        signal(&next);
                        let until = clock.now() + Duration::from_millis(10 + number);
                        clock.wait(&[mine.as_fd()], Some(until)).unwrap();
                        drain(&mine);
                    }
                    let until = clock.now() + Duration::from_secs(5);
                    while clock.now() < until {}
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        Arc::into_inner(seen).unwrap().into_inner().unwrap()
    });
    ended.unwrap_or_else(|failed| panic!("{failed}"))
}

#[test]
fn a_seed_is_a_trace() {
    let (first, again) = (lively(1), lively(1));
    assert_eq!((first.trace.hash(), &first.value), (again.trace.hash(), &again.value));
    let others: Vec<u64> = (2..20).map(|seed| lively(seed).trace.hash()).collect();
    assert!(others.iter().all(|hash| *hash != first.trace.hash()));
    assert_eq!(first.value.len(), 60);
}

/// The same in another process, whose addresses, descriptors and hashers differ.
#[test]
fn a_seed_is_the_same_trace_in_another_process() {
    const ASKED: &str = "OVERSIDE_SIM_TRACE";
    let hashes = || (30..35).map(|seed| format!("{:016x}", lively(seed).trace.hash())).collect::<Vec<_>>().join(" ");
    if std::env::var_os(ASKED).is_some() {
        println!("traces {}", hashes());
        return;
    }
    let mut other = Command::new(std::env::current_exe().unwrap());
    other.args(["--exact", "a_seed_is_the_same_trace_in_another_process", "--nocapture"]).env(ASKED, "1");
    let said = String::from_utf8(other.output().unwrap().stdout).unwrap();
    assert!(said.contains(&format!("traces {}", hashes())), "{said}");
}

#[test]
fn seeds_differ_in_who_goes_first() {
    let orders: std::collections::BTreeSet<Vec<u64>> = (0..40).map(|seed| lively(seed).value[..6].to_vec()).collect();
    assert!(orders.len() > 20, "{} orders of 40 seeds", orders.len());
}

#[test]
fn time_jumps_to_the_next_deadline() {
    let ended = World::run(3, |world| {
        let process = world.process("sleepers");
        let woken = Arc::new(Mutex::new(Vec::new()));
        let threads: Vec<_> = [30, 10, 20]
            .map(|days| {
                let (clock, woken) = (world.clock(), woken.clone());
                process.spawn("sleeper", move || {
                    clock.sleep(Duration::from_secs(days * 60));
                    woken.lock().unwrap().push(days);
                })
            })
            .into_iter()
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        (Arc::into_inner(woken).unwrap().into_inner().unwrap(), world.passed())
    });
    let (woken, passed) = ended.unwrap().value;
    assert_eq!(woken, [10, 20, 30]);
    assert!((Duration::from_secs(1800)..Duration::from_secs(1801)).contains(&passed), "{passed:?}");
}

#[test]
fn a_deadlock_says_who_waits_for_what() {
    let failed = World::run(4, |world| {
        let process = world.process("server");
        let (clock, bell) = (world.clock(), eventfd());
        let stuck = process.spawn("worker", move || clock.wait(&[bell.as_fd()], None).unwrap());
        stuck.join()
    });
    let Failure::Deadlock { waiting } = failed.unwrap_err().failure else { panic!("no deadlock") };
    assert_eq!(waiting, ["main/main waits for the end of server/worker", "server/worker waits"]);
}

#[test]
fn a_world_that_does_not_end_is_ended() {
    let failed = World::run(5, |world| {
        world.end_within(Duration::from_secs(100));
        let process = world.process("server");
        let clock = world.clock();
        let forever = process.spawn("ticker", move || {
            loop {
                clock.sleep(Duration::from_secs(1));
            }
        });
        let _: Result<(), Killed> = forever.join();
    });
    assert!(matches!(failed.unwrap_err().failure, Failure::Endless { .. }));
}

#[test]
fn a_panic_ends_the_world_and_is_named() {
    let failed = World::run(6, |world| {
        let process = world.process("server");
        let _ = process.spawn("worker", || panic!("a bug")).join();
    });
    let expected = Failure::Panicked { thread: "server/worker".into(), message: "a bug".into() };
    assert_eq!(failed.unwrap_err().failure, expected);
}

/// A killed process stops where it is, no destructor runs, and who waits for it goes on.
#[test]
fn a_killed_process_does_nothing_more() {
    static DROPPED: AtomicU64 = AtomicU64::new(0);
    struct Counted;
    impl Drop for Counted {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }
    let ended = World::run(8, |world| {
        let process = world.process("server");
        let (steps, noticed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (clock, steps) = (world.clock(), steps.clone());
                process.spawn("worker", move || {
                    let _counted = Counted;
                    loop {
                        clock.sleep(Duration::from_millis(1));
                        steps.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let seen = noticed.clone();
        process.at_kill(move || {
            seen.fetch_add(1, Ordering::Relaxed);
        });
        let itself = process.clone();
        let suicide = process.spawn("suicide", move || itself.kill());
        assert_eq!(suicide.join(), Err(Killed), "it does not return");
        let before = steps.load(Ordering::Relaxed);
        world.clock().sleep(Duration::from_secs(1));
        assert_eq!(steps.load(Ordering::Relaxed), before);
        assert!(!process.is_alive() && threads.iter().all(|thread| thread.has_ended()));
        let killed = threads.into_iter().all(|thread| matches!(thread.join(), Err::<(), _>(Killed)));
        (killed, noticed.load(Ordering::Relaxed))
    });
    assert_eq!(ended.unwrap().value, (true, 1));
    assert_eq!(DROPPED.load(Ordering::Relaxed), 0);
}
