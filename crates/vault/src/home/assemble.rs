//! A volume's members become its device.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use overside_disk::{AlignedBuffer, BLOCK_BYTES, Open, Request, complete};
use overside_verbs::Clock;
use overside_volume::{Array, Device, Geometry, MemoryDevice, Raid, Sectors, Sums};

use super::description::Description;
use super::making::side_of;
use super::remote::{self, Held, Others, Reached};
use super::{DISK_PATIENCE, HomeError, LOCK_PATIENCE, LayoutKind, MemberSpec, Opened, Superblock, of};
use crate::members::volatile::SIDE_BYTES;
use crate::members::{Absent, FileMember, Spindle, Volatile};
use crate::server::{About, WriterRecord, lock};

/// Opens the members, and makes the volume of them. A redundant one does without those that cannot
/// be opened; where the description is written down, that they miss writes from now on is noted
/// there first. Beside it is what says which regions are written.
pub(super) fn assemble(
    description: &Description,
    written: Option<(PathBuf, PathBuf)>,
    around: (Reached<'_>, &Arc<dyn Clock>),
) -> Result<Opened, HomeError> {
    let clock = around.1;
    let may_lack = description.layout.is_redundant() && written.is_some();
    let held = match &written {
        Some((path, _)) => remote::hold(description, path, clock, LOCK_PATIENCE)?,
        None => None,
    };
    let needed = if description.layout == LayoutKind::Parity { description.members.len() - 1 } else { 1 };
    let others = may_lack.then(|| Others::new(description.members.len(), needed));
    let Members { members, sums, absent, away, refused } = open_members(description, around, (&held, others.as_ref()))?;
    let lost: BTreeSet<usize> = (0..members.len()).filter(|number| members[*number].is_none()).collect();
    let missing = &lost | &away;
    let stale: BTreeSet<usize> = &description.stale | &missing;
    let geometry = members.iter().flatten().map(|member| member.geometry()).next();
    let Some(geometry) = geometry.filter(|_| members.len() - stale.len() >= needed) else {
        let path = written.map(|(path, _)| path).unwrap_or_default();
        let why = "has no member that is current, or of RAID 5 too few".to_owned();
        return Err(refused.unwrap_or(HomeError::Member { path, why }));
    };
    let devices = members.into_iter().map(|member| member.unwrap_or_else(|| Box::new(Absent::new(geometry))));
    let devices: Vec<Box<dyn Device>> = devices.collect();
    let mut about = about(description, &devices, sums);
    let mut raid = match description.layout {
        LayoutKind::Concat => return Ok(opened(Array::concat(devices)?, about, absent)),
        LayoutKind::Stripes => return Ok(opened(Array::stripes(devices, description.stripe)?, about, absent)),
        LayoutKind::Mirror => Raid::mirror(devices)?,
        LayoutKind::Parity => Raid::parity(devices, description.stripe)?,
    };
    about.health = raid.health();
    others.iter().for_each(|others| others.are(raid.health()));
    stale.iter().for_each(|member| raid.set_stale(*member));
    lost.iter().for_each(|member| raid.set_absent(*member));
    let Some((path, intents)) = written else { return Ok(opened(raid, about, absent)) };
    let noted = Description { stale, ..description.clone() };
    // With what a crash has left of it, a member that is missing is noted, too.
    let noted = write_down(&mut raid, noted, path.clone());
    let news = &missing - &description.stale;
    if description.members.iter().any(|(spec, _)| spec.is_durable()) {
        let store = open_intents(&intents, raid.store_bytes())?;
        let bits = news.iter().fold(0, |bits, member| bits | 1 << member);
        raid.with_intents(Box::new(store), clock.clone(), bits).map_err(device_of(&intents))?;
    }
    if !news.is_empty() {
        lock(&noted).publish(&path)?;
    }
    Ok(opened(raid, about, absent))
}

/// What has become of an array's members is written down before anybody hears of it.
fn write_down(raid: &mut Raid, description: Description, path: PathBuf) -> Arc<Mutex<Description>> {
    raid.set_lost(&description.lost);
    let noted = Arc::new(Mutex::new(description));
    let (also, also_at) = (noted.clone(), path.clone());
    raid.on_lost(move |ranges| {
        let mut noted = lock(&also);
        noted.lost.clone_from(ranges);
        noted.publish(&also_at).is_ok()
    });
    let also = noted.clone();
    raid.on_change(move |member, state| {
        let mut noted = lock(&also);
        match state {
            overside_volume::MemberState::Stale => noted.stale.insert(member),
            overside_volume::MemberState::Current => noted.stale.remove(&member),
        };
        noted.publish(&path).is_ok()
    });
    noted
}

/// A volume's members, as far as they can be opened.
struct Members {
    /// None: there is nothing in its place.
    members: Vec<Option<Box<dyn Device>>>,
    /// Which of them have checksums.
    sums: Vec<bool>,
    /// What cannot be used, or not yet, and why.
    absent: Vec<String>,
    /// Those whose nodes cannot be reached yet.
    away: BTreeSet<usize>,
    /// Why the first of them is not there.
    refused: Option<HomeError>,
}

fn open_members(
    description: &Description,
    around: (Reached<'_>, &Arc<dyn Clock>),
    (held, others): (&Held, Option<&Arc<Others>>),
) -> Result<Members, HomeError> {
    let count = description.members.len();
    let (members, sums, absent) = (Vec::with_capacity(count), vec![false; count], Vec::new());
    let mut found = Members { members, sums, absent, away: BTreeSet::new(), refused: None };
    for (number, spec) in description.members.iter().enumerate() {
        if let (MemberSpec::Remote(remote), bytes) = spec {
            let (member, missing) = remote::open((remote, *bytes), description, number, around, (held, others))?;
            if let Some(error) = missing {
                found.absent.push(format!("{error}; it gets what it misses once it is there"));
                found.refused.get_or_insert(error);
                found.away.insert(number);
            }
            found.members.push(Some(Box::new(member)));
            continue;
        }
        let member = match open_specified(spec, description, number, around.1) {
            Ok((member, has_sums)) => {
                found.sums[number] = has_sums;
                if description.stale.contains(&number) {
                    found.absent.push(format!("{}: has missed writes, and gets them now", spec.0));
                }
                Some(member)
            }
            // Whoever has it may be writing it.
            Err(error @ HomeError::InUse(_)) => return Err(error),
            Err(error) if others.is_none() => return Err(error),
            Err(error) => {
                found.absent.push(error.to_string());
                found.refused.get_or_insert(error);
                None
            }
        };
        found.members.push(member);
    }
    Ok(found)
}

fn about(description: &Description, devices: &[Box<dyn Device>], sums: Vec<bool>) -> About {
    let opened = description.members.iter().zip(devices);
    let members = opened.map(|((spec, _), device)| (spec.to_string(), device.geometry().bytes)).collect();
    About { layout: description.layout.name().to_owned(), members, sums, files: description.files, ..About::default() }
}

fn opened(device: impl Device + 'static, about: About, absent: Vec<String>) -> Opened {
    Opened { device: Box::new(Sectors::over(device)), about, writer: WriterRecord::new(None, |_| true), absent }
}

/// Makes what says which regions of a new volume are written.
pub(super) fn format_intents(description: &Description, path: &Path, clock: &Arc<dyn Clock>) -> Result<(), HomeError> {
    // As large as its members, and nothing behind them.
    let geometry = Geometry { bytes: member_bytes(description)?, unit_bytes: BLOCK_BYTES as u64, read_only: false };
    let devices = description.members.iter().map(|_| Box::new(Absent::new(geometry)) as Box<dyn Device>).collect();
    let raid = match description.layout {
        LayoutKind::Parity => Raid::parity(devices, description.stripe)?,
        _ => Raid::mirror(devices)?,
    };
    let mut store = open_intents(path, raid.store_bytes())?;
    raid.format_store(&mut store, &**clock).map_err(device_of(path))
}

pub(super) fn member_bytes(description: &Description) -> Result<u64, HomeError> {
    let remote =
        description.members.iter().find_map(|(spec, bytes)| matches!(spec, MemberSpec::Remote(_)).then_some(*bytes));
    if let Some(bytes) = remote {
        return Ok(bytes);
    }
    let paths = description.members.iter().filter_map(|(spec, _)| spec.path());
    let path = paths.into_iter().next().unwrap_or(Path::new(""));
    Ok(super::repair::superblock(path)?.member_bytes)
}

fn open_intents(path: &Path, bytes: u64) -> Result<FileMember, HomeError> {
    let wrong = || HomeError::Member { path: path.to_path_buf(), why: "names no file".to_owned() };
    let (folder, name) = (path.parent(), path.file_name().and_then(|name| name.to_str()));
    let (folder, name) = folder.zip(name).ok_or_else(wrong)?;
    let mut disk = overside_disk::open(folder).map_err(of(path))?;
    let file = match disk.open(name, Open::Write { direct: true }) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => disk.open(name, Open::Create { direct: true }),
        opened => opened,
    };
    let file = file.map_err(of(path))?;
    if !disk.lock(file, LOCK_PATIENCE).map_err(of(path))? {
        return Err(HomeError::InUse(path.to_path_buf()));
    }
    Ok(FileMember::new(disk, file, 0, bytes))
}

/// The member, and whether it has checksums.
fn open_specified(
    (spec, bytes): &(MemberSpec, u64),
    description: &Description,
    number: usize,
    clock: &Arc<dyn Clock>,
) -> Result<(Box<dyn Device>, bool), HomeError> {
    let Some(path) = spec.path() else {
        let memory = MemoryDevice::new(*bytes);
        return Ok((Box::new(memory.map_err(|error| of(Path::new("memory"))(io::Error::other(error)))?), false));
    };
    let (file, superblock) = open_member(path, description, number, LOCK_PATIENCE)?;
    let mut member: Box<dyn Device> = Box::new(file);
    if let MemberSpec::Volatile { seed, .. } = spec {
        let side = side_of(path);
        let unflushed = open_intents(&side, SIDE_BYTES)?;
        let seed = seed.wrapping_add(number as u64);
        let opened = Volatile::open(member, Box::new(unflushed), seed, &**clock);
        member = Box::new(opened.map_err(device_of(&side))?.0);
    }
    if let MemberSpec::Spindle { kind, .. } = spec {
        // Below the checksums: their reads and writes move the arm, too.
        let turning = Spindle::over(member, kind.times(), clock.clone());
        member = Box::new(turning.map_err(|error| of(path)(io::Error::other(error)))?);
    }
    match superblock.sums() {
        None => Ok((member, false)),
        Some(places) => {
            let opened = Sums::open(member, places, clock.clone());
            Ok((Box::new(opened.map_err(device_of(path))?), true))
        }
    }
}

pub(super) fn open_member(
    path: &Path,
    description: &Description,
    number: usize,
    patience: Duration,
) -> Result<(FileMember, Superblock), HomeError> {
    let wrong = |why: &str| HomeError::Member { path: path.to_path_buf(), why: why.to_owned() };
    let (folder, name) = (path.parent(), path.file_name().and_then(|name| name.to_str()));
    let (Some(folder), Some(name)) = (folder, name) else { return Err(wrong("names no file")) };
    let mut disk = overside_disk::open(folder).map_err(of(path))?;
    let file = disk.open(name, Open::Write { direct: true }).map_err(of(path))?;
    // A killed node's writes end before its lock does.
    if !disk.lock(file, patience).map_err(of(path))? {
        return Err(HomeError::InUse(path.to_path_buf()));
    }
    let buffer = AlignedBuffer::zeroed(2 * BLOCK_BYTES).map_err(of(path))?;
    let (request, moved) =
        complete(&mut *disk, Request::Read { file, at: 0, buffer }, DISK_PATIENCE).map_err(of(path))?;
    let Request::Read { buffer, .. } = request else { return Err(wrong("the disk gave another request back")) };
    let found = Superblock::newer(&buffer[..moved as usize]);
    let found = found.map_err(|why| wrong(&format!("has no superblock: {why}; restore the member")))?;
    if found.id != description.id || usize::from(found.member) != number {
        return Err(wrong("belongs to another volume, or to another place in this one; restore the member"));
    }
    let end = found.data_start() + found.member_bytes;
    if disk.length(file).map_err(of(path))? < end {
        return Err(wrong("is shorter than it was made; restore the member"));
    }
    // Sums lie outside of the data.
    let start = if found.sums().is_some() { 0 } else { found.data_start() };
    Ok((FileMember::new(disk, file, start, end - start), found))
}

fn device_of(path: &Path) -> impl Fn(overside_volume::DeviceError) -> HomeError + '_ {
    move |why| HomeError::Device { path: path.to_path_buf(), why }
}
