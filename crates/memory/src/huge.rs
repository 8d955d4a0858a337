//! Huge pages under shared memory.
//!
//! A scan walks through tables far larger than what a processor's translation buffers reach. With
//! pages of 4 KiB each page costs a walk through the page tables, in a virtual machine through two.
//! Memory files get huge pages by themselves only where the administrator wants it so
//! (`shmem_enabled`), and whoever asks for a range gets them (`MADV_COLLAPSE`, Linux 6.1). Asked
//! while all but one small page of each are still missing, nothing is moved, and allocating the
//! memory takes a sixth of the time. Where the system cannot, or has no huge page left, small ones
//! serve.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::fs::FallocateFlags;

use crate::{MemoryError, sys};

/// Bytes of a huge page; address and place in the file must be multiples of it.
pub(crate) const HUGE_BYTES: usize = 2 << 20;

/// Puts huge pages under a new, empty memory file of `len` bytes, as many whole ones as fit and as
/// there are.
pub(crate) fn back(fd: impl AsFd, len: usize) {
    let whole = len / HUGE_BYTES * HUGE_BYTES;
    if whole == 0 || rustix::fs::ftruncate(&fd, len as u64).is_err() {
        return;
    }
    for at in (0..whole).step_by(HUGE_BYTES) {
        // A range with no page at all is not looked at.
        if rustix::fs::fallocate(&fd, FallocateFlags::empty(), at as u64, sys::PAGE_BYTES as u64).is_err() {
            return;
        }
    }
    // SAFETY: [mapping] a new mapping at an address of the system's choice, which nobody else learns.
    let Ok(base) = (unsafe { sys::map(&fd, None, whole, true) }) else { return };
    for at in (0..whole).step_by(HUGE_BYTES) {
        // SAFETY: [mapping] within the mapping made above.
        let collapsed = unsafe { collapse(base.as_ptr().add(at), HUGE_BYTES) };
        if !collapsed {
            break;
        }
    }
    // SAFETY: [mapping] made above; the pages stay with the file.
    unsafe { sys::unmap(base, whole) };
}

/// An address at which `len` bytes can lie on huge pages and nothing lay a moment ago; null for
/// less than one.
pub(crate) fn hint(len: usize) -> *mut u8 {
    if len < HUGE_BYTES {
        return std::ptr::null_mut();
    }
    let Ok(base) = reserve(len) else { return std::ptr::null_mut() };
    // SAFETY: [mapping] made above; nobody else has the address.
    unsafe { sys::unmap(base, len) };
    base.as_ptr()
}

/// Reserves `len` bytes of address space, inaccessible, that begin at a multiple of a huge page.
pub(crate) fn reserve(len: usize) -> Result<NonNull<u8>, MemoryError> {
    let exhausted = MemoryError::Exhausted { bytes: len, source: rustix::io::Errno::NOMEM };
    let Some(larger) = len.checked_add(HUGE_BYTES) else { return Err(exhausted) };
    // SAFETY: [mapping] a new inaccessible mapping at an address of the system's choice.
    let base = unsafe { sys::map_anonymous(None, larger, false) }?;
    let lead = (base.as_ptr() as usize).next_multiple_of(HUGE_BYTES) - base.as_ptr() as usize;
    // SAFETY: [mapping] both ends of the mapping just made; nobody has their addresses.
    unsafe {
        let kept = base.add(lead);
        if lead > 0 {
            sys::unmap(base, lead);
        }
        if lead < HUGE_BYTES {
            sys::unmap(kept.add(len), HUGE_BYTES - lead);
        }
        Ok(kept)
    }
}

/// `madvise(MADV_COLLAPSE)`; whether it was done. Not in rustix, and the C library's own function
/// may be a hook.
///
/// # Safety
/// The range is a mapping of ours. Its content does not change.
#[cfg(target_arch = "x86_64")]
unsafe fn collapse(at: *mut u8, len: usize) -> bool {
    let mut answer = MADVISE;
    // SAFETY: [mapping] the caller's promise; the system changes the two registers it always does, and no byte of ours.
    unsafe {
        std::arch::asm!("syscall", inout("rax") answer, in("rdi") at, in("rsi") len, in("rdx") COLLAPSE,
            out("rcx") _, out("r11") _, options(nostack));
    }
    answer == 0
}

/// Of other processors the system call's number is not known here.
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn collapse(_at: *mut u8, _len: usize) -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
const MADVISE: isize = 28;
#[cfg(target_arch = "x86_64")]
const COLLAPSE: usize = 25;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Foreign, Reservation, Segment};

    fn lies_well(base: NonNull<u8>) -> bool {
        (base.as_ptr() as usize).is_multiple_of(HUGE_BYTES)
    }

    #[test]
    fn large_memory_lies_where_huge_pages_can_and_holds_what_is_written() {
        // One huge page, two and a bit, and a chunk of a reservation.
        let reservation = Reservation::new(4 << 20, 3).unwrap();
        let [one, more] = [HUGE_BYTES, 2 * HUGE_BYTES + 5000].map(|len| Segment::shared(len).unwrap());
        let chunk = reservation.commit(1).unwrap();
        assert!(lies_well(chunk.base()));
        // Somebody else may map memory at a hint before us, and not over and over.
        let lucky = |_| lies_well(Segment::shared(HUGE_BYTES).unwrap().base());
        assert!((0..1000).any(lucky));
        for segment in [one, more, chunk] {
            let (len, fd) = (segment.len(), segment.fd().unwrap().try_clone_to_owned().unwrap());
            // Every page of it is there: a peer believes nothing else.
            let peer = Foreign::map(fd, len as u64).unwrap();
            let mut whole = segment.carve(len).pop().unwrap();
            assert!(whole.iter().all(|byte| *byte == 0));
            for (at, byte) in whole.iter_mut().enumerate().step_by(4093) {
                *byte = (at / 4093) as u8;
            }
            let mut seen = vec![0; len];
            peer.read(0, &mut seen).unwrap();
            assert!(seen[..] == whole[..]);
        }
    }

    #[test]
    fn a_reserved_range_is_aligned_and_only_it_is_kept() {
        for len in [4096, HUGE_BYTES, 3 * HUGE_BYTES + 4096] {
            let base = reserve(len).unwrap();
            assert!(lies_well(base));
            // SAFETY: [test] reserved above, used by nobody.
            unsafe { sys::unmap(base, len) };
        }
        assert!(reserve(usize::MAX - 4095).is_err());
    }
}
