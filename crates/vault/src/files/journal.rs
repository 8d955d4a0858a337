//! What is written down of a volume's files: two halves, of which one holds, each a snapshot and
//! the changes since.
//!
//! A half's header is written last, when its snapshot is on stable storage, and says a higher
//! generation than the other's. A change is one sector, which is old or new as a whole. It names
//! the half's generation and its own number there: what lies there from an earlier time is no
//! change of this one.
//!
//! | at | bytes | header | change |
//! |---|---|---|---|
//! | 0 | 8 | `OVSFILE1` | generation |
//! | 8 | 8 | generation | number, from 0 |
//! | 16 | 8 | bytes of a half | 1 create, 2 grow, 3 resize, 4 remove; for a grow 1 << 8: with a chunk |
//! | 24 | 8 | bytes of the snapshot | id |
//! | 32 | 4 | crc32c of the snapshot | token, or size: 8 bytes |
//! | 36 | 1 | preset | |
//! | 40 | 8 | zero | number of the chunk in the file, and where it lies |
//! | 60 | 4 | crc32c of what is before | the same |
//!
//! A snapshot has for each file its id and its count of runs (u32 each), token and size (u64 each).
//! For each run it has the first chunk in the file, where that lies, and how many there are (u32
//! each). All is little-endian.

use overside_volume::files::{FILE_BYTES_MAX, IDS, PIECE_BYTES, Preset};

use super::table::{Change, Most, Table};

pub(super) const SECTOR: usize = 512;
/// Bytes of a sector that mean something.
const MEANT: usize = 64;
pub(super) const HALF_MIN: u64 = 256 << 10;
const HALF_MAX: u64 = 64 << 20;
const MAGIC: &[u8; 8] = b"OVSFILE1";
/// Of a file in a snapshot, and of a run.
const FILE: usize = 24;
const RUN: usize = 12;

/// What a half begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) generation: u64,
    pub(super) half: u64,
    pub(super) snapshot: u64,
    pub(super) crc: u32,
    pub(super) preset: Preset,
}

/// Bytes of a half for a volume so large.
pub(super) fn half_bytes(volume: u64) -> u64 {
    (volume / 256).next_multiple_of(PIECE_BYTES).clamp(HALF_MIN, HALF_MAX)
}

impl Header {
    /// Where the header of a generation is.
    pub(super) fn place(generation: u64) -> u64 {
        generation % 2 * SECTOR as u64
    }

    /// Where its half begins.
    pub(super) fn start(&self) -> u64 {
        PIECE_BYTES + self.generation % 2 * self.half
    }

    /// Where its changes begin.
    pub(super) fn changes(&self) -> u64 {
        self.start() + self.snapshot.next_multiple_of(SECTOR as u64)
    }

    /// Where its half ends.
    pub(super) fn end(&self) -> u64 {
        self.start() + self.half
    }

    /// Where files' bytes begin.
    pub(super) fn data(&self) -> u64 {
        PIECE_BYTES + 2 * self.half
    }

    /// Chunks of a volume so large.
    pub(super) fn chunks(&self, volume: u64) -> u32 {
        (volume.saturating_sub(self.data()) / PIECE_BYTES).min(u64::from(u32::MAX)) as u32
    }

    /// Files and runs of their chunks at most: together they fill three quarters of a half. A
    /// volume that has become larger than it was made for, or is of many TiB, has more chunks than
    /// runs may be.
    pub(super) fn most(&self) -> Most {
        Most { files: (self.half / 4) as usize / FILE, runs: (self.half / 2) as usize / RUN }
    }

    pub(super) fn sector(&self) -> [u8; SECTOR] {
        let mut bytes = [0; SECTOR];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.generation.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.half.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.snapshot.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.crc.to_le_bytes());
        bytes[36] = self.preset.code();
        seal(bytes)
    }

    /// From a sector, of a volume so large. None: it is no header of this version.
    pub(super) fn parse(sector: &[u8], volume: u64) -> Option<Header> {
        let bytes = sealed(sector)?;
        let header = Header {
            generation: u64_at(bytes, 8),
            half: u64_at(bytes, 16),
            snapshot: u64_at(bytes, 24),
            crc: u32_at(bytes, 32),
            preset: Preset::of(bytes[36])?,
        };
        let rest = bytes[37..MEANT - 4].iter().all(|byte| *byte == 0);
        let fits = (HALF_MIN..=HALF_MAX).contains(&header.half) && header.half.is_multiple_of(PIECE_BYTES);
        let is_sound = fits && header.snapshot <= header.half && header.data() <= volume && header.generation > 0;
        (bytes[..8] == *MAGIC && rest && is_sound).then_some(header)
    }
}

/// A change as a sector of a half.
pub(super) fn change_sector(generation: u64, number: u64, change: Change) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    let (kind, id, value, chunk) = match change {
        Change::Create { id, token } => (1, id, token, None),
        Change::Grow { id, size, chunk } => (2 | u64::from(chunk.is_some()) << 8, id, size, chunk),
        Change::Resize { id, size } => (3, id, size, None),
        Change::Remove { id } => (4, id, 0, None),
    };
    let (chunk, at) = chunk.unwrap_or_default();
    for (at, field) in [
        (0, generation),
        (8, number),
        (16, kind),
        (24, u64::from(id)),
        (32, value),
        (40, u64::from(chunk) | u64::from(at) << 32),
    ] {
        bytes[at..at + 8].copy_from_slice(&field.to_le_bytes());
    }
    seal(bytes)
}

/// From a sector. None: it is not the change of this number in this generation.
pub(super) fn change_of(sector: &[u8], generation: u64, number: u64) -> Option<Change> {
    let bytes = sealed(sector)?;
    let (kind, id, value, chunk) = (u64_at(bytes, 16), u64_at(bytes, 24), u64_at(bytes, 32), u64_at(bytes, 40));
    if (u64_at(bytes, 0), u64_at(bytes, 8)) != (generation, number) || u64_at(bytes, 48) != 0 || u32_at(bytes, 56) != 0
    {
        return None;
    }
    let id = u32::try_from(id).ok().filter(|id| (1..IDS).contains(id))?;
    let size = Some(value).filter(|size| *size <= FILE_BYTES_MAX);
    let found = match kind {
        1 => Change::Create { id, token: value },
        2 => Change::Grow { id, size: size?, chunk: None },
        0x102 => Change::Grow { id, size: size?, chunk: Some((chunk as u32, (chunk >> 32) as u32)) },
        3 => Change::Resize { id, size: size? },
        4 => Change::Remove { id },
        _ => return None,
    };
    (change_sector(generation, number, found) == sector).then_some(found)
}

/// All files, as bytes.
pub(super) fn snapshot(table: &Table) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (id, file) in table.files() {
        let mut runs: Vec<(u32, u32, u32)> = Vec::new();
        for (number, at) in &file.chunks {
            match runs.last_mut().filter(|(first, start, count)| (first + *count, start + *count) == (*number, *at)) {
                Some((_, _, count)) => *count += 1,
                None => runs.push((*number, *at, 1)),
            }
        }
        bytes.extend(id.to_le_bytes());
        bytes.extend((runs.len() as u32).to_le_bytes());
        bytes.extend(file.token.to_le_bytes());
        bytes.extend(file.size.to_le_bytes());
        runs.into_iter()
            .flat_map(|(first, at, count)| [first, at, count])
            .for_each(|field| bytes.extend(field.to_le_bytes()));
    }
    bytes
}

/// Files from a snapshot.
pub(super) fn read_snapshot(mut bytes: &[u8], table: &mut Table) -> Result<(), &'static str> {
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(FILE).ok_or("a snapshot that is cut")?;
        let (id, runs, token, size) = (u32_at(head, 0), u32_at(head, 4) as usize, u64_at(head, 8), u64_at(head, 16));
        let (mut runs, rest) =
            runs.checked_mul(RUN).and_then(|bytes| rest.split_at_checked(bytes)).ok_or("a snapshot that is cut")?;
        if size > FILE_BYTES_MAX {
            return Err("a file that is too long");
        }
        table.apply(Change::Create { id, token })?;
        while let Some((run, others)) = runs.split_first_chunk::<RUN>() {
            let (first, at, count) = (u32_at(run, 0), u32_at(run, 4), u32_at(run, 8));
            for step in 0..count {
                let chunk = first.checked_add(step).zip(at.checked_add(step)).ok_or("a run past the end")?;
                table.apply(Change::Grow { id, size, chunk: Some(chunk) })?;
            }
            runs = others;
        }
        table.apply(Change::Grow { id, size, chunk: None })?;
        bytes = rest;
    }
    Ok(())
}

fn seal(mut bytes: [u8; SECTOR]) -> [u8; SECTOR] {
    let crc = crc32c::crc32c(&bytes[..MEANT - 4]);
    bytes[MEANT - 4..MEANT].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// What a sector means, if it is whole.
fn sealed(sector: &[u8]) -> Option<&[u8]> {
    let (bytes, rest) = sector.split_at_checked(MEANT)?;
    let whole = sector.len() == SECTOR && rest.iter().all(|byte| *byte == 0);
    (whole && u32_at(bytes, MEANT - 4) == crc32c::crc32c(&bytes[..MEANT - 4])).then_some(bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// What a half may have, for fuzzing: a header, a snapshot, changes.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let mut table = Table::new(Preset::Postgresql, CHUNKS, Most { files: 100, runs: 100 });
    let grow = |id, size, chunk| Change::Grow { id, size, chunk };
    let changes = [
        Change::Create { id: 1, token: 77 },
        Change::Create { id: 9, token: 78 },
        grow(1, 100, Some((0, 3))),
        grow(1, 2 * PIECE_BYTES, Some((1, 4))),
        grow(9, 5 * PIECE_BYTES, Some((4, 0))),
        Change::Resize { id: 9, size: 4096 },
        Change::Remove { id: 1 },
    ];
    let mut seeds = vec![half(&table, &changes), half(&table, &[])];
    for change in &changes[..5] {
        let _ = table.apply(*change);
    }
    seeds.push(half(&table, &changes[5..]));
    seeds
}

fn half(table: &Table, changes: &[Change]) -> Vec<u8> {
    let snapshot = snapshot(table);
    let (preset, length) = (Preset::Postgresql, snapshot.len() as u64);
    let header = Header { generation: 3, half: HALF_MIN, snapshot: length, crc: crc32c::crc32c(&snapshot), preset };
    let mut bytes = header.sector().to_vec();
    bytes.extend(&snapshot);
    bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
    for (number, change) in changes.iter().enumerate() {
        bytes.extend(change_sector(header.generation, number as u64, *change));
    }
    bytes
}

/// Reads a half. What it says must be said again by a snapshot of it. Whether its header holds.
pub(super) fn fuzz(input: &[u8]) -> bool {
    let Some((sector, rest)) = input.split_at_checked(SECTOR) else { return false };
    let volume = PIECE_BYTES + 2 * HALF_MIN + u64::from(CHUNKS) * PIECE_BYTES;
    let Some(header) = Header::parse(sector, volume) else { return false };
    assert_eq!(header.sector(), sector, "a header says itself again");
    let Some((snapshot_bytes, changes)) = rest.split_at_checked(header.snapshot as usize) else { return false };
    let mut table = Table::new(header.preset, header.chunks(volume), header.most());
    if read_snapshot(snapshot_bytes, &mut table).is_err() {
        return false;
    }
    let padding = snapshot_bytes.len().next_multiple_of(SECTOR) - snapshot_bytes.len();
    let sectors = changes.get(padding..).unwrap_or_default().chunks_exact(SECTOR).enumerate();
    let read = sectors.map_while(|(number, sector)| change_of(sector, header.generation, number as u64));
    let _ = read.map(|change| table.apply(change)).find(Result::is_err);
    let (files, runs) = table.written();
    assert_eq!(snapshot(&table).len(), files * FILE + runs * RUN, "a snapshot is as long as it is counted");
    let mut again = Table::new(header.preset, header.chunks(volume), header.most());
    read_snapshot(&snapshot(&table), &mut again).expect("a snapshot of what was read");
    assert!(table.files().eq(again.files()), "files say themselves again");
    assert_eq!(table.about().free_bytes, again.about().free_bytes, "and what is free");
    true
}

const CHUNKS: u32 = 16;
