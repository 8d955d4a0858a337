//! What another host may send or write, taken apart alone: for `fuzz/` (a workspace of its own) and
//! the replay of its corpus.

use std::ptr::NonNull;

use libc::iovec;
use overside_memory::kernels::copy_racing;

use super::frames::{Incoming, Memory, Outgoing, RING};
use super::words::{BYTES, Block};
use crate::iovecs::Cursor;

pub use crate::rendezvous::remote::parts::{datagram, seeds as datagram_seeds};

/// A receiver on a ring that its peer writes as it likes; each step of the input is a word of four
/// bytes and what belongs to it. True: no nonsense was found in it.
///
/// # Panics
/// When more is read than arrived, or something beside the ring was touched.
pub fn ring(bytes: &[u8]) -> bool {
    let (mut receiver, mut steps) = (Receiver::new(), bytes);
    while let Some((step, rest)) = steps.split_first_chunk::<4>() {
        let [what, low, high, len] = step.map(usize::from);
        let at = (low | high << 8) & !3;
        steps = rest;
        let taken = match what % 4 {
            0 => {
                let (written, rest) = rest.split_at(len.min(rest.len()));
                steps = rest;
                receiver.written(at, written);
                true
            }
            1 => receiver.hear(),
            looks => receiver.read(at + len, looks == 2),
        };
        if !taken {
            return false;
        }
    }
    true
}

/// Inputs that [`ring`] takes: what an honest peer writes, in one piece and in several,
/// and around the ring's end.
///
/// # Panics
/// Never: all of it is made here.
pub fn ring_seeds() -> Vec<Vec<u8>> {
    [&[5usize, 1, 250][..], &[16 << 10, 16 << 10, 16 << 10, 9000, 20_000]].map(seed).to_vec()
}

fn seed(messages: &[usize]) -> Vec<u8> {
    let (words, image) = memory();
    let (mut out, mut seed, mut frames) = (Outgoing::default(), Vec::new(), Vec::new());
    let mut taken = 0;
    for len in messages {
        let mut message = vec![0x61u8; *len];
        let list = [iovec { iov_base: message.as_mut_ptr().cast(), iov_len: *len }];
        out.send(image, &mut Cursor::new(&list), |frame, len| {
            frames.push((frame, len));
            true
        });
        for (frame, len) in frames.drain(..) {
            let bytes: Vec<u8> = words[GUARD..].iter().flat_map(|word| word.to_ne_bytes()).collect();
            let from = (frame % RING) as usize;
            for (i, piece) in bytes[from..from + len as usize].chunks(248).enumerate() {
                let at = from + i * 248;
                seed.extend([0, at as u8, (at >> 8) as u8, piece.len() as u8]);
                seed.extend(piece);
            }
            taken += len;
        }
        // Heard, looked at, taken.
        seed.extend([1, 0, 0, 0, 2, 8, 0, 0, 3, 0xf0, 0xff, 0]);
        let _ = out.free(image, taken);
    }
    seed
}

/// The receiving side, as `Remote` drives it.
struct Receiver {
    words: Vec<u64>,
    ring: Memory,
    into: Incoming,
    head: u64,
    tail: u64,
}

impl Receiver {
    fn new() -> Self {
        let (words, ring) = memory();
        Self { words, ring, into: Incoming::default(), head: 0, tail: 0 }
    }

    /// The peer writes.
    fn written(&mut self, at: usize, bytes: &[u8]) {
        let len = bytes.len().min(RING as usize - at);
        // SAFETY: [preload-remote] within the ring.
        unsafe { copy_racing(self.words.as_mut_ptr().add(GUARD).cast::<u8>().add(at), bytes.as_ptr(), len) };
    }

    fn hear(&mut self) -> bool {
        // The words of a peer lie as open to it as the ring, and are taken whole or not at all.
        // SAFETY: [preload-remote] within the ring, and aligned as it is.
        let block = unsafe { Block::new(self.words.as_mut_ptr().add(GUARD).cast()) };
        assert!(BYTES < RING as usize && block.load(0).is_none_or(|words| words[0] == words[words.len() - 1]));
        let Ok(bytes) = self.into.arrived(self.ring) else { return false };
        self.head += bytes;
        assert!(self.head - self.tail <= RING, "more arrived than there is room for");
        true
    }

    fn read(&mut self, most: usize, look: bool) -> bool {
        let mut out = vec![0u8; most];
        let list = [iovec { iov_base: out.as_mut_ptr().cast(), iov_len: most }];
        let waiting = self.head - self.tail;
        let Ok(bytes) = self.into.read(self.ring, (self.tail, waiting), &mut Cursor::new(&list), look) else {
            return false;
        };
        assert_eq!(bytes, waiting.min(most as u64));
        self.tail += if look { 0 } else { bytes };
        let (before, behind) = (&self.words[..GUARD], &self.words[GUARD + RING as usize / 8..]);
        assert!(before.iter().chain(behind).all(|word| *word == UNTOUCHED), "something beside the ring was written");
        true
    }
}

/// A ring between words that nobody may touch.
fn memory() -> (Vec<u64>, Memory) {
    let mut words = vec![UNTOUCHED; RING as usize / 8 + 2 * GUARD];
    words[GUARD..GUARD + RING as usize / 8].fill(0);
    let ring = NonNull::from(&mut words[GUARD]).cast();
    // SAFETY: [preload-remote] the words live as long as whoever has both.
    let ring = unsafe { Memory::new(ring) };
    (words, ring)
}

const GUARD: usize = 32;
const UNTOUCHED: u64 = 0x5ca1_ab1e_0b5e_55ed;

#[cfg(test)]
mod tests {
    use overside_corpus::Corpus;

    use super::super::frames::{RING, VALID};

    fn corpus(target: &str) -> Corpus {
        Corpus::of(env!("CARGO_MANIFEST_DIR"), target)
    }

    #[test]
    fn the_seeds_are_those_of_this_version_and_taken() {
        super::datagram_seeds().iter().for_each(|seed| corpus("datagrams").holds(seed));
        super::ring_seeds().iter().for_each(|seed| corpus("ring").holds(seed));
        corpus("datagrams").replay(super::datagram);
        corpus("ring").replay(super::ring);
    }

    /// Without the key nothing that was changed is taken.
    #[test]
    fn what_is_near_a_seed_is_refused_or_keeps_the_promises() {
        corpus("datagrams").near_seeds(usize::MAX, |near| {
            let signed = near.bytes.first().is_some_and(|first| first & 1 == 1);
            let free =
                signed || near.at == 0 || crate::rendezvous::remote::parts::is_number_of_hello(near.bytes, near.at);
            assert!(!super::datagram(near.bytes) || free, "byte {} was changed", near.at);
        });
        corpus("ring").near_seeds(64, |near| {
            super::ring(near.bytes);
        });
    }
    /// A frame may not go over the ring's end, and what lies there is never read as one.
    #[test]
    fn a_frame_that_leaves_the_ring_is_refused() {
        // The last 16 bytes are left.
        let mut input = super::seed(&[16376, 16376, 16376, 16360]);
        assert!(super::ring(&input));
        let mut write = |at: u64, word: u32| {
            input.extend([0, at as u8, (at >> 8) as u8, 4]);
            input.extend(word.to_ne_bytes());
        };
        write(RING - 16, 24);
        // Where its end would be.
        write(12, VALID);
        input.extend([1, 0, 0, 0, 3, 0, 1, 0]);
        assert!(!super::ring(&input));
    }
}
