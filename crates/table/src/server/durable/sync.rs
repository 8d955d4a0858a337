//! What workers and the log's thread hand the log over by: the machine's, or shuttle's when tests explore schedules
//! (`RUSTFLAGS="--cfg shuttle"`).

#[cfg(not(shuttle))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, fence},
};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, fence},
};
