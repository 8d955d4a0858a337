//! Overside: declare what to send, and it is sent in the way that is cheapest on this device.
//!
//! The parts, by their names in docs/ARCHITECTURE.md.
#![forbid(unsafe_code)]

pub use overside_bwtree as bwtree;
pub use overside_memory as memory;
pub use overside_planner as planner;
pub use overside_shape as shape;
pub use overside_table as table;
pub use overside_verbs as verbs;
