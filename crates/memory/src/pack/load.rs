//! Loads from what is packed. A peer may be writing there
//! ([`Foreign::pack`](crate::Foreign::pack)): each load is volatile or assembly, so the compiler
//! makes one of it, assumes nothing of what it brings, and does not bring it again.

/// A value at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned<T: Copy>(T);

/// # Safety
/// The value's bytes are readable.
#[inline(always)]
pub(crate) unsafe fn word<T: Copy>(from: *const u8) -> T {
    // SAFETY: [pack] the caller's promise; any bytes are a value of the integers this is used for.
    unsafe { from.cast::<Unaligned<T>>().read_volatile().0 }
}

/// Copies `W` bytes.
///
/// # Safety
/// Both ranges are live and disjoint; the target is nobody else's.
#[inline(always)]
pub(crate) unsafe fn fixed<const W: usize>(to: *mut u8, from: *const u8) {
    // SAFETY: [pack] the caller's ranges.
    unsafe {
        match W {
            1 => to.write(word(from)),
            2 => to.cast::<u16>().write_unaligned(word(from)),
            3 => ends::<2>(to, from, W),
            4 => to.cast::<u32>().write_unaligned(word(from)),
            5..8 => ends::<4>(to, from, W),
            8 => to.cast::<u64>().write_unaligned(word(from)),
            12 => {
                to.cast::<u64>().write_unaligned(word(from));
                to.add(8).cast::<u32>().write_unaligned(word(from.add(8)));
            }
            9..16 => ends::<8>(to, from, W),
            16 => to.cast::<Sixteen>().write_unaligned(sixteen(from)),
            _ => (0..W).for_each(|at| to.add(at).write(word(from.add(at)))),
        }
    }
}

/// The first and the last `W` bytes of `W` to 2 `W`; `W` is 2, 4, 8, 16 or 32.
///
/// # Safety
/// As [`fixed`], for `len` bytes with `W <= len <= 2 * W`.
#[inline(always)]
pub(super) unsafe fn ends<const W: usize>(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: [pack] both ends lie within; both are read before either is written.
    unsafe {
        let (last, end) = (from.add(len - W), to.add(len - W));
        match W {
            2 => both::<u16>(word(from), word(last), to, end),
            4 => both::<u32>(word(from), word(last), to, end),
            8 => both::<u64>(word(from), word(last), to, end),
            16 => both(sixteen(from), sixteen(last), to, end),
            _ => {
                both([sixteen(from), sixteen(from.add(16))], [sixteen(last), sixteen(last.add(16))], to, end);
            }
        }
    }
}

/// # Safety
/// There is room at both places.
#[inline(always)]
unsafe fn both<T: Copy>(head: T, tail: T, to: *mut u8, end: *mut u8) {
    // SAFETY: [pack] the caller's promise.
    unsafe {
        to.cast::<T>().write_unaligned(head);
        end.cast::<T>().write_unaligned(tail);
    }
}

/// # Safety
/// 16 bytes are readable.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn sixteen(from: *const u8) -> Sixteen {
    let out;
    // SAFETY: [pack] the caller's promise; every processor of this kind has the instruction.
    unsafe {
        std::arch::asm!("movups {out}, [{from}]", out = out(xmm_reg) out, from = in(reg) from,
            options(nostack, preserves_flags, readonly));
    }
    out
}

/// # Safety
/// 16 bytes are readable.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
unsafe fn sixteen(from: *const u8) -> Sixteen {
    // SAFETY: [pack] the caller's promise.
    unsafe { [word(from), word(from.add(8))] }
}

#[cfg(target_arch = "x86_64")]
type Sixteen = std::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
type Sixteen = [u64; 2];
