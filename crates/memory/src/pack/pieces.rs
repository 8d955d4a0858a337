//! Runs anywhere.

use overside_shape::Run;

use super::copy::run;
use super::kernel::PackKernel;
use crate::kernels::{LINES_AHEAD, RANGES_AHEAD, lines_of, prefetch_range};

/// Packs one run after another. The lines of the next ones are asked for meanwhile: what lies
/// anywhere is met in no cache, and its page's address in no table of the processor's.
///
/// # Safety
/// Each run lies in memory readable from `base`; `out` has room for all and is disjoint; the kernel
/// was detected.
pub(super) unsafe fn pieces(
    kernel: PackKernel,
    base: *const u8,
    mut runs: impl Iterator<Item = Run>,
    mut out: *mut u8,
) {
    // Those that were asked for, from `packed` to `known`, and their lines.
    let mut asked = [Run::new(0, 0); RANGES_AHEAD];
    let (mut packed, mut known, mut lines) = (0usize, 0usize, 0);
    loop {
        while known < packed + RANGES_AHEAD && lines < LINES_AHEAD {
            let Some(new) = runs.next() else { break };
            lines += prefetch_range(base.wrapping_add(new.at as usize), new.len as usize);
            asked[known % RANGES_AHEAD] = new;
            known += 1;
        }
        if packed == known {
            return;
        }
        let oldest = asked[packed % RANGES_AHEAD];
        packed += 1;
        lines -= lines_of(oldest.len as usize);
        // SAFETY: [pack] the caller's promise.
        unsafe {
            run(kernel, out, base.add(oldest.at as usize), oldest.len as usize);
            out = out.add(oldest.len as usize);
        }
    }
}
