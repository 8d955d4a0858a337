//! How programs that know nothing of this project reach a device.

pub mod fuse;
pub mod nbd;
mod room;
mod routed;
pub mod ublk;
mod wakes;
