//! Signals and cancellation that meet a connection in the rings, and times that no clock reaches.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::sock::{Log, Side, close, nap, pattern, recv, recv_exactly, second, send, send_all, set_option, until};

static CAUGHT: AtomicUsize = AtomicUsize::new(0);

extern "C" fn caught(_: c_int) {
    CAUGHT.fetch_add(1, Ordering::SeqCst);
}

fn handle(signal: c_int, flags: c_int) {
    // SAFETY: a handler that counts.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (caught as *const () as usize, flags);
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

/// What a call returns that is interrupted again and again: until it returns or, where it goes on, until `enough` of them have come and
/// the other end ends it.
fn interrupted(goes_on: bool, side: &Side, mark: u8, call: impl FnOnce() -> isize) -> (isize, Option<i32>) {
    let done = AtomicBool::new(false);
    // SAFETY: this thread outlives the scope.
    let me = unsafe { libc::pthread_self() };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let before = CAUGHT.load(Ordering::SeqCst);
            let enough = || goes_on && CAUGHT.load(Ordering::SeqCst) > before + 20;
            while !done.load(Ordering::SeqCst) && !enough() {
                nap(3);
                // SAFETY: as above.
                unsafe { libc::pthread_kill(me, libc::SIGUSR2) };
            }
            if goes_on {
                send_all(side.fd, &[mark]);
            }
        });
        let result = call();
        let error = std::io::Error::last_os_error().raw_os_error().filter(|_| result < 0);
        done.store(true, Ordering::SeqCst);
        (result, error)
    })
}

/// Handlers that want calls to go on, and such that do not, in a receive, a send that has no room, poll and select.
pub(crate) fn interruptions(side: Side, log: &mut Log) {
    side.warm_up();
    let one = second(&side);
    one.warm_up();
    if !side.server {
        // Marks say when what it waits for is to come.
        assert_eq!(recv_exactly(side.fd, 1), [1]);
        send_all(one.fd, &[1]);
        assert_eq!(recv_exactly(side.fd, 1), [2]);
        let mut got = 0;
        while got == 0 || recv(one.fd, &mut [0], libc::MSG_PEEK | libc::MSG_DONTWAIT) > 0 {
            got += recv(one.fd, &mut [0; 100_000], 0);
            nap(1);
        }
        side.rendezvous(3);
        return side.rendezvous(4);
    }
    let poll = || {
        let mut poll = libc::pollfd { fd: one.fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd.
        unsafe { libc::poll(&mut poll, 1, -1) as isize }
    };
    let select = || {
        // SAFETY: a set of one descriptor.
        unsafe {
            let mut reads: libc::fd_set = std::mem::zeroed();
            libc::FD_SET(one.fd, &mut reads);
            let none = std::ptr::null_mut;
            libc::select(one.fd + 1, &mut reads, none(), none(), std::ptr::null_mut()) as isize
        }
    };
    for flags in [0, libc::SA_RESTART] {
        handle(libc::SIGUSR2, flags);
        log.say(format_args!("poll: {:?}", interrupted(false, &side, 0, poll)));
        log.say(format_args!("select: {:?}", interrupted(false, &side, 0, select)));
        let goes_on = flags != 0;
        log.say(format_args!("recv: {:?}", interrupted(goes_on, &side, 1, || recv(one.fd, &mut [0; 9], 0))));
    }
    handle(libc::SIGUSR2, 0);
    // What is under way may still make room when the kernel says that there is none.
    let until_it_fails = || {
        while send(one.fd, &[5; 1000], 0) > 0 {}
        -1
    };
    log.say(format_args!("send: {:?}", interrupted(false, &side, 0, until_it_fails)));
    handle(libc::SIGUSR2, libc::SA_RESTART);
    // Whatever the handler wants, a call that has a limit does not go on.
    let limit = |tv_sec| {
        let limit = libc::timeval { tv_sec, tv_usec: 0 };
        set_option(one.fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &limit);
    };
    limit(60);
    log.say(format_args!("send within a minute: {:?}", interrupted(false, &side, 0, until_it_fails)));
    limit(0);
    while send(one.fd, &[5], libc::MSG_DONTWAIT) > 0 {}
    log.say(format_args!("send: {:?}", interrupted(true, &side, 2, || send(one.fd, &[5], 0))));
    side.rendezvous(3);
    side.rendezvous(4);
}

/// Writing to one who is gone is a signal, whichever call does it, unless it says otherwise.
pub(crate) fn pipe_signal(side: Side, log: &mut Log) {
    side.warm_up();
    for kind in 0..5 {
        let one = second(&side);
        one.warm_up();
        if side.server {
            close(one.fd);
            side.rendezvous(kind);
            continue;
        }
        side.rendezvous(kind);
        handle(libc::SIGPIPE, 0);
        let bytes = [7u8; 10];
        let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: 10 };
        // SAFETY: live buffers, a zeroed header that names them.
        let call = || unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = ((&raw const part).cast_mut(), 1);
            match kind {
                0 => libc::write(one.fd, bytes.as_ptr().cast(), 10),
                1 => libc::send(one.fd, bytes.as_ptr().cast(), 10, 0),
                2 => libc::writev(one.fd, &part, 1),
                3 => libc::sendmsg(one.fd, &message, 0),
                _ => libc::send(one.fd, bytes.as_ptr().cast(), 10, libc::MSG_NOSIGNAL),
            }
        };
        // Over TCP a send or two still go, and which error comes first is the kernel's to choose.
        while call() > 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EPIPE) {
            nap(1);
        }
        let before = CAUGHT.load(Ordering::SeqCst);
        log.result("send", call());
        log.say(CAUGHT.load(Ordering::SeqCst) - before);
        close(one.fd);
    }
}

unsafe extern "C" {
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    #[link_name = "recv"]
    fn recv_unwinding(fd: c_int, to: *mut c_void, len: usize, flags: c_int) -> isize;
    #[link_name = "send"]
    fn send_unwinding(fd: c_int, to: *const c_void, len: usize, flags: c_int) -> isize;
    #[link_name = "poll"]
    fn poll_unwinding(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
}

static CANCELLED: AtomicBool = AtomicBool::new(false);

/// A thread that is cancelled ends in its next call, whatever there is for it: it may never wait again.
pub(crate) fn cancelled_with_bytes(side: Side, log: &mut Log) {
    extern "C-unwind" fn body(what: *mut c_void) -> *mut c_void {
        let (fd, kind) = ((what as usize & 0xffff) as c_int, what as usize >> 16);
        // SAFETY: states by number; buffers of one byte.
        unsafe {
            pthread_setcancelstate(1, std::ptr::null_mut());
            while !CANCELLED.load(Ordering::SeqCst) {
                libc::sched_yield();
            }
            pthread_setcancelstate(0, std::ptr::null_mut());
            let mut byte = 0u8;
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            match kind {
                0 => recv_unwinding(fd, (&raw mut byte).cast(), 1, 0),
                1 => send_unwinding(fd, (&raw const byte).cast(), 1, 0),
                _ => poll_unwinding(&mut poll, 1, -1) as isize,
            };
        }
        std::ptr::null_mut()
    }
    side.warm_up();
    if !side.server {
        send_all(side.fd, &pattern(0, 100));
        side.rendezvous(1);
        return;
    }
    until(|| (recv(side.fd, &mut [0; 100], libc::MSG_PEEK) == 100).then_some(()));
    for kind in 0..3 {
        CANCELLED.store(false, Ordering::SeqCst);
        // SAFETY: a function of the ABI that threads have, which may be unwound; a number for it.
        unsafe {
            let body = std::mem::transmute::<
                extern "C-unwind" fn(*mut c_void) -> *mut c_void,
                extern "C" fn(*mut c_void) -> *mut c_void,
            >(body);
            let mut thread: libc::pthread_t = std::mem::zeroed();
            let what = (kind << 16 | side.fd as usize) as *mut c_void;
            assert_eq!(libc::pthread_create(&mut thread, std::ptr::null(), body, what), 0);
            assert_eq!(pthread_cancel(thread), 0);
            CANCELLED.store(true, Ordering::SeqCst);
            let mut result = std::ptr::null_mut();
            assert_eq!(libc::pthread_join(thread, &mut result), 0);
            log.say(format_args!("{kind}: {}", result as isize));
        }
    }
    assert!(recv_exactly(side.fd, 100) == pattern(0, 100));
    side.rendezvous(1);
}

/// Times that the clock does not reach, and such as are none.
pub(crate) fn long_times(side: Side, log: &mut Log) {
    unsafe extern "C" {
        fn epoll_pwait2(
            set: c_int,
            events: *mut libc::epoll_event,
            count: c_int,
            limit: *const libc::timespec,
            mask: *const libc::sigset_t,
        ) -> c_int;
    }
    side.warm_up();
    if !side.server {
        for round in 0..4 {
            nap(20);
            side.rendezvous(round);
        }
        return;
    }
    let set = crate::eventfds::set_of(side.fd);
    let none = std::ptr::null_mut;
    let wait = |kind: u8, seconds: i64, rest: i64| {
        // SAFETY: live structures of one element.
        unsafe {
            let limit = libc::timespec { tv_sec: seconds, tv_nsec: rest };
            let mut time = libc::timeval { tv_sec: seconds, tv_usec: rest };
            let mut poll = libc::pollfd { fd: side.fd, events: libc::POLLIN, revents: 0 };
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            let mut reads: libc::fd_set = std::mem::zeroed();
            libc::FD_SET(side.fd, &mut reads);
            (match kind {
                0 => libc::ppoll(&mut poll, 1, &limit, std::ptr::null()),
                1 => libc::pselect(side.fd + 1, &mut reads, none(), none(), &limit, std::ptr::null()),
                2 => libc::select(side.fd + 1, &mut reads, none(), none(), &mut time),
                _ => epoll_pwait2(set, &mut event, 1, &limit, std::ptr::null()),
            }) as isize
        }
    };
    for kind in 0..4 {
        log.result("for ever", wait(kind, i64::MAX, 0));
        side.rendezvous(kind);
        log.result("before the beginning", wait(kind, -1, 0));
        log.result("less than nothing", wait(kind, 0, -1));
        if kind != 2 {
            log.result("more than a second", wait(kind, 0, 1_000_000_000));
        }
    }
    close(set);
}

/// A sender that waits no longer than it is to, for a peer that has never read from the ring.
pub(crate) fn timeout_of_a_sender(side: Side, log: &mut Log) {
    side.warm_up();
    let one = second(&side);
    if side.server {
        for round in 0..20u8 {
            assert_eq!(recv_exactly(one.fd, 100), [round; 100]);
            side.rendezvous(round);
        }
        side.rendezvous(1);
        side.rendezvous(2);
        return close(one.fd);
    }
    for round in 0..20u8 {
        send_all(one.fd, &[round; 100]);
        side.rendezvous(round);
    }
    side.rendezvous(1);
    let limit = libc::timeval { tv_sec: 0, tv_usec: 120_000 };
    set_option(one.fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &limit);
    let sent = send(one.fd, &vec![5; 20_000_000], 0);
    log.say(sent > 0 && sent < 20_000_000);
    // A buffer of the kernel's may grow meanwhile.
    while send(one.fd, &[5; 1000], libc::MSG_DONTWAIT) > 0 {}
    log.result("and then", send(one.fd, &[5; 1000], 0));
    side.rendezvous(2);
}

/// The same where the peer takes a little now and then: over TCP all waits of a call together may last as long, not each of them.
pub(crate) fn timeout_of_many_waits(side: Side, log: &mut Log) {
    side.warm_up();
    let one = second(&side);
    one.warm_up();
    if side.server {
        side.rendezvous(1);
        let mut some = vec![0; 100_000];
        // For as long as the other end is in its call.
        while recv(side.fd, &mut [0], libc::MSG_DONTWAIT) != 1 {
            if recv(one.fd, &mut some, libc::MSG_DONTWAIT) == 0 {
                break;
            }
            nap(10);
        }
        side.rendezvous(2);
        return close(one.fd);
    }
    let limit = libc::timeval { tv_sec: 0, tv_usec: 300_000 };
    set_option(one.fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &limit);
    // A Unix socket's kernel counts anew for each piece; whether one of its waits lasts that long is a matter of luck.
    let bytes = if side.tcp { 60_000_000 } else { 1_000_000 };
    side.rendezvous(1);
    let sent = send(one.fd, &vec![5; bytes], 0);
    log.say(sent > 0 && (!side.tcp || sent < bytes as isize));
    send_all(side.fd, &[9]);
    side.rendezvous(2);
}
