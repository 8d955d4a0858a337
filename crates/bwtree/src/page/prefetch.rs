//! Asking for cache lines before they are needed, all at once.

#![allow(unsafe_code)]

/// Asks for the cache lines of `bytes` (at most 32 of them).
#[inline(always)]
pub(crate) fn lines(bytes: &[u8]) {
    at(bytes.as_ptr(), bytes.len().min(32 * LINE));
}

/// Asks for the cache lines of `len` bytes from `from`; nothing is read, so any address will do.
#[inline(always)]
pub(crate) fn at(from: *const u8, len: usize) {
    let mut done = 0;
    while done < len {
        line(from.wrapping_add(done));
        done += LINE;
    }
}

#[inline(always)]
fn line(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: [bwtree-prefetch] a prefetch never faults and changes nothing that a program can see.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

const LINE: usize = 64;
