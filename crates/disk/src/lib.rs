//! Files as a database needs them: a name that appears with its whole content, and files that are
//! written directly and synced, by requests that complete later.
//!
//! [`Disk`] is one folder and a queue of requests. [`open`] gives the system's: by io_uring where
//! the kernel has it ([`Uring`]), by plain system calls elsewhere ([`Plain`]). A simulation brings
//! its own.
//!
//! # The way of one write
//!
//! - `buffer`: memory aligned to a block. `disk`: the trait, requests, completions.
//! - `uring`, `plain`: the system's two ways. `folder`: names without links, locks, who may use it.
//! - `ublk`, `fuse`: the other way around: a block device or a file system of the kernel, whose
//!   requests a program does.
//! - `AtomicFile`: written without a name until it is whole, so a full disk leaves the old file.
//!
//! # Invariants
//!
//! - A request owns its buffer and its file until its completion.
//! - A short transfer is carried on, and what remains short is an error.
//! - Absent on purpose: threads; a retry of a failed write or sync.
#![deny(unsafe_op_in_unsafe_fn)]

mod atomic_file;
mod buffer;
mod disk;
mod folder;
mod fuse;
mod mutant;
mod plain;
mod ublk;
mod uring;

pub use atomic_file::AtomicFile;
pub use buffer::{AlignedBuffer, BLOCK_BYTES};
pub use disk::{Completion, Disk, Entry, FileId, IoPath, Open, Request, complete};
pub use fuse::FuseRing;
#[doc(hidden)]
pub use mutant::mutant;
pub use plain::Plain;
pub use ublk::{DESCRIPTOR_BYTES, Ublk, UblkControl, UblkEvent};
pub use uring::Uring;

use std::io;
use std::path::Path;

/// The folder at `path`, made if there is none, by the best way that this kernel and file system
/// have.
///
/// # Errors
/// `path` is no folder of this user's alone, or nothing can be opened there; the text says what to
/// do.
pub fn open(path: &Path) -> io::Result<Box<dyn Disk>> {
    match Uring::open(path) {
        Ok(disk) => Ok(Box::new(disk)),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(Box::new(Plain::open(path)?)),
        Err(error) => Err(error),
    }
}
