//! Runs anywhere.

use overside_shape::Run;

use super::copy::run;
use super::kernel::PackKernel;
use crate::kernels::prefetch;

/// Packs one run after another. The first lines of the next ones are asked for meanwhile: what lies anywhere is met in no
/// cache, and its page's address in no table of the processor's.
///
/// # Safety
/// Each run lies in memory readable from `base`; `out` has room for all and is disjoint; the kernel was detected.
pub(super) unsafe fn pieces(kernel: PackKernel, base: *const u8, runs: impl Iterator<Item = Run>, mut out: *mut u8) {
    let mut ring = [Run::new(0, 0); AHEAD];
    let (mut next, mut waiting) = (0, 0);
    for new in runs {
        fetch(base, new);
        let oldest = std::mem::replace(&mut ring[next], new);
        (next, waiting) = ((next + 1) % AHEAD, (waiting + 1).min(AHEAD));
        // SAFETY: [pack] the caller's promise; what the ring began with is empty.
        unsafe {
            run(kernel, out, base.add(oldest.at as usize), oldest.len as usize);
            out = out.add(oldest.len as usize);
        }
    }
    for at in next + AHEAD - waiting..next + AHEAD {
        let rest = ring[at % AHEAD];
        // SAFETY: [pack] as above.
        unsafe {
            run(kernel, out, base.add(rest.at as usize), rest.len as usize);
            out = out.add(rest.len as usize);
        }
    }
}

/// Asks for the first lines of a run, and where it is short for its last.
#[inline]
fn fetch(base: *const u8, run: Run) {
    let (start, reach) = (base.wrapping_add(run.at as usize), run.len.clamp(1, LINES_AHEAD * 64) as usize);
    (0..reach).step_by(64).for_each(|byte| prefetch(start.wrapping_add(byte)));
    prefetch(start.wrapping_add(reach - 1));
}

/// How many runs ahead are fetched.
const AHEAD: usize = 16;
/// Lines of a run that are fetched ahead; the processor finds the others itself.
const LINES_AHEAD: u64 = 4;
