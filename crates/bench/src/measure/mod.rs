//! Measuring that survives a noisy machine.
//!
//! Sides are alternated within one run ([`alternate`]), summarised by median and quartiles
//! ([`Spread`]) and compared in pairs of the same round ([`Ratio`]), so that drift of the machine
//! hits both alike. "The best of several" is chosen in rounds other than those it is compared in
//! ([`best_of`]): picking the luckiest and comparing against its luck would flatter it. CPU time is
//! nanoseconds of the scheduler's account ([`Cpu`]), never a sampled percentage.

mod cpu;
mod host;
mod rounds;

pub use cpu::{Cpu, CpuError, Split, Switches, elapsed_ns, now_ns};
pub use host::HostTime;
pub use overside_evidence::{Bar, BestOf, Ratio, Spread, Verdict, best_of, median};
pub use rounds::{alternate, rotation};
