//! What a worker and those who write a log hand over by: the machine's, or shuttle's when tests
//! explore schedules (`RUSTFLAGS="--cfg shuttle"`).

#[cfg(not(shuttle))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64};
#[cfg(not(shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU64};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
