//! What both sides say first.

use super::Terms;

/// A greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The transport's name, padded with zeros.
    pub protocol: [u8; NAME_BYTES],
    /// Version of the protocol.
    pub version: u32,
    /// The speaker has a key.
    pub key: bool,
    /// What it says later carries tags.
    pub tags: bool,
    /// It is a listener that takes no more.
    pub declines: bool,
    /// Never the same twice.
    pub nonce: [u8; 32],
}

impl Hello {
    /// What these terms say.
    pub fn new(terms: &Terms, nonce: [u8; 32]) -> Self {
        let name = terms.protocol.as_bytes();
        Self {
            protocol: std::array::from_fn(|i| name.get(i).copied().unwrap_or(0)),
            version: terms.version,
            key: terms.key.is_some(),
            tags: terms.key.is_some() && terms.tags,
            declines: false,
            nonce,
        }
    }

    /// As it travels.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let bit = |set, bit| if set { bit } else { 0 };
        let flags = bit(self.key, KEY) | bit(self.tags, TAGS) | bit(self.declines, NO);
        let mut out = [0; HELLO_BYTES];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&self.version.to_le_bytes());
        out[12..16].copy_from_slice(&flags.to_le_bytes());
        out[16..48].copy_from_slice(&self.nonce);
        out[48..56].copy_from_slice(&self.protocol);
        out
    }

    /// From bytes; none when it is no greeting of any version. Only of `version` is it known what
    /// the rest may be.
    pub fn decode(bytes: &[u8; HELLO_BYTES], version: u32) -> Option<Self> {
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let flags = half(12);
        let rest_is_ours = half(8) != version || (bytes[56..] == [0; 8] && flags & !(KEY | TAGS | NO) == 0);
        (bytes[..8] == *MAGIC && rest_is_ours).then(|| Self {
            protocol: std::array::from_fn(|i| bytes[48 + i]),
            version: half(8),
            key: flags & KEY != 0,
            tags: flags & TAGS != 0,
            declines: flags & NO != 0,
            nonce: std::array::from_fn(|i| bytes[16 + i]),
        })
    }

    /// Why `ours` cannot go with what the peer said, in words for our user.
    pub fn differs(&self, ours: &Hello, terms: &Terms) -> Option<String> {
        let either = |ours: bool, theirs: bool, us: &str, them: &str| match (ours, theirs) {
            (false, true) => Some(us.to_owned()),
            (true, false) => Some(them.to_owned()),
            _ => None,
        };
        let protocol = terms.protocol;
        if self.protocol != ours.protocol && self.protocol.iter().any(u8::is_ascii_lowercase) {
            let theirs: String = self.protocol.iter().filter(|b| b.is_ascii_lowercase()).map(|b| *b as char).collect();
            return Some(format!(
                "it is there for {theirs}: addresses, this side for {protocol}: addresses; use one of them on both sides"
            ));
        }
        if self.version != ours.version {
            return Some(format!(
                "it speaks version {} of the {protocol} protocol, this process version {}; use the same release on both sides",
                self.version, ours.version
            ));
        }
        if self.protocol != ours.protocol {
            return Some("it does not speak this protocol".to_owned());
        }
        let tags = "frames carry tags on one side only; give --no-mac on both sides or on none";
        either(
            ours.key,
            self.key,
            "it asks for a key; give the same --key-file on both sides",
            "it has no key; give the same --key-file on both sides",
        )
        .or_else(|| either(ours.tags, self.tags, tags, tags))
    }
}

const MAGIC: &[u8; 8] = b"overside";
const KEY: u32 = 1;
const TAGS: u32 = 2;
const NO: u32 = 4;
const NAME_BYTES: usize = 8;
/// Bytes of a greeting.
pub(super) const HELLO_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::super::parts;
    use super::*;

    fn terms(key: bool, tags: bool) -> Terms {
        Terms { protocol: "tcp", version: 3, key: key.then(|| parts::key(1)), tags }
    }

    #[test]
    fn greetings_travel_and_differences_are_told() {
        let ours = Hello::new(&terms(true, true), [9; 32]);
        assert_eq!(Hello::decode(&ours.encode(), 3), Some(ours));
        assert_eq!(ours.differs(&ours, &terms(true, true)), None);
        let other = |theirs: Hello| theirs.differs(&ours, &terms(true, true)).unwrap();
        assert!(other(Hello::new(&terms(false, true), [0; 32])).contains("it has no key"));
        assert!(other(Hello::new(&terms(true, false), [0; 32])).contains("--no-mac"));
        assert!(other(Hello { version: 7, ..ours }).contains("version 7 of the tcp protocol"));
        assert!(other(Hello { version: 7, protocol: [0; 8], ..ours }).contains("version 7"));
        assert!(other(Hello { protocol: *b"rdma\0\0\0\0", ..ours }).contains("rdma: addresses"));
        assert!(other(Hello { protocol: [0x80; 8], ..ours }).contains("does not speak"));
    }

    #[test]
    fn a_greeting_of_our_version_says_nothing_that_we_do_not_know() {
        let ours = Hello::new(&terms(true, true), [9; 32]).encode();
        for at in [13, 60] {
            let mut bytes = ours;
            bytes[at] = 1;
            assert_eq!(Hello::decode(&bytes, 3), None);
            assert_eq!(Hello::decode(&bytes, 4).map(|theirs| theirs.version), Some(3), "a later version may say more");
        }
        assert_eq!(Hello::decode(&[0; HELLO_BYTES], 3), None);
    }
}
