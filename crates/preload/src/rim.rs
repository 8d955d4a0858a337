//! The one seam between the two ways to keep a connection's words and bytes true.
//!
//! On one host both ends have the same memory, and what is stored there is true. Between
//! hosts each end has the words for itself, and `remote` writes what is new to the peer. All
//! others call what is here, and what `fallback` has for ways back to the kernel; they do not
//! ask which of the two it is.

use crate::errno;
use crate::iovecs::Cursor;
use crate::layout::{Corrupt, SharedMemory};
use crate::remote::{self, Fate, Remote};
use crate::{futex, wake};

/// What keeps the words true where the other end is on another host. The caller holds the
/// connection's lock, and does not come here again within `f`.
#[inline]
pub(crate) fn remote<T>(shared: &SharedMemory, f: impl FnOnce(&mut Remote) -> T) -> Option<T> {
    // SAFETY: [preload-remote] made by `Remote::create` alone; under the lock, by one at a time; it lives as long as the mapping.
    shared.device().map(|device| f(unsafe { device.cast::<Remote>().as_mut() }))
}

impl SharedMemory {
    /// Brings in what the peer has said and written since the last time.
    /// With the connection's lock.
    #[inline]
    pub(crate) fn refresh(&self, fd: std::ffi::c_int) {
        if self.device().is_some() {
            errno::kept(|| remote(self, |remote| remote.take_in(self, fd)));
        }
    }

    /// Whether a look at the peer's words changes what the connection's lock guards.
    #[inline]
    pub(crate) fn changes_by_looks(&self) -> bool {
        self.device().is_some()
    }

    /// Says what is new, before the lock is given back.
    #[inline]
    pub(crate) fn publish(&self) {
        if self.device().is_some() {
            errno::kept(|| remote(self, |remote| remote.publish(self, remote::PATIENCE_NS)));
        }
    }

    /// Whether there may be something that nobody has brought in yet. Without the lock.
    #[inline]
    pub(crate) fn is_new(&self) -> bool {
        self.device().is_some() && remote::is_new(self)
    }

    /// This end asks to be woken. The caller looks once more afterwards, before it
    /// sleeps, and holds the lock.
    #[inline]
    pub(crate) fn arm(&self, end: usize, request: u64) {
        if remote(self, |remote| remote.request(self, request)).is_none() {
            wake::arm(self.wake_word(end), request);
        }
    }

    /// Whether the peer wakes who sleeps on the word itself.
    pub(crate) fn wakes_by_word(&self) -> bool {
        self.device().is_none() && futex::is_possible()
    }

    /// Whether the peer is still to be woken: not once it has been told how
    /// this end's direction ends.
    #[inline]
    pub(crate) fn may_wake(&self) -> bool {
        remote(self, |remote| remote.has_said_fate()) != Some(true)
    }

    /// Before the peer's wake requests are looked at: says what there is, and brings them in.
    #[inline]
    pub(crate) fn look_for_requests(&self) {
        remote(self, |remote| remote.look_for_requests(self));
    }

    /// A wake byte has been issued: the peer knows of it before it comes.
    pub(crate) fn publish_wake_byte(&self) {
        remote(self, |remote| remote.publish(self, remote::STUCK_NS));
    }

    /// Bytes that fit now, where that is not for the positions to say.
    #[inline]
    pub(crate) fn room(&self) -> Result<Option<u64>, Corrupt> {
        let room = |remote: &mut Remote| if remote.is_corrupt() { Err(Corrupt) } else { Ok(remote.room()) };
        remote(self, room).transpose()
    }

    /// Whether a look at the peer's words costs neither end anything.
    #[inline]
    pub(crate) fn is_cheap_to_look(&self) -> bool {
        self.device().is_some()
    }

    /// Frames and writes what finds room: the bytes, and what fits then. None where the
    /// caller copies into the ring.
    #[inline]
    pub(crate) fn send(&self, from: &mut Cursor<'_>) -> Option<(u64, u64)> {
        remote(self, |remote| (remote.send(self, from), remote.room()))
    }

    /// Copies bytes that have arrived. None where the caller copies out of the ring.
    #[inline]
    pub(crate) fn read(
        &self,
        tail: u64,
        waiting: u64,
        to: &mut Cursor<'_>,
        look: bool,
    ) -> Option<Result<u64, Corrupt>> {
        remote(self, |remote| remote.read(tail, waiting, to, look))
    }

    /// Whether what the peer has said makes sense so far.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Corrupt> {
        if remote(self, |remote| remote.is_corrupt()) == Some(true) { Err(Corrupt) } else { Ok(()) }
    }

    /// A run of what was written and not taken, from this position on; None
    /// where it lies in the ring.
    pub(crate) fn unread(&self, position: u64) -> Option<(*mut u8, usize)> {
        remote(self, |remote| remote.unread(position))
    }

    /// Whether the sender has ended the ring here by a word of its own.
    pub(crate) fn ends_at(&self, tail: u64) -> bool {
        remote(self, |remote| remote.fate().0) == Some(Fate::End(tail))
    }

    /// Whether bytes that were announced are not there, so that an end would be none.
    pub(crate) fn lacks_bytes(&self) -> bool {
        remote(self, |remote| remote.lacks_bytes(self)) == Some(true)
    }

    /// Whether bytes can go to the peer no more, other than through the kernel.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        remote(self, |remote| remote.is_broken()) == Some(true)
    }

    /// The same of bytes from the peer, which has not said how its direction ends.
    pub(crate) fn has_lost_peer(&self) -> bool {
        remote(self, |remote| remote.is_broken() && remote.fate().0 == Fate::Unknown) == Some(true)
    }

    /// The connection never comes into the rings. A peer that finds this later is to know it.
    pub(crate) fn cancel(&self) {
        remote(self, |remote| remote.end(self, remote::END, false));
    }

    /// Ends the mapping.
    ///
    /// # Safety
    /// No copy of it is used any more, on any thread.
    pub(crate) unsafe fn destroy(self) {
        match self.device() {
            // SAFETY: [preload-remote] the caller's promise.
            Some(device) => unsafe { remote::destroy(&self, device.cast()) },
            // SAFETY: [preload-shared] the caller's promise.
            None => unsafe { self.unmap() },
        }
    }
}
