//! What shared memory gives with nothing around it: a ring whose ends spin, and a word that is
//! handed over by the kernel.

use super::play::{Ball, Side, Stretch, follow, lead};
use anyhow::{Result, ensure};
use overside::memory::Window;
use std::{
    hint::spin_loop,
    os::fd::OwnedFd,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

/// A ring of slots of a message of 64 bytes and a number, in each direction.
pub(super) struct Spin(Memory);

/// A number in each direction, and a sleep on it.
pub(super) struct Futex(Memory);

/// Memory of both, and how far it came.
struct Memory {
    window: Window,
    /// Where this end writes and where it reads.
    places: [u64; 2],
    turns: [u64; 2],
}

impl Memory {
    fn ours() -> Result<Memory> {
        Ok(Memory { window: Window::new(BYTES)?, places: [0, BYTES as u64 / 2], turns: [0; 2] })
    }

    fn theirs(fd: OwnedFd) -> Result<Memory> {
        Ok(Memory { window: Window::map(fd, BYTES as u64)?, places: [BYTES as u64 / 2, 0], turns: [0; 2] })
    }

    fn fd(&self) -> Result<OwnedFd> {
        Ok(self.window.share(true)?.try_clone_to_owned()?)
    }
}

impl Spin {
    pub(super) fn ours() -> Result<(Spin, OwnedFd)> {
        let memory = Memory::ours()?;
        let fd = memory.fd()?;
        Ok((Spin(memory), fd))
    }

    pub(super) fn theirs(fd: OwnedFd) -> Result<Spin> {
        Memory::theirs(fd).map(Spin)
    }

    /// With the words at hand: a bounds check for each is no part of a bare ring.
    fn with<T>(&mut self, size: usize, play: impl FnOnce(&mut Ring<'_>) -> Result<T>) -> Result<T> {
        ensure!(size == MESSAGE_BYTES, "the bare ring is for messages of {MESSAGE_BYTES} bytes");
        let Memory { window, places, turns } = &mut self.0;
        let words = |place: u64| -> Result<Vec<&AtomicU64>> {
            Ok((0..SLOTS * SLOT_WORDS).map(|i| window.word(place + i * 8)).collect::<Result<_, _>>()?)
        };
        play(&mut Ring { out: words(places[0])?, into: words(places[1])?, turns, message: [1; WORDS] })
    }
}

struct Ring<'a> {
    out: Vec<&'a AtomicU64>,
    into: Vec<&'a AtomicU64>,
    turns: &'a mut [u64; 2],
    message: [u64; WORDS],
}

impl Ball for Ring<'_> {
    fn send(&mut self, end: bool) -> Result<()> {
        self.turns[0] += 1;
        self.message[0] = u64::from(end);
        let at = (self.turns[0] % SLOTS * SLOT_WORDS) as usize;
        for (word, part) in self.out[at..at + WORDS].iter().zip(self.message) {
            word.store(part, Ordering::Relaxed);
        }
        self.out[at + WORDS].store(self.turns[0], Ordering::Release);
        Ok(())
    }

    fn receive(&mut self) -> Result<bool> {
        self.turns[1] += 1;
        let at = (self.turns[1] % SLOTS * SLOT_WORDS) as usize;
        let mut looks = 0u32;
        while self.into[at + WORDS].load(Ordering::Acquire) != self.turns[1] {
            spin_loop();
            looks += 1;
            // The other may be waiting for this very processor.
            if looks.is_multiple_of(LOOKS) {
                thread::yield_now();
            }
        }
        for (word, part) in self.into[at..at + WORDS].iter().zip(&mut self.message) {
            *part = word.load(Ordering::Relaxed);
        }
        Ok(self.message[0] == 1)
    }
}

impl Side for Spin {
    fn lead(&mut self, slice_ns: u64, size: usize) -> Result<Stretch> {
        self.with(size, |ring| lead(ring, slice_ns))
    }

    fn follow(&mut self, size: usize) -> Result<()> {
        self.with(size, |ring| follow(ring))
    }
}

impl Futex {
    pub(super) fn ours() -> Result<(Futex, OwnedFd)> {
        let memory = Memory::ours()?;
        let fd = memory.fd()?;
        Ok((Futex(memory), fd))
    }

    pub(super) fn theirs(fd: OwnedFd) -> Result<Futex> {
        Memory::theirs(fd).map(Futex)
    }

    fn with<T>(&mut self, play: impl FnOnce(&mut Word<'_>) -> Result<T>) -> Result<T> {
        let Memory { window, places, turns } = &mut self.0;
        let [out, into] = [window.word(places[0])?, window.word(places[1])?];
        play(&mut Word { window, places: *places, out, into, turns })
    }
}

/// The system sleeps on the first four bytes of a word, which have the number.
struct Word<'a> {
    window: &'a Window,
    places: [u64; 2],
    out: &'a AtomicU64,
    into: &'a AtomicU64,
    turns: &'a mut [u64; 2],
}

impl Ball for Word<'_> {
    /// The number goes up by two; the lowest bit says that it was the last.
    fn send(&mut self, end: bool) -> Result<()> {
        self.turns[0] += 1;
        let [a, b, c, d] = ((self.turns[0] as u32) << 1 | u32::from(end)).to_ne_bytes();
        self.out.store(u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]), Ordering::SeqCst);
        self.window.wake(self.places[0])?;
        Ok(())
    }

    fn receive(&mut self) -> Result<bool> {
        self.turns[1] += 1;
        loop {
            let [a, b, c, d, ..] = self.into.load(Ordering::SeqCst).to_ne_bytes();
            let now = u32::from_ne_bytes([a, b, c, d]);
            if now >> 1 == self.turns[1] as u32 & (u32::MAX >> 1) {
                return Ok(now & 1 == 1);
            }
            // It may have changed already, or a signal came: looked at again.
            self.window.doze(self.places[1], now, SLEEP)?;
        }
    }
}

impl Side for Futex {
    fn lead(&mut self, slice_ns: u64, _size: usize) -> Result<Stretch> {
        self.with(|word| lead(word, slice_ns))
    }

    fn follow(&mut self, _size: usize) -> Result<()> {
        self.with(|word| follow(word))
    }
}

/// A sleep without a message is looked at once a minute; nothing is measured then.
const SLEEP: Duration = Duration::from_secs(60);
const MESSAGE_BYTES: usize = 64;
const WORDS: usize = MESSAGE_BYTES / 8;
/// A message with its number, in two cache lines of its own.
const SLOT_WORDS: u64 = 16;
const SLOTS: u64 = 32;
const BYTES: usize = (SLOTS * SLOT_WORDS * 8 * 2) as usize;
/// Looks before the processor is given away once.
const LOOKS: u32 = 10_000;
