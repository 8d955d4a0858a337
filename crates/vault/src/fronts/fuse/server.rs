//! The loop: the kernel's queue on one side, the device on the other. It sleeps
//! when neither has anything.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use overside_disk::FuseRing;
use overside_memory::Buffer;
use overside_verbs::watch::{Signal, failed};
use overside_verbs::{Clock, VerbsError};
use overside_volume::{Device, Geometry};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::FuseError;
use super::mount::Mount;
use super::requests::{Next, Requests, Route, Said};
use super::wire::{
    ANSWER_BYTES, Answer, BY_IO_URING, Call, FuseRequest, HEAD_BYTES, HEADER_BYTES, MAJOR, MINOR_MIN, PAYLOAD_BYTES_MAX,
};
use crate::fronts::room::Room;
use crate::fronts::routed::{Ended, Routed};
use crate::fronts::wakes::{PATIENCE, Wakes, watch, watch_device};

/// A file, which nobody serves yet. It is unmounted with this.
#[derive(Debug)]
pub struct FuseMount(Mount);

impl FuseMount {
    /// Over `file`, which is made if there is none, and must be empty if there is one.
    ///
    /// # Errors
    /// Something is in the way; the text says what to do.
    pub fn new(file: &Path, read_only: bool) -> Result<FuseMount, FuseError> {
        let mount = Mount::new(file, read_only);
        mount.map(FuseMount).map_err(|source| FuseError::Path { path: file.to_owned(), source })
    }
}

/// Serves a device as a file.
#[derive(Debug)]
pub struct FuseServer {
    // Unmounted first, which brings the ring's entries back.
    mount: Mount,
    /// Where requests come from, if the kernel allows it; then only what is never answered
    /// comes from the mount's queue.
    ring: Option<FuseRing>,
    /// At which entry of the ring a request is.
    entries: BTreeMap<u64, usize>,
    /// There may be something in the mount's queue.
    readable: bool,
    wakes: Wakes,
    device: Routed<Route>,
    geometry: Geometry,
    requests: Requests,
    /// Requests that were taken and not answered.
    taken: usize,
    ended: Vec<Ended<Route>>,
    room: Room,
    /// Where the next request's bytes go.
    payload: Option<Buffer>,
    /// The kernel's queue is waited for.
    listens: bool,
    /// Somebody has unmounted the file.
    gone: bool,
}

impl FuseServer {
    /// Serves a device at a place.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new(mount: FuseMount, device: Box<dyn Device>, clock: Arc<dyn Clock>) -> Result<FuseServer, FuseError> {
        let (FuseMount(mount), geometry) = (mount, device.geometry());
        let allowed = std::fs::read_to_string(IO_URING_ALLOWED).is_ok_and(|allowed| allowed.trim() == "Y");
        let ring = allowed.then(|| FuseRing::new(mount.as_fd(), REQUESTS_MAX, PAYLOAD_BYTES_MAX).ok()).flatten();
        let wakes = Wakes::new(clock, PATIENCE)?;
        watch(&wakes.epoll, &mount, KERNEL)?;
        watch_device(&wakes.epoll, &*device)?;
        Ok(FuseServer {
            mount,
            ring,
            entries: BTreeMap::new(),
            readable: true,
            wakes,
            device: Routed::new(device),
            geometry,
            requests: Requests::new(geometry),
            taken: 0,
            ended: Vec::new(),
            room: Room::default(),
            payload: None,
            listens: true,
            gone: false,
        })
    }

    /// Whether requests come by io_uring, which the machine's owner must
    /// allow, and not by `/dev/fuse`.
    pub fn is_by_io_uring(&self) -> bool {
        self.ring.is_some()
    }

    /// Ends [`run`](Self::run) when it is notified.
    pub fn stopper(&self) -> Arc<Signal> {
        self.wakes.stopper()
    }

    /// Serves until it is stopped, or the file is unmounted. Then requests that were
    /// taken end first, for a while.
    ///
    /// # Errors
    /// The kernel speaks another protocol, or the system refuses to wait.
    pub fn run(mut self) -> Result<Box<dyn Device>, FuseError> {
        loop {
            let sleeps = self.turn()?;
            if self.gone {
                self.wakes.stop();
            }
            let is_idle = self.device.is_idle() && !self.requests.holds();
            if self.stops() && (is_idle || self.wakes.is_late()) {
                return Ok(self.device.device);
            }
            self.wait(sleeps)?;
        }
    }

    /// All that can be done without waiting. Whether there is nothing left but to sleep.
    fn turn(&mut self) -> Result<bool, FuseError> {
        loop {
            let mut again = self.take_from_ring()?;
            if self.ring.is_none() || self.readable {
                again |= self.take()?;
            }
            let mut ended = std::mem::take(&mut self.ended);
            again |= self.device.drive(&mut ended);
            for (route, work, result) in ended.drain(..) {
                let next = self.requests.ended(route, work, result, &mut self.room);
                self.go(next)?;
            }
            self.ended = ended;
            while let Some(next) = self.requests.go_on(&mut self.room) {
                self.go(next)?;
                again = true;
            }
            if let Some(ring) = &mut self.ring {
                ring.submit().map_err(by_ring)?;
            }
            if !again {
                return Ok(self.device.device.arm());
            }
        }
    }

    /// Takes the kernel's requests, as many as there may be. Whether there was one.
    fn take(&mut self) -> Result<bool, FuseError> {
        let mut found = false;
        while !self.gone && !self.stops() && self.taken < REQUESTS_MAX {
            let Some(mut payload) = self.payload.take().or_else(|| self.room.take(PAYLOAD_BYTES_MAX)) else {
                return Err(VerbsError::System { what: "memory", reason: "none for a request".into() }.into());
            };
            let mut head = [0; HEAD_BYTES];
            let mut parts = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut payload)];
            let come = rustix::io::readv(&self.mount, &mut parts);
            let total = match come {
                Ok(total) => total,
                Err(errno) => {
                    self.payload = Some(payload);
                    match errno {
                        // Its asker was killed while the request waited.
                        Errno::NOENT | Errno::INTR => continue,
                        Errno::AGAIN => {
                            self.readable = false;
                            return Ok(found);
                        }
                        Errno::NODEV => {
                            self.unmounted();
                            return Ok(found);
                        }
                        errno => return Err(failed("read of /dev/fuse", errno).into()),
                    }
                }
            };
            found = true;
            let request = FuseRequest::parse(&head[..total.min(HEAD_BYTES)], total);
            let Ok(FuseRequest { unique, call }) = request else {
                let reason = format!("a message of {total} bytes that is none");
                return Err(VerbsError::System { what: "read of /dev/fuse", reason }.into());
            };
            let mut kept = Some(payload);
            let from = match call {
                Call::Write { length, .. } => self.bytes_of(&mut kept, length as usize),
                _ => None,
            };
            self.payload = kept;
            self.carry(unique, call, from)?;
        }
        Ok(found)
    }

    /// Takes the requests that the ring has. Whether there was one.
    fn take_from_ring(&mut self) -> Result<bool, FuseError> {
        let mut found = false;
        while !self.stops()
            && let Some((entry, came)) = self.ring.as_mut().and_then(FuseRing::event)
        {
            found = true;
            // It is unmounted, which the mount's queue says.
            if came.is_err() {
                continue;
            }
            let Some((header, arguments, behind)) = self.ring.as_ref().and_then(|ring| ring.request(entry)) else {
                continue;
            };
            let mut words = [0; HEAD_BYTES];
            words[..HEADER_BYTES].copy_from_slice(&header[..HEADER_BYTES]);
            words[HEADER_BYTES..].copy_from_slice(&arguments[..HEAD_BYTES - HEADER_BYTES]);
            let total = header.first_chunk().map_or(0, |length| u32::from_ne_bytes(*length)) as usize;
            let Ok(FuseRequest { unique, call }) = FuseRequest::parse(&words[..total.min(HEAD_BYTES)], total) else {
                let reason = format!("a message of {total} bytes that is none");
                return Err(VerbsError::System { what: "io_uring of FUSE", reason }.into());
            };
            let from = match call {
                Call::Write { length, .. } => behind.get(..length as usize).and_then(|bytes| {
                    let mut from = self.room.take(bytes.len())?;
                    from[..bytes.len()].copy_from_slice(bytes);
                    Some(from)
                }),
                _ => None,
            };
            self.entries.insert(unique, entry);
            self.carry(unique, call, from)?;
        }
        Ok(found)
    }

    /// `from`: a write's bytes, if there was memory for them.
    fn carry(&mut self, unique: u64, call: Call, from: Option<Buffer>) -> Result<(), FuseError> {
        let next = match call {
            Call::Forget => None,
            Call::Read { at, length } => Some(self.requests.read(unique, at, length, &mut self.room)),
            Call::Write { at, length, durable } => Some(match from {
                Some(from) => self.requests.write(unique, at, length, from, durable, &mut self.room),
                None => Next::Answer(unique, Err(Errno::NOMEM)),
            }),
            Call::Allocate { at, length, mode } => {
                Some(self.requests.allocate(unique, at, length, mode, &mut self.room))
            }
            Call::Sync => Some(self.requests.sync(unique)),
            call => {
                let answer = self.simple(unique, call)?;
                self.say(&answer, &[])?;
                if matches!(call, Call::Init { .. })
                    && let Some(ring) = &mut self.ring
                {
                    watch(&self.wakes.epoll, ring, RING)?;
                    ring.register().map_err(by_ring)?;
                }
                None
            }
        };
        if let Some(next) = next {
            self.taken += 1;
            self.go(next)?;
        }
        Ok(())
    }

    /// A write's bytes: where the kernel put them if they are many, else in
    /// a buffer that fits them.
    fn bytes_of(&mut self, payload: &mut Option<Buffer>, length: usize) -> Option<Buffer> {
        if length >= PAYLOAD_BYTES_MAX / 2 {
            return payload.take();
        }
        let mut from = self.room.take(length)?;
        from[..length].copy_from_slice(&payload.as_ref()?[..length]);
        Some(from)
    }

    /// What needs no device.
    fn simple(&mut self, unique: u64, call: Call) -> Result<Answer, FuseError> {
        let geometry = self.geometry;
        let owner = self.mount.owner();
        let attributes = || Answer::attributes(unique, geometry, owner);
        Ok(match call {
            // It asks again, in this version.
            Call::Init { major, .. } if major > MAJOR => Answer::init(unique, u32::MAX, 0, 0),
            Call::Init { major, minor, .. } if (major, minor) < (MAJOR, MINOR_MIN) => {
                self.say(&Answer::failed(unique, Errno::PROTO), &[])?;
                return Err(FuseError::Old { major, minor });
            }
            Call::Init { minor, readahead, flags, .. } => {
                self.ring.take_if(|_| flags & BY_IO_URING == 0);
                let flags = if self.ring.is_some() { flags } else { flags & !BY_IO_URING };
                Answer::init(unique, minor, readahead, flags)
            }
            Call::Attributes => attributes(),
            Call::SetAttributes { size, access } => {
                let same = size.is_none_or(|size| size == geometry.bytes) && !access;
                if same { attributes() } else { Answer::failed(unique, Errno::PERM) }
            }
            Call::Open { flags } if geometry.read_only && flags & 3 != 0 => Answer::failed(unique, Errno::ROFS),
            Call::Open { .. } => Answer::opened(unique),
            Call::Statistics => Answer::statistics(unique, geometry),
            Call::Release => Answer::done(unique),
            _ => Answer::failed(unique, Errno::NOSYS),
        })
    }

    fn go(&mut self, next: Next) -> Result<(), FuseError> {
        let (unique, said) = match next {
            Next::Ask(work, route) => {
                self.device.push(work, route);
                return Ok(());
            }
            Next::Wait => return Ok(()),
            Next::Answer(unique, said) => (unique, said),
        };
        self.taken -= 1;
        match said {
            Err(errno) => self.say(&Answer::failed(unique, errno), &[]),
            Ok(Said::Nothing | Said::Read(None)) => self.say(&Answer::done(unique), &[]),
            Ok(Said::Written(bytes)) => self.say(&Answer::written(unique, bytes), &[]),
            Ok(Said::Read(Some((buffer, part)))) => {
                let said = self.say(&Answer::done(unique), &buffer[part]);
                self.room.put(buffer);
                said
            }
        }
    }

    fn say(&mut self, answer: &Answer, behind: &[u8]) -> Result<(), FuseError> {
        let head = answer.bytes(behind.len());
        if let (Some(ring), Some(entry)) = (&mut self.ring, self.entries.remove(&answer.unique())) {
            let (header, words) = head.split_at(ANSWER_BYTES);
            return ring.commit(entry, answer.unique(), header, &[words, behind]).map_err(by_ring);
        }
        // Whoever asked may have been killed, or all may be unmounted: then nobody waits for it.
        while rustix::io::writev(&self.mount, &[IoSlice::new(&head), IoSlice::new(behind)]) == Err(Errno::INTR) {}
        Ok(())
    }

    fn stops(&self) -> bool {
        self.wakes.stops_until.is_some()
    }

    fn wait(&mut self, sleeps: bool) -> Result<(), FuseError> {
        // It stays readable as long as requests wait in it.
        let listens = !self.gone && !self.stops() && self.taken < REQUESTS_MAX;
        if listens != self.listens {
            self.listens = listens;
            let wanted = if listens { EventFlags::IN } else { EventFlags::empty() };
            let data = EventData::new_u64(KERNEL);
            let told = epoll::modify(&self.wakes.epoll, &self.mount, data, wanted);
            told.map_err(|errno| failed("epoll_ctl", errno))?;
        }
        let until = self.device.device.due().into_iter().chain(self.wakes.stops_until).min();
        let mut fails = false;
        self.wakes.wait(sleeps, until, |token, flags| {
            self.readable |= token == KERNEL;
            fails |= token == KERNEL && flags.contains(EventFlags::ERR);
        })?;
        // Told however much is under way, when nothing is read.
        if fails {
            self.unmounted();
        }
        Ok(())
    }

    /// Somebody has unmounted the file.
    fn unmounted(&mut self) {
        self.gone = true;
        // It is in error for ever, which wakes whoever waits for it.
        let _ = epoll::delete(&self.wakes.epoll, &self.mount);
        self.listens = false;
    }
}

/// The ring takes no commands.
fn by_ring(error: std::io::Error) -> FuseError {
    VerbsError::System { what: "io_uring of FUSE", reason: error.to_string() }.into()
}

/// Requests that are taken and not answered; more wait in the kernel.
const REQUESTS_MAX: usize = 64;
const IO_URING_ALLOWED: &str = "/sys/module/fuse/parameters/enable_uring";
const KERNEL: u64 = 0;
const RING: u64 = 1;
