//! The client library: tables, rows, scans.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use overside_table::client::{Client, ScanOptions};
//! # fn example(provider: Arc<dyn overside_verbs::Provider>) -> Result<(), Box<dyn std::error::Error>> {
//! let mut client = Client::connect(provider, "demo")?;
//! let table = client.table("lineitem")?;
//! let mut scan = client.scan(&table, &ScanOptions::default())?;
//! let mut bytes = 0;
//! while let Some(block) = scan.next_block()? {
//!     block.rows().for_each(|row| bytes += row.len()); // views into the received buffer
//! }
//! # Ok(()) }
//! ```

mod batch;
mod error;
mod link;
mod one_sided;
mod puts;
mod scan;
mod table;

use std::sync::Arc;
use std::time::Duration;

pub use overside_service::client::{LinkError, Received};
use overside_verbs::Provider;

pub use batch::RowBatch;
pub use error::ClientError;
pub use puts::{Puts, PutsApplied};
pub use scan::{Scan, ScanOptions, ScanSummary};
pub use table::{OwnedRow, RemoteTable};

use crate::row::ValueRef;
use crate::schema::Schema;
use crate::wire::{
    Applied, BLOCK_BYTES, Checkpointed, Choices, DataStatus, FaultCode, Features, Held, IndexInfo, PriceList, PutMode,
    Reply, Request, ServerStats, TableInfo, push_piece,
};
use link::Link;

/// How a client is set up.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// Bytes of each receive buffer; rows that do not fit travel in parts.
    pub block_bytes: usize,
    /// Bytes of a message that is lent, at most; several pages share what a message costs. Receive
    /// buffers are as long, where the provider lends, though only `block_bytes` of each are used by
    /// what is not lent.
    pub lent_bytes: usize,
    /// Receive buffers. What is used of them, a page each, should stay within a core's second-level
    /// cache.
    pub blocks: usize,
    /// Receives posted at once, 8 unless said; a message that meets none waits. Where the receiver
    /// copies messages while it polls, as over shared memory, two suffice, and the same two buffers
    /// stay in its nearest caches.
    pub posted: Option<usize>,
    /// How long a server may take for an answer or the next block of one.
    pub timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            block_bytes: BLOCK_BYTES,
            lent_bytes: LENT_BYTES,
            blocks: 24,
            posted: None,
            timeout: Duration::from_secs(30),
        }
    }
}

/// A connection to a server. One request at a time; as many connections as wanted.
#[derive(Debug)]
pub struct Client {
    link: Link,
}

impl Client {
    /// Connects to the provider's part of an address.
    ///
    /// # Errors
    /// [`ClientError::Link`] when nobody listens there, [`ClientError::Refused`] when the versions
    /// differ.
    pub fn connect(provider: Arc<dyn Provider>, name: &str) -> Result<Client, ClientError> {
        Client::connect_with(provider, name, ClientOptions::default())
    }

    /// As [`connect`](Self::connect), with other buffers or patience.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_with(
        provider: Arc<dyn Provider>,
        name: &str,
        options: ClientOptions,
    ) -> Result<Client, ClientError> {
        Ok(Client { link: Link::connect(provider, name, options)? })
    }

    /// The server's process id.
    pub fn server_pid(&self) -> u32 {
        self.link.server_pid()
    }

    /// What this client and its server can both do, beyond the version of their protocol.
    pub fn features(&self) -> Features {
        self.link.features()
    }

    /// Creates a table.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when there is one of this name or the schema cannot be.
    pub fn create_table(&mut self, name: &str, schema: &Schema) -> Result<RemoteTable, ClientError> {
        let mut encoded = Vec::new();
        schema.encode(&mut encoded);
        match self.link.call(&Request::Create { name, schema: &encoded })? {
            Reply::Table(info) => RemoteTable::new(info),
            other => Err(ClientError::unexpected(&other)),
        }
    }

    /// Looks a table up.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when there is none of this name; the text names those that are
    /// there.
    pub fn table(&mut self, name: &str) -> Result<RemoteTable, ClientError> {
        match self.link.call(&Request::Describe { name })? {
            Reply::Table(info) => RemoteTable::new(info),
            other => Err(ClientError::unexpected(&other)),
        }
    }

    /// All tables, by name. Those that are there all the while come exactly once.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn tables(&mut self) -> Result<Vec<TableInfo>, ClientError> {
        let mut all: Vec<TableInfo> = Vec::new();
        loop {
            let after = all.last().map_or("", |table| table.name.as_str());
            let (tables, more) = match self.link.call(&Request::List { after })? {
                Reply::Tables { tables, more } => (tables, more),
                other => return Err(ClientError::unexpected(&other)),
            };
            // Whoever listed the same again and again would never come to an end.
            let ascends = tables.first().is_none_or(|first| first.name.as_str() > after)
                && tables.is_sorted_by(|a, b| a.name < b.name);
            if !ascends || (more && tables.is_empty()) {
                return Err(ClientError::Unexpected("tables that are not in the order of their names".into()));
            }
            all.extend(tables);
            if !more {
                return Ok(all);
            }
        }
    }

    /// Drops a table and its rows. Scans that are running on it end as if it were still there.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when there is none.
    pub fn drop_table(&mut self, name: &str) -> Result<(), ClientError> {
        match self.link.call(&Request::Drop { name })? {
            Reply::Dropped => Ok(()),
            other => Err(ClientError::unexpected(&other)),
        }
    }

    /// Gives a table an index on some of its columns, most significant first, and waits until it is
    /// there; `told` hears how many rows have their entries, and of how many. Others read and write
    /// the table meanwhile. Where it fails, or the connection ends, the table is as it was.
    ///
    /// # Errors
    /// [`ClientError::Refused`] where there is such an index, a column is not there or named twice,
    /// a row is too long for it, or memory is short.
    pub fn create_index(
        &mut self,
        table: &RemoteTable,
        columns: &[usize],
        mut told: impl FnMut(u64, u64),
    ) -> Result<IndexInfo, ClientError> {
        needs_indexes(self.features())?;
        loop {
            match self.link.call(&Request::CreateIndex { table: table.id(), columns: scan::numbered(columns) })? {
                Reply::Indexing { rows, of } => told(rows, of),
                Reply::Index(info) => return Ok(info),
                other => return Err(ClientError::unexpected(&other)),
            }
        }
    }

    /// Drops an index; the table and its rows stay. Scans that are running through it end as if it
    /// were still there.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when there is none on these columns.
    pub fn drop_index(&mut self, table: &RemoteTable, columns: &[usize]) -> Result<(), ClientError> {
        needs_indexes(self.features())?;
        match self.link.call(&Request::DropIndex { table: table.id(), columns: scan::numbered(columns) })? {
            Reply::Dropped => Ok(()),
            other => Err(ClientError::unexpected(&other)),
        }
    }

    /// The indexes of a table; none of a server that knows no indexes.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when the table was dropped.
    pub fn indexes(&mut self, table: &RemoteTable) -> Result<Vec<IndexInfo>, ClientError> {
        if !self.features().contains(Features::INDEXES) {
            return Ok(Vec::new());
        }
        match self.link.call(&Request::Indexes { table: table.id() })? {
            Reply::Indexes(indexes) => Ok(indexes),
            other => Err(ClientError::unexpected(&other)),
        }
    }

    /// How pages of a table travelled, and how long its chains of deltas get; none of a server that
    /// does not say.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when the table was dropped.
    pub fn choices(&mut self, table: &RemoteTable) -> Result<Option<Choices>, ClientError> {
        if !self.features().contains(Features::CHOICES) {
            return Ok(None);
        }
        match self.link.call(&Request::Choices { table: table.id() })? {
            Reply::Choices(choices) => Ok(Some(choices)),
            other => Err(ClientError::unexpected(&other)),
        }
    }

    /// By which prices the server plans what it sends over this connection's provider; none of a
    /// server that does not say.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn prices(&mut self) -> Result<Option<PriceList>, ClientError> {
        if !self.features().contains(Features::CHOICES) {
            return Ok(None);
        }
        match self.link.call(&Request::Prices)? {
            Reply::Prices(prices) => Ok(Some(prices)),
            other => Err(ClientError::unexpected(&other)),
        }
    }

    /// What memory the server's readers hold back, and who of its threads stalls; none of a server
    /// that does not say.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn held(&mut self) -> Result<Option<Held>, ClientError> {
        if !self.features().contains(Features::HELD) {
            return Ok(None);
        }
        match self.link.call(&Request::Held)? {
            Reply::Held(held) => Ok(Some(held)),
            other => Err(ClientError::unexpected(&other)),
        }
    }

    /// Puts a batch. Each row is atomic by itself; rows that fail do not stop the others, and the
    /// answer names them by their index in the batch.
    ///
    /// # Errors
    /// When the connection fails in the middle, [`ClientError::Partly`] says how many rows were
    /// acknowledged.
    pub fn put(&mut self, table: &RemoteTable, mode: PutMode, batch: &RowBatch) -> Result<Applied, ClientError> {
        let mut puts = self.puts(table, mode);
        puts.put(batch)?;
        Ok(puts.settle()?.clone().into())
    }

    /// To put batch after batch without waiting for each one's outcome.
    pub fn puts(&mut self, table: &RemoteTable, mode: PutMode) -> Puts<'_> {
        Puts::new(&mut self.link, table.id(), mode)
    }

    /// Gets a row by its key's values, in the order of the key's columns.
    ///
    /// # Errors
    /// [`ClientError::Key`] when the values are not a key of this table.
    pub fn get(&mut self, table: &RemoteTable, key: &[ValueRef<'_>]) -> Result<Option<OwnedRow>, ClientError> {
        let key = table.key(key)?;
        match self.link.call(&Request::Get { table: table.id(), key: &key })? {
            Reply::Row(value) => value.map(|v| OwnedRow::new(v, table)).transpose(),
            other => Err(ClientError::unexpected(&other)),
        }
    }

    /// Deletes a row by its key's values; whether it was there.
    ///
    /// # Errors
    /// [`ClientError::Key`] when the values are not a key of this table.
    pub fn delete(&mut self, table: &RemoteTable, key: &[ValueRef<'_>]) -> Result<bool, ClientError> {
        let key = table.key(key)?;
        let mut keys = Vec::new();
        push_piece(&mut keys, &key);
        match self.link.call(&Request::Delete { table: table.id(), keys: &keys })? {
            Reply::Applied(applied) => match applied.failed.first() {
                None => Ok(applied.applied == 1),
                Some((_, FaultCode::NotFound)) => Ok(false),
                Some((_, code)) => Err(ClientError::Refused { code: *code, text: code.text().into() }),
            },
            other => Err(ClientError::unexpected(&other)),
        }
    }

    /// Scans a range. No snapshot: each page is one instant's state, every row returned was current
    /// at some moment of the scan, rows present throughout come exactly once, in key order.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for a column that is not there, [`ClientError::Key`] for bounds of
    /// other types.
    pub fn scan<'a>(&'a mut self, table: &RemoteTable, options: &ScanOptions<'_>) -> Result<Scan<'a>, ClientError> {
        Scan::start(&mut self.link, table, options, false)
    }

    /// As [`scan`](Self::scan), by a caller that reads in place what the server lends to it
    /// ([`Scan::next_in_place`]): `auto` may then choose that as well. Where the server or its
    /// provider does not lend, everything is copied.
    ///
    /// # Errors
    /// As [`scan`](Self::scan).
    pub fn scan_in_place<'a>(
        &'a mut self,
        table: &RemoteTable,
        options: &ScanOptions<'_>,
    ) -> Result<Scan<'a>, ClientError> {
        Scan::start(&mut self.link, table, options, true)
    }

    /// As [`scan`](Self::scan), by this side's own way through the server's memory: the server is
    /// asked where the table lies, and its program takes no further part, whatever the
    /// [mode](ScanOptions::mode). Each page is the table's state at one instant of the scan. Only a
    /// server that was started for it ([`ServerOptions::one_sided`]) grants its memory.
    ///
    /// [`ServerOptions::one_sided`]: crate::server::ServerOptions::one_sided
    ///
    /// # Errors
    /// As [`scan`](Self::scan), and where the server does not grant its memory, or an index is
    /// wanted.
    pub fn scan_one_sided<'a>(
        &'a mut self,
        table: &RemoteTable,
        options: &ScanOptions<'_>,
    ) -> Result<Scan<'a>, ClientError> {
        Scan::start_one_sided(&mut self.link, table, options)
    }

    /// Where the server keeps its tables, and how far it has come; none where they live in memory
    /// alone, or the server knows no other.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn status(&mut self) -> Result<Option<DataStatus>, ClientError> {
        if !self.features().contains(Features::DURABLE) {
            return Ok(None);
        }
        match self.link.call(&Request::Status)? {
            Reply::Status(status) => Ok(status),
            other => Err(ClientError::unexpected(&other)),
        }
    }

    /// Writes a checkpoint of each table that has changed, and waits until it is on the disk.
    ///
    /// # Errors
    /// [`ClientError::Refused`] where the server keeps no tables on a disk, or has no room for it.
    pub fn checkpoint(&mut self) -> Result<Checkpointed, ClientError> {
        if !self.features().contains(Features::DURABLE) {
            let text = "the server's version keeps tables in memory alone; update it";
            return Err(ClientError::Refused { code: FaultCode::BadRequest, text: text.into() });
        }
        match self.link.call(&Request::Checkpoint)? {
            Reply::Checkpointed(done) => Ok(done),
            other => Err(ClientError::unexpected(&other)),
        }
    }

    /// How the server does.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn stats(&mut self) -> Result<ServerStats, ClientError> {
        match self.link.call(&Request::Stats)? {
            Reply::Stats(stats) => Ok(stats),
            other => Err(ClientError::unexpected(&other)),
        }
    }
}

fn needs_indexes(features: Features) -> Result<(), ClientError> {
    if features.contains(Features::INDEXES) {
        return Ok(());
    }
    let text = "the server's version knows no indexes; update it";
    Err(ClientError::Refused { code: FaultCode::BadRequest, text: text.into() })
}

/// Six pages: what a message costs is then a small part of what reading it takes
/// (docs/design/009-loans.md).
const LENT_BYTES: usize = 100 << 10;
