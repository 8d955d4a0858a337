//! What a volume lies on.

mod absent;
mod file;
pub mod volatile;

pub use absent::Absent;
pub use file::FileMember;
pub use volatile::Volatile;
