//! Files on a volume of a node, for a caller who waits for each call.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use overside_memory::{Buffer, Bytes, Segment};
use overside_verbs::{Clock, Provider};

use super::{Link, LinkError, LinkOptions};
use crate::device::{Completion, Device, DeviceError, Request, Work};
use crate::files::{About, Attributes, Command, ENTRY_BYTES, FILE_BYTES_MAX, IDS, PIECE_BYTES, entry, place};
use crate::wait::Waiter;

/// Files on a volume, over a session of this caller's own. Calls wait: for the disk, and for a node
/// that is away. Once each kind of call was made, they allocate nothing: the caller may be a
/// program's `read` within its own allocator.
#[derive(Debug)]
pub struct Files {
    /// Requests are no longer than a piece, so it need not cut them.
    link: Link,
    clock: Arc<dyn Clock>,
    waiter: Waiter,
    /// For entries, and for files' bytes on their way here.
    memory: Vec<Buffer>,
    /// For what is written, one piece at a time.
    writes: Option<Bytes>,
    /// Empty between calls.
    batch: VecDeque<Request>,
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
        let link = Link::connect(provider, address, volume, options)?;
        Ok(Files {
            link,
            clock,
            waiter: Waiter::default(),
            memory: Vec::new(),
            writes: None,
            batch: VecDeque::new(),
            read: Vec::new(),
            done: Vec::new(),
        })
    }

    /// Ends the session, at most for `patience`.
    pub fn close(self, patience: Duration) {
        self.link.close(patience);
    }

    /// How often the node was found again.
    pub fn reconnects(&self) -> u64 {
        self.link.handle().reconnects()
    }

    /// The node has refused to let this session in again: each call fails.
    pub fn is_refused(&self) -> bool {
        self.link.handle().is_refused()
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
        let from = self.bytes(&command.bytes(token))?;
        self.one(Work::Write { at: entry(id), from, fua: true })
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

    /// The same of no more than is asked for at once, and whether the file ends there. Its length
    /// is asked for in the same breath.
    fn read_some(&mut self, (id, token): (u32, u64), at: u64, into: &mut [u8]) -> Result<(usize, bool), DeviceError> {
        if id == 0 || id >= IDS {
            return Err(DeviceError::Invalid);
        }
        let length = into.len().min(AT_ONCE).min(FILE_BYTES_MAX.saturating_sub(at) as usize);
        self.ask(0, entry(id), ENTRY_BYTES)?;
        let mut done = 0;
        while done < length {
            let place = at + done as u64;
            let piece = (length - done).min((PIECE_BYTES - place % PIECE_BYTES) as usize);
            self.ask(1 + done as u64, self::place(id, place), piece)?;
            done += piece;
        }
        self.wait()?;
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
            let from = self.bytes(from.get(written..written + piece).unwrap_or_default())?;
            match self.one(Work::Write { at: self::place(id, place), from, fua: false }) {
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
        self.one(Work::Flush)
    }

    fn read_entry(&mut self, id: u32) -> Result<[u8; ENTRY_BYTES], DeviceError> {
        self.ask(0, entry(id), ENTRY_BYTES)?;
        self.wait()?;
        self.entry_read()
    }

    /// The entry that was read last.
    fn entry_read(&self) -> Result<[u8; ENTRY_BYTES], DeviceError> {
        let entry = self.read.iter().find(|(tag, ..)| *tag == 0);
        entry.and_then(|(_, _, buffer)| buffer.first_chunk().copied()).ok_or(DeviceError::Failed)
    }

    fn one(&mut self, work: Work) -> Result<(), DeviceError> {
        self.batch.push_back(Request { tag: 0, work });
        self.wait()
    }

    /// One more READ of the next batch. What was read before is no more.
    fn ask(&mut self, tag: u64, at: u64, length: usize) -> Result<(), DeviceError> {
        self.memory.extend(self.read.drain(..).map(|(_, _, buffer)| buffer));
        let into = match self.memory.pop() {
            Some(buffer) => buffer,
            None => piece()?,
        };
        self.batch.push_back(Request { tag, work: Work::Read { at, length, into } });
        Ok(())
    }

    /// A copy of what is to be written: of a piece at most.
    fn bytes(&mut self, from: &[u8]) -> Result<Bytes, DeviceError> {
        let mut bytes = match self.writes.take() {
            Some(bytes) => bytes,
            None => piece()?.into(),
        };
        match bytes.refill(&[from]) {
            true => Ok(bytes),
            false => Err(DeviceError::Failed),
        }
    }

    /// Carries the batch out; what was read stays in `read`. The first error of any.
    fn wait(&mut self) -> Result<(), DeviceError> {
        let (mut left, mut result) = (self.batch.len(), Ok(()));
        while left > 0 {
            self.link.submit(&mut self.batch);
            let found = self.waiter.poll(&mut self.link, &*self.clock, None, &mut self.done);
            found.map_err(|_| DeviceError::Failed)?;
            for completion in self.done.drain(..) {
                left -= 1;
                result = result.and(completion.result);
                match completion.work {
                    Work::Read { length, into, .. } => self.read.push((completion.tag, length, into)),
                    Work::Write { from, .. } => self.writes = Some(from),
                    _ => {}
                }
            }
        }
        result
    }
}

fn piece() -> Result<Buffer, DeviceError> {
    let room = PIECE_BYTES as usize;
    let segment = Segment::private(room).map_err(|_| DeviceError::NoMemory)?;
    segment.carve(room).pop().ok_or(DeviceError::NoMemory)
}

/// Bytes that are read at once.
const AT_ONCE: usize = 512 << 10;
/// How often another process may be faster.
const TRIES: usize = 64;
