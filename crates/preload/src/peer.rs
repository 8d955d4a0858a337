//! Who the process at the other end is: one that could as well trace this
//! one, or it gets no memory.
//!
//! The kernel says with which user and process number it called. That is not enough. A process that
//! has changed only its effective user is out of that user's reach. Containers may share a network,
//! hence the names under which ends meet, and numbers of users, and must not reach each other. So
//! the real, effective and saved users of both must be one, and both must be in one space of
//! processes and one of users, as /proc shows it. Where it shows nothing, the ends do not meet.

use std::ffi::{CStr, c_int};
use std::fmt::Write;

use rustix::fs::{CWD, Mode, OFlags};

use crate::line::Line;
use crate::real;

/// This process' user, if it has one alone.
pub(crate) fn own_user() -> Option<u32> {
    let (mut real, mut effective, mut saved) = (0, 0, 0);
    // SAFETY: [preload-real] three numbers of ours.
    let done = unsafe { libc::getresuid(&mut real, &mut effective, &mut saved) } == 0;
    (done && real == effective && effective == saved).then_some(real)
}

/// Whether the process at the other end of a Unix socket is such a one.
pub(crate) fn is_one_of_us(socket: c_int) -> bool {
    let mut theirs = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let at = (&raw mut theirs).cast();
    // SAFETY: [preload-real] a structure of ours and its length.
    let done = unsafe { real::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, at, &mut len) } == 0;
    // A process that is in none of the spaces that this one sees has no number.
    done && theirs.pid > 0 && own_user() == Some(theirs.uid) && is_seen_as(theirs.pid, theirs.uid)
}

/// Whether a process has this user alone, and is in the same spaces of processes and of users.
fn is_seen_as(pid: c_int, user: u32) -> bool {
    let mut status = [0; 4096];
    let (mut ours, mut theirs) = ([0; 1024], [0; 1024]);
    let status = text_of(format_args!("/proc/{pid}/status"), &mut status);
    let ours = text_of(format_args!("/proc/self/uid_map"), &mut ours);
    let theirs = text_of(format_args!("/proc/{pid}/uid_map"), &mut theirs);
    status.is_some_and(|status| is_of(status, user)) && ours.is_some() && ours == theirs
}

/// What `status` says: one user, and one number, so no space of processes below this one.
fn is_of(status: &[u8], user: u32) -> bool {
    let has = |name: &[u8], right: &mut dyn FnMut(&str) -> bool| {
        let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name));
        line.and_then(|line| std::str::from_utf8(line).ok()).is_some_and(right)
    };
    let is_user = |number: &str| number.parse() == Ok(user);
    has(b"Uid:", &mut |line| line.split_whitespace().count() == 4 && line.split_whitespace().all(is_user))
        && has(b"NStgid:", &mut |line| line.split_whitespace().count() == 1)
}

fn text_of<'a>(path: std::fmt::Arguments<'_>, text: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut line = Line::<40>::new();
    write!(line, "{path}\0").ok()?;
    let path = CStr::from_bytes_with_nul(line.bytes()).ok()?;
    let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut len = 0;
    // It may come in pieces; what does not fit is not to be compared.
    while let Some(rest) = text.get_mut(len..).filter(|rest| !rest.is_empty()) {
        match rustix::io::read(&file, rest).ok()? {
            0 => return text.get(..len),
            more => len += more,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_this_user_in_the_same_spaces_is_one_of_us() {
        use std::os::fd::AsRawFd;
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(is_one_of_us(one.as_raw_fd()));
        assert!(!is_seen_as(rustix::process::getpid().as_raw_nonzero().get(), own_user().unwrap() + 1));
        assert!(!is_seen_as(c_int::MAX, own_user().unwrap()));
    }

    #[test]
    fn other_users_and_processes_in_spaces_below_are_not() {
        let status = |users: &str, numbers: &str| format!("Name:\tx\nUid:\t{users}\nGid:\t0\nNStgid:\t{numbers}\n");
        assert!(is_of(status("7\t7\t7\t7", "400").as_bytes(), 7));
        for (users, numbers) in
            [("7\t7\t7\t8", "400"), ("0\t7\t0\t7", "400"), ("7\t7\t7\t7", "400\t3"), ("7", "4"), ("", "")]
        {
            assert!(!is_of(status(users, numbers).as_bytes(), 7), "{users} {numbers}");
        }
        assert!(!is_of(b"Uid:\t7\t7\t7\t7\n", 7), "an old kernel, that does not say");
    }
}
