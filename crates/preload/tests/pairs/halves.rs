//! Programs that end one direction while the other is full of bytes.

use std::os::fd::RawFd;

use crate::sets::{LONG, Set};
use crate::sock::{Log, Side, close, nap, pattern, recv, recv_exactly, second, send, send_all, until};

/// Much in both directions at once, by poll, as netcat does it; the end that has sent all says so and reads on.
pub(crate) fn half_close_in_a_flood(side: Side, log: &mut Log) {
    side.warm_up();
    flood(&side, log, if side.server { [2_000_000, 3_000_000] } else { [3_000_000, 2_000_000] });
}

/// Sends so much and receives so much, in pieces of eight KiB that wait when there is no room.
fn flood(side: &Side, log: &mut Log, [out, input]: [usize; 2]) {
    let (mut sent, mut got, mut open) = (0, 0, true);
    let bytes = pattern(0, out);
    let expected = pattern(0, input);
    let mut part = vec![0; 8192];
    loop {
        let events = libc::POLLIN | if open { libc::POLLOUT } else { 0 };
        let mut poll = libc::pollfd { fd: side.fd, events, revents: 0 };
        // SAFETY: one pollfd.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, -1) }, 1);
        if poll.revents & libc::POLLIN != 0 {
            let n = recv(side.fd, &mut part, 0);
            if n <= 0 {
                log.result(&format!("after {got}"), n);
                break;
            }
            assert!(part[..n as usize] == expected[got..got + n as usize], "at {got}");
            got += n as usize;
        }
        if poll.revents & libc::POLLOUT != 0 {
            let n = send(side.fd, &bytes[sent..(sent + 8192).min(out)], 0);
            assert!(n > 0, "send after {sent}: {}", std::io::Error::last_os_error());
            sent += n as usize;
            if sent == out {
                open = false;
                // SAFETY: a descriptor of ours.
                assert_eq!(unsafe { libc::shutdown(side.fd, libc::SHUT_WR) }, 0);
            }
        }
    }
    while sent < out {
        let n = send(side.fd, &bytes[sent..(sent + 8192).min(out)], 0);
        assert!(n > 0, "send after {sent}: {}", std::io::Error::last_os_error());
        sent += n as usize;
    }
    log.say(format_args!("{sent} and {got}"));
}

/// Bytes of before the rings lie unread when one end says that it has sent all; behind them is what woke it, and bytes of the ring.
pub(crate) fn half_close_over_unread(side: Side, log: &mut Log) {
    let other = second(&side);
    if !side.server {
        send_all(side.fd, &pattern(0, 3000));
        for round in 0..30u8 {
            assert_eq!(recv_exactly(side.fd, 50), [round; 50]);
            other.rendezvous(round);
        }
        for part in 0..4 {
            nap(30);
            assert!(recv_exactly(side.fd, 300_000) == pattern(part * 300_000, 300_000));
        }
        send_all(side.fd, &pattern(3000, 500));
        assert_eq!(recv_exactly(side.fd, 1), [1]);
        log.result("the end", recv(side.fd, &mut [0; 9], 0));
        return send_all(side.fd, b"last");
    }
    for round in 0..30u8 {
        send_all(side.fd, &[round; 50]);
        // One after the other, so that the other end has as many calls.
        other.rendezvous(round);
    }
    // More than goes: whoever waits for room asks to be woken.
    send_all(side.fd, &pattern(0, 1_200_000));
    until(|| (unread(side.fd) >= 3500).then_some(()));
    send_all(side.fd, &[1]);
    // SAFETY: a descriptor of ours.
    log.result("shutdown", unsafe { libc::shutdown(side.fd, libc::SHUT_WR) } as isize);
    let mut got = Vec::new();
    loop {
        let mut poll = libc::pollfd { fd: side.fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, 20_000) }, 1, "after {}", got.len());
        let mut part = [0; 1000];
        match recv(side.fd, &mut part, libc::MSG_DONTWAIT) {
            0 => break,
            n => got.extend_from_slice(&part[..usize::try_from(n).unwrap()]),
        }
    }
    assert!(got == [&pattern(0, 3500)[..], b"last"].concat(), "{} bytes", got.len());
    log.say("all of it");
}

/// Bytes of before the rings lie unread, and such of the ring behind them: whoever waits is told of both, and of nothing when all is read.
pub(crate) fn polled_over_unread(side: Side, log: &mut Log) {
    for round in 0..3u8 {
        let one = second(&side);
        if !side.server {
            send_all(one.fd, &pattern(0, 3000));
            for round in 0..30u8 {
                assert_eq!(recv_exactly(one.fd, 50), [round; 50]);
                side.rendezvous(round);
            }
            send_all(one.fd, &pattern(3000, 500));
            side.rendezvous(round);
            side.rendezvous(round);
            close(one.fd);
            continue;
        }
        for round in 0..30u8 {
            send_all(one.fd, &[round; 50]);
            side.rendezvous(round);
        }
        side.rendezvous(round);
        let set = Set::new();
        set.add(one.fd, libc::EPOLLIN, 7);
        let reported = |wait: i32| {
            let mut poll = libc::pollfd { fd: one.fd, events: libc::POLLIN, revents: 0 };
            if round == 1 {
                return format!("{:x?}", set.wait(wait));
            }
            let limit = libc::timespec { tv_sec: i64::from(wait / 1000), tv_nsec: i64::from(wait % 1000) * 1_000_000 };
            // SAFETY: one pollfd, a set of one descriptor, a time.
            unsafe {
                if round == 0 {
                    return format!("{} {:x}", libc::poll(&mut poll, 1, wait), poll.revents);
                }
                let mut reads: libc::fd_set = std::mem::zeroed();
                libc::FD_SET(one.fd, &mut reads);
                let none = std::ptr::null_mut;
                format!("{}", libc::pselect(one.fd + 1, &mut reads, none(), none(), &limit, std::ptr::null()))
            }
        };
        let mut at = 0;
        for part in [1000, 1999, 1, 1, 400, 99] {
            log.say(format_args!("{} {} of {}", reported(LONG), reported(0), unread(one.fd)));
            assert!(recv_exactly(one.fd, part) == pattern(at, part));
            at += part;
        }
        log.say(format_args!("{} and {}", reported(20), unread(one.fd)));
        side.rendezvous(round);
        close(set.0);
        close(one.fd);
    }
}

/// Somebody has just been told of bytes in a ring when the connection goes back: a receive that does not wait finds them.
pub(crate) fn half_close_after_poll(side: Side, log: &mut Log) {
    side.warm_up();
    for round in 0..10u8 {
        let one = second(&side);
        one.warm_up();
        if !side.server {
            send_all(one.fd, &[round; 500]);
            // In a call of this connection, which is when an end sends again what the other has not taken.
            log.result("the end", recv(one.fd, &mut [0; 9], 0));
            close(one.fd);
            side.rendezvous(round);
            continue;
        }
        let mut poll = libc::pollfd { fd: one.fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, and a descriptor of ours.
        unsafe {
            assert_eq!(libc::poll(&mut poll, 1, 20_000), 1);
            assert_eq!(libc::shutdown(one.fd, libc::SHUT_WR), 0);
        }
        log.say(unread(one.fd));
        let mut bytes = [0; 600];
        log.result("there", recv(one.fd, &mut bytes, libc::MSG_DONTWAIT));
        close(one.fd);
        side.rendezvous(round);
    }
}

fn unread(fd: RawFd) -> i32 {
    let mut bytes = 0;
    // SAFETY: a live int.
    assert_eq!(unsafe { libc::ioctl(fd, libc::FIONREAD, &mut bytes) }, 0);
    bytes
}
