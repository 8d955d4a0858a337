//! Members on other nodes: which volume of which node, and that it is this volume's.

use std::fmt;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use overside_disk::BLOCK_BYTES;
use overside_memory::{Buffer, Bytes, Segment};
use overside_service::Threads;
use overside_verbs::Clock;
use overside_volume::client::{LinkOptions, Spare, Volume};
use overside_volume::wire::Role;
use overside_volume::{Device, DeviceError, Health, MemberState, SECTOR_BYTES, Work, complete};

use super::description::Description;
use super::{DATA_START, DISK_PATIENCE, HomeError, MemberSpec, Superblock, of};
use crate::members::RemoteMember;
use crate::server::lock;

/// A volume of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteVolume {
    /// Where the node listens.
    pub address: String,
    /// The volume's name there.
    pub volume: String,
    /// A file with the key of connections over a network.
    pub key_file: Option<PathBuf>,
    /// A file with the volume's key, where its node asks for one.
    pub access_key: Option<PathBuf>,
}

/// How other nodes are reached. Which provider leads to an address, this crate does not know.
pub trait Reach: Send + Sync + fmt::Debug {
    /// Attaches a volume of another node.
    ///
    /// # Errors
    /// Why not, and what to do, in a line.
    fn attach(&self, remote: &RemoteVolume, options: LinkOptions) -> Result<Volume, String>;

    /// Has its node make a volume larger that nobody uses.
    ///
    /// # Errors
    /// Why not, and what to do, in a line.
    fn resize(&self, remote: &RemoteVolume, bytes: u64) -> Result<(), String>;

    /// Where its connections' threads come from.
    fn threads(&self) -> Arc<dyn Threads>;
}

impl fmt::Display for RemoteVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.volume)
    }
}

/// What a volume's members on other nodes are reached by.
pub(super) type Reached<'a> = Option<&'a Arc<dyn Reach>>;

/// The members of a volume, of which some may go: asked by those on other nodes before they fail.
#[derive(Debug)]
pub(super) struct Others {
    members: usize,
    /// How many must stay.
    needed: usize,
    health: OnceLock<Health>,
    /// Those that have gone, as bits. A member that an array does not know to be stale yet is among
    /// them.
    gone: Mutex<u64>,
}

impl Others {
    pub(super) fn new(members: usize, needed: usize) -> Arc<Others> {
        Arc::new(Others { members, needed, health: OnceLock::new(), gone: Mutex::default() })
    }

    /// Before there is an array nobody goes.
    pub(super) fn are(&self, health: Health) {
        let _ = self.health.set(health);
    }
}

/// One of them.
#[derive(Debug)]
struct One(Arc<Others>, usize);

impl Spare for One {
    fn let_go(&self) -> bool {
        let One(others, number) = self;
        let Some(health) = others.health.get() else { return false };
        let mut gone = lock(&others.gone);
        let stays = |other: usize| *gone & 1 << other == 0 && health.state(other) == MemberState::Current;
        let left = (0..others.members).filter(|other| other != number && stays(*other)).count();
        let may = left >= others.needed;
        *gone |= u64::from(may) << number;
        may
    }

    fn is_back(&self) {
        *lock(&self.0.gone) &= !(1 << self.1);
    }
}

/// Where a volume with such members is one process' alone: their nodes let the newest come in.
pub(super) type Held = Option<Arc<File>>;

/// Makes a volume with members on other nodes this process' alone, for as long as the result lives.
///
/// # Errors
/// Another process has it, for longer than `patience`.
pub(super) fn hold(
    description: &Description,
    path: &Path,
    clock: &Arc<dyn Clock>,
    patience: Duration,
) -> Result<Held, HomeError> {
    if !description.members.iter().any(|(spec, _)| matches!(spec, MemberSpec::Remote(_))) {
        return Ok(None);
    }
    let path = path.with_extension(LOCK_EXTENSION);
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(of(&path))?;
    let until = clock.now() + patience;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(Arc::new(file))),
            Err(TryLockError::WouldBlock) if clock.now() < until => clock.sleep(LOOK_AGAIN),
            Err(TryLockError::WouldBlock) => return Err(HomeError::InUse(path)),
            Err(TryLockError::Error(error)) => return Err(of(&path)(error)),
        }
    }
}

/// A member on another node, which must be there; or, where there are others, why it is not. Then
/// it is attached as soon as its node is back.
pub(super) fn open(
    (remote, bytes): (&RemoteVolume, u64),
    description: &Description,
    number: usize,
    (reach, clock): (Reached<'_>, &Arc<dyn Clock>),
    (held, others): (&Held, Option<&Arc<Others>>),
) -> Result<(RemoteMember, Option<HomeError>), HomeError> {
    let wrong = |why: String| HomeError::Member { path: remote.to_string().into(), why };
    let reach = reach.ok_or_else(|| wrong(NO_REACH.to_owned()))?.clone();
    let (own, id, its_clock) = (remote.clone(), description.id, clock.clone());
    let may_lack = others.is_some();
    let spare = others.map(|others| Arc::new(One(others.clone(), number)) as Arc<dyn Spare>);
    let give_up = may_lack.then_some(GIVE_UP);
    let deadline = if may_lack { DEADLINE } else { link().deadline };
    let link = LinkOptions { give_up, returns: may_lack, spare, deadline, ..link() };
    let threads = reach.threads();
    let attach = move || attach(&*reach, &own, (id, number), bytes, link.clone(), &*its_clock);
    let (volume, missing) = match attach() {
        Ok(volume) => (Some(volume), None),
        Err(why) if may_lack => (None, Some(wrong(why))),
        Err(why) => return Err(wrong(why)),
    };
    let held = held.clone();
    let again = Box::new(move || {
        // It lives as long as the member does.
        let _held = &held;
        attach().ok()
    });
    let member = RemoteMember::new(volume, again, (DATA_START, bytes), clock.clone(), &*threads);
    Ok((member.map_err(|error| wrong(error.to_string()))?, missing))
}

/// Attaches it for writing, once it is known to be this volume's. Whoever writes it then is an
/// earlier life of this node, or one that serves a copy of the home folder, and is fenced off.
fn attach(
    reach: &dyn Reach,
    remote: &RemoteVolume,
    (id, number): ([u8; 16], usize),
    bytes: u64,
    options: LinkOptions,
    clock: &dyn Clock,
) -> Result<Volume, String> {
    let reads = LinkOptions { role: Role::Reader, returns: false, spare: None, ..options.clone() };
    let mut volume = reach.attach(remote, reads)?;
    let found = look(&mut volume, clock);
    let room = volume.geometry();
    volume.close(GOODBYE_PATIENCE);
    let found = found?
        .ok_or("has no superblock; restore it, or put another member in its place (`overside volume replace`)")?;
    if found.id != id || usize::from(found.member) != number {
        return Err("belongs to another volume, or to another place in this one".to_owned());
    }
    if found.data_start() != DATA_START
        || room.bytes < DATA_START.saturating_add(bytes)
        || room.unit_bytes != SECTOR_BYTES
    {
        return Err("is shorter than it was made, or of another kind; restore it".to_owned());
    }
    reach.attach(remote, LinkOptions { role: Role::TakeOver, ..options })
}

/// Makes a volume of another node a member: it must be empty, and nobody may write it.
pub(super) fn make(
    reach: Reached<'_>,
    remote: &RemoteVolume,
    superblock: &Superblock,
    clock: &dyn Clock,
) -> Result<(), HomeError> {
    let wrong = |why: String| HomeError::Member { path: remote.to_string().into(), why };
    let reach = reach.ok_or_else(|| wrong(NO_REACH.to_owned()))?;
    let mut volume = reach.attach(remote, link()).map_err(&wrong)?;
    let (room, needed) = (volume.geometry(), superblock.data_start().saturating_add(superblock.member_bytes));
    let mut made = || {
        if room.bytes < needed {
            return Err(format!(
                "has {} bytes, and a member of this volume needs {needed}; make it larger",
                room.bytes
            ));
        }
        match read(&mut volume, clock)? {
            Some(blocks) if blocks[..].iter().any(|byte| *byte != 0) => Err(match Superblock::newer(&blocks) {
                Ok(found) => format!("is a member of the volume {} already; delete that one first", found.name),
                Err(_) => "is not empty; make one for this alone".to_owned(),
            }),
            Some(_) => write(&mut volume, &superblock.bytes(), clock),
            None => Err("has no room for a superblock".to_owned()),
        }
    };
    let made = made();
    volume.close(GOODBYE_PATIENCE);
    made.map_err(wrong)
}

/// What a member on another node says of itself.
pub(super) fn superblock(
    reach: Reached<'_>,
    remote: &RemoteVolume,
    (id, number): ([u8; 16], usize),
    clock: &dyn Clock,
) -> Result<Superblock, HomeError> {
    let wrong = |why: String| HomeError::Member { path: remote.to_string().into(), why };
    let reach = reach.ok_or_else(|| wrong(NO_REACH.to_owned()))?;
    let mut volume = reach.attach(remote, LinkOptions { role: Role::Reader, ..link() }).map_err(&wrong)?;
    let found = look(&mut volume, clock);
    volume.close(GOODBYE_PATIENCE);
    let found = found.map_err(&wrong)?.filter(|found| found.id == id && usize::from(found.member) == number);
    found.ok_or_else(|| wrong("belongs to another volume, or to another place in this one".to_owned()))
}

/// A volume of another node gets room for so many bytes, where it has fewer.
pub(super) fn make_room(reach: Reached<'_>, remote: &RemoteVolume, bytes: u64) -> Result<(), HomeError> {
    let wrong = |why: String| HomeError::Member { path: remote.to_string().into(), why };
    let reach = reach.ok_or_else(|| wrong(NO_REACH.to_owned()))?;
    let room = || -> Result<u64, String> {
        let volume = reach.attach(remote, LinkOptions { role: Role::Reader, ..link() })?;
        let room = volume.geometry().bytes;
        volume.close(GOODBYE_PATIENCE);
        Ok(room)
    };
    let before = room().map_err(&wrong)?;
    if before >= bytes {
        return Ok(());
    }
    let small = |why: String| {
        wrong(format!(
            "has {before} bytes, and would need {bytes}; `overside volume resize` it on its node first: {why}"
        ))
    };
    reach.resize(remote, bytes).map_err(small)?;
    let after = room().map_err(&wrong)?;
    if after >= bytes { Ok(()) } else { Err(small(format!("it has {after} bytes now"))) }
}

/// A member on another node becomes larger, which has the room. What is new reads as zeros.
pub(super) fn grow(
    reach: Reached<'_>,
    remote: &RemoteVolume,
    member: ([u8; 16], usize),
    (before, grown): (u64, &Superblock),
    clock: &dyn Clock,
) -> Result<(), HomeError> {
    let wrong = |why: String| HomeError::Member { path: remote.to_string().into(), why };
    let reach = reach.ok_or_else(|| wrong(NO_REACH.to_owned()))?;
    let mut volume = attach(&**reach, remote, member, grown.member_bytes, link(), clock).map_err(&wrong)?;
    let mut larger = || {
        if before < grown.member_bytes {
            let (at, length) = (grown.data_start() + before, grown.member_bytes - before);
            for work in [Work::Discard { at, length }, Work::Flush] {
                complete(&mut volume, clock, work, DISK_PATIENCE).1.map_err(|error| error.to_string())?;
            }
        }
        write(&mut volume, &grown.bytes(), clock)
    };
    let larger = larger();
    volume.close(GOODBYE_PATIENCE);
    larger.map_err(wrong)
}

/// It is a member no more, and empty where its superblock was.
pub(super) fn release(
    reach: Reached<'_>,
    remote: &RemoteVolume,
    (id, number): ([u8; 16], usize),
    clock: &dyn Clock,
) -> Result<(), String> {
    let reach = reach.ok_or(NO_REACH)?;
    let mut volume = attach(&**reach, remote, (id, number), 0, link(), clock)?;
    let released = write(&mut volume, &[0; BLOCK_BYTES], clock);
    volume.close(GOODBYE_PATIENCE);
    released
}

/// The same of one that a killed process may have made a member. Who writes it now is not fenced
/// off.
pub(super) fn release_left(
    reach: Reached<'_>,
    remote: &RemoteVolume,
    (id, number): ([u8; 16], usize),
    clock: &dyn Clock,
) -> Result<(), String> {
    let mut volume = reach.ok_or(NO_REACH)?.attach(remote, link())?;
    let is_its = |found: &Superblock| found.id == id && usize::from(found.member) == number;
    let released = look(&mut volume, clock).and_then(|found| match found.filter(is_its) {
        Some(_) => write(&mut volume, &[0; BLOCK_BYTES], clock),
        None => Ok(()),
    });
    volume.close(GOODBYE_PATIENCE);
    released
}

fn look(volume: &mut Volume, clock: &dyn Clock) -> Result<Option<Superblock>, String> {
    Ok(read(volume, clock)?.and_then(|blocks| Superblock::newer(&blocks).ok()))
}

/// The two copies; none of a volume that is shorter.
fn read(volume: &mut Volume, clock: &dyn Clock) -> Result<Option<Vec<u8>>, String> {
    let length = 2 * BLOCK_BYTES;
    if volume.geometry().bytes < length as u64 {
        return Ok(None);
    }
    let work = Work::Read { at: 0, length, into: buffer(length).ok_or_else(no_memory)? };
    match complete(volume, clock, work, DISK_PATIENCE) {
        (Some(Work::Read { into, .. }), Ok(())) => Ok(Some(into[..length].to_vec())),
        (_, Err(error)) => Err(error.to_string()),
        (_, Ok(())) => Err(no_memory()),
    }
}

/// The same block twice.
fn write(volume: &mut Volume, block: &[u8; BLOCK_BYTES], clock: &dyn Clock) -> Result<(), String> {
    for copy in 0..2 {
        let mut from = buffer(BLOCK_BYTES).ok_or_else(no_memory)?;
        from[..BLOCK_BYTES].copy_from_slice(block);
        let work = Work::Write { at: copy * BLOCK_BYTES as u64, from: Bytes::prefix(from, BLOCK_BYTES), fua: true };
        complete(volume, clock, work, DISK_PATIENCE).1.map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn buffer(length: usize) -> Option<Buffer> {
    Segment::private(length).ok()?.carve(length).pop()
}

fn no_memory() -> String {
    DeviceError::NoMemory.to_string()
}

fn link() -> LinkOptions {
    LinkOptions { process: std::process::id(), ..LinkOptions::default() }
}

/// How long I/O waits for a member's node that is away before the others go on without it.
const GIVE_UP: Duration = Duration::from_secs(1);
/// A member's node that is silent for so long is away: its host may be cut off.
const DEADLINE: Duration = Duration::from_secs(5);
/// While another process may be ending.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
pub(super) const LOCK_EXTENSION: &str = "lock";
const GOODBYE_PATIENCE: Duration = Duration::from_secs(2);
const NO_REACH: &str = "lies on another node, which this program does not reach; use `overside volume serve`";
