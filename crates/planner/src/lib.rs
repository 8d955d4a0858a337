//! What a device can do, what things cost on it, and which way of sending is cheapest.
//!
//! Pure: no I/O, no clock, no memory. A [`Profile`] comes from a calibration that its caller ran. A
//! [`Planner`] prices every way of sending a shape by it ([`Planner::plan`]). What its caller has
//! laid out itself, such as a page of a table, is a [`Draft`], priced by the same curves and weighed
//! in the same way; [`Plan::cheapest`] chooses among drafts. The crate knows shapes and devices, and
//! no tables.
//!
//! A price is a straight line between two measured lengths; [`Bends`] has the points.
#![forbid(unsafe_code)]

mod boxes;
mod cache;
mod capabilities;
mod curve;
mod division;
mod draft;
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
pub use draft::Draft;
pub use plan::{Goal, Plan, Price};
pub use planner::Planner;
pub use profile::{Bends, Distance, Profile};
pub use text::ProfileError;
pub use view::{Force, PlanError, Terms, ViewPlan, Way};
