//! The tag on every frame.
//!
//! A tag says who made a frame and at which place in its direction of its connection; it hides nothing: whoever sees the wire
//! reads everything. Tags are keyed BLAKE3, 16 bytes.

use blake3::Hasher;
use overside_verbs::handshake::{TAG_BYTES, same};

/// Makes or checks the tags of one direction of a connection; without a key there are none.
#[derive(Debug)]
pub struct Seal {
    key: Option<[u8; 32]>,
    counter: u64,
}

/// A tag in the making. The frame's number goes in last: what precedes it then lies where vector code takes it (a number in
/// front made 16 KiB cost twice as much).
#[derive(Debug)]
pub struct Sealing {
    hasher: Box<Hasher>,
    number: u64,
}

impl Seal {
    /// For one direction.
    pub fn new(key: Option<[u8; 32]>) -> Self {
        Self { key, counter: 0 }
    }

    /// Bytes of each tag: 16, or none.
    pub fn tag_bytes(&self) -> usize {
        if self.key.is_some() { TAG_BYTES } else { 0 }
    }

    /// The tag of the present frame's head, and of its payload where both are one.
    pub fn head(&self, parts: &[&[u8]]) -> Option<[u8; TAG_BYTES]> {
        let mut hasher = Hasher::new_keyed(self.key.as_ref()?);
        parts.iter().for_each(|part| _ = hasher.update(part));
        Some(short(&mut hasher, self.number(HEAD)))
    }

    /// Begins the tag of the present frame, head first, where head and payload are one.
    pub fn whole(&self, head: &[u8]) -> Option<Sealing> {
        let mut sealing = self.begin(HEAD)?;
        sealing.add(head);
        Some(sealing)
    }

    /// Begins the tag of the present frame's payload.
    pub fn payload(&self) -> Option<Sealing> {
        self.begin(PAYLOAD)
    }

    /// Whether `tag` is the head's (or the whole small frame's).
    pub fn head_holds(&self, parts: &[&[u8]], tag: &[u8]) -> bool {
        self.head(parts).is_none_or(|expected| same(&expected, tag))
    }

    /// On to the next frame.
    pub fn next(&mut self) {
        self.counter += 1;
    }

    /// Back by frames that were never begun.
    pub(crate) fn take_back(&mut self, frames: u64) {
        self.counter -= frames;
    }

    fn begin(&self, part: u64) -> Option<Sealing> {
        let hasher = Box::new(Hasher::new_keyed(self.key.as_ref()?));
        Some(Sealing { hasher, number: self.number(part) })
    }

    fn number(&self, part: u64) -> u64 {
        self.counter << 1 | part
    }
}

impl Sealing {
    /// More of the payload.
    pub fn add(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    /// The tag.
    pub fn finish(mut self) -> [u8; TAG_BYTES] {
        short(&mut self.hasher, self.number)
    }

    /// Whether `tag` is that.
    pub fn holds(self, tag: &[u8]) -> bool {
        same(&self.finish(), tag)
    }
}

fn short(hasher: &mut Hasher, number: u64) -> [u8; TAG_BYTES] {
    let hash = hasher.update(&number.to_le_bytes()).finalize();
    std::array::from_fn(|i| hash.as_bytes()[i])
}

const HEAD: u64 = 0;
const PAYLOAD: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_holds_for_its_bytes_at_its_place_under_its_key_only() {
        let mut seal = Seal::new(Some([7; 32]));
        let tag = seal.head(&[b"head", b"payload"]).unwrap();
        assert!(seal.head_holds(&[b"headpayload"], &tag));
        assert!(!seal.head_holds(&[b"headpaxload"], &tag));
        assert!(!seal.head_holds(&[b"headpayload"], &tag[..15]));
        assert!(!Seal::new(Some([8; 32])).head_holds(&[b"headpayload"], &tag));
        let mut payload = seal.payload().unwrap();
        payload.add(b"headpayload");
        assert!(!payload.holds(&tag), "head and payload have tags of their own");
        seal.next();
        assert!(!seal.head_holds(&[b"headpayload"], &tag), "a frame that is played again");
        assert!(Seal::new(None).head_holds(&[b"anything"], &[]));
    }
}
