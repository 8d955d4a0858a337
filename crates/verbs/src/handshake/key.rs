//! The pre-shared key.

use std::path::Path;

use blake3::Hasher;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::strength::{self, BYTES_MAX, WeakKey};

/// A pre-shared key. Whoever has it may connect.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

/// Why a key file is refused.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It cannot be read.
    #[error("the key file {path} cannot be read: {reason}; check the path, and whose it is")]
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
    /// It can be guessed, or is too long.
    #[error("the key file {path} is refused: {why}; make one with: {} (the same file for both sides)", make_key(path))]
    Weak {
        /// The path as given.
        path: String,
        /// What is wrong.
        why: WeakKey,
    },
}

impl Key {
    /// Reads a key file: 32 to 4,096 random bytes, as they are, in hex or in base64. It must belong
    /// to this user (or root), who alone can read it.
    ///
    /// # Errors
    /// [`KeyError`], which says what to do.
    pub fn from_file(path: &Path) -> Result<Self, KeyError> {
        let shown = path.display().to_string();
        let unreadable = |e: Errno| KeyError::Unreadable { path: shown.clone(), reason: e.to_string() };
        let exposed = |reason: String| KeyError::Exposed { path: shown.clone(), reason };
        // A pipe, which would wait for its other end, is refused below.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(unreadable)?;
        // Asked of the open file: the path may name another by now.
        let about = rustix::fs::fstat(&file).map_err(unreadable)?;
        if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
            return Err(exposed("it is no plain file".to_owned()));
        }
        let mode = about.st_mode & 0o777;
        if mode & 0o077 != 0 {
            return Err(exposed(format!("others may use it (mode {mode:03o})")));
        }
        let user = rustix::process::geteuid().as_raw();
        if about.st_uid != user && about.st_uid != 0 {
            return Err(exposed(format!("it belongs to user {}, this process runs as {user}", about.st_uid)));
        }
        let mut bytes = Vec::new();
        let mut part = [0; 512];
        while bytes.len() <= BYTES_MAX {
            match rustix::io::read(&file, &mut part) {
                Ok(0) => break,
                Ok(more) => bytes.extend_from_slice(&part[..more]),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(unreadable(errno)),
            }
        }
        Self::from_bytes(&bytes).map_err(|why| KeyError::Weak { path: shown, why })
    }

    /// A key of 32 to 4,096 random bytes, as they are, in hex or in base64.
    ///
    /// # Errors
    /// [`WeakKey`]: it can be guessed, as text can, or is too long.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WeakKey> {
        strength::strong(bytes).map(|bytes| Self(blake3::derive_key(CONTEXT, &bytes)))
    }

    /// For connections on which nobody proves anything.
    pub(super) fn none() -> Self {
        Self([0; 32])
    }

    /// A proof for `role` over everything that was said, which must hold a
    /// nonce of the checking side.
    pub fn prove(&self, role: &str, transcript: &[u8]) -> [u8; 32] {
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

/// The command that makes a good key, as the help and the README have it.
fn make_key(path: &str) -> String {
    format!("head -c 32 /dev/urandom > {path}; chmod 600 {path}")
}

const CONTEXT: &str = "overside 2 pre-shared key";

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_file_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let mut file = File::create(&path).unwrap();
        let hex = blake3::hash(b"a key").to_hex();
        writeln!(file, "{hex}").unwrap();
        let mode = |bits| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(bits)).unwrap();
        for open in [0o644, 0o640, 0o604, 0o620] {
            mode(open);
            let error = Key::from_file(&path).unwrap_err().to_string();
            assert!(error.contains("chmod 600"), "{open:o}: {error}");
        }
        mode(0o600);
        assert_eq!(Key::from_file(&path).unwrap(), Key::from_bytes(hex.as_bytes()).unwrap());
        for (weak, why) in [(&b"short\n"[..], "too short"), (b"words that somebody could guess\n", "looks like text")] {
            std::fs::write(&path, weak).unwrap();
            let error = Key::from_file(&path).unwrap_err().to_string();
            let makes = format!("head -c 32 /dev/urandom > {0}; chmod 600 {0}", path.display());
            assert!(error.contains(why) && error.contains(&makes), "{error}");
        }
        std::fs::write(&path, vec![1; 5000]).unwrap();
        assert!(matches!(Key::from_file(&path), Err(KeyError::Weak { why: WeakKey::Long, .. })));
        assert!(matches!(Key::from_file(folder.path()), Err(KeyError::Exposed { .. })));
        assert!(matches!(Key::from_file(&folder.path().join("none")), Err(KeyError::Unreadable { .. })));
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::from_raw_mode(0o600)).unwrap();
        assert!(matches!(Key::from_file(&pipe), Err(KeyError::Exposed { .. })));
    }
}
