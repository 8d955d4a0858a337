//! What a volume can lie on, and how that is written.

use std::fmt;
use std::path::{Path, PathBuf};

use super::RemoteVolume;
use crate::members::SpindleKind;

/// What a volume's member is: a file, memory, or a volume of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberSpec {
    /// A file.
    File(PathBuf),
    /// Memory of the node, which ends with it: of so many bytes, or of as many as are needed.
    Memory(Option<u64>),
    /// A file that forgets as a disk with a cache does: whenever it is opened, the seed says what
    /// is lost of the writes that no flush covered.
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
    Remote(RemoteVolume),
}

impl MemberSpec {
    /// The file that it is.
    pub fn path(&self) -> Option<&Path> {
        match self {
            MemberSpec::File(path) | MemberSpec::Volatile { path, .. } | MemberSpec::Spindle { path, .. } => Some(path),
            MemberSpec::Memory(_) | MemberSpec::Remote(_) => None,
        }
    }

    /// The same of another file.
    pub(super) fn at(&self, path: PathBuf) -> MemberSpec {
        match self {
            MemberSpec::Volatile { seed, .. } => MemberSpec::Volatile { seed: *seed, path },
            MemberSpec::Spindle { kind, .. } => MemberSpec::Spindle { kind: *kind, path },
            MemberSpec::File(_) => MemberSpec::File(path),
            MemberSpec::Memory(_) | MemberSpec::Remote(_) => self.clone(),
        }
    }

    /// Whether both are one file, or one volume of one node.
    pub(super) fn is_where(&self, other: &MemberSpec) -> bool {
        match (self, other) {
            (MemberSpec::Remote(one), MemberSpec::Remote(other)) => {
                (&one.address, &one.volume) == (&other.address, &other.volume)
            }
            _ => self.path().is_some() && self.path() == other.path(),
        }
    }

    /// Whether it outlives the node.
    pub(super) fn is_durable(&self) -> bool {
        !matches!(self, MemberSpec::Memory(_))
    }

    /// The file, or where there is none what messages call it.
    pub(super) fn named(&self) -> PathBuf {
        self.path().map_or_else(|| self.to_string().into(), Path::to_path_buf)
    }
}

impl fmt::Display for MemberSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemberSpec::File(path) => path.display().fmt(f),
            MemberSpec::Memory(None) => f.write_str("memory"),
            MemberSpec::Memory(Some(bytes)) => write!(f, "memory:{bytes}"),
            MemberSpec::Volatile { seed, path } => write!(f, "volatile:{seed}:{}", path.display()),
            MemberSpec::Spindle { kind, path } => write!(f, "spindle:{}:{}", kind.name(), path.display()),
            MemberSpec::Remote(remote) => remote.fmt(f),
        }
    }
}
