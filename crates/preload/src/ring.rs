//! One direction of a connection: positions, and copies in and out.
//!
//! Each end keeps its own position in private memory; what the peer says of its position is
//! copied and checked. The receiver commits what it took by a compare-and-swap on the tail
//! word, so it takes nothing once either end has switched; what then still lies before the
//! border it reads on (`read_on`).

use std::sync::atomic::Ordering;

use overside_memory::kernels::copy_racing;

use crate::fault::{self, Fault};
use crate::iovecs::Cursor;
use crate::layout::{Corrupt, DEEP, Home, LARGE, PIECE, PIECES, Ring, SMALL, SWITCHED, SharedMemory, UNREAD_MAX};
use crate::word::Word;

/// The sending side of a direction.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Sender {
    /// Bytes written, ever.
    pub(crate) head: u64,
    /// What was last seen of the receiver's position.
    tail: u64,
    home: Home,
    /// There was no memory for a larger ring when it was asked for last.
    stuck: bool,
    /// Bytes that may lie unread in the deep ring; pieces of it that have memory, a bit each.
    most: u64,
    pieces: u32,
    /// Since when the ring has been full with the receiver where it is, if it is.
    full_since_ns: Option<u64>,
    /// Bytes that fit now, where positions do not say it.
    room_beyond: Option<u64>,
}

/// How far the receiver has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) tail: u64,
    pub(crate) switched: bool,
}

impl Sender {
    pub(crate) const NEW: Self = Self {
        head: 0,
        tail: 0,
        home: Home::FIRST,
        stuck: false,
        most: 0,
        pieces: 0,
        full_since_ns: None,
        room_beyond: None,
    };

    /// The receiver's position, checked; once the direction is switched, the border.
    #[inline]
    pub(crate) fn taken(&mut self, shared: &SharedMemory, direction: usize) -> Result<Taken, Corrupt> {
        self.room_beyond = shared.room()?;
        let word = shared.tail(direction).load(Ordering::Acquire);
        let (tail, switched) = (word & !SWITCHED, word & SWITCHED != 0);
        if tail < self.tail || tail > self.head {
            return Err(Corrupt);
        }
        if tail != self.tail {
            (self.tail, self.full_since_ns, self.stuck) = (tail, None, false);
        }
        Ok(Taken { tail, switched })
    }

    /// Bytes that fit now.
    #[inline]
    pub(crate) fn room(&self) -> u64 {
        if let Some(room) = self.room_beyond {
            return room;
        }
        // Bytes of before lie in another ring.
        let len = match self.home.now {
            Ring::Small => return SMALL - (self.head - self.tail),
            Ring::Large => LARGE,
            Ring::Deep => DEEP.min(self.most),
        };
        len.saturating_sub(self.head - self.tail.max(self.home.from).max(self.home.small_until))
    }

    /// What was written has reached the receiver in another way; it goes on behind.
    pub(crate) fn go_on(&mut self) {
        (self.tail, self.stuck, self.full_since_ns) = (self.head, false, None);
    }

    /// What was last seen of the receiver's position.
    pub(crate) fn seen(&self) -> u64 {
        self.tail
    }

    /// Whether a send would take a byte.
    pub(crate) fn has_room(&self) -> bool {
        self.room_beyond.is_none() && self.home.now == Ring::Small && !self.stuck || self.room() > 0
    }

    /// Whether the sender may go on in another ring: everything of before the
    /// last such step is taken.
    fn may_move(&self) -> bool {
        self.room_beyond.is_none() && self.tail >= self.home.from
    }

    fn go_to(&mut self, ring: Ring, shared: &SharedMemory, direction: usize) {
        if self.home.now == Ring::Small {
            // All before lies in the small ring, which is told apart.
            self.home = Home { before: ring, now: ring, from: 0, small_until: self.head };
            shared.small_until(direction).store(self.head + 1, Ordering::Release);
        } else {
            self.home = Home { before: self.home.now, now: ring, from: self.head, ..self.home };
        }
        self.full_since_ns = None;
        shared.home(direction).store(self.home.pack(), Ordering::Release);
    }

    /// Moves over to the large ring, when its memory can be had.
    #[cold]
    pub(crate) fn grow(&mut self, shared: &SharedMemory, direction: usize) -> bool {
        if self.home.now != Ring::Small || !self.may_move() {
            return false;
        }
        self.stuck = !shared.populate(direction);
        if !self.stuck {
            self.go_to(Ring::Large, shared, direction);
        }
        !self.stuck
    }

    /// The ring is full. Whether it is to be looked at again soon, since it may become deeper. A
    /// receiver that is merely slow keeps the ring that fits a cache. For one that does not read at
    /// all the kernel would have buffered more.
    #[cold]
    pub(crate) fn may_deepen(&self) -> bool {
        self.home.now != Ring::Deep && self.room_beyond.is_none() && !self.stuck
    }

    /// Moves over to the deep ring, when this one has been full for so long and memory can be had.
    /// True when there is room now.
    #[cold]
    ///
    /// `most`: bytes that may then lie unread.
    pub(crate) fn deepen(
        &mut self,
        shared: &SharedMemory,
        direction: usize,
        now_ns: u64,
        most: impl FnOnce() -> u64,
    ) -> bool {
        if !self.may_deepen() {
            return false;
        }
        let since = *self.full_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since) < FULL_NS || !self.may_move() || fault::is_planted(Fault::StaysShallow) {
            return false;
        }
        let most = most();
        if most <= self.head - self.tail {
            self.stuck = true;
            return false;
        }
        self.pieces = 0;
        let first = self.head % DEEP / PIECE;
        if !shared.populate_piece(direction, first) {
            self.full_since_ns = Some(now_ns);
            return false;
        }
        self.most = most;
        self.pieces = 1 << first;
        self.go_to(Ring::Deep, shared, direction);
        true
    }

    /// Back to the large ring, once everything is taken and memory for more is of no use.
    #[cold]
    fn shallow(&mut self, shared: &SharedMemory, direction: usize) {
        self.go_to(Ring::Large, shared, direction);
        self.pieces = 0;
        shared.empty_deep(direction);
    }

    /// Whether there is memory behind a place of the deep ring, and how far.
    #[cold]
    fn reach(&mut self, shared: &SharedMemory, direction: usize) -> u64 {
        let piece = self.head % DEEP / PIECE;
        if self.pieces >> piece & 1 == 0 {
            if !shared.populate_piece(direction, piece) {
                return 0;
            }
            self.pieces |= 1 << piece;
        }
        PIECE - self.head % PIECE
    }

    /// Copies what fits of the buffers and publishes it. Returns the bytes.
    #[inline]
    pub(crate) fn write(&mut self, shared: &SharedMemory, direction: usize, from: &mut Cursor<'_>) -> u64 {
        if let Some((bytes, room)) = shared.send(from) {
            self.head += bytes;
            self.room_beyond = Some(room);
            return bytes;
        }
        let before = self.head;
        if self.home.now == Ring::Deep && self.tail == self.head && self.may_move() {
            self.shallow(shared, direction);
        }
        let mut room = self.room();
        while room > 0 {
            let (to, mut run) = shared.place(direction, self.head, self.home);
            if self.home.now == Ring::Deep {
                run = run.min(self.reach(shared, direction));
            }
            let Some((source, len)) = from.peek(run.min(room) as usize).filter(|(_, len)| *len > 0) else { break };
            // SAFETY: [preload-shared] [preload-program] a run of the ring that the receiver leaves alone; the program's bytes.
            unsafe { copy_racing(to, source, len) };
            from.advance(len);
            self.head += len as u64;
            room -= len as u64;
        }
        shared.head(direction).store(self.head, Ordering::Release);
        self.head - before
    }

    /// It was found full, and a look tells that nothing has come of that: the receiver
    /// is where it was, and no other ring is due. Where memory for one is asked for
    /// each time, the answer is no.
    pub(crate) fn is_still_full(&self, shared: &SharedMemory, direction: usize, now_ns: impl FnOnce() -> u64) -> bool {
        self.room_beyond.is_none()
            && self.home.now != Ring::Small
            && self.room() == 0
            && shared.tail(direction).load(Ordering::Acquire) == self.tail
            && (!self.may_deepen() || self.full_since_ns.is_some_and(|since| now_ns().saturating_sub(since) < FULL_NS))
    }

    /// It was found full, and no byte has gone on its way since.
    pub(crate) fn was_full(&self) -> bool {
        self.full_since_ns.is_some()
    }

    /// The kernel has been asked to take bytes: what it says from now on is all there is to say.
    pub(crate) fn forget_full(&mut self) {
        self.full_since_ns = None;
    }

    /// It does not wait for a deeper ring.
    #[cfg(test)]
    pub(crate) fn is_fresh(&self) -> bool {
        self.full_since_ns.is_none()
    }

    /// Its ring is full, and no other can be had.
    #[cfg(test)]
    pub(crate) fn fill(&mut self) {
        (self.head, self.stuck) = (SMALL, true);
    }

    /// Takes back the last bytes that were written: the direction is switched before them,
    /// so nobody will read them.
    pub(crate) fn unsend(&mut self, shared: &SharedMemory, direction: usize, head: u64) {
        self.head = head;
        shared.head(direction).store(head, Ordering::Release);
    }

    /// A run of what was written from `position` on; to be sent again through the kernel.
    pub(crate) fn written(&self, shared: &SharedMemory, direction: usize, position: u64) -> (*mut u8, usize) {
        if let Some(unread) = shared.unread(position) {
            return unread;
        }
        let (at, run) = shared.place(direction, position, self.home);
        (at, run.min(self.head - position) as usize)
    }
}

/// The receiving side of a direction.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Receiver {
    /// Bytes taken, ever.
    pub(crate) tail: u64,
}

/// What taking bytes, or a look for some, came to.
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
    pub(crate) const NEW: Self = Self { tail: 0 };

    /// What the sender has written so far has come in another way; it goes on behind.
    pub(crate) fn go_on(&mut self, shared: &SharedMemory, direction: usize) {
        self.tail = shared.head(direction).load(Ordering::Acquire) & !SWITCHED;
    }

    /// Bytes that wait, checked.
    #[inline]
    pub(crate) fn waiting(&self, shared: &SharedMemory, direction: usize) -> Result<u64, Corrupt> {
        shared.check()?;
        let head = shared.head(direction).load(Ordering::Acquire);
        let waiting = head.wrapping_sub(self.tail);
        if waiting > UNREAD_MAX { Err(Corrupt) } else { Ok(waiting) }
    }

    /// Copies from a run of positions into the buffers. Returns the bytes. The sender's word on
    /// where they lie is read behind the one on how many there are.
    #[inline]
    fn copy(shared: &SharedMemory, direction: usize, from: u64, until: u64, to: &mut Cursor<'_>) -> u64 {
        let home = shared.home_now(direction);
        let mut at = from;
        while at < until {
            let (source, run) = shared.place(direction, at, home);
            let Some((place, len)) = to.peek(run.min(until - at) as usize).filter(|(_, len)| *len > 0) else { break };
            // SAFETY: [preload-shared] [preload-program] a run of the ring; the program's buffer.
            unsafe { copy_racing(place, source, len) };
            #[cfg(test)]
            crate::explore::note_bytes(place, len);
            to.advance(len);
            at += len as u64;
        }
        at - from
    }

    /// What still lies before the border once the direction is switched: copies it, and moves
    /// the position on unless it is only looked at. Processes that share the connection since a
    /// fork share the position.
    pub(crate) fn read_on(
        shared: &SharedMemory,
        direction: usize,
        position: &Word,
        border: u64,
        to: &mut Cursor<'_>,
        look: bool,
    ) -> u64 {
        loop {
            let mut target = *to;
            let at = position.load(Ordering::Acquire);
            let bytes = Self::copy(shared, direction, at, border, &mut target);
            if look || position.compare_exchange(at, at + bytes, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                *to = target;
                return bytes;
            }
        }
    }

    /// Whether there is something, and how much.
    #[inline]
    pub(crate) fn look(&self, shared: &SharedMemory, direction: usize) -> Result<Took, Corrupt> {
        match self.waiting(shared, direction)? {
            0 if shared.tail(direction).load(Ordering::Acquire) & SWITCHED != 0 || shared.ends_at(self.tail) => {
                Ok(Took::Switched)
            }
            0 => Ok(Took::Nothing),
            waiting => Ok(Took::Bytes(waiting)),
        }
    }

    /// Copies what is there into the buffers and takes it, unless it is only looked at.
    #[inline]
    pub(crate) fn read(
        &mut self,
        shared: &SharedMemory,
        direction: usize,
        to: &mut Cursor<'_>,
        look: bool,
    ) -> Result<Took, Corrupt> {
        match self.look(shared, direction)? {
            Took::Bytes(waiting) => self.take(shared, direction, waiting, to, look),
            other => Ok(other),
        }
    }

    /// The same of so many, which a look has found.
    #[inline]
    pub(crate) fn take(
        &mut self,
        shared: &SharedMemory,
        direction: usize,
        waiting: u64,
        to: &mut Cursor<'_>,
        look: bool,
    ) -> Result<Took, Corrupt> {
        let mut target = *to;
        let bytes = match shared.read(self.tail, waiting, &mut target, look) {
            Some(read) => read?,
            None => Self::copy(shared, direction, self.tail, self.tail + waiting, &mut target),
        };
        let at = self.tail + bytes;
        let word = shared.tail(direction);
        if look {
            // Bytes that were taken back will come through the kernel.
            if word.load(Ordering::Acquire) & SWITCHED != 0 {
                return Ok(Took::Switched);
            }
        } else {
            match word.compare_exchange(self.tail, at, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => self.tail = at,
                Err(now) if now & SWITCHED != 0 && now & !SWITCHED >= self.tail => return Ok(Took::Switched),
                Err(_) => return Err(Corrupt),
            }
        }
        *to = target;
        Ok(Took::Bytes(bytes))
    }

    /// Where the next byte will lie.
    #[inline]
    pub(crate) fn next(&self, shared: &SharedMemory, direction: usize) -> *const u8 {
        shared.place(direction, self.tail, shared.home_now(direction)).0
    }

    /// Whether there is something to do: bytes, or the switch. For waiting, without any check.
    #[inline]
    pub(crate) fn is_stirring(shared: &SharedMemory, direction: usize, tail: u64) -> bool {
        shared.head(direction).load(Ordering::SeqCst) != tail
            || shared.is_new()
            || shared.tail(direction).load(Ordering::SeqCst) & SWITCHED != 0
    }
}

/// A ring that nobody has read from for so long is not merely behind.
const FULL_NS: u64 = 3_000_000;
const _: () = assert!(PIECES <= u32::BITS as u64);

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
            let (shared, _fd) = SharedMemory::create().unwrap();
            let (mut sender, mut receiver) = (Sender::NEW, Receiver::NEW);
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
            let (shared, _fd) = SharedMemory::create().unwrap();
            shared.head(0).store(head, Ordering::Relaxed);
            shared.tail(0).store(tail, Ordering::Relaxed);
            shared.home(0).store(from, Ordering::Relaxed);
            let mut out = vec![0; 9000];
            let mut receiver = Receiver::NEW;
            let _ = receiver.read(&shared, 0, &mut Cursor::new(&vector(&mut out)), false);
            let mut sender = Sender::NEW;
            if sender.taken(&shared, 0).is_ok() { assert!(sender.room() <= DEEP); }
            // SAFETY: [preload-shared] not used afterwards.
            unsafe { shared.unmap() };
        }
    }

    #[test]
    fn nothing_is_taken_once_the_ring_is_switched() {
        let (shared, _fd) = SharedMemory::create().unwrap();
        let (mut sender, mut receiver) = (Sender::NEW, Receiver::NEW);
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
