//! A volume of a node as a device: each request is carried out once, in order where it matters,
//! whatever happens to connections and to the node (DSA).
//!
//! - It never has more in flight than the node gave credits for, by number and by bytes.
//! - It never has two requests in flight that overlap and of which one writes. So neither connections
//!   nor replays can reorder them.
//! - When the connection ends, or a request takes too long, it connects again with a new generation of
//!   its session and asks again for all that is unanswered. A node that lived answers from memory what
//!   it had done. I/O waits meanwhile, as long as it may.

mod connection;
mod handle;
mod link;
mod volume;

pub use handle::LinkHandle;
pub use link::{Link, LinkError, LinkOptions};
pub use volume::Volume;
