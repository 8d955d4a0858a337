//! Proofs of the key, and tags made with what follows from it.

use blake3::Hasher;

use super::hello::HELLO_BYTES;
use super::key::Key;

/// The whole exchange of one connection, once both greetings are known.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    key: Key,
    said: [u8; HELLO_BYTES * 2],
}

/// Who proves what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The connector holds the key. It proves first.
    Connector,
    /// The listener holds the key, and has taken the connector's proof.
    Listener,
}

/// Keys of the tags in each direction.
#[derive(Clone, Copy)]
pub struct Keys {
    /// Of what leaves.
    pub out: [u8; 32],
    /// Of what comes.
    pub into: [u8; 32],
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(hidden)")
    }
}

impl Exchange {
    /// Of the connector's greeting and the listener's.
    pub fn new(key: Option<&Key>, connector: &[u8; HELLO_BYTES], listener: &[u8; HELLO_BYTES]) -> Self {
        let mut said = [0; HELLO_BYTES * 2];
        said[..HELLO_BYTES].copy_from_slice(connector);
        said[HELLO_BYTES..].copy_from_slice(listener);
        Self { key: key.cloned().unwrap_or_else(Key::none), said }
    }

    /// The proof of a role.
    pub fn proof(&self, role: Role) -> [u8; PROOF_BYTES] {
        self.key.prove(role.words(), &self.said)
    }

    /// Whether `proof` is that.
    pub fn holds(&self, role: Role, proof: &[u8]) -> bool {
        same(&self.proof(role), proof)
    }

    /// Keys of the tags.
    pub fn keys(&self, listens: bool) -> Keys {
        let (up, down) = (
            self.key.prove("frames of the connector", &self.said),
            self.key.prove("frames of the listener", &self.said),
        );
        if listens { Keys { out: down, into: up } } else { Keys { out: up, into: down } }
    }
}

impl Role {
    fn words(self) -> &'static str {
        match self {
            Role::Connector => "connector",
            Role::Listener => "listener",
        }
    }
}

/// The tag of the message with this number in its direction: who made it, and at which place.
pub fn tag(key: &[u8; 32], number: u64, bytes: &[u8]) -> [u8; TAG_BYTES] {
    let mut hasher = Hasher::new_keyed(key);
    let hash = hasher.update(bytes).update(&number.to_le_bytes()).finalize();
    std::array::from_fn(|i| hash.as_bytes()[i])
}

/// Compares proofs or tags without telling by its time where they differ.
pub fn same<const N: usize>(a: &[u8; N], b: &[u8]) -> bool {
    const { assert!(N <= PROOF_BYTES) };
    if b.len() != N {
        return false;
    }
    let mut padded = [[0u8; PROOF_BYTES]; 2];
    padded[0][..N].copy_from_slice(a);
    padded[1][..N].copy_from_slice(b);
    blake3::Hash::from_bytes(padded[0]) == blake3::Hash::from_bytes(padded[1])
}

/// Bytes of a proof.
pub(super) const PROOF_BYTES: usize = 32;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_key_proves_anything_and_only_in_its_role() {
        let [a, b] = [[1; HELLO_BYTES], [2; HELLO_BYTES]];
        let [key, other] = [7, 8].map(|seed| Some(super::super::parts::key(seed)));
        let ours = Exchange::new(key.as_ref(), &a, &b);
        let proof = ours.proof(Role::Connector);
        assert!(Exchange::new(key.as_ref(), &a, &b).holds(Role::Connector, &proof));
        assert!(!ours.holds(Role::Listener, &proof));
        assert!(!Exchange::new(other.as_ref(), &a, &b).holds(Role::Connector, &proof));
        assert!(!Exchange::new(None, &a, &b).holds(Role::Connector, &proof));
        assert!(!Exchange::new(key.as_ref(), &a, &[3; HELLO_BYTES]).holds(Role::Connector, &proof));
        assert!(!ours.holds(Role::Connector, &proof[..31]));
    }

    #[test]
    fn a_tag_holds_for_its_bytes_at_its_place_under_its_key_only() {
        let ours = tag(&[7; 32], 3, b"message");
        assert!(same(&ours, &tag(&[7; 32], 3, b"message")));
        for other in [tag(&[7; 32], 4, b"message"), tag(&[8; 32], 3, b"message"), tag(&[7; 32], 3, b"massage")] {
            assert!(!same(&ours, &other));
        }
        assert!(!same(&ours, &ours[..15]));
    }
}
