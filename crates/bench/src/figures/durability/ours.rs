//! Overside's side of a comparison with other stores, for who may depend on this crate alone.

use super::{CLIENTS, DurableServer, ROWS, folder::DataFolder};
use crate::figures::{
    Keeper, Over,
    tables::{
        clients::{BATCH_ROWS, Work, fresh},
        server::{Kept, VALUE_BYTES},
    },
};
use anyhow::Result;
use overside::table::wire::Durability;
use overside_evidence::SplitMix64;
use std::path::Path;

/// A folder for all stores of a comparison, which is cleared away with their servers whatever
/// becomes of this process.
pub struct Testbed {
    place: DataFolder,
}

/// Our server, in one durability, with its clients.
pub struct Ours {
    side: DurableServer,
}

/// Batches that clients put for some time, one under way each.
#[derive(Clone, Copy, Debug)]
pub struct Batches {
    /// Rows that were acknowledged.
    pub rows: u64,
    /// How long it took.
    pub wall_ns: u64,
    /// Processor time of all processes.
    pub cpu_ns: u64,
}

/// Keys and values as our clients have them, from a seed.
pub struct Values {
    random: SplitMix64,
    value: [u8; VALUE_BYTES],
}

impl Testbed {
    /// Clients of each side.
    pub const CLIENTS: u64 = CLIENTS;
    /// Keys of each table.
    pub const ROWS: u64 = ROWS;
    /// Rows of a batch.
    pub const BATCH_ROWS: u64 = BATCH_ROWS;
    /// Bytes of a value.
    pub const VALUE_BYTES: usize = VALUE_BYTES;

    /// In `dir`, or beside the current folder.
    ///
    /// # Errors
    /// What is written there is on no disk, or nothing can be.
    pub fn new(dir: Option<&Path>) -> Result<Testbed> {
        Ok(Testbed { place: DataFolder::new(dir)? })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        self.place.folder()
    }

    /// Who starts other people's servers.
    pub fn keeper(&mut self) -> &mut Keeper {
        self.place.keeper()
    }
}

impl Ours {
    /// Starts a server over shared memory, with all rows in its table.
    ///
    /// # Errors
    /// A process could not be started.
    pub fn start(testbed: &Testbed, durability: Durability) -> Result<Ours> {
        let over = Over::new("shm", None)?;
        Ok(Ours { side: DurableServer::start(&over, Kept::On(durability), testbed.folder())? })
    }

    /// Puts batches for so long.
    ///
    /// # Errors
    /// The server has ended.
    pub fn batches(&mut self, ns: u64) -> Result<Batches> {
        let done = self.side.run(CLIENTS as usize, Work::PutBatch, ns)?;
        Ok(Batches { rows: done.rows, wall_ns: done.wall_ns, cpu_ns: done.client_ns + done.server_ns })
    }
}

impl Batches {
    /// Rows a second.
    pub fn rows_per_s(&self) -> f64 {
        self.rows as f64 * 1e9 / self.wall_ns.max(1) as f64
    }
}

impl Values {
    /// From a seed.
    pub fn new(seed: u64) -> Values {
        Values { random: SplitMix64(seed), value: [b'v'; VALUE_BYTES] }
    }

    /// A key and its value.
    pub fn row(&mut self) -> (u64, &[u8]) {
        let key = self.random.below(ROWS);
        (key, fresh(&mut self.random, &mut self.value))
    }
}
