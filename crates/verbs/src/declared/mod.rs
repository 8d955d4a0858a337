//! Declared regions, as far as a provider has to do with them.
//!
//! A [`Region`] is a shape over memory that stays put. Its messages share requests as far as
//! buffers allow, and the receiver takes them apart again ([`bundle`]). The crate `transfer` sends
//! them.

pub mod bundle;
mod region;

pub use bundle::{Bundle, BundleError, Framing};
pub use region::Region;
