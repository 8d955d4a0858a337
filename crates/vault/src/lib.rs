//! A storage node: volumes on this host's disks, served to others (vi-attached-storage §2.1).
//!
//! | module | what |
//! |---|---|
//! | [`cache`] | a device over a device that keeps blocks in memory, by one of seven policies |
//! | [`files`] | files on a volume: which has which bytes |
//! | [`fronts`] | devices for programs that know nothing of this project: NBD, FUSE, ublk |
//! | [`home`] | where volumes are written down: a folder, and superblocks on members |
//! | [`members`] | what a volume lies on: files, memory |
//! | [`server`] | volumes served: sessions, credits, each request once |
//! | [`trace`] | traces of requests, and what each policy makes of them |
//!
//! Time, threads and disks come from traits, so that a simulation can run a node.
#![forbid(unsafe_code)]

pub mod cache;
pub mod files;
pub mod fronts;
pub mod home;
pub mod members;
pub mod server;
pub mod trace;
