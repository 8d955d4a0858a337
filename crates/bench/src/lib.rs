//! Measuring Overside, and showing what was measured: limits of the machine, TPC-H data,
//! verification of scans, charts, the report and the demo.
//!
//! # The way of one figure
//!
//! - `figures`: a file for each; `sender` and `receiver` are processes of their own. `process`,
//!   `children` and the rendezvous beside them: where they meet, and what they do.
//! - `measure`: paired rounds, medians, intervals, processor time. `limits`, `baseline`: what the
//!   machine and hand-written code can do.
//! - `lineitem`, `verify`, `demo`: rows that carry version and checksum, held against the log of
//!   updates.
//! - `report`, `svg`: data, terminal table, JSON and page.
//!
//! # Invariants
//!
//! - Nothing is verified or drawn while time is taken.
//! - A report loads nothing from elsewhere.
//! - A child ends when its parent does.
//! - A paper's point stands in `data/papers.json` and nowhere else.
#![forbid(unsafe_code)]

/// What is measured, for who compares it with others and may depend on this crate alone.
pub use overside;
pub use overside_evidence::SplitMix64;

pub mod baseline;
mod children;
pub mod demo;
pub mod figures;
pub mod limits;
pub mod lineitem;
pub mod measure;
mod process;
mod progress;
mod rendezvous;
pub mod report;
pub mod svg;
pub mod verify;

pub use children::child_main;
pub use process::SUBCOMMAND;
