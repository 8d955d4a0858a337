//! Reading a checkpoint back.

use std::time::Duration;

use overside_disk::{AlignedBuffer, BLOCK_BYTES, Disk, FileId, Open, Request};

use super::footer::{Footer, PageGroup};
use super::manifest::{Manifest, Table};
use super::page::{PageRef, parse_part};
use crate::group::{NoHeader, padded};
use crate::{Directory, Refusal, layout};

/// A table's pages, for one thread. Several may read parts of the same table.
#[derive(Debug)]
pub struct PagesReader {
    disk: Box<dyn Disk>,
    file: FileId,
    name: String,
    length: u64,
    footer: Footer,
    deadline: Duration,
    salvages: bool,
    /// For the next part: fresh memory costs as much as reading into it.
    buffer: Option<AlignedBuffer>,
}

impl<D: Disk> Directory<D> {
    /// The newest checkpoint that was completed. Ask before the log is read: it is read from there
    /// on.
    ///
    /// # Errors
    /// It is damaged, of another directory or another version. In [`Mode::Salvage`] an older one is
    /// taken, if there is one.
    pub fn checkpoint(&mut self) -> Result<Option<Manifest>, Refusal> {
        let entries = self.entries(layout::CHECKPOINT)?;
        let mut numbers: Vec<u64> =
            entries.iter().filter_map(|entry| layout::number(&entry.name, layout::MANIFEST)).collect();
        numbers.sort_unstable();
        for number in numbers.into_iter().rev() {
            match self.manifest(number) {
                Ok(manifest) => {
                    self.take_checkpoint(manifest.clone());
                    return Ok(Some(manifest));
                }
                Err(Refusal::Damage(damage)) if self.salvages() => self.pass_over(number, damage.to_string()),
                Err(Refusal::Foreign { file }) if self.salvages() => {
                    self.pass_over(number, format!("{file} belongs to another data directory"));
                }
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(None)
    }

    fn pass_over(&mut self, number: u64, loss: String) {
        self.losses.push(loss);
        self.broken.push(layout::manifest(number));
    }

    fn manifest(&mut self, number: u64) -> Result<Manifest, Refusal> {
        let name = layout::manifest(number);
        let full = self.disk.path().join(&name).display().to_string();
        let (file, length) = open(&mut self.disk, &name, self.options.deadline)?;
        let read = read_new(&mut self.disk, file, 0, length.min(MANIFEST_BYTES_MAX), self.options.deadline);
        self.disk.close(file);
        let bytes = read.map_err(Refusal::io(format!("reading {full}")))?;
        match Manifest::parse(&bytes) {
            Err(NoHeader::Version(found)) => Err(Refusal::Version { file: full, found }),
            Err(NoHeader::Broken) => Err(Refusal::damage(full, 0, "the checkpoint's manifest cannot be read")),
            Ok(manifest) if manifest.directory != self.id => Err(Refusal::Foreign { file: full }),
            Ok(manifest) if manifest.number != number => {
                Err(Refusal::damage(full, 0, format!("it is the manifest of checkpoint {}", manifest.number)))
            }
            Ok(manifest) => Ok(manifest),
        }
    }

    /// The pages of one of its tables.
    ///
    /// # Errors
    /// The file is missing or damaged.
    pub fn pages(&self, table: &Table) -> Result<PagesReader, Refusal> {
        let name = layout::pages(table.file);
        let full = self.disk.path().join(&name).display().to_string();
        let reading = || Refusal::io(format!("reading {full}"));
        let mut disk = self.disk.another().map_err(reading())?;
        let (file, length) = match open(&mut disk, &name, self.options.deadline) {
            Err(Refusal::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(Refusal::damage(full, 0, format!("it is missing, with {} rows of a table", table.rows)));
            }
            opened => opened?,
        };
        let footer_bytes = u64::from(table.footer_bytes);
        let bytes = match table.footer_at.checked_add(footer_bytes) {
            Some(end) if end <= length && table.footer_at.is_multiple_of(BLOCK_BYTES as u64) => {
                read_new(&mut disk, file, table.footer_at, footer_bytes, self.options.deadline).map_err(reading())?
            }
            _ => AlignedBuffer::zeroed(1).map_err(reading())?,
        };
        let said = bytes.get(..table.footer_bytes as usize).and_then(|said| Footer::parse(said, table.footer_checksum));
        let footer = said.filter(|footer| footer.pages() == table.pages && footer.rows() == table.rows);
        let Some(footer) = footer else {
            let what = format!(
                "the list of its parts is not what the checkpoint says; {} rows of a table are lost",
                table.rows
            );
            return Err(Refusal::damage(full, table.footer_at, what));
        };
        let (deadline, salvages) = (self.options.deadline, self.salvages());
        Ok(PagesReader { disk, file, name: full, length, footer, deadline, salvages, buffer: None })
    }
}

impl PagesReader {
    /// Pages that lie together, in the order of keys.
    pub fn parts(&self) -> &[PageGroup] {
        &self.footer.parts
    }

    /// Gives out the pages of a part, in the order of keys, after all of them were checked.
    ///
    /// # Errors
    /// The part is damaged, or `each` refused a page. In [`Mode::Salvage`] the pages before the
    /// damage are given out first.
    ///
    /// # Panics
    /// When there is no such part.
    pub fn read(
        &mut self,
        part: usize,
        each: &mut dyn FnMut(&PageRef<'_>) -> Result<(), String>,
    ) -> Result<(), Refusal> {
        let part = self.footer.parts[part];
        if part.at.checked_add(part.bytes).is_none_or(|end| end > self.length) {
            return Err(self.damage(part, 0, "it is too short"));
        }
        let whole = padded(part.bytes as usize);
        let buffer = match self.buffer.take() {
            Some(buffer) if buffer.len() >= whole => Ok(buffer),
            _ => AlignedBuffer::zeroed(whole),
        };
        let read = buffer.and_then(|buffer| read(&mut self.disk, self.file, part.at, buffer, self.deadline));
        let buffer = read.map_err(Refusal::io(format!("reading {}", self.name)))?;
        let outcome = self.give(part, &buffer[..part.bytes as usize], each);
        self.buffer = Some(buffer);
        outcome
    }

    /// Checks the pages of a part, and gives them out.
    fn give(
        &self,
        part: PageGroup,
        bytes: &[u8],
        each: &mut dyn FnMut(&PageRef<'_>) -> Result<(), String>,
    ) -> Result<(), Refusal> {
        let damage = |at: u64, what: &str| self.damage(part, at, what);
        let mut pages = Vec::new();
        let (mut checksum, mut rows) = (0, 0u64);
        let mut fault = None;
        for page in parse_part(bytes) {
            match page {
                Ok((page, own)) => {
                    checksum = crc32c::crc32c_append(checksum, &own.to_le_bytes());
                    rows = rows.saturating_add(u64::from(page.count));
                    pages.push(page);
                }
                Err((at, what)) => fault = Some(damage(at as u64, what)),
            }
        }
        let listed = (checksum, pages.len() as u64, rows) == (part.checksum, part.pages, part.rows);
        if fault.is_none() && !listed {
            fault = Some(damage(0, "its pages are not those that were written"));
            pages.clear();
        }
        if fault.is_none() || self.salvages {
            for page in &pages {
                each(page).map_err(Refusal::Replay)?;
            }
        }
        fault.map_or(Ok(()), Err)
    }

    fn damage(&self, part: PageGroup, at: u64, what: &str) -> Refusal {
        let what = format!("{what}; up to {} rows of a table are lost", part.rows);
        Refusal::damage(&self.name, part.at + at, what)
    }
}

/// A file and its length, after its writer has let go of it.
fn open(disk: &mut dyn Disk, name: &str, deadline: Duration) -> Result<(FileId, u64), Refusal> {
    let full = disk.path().join(name).display().to_string();
    let opening = || Refusal::io(format!("opening {full}"));
    let file = disk.open(name, Open::Read { direct: true }).map_err(opening())?;
    let locked = disk.lock(file, deadline).map_err(opening())?;
    disk.close(file);
    if !locked {
        return Err(Refusal::StillWritten { file: full });
    }
    // Without the lock, which other readers want to see free.
    let file = disk.open(name, Open::Read { direct: true }).map_err(opening())?;
    Ok((file, disk.length(file).map_err(opening())?))
}

fn read_new(
    disk: &mut dyn Disk,
    file: FileId,
    at: u64,
    bytes: u64,
    deadline: Duration,
) -> std::io::Result<AlignedBuffer> {
    read(disk, file, at, AlignedBuffer::zeroed(padded(bytes as usize))?, deadline)
}

/// Fills the buffer; what the file does not have is zero.
fn read(
    disk: &mut dyn Disk,
    file: FileId,
    at: u64,
    buffer: AlignedBuffer,
    deadline: Duration,
) -> std::io::Result<AlignedBuffer> {
    match overside_disk::complete(disk, Request::Read { file, at, buffer }, deadline)? {
        (Request::Read { mut buffer, .. }, bytes) => {
            buffer[bytes as usize..].fill(0);
            Ok(buffer)
        }
        _ => Err(std::io::Error::other("the disk gave another request back")),
    }
}

/// A manifest of a million tables is smaller.
const MANIFEST_BYTES_MAX: u64 = 1 << 30;
