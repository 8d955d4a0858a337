//! The tables of a server.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use overside_bwtree::{Arena, Options, SegmentArena, SegmentObserver, Stamps, SystemWaits, Tree, Waits};
use overside_disk::mutant;
use overside_log::{self as log, Claim};
use overside_service::Hold;

use super::chains::Chains;
use super::durable::{Change, Denied, Journal};
use super::index::{self, Indexes};
use super::parts::World;
use super::registrar::Registrar;
use crate::key::KeyCodec;
use crate::row::RowLayout;
use crate::schema::Schema;
use crate::wire::{Fault, FaultCode, LIST_BYTES_MAX, OpenRegion, Opened, TABLE_NAME_BYTES_MAX, TableInfo};

/// Tables by name and by number. The lock is taken when a table is created, dropped or first
/// used by a connection; reading and writing rows never takes it.
#[derive(Debug)]
pub(crate) struct Store {
    tables: RwLock<BTreeMap<String, Arc<Table>>>,
    next: AtomicU32,
    /// No table was created or dropped with a larger stamp.
    changed: AtomicU64,
    memory: MemoryLimit,
    observer: Arc<dyn SegmentObserver>,
    /// How its trees wait, and how large their pages are.
    world: World,
    /// Where its owner has chosen it for all tables.
    chain_max: Option<usize>,
    /// None where tables live in memory alone.
    journal: Option<Arc<Journal>>,
    /// Knows the regions, where clients may read them.
    open: Option<Arc<Registrar>>,
}

/// How much memory all tables together may commit, and in which steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryLimit {
    /// Bytes of all segments together.
    pub(crate) bytes_max: usize,
    /// Bytes of each segment.
    pub(crate) segment_bytes: usize,
}

/// A table: a tree, and how rows lie in it.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) schema: Schema,
    pub(crate) layout: Arc<RowLayout>,
    pub(crate) keys: KeyCodec,
    pub(crate) tree: Tree,
    pub(crate) indexes: Indexes,
    pub(crate) chains: Chains,
    rows: AtomicI64,
    /// No change of it has a larger stamp, once it is on its way to the log.
    changed: AtomicU64,
    dropped: AtomicBool,
    journal: Option<Arc<Journal>>,
}

impl Store {
    pub(crate) fn new(
        memory: MemoryLimit,
        observer: Arc<dyn SegmentObserver>,
        world: World,
        chain_max: Option<usize>,
        journal: Option<Arc<Journal>>,
    ) -> Self {
        let (tables, next, changed) = (RwLock::default(), AtomicU32::new(1), AtomicU64::new(0));
        Self { tables, next, changed, memory, observer, world, chain_max, journal, open: None }
    }

    /// The same, whose tables clients may read by themselves.
    pub(crate) fn opened(mut self, registrar: Arc<Registrar>) -> Self {
        self.open = Some(registrar);
        self
    }

    /// Where a table's pages lie, by the regions from `from` on of a listener.
    pub(crate) fn open(&self, table: &Table, domain: usize, from: u64) -> Result<Opened, Fault> {
        let (Some(registrar), Some(opening)) = (&self.open, table.tree.opening()) else {
            let text = "this server shows its memory to nobody; start it with --one-sided";
            return Err(fault(FaultCode::BadRequest, text.into()));
        };
        // Before the registrar is asked: it is called with the arena's lock held.
        let mut segments = table.tree.segments();
        segments.retain(|(at, _, _)| *at >= from);
        let more = segments.len() > REGIONS_MAX;
        segments.truncate(REGIONS_MAX);
        let region = |(at, _, segment)| {
            // One that is being registered is not told of yet.
            Some(OpenRegion { at, token: registrar.token(domain, segment)?.to_bytes() })
        };
        Ok(Opened {
            first: opening.first,
            blocks: opening.blocks,
            page_bytes: opening.page_bytes as u32,
            prefix_len: opening.prefix_len as u32,
            value_max: opening.value_max as u32,
            key_max: opening.key_max as u32,
            regions: segments.into_iter().filter_map(region).collect(),
            more,
        })
    }

    /// Creates a table; with what the reply waits for.
    pub(crate) fn create(&self, name: &str, schema: &[u8]) -> Result<(Arc<Table>, Hold), Denied> {
        check_name(name)?;
        let encoded = schema;
        let schema = Schema::decode(encoded).map_err(|e| fault(FaultCode::BadRequest, e.to_string()))?;
        let mut tables = self.tables.write().unwrap_or_else(|e| e.into_inner());
        if tables.contains_key(name) {
            let text = format!("there is a table {name:?} already; drop it first, or choose another name");
            return Err(fault(FaultCode::TableExists, text).into());
        }
        let described = description(name, encoded);
        let id = self.next.load(Ordering::Relaxed);
        if id == u32::MAX {
            let text = "all 2^32 numbers of tables have been given, and none is given twice; load the tables into a new \
                        server, or a new directory";
            return Err(fault(FaultCode::Exhausted, text.into()).into());
        }
        if let Some(journal) = &self.journal {
            journal.may_number(id)?;
        }
        let mut change = self.change(Claim::Put, described.len())?;
        self.next.store(id.saturating_add(1), Ordering::Relaxed);
        let table = match self.new_table(id, name, schema, &empty) {
            Ok(table) => Arc::new(table),
            Err(fault) => {
                // A change ends without the lock.
                drop(tables);
                return Err(fault.into());
            }
        };
        tables.insert(name.into(), table.clone());
        let stamp = change.draw();
        if !mutant("create-not-logged") {
            change.record(stamp, id, log::Change::Create { options: &described });
        }
        self.log(&mut change, stamp);
        drop(tables);
        Ok((table, change.done()))
    }

    /// Appends the record of a create or a drop, under the lock: before anybody sees it, and before
    /// the name is another table's. A crash finds both in the log, or the first alone.
    fn log(&self, change: &mut Change<'_>, stamp: u64) {
        self.changed.fetch_max(stamp, Ordering::Relaxed);
        if !mutant("tables-logged-late") {
            change.append();
        }
    }

    /// A table that a log or a checkpoint describes, under its old number, with the tree that
    /// `make_tree` makes of it. None where there is a later table of this name: the log says
    /// further on that the earlier one was dropped.
    pub(crate) fn restore(
        &self,
        id: u32,
        described: &[u8],
        make_tree: &MakeTree<'_>,
    ) -> Result<Option<Arc<Table>>, Fault> {
        let garbled = || fault(FaultCode::BadRequest, format!("the description of table {id} is garbled"));
        let (indexes, rest) = described_indexes(described).ok_or_else(garbled)?;
        let (name, schema) = described_as(rest).ok_or_else(garbled)?;
        check_name(name)?;
        let schema = Schema::decode(schema).map_err(|e| fault(FaultCode::BadRequest, e.to_string()))?;
        let mut tables = self.tables.write().unwrap_or_else(|e| e.into_inner());
        self.number_from(id.saturating_add(1));
        match tables.get(name) {
            Some(later) if later.id > id => return Ok(None),
            Some(_) => return Err(fault(FaultCode::TableExists, format!("there are two tables {name:?}"))),
            None => {}
        }
        let table = Arc::new(self.new_table(id, name, schema, make_tree)?);
        for columns in indexes {
            table.indexes.expect(self, &table, &columns)?;
        }
        tables.insert(name.into(), table.clone());
        Ok(Some(table))
    }

    /// Tables get numbers from `next` on, at least.
    pub(crate) fn number_from(&self, next: u32) {
        self.next.fetch_max(next, Ordering::Relaxed);
    }

    /// No table has this number or a greater one.
    pub(crate) fn next_number(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    fn change(&self, claim: Claim, bytes: usize) -> Result<Change<'_>, Denied> {
        Change::begin(self.journal.as_deref(), claim, 1, bytes)
    }

    /// What a reply waits for that shows which tables there are.
    pub(crate) fn shown(&self) -> Hold {
        self.journal.as_ref().map_or(Hold::NONE, |journal| journal.shown_tables())
    }

    /// The log, where there is one.
    pub(crate) fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.as_ref()
    }

    fn new_table(&self, id: u32, name: &str, schema: Schema, make_tree: &MakeTree<'_>) -> Result<Table, Fault> {
        let layout = RowLayout::new(&schema);
        let exhausted = |e: &dyn std::fmt::Display| {
            fault(
                FaultCode::Exhausted,
                format!("no memory for table {name:?}: {e}; raise the limit (--memory), or drop a table"),
            )
        };
        let config = self.config(&format!("table {name:?}"), layout.prefix_len())?;
        let tree = make_tree(config);
        Ok(Table {
            id,
            name: name.into(),
            keys: KeyCodec::new(&schema),
            layout: Arc::new(layout),
            tree: tree.map_err(|error| match error {
                TreeError::Exhausted(why) => exhausted(&why),
                TreeError::Broken(text) => fault(FaultCode::BadRequest, text),
            })?,
            schema,
            indexes: Indexes::new(self.world.waits),
            chains: Chains::new(self.chain_max.is_some()),
            rows: AtomicI64::new(0),
            changed: AtomicU64::new(0),
            dropped: AtomicBool::new(false),
            journal: self.journal.clone(),
        })
    }

    /// What a tree of this server is made of.
    fn config(&self, what: &str, prefix_len: usize) -> Result<TreeConfig, Fault> {
        let arena = SegmentArena::new(self.memory.segment_bytes, self.memory.bytes_max, self.observer.clone())
            .map_err(|e| {
                let meant = "raise the limit of the server's address space (ulimit -v), or lower its --memory, which each table \
                             reserves addresses for";
                fault(FaultCode::Exhausted, format!("no addresses for {what}: {e}; {meant}"))
            })?;
        let defaults = Options::default();
        let page_bytes = self.world.page_bytes.unwrap_or(defaults.page_bytes);
        let chain_max = self.chain_max.unwrap_or(defaults.chain_max);
        let options = Options { prefix_len, page_bytes, chain_max, ..defaults };
        let waits = self.world.waits.unwrap_or(&SystemWaits);
        let stamps = self.journal.as_ref().map(|journal| journal.stamps.clone());
        Ok(TreeConfig { arena: Arc::new(arena), options, waits, stamps, open: self.open.is_some() })
    }

    /// An empty tree for an index.
    pub(super) fn new_tree(&self, what: &str, prefix_len: usize) -> Result<Tree, Fault> {
        empty(self.config(what, prefix_len)?).map_err(|error| match error {
            TreeError::Exhausted(why) => {
                let text = format!("no memory for {what}: {why}; raise the limit (--memory), or drop a table");
                fault(FaultCode::Exhausted, text)
            }
            TreeError::Broken(text) => fault(FaultCode::BadRequest, text),
        })
    }

    /// Drops an index of a table; what the reply waits for.
    pub(crate) fn drop_index(&self, table: &Table, columns: &[u16]) -> Result<Hold, Denied> {
        let described = index::described(columns);
        let mut change = self.change(Claim::Put, described.len())?;
        let gone = table.indexes.take_out(columns, || {
            let stamp = change.draw();
            table.note_change(stamp);
            change.record(stamp, table.id, log::Change::DropIndex { options: &described });
            change.append();
        });
        if !gone {
            table.indexes.of(table, columns)?;
        }
        Ok(change.done())
    }

    pub(crate) fn named(&self, name: &str) -> Result<Arc<Table>, Fault> {
        let tables = self.tables.read().unwrap_or_else(|e| e.into_inner());
        tables.get(name).cloned().ok_or_else(|| unknown(&tables, name))
    }

    pub(crate) fn numbered(&self, id: u32) -> Result<Arc<Table>, Fault> {
        let tables = self.tables.read().unwrap_or_else(|e| e.into_inner());
        let found = tables.values().find(|t| t.id == id).cloned();
        found.ok_or_else(|| fault(FaultCode::UnknownTable, "the table was dropped meanwhile; look it up again".into()))
    }

    /// Drops a table; what the reply waits for.
    pub(crate) fn drop_table(&self, name: &str) -> Result<Hold, Denied> {
        let mut change = self.change(Claim::Delete, 0)?;
        let mut tables = self.tables.write().unwrap_or_else(|e| e.into_inner());
        let table = tables.remove(name).ok_or_else(|| unknown(&tables, name))?;
        table.dropped.store(true, Ordering::Release);
        let stamp = change.draw();
        change.record(stamp, table.id, log::Change::Drop);
        self.log(&mut change, stamp);
        // Its memory goes here, unless a scan still goes through it; nobody shall wait for that.
        drop(tables);
        self.journal.iter().for_each(|journal| journal.point("dropped"));
        Ok(change.done())
    }

    /// Forgets a table that a log says was dropped.
    pub(crate) fn forget(&self, id: u32) {
        self.tables.write().unwrap_or_else(|e| e.into_inner()).retain(|_, table| table.id != id);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Table>> {
        self.tables.read().unwrap_or_else(|e| e.into_inner()).values().cloned().collect()
    }

    /// All tables, and the newest stamp of a create or a drop that they show.
    pub(crate) fn all_shown(&self) -> (Vec<Arc<Table>>, u64) {
        let tables = self.tables.read().unwrap_or_else(|e| e.into_inner());
        (tables.values().cloned().collect(), self.changed.load(Ordering::Relaxed))
    }

    /// The tables behind `after` in the order of their names, as many as a reply has; and whether
    /// there are more.
    pub(crate) fn listed(&self, after: &str) -> (Vec<TableInfo>, bool) {
        let mut behind = self.all();
        behind.retain(|table| table.name.as_str() > after);
        behind.sort_by(|a, b| a.name.cmp(&b.name));
        let (mut listed, mut bytes) = (Vec::new(), 0);
        for table in &behind {
            let info = table.info();
            bytes += info.name.len() + info.schema.len();
            if bytes > LIST_BYTES_MAX && !listed.is_empty() {
                return (listed, true);
            }
            listed.push(info);
        }
        (listed, false)
    }
}

impl Table {
    /// Whether somebody dropped it; scans that go through it come to their end.
    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    /// Begins to change up to `count` rows, whose records take up to `bytes` bytes.
    ///
    /// # Errors
    /// There is no room in the log.
    #[inline]
    pub(crate) fn change(&self, claim: Claim, count: usize, bytes: usize) -> Result<Change<'_>, Denied> {
        Change::begin(self.journal.as_deref(), claim, count, bytes)
    }

    /// What a reply waits for that shows changes up to `stamp`.
    #[inline]
    pub(crate) fn shown(&self, stamp: u64) -> Hold {
        self.journal.as_ref().map_or(Hold::NONE, |journal| journal.shown(stamp))
    }

    /// Its rows, as counted by now.
    pub(crate) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed).max(0) as u64
    }

    /// Counts rows that came (or went).
    pub(crate) fn count(&self, change: i64) {
        self.rows.fetch_add(change, Ordering::Relaxed);
    }

    /// It was changed with this stamp. To be said before the change's record is appended.
    pub(crate) fn note_change(&self, stamp: u64) {
        self.changed.fetch_max(stamp, Ordering::Relaxed);
    }

    /// No change whose record was appended has a larger stamp.
    pub(crate) fn changed(&self) -> u64 {
        self.changed.load(Ordering::Relaxed)
    }

    /// Its name, schema and indexes, as its record in a checkpoint has them.
    pub(crate) fn description(&self) -> Vec<u8> {
        let mut schema = Vec::new();
        self.schema.encode(&mut schema);
        let indexes = self.indexes.whole();
        if indexes.is_empty() {
            return description(&self.name, &schema);
        }
        // No table's name is empty.
        let mut out = vec![0, indexes.len() as u8];
        indexes.iter().for_each(|index| out.extend(index::described(index.columns())));
        out.extend(description(&self.name, &schema));
        out
    }

    pub(crate) fn info(&self) -> TableInfo {
        let stats = self.tree.stats();
        let mut schema = Vec::new();
        self.schema.encode(&mut schema);
        TableInfo {
            id: self.id,
            name: self.name.clone(),
            schema,
            rows: self.rows(),
            pages: 1 + stats.splits.saturating_sub(stats.merges),
            bytes: stats.committed_bytes,
        }
    }
}

/// What a table's tree is made of.
pub(crate) struct TreeConfig {
    pub(crate) arena: Arc<dyn Arena>,
    pub(crate) options: Options,
    pub(crate) waits: &'static dyn Waits,
    pub(crate) stamps: Option<Arc<Stamps>>,
    /// Peers may read it.
    pub(crate) open: bool,
}

/// Makes a table's tree.
pub(crate) type MakeTree<'p> = dyn Fn(TreeConfig) -> Result<Tree, TreeError> + 'p;

/// Why there is no tree.
pub(crate) enum TreeError {
    /// There is no memory for it, as the text says.
    Exhausted(String),
    /// It cannot be made of what there is, as the text says in full.
    Broken(String),
}

/// A tree without rows.
pub(crate) fn empty(config: TreeConfig) -> Result<Tree, TreeError> {
    let TreeConfig { arena, options, waits, stamps, open } = config;
    let tree = match stamps {
        Some(stamps) => Tree::stamped(arena, options, waits, stamps),
        None if open => Tree::open(arena, options, waits),
        None => Tree::with_waits(arena, options, waits),
    };
    tree.map_err(|error| TreeError::Exhausted(error.to_string()))
}

/// A table's name and schema, as its record in the log has them.
fn description(name: &str, schema: &[u8]) -> Vec<u8> {
    [&[name.len() as u8][..], name.as_bytes(), schema].concat()
}

/// The indexes of a table's description, and what stands behind them.
fn described_indexes(description: &[u8]) -> Option<(Vec<Vec<u16>>, &[u8])> {
    let Some((count, mut rest)) = description.strip_prefix(&[0]).and_then(<[u8]>::split_first) else {
        return Some((Vec::new(), description));
    };
    let mut indexes = Vec::new();
    for _ in 0..*count {
        let (columns, behind) = index::described_as(rest)?;
        indexes.push(columns);
        rest = behind;
    }
    Some((indexes, rest))
}

/// The name and the schema of a table's description.
pub(crate) fn described_as(description: &[u8]) -> Option<(&str, &[u8])> {
    let (_, description) = described_indexes(description)?;
    let (len, rest) = description.split_first()?;
    let (name, schema) = rest.split_at_checked(usize::from(*len))?;
    Some((std::str::from_utf8(name).ok()?, schema))
}

fn unknown(tables: &BTreeMap<String, Arc<Table>>, name: &str) -> Fault {
    let mut names: Vec<&str> = tables.keys().map(String::as_str).collect();
    names.sort_unstable();
    let there = match names.as_slice() {
        [] => "there are no tables yet; load one first".into(),
        names if names.len() > NAMED_MAX => {
            format!("there are {}, the first of them: {}", names.len(), names[..NAMED_MAX].join(", "))
        }
        names => format!("there are: {}", names.join(", ")),
    };
    fault(FaultCode::UnknownTable, format!("there is no table {name:?}; {there}"))
}

fn check_name(name: &str) -> Result<(), Fault> {
    let fits = !name.is_empty() && name.len() <= TABLE_NAME_BYTES_MAX && !name.chars().any(char::is_control);
    if fits {
        return Ok(());
    }
    let text = format!("a table's name has 1 to {TABLE_NAME_BYTES_MAX} bytes and no control characters");
    Err(fault(FaultCode::BadRequest, text))
}

pub(crate) fn fault(code: FaultCode, text: String) -> Fault {
    Fault { code, text }
}

/// Regions that a reply names.
const REGIONS_MAX: usize = 500;
/// Tables that an error names.
const NAMED_MAX: usize = 50;
