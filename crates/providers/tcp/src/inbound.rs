//! Bytes on their way in: heads and small payloads through a stage, large payloads straight to
//! where they belong.

use std::io::IoSliceMut;
use std::os::fd::AsFd;

use overside_verbs::handshake::TAG_BYTES;
use rustix::io::Errno;

use crate::fate::Fate;
use crate::frame::{HEAD_MAX, HEAD_MIN, Head, WRITE_CHUNK, head_bytes};
use crate::seal::{Seal, Sealing};

/// What was read and not understood yet.
#[derive(Debug)]
pub struct Inbound {
    seal: Seal,
    stage: Box<[u8]>,
    start: usize,
    end: usize,
    /// A frame has begun and is not complete.
    partial: bool,
    /// The last frame was large: the stage then takes little, so that the next payload lands in its
    /// place.
    large: bool,
    /// Bytes read, ever.
    pub(crate) taken: u64,
    /// The socket had no more when it was last asked.
    pub(crate) dry: bool,
}

/// A large payload on its way to its place.
#[derive(Debug)]
pub(crate) struct Body {
    address: *mut u8,
    len: usize,
    done: usize,
    tagged: usize,
    sealing: Option<Sealing>,
}

/// A frame that is there.
#[derive(Debug)]
pub enum Frame {
    /// Head and, in `stage(..)` of this range, all of its payload.
    Whole(Head, std::ops::Range<usize>),
    /// Its payload follows.
    Large(Head),
}

impl Inbound {
    /// Of a connection whose frames carry these tags.
    pub fn new(seal: Seal) -> Self {
        let stage = vec![0; STAGE_BYTES].into_boxed_slice();
        Self { seal, stage, start: 0, end: 0, partial: false, large: false, taken: 0, dry: false }
    }

    /// The next frame, if all that decides about it is there.
    ///
    /// # Errors
    /// When it is none, or its tag is wrong.
    pub(crate) fn frame(&mut self) -> Result<Option<Frame>, Fate> {
        let there = &self.stage[self.start..self.end];
        self.partial = !there.is_empty();
        let Some(kind) = there.first() else { return Ok(None) };
        let head_len = head_bytes(*kind).ok_or(Fate::Malformed("a frame of an unknown kind"))?;
        if there.len() < head_len {
            return Ok(None);
        }
        let head = Head::decode(&there[..head_len]).map_err(Fate::Malformed)?;
        let whole = head.is_whole();
        let sealed = head_len + if whole { head.len as usize } else { 0 };
        let tag_len = self.seal.tag_bytes();
        if there.len() < sealed + tag_len {
            return Ok(None);
        }
        if !self.seal.head_holds(&[&there[..sealed]], &there[sealed..sealed + tag_len]) {
            return Err(WRONG_TAG);
        }
        let payload = self.start + head_len..self.start + sealed;
        self.start += sealed + tag_len;
        self.large = !whole;
        if whole {
            self.seal.next();
            self.partial = false;
            return Ok(Some(Frame::Whole(head, payload)));
        }
        Ok(Some(Frame::Large(head)))
    }

    /// Bytes of the stage.
    pub(crate) fn stage(&self, range: std::ops::Range<usize>) -> &[u8] {
        &self.stage[range]
    }

    /// A place for the payload of the frame that has just come.
    ///
    /// # Safety
    /// `len` bytes at `address` are ours to write until the body is dropped.
    pub(crate) unsafe fn body(&self, address: *mut u8, len: usize) -> Body {
        Body { address, len, done: 0, tagged: 0, sealing: self.seal.payload() }
    }

    /// Takes what is there of a body. True: it is complete, and its tag holds.
    pub(crate) fn take(&mut self, body: &mut Body) -> Result<bool, Fate> {
        let now = (self.end - self.start).min(body.len - body.done);
        if now > 0 {
            // SAFETY: [tcp-posted] `body`'s promise; the stage is ours, and no posted memory overlaps it.
            unsafe {
                let from = self.stage[self.start..].as_ptr();
                std::ptr::copy_nonoverlapping(from, body.address.add(body.done), now);
            }
            body.done += now;
            self.start += now;
        }
        body.tag();
        let tag_len = self.seal.tag_bytes();
        if body.done < body.len || self.end - self.start < tag_len {
            return Ok(false);
        }
        if let Some(sealing) = body.sealing.take()
            && !sealing.holds(&self.stage[self.start..self.start + tag_len])
        {
            return Err(WRONG_TAG);
        }
        self.start += tag_len;
        self.seal.next();
        self.partial = false;
        Ok(true)
    }

    /// Reads once: into what a body lacks, and behind it into the stage. False: the socket has
    /// nothing.
    ///
    /// # Errors
    /// When the connection has ended.
    pub(crate) fn fill(&mut self, socket: impl AsFd, body: Option<&mut Body>) -> Result<bool, Fate> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.stage.len() - self.start < FRAME_MAX {
            self.stage.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let ahead = if self.large { AHEAD_BYTES } else { self.stage.len() };
        let room_end = (self.end + ahead).min(self.stage.len());
        let stage = &mut self.stage[self.end..room_end];
        let (asked, got) = match body {
            Some(body) if body.done < body.len => {
                let lacks = body.len - body.done;
                // SAFETY: [tcp-posted] `body`'s promise; the borrow ends with this call.
                let place = unsafe { std::slice::from_raw_parts_mut(body.address.add(body.done), lacks) };
                let asked = lacks + stage.len();
                let read = rustix::io::readv(socket, &mut [IoSliceMut::new(place), IoSliceMut::new(stage)]);
                let read = read.inspect(|got| {
                    body.done += lacks.min(*got);
                    self.end += got.saturating_sub(lacks);
                });
                (asked, read)
            }
            _ => {
                let asked = stage.len();
                let read = rustix::io::read(socket, stage);
                (asked, read.inspect(|got| self.end += got))
            }
        };
        match got {
            Ok(0) => Err(Fate::Died),
            Ok(got) => {
                self.taken += got as u64;
                self.dry = got < asked;
                Ok(true)
            }
            Err(Errno::AGAIN) => {
                self.dry = true;
                Ok(false)
            }
            Err(Errno::INTR) => Ok(true),
            Err(errno) => Err(Fate::Lost(errno)),
        }
    }

    /// Whether a frame has begun and is not complete.
    pub(crate) fn is_partial(&self) -> bool {
        self.partial
    }
}

impl Body {
    /// Adds what is there to the tag: in large steps, which vector code needs.
    fn tag(&mut self) {
        let Some(sealing) = &mut self.sealing else { return };
        let whole_steps = (self.done - self.tagged) / TAG_STEP * TAG_STEP;
        let len = if self.done == self.len { self.done - self.tagged } else { whole_steps };
        if len == 0 {
            return;
        }
        // SAFETY: [tcp-posted] these bytes are initialised, ours alone, and the borrow ends here.
        sealing.add(unsafe { std::slice::from_raw_parts(self.address.add(self.tagged), len) });
        self.tagged += len;
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

const WRONG_TAG: Fate =
    Fate::Malformed("a frame whose tag is wrong: the keys differ, or somebody changed it on the way");
/// The longest frame that is taken whole.
const FRAME_MAX: usize = HEAD_MAX + WRITE_CHUNK + TAG_BYTES;
const STAGE_BYTES: usize = FRAME_MAX + (4 << 10);
/// What is read behind a large payload: its tag and the next head, and little of the next payload,
/// which would be copied.
const AHEAD_BYTES: usize = 256;
/// Bytes that are tagged at a time.
const TAG_STEP: usize = 64 << 10;
const _: () = assert!(HEAD_MIN <= HEAD_MAX && TAG_BYTES + HEAD_MIN + TAG_BYTES <= AHEAD_BYTES);
