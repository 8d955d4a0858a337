//! Connections with their memory and buffers, over any provider.
//!
//! - [`Endpoint`]: one side of connections. It has the protection domain, the completion queue and
//!   every registration, and it knows how each connection ended.
//! - [`Ring`]: its receive buffers, for one queue pair or shared by all.
//! - [`Deadline`]: how long a call may wait.
#![forbid(unsafe_code)]

mod deadline;
mod endpoint;
mod ring;

pub use deadline::Deadline;
pub use endpoint::{Builder, Ended, Endpoint};
pub use ring::{Ring, RingOptions};
