//! A sender as the models of races see it: a message is published, the wake request is claimed, the waker goes off; anything may come in between.

use std::sync::atomic::Ordering;

use crate::word::Word;

use crate::wake::{self, DATA, Wake};

/// The sender, and the word that it shares with whoever sleeps.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Sender {
    /// Messages that are there.
    pub(crate) head: u8,
    word: u64,
    /// Steps done, and what the last claim came to.
    step: u8,
    claimed: bool,
    messages: u8,
}

impl Sender {
    pub(crate) fn of(messages: u8) -> Self {
        Self { head: 0, word: 0, step: 0, claimed: false, messages }
    }

    /// Changes the word as `wake_bytes` does.
    pub(crate) fn word(&mut self, change: impl FnOnce(&Word)) {
        let word = Word::new(self.word);
        change(&word);
        self.word = word.load(Ordering::SeqCst);
    }

    /// The next step, and whether it sets the waker off; None when all is sent.
    pub(crate) fn next(&self) -> Option<(Self, bool)> {
        let mut next = self.clone();
        let mut rings = false;
        match self.step % 3 {
            _ if self.step == 3 * self.messages => return None,
            0 => next.head += 1,
            1 => {
                let mut wake = Wake::default();
                next.word(|word| wake = wake::claim(word, DATA));
                next.claimed = wake.byte || wake.eventfd;
            }
            _ => rings = std::mem::take(&mut next.claimed),
        }
        next.step += 1;
        Some((next, rings))
    }
}
