//! The copies themselves.
//!
//! Every kernel is opaque to the compiler (inline assembly, or volatile words where there is
//! none), so [`copy_racing`] may read memory that another process is writing: it yields some
//! bytes, never undefined behaviour. Which kernel is fastest depends on the machine; the
//! `limits` of the bench crate measure them all.

/// A way to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// The C library's `memcpy`.
    Libc,
    /// `rep movsb`: the processor's own copy loop.
    RepMovsb,
    /// 32-byte loads and stores.
    Avx2,
    /// 32-byte loads and stores past the cache. Worth it for what nobody reads soon.
    Streaming,
    /// `rep movsb` piece by piece, asking for what lies some pieces further on.
    Ahead,
}

impl Kernel {
    /// Every kernel this processor can run.
    pub fn available() -> Vec<Kernel> {
        let mut out = vec![Kernel::Libc];
        if cfg!(target_arch = "x86_64") {
            out.extend([Kernel::RepMovsb, Kernel::Ahead]);
            if has_avx2() {
                out.extend([Kernel::Avx2, Kernel::Streaming]);
            }
        }
        out
    }
}

/// Copies `source` over the start of `target` with the given kernel (the nearest available one).
///
/// # Panics
/// When `target` is shorter than `source`.
pub fn copy(kernel: Kernel, target: &mut [u8], source: &[u8]) {
    assert!(target.len() >= source.len());
    let (to, from, len) = (target.as_mut_ptr(), source.as_ptr(), source.len());
    // SAFETY: [kernel] two live slices; `&mut` proves that they are disjoint.
    unsafe {
        match kernel {
            Kernel::Libc => std::ptr::copy_nonoverlapping(from, to, len),
            Kernel::RepMovsb => rep_movsb(to, from, len),
            Kernel::Avx2 if has_avx2() => avx2::<false>(to, from, len),
            Kernel::Streaming if has_avx2() => avx2::<true>(to, from, len),
            // Chunks of a longer range are copied one after another: what lies behind this one is next.
            Kernel::Ahead => pieces(to, from, len, from.wrapping_add(len)),
            Kernel::Avx2 | Kernel::Streaming => std::ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

/// Copies `len` bytes of which either side may change meanwhile.
///
/// # Safety
/// Both ranges are mapped, readable and writable respectively, and disjoint.
#[inline]
pub unsafe fn copy_racing(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: [kernel] the caller's promise.
    unsafe {
        if len <= SMALL_BYTES {
            small(to, from, len);
        } else if has_avx2() && len < REP_BYTES {
            avx2::<false>(to, from, len);
        } else {
            rep_movsb(to, from, len);
        }
    }
}

/// As [`copy_racing`], where what begins at `then` is copied next, if that is not null: any address
/// is allowed. Long ranges ask ahead: that takes a fifth off the copy on one make of processor, and
/// costs nothing on the other that was measured (docs/design/011-scans.md).
///
/// # Safety
/// As [`copy_racing`].
#[inline]
pub unsafe fn copy_racing_ahead(to: *mut u8, from: *const u8, len: usize, then: *const u8) {
    // SAFETY: [kernel] the caller's promise.
    unsafe {
        if len >= REP_BYTES {
            pieces(to, from, len, then);
        } else {
            copy_racing(to, from, len);
        }
    }
}

/// Copies piece by piece, and asks for the lines of the piece that comes [`AHEAD_BYTES`] later;
/// behind the end for those at `then`.
///
/// It asks for each line twice. The first time is into a cache that is not the nearest,
/// [`FAR_BYTES`] earlier but no more than `len`, for what is at `then` may be no longer than this.
/// The processor's own prefetcher brings more lines at once than there may be asked for. But it
/// begins anew with every range that does not lie right behind the one before.
///
/// # Safety
/// As [`copy_racing`].
unsafe fn pieces(to: *mut u8, from: *const u8, len: usize, then: *const u8) {
    let mut done = 0;
    while done < len {
        let piece = (len - done).min(PIECE_BYTES);
        let place = |ahead: usize| match ahead.checked_sub(len) {
            None => from.wrapping_add(ahead),
            Some(_) if then.is_null() => from,
            Some(behind) => then.wrapping_add(behind),
        };
        let (near, far) = (place(done + AHEAD_BYTES), place(done + len.min(FAR_BYTES)));
        for line in (0..piece).step_by(LINE_BYTES) {
            prefetch_far(far.wrapping_add(line));
            prefetch(near.wrapping_add(line));
        }
        // SAFETY: [kernel] `done + piece <= len`.
        unsafe { rep_movsb(to.add(done), from.add(done), piece) };
        done += piece;
    }
}

/// Asks the processor to fetch the cache line at `address`. Any address is allowed.
#[inline]
pub fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: [kernel] a prefetch never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks for the lines of a range that will be copied in some while, up to [`RANGE_LINES`]; how many
/// that are. The processor's own prefetcher finds out a long range by itself, a short one is over
/// before. Any address is allowed.
#[inline]
pub fn prefetch_range(start: *const u8, len: usize) -> usize {
    let reach = len.clamp(1, RANGE_LINES * LINE_BYTES);
    (0..reach).step_by(LINE_BYTES).for_each(|at| prefetch(start.wrapping_add(at)));
    // It may begin in the middle of one line and end in that of the next.
    prefetch(start.wrapping_add(reach - 1));
    lines_of(len)
}

/// The lines that [`prefetch_range`] asks for.
#[inline]
pub fn lines_of(len: usize) -> usize {
    len.min(RANGE_LINES * LINE_BYTES).div_ceil(LINE_BYTES)
}

/// As [`prefetch`], into the second-level cache.
#[inline]
pub fn prefetch_far(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: [kernel] a prefetch never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T2 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks the processor for the cache line at `address` as one that will be written. Any address is
/// allowed.
#[inline]
pub fn prefetch_to_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: [kernel] a prefetch never faults, and processors of 64 bits without this one take it for nothing. The compiler's own
    // intrinsic asks for reading unless the feature is on for the whole function.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[inline]
fn has_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// # Safety
/// As [`copy_racing`].
#[inline]
unsafe fn small(mut to: *mut u8, mut from: *const u8, mut len: usize) {
    // SAFETY: [kernel] every access lies below `len`.
    unsafe {
        while len > 64 {
            vectors(to, from, 64);
            (to, from, len) = (to.add(64), from.add(64), len - 64);
        }
        match len {
            16.. => vectors(to, from, len),
            8.. => overlapping::<Unaligned<u64>>(to, from, len, 8),
            4.. => overlapping::<Unaligned<u32>>(to, from, len, 4),
            _ => (0..len).for_each(|at| to.add(at).write_volatile(from.add(at).read_volatile())),
        }
    }
}

/// 16 to 64 bytes by vectors, of which the last two may lie over the first: no loop, and no branch
/// but one.
///
/// # Safety
/// As [`copy_racing`]; `len` is 16 to 64.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn vectors(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: [kernel] every access lies below `len`; SSE2 is part of the architecture.
    unsafe {
        if len <= 32 {
            std::arch::asm!(
                "movdqu xmm0, [{f}]", "movdqu xmm1, [{f} + {n} - 16]", "movdqu [{t}], xmm0", "movdqu [{t} + {n} - 16], xmm1",
                f = in(reg) from, t = in(reg) to, n = in(reg) len, out("xmm0") _, out("xmm1") _,
                options(nostack, preserves_flags));
        } else {
            std::arch::asm!(
                "movdqu xmm0, [{f}]", "movdqu xmm1, [{f} + 16]",
                "movdqu xmm2, [{f} + {n} - 32]", "movdqu xmm3, [{f} + {n} - 16]",
                "movdqu [{t}], xmm0", "movdqu [{t} + 16], xmm1",
                "movdqu [{t} + {n} - 32], xmm2", "movdqu [{t} + {n} - 16], xmm3",
                f = in(reg) from, t = in(reg) to, n = in(reg) len,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, options(nostack, preserves_flags));
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn vectors(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: [kernel] every access lies below `len`.
    unsafe {
        (0..len / 8).for_each(|i| overlapping::<Unaligned<u64>>(to.add(i * 8), from.add(i * 8), 8, 8));
        overlapping::<Unaligned<u64>>(to, from, len, 8);
    }
}

/// The first and the last `bytes` bytes, which are those of a `T` and together all.
///
/// # Safety
/// As [`copy_racing`]; `len` is at least `bytes`.
#[inline]
unsafe fn overlapping<T>(to: *mut u8, from: *const u8, len: usize, bytes: usize) {
    // SAFETY: [kernel] both lie below `len`; volatile, so a racing writer is harmless.
    unsafe {
        let (first, last) = (from.cast::<T>().read_volatile(), from.add(len - bytes).cast::<T>().read_volatile());
        to.cast::<T>().write_volatile(first);
        to.add(len - bytes).cast::<T>().write_volatile(last);
    }
}

/// A word at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned<T>(T);

#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn rep_movsb(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: [kernel] the caller's ranges; the direction flag is clear by the ABI.
    unsafe {
        std::arch::asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn rep_movsb(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: [kernel] the caller's ranges.
    unsafe { small(to, from, len) }
}

/// 128 bytes a turn, the rest by words. With `STREAM`, stores bypass the cache (32-byte aligned
/// targets only).
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn avx2<const STREAM: bool>(mut to: *mut u8, mut from: *const u8, mut len: usize) {
    let turns = len / 128;
    if turns > 0 {
        let stream = STREAM && (to as usize).is_multiple_of(32);
        // SAFETY: [kernel] `turns` * 128 <= len; AVX2 was detected by the caller.
        unsafe {
            if stream {
                std::arch::asm!(
                    "2:", "vmovdqu ymm0, [{f}]", "vmovdqu ymm1, [{f} + 32]", "vmovdqu ymm2, [{f} + 64]", "vmovdqu ymm3, [{f} + 96]",
                    "vmovntdq [{t}], ymm0", "vmovntdq [{t} + 32], ymm1", "vmovntdq [{t} + 64], ymm2", "vmovntdq [{t} + 96], ymm3",
                    "add {f}, 128", "add {t}, 128", "dec {n}", "jnz 2b", "sfence", "vzeroupper",
                    f = inout(reg) from, t = inout(reg) to, n = inout(reg) turns => _,
                    out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, options(nostack));
            } else {
                std::arch::asm!(
                    "2:", "vmovdqu ymm0, [{f}]", "vmovdqu ymm1, [{f} + 32]", "vmovdqu ymm2, [{f} + 64]", "vmovdqu ymm3, [{f} + 96]",
                    "vmovdqu [{t}], ymm0", "vmovdqu [{t} + 32], ymm1", "vmovdqu [{t} + 64], ymm2", "vmovdqu [{t} + 96], ymm3",
                    "add {f}, 128", "add {t}, 128", "dec {n}", "jnz 2b", "vzeroupper",
                    f = inout(reg) from, t = inout(reg) to, n = inout(reg) turns => _,
                    out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, options(nostack));
            }
        }
        len %= 128;
    }
    // SAFETY: [kernel] the assembly moved both pointers past what it copied.
    unsafe { small(to, from, len) }
    let _ = (&mut to, &mut from);
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn avx2<const STREAM: bool>(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: [kernel] the caller's ranges.
    unsafe { small(to, from, len) }
}

/// Up to here plain words win over starting a loop.
const SMALL_BYTES: usize = 64;
/// From here the processor's own loop is taken. Measured: docs/design/012-packing.md.
const REP_BYTES: usize = 2048;
/// Of [`Kernel::Ahead`]: shorter pieces cost more beginnings, longer ones ask for more lines at
/// once than the processor remembers.
const PIECE_BYTES: usize = 1024;
/// How far ahead it asks. 4 to 8 KiB come to the same.
pub const AHEAD_BYTES: usize = 4096;
/// How far ahead it asks for the first time.
const FAR_BYTES: usize = 16 << 10;
const LINE_BYTES: usize = 64;
/// Lines of a range that are asked for.
const RANGE_LINES: usize = 64;
/// Lines of scattered ranges that are best asked for ahead at once, of one range at least. Fewer do
/// not come in time. More than the nearest cache holds in addition to what is copied are gone again
/// (docs/design/012-packing.md).
pub const LINES_AHEAD: usize = 128;
/// Scattered ranges that are asked for ahead at once at most.
pub const RANGES_AHEAD: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_copies_every_length_and_no_more() {
        let source: Vec<u8> = (0..5000u32).map(|i| (i * 31) as u8).collect();
        for len in (0..300).chain([511, 512, 2047, 2048, 2049, 4096, 4999]) {
            for skew in [0, 1, 13] {
                let mut racing = vec![0xEE; len + skew + 1];
                // SAFETY: [kernel] disjoint vectors with room.
                unsafe { copy_racing(racing.as_mut_ptr().add(skew), source.as_ptr().add(1), len) };
                assert_eq!(&racing[skew..skew + len], &source[1..1 + len]);
                assert_eq!(racing[skew + len], 0xEE, "one past the end, len {len}");
                for then in [std::ptr::null(), source.as_ptr().wrapping_add(4990)] {
                    racing.fill(0xEE);
                    // SAFETY: [kernel] disjoint vectors with room.
                    unsafe { copy_racing_ahead(racing.as_mut_ptr().add(skew), source.as_ptr().add(1), len, then) };
                    assert_eq!(&racing[skew..skew + len], &source[1..1 + len]);
                    assert!(racing[..skew].iter().chain(&racing[skew + len..]).all(|byte| *byte == 0xEE), "len {len}");
                }
                for kernel in Kernel::available() {
                    let mut target = vec![0xEE; len + skew + 1];
                    copy(kernel, &mut target[skew..], &source[..len]);
                    assert_eq!(&target[skew..skew + len], &source[..len], "{kernel:?} {len}");
                    assert_eq!(target[skew + len], 0xEE, "{kernel:?} {len}");
                }
            }
        }
    }
}
