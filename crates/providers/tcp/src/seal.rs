//! The tag on every frame.
//!
//! A tag says who made a frame and at which place in its direction of its connection; it hides
//! nothing: whoever sees the wire reads everything. Tags are AEGIS-128X2 as a MAC
//! (`draft-irtf-cfrg-aegis-aead`), 16 bytes: the AES instructions of the processor take in 16 KiB
//! in a fifth of the time of keyed BLAKE3. Each direction of each connection has a key of its own,
//! and a nonce is the frame's number there, so none comes twice under a key.

use aegis::aegis128x2::Aegis128X2Mac;
use overside_verbs::handshake::{TAG_BYTES, same};

/// Makes or checks the tags of one direction of a connection; without a key there are none.
#[derive(Debug)]
pub struct Seal {
    key: Option<[u8; KEY_BYTES]>,
    counter: u64,
}

/// A tag in the making.
#[derive(Debug)]
pub struct Sealing(Aegis128X2Mac<TAG_BYTES>);

impl Seal {
    /// For one direction.
    pub fn new(key: Option<[u8; 32]>) -> Self {
        let short = |key: [u8; 32]| {
            let long = blake3::derive_key(CONTEXT, &key);
            std::array::from_fn(|i| long[i])
        };
        Self { key: key.map(short), counter: 0 }
    }

    /// Bytes of each tag: 16, or none.
    pub fn tag_bytes(&self) -> usize {
        if self.key.is_some() { TAG_BYTES } else { 0 }
    }

    /// The tag of the present frame's head, and of its payload where both are one.
    pub fn head(&self, parts: &[&[u8]]) -> Option<[u8; TAG_BYTES]> {
        let mut sealing = self.begin(HEAD)?;
        parts.iter().for_each(|part| sealing.add(part));
        Some(sealing.finish())
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
        let number = u128::from(self.counter) << 1 | u128::from(part);
        Some(Sealing(Aegis128X2Mac::new_with_nonce(self.key.as_ref()?, &number.to_le_bytes())))
    }
}

impl Sealing {
    /// More of the payload.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The tag.
    pub fn finish(self) -> [u8; TAG_BYTES] {
        self.0.finalize()
    }

    /// Whether `tag` is that.
    pub fn holds(self, tag: &[u8]) -> bool {
        same(&self.finish(), tag)
    }
}

/// What the key of a direction's tags is derived with from what the handshake gives.
const CONTEXT: &str = "overside 3 frame tags";
const KEY_BYTES: usize = 16;
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

    #[test]
    fn the_parts_of_a_frame_make_no_difference_and_its_last_byte_does() {
        let seal = Seal::new(Some([7; 32]));
        let frame: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        let tag = seal.head(&[&frame]).unwrap();
        for piece in [1, 15, 16, 64, 100, 999] {
            let parts: Vec<&[u8]> = frame.chunks(piece).collect();
            assert_eq!(seal.head(&parts).unwrap(), tag, "in pieces of {piece}");
        }
        let mut longer = frame.clone();
        longer.push(0);
        assert!(!seal.head_holds(&[&longer], &tag) && !seal.head_holds(&[&frame[..999]], &tag));
    }

    /// As `docs/reference/wire.md` says them; another release checks by the same bytes.
    #[test]
    fn tags_are_what_the_wire_says() {
        let key = blake3::derive_key("overside 3 frame tags", &[7; 32]);
        let mut nonce = [0; 16];
        nonce[0] = 3 << 1 | 1;
        let mut mac = Aegis128X2Mac::<16>::new_with_nonce(key[..16].try_into().unwrap(), &nonce);
        mac.update(b"payload of the fourth frame");
        let mut seal = Seal::new(Some([7; 32]));
        (0..3).for_each(|_| seal.next());
        let mut sealing = seal.payload().unwrap();
        sealing.add(b"payload of the fourth frame");
        assert_eq!(sealing.finish(), mac.finalize());
    }
}
