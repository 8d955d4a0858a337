//! The pre-shared key, and the tag on every frame.
//!
//! A tag says who made a frame and at which place in its direction of its connection; it hides nothing: whoever sees the wire
//! reads everything. Tags are keyed BLAKE3, 16 bytes.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use blake3::Hasher;

/// A pre-shared key. Whoever has it may connect.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

/// Why a key file is refused.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It cannot be read.
    #[error("the key file {path} cannot be read: {reason}")]
    Unreadable {
        /// The path as given.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// Others can read it, or it is another's.
    #[error("the key file {path} is refused: {reason}; make it yours alone (chown, then chmod 600)")]
    Exposed {
        /// The path as given.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// Too short or too long.
    #[error(
        "the key file {path} has {bytes} bytes, a key has 16 to 4096; make one with: head -c 32 /dev/urandom > {path}"
    )]
    Length {
        /// The path as given.
        path: String,
        /// Its length.
        bytes: u64,
    },
}

impl Key {
    /// Reads a key file: 16 to 4,096 bytes of any kind, a line end at the end left out. It must belong to this user
    /// (or root), who alone can read it.
    ///
    /// # Errors
    /// [`KeyError`], which says what to do.
    pub fn from_file(path: &Path) -> Result<Self, KeyError> {
        let shown = path.display().to_string();
        let unreadable = |e: std::io::Error| KeyError::Unreadable { path: shown.clone(), reason: e.to_string() };
        let exposed = |reason: String| KeyError::Exposed { path: shown.clone(), reason };
        let file = File::open(path).map_err(unreadable)?;
        // Asked of the open file: the path may name another by now.
        let about = file.metadata().map_err(unreadable)?;
        if !about.is_file() {
            return Err(exposed("it is no plain file".to_owned()));
        }
        let mode = about.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(exposed(format!("others may use it (mode {mode:03o})")));
        }
        let user = rustix::process::geteuid().as_raw();
        if about.uid() != user && about.uid() != 0 {
            return Err(exposed(format!("it belongs to user {}, this process runs as {user}", about.uid())));
        }
        let mut bytes = Vec::new();
        file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        while let Some(b'\n' | b'\r') = bytes.last() {
            bytes.pop();
        }
        Self::from_bytes(&bytes).ok_or(KeyError::Length { path: shown, bytes: bytes.len() as u64 })
    }

    /// A key of 16 to 4,096 bytes; none when it has another length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let fits = (BYTES_MIN..=BYTES_MAX).contains(&(bytes.len() as u64));
        fits.then(|| Self(blake3::derive_key("overside tcp 1 pre-shared key", bytes)))
    }

    /// For connections on which nobody proves anything.
    pub(crate) fn none() -> Self {
        Self([0; 32])
    }

    /// A proof for `role` over everything that was said.
    pub(crate) fn prove(&self, role: &str, transcript: &[u8]) -> [u8; 32] {
        let mut hasher = Hasher::new_keyed(&self.0);
        hasher.update(&(role.len() as u64).to_le_bytes()).update(role.as_bytes()).update(transcript);
        *hasher.finalize().as_bytes()
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(hidden)")
    }
}

/// Compares without telling by its time where two proofs differ.
pub(crate) fn same(a: &[u8; 32], b: &[u8]) -> bool {
    b.len() == 32 && blake3::Hash::from_bytes(*a) == blake3::Hash::from_bytes(std::array::from_fn(|i| b[i]))
}

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
        self.head(parts).is_none_or(|expected| equal(&expected, tag))
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
        equal(&self.finish(), tag)
    }
}

fn short(hasher: &mut Hasher, number: u64) -> [u8; TAG_BYTES] {
    let hash = hasher.update(&number.to_le_bytes()).finalize();
    std::array::from_fn(|i| hash.as_bytes()[i])
}

/// In the same time wherever they differ.
fn equal(a: &[u8; TAG_BYTES], b: &[u8]) -> bool {
    let mut padded = [[0u8; 32]; 2];
    padded[0][..TAG_BYTES].copy_from_slice(a);
    if b.len() != TAG_BYTES {
        return false;
    }
    padded[1][..TAG_BYTES].copy_from_slice(b);
    same(&padded[0], &padded[1])
}

/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;
const HEAD: u64 = 0;
const PAYLOAD: u64 = 1;
const BYTES_MIN: u64 = 16;
const BYTES_MAX: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_key_file_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"sixteen bytes or more\n").unwrap();
        let mode = |bits| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(bits)).unwrap();
        for open in [0o644, 0o640, 0o604, 0o620] {
            mode(open);
            let error = Key::from_file(&path).unwrap_err().to_string();
            assert!(error.contains("chmod 600"), "{open:o}: {error}");
        }
        mode(0o600);
        assert_eq!(Key::from_file(&path).unwrap(), Key::from_bytes(b"sixteen bytes or more").unwrap());
        std::fs::write(&path, b"short\n").unwrap();
        assert!(Key::from_file(&path).unwrap_err().to_string().contains("16 to 4096"));
        std::fs::write(&path, vec![1; 5000]).unwrap();
        assert!(matches!(Key::from_file(&path), Err(KeyError::Length { .. })));
        assert!(matches!(Key::from_file(folder.path()), Err(KeyError::Exposed { .. })));
        assert!(matches!(Key::from_file(&folder.path().join("none")), Err(KeyError::Unreadable { .. })));
    }

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
