//! Stores within the process that asks, which spares them every message: fjall and bf-tree.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bf_tree::{BfTree, Config, LeafInsertResult, WalConfig};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use overside_bench::figures::{Batches, Testbed, Values};
use overside_bench::measure::{Cpu, elapsed_ns, now_ns};

use super::Contender;

/// A store that threads put rows into.
pub trait Store: Sync + Sized {
    /// Puts a batch as durably as the store was told to.
    fn put(&self, rows: &[(u64, Vec<u8>)]) -> Result<()>;
}

/// A store with its clients, which are threads.
pub struct Embedded<S> {
    store: S,
    clients: Vec<Values>,
}

/// A log-structured merge tree. A batch goes to its journal as one write, and each is synced by
/// itself.
pub struct Fjall {
    database: Database,
    rows: Keyspace,
    mode: PersistMode,
}

/// A B-tree of pages with buffers before them. Every row waits by itself until its log was written,
/// and no log is synced.
pub struct Bf(BfTree);

impl<S: Store> Embedded<S> {
    /// With all rows in it.
    fn filled(store: S) -> Result<Embedded<S>> {
        let clients: Vec<Values> = (0..Testbed::CLIENTS).map(Values::new).collect();
        // Where a row waits for the log, others of its batch do not go on: many threads wait at once.
        let keys: Vec<u64> = (0..Testbed::ROWS).collect();
        let mut values = Values::new(u64::MAX);
        let rows: Vec<(u64, Vec<u8>)> = keys.into_iter().map(|key| (key, values.row().1.to_vec())).collect();
        let each = rows.len().div_ceil(FILLERS).max(1);
        thread::scope(|scope| {
            let fill =
                |part: &[(u64, Vec<u8>)]| part.chunks(Testbed::BATCH_ROWS as usize).try_for_each(|b| store.put(b));
            let parts: Vec<_> = rows.chunks(each).map(|part| scope.spawn(move || fill(part))).collect();
            parts.into_iter().try_for_each(|part| part.join().expect("a thread that fills panicked"))
        })?;
        Ok(Embedded { store, clients })
    }
}

impl<S: Store> Contender for Embedded<S> {
    fn batches(&mut self, _: &mut Testbed, ns: u64) -> Result<Batches> {
        let (start, cpu, store) = (now_ns(), Cpu::own(), &self.store);
        let put = |values: &mut Values| -> Result<u64> {
            let mut rows = 0;
            while elapsed_ns(start) < ns {
                let row = |values: &mut Values| {
                    let (key, value) = values.row();
                    (key, value.to_vec())
                };
                let batch: Vec<_> = (0..Testbed::BATCH_ROWS).map(|_| row(values)).collect();
                store.put(&batch)?;
                rows += Testbed::BATCH_ROWS;
            }
            Ok(rows)
        };
        let parts = thread::scope(|scope| {
            let running: Vec<_> = self.clients.iter_mut().map(|values| scope.spawn(move || put(values))).collect();
            running.into_iter().map(|part| part.join().expect("a client panicked")).collect::<Result<Vec<u64>>>()
        })?;
        Ok(Batches { rows: parts.iter().sum(), wall_ns: elapsed_ns(start), cpu_ns: Cpu::own() - cpu })
    }
}

impl Fjall {
    /// One that keeps batches in this way, with all rows.
    pub fn start(testbed: &Testbed, name: &str, mode: PersistMode) -> Result<Embedded<Fjall>> {
        let database = Database::builder(testbed.folder().join(name)).open()?;
        let rows = database.keyspace("rows", KeyspaceCreateOptions::default)?;
        Embedded::filled(Fjall { database, rows, mode })
    }
}

impl Store for Fjall {
    fn put(&self, rows: &[(u64, Vec<u8>)]) -> Result<()> {
        let mut batch = self.database.batch().durability(Some(self.mode));
        for (key, value) in rows {
            batch.insert(&self.rows, key.to_be_bytes(), value.as_slice());
        }
        Ok(batch.commit()?)
    }
}

impl Bf {
    /// One with all rows.
    pub fn start(testbed: &Testbed) -> Result<Embedded<Bf>> {
        let folder = testbed.folder().join("bf-tree");
        fs::create_dir(&folder)?;
        let mut log = WalConfig::new(folder.join("log"));
        // It writes a whole segment each time, of 1 GiB unless told, and each millisecond unless told.
        log.segment_size(LOG_SEGMENT_BYTES).flush_interval(LOG_INTERVAL);
        let mut config = Config::new(folder.join("tree"), MEMORY_BYTES);
        config.enable_write_ahead_log(Arc::new(log));
        let tree = BfTree::with_config(config, None);
        let tree = tree.map_err(|error| anyhow::anyhow!("{error:?}")).context("bf-tree does not begin")?;
        Embedded::filled(Bf(tree))
    }
}

impl Store for Bf {
    fn put(&self, rows: &[(u64, Vec<u8>)]) -> Result<()> {
        for (key, value) in rows {
            match self.0.insert(&key.to_be_bytes(), value) {
                LeafInsertResult::Success => {}
                LeafInsertResult::InvalidKV(why) => bail!("bf-tree refused a row: {why}"),
            }
        }
        ensure!(!rows.is_empty(), "a batch has rows");
        Ok(())
    }
}

/// Threads that fill a store.
const FILLERS: usize = 64;
const LOG_SEGMENT_BYTES: usize = 64 << 10;
const LOG_INTERVAL: Duration = Duration::from_micros(100);
/// Room for all rows.
const MEMORY_BYTES: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use bf_tree::LeafReadResult;

    fn all_rows_are_there<S: Store>(mut side: Embedded<S>, testbed: &mut Testbed, get: impl Fn(&S, u64) -> usize) {
        let done = side.batches(testbed, 20_000_000).unwrap();
        assert!(done.rows >= Testbed::BATCH_ROWS && done.rows.is_multiple_of(Testbed::BATCH_ROWS));
        for key in [0, 1, Testbed::ROWS / 2, Testbed::ROWS - 1] {
            assert_eq!(get(&side.store, key), Testbed::VALUE_BYTES, "row {key}");
        }
    }

    #[test]
    fn stores_in_process_have_the_same_rows() {
        let mut testbed = Testbed::new(None).unwrap();
        let fjall = Fjall::start(&testbed, "fjall", PersistMode::Buffer).unwrap();
        let length = |store: &Fjall, key: u64| store.rows.get(key.to_be_bytes()).unwrap().map_or(0, |v| v.len());
        all_rows_are_there(fjall, &mut testbed, length);
        let bf = Bf::start(&testbed).unwrap();
        let length = |store: &Bf, key: u64| match store.0.read(&key.to_be_bytes(), &mut [0; 1024]) {
            LeafReadResult::Found(bytes) => bytes as usize,
            _ => 0,
        };
        all_rows_are_there(bf, &mut testbed, length);
    }
}
