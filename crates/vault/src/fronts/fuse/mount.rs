//! The place of the file: an empty file, which the kernel's file system of
//! one file is mounted over.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType};

/// The kernel's queue of one mounted file, which is unmounted with it.
#[derive(Debug)]
pub(super) struct Mount {
    queue: OwnedFd,
    path: PathBuf,
    /// The file was made for it, and goes with it.
    made: bool,
    /// The mount that the file lies on, and the one over it.
    mounts: [Option<u64>; 2],
    owner: (u32, u32),
}

impl Mount {
    /// Over the file at `path`, which is made if there is none, and must be empty if there is one.
    ///
    /// # Errors
    /// The text says what is in the way.
    pub(super) fn new(path: &Path, read_only: bool) -> io::Result<Mount> {
        // A server that has not begun, or is stopped, answers late: nobody else is to wait for it below.
        let _ = asked(path);
        // One at a time looks what is there and mounts over it: two at once would lie on each other. Who may not read the folder
        // does without.
        let _alone = alone_in(folder_of(path));
        let (path, made) = place(path)?;
        let below = mount_at(&path);
        let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let mounted = match mount(&path, read_only, owner) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => mount_by_helper(&path, read_only),
            mounted => mounted,
        };
        match mounted {
            Ok(queue) => Ok(Mount { mounts: [below, mount_at(&path)], queue, path, made, owner }),
            Err(error) => {
                if made {
                    let _ = fs::remove_file(&path);
                }
                Err(error)
            }
        }
    }

    /// User and group that the file belongs to.
    pub(super) fn owner(&self) -> (u32, u32) {
        self.owner
    }
}

impl AsFd for Mount {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let [below, own] = self.mounts;
        // Who has unmounted it may have mounted another one there since.
        if mount_at(&self.path) == own {
            unmount(&self.path);
        }
        // Only what was made for it: an empty file. What is mounted over that may be slow to answer.
        let is_free = self.made && mount_at(&self.path) == below;
        if is_free && fs::symlink_metadata(&self.path).is_ok_and(|found| found.is_file() && found.len() == 0) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Unmounts a file that is served, so that its server ends. One whose server was
/// killed is unmounted, too.
///
/// # Errors
/// There is no such file, or a program has it open.
pub(super) fn detach(path: &Path) -> io::Result<()> {
    let path = fs::canonicalize(folder_of(path))?.join(path.file_name().unwrap_or_default());
    if !is_ours(&path)? {
        return Err(io::Error::new(io::ErrorKind::NotFound, "no volume is attached there"));
    }
    let busy = || io::Error::new(io::ErrorKind::ResourceBusy, "a program has it open; end that one first");
    match rustix::mount::unmount(&path, UnmountFlags::empty()) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(busy()),
        // By the program that may do it for users who may not.
        Err(_) => {
            let mut helper = Command::new(HELPER);
            helper.args(["-u", "--"]).arg(&path);
            let ended = helper.stdin(Stdio::null()).stdout(Stdio::null()).output()?;
            match ended.status.success() {
                true => Ok(()),
                false if String::from_utf8_lossy(&ended.stderr).contains("busy") => Err(busy()),
                false => Err(io::Error::other(String::from_utf8_lossy(&ended.stderr).trim().to_owned())),
            }
        }
    }
}

/// Whether a file system of this project's is mounted there, whoever served it.
fn is_ours(path: &Path) -> io::Result<bool> {
    // Others' paths may be no text.
    let mounts = fs::read("/proc/self/mountinfo")?;
    let (text, mounts) = (path.to_string_lossy(), String::from_utf8_lossy(&mounts));
    Ok(mounts.lines().any(|line| {
        let place = line.split(' ').nth(4).map(unescaped);
        let kind = line.split(" - ").nth(1);
        place.as_deref() == Some(&*text) && kind.is_some_and(|kind| kind.starts_with("fuse.overside "))
    }))
}

/// A path as mountinfo has it, whose spaces and the like are as `\040`.
fn unescaped(text: &str) -> String {
    let signs = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    signs.into_iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Nobody else who asks for this is beside who has it.
fn alone_in(folder: &Path) -> io::Result<File> {
    let folder = File::open(folder)?;
    rustix::fs::flock(&folder, FlockOperation::LockExclusive)?;
    Ok(folder)
}

/// The mount that a path leads to, by a number that no other one ever has (since Linux 6.8, else
/// none). Whoever serves it is not asked.
fn mount_at(path: &Path) -> Option<u64> {
    let unique = StatxFlags::from_bits_retain(STATX_MNT_ID_UNIQUE);
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(CWD, path, flags, unique).ok()?;
    (found.stx_mask & STATX_MNT_ID_UNIQUE != 0).then_some(found.stx_mnt_id)
}

/// The file to mount over, with its folder's whole path; whether it was made.
fn place(path: &Path) -> io::Result<(PathBuf, bool)> {
    let name = path.file_name().ok_or_else(|| io::Error::other("this names no file"))?;
    let path = fs::canonicalize(folder_of(path))?.join(name);
    let found = match asked(&path) {
        // Whoever served it was killed: before we asked, or before it answered.
        Err(Errno::NOTCONN | Errno::CONNABORTED) if is_ours(&path)? => {
            unmount(&path);
            fs::symlink_metadata(&path)
        }
        _ => fs::symlink_metadata(&path),
    };
    match found {
        Ok(found) if !found.is_file() => Err(io::Error::other("this is no regular file; choose another name")),
        Ok(found) if found.len() > 0 => {
            let what = "there is a file that is not empty, or somebody serves a volume there; choose another name";
            Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
        }
        Ok(_) => Ok((path, false)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            Ok((path, true))
        }
        Err(error) => Err(error),
    }
}

/// Whether a server, if there is one, answers. Attributes may be the kernel's own copy.
fn asked(path: &Path) -> Result<(), Errno> {
    rustix::fs::statfs(path).map(drop)
}

fn mount(path: &Path, read_only: bool, (user, group): (u32, u32)) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let queue = rustix::fs::open("/dev/fuse", flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => {
            io::Error::other("this kernel has no FUSE (/dev/fuse); `modprobe fuse`, or attach it by --nbd")
        }
        errno => errno.into(),
    })?;
    let number = std::os::fd::AsRawFd::as_raw_fd(&queue);
    let data =
        format!("fd={number},rootmode=100000,user_id={user},group_id={group},default_permissions,max_read=1048576");
    let mut how = MountFlags::NOSUID | MountFlags::NODEV;
    how.set(MountFlags::RDONLY, read_only);
    rustix::mount::mount("overside", path, "fuse.overside", how, &*CString::new(data)?)?;
    Ok(queue)
}

/// By the program that may do it for users who may not.
fn mount_by_helper(path: &Path, read_only: bool) -> io::Result<OwnedFd> {
    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let access = if read_only { "ro" } else { "rw" };
    let options = format!("{access},nosuid,nodev,fsname=overside,subtype=overside,default_permissions");
    let mut helper = Command::new(HELPER);
    helper.args(["-o", &options, "--"]).arg(path).env("_FUSE_COMMFD", "0");
    let run = helper.stdin(Stdio::from(theirs)).stdout(Stdio::null()).output();
    drop(helper);
    let ended = run.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(
            io::ErrorKind::PermissionDenied,
            "this user may not mount; install fuse3, whose fusermount3 may, or attach it by --nbd",
        ),
        _ => error,
    })?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
        return Err(io::Error::other(format!("{HELPER} refuses: {said}")));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut word = [0];
    let mut parts = [io::IoSliceMut::new(&mut word)];
    rustix::net::recvmsg(&ours, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let queue = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let queue = queue.ok_or_else(|| io::Error::other(format!("{HELPER} gave no descriptor")))?;
    rustix::fs::fcntl_setfl(&queue, rustix::fs::fcntl_getfl(&queue)? | OFlags::NONBLOCK)?;
    Ok(queue)
}

/// A program that has it open gets an error from now on.
fn unmount(path: &Path) {
    // By force: io_uring's places come back although somebody has it open. Nothing is lost, for nothing is kept in the page cache.
    if rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::FORCE).is_err() {
        let mut helper = Command::new(HELPER);
        helper.args(["-u", "-z", "-q", "--"]).arg(path);
        let _ = helper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

const HELPER: &str = "fusermount3";
const STATX_MNT_ID_UNIQUE: u32 = 0x4000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fronts::fuse::wire::{Answer, Call, FuseRequest};
    use rustix::event::{PollFd, PollFlags};

    #[test]
    fn only_an_empty_file_is_mounted_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("volume");
        assert!(place(&path).unwrap().1, "made");
        assert!(!place(&path).unwrap().1, "an empty one is used as it is");
        fs::write(&path, "mine").unwrap();
        assert_eq!(place(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        assert!(place(folder.path()).is_err() && place(Path::new("/")).is_err());
        assert_eq!(place(&folder.path().join("a/b")).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::os::unix::fs::symlink(&path, folder.path().join("link")).unwrap();
        assert!(place(&folder.path().join("link")).is_err(), "a link is no place");
    }

    /// Another program's file system whose server is dead, there or where a link leads to.
    #[test]
    fn what_is_not_ours_stays_mounted() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("other"), folder.path().join("link"));
        fs::write(&path, "").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let queue = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let Ok(queue) = queue else { return println!("skipped: no FUSE") };
        let data = format!("fd={},rootmode=100000,user_id=0,group_id=0", std::os::fd::AsRawFd::as_raw_fd(&queue));
        let how = MountFlags::NOSUID | MountFlags::NODEV;
        if rustix::mount::mount("other", &path, "fuse.other", how, &*CString::new(data).unwrap()).is_err() {
            return println!("skipped: this user may not mount");
        }
        drop(queue);
        let dead = Some(Errno::NOTCONN.raw_os_error());
        for place in [place(&path), place(&link)] {
            place.unwrap_err();
            assert_eq!(fs::metadata(&path).unwrap_err().raw_os_error(), dead);
        }
        rustix::mount::unmount(&path, UnmountFlags::DETACH).unwrap();
    }

    /// It is unmounted, and another one is mounted there before the first has noticed.
    #[test]
    fn who_was_unmounted_leaves_the_next_one_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("volume");
        let first = match Mount::new(&path, false) {
            Ok(mount) => mount,
            Err(error) => return println!("skipped: {error}"),
        };
        if mount_at(&path).is_none() {
            return println!("skipped: this kernel does not tell two mounts apart");
        }
        detach(&path).unwrap();
        let second = Mount::new(&path, false).unwrap();
        drop(first);
        let mut ready = [PollFd::new(&second, PollFlags::IN)];
        rustix::event::poll(&mut ready, Some(&rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 })).unwrap();
        assert_eq!(ready[0].revents(), PollFlags::IN, "it was unmounted");
        drop(second);
        assert_eq!(fs::metadata(&path).unwrap().len(), 0, "the second one found the file there");
        drop(Mount::new(&path, false).unwrap());
        let third = Mount::new(&folder.path().join("made"), false).unwrap();
        detach(&third.path).unwrap();
        drop(third);
        assert!(!folder.path().join("made").exists(), "what was made for it goes with it");
    }

    /// Two that look at once would both find an empty file, and lie on each other.
    #[test]
    fn one_at_a_time_looks_and_mounts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("volume");
        let held = alone_in(folder.path()).unwrap();
        let other = std::thread::spawn({
            let path = path.clone();
            move || Mount::new(&path, false)
        });
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(mount_at(&path).is_none() && !other.is_finished(), "it does not wait for who looks");
        drop(held);
        if let Err(error) = other.join().unwrap() {
            println!("skipped: {error}");
        }
    }

    /// A killed server may end while we wait for its answer, and what it had said is remembered.
    #[test]
    fn the_file_of_a_server_that_ends_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("volume");
        let mut mount = match Mount::new(&path, false) {
            Ok(mount) => mount,
            Err(error) => return println!("skipped: {error}"),
        };
        let mut message = vec![0; 1 << 21];
        let mut next = |mount: &Mount| {
            let mut waiting = [PollFd::new(mount, PollFlags::IN)];
            rustix::event::poll(&mut waiting, None).unwrap();
            let length = rustix::io::read(mount, &mut message).unwrap();
            FuseRequest::parse(&message[..length], length).unwrap()
        };
        let FuseRequest { unique, call: Call::Init { minor, readahead, .. } } = next(&mount) else { panic!("not it") };
        rustix::io::write(&mount, &Answer::init(unique, minor, readahead, 0).bytes(0)).unwrap();
        let other = std::thread::spawn({
            let path = path.clone();
            move || place(&path)
        });
        next(&mount);
        mount.queue = fs::File::open("/dev/null").unwrap().into();
        let (taken, made) = other.join().unwrap().unwrap();
        assert!(taken.file_name() == path.file_name() && !made);
        assert_eq!(fs::metadata(&path).unwrap().len(), 0, "nothing is mounted there");
    }
}
