//! The demo.

mod process;
mod progress;

pub use process::{Process, SUBCOMMAND};
