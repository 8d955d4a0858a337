//! Measuring Overside, and showing what was measured: limits of the machine, TPC-H data, verification of scans, charts, the
//! report and the demo.
#![forbid(unsafe_code)]

/// What is measured, for who compares it with others and may depend on this crate alone.
pub use overside;

pub mod baseline;
mod children;
pub mod demo;
pub mod figures;
pub mod limits;
pub mod lineitem;
pub mod measure;
mod meeting;
mod process;
mod progress;
pub mod report;
pub mod svg;
pub mod verify;

pub use children::child_main;
pub use process::SUBCOMMAND;
