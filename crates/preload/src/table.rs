//! Which descriptor is which connection.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use crate::connection::{Connection, Inner, LockHeld, State};
use crate::lock::Lock;
use crate::policy::DESCRIPTORS;
use crate::slab::Slab;
use crate::state::Host;

static TABLE: [AtomicPtr<Connection>; DESCRIPTORS] = [const { AtomicPtr::new(null_mut()) }; DESCRIPTORS];
/// One more than the highest descriptor that was ever in the table.
static TOP: AtomicUsize = AtomicUsize::new(0);
/// Descriptors that were put into a set of epoll of which nothing is known: such a one never
/// becomes a connection here.
static IN_SET: [AtomicBool; DESCRIPTORS] = [const { AtomicBool::new(false) }; DESCRIPTORS];
static FREE: Slab<Connection> = Slab::new();
/// Guards the free list, and what comes into the table; held over a fork.
static SLAB: Lock = Lock::new();
/// The connections whose locks are held over a fork, chained as free ones are:
/// meanwhile none becomes free.
static KEPT: AtomicPtr<Connection> = AtomicPtr::new(null_mut());
/// Forks of a signal handler that has interrupted the holder of `SLAB`: a fork,
/// maybe. They hold nothing.
static NESTED: AtomicU32 = AtomicU32::new(0);
/// The process that the table belongs to. A vfork child runs in its parent's memory
/// and must leave it alone.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// The connection behind a descriptor, if it is one.
#[inline]
pub(crate) fn find(fd: c_int) -> Option<&'static Connection> {
    #[cfg(test)]
    if let Some(connection) = crate::explore::connection(fd) {
        return Some(connection);
    }
    let pointer = TABLE.get(fd as usize)?.load(Ordering::Acquire);
    // SAFETY: [preload-slab] connections are never unmapped.
    unsafe { pointer.as_ref() }
}

/// The connection behind a descriptor with its lock, which proves that the
/// descriptor still names it.
#[inline]
pub(crate) fn hold(fd: c_int, connection: &'static Connection) -> Option<LockHeld<'static>> {
    let held = connection.hold()?;
    if !find(fd).is_some_and(|now| std::ptr::eq(now, connection)) {
        return None;
    }
    if let Some(shared) = held.shared() {
        if shared.changes_by_looks() {
            held.changes();
        }
        shared.refresh(fd);
    }
    Some(held)
}

/// Whether the table is this process's own to change.
pub(crate) fn is_ours() -> bool {
    let me = rustix::process::getpid().as_raw_nonzero().get();
    let owner = OWNER.load(Ordering::Relaxed);
    // Before the library's own start-up there is one process and nothing in the table.
    owner == 0 || owner == me
}

/// At start-up and in a forked child: now it is ours. Never at another moment, which
/// could be a vfork child's.
pub(crate) fn adopt() {
    OWNER.store(rustix::process::getpid().as_raw_nonzero().get(), Ordering::Relaxed);
    SLAB.renew();
    KEPT.store(null_mut(), Ordering::Relaxed);
    NESTED.store(0, Ordering::Relaxed);
}

/// Before a fork: no connection comes or goes, and no other thread is in the midst of a change to
/// one, until `let_go` or in the child `adopt`. `each` has the last word on every one. False when
/// this very thread was in the midst of such a thing, or of a fork.
///
/// A connection that is not given back soon is left out.
pub(crate) fn keep(mut each: impl FnMut(c_int, &mut LockHeld<'static>)) -> bool {
    let Some(guard) = SLAB.lock() else {
        NESTED.fetch_add(1, Ordering::Relaxed);
        return false;
    };
    SLAB.mark_kept();
    std::mem::forget(guard);
    for (fd, connection) in all() {
        // Of two descriptors of one, the first.
        let held = connection.hold_soon().filter(|_| find(fd).is_some_and(|now| std::ptr::eq(now, connection)));
        let Some(mut held) = held else { continue };
        each(fd, &mut held);
        held.keep();
        let this = std::ptr::from_ref(connection).cast_mut();
        connection.next_free.store(KEPT.swap(this, Ordering::Relaxed), Ordering::Relaxed);
    }
    true
}

/// Whether nobody can have been in the midst of a change to it. In the child, before `adopt`.
pub(crate) fn is_whole(connection: &Connection) -> bool {
    NESTED.load(Ordering::Relaxed) == 0 && connection.is_kept()
}

/// After a fork, in the parent: whether it was one of those for which `keep` does nothing.
pub(crate) fn was_nested() -> bool {
    NESTED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1)).is_ok()
}

/// After any other, in the parent.
pub(crate) fn let_go() {
    let mut next = KEPT.swap(null_mut(), Ordering::Relaxed);
    // SAFETY: [preload-slab] connections are never unmapped.
    while let Some(connection) = unsafe { next.as_ref() } {
        next = connection.next_free.load(Ordering::Relaxed);
        connection.let_go();
    }
    SLAB.let_go();
}

/// Notes whether an unknown set of epoll has this descriptor, whatever it is so far.
pub(crate) fn note_in_set(fd: c_int, yes: bool) {
    if let Some(flag) = IN_SET.get(fd as usize)
        && flag.load(Ordering::Relaxed) != yes
    {
        flag.store(yes, Ordering::Relaxed);
    }
}

/// These descriptors are closed.
pub(crate) fn note_closed(first: u32, last: u32) {
    let last = (last as usize).min(DESCRIPTORS - 1);
    for flag in IN_SET.get(first as usize..=last).unwrap_or(&[]) {
        if flag.load(Ordering::Relaxed) {
            flag.store(false, Ordering::Relaxed);
        }
    }
}

/// A new connection under this descriptor, to this host or another; whatever stood there is
/// forgotten. None when there is no room, or an unknown set of epoll has it already.
pub(crate) fn insert(fd: c_int, end: usize, host: Host) -> Option<&'static Connection> {
    let slot = TABLE.get(fd as usize)?;
    if IN_SET.get(fd as usize)?.load(Ordering::Relaxed) {
        return None;
    }
    let connection = take_free()?;
    {
        let mut held = connection.hold()?;
        held.renew(Inner::new(end));
        held.host = host;
        connection.renew();
    }
    raise_top(fd);
    // Not beside a fork, which would know nothing of it.
    let _guard = SLAB.lock_soon()?;
    slot.store(std::ptr::from_ref(connection).cast_mut(), Ordering::Release);
    Some(connection)
}

/// Another descriptor for the same connection.
pub(crate) fn add(fd: c_int, connection: &'static Connection) -> bool {
    let Some(slot) = TABLE.get(fd as usize) else { return false };
    connection.descriptors.fetch_add(1, Ordering::Relaxed);
    raise_top(fd);
    slot.store(std::ptr::from_ref(connection).cast_mut(), Ordering::Release);
    true
}

/// The descriptor names nothing any more. True for the last one of its connection.
pub(crate) fn remove(fd: c_int, connection: &'static Connection) -> bool {
    let Some(slot) = TABLE.get(fd as usize) else { return false };
    let pointer = std::ptr::from_ref(connection).cast_mut();
    slot.compare_exchange(pointer, null_mut(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        && connection.descriptors.fetch_sub(1, Ordering::AcqRel) == 1
}

/// All descriptors that may be in the table from `first` to `last`.
pub(crate) fn range(first: u32, last: u32) -> impl Iterator<Item = (c_int, &'static Connection)> {
    let end = TOP.load(Ordering::Acquire).min((last as usize).saturating_add(1));
    (first as usize..end).filter_map(|fd| find(fd as c_int).map(|connection| (fd as c_int, connection)))
}

/// All of them.
pub(crate) fn all() -> impl Iterator<Item = (c_int, &'static Connection)> {
    range(0, u32::MAX)
}

/// The connection is over; its place is used again. Its shared memory is gone already.
pub(crate) fn give_back(connection: &'static Connection) {
    connection.abandon();
    connection.set_state(State::Free);
    let Some(_guard) = SLAB.lock_soon() else { return };
    FREE.give_back(connection);
}

fn take_free() -> Option<&'static Connection> {
    // A thread may have jumped out of this, and be anywhere: then it is the kernel's.
    let _guard = SLAB.lock_soon()?;
    FREE.take()
}

fn raise_top(fd: c_int) {
    TOP.fetch_max(fd as usize + 1, Ordering::AcqRel);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_holds_every_connection_but_one_whose_holder_waits_for_another() {
        let [first, second] = [60_000, 60_001].map(|fd| insert(fd, 0, Host::This).unwrap());
        assert!(add(60_002, first));
        let (mut seen, gate) = (Vec::new(), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                // Within this, a signal handler.
                let held = second.hold().unwrap();
                gate.wait();
                while !first.is_kept() {
                    std::thread::yield_now();
                }
                drop(first.hold().unwrap());
                drop(held);
            });
            gate.wait();
            assert!(keep(|fd, _| seen.push(fd)));
            assert!(is_whole(first) && !is_whole(second));
            // A handler forks now.
            assert!(!keep(|_, _| unreachable!()) && !is_whole(first) && was_nested());
            assert!(!was_nested() && is_whole(first) && !other.is_finished());
            let_go();
        });
        assert_eq!(seen, [60_000]);
        assert!(keep(|fd, _| seen.push(fd)));
        assert!(is_whole(first) && is_whole(second));
        let_go();
        assert_eq!(seen, [60_000, 60_000, 60_001]);
        assert!(first.hold().is_some() && second.hold().is_some());
        // As the C library calls them.
        crate::fork::prepare();
        let held = is_whole(first) && is_whole(second);
        crate::fork::parent();
        assert!(held && !is_whole(first) && !is_whole(second) && first.hold().is_some() && second.hold().is_some());
        // A thread has jumped out of a change to the table, and others go on without it.
        std::thread::scope(|scope| drop(scope.spawn(|| std::mem::forget(SLAB.lock().unwrap())).join()));
        assert!(insert(60_003, 0, Host::This).is_none() && remove(60_001, second));
        give_back(second);
        SLAB.renew();
    }
}
