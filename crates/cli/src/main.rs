//! The `overside` command.
#![forbid(unsafe_code)]

mod files;

fn main() {}
