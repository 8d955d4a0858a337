//! Programs that start others, and what those inherit.

use std::ffi::{CString, c_char, c_int};
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;

use crate::sock::{Log, Side, close, nap, pattern, recv_exactly, recv_to_end, second, send, send_all, until};

/// Says to the program that this one becomes which descriptor is its connection.
pub(crate) const INHERITED: &str = "INHERITED";

fn inherit(fd: RawFd, yes: bool) {
    // SAFETY: a descriptor of ours.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFD, if yes { 0 } else { libc::FD_CLOEXEC }) }, 0);
}

fn unread(fd: RawFd) -> c_int {
    let mut bytes = 0;
    // SAFETY: a live int.
    assert_eq!(unsafe { libc::ioctl(fd, libc::FIONREAD, &mut bytes) }, 0);
    bytes
}

/// The program becomes another one, which has the library as well: one connection goes on there with bytes unread both ways, another is
/// closed by that.
pub(crate) fn exec_with_the_library(side: Side, log: &mut Log) {
    if std::env::var_os(INHERITED).is_some() {
        assert!(recv_exactly(side.fd, 1000) == pattern(0, 1000));
        send_all(side.fd, b"from the other program");
        side.exchange(30);
        return;
    }
    side.warm_up();
    let other = second(&side);
    other.warm_up();
    if !side.server {
        send_all(side.fd, &pattern(0, 1000));
        other.rendezvous(1);
        nap(100);
        assert!(recv_exactly(side.fd, 5000) == pattern(7, 5000));
        log.say(String::from_utf8_lossy(&recv_exactly(side.fd, 22)));
        side.exchange(30);
        let (bytes, end) = recv_to_end(other.fd);
        return log.say(format_args!("{} then {end}", String::from_utf8_lossy(&bytes)));
    }
    until(|| (unread(side.fd) == 1000).then_some(()));
    send_all(side.fd, &pattern(7, 5000));
    other.rendezvous(1);
    send_all(other.fd, b"the last of this one");
    inherit(side.fd, true);
    inherit(other.fd, false);
    let mut arguments = std::env::args_os();
    let mut command = std::process::Command::new("/proc/self/exe");
    command.args(arguments.by_ref().skip(1)).env(INHERITED, side.fd.to_string());
    panic!("{}", command.exec());
}

/// A child of vfork makes the connection its standard input and output, and becomes another program; then the parent goes on.
pub(crate) fn vfork_and_exec(side: Side, log: &mut Log) {
    side.warm_up();
    for round in 0..3 {
        if !side.server {
            send_all(side.fd, b"a line\n");
            assert_eq!(recv_exactly(side.fd, 11), *b"got a line\n");
            side.exchange(20);
            continue;
        }
        if round > 0 {
            until(|| (unread(side.fd) == 7).then_some(()));
        }
        // SAFETY: the child makes a few system calls and becomes another program; strings that end with zeroes.
        #[allow(deprecated)]
        unsafe {
            let arguments = [c"sh".as_ptr(), c"-c".as_ptr(), c"read line; echo got $line".as_ptr(), std::ptr::null()];
            let child = libc::vfork();
            if child == 0 {
                libc::dup2(side.fd, 0);
                libc::dup2(side.fd, 1);
                libc::close(side.fd);
                libc::execv(c"/bin/sh".as_ptr(), arguments.as_ptr());
                libc::_exit(1);
            }
            let mut status = 1;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            log.say(status);
        }
        side.exchange(20);
    }
}

/// A program that is spawned, or run by a shell, has by itself what is not to be closed; others keep nothing open.
pub(crate) fn inherited_by_spawn(side: Side, log: &mut Log) {
    side.warm_up();
    let other = second(&side);
    other.warm_up();
    if !side.server {
        for _ in 0..2 {
            send_all(side.fd, b"a line\n");
            assert_eq!(recv_exactly(side.fd, 11), *b"got a line\n");
            side.exchange(20);
        }
        let (bytes, end) = recv_to_end(other.fd);
        return log.say(format_args!("{} then {end}", String::from_utf8_lossy(&bytes)));
    }
    inherit(side.fd, true);
    let script = CString::new(format!("read line <&{0}; echo got $line >&{0}; sleep 0.2", side.fd)).unwrap();
    for kind in 0..2 {
        // SAFETY: strings that end with zeroes.
        unsafe {
            if kind == 0 {
                let arguments = [c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), std::ptr::null()];
                let arguments = arguments.map(<*const c_char>::cast_mut);
                let path = [c"PATH=/usr/bin:/bin".as_ptr().cast_mut(), std::ptr::null_mut()];
                let (none, nobody) = (std::ptr::null(), std::ptr::null());
                let mut child = 0;
                let (arguments, path) = (arguments.as_ptr(), path.as_ptr());
                log.say(libc::posix_spawnp(&mut child, c"sh".as_ptr(), none, nobody, arguments, path));
                if kind == 0 {
                    // The program that was spawned has not this one, which ends at once.
                    send_all(other.fd, b"to the end");
                    close(other.fd);
                }
                let mut status = 1;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                log.say(status);
            } else {
                log.say(libc::system(script.as_ptr()));
            }
        }
        side.exchange(20);
    }
}

/// All descriptors above one are closed, also those that the program does not know of; it goes on with the one, and with new ones.
pub(crate) fn closed_from(side: Side, log: &mut Log) {
    unsafe extern "C" {
        fn closefrom(first: c_int);
    }
    side.warm_up();
    for round in 0..3 {
        let all = [(); 3].map(|()| second(&side));
        all.iter().for_each(Side::warm_up);
        if !side.server {
            for one in &all {
                let (bytes, end) = recv_to_end(one.fd);
                log.say(format_args!("{} then {end}", String::from_utf8_lossy(&bytes)));
                close(one.fd);
            }
            side.exchange(20);
            continue;
        }
        all.iter().for_each(|one| send_all(one.fd, b"before"));
        assert!(all.iter().all(|one| one.fd > side.fd));
        // SAFETY: all that are open above are ours, or the library's.
        unsafe { closefrom(side.fd + 1) };
        log.say(format_args!("{round}: {:?}", all.each_ref().map(|one| send(one.fd, b"after", 0))));
        side.exchange(20);
    }
}
