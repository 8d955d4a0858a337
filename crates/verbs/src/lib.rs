//! Queue pairs, completions and memory regions, as in the InfiniBand specification, over any
//! provider.
//!
//! Two sides meet here:
//!
//! - A *provider* implements [`Provider`] (control: register, listen, connect; may block) and
//!   [`Port`] (data: a completion queue with its queue pairs; one owner, never blocks). What it
//!   owes is written in [`port`], sentence by sentence, and held by the conformance suite.
//! - A *user* has a [`CompletionQueue`], which owns everything in flight: a send's [`View`] and its
//!   hold, a receive's [`Buffer`]. The completion gives back or releases; nothing is sound only
//!   because somebody waited.
//!
//! ```no_run
//! # use std::{sync::Arc, time::Duration, collections::VecDeque};
//! # use overside_verbs::*; use overside_memory::{Segment, View};
//! # fn example(provider: Arc<dyn Provider>) -> Result<(), VerbsError> {
//! let domain = provider.allocate_domain()?;
//! let mut queue = CompletionQueue::new(provider.open_port(&domain, PortOptions::default())?);
//! let link = provider.connect(&domain, "somewhere", Duration::from_secs(1))?;
//! let qp = queue.attach(link)?;
//! let mut buffer = Segment::shared(4096)?.carve(4096).pop().expect("one page");
//! let region = provider.register(&domain, &Memory::Segment(buffer.segment().clone()), Access::LOCAL)?;
//! buffer[..5].copy_from_slice(b"hello");
//! queue.post(qp, &mut VecDeque::from([WorkRequest::send(7, View::prefix(buffer, 5))]))?;
//! let mut done = Vec::new();
//! queue.poll_wait(&mut done, Some(Duration::from_secs(1)))?;
//! assert_eq!((done[0].id, done[0].status), (7, Status::Success));
//! # Ok(()) }
//! ```
//!
//! [`View`]: overside_memory::View
//! [`Buffer`]: overside_memory::Buffer
//!
//! # The way through the files
//!
//! - `port`, `provider`: the contract. `work`, `queue`, `slots`, `reported`: requests, who owns
//!   them, what completed.
//! - `declared`: a region on its way. `bundle` says how whole messages share a SEND, and takes them
//!   apart again. `loan`: a message that is read where it lies.
//! - What providers share: `instance` and `fork` (whose a connection is), `registry` (domains,
//!   keys), `pairs` (queue pairs by index), `spin` (whether to poll before sleeping), `watch`,
//!   `numbers`, `random`.
//! - Who is there: `acceptor`, `admission` (half-open connections), `handshake` (proofs of a
//!   key), `owner` (a peer's user).
//! - `clock`: time, sleep and chance. A test steps it, a simulation draws it from a seed.
//!
//! # Invariants
//!
//! - A posted request owns what it needs until its completion; an error returns it.
//! - Absent on purpose: threads, logging, sockets and files of `std`, since this crate runs inside
//!   a preload library; a `match` on which provider it has.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod acceptor;
mod admission;
mod clock;
pub mod declared;
mod error;
mod fork;
pub mod handshake;
mod instance;
mod loan;
mod numbers;
pub mod owner;
pub mod pairs;
pub mod port;
pub mod probe;
mod provider;
mod queue;
mod random;
mod region;
pub mod registry;
mod reported;
mod slots;
pub mod spin;
pub mod watch;
mod work;

pub use clock::{Clock, SystemClock};
pub use error::VerbsError;
pub use fork::ForkMark;
pub use instance::Instance;
pub use loan::{Lender, Loan, SpareLoan};
pub use numbers::{ByNumber, NumberHasher};
pub use overside_planner::{AtomicScope, Capabilities};
pub use port::{Port, PortEvent};
pub use provider::{Link, Listener, Peer, PortOptions, ProtectionDomain, Provider};
pub use queue::CompletionQueue;
pub use random::random;
pub use region::{Access, Atomic, Memory, MemoryRegion, Readable, Remote, RemoteToken, Right, Writable};
pub use work::{Opcode, QueuePair, Status, WorkCompletion, WorkRequest};
