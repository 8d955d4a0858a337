//! Reading a log back: where it ends, and whether that end is a torn tail or damage.

use std::collections::VecDeque;
use std::time::Duration;

use overside_disk::{AlignedBuffer, BLOCK_BYTES, Disk, FileId, Open, Request, mutant};

use crate::gather::Segment;
use crate::group::{DirectoryId, Group, GroupKind, NoHeader, SEGMENT_BYTES_MAX, SegmentHeader, padded};
use crate::record;
use crate::replay::HeldRecords;
use crate::{Record, Refusal, layout};

/// What reading a log came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Records that were given out.
    pub records: u64,
    /// Bytes of the log that they were in.
    pub bytes: u64,
    /// Bytes of groups behind the log's end, which were being written when the server ended.
    /// Nothing in them was acknowledged.
    pub cut_bytes: u64,
    /// Greater than every stamp that was read.
    pub next_stamp: u64,
    /// Greater than every table's number that was read.
    pub next_table: u32,
    /// Where the log ends.
    pub position: u64,
}

/// Where a log begins that a checkpoint needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needed {
    /// The segment; 0 without a checkpoint.
    pub segment: u64,
    /// Stamps below are in the checkpoint.
    pub stamp: u64,
    /// Position that was on the disk when the checkpoint was completed, and by which start of a
    /// server.
    pub position: u64,
    pub incarnation: u64,
    /// A log was written then.
    pub logged: bool,
    /// Numbers that were not given then.
    pub next_stamp: u64,
    pub next_table: u32,
}

/// Where a log ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct End {
    pub replayed: Replayed,
    /// Checksum of the last group.
    pub previous: u32,
    pub floor: u64,
    /// The last segment, and the place in it where the log ends; 0 if there is none.
    pub after: u64,
    pub at: u64,
    /// Greater than every start's that was read.
    pub incarnation: u64,
    /// Segments of the log that may be needed, oldest first.
    pub segments: VecDeque<Segment>,
    /// Segments that are no part of it.
    pub apart: Vec<u64>,
}

impl End {
    /// The log goes on behind this group, of a segment with stamps up to `newest` so far.
    fn pass(&mut self, group: &Group<'_>, newest: u64) {
        self.floor = self.floor.max(group.header.floor);
        let next = newest.saturating_add(1).max(group.header.floor);
        self.replayed.next_stamp = self.replayed.next_stamp.max(next);
        self.replayed.position += group.bytes as u64;
        self.replayed.bytes += group.bytes as u64;
        self.previous = group.checksum;
    }
}

/// A segment as it was found.
struct FoundSegment {
    number: u64,
    header: Option<SegmentHeader>,
}

/// What is known while segments are read.
pub(crate) struct Reader<'a, D: Disk> {
    pub disk: &'a mut D,
    pub directory: DirectoryId,
    pub deadline: Duration,
    /// Damage ends the log, and is noted here.
    pub losses: Option<&'a mut Vec<String>>,
    /// For the next segment: fresh memory costs more than reading into it.
    pub buffer: Option<AlignedBuffer>,
}

/// A segment that is read as far as it is looked at: most of one that a server has just begun is
/// what it held before.
struct Content {
    name: String,
    file: FileId,
    /// In whole blocks.
    bytes: usize,
    /// What lies in the file from there on.
    buffer: Option<AlignedBuffer>,
    from: usize,
    filled: usize,
}

impl Content {
    /// What was read of it from `at` on.
    fn read(&self, at: usize) -> &[u8] {
        let filled = self.buffer.as_ref().map(|buffer| &buffer[..self.filled]);
        filled.and_then(|filled| filled.get(at.checked_sub(self.from)?..)).unwrap_or(&[])
    }

    /// Bytes of the group that the block at `at` says it begins, or of the block; no more than the
    /// file has.
    fn wanted(&self, at: usize) -> usize {
        let announced = Group::announced(self.read(at)).map_or(0, |(_, _, bytes)| bytes as usize);
        announced.max(BLOCK_BYTES).min(self.bytes.saturating_sub(at))
    }
}

impl<D: Disk> Reader<'_, D> {
    /// Reads all records from `needed` on and gives them out by stamp.
    pub fn read(
        &mut self,
        numbers: &[u64],
        needed: Needed,
        each: &mut dyn FnMut(Record<'_>) -> Result<(), String>,
    ) -> Result<End, Refusal> {
        let mut found = Vec::new();
        for number in numbers {
            found.push(FoundSegment { number: *number, header: self.header(*number)? });
        }
        let mut end = End { floor: needed.stamp, ..End::default() };
        end.replayed.position = needed.position;
        // Stamp 0 is that of no change.
        (end.replayed.next_stamp, end.replayed.next_table) = (needed.next_stamp.max(1), needed.next_table);
        let headers = found.iter().filter_map(|found| found.header);
        end.incarnation = headers.map(|header| header.incarnation).max().unwrap_or(0).max(needed.incarnation) + 1;
        let mut held = HeldRecords::default();
        let mut next = self.first(&found, needed)?;
        let mut last = None;
        while let Some(header) = next {
            if last.is_none() {
                (end.replayed.position, end.previous) = (header.first, header.previous);
            }
            last = Some(header);
            next = self.segment(&found, header, needed, &mut end, &mut held, each)?;
        }
        let applied = &mut end.replayed.records;
        held.finish(|record| {
            *applied += 1;
            if mutant("tail-not-replayed") { Ok(()) } else { each(record) }
        })
        .map_err(Refusal::Replay)?;
        let kept = |number: u64| end.segments.iter().any(|segment| segment.number == number);
        let apart = numbers.iter().copied().filter(|number| !kept(*number));
        end.apart = apart.collect();
        self.behind(&found, last, needed, &mut end)?;
        Ok(end)
    }

    /// The segment that the log begins in, if there is a log.
    fn first(&mut self, found: &[FoundSegment], needed: Needed) -> Result<Option<SegmentHeader>, Refusal> {
        if let Some(first) = found.iter().find(|found| found.number == needed.segment) {
            if first.header.is_none() && needed.logged {
                self.lost(&layout::segment(needed.segment), 0, "it has no sound header, and the checkpoint needs it")?;
            }
            if first.header.is_some() || needed.logged {
                return Ok(first.header);
            }
        }
        // Where no log was being written there is none, unless one was begun afterwards.
        let begun = found.iter().filter(|found| found.number > needed.segment).filter_map(|found| found.header);
        let begun = begun.clone().find(|header| header.after == 0);
        if begun.is_none() && needed.logged {
            self.lost(&layout::segment(needed.segment), 0, "it is missing, and the checkpoint needs it")?;
        }
        let orphan = found.iter().find_map(|found| found.header.filter(|header| header.number > needed.segment));
        if let (None, Some(header), false) = (begun, orphan, needed.logged) {
            let file = layout::segment(header.after);
            self.lost(&file, 0, "it is missing, and the log goes on behind it")?;
        }
        Ok(begun)
    }

    /// Reads the groups of a segment; gives the one in which the log goes on.
    fn segment(
        &mut self,
        found: &[FoundSegment],
        header: SegmentHeader,
        needed: Needed,
        end: &mut End,
        held: &mut HeldRecords,
        each: &mut dyn FnMut(Record<'_>) -> Result<(), String>,
    ) -> Result<Option<SegmentHeader>, Refusal> {
        let mut content = self.content(header.number)?;
        let bytes = content.bytes as u64;
        if bytes < header.bytes {
            let what = format!("the file ends here, {} bytes before its header says", header.bytes - bytes);
            self.lost(&layout::segment(header.number), bytes, &what)?;
        }
        let mut segment = Segment { number: header.number, newest: 0, begun: true };
        let mut at = BLOCK_BYTES;
        let mut continued = false;
        loop {
            // The planted fault: where a group is missing, the next one is taken.
            if mutant("hole-skipped") && Group::parse(self.look(&mut content, at)?).is_none() {
                at += BLOCK_BYTES;
            }
            let Some(group) = Group::parse(self.look(&mut content, at)?) else { break };
            let follows = group.header.position == end.replayed.position && group.header.previous == end.previous;
            let follows = follows || mutant("hole-skipped");
            if !(belongs(&group, &header, self.directory) && follows || mutant("old-group-taken")) {
                break;
            }
            if group.header.kind == GroupKind::Continued {
                continued = true;
                break;
            }
            let parsed: Result<Vec<Record<'_>>, usize> = record::records(group.body).collect();
            let records = parsed.ok().filter(|records| records.len() == group.header.records as usize);
            let Some(records) = records else {
                let what = "a group's records cannot be read, though its checksums are right";
                self.lost(&layout::segment(header.number), at as u64, what)?;
                break;
            };
            for record in &records {
                segment.newest = segment.newest.max(record.stamp);
                end.replayed.next_table = end.replayed.next_table.max(record.table.saturating_add(1));
            }
            let wanted = records.into_iter().filter(|record| record.stamp >= needed.stamp);
            let applied = &mut end.replayed.records;
            let given = held.group(wanted, group.header.floor, |record| {
                *applied += 1;
                each(record)
            });
            given.map_err(Refusal::Replay)?;
            end.pass(&group, segment.newest);
            at += group.bytes;
        }
        self.close(content);
        end.segments.push_back(segment);
        (end.after, end.at) = (header.number, at as u64);
        let goes_on = |next: &SegmentHeader| {
            next.after == header.number && next.first == end.replayed.position && next.previous == end.previous
        };
        let next = found.iter().filter_map(|found| found.header).find(goes_on);
        if continued && next.is_none() {
            self.lost(
                &layout::segment(header.number),
                at as u64,
                "the log goes on in another segment, which is missing or damaged",
            )?;
        }
        Ok(next)
    }

    /// Looks at everything behind the log's end: whether it says that more was on the disk.
    fn behind(
        &mut self,
        found: &[FoundSegment],
        last: Option<SegmentHeader>,
        needed: Needed,
        end: &mut End,
    ) -> Result<(), Refusal> {
        let position = end.replayed.position;
        let mut claimed = Claims::default();
        let newest = last.map_or(0, |last| last.incarnation);
        if needed.incarnation >= newest {
            claimed.claim(needed.position, "the checkpoint");
        }
        if let Some(header) = last {
            let mut content = self.content(header.number)?;
            let torn = torn(self.look(&mut content, end.at as usize)?, &header, position);
            self.claims(content, end.at as usize, Some(header), position, newest, &mut claimed)?;
            end.replayed.cut_bytes = claimed.end.saturating_sub(position).max(torn);
        }
        for number in end.apart.clone() {
            // What is older than the log's beginning was given up.
            if number < needed.segment {
                continue;
            }
            let header = found.iter().find(|found| found.number == number).and_then(|found| found.header);
            if let Some(header) = header {
                claimed.claim(header.synced, &layout::segment(number));
            }
            let content = self.content(number)?;
            if self.claims(content, BLOCK_BYTES, header, position, newest, &mut claimed)? {
                claimed.headless = Some(layout::segment(number));
            }
            end.replayed.cut_bytes = end.replayed.cut_bytes.max(claimed.end.saturating_sub(position));
        }
        let file = if end.after == 0 { layout::LOG.to_owned() } else { layout::segment(end.after) };
        if claimed.position > position {
            let what = format!(
                "the log breaks off there at position {position}, and {} says that it was on the disk up to {}: {} bytes of changes are lost",
                claimed.by,
                claimed.position,
                claimed.position - position
            );
            self.lost(&file, end.at, &what)?;
        } else if let Some(by) = claimed.headless {
            self.lost(&by, 0, "its header is damaged, and it holds groups of the log")?;
        }
        Ok(())
    }

    /// What the sound groups of a segment say. Whether there are groups of the log without a header
    /// before them.
    fn claims(
        &mut self,
        mut content: Content,
        from: usize,
        header: Option<SegmentHeader>,
        position: u64,
        newest: u64,
        claimed: &mut Claims,
    ) -> Result<bool, Refusal> {
        let mut headless = false;
        let (mut at, directory) = (from, self.directory);
        while at + BLOCK_BYTES <= content.bytes {
            let group = Group::parse(self.look(&mut content, at)?);
            let Some(group) = group.filter(|group| group.header.directory == directory) else {
                at += BLOCK_BYTES;
                continue;
            };
            let placed = |header: SegmentHeader| {
                group.header.incarnation == header.incarnation
                    && (group.header.kind == GroupKind::Continued
                        || group.header.position == header.first + (at - BLOCK_BYTES) as u64)
            };
            let by = || format!("a group at position {}", group.header.position);
            match header {
                Some(header) if placed(header) => {
                    claimed.claim(group.header.synced, &by());
                    claimed.end = claimed.end.max(group.header.position + group.bytes as u64);
                }
                // A header is on the disk before the first group is written.
                None if group.header.position >= position && group.header.incarnation >= newest.max(1) => {
                    claimed.claim(group.header.synced, &by());
                    headless = true;
                }
                _ => {}
            }
            at += group.bytes;
        }
        self.close(content);
        Ok(headless)
    }

    /// The header of a segment, if it has a sound one.
    fn header(&mut self, number: u64) -> Result<Option<SegmentHeader>, Refusal> {
        let name = layout::segment(number);
        let mut content = self.opened(&name, BLOCK_BYTES)?;
        let parsed = SegmentHeader::parse(self.look(&mut content, 0)?);
        self.close(content);
        match parsed {
            Err(NoHeader::Version(found)) => Err(Refusal::Version { file: self.full(&name), found }),
            Ok(header) if header.directory != self.directory => {
                if self.losses.is_none() {
                    return Err(Refusal::Foreign { file: self.full(&name) });
                }
                self.lost(&name, 0, "it belongs to another data directory")?;
                Ok(None)
            }
            // It was to be recycled under this number, or somebody swapped it.
            Ok(header) if header.number != number => Ok(None),
            Ok(header) => Ok(Some(header)),
            Err(NoHeader::Broken) => Ok(None),
        }
    }

    /// A segment, after whoever writes it has let go of it.
    fn content(&mut self, number: u64) -> Result<Content, Refusal> {
        self.opened(&layout::segment(number), READ_BYTES)
    }

    /// A file, after whoever writes it has let go of it, to be read by so many bytes at a time.
    fn opened(&mut self, name: &str, at_once: usize) -> Result<Content, Refusal> {
        let failed = |what: &str, full: &str| format!("{what} {full}");
        let full = self.full(name);
        let file = self.disk.open(name, Open::Read { direct: true }).map_err(Refusal::io(failed("opening", &full)))?;
        let locked = self.disk.lock(file, self.deadline).map_err(Refusal::io(failed("locking", &full)))?;
        if !locked {
            self.disk.close(file);
            return Err(Refusal::StillWritten { file: full });
        }
        let length = self.disk.length(file).map_err(Refusal::io(failed("reading", &full)))?.min(SEGMENT_BYTES_MAX);
        let bytes = padded(length as usize).max(BLOCK_BYTES);
        let at_once = at_once.min(bytes);
        let buffer = match self.buffer.take() {
            Some(buffer) if buffer.len() >= at_once => buffer,
            _ => AlignedBuffer::zeroed(at_once).map_err(Refusal::io(failed("reading", &full)))?,
        };
        Ok(Content { name: full, file, bytes, buffer: Some(buffer), from: 0, filled: 0 })
    }

    /// What lies in the file from `at` on: all of a group that begins there, a block at least.
    /// Nothing behind the file's end.
    fn look<'c>(&mut self, content: &'c mut Content, at: usize) -> Result<&'c [u8], Refusal> {
        // Once more, where all that is there of a group is the block that says how long it is.
        while content.read(at).len() < content.wanted(at) {
            let wanted = content.wanted(at);
            let reading = || Refusal::io(format!("reading {}", content.name));
            let buffer = match content.buffer.take() {
                Some(buffer) if buffer.len() >= wanted => buffer,
                _ => AlignedBuffer::zeroed(wanted).map_err(reading())?,
            };
            let request = Request::Read { file: content.file, at: at as u64, buffer };
            match overside_disk::complete(self.disk, request, self.deadline).map_err(reading())? {
                (Request::Read { mut buffer, .. }, bytes) => {
                    // Of the last block the file may have a part.
                    content.filled = buffer.len().min(content.bytes - at);
                    buffer[..content.filled][(bytes as usize).min(content.filled)..].fill(0);
                    (content.buffer, content.from) = (Some(buffer), at);
                }
                _ => return Err(reading()(std::io::Error::other("the disk gave another request back"))),
            }
        }
        Ok(content.read(at))
    }

    /// Lets go of a segment, and keeps its memory for the next.
    fn close(&mut self, content: Content) {
        self.disk.close(content.file);
        self.buffer = content.buffer;
    }

    /// Damage: the end, or a note.
    fn lost(&mut self, file: &str, offset: u64, what: &str) -> Result<(), Refusal> {
        let refusal = Refusal::damage(self.full(file), offset, what);
        match &mut self.losses {
            None => Err(refusal),
            Some(losses) => {
                if let Refusal::Damage(damage) = refusal {
                    losses.push(damage.to_string());
                }
                Ok(())
            }
        }
    }

    fn full(&self, name: &str) -> String {
        self.disk.path().join(name).display().to_string()
    }
}

/// What was said to be on the disk.
#[derive(Default)]
struct Claims {
    position: u64,
    by: String,
    /// The end of the last sound group.
    end: u64,
    /// A group of the log in a segment without a header.
    headless: Option<String>,
}

impl Claims {
    fn claim(&mut self, position: u64, by: &str) {
        if position > self.position {
            self.position = position;
            self.by = by.to_owned();
        }
    }
}

/// Whether a group is of this segment, as far as it can be seen without its place.
fn belongs(group: &Group<'_>, header: &SegmentHeader, directory: DirectoryId) -> bool {
    let incarnation = match group.header.kind {
        GroupKind::Records => group.header.incarnation == header.incarnation,
        // A later server may have said where the log goes on.
        GroupKind::Continued => group.header.incarnation >= header.incarnation,
    };
    group.header.directory == directory && incarnation
}

/// Bytes of a group that was torn: one whose header says that it belongs here.
fn torn(bytes: &[u8], header: &SegmentHeader, position: u64) -> u64 {
    Group::announced(bytes)
        .filter(|(incarnation, begins, _)| *incarnation == header.incarnation && *begins == position)
        .map_or(0, |(_, _, bytes)| bytes)
}

/// So much of a segment is read at once: enough for most groups to lie in what is there.
const READ_BYTES: usize = 1 << 20;
