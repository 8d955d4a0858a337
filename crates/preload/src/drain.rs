//! What has woken a thread is taken out of the kernel: wake bytes out of the
//! stream, an eventfd's count.
//!
//! Not before all have run who slept for it (`sleepers`), and those who sleep in sets are told.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use crate::connection::{Inner, LockHeld, NO_EVENTFD};
use crate::fault::{self, Fault};
use crate::layout::SharedMemory;
use crate::sleepers::Present;
use crate::{kernel, sets, wake};

/// Takes wake bytes of before out of the kernel's stream, so that the next one wakes. Others whom
/// the unread wake byte is just waking must have run before: it returns who they are.
pub(crate) fn wake_bytes(held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory) -> Option<Present> {
    let issued = wake::issued(shared.wake_word(held.end));
    if held.drained() >= issued || held.source(shared).is_before_ring() {
        return None;
    }
    let connection = held.connection;
    if let Some(others) = connection.sleepers.present(&mut held.patience)
        && !fault::is_planted(Fault::DrainsAtOnce)
    {
        return Some(others);
    }
    if sets::is_unwakeable(held, fd, shared) {
        // The wake byte, as long as it is unread, wakes those who sleep in the set.
        return Some(connection.sleepers.now());
    }
    let before = held.drained();
    while held.drained() < issued {
        let mut wake_bytes = [0; 16];
        let len = (issued - held.drained()).min(wake_bytes.len() as u64) as usize;
        match kernel::take(fd, wake_bytes.as_mut_ptr(), len, false) {
            Ok(n) if n > 0 => held.count_drained(n),
            // On its way, or the stream has ended: the next look tells.
            Ok(_) | Err(Errno::AGAIN) => break,
            Err(_) => break,
        }
    }
    if held.drained() > before {
        sets::drained(held, fd, shared);
    }
    None
}

/// Reads the wake bytes that are still in the kernel's stream; what came in between, if not all
/// could be had: the end, or an error, of which AGAIN is nothing.
pub(crate) fn last(held: &mut Inner, fd: c_int, last: u64) -> Option<Result<(), Errno>> {
    while held.drained() < last {
        let mut wake_bytes = [0; 16];
        let len = (last - held.drained()).min(wake_bytes.len() as u64) as usize;
        match kernel::take(fd, wake_bytes.as_mut_ptr(), len, false) {
            Ok(0) => return Some(Ok(())),
            Ok(n) => held.count_drained(n),
            Err(error) => return Some(Err(error)),
        }
    }
    None
}

/// This end's, if poll has found it readable, is drained for one who is about to sleep.
/// Those who sleep in sets are told of what stands. Others in poll must have run before:
/// it returns who they are.
pub(crate) fn eventfd(held: &mut LockHeld<'_>, fd: c_int) -> Option<Present> {
    let connection = held.connection;
    if connection.signalled.load(Ordering::SeqCst) == 0 {
        return None;
    }
    let shared = held.ring()?;
    if let Some(present) = connection.pollers.present(&mut held.patience_of_pollers)
        && !fault::is_planted(Fault::DrainsEventfdAtOnce)
    {
        return Some(present);
    }
    connection.signalled.store(0, Ordering::SeqCst);
    let own = connection.eventfd.load(Ordering::Relaxed);
    if own != NO_EVENTFD {
        kernel::drain(own);
        if sets::drained(held, fd, &shared) {
            // It was signalled again for a set, whose thread runs soon.
            connection.signalled.store(1, Ordering::SeqCst);
            return Some(connection.pollers.now());
        }
    }
    None
}
