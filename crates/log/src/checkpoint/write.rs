//! Writing a checkpoint, beside a log that goes on.

use std::io;
use std::time::Duration;

use overside_disk::{AlignedBuffer, Disk, FileId, Open, Request, mutant};

use super::footer::{Footer, PageGroup};
use super::manifest::{Manifest, Table};
use super::page::Page;
use crate::group::padded;
use crate::{Appender, DirectoryId, layout};

/// The checkpoints of a directory, for the thread that writes them. It may wait for the disk.
#[derive(Debug)]
pub struct Checkpoints {
    disk: Box<dyn Disk>,
    facts: Facts,
    last: Option<Manifest>,
    /// The next number of a file. None is used twice.
    next: u64,
}

/// What a checkpoint must say, and the log knows.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub directory: DirectoryId,
    pub incarnation: u64,
    pub deadline: Duration,
    pub part_bytes: usize,
    /// A log is written. If not, this number no segment had before.
    pub logged: bool,
    pub unused_segment: u64,
    /// Where the log ended before this start.
    pub position: u64,
    /// Damage was passed over: what is not needed any more is kept apart.
    pub salvaged: bool,
}

/// A checkpoint that is being written. Dropping it takes away what there is of it.
#[derive(Debug)]
pub struct Checkpoint<'a> {
    of: &'a mut Checkpoints,
    floor: u64,
    tables: Vec<Table>,
    /// Files that are only needed if this is finished.
    files: Vec<u64>,
    open: Option<OpenTable>,
    under_way: usize,
    pool: Vec<AlignedBuffer>,
    finished: bool,
}

/// A table of which pages are still to come.
#[derive(Debug)]
struct OpenTable {
    table: Table,
    file: FileId,
    footer: Footer,
    part: PageGroup,
    buffer: AlignedBuffer,
    length: usize,
}

impl Checkpoints {
    pub(crate) fn new(mut disk: Box<dyn Disk>, facts: Facts, last: Option<Manifest>) -> io::Result<Checkpoints> {
        let mut entries = disk.list(layout::CHECKPOINT)?;
        entries.extend(disk.list(layout::SALVAGED).unwrap_or_default());
        let next = entries.iter().filter_map(|entry| number_of(&entry.name)).max().unwrap_or(0) + 1;
        // A server that salvaged may have been killed before it had put all aside.
        let was_salvaged = disk.list("")?.iter().any(|entry| entry.name == layout::SALVAGED);
        let mut checkpoints = Checkpoints { disk, facts, last, next };
        // What a server before did not finish.
        checkpoints.clean(was_salvaged)?;
        Ok(checkpoints)
    }

    /// The newest one that counts.
    pub fn last(&self) -> Option<&Manifest> {
        self.last.as_ref()
    }

    /// Begins one. `floor` was read from the stamps before any of its pages is: every change below
    /// is in them.
    pub fn begin(&mut self, floor: u64) -> Checkpoint<'_> {
        let (tables, files, pool) = (Vec::new(), Vec::new(), Vec::new());
        Checkpoint { of: self, floor, tables, files, open: None, under_way: 0, pool, finished: false }
    }

    /// Sets table numbers below `next_table` aside, without a new checkpoint: after a crash,
    /// however much of the log it costs, no table gets one of them.
    ///
    /// # Errors
    /// The disk is full or failing; the last checkpoint still counts.
    pub fn set_aside(&mut self, next_table: u32) -> io::Result<()> {
        // Without a checkpoint, one that says nothing else.
        let none = || Manifest { directory: self.facts.directory, ..Manifest::default() };
        let last = self.last.clone().unwrap_or_else(none);
        let next_table = next_table.max(last.next_table);
        let manifest = Manifest { number: self.number(), next_table, ..last };
        self.publish(manifest, &mut false)?;
        self.clean(self.facts.salvaged)
    }

    /// Writes a manifest, and gives it its name once all that it lists has its own. Says when it is
    /// `named`, and may count.
    fn publish(&mut self, manifest: Manifest, named: &mut bool) -> io::Result<()> {
        let part = layout::part(manifest.number);
        let bytes = manifest.write();
        let mut buffer = AlignedBuffer::zeroed(bytes.len())?;
        buffer.copy_from_slice(&bytes);
        let file = self.create(&part)?;
        let length = buffer.len();
        let write = Request::Write { file, at: 0, buffer, length, sync: true };
        overside_disk::complete(&mut *self.disk, write, self.facts.deadline)?;
        overside_disk::complete(&mut *self.disk, Request::Sync { file }, self.facts.deadline)?;
        self.sync_folder(layout::CHECKPOINT)?;
        self.disk.rename(&part, &layout::manifest(manifest.number))?;
        *named = true;
        self.sync_folder(layout::CHECKPOINT)?;
        self.disk.close(file);
        self.last = Some(manifest);
        Ok(())
    }

    /// Takes away, or apart, what the newest checkpoint does not need. Files of strangers stay.
    fn clean(&mut self, aside: bool) -> io::Result<()> {
        let needed = self.last.as_ref().map(|last| {
            let files = last.tables.iter().map(|table| layout::pages(table.file));
            files.chain([layout::manifest(last.number)]).collect::<Vec<_>>()
        });
        let (needed, mut moved) = (needed.unwrap_or_default(), false);
        for entry in self.disk.list(layout::CHECKPOINT)? {
            let name = format!("{}/{}", layout::CHECKPOINT, entry.name);
            if needed.contains(&name) || number_of(&entry.name).is_none() {
                continue;
            }
            if aside {
                self.disk.rename(&name, &format!("{}/{}", layout::SALVAGED, entry.name))?;
                moved = true;
            } else {
                self.disk.unlink(&name)?;
            }
        }
        if moved {
            self.sync_folder(layout::SALVAGED)?;
            self.sync_folder(layout::CHECKPOINT)?;
        }
        Ok(())
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn create(&mut self, name: &str) -> io::Result<FileId> {
        let file = self.disk.open(name, Open::Create { direct: true })?;
        if self.disk.lock(file, self.facts.deadline)? {
            return Ok(file);
        }
        Err(io::Error::other(format!("{name} is locked by another process")))
    }

    fn sync_folder(&mut self, name: &str) -> io::Result<()> {
        let folder = self.disk.open(name, Open::Folder)?;
        let synced = overside_disk::complete(&mut *self.disk, Request::Sync { file: folder }, self.facts.deadline);
        self.disk.close(folder);
        synced.map(|_| ())
    }
}

impl Checkpoint<'_> {
    /// Begins a table's pages, after the last table's.
    ///
    /// # Errors
    /// The disk is full or failing.
    pub fn table(&mut self, number: u32, options: &[u8]) -> io::Result<()> {
        self.end_table()?;
        let file = self.of.number();
        self.files.push(file);
        let name = layout::pages(file);
        let table = Table { number, options: options.to_vec(), file, ..Table::default() };
        let file = self.of.create(&name)?;
        let buffer = self.buffer(self.of.facts.part_bytes)?;
        let part = PageGroup::default();
        self.open = Some(OpenTable { table, file, footer: Footer::default(), part, buffer, length: 0 });
        Ok(())
    }

    /// The next page of the table, in the order of keys. It is copied before this returns; `true`
    /// says that a write was begun, after which the caller may pause.
    ///
    /// # Errors
    /// The disk is full or failing.
    ///
    /// # Panics
    /// When no table was begun.
    pub fn page(&mut self, page: &Page<'_>) -> io::Result<bool> {
        let extents = if mutant("page-without-extents") { &[] } else { page.extents };
        let page = &Page { extents, ..*page };
        let bytes = page.bytes();
        let open = self.open.as_mut().expect("pages belong to a table");
        let full = open.length > 0 && open.length + bytes > self.of.facts.part_bytes;
        if full {
            self.flush()?;
        }
        let longer = self.open.as_ref().is_some_and(|open| open.length + bytes > open.buffer.len());
        let fresh = if longer { Some(AlignedBuffer::zeroed(bytes)?) } else { None };
        let Some(open) = &mut self.open else { return Ok(full) };
        if let Some(fresh) = fresh {
            open.buffer = fresh;
        }
        let checksum = page.write(&mut open.buffer[open.length..open.length + bytes]);
        open.length += bytes;
        open.part.pages += 1;
        open.part.rows += u64::from(page.count);
        open.part.checksum = crc32c::crc32c_append(open.part.checksum, &checksum.to_le_bytes());
        open.table.newest = open.table.newest.max(page.newest);
        Ok(full)
    }

    /// Takes a table over from the last checkpoint: nothing in it has changed since. False if it
    /// was not there, or may be damaged there: what was passed over must not be in a checkpoint
    /// again.
    pub fn keep(&mut self, number: u32) -> bool {
        if self.of.facts.salvaged {
            return false;
        }
        let last = self.of.last.as_ref().and_then(|last| last.tables.iter().find(|table| table.number == number));
        let kept = last.cloned();
        self.tables.extend(kept.clone());
        kept.is_some()
    }

    /// Whether every change in it is in the log and on the disk, so that it may count. Otherwise
    /// what is recovered could have a change without an earlier one.
    pub fn is_covered(&self, log: &Appender) -> bool {
        !self.of.facts.logged || log.synced_floor() > self.newest() || mutant("footer-before-log")
    }

    /// The newest change in it.
    pub fn newest(&self) -> u64 {
        let open = self.open.as_ref().map(|open| open.table.newest);
        self.tables.iter().map(|table| table.newest).chain(open).max().unwrap_or(0)
    }

    /// Bytes written so far.
    pub fn bytes(&self) -> u64 {
        let open = self.open.as_ref().map_or(0, |open| open.table.footer_at + open.length as u64);
        let ended = self.tables.iter().filter(|table| self.files.contains(&table.file));
        ended.map(|table| table.footer_at).sum::<u64>() + open
    }

    /// Brings all tables' pages to the disk. After it, wait until the log
    /// [covers](Self::is_covered) them.
    ///
    /// # Errors
    /// The disk is full or failing.
    pub fn written(&mut self) -> io::Result<()> {
        self.end_table()
    }

    /// Makes it count, and takes away what it replaces. The log may give up what lies below its
    /// floor afterwards ([`Log::release`](crate::Log::release)). No stamp that was drawn is
    /// `next_stamp` or greater, and no table had `next_table` or a greater number.
    ///
    /// # Errors
    /// The disk is full or failing, or the log does not cover it yet: then the last one still
    /// counts.
    pub fn finish(mut self, log: &Appender, next_stamp: u64, next_table: u32) -> io::Result<()> {
        self.end_table()?;
        if !self.is_covered(log) {
            return Err(io::Error::other("a change in the checkpoint is not in the log yet; wait until it is covered"));
        }
        let facts = self.of.facts.clone();
        self.tables.sort_by_key(|table| table.number);
        let manifest = Manifest {
            directory: facts.directory,
            number: self.of.number(),
            incarnation: facts.incarnation,
            floor: self.floor,
            segment: if facts.logged { log.segment_from(self.floor) } else { facts.unused_segment },
            position: if facts.logged { log.synced().0 } else { facts.position },
            next_stamp,
            next_table,
            logged: facts.logged,
            tables: std::mem::take(&mut self.tables),
        };
        if let Some(last) = self.of.last.as_ref().filter(|_| mutant("old-checkpoint-freed-early")) {
            let name = layout::manifest(last.number);
            self.of.disk.unlink(&name)?;
            self.of.sync_folder(layout::CHECKPOINT)?;
        }
        let segment = manifest.segment;
        self.of.publish(manifest, &mut self.finished)?;
        log.shared.need(segment);
        self.of.clean(self.of.facts.salvaged)?;
        self.of.facts.salvaged = false;
        Ok(())
    }

    /// Ends the table that was begun last.
    fn end_table(&mut self) -> io::Result<()> {
        self.flush()?;
        let Some(mut open) = self.open.take() else { return Ok(()) };
        let (bytes, checksum) = open.footer.write();
        open.table.footer_bytes =
            u32::try_from(bytes.len()).map_err(|_| io::Error::other("a table of too many parts"))?;
        open.table.footer_checksum = checksum;
        open.table.pages = open.footer.pages();
        open.table.rows = open.footer.rows();
        let mut buffer = AlignedBuffer::zeroed(bytes.len())?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        let (file, at, length) = (open.file, open.table.footer_at, buffer.len());
        self.push(Request::Write { file, at, buffer, length, sync: false })?;
        self.drain(0)?;
        if !mutant("pages-not-synced") {
            overside_disk::complete(&mut *self.of.disk, Request::Sync { file }, self.of.facts.deadline)?;
        }
        self.of.disk.close(file);
        self.tables.push(open.table);
        Ok(())
    }

    /// Writes the pages that were collected, as a part.
    fn flush(&mut self) -> io::Result<()> {
        if self.open.as_ref().is_none_or(|open| open.length == 0) {
            return Ok(());
        }
        let fresh = self.buffer(self.of.facts.part_bytes)?;
        let Some(open) = &mut self.open else { return Ok(()) };
        let mut buffer = std::mem::replace(&mut open.buffer, fresh);
        let length = padded(open.length);
        buffer[open.length..length].fill(0);
        let at = open.table.footer_at;
        open.footer.parts.push(PageGroup { at, bytes: open.length as u64, ..std::mem::take(&mut open.part) });
        open.table.footer_at += length as u64;
        open.length = 0;
        let file = open.file;
        self.push(Request::Write { file, at, buffer, length, sync: false })
    }

    fn buffer(&mut self, bytes: usize) -> io::Result<AlignedBuffer> {
        match self.pool.pop() {
            Some(buffer) if buffer.len() >= bytes => Ok(buffer),
            _ => AlignedBuffer::zeroed(bytes),
        }
    }

    fn push(&mut self, request: Request) -> io::Result<()> {
        self.of.disk.push(0, request);
        self.under_way += 1;
        self.of.disk.submit()?;
        self.drain(WRITES_MAX)
    }

    /// Waits until no more than `left` writes are under way.
    fn drain(&mut self, left: usize) -> io::Result<()> {
        const STEP: Duration = Duration::from_millis(100);
        let mut waited = Duration::ZERO;
        let mut done = Vec::new();
        let usual = padded(self.of.facts.part_bytes);
        loop {
            self.of.disk.poll(&mut done)?;
            let mut failed = None;
            for completion in done.drain(..) {
                self.under_way -= 1;
                waited = Duration::ZERO;
                match (completion.request, completion.result) {
                    (_, Err(error)) => failed = Some(error),
                    (Request::Write { buffer, .. }, _) if buffer.len() == usual => self.pool.push(buffer),
                    _ => {}
                }
            }
            if let Some(error) = failed {
                return Err(error);
            }
            if self.under_way <= left {
                return Ok(());
            }
            if waited >= self.of.facts.deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the disk does not answer"));
            }
            self.of.disk.wait(STEP)?;
            waited += STEP;
        }
    }
}

impl Drop for Checkpoint<'_> {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        while self.under_way > 0 && self.drain(0).is_err_and(|error| error.kind() != io::ErrorKind::TimedOut) {}
        if let Some(open) = self.open.take() {
            self.of.disk.close(open.file);
        }
        // What cannot be taken away now is by the next checkpoint.
        for file in &self.files {
            let _ = self.of.disk.unlink(&layout::pages(*file));
        }
    }
}

/// The number in a name of a checkpoint's file, if it is one.
fn number_of(name: &str) -> Option<u64> {
    [layout::PAGES, layout::MANIFEST, layout::PART].iter().find_map(|end| layout::number(name, end))
}

const WRITES_MAX: usize = 2;
