//! A storage node: volumes on this host's disks, served to others (vi-attached-storage §2.1).
//!
//! | module | what |
//! |---|---|
//! | [`home`] | where volumes are written down: a folder, and superblocks on members |
//! | [`members`] | what a volume lies on: files, memory |
//! | [`server`] | volumes served: sessions, credits, each request once |
//!
//! Time, threads and disks come from traits, so that a simulation can run a node.
#![forbid(unsafe_code)]

pub mod home;
pub mod members;
pub mod server;
