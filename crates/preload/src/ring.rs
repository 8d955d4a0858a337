//! One direction of a connection: positions, and copies in and out.
//!
//! Each end keeps its own position in private memory; what the peer says of its position is copied and checked. The receiver
//! commits what it took by a compare-and-swap on the tail word, so it takes nothing once either end has switched.

use std::sync::atomic::Ordering;

use overside_memory::kernels::copy_racing;

use crate::far::{Fate, RING};
use crate::iovecs::Cursor;
use crate::layout::{LARGE, SMALL, SWITCHED, Shared};

/// What the peer wrote into the shared memory makes no sense.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Corrupt;

/// The sending side of a direction.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    /// Bytes written, ever.
    pub(crate) head: u64,
    /// What was last seen of the receiver's position.
    tail: u64,
    large_from: u64,
    /// There was no memory for the large ring when it was asked for last.
    stuck: bool,
    /// Between hosts: bytes that fit now.
    far_room: Option<u64>,
}

/// How far the receiver has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) tail: u64,
    pub(crate) switched: bool,
}

impl Sender {
    pub(crate) const NEW: Self = Self { head: 0, tail: 0, large_from: 0, stuck: false, far_room: None };

    /// The receiver's position, checked.
    #[inline]
    pub(crate) fn taken(&mut self, shared: &Shared, direction: usize) -> Result<Taken, Corrupt> {
        if shared.is_far() {
            self.far_room = shared.far(|far| far.room());
            if shared.far(|far| far.is_corrupt()) == Some(true) {
                return Err(Corrupt);
            }
        }
        let word = shared.tail(direction).load(Ordering::Acquire);
        let (tail, switched) = (word & !SWITCHED, word & SWITCHED != 0);
        if tail < self.tail || tail > self.head {
            return Err(Corrupt);
        }
        self.tail = tail;
        Ok(Taken { tail, switched })
    }

    /// Bytes that fit now.
    #[inline]
    pub(crate) fn room(&self) -> u64 {
        if let Some(room) = self.far_room {
            room
        } else if self.large_from == 0 {
            SMALL - (self.head - self.tail)
        } else {
            LARGE - (self.head - self.tail.max(self.large_from - 1))
        }
    }

    /// What was written has reached the receiver in another way; it goes on behind.
    pub(crate) fn go_on(&mut self) {
        (self.tail, self.stuck) = (self.head, false);
    }

    /// What was last seen of the receiver's position.
    pub(crate) fn seen(&self) -> u64 {
        self.tail
    }

    /// Whether a send would take a byte.
    pub(crate) fn has_room(&self) -> bool {
        self.far_room.is_none() && self.large_from == 0 && !self.stuck || self.room() > 0
    }

    /// Moves over to the large ring, when its memory can be had.
    #[cold]
    pub(crate) fn grow(&mut self, shared: &Shared, direction: usize) -> bool {
        if self.large_from != 0 || shared.is_far() {
            return false;
        }
        self.stuck = !shared.populate(direction);
        if self.stuck {
            return false;
        }
        self.large_from = self.head + 1;
        shared.large_from(direction).store(self.large_from, Ordering::Release);
        true
    }

    /// Copies what fits of the buffers and publishes it. Returns the bytes.
    #[inline]
    pub(crate) fn write(&mut self, shared: &Shared, direction: usize, from: &mut Cursor<'_>) -> u64 {
        if let Some(bytes) = shared.far(|far| far.send(shared, from)) {
            self.head += bytes;
            self.far_room = shared.far(|far| far.room());
            return bytes;
        }
        let (mut room, before) = (self.room(), self.head);
        while room > 0 {
            let (to, run) = shared.place(direction, self.head, self.large_from);
            let Some((source, len)) = from.peek(run.min(room) as usize) else { break };
            // SAFETY: [preload-shared] [preload-program] a run of the ring that the receiver leaves alone; the program's bytes.
            unsafe { copy_racing(to, source, len) };
            from.advance(len);
            self.head += len as u64;
            room -= len as u64;
        }
        shared.head(direction).store(self.head, Ordering::Release);
        self.head - before
    }

    /// Bytes that can lie in the ring unread, whatever the peer says.
    pub(crate) fn in_ring_at_most(&self) -> u64 {
        match (self.far_room, self.large_from) {
            (Some(_), _) => RING,
            (None, 0) => SMALL,
            (None, _) => SMALL + LARGE,
        }
    }

    /// A run of what was written from `position` on; to be sent again through the kernel.
    pub(crate) fn written(&self, shared: &Shared, direction: usize, position: u64) -> (*mut u8, usize) {
        if let Some(unread) = shared.far(|far| far.unread(position)) {
            return unread;
        }
        let (at, run) = shared.place(direction, position, self.large_from);
        (at, run.min(self.head - position) as usize)
    }
}

/// The receiving side of a direction.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    /// Bytes taken, ever.
    pub(crate) tail: u64,
    large_from: u64,
}

/// What taking bytes came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Took {
    /// So many.
    Bytes(u64),
    /// There are none for now.
    Nothing,
    /// From here on they come through the kernel.
    Switched,
}

impl Receiver {
    pub(crate) const NEW: Self = Self { tail: 0, large_from: 0 };

    /// What the sender has written so far has come in another way; it goes on behind.
    pub(crate) fn go_on(&mut self, shared: &Shared, direction: usize) {
        self.tail = shared.head(direction).load(Ordering::Acquire) & !SWITCHED;
        if self.large_from == 0 {
            self.large_from = shared.large_from(direction).load(Ordering::Acquire);
        }
    }

    /// Bytes that wait, checked.
    #[inline]
    pub(crate) fn waiting(&mut self, shared: &Shared, direction: usize) -> Result<u64, Corrupt> {
        if shared.far(|far| far.is_corrupt()) == Some(true) {
            return Err(Corrupt);
        }
        let head = shared.head(direction).load(Ordering::Acquire);
        let waiting = head.wrapping_sub(self.tail);
        if waiting > SMALL + LARGE {
            return Err(Corrupt);
        }
        if self.large_from == 0 {
            let from = shared.large_from(direction).load(Ordering::Acquire);
            if from != 0 && from <= self.tail {
                return Err(Corrupt);
            }
            self.large_from = from;
        }
        Ok(waiting)
    }

    /// Copies what is there into the buffers and takes it, unless it is only looked at.
    #[inline]
    pub(crate) fn read(
        &mut self,
        shared: &Shared,
        direction: usize,
        to: &mut Cursor<'_>,
        look: bool,
    ) -> Result<Took, Corrupt> {
        let mut waiting = self.waiting(shared, direction)?;
        let mut at = self.tail;
        if waiting == 0 {
            let switched = shared.tail(direction).load(Ordering::Acquire) & SWITCHED != 0
                || shared.far(|far| far.fate().0) == Some(Fate::End(self.tail));
            return Ok(if switched { Took::Switched } else { Took::Nothing });
        }
        let mut target = *to;
        if let Some(read) = shared.far(|far| far.read(self.tail, waiting, &mut target, look)) {
            (at, waiting) = (self.tail + read?, 0);
        }
        while waiting > 0 {
            let (from, run) = shared.place(direction, at, self.large_from);
            let Some((place, len)) = target.peek(run.min(waiting) as usize) else { break };
            // SAFETY: [preload-shared] [preload-program] a run of the ring; the program's buffer.
            unsafe { copy_racing(place, from, len) };
            target.advance(len);
            at += len as u64;
            waiting -= len as u64;
        }
        let bytes = at - self.tail;
        let word = shared.tail(direction);
        if look {
            // Bytes that were taken back will come through the kernel.
            if word.load(Ordering::Acquire) & SWITCHED != 0 {
                return Ok(Took::Switched);
            }
        } else {
            match word.compare_exchange(self.tail, at, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => self.tail = at,
                Err(now) if now == self.tail | SWITCHED => return Ok(Took::Switched),
                Err(_) => return Err(Corrupt),
            }
        }
        *to = target;
        Ok(Took::Bytes(bytes))
    }

    /// Where the next byte will lie.
    #[inline]
    pub(crate) fn next(&self, shared: &Shared, direction: usize) -> *const u8 {
        shared.place(direction, self.tail, self.large_from).0
    }

    /// Whether there is something to do: bytes, or the switch. For waiting, without any check.
    #[inline]
    pub(crate) fn is_stirring(shared: &Shared, direction: usize, tail: u64) -> bool {
        shared.head(direction).load(Ordering::SeqCst) != tail
            || shared.is_new()
            || shared.tail(direction).load(Ordering::SeqCst) & SWITCHED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::iovec;

    fn vector(bytes: &mut [u8]) -> [iovec; 1] {
        [iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }]
    }

    proptest::proptest! {
        #[test]
        fn what_is_written_is_read_whatever_the_pieces(pieces in proptest::collection::vec((1usize..5000, 1usize..5000), 1..60)) {
            let (shared, _fd) = Shared::create().unwrap();
            let (mut sender, mut receiver) = (Sender::default(), Receiver::default());
            let (mut sent, mut received) = (0u64, 0u64);
            for (write, read) in pieces {
                let mut bytes: Vec<u8> = (0..write as u64).map(|i| (sent + i) as u8).collect();
                sender.taken(&shared, 1).unwrap();
                if sender.room() < write as u64 { sender.grow(&shared, 1); }
                sent += sender.write(&shared, 1, &mut Cursor::new(&vector(&mut bytes)));
                let mut out = vec![0; read];
                match receiver.read(&shared, 1, &mut Cursor::new(&vector(&mut out)), false).unwrap() {
                    Took::Bytes(n) => {
                        for (i, byte) in out[..n as usize].iter().enumerate() {
                            assert_eq!(*byte, (received + i as u64) as u8);
                        }
                        received += n;
                    }
                    other => assert_eq!((other, sent), (Took::Nothing, received)),
                }
            }
            // SAFETY: [preload-shared] not used afterwards.
            unsafe { shared.unmap() };
        }

        #[test]
        fn noise_is_refused_and_never_followed(head in proptest::num::u64::ANY, tail in proptest::num::u64::ANY, from in proptest::num::u64::ANY) {
            let (shared, _fd) = Shared::create().unwrap();
            shared.head(0).store(head, Ordering::Relaxed);
            shared.tail(0).store(tail, Ordering::Relaxed);
            shared.large_from(0).store(from, Ordering::Relaxed);
            let mut out = vec![0; 9000];
            let _ = Receiver::default().read(&shared, 0, &mut Cursor::new(&vector(&mut out)), false);
            let mut sender = Sender::default();
            if sender.taken(&shared, 0).is_ok() { assert!(sender.room() <= LARGE); }
            // SAFETY: [preload-shared] not used afterwards.
            unsafe { shared.unmap() };
        }
    }

    #[test]
    fn nothing_is_taken_once_the_ring_is_switched() {
        let (shared, _fd) = Shared::create().unwrap();
        let (mut sender, mut receiver) = (Sender::default(), Receiver::default());
        let mut bytes = *b"hello";
        sender.write(&shared, 0, &mut Cursor::new(&vector(&mut bytes)));
        shared.tail(0).fetch_or(SWITCHED, Ordering::AcqRel);
        let mut out = [0; 5];
        let took = receiver.read(&shared, 0, &mut Cursor::new(&vector(&mut out)), false);
        assert_eq!(took, Ok(Took::Switched));
        assert_eq!(sender.taken(&shared, 0), Ok(Taken { tail: 0, switched: true }));
        let (at, len) = sender.written(&shared, 0, 0);
        // SAFETY: [preload-shared] five bytes were written there.
        assert_eq!(unsafe { std::slice::from_raw_parts(at, len) }, b"hello");
    }
}
