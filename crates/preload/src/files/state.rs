//! What a process knows of its files on the volume: the session, and which are open.

use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, OsStr, c_int};
use std::fmt::Write;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::iovec;
use overside_ibv::IbvProvider;
use overside_memory::MemoryError;
use overside_shm::ShmProvider;
use overside_verbs::handshake::Key;
use overside_verbs::{Clock, Provider, SystemClock, VerbsError};
use overside_volume::DeviceError;
use overside_volume::client::{Files, LinkError, LinkOptions};
use overside_volume::files::{Attributes, Command, FILE_BYTES_MAX, PIECE_BYTES, Preset};
use overside_volume::wire::Status;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::placeholder::{BYTES, Name};
use crate::kernel::borrowed;
use crate::line::Line;
use crate::{errno, real, report};

/// The state, behind the lock.
pub(super) struct Guarded(UnsafeCell<State>);

// SAFETY: [preload-files] whoever takes it holds the lock.
unsafe impl Sync for Guarded {}

impl Guarded {
    pub(super) const fn new() -> Guarded {
        Guarded(UnsafeCell::new(State {
            config: None,
            client: None,
            open: Vec::new(),
            gathered: Vec::new(),
            torn: false,
            appends: None,
            reconnects: 0,
            told_refused: false,
        }))
    }

    /// # Safety
    /// The caller holds the lock, and nobody below calls this again.
    #[expect(clippy::mut_from_ref, reason = "the lock is apart")]
    pub(super) unsafe fn get(&self) -> &mut State {
        // SAFETY: [preload-files] the caller's promise.
        unsafe { &mut *self.0.get() }
    }
}

pub(crate) struct State {
    config: Option<VolumeConfig>,
    client: Option<Files>,
    /// By what descriptors say, less one.
    open: Vec<Option<Open>>,
    /// Buffers of one write, side by side.
    gathered: Vec<u8>,
    /// A fork came in the middle of a call of another thread: this child has no files on the volume.
    torn: bool,
    /// What is locked while bytes are appended.
    appends: Option<OwnedFd>,
    /// Of the session, when its descriptors were noted.
    reconnects: u64,
    told_refused: bool,
}

/// What the environment says.
struct VolumeConfig {
    preset: Preset,
    /// The folder below which files are made on the volume, without links.
    prefix: Vec<u8>,
    over: Over,
    /// The file of the volume's key, where its node asks for one.
    access_key: Option<PathBuf>,
    node: String,
    volume: String,
    group: u64,
}

/// How the node is reached.
#[derive(Debug, PartialEq, Eq)]
enum Over {
    /// On this host.
    Memory,
    /// By an RDMA device, the first with an active port where none is named, and the key in that file.
    Device { device: Option<String>, key_file: Option<PathBuf> },
}

struct Open {
    name: Name,
    inode: (u64, u64),
    descriptors: u32,
    /// Another process has the same descriptor: who of them is the last is not known.
    shared: bool,
    /// Its placeholder may not be on stable storage.
    is_new: bool,
    /// The volume has this file: an older placeholder may have the number of another one by now.
    is_there: bool,
}

impl State {
    /// None: there are no files on a volume.
    pub(super) fn from_environment() -> Option<State> {
        // SAFETY: [preload-real] at start-up, before the program can change its environment.
        let value = unsafe {
            let value = libc::getenv(VARIABLE.as_ptr());
            if value.is_null() { None } else { Some(CStr::from_ptr(value)) }
        };
        let config = Some(VolumeConfig::parse(value?.to_bytes())?);
        let (open, gathered) = (Vec::new(), Vec::new());
        let (torn, told_refused) = (false, false);
        Some(State { config, client: None, open, gathered, torn, appends: None, reconnects: 0, told_refused })
    }

    /// The session; there is one from the first call on. While the node is away the caller waits.
    fn client(&mut self) -> Result<&mut Files, c_int> {
        if self.torn {
            return Err(libc::EIO);
        }
        if self.client.is_none() {
            let before = descriptors();
            let client = {
                let _low = low_numbers();
                self.connect()?
            };
            descriptors().into_iter().filter(|fd| !before.contains(fd)).for_each(|fd| super::mark(fd, true));
            self.reconnects = client.reconnects();
            return Ok(self.client.insert(client));
        }
        self.client.as_mut().ok_or(libc::EIO)
    }

    fn connect(&self) -> Result<Files, c_int> {
        let config = self.config.as_ref().ok_or(libc::EIO)?;
        let provider = config.over.provider()?;
        let key = key(config.access_key.as_deref())?;
        let process = rustix::process::getpid().as_raw_nonzero().get() as u32;
        loop {
            let options = LinkOptions { group: config.group, process, receives: RECEIVES, ..LinkOptions::default() };
            // What a device's node reads from here by itself is asked for by messages that the heap holds; a copy needs none.
            let registration = options.registration.filter(|_| config.over == Over::Memory);
            let options = LinkOptions { registration, key: key.clone(), ..options };
            match Files::attach(provider.clone(), &config.node, &config.volume, options) {
                Ok(client) => return Ok(client),
                Err(LinkError::Verbs(VerbsError::Key(_)) | LinkError::Refused(Status::Unknown | Status::Prove)) => {
                    tell("attach", REFUSED);
                    return Err(libc::EACCES);
                }
                // Trying again would find no more, and say nothing.
                Err(LinkError::Verbs(VerbsError::Memory(MemoryError::Exhausted { .. }))) => {
                    tell("attach", "there is no memory left for a session; raise the limit of the program's memory");
                    return Err(libc::ENOMEM);
                }
                // It is there again soon.
                Err(LinkError::Verbs(_) | LinkError::Refused(Status::Full)) => {
                    let until = Instant::now() + AGAIN;
                    SystemClock.wait(&[], Some(until)).map_err(|_| libc::EIO)?;
                }
                Err(_) => {
                    tell("attach", "the node does not let this process in");
                    return Err(libc::EIO);
                }
            }
        }
    }

    /// Of a call that failed: the errno, where the node refuses this process by now. Said once.
    pub(super) fn refused(&mut self) -> Option<c_int> {
        self.client.as_ref().filter(|client| client.is_refused())?;
        if !std::mem::replace(&mut self.told_refused, true) {
            tell("attach", REFUSED);
        }
        Some(libc::EACCES)
    }

    /// After a call: a session that has found the node again has other descriptors. Some of the program's may be taken for its own;
    /// closing one of these costs a session, and no more.
    pub(super) fn note_descriptors(&mut self) {
        let Some(reconnects) = self.client.as_ref().map(Files::reconnects).filter(|now| *now != self.reconnects) else {
            return;
        };
        self.reconnects = reconnects;
        descriptors()
            .into_iter()
            .filter(|fd| !super::has(*fd) && may_be_ours(*fd))
            .for_each(|fd| super::mark(fd, true));
    }

    /// The file behind an open one's number.
    pub(super) fn name(&self, entry: u32) -> Result<Name, c_int> {
        self.entry(entry).map(|open| open.name).ok_or(libc::EBADF)
    }

    fn entry(&self, entry: u32) -> Option<&Open> {
        self.open.get((entry as usize).checked_sub(1)?)?.as_ref()
    }

    fn entry_mut(&mut self, entry: u32) -> Option<&mut Open> {
        self.open.get_mut((entry as usize).checked_sub(1)?)?.as_mut()
    }

    /// One more descriptor of a file: its number, from 1.
    pub(super) fn opened(&mut self, name: Name, inode: (u64, u64)) -> u32 {
        let is_it = |open: &Option<Open>| open.as_ref().is_some_and(|open| open.inode == inode && open.name == name);
        if let Some(at) = self.open.iter().position(is_it) {
            self.doubled(at as u32 + 1);
            return at as u32 + 1;
        }
        let mut new = Some(Open { name, inode, descriptors: 1, shared: false, is_new: true, is_there: false });
        match self.open.iter().position(Option::is_none) {
            Some(at) => {
                self.open.iter_mut().skip(at).take(1).for_each(|place| *place = new.take());
                at as u32 + 1
            }
            None => {
                self.open.push(new.take());
                self.open.len() as u32
            }
        }
    }

    pub(super) fn doubled(&mut self, entry: u32) {
        if let Some(open) = self.entry_mut(entry) {
            open.descriptors += 1;
        }
    }

    /// A descriptor is about to be closed.
    pub(super) fn closing(&mut self, entry: u32, fd: c_int) {
        let Some(open) = self.entry_mut(entry) else { return };
        open.descriptors -= 1;
        if open.descriptors > 0 {
            return;
        }
        let (name, shared) = (open.name, open.shared);
        if let Some(place) = self.open.get_mut(entry as usize - 1) {
            *place = None;
        }
        if !shared {
            self.forget_nameless(name, fd);
        }
    }

    /// Removes a file that has no name any more, if this is its last open descriptor anywhere: then the kernel grants a lease.
    pub(super) fn forget_nameless(&mut self, name: Name, fd: c_int) {
        let is_nameless = rustix::fs::fstat(borrowed(fd)).is_ok_and(|stat| stat.st_nlink == 0);
        if !is_nameless {
            return;
        }
        // Of a descriptor of its own: a lease to read alone may be had beside readers.
        // SAFETY: [preload-real] a question about a descriptor.
        let is_last = unsafe { real::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK as usize) } == 0;
        if is_last {
            let _ =
                self.client().and_then(|client| client.command(name.id, Command::Remove, name.token).map_err(errno_of));
            // SAFETY: [preload-real] as above.
            unsafe { real::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK as usize) };
        }
    }

    /// The file behind an open one's number, which is there: what is written says no more than the
    /// number.
    pub(super) fn written(&mut self, entry: u32) -> Result<Name, c_int> {
        let name = self.name(entry)?;
        if self.entry(entry).is_some_and(|open| !open.is_there) {
            self.attributes(name)?;
            if let Some(open) = self.entry_mut(entry) {
                open.is_there = true;
            }
        }
        Ok(name)
    }

    pub(super) fn is_new(&self, entry: u32) -> bool {
        self.entry(entry).is_some_and(|open| open.is_new)
    }

    pub(super) fn synced(&mut self, entry: u32) {
        if let Some(open) = self.entry_mut(entry) {
            open.is_new = false;
        }
    }

    /// The session ends with the process.
    pub(super) fn leave(&mut self) {
        super::unmark_all();
        self.appends = None;
        if let Some(client) = self.client.take() {
            client.close(LEAVING);
        }
    }

    /// A child has all that is open, too.
    pub(super) fn shared(&mut self) {
        self.open.iter_mut().flatten().for_each(|open| open.shared = true);
    }

    pub(super) fn in_child(&mut self, is_whole: bool) {
        // The parent's session is not ended by its child.
        std::mem::forget(self.client.take());
        super::unmark_all();
        // A lock through its descriptor would be the parent's as well.
        self.appends = None;
        self.torn |= !is_whole;
        self.shared();
    }

    /// Whether a candidate's descriptor is of a placeholder, and which file.
    pub(super) fn recognize(&self, fd: c_int, inode: (u64, u64)) -> Result<Option<Name>, c_int> {
        if let Some(name) = self.known(inode) {
            return Ok(Some(name));
        }
        let mut text = [0; BYTES];
        // Through itself, where that can be: closing another one would give up the program's locks.
        let read = rustix::io::pread(borrowed(fd), &mut text, 0).or_else(|_| {
            let path = super::proc_path(fd);
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
            let file = rustix::fs::open(path.as_str(), flags, Mode::empty())?;
            rustix::io::pread(&file, &mut text, 0)
        });
        // What cannot be looked into may be a placeholder, and must not be written over.
        match read.map_err(Errno::raw_os_error)? {
            BYTES => Ok(Name::parse(&text)),
            _ => Ok(None),
        }
    }

    fn known(&self, inode: (u64, u64)) -> Option<Name> {
        // What is closed already may be among them, and another file have its inode.
        if super::is_miscounted() {
            return None;
        }
        self.open.iter().flatten().find(|open| open.inode == inode).map(|open| open.name)
    }

    /// The same by an inode. What this process has open is not opened again, whatever it is:
    /// closing that would give up the program's locks.
    pub(super) fn recognize_by(
        &self,
        inode: (u64, u64),
        open: impl FnOnce() -> Result<OwnedFd, Errno>,
    ) -> Result<Option<Name>, c_int> {
        if let Some(known) = self.known(inode) {
            return Ok(Some(known));
        }
        let mut text = [0; BYTES];
        let mut own = descriptors().into_iter().filter(|fd| candidate(*fd) == Some(inode));
        let read = match own.find_map(|fd| rustix::io::pread(borrowed(fd), &mut text, 0).ok()) {
            Some(read) => read,
            None => {
                let Ok(file) = open() else { return Ok(None) };
                rustix::io::pread(&file, &mut text, 0).map_err(Errno::raw_os_error)?
            }
        };
        Ok(if read == BYTES { Name::parse(&text) } else { None })
    }

    /// The file's length, and what it takes.
    pub(super) fn attributes(&mut self, name: Name) -> Result<(u64, u64), c_int> {
        let Attributes { token, size, allocated } = self.client()?.attributes(name.id).map_err(errno_of)?;
        if token != name.token {
            tell("a placeholder", "names a file that this volume does not have");
            return Err(libc::EIO);
        }
        Ok((size, allocated))
    }

    pub(super) fn size(&mut self, name: Name) -> Result<u64, c_int> {
        self.attributes(name).map(|(size, _)| size)
    }

    pub(super) fn read(&mut self, name: Name, at: u64, into: &mut [u8]) -> Result<usize, c_int> {
        let read = self.client()?.read((name.id, name.token), at, into);
        // There is no such file: what the program has open names nothing.
        read.map_err(|error| if error == DeviceError::Invalid { libc::EIO } else { errno_of(error) })
    }

    /// Buffers, one behind the other. How many bytes; fewer where the rest cannot be written.
    pub(super) fn write(&mut self, name: Name, at: u64, list: &[iovec]) -> Result<u64, c_int> {
        let mut gathered = std::mem::take(&mut self.gathered);
        let mut done = 0;
        let mut result = Ok(());
        for part in list.iter().filter(|part| part.iov_len > 0) {
            // SAFETY: [preload-program] the program's buffer.
            let bytes = unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
            if list.len() == 1 {
                result = self.write_all(name, at, bytes, &mut done);
                break;
            }
            gathered.extend_from_slice(bytes);
            if gathered.len() >= GATHERED_MAX {
                result = self.write_all(name, at + done, &gathered, &mut done);
                gathered.clear();
                if result.is_err() {
                    break;
                }
            }
        }
        if result.is_ok() && !gathered.is_empty() {
            result = self.write_all(name, at + done, &gathered, &mut done);
        }
        gathered.clear();
        self.gathered = gathered;
        match result {
            Err(error) if done == 0 => Err(error),
            _ => Ok(done),
        }
    }

    fn write_all(&mut self, name: Name, at: u64, mut bytes: &[u8], done: &mut u64) -> Result<(), c_int> {
        let mut at = at;
        while !bytes.is_empty() {
            let written = self.client()?.write(name.id, at, bytes).map_err(|error| match error {
                DeviceError::Invalid => libc::EFBIG,
                error => errno_of(error),
            })?;
            *done += written as u64;
            at += written as u64;
            bytes = bytes.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    pub(super) fn resize(&mut self, name: Name, size: u64) -> Result<(), c_int> {
        self.change(name, size, Command::Resize(size))
    }

    /// Of a file that becomes as long as `size`, or may.
    fn change(&mut self, name: Name, size: u64, command: Command) -> Result<(), c_int> {
        if size >= FILE_BYTES_MAX {
            return Err(libc::EFBIG);
        }
        let changed = self.client()?.command(name.id, command, name.token);
        // There is no such file: what the program has open names nothing.
        changed.map_err(|error| if error == DeviceError::Invalid { libc::EIO } else { errno_of(error) })
    }

    /// Bytes from `at` to `end` have places on the volume, and the file is at least so long. What
    /// another process writes there meanwhile stays.
    pub(super) fn reserve(&mut self, name: Name, at: u64, end: u64) -> Result<(), c_int> {
        if end >= FILE_BYTES_MAX {
            return Err(libc::EFBIG);
        }
        let mut at = at;
        while at < end {
            at = end.min((at / PIECE_BYTES + 1) * PIECE_BYTES);
            self.change(name, at, Command::Reserve(at))?;
        }
        Ok(())
    }

    /// What is there under a name that is about to go, open, unless this process has it open itself: then its close looks.
    pub(super) fn hold_named(&self, folder: c_int, path: &CStr) -> Option<(Name, OwnedFd)> {
        let folder = borrowed_folder(folder);
        let stat = rustix::fs::statat(folder, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let inode = (stat.st_dev, stat.st_ino);
        let is_open = self.open.iter().flatten().any(|open| open.inode == inode);
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG || stat.st_size != BYTES as i64 || is_open {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(folder, path, flags, Mode::empty()).ok()?;
        let mut text = [0; BYTES];
        let read = rustix::io::pread(&file, &mut text, 0).ok()?;
        Some((Name::parse(&text).filter(|_| read == BYTES)?, file))
    }

    /// Whether a file of this name in this folder is made on the volume.
    fn is_made_here(&self, folder: BorrowedFd<'_>, name: &[u8]) -> bool {
        let Some(config) = &self.config else { return false };
        let link = super::proc_path(folder.as_raw_fd());
        let Ok(folder) = rustix::fs::readlink(link.as_str(), Vec::new()) else { return false };
        let below =
            folder.to_bytes().strip_prefix(&config.prefix[..]).filter(|rest| rest.is_empty() || rest.starts_with(b"/"));
        below.is_some_and(|below| config.preset.matches(&[below, b"/", name].concat()))
    }
}

impl VolumeConfig {
    /// Lines: preset, the transport of the node's address, the rest of that, volume, group, device,
    /// the key's file, that of the volume's key, folder.
    fn parse(value: &[u8]) -> Option<VolumeConfig> {
        let mut lines = value.split(|byte| *byte == b'\n');
        let mut text = || std::str::from_utf8(lines.next()?).ok();
        let preset = Preset::parse(text()?)?;
        let transport = text()?;
        let (node, volume, group) = (text()?.to_owned(), text()?.to_owned(), u64::from_str_radix(text()?, 16).ok()?);
        let device = Some(text()?).filter(|device| !device.is_empty()).map(str::to_owned);
        let mut path = || {
            let line = lines.next()?;
            Some((!line.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(line))))
        };
        let (key_file, access_key) = (path()?, path()?);
        let over = match transport {
            "shm" if device.is_none() && key_file.is_none() => Over::Memory,
            "rdma" => Over::Device { device, key_file },
            _ => return None,
        };
        // The last one: a folder may be called anything.
        let mut prefix = lines.collect::<Vec<_>>().join(&b'\n');
        while prefix.last() == Some(&b'/') {
            prefix.pop();
        }
        Some(VolumeConfig { preset, prefix, over, access_key, node, volume, group })
    }
}

impl Over {
    /// A provider of this process's own: what a parent has opened is not its child's. The key is read each time, so that no program
    /// finds it in its environment.
    fn provider(&self) -> Result<Arc<dyn Provider>, c_int> {
        let Over::Device { device, key_file } = self else {
            return Ok(ShmProvider::new().map_err(|_| libc::ENOMEM)?);
        };
        let key = key(key_file.as_deref())?;
        let options = overside_ibv::Options { device: device.clone(), key, ..Default::default() };
        let provider = IbvProvider::with_options(options).map_err(|_| {
            tell("attach", "this process cannot open the RDMA device");
            libc::EIO
        })?;
        Ok(provider)
    }
}

fn key(file: Option<&Path>) -> Result<Option<Key>, c_int> {
    file.map(Key::from_file).transpose().map_err(|_| {
        tell("attach", "this process may not read the key file, or others may");
        libc::EIO
    })
}

/// The inode of what may be a placeholder, by its kind and length.
pub(super) fn candidate(fd: c_int) -> Option<(u64, u64)> {
    let stat = rustix::fs::fstat(borrowed(fd)).ok()?;
    let may_be = stat.st_mode & libc::S_IFMT == libc::S_IFREG && stat.st_size == BYTES as i64;
    may_be.then_some((stat.st_dev, stat.st_ino))
}

impl State {
    /// Appends alone among those who append to a file through descriptors of their own. A lock on the placeholder would meet the
    /// program's, which may be on all of it. So it is a byte of a file that all processes have, and that no program locks.
    pub(super) fn append<T>(
        &mut self,
        entry: u32,
        append: impl FnOnce(&mut State) -> Result<T, c_int>,
    ) -> Result<T, c_int> {
        let (device, number) = self.entry(entry).ok_or(libc::EBADF)?.inode;
        let byte = (device.rotate_left(32) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2;
        let fd = match &self.appends {
            Some(file) => file.as_raw_fd(),
            None => {
                let _low = low_numbers();
                let file = rustix::fs::open(LOCKED, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
                let file = self.appends.insert(file.map_err(Errno::raw_os_error)?);
                super::mark(file.as_raw_fd(), true);
                file.as_raw_fd()
            }
        };
        lock(fd, byte, libc::F_WRLCK, libc::F_OFD_SETLKW)?;
        let result = append(self);
        let _ = lock(fd, byte, libc::F_UNLCK, libc::F_OFD_SETLK);
        result
    }
}

/// All descriptors of this process, without the one by which they are listed: its number is the
/// next to come about.
pub(super) fn descriptors() -> Vec<c_int> {
    let folder = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let mut all: Vec<c_int> = folder.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    all.retain(|fd| rustix::io::fcntl_getfd(borrowed(*fd)).is_ok());
    all
}

/// Whether a session may have it.
fn may_be_ours(fd: c_int) -> bool {
    let what = rustix::fs::readlink(super::proc_path(fd).as_str(), Vec::new());
    let is_kind = |what: &CStr| {
        [&b"socket:"[..], b"anon_inode:", b"/memfd:"].iter().any(|kind| what.to_bytes().starts_with(kind))
    };
    rustix::io::fcntl_getfd(borrowed(fd)).is_ok_and(|flags| flags.contains(rustix::io::FdFlags::CLOEXEC))
        && what.is_ok_and(|what| is_kind(&what))
}

/// Takes the first three numbers where they are free: programs take them for the standard streams.
fn low_numbers() -> Vec<OwnedFd> {
    let open = || rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
    let is_low = |fd: &OwnedFd| fd.as_raw_fd() <= libc::STDERR_FILENO;
    std::iter::from_fn(open).take_while(is_low).collect()
}

fn lock(fd: c_int, byte: u64, kind: c_int, command: c_int) -> Result<(), c_int> {
    let place = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte as i64,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: [preload-real] a structure of ours.
    let result = unsafe { real::fcntl(fd, command, (&raw const place).addr()) };
    if result == 0 { Ok(()) } else { Err(errno::get()) }
}

pub(super) fn open_in(folder: c_int, path: &CStr, flags: c_int, mode: u32) -> Result<c_int, c_int> {
    let opened = |flags: c_int| {
        // SAFETY: [preload-real] the program's arguments.
        let fd = unsafe { real::openat(folder, path.as_ptr(), flags, mode) };
        if fd < 0 { Err(errno::get()) } else { Ok(fd) }
    };
    let (creates, truncates) = (flags & libc::O_CREAT != 0, flags & libc::O_TRUNC != 0);
    let exclusive = creates && flags & libc::O_EXCL != 0;
    for _ in 0..TRIES {
        if !exclusive {
            match opened(flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC)) {
                Ok(fd) => {
                    let adopted = errno::kept(|| super::adopt(fd));
                    let done = match adopted {
                        Ok(true) if truncates => super::cut(fd).map(|()| fd),
                        // The kernel's, which has it truncate what was there.
                        Ok(false) if truncates && flags & libc::O_ACCMODE != libc::O_RDONLY => {
                            // What is no file has nothing to truncate.
                            let _ = errno::kept(|| rustix::fs::ftruncate(borrowed(fd), 0));
                            Ok(fd)
                        }
                        Ok(false) if truncates => {
                            close(fd);
                            return opened(flags);
                        }
                        adopted => adopted.map(|_| fd),
                    };
                    return done.inspect_err(|_| close(fd));
                }
                Err(libc::ENOENT) if creates => {}
                Err(error) => return Err(error),
            }
        }
        match make(folder, path, flags, mode) {
            Some(Err(libc::EEXIST)) if !exclusive => {}
            Some(made) => return made,
            None => return opened(flags).inspect(|fd| _ = errno::kept(|| super::adopt(*fd))),
        }
    }
    Err(libc::EEXIST)
}

/// Makes a file on the volume, and its placeholder. None: it is the kernel's.
fn make(folder: c_int, path: &CStr, flags: c_int, mode: u32) -> Option<Result<c_int, c_int>> {
    let bytes = path.to_bytes();
    let (parent, name) = match bytes.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (bytes.get(..at + 1)?, bytes.get(at + 1..)?),
        None => (&b"."[..], bytes),
    };
    let (parent, name) = (CString::new(parent).ok()?, CString::new(name).ok()?);
    let parent = rustix::fs::openat(
        borrowed_folder(folder),
        &*parent,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let parent = parent.ok()?;
    let is_made = super::with(|state| Ok(state.is_made_here(parent_fd(&parent), name.to_bytes()))).ok()?;
    // A link that points nowhere makes what it points to, where the kernel makes it.
    let is_link = rustix::fs::statat(&parent, &*name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
    if !is_made || is_link {
        return None;
    }
    let made = make_in(&parent, &name, flags, mode);
    drop(parent);
    Some(made.and_then(|file| {
        let fd = lowest(file, flags & libc::O_CLOEXEC != 0)?.into_raw_fd();
        super::adopt(fd).map(|_| fd).inspect_err(|_| close(fd))
    }))
}

/// The same file by the lowest number that is free, as programs expect it of `open`.
fn lowest(file: OwnedFd, is_cloexec: bool) -> Result<OwnedFd, c_int> {
    let low = rustix::io::fcntl_dupfd_cloexec(&file, 0).map_err(Errno::raw_os_error)?;
    if low.as_raw_fd() > file.as_raw_fd() {
        return Ok(file);
    }
    if !is_cloexec {
        rustix::io::fcntl_setfd(&low, rustix::io::FdFlags::empty()).map_err(Errno::raw_os_error)?;
    }
    Ok(low)
}

fn parent_fd(parent: &OwnedFd) -> BorrowedFd<'_> {
    std::os::fd::AsFd::as_fd(parent)
}

fn make_in(parent: &OwnedFd, name: &CStr, flags: c_int, mode: u32) -> Result<OwnedFd, c_int> {
    let raw = |error: Errno| error.raw_os_error();
    let reads_alone = flags & libc::O_ACCMODE == libc::O_RDONLY;
    let kept = libc::O_APPEND | libc::O_SYNC | libc::O_DSYNC | libc::O_CLOEXEC | libc::O_NOATIME;
    let access = if reads_alone { libc::O_RDWR } else { flags & libc::O_ACCMODE };
    let wanted = OFlags::from_bits_retain((flags & kept | access | libc::O_TMPFILE) as u32);
    let file = rustix::fs::openat(parent, c".", wanted, Mode::from_raw_mode(mode)).map_err(|error| {
        tell("open", "the file system has no files without a name (O_TMPFILE)");
        raw(error)
    })?;
    let mut token = [0; 8];
    SystemClock.fill(&mut token).map_err(|_| libc::EIO)?;
    let token = u64::from_le_bytes(token).max(1);
    super::with(|state| {
        let id = state.client()?.create(token).map_err(errno_of)?;
        let made = Name { id, token };
        let linked = (|| {
            if rustix::io::pwrite(&file, &made.text(), 0).map_err(raw)? != BYTES {
                return Err(libc::ENOSPC);
            }
            let path = super::proc_path(file.as_raw_fd());
            rustix::fs::linkat(rustix::fs::CWD, path.as_str(), parent, name, AtFlags::SYMLINK_FOLLOW).map_err(raw)
        })();
        if linked.is_err() {
            let _ = state.client()?.command(id, Command::Remove, token);
        }
        linked
    })?;
    if reads_alone {
        let again = rustix::fs::openat(
            parent,
            name,
            OFlags::from_bits_retain((flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC)) as u32),
            Mode::empty(),
        );
        return again.map_err(raw);
    }
    Ok(file)
}

/// Whether a placeholder is there, seen without what is open: a vfork child has its parent's
/// memory.
pub(super) fn is_placeholder(folder: c_int, path: &CStr) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let Ok(file) = rustix::fs::openat(borrowed_folder(folder), path, flags, Mode::empty()) else { return false };
    let mut text = [0; BYTES];
    candidate(file.as_raw_fd()).is_some()
        && rustix::io::pread(&file, &mut text, 0).is_ok_and(|read| read == BYTES)
        && Name::parse(&text).is_some()
}

fn close(fd: c_int) {
    errno::kept(|| {
        super::closing(fd);
        // SAFETY: [preload-real] a descriptor of ours.
        unsafe { real::close(fd) }
    });
}

/// A program's number of a folder, or where it stands.
pub(super) fn borrowed_folder<'a>(folder: c_int) -> BorrowedFd<'a> {
    if folder == libc::AT_FDCWD { rustix::fs::CWD } else { borrowed(folder) }
}

pub(super) fn errno_of(error: DeviceError) -> c_int {
    match error {
        DeviceError::Invalid => libc::EINVAL,
        DeviceError::ReadOnly => libc::EROFS,
        DeviceError::NoSpace => libc::ENOSPC,
        DeviceError::NoMemory => libc::ENOMEM,
        DeviceError::Refused => libc::EACCES,
        DeviceError::Failed | DeviceError::Corrupt | DeviceError::Fenced | DeviceError::Unreachable => libc::EIO,
    }
}

/// Says in the report what a call was refused for.
pub(super) fn tell(call: &str, why: &str) {
    let mut line = Line::<256>::new();
    let process = rustix::process::getpid().as_raw_nonzero();
    let _ = writeln!(line, "{process}\tfiles\t{call} {why}");
    report::append(line.bytes());
}

const REFUSED: &str = "the node refuses this program (another key, or no such volume), so calls fail; run it again with what the node takes";
/// Answers on their way.
const RECEIVES: usize = 16;
/// A node that is away is looked for so often.
const AGAIN: Duration = Duration::from_millis(20);
/// How long a process that ends waits for the node to know.
const LEAVING: Duration = Duration::from_millis(200);
/// Bytes that are written at once where they come in pieces.
const GATHERED_MAX: usize = 1 << 20;
/// How often a file may come and go between two looks.
const TRIES: usize = 100;
/// Anybody may open it, and nobody has a reason to lock it.
const LOCKED: &CStr = c"/dev/full";
const VARIABLE: &CStr = c"OVERSIDE_FILES";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_environment_says_is_taken_or_refused() {
        let config = VolumeConfig::parse(b"sqlite\nshm\nvault\ndb\n1f\n\n\n/v\n/srv/a\nb//").unwrap();
        assert_eq!((config.preset, config.group, &config.prefix[..]), (Preset::Sqlite, 31, &b"/srv/a\nb"[..]));
        assert_eq!((config.over, &*config.node), (Over::Memory, "vault"));
        assert_eq!(config.access_key, Some(PathBuf::from("/v")));
        let config = VolumeConfig::parse(b"sqlite\nrdma\n10.0.0.1:7\ndb\n1\nrxe0\n/k\n\n/").unwrap();
        let (device, key_file) = (Some("rxe0".to_owned()), Some(PathBuf::from("/k")));
        assert_eq!((config.over, &*config.node), (Over::Device { device, key_file }, "10.0.0.1:7"));
        for wrong in [
            &b""[..],
            b"sqlite",
            b"sqlite\nshm\nvault\ndb\n1\n\n",
            b"other\nshm\nvault\ndb\n1\n\n\n\n/",
            b"sqlite\nshm\nvault\ndb\nx\n\n\n\n/",
            b"sqlite\nshm\nvault\ndb\n1\n\n/k\n\n/",
            b"sqlite\ntcp\n10.0.0.1:7\ndb\n1\n\n/k\n\n/",
        ] {
            assert!(VolumeConfig::parse(wrong).is_none());
        }
    }

    #[test]
    fn a_key_that_others_may_read_is_not_taken() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, (0..64u8).map(|i| i.wrapping_mul(97) ^ 0x5a).collect::<Vec<_>>()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let over = Over::Device { device: None, key_file: Some(path) };
        assert_eq!(over.provider().err(), Some(libc::EIO));
    }
}
