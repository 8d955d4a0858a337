//! What measurements say: medians, intervals and bars.
#![forbid(unsafe_code)]

mod bars;
mod stats;

pub use bars::{Bar, Verdict};
pub use stats::{BestOf, Ratio, Spread, best_of, median};
