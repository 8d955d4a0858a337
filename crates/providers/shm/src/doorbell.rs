//! Publishing and falling asleep, so that no wake-up is lost.
//!
//! The publisher stores a word, then looks whether the other side sleeps; the sleeper says that
//! it sleeps, then looks at the words. A full fence between the two steps on both sides makes it
//! impossible that both look too early: at least one sees the other's store. The logic is generic
//! over its memory, so that loom runs it as it ships.
//!
//! A sleep ends in one of two ways, as its sleeper asked. A short one is on a word of the
//! publisher's memory (a futex: one system call on either side, and the peer maps that
//! memory read-only all the same). A long one is on the port's descriptor, which a message
//! on the socket makes readable.

use crate::ring::{CELL_BYTES, DESCRIPTOR_BYTES, Word};

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

/// A ring of one's own.
pub(crate) trait OwnRing: OwnWords {
    /// Writes a descriptor that nobody sees before it is stamped.
    fn put_descriptor(&self, index: u64, words: &[u64; DESCRIPTOR_BYTES / 8]);
    /// Writes a cell.
    fn put_cell(&self, index: u64, words: &[u64; CELL_BYTES / 8]);
    /// Writes bytes into cells that follow on each other, the last filled up with zeros.
    fn put_bytes(&self, index: u64, bytes: &[u8]) {
        for (i, part) in bytes.chunks(CELL_BYTES).enumerate() {
            let mut cell = [0; CELL_BYTES];
            cell[..part.len()].copy_from_slice(part);
            let [low, high] = *cell.as_chunks::<8>().0 else { return };
            self.put_cell(index + i as u64, &[low, high].map(u64::from_ne_bytes));
        }
    }
    /// Writes bytes into the last words of a descriptor that nobody sees before it is stamped.
    fn put_inside(&self, index: u64, bytes: &[u8]);
    /// Publishes a descriptor that was written, with release ordering.
    fn stamp(&self, index: u64);
    /// Writes a descriptor's first two words and publishes it, whose others lie there.
    fn put_head(&self, index: u64, words: [u64; 2]);
    /// Publishes return number `index`: the loan of that number has ended. With release ordering.
    fn put_return(&self, index: u64, number: u32);
    /// Writes a descriptor and publishes it.
    fn put_stamped(&self, index: u64, words: &[u64; DESCRIPTOR_BYTES / 8]) {
        self.put_descriptor(index, words);
        self.stamp(index);
    }
}

/// The peer's ring.
pub(crate) trait PeerRing: PeerWords {
    /// Whether a descriptor was published with this stamp, with acquire ordering.
    fn shows(&self, index: u64, stamp: u64) -> bool;
    /// Its first two words, if it was, with acquire ordering.
    fn head(&self, index: u64, stamp: u64) -> Option<[u64; 2]>;
    /// Its words.
    fn descriptor(&self, index: u64) -> [u64; DESCRIPTOR_BYTES / 8];
    /// Copies bytes out of its last words.
    fn inside(&self, index: u64, out: &mut [u8]) {
        for (to, word) in out.chunks_mut(8).zip(&self.descriptor(index)[2..]) {
            to.copy_from_slice(&word.to_ne_bytes()[..to.len()]);
        }
    }
    /// A cell's words.
    fn cell(&self, index: u64) -> [u64; CELL_BYTES / 8];
    /// Copies bytes out of cells that follow on each other.
    fn bytes(&self, index: u64, out: &mut [u8]) {
        for (i, to) in out.chunks_mut(CELL_BYTES).enumerate() {
            for (to, word) in to.chunks_mut(8).zip(self.cell(index + i as u64)) {
                to.copy_from_slice(&word.to_ne_bytes()[..to.len()]);
            }
        }
    }
    /// Return number `index`, if it was published, with acquire ordering.
    fn returned(&self, index: u64) -> Option<u32>;
    /// Fetches a descriptor into the cache.
    fn prefetch_descriptor(&self, _index: u64) {}
    /// Fetches a cell into the cache.
    fn prefetch_cell(&self, _index: u64) {}
}

/// How a sleep ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ring {
    /// By a message on the socket.
    Socket,
    /// By the publisher's `rung` word, which is to say so many.
    Word(u64),
}

/// The publisher's memory of whom it woke.
#[derive(Debug, Default)]
pub(crate) struct Doorbell {
    rung: u64,
}

impl Doorbell {
    /// To be called after publishing: how to wake the peer, if it sleeps, waits for that and was
    /// not woken from this sleep yet.
    #[inline]
    pub(crate) fn wanted(&mut self, own: &impl OwnWords, peer: &impl PeerWords, news: News) -> Option<Ring> {
        own.fence();
        self.glance(peer, news)
    }

    /// As [`wanted`](Self::wanted), without the fence: a sleep that begins at this moment may be
    /// missed, and whoever cannot leave it to a later call has no use for this.
    #[inline]
    pub(crate) fn glance(&mut self, peer: &impl PeerWords, news: News) -> Option<Ring> {
        let armed = peer.load(Word::Armed);
        let waits_for_it = match news {
            News::All => true,
            News::Consumed { consumed, returned } => {
                armed & FOR_CONSUMED != 0 && reached(consumed, armed) || returned > 0 && are_back(returned, peer)
            }
            News::Returned(returns) => are_back(returns, peer),
        };
        if armed == 0 || armed == self.rung || !waits_for_it {
            return None;
        }
        self.rung = armed;
        Some(if armed & BY_WORD != 0 { Ring::Word(armed >> NUMBER) } else { Ring::Socket })
    }
}

/// What was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Messages, or the end.
    All,
    /// How far we have come with the peer's messages, which not every sleeper waits for.
    Consumed {
        /// Descriptors, ever.
        consumed: u64,
        /// How many loans we had returned, ever, when we last returned one by copying it; 0 if
        /// none.
        returned: u64,
    },
    /// How many loans we have returned, ever.
    Returned(u64),
}

/// What the sleeper has seen of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// The descriptor it waits for, and its stamp; none when there is no receive to take a message,
    /// which is nothing to wake up for.
    pub(crate) next: Option<(u64, u64)>,
    /// What it is to have consumed before that is worth waking up for, more than it has; none when
    /// no report and no room depends on it.
    pub(crate) wake_at: Option<u64>,
    /// The loans that it is to return; none when none is out.
    pub(crate) returns: Option<Returns>,
}

/// Loans that the peer has returned, ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Returns {
    /// That were seen: one more, and the sleeper has something to do before it sleeps.
    pub(crate) seen: u64,
    /// That are worth waking up for; more than were seen.
    pub(crate) wanted: u64,
}

/// The sleeper's side.
#[derive(Debug, Default)]
pub(crate) struct Sleep {
    number: u64,
    /// What our `returns` word says.
    returns: u64,
}

impl Sleep {
    /// Asks to be woken. False, and nothing asked, when the peer has published meanwhile.
    pub(crate) fn arm(&mut self, own: &impl OwnWords, peer: &impl PeerRing, seen: Seen, by_word: bool) -> bool {
        // Never 0, which is awake.
        self.number = self.number % NUMBER_MAX + 1;
        let flags = if by_word { BY_WORD } else { 0 } | if seen.wake_at.is_some() { FOR_CONSUMED } else { 0 };
        let wake_at = seen.wake_at.unwrap_or(0) & u64::from(u32::MAX);
        let armed = self.number << NUMBER | wake_at << FLAGS | flags;
        let returns = seen.returns.map_or(0, |returns| returns.wanted);
        if std::mem::replace(&mut self.returns, returns) != returns {
            own.store(Word::Returns, returns);
        }
        own.store(Word::Armed, armed);
        own.fence();
        let quiet = peer.load(Word::Closed) == 0
            && (seen.wake_at.is_none() || !reached(peer.load(Word::Consumed), armed))
            && seen.returns.is_none_or(|returns| peer.returned(returns.seen).is_none())
            && seen.next.is_none_or(|(next, stamp)| !peer.shows(next, stamp));
        if !quiet {
            own.store(Word::Armed, 0);
        }
        quiet
    }

    /// Awake again: nobody need ring.
    pub(crate) fn disarm(&self, own: &impl OwnWords) {
        own.store(Word::Armed, 0);
    }
}

/// Of an `armed` word: the sleeper waits on the `rung` word.
const BY_WORD: u64 = 1;
/// Of an `armed` word: the sleeper wants to hear how far its messages have come.
const FOR_CONSUMED: u64 = 2;
const FLAGS: u32 = 2;
/// Of an `armed` word: where the number of the sleep is, above the lower half of the consumed index
/// worth waking for.
const NUMBER: u32 = FLAGS + 32;
const NUMBER_BITS: u32 = 64 - NUMBER;
const NUMBER_MAX: u64 = (1 << NUMBER_BITS) - 1;

/// Whether a sleep of that number came after the `other` one: they are never half of their range
/// apart.
pub(crate) fn later(number: u32, other: u32) -> bool {
    (number.wrapping_sub(other) << (u32::BITS - NUMBER_BITS)) as i32 > 0
}

/// Whether there were as many returns as the peer waits for, if it waits for any.
fn are_back(returns: u64, peer: &impl PeerWords) -> bool {
    match peer.load(Word::Returns) {
        0 => false,
        wanted => returns >= wanted,
    }
}

/// Whether `consumed` has come to what an `armed` word says: indexes are never half of its range
/// apart.
fn reached(consumed: u64, armed: u64) -> bool {
    (consumed as u32).wrapping_sub((armed >> FLAGS) as u32) as i32 >= 0
}

#[cfg(test)]
pub(crate) mod model {
    //! Control memory under loom's memory model, with a ring of two descriptors.

    use super::*;
    use crate::ring::{Geometry, stamp_of, unstamped};
    use loom::sync::atomic::{AtomicU64, Ordering, fence};

    pub(crate) const GEOMETRY: Geometry = Geometry::tiny(2, 4);
    const DESCRIPTOR: usize = DESCRIPTOR_BYTES / 8;
    const CELL: usize = CELL_BYTES / 8;

    #[derive(Default)]
    pub(crate) struct Model {
        words: [AtomicU64; 5],
        descriptors: [[AtomicU64; DESCRIPTOR]; 2],
        cells: [[AtomicU64; CELL]; 4],
        returns: [AtomicU64; 8],
        /// Planted: stamps before the words they vouch for are sure to be visible.
        hasty: bool,
    }

    impl Model {
        /// One with the planted mistake, or without.
        pub(crate) fn new(hasty: bool) -> Self {
            Self { hasty, ..Self::default() }
        }
    }

    fn place(word: Word) -> usize {
        if word == Word::Returns { 4 } else { word as usize / 128 }
    }

    impl OwnWords for Model {
        fn store(&self, word: Word, value: u64) {
            self.words[place(word)].store(value, Ordering::Release);
        }

        fn fence(&self) {
            fence(Ordering::SeqCst);
        }
    }

    impl PeerWords for Model {
        fn load(&self, word: Word) -> u64 {
            self.words[place(word)].load(Ordering::Acquire)
        }
    }

    impl OwnRing for Model {
        fn put_descriptor(&self, index: u64, words: &[u64; DESCRIPTOR]) {
            let place = &self.descriptors[index as usize % 2];
            place.iter().zip(words).for_each(|(to, from)| to.store(*from, Ordering::Relaxed));
        }

        fn put_cell(&self, index: u64, words: &[u64; CELL]) {
            let place = &self.cells[index as usize % 4];
            place.iter().zip(words).for_each(|(to, from)| to.store(*from, Ordering::Relaxed));
        }

        fn put_inside(&self, index: u64, bytes: &[u8]) {
            for (to, part) in self.descriptors[index as usize % 2][2..].iter().zip(bytes.chunks(8)) {
                let mut word = [0; 8];
                word[..part.len()].copy_from_slice(part);
                to.store(u64::from_ne_bytes(word), Ordering::Relaxed);
            }
        }

        fn put_head(&self, index: u64, words: [u64; 2]) {
            let place = &self.descriptors[index as usize % 2];
            place.iter().zip(words).for_each(|(to, from)| to.store(from, Ordering::Relaxed));
            self.stamp(index);
        }

        fn put_return(&self, index: u64, number: u32) {
            let order = if self.hasty { Ordering::Relaxed } else { Ordering::Release };
            self.returns[index as usize % 8].store(GEOMETRY.returned(index, number), order);
        }

        fn stamp(&self, index: u64) {
            let word = &self.descriptors[index as usize % 2][1];
            let order = if self.hasty { Ordering::Relaxed } else { Ordering::Release };
            word.store(unstamped(word.load(Ordering::Relaxed)) | GEOMETRY.stamp(index), order);
        }
    }

    impl PeerRing for Model {
        fn shows(&self, index: u64, stamp: u64) -> bool {
            stamp_of(self.descriptors[index as usize % 2][1].load(Ordering::Acquire)) == stamp
        }

        fn head(&self, index: u64, stamp: u64) -> Option<[u64; 2]> {
            let words = &self.descriptors[index as usize % 2];
            let second = words[1].load(Ordering::Acquire);
            (stamp_of(second) == stamp).then(|| [words[0].load(Ordering::Acquire), second])
        }

        fn descriptor(&self, index: u64) -> [u64; DESCRIPTOR] {
            self.descriptors[index as usize % 2].each_ref().map(|word| word.load(Ordering::Acquire))
        }

        fn returned(&self, index: u64) -> Option<u32> {
            let word = self.returns[index as usize % 8].load(Ordering::Acquire);
            (word == GEOMETRY.returned(index, word as u32)).then_some(word as u32)
        }

        fn cell(&self, index: u64) -> [u64; CELL] {
            self.cells[index as usize % 4].each_ref().map(|word| word.load(Ordering::Acquire))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::model::{GEOMETRY, Model};
    use super::*;
    use loom::sync::Arc;

    const CONSUMED_ONE: News = News::Consumed { consumed: 1, returned: 0 };
    const QUIET: Seen = Seen { next: Some((0, GEOMETRY.stamp(0))), wake_at: Some(1), returns: None };

    /// Publisher and sleeper in every order, under a memory model in which stores are late: either
    /// the sleeper sees the message and stays up, or the publisher sees the sleeper and rings.
    #[test]
    fn a_message_is_seen_or_the_bell_rings() {
        for word in [None, Some(Word::Consumed), Some(Word::Closed)] {
            for by_word in [false, true] {
                loom::model(move || {
                    let (ours, theirs) = (Arc::new(Model::default()), Arc::new(Model::default()));
                    let (own, peer) = (ours.clone(), theirs.clone());
                    let publisher = loom::thread::spawn(move || {
                        match word {
                            Some(word) => own.store(word, 1),
                            None => own.stamp(0),
                        }
                        let news = if word == Some(Word::Consumed) { CONSUMED_ONE } else { News::All };
                        Doorbell::default().wanted(&*own, &*peer, news)
                    });
                    let slept = Sleep::default().arm(&*theirs, &*ours, QUIET, by_word);
                    let rang = publisher.join().unwrap();
                    assert!(!slept || rang.is_some(), "asleep with a message and no bell");
                    let way = if by_word { Ring::Word(1) } else { Ring::Socket };
                    assert!(rang.is_none_or(|ring| ring == way));
                });
            }
        }
    }

    /// A glance without a fence may miss the sleeper, and the next call that fences finds it.
    #[test]
    fn what_a_glance_misses_the_next_call_finds() {
        loom::model(|| {
            let (ours, theirs) = (Arc::new(Model::default()), Arc::new(Model::default()));
            let (own, peer) = (ours.clone(), theirs.clone());
            let publisher = loom::thread::spawn(move || {
                own.store(Word::Consumed, 1);
                let mut bell = Doorbell::default();
                bell.glance(&*peer, CONSUMED_ONE).or_else(|| bell.wanted(&*own, &*peer, CONSUMED_ONE))
            });
            let slept = Sleep::default().arm(&*theirs, &*ours, QUIET, false);
            assert!(!slept || publisher.join().unwrap().is_some(), "asleep with a completion and no bell");
        });
    }

    /// A sleeper that waits for the second of two is woken by it and not before, whenever it falls
    /// asleep.
    #[test]
    fn what_is_not_worth_waking_for_rings_no_bell() {
        loom::model(|| {
            let (ours, theirs) = (Arc::new(Model::default()), Arc::new(Model::default()));
            let (own, peer) = (ours.clone(), theirs.clone());
            let publisher = loom::thread::spawn(move || {
                let mut bell = Doorbell::default();
                [1, 2].map(|consumed| {
                    own.store(Word::Consumed, consumed);
                    bell.wanted(&*own, &*peer, News::Consumed { consumed, returned: 0 }).is_some()
                })
            });
            let slept = Sleep::default().arm(&*theirs, &*ours, Seen { wake_at: Some(2), ..QUIET }, false);
            let [first, second] = publisher.join().unwrap();
            assert!(!first, "woken too early");
            assert!(!slept || second, "asleep although all that it waits for was there, and no bell");
        });
        // Indexes go round.
        let armed = |wake_at: u32| 7 << NUMBER | u64::from(wake_at) << FLAGS | FOR_CONSUMED;
        assert!(reached(1 << 32, armed(u32::MAX)) && !reached((1 << 32) - 1, armed(0)));
    }

    /// The end of a loan, which another thread than the port's may write and ring for: the lender
    /// sees it and stays up, or is woken. One that waits for the second of two is woken by it and
    /// not before.
    #[test]
    fn a_return_is_seen_or_the_bell_rings() {
        for wanted in [1, 2] {
            for by_word in [false, true] {
                loom::model(move || {
                    let (ours, theirs) = (Arc::new(Model::default()), Arc::new(Model::default()));
                    let (own, peer) = (ours.clone(), theirs.clone());
                    let borrower = loom::thread::spawn(move || {
                        let mut bell = Doorbell::default();
                        [0, 1].map(|index| {
                            own.put_return(index, 40 + index as u32);
                            bell.wanted(&*own, &*peer, News::Returned(index + 1)).is_some()
                        })
                    });
                    let seen = Seen { next: None, wake_at: None, returns: Some(Returns { seen: 0, wanted }) };
                    let slept = Sleep::default().arm(&*theirs, &*ours, seen, by_word);
                    let [first, second] = borrower.join().unwrap();
                    assert!(!slept || first || second, "asleep with a return and no bell");
                    assert!(wanted == 1 || !first, "woken too early");
                    assert_eq!([0, 1, 2].map(|index| ours.returned(index)), [Some(40), Some(41), None]);
                });
            }
        }
    }

    /// Numbers of sleeps come round.
    #[test]
    fn a_later_sleep_is_known_from_an_earlier_one() {
        let max = NUMBER_MAX as u32;
        for (number, other) in [(1, 0), (2, 1), (max, max - 1), (1, max), (5, max - 5)] {
            assert!(later(number, other) && !later(other, number) && !later(number, number), "{number} and {other}");
        }
    }

    /// One doorbell a sleep, one for each sleep.
    #[test]
    fn a_second_sleep_is_woken_again_and_one_sleep_once() {
        loom::model(|| {
            let (ours, theirs) = (Model::default(), Model::default());
            let (mut bell, mut sleep) = (Doorbell::default(), Sleep::default());
            for message in 0..2 {
                let next = Some((message, GEOMETRY.stamp(message)));
                assert!(sleep.arm(&theirs, &ours, Seen { next, wake_at: None, returns: None }, message == 1));
                assert!(
                    bell.wanted(&ours, &theirs, News::Consumed { consumed: 9, returned: 0 }).is_none(),
                    "it does not wait for that"
                );
                ours.stamp(message);
                assert!(bell.wanted(&ours, &theirs, News::All).is_some());
                assert!(bell.wanted(&ours, &theirs, News::All).is_none(), "woken already");
                sleep.disarm(&theirs);
                assert!(bell.wanted(&ours, &theirs, News::All).is_none(), "awake");
            }
        });
    }
}
