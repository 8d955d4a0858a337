//! A server without threads, for counting what it does; and what a server runs in, for simulations.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use overside_bwtree::Waits;
use overside_disk::Disk;
use overside_service::{SystemThreads, Threads};
use overside_verbs::{Provider, VerbsError};

use super::durable::Keeper;
use super::session::Tables;
use super::{ListenerConfig, Prepared, Server, ServerOptions, StartError};

/// What a server runs in, apart from its providers' clock: the operating system, or a simulation.
#[derive(Clone, Debug)]
pub struct World {
    /// Starts the server's threads.
    pub threads: Arc<dyn Threads>,
    /// How its trees wait; the system's way where it is none.
    pub waits: Option<&'static dyn Waits>,
    /// Bytes of a tree's page; a tree's own default where it is none.
    pub page_bytes: Option<usize>,
    /// What opens the directory of its data; the system's files where it is none.
    pub disk: Option<OpenDisk>,
    /// Bytes of a segment of its log; the usual ones where it is none.
    pub log_segment_bytes: Option<u64>,
    /// Bytes of a checkpoint that are read and written together; the usual ones where it is none.
    pub checkpoint_part_bytes: Option<usize>,
    /// Bytes a second that a checkpoint may write in any case; the usual ones where it is none.
    pub pace_min: Option<u64>,
}

/// Opens the directory of a server's data.
#[derive(Clone)]
pub struct OpenDisk(Arc<Opens>);

type Opens = dyn Fn(&Path) -> io::Result<Box<dyn Disk>> + Send + Sync;

impl OpenDisk {
    /// `open` does.
    pub fn new(open: impl Fn(&Path) -> io::Result<Box<dyn Disk>> + Send + Sync + 'static) -> OpenDisk {
        OpenDisk(Arc::new(open))
    }

    pub(super) fn open(&self, path: &Path) -> io::Result<Box<dyn Disk>> {
        (self.0)(path)
    }
}

impl fmt::Debug for OpenDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenDisk").finish_non_exhaustive()
    }
}

impl Default for World {
    fn default() -> Self {
        Self {
            threads: Arc::new(SystemThreads),
            waits: None,
            page_bytes: None,
            disk: None,
            log_segment_bytes: None,
            checkpoint_part_bytes: None,
            pace_min: None,
        }
    }
}

/// A server that does something when it is told to, on the thread that tells it.
#[derive(Debug)]
pub struct Stepped {
    service: overside_service::Stepped<Tables>,
    _keeper: Option<Keeper>,
}

impl Stepped {
    /// Listens at `name`.
    ///
    /// # Errors
    /// As [`Server::start`](super::Server::start).
    pub fn start(provider: Arc<dyn Provider>, name: &str, options: &ServerOptions) -> Result<Stepped, StartError> {
        let listener = ListenerConfig { provider, names: vec![name.to_owned()], profile: None };
        let recovered = Server::recover(vec![listener], options.clone())?;
        let Prepared { store, mut served, keeper, .. } = recovered.prepared()?;
        let (listening, tables) = served.pop().ok_or(VerbsError::Closed)?;
        let service = overside_service::Stepped::start(listening, tables, options.service(store.journal()))?;
        Ok(Stepped { service, _keeper: keeper })
    }

    /// Lets clients in for as long as `patience`.
    pub fn greet(&mut self, patience: Duration) {
        self.service.greet(patience);
    }

    /// One round of its worker, without a wait; false when there was nothing to do.
    pub fn step(&mut self) -> bool {
        self.service.step()
    }
}
