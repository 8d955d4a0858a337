//! The demo.

mod process;
mod progress;
mod updates;

pub use process::{Process, SUBCOMMAND};
