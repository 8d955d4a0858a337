//! `fork`, `exec` and what goes with them.
//!
//! A connection whose rings are in use goes back to the kernel before a fork, so parent and child share what they would share
//! without this library. One that is still counted keeps its counts in a page that both sides share from then on, and the
//! ends may meet once only one of them has it open: a server that forks after `accept` closes the parent's copy.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use rustix::mm::{MapFlags, ProtFlags};

use crate::connection::{Held, State};
use crate::count::Counts;
use crate::diagnosis::Reason;
use crate::kernel::borrowed;
use crate::{drain, epoll, errno, meeting, receive, table};

/// Before a fork.
pub(crate) extern "C" fn prepare() {
    errno::kept(|| {
        for (fd, connection) in table::all() {
            if connection.state() == State::Ring {
                receive::settle(fd, connection, Reason::Call("fork"));
            }
            if let Some(mut held) = table::hold(fd, connection)
                && connection.state() == State::Counting
            {
                share(&mut held, fd);
            }
        }
        epoll::prepare();
        // Held over the fork, so that the child finds the list whole; given back by `parent`, made anew by the child.
        if let Some(guard) = table::SLAB.lock() {
            std::mem::forget(guard);
        }
    });
}

/// After it, in the parent.
pub(crate) extern "C" fn parent() {
    table::SLAB.reset();
    epoll::adopt();
}

/// After it, in the child, which has one thread.
pub(crate) extern "C" fn child() {
    table::adopt();
    for (_, connection) in table::all() {
        connection.forget_other_threads();
    }
    epoll::in_child();
}

/// The counts move to where the child sees them too.
fn share(held: &mut Held<'_>, fd: c_int) {
    if held.offer >= 0 || held.shared.is_some() {
        drain::leave(held, fd, Reason::Call("fork while the ends were meeting"));
        return;
    }
    if held.common.is_null() {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: [preload-counts] a new mapping at an address of the system's choice, larger than `Counts`.
        let page = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, prot, flags) };
        let Ok(page) = page else {
            return drain::leave(held, fd, Reason::Exhausted);
        };
        let common = page.cast::<Counts>();
        // SAFETY: [preload-counts] the new page, aligned and zeroed; all zeroes are valid counts.
        unsafe { &*common }.copy_from(&held.own);
        held.common = common;
    }
    // One descriptor counts once, however many name it in this process; of several, each passes here.
    if held.connection.descriptors.load(Ordering::Relaxed) == 1 || is_first(fd, held) {
        held.counts().holders.fetch_add(1, Ordering::AcqRel);
    }
}

/// Whether no lower descriptor names the same connection.
fn is_first(fd: c_int, held: &Held<'_>) -> bool {
    table::all().find(|(_, other)| std::ptr::eq(*other, held.connection)).is_some_and(|(first, _)| first == fd)
}

/// This process has the connection open no more.
pub(crate) fn leave(held: &mut Held<'_>) {
    held.counts().holders.fetch_sub(1, Ordering::AcqRel);
    if !held.common.is_null() {
        // SAFETY: [preload-counts] under the lock, and `common` is cleared: nobody uses the page any more.
        let _ = unsafe { rustix::mm::munmap(held.common.cast_mut().cast(), PAGE_BYTES) };
        held.common = std::ptr::null();
    }
}

/// Before another program takes over this process, or a new one: what it inherits must be plain.
///
/// A vfork child calls this in its parent's memory, which stands still meanwhile; connections that go on into the new program
/// are the kernel's for the parent too.
pub(crate) fn before_exec(reason: &'static str) {
    errno::kept(|| {
        for (fd, connection) in table::all() {
            let inherited =
                rustix::io::fcntl_getfd(borrowed(fd)).is_ok_and(|flags| !flags.contains(rustix::io::FdFlags::CLOEXEC));
            if inherited && matches!(connection.state(), State::Counting | State::Ring) {
                receive::settle(fd, connection, Reason::Call(reason));
            }
        }
    });
}

/// No connection meets any more, and those that have go back: the program shuts itself off from system calls.
pub(crate) fn before_sandbox() {
    meeting::bar();
    for (fd, connection) in table::all() {
        if matches!(connection.state(), State::Counting | State::Ring) {
            receive::settle(fd, connection, Reason::Call("a sandbox"));
        }
    }
}

const PAGE_BYTES: usize = 4096;
