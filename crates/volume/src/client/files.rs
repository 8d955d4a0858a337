//! Files on a volume of a node, for a caller who waits for each call.

use std::sync::Arc;
use std::time::Duration;

use overside_memory::{Buffer, Bytes, Segment};
use overside_verbs::{Clock, Provider};

use super::{Link, LinkError, LinkOptions, Volume};
use crate::device::{Completion, Device, DeviceError, Request, Work};
use crate::files::{About, Attributes, Command, ENTRY_BYTES, FILE_BYTES_MAX, IDS, PIECE_BYTES, entry, place};
use crate::wait::Waiter;

/// Files on a volume, over a session of this caller's own. Calls wait: for the disk, and for a node that is away.
#[derive(Debug)]
pub struct Files {
    volume: Volume,
    clock: Arc<dyn Clock>,
    waiter: Waiter,
    /// For entries, and for files' bytes on their way.
    memory: Vec<Buffer>,
    /// What was read last: tags, lengths, bytes.
    read: Vec<(u64, usize, Buffer)>,
    done: Vec<Completion>,
}

impl Files {
    /// Attaches a volume that keeps files.
    ///
    /// # Errors
    /// As [`Link::connect`].
    pub fn attach(
        provider: Arc<dyn Provider>,
        address: &str,
        volume: &str,
        options: LinkOptions,
    ) -> Result<Files, LinkError> {
        let clock = provider.clock();
        let request_bytes_max = options.request_bytes_max.max(PIECE_BYTES as u32);
        let options = LinkOptions { files: true, request_bytes_max, ..options };
        let volume = Link::attach(provider, address, volume, options)?;
        Ok(Files { volume, clock, waiter: Waiter::default(), memory: Vec::new(), read: Vec::new(), done: Vec::new() })
    }

    /// Ends the session, at most for `patience`.
    pub fn close(self, patience: Duration) {
        self.volume.close(patience);
    }

    /// What the volume says of itself.
    ///
    /// # Errors
    /// The node does not answer, or not as a node does.
    pub fn about(&mut self) -> Result<About, DeviceError> {
        let bytes = self.read_entry(0)?;
        About::parse(&bytes).map_err(|_| DeviceError::Failed)
    }

    /// What is known of a file; of none, a token of 0.
    ///
    /// # Errors
    /// As [`about`](Self::about).
    pub fn attributes(&mut self, id: u32) -> Result<Attributes, DeviceError> {
        let bytes = self.read_entry(id)?;
        Attributes::parse(&bytes).map_err(|_| DeviceError::Failed)
    }

    /// Makes a file with this token; its id.
    ///
    /// # Errors
    /// There is no room for one more.
    pub fn create(&mut self, token: u64) -> Result<u32, DeviceError> {
        for _ in 0..TRIES {
            let id = self.about()?.free_id;
            if id == 0 {
                return Err(DeviceError::NoSpace);
            }
            match self.command(id, Command::Create, token) {
                // Another process was faster.
                Err(DeviceError::Invalid) => {}
                made => return made.map(|()| id),
            }
        }
        Err(DeviceError::Unreachable)
    }

    /// Changes a file.
    ///
    /// # Errors
    /// There is no such file of this token, or no room.
    pub fn command(&mut self, id: u32, command: Command, token: u64) -> Result<(), DeviceError> {
        let mut buffer = self.buffer()?;
        buffer[..ENTRY_BYTES].copy_from_slice(&command.bytes(token));
        let from = Bytes::prefix(buffer, ENTRY_BYTES);
        let work = Work::Write { at: entry(id), from, fua: true };
        self.wait(vec![Request { tag: 0, work }])
    }

    /// Reads from a file's byte on, as far as it goes; how many.
    ///
    /// # Errors
    /// There is no such file of this token, or its bytes cannot be read.
    pub fn read(&mut self, (id, token): (u32, u64), at: u64, into: &mut [u8]) -> Result<usize, DeviceError> {
        let mut read = 0;
        while read < into.len() {
            let rest = into.get_mut(read..).unwrap_or_default();
            let (found, ends) = self.read_some((id, token), at + read as u64, rest)?;
            read += found;
            if ends {
                break;
            }
        }
        Ok(read)
    }

    /// The same of no more than is asked for at once, and whether the file ends there. Its length is asked for in the same breath.
    fn read_some(&mut self, (id, token): (u32, u64), at: u64, into: &mut [u8]) -> Result<(usize, bool), DeviceError> {
        if id == 0 || id >= IDS {
            return Err(DeviceError::Invalid);
        }
        let length = into.len().min(AT_ONCE).min(FILE_BYTES_MAX.saturating_sub(at) as usize);
        let mut batch = Vec::with_capacity(1 + AT_ONCE / PIECE_BYTES as usize + 1);
        batch.push(Request { tag: 0, work: Work::Read { at: entry(id), length: ENTRY_BYTES, into: self.buffer()? } });
        let mut done = 0;
        while done < length {
            let place = at + done as u64;
            let piece = (length - done).min((PIECE_BYTES - place % PIECE_BYTES) as usize);
            let work = Work::Read { at: self::place(id, place), length: piece, into: self.buffer()? };
            batch.push(Request { tag: 1 + done as u64, work });
            done += piece;
        }
        self.wait(batch)?;
        let attributes = Attributes::parse(&self.entry_read()?).map_err(|_| DeviceError::Failed)?;
        if attributes.token != token {
            return Err(DeviceError::Invalid);
        }
        let left = attributes.size.saturating_sub(at);
        let within = left.min(length as u64) as usize;
        for (tag, length, buffer) in self.read.iter().filter(|(tag, ..)| *tag > 0) {
            // What is past the file's end stays as it is.
            let start = *tag as usize - 1;
            let end = within.min(start + length);
            if let Some((into, from)) = into.get_mut(start..end).zip(buffer.get(..end.saturating_sub(start))) {
                into.copy_from_slice(from);
            }
        }
        Ok((within, left <= length as u64))
    }

    /// Writes from a file's byte on. How many, where not all went; then a later call says why.
    ///
    /// # Errors
    /// There is no such file, no room, or the disk fails.
    pub fn write(&mut self, id: u32, at: u64, from: &[u8]) -> Result<usize, DeviceError> {
        if id == 0 || id >= IDS || at.checked_add(from.len() as u64).is_none_or(|end| end >= FILE_BYTES_MAX) {
            return Err(DeviceError::Invalid);
        }
        let mut written = 0;
        while written < from.len() {
            let place = at + written as u64;
            let piece = (from.len() - written).min((PIECE_BYTES - place % PIECE_BYTES) as usize);
            let mut buffer = self.buffer()?;
            buffer[..piece].copy_from_slice(from.get(written..written + piece).unwrap_or_default());
            let work = Work::Write { at: self::place(id, place), from: Bytes::prefix(buffer, piece), fua: false };
            match self.wait(vec![Request { tag: 0, work }]) {
                Err(error) if written == 0 => return Err(error),
                Err(_) => return Ok(written),
                Ok(()) => written += piece,
            }
        }
        Ok(written)
    }

    /// Brings all that was written to stable storage.
    ///
    /// # Errors
    /// The disk fails.
    pub fn flush(&mut self) -> Result<(), DeviceError> {
        self.wait(vec![Request { tag: 0, work: Work::Flush }])
    }

    fn read_entry(&mut self, id: u32) -> Result<[u8; ENTRY_BYTES], DeviceError> {
        let work = Work::Read { at: entry(id), length: ENTRY_BYTES, into: self.buffer()? };
        self.wait(vec![Request { tag: 0, work }])?;
        self.entry_read()
    }

    /// The entry that was read last.
    fn entry_read(&self) -> Result<[u8; ENTRY_BYTES], DeviceError> {
        let entry = self.read.iter().find(|(tag, ..)| *tag == 0);
        entry.and_then(|(_, _, buffer)| buffer.first_chunk().copied()).ok_or(DeviceError::Failed)
    }

    fn buffer(&mut self) -> Result<Buffer, DeviceError> {
        if let Some(buffer) = self.memory.pop() {
            return Ok(buffer);
        }
        let room = PIECE_BYTES as usize;
        let segment = Segment::private(room).map_err(|_| DeviceError::NoMemory)?;
        segment.carve(room).pop().ok_or(DeviceError::NoMemory)
    }

    /// Carries requests out; what was read stays in `read`. The first error of any.
    fn wait(&mut self, batch: Vec<Request>) -> Result<(), DeviceError> {
        self.memory.extend(self.read.drain(..).map(|(_, _, buffer)| buffer));
        let (mut left, mut result) = (batch.len(), Ok(()));
        let mut batch = batch.into();
        while left > 0 {
            self.volume.submit(&mut batch);
            let found = self.waiter.poll(&mut self.volume, &*self.clock, None, &mut self.done);
            found.map_err(|_| DeviceError::Failed)?;
            for completion in self.done.drain(..) {
                left -= 1;
                result = result.and(completion.result);
                let buffer = match completion.work {
                    Work::Read { length, into, .. } => {
                        self.read.push((completion.tag, length, into));
                        None
                    }
                    Work::Write { from, .. } => from.into_buffer().ok(),
                    _ => None,
                };
                self.memory.extend(buffer);
            }
        }
        result
    }
}

/// Bytes that are read at once.
const AT_ONCE: usize = 512 << 10;
/// How often another process may be faster.
const TRIES: usize = 64;
