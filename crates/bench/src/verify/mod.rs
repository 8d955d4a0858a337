//! The contract of a scan, checked row by row against the stamped log of updates.
//!
//! A scan is no snapshot. It owes three things. Every row that was present throughout comes exactly
//! once, in key order. Each returned row is whole, never half of one version and half of another.
//! And its version was current at some moment between the scan's start and its end. The updating
//! process stamps every write before and after with the host's monotonic clock ([`Write`]). So for
//! each version there is an interval outside of which it was surely not current ([`History`]).
//! [`check`] compares a scan's rows ([`Seen`]) with it.
//!
//! Nothing here runs while time is taken.

mod contract;
mod history;

pub use contract::{Scan, ScanOutcome, Seen, Shown, Violation, check};
pub use history::{History, LogError, Write};
