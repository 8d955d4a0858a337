//! What this machine can do at most: the yardsticks that stand beside every figure.
//!
//! Copies: the best of several kernels, page-aligned, from the same kind of memory as a table's
//! pages lie in. Once as one large copy, and once in chunks of a page into a ring that stays in the
//! cache, with a consumer that reads the same bytes as a scan's ([`Chunks`]). Latency: two threads
//! that spin on two cache lines ([`ping_pong`]).

mod copies;
mod latency;
mod touch;

pub use copies::{Chunks, CopyLimit, CopyLimits, kernel_name};
pub use latency::{PingPong, ping_pong};
pub use touch::{Touched, touch, touch_lent};
