//! Files as a database needs them: a name that appears with its whole content.

#![forbid(unsafe_code)]

mod atomic_file;

pub use atomic_file::AtomicFile;
