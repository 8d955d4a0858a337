//! What the disk does with nothing around it: synced writes, and reading with a checksum.

use crate::measure::{elapsed_ns, now_ns};
use anyhow::{Context, Result};
use overside_disk::{AlignedBuffer, BLOCK_BYTES, Completion, Disk, FileId, Open, Plain, Request, complete};
use std::{
    fs::{self, File},
    io::ErrorKind,
    os::unix::fs::FileExt,
    path::Path,
    thread,
    time::Duration,
};

/// A file that was written through once, as the log's segments are.
pub(super) struct Bare {
    disk: Box<dyn Disk>,
    file: FileId,
    at: u64,
}

impl Bare {
    /// By one system call a write.
    pub(super) fn waiting(folder: &Path) -> Result<Bare> {
        Bare::over(Box::new(Plain::open(folder)?), "waiting")
    }

    /// As the log writes: several at a time where the kernel lets it.
    pub(super) fn queued(folder: &Path) -> Result<Bare> {
        Bare::over(overside_disk::open(folder)?, "queued")
    }

    fn over(mut disk: Box<dyn Disk>, name: &str) -> Result<Bare> {
        let file = disk.open(name, Open::Create { direct: true })?;
        // Not every file system sets blocks aside.
        let _ = complete(&mut *disk, Request::Allocate { file, length: FILE_BYTES }, DEADLINE);
        for at in (0..FILE_BYTES).step_by(STEP_BYTES) {
            let buffer = AlignedBuffer::zeroed(STEP_BYTES)?;
            let write = Request::Write { file, at, buffer, length: STEP_BYTES, sync: false };
            complete(&mut *disk, write, DEADLINE)?;
        }
        complete(&mut *disk, Request::Sync { file }, DEADLINE)?;
        Ok(Bare { disk, file, at: 0 })
    }

    /// Writes `bytes` again and again, `depth` at a time, each with RWF_DSYNC, for so long:
    /// nanoseconds that each took, and all.
    pub(super) fn writes(&mut self, bytes: usize, depth: usize, ns: u64) -> Result<(Vec<u64>, u64)> {
        let length = bytes.next_multiple_of(BLOCK_BYTES);
        let mut done: Vec<Completion> = Vec::new();
        let mut idle: Vec<AlignedBuffer> = Vec::new();
        for _ in 0..depth {
            let mut buffer = AlignedBuffer::zeroed(length)?;
            buffer.fill(0xA5);
            idle.push(buffer);
        }
        let (start, mut times, mut begun) = (now_ns(), Vec::new(), vec![0; depth]);
        let mut free: Vec<usize> = (0..depth).collect();
        loop {
            let is_over = elapsed_ns(start) >= ns;
            while let Some(token) = if is_over { None } else { free.pop() } {
                if self.at + length as u64 > FILE_BYTES {
                    self.at = 0;
                }
                let buffer = idle.pop().context("no buffer")?;
                begun[token] = now_ns();
                let write = Request::Write { file: self.file, at: self.at, buffer, length, sync: true };
                self.disk.push(token as u64, write);
                self.at += length as u64;
            }
            if free.len() == depth {
                return Ok((times, elapsed_ns(start)));
            }
            self.disk.submit()?;
            self.disk.poll(&mut done)?;
            if done.is_empty() {
                self.disk.wait(DEADLINE)?;
            }
            for completion in done.drain(..) {
                completion.result.context("a bare write failed")?;
                let token = completion.token as usize;
                times.push(elapsed_ns(begun[token]));
                free.push(token);
                if let Request::Write { buffer, .. } = completion.request {
                    idle.push(buffer);
                }
            }
        }
    }
}

/// Reads the pages of a directory's checkpoint past the page cache, and checksums them, by all
/// processors: nanoseconds.
pub(super) fn read_and_checksum(dir: &Path) -> Result<u64> {
    let mut chunks = Vec::new();
    for entry in fs::read_dir(dir.join("checkpoint"))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".pages") {
            let length = entry.metadata()?.len().next_multiple_of(BLOCK_BYTES as u64);
            chunks.extend((0..length).step_by(STEP_BYTES).map(|at| (format!("checkpoint/{name}"), at)));
        }
    }
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let share = chunks.len().div_ceil(threads).max(1);
    let start = now_ns();
    let sums = thread::scope(|scope| {
        let parts: Vec<_> = chunks.chunks(share).map(|part| scope.spawn(|| checksum(dir, part))).collect();
        let joined = parts.into_iter().map(|part| part.join());
        joined.map(|part| part.map_err(|_| anyhow::anyhow!("a reader panicked"))?).collect::<Result<Vec<u32>>>()
    })?;
    std::hint::black_box(sums);
    Ok(elapsed_ns(start))
}

/// Two reads at a time: one is checksummed while the other is under way.
fn checksum(dir: &Path, chunks: &[(String, u64)]) -> Result<u32> {
    let mut disk = overside_disk::open(dir)?;
    let mut open: Option<(&str, FileId)> = None;
    let (mut sum, mut done, mut under_way) = (0, Vec::new(), 0);
    let mut idle = vec![AlignedBuffer::zeroed(STEP_BYTES)?, AlignedBuffer::zeroed(STEP_BYTES)?];
    let mut left = chunks.iter();
    loop {
        while let Some(buffer) = idle.pop() {
            let Some((name, at)) = left.next() else { break };
            let file = match open {
                Some((opened, file)) if opened == name => file,
                _ => open.insert((name, disk.open(name, Open::Read { direct: true })?)).1,
            };
            disk.push(0, Request::Read { file, at: *at, buffer });
            under_way += 1;
        }
        if under_way == 0 {
            return Ok(sum);
        }
        disk.submit()?;
        disk.poll(&mut done)?;
        if done.is_empty() {
            disk.wait(DEADLINE)?;
        }
        for Completion { request, result, .. } in done.drain(..) {
            let bytes = result.context("a bare read failed")? as usize;
            under_way -= 1;
            if let Request::Read { buffer, .. } = request {
                sum ^= crc32c::crc32c(&buffer[..bytes]);
                idle.push(buffer);
            }
        }
    }
}

/// Mean bytes of the groups that a log has between two positions; none if it has none.
pub(super) fn group_bytes(dir: &Path, from: u64, to: u64) -> Result<Option<f64>> {
    let (mut groups, mut bytes) = (0u64, 0u64);
    for entry in fs::read_dir(dir.join("log"))? {
        let file = match File::open(entry?.path()) {
            // The server goes on: a segment that a checkpoint gave up has another name by now. The mean does without it.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            file => file?,
        };
        let length = file.metadata()?.len();
        let (mut at, mut header) = (0, [0; HEADER_BYTES]);
        while at + (BLOCK_BYTES as u64) <= length {
            file.read_exact_at(&mut header, at)?;
            let group = announced(&header);
            if let Some((position, long)) = group
                && (from..to).contains(&position)
            {
                groups += 1;
                bytes += long;
            }
            // What a recycled segment held before begins anywhere.
            at += group.map_or(BLOCK_BYTES as u64, |(_, long)| long.max(BLOCK_BYTES as u64));
        }
    }
    Ok((groups > 0).then(|| bytes as f64 / groups as f64))
}

/// Position of a group and the bytes that it takes, of its header (docs/reference/wire.md).
fn announced(header: &[u8; HEADER_BYTES]) -> Option<(u64, u64)> {
    let word = |at: usize| header[at..at + 8].try_into().map(u64::from_le_bytes).ok();
    let half = |at: usize| header[at..at + 4].try_into().map(u32::from_le_bytes).ok();
    let is_group = header.starts_with(b"ovgroup\0") && half(60)? == 1;
    is_group.then_some((word(24)?, u64::from(half(56)?).next_multiple_of(BLOCK_BYTES as u64)))
}

const FILE_BYTES: u64 = 64 << 20;
const STEP_BYTES: usize = 1 << 20;
const HEADER_BYTES: usize = 80;
const DEADLINE: Duration = Duration::from_secs(60);
