//! What a volume lies on.

mod file;

pub use file::FileMember;
