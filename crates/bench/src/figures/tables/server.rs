//! A server of the figure: a process that keeps its tables as it is told.

use crate::{
    figures::Over,
    measure::Cpu,
    process::{Process, child_socket, read_word, write_words},
    rendezvous::Rendezvous,
};
use anyhow::{Context, Result};
use overside::table::{
    client::{Client, ClientOptions, RemoteTable},
    schema::{Column, ColumnType, Schema},
    server::{DataOptions, ServerOptions},
    wire::Durability,
};
use std::{ffi::OsString, io::Read, os::unix::net::UnixStream, path::Path, time::Duration};

/// How a server keeps its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::figures) enum Kept {
    /// In memory alone.
    Memory,
    /// Likewise, and clients may read the memory by themselves.
    Open,
    /// With a log and checkpoints.
    On(Durability),
}

/// A server that runs.
pub(in crate::figures) struct Served {
    rendezvous: Rendezvous,
    process: Process,
    /// It ends when this is closed.
    line: UnixStream,
    pub(in crate::figures) recovered: Recovered,
}

/// What a server found in its directory.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::figures) struct Recovered {
    pub(in crate::figures) rows: u64,
    pub(in crate::figures) replayed: u64,
    /// With the checkpoint's pages.
    pub(in crate::figures) adopt_ns: u64,
    /// With the log.
    pub(in crate::figures) replay_ns: u64,
}

impl Kept {
    /// In the order of what they promise.
    pub(in crate::figures) const ALL: [Kept; 4] =
        [Kept::Memory, Kept::On(Durability::None), Kept::On(Durability::Group), Kept::On(Durability::Sync)];

    pub(in crate::figures) fn name(self) -> &'static str {
        match self {
            Kept::Memory => MEMORY,
            Kept::Open => OPEN,
            Kept::On(durability) => durability.name(),
        }
    }
}

impl Served {
    /// Starts one whose directory, where it has one, is `dir`; it may write checkpoints by itself.
    pub(in crate::figures) fn start(over: &Over, kept: Kept, dir: &Path, by_itself: bool) -> Result<Served> {
        let rendezvous = over.rendezvous()?;
        let dir = dir.to_str().context("the name of the folder for data is no text; choose another --dir")?;
        let checkpoints = if by_itself { "checkpoints" } else { "none" };
        let words = [&rendezvous.to_string()[..], kept.name(), dir, checkpoints];
        let words: Vec<&str> = std::iter::once(super::SERVE).chain(words).collect();
        let (process, mut line) = Process::start("table server", super::ROLE, &words, None)?;
        let mut word = || read_word(&mut line).context("the table server ended; its last words are above");
        let recovered = Recovered { rows: word()?, replayed: word()?, adopt_ns: word()?, replay_ns: word()? };
        Ok(Served { rendezvous, process, line, recovered })
    }

    pub(in crate::figures) fn connect(&self) -> Result<Client> {
        let at = overside::at(self.rendezvous.address.to_string()).network(&self.rendezvous.network);
        // A checkpoint of much beside others takes a while.
        Ok(at.client(ClientOptions { timeout: PATIENCE, ..ClientOptions::default() })?)
    }

    /// The figure's table, made if there is none.
    pub(in crate::figures) fn table(&self) -> Result<(Client, RemoteTable)> {
        let mut client = self.connect()?;
        let table = match client.table(TABLE) {
            Ok(table) => table,
            Err(_) => client.create_table(TABLE, &schema()?)?,
        };
        Ok((client, table))
    }

    pub(in crate::figures) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(in crate::figures) fn cpu(&self) -> Result<Cpu> {
        Ok(Cpu::of(self.process.pid())?)
    }

    /// Ends it as a signal would.
    pub(in crate::figures) fn end(self) {
        drop(self.line);
        self.process.end(PATIENCE);
    }
}

/// The process itself.
pub(in crate::figures) fn serve(arguments: &[OsString]) -> Result<()> {
    let rendezvous = Rendezvous::from_arguments(arguments)?;
    let word = |at: usize| arguments.get(at).and_then(|word| word.to_str()).context("a word is missing");
    let mut options = ServerOptions { one_sided: word(1)? == OPEN, ..ServerOptions::default() };
    if ![MEMORY, OPEN].contains(&word(1)?) {
        let mut data = DataOptions::new(word(2)?);
        data.durability = word(1)?.parse().map_err(anyhow::Error::msg)?;
        if word(3)? == "none" {
            data.checkpoint_bytes = u64::MAX;
        }
        options.data = Some(data);
    }
    let server = overside::at(rendezvous.address.to_string()).network(&rendezvous.network).serve(options)?;
    let mut line = child_socket()?;
    let recovery = server.recovery().cloned().unwrap_or_default();
    let (adopt_ns, replay_ns) = (recovery.adopt_took.as_nanos() as u64, recovery.replay_took.as_nanos() as u64);
    write_words(&mut line, &[recovery.rows, recovery.replayed, adopt_ns, replay_ns])?;
    // Nothing ever comes; the read ends when the parent closes it.
    let _ = line.read(&mut [0; 1]);
    server.shutdown();
    Ok(())
}

/// A key of 8 bytes and a value.
pub(in crate::figures) fn schema() -> Result<Schema> {
    let value = ColumnType::FixedBinary(VALUE_BYTES as u16);
    Ok(Schema::with_key(vec![Column::new("key", ColumnType::UInt64), Column::new("value", value)], &["key"])?)
}

const TABLE: &str = "rows";
const MEMORY: &str = "in memory";
const OPEN: &str = "open";
pub(in crate::figures) const VALUE_BYTES: usize = 100;
const PATIENCE: Duration = Duration::from_secs(120);
