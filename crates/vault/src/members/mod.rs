//! What a volume lies on.

mod absent;
mod file;

pub use absent::Absent;
pub use file::FileMember;
