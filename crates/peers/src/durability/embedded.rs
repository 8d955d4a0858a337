//! Stores within the clients' process: fjall, which commits a batch at a time, and bf-tree, which takes a row at a time.

use std::sync::Arc;
use std::thread;

use anyhow::{Result, bail};
use bf_tree::{Config, LeafInsertResult, WalConfig};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use overside_bench::figures::{Batches, Ground, Values};
use overside_bench::measure::{Cpu, elapsed_ns, now_ns};

use super::Side;

pub struct Fjall {
    database: Database,
    rows: Keyspace,
    mode: PersistMode,
}

pub struct BfTree(bf_tree::BfTree);

impl Fjall {
    /// With all rows; a commit is synced or handed to the kernel.
    pub fn open(ground: &Ground, synced: bool) -> Result<Fjall> {
        let (name, mode) = if synced { ("fjall-sync", PersistMode::SyncData) } else { ("fjall", PersistMode::Buffer) };
        let database = Database::builder(ground.folder().join(name)).open()?;
        let rows = database.keyspace("rows", KeyspaceCreateOptions::default)?;
        let mut values = Values::new(0);
        for key in 0..Ground::ROWS {
            rows.insert(key.to_be_bytes(), values.row().1)?;
        }
        Ok(Fjall { database, rows, mode })
    }
}

impl Side for Fjall {
    fn batches(&mut self, _: &mut Ground, ns: u64) -> Result<Batches> {
        threads(ns, |values| {
            let mut batch = self.database.batch().durability(Some(self.mode));
            for _ in 0..Ground::BATCH_ROWS {
                let (key, value) = values.row();
                batch.insert(&self.rows, key.to_be_bytes(), value);
            }
            batch.commit()?;
            Ok(Ground::BATCH_ROWS)
        })
    }
}

impl BfTree {
    /// With all rows in memory, and its log in a file, which it writes each millisecond and does not sync.
    pub fn open(ground: &Ground) -> Result<BfTree> {
        let mut log = WalConfig::new(ground.folder().join("bf-tree.log"));
        log.segment_size(1 << 20);
        let mut config = Config::new(":memory:", 64 << 20);
        config.enable_write_ahead_log(Arc::new(log));
        let tree = bf_tree::BfTree::with_config(config, None);
        let tree = tree.map_err(|error| anyhow::anyhow!("bf-tree refuses its configuration: {error:?}"))?;
        Ok(BfTree(tree))
    }
}

impl Side for BfTree {
    fn batches(&mut self, _: &mut Ground, ns: u64) -> Result<Batches> {
        threads(ns, |values| {
            let (key, value) = values.row();
            match self.0.insert(&key.to_be_bytes(), value) {
                LeafInsertResult::Success => Ok(1),
                LeafInsertResult::InvalidKV(why) => bail!("bf-tree refused a row: {why}"),
            }
        })
    }
}

/// As many threads as other sides have clients, each with one call under way.
fn threads(ns: u64, put: impl Fn(&mut Values) -> Result<u64> + Sync) -> Result<Batches> {
    let (start, cpu) = (now_ns(), Cpu::own());
    let one = |seed| -> Result<u64> {
        let (mut values, mut rows) = (Values::new(seed), 0);
        while elapsed_ns(start) < ns {
            rows += put(&mut values)?;
        }
        Ok(rows)
    };
    let parts = thread::scope(|scope| {
        let one = &one;
        let running: Vec<_> = (0..Ground::CLIENTS).map(|seed| scope.spawn(move || one(seed))).collect();
        running.into_iter().map(|part| part.join().expect("a client panicked")).collect::<Result<Vec<u64>>>()
    })?;
    Ok(Batches { rows: parts.iter().sum(), wall_ns: elapsed_ns(start), cpu_ns: Cpu::own() - cpu })
}
