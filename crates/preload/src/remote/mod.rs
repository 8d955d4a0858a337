//! A connection to another host: the same words and rings as within one, kept true by writes over
//! RDMA.
//!
//! The rest of this library sees shared words (`layout`), a sender and a receiver (`ring`). On one
//! host those are the truth. Between hosts each end has a page of them for itself. A thread that
//! takes a connection's lock first brings in what the peer has said and written (`take_in`); one
//! that gives it back says what is new (`publish`). Every word has one end that writes it, so no
//! atomic operation goes over the wire.
//!
//! - Bytes: `frames`. A send returns when the peer's memory has them, so they are there though the
//!   sender is killed.
//! - Sleeping: the wake request for a wake byte is written to the peer, then its own words are read
//!   back over the wire (`request`). A peer that did not see the wake request when it looked had
//!   said what it wrote before, and that is seen.
//! - Switching: the receiver takes no more, and the sender says so and sends the rest again
//!   (`AGAIN`); or the sender ends the ring at its head (`END`), and what lies there is still read.
//!   Whoever sends says one of the two, once, with the number of its wake bytes. A sender that
//!   leaves while bytes are unread first takes no more itself, which the peer answers in kind at
//!   its next call; `END` it says where nobody answers, or nothing is unread. If both ends switch
//!   at once, `END` stands, and the receiver reads on up to there.

mod frames;
mod nic;
#[cfg(any(test, fuzzing))]
pub mod parts;
mod words;

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use overside_ibv::{Card, Wire};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::iovecs::Cursor;
use crate::layout::{Corrupt, PAGE, SWITCHED, SharedMemory};
use crate::wake;
use crate::{kernel, spin};

use frames::{Incoming, Memory, Outgoing, writes};
use words::{
    ANSWERED, BACK, BYTES, Block, ENDING, FINAL, FREED, GONE, HEAD, ISSUED, PRESENT, REQUEST, REQUEST_NUMBER, RESET,
    START, TAKEN, Words,
};

pub(crate) use frames::RING;
pub(crate) use nic::{Means, find, is_asked_for, means};
pub(crate) use words::{AGAIN, END};

/// How the receiving direction leaves the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The peer has not said.
    Unknown,
    /// The ring is to be read up to this position.
    End(u64),
    /// The rest comes again.
    Again,
}

/// What a connection to another host has beside the words that the rest of the library sees.
#[derive(Debug)]
pub(crate) struct Remote {
    wire: Wire,
    base: NonNull<u8>,
    end: usize,
    /// The program's socket, to see the end of the peer while waiting for the wire.
    fd: c_int,
    connected: bool,
    out: Outgoing,
    into: Incoming,
    /// What this end has said, and what of it was written to the peer.
    said: Words,
    written: Words,
    /// What the peer has said.
    received: Words,
    /// The wake request that stands, and its number.
    requested: u64,
    request_number: u64,
    fate_out: u64,
    /// Bytes that the peer has written, as far as is known.
    announced: u64,
    /// The peer has said something that is on its way.
    expecting: bool,
    broken: bool,
    corrupt: bool,
}

impl Remote {
    /// Memory and a queue pair for a connection; nobody knows of them yet. Ended by
    /// `Shared::unmap`.
    pub(crate) fn create(
        means: &Means,
        end: usize,
        here: Option<core::net::SocketAddr>,
    ) -> Result<SharedMemory, Errno> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: [preload-remote] a new mapping at an address of the system's choice. Shared: a forked child's copies move nothing.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), MAPPED, prot, flags) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        // SAFETY: [preload-remote] both within the mapping, which `Shared::unmap` ends after the wire.
        let wire = unsafe {
            let part = |at: usize| (base.add(at), PAGE + RING as usize);
            Wire::new(&means.nic, part(INCOMING), part(OUTGOING), here)
        };
        let Ok(wire) = wire else {
            // SAFETY: [preload-remote] nobody else knows of it.
            let _ = unsafe { rustix::mm::munmap(base.as_ptr().cast(), MAPPED) };
            return Err(Errno::NOMEM);
        };
        let remote = Box::new(Self {
            wire,
            base,
            end,
            fd: -1,
            connected: false,
            out: Outgoing::default(),
            into: Incoming::default(),
            said: Words::default(),
            written: Words::default(),
            received: Words::default(),
            requested: 0,
            request_number: 0,
            fate_out: 0,
            announced: 0,
            expecting: false,
            broken: false,
            corrupt: false,
        });
        Ok(SharedMemory::distant(base, NonNull::from(Box::leak(remote)).cast()))
    }

    pub(crate) fn card(&self) -> Card {
        self.wire.card()
    }

    /// Whether the peer's memory can be written. The accepting end, which is the last to know the
    /// other's card, waits for a word.
    fn may_write(&self) -> bool {
        self.connected && !self.broken && (self.end == 0 || self.received[BACK] != 0) && !self.wire.is_inherited()
    }

    /// Whether the peer has said anything by the device.
    pub(crate) fn has_received(&self) -> bool {
        self.received[BACK] != 0
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connected
    }

    pub(crate) fn connect(&mut self, peer: &Card) -> Result<(), Errno> {
        self.wire.connect(peer).map_err(|_| Errno::NETUNREACH)?;
        self.connected = true;
        Ok(())
    }

    /// Whether the wire has failed while something is still to come, or to go, by it.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    pub(crate) fn is_corrupt(&self) -> bool {
        self.corrupt
    }

    /// Whether bytes that the peer has written are not there.
    pub(crate) fn lacks_bytes(&self, shared: &SharedMemory) -> bool {
        self.announced > shared.head(self.end ^ 1).load(Ordering::Relaxed)
    }

    /// How the receiving direction ends, with the number of wake bytes in the kernel's stream.
    pub(crate) fn fate(&self) -> (Fate, u64) {
        let fate = match self.received[FINAL] {
            0 | ENDING => Fate::Unknown,
            AGAIN => Fate::Again,
            end => Fate::End(end - END),
        };
        (fate, self.received[ISSUED])
    }

    /// Whether this end has said how its direction ends: it sends no more wake bytes.
    pub(crate) fn has_said_fate(&self) -> bool {
        self.fate_out != 0
    }

    /// Brings in what the peer has said and written since the last time.
    pub(crate) fn take_in(&mut self, shared: &SharedMemory, fd: c_int) {
        if self.wire.is_inherited() {
            return;
        }
        self.fd = fd;
        self.broken |= self.wire.reap().is_err();
        if let Some(words) = self.mirror().load(self.received[BACK]) {
            // A copy that was on its way when the peer was asked may say less than the answer did.
            self.expecting = self.expecting && self.answer_exceeds(&words);
            self.corrupt |= self.hear(shared, &words).is_err();
            self.received = words;
        }
        let peer = self.end ^ 1;
        match self.into.arrived(self.ring()) {
            Ok(0) => {}
            Ok(bytes) => {
                shared.head(peer).fetch_add(bytes, Ordering::AcqRel);
            }
            Err(Corrupt) => self.corrupt = true,
        }
        self.note(shared);
    }

    /// The peer's new words, into those that the rest of the library sees.
    fn hear(&mut self, shared: &SharedMemory, words: &Words) -> Result<(), Corrupt> {
        let (end, peer) = (self.end, self.end ^ 1);
        shared.present(peer).store(words[PRESENT] & 1, Ordering::Release);
        shared.start(peer).store(words[START], Ordering::Release);
        // Taken out when they are told to the program.
        for (now, before, word) in [
            (words[RESET], self.received[RESET], shared.reset(peer)),
            (words[GONE], self.received[GONE], shared.gone(peer)),
        ] {
            if now != before {
                word.store(now & 1, Ordering::Release);
            }
        }
        self.announced = self.announced.max(words[HEAD]);
        if self.announced > shared.head(peer).load(Ordering::Relaxed).saturating_add(RING) {
            return Err(Corrupt);
        }
        self.freed(shared, words[FREED])?;
        let taken = words[TAKEN] & !SWITCHED;
        if words[TAKEN] & SWITCHED != 0 && self.fate_out == 0 {
            if taken < self.out.oldest_at() || taken > shared.head(end).load(Ordering::Relaxed) {
                return Err(Corrupt);
            }
            shared.tail(end).store(taken | SWITCHED, Ordering::Release);
        }
        let mine = shared.wake_word(end);
        let fulfilled = words[ANSWERED] >= self.request_number;
        let requests = if fulfilled { 0 } else { mine.load(Ordering::Relaxed) & wake::REQUESTS };
        if fulfilled {
            self.requested = 0;
        }
        mine.store(wake::counted(words[ISSUED], requests), Ordering::SeqCst);
        if words[REQUEST_NUMBER] != self.received[REQUEST_NUMBER] {
            let theirs = shared.wake_word(peer);
            let issued = wake::issued(theirs);
            theirs.store(wake::counted(issued, words[REQUEST] & (wake::DATA | wake::ROOM)), Ordering::SeqCst);
        }
        let head = shared.head(peer).load(Ordering::Relaxed);
        let ends = words[FINAL].wrapping_sub(END);
        let absurd = words[FINAL] > ENDING && words[FINAL] != AGAIN && (ends < head || ends < words[HEAD]);
        if absurd { Err(Corrupt) } else { Ok(()) }
    }

    /// Frames before this place can be overwritten.
    fn freed(&mut self, shared: &SharedMemory, upto: u64) -> Result<(), Corrupt> {
        let taken = self.out.free(self.image(), upto)?;
        let tail = shared.tail(self.end);
        if tail.load(Ordering::Relaxed) & SWITCHED == 0 {
            tail.store(taken, Ordering::Release);
        }
        Ok(())
    }

    /// Leaves for those who watch without the lock what they look at.
    fn note(&self, shared: &SharedMemory) {
        let peer = self.end ^ 1;
        let (head, tail) = (shared.head(peer).load(Ordering::Relaxed), shared.tail(peer).load(Ordering::Relaxed));
        let (fate, _) = self.fate();
        let pending = tail & SWITCHED == 0 && (fate == Fate::End(tail) || self.announced > head);
        let news = pending || self.expecting || self.corrupt || self.broken && fate == Fate::Unknown;
        shared.next_frame().store(self.into.next().unwrap_or(u64::MAX), Ordering::Relaxed);
        shared.copies().store(self.received[BACK], Ordering::Relaxed);
        shared.news().store(u64::from(news), Ordering::Relaxed);
    }

    /// Writes down what this end has to say; true when the peer must be told.
    fn speak(&mut self, shared: &SharedMemory) -> bool {
        let (end, peer) = (self.end, self.end ^ 1);
        let requests = shared.wake_word(end).load(Ordering::Relaxed) & (wake::DATA | wake::ROOM);
        if requests != self.requested {
            (self.requested, self.request_number) = (requests, self.request_number + 1);
        }
        let theirs = shared.wake_word(peer).load(Ordering::Relaxed);
        let answered = theirs & (wake::DATA | wake::ROOM) == 0;
        let mut words = self.said;
        for (which, value) in [
            (PRESENT, shared.present(end).load(Ordering::Relaxed)),
            (START, shared.start(end).load(Ordering::Relaxed)),
            (HEAD, shared.head(end).load(Ordering::Relaxed)),
            (TAKEN, shared.tail(peer).load(Ordering::Relaxed)),
            (FREED, self.into.freed()),
            (REQUEST, requests),
            (REQUEST_NUMBER, self.request_number),
            (ISSUED, theirs / wake::ONE),
            (ANSWERED, if answered { self.received[REQUEST_NUMBER] } else { self.said[ANSWERED] }),
            (FINAL, self.fate_out),
            (RESET, shared.reset(end).load(Ordering::Relaxed)),
            (GONE, shared.gone(end).load(Ordering::Relaxed)),
        ] {
            if let Some(word) = words.get_mut(which) {
                *word = value;
            }
        }
        if words != self.said {
            // Read by the peer over the wire, when it wants to know.
            self.own().store(&mut words);
            self.said = words;
        }
        let differs = |which: usize| self.said.get(which) != self.written.get(which);
        let switched = (self.said[TAKEN] ^ self.written[TAKEN]) & SWITCHED != 0;
        // A peer that leaves waits for it.
        let leaves = self.received[TAKEN] & SWITCHED != 0;
        let room = self.said[FREED] - self.written[FREED] >= if leaves { 1 } else { RING / 4 };
        switched || room || [PRESENT, START, REQUEST_NUMBER, ISSUED, FINAL, RESET, GONE].into_iter().any(differs)
    }

    /// Says what is new, and begins to write it to the peer when that must not wait.
    fn begin_to_publish(&mut self, shared: &SharedMemory) {
        if self.speak(shared) && self.may_write() {
            self.broken |= !self.is_there_room() || self.wire.write(OWN, MIRROR, BYTES).is_err();
            self.written = self.said;
        }
    }

    /// Says what is new. With `patience_ns`, so long at most until the peer has all that was
    /// written.
    pub(crate) fn publish(&mut self, shared: &SharedMemory, patience_ns: u64) {
        if !self.wire.is_inherited() {
            self.begin_to_publish(shared);
            self.settle(patience_ns);
            self.note(shared);
        }
    }

    /// Waits until nothing is on its way; false when that takes too long.
    fn settle(&mut self, patience_ns: u64) -> bool {
        let mut looks = 0u32;
        let mut until = 0;
        while !self.broken {
            match self.wire.reap() {
                Ok(0) => return true,
                Ok(_) => {}
                Err(_) => self.broken = true,
            }
            std::hint::spin_loop();
            looks += 1;
            if looks.is_multiple_of(LOOKS_A_TURN) {
                let now = spin::now_ns();
                until = if until == 0 { now + patience_ns } else { until };
                if now >= until || kernel::is_over(self.fd) {
                    return false;
                }
                rustix::thread::sched_yield();
            }
        }
        false
    }

    fn is_there_room(&mut self) -> bool {
        self.wire.has_room() || self.settle(STUCK_NS) || self.wire.has_room()
    }

    /// Asks for a wake byte. The caller looks once more afterwards: what the peer had written
    /// before it could see the wake request is news then.
    pub(crate) fn request(&mut self, shared: &SharedMemory, request: u64) {
        let mine = shared.wake_word(self.end);
        if mine.load(Ordering::Relaxed) & request == request && self.requested & request == request {
            return;
        }
        wake::arm(mine, request);
        if self.fate().0 != Fate::Unknown || !self.may_write() {
            return;
        }
        self.begin_to_publish(shared);
        let asked = self.is_there_room() && self.wire.read(OWN, ANSWER, BYTES).is_ok() && self.settle(STUCK_NS);
        self.expecting = !asked;
        if asked {
            let (answer, most) =
                (self.answer(), shared.head(self.end ^ 1).load(Ordering::Relaxed).saturating_add(RING));
            let word = |which: usize| answer.word(which).load(Ordering::Acquire);
            self.announced = self.announced.max(word(HEAD).min(most));
            self.corrupt |= self.freed(shared, word(FREED)).is_err();
            self.expecting = self.answer_exceeds(&self.received);
        }
        self.note(shared);
    }

    /// Whether the peer's answer says what these words of it do not: that is on its way.
    fn answer_exceeds(&self, words: &Words) -> bool {
        let answer = self.answer();
        let exceeds =
            |which: usize| words.get(which).is_some_and(|word| answer.word(which).load(Ordering::Acquire) > *word);
        let switched = answer.word(TAKEN).load(Ordering::Acquire) & !words[TAKEN] & SWITCHED != 0;
        switched && self.fate_out == 0 || [PRESENT, START, ISSUED, FINAL].into_iter().any(exceeds)
    }

    /// Frames and writes what finds room. Returns the bytes.
    pub(crate) fn send(&mut self, shared: &SharedMemory, from: &mut Cursor<'_>) -> u64 {
        if !self.may_write() {
            return 0;
        }
        let (image, last_byte_last) = (self.image(), self.wire.last_byte_last());
        let Self { wire, out, broken, .. } = self;
        let mut post = |frame: u64, len: u64| {
            let at = (frame % RING) as usize + PAGE;
            for (from, len) in writes(len, last_byte_last) {
                let (at, len) = (at + from as usize, len as usize);
                let until = spin::now_ns() + STUCK_NS;
                while !*broken && !wire.has_room() {
                    *broken |= wire.reap().is_err() || spin::now_ns() > until;
                    rustix::thread::sched_yield();
                }
                *broken |= *broken || wire.write(at, at, len).is_err();
            }
            !*broken
        };
        let bytes = out.send(image, from, &mut post);
        shared.head(self.end).fetch_add(bytes, Ordering::AcqRel);
        bytes
    }

    /// Before it is decided whether the peer needs a wake byte: says what there is, then brings in
    /// the wake request. The peer does it the other way round, so one of the two is seen.
    pub(crate) fn look_for_requests(&mut self, shared: &SharedMemory) {
        if !self.wire.is_inherited() {
            self.speak(shared);
            fence(Ordering::SeqCst);
            self.take_in(shared, self.fd);
        }
    }

    /// Payload bytes that a send would take at least.
    pub(crate) fn room(&self) -> u64 {
        self.out.room()
    }

    /// Bytes that were written and that the peer has not taken, from this position on.
    pub(crate) fn unread(&self, position: u64) -> (*mut u8, usize) {
        self.out.written(self.image(), position)
    }

    /// As `Receiver::read`, of bytes that have arrived.
    pub(crate) fn read(&mut self, tail: u64, waiting: u64, to: &mut Cursor<'_>, look: bool) -> Result<u64, Corrupt> {
        let ring = self.ring();
        self.into.read(ring, (tail, waiting), to, look)
    }

    /// Says how the sending direction ends: `AGAIN`, what the peer has not taken is sent again
    /// through the kernel; `END` and more, it is read from the ring up to there. With `rings`,
    /// returns whether one more wake byte is to be sent, the last.
    pub(crate) fn end(&mut self, shared: &SharedMemory, fate: u64, rings: bool) -> bool {
        if self.fate_out != 0 {
            return false;
        }
        // A peer that goes to sleep now sees this, or its wake request is seen here.
        self.own().word(FINAL).store(ENDING, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let fd = self.fd;
        self.take_in(shared, fd);
        let rings =
            rings && self.may_write() && wake::claim(shared.wake_word(self.end ^ 1), wake::DATA | wake::ROOM).byte;
        self.fate_out = fate;
        self.publish(shared, STUCK_NS);
        rings
    }

    /// The receiver's own switch is undone: the peer had ended the ring before, or died.
    pub(crate) fn read_on(&self, shared: &SharedMemory) {
        shared.tail(self.end ^ 1).fetch_and(!SWITCHED, Ordering::SeqCst);
    }

    fn part(&self, at: usize) -> NonNull<u8> {
        // SAFETY: [preload-remote] within the mapping.
        unsafe { self.base.add(at) }
    }

    fn ring(&self) -> Memory {
        // SAFETY: [preload-remote] behind the page with the peer's words.
        unsafe { Memory::new(self.part(INCOMING + PAGE)) }
    }

    fn image(&self) -> Memory {
        // SAFETY: [preload-remote] behind the page with our words.
        unsafe { Memory::new(self.part(OUTGOING + PAGE)) }
    }

    fn mirror(&self) -> Block {
        // SAFETY: [preload-remote] within the incoming memory.
        unsafe { Block::new(self.part(INCOMING + MIRROR).as_ptr()) }
    }

    /// What the peer said of itself when it was last asked.
    fn answer(&self) -> Block {
        // SAFETY: [preload-remote] within the outgoing memory.
        unsafe { Block::new(self.part(OUTGOING + ANSWER).as_ptr()) }
    }

    fn own(&self) -> Block {
        // SAFETY: [preload-remote] within the outgoing memory.
        unsafe { Block::new(self.part(OUTGOING + OWN).as_ptr()) }
    }
}

/// Whether there may be something new, for who watches without the lock.
#[inline]
pub(crate) fn is_new(shared: &SharedMemory) -> bool {
    // SAFETY: [preload-remote] mapped as long as anybody watches.
    let (ring, mirror) = unsafe {
        let base = shared.base();
        (Memory::new(base.add(INCOMING + PAGE)), Block::new(base.add(INCOMING + MIRROR).as_ptr()))
    };
    let next = shared.next_frame().load(Ordering::Relaxed);
    next != u64::MAX && ring.is_touched(next)
        || mirror.word(BACK).load(Ordering::Acquire) != shared.copies().load(Ordering::Relaxed)
        || shared.news().load(Ordering::Relaxed) != 0
}

/// Ends it: whatever is on its way arrives first, or never.
///
/// # Safety
/// Nobody uses it, or `shared`, any more.
pub(crate) unsafe fn destroy(shared: &SharedMemory, remote: NonNull<Remote>) {
    // SAFETY: [preload-remote] made by `create`, and ended once.
    let mut remote = unsafe { Box::from_raw(remote.as_ptr()) };
    remote.publish(shared, STUCK_NS);
    drop(remote);
    // SAFETY: [preload-remote] the wire is gone.
    let _ = unsafe { rustix::mm::munmap(shared.base().as_ptr().cast(), MAPPED) };
}

/// The words that the rest of the library sees; then what the peer writes, then what it may read,
/// each a page and a ring.
const INCOMING: usize = PAGE;
const OUTGOING: usize = INCOMING + PAGE + RING as usize;
const MAPPED: usize = OUTGOING + PAGE + RING as usize;
/// In the first page of either: the peer's words; our own, and where the peer's are read to.
const MIRROR: usize = 0;
const OWN: usize = 0;
const ANSWER: usize = 1024;

const LOOKS_A_TURN: u32 = 64;
/// A send does not wait longer for the peer's device, and goes on without its word.
pub(crate) const PATIENCE_NS: u64 = 20_000_000;
/// The device itself gives a peer up sooner.
pub(crate) const STUCK_NS: u64 = 10_000_000_000;
