//! The tables of a directory that nobody serves: recovered in memory, and read there. Nothing in
//! the directory is changed.

use std::fmt;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use overside_bwtree::{Direction, Pages};
use overside_disk::Disk;
use overside_log::{self as log, Directory, Mode};
use overside_verbs::{Clock, SystemClock};

use super::recover::{How, recover};
use super::{DataError, DataOptions, OnProgress, Recovery};
use crate::block::{Copier, HEADER_BYTES, RowBlock};
use crate::client::{ClientError, RemoteTable, ScanOptions};
use crate::projection::Projection;
use crate::row::Malformed;
use crate::server::ServerOptions;
use crate::server::parts::World;
use crate::server::registrar::Registrar;
use crate::server::scan::Part;
use crate::server::store::{MemoryLimit, Store, Table};
use crate::wire::{FaultCode, TableInfo};

/// How the tables of a directory are recovered to be read.
#[derive(Clone, Debug)]
pub struct SavedOptions {
    /// Bytes of memory that all tables together may take. Default: as a server's.
    pub memory_max: usize,
    /// The rows of this table alone; others have their names, and no row. Default: those of all
    /// tables.
    pub only: Option<String>,
    /// Read what is sound of a damaged directory, and list what is not ([`Recovery::losses`]).
    pub salvage: bool,
    /// Told how far it is.
    pub on_progress: Option<OnProgress>,
}

impl Default for SavedOptions {
    fn default() -> SavedOptions {
        let memory_max = ServerOptions::default().memory_max;
        SavedOptions { memory_max, only: None, salvage: false, on_progress: None }
    }
}

/// The tables that a server left in a directory, as they were when it ended: every change that it
/// acknowledged, and no change by halves. They are in memory, and the directory is free again.
///
/// ```no_run
/// # use overside_table::client::ScanOptions;
/// # use overside_table::server::{SavedOptions, SavedTables};
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let saved = SavedTables::open("tables".as_ref(), &SavedOptions::default())?;
/// let table = saved.table("trips")?;
/// for block in table.rows(&ScanOptions::default())? {
///     for row in block?.rows() {
///         println!("{:?}", row.value(0)?);
///     }
/// }
/// # Ok(()) }
/// ```
pub struct SavedTables {
    store: Arc<Store>,
    recovery: Recovery,
}

impl fmt::Debug for SavedTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SavedTables").field("recovery", &self.recovery).finish_non_exhaustive()
    }
}

impl SavedTables {
    /// Recovers the tables in `dir`.
    ///
    /// # Errors
    /// There is no data directory, it is in use, damaged or of another version, or its tables do
    /// not fit the memory.
    pub fn open(dir: &Path, options: &SavedOptions) -> Result<SavedTables, DataError> {
        SavedTables::open_in(&World::default(), SystemClock::handle(), dir, options)
    }

    /// The same in a simulated world.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_in(
        world: &World,
        clock: Arc<dyn Clock>,
        dir: &Path,
        options: &SavedOptions,
    ) -> Result<SavedTables, DataError> {
        let disk = match &world.disk {
            Some(disk) => disk.open(dir).map_err(|error| DataError::of(&error))?,
            None => existing(dir)?,
        };
        let mode = if options.salvage { Mode::Check } else { Mode::Inspect };
        let mut directory =
            Directory::open(disk, [0; 16], log::Options::default(), mode).map_err(|refusal| DataError::of(&refusal))?;
        let memory =
            MemoryLimit { bytes_max: options.memory_max, segment_bytes: ServerOptions::default().segment_bytes };
        let registrar = Arc::new(Registrar::new(Vec::new(), options.memory_max, false));
        let store = Arc::new(Store::new(memory, registrar, world.clone(), None, None));
        let how = How {
            only: options.only.as_deref(),
            threads: world.threads.clone(),
            threads_max: DataOptions::new(dir).recovery_threads,
            on_progress: options.on_progress.clone(),
            clock: &*clock,
        };
        let (_, _, recovery) = recover(&store, &mut directory, &how)?;
        Ok(SavedTables { store, recovery })
    }

    /// What recovering them found.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// The tables, by their names.
    pub fn tables(&self) -> Vec<TableInfo> {
        let mut tables: Vec<TableInfo> = self.store.all().iter().map(|table| table.info()).collect();
        tables.sort_by(|a, b| a.name.cmp(&b.name));
        tables
    }

    /// A table by its name.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn table(&self, name: &str) -> Result<SavedTable, DataError> {
        let table = self.store.named(name).map_err(|fault| DataError::of(&fault.text))?;
        let described = RemoteTable::new(table.info()).map_err(|error| DataError::of(&error))?;
        Ok(SavedTable { table, described })
    }
}

/// A table of a directory.
#[derive(Debug)]
pub struct SavedTable {
    table: Arc<Table>,
    described: RemoteTable,
}

impl SavedTable {
    /// Its name, schema and size, as a client of a server has them.
    pub fn described(&self) -> &RemoteTable {
        &self.described
    }

    /// Its rows in key order, or a range or some columns of them. Of the options the mode and the
    /// number of rows mean nothing here.
    ///
    /// # Errors
    /// Bounds that are no key, or columns that the table does not have.
    pub fn rows(&self, options: &ScanOptions<'_>) -> Result<SavedRows, ClientError> {
        if options.index.is_some() {
            let text = "a table that nobody serves is read in the order of its keys; serve it to scan through an index";
            return Err(ClientError::Refused { code: FaultCode::BadRequest, text: text.into() });
        }
        let projection = self.described.projection(options.columns)?;
        let (from, to) = options.bounds(&self.described)?;
        let pages = self.table.tree.pages(as_bound(&from), as_bound(&to), Direction::Forward);
        Ok(SavedRows { projection, pages, begun: None })
    }
}

fn as_bound(key: &Option<(Vec<u8>, bool)>) -> Bound<&[u8]> {
    match key {
        None => Bound::Unbounded,
        Some((key, true)) => Bound::Included(key),
        Some((key, false)) => Bound::Excluded(key),
    }
}

/// The rows of a table, in blocks of a page or less.
pub struct SavedRows {
    projection: Projection,
    pages: Pages,
    /// A page of which rows are left.
    begun: Option<Part>,
}

impl fmt::Debug for SavedRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SavedRows").field("projection", &self.projection).finish_non_exhaustive()
    }
}

impl SavedRows {
    /// Which columns they have.
    pub fn projection(&self) -> &Projection {
        &self.projection
    }
}

impl Iterator for SavedRows {
    type Item = Result<RowBlock<Vec<u8>>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut part = match self.begun.take() {
            Some(part) => part,
            None => Part { page: self.pages.next()?, from: 0 },
        };
        let block = copied(&mut part, &self.projection);
        self.begun = block.as_ref().is_ok_and(|(_, more)| *more).then_some(part);
        Some(block.map(|(block, _)| block))
    }
}

/// As many of a page's rows as belong together, copied out as an answer to a scan is; and whether
/// there are more.
fn copied(part: &mut Part, projection: &Projection) -> Result<(RowBlock<Vec<u8>>, bool), Malformed> {
    let from = part.from;
    let (message, end, more) = part.with_state(|state| {
        let bytes = |rows| Copier::bytes_of(state, rows, projection);
        let left = from..state.rows();
        // A page refers to rows that are much longer than itself.
        let room = bytes(left.clone())?.min(TOGETHER_BYTES.max(bytes(from..from + 1)?));
        let mut message = vec![0; HEADER_BYTES + room];
        let mut copier = Copier::new(&mut message, projection);
        let taken = copier.push(state, left, &|extent| part.page.overflow(extent))?;
        if taken == 0 && from < state.rows() {
            return Err(Malformed("a row is longer than its page says"));
        }
        let length = copier.finish(0, 0, false);
        message.truncate(length);
        Ok((message, from + taken, from + taken < state.rows()))
    })?;
    part.from = end;
    Ok((RowBlock::parse(message, projection)?, more))
}

/// The disk of a directory that is there; it is not made.
pub(super) fn existing(dir: &Path) -> Result<Box<dyn Disk>, DataError> {
    if !dir.exists() {
        let what = format!("there is no directory {}; name one that was served with --data", dir.display());
        return Err(DataError::of(&what));
    }
    overside_disk::open(dir).map_err(|error| DataError::of(&error))
}

/// Bytes of rows that are copied together, if each of them is shorter.
const TOGETHER_BYTES: usize = 1 << 20;
