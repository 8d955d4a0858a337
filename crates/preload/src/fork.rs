//! `fork`, `exec` and what goes with them.
//!
//! A connection whose rings are in use goes back to the kernel before a fork, so parent and child
//! share what they would share without this library, and is counted again. All that are counted
//! keep their counts in a page that both sides share from then on. The ends may meet, or come into
//! the rings again, once only one process has it open. A server that forks after `accept` closes
//! the parent's copy; a child that writes a snapshot ends.
//!
//! Other threads go on meanwhile. So none comes into the rings from then on, and all locks are held
//! over the fork itself. The child finds each connection whole, and none that it might take for its
//! own. One that a signal handler finds held by the code that it has interrupted, or whose holder
//! waits in a handler for one that is held here, is the parent's alone.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use crate::connection::{LockHeld, State, Tally};
use crate::count::Counts;
use crate::diagnosis::Reason;
use crate::fallback::PeerAnswer;
use crate::settle::Reader;
use crate::step::{Action, Event};
use crate::{errno, fallback, kernel, own, policy, reattach, report, sets, settle, table};

/// Before a fork.
pub(crate) extern "C" fn prepare() {
    errno::kept(|| {
        policy::fork_begins();
        // First all of those to other hosts, which answer meanwhile.
        for (fd, connection) in table::all().filter(|(_, connection)| connection.state() == State::Ring) {
            if let Some(mut held) = table::hold(fd, connection)
                && fallback::ask(&mut held, fd) == PeerAnswer::Answered
            {
                fallback::leave(&mut held, fd, Reason::Fork);
            }
        }
        for (fd, connection) in table::all() {
            // With the lock: one that is coming into the rings is there, or does not come.
            if table::hold(fd, connection).is_some_and(|held| held.connection.state() == State::Ring) {
                settle::settle(fd, connection, Reason::Fork, Reader::Both);
            }
        }
        PARENT.store(rustix::process::getpid().as_raw_nonzero().get(), Ordering::Relaxed);
        crate::files::prepare();
        // In the order in which locks are taken.
        if table::keep(put_in_order) {
            sets::prepare();
            own::prepare();
        }
    });
}

/// The last thing before the fork: the connection is not in the rings any more, or not all of it.
pub(crate) fn put_in_order(fd: c_int, held: &mut LockHeld<'_>) {
    let reason = Reason::Call("fork while the ends were meeting");
    let searching = held.search.socket().is_some();
    match held.step(Event::Forks { searching }) {
        Action::Share => share_counts(held, fd),
        Action::Withdraw(shared) if reattach::withdraw(held, &shared) => share_counts(held, fd),
        Action::Withdraw(_) => fallback::leave(held, fd, reason),
        Action::Cancel => fallback::give_up(held, reason),
        // Something is left of the rings, which parent and child take by the same counts.
        Action::ShareRings(shared, agreement) => {
            reattach::say(&shared, agreement);
            fallback::restore(held, fd);
            share_counts(held, fd);
        }
        _ => {}
    }
}

/// After it, in the parent.
pub(crate) extern "C" fn parent() {
    if !table::was_nested() {
        own::adopt();
        sets::adopt();
        table::let_go();
    }
    crate::files::parent();
    policy::fork_ends();
}

/// After the C library's `fork`, in the parent: which child it has made, if any.
pub(crate) fn made(child: i32) {
    for (fd, connection) in table::all() {
        if let Some(held) = table::hold(fd, connection)
            && held.has_relatives()
            && is_first(fd, &held)
        {
            held.counts().name_child(child);
        }
    }
}

/// After it, in the child, which has one thread.
pub(crate) extern "C" fn child() {
    for (fd, connection) in table::all().filter(|(_, connection)| !table::is_whole(connection)) {
        connection.forget_other_threads();
        if let Some(mut held) = table::hold(fd, connection) {
            held.forsake();
            connection.eventfd.store(crate::connection::NO_EVENTFD, Ordering::Relaxed);
            connection.set_state(State::Plain);
        }
    }
    policy::in_child();
    table::adopt();
    crate::files::in_child();
    own::in_child();
    // Who cannot see the parent (it has ended, or has another view of processes) cannot tell whether it still lives.
    let sees_parent =
        rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get()) == PARENT.load(Ordering::Relaxed);
    for (fd, connection) in table::all() {
        connection.forget_other_threads();
        let Some(mut held) = table::hold(fd, connection) else { continue };
        if held.shared().is_some_and(|shared| !fallback::is_for_children(&shared)) {
            held.step(Event::IsParents);
        }
        held.in_child();
        // What has gone so far is for the parent to tell.
        held.tally = Tally::default();
        if held.has_relatives() && is_first(fd, &held) {
            held.counts().be_born();
            if !sees_parent {
                held.counts().spoil();
            }
        }
    }
    sets::in_child();
}

/// The counts move to where the child sees them too.
fn share_counts(held: &mut LockHeld<'_>, fd: c_int) {
    #[cfg(test)]
    if let Some(page) = crate::explore::common_page() {
        return held.count_in(page);
    }
    if !held.has_relatives() {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: [preload-counts] a new mapping at an address of the system's choice, larger than `Counts`.
        let page = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, prot, flags) };
        let Some(page) = page.ok().and_then(|page| NonNull::new(page.cast::<Counts>())) else {
            return fallback::leave(held, fd, Reason::Exhausted);
        };
        // Aligned and zeroed; all zeroes are valid counts.
        held.count_in(page);
    }
    // Whatever descriptors name it, it is one connection.
    if is_first(fd, held) {
        held.counts().expect_child();
    }
}

/// Whether no lower descriptor names the same connection.
fn is_first(fd: c_int, held: &LockHeld<'_>) -> bool {
    held.connection.descriptors.load(Ordering::Relaxed) == 1
        || table::all().find(|(_, other)| std::ptr::eq(*other, held.connection)).is_some_and(|(first, _)| first == fd)
}

/// This process has the connection open no more.
pub(crate) fn leave(held: &mut LockHeld<'_>) {
    if held.has_relatives() {
        held.counts().leave();
    }
    if let Some(page) = held.count_apart() {
        #[cfg(test)]
        if crate::explore::is_on() {
            // That page is no mapping of its own.
            return;
        }
        // SAFETY: [preload-counts] under the lock, and the connection counts apart: nobody uses the page any more.
        let _ = unsafe { rustix::mm::munmap(page.as_ptr().cast(), PAGE_BYTES) };
    }
}

/// Before another program takes over this process: what it inherits must be plain.
///
/// A vfork child calls this in its parent's memory, which stands still meanwhile; connections that
/// go on into the new program are the kernel's for the parent too.
pub(crate) fn before_exec(reason: &'static str) {
    errno::kept(crate::files::before_exec);
    give_up_inherited(reason, Reader::Stranger, |_| {});
}

/// Another program takes over this process. One that cannot leaves it as it was.
pub(crate) fn exec(take_over: impl FnOnce() -> c_int) -> c_int {
    before_exec("exec");
    let failed = take_over();
    errno::kept(crate::files::shield_again);
    failed
}

/// Starts a program beside this one. What it would read wrongly it does not inherit.
pub(crate) fn beside<T>(reason: &'static str, start: impl FnOnce() -> T) -> T {
    errno::kept(crate::files::before_spawn);
    let (mut hidden, mut many) = ([-1; HIDDEN_MAX], 0);
    give_up_inherited(reason, Reader::Beside, |fd| {
        // Those for which there is no place here stay hidden.
        if let Some(place) = hidden.get_mut(many).filter(|_| !kernel::is_inherited(fd)) {
            *place = fd;
            many += 1;
        }
    });
    let result = start();
    errno::kept(crate::files::shield_again);
    errno::kept(|| hidden.iter().take(many).for_each(|fd| kernel::set_inherited(*fd, true)));
    result
}

fn give_up_inherited(reason: &'static str, reader: Reader, mut then: impl FnMut(c_int)) {
    errno::kept(|| {
        for (fd, connection) in table::all() {
            if kernel::is_inherited(fd) && matches!(connection.state(), State::Counting | State::Ring) {
                settle::settle(fd, connection, Reason::Call(reason), reader);
                then(fd);
            }
        }
    });
}

/// No connection meets any more, and those that have go back: the program shuts
/// itself off from system calls.
///
/// What there is to tell of them is told now: later even that may be forbidden.
pub(crate) fn before_sandbox(reason: &'static str) {
    errno::kept(|| {
        policy::bar();
        for (fd, connection) in table::all() {
            if matches!(connection.state(), State::Counting | State::Ring) {
                settle::settle(fd, connection, Reason::Call(reason), Reader::Kernel);
            }
            if let Some(held) = table::hold(fd, connection) {
                report::write(&held, fd);
            }
        }
        report::stop();
    });
}

const PAGE_BYTES: usize = 4096;
/// Descriptors that one program which is started is kept from.
const HIDDEN_MAX: usize = 64;

/// Who is forking.
static PARENT: AtomicI32 = AtomicI32::new(0);
