//! What an end says of itself: words that it alone writes, and whose copy
//! lies in the peer's memory.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// One value of all words.
pub(crate) type Words = [u64; COUNT];

/// Both stand around the rest and are counted up with each copy: one that is on its way is
/// told from one that is there.
const FRONT: usize = 0;
pub(crate) const BACK: usize = COUNT - 1;
/// As in `layout`: this end expects the ring; where its own direction starts; bytes written, ever.
pub(crate) const PRESENT: usize = 1;
pub(crate) const START: usize = 2;
pub(crate) const HEAD: usize = 3;
/// Bytes taken of the other direction, and whether it is switched there.
pub(crate) const TAKEN: usize = 4;
/// Up to where of the ring's memory the peer may write again.
pub(crate) const FREED: usize = 5;
/// The wake request for a wake byte, and its number.
pub(crate) const REQUEST: usize = 6;
pub(crate) const REQUEST_NUMBER: usize = 7;
/// Wake bytes issued for the peer, ever, and the number of its last wake request
/// that is thereby fulfilled.
pub(crate) const ISSUED: usize = 8;
pub(crate) const ANSWERED: usize = 9;
/// How this end's own direction leaves the ring: `ENDING`, `END` and more, or `AGAIN`.
pub(crate) const FINAL: usize = 10;
/// As in `layout`.
pub(crate) const RESET: usize = 11;
pub(crate) const GONE: usize = 12;
pub(crate) const COUNT: usize = 16;
pub(crate) const BYTES: usize = COUNT * 8;

/// `FINAL`: about to say one of the following.
pub(crate) const ENDING: u64 = 1;
/// With the position added: the ring is to be read up to there, what follows
/// comes through the kernel.
pub(crate) const END: u64 = 2;
/// What the peer had not taken when it switched comes again through the kernel.
pub(crate) const AGAIN: u64 = u64::MAX;

/// Words in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    first: *const AtomicU64,
}

impl Block {
    /// # Safety
    /// `BYTES` bytes from there, aligned to 8, are mapped as long as this is used, and
    /// reached by atomics alone.
    pub(crate) unsafe fn new(first: *mut u8) -> Self {
        Self { first: first.cast_const().cast() }
    }

    #[inline]
    pub(crate) fn word(&self, which: usize) -> &AtomicU64 {
        // SAFETY: [preload-remote] one of `COUNT`.
        unsafe { &*self.first.add(which % COUNT) }
    }

    /// Another value. The number of the copy is counted up.
    pub(crate) fn store(&self, words: &mut Words) {
        if let Some(number) = words.get_mut(BACK) {
            *number += 1;
        }
        let number = words.get(BACK).copied().unwrap_or(0);
        self.word(FRONT).store(number, Ordering::Release);
        fence(Ordering::Release);
        for (which, word) in words.iter().enumerate().skip(1) {
            self.word(which).store(*word, Ordering::Release);
        }
    }

    /// The value, when it is newer than this number and there whole.
    pub(crate) fn load(&self, known: u64) -> Option<Words> {
        let number = self.word(BACK).load(Ordering::Acquire);
        if number == known {
            return None;
        }
        let mut words = [0; COUNT];
        for (which, word) in words.iter_mut().enumerate() {
            *word = self.word(which).load(Ordering::Acquire);
        }
        fence(Ordering::Acquire);
        // The first is written before any other.
        (self.word(FRONT).load(Ordering::Acquire) == number).then_some(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_taken_once_and_only_whole() {
        let mut memory = [0u64; COUNT];
        // SAFETY: [preload-remote] lives as long as the test.
        let block = unsafe { Block::new(memory.as_mut_ptr().cast()) };
        let mut words = [0; COUNT];
        words[HEAD] = 7;
        block.store(&mut words);
        let seen = block.load(0).unwrap();
        assert_eq!((seen[HEAD], seen[BACK]), (7, 1));
        assert_eq!(block.load(1), None);
        block.word(0).store(2, Ordering::Relaxed);
        assert_eq!(block.load(0), None, "the next one is on its way");
    }
}
