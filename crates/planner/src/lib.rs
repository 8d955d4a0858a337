//! What a device can do, what things cost on it, and which way of sending is cheapest.
//!
//! Pure: no I/O, no clock, no memory. A [`Profile`] comes from a calibration that somebody
//! else ran; [`plan`] compares [`Alternative`]s, each a description of the work that one way
//! of sending causes at both ends, and answers with a [`Plan`]: what it chose, at what price,
//! and the prices it turned down. It knows regions and devices, and no tables.
//!
//! Costs are linear because devices are (a ConnectX-3, fitted to the figures of to-copy: 0.10 µs a request + 34 ns an
//! SGE + bytes at 5.8 GB/s; copy-out 0.49 µs + bytes at 7.04 GB/s); what bends them (cache
//! sizes) is in [`Profile`]'s steps.
#![forbid(unsafe_code)]

mod boxes;
mod cache;
mod capabilities;
mod curve;
mod division;
mod packing;
mod plan;
mod planner;
mod profile;
mod tables;
mod tally;
mod text;
mod together;
mod view;

pub use boxes::{Boxes, PerByte, PerLine, Separable, bottleneck, capped, separable};
pub use cache::PlanCache;
pub use capabilities::{AtomicScope, Capabilities, ForeignMemory};
pub use curve::{Curve, CurveError, Line};
pub use plan::{Alternative, Goal, Plan, Price, plan};
pub use planner::Planner;
pub use profile::{Bends, Distance, Profile, Work};
pub use text::ProfileError;
pub use view::{Force, PlanError, Terms, ViewPlan, Way};
