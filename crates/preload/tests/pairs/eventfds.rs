//! Programs that wait in lists and sets with what wakes them there, and what they can do to it.

use std::os::fd::RawFd;
use std::sync::Barrier;

use crate::sock::{Log, Side, close, nap, recv_exactly, second, send_all};

/// Long after any machine has come round to it.
const LONG_MS: i32 = 60_000;

fn wait_by_poll(fd: RawFd, timeout: i32) -> (i32, i16) {
    let mut list = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }; 2];
    list[1].fd = -1;
    // SAFETY: two pollfds.
    let n = unsafe { libc::poll(list.as_mut_ptr(), 2, timeout) };
    (n, list[0].revents)
}

fn wait_in_set(set: RawFd, timeout: i32) -> i32 {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: one event.
    unsafe { libc::epoll_wait(set, &mut event, 1, timeout) }
}

/// A set of one descriptor, for reading.
pub(crate) fn set_of(fd: RawFd) -> RawFd {
    // SAFETY: a new set and one event.
    unsafe {
        let set = libc::epoll_create1(0);
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
        assert_eq!(libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &mut event), 0);
        set
    }
}

/// Two threads in poll and two in a set, for one connection: whoever hears of the bytes, all do as long as nobody reads them.
pub(crate) fn all_are_told(side: Side, log: &mut Log) {
    const ROUNDS: u8 = 40;
    side.warm_up();
    if !side.server {
        for round in 0..ROUNDS {
            nap(u64::from(round % 4));
            send_all(side.fd, &[round; 50]);
            side.rendezvous(round);
        }
        return;
    }
    let (set, barrier) = (set_of(side.fd), Barrier::new(5));
    let reported = std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..4)
            .map(|who| {
                let (side, barrier) = (&side, &barrier);
                scope.spawn(move || {
                    (0..ROUNDS)
                        .map(|_| {
                            let reported = match who {
                                0 | 1 => wait_by_poll(side.fd, LONG_MS) == (1, libc::POLLIN),
                                _ => wait_in_set(set, LONG_MS) == 1,
                            };
                            barrier.wait();
                            barrier.wait();
                            usize::from(reported)
                        })
                        .sum::<usize>()
                })
            })
            .collect();
        for round in 0..ROUNDS {
            barrier.wait();
            assert_eq!(recv_exactly(side.fd, 50), [round; 50]);
            side.rendezvous(round);
            barrier.wait();
        }
        waiters.into_iter().map(|waiter| waiter.join().unwrap()).collect::<Vec<_>>()
    });
    log.say(format_args!("{reported:?}"));
    close(set);
}

/// Exchanges in which each end waits in poll, and then in a set.
fn exchange(side: &Side, set: RawFd, rounds: u8) {
    for round in 0..rounds {
        if side.server {
            send_all(side.fd, &[round; 50]);
        }
        if round % 2 == 0 {
            assert_eq!(wait_by_poll(side.fd, LONG_MS), (1, libc::POLLIN));
        } else {
            assert_eq!(wait_in_set(set, LONG_MS), 1);
        }
        assert_eq!(recv_exactly(side.fd, 50), [round; 50]);
        if !side.server {
            send_all(side.fd, &[round; 50]);
        }
        nap(u64::from(round % 3));
    }
}

/// Closes all that it does not know, has files of its own at all those numbers, and goes on: nobody but the program writes to them.
pub(crate) fn what_is_not_its_own(side: Side, log: &mut Log) {
    side.warm_up();
    let set = set_of(side.fd);
    exchange(&side, set, 60);
    let file = tempfile::tempfile().unwrap();
    let file = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: descriptors of ours, and such as a program may have.
    unsafe {
        let last = [side.fd, set, file].into_iter().max().unwrap();
        assert_eq!(libc::close_range(last as u32 + 1, u32::MAX, 0), 0);
        let most = libc::sysconf(libc::_SC_OPEN_MAX).min(4000) as i32;
        for number in last + 1..most {
            assert_eq!(libc::dup2(file, number), number);
        }
        exchange(&side, set, 60);
        let mut stat: libc::stat = std::mem::zeroed();
        assert_eq!(libc::fstat(file, &mut stat), 0);
        log.say(stat.st_size);
        assert_eq!(libc::close_range(last as u32 + 1, u32::MAX, 0), 0);
    }
    side.rendezvous(1);
}

/// A system call as a program makes it that has its own code for that.
pub(crate) fn bare(number: libc::c_long, first: usize, second: usize, third: usize) -> isize {
    #[cfg(target_arch = "x86_64")]
    {
        let result: isize;
        // SAFETY: as the call that it stands for.
        unsafe {
            std::arch::asm!(
                "syscall",
                inlateout("rax") number as isize => result,
                in("rdi") first,
                in("rsi") second,
                in("rdx") third,
                lateout("rcx") _,
                lateout("r11") _,
            );
        }
        result
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as the call that it stands for.
    unsafe {
        libc::syscall(number, first, second, third) as isize
    }
}

/// Closes what it does not know while an end is looking for the other, one by one, and has files of
/// its own at those numbers: nobody but the program closes them. Once as the C library does it,
/// once by its own code.
pub(crate) fn numbers_of_its_own(side: Side, log: &mut Log) {
    for own_code in [false, true] {
        let other = second(&side);
        if other.server {
            // It makes no call before, so nobody comes by.
            assert_eq!(recv_exactly(side.fd, 1), [5]);
            recv_exactly(other.fd, 8 * 50);
        } else {
            (0..8).for_each(|_| send_all(other.fd, &[1; 50]));
            let known = [side.fd, other.fd];
            let last = known.into_iter().max().unwrap();
            let file = tempfile::tempfile().unwrap();
            let file = std::os::fd::AsRawFd::as_raw_fd(&file);
            let unknown = last.max(file) + 1..1600;
            for number in unknown.clone() {
                if own_code {
                    bare(libc::SYS_close, number as usize, 0, 0);
                } else {
                    // SAFETY: no descriptor that this program uses.
                    unsafe { libc::close(number) };
                }
            }
            let taken = if own_code { unknown } else { 495..600 };
            for number in taken.clone() {
                assert_eq!(bare(libc::SYS_dup3, file as usize, number as usize, 0), number as isize);
            }
            send_all(side.fd, &[5]);
            other.exchange(60);
            let gone = taken.clone().filter(|number| bare(libc::SYS_fcntl, *number as usize, 1, 0) < 0).count();
            log.say(format_args!("{gone} are gone"));
            // SAFETY: descriptors of ours.
            taken.for_each(|number| assert_eq!(unsafe { libc::close(number) }, 0));
            side.rendezvous(6);
            close(other.fd);
            continue;
        }
        other.exchange(60);
        side.rendezvous(6);
        close(other.fd);
    }
}

/// How many descriptors a program can have is its own limit's to say.
pub(crate) fn as_many_as_allowed(side: Side, log: &mut Log) {
    // SAFETY: live structures; descriptors of ours.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = 100;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        side.warm_up();
        let set = set_of(side.fd);
        exchange(&side, set, 60);
        let copies: Vec<_> = std::iter::repeat_with(|| libc::dup(0)).take_while(|fd| *fd >= 0).collect();
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        exchange(&side, set, 10);
        let many = copies.len();
        copies.into_iter().for_each(close);
        log.say(format_args!("{many} of {}", limit.rlim_cur));
    }
    side.rendezvous(1);
}
