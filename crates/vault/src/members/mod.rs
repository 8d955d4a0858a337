//! What a volume lies on.

mod absent;
mod file;
mod remote;
mod spindle;
pub mod volatile;

pub use absent::Absent;
pub use file::FileMember;
pub use remote::{Attach, RemoteMember};
pub use spindle::{Spindle, SpindleKind, SpindleTimes};
pub use volatile::Volatile;
