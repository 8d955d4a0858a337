//! How programs that know nothing of this project reach a device.

pub mod nbd;
