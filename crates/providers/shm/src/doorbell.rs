//! Publishing and falling asleep, so that no wake-up is lost.
//!
//! The publisher stores a word, then looks whether the other side sleeps; the sleeper says that
//! it sleeps, then looks at the words. A full fence between the two steps on both sides makes it
//! impossible that both look too early: at least one sees the other's store. The logic is generic
//! over its memory, so that loom runs it as it ships.

use crate::ring::Word;

/// Memory of one's own: words that the peer reads.
pub(crate) trait OwnWords {
    /// Stores with release ordering.
    fn store(&self, word: Word, value: u64);
    /// A full fence: stores before it are visible before loads after it are made.
    fn fence(&self);
}

/// The peer's memory.
pub(crate) trait PeerWords {
    /// Loads with acquire ordering.
    fn load(&self, word: Word) -> u64;
}

/// The publisher's memory of whom it woke.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: u64,
}

impl Bell {
    /// To be called after publishing: whether the peer sleeps and was not woken from this sleep yet.
    pub(crate) fn wanted(&mut self, own: &impl OwnWords, peer: &impl PeerWords) -> bool {
        own.fence();
        let armed = peer.load(Word::Armed);
        if armed == 0 || armed == self.rung {
            return false;
        }
        self.rung = armed;
        true
    }
}

/// What the sleeper has seen of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Its head; none when there is no receive to take a message, which is nothing to wake up for.
    pub(crate) head: Option<u64>,
    /// What it has consumed.
    pub(crate) consumed: u64,
}

/// The sleeper's side.
#[derive(Debug, Default)]
pub(crate) struct Sleep {
    number: u64,
}

impl Sleep {
    /// Asks for a doorbell. False, and nothing asked, when the peer has published meanwhile.
    pub(crate) fn arm(&mut self, own: &impl OwnWords, peer: &impl PeerWords, seen: Seen) -> bool {
        self.number += 1;
        own.store(Word::Armed, self.number);
        own.fence();
        let quiet = peer.load(Word::Closed) == 0
            && peer.load(Word::Consumed) == seen.consumed
            && seen.head.is_none_or(|head| peer.load(Word::Head) == head);
        if !quiet {
            own.store(Word::Armed, 0);
        }
        quiet
    }

    /// Awake again: no more doorbells.
    pub(crate) fn disarm(&self, own: &impl OwnWords) {
        own.store(Word::Armed, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering, fence};

    /// A control memory's words under loom's memory model.
    #[derive(Default)]
    struct Model {
        words: [AtomicU64; 4],
    }

    impl OwnWords for Model {
        fn store(&self, word: Word, value: u64) {
            self.words[word as usize / 128].store(value, Ordering::Release);
        }

        fn fence(&self) {
            fence(Ordering::SeqCst);
        }
    }

    impl PeerWords for Model {
        fn load(&self, word: Word) -> u64 {
            self.words[word as usize / 128].load(Ordering::Acquire)
        }
    }

    /// Publisher and sleeper in every order, under a memory model in which stores are late: either the
    /// sleeper sees the message and stays up, or the publisher sees the sleeper and rings.
    #[test]
    fn a_message_is_seen_or_the_bell_rings() {
        for word in [Word::Head, Word::Consumed, Word::Closed] {
            loom::model(move || {
                let (ours, theirs) = (Arc::new(Model::default()), Arc::new(Model::default()));
                let (own, peer) = (ours.clone(), theirs.clone());
                let publisher = loom::thread::spawn(move || {
                    own.store(word, 1);
                    Bell::default().wanted(&*own, &*peer)
                });
                let slept = Sleep::default().arm(&*theirs, &*ours, Seen { head: Some(0), consumed: 0 });
                let rang = publisher.join().unwrap();
                assert!(!slept || rang, "asleep with a message and no bell");
            });
        }
    }

    /// One doorbell a sleep, one for each sleep.
    #[test]
    fn a_second_sleep_is_woken_again_and_one_sleep_once() {
        loom::model(|| {
            let (ours, theirs) = (Model::default(), Model::default());
            let (mut bell, mut sleep) = (Bell::default(), Sleep::default());
            for message in 1..=2 {
                assert!(sleep.arm(&theirs, &ours, Seen { head: Some(message - 1), consumed: 0 }));
                ours.store(Word::Head, message);
                assert!(bell.wanted(&ours, &theirs));
                assert!(!bell.wanted(&ours, &theirs), "woken already");
                sleep.disarm(&theirs);
                assert!(!bell.wanted(&ours, &theirs), "awake");
            }
        });
    }
}
