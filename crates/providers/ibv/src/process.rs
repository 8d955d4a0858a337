//! Which process this is, so that a peer on the same host can watch its end: a forked child keeps
//! sockets open.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

/// A process, as its peers can tell whether it is on their host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Of the running system: its boot id.
    pub(crate) host: [u8; 16],
    /// Within which process ids mean the same.
    pub(crate) space: u32,
    /// Positive.
    pub(crate) pid: u32,
}

impl Process {
    /// This one; none where the system does not tell.
    pub(crate) fn this() -> Option<Self> {
        let mut text = [0; 36];
        let file = rustix::fs::open("/proc/sys/kernel/random/boot_id", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let read = rustix::io::read(&file.ok()?, &mut text).ok()?;
        let space = rustix::fs::stat("/proc/self/ns/pid").ok()?.st_ino;
        Some(Self {
            host: parsed(&text[..read])?,
            space: u32::try_from(space).ok()?,
            pid: u32::try_from(rustix::process::getpid().as_raw_pid()).ok()?,
        })
    }

    /// A descriptor that is readable when `peer` has ended; none when that cannot be told from
    /// here, or it is this process. A peer that lies about who it is has its own connection end
    /// with somebody else.
    ///
    /// # Errors
    /// When it has ended already.
    pub(crate) fn watch(&self, peer: &Process) -> Result<Option<OwnedFd>, Ended> {
        if (self.host, self.space) != (peer.host, peer.space) || self.pid == peer.pid {
            return Ok(None);
        }
        let Some(pid) = i32::try_from(peer.pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => Ok(Some(descriptor)),
            Err(Errno::SRCH) => Err(Ended),
            // The end of the side channel still tells.
            Err(_) => Ok(None),
        }
    }
}

/// The process is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended;

/// Hexadecimal digits with dashes in between.
fn parsed(text: &[u8]) -> Option<[u8; 16]> {
    let mut digits = text.iter().filter(|byte| **byte != b'-').map(|byte| char::from(*byte).to_digit(16));
    let mut id = [0; 16];
    for byte in &mut id {
        *byte = u8::try_from(digits.next()?? << 4 | digits.next()??).ok()?;
    }
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags};
    use std::process::{Command, Stdio};

    #[test]
    fn the_end_of_a_process_of_this_host_is_seen_and_nobody_elses() {
        let this = Process::this().expect("a system with /proc");
        assert_eq!(this.watch(&this).map(|watched| watched.is_none()), Ok(true), "this process");
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let other = Process { pid: child.id(), ..this };
        let watched = this.watch(&other).unwrap().expect("watched");
        let ended = |wait: i64| {
            let wait = rustix::event::Timespec { tv_sec: wait, tv_nsec: 0 };
            rustix::event::poll(&mut [PollFd::new(&watched, PollFlags::IN)], Some(&wait)).unwrap() == 1
        };
        assert!(!ended(0));
        for stranger in [Process { host: [1; 16], ..other }, Process { space: 1, ..other }] {
            assert!(this.watch(&stranger).unwrap().is_none(), "{stranger:?}");
        }
        child.kill().unwrap();
        assert!(ended(60));
        child.wait().unwrap();
        assert_eq!(this.watch(&other).err(), Some(Ended));
    }

    #[test]
    fn a_boot_id_is_32_digits() {
        assert_eq!(parsed(b"00ff-10"), None);
        let id = parsed(b"0123abcd-0000-0000-0000-0000000000ff").unwrap();
        assert_eq!((&id[..4], id[15]), (&[1, 0x23, 0xab, 0xcd][..], 0xff));
    }
}
