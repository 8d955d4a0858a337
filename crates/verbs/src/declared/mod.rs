//! Declared sends: what is to be sent is a region, how is a plan.
//!
//! A [`Region`] is a shape over memory that stays put. [`DeclaredSend`] carries a plan for it out above
//! `CompletionQueue::post`: fragments are gathered from where they lie, packed into transmit buffers, or both
//! in one request, and messages share requests as far as buffers and gather lists allow ([`bundle`]).
//! [`SharedSend`] does so for several destinations at once and reads what they share once.

pub mod bundle;
mod cut;
mod region;
mod send;
mod shared;

pub use bundle::{Bundle, BundleError, Framing};
pub use region::{DeclareError, Region};
pub use send::DeclaredSend;
pub use shared::{Balance, Destination, SharedSend, SharedTerms};
