//! Programs that wait by epoll.

use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP};

use crate::sock::{Log, Side, nap, pattern, recv, recv_exactly, send, send_all};

/// A set of epoll.
pub(crate) struct Set(pub(crate) RawFd);

impl Set {
    pub(crate) fn new() -> Self {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(fd >= 0);
        Self(fd)
    }

    pub(crate) fn ctl(&self, op: i32, fd: RawFd, events: i32, data: u64) -> i32 {
        let mut event = libc::epoll_event { events: events as u32, u64: data };
        // SAFETY: a live event.
        unsafe { libc::epoll_ctl(self.0, op, fd, &mut event) }
    }

    pub(crate) fn add(&self, fd: RawFd, events: i32, data: u64) {
        assert_eq!(self.ctl(EPOLL_CTL_ADD, fd, events, data), 0, "{}", std::io::Error::last_os_error());
    }

    pub(crate) fn change(&self, fd: RawFd, events: i32, data: u64) {
        assert_eq!(self.ctl(EPOLL_CTL_MOD, fd, events, data), 0, "{}", std::io::Error::last_os_error());
    }

    /// Events and data, or the error.
    pub(crate) fn try_wait(&self, max: usize, timeout: i32) -> Result<Vec<(u32, u64)>, Option<i32>> {
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; max];
        // SAFETY: places for `max` events.
        let n = unsafe { libc::epoll_wait(self.0, events.as_mut_ptr(), max as i32, timeout) };
        if n < 0 {
            return Err(std::io::Error::last_os_error().raw_os_error());
        }
        Ok(events[..n as usize].iter().map(|event| (event.events, event.u64)).collect())
    }

    /// The same, where nothing can go wrong.
    pub(crate) fn wait(&self, timeout: i32) -> Vec<(u32, u64)> {
        self.try_wait(16, timeout).unwrap()
    }
}

/// How long something that comes may take; how long what does not come is waited for.
pub(crate) const LONG: i32 = 20_000;
const SHORT: i32 = 30;

/// Level-triggered: said as long as it is so; reading in parts, room to write, nothing after DEL.
pub(crate) fn set_level(side: Side, log: &mut Log) {
    let set = Set::new();
    if side.server {
        set.add(side.fd, EPOLLIN, 0xdead_beef_0000_0007);
    }
    side.warm_up();
    if !side.server {
        for round in 0..300usize {
            send_all(side.fd, &pattern(round, 100));
            assert!(recv_exactly(side.fd, 100) == pattern(round, 100));
        }
        side.rendezvous(1);
        send_all(side.fd, b"more");
        return side.rendezvous(2);
    }
    for round in 0..300usize {
        assert_eq!(set.wait(LONG), [(EPOLLIN as u32, 0xdead_beef_0000_0007)], "round {round}");
        let mut bytes = recv_exactly(side.fd, 40);
        assert_eq!(set.wait(LONG), [(EPOLLIN as u32, 0xdead_beef_0000_0007)], "round {round}, the rest");
        bytes.extend(recv_exactly(side.fd, 60));
        assert!(bytes == pattern(round, 100));
        if round % 50 == 0 {
            set.change(side.fd, EPOLLIN | EPOLLOUT, 8);
            log.say(format_args!("{:?}", set.wait(LONG)));
            set.change(side.fd, EPOLLIN, 0xdead_beef_0000_0007);
            log.say(format_args!("{:?}", set.wait(SHORT)));
        }
        send_all(side.fd, &bytes);
    }
    side.rendezvous(1);
    log.say(format_args!("{:?}", set.wait(LONG)));
    log.say(format_args!("{:?}", set.wait(0)));
    set.change(side.fd, 0, 9);
    log.say(format_args!("nobody asks: {:?}", set.wait(SHORT)));
    set.change(side.fd, EPOLLIN, 10);
    log.say(format_args!("asks again: {:?}", set.wait(0)));
    log.result("add again", set.ctl(EPOLL_CTL_ADD, side.fd, EPOLLIN, 1) as isize);
    log.result("delete", set.ctl(EPOLL_CTL_DEL, side.fd, 0, 0) as isize);
    log.say(format_args!("without it: {:?}", set.wait(SHORT)));
    log.result("delete again", set.ctl(EPOLL_CTL_DEL, side.fd, 0, 0) as isize);
    log.result("change", set.ctl(EPOLL_CTL_MOD, side.fd, EPOLLIN, 0) as isize);
    assert_eq!(recv_exactly(side.fd, 4), b"more");
    side.rendezvous(2);
}

/// Edge-triggered: said once for what comes, whether it was read or not; MOD says it again.
pub(crate) fn set_edge(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.server {
        for _ in 0..50 {
            for message in [&b"first"[..], b"second"] {
                assert_eq!(recv_exactly(side.fd, 1), [1]);
                send_all(side.fd, message);
            }
        }
        return assert_eq!(recv_exactly(side.fd, 1), [2]);
    }
    let set = Set::new();
    set.add(side.fd, EPOLLIN | EPOLLOUT | EPOLLET, 5);
    log.say(format_args!("{:?}", set.wait(LONG)));
    set.change(side.fd, EPOLLIN | EPOLLET, 6);
    log.say(format_args!("room is not asked for: {:?}", set.wait(SHORT)));
    let mut again = 0;
    for round in 0..50u8 {
        let slow = round % 10 == 0;
        send_all(side.fd, &[1]);
        assert_eq!(set.wait(LONG), [(EPOLLIN as u32, 6)], "round {round}: the first arrival");
        again += set.wait(if slow { SHORT } else { 0 }).len();
        assert_eq!(recv_exactly(side.fd, 2), b"fi");
        again += set.wait(if slow { SHORT } else { 0 }).len();
        set.change(side.fd, EPOLLIN | EPOLLET, 6);
        assert_eq!(set.wait(LONG), [(EPOLLIN as u32, 6)], "what stands is said when it is asked for again");
        assert_eq!(recv_exactly(side.fd, 3), b"rst");
        send_all(side.fd, &[1]);
        assert_eq!(set.wait(LONG), [(EPOLLIN as u32, 6)], "round {round}: the second arrival");
        assert_eq!(recv_exactly(side.fd, 6), b"second");
        assert_eq!(recv(side.fd, &mut [0; 6], libc::MSG_DONTWAIT), -1);
    }
    send_all(side.fd, &[2]);
    // The kernel may say one twice, and does so over Unix sockets.
    assert!(again < 30, "said again in {again} of 100 cases");
    log.say("all edges");
}

/// ONESHOT: one report, then none until it is asked for again; the same for ONESHOT with edges.
pub(crate) fn set_oneshot(side: Side, log: &mut Log) {
    let set = Set::new();
    let mut asked = false;
    if side.server {
        // From before the rings on: the shot is had, and its connection comes into the rings.
        set.add(side.fd, EPOLLIN | EPOLLONESHOT, 1);
        log.say(format_args!("{:?}", set.wait(LONG)));
        asked = true;
    }
    side.warm_up();
    if !side.server {
        for round in 0..100u8 {
            send_all(side.fd, &[round; 10]);
            side.rendezvous(round);
        }
        return;
    }
    if asked {
        log.say(format_args!("its shot was had: {:?}", set.wait(SHORT)));
    }
    for round in 0..100u8 {
        let edge = if round % 2 == 0 { 0 } else { EPOLLET };
        set.change(side.fd, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT | edge, u64::from(round));
        assert_eq!(set.wait(LONG), [(EPOLLIN as u32, u64::from(round))]);
        assert_eq!(set.wait(if round % 10 == 0 { SHORT } else { 0 }), []);
        if round % 3 == 0 {
            set.change(side.fd, EPOLLIN | EPOLLONESHOT | edge, 1000);
            assert_eq!(set.wait(LONG), [(EPOLLIN as u32, 1000)]);
        }
        assert_eq!(recv_exactly(side.fd, 10), [round; 10]);
        side.rendezvous(round);
    }
    log.say("all shots");
    // The end is not said either, before it is asked for.
    log.say(format_args!("{:?}", set.wait(SHORT)));
    set.change(side.fd, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, 7);
    let end = set.wait(LONG);
    log.say(format_args!("{} {}", end.len(), end[0].0 & (EPOLLIN | EPOLLRDHUP) as u32));
}

/// The end of the stream, with bytes before it; level and edge.
pub(crate) fn set_end(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.server {
        side.rendezvous(1);
        send_all(side.fd, &pattern(0, 1000));
        // SAFETY: a descriptor of ours.
        unsafe { libc::close(side.fd) };
        return;
    }
    let (level, edge) = (Set::new(), Set::new());
    level.add(side.fd, EPOLLIN | EPOLLRDHUP, 1);
    edge.add(side.fd, EPOLLIN | EPOLLRDHUP | EPOLLET, 2);
    side.rendezvous(1);
    let begun = Instant::now();
    let both = |events: &[(u32, u64)]| events.iter().any(|event| event.0 & EPOLLRDHUP as u32 != 0);
    while !both(&level.wait(LONG)) {
        assert!(begun.elapsed() < Duration::from_secs(20), "no end");
    }
    log.say(format_args!("{:?}", level.wait(LONG)));
    let mut edges = Vec::new();
    while !both(&edges) {
        edges.extend(edge.wait(LONG));
    }
    log.say(format_args!("{:?}", edge.wait(SHORT)));
    assert!(recv_exactly(side.fd, 1000) == pattern(0, 1000));
    log.say(format_args!("{:?}", level.wait(LONG)));
    log.result("the end", recv(side.fd, &mut [0; 9], 0));
    log.say(format_args!("{:?}", level.wait(LONG)));
    // Writing to one who is gone, until the kernel says so.
    while send(side.fd, b"x", 0) > 0 {
        nap(1);
    }
    let last = level.wait(LONG);
    log.say(format_args!("{} {}", last.len(), last[0].0 & (EPOLLIN | libc::EPOLLHUP) as u32));
}

/// Half-close: what was said before the end is read, the other way stays open.
pub(crate) fn set_half_close(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.server {
        send_all(side.fd, &pattern(7, 3000));
        // SAFETY: a descriptor of ours.
        log.result("shutdown", unsafe { libc::shutdown(side.fd, libc::SHUT_WR) } as isize);
        assert!(recv_exactly(side.fd, 5000) == pattern(1, 5000));
        return log.result("the end", recv(side.fd, &mut [0; 9], 0));
    }
    let set = Set::new();
    set.add(side.fd, EPOLLIN | EPOLLRDHUP, 1);
    let mut bytes = Vec::new();
    loop {
        assert_eq!(set.wait(LONG).len(), 1);
        let mut part = [0; 700];
        match recv(side.fd, &mut part, libc::MSG_DONTWAIT) {
            0 => break,
            n => bytes.extend_from_slice(&part[..n.max(0) as usize]),
        }
    }
    assert!(bytes == pattern(7, 3000));
    log.say(format_args!("{:?}", set.wait(LONG)));
    set.change(side.fd, EPOLLOUT, 2);
    log.say(format_args!("{:?}", set.wait(LONG)));
    send_all(side.fd, &pattern(1, 5000));
}

/// Data that look like the library's own.
pub(crate) fn set_with_odd_data(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.server {
        return side.send_rounds(20);
    }
    let set = Set::new();
    set.add(side.fd, EPOLLIN, 1);
    let mut pipe = [0; 2];
    // SAFETY: two ints.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    for round in 0..20u8 {
        assert_eq!(set.wait(LONG), [(EPOLLIN as u32, 1)]);
        assert_eq!(recv_exactly(side.fd, 50), [round; 50]);
        if round == 9 {
            set.add(pipe[1], EPOLLOUT | EPOLLONESHOT, 0x9e4f_d1a7_0000_0000);
            let odd = set.wait(LONG).into_iter().filter(|event| event.1 != 1);
            log.say(format_args!("{:?}", odd.collect::<Vec<_>>()));
        }
        side.rendezvous(round);
    }
}

/// Bytes that were there before the descriptor was added.
pub(crate) fn bytes_before_the_set(side: Side, log: &mut Log) {
    side.warm_up();
    for round in 0..20u8 {
        if !side.server {
            send_all(side.fd, &[round; 50]);
            side.rendezvous(round);
            continue;
        }
        while recv(side.fd, &mut [0; 50], libc::MSG_PEEK | libc::MSG_DONTWAIT) != 50 {
            nap(1);
        }
        let set = Set::new();
        let edge = if round % 2 == 0 { 0 } else { EPOLLET };
        set.add(side.fd, EPOLLIN | edge, u64::from(round));
        assert_eq!(set.wait(LONG), [(EPOLLIN as u32, u64::from(round))]);
        assert_eq!(recv_exactly(side.fd, 50), [round; 50]);
        // SAFETY: a descriptor of ours.
        unsafe { libc::close(set.0) };
        log.result("closed", set.ctl(EPOLL_CTL_ADD, side.fd, EPOLLIN, 0) as isize);
        side.rendezvous(round);
    }
}

/// Fills the way to the peer and is told when there is room; level, then edge.
pub(crate) fn set_full(side: Side, _: &mut Log) {
    side.warm_up();
    let total = 10_000_000;
    for edge in [0, EPOLLET] {
        if side.server {
            nap(50);
            assert!(recv_exactly(side.fd, total) == pattern(0, total));
            send_all(side.fd, b"all");
            side.rendezvous(1);
            continue;
        }
        let set = Set::new();
        set.add(side.fd, EPOLLIN | EPOLLOUT | edge, 1);
        let bytes = pattern(0, total);
        let (mut at, mut waits) = (0, 0);
        while at < total {
            let n = send(side.fd, &bytes[at..], libc::MSG_DONTWAIT);
            if n > 0 {
                at += n as usize;
            }
            if n < 0 || at < total && edge != 0 && waits % 2 == 1 {
                // A part that was taken is as good as a refusal, to one who waits for edges.
                waits += 1;
                let events = set.wait(LONG);
                assert_eq!(events, [(EPOLLOUT as u32, 1)], "at {at}");
            }
        }
        let begun = Instant::now();
        while !set.wait(LONG).iter().any(|event| event.0 & EPOLLIN as u32 != 0) {
            assert!(begun.elapsed() < Duration::from_secs(20));
        }
        assert_eq!(recv_exactly(side.fd, 3), b"all");
        side.rendezvous(1);
    }
}

/// Timeouts, signals, and masks.
pub(crate) fn set_timeouts(side: Side, log: &mut Log) {
    extern "C" fn nothing(_: i32) {}
    side.warm_up();
    if !side.server {
        return assert_eq!(recv_exactly(side.fd, 1), [1]);
    }
    let set = Set::new();
    set.add(side.fd, EPOLLIN, 1);
    for timeout in [0, 1, 50] {
        let begun = Instant::now();
        log.say(format_args!("{timeout}: {:?}", set.wait(timeout)));
        assert!(begun.elapsed() >= Duration::from_millis(timeout as u64));
    }
    log.say(format_args!("no room: {:?}", set.try_wait(0, 0)));
    // SAFETY: a handler that does nothing; live structures; a timer that ends with the process.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (nothing as *const () as usize, libc::SA_RESTART);
        assert_eq!(libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()), 0);
    }
    // SAFETY: this thread lives as long as the scope.
    let me = unsafe { libc::pthread_self() };
    let enough = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !enough.load(std::sync::atomic::Ordering::SeqCst) {
                nap(40);
                // SAFETY: as above.
                unsafe { libc::pthread_kill(me, libc::SIGALRM) };
            }
        });
        log.say(format_args!("a signal: {:?}", set.try_wait(4, LONG)));
        masked(&set, log);
        enough.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    send_all(side.fd, &[1]);
}

fn masked(set: &Set, log: &mut Log) {
    // SAFETY: live structures.
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut mask);
        libc::sigaddset(&mut mask, libc::SIGALRM);
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let n = libc::epoll_pwait(set.0, &mut event, 1, 130, &mask);
        log.result("masked", n as isize);
        let limit = libc::timespec { tv_sec: 0, tv_nsec: 30_000_000 };
        log.result("finely", epoll_pwait2(set.0, &mut event, 1, &limit, &mask) as isize);
    }
}

unsafe extern "C" {
    fn epoll_pwait2(
        set: i32,
        events: *mut libc::epoll_event,
        count: i32,
        limit: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> i32;
}
