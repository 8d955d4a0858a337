//! What holds for the whole process: what its environment asks for, what it has shut itself off
//! from, and whether it is forking.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// After the program has shut itself off from system calls that this library may need.
pub(crate) fn is_barred() -> bool {
    BARRED.load(Ordering::Relaxed)
}

/// From now on the ends do not meet any more.
pub(crate) fn bar() {
    BARRED.store(true, Ordering::Relaxed);
}

/// Whether the ends look for each other at each call from the first, before it and after it: so
/// that the short connections of test suites reach the rings too.
#[inline]
pub(crate) fn is_soon() -> bool {
    SOON.load(Ordering::Relaxed)
}

/// Looks whether the environment asks for it. At start-up.
pub(crate) fn find_soon() {
    // SAFETY: [preload-real] at start-up, before the program can change its environment.
    SOON.store(unsafe { !libc::getenv(SOON_VARIABLE.as_ptr()).is_null() }, Ordering::Relaxed);
}

static SOON: AtomicBool = AtomicBool::new(false);
static BARRED: AtomicBool = AtomicBool::new(false);

/// A fork begins. No connection comes into the rings meanwhile.
pub(crate) fn fork_begins() {
    FORKS.fetch_add(1, Ordering::SeqCst);
}

/// It is over, in the parent.
pub(crate) fn fork_ends() {
    let _ = FORKS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
}

/// The same in the child.
pub(crate) fn in_child() {
    FORKS.store(0, Ordering::Relaxed);
}

/// Whether one is under way.
pub(crate) fn is_fork_under_way() -> bool {
    FORKS.load(Ordering::SeqCst) > 0
}

/// Descriptors that may be connections or sets; those above are the kernel's.
pub(crate) const DESCRIPTORS: usize = 1 << 16;
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Asks for rendezvous at once.
const SOON_VARIABLE: &std::ffi::CStr = c"OVERSIDE_SOCKETS_SOON";
