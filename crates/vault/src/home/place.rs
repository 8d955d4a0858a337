//! What a volume can lie on, and how that is written.

use std::fmt;
use std::path::{Path, PathBuf};

use super::RemotePlace;
use crate::members::SpindleKind;

/// What a member is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A file.
    File(PathBuf),
    /// Memory of the node, which ends with it: of so many bytes, or of as many as are needed.
    Memory(Option<u64>),
    /// A file that forgets as a disk with a cache does: whenever it is opened, the seed says what is lost of the
    /// writes that no flush covered.
    Volatile {
        /// Of what is lost.
        seed: u64,
        /// The file. What no flush covered lies beside it.
        path: PathBuf,
    },
    /// A file that takes the times of a disk that turns.
    Spindle {
        /// Which disk's.
        kind: SpindleKind,
        /// The file.
        path: PathBuf,
    },
    /// A volume of another node, for this alone.
    Remote(RemotePlace),
}

impl Place {
    /// The file that it is.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Place::File(path) | Place::Volatile { path, .. } | Place::Spindle { path, .. } => Some(path),
            Place::Memory(_) | Place::Remote(_) => None,
        }
    }

    /// The same of another file.
    pub(super) fn at(&self, path: PathBuf) -> Place {
        match self {
            Place::Volatile { seed, .. } => Place::Volatile { seed: *seed, path },
            Place::Spindle { kind, .. } => Place::Spindle { kind: *kind, path },
            Place::File(_) => Place::File(path),
            Place::Memory(_) | Place::Remote(_) => self.clone(),
        }
    }

    /// Whether both are one file, or one volume of one node.
    pub(super) fn is_where(&self, other: &Place) -> bool {
        match (self, other) {
            (Place::Remote(one), Place::Remote(other)) => {
                (&one.address, &one.volume) == (&other.address, &other.volume)
            }
            _ => self.path().is_some() && self.path() == other.path(),
        }
    }

    /// Whether it outlives the node.
    pub(super) fn is_durable(&self) -> bool {
        !matches!(self, Place::Memory(_))
    }

    /// The file, or where there is none what messages call it.
    pub(super) fn named(&self) -> PathBuf {
        self.path().map_or_else(|| self.to_string().into(), Path::to_path_buf)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(path) => path.display().fmt(f),
            Place::Memory(None) => f.write_str("memory"),
            Place::Memory(Some(bytes)) => write!(f, "memory:{bytes}"),
            Place::Volatile { seed, path } => write!(f, "volatile:{seed}:{}", path.display()),
            Place::Spindle { kind, path } => write!(f, "spindle:{}:{}", kind.name(), path.display()),
            Place::Remote(remote) => remote.fmt(f),
        }
    }
}
