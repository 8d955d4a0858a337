//! A peer that shakes hands properly and then does what no peer does. In every case the victim
//! lives, its other connections work, and what it posted comes back.

#[path = "../ends/mod.rs"]
mod ends;
mod handshake;
mod loans;
mod passing;
mod raw;
mod regions;
mod ring;
mod socket;
