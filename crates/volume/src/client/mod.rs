//! A volume of a node as a device: each request is carried out once, in order where it matters,
//! whatever happens to connections and to the node (DSA).
//!
//! - It never has more in flight than the node gave credits for, by number and by bytes.
//! - It never has two requests in flight that overlap and of which one writes. So neither
//!   connections nor replays can reorder them.
//! - When the connection ends, or a request takes too long, it connects again with a new generation
//!   of its session and asks again for all that is unanswered. A node that lived answers from
//!   memory what it had done. I/O waits meanwhile, as long as it may. It fails once a node has
//!   refused every try for as long as one request may take.
//! - Of a node that acknowledges writes before they are on stable storage, it keeps a copy of what
//!   no FLUSH has covered. To the next life of the node it writes that again, before anything else:
//!   the power may have gone. At a bound it flushes by itself.

mod connection;
mod files;
mod handle;
mod kept;
mod link;
mod registered;
mod volume;

pub use files::Files;
pub use handle::LinkHandle;
pub use link::{Link, LinkError, LinkOptions, Spare};
pub use registered::Registration;
pub use volume::Volume;
