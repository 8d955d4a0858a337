//! Clients of the figure, in the process that measures.

use super::{
    reading::{read, read_one_sided},
    server::{Served, VALUE_BYTES},
};
use crate::{
    limits::Touched,
    measure::{Cpu, elapsed_ns, now_ns},
};
use anyhow::{Context, Result, ensure};
use overside::table::{
    client::{Client, RemoteTable, RowBatch, ScanOptions},
    row::ValueRef,
    wire::{Mode, PutMode, ScanReply},
};
use overside_evidence::SplitMix64;
use std::{
    ops::Bound,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

/// A connection, and rows for it.
pub(in crate::figures) struct Worker {
    client: Client,
    table: RemoteTable,
    batch: RowBatch,
    random: SplitMix64,
    value: [u8; VALUE_BYTES],
    /// Keys are below.
    rows: u64,
}

/// What a stretch of time came to.
#[derive(Clone, Debug, Default)]
pub(in crate::figures) struct Stretch {
    /// Nanoseconds that each put, or each batch, took.
    pub(in crate::figures) puts: Vec<u64>,
    /// And each get.
    pub(in crate::figures) gets: Vec<u64>,
    /// Rows that were put or scanned.
    pub(in crate::figures) rows: u64,
    pub(in crate::figures) wall_ns: u64,
    /// Of this process, with all its clients.
    pub(in crate::figures) client_ns: u64,
    pub(in crate::figures) server_ns: u64,
}

/// What a worker does again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::figures) enum Work {
    /// A row.
    PutOne,
    /// Rows in one request.
    PutBatch,
    /// A row that is there.
    Get,
    /// One of both, in turn.
    GetAndPut,
    /// Every row of the table.
    Scan,
}

impl Worker {
    /// One for a table that has, or will have, the keys below `rows`.
    pub(in crate::figures) fn new(served: &Served, rows: u64, seed: u64) -> Result<Worker> {
        let (client, table) = served.table()?;
        let batch = table.batch();
        Ok(Worker { client, table, batch, random: SplitMix64(seed), value: [0; VALUE_BYTES], rows })
    }

    /// Inserts all keys, ascending or in an order that looks random, and sees that each is there.
    pub(in crate::figures) fn fill(&mut self, order: impl Fn(u64) -> u64) -> Result<()> {
        let mut puts = self.client.puts(&self.table, PutMode::Insert);
        for number in 0..self.rows {
            self.batch.push(&row(order(number), fresh(&mut self.random, &mut self.value)))?;
            if self.batch.bytes() >= FILL_BYTES || number + 1 == self.rows {
                puts.put(&self.batch)?;
                self.batch.clear();
            }
        }
        let applied = puts.settle()?.applied;
        ensure!(applied == self.rows, "{applied} of {} rows were inserted", self.rows);
        Ok(())
    }

    /// One put, for what must have changed.
    pub(in crate::figures) fn touch(&mut self) -> Result<()> {
        self.put(1)
    }

    pub(in crate::figures) fn put(&mut self, count: u64) -> Result<()> {
        self.batch.clear();
        for _ in 0..count {
            let key = self.random.below(self.rows);
            self.batch.push(&row(key, fresh(&mut self.random, &mut self.value)))?;
        }
        let applied = self.client.put(&self.table, PutMode::Upsert, &self.batch)?;
        ensure!(u64::from(applied.applied) == count, "rows were refused: {:?}", applied.failed);
        Ok(())
    }

    pub(in crate::figures) fn get(&mut self) -> Result<()> {
        let key = self.random.below(self.rows);
        let row = self.client.get(&self.table, &[ValueRef::UInt64(key)])?;
        row.map(drop).with_context(|| format!("row {key} is gone"))
    }

    fn scan(&mut self) -> Result<u64> {
        let mut scan = self.client.scan(&self.table, &ScanOptions::default())?;
        while scan.next_block()?.is_some() {}
        let rows = scan.summary().rows;
        ensure!(rows == self.rows, "a scan has {rows} of {} rows", self.rows);
        Ok(rows)
    }

    /// Reads so many rows from a random one on, in their order, each row's lines;
    /// what the server says of it.
    pub(in crate::figures) fn read(&mut self, rows: u64, mode: Mode) -> Result<(Touched, ScanReply)> {
        let first = self.random.below(self.rows - rows.min(self.rows) + 1);
        let from = [ValueRef::UInt64(first)];
        let to = [ValueRef::UInt64(first + rows - 1)];
        let range =
            ScanOptions { from: Bound::Included(&from), to: Bound::Included(&to), mode, ..ScanOptions::default() };
        let (touched, summary) = read(&mut self.client, &self.table, &range)?;
        ensure!(touched.rows == rows.min(self.rows), "a scan has {} rows, not {rows}", touched.rows);
        Ok((touched, summary.server))
    }

    /// Reads the whole table by itself, out of the server's memory.
    pub(in crate::figures) fn read_one_sided(&mut self) -> Result<Touched> {
        let touched = read_one_sided(&mut self.client, &self.table)?;
        ensure!(touched.rows == self.rows, "a scan has {} rows, not {}", touched.rows, self.rows);
        Ok(touched)
    }

    /// Its table.
    pub(in crate::figures) fn table(&self) -> &RemoteTable {
        &self.table
    }

    /// Until `is_over` says so; each is timed.
    fn work(&mut self, work: Work, is_over: &dyn Fn() -> bool) -> Result<Stretch> {
        let mut done = Stretch::default();
        let mut at = now_ns();
        let mut timed = |times: &mut Vec<u64>| {
            let now = now_ns();
            times.push(now - at);
            at = now;
        };
        while !is_over() {
            match work {
                Work::PutOne => self.put(1)?,
                Work::PutBatch => self.put(BATCH_ROWS)?,
                Work::Get => {
                    self.get()?;
                    timed(&mut done.gets);
                    continue;
                }
                Work::GetAndPut => {
                    self.get()?;
                    timed(&mut done.gets);
                    self.put(1)?;
                }
                Work::Scan => {
                    done.rows += self.scan()?;
                    continue;
                }
            }
            timed(&mut done.puts);
            done.rows += if work == Work::PutBatch { BATCH_ROWS } else { 1 };
        }
        Ok(done)
    }
}

/// All workers at once, each in a thread of its own, for so long.
pub(in crate::figures) fn together(served: &Served, workers: &mut [Worker], work: Work, ns: u64) -> Result<Stretch> {
    let start = now_ns();
    over(served, workers, work, &|| elapsed_ns(start) >= ns)
}

/// The same, while `beside` runs.
pub(in crate::figures) fn during<T>(
    served: &Served,
    workers: &mut [Worker],
    work: Work,
    beside: impl FnOnce() -> Result<T> + Send,
) -> Result<(Stretch, T)>
where
    T: Send,
{
    let over_now = AtomicBool::new(false);
    thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let done = beside();
            over_now.store(true, Ordering::Release);
            done
        });
        let stretch = over(served, workers, work, &|| over_now.load(Ordering::Acquire));
        let done = beside.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
        Ok((stretch?, done?))
    })
}

fn over(served: &Served, workers: &mut [Worker], work: Work, is_over: &(dyn Fn() -> bool + Sync)) -> Result<Stretch> {
    let (start, client, server) = (now_ns(), Cpu::own(), served.cpu()?);
    let parts = thread::scope(|scope| {
        let running: Vec<_> =
            workers.iter_mut().map(|worker| scope.spawn(move || worker.work(work, is_over))).collect();
        let joined = running.into_iter().map(|part| part.join());
        joined.map(|part| part.map_err(|_| anyhow::anyhow!("a client panicked"))?).collect::<Result<Vec<_>>>()
    })?;
    let mut all = Stretch {
        wall_ns: elapsed_ns(start),
        client_ns: Cpu::own() - client,
        server_ns: served.cpu()? - server,
        ..Stretch::default()
    };
    for part in parts {
        all.puts.extend(part.puts);
        all.gets.extend(part.gets);
        all.rows += part.rows;
    }
    Ok(all)
}

impl Stretch {
    pub(in crate::figures) fn rows_per_s(&self) -> f64 {
        self.rows as f64 * 1e9 / self.wall_ns.max(1) as f64
    }
}

/// The time that so many of all stay below.
pub(in crate::figures) fn quantile(times: &[u64], share: f64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(at.max(1) - 1).map_or(f64::NAN, |ns| *ns as f64)
}

/// A value of bytes that are another time's not.
pub(in crate::figures) fn fresh<'v>(random: &mut SplitMix64, value: &'v mut [u8; VALUE_BYTES]) -> &'v [u8] {
    value[..8].copy_from_slice(&random.word().to_le_bytes());
    value
}

/// As the table has it.
pub(in crate::figures) fn row(key: u64, value: &[u8]) -> [ValueRef<'_>; 2] {
    [ValueRef::UInt64(key), ValueRef::FixedBinary(value)]
}

/// The `number`th of the keys below `rows`, each once, in an order that has
/// nothing to do with the keys'.
pub(in crate::figures) fn scattered(number: u64, rows: u64) -> u64 {
    // Odd, so that it has no divisor in common with a power of two; numbers beyond are walked on.
    let bound = rows.next_power_of_two();
    let mut at = number;
    loop {
        at = at.wrapping_mul(0x9E37_79B9_7F4A_7C15 | 1).wrapping_add(0x1234_5677) & (bound - 1);
        if at < rows {
            return at;
        }
    }
}

/// Rows of a batch.
pub(in crate::figures) const BATCH_ROWS: u64 = 128;
const FILL_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_keys_come_once_each() {
        for rows in [1, 2, 5, 1000, 4096] {
            let mut keys: Vec<u64> = (0..rows).map(|number| scattered(number, rows)).collect();
            assert!(rows < 5 || !keys.is_sorted(), "{keys:?}");
            keys.sort_unstable();
            assert_eq!(keys, (0..rows).collect::<Vec<_>>());
        }
    }

    #[test]
    fn quantiles_are_of_what_there_is() {
        let times: Vec<u64> = (1..=1000).rev().collect();
        assert_eq!((quantile(&times, 0.5), quantile(&times, 0.999), quantile(&times, 1.0)), (500.0, 999.0, 1000.0));
        assert_eq!(quantile(&[7], 0.999), 7.0);
        assert!(quantile(&[], 0.5).is_nan());
    }
}
