//! A shared mapping whose bytes another process may change at any moment: what `Foreign` and
//! `Window` stand on.

use std::any::Any;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::{MemoryError, kernels, sys};

/// A handle on a mapping, which ends with its last handle. It gives copies and aligned atomic
/// words, never a slice.
#[derive(Clone, Debug)]
pub(crate) struct Racing {
    base: NonNull<u8>,
    len: usize,
    _mapping: Arc<Mapping>,
}

/// Ends the mapping, then lets go of what was to stay as long.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    _kept: Kept,
}

/// What a mapping keeps until it ends, if anything.
pub(crate) type Kept = Option<Box<dyn Any + Send + Sync>>;

// SAFETY: [foreign] [window] only racing copies and atomics reach the bytes.
unsafe impl Send for Racing {}
// SAFETY: [foreign] [window] as above.
unsafe impl Sync for Racing {}
// SAFETY: [mapping] it ends the mapping and does no more, on any thread.
unsafe impl Send for Mapping {}
// SAFETY: [mapping] a shared reference to it offers nothing.
unsafe impl Sync for Mapping {}

impl Racing {
    /// Maps `len` bytes of a memory file of our own, whose pages are all touched so that peers
    /// believe that they are there.
    pub(crate) fn own(fd: impl AsFd, len: usize) -> Result<Self, MemoryError> {
        let mapped = Self::map(fd, len, true, None)?;
        // SAFETY: [mapping] just made; its memory is allocated.
        unsafe { sys::populate(mapped.base, len) };
        Ok(mapped)
    }

    fn map(fd: impl AsFd, len: usize, write: bool, kept: Kept) -> Result<Self, MemoryError> {
        // SAFETY: [mapping] a new mapping at an address of the system's choice.
        let base = unsafe { sys::map(fd, None, len, write) }?;
        Ok(Self { base, len, _mapping: Arc::new(Mapping { base, len, _kept: kept }) })
    }

    /// Verifies size and seals of what a peer passed, then maps it. An absurd size is refused in
    /// the words of `absurd`. What is `kept` is let go when the last handle is.
    pub(crate) fn passed(
        fd: impl AsFd,
        len: u64,
        write: bool,
        absurd: &'static str,
        kept: Kept,
    ) -> Result<Self, MemoryError> {
        if len == 0 || len > isize::MAX as u64 {
            return Err(MemoryError::Untrusted(absurd));
        }
        // What is only read here was passed for reading alone: whoever else has its descriptor cannot write it either.
        sys::verify(&fd, len, !write)?;
        Self::map(fd, len as usize, write, kept)
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies `out.len()` bytes from offset `at`.
    #[inline]
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let source = self.checked(at, out.len())?;
        // SAFETY: [foreign] [window] in bounds of the mapping; `out` is ours.
        unsafe { kernels::copy_racing(out.as_mut_ptr(), source, out.len()) };
        Ok(())
    }

    /// The same, where what begins at `then` is read next.
    #[inline]
    pub(crate) fn read_ahead(&self, at: u64, out: &mut [u8], then: *const u8) -> Result<(), MemoryError> {
        let source = self.checked(at, out.len())?;
        // SAFETY: [foreign] [window] in bounds of the mapping; `out` is ours.
        unsafe { kernels::copy_racing_ahead(out.as_mut_ptr(), source, out.len(), then) };
        Ok(())
    }

    /// The aligned word at offset `at`.
    #[inline]
    pub(crate) fn word(&self, at: u64) -> Result<&AtomicU64, MemoryError> {
        let target = self.checked(at, 8)?;
        if !at.is_multiple_of(8) {
            return Err(MemoryError::Escapes { at, len: 8, of: self.len as u64 });
        }
        // SAFETY: [foreign] [window] aligned, in bounds, alive as long as the borrow; every access is atomic or racing-safe.
        Ok(unsafe { AtomicU64::from_ptr(target.cast()) })
    }

    /// The aligned half word at offset `at`, read with its whole word: words are all that is
    /// accessed atomically here, because two sizes of access to the same bytes may not race.
    #[inline]
    pub(crate) fn half(&self, at: u64) -> Result<u32, MemoryError> {
        self.half_at(at)?;
        let halves = self.word(at & !7)?.load(Ordering::SeqCst).to_ne_bytes();
        let [a, b, c, d, rest @ ..] = halves;
        Ok(u32::from_ne_bytes(if at.is_multiple_of(8) { [a, b, c, d] } else { rest }))
    }

    /// Sleeps while the aligned half word at offset `at` is `value`, at most `timeout`; false when
    /// that has passed.
    pub(crate) fn doze(&self, at: u64, value: u32, timeout: Duration) -> Result<bool, MemoryError> {
        Ok(sys::wait_on(self.half_at(at)?, value, timeout))
    }

    /// Wakes one that sleeps on the aligned half word at offset `at`.
    pub(crate) fn wake(&self, at: u64) -> Result<(), MemoryError> {
        sys::wake(self.half_at(at)?);
        Ok(())
    }

    /// The aligned half word at offset `at` for the system, which sleeps and wakes by its address.
    /// Nothing here accesses it.
    fn half_at(&self, at: u64) -> Result<&AtomicU32, MemoryError> {
        let target = self.checked(at, 4)?;
        if !at.is_multiple_of(4) {
            return Err(MemoryError::Escapes { at, len: 4, of: self.len as u64 });
        }
        // SAFETY: [foreign] [window] aligned, in bounds, alive as long as the borrow; only the
        // system reads it.
        Ok(unsafe { AtomicU32::from_ptr(target.cast()) })
    }

    /// `N` aligned words from offset `at` on.
    #[inline]
    pub(crate) fn words<const N: usize>(&self, at: u64) -> Result<&[AtomicU64; N], MemoryError> {
        let target = self.checked(at, N * 8)?;
        if !at.is_multiple_of(8) {
            return Err(MemoryError::Escapes { at, len: N as u64 * 8, of: self.len as u64 });
        }
        // SAFETY: [foreign] [window] aligned, in bounds, alive as long as the borrow; every access is atomic or racing-safe.
        Ok(unsafe { &*target.cast::<[AtomicU64; N]>() })
    }

    /// The address of `len` bytes at offset `at`, if they lie within.
    #[inline]
    pub(crate) fn checked(&self, at: u64, len: usize) -> Result<*mut u8, MemoryError> {
        match at.checked_add(len as u64) {
            // SAFETY: [foreign] [window] the offset is within the mapping.
            Some(end) if end <= self.len as u64 => Ok(unsafe { self.base.as_ptr().add(at as usize) }),
            _ => Err(MemoryError::Escapes { at, len: len as u64, of: self.len as u64 }),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: [mapping] the last handle has gone, and nobody else has the address.
        unsafe { sys::unmap(self.base, self.len) };
    }
}
