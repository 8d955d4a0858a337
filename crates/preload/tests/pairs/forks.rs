//! Programs that fork with a connection in the rings, and go on.

use libc::EPOLLIN;

use crate::sets::{LONG, Set};
use crate::sock::{Log, Side, close, nap, pattern, recv, recv_exactly, recv_to_end, second, send_all};

/// A child that does this and ends without a word to anybody.
fn child(f: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child goes on with this thread alone, and ends here.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            f();
            libc::_exit(0);
        }
        assert!(child > 0);
        child
    }
}

fn wait(child: libc::pid_t) -> i32 {
    let mut status = -1;
    // SAFETY: a child of ours.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

fn sleep_for_ever() {
    loop {
        // SAFETY: no memory is passed.
        unsafe { libc::pause() };
    }
}

fn kill(child: libc::pid_t) -> i32 {
    // SAFETY: a child of ours that is not waited for yet.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    wait(child)
}

/// One process waits until another has come so far.
struct Gate([i32; 2]);

impl Gate {
    fn new() -> Self {
        let mut pipe = [-1; 2];
        // SAFETY: places for two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        Self(pipe)
    }

    fn open(&self) {
        // SAFETY: a live byte.
        assert_eq!(unsafe { libc::write(self.0[1], [1u8].as_ptr().cast(), 1) }, 1);
    }

    fn pass(&self) {
        let mut byte = 0u8;
        // SAFETY: a live byte.
        assert_eq!(unsafe { libc::read(self.0[0], (&raw mut byte).cast(), 1) }, 1);
    }
}

/// A fork brings connections back to the kernel; then the other end is killed, which has made no call since: its stream ends, and is not
/// reset by a wake byte that it has not read.
pub(crate) fn killed_after_a_fork(side: Side, log: &mut Log) {
    side.warm_up();
    for round in 0..2 {
        if side.server {
            let ends = [second(&side), second(&side)];
            ends[0].warm_up();
            ends[0].exchange(30 * round);
            side.rendezvous(1);
            wait(child(|| ()));
            side.rendezvous(2);
            for one in ends {
                log.result("the end", recv(one.fd, &mut [0; 9], 0));
                close(one.fd);
            }
        } else {
            let gate = Gate::new();
            let other = child(|| {
                let ends = [second(&side), second(&side)];
                ends[0].warm_up();
                ends[0].exchange(30 * round);
                gate.open();
                sleep_for_ever();
            });
            gate.pass();
            side.rendezvous(1);
            // Not before the fork is over.
            nap(50);
            kill(other);
            side.rendezvous(2);
        }
    }
}

/// The child has nothing to do with the connection and ends; afterwards it is as if it had never been.
pub(crate) fn fork_beside(side: Side, log: &mut Log) {
    side.warm_up();
    for _ in 0..3 {
        if side.server {
            log.say(wait(child(|| ())));
        }
        side.exchange(150);
    }
    side.rendezvous(1);
}

/// A snapshot is written by a child, as redis does it, while the parent serves; some are killed. The set was made before.
pub(crate) fn snapshots(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.server {
        return side.send_rounds(240);
    }
    let set = Set::new();
    set.add(side.fd, EPOLLIN, 1);
    let mut running = None;
    for round in 0..240u8 {
        if round % 40 == 10 {
            running = Some(child(sleep_for_ever));
        }
        if round % 40 == 20 {
            log.say(running.take().map(kill).unwrap());
        }
        assert_eq!(set.wait(LONG), [(EPOLLIN as u32, 1)]);
        side.take_round(round);
    }
}

/// The child closes what it inherited and lives on.
pub(crate) fn closed_by_the_child(side: Side, log: &mut Log) {
    side.warm_up();
    let mut other = None;
    if side.server {
        let gate = Gate::new();
        other = Some(child(|| {
            close(side.fd);
            gate.open();
            sleep_for_ever();
        }));
        gate.pass();
    }
    side.exchange(400);
    if let Some(other) = other {
        log.say(kill(other));
    }
    side.rendezvous(1);
}

/// Both ends have children, again and again, with bytes on their way.
pub(crate) fn forks_on_both_ends(side: Side, log: &mut Log) {
    side.warm_up();
    let total = 3_000_000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut at = 0;
            while at < total {
                let len = (at % 7001 + 1).min(total - at);
                send_all(side.fd, &pattern(at, len));
                at += len;
            }
        });
        scope.spawn(|| {
            let mut at = 0;
            while at < total {
                let len = 10_000.min(total - at);
                assert!(recv_exactly(side.fd, len) == pattern(at, len), "at {at}");
                at += len;
            }
        });
        for _ in 0..12 {
            // The child makes no call but its end: other threads may have held a lock of the C library's.
            wait(child(|| ()));
        }
    });
    log.say("all of it");
    side.exchange(300);
    side.rendezvous(1);
}

/// One thread makes connections and uses them while another forks: a child may find one of whose coming the fork was told nothing, and must
/// leave it alone when it ends.
pub(crate) fn made_beside_a_fork(side: Side, log: &mut Log) {
    side.warm_up();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..150 {
                let one = second(&side);
                one.exchange(30);
                close(one.fd);
            }
            done.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        while side.server && !done.load(std::sync::atomic::Ordering::SeqCst) {
            assert_eq!(wait(child(|| ())), 0);
        }
    });
    log.say("all of them");
    side.rendezvous(1);
}

/// The child uses it for a while, then ends; the parent goes on.
pub(crate) fn used_by_the_child(side: Side, log: &mut Log) {
    side.warm_up();
    if side.server {
        log.say(wait(child(|| side.exchange(50))));
    } else {
        side.exchange(50);
    }
    side.exchange(300);
    side.rendezvous(1);
}

/// The child moves bytes in a way that nobody counts; what the parent does afterwards must still be right.
pub(crate) fn uncounted_by_the_child(side: Side, log: &mut Log) {
    side.warm_up();
    if side.server {
        let mut pipe = [-1; 2];
        // SAFETY: places for two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        log.say(wait(child(|| {
            let none = std::ptr::null_mut;
            // SAFETY: live buffers; descriptors of ours.
            unsafe {
                assert_eq!(libc::write(pipe[1], pattern(0, 777).as_ptr().cast(), 777), 777);
                let mut left = 777;
                while left > 0 {
                    left -= libc::splice(pipe[0], none(), side.fd, none(), left, 0) as usize;
                }
            }
        })));
    } else {
        assert!(recv_exactly(side.fd, 777) == pattern(0, 777));
    }
    side.exchange(300);
    side.rendezvous(1);
}

/// The parent leaves the connection to its child after it had been in the rings.
pub(crate) fn left_to_the_child(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.server {
        side.exchange(400);
        return log.result("the end", recv_to_end(side.fd).1);
    }
    let gate = Gate::new();
    let heir = child(|| {
        gate.pass();
        side.exchange(400);
        log_end(&side);
    });
    close(side.fd);
    gate.open();
    log.say(wait(heir));
}

fn log_end(side: &Side) {
    assert_eq!(recv(side.fd, &mut [0; 1], libc::MSG_DONTWAIT), -1);
    close(side.fd);
}

/// The sender goes back while the other end has not read yet, which then forks as well: the child reads what was in the ring, and what came
/// behind it.
pub(crate) fn unread_by_the_parent(side: Side, log: &mut Log) {
    unread(side, log, |fd| {
        let status = wait(child(|| {
            assert!(recv_exactly(fd, 5000) == pattern(0, 5000));
            send_all(fd, b"read");
        }));
        assert_eq!(status, 0);
    });
}

/// The same, but another program reads it.
pub(crate) fn unread_by_the_program(side: Side, log: &mut Log) {
    unread(side, log, |fd| {
        // SAFETY: a duplicate of ours.
        let input = unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(libc::dup(fd)) };
        let mut command = std::process::Command::new("dd");
        command.args(["bs=1", "count=5000"]).env_remove("LD_PRELOAD").stdin(input);
        assert!(command.output().unwrap().stdout == pattern(0, 5000));
        send_all(fd, b"read");
    });
}

fn unread(side: Side, log: &mut Log, read: impl FnOnce(i32)) {
    side.warm_up();
    if side.server {
        // Until the sender is about to fork: not one call to the connection.
        nap(300);
        read(side.fd);
    } else {
        send_all(side.fd, &pattern(0, 3000));
        let beside = child(sleep_for_ever);
        send_all(side.fd, &pattern(3000, 2000));
        assert_eq!(recv_exactly(side.fd, 4), *b"read");
        log.say(kill(beside));
    }
    side.rendezvous(1);
}
