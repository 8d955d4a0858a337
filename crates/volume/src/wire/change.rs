//! Changes to a node's volumes: asked for without a session, by any client
//! that the node lets connect.

use super::request::CHANGE;
use super::{HEADER, Malformed, NAME_BYTES_MAX, Status, VERSION, begin, header, put, u32_at, u64_at, zeros};

/// Asks a node to change a volume that nobody uses. It may be the first message of a connection, or
/// any later one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The message's number, which the answer has too.
    pub number: u32,
    /// The volume's name.
    pub volume: String,
    /// What becomes of it.
    pub what: Alteration,
}

/// What becomes of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alteration {
    /// It has so many bytes.
    Resize {
        /// More than before.
        bytes: u64,
    },
    /// It is no more, nor is what it lay on.
    Delete,
    /// Another member takes one's place.
    Replace {
        /// The one that goes, as reports say it.
        old: String,
        /// The one that comes, as the command line says it.
        new: String,
    },
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The change's number, or the proof's.
    pub number: u32,
    /// Whether it is carried out. [`Status::Prove`] asks for a proof first.
    pub status: Status,
    /// With [`Status::Prove`], chance that the proof is made over.
    pub nonce: [u8; NONCE_BYTES],
    /// What was done, or why it was not, for people.
    pub text: String,
}

impl Change {
    /// As it goes over the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = begin(u64::from(self.number));
        let name = &self.volume.as_bytes()[..self.volume.len().min(NAME_BYTES_MAX)];
        let (what, length, texts) = match &self.what {
            Alteration::Resize { bytes } => (RESIZE, *bytes, Vec::new()),
            Alteration::Delete => (DELETE, 0, Vec::new()),
            Alteration::Replace { old, new } => {
                let [old, new] = [old, new].map(|text| cut(text).as_bytes());
                (REPLACE, 0, [&(old.len() as u16).to_le_bytes()[..], old, new].concat())
            }
        };
        bytes[8..12].copy_from_slice(&[CHANGE, VERSION, what, name.len() as u8]);
        put(&mut bytes, 12, &(texts.len() as u32).to_le_bytes());
        put(&mut bytes, 16, &length.to_le_bytes());
        [&bytes[..], name, &texts].concat()
    }

    /// Whether a message with this header asks for a change, or answers that, of whichever version.
    pub fn changes(bytes: &[u8; HEADER]) -> bool {
        bytes[8] == CHANGE
    }

    /// A change.
    ///
    /// # Errors
    /// [`Malformed`] for anything else, and for another version.
    pub fn parse(message: &[u8]) -> Result<Change, Malformed> {
        let (bytes, behind) = header(message)?;
        Self::of(bytes, behind)
    }

    /// The same of a header and what follows.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn of(bytes: &[u8; HEADER], behind: &[u8]) -> Result<Change, Malformed> {
        if bytes[8] != CHANGE {
            return Err(Malformed("no change"));
        }
        if bytes[9] != VERSION {
            return Err(Malformed("a change of another version"));
        }
        zeros(&bytes[24..])?;
        let length = usize::from(bytes[11]);
        let (name, texts) = behind.split_at_checked(length).ok_or(Malformed("a volume's name of another length"))?;
        if !(1..=NAME_BYTES_MAX).contains(&length) || texts.len() as u64 != u64::from(u32_at(bytes, 12)) {
            return Err(Malformed("a change of another length"));
        }
        let what = match (bytes[10], u64_at(bytes, 16), texts) {
            (RESIZE, bytes, []) => Alteration::Resize { bytes },
            (DELETE, 0, []) => Alteration::Delete,
            (REPLACE, 0, texts) => {
                let (length, texts) =
                    texts.split_first_chunk::<2>().ok_or(Malformed("a change that ends too early"))?;
                let length = usize::from(u16::from_le_bytes(*length));
                let (old, new) = texts.split_at_checked(length).ok_or(Malformed("a change that ends too early"))?;
                Alteration::Replace { old: text(old)?, new: text(new)? }
            }
            _ => return Err(Malformed("no change of this version")),
        };
        Ok(Change { number: u32_at(bytes, 4), volume: text(name)?, what })
    }
}

impl Changed {
    /// As it goes over the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = begin(u64::from(self.number));
        let text = cut(&self.text).as_bytes();
        bytes[8..11].copy_from_slice(&[CHANGE, self.status.code(), VERSION]);
        put(&mut bytes, 12, &(text.len() as u32).to_le_bytes());
        put(&mut bytes, 16, &self.nonce);
        [&bytes[..], text].concat()
    }

    /// An answer to a change.
    ///
    /// # Errors
    /// [`Malformed`] for anything else.
    pub fn parse(message: &[u8]) -> Result<Changed, Malformed> {
        let (bytes, behind) = header(message)?;
        if bytes[8] != CHANGE {
            return Err(Malformed("no answer to a change"));
        }
        if bytes[10] != VERSION {
            return Err(Malformed("an answer of another version"));
        }
        zeros(&bytes[11..12])?;
        zeros(&bytes[16 + NONCE_BYTES..])?;
        if behind.len() as u64 != u64::from(u32_at(bytes, 12)) {
            return Err(Malformed("an answer of another length"));
        }
        let nonce = std::array::from_fn(|i| bytes[16 + i]);
        Ok(Changed { number: u32_at(bytes, 4), status: Status::parse(bytes[9])?, nonce, text: text(behind)? })
    }
}

fn text(bytes: &[u8]) -> Result<String, Malformed> {
    if bytes.len() > TEXT_BYTES_MAX {
        return Err(Malformed("a text that is too long"));
    }
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Malformed("a text that is none"))
}

/// What of a text goes over the wire.
fn cut(text: &str) -> &str {
    let ends = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..ends.unwrap_or(0)]
}

/// Bytes of chance.
pub const NONCE_BYTES: usize = 16;
/// Longest text, in bytes.
const TEXT_BYTES_MAX: usize = 4096;
const RESIZE: u8 = 1;
const DELETE: u8 = 2;
const REPLACE: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn alterations() -> impl Strategy<Value = Alteration> {
        prop_oneof![
            any::<u64>().prop_map(|bytes| Alteration::Resize { bytes }),
            Just(Alteration::Delete),
            ("\\PC{0,40}", "\\PC{0,40}").prop_map(|(old, new)| Alteration::Replace { old, new }),
        ]
    }

    proptest! {
        #[test]
        fn changes_survive_the_wire(number: u32, volume in "[a-z0-9.-]{1,64}", what in alterations()) {
            let change = Change { number, volume, what };
            let bytes = change.bytes();
            prop_assert_eq!(Change::parse(&bytes), Ok(change));
            prop_assert!(Change::parse(&bytes[..bytes.len() - 1]).is_err());
            prop_assert!(Change::parse(&[&bytes[..], b"x"].concat()).is_err());
        }

        #[test]
        fn answers_survive_the_wire(number: u32, nonce: [u8; NONCE_BYTES], text in "\\PC{0,80}") {
            let changed = Changed { number, status: Status::Refused, nonce, text };
            let bytes = changed.bytes();
            prop_assert_eq!(Changed::parse(&bytes), Ok(changed));
            prop_assert!(Changed::parse(&[&bytes[..], b"x"].concat()).is_err());
        }
    }
}
