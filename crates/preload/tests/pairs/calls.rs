//! Calls and circumstances that programs rarely have.

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::sets::Set;
use crate::sock::{Log, Side, close, nap, pattern, recv, recv_exactly, recv_to_end, second, send_all, until};

/// recvfrom and recvmsg that ask for an address, which a stream tells in its own way.
pub(crate) fn addresses(side: Side, log: &mut Log) {
    side.warm_up();
    for round in 0..2 {
        if side.server {
            send_all(side.fd, b"abc");
            assert_eq!(recv_exactly(side.fd, 1), [round]);
            continue;
        }
        let mut bytes = [0u8; 3];
        // SAFETY: live buffers and their lengths.
        unsafe {
            let mut address: libc::sockaddr_storage = std::mem::zeroed();
            let mut len = size_of_val(&address) as libc::socklen_t;
            let at = (&raw mut address).cast();
            let n = if round == 0 {
                libc::recvfrom(side.fd, bytes.as_mut_ptr().cast(), 3, libc::MSG_WAITALL, at, &mut len)
            } else {
                let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 3 };
                let mut message: libc::msghdr = std::mem::zeroed();
                (message.msg_name, message.msg_namelen) = (at.cast(), len);
                (message.msg_iov, message.msg_iovlen) = (&mut part, 1);
                let n = libc::recvmsg(side.fd, &mut message, libc::MSG_WAITALL);
                len = message.msg_namelen;
                n
            };
            // The path is another one in each run.
            log.say(format_args!(
                "{n} {bytes:?} named {} family {}",
                len > 2,
                if len > 2 { address.ss_family } else { 0 }
            ));
        }
        send_all(side.fd, &[round]);
    }
    side.rendezvous(3);
}

unsafe extern "C" {
    fn dprintf(fd: c_int, format: *const c_char, ...) -> c_int;
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    fn execl(path: *const c_char, first: *const c_char, ...) -> c_int;
}

/// What is printed into a connection by the C library itself.
pub(crate) fn printed(side: Side, log: &mut Log) {
    side.warm_up();
    if side.server {
        for round in 0..20 {
            send_all(side.fd, b"sent ");
            // SAFETY: a format with the arguments it names, some of them past the registers.
            let n = unsafe {
                let word = c"word".as_ptr();
                dprintf(side.fd, c"%d %s %.2f %d %d %d %d %d.".as_ptr(), round, word, 1.5, 2, 3, 4, 5, 6)
            };
            log.say(n);
        }
        // SAFETY: a descriptor of ours.
        unsafe { libc::close(side.fd) };
        return;
    }
    log.say(String::from_utf8_lossy(&recv_to_end(side.fd).0));
}

/// Another program takes over by a list of arguments, and writes where this one has written.
pub(crate) fn exec_by_list(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.server {
        return log.say(String::from_utf8_lossy(&recv_to_end(side.fd).0));
    }
    send_all(side.fd, b"before ");
    // SAFETY: the child goes on with this thread alone; strings that end with zeroes.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::fcntl(side.fd, libc::F_SETFD, 0);
            let command = CString::new(format!("echo after >&{}", side.fd)).unwrap();
            execl(c"/bin/sh".as_ptr(), c"sh".as_ptr(), c"-c".as_ptr(), command.as_ptr(), std::ptr::null::<c_char>());
            libc::_exit(1);
        }
        let mut status = 1;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        log.say(status);
        libc::close(side.fd);
    }
}

/// poll of more descriptors than the library takes at once.
pub(crate) fn polled_many(side: Side, log: &mut Log) {
    side.warm_up();
    let mut all: Vec<libc::pollfd> =
        (0..400).map(|_| libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }).collect();
    all[300].fd = side.fd;
    for round in 0..30usize {
        if !side.server {
            send_all(side.fd, &pattern(round, 100));
            assert!(recv_exactly(side.fd, 100) == pattern(round, 100));
            continue;
        }
        // SAFETY: so many pollfds.
        assert_eq!(unsafe { libc::poll(all.as_mut_ptr(), 400, -1) }, 1);
        assert_eq!(all[300].revents, libc::POLLIN);
        let bytes = recv_exactly(side.fd, 100);
        send_all(side.fd, &bytes);
    }
    log.say("polled");
}

/// Lists nearly as long as the kernel takes them, and longer ones, which it refuses.
pub(crate) fn polled_to_the_limit(side: Side, log: &mut Log) {
    // SAFETY: live structures, and so many pollfds.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = 300;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        side.warm_up();
        for many in [200, 299, 20] {
            let mut all = vec![libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; many];
            all[many / 2].fd = side.fd;
            for round in 0..30usize {
                if !side.server {
                    send_all(side.fd, &pattern(round, 100));
                    assert!(recv_exactly(side.fd, 100) == pattern(round, 100));
                    crate::sock::nap(round as u64 % 3);
                    continue;
                }
                assert_eq!(libc::poll(all.as_mut_ptr(), many as libc::nfds_t, 60_000), 1);
                let bytes = recv_exactly(side.fd, 100);
                send_all(side.fd, &bytes);
            }
        }
        let mut one = libc::pollfd { fd: side.fd, events: libc::POLLIN, revents: 0 };
        log.result("far too many", libc::poll(&mut one, 1 << 30, 0) as isize);
    }
    side.rendezvous(1);
}

/// ppoll and pselect let signals in while they wait, and at no other time.
pub(crate) fn masks(side: Side, log: &mut Log) {
    static CAUGHT: AtomicU64 = AtomicU64::new(0);
    extern "C" fn caught(_: c_int) {
        CAUGHT.fetch_add(1, Ordering::SeqCst);
    }
    side.warm_up();
    if !side.server {
        return assert_eq!(recv_exactly(side.fd, 1), [1]);
    }
    // SAFETY: live structures; the handler counts.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = caught as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
        let (mut blocked, mut none): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigemptyset(&mut none);
        libc::sigemptyset(&mut blocked);
        libc::sigaddset(&mut blocked, libc::SIGUSR1);
        libc::pthread_sigmask(libc::SIG_BLOCK, &blocked, std::ptr::null_mut());
        let set = Set::new();
        set.add(side.fd, libc::EPOLLIN, 1);
        for kind in 0..3 {
            libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1);
            let soon = libc::timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            let wait = |mask: *const libc::sigset_t| match kind {
                0 => {
                    let mut poll = libc::pollfd { fd: side.fd, events: libc::POLLIN, revents: 0 };
                    libc::ppoll(&mut poll, 1, &soon, mask)
                }
                1 => {
                    let mut reads: libc::fd_set = std::mem::zeroed();
                    libc::FD_SET(side.fd, &mut reads);
                    let (w, e) = (std::ptr::null_mut(), std::ptr::null_mut());
                    libc::pselect(side.fd + 1, &mut reads, w, e, &soon, mask)
                }
                _ => {
                    let mut event = libc::epoll_event { events: 0, u64: 0 };
                    libc::epoll_pwait(set.0, &mut event, 1, 20, mask)
                }
            };
            let n = wait(&blocked);
            log.say(format_args!("blocked: {n}, caught {}", CAUGHT.load(Ordering::SeqCst)));
            log.result("let in", wait(&none) as isize);
            log.say(format_args!("caught {}", CAUGHT.load(Ordering::SeqCst)));
        }
    }
    send_all(side.fd, &[1]);
}

unsafe extern "C-unwind" {
    #[link_name = "recv"]
    fn recv_unwinding(fd: c_int, to: *mut c_void, len: usize, flags: c_int) -> isize;
    #[link_name = "epoll_wait"]
    fn epoll_wait_unwinding(set: c_int, events: *mut libc::epoll_event, count: c_int, timeout: c_int) -> c_int;
}

/// A thread is cancelled in a blocked receive, and one in a wait; the connection goes on.
pub(crate) fn cancelled(side: Side, log: &mut Log) {
    extern "C-unwind" fn receives(fd: *mut c_void) -> *mut c_void {
        let mut byte = 0u8;
        // SAFETY: one byte.
        unsafe { recv_unwinding(fd as usize as c_int, (&raw mut byte).cast(), 1, 0) };
        std::ptr::null_mut()
    }
    extern "C-unwind" fn waits(set: *mut c_void) -> *mut c_void {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: one event.
        unsafe { epoll_wait_unwinding(set as usize as c_int, &mut event, 1, -1) };
        std::ptr::null_mut()
    }
    side.warm_up();
    for round in 0..6u8 {
        if !side.server {
            assert_eq!(recv_exactly(side.fd, 1), [round]);
            send_all(side.fd, &pattern(round as usize, 3000));
            continue;
        }
        let set = Set::new();
        set.add(side.fd, libc::EPOLLIN, 1);
        let (body, argument): (extern "C-unwind" fn(*mut c_void) -> *mut c_void, RawFd) =
            if round % 2 == 0 { (receives, side.fd) } else { (waits, set.0) };
        // SAFETY: the thread does nothing but wait; a function of the ABI that threads have, which may be unwound.
        unsafe {
            let mut thread: libc::pthread_t = std::mem::zeroed();
            let body = std::mem::transmute::<
                extern "C-unwind" fn(*mut c_void) -> *mut c_void,
                extern "C" fn(*mut c_void) -> *mut c_void,
            >(body);
            assert_eq!(libc::pthread_create(&mut thread, std::ptr::null(), body, argument as usize as *mut c_void), 0);
            nap(20);
            assert_eq!(pthread_cancel(thread), 0);
            let mut result = std::ptr::null_mut();
            assert_eq!(libc::pthread_join(thread, &mut result), 0);
            log.say(format_args!("cancelled {}", result as isize));
        }
        send_all(side.fd, &[round]);
        assert_eq!(set.wait(20_000), [(libc::EPOLLIN as u32, 1)]);
        assert!(recv_exactly(side.fd, 3000) == pattern(round as usize, 3000));
        // SAFETY: a descriptor of ours.
        unsafe { libc::close(set.0) };
    }
    side.rendezvous(6);
}

/// A signal handler jumps out of a blocked receive, a blocked send, a poll and a wait.
pub(crate) fn jumps(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.server {
        for round in 0..8u8 {
            let bytes = recv_exactly(side.fd, 1);
            assert_eq!(bytes, [round]);
            send_all(side.fd, &pattern(round as usize, 3000));
        }
        return side.rendezvous(8);
    }
    let set = Set::new();
    set.add(side.fd, libc::EPOLLIN, 1);
    for round in 0..8u8 {
        log.say(format_args!("{round}: {}", jump::out_of(round % 4, side.fd, set.0, 100_000)));
        log.result("nothing there", recv(side.fd, &mut [0; 1], libc::MSG_DONTWAIT));
        send_all(side.fd, &[round]);
        assert_eq!(set.wait(20_000), [(libc::EPOLLIN as u32, 1)]);
        assert!(recv_exactly(side.fd, 3000) == pattern(round as usize, 3000));
    }
    side.rendezvous(8);
}

/// What `sigsetjmp` and `siglongjmp` do, in a form that returns once.
#[cfg(target_arch = "x86_64")]
pub(crate) mod jump {
    use super::*;

    /// What is jumped out of beside a receive, poll, epoll and select.
    pub(crate) const SEND: u8 = 4;
    pub(crate) const EXCHANGE: u8 = 5;
    /// Receives that do not wait, and polls, one after the other, of which none finds anything.
    pub(crate) const RECEIVES: u8 = 6;
    pub(crate) const POLLS: u8 = 7;
    /// Sends that do not wait, one after the other.
    pub(crate) const SENDS: u8 = 8;

    /// Where the frame of `call` is; nothing before there is one.
    static PLACE: AtomicU64 = AtomicU64::new(0);

    #[unsafe(naked)]
    unsafe extern "C" fn call(f: extern "C" fn(u64) -> i64, argument: u64, place: *mut u64) -> i64 {
        std::arch::naked_asm!(
            "push rbx",
            "push rbp",
            "push r12",
            "push r13",
            "push r14",
            "push r15",
            "sub rsp, 8",
            "mov [rdx], rsp",
            "mov rax, rdi",
            "mov rdi, rsi",
            "call rax",
            "add rsp, 8",
            "pop r15",
            "pop r14",
            "pop r13",
            "pop r12",
            "pop rbp",
            "pop rbx",
            "ret",
        )
    }

    #[unsafe(naked)]
    unsafe extern "C" fn back(place: u64, value: i64) -> ! {
        std::arch::naked_asm!(
            "mov rsp, rdi",
            "mov rax, rsi",
            "add rsp, 8",
            "pop r15",
            "pop r14",
            "pop r13",
            "pop r12",
            "pop rbp",
            "pop rbx",
            "ret",
        )
    }

    extern "C" fn handler(_: c_int) {
        // SAFETY: the frame of `call` is there as long as signals are sent.
        unsafe { back(PLACE.load(Ordering::SeqCst), -77) }
    }

    extern "C" fn block(what: u64) -> i64 {
        let (kind, fd, set) = (what >> 40, (what & 0xfffff) as c_int, (what >> 20 & 0xfffff) as c_int);
        let mut byte = 0u8;
        // SAFETY: live structures of one element.
        unsafe {
            match kind {
                0 => libc::recv(fd, (&raw mut byte).cast(), 1, 0) as i64,
                1 => {
                    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                    i64::from(libc::poll(&mut poll, 1, -1))
                }
                2 => {
                    let mut event = libc::epoll_event { events: 0, u64: 0 };
                    i64::from(libc::epoll_wait(set, &mut event, 1, -1))
                }
                3 => {
                    let mut reads: libc::fd_set = std::mem::zeroed();
                    libc::FD_SET(fd, &mut reads);
                    let (w, e, t) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
                    i64::from(libc::select(fd + 1, &mut reads, w, e, t))
                }
                4 => {
                    let much = crate::leaving::much();
                    libc::send(fd, much.as_ptr().cast(), much.len(), 0) as i64
                }
                6 => loop {
                    libc::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT);
                },
                7 => loop {
                    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                    libc::poll(&mut poll, 1, 0);
                },
                8 => {
                    let much = crate::leaving::much();
                    loop {
                        libc::send(fd, much.as_ptr().cast(), much.len(), libc::MSG_DONTWAIT);
                    }
                }
                _ => loop {
                    let mut bytes = [7u8; 100];
                    libc::send(fd, bytes.as_ptr().cast(), 100, 0);
                    libc::recv(fd, bytes.as_mut_ptr().cast(), 100, 0);
                },
            }
        }
    }

    /// Until this thread has slept for 50 ms, but for a nap or two in 10 ms. On a busy machine no time is long enough to be sure of that.
    fn until_asleep(task: libc::pid_t) {
        let switches = || {
            let status = std::fs::read_to_string(format!("/proc/self/task/{task}/status")).unwrap();
            let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
            (of("State:").starts_with('S'), of("voluntary_ctxt_switches:").parse::<u64>().unwrap())
        };
        let (mut before, mut quiet) = (switches(), 0);
        while quiet < 5 {
            nap(10);
            let now = switches();
            quiet = if now.0 && now.1 - before.1 <= 2 { quiet + 1 } else { 0 };
            before = now;
        }
    }

    /// What a call of this kind returns that is interrupted after so many microseconds, and once it sleeps if it does not exchange: -77 if the handler has jumped out of it.
    pub(crate) fn out_of(kind: u8, fd: RawFd, set: RawFd, micros: u64) -> i64 {
        let enough = AtomicBool::new(false);
        PLACE.store(0, Ordering::SeqCst);
        // SAFETY: the handler jumps into a frame that is there; nothing between has anything to drop.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            (action.sa_sigaction, action.sa_flags) = (handler as *const () as usize, libc::SA_NODEFER);
            assert_eq!(libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()), 0);
            let (me, task) = (libc::pthread_self(), libc::gettid());
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while PLACE.load(Ordering::SeqCst) == 0 {
                        nap(1);
                    }
                    // Once is enough where the call blocks before; it does, or the test hangs and is ended.
                    std::thread::sleep(Duration::from_micros(micros));
                    if u64::from(kind) < u64::from(EXCHANGE) {
                        until_asleep(task);
                    }
                    libc::pthread_kill(me, libc::SIGUSR2);
                    enough.store(true, Ordering::SeqCst);
                });
                let what = u64::from(kind) << 40 | (set as u64) << 20 | fd as u64;
                let got = call(block, what, PLACE.as_ptr());
                let begun = Instant::now();
                while !enough.load(Ordering::SeqCst) {
                    assert!(begun.elapsed() < Duration::from_secs(30));
                    nap(1);
                }
                got
            })
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) mod jump {
    pub(crate) const SEND: u8 = 4;
    pub(crate) const EXCHANGE: u8 = 5;
    pub(crate) const RECEIVES: u8 = 6;
    pub(crate) const POLLS: u8 = 7;
    pub(crate) const SENDS: u8 = 8;

    pub(crate) fn out_of(kind: u8, fd: i32, _: i32, _: u64) -> i64 {
        if kind == SEND {
            crate::sock::send_all(fd, &[5]);
        }
        -77
    }
}

/// Neither a descriptor nor a byte of a file is to be had: the connection stays the kernel's, and nothing happens.
pub(crate) fn out_of_resources(side: Side, log: &mut Log) {
    // SAFETY: zeroes are limits.
    let mut before: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: live structures.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit), 0);
        limit.rlim_cur = 4096;
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
        if !side.server {
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut before), 0);
            let few = libc::rlimit { rlim_cur: side.fd as u64 + 1, ..before };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &few), 0);
        }
    }
    side.warm_up();
    side.exchange(200);
    if !side.server {
        // SAFETY: live structures.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &before) };
    }
    log.say("as ever");
}

/// The ends are of different users: they do not meet.
pub(crate) fn another_user(side: Side, log: &mut Log) {
    // SAFETY: no memory is passed; without the right to, nothing happens.
    unsafe {
        if !side.server {
            libc::seteuid(65_534);
        }
        side.warm_up();
        for round in 0..200usize {
            side.rendezvous(round as u8);
        }
        libc::seteuid(0);
    }
    log.say("as ever");
}

/// Calls of a time when nothing is set up yet.
pub(crate) fn before_constructors(side: Side, log: &mut Log) {
    log.say(format_args!("early: {}", EARLY.load(Ordering::SeqCst)));
    side.warm_up();
    side.rendezvous(1);
}

static EARLY: AtomicU64 = AtomicU64::new(0);

#[used]
#[unsafe(link_section = ".preinit_array")]
static FIRST: extern "C" fn() = first;

extern "C" fn first() {
    // SAFETY: descriptors of ours, live buffers.
    unsafe {
        let mut pair = [-1; 2];
        let mut byte = 7u8;
        let mut poll = libc::pollfd { fd: -1, events: 0, revents: 0 };
        if libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr()) == 0
            && libc::write(pair[0], (&raw const byte).cast(), 1) == 1
            && libc::poll(&mut poll, 1, 0) == 0
            && libc::read(pair[1], (&raw mut byte).cast(), 1) == 1
            && libc::close(pair[0]) == 0
            && libc::dup2(pair[1], pair[0]) == pair[0]
        {
            let set = libc::epoll_create1(0);
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 1 };
            let added = libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, pair[1], &mut event);
            let n = libc::epoll_wait(set, &mut event, 1, 1000);
            EARLY.store(u64::from(byte) + 10 * u64::from(added == 0) + 100 * n as u64, Ordering::SeqCst);
            libc::close(set);
        }
        libc::close(pair[0]);
        libc::close(pair[1]);
    }
}

/// What is there goes into all buffers of a call, also while the ends are just rendezvous: many short connections.
pub(crate) fn scattered(side: Side, log: &mut Log) {
    let mut got = Vec::new();
    for _ in 0..30 {
        let one = second(&side);
        if !side.server {
            send_all(one.fd, b"Mary had a little lamb");
            assert_eq!(recv_exactly(one.fd, 1), b".");
            close(one.fd);
            continue;
        }
        let mut there: c_int = 0;
        // SAFETY: a live int.
        until(|| (unsafe { libc::ioctl(one.fd, libc::FIONREAD, &mut there) } == 0 && there == 22).then_some(()));
        let mut parts = [vec![0u8; 4], vec![0u8; 7], vec![0u8; 14]];
        let list = parts.each_mut().map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
        // SAFETY: live buffers.
        let n = unsafe { libc::readv(one.fd, list.as_ptr(), 3) };
        got.push(n);
        assert!(parts.concat().starts_with(&b"Mary had a little lamb"[..n as usize]));
        send_all(one.fd, b".");
        close(one.fd);
    }
    log.say(format_args!("{got:?}"));
}
