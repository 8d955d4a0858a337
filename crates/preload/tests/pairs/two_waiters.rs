//! Programs of which two threads wait for one connection, one to read and one to write, each in its own way.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sock::{Log, Side, close, nap, pattern, recv, recv_exactly, second, send, send_all};

/// How a thread waits.
#[derive(Clone, Copy, Debug)]
enum ThreadWait {
    Poll,
    Set,
    Select,
    /// It does not: its calls do.
    Block,
}

/// Long after any machine has come round to it.
const LONG_MS: i32 = 60_000;
const TOTAL: usize = 400_000;
const PIECE: usize = 7_000;
/// Connections of each mixture.
const CONNECTIONS: usize = 6;

/// Waits until the descriptor can be read, or written. `set` has it.
fn wait(way: ThreadWait, fd: RawFd, set: RawFd, reads: bool) {
    let events = if reads { libc::POLLIN } else { libc::POLLOUT };
    // SAFETY: live structures; a descriptor below their size.
    let ready = unsafe {
        match way {
            ThreadWait::Poll => libc::poll(&mut libc::pollfd { fd, events, revents: 0 }, 1, LONG_MS),
            ThreadWait::Set => libc::epoll_wait(set, &mut libc::epoll_event { events: 0, u64: 0 }, 1, LONG_MS),
            ThreadWait::Select => {
                let (mut fds, mut limit) = (std::mem::zeroed(), std::mem::zeroed::<libc::timeval>());
                libc::FD_SET(fd, &mut fds);
                limit.tv_sec = i64::from(LONG_MS / 1000);
                let (none, fds) = (std::ptr::null_mut(), &raw mut fds);
                let (read, write) = if reads { (fds, none) } else { (none, fds) };
                libc::select(fd + 1, read, write, none, &mut limit)
            }
            ThreadWait::Block => 1,
        }
    };
    assert_eq!(ready, 1, "{way:?}, to {}", if reads { "read" } else { "write" });
}

/// A set of this one.
fn set_of(fd: RawFd, reads: bool) -> RawFd {
    let events = if reads { libc::EPOLLIN } else { libc::EPOLLOUT } as u32;
    // SAFETY: a new set and one event.
    unsafe {
        let set = libc::epoll_create1(0);
        assert_eq!(libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &mut libc::epoll_event { events, u64: 1 }), 0);
        set
    }
}

fn write_all(way: ThreadWait, fd: RawFd) {
    let (bytes, set, mut at) = (pattern(0, TOTAL), set_of(fd, false), 0);
    while at < TOTAL {
        let n = send(fd, &bytes[at..TOTAL.min(at + PIECE)], 0);
        if n < 0 {
            wait(way, fd, set, false);
        }
        at += n.max(0) as usize;
    }
    close(set);
}

fn read_all(way: ThreadWait, fd: RawFd) {
    let (bytes, set, mut at, mut part) = (pattern(0, TOTAL), set_of(fd, true), 0, vec![0; 8192]);
    while at < TOTAL {
        let n = recv(fd, &mut part, 0);
        if n < 0 {
            wait(way, fd, set, true);
        }
        assert_ne!(n, 0, "the end after {at}");
        let n = n.max(0) as usize;
        assert!(part[..n] == bytes[at..at + n], "at {at}");
        at += n;
    }
    close(set);
}

fn mixtures(side: &Side, log: &mut Log) {
    let ways = [ThreadWait::Poll, ThreadWait::Set, ThreadWait::Select];
    let mut pairs: Vec<_> = ways.into_iter().flat_map(|reads| ways.map(|writes| (reads, writes))).collect();
    pairs.push((ThreadWait::Block, ThreadWait::Block));
    for (reads, writes) in pairs {
        for _ in 0..CONNECTIONS {
            let other = second(side);
            if other.server {
                // An echo, which itself blocks.
                let (mut at, mut part) = (0, vec![0; 30_000]);
                while at < TOTAL {
                    let n = recv(other.fd, &mut part, 0);
                    assert!(n > 0);
                    send_all(other.fd, &part[..n as usize]);
                    at += n as usize;
                }
            } else {
                if !matches!(reads, ThreadWait::Block) {
                    // SAFETY: a descriptor of ours.
                    assert_eq!(unsafe { libc::fcntl(other.fd, libc::F_SETFL, libc::O_NONBLOCK) }, 0);
                }
                std::thread::scope(|scope| {
                    scope.spawn(|| write_all(writes, other.fd));
                    read_all(reads, other.fd);
                });
            }
            side.rendezvous(1);
            close(other.fd);
        }
        log.say(format_args!("{reads:?} and {writes:?}"));
    }
}

/// All mixtures of two ways to wait.
pub(crate) fn two_waiters(side: Side, log: &mut Log) {
    mixtures(&side, log);
}

/// The same in programs that have no descriptors above their limit, hence wake bytes alone.
pub(crate) fn two_waiters_without_eventfds(side: Side, log: &mut Log) {
    let limit = libc::rlimit { rlim_cur: 100, rlim_max: 100 };
    // SAFETY: a live structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    mixtures(&side, log);
}

/// A thread waits in poll from before the ends can meet, and hardly gets a processor. Another
/// exchanges what makes them meet, and waits in poll itself. What comes last is left to the first.
pub(crate) fn waits_from_before(side: Side, log: &mut Log) {
    const ENDS: usize = 20;
    for _ in 0..ENDS {
        let other = second(&side);
        if other.server {
            other.exchange(EXCHANGES);
            assert_eq!(recv_exactly(other.fd, 1), [7]);
            send_all(other.fd, &[8]);
        } else {
            let over = AtomicBool::new(false);
            let spin = || {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            };
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| wait_for_the_last(other.fd));
                nap(2);
                for _ in 0..std::thread::available_parallelism().unwrap().get() {
                    scope.spawn(spin);
                }
                for round in 0..EXCHANGES {
                    send_all(other.fd, &pattern(round, 100));
                    wait(ThreadWait::Poll, other.fd, -1, true);
                    assert!(recv_exactly(other.fd, 100) == pattern(round, 100));
                }
                over.store(true, Ordering::Relaxed);
                nap(10);
                send_all(other.fd, &[7]);
                waiter.join().unwrap();
            });
            assert_eq!(recv_exactly(other.fd, 1), [8]);
        }
        side.rendezvous(2);
        close(other.fd);
    }
    log.say("told");
}

/// By poll, as a thread that is served after all others.
fn wait_for_the_last(fd: RawFd) {
    // SAFETY: a live structure; this very thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &std::mem::zeroed()) };
    let mut byte = [0];
    while recv(fd, &mut byte, libc::MSG_PEEK | libc::MSG_DONTWAIT) != 1 || byte != [8] {
        wait(ThreadWait::Poll, fd, -1, true);
    }
}

const EXCHANGES: usize = 12;
