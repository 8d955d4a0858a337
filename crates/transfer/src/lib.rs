//! Connections with their memory and buffers, over any provider.
//!
//! - [`Endpoint`]: one side of connections. It has the protection domain, the completion queue and
//!   every registration, and it knows how each connection ended.
//! - [`Ring`]: its receive buffers, for one queue pair or shared by all.
//! - [`Deadline`]: how long a call may wait.
//! - [`DeclaredSend`]: a region on its way. Fragments are gathered from where they lie, packed into
//!   transmit buffers, or both in one request, as a plan says; messages share requests.
//! - [`SharedSend`]: regions for several destinations at once; what they share is read once.
#![forbid(unsafe_code)]

mod cut;
mod deadline;
mod endpoint;
mod ring;
mod send;
mod shared;

pub use deadline::Deadline;
pub use endpoint::{Builder, Ended, Endpoint};
pub use overside_verbs::declared::{Bundle, BundleError, DeclareError, Region};
pub use ring::{Ring, RingOptions};
pub use send::DeclaredSend;
pub use shared::{Balance, Destination, SharedSend, SharedTerms};
