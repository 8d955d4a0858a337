//! Copies of single runs: fixed widths, short ones by overlapping words, long ones by vectors.

use super::kernel::PackKernel;
use super::load::{ends, fixed};
use crate::kernels::copy_racing;

/// Copies a run that is short more often than not.
///
/// # Safety
/// Both ranges are live, `len` long and disjoint.
#[inline(always)]
pub(super) unsafe fn run(kernel: PackKernel, to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: [pack] the two halves cover the range and overlap within it.
    unsafe {
        match len {
            0 => {}
            1 => fixed::<1>(to, from),
            2..4 => ends::<2>(to, from, len),
            4..8 => ends::<4>(to, from, len),
            8..16 => ends::<8>(to, from, len),
            16..=32 => ends::<16>(to, from, len),
            33..=64 => ends::<32>(to, from, len),
            _ => long(kernel, to, from, len),
        }
    }
}

/// Copies more than 64 bytes.
///
/// # Safety
/// As [`run`], with `len > 64`.
#[inline]
pub(super) unsafe fn long(kernel: PackKernel, to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: [pack] the caller's ranges; the kernel was detected.
    unsafe {
        match kernel {
            #[cfg(target_arch = "x86_64")]
            PackKernel::Avx512 => super::x86::copy_avx512(to, from, len),
            #[cfg(target_arch = "x86_64")]
            PackKernel::Avx2 => super::x86::copy_avx2(to, from, len),
            _ => copy_racing(to, from, len),
        }
    }
}
