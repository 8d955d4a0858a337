//! Why a data directory is not used.

use std::fmt;
use std::io;

use crate::VERSION;

/// Why a data directory is not used. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Another server has it.
    #[error("{path} is in use by another server; stop it, or name another folder")]
    InUse {
        /// The folder.
        path: String,
    },
    /// A write of a killed server has not landed.
    #[error("{file} is still being written by a process that was killed; wait for the disk, then start again")]
    StillWritten {
        /// Which file.
        file: String,
    },
    /// It is of another version.
    #[error(
        "{file} is of version {found}, and this program reads version {VERSION}; use the program that wrote it, or a newer one"
    )]
    Version {
        /// Which file.
        file: String,
        /// What it says.
        found: u32,
    },
    /// It is a folder of something else.
    #[error(
        "{path} is no data directory: it holds `{found}` and no IDENTITY; name an empty folder, or put its IDENTITY back"
    )]
    Strange {
        /// The folder.
        path: String,
        /// What lies in it.
        found: String,
    },
    /// Something else lies where its files do.
    #[error("{path} holds `{found}`, which is a link or no file; put back the file itself, or take that away")]
    NoFile {
        /// The folder.
        path: String,
        /// What lies in it.
        found: String,
    },
    /// What every other file is compared with cannot be read.
    #[error(
        "{file} is damaged, so it does not say which files belong here; put it back from a copy: --salvage needs it, too"
    )]
    Identity {
        /// Which file.
        file: String,
    },
    /// One of its folders is missing.
    #[error(
        "there is no folder {path}; put it back from a copy, or make it (mkdir -m 700) and start with --salvage from what is sound"
    )]
    NoFolder {
        /// The folder.
        path: String,
    },
    /// Others could change what lies in it.
    #[error("{path} belongs to another user, or others may write it; take that away with chown, or chmod go-w")]
    NotPrivate {
        /// The folder or file.
        path: String,
    },
    /// There is nothing in it.
    #[error("{path} is no data directory: it has no IDENTITY; name one that a server was started with")]
    Absent {
        /// The folder.
        path: String,
    },
    /// A file comes from elsewhere.
    #[error("{file} belongs to another data directory; put back the file that was there, or start with --salvage")]
    Foreign {
        /// Which file.
        file: String,
    },
    /// Something that was durable is lost.
    #[error("{0}; restore the folder from a copy, or start with --salvage from what is sound")]
    Damage(Damage),
    /// A record could not be applied.
    #[error("{0}")]
    Replay(String),
    /// The options make no sense.
    #[error("{0}")]
    Options(String),
    /// The disk said no.
    #[error("{what} failed: {source}{}", advice(source))]
    Io {
        /// What was tried, and on which file.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

/// What is wrong where, and what it costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Which file.
    pub file: String,
    /// Where in it, in bytes.
    pub offset: u64,
    /// What is wrong, and what is lost.
    pub what: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is damaged at byte {}: {}", self.file, self.offset, self.what)
    }
}

/// What to do about what the system said, where that is known.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; this user must be able to read and to write it"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; make room there, or name a folder on another disk"
        }
        io::ErrorKind::FileTooLarge => "; raise the limit of a file's size (ulimit -f)",
        _ => "",
    }
}

impl Refusal {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Refusal {
        let what = what.into();
        |source| Refusal::Io { what, source }
    }

    pub(crate) fn damage(file: impl Into<String>, offset: u64, what: impl Into<String>) -> Refusal {
        Refusal::Damage(Damage { file: file.into(), offset, what: what.into() })
    }
}
