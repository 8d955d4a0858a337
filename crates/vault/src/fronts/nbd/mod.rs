//! Devices for clients that speak NBD: fio, qemu, the kernel's own client.
//!
//! Newstyle negotiation over a Unix socket that only this user may open. One thread owns the
//! devices and all connections, and sleeps when there is nothing to do. A WRITE's bytes are
//! received into the buffer that the device gets; a READ's are sent from where the device put them.
//!
//! | in the order of a request | file |
//! |---|---|
//! | the socket's file | `place` |
//! | messages as bytes; pure | `wire` |
//! | options, up to the first request; pure | `negotiation` |
//! | one client: what it may make this side keep, its requests and replies | `connection` |
//! | the loop over connections and devices | `server` |
//!
//! Memory for blocks (`room`) and whom a device's answers are for (`routed`) are every front's.
//!
//! FLUSH goes to the one device of the export, so it covers every connection. Devices do not say
//! which blocks hold nothing, so block status calls all of them allocated. Zeros are written, so a
//! request for fast zeros is refused as the protocol says.

mod connection;
mod hostile;
mod negotiation;
mod server;
mod socket_file;
mod wire;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use overside_verbs::VerbsError;
use overside_volume::Device;
use overside_volume::wire::Role;

use crate::fronts::wakes::PATIENCE;
use crate::server::{NoDoor, Node};

#[doc(hidden)]
pub use hostile::{fuzz_nbd, seeds_nbd};
pub use server::{NbdServer, NbdSocket};

/// What a server exports.
pub trait Exports: Send + fmt::Debug {
    /// The names of all exports.
    fn names(&self) -> Vec<String>;

    /// Opens an export: somebody asks for it, and nobody uses it yet.
    ///
    /// # Errors
    /// Why not.
    fn open(&mut self, name: &str) -> Result<Box<dyn Device>, NotOpened>;

    /// Nobody uses the export any more. Nothing is under way, unless the server was stopped.
    fn close(&mut self, name: &str, device: Box<dyn Device>);

    /// Whether devices are opened at once, and stay open while nobody uses them.
    fn keeps_open(&self) -> bool {
        false
    }
}

/// Why an export is not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotOpened {
    /// There is none of this name.
    Unknown,
    /// There is one; the text says what is in the way, and what to do.
    Refused(String),
}

/// One export, whose device is open all the time.
#[derive(Debug)]
pub struct OneExport {
    name: String,
    device: Option<Box<dyn Device>>,
}

impl OneExport {
    /// A device under a name.
    pub fn new(name: &str, device: Box<dyn Device>) -> OneExport {
        OneExport { name: name.to_owned(), device: Some(device) }
    }
}

impl Exports for OneExport {
    fn names(&self) -> Vec<String> {
        vec![self.name.clone()]
    }

    fn open(&mut self, name: &str) -> Result<Box<dyn Device>, NotOpened> {
        if name == self.name { self.device.take().ok_or(NotOpened::Unknown) } else { Err(NotOpened::Unknown) }
    }

    fn close(&mut self, _name: &str, device: Box<dyn Device>) {
        self.device = Some(device);
    }

    fn keeps_open(&self) -> bool {
        true
    }
}

/// The volumes of this process' node. Each is attached while somebody uses it.
#[derive(Debug)]
pub struct NodeExports {
    node: Arc<Node>,
}

impl NodeExports {
    /// All that the node serves, now and later.
    pub fn new(node: Arc<Node>) -> NodeExports {
        NodeExports { node }
    }
}

impl Exports for NodeExports {
    fn names(&self) -> Vec<String> {
        self.node.names()
    }

    fn open(&mut self, name: &str) -> Result<Box<dyn Device>, NotOpened> {
        match self.node.door(name, Role::Writer) {
            Ok(door) => Ok(Box::new(door)),
            Err(NoDoor::Unknown) => Err(NotOpened::Unknown),
            Err(why) => Err(NotOpened::Refused(why.to_string())),
        }
    }

    fn close(&mut self, _name: &str, device: Box<dyn Device>) {
        drop(device);
    }
}

/// How an NBD server is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdOptions {
    /// Connections at once; one more is turned away. Each may hold up to 48 MiB.
    pub connections_max: usize,
    /// How long a client may take until it has chosen an export. One that says nothing would
    /// keep its place for ever.
    pub greeting: Duration,
    /// How long requests may take that are under way when it is stopped.
    pub patience: Duration,
}

impl Default for NbdOptions {
    fn default() -> Self {
        NbdOptions { connections_max: 16, greeting: Duration::from_secs(30), patience: PATIENCE }
    }
}

/// Why a server cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// The socket's file cannot be made.
    #[error("{}: {source}", path.display())]
    Path {
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The system refuses.
    #[error(transparent)]
    System(#[from] VerbsError),
}
