//! What a device can do, what things cost on it, and which way of sending is cheapest.
//!
//! Pure: no I/O, no clock, no memory. A [`Profile`] comes from a calibration that its caller ran. A
//! [`Planner`] prices every way of sending a shape by it ([`Planner::plan`]). What its caller has
//! laid out itself, such as a page of a table, is a [`Draft`], priced by the same curves and
//! weighed in the same way; [`Plan::cheapest`] chooses among drafts. The crate knows shapes and
//! devices, and no tables.
//!
//! A price is a straight line between two measured lengths; [`Bends`] has the points.
//!
//! # The way of one plan
//!
//! - `capabilities`, `profile`, `curve`, `text`: what a provider can do, what things cost, as text.
//! - `tally`: a shape's fragments, counted once by ranges of lengths within which no curve bends.
//! - `tables`, `packing`, `division`, `view`, `planner`: every way and every threshold priced from
//!   that count; the choice. A plan says from which length on fragments are gathered, and no more.
//! - `together`: several destinations' shapes over one memory. `cache`: plans of shapes sent again.
//! - `plan`, `draft`: goals, the cheapest of several, a way that the caller laid out itself.
//! - `boxes`: fewer, larger reads across gaps, for the model of a NIC.
//!
//! Pure: the same inputs give the same plan. Absent on purpose: tables, providers' names, and size
//! constants that decide. docs/design/007-prices.md has the reasons for each price.
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
pub use view::{Force, Method, PlanError, Terms, ViewPlan};
