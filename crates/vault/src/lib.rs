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
//! # The way of a request
//!
//! A worker of [`server`] takes a message. It finds the client that the message is of, over
//! whatever connection it came, and books the request under its number. What the cache holds of
//! a READ is sent from where it lies. Everything else goes to the volume's device: the cache,
//! under it the array, under it the members. The worker takes what has ended and sends the
//! answer; where no worker waits for the volume, a thread of its own does.
//!
//! # What always holds
//!
//! - A request is carried out once in one life of the node, however often its client sends it.
//!   READs alone may be carried out again.
//! - Nothing of a client's earlier session is admitted once a later one is, and what had been
//!   admitted has ended before.
//! - A block that is being sent is never written: it is replaced. Nor does a client write into
//!   memory of the node.
//! - What is acknowledged is as durable as the way of writing says, and a later life of the
//!   node finds it.
//! - One volume has one writer. Who was fenced off can write no more.
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
