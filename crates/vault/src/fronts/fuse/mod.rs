//! A device as a file, for any program that opens files.
//!
//! The kernel mounts a file system whose root is one regular file over an empty file. Reads and
//! writes go past the page cache, several at once. One thread owns the device and the kernel's
//! queues, and sleeps when there is nothing to do.
//!
//! | in the order of a request | file |
//! |---|---|
//! | the place in the file system | `mount` |
//! | the kernel's messages; pure | `wire` |
//! | what a request means for the device; unaligned writes; pure | `requests` |
//! | the loop | `server` |
//!
//! The file has the volume's size, which nobody changes: truncating it is refused. fsync is a
//! FLUSH, a write to a file opened with O_DSYNC is on stable storage when it returns. Holes are
//! punched by DISCARD, where whole units are asked for.
//!
//! Where the machine's owner allows it (`/sys/module/fuse/parameters/enable_uring`, Linux
//! 6.14), requests come and are answered by io_uring ([`overside_disk::FuseRing`]);
//! elsewhere by `/dev/fuse`.

mod mount;
mod requests;
mod server;
mod wire;

use std::io;
use std::path::{Path, PathBuf};

use overside_verbs::VerbsError;

pub use server::{FuseMount, FuseServer};
#[doc(hidden)]
pub use wire::{fuzz_fuse, seeds_fuse};

/// Unmounts a file that is served, so that its server ends. One whose server was
/// killed is unmounted, too.
///
/// # Errors
/// [`FuseError::Path`]: nothing is served there, or a program has it open.
pub fn detach(file: &Path) -> Result<(), FuseError> {
    mount::detach(file).map_err(|source| FuseError::Path { path: file.to_owned(), source })
}

/// Why a file cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// It cannot be mounted there.
    #[error("{}: {source}", path.display())]
    Path {
        /// Where.
        path: PathBuf,
        /// What is in the way, and what to do.
        source: io::Error,
    },
    /// The kernel speaks an older protocol.
    #[error("this kernel speaks FUSE {major}.{minor}; 7.31 or later is needed (Linux 5.4), or attach it by --nbd")]
    Old {
        /// Major version.
        major: u32,
        /// Minor version.
        minor: u32,
    },
    /// The system refuses.
    #[error(transparent)]
    System(#[from] VerbsError),
}
