//! Connections with their memory and buffers, over any provider.
//!
//! - [`Channel`]: declare a region of memory, see the plan and its prices, send it; receive
//!   messages.
//! - [`Listener`]: waits for channels.
//! - [`Scatter`]: declare what each of several receivers gets of one memory, which is read once.
//!
//! Beneath them:
//!
//! - [`Endpoint`]: one side of connections. It has the protection domain, the completion queue and
//!   every registration, and it knows how each connection ended.
//! - [`Ring`]: its receive buffers, for one queue pair or shared by all.
//! - [`Deadline`]: how long a call may wait.
//! - [`DeclaredSend`]: a region on its way. Fragments are gathered from where they lie, packed into
//!   transmit buffers, or both in one request, as a plan says; messages share requests.
//! - [`SharedSend`]: regions for several destinations at once; what they share is read once.
//!
//! # The way of one send
//!
//! - `channel`, `declared`, `listener`, `scatter`: what a program holds. `sending`, `options`,
//!   `error`: prices, cached plans, transmit buffers, what is missing at a deadline.
//! - `send`, `cut`: a plan carried out. Fragments are gathered or packed; whole messages share a
//!   SEND as far as bytes and entries allow. Where the provider carries regions out at the other
//!   end, all messages are one request.
//! - `shared`: regions of several destinations, tile by tile, so that memory is read once.
//! - `endpoint`, `ring`, `deadline`: the domain and its queue; receive buffers; how long a call may
//!   wait.
//!
//! # Invariants
//!
//! - Every wait has a deadline. Time comes from the provider's clock.
//! - A send that found no room before its deadline is kept, and goes on with the next send or
//!   flush.
//! - Ends of connections are kept until they are asked for.
//! - Absent on purpose: threads, logging, sockets and files of `std`; unsafe code; providers'
//!   names.
#![forbid(unsafe_code)]

mod channel;
mod cut;
mod deadline;
mod declared;
mod endpoint;
mod error;
mod listener;
mod options;
mod ring;
mod scatter;
mod send;
mod sending;
mod shared;

pub use channel::{Batch, Channel, Message};
pub use deadline::Deadline;
pub use declared::Declared;
pub use endpoint::{Builder, Ended, Endpoint};
pub use error::{DeclareError, Error, Missing};
pub use listener::Listener;
pub use options::{Buffers, Options};
pub use overside_verbs::declared::{Bundle, BundleError, Region};
pub use ring::{Ring, RingOptions};
pub use scatter::Scatter;
pub use send::DeclaredSend;
pub use sending::Sending;
pub use shared::{Balance, Destination, SharedSend, SharedTerms, Sharing};
