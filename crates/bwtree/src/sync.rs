//! The atomics that the protocols run on: the machine's, or shuttle's when the tests explore
//! schedules (`RUSTFLAGS="--cfg shuttle"`). What is only counted, never decided on, uses the
//! machine's always.

#[cfg(not(shuttle))]
pub(crate) use std::sync::{
    Mutex,
    atomic::{AtomicU32, AtomicU64, fence},
};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Mutex,
    atomic::{AtomicU32, AtomicU64, fence},
};

pub(crate) use std::sync::atomic::Ordering;

/// A small number that differs between threads: where a thread starts looking for a slot of its
/// own.
#[cfg(not(shuttle))]
pub(crate) fn thread_hint() -> usize {
    use std::cell::Cell;
    use std::sync::atomic::AtomicUsize;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // No destructor: a thread's slot is free whenever the thread is outside of the tree.
    thread_local!(static HINT: Cell<usize> = const { Cell::new(usize::MAX) });
    HINT.with(|hint| {
        if hint.get() == usize::MAX {
            hint.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        hint.get()
    })
}

#[cfg(shuttle)]
pub(crate) fn thread_hint() -> usize {
    0
}

/// The kernel's number of this thread, for reports.
#[cfg(not(shuttle))]
pub(crate) fn thread_id() -> u32 {
    use std::cell::Cell;
    thread_local!(static ID: Cell<u32> = const { Cell::new(0) });
    ID.with(|id| {
        if id.get() == 0 {
            id.set(rustix::thread::gettid().as_raw_nonzero().get() as u32);
        }
        id.get()
    })
}

#[cfg(shuttle)]
pub(crate) fn thread_id() -> u32 {
    1
}
