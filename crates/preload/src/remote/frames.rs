//! Bytes of a stream as rdma-sockets frames them: length in front, validity behind, in memory that
//! was zero before.
//!
//! The sender keeps an image of the peer's ring: a frame is composed there and written to the same
//! place of the ring, so nothing is copied or registered for a message. A frame takes a multiple of
//! 8 bytes, its validity the last 4 of them, so that it is in the word that becomes visible last.
//! No frame goes over the ring's end. The receiver zeroes what it took, then says how far it is.
//= rdma-sockets variant 2 RS-M11
//= rdma-sockets variant 2 RS-M13

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use overside_memory::kernels::copy_racing;

use crate::iovecs::Cursor;
use crate::layout::Corrupt;

/// The memory of a ring: the image, or where frames arrive. Positions count on for ever; a place is
/// their remainder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
}

/// The sending side.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// Where the next frame goes.
    put: u64,
    /// The oldest frame that the receiver has not zeroed, and the stream's position of its first
    /// byte.
    oldest: u64,
    oldest_at: u64,
}

/// The receiving side.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    /// Where the next frame will arrive.
    scan: u64,
    /// The oldest frame that is not taken whole, and the stream's position of its first byte.
    first: u64,
    first_at: u64,
}

impl Memory {
    /// # Safety
    /// `RING` bytes from there, aligned to 8, are mapped as long as this is used, and reached by
    /// atomics and racing copies alone.
    pub(crate) unsafe fn new(base: NonNull<u8>) -> Self {
        Self { base }
    }

    fn at(&self, position: u64) -> *mut u8 {
        // SAFETY: [preload-remote] below RING.
        unsafe { self.base.as_ptr().add((position % RING) as usize) }
    }

    fn half(&self, position: u64) -> &AtomicU32 {
        // SAFETY: [preload-remote] below RING; every position that comes here is a multiple of 4.
        unsafe { AtomicU32::from_ptr(self.at(position & !3).cast()) }
    }

    fn word(&self, position: u64) -> &AtomicU64 {
        // SAFETY: [preload-remote] below RING, and made a multiple of 8.
        unsafe { AtomicU64::from_ptr(self.at(position & !7).cast()) }
    }

    /// Whether something begins to arrive at this place.
    #[inline]
    pub(crate) fn is_touched(&self, position: u64) -> bool {
        self.half(position).load(Ordering::Relaxed) != 0
    }

    /// A frame's payload, when there may be one of that length.
    fn length(&self, frame: u64) -> Result<u64, Corrupt> {
        let len = u64::from(self.half(frame).load(Ordering::Acquire));
        let fits = (1..=FRAME_MAX).contains(&len) && frame % RING + framed(len) <= RING;
        if fits { Ok(len) } else { Err(Corrupt) }
    }
}

impl Outgoing {
    /// Payload bytes that the next frame can have.
    pub(crate) fn room(&self) -> u64 {
        let at = skipped(self.put);
        let free = (self.oldest + RING).saturating_sub(at).min(RING - at % RING);
        if free < LEAST { 0 } else { (free - OVERHEAD).min(FRAME_MAX) }
    }

    /// Frames what finds room, and has `post` write each frame: its position and bytes. Returns how
    /// many bytes of the program's went; none more once `post` says no.
    pub(crate) fn send(&mut self, image: Memory, from: &mut Cursor<'_>, mut post: impl FnMut(u64, u64) -> bool) -> u64 {
        let mut sent = 0;
        loop {
            let (frame, room) = (skipped(self.put), self.room());
            let mut len = 0;
            while len < room {
                let Some((source, run)) = from.peek((room - len) as usize) else { break };
                // SAFETY: [preload-remote] [preload-program] within the frame's room; the program's bytes.
                unsafe { copy_racing(image.at(frame + HEADER + len), source, run) };
                from.advance(run);
                len += run as u64;
            }
            if len == 0 {
                return sent;
            }
            let end = frame + framed(len);
            for pad in frame + HEADER + len..end - FOOTER {
                // SAFETY: [preload-remote] one byte within the frame.
                unsafe { image.at(pad).write_volatile(0) };
            }
            image.half(frame).store(len as u32, Ordering::Relaxed);
            image.half(end - FOOTER).store(VALID, Ordering::Release);
            self.put = end;
            sent += len;
            if !post(frame, framed(len)) {
                return sent;
            }
        }
    }

    /// The receiver has zeroed all frames before this position; it may have been heard late.
    /// Returns up to where of the stream.
    pub(crate) fn free(&mut self, image: Memory, upto: u64) -> Result<u64, Corrupt> {
        if upto > self.put {
            return Err(Corrupt);
        }
        while self.oldest < upto {
            let frame = skipped(self.oldest);
            let len = image.length(frame)?;
            if frame + framed(len) > upto {
                return Err(Corrupt);
            }
            (self.oldest, self.oldest_at) = (frame + framed(len), self.oldest_at + len);
        }
        Ok(self.oldest_at)
    }

    /// The stream's oldest byte that is still in the image.
    pub(crate) fn oldest_at(&self) -> u64 {
        self.oldest_at
    }

    /// A run of the stream's bytes from `position` on, out of the image.
    pub(crate) fn written(&self, image: Memory, position: u64) -> (*mut u8, usize) {
        let (mut frame, mut at) = (self.oldest, self.oldest_at);
        while frame < self.put {
            frame = skipped(frame);
            let Ok(len) = image.length(frame) else { break };
            if let Some(offset) = position.checked_sub(at).filter(|offset| *offset < len) {
                return (image.at(frame + HEADER + offset), (len - offset) as usize);
            }
            (frame, at) = (frame + framed(len), at + len);
        }
        (image.at(0), 0)
    }
}

impl Incoming {
    /// How many bytes have arrived since the last look.
    pub(crate) fn arrived(&mut self, ring: Memory) -> Result<u64, Corrupt> {
        let mut bytes = 0;
        loop {
            let frame = skipped(self.scan);
            if frame + LEAST > self.first + RING || !ring.is_touched(frame) {
                return Ok(bytes);
            }
            let len = ring.length(frame)?;
            if frame + framed(len) > self.first + RING {
                return Err(Corrupt);
            }
            if ring.half(frame + framed(len) - FOOTER).load(Ordering::Acquire) != VALID {
                return Ok(bytes);
            }
            self.scan = frame + framed(len);
            bytes += len;
        }
    }

    /// Copies at most `waiting` bytes from the stream's position `tail` on, all of them arrived,
    /// and zeroes the frames that are taken whole, unless it is only looked. Returns the bytes.
    pub(crate) fn read(
        &mut self,
        ring: Memory,
        (tail, mut waiting): (u64, u64),
        to: &mut Cursor<'_>,
        look: bool,
    ) -> Result<u64, Corrupt> {
        let (mut frame, mut begins, mut at) = (self.first, self.first_at, tail);
        while waiting > 0 {
            frame = skipped(frame);
            let len = ring.length(frame)?;
            let offset = at.checked_sub(begins).filter(|offset| *offset < len).ok_or(Corrupt)?;
            let Some((place, run)) = to.peek((len - offset).min(waiting) as usize) else { break };
            // SAFETY: [preload-remote] [preload-program] within a frame; the program's buffer.
            unsafe { copy_racing(place, ring.at(frame + HEADER + offset), run) };
            to.advance(run);
            at += run as u64;
            waiting -= run as u64;
            if at - begins == len {
                let end = frame + framed(len);
                if !look {
                    (frame..end).step_by(8).for_each(|word| ring.word(word).store(0, Ordering::Relaxed));
                    fence(Ordering::Release);
                    (self.first, self.first_at) = (end, at);
                }
                (frame, begins) = (end, at);
            }
        }
        Ok(at - tail)
    }

    /// Up to where the sender may write again.
    pub(crate) fn freed(&self) -> u64 {
        self.first
    }

    /// Where the next frame will begin; none while the ring is full.
    pub(crate) fn next(&self) -> Option<u64> {
        let frame = skipped(self.scan);
        (frame + LEAST <= self.first + RING).then_some(frame)
    }
}

/// Bytes of a frame with so much payload.
fn framed(len: u64) -> u64 {
    (len + OVERHEAD).next_multiple_of(8)
}

/// Where a frame begins that comes next after `position`: what is left before the ring's end may be
/// too little for any.
fn skipped(position: u64) -> u64 {
    let left = RING - position % RING;
    if left < LEAST { position + left } else { position }
}

/// Bytes of a ring, one for each direction.
pub(crate) const RING: u64 = 64 << 10;
/// Payload of a frame; the peer can begin to take a long message before it is there whole.
const FRAME_MAX: u64 = 16 << 10;
const HEADER: u64 = 4;
const FOOTER: u64 = 4;
const OVERHEAD: u64 = HEADER + FOOTER;
/// The shortest frame.
const LEAST: u64 = 16;
/// Stands behind a message that is there whole.
pub(super) const VALID: u32 = 0x5a1d_f007;

/// The writes of a frame of `len` bytes: where each begins, and its length. It is one where the
/// last bytes of a write come last (RS-M10). Elsewhere the word with the validity is a write of its
/// own.
pub(super) fn writes(len: u64, last_byte_last: bool) -> impl Iterator<Item = (u64, u64)> {
    let body = if last_byte_last { len } else { len.saturating_sub(8) };
    [(0, body), (body, len - body)].into_iter().filter(|(_, len)| *len > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::iovec;

    /// A ring and its image, zeroed and aligned.
    fn memories() -> [(Vec<u64>, Memory); 2] {
        [0, 1].map(|_| {
            let mut words = vec![0u64; RING as usize / 8];
            // SAFETY: [preload-remote] the vector lives as long as the test.
            let memory = unsafe { Memory::new(NonNull::new(words.as_mut_ptr().cast()).unwrap()) };
            (words, memory)
        })
    }

    fn carry(image: Memory, ring: Memory, frame: u64, len: u64) {
        // SAFETY: [preload-remote] both of that length there.
        unsafe { copy_racing(ring.at(frame), image.at(frame), len as usize) };
    }

    fn vector(bytes: &mut [u8]) -> [iovec; 1] {
        [iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }]
    }

    proptest::proptest! {
        #[test]
        fn what_is_framed_is_read_whatever_the_pieces(
            pieces in proptest::collection::vec((1usize..40_000, 1usize..40_000, proptest::bool::ANY), 1..60),
        ) {
            let [(_a, image), (_b, ring)] = memories();
            let (mut out, mut into) = (Outgoing::default(), Incoming::default());
            let (mut sent, mut head, mut tail) = (0u64, 0u64, 0u64);
            for (write, read, reported) in pieces {
                let mut bytes: Vec<u8> = (0..write as u64).map(|i| ((sent + i) * 7) as u8).collect();
                let room = out.room();
                let went = out.send(image, &mut Cursor::new(&vector(&mut bytes)), |at, len| { carry(image, ring, at, len); true });
                assert_eq!(went == 0, room == 0);
                sent += went;
                head += into.arrived(ring).unwrap();
                assert_eq!(head, sent, "all that was written is there");
                for look in [true, false] {
                    let mut got = vec![0; read];
                    let n = into.read(ring, (tail, head - tail), &mut Cursor::new(&vector(&mut got)), look).unwrap();
                    assert_eq!(n, (read as u64).min(head - tail));
                    assert!(got[..n as usize].iter().enumerate().all(|(i, byte)| *byte == ((tail + i as u64) * 7) as u8));
                    if !look { tail += n; }
                }
                if reported {
                    assert!(out.free(image, into.freed()).unwrap() <= tail);
                    // What the receiver has not taken can be sent again out of the image.
                    let mut at = tail;
                    while at < sent {
                        let (place, run) = out.written(image, at);
                        assert!(run > 0);
                        // SAFETY: [preload-remote] written just now.
                        let again = unsafe { std::slice::from_raw_parts(place, run) };
                        assert!(again.iter().enumerate().all(|(i, byte)| *byte == ((at + i as u64) * 7) as u8));
                        at += run as u64;
                    }
                    assert_eq!(at, sent);
                }
            }
        }

        #[test]
        fn noise_is_refused_and_never_followed(
            words in proptest::collection::vec(proptest::num::u64::ANY, 64), freed in proptest::num::u64::ANY,
        ) {
            let [(mut noise, ring), (_b, image)] = memories();
            noise[..64].copy_from_slice(&words);
            let mut into = Incoming::default();
            if let Ok(bytes) = into.arrived(ring) {
                let mut out = vec![0; 9000];
                let _ = into.read(ring, (0, bytes), &mut Cursor::new(&vector(&mut out)), false);
            }
            let mut out = Outgoing::default();
            assert_eq!(out.free(image, freed).is_ok(), freed == 0);
        }
    }

    /// Written out by hand: sender and receiver that both have it wrong would still understand each
    /// other.
    #[test]
    fn a_frame_is_its_length_the_payload_and_validity_in_the_last_four_bytes() {
        for payload in [&b"hello"[..], b"12345678", b"x"] {
            let [(mut words, image), _] = memories();
            words.fill(u64::MAX);
            let mut bytes = payload.to_vec();
            let mut posted = Vec::new();
            let sent = Outgoing::default().send(image, &mut Cursor::new(&vector(&mut bytes)), |at, len| {
                posted.push((at, len));
                true
            });
            let mut frame = (payload.len() as u32).to_le_bytes().to_vec();
            frame.extend(payload);
            frame.resize((4 + payload.len() + 4).next_multiple_of(8) - 4, 0);
            frame.extend(0x5a1d_f007u32.to_le_bytes());
            assert_eq!((sent, posted), (payload.len() as u64, vec![(0, frame.len() as u64)]));
            let mut image_bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert!(image_bytes.split_off(frame.len()).iter().all(|byte| *byte == 0xff), "no byte behind it");
            assert_eq!(image_bytes, frame);
        }
    }

    #[test]
    fn a_frame_is_one_write_where_its_last_bytes_come_last() {
        for len in [8, 16, 4096] {
            assert_eq!(writes(len, true).collect::<Vec<_>>(), [(0, len)]);
        }
        assert_eq!(writes(24, false).collect::<Vec<_>>(), [(0, 16), (16, 8)]);
        assert_eq!(writes(8, false).collect::<Vec<_>>(), [(0, 8)], "there is nothing before its last word");
    }

    /// However much of it a device has written, first byte to last (RS-M12, RS-M14).
    #[test]
    fn a_message_is_there_only_with_its_validity() {
        for payload in [5, 16, 1000] {
            let [(_a, image), (_b, ring)] = memories();
            let mut bytes: Vec<u8> = (0..payload).map(|at| at as u8 ^ 0x5a).collect();
            Outgoing::default().send(image, &mut Cursor::new(&vector(&mut bytes)), |at, len| {
                for part in 0..len {
                    carry(image, ring, at, part);
                    assert_eq!(Incoming::default().arrived(ring), Ok(0), "{part} of {len} bytes are there");
                }
                carry(image, ring, at, len);
                true
            });
            let (mut into, mut got) = (Incoming::default(), vec![0; payload]);
            assert_eq!(into.arrived(ring), Ok(payload as u64));
            into.read(ring, (0, payload as u64), &mut Cursor::new(&vector(&mut got)), false).unwrap();
            assert_eq!(got, bytes);
        }
    }
}
