//! A data directory: whose it is, what lies in it, and how a log is taken up where the last one
//! ended.

use std::io;
use std::time::Duration;

use overside_disk::{AlignedBuffer, BLOCK_BYTES, Disk, Entry, FileId, Open, Request, mutant};

use crate::checkpoint::Manifest;
use crate::group::{DirectoryId, SEGMENT_BYTES_MAX, VERSION, number32};
use crate::log::Beginning;
use crate::read::{End, Needed, Reader};
use crate::{Appender, Log, Options, Record, Refusal, Replayed, layout};

/// A data directory that this process has locked. Reading it changes nothing.
#[derive(Debug)]
pub struct Directory<D: Disk> {
    pub(crate) disk: D,
    pub(crate) id: DirectoryId,
    /// Held while the directory is.
    _lock: Option<FileId>,
    pub(crate) mode: Mode,
    pub(crate) options: Options,
    pub(crate) losses: Vec<String>,
    /// Manifests that cannot be read.
    pub(crate) broken: Vec<String>,
    needed: Needed,
    last: Option<Manifest>,
    end: Option<End>,
}

/// What a directory is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// To serve what is in it. An empty folder becomes a data directory.
    Serve,
    /// The same, from what is sound: what is not is listed ([`Directory::losses`]) instead of
    /// refused.
    Salvage,
    /// To look at what is in it, if all of it is sound.
    Inspect,
    /// To look at it, and list what is not sound ([`Directory::losses`]).
    Check,
}

impl<D: Disk> Directory<D> {
    /// Locks the directory and checks that it is one. `fresh` is the id that a new one gets: 128
    /// bits by chance.
    ///
    /// # Errors
    /// It is in use, of another version or something else, or the disk fails.
    pub fn open(mut disk: D, fresh: DirectoryId, options: Options, mode: Mode) -> Result<Directory<D>, Refusal> {
        options.check()?;
        let path = disk.path().display().to_string();
        let entries = disk.list("").map_err(Refusal::io(format!("reading {path}")))?;
        let identity = entries.iter().any(|entry| entry.name == layout::IDENTITY);
        if !identity {
            if matches!(mode, Mode::Inspect | Mode::Check) {
                return Err(Refusal::Absent { path });
            }
            let strange = entries.iter().find(|entry| !is_ours(&mut disk, entry));
            if let Some(strange) = strange {
                return Err(Refusal::Strange { path, found: strange.name.clone() });
            }
        }
        let ours = [layout::LOCK, layout::IDENTITY, layout::LOG, layout::CHECKPOINT, layout::SALVAGED];
        all_private(&path, entries.iter().filter(|entry| ours.contains(&entry.name.as_str())))?;
        let there = entries.iter().any(|entry| entry.name == layout::LOCK);
        let how = if there { Open::Read { direct: false } } else { Open::Create { direct: false } };
        let mut lock = None;
        // Whoever only looks makes no file.
        if there || matches!(mode, Mode::Serve | Mode::Salvage) {
            let locking = || Refusal::io(format!("locking {path}/{}", layout::LOCK));
            let file = disk.open(layout::LOCK, how).map_err(locking())?;
            if !disk.lock(file, Duration::ZERO).map_err(locking())? {
                return Err(Refusal::InUse { path });
            }
            lock = Some(file);
        }
        let id = if identity { read_identity(&mut disk, &options)? } else { make(&mut disk, fresh, &options)? };
        let (losses, broken, needed) = (Vec::new(), Vec::new(), Needed::default());
        Ok(Directory { disk, id, _lock: lock, mode, options, losses, broken, needed, last: None, end: None })
    }

    /// The log is read from where this checkpoint needs it.
    pub(crate) fn take_checkpoint(&mut self, manifest: Manifest) {
        self.needed = Needed {
            segment: manifest.segment,
            stamp: manifest.floor,
            position: manifest.position,
            incarnation: manifest.incarnation,
            logged: manifest.logged,
            next_stamp: manifest.next_stamp.max(manifest.floor),
            next_table: manifest.next_table,
        };
        self.last = Some(manifest);
    }

    /// Whether what is damaged is passed over and listed.
    pub fn salvages(&self) -> bool {
        matches!(self.mode, Mode::Salvage | Mode::Check)
    }

    /// Notes something that was passed over in [`Mode::Salvage`], as a part of a checkpoint that
    /// cannot be read.
    pub fn lose(&mut self, what: String) {
        self.losses.push(what);
    }

    /// Its id.
    pub fn id(&self) -> DirectoryId {
        self.id
    }

    /// The disk, for a second queue onto it.
    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// What was found damaged and passed over, in [`Mode::Salvage`].
    pub fn losses(&self) -> &[String] {
        &self.losses
    }

    /// Reads the log: all records that the checkpoint does not have, in the order of their stamps.
    ///
    /// # Errors
    /// What was on the disk is lost or cannot be read, or `each` refused a record; nothing was
    /// changed.
    pub fn replay(&mut self, each: &mut dyn FnMut(Record<'_>) -> Result<(), String>) -> Result<Replayed, Refusal> {
        let numbers: Vec<u64> = self.numbers("")?.into_iter().collect();
        let losses = self.salvages().then_some(&mut self.losses);
        let (disk, directory, deadline) = (&mut self.disk, self.id, self.options.deadline);
        let mut reader = Reader { disk, directory, deadline, losses, buffer: None };
        let mut none = |_: Record<'_>| Ok(());
        // The fault: who looks at a directory sees its checkpoint alone.
        let alone = mutant("dump-without-log") && self.mode == Mode::Inspect;
        let end = reader.read(&numbers, self.needed, if alone { &mut none } else { each })?;
        let mut replayed = end.replayed;
        if mutant("stamp-reused") {
            replayed.next_stamp = self.needed.next_stamp.max(1);
        }
        self.end = Some(end);
        Ok(replayed)
    }

    /// Takes up the log where [`replay`](Self::replay) found its end. What lies behind it is never
    /// met again. With [`Durability::None`](crate::Durability::None) no log is written.
    ///
    /// # Errors
    /// The disk is full or failing. What was there before still is.
    ///
    /// # Panics
    /// When the log was not read.
    pub fn start(mut self) -> Result<(Log<D>, Appender), Refusal> {
        let end = self.end.take().expect("a log is read before it is taken up");
        let path = self.disk.path().display().to_string();
        let failed = || Refusal::io(format!("beginning the log in {path}"));
        let folder = self.disk.open(layout::LOG, Open::Folder).map_err(failed())?;
        let salvages = self.mode == Mode::Salvage && !self.losses.is_empty();
        if salvages {
            self.move_aside(&end).map_err(failed())?;
        }
        self.settle(&end).map_err(failed())?;
        let numbers = self.numbers("")?;
        let spares = self.numbers(layout::SPARE)?;
        let aside = self.disk.list(layout::SALVAGED).unwrap_or_default();
        let aside = aside.iter().filter_map(|entry| layout::number(&entry.name, ""));
        let greatest = numbers.iter().chain(&spares).copied().chain(aside).max().unwrap_or(0).max(self.needed.segment);
        // What was torn goes before the next segment comes: a crash in between finds the same end.
        for number in end.apart.iter().filter(|number| numbers.contains(number)) {
            self.disk.unlink(&layout::segment(*number)).map_err(failed())?;
        }
        let beginning = Beginning {
            directory: self.id,
            incarnation: end.incarnation,
            folder,
            position: end.replayed.position
                + if mutant("append-behind-torn-tail") { end.replayed.cut_bytes } else { 0 },
            previous: end.previous,
            floor: end.floor.max(end.replayed.next_stamp),
            after: end.after,
            number: greatest + 1,
            segments: end.segments,
            salvaged: salvages,
            checkpoint: self.last,
        };
        let names: Vec<String> = spares.iter().map(|number| format!("{number:016x}{}", layout::SPARE)).collect();
        let logs = self.options.durability != crate::Durability::None;
        let mut log = Log::begin(self.disk, self.options, beginning, names).map_err(failed())?;
        if end.after > 0 && logs {
            log.mark_predecessor(end.after, end.at).map_err(failed())?;
        }
        let appender = log.appender();
        Ok((log, appender))
    }

    /// Numbers of the files of the log with this end of name, ascending.
    pub(crate) fn numbers(&mut self, end: &str) -> Result<Vec<u64>, Refusal> {
        let entries = self.entries(layout::LOG)?;
        Ok(entries.iter().filter_map(|entry| layout::number(&entry.name, end)).collect())
    }

    /// What lies in one of its folders: files alone, which nobody else may write.
    pub(crate) fn entries(&mut self, folder: &str) -> Result<Vec<Entry>, Refusal> {
        let path = self.disk.path().join(folder).display().to_string();
        let entries = match self.disk.list(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Refusal::NoFolder { path }),
            listed => listed.map_err(Refusal::io(format!("reading {path}")))?,
        };
        if let Some(strange) = entries.iter().find(|entry| !entry.is_file) {
            return Err(Refusal::NoFile { path, found: strange.name.clone() });
        }
        all_private(&path, entries.iter())?;
        Ok(entries)
    }

    /// Brings to the disk what a killed server left with the kernel alone: from now on it counts as
    /// durable.
    fn settle(&mut self, end: &End) -> io::Result<()> {
        for segment in end.segments.iter().filter(|_| !mutant("recovered-not-settled")) {
            let file = self.disk.open(&layout::segment(segment.number), Open::Read { direct: false })?;
            let synced = overside_disk::complete(&mut self.disk, Request::Sync { file }, self.options.deadline);
            self.disk.close(file);
            synced?;
        }
        for folder in ["", layout::LOG, layout::CHECKPOINT] {
            self.sync_folder(folder)?;
        }
        Ok(())
    }

    fn sync_folder(&mut self, name: &str) -> io::Result<()> {
        let folder = self.disk.open(name, Open::Folder)?;
        let synced = overside_disk::complete(&mut self.disk, Request::Sync { file: folder }, self.options.deadline);
        self.disk.close(folder);
        synced.map(|_| ())
    }

    /// Keeps what is not sound under `salvaged/`: segments that are no part of the log, and a copy
    /// of the one in which it breaks off.
    fn move_aside(&mut self, end: &End) -> io::Result<()> {
        if !self.disk.list("")?.iter().any(|entry| entry.name == layout::SALVAGED) {
            self.disk.create_folder(layout::SALVAGED)?;
        }
        let aside = |number: u64| format!("{}/{number:016x}", layout::SALVAGED);
        if end.after > 0 {
            self.copy(&layout::segment(end.after), &aside(end.after))?;
        }
        for number in &end.apart {
            self.disk.rename(&layout::segment(*number), &aside(*number))?;
        }
        for name in std::mem::take(&mut self.broken) {
            let last = name.rsplit('/').next().unwrap_or(&name);
            self.disk.rename(&name, &format!("{}/{last}", layout::SALVAGED))?;
        }
        self.sync_folder(layout::SALVAGED)?;
        self.sync_folder("")
    }

    fn copy(&mut self, from: &str, to: &str) -> io::Result<()> {
        let file = self.disk.open(from, Open::Read { direct: false })?;
        let length = self.disk.length(file)?.min(SEGMENT_BYTES_MAX) as usize;
        let read = Request::Read { file, at: 0, buffer: AlignedBuffer::zeroed(length)? };
        let read = overside_disk::complete(&mut self.disk, read, self.options.deadline);
        self.disk.close(file);
        let (Request::Read { buffer, .. }, _) = read? else {
            return Err(io::Error::other("another request came back"));
        };
        // An attempt before may have been cut off.
        let _ = self.disk.unlink(to);
        let file = self.disk.open(to, Open::Create { direct: false })?;
        let length = buffer.len();
        let write = Request::Write { file, at: 0, buffer, length, sync: true };
        let written = overside_disk::complete(&mut self.disk, write, self.options.deadline);
        self.disk.close(file);
        written.map(|_| ())
    }
}

/// Refuses what others could have written, as they could write the tables.
fn all_private<'e>(folder: &str, mut entries: impl Iterator<Item = &'e Entry>) -> Result<(), Refusal> {
    let shared = entries.find(|entry| !entry.is_private);
    shared.map_or(Ok(()), |entry| Err(Refusal::NotPrivate { path: format!("{folder}/{}", entry.name) }))
}

/// Whether an entry of a folder without IDENTITY may come from an attempt to make a data directory
/// of it.
fn is_ours(disk: &mut dyn Disk, entry: &Entry) -> bool {
    match entry.name.as_str() {
        layout::LOCK | layout::IDENTITY_PART => entry.is_file,
        layout::LOG | layout::CHECKPOINT => {
            entry.is_folder && disk.list(&entry.name).is_ok_and(|inside| inside.is_empty())
        }
        _ => false,
    }
}

/// Makes an empty folder a data directory. IDENTITY comes last.
fn make(disk: &mut dyn Disk, id: DirectoryId, options: &Options) -> Result<DirectoryId, Refusal> {
    let path = disk.path().display().to_string();
    let mut made = || {
        for folder in [layout::LOG, layout::CHECKPOINT] {
            if disk.list(folder).is_err() {
                disk.create_folder(folder)?;
            }
        }
        let _ = disk.unlink(layout::IDENTITY_PART);
        let file = disk.open(layout::IDENTITY_PART, Open::Create { direct: false })?;
        let mut buffer = AlignedBuffer::zeroed(BLOCK_BYTES)?;
        identity(&id, &mut buffer);
        let write = Request::Write { file, at: 0, buffer, length: BLOCK_BYTES, sync: true };
        overside_disk::complete(disk, write, options.deadline)?;
        disk.close(file);
        // The folders have their names before the one that says that they are there.
        let root = disk.open("", Open::Folder)?;
        overside_disk::complete(disk, Request::Sync { file: root }, options.deadline)?;
        disk.rename(layout::IDENTITY_PART, layout::IDENTITY)?;
        overside_disk::complete(disk, Request::Sync { file: root }, options.deadline)?;
        disk.close(root);
        Ok(id)
    };
    made().map_err(Refusal::io(format!("making {path} a data directory")))
}

fn read_identity(disk: &mut dyn Disk, options: &Options) -> Result<DirectoryId, Refusal> {
    let path = disk.path().join(layout::IDENTITY).display().to_string();
    let mut read = || {
        let file = disk.open(layout::IDENTITY, Open::Read { direct: false })?;
        let buffer = AlignedBuffer::zeroed(BLOCK_BYTES)?;
        let read = overside_disk::complete(disk, Request::Read { file, at: 0, buffer }, options.deadline);
        disk.close(file);
        read
    };
    let (request, bytes) = read().map_err(Refusal::io(format!("reading {path}")))?;
    let Request::Read { buffer, .. } = request else { return Err(Refusal::Identity { file: path }) };
    parse_identity(&buffer[..bytes as usize]).map_err(|version| match version {
        Some(found) => Refusal::Version { file: path, found },
        None => Refusal::Identity { file: path },
    })
}

/// What IDENTITY says: magic, version, id, and a checksum of the block in its last four bytes.
fn identity(id: &DirectoryId, block: &mut [u8]) {
    block[..8].copy_from_slice(IDENTITY_MAGIC);
    block[8..12].copy_from_slice(&VERSION.to_le_bytes());
    block[16..32].copy_from_slice(id);
    let (said, checksum) = block.split_at_mut(BLOCK_BYTES - 4);
    checksum.copy_from_slice(&crc32c::crc32c(said).to_le_bytes());
}

/// The id; or the version, if it is a sound one of another version.
fn parse_identity(block: &[u8]) -> Result<DirectoryId, Option<u32>> {
    let (said, checksum) = block.split_at_checked(BLOCK_BYTES - 4).ok_or(None)?;
    if &said[..8] != IDENTITY_MAGIC || crc32c::crc32c(said).to_le_bytes() != checksum {
        return Err(None);
    }
    let version = number32(said, 8);
    if version != VERSION {
        return Err(Some(version));
    }
    Ok(said[16..32].try_into().expect("16 bytes"))
}

const IDENTITY_MAGIC: &[u8; 8] = b"ovidenty";
