//! Programs that may not do all, or are of another kind: limits, sandboxes, namespaces, other users.

use std::ffi::c_int;

use crate::sock::{Log, Side, close, pattern, recv, recv_exactly, second, send, send_all};

/// So many exchanges that the ends would long have met.
fn go_on(side: &Side) {
    side.exchange(250);
}

/// The rest is for a child, which has one thread and the connection alone: what it changes is its own.
fn in_a_child(side: &Side, log: &mut Log, rest: impl FnOnce() -> c_int) {
    // SAFETY: the child goes on with this thread alone.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let status = rest();
            libc::exit(status);
        }
        close(side.fd);
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        log.say(format_args!("the child: {status:x}"));
    }
}

/// Sets a limit; what it was.
fn limit(resource: libc::__rlimit_resource_t, to: u64) -> u64 {
    // SAFETY: live structures.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(resource, &mut limit), 0);
        let before = std::mem::replace(&mut limit.rlim_cur, to);
        assert_eq!(libc::setrlimit(resource, &limit), 0);
        before
    }
}

/// Each number of descriptors that is too small for a rendezvous, on either end.
pub(crate) fn few_descriptors(side: Side, log: &mut Log) {
    side.warm_up();
    for (few, of_server) in [(0, false), (1, false), (2, false), (0, true), (1, true), (2, true)] {
        let one = second(&side);
        if side.server == of_server {
            // SAFETY: asks for the lowest descriptor that is free.
            let next = unsafe { libc::dup(one.fd) };
            close(next);
            let before = limit(libc::RLIMIT_NOFILE, next as u64 + few);
            go_on(&one);
            limit(libc::RLIMIT_NOFILE, before);
        } else {
            go_on(&one);
        }
        close(one.fd);
    }
    // Nothing is left of those that failed; what the first connection has is above the program's own limit.
    let most = limit(libc::RLIMIT_NOFILE, 100);
    limit(libc::RLIMIT_NOFILE, most);
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = numbers.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse::<u64>().unwrap());
    log.say(numbers.filter(|number| *number < most.min(1024)).count());
}

/// No address space is left for a mapping.
pub(crate) fn no_address_space(side: Side, log: &mut Log) {
    if !side.server {
        return go_on(&side);
    }
    in_a_child(&side, log, || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
        limit(libc::RLIMIT_AS, pages * 4096 + (128 << 10));
        go_on(&side);
        0
    });
}

/// A full /dev/shm is nothing to a connection whose memory has no name.
pub(crate) fn full_shm(side: Side, log: &mut Log) {
    if side.server {
        // SAFETY: the child's own view of the file systems; strings that end with zeroes.
        in_a_child(&side, log, || unsafe {
            let (none, all) = (std::ptr::null(), libc::MS_REC | libc::MS_PRIVATE);
            if libc::unshare(libc::CLONE_NEWNS) == 0 {
                let (kind, at) = (c"tmpfs".as_ptr(), c"/dev/shm".as_ptr());
                let done = libc::mount(none, c"/".as_ptr(), none, all, none.cast()) == 0
                    && libc::mount(kind, at, kind, 0, c"size=4k".as_ptr().cast()) == 0;
                if done {
                    let _ = std::fs::write("/dev/shm/full", [1; 4096]);
                    assert!(std::fs::write("/dev/shm/more", [1; 4096]).is_err());
                }
            }
            go_on(&side);
            0
        });
    } else {
        go_on(&side);
    }
}

/// The accepting end moves into another network, where nobody listens under the name.
pub(crate) fn another_network(side: Side, log: &mut Log) {
    if !side.server {
        return go_on(&side);
    }
    in_a_child(&side, log, || {
        // SAFETY: no memory is passed.
        let moved = unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) };
        go_on(&side);
        moved
    });
}

/// The accepting end becomes another user, as far as it and others can tell.
pub(crate) fn user_namespace(side: Side, log: &mut Log) {
    if !side.server {
        return go_on(&side);
    }
    in_a_child(&side, log, || {
        // SAFETY: no memory is passed.
        let moved = unsafe { libc::unshare(libc::CLONE_NEWUSER) };
        go_on(&side);
        moved
    });
}

/// The accepting end has a space of users of its own, in which its number is what it was.
pub(crate) fn mapped_users(side: Side, log: &mut Log) {
    if !side.server {
        return go_on(&side);
    }
    in_a_child(&side, log, || {
        // SAFETY: no memory is passed.
        let (user, moved) = unsafe { (libc::geteuid(), libc::unshare(libc::CLONE_NEWUSER)) };
        if moved == 0 {
            std::fs::write("/proc/self/uid_map", format!("{user} {user} 1")).unwrap();
        }
        // SAFETY: no memory is passed.
        assert_eq!(unsafe { libc::geteuid() }, user);
        go_on(&side);
        moved
    });
}

/// The accepting end has a space of processes of its own, as in a container that shares the network.
pub(crate) fn another_container(side: Side, log: &mut Log) {
    // A connection of its own, which it has not inherited.
    let exchange = || go_on(&second(&side));
    if !side.server {
        return exchange();
    }
    in_a_child(&side, log, || {
        // SAFETY: no memory is passed; the child of the child has one thread.
        unsafe {
            if libc::unshare(libc::CLONE_NEWPID) != 0 {
                exchange();
                return 0;
            }
            let child = libc::fork();
            if child == 0 {
                exchange();
                libc::exit(0);
            }
            close(side.fd);
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        }
    });
}

/// Both ends have changed their effective user for a while, and are the other user still.
pub(crate) fn effective_user(side: Side, log: &mut Log) {
    // SAFETY: no memory is passed; without the right to, nothing happens.
    unsafe {
        libc::seteuid(65_534);
        go_on(&side);
        libc::seteuid(0);
    }
    log.say("as ever");
}

/// A program that runs as another user than who started it: the dynamic linker preloads nothing.
pub(crate) fn set_user_id(side: Side, log: &mut Log) {
    // SAFETY: no memory is passed.
    log.say(format_args!("secure: {}", unsafe { libc::getauxval(libc::AT_SECURE) }));
    go_on(&side);
}

/// Between addresses of IPv6.
pub(crate) fn six(side: Side, log: &mut Log) {
    side.warm_up();
    go_on(&side);
    if side.server {
        send_all(side.fd, &pattern(3, 200_000));
        close(side.fd);
    } else {
        assert!(recv_exactly(side.fd, 200_000) == pattern(3, 200_000));
        log.result("the end", recv(side.fd, &mut [0; 1], 0));
    }
}

/// Many connections at once, all of which are used again and again.
pub(crate) fn many(side: Side, log: &mut Log) {
    limit(libc::RLIMIT_NOFILE, 4096);
    let all: Vec<Side> = (0..1000).map(|_| second(&side)).collect();
    for round in 0..12usize {
        for (index, one) in all.iter().enumerate() {
            if side.server {
                send_all(one.fd, &pattern(index + round, 100));
            } else {
                assert!(recv_exactly(one.fd, 100) == pattern(index + round, 100));
            }
        }
        for one in &all {
            one.rendezvous(round as u8);
        }
    }
    for one in all {
        close(one.fd);
    }
    log.say("all");
}

/// The strictest sandbox there is: reading, writing and ending are all that is left.
pub(crate) fn strict(side: Side, log: &mut Log) {
    if !side.server {
        side.warm_up();
        go_on(&side);
        return log.result("the end", recv(side.fd, &mut [0; 1], 0));
    }
    in_a_child(&side, log, || {
        side.warm_up();
        let mut bytes = [0u8; 100];
        // SAFETY: buffers of ours; nothing else is called from then on.
        unsafe {
            if libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT, 0, 0, 0) != 0 {
                return 1;
            }
            for _ in 0..250 {
                let mut got = 0;
                while got < 100 {
                    let n = libc::read(side.fd, bytes[got..].as_mut_ptr().cast(), 100 - got);
                    if n <= 0 {
                        break;
                    }
                    got += n as usize;
                }
                libc::write(side.fd, bytes.as_ptr().cast(), got);
            }
            libc::syscall(libc::SYS_exit, 7);
        }
        2
    });
}

/// The program shuts itself off from nearly all system calls, by a system call of its own, in the middle.
pub(crate) fn sandboxed(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.server {
        go_on(&side);
        return log.result("the end", recv(side.fd, &mut [0; 1], 0));
    }
    let denied = [
        libc::SYS_memfd_create,
        libc::SYS_socket,
        libc::SYS_bind,
        libc::SYS_connect,
        libc::SYS_accept4,
        libc::SYS_sendmsg,
        libc::SYS_recvmsg,
        libc::SYS_poll,
        libc::SYS_ppoll,
        libc::SYS_setsockopt,
        libc::SYS_getsockopt,
        libc::SYS_getsockname,
        libc::SYS_getpeername,
        libc::SYS_epoll_ctl,
        libc::SYS_ioctl,
        libc::SYS_mmap,
    ];
    let line = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = vec![line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for (index, number) in denied.iter().enumerate() {
        let jump = (denied.len() - index) as u8;
        program.push(line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jump, 0, *number as u32));
    }
    program.push(line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW));
    program.push(line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_KILL_PROCESS));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let mut bytes = [0u8; 100];
    // SAFETY: a live filter; from then on nothing is called but what it lets through.
    let n = unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let n = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter);
        for _ in 0..250 {
            let mut got = 0;
            while got < 100 {
                let n = recv(side.fd, &mut bytes[got..], 0);
                if n <= 0 {
                    break;
                }
                got += n as usize;
            }
            send(side.fd, &bytes[..got], 0);
        }
        n
    };
    log.result("filter", n as isize);
    close(side.fd);
}

/// Messages are sent, and taken, on threads that no system call outlives (rdma-sockets RS-M02). Meanwhile the other end waits on another
/// connection, so that nobody is to be woken. Plainly each message is a call, and over RDMA the device may ring by one.
pub(crate) fn without_calls(side: Side, log: &mut Log) {
    side.warm_up();
    let one = second(&side);
    one.exchange(30);
    // What comes then is in the large ring, which has its memory.
    if one.server {
        send_all(one.fd, &pattern(0, 50_000));
    } else {
        assert!(recv_exactly(one.fd, 50_000) == pattern(0, 50_000));
    }
    if one.server {
        assert!(recv_exactly(one.fd, 50_000) == pattern(0, 50_000));
    } else {
        send_all(one.fd, &pattern(0, 50_000));
    }
    for round in 0..4u8 {
        side.rendezvous(round);
        let sends = side.server == round.is_multiple_of(2);
        if sends {
            // Where bytes lie unread, a sender looks now and then whether anybody is there.
            in_a_cell(&[libc::SYS_ppoll], move |message| send_all(one.fd, &pattern(message, 64)));
        }
        side.rendezvous(round);
        if !sends {
            in_a_cell(&[], move |message| assert!(recv_exactly(one.fd, 64) == pattern(message, 64)));
        }
    }
    side.rendezvous(9);
    close(one.fd);
    log.say("all went over");
}

/// Does it a hundred times on a thread of its own, which after the first time may do this and end.
fn in_a_cell(also: &[libc::c_long], each: impl Fn(usize) + Send + 'static) {
    let locked = std::env::var_os("LD_PRELOAD").is_some() && std::env::var_os(crate::OVER).is_none();
    let ends = [libc::SYS_exit, libc::SYS_munmap, libc::SYS_madvise, libc::SYS_rt_sigprocmask, libc::SYS_sigaltstack];
    let allowed = [&ends, also].concat();
    let all = move || {
        each(0);
        if locked {
            allow_alone(&allowed);
        }
        (1..100).for_each(each);
    };
    std::thread::spawn(all).join().unwrap();
}

/// Any other system call of this thread kills the process.
#[cfg(target_arch = "x86_64")]
fn allow_alone(numbers: &[libc::c_long]) {
    let line = |code: u32, jt: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let mut program = vec![line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for (index, number) in numbers.iter().enumerate() {
        let jump = (numbers.len() - index) as u8;
        program.push(line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jump, *number as u32));
    }
    program.push(line(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_KILL_PROCESS));
    program.push(line(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a live filter. By an instruction of its own: the library goes back to the kernel where a program asks for a filter.
    let refused = unsafe {
        let mut result = libc::SYS_seccomp;
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        core::arch::asm!(
            "syscall",
            inlateout("rax") result,
            in("rdi") u64::from(libc::SECCOMP_SET_MODE_FILTER),
            in("rsi") 0,
            in("rdx") &raw const filter,
            out("rcx") _,
            out("r11") _,
        );
        result
    };
    assert_eq!(refused, 0);
}

#[cfg(not(target_arch = "x86_64"))]
fn allow_alone(_numbers: &[libc::c_long]) {}

/// No process may take another's descriptors, as where the system keeps debuggers out.
pub(crate) fn without_borrowing() -> std::io::Result<()> {
    let line = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_pidfd_getfd as u32),
        line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a live filter.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    };
    if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
