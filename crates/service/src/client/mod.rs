//! The client's side: one connection, requests out, replies and other messages in.

mod error;
mod link;
mod receive;

pub use error::LinkError;
pub use link::{Link, LinkOptions};
pub use receive::{Arrived, LentMessage, Received};
