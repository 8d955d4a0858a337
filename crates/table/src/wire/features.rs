//! What a side of a connection can do beyond the protocol's version.

use serde::{Deserialize, Serialize};

use super::VERSION;

/// A set of features, one a bit. Each side states its own in its Hello; a feature may be used on a
/// connection where both sides have it. Bits that are not known here mean nothing: a later feature
/// is a new bit, and the protocol's version stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Features(pub u64);

impl Features {
    /// The client reads scan answers that are lent to it, the server lends them where its provider
    /// does: [`Request::ScanInPlace`] and [`Reply::ScanEndInPlace`] (to-copy §5.6 TC-M33).
    ///
    /// [`Request::ScanInPlace`]: super::Request::ScanInPlace
    /// [`Reply::ScanEndInPlace`]: super::Reply::ScanEndInPlace
    pub const IN_PLACE: Features = Features(1);

    /// Tables that survive: `Status` and `Checkpoint` may be asked, and the fault `DiskFull` is
    /// known.
    pub const DURABLE: Features = Features(1 << 1);

    /// Secondary indexes: [`Request::CreateIndex`] and what follows it may be asked.
    ///
    /// [`Request::CreateIndex`]: super::Request::CreateIndex
    pub const INDEXES: Features = Features(1 << 2);

    /// What scans chose and by which prices: [`Request::Choices`] and [`Request::Prices`] may be
    /// asked.
    ///
    /// [`Request::Choices`]: super::Request::Choices
    /// [`Request::Prices`]: super::Request::Prices
    pub const CHOICES: Features = Features(1 << 3);

    /// What memory is held back, and by whom: [`Request::Held`] may be asked.
    ///
    /// [`Request::Held`]: super::Request::Held
    pub const HELD: Features = Features(1 << 4);

    /// Tables read one-sidedly: [`Request::Open`] may be asked (to-copy §6 TC-M41).
    ///
    /// [`Request::Open`]: super::Request::Open
    pub const ONE_SIDED: Features = Features(1 << 5);

    /// All features that this build has.
    pub const ALL: Features = Features(
        Features::IN_PLACE.0
            | Features::DURABLE.0
            | Features::INDEXES.0
            | Features::CHOICES.0
            | Features::HELD.0
            | Features::ONE_SIDED.0,
    );

    /// Those that the other side has, too.
    #[must_use]
    pub fn and(self, other: Features) -> Features {
        Features(self.0 & other.0)
    }

    /// Whether all of `wanted` are there.
    pub fn contains(self, wanted: Features) -> bool {
        self.and(wanted) == wanted
    }
}

/// The version that a client states in its Hello, where it is another than [`VERSION`]. Of a Hello
/// only its beginning is the same in all versions, so the rest of it is not looked at.
pub(crate) fn other_version(body: &[u8]) -> Option<u16> {
    let version = body.strip_prefix(&[HELLO]).map(postcard::from_bytes::<u16>)?.ok()?;
    (version != VERSION).then_some(version)
}

/// The number of Hello among the requests.
const HELLO: u8 = 0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Request, append};

    #[test]
    fn a_hello_of_any_version_says_which() {
        let hello = |version| {
            let mut body = Vec::new();
            append(&mut body, &Request::Hello { version, block_bytes: 4096, features: Features(u64::MAX) });
            body
        };
        assert_eq!(other_version(&hello(VERSION)), None);
        assert_eq!(other_version(&hello(VERSION + 1)), Some(VERSION + 1));
        // As version 3 said it, and as one that has more to say.
        assert_eq!(other_version(&[0, 3, 0x80, 0xa0, 2]), Some(3));
        assert_eq!(other_version(&[&hello(700)[..], &[1; 40]].concat()), Some(700));
        assert_eq!((other_version(&[]), other_version(&[0]), other_version(&[4, 3])), (None, None, None));
    }
}
