//! What a process knows of its files on the volume: the session, and which are open.

mod config;
mod descriptors;
mod making;
mod recognize;
mod transfer;

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int};
use std::fmt::Write;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use overside_memory::MemoryError;
use overside_verbs::{Clock, SystemClock, VerbsError};
use overside_volume::DeviceError;
use overside_volume::client::{Files, LinkError, LinkOptions};
use overside_volume::files::Command;
use overside_volume::wire::Status;

use super::placeholder::Name;
use crate::kernel::borrowed;
use crate::line::Line;
use crate::{real, report};
use config::{Over, VolumeConfig, key};
pub(super) use descriptors::descriptors;
use descriptors::{low_numbers, may_be_ours};
pub(super) use making::{borrowed_folder, open_in};
pub(super) use recognize::{candidate, is_placeholder};

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
    /// A fork came in the middle of a call of another thread: this child has no files on the
    /// volume.
    torn: bool,
    /// What is locked while bytes are appended.
    appends: Option<OwnedFd>,
    /// Of the session, when its descriptors were noted.
    reconnects: u64,
    told_refused: bool,
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

    /// After a call: a session that has found the node again has other descriptors. Some of the
    /// program's may be taken for its own; closing one of these costs a session, and no more.
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

    /// Removes a file that has no name any more, if this is its last open descriptor anywhere: then
    /// the kernel grants a lease.
    pub(super) fn forget_nameless(&mut self, name: Name, fd: c_int) {
        let is_nameless = rustix::fs::fstat(borrowed(fd)).is_ok_and(|stat| stat.st_nlink == 0);
        if !is_nameless {
            return;
        }
        // Of a descriptor of its own: a lease to read alone may be had beside readers.
        // SAFETY: [preload-real] a question about a descriptor.
        let is_last = unsafe { real::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK as usize) } == 0;
        if is_last {
            // A name that came back after a loss of power would name nothing: the end of the name is on stable storage first.
            let is_gone = rustix::fs::fsync(borrowed(fd)).is_ok();
            let client = if is_gone { self.client() } else { Err(libc::EIO) };
            let _ = client.and_then(|client| client.command(name.id, Command::Remove, name.token).map_err(errno_of));
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
const VARIABLE: &CStr = c"OVERSIDE_FILES";
