//! Requests and replies.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::Features;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request<'a> {
    /// First message of a connection.
    Hello {
        /// [`VERSION`](super::VERSION).
        version: u16,
        /// Bytes of each receive buffer the client posts: no message to it is longer.
        block_bytes: u32,
        /// What the client can do.
        features: Features,
    },
    /// Create a table.
    Create {
        /// Its name.
        name: &'a str,
        /// Its schema, encoded.
        #[serde(with = "serde_bytes")]
        schema: &'a [u8],
    },
    /// Drop a table and all its rows.
    Drop {
        /// Its name.
        name: &'a str,
    },
    /// The tables by name, as many as make a reply of a usual length.
    List {
        /// Those whose names come behind this one; all, when it is empty.
        after: &'a str,
    },
    /// One table.
    Describe {
        /// Its name.
        name: &'a str,
    },
    /// Put rows: each a u32 length and a value (prefix and rest), one after the other.
    Put {
        /// Which table.
        table: u32,
        /// What about rows that are there.
        mode: PutMode,
        /// The rows.
        #[serde(with = "serde_bytes")]
        rows: &'a [u8],
    },
    /// Get one row by its encoded key.
    Get {
        /// Which table.
        table: u32,
        /// The key.
        #[serde(borrow, with = "serde_bytes")]
        key: &'a [u8],
    },
    /// Delete rows by their encoded keys: each a u32 length and a key.
    Delete {
        /// Which table.
        table: u32,
        /// The keys.
        #[serde(with = "serde_bytes")]
        keys: &'a [u8],
    },
    /// Scan a range.
    #[serde(borrow)]
    Scan(ScanRequest<'a>),
    /// Stop the running scan; its end is still reported.
    Cancel,
    /// How the server does.
    Stats,
    /// Scan a range, by a client that reads in place what is lent to it. Only where both sides have
    /// [`Features::IN_PLACE`].
    ScanInPlace {
        /// Which.
        #[serde(borrow)]
        scan: ScanRequest<'a>,
        /// Bytes of a message that is lent, at most: it must fit into the receive that it meets,
        /// for it may be copied after all.
        lent_bytes_max: u32,
    },
    /// Where the tables are kept, and how far the log and the checkpoints have come
    /// ([`Features::DURABLE`]).
    Status,
    /// Write a checkpoint of each table that has changed ([`Features::DURABLE`]).
    Checkpoint,
    /// Create an index, or go on creating it: a large one takes several such requests, each of
    /// which is answered within a second ([`Features::INDEXES`], as the three that follow).
    CreateIndex {
        /// Of which table.
        table: u32,
        /// Its columns, most significant first.
        columns: Vec<u16>,
    },
    /// Drop an index.
    DropIndex {
        /// Of which table.
        table: u32,
        /// Its columns.
        columns: Vec<u16>,
    },
    /// The indexes of a table.
    Indexes {
        /// Which.
        table: u32,
    },
    /// Scan a range of an index. The bounds are encoded values of the index's columns.
    ScanIndex {
        /// Which.
        #[serde(borrow)]
        scan: ScanRequest<'a>,
        /// The index's columns.
        index: Vec<u16>,
        /// As in [`Request::ScanInPlace`]; 0 where nothing may be lent.
        lent_bytes_max: u32,
    },
    /// How pages of a table travelled ([`Features::CHOICES`], as the next).
    Choices {
        /// Which.
        table: u32,
    },
    /// By which prices the scans of this connection are planned.
    Prices,
    /// What memory is held back, and by whom ([`Features::HELD`]).
    Held,
    /// What a client needs to read a table by itself ([`Features::ONE_SIDED`]).
    Open {
        /// Which table.
        table: u32,
        /// The regions from this place in its arena on, as many as make a reply of a usual length.
        from: u64,
    },
}

/// What about rows that are there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PutMode {
    /// Replace them.
    Upsert,
    /// Refuse them as duplicates.
    Insert,
    /// Replace them, and refuse those that are not there.
    Update,
}

/// A range of a table and how it shall travel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanRequest<'a> {
    /// Which table.
    pub table: u32,
    /// Which keys.
    #[serde(borrow)]
    pub bounds: Bounds<'a>,
    /// Which columns, all when none are named.
    pub columns: Option<Vec<u16>>,
    /// In which way.
    pub mode: Mode,
    /// Stop after at least this many rows (whole pages are sent).
    pub rows_max: Option<u64>,
}

/// Encoded keys and whether they belong to the range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds<'a> {
    /// Lower end.
    #[serde(borrow)]
    pub from: Option<(&'a [u8], bool)>,
    /// Upper end.
    #[serde(borrow)]
    pub to: Option<(&'a [u8], bool)>,
}

/// In which way an answer travels (to-copy §5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// The server packs a clean, ordered answer into transmit buffers (TC-M02).
    Copy,
    /// Rows are sent from where they lie by gather lists (TC-M01).
    Gather,
    /// Base page and deltas as they are; the client merges (TC-M28).
    Delta,
    /// The cheapest of the others, page by page, by price: of all in [`Request::ScanInPlace`], of
    /// the first three in [`Request::Scan`].
    #[default]
    Auto,
    /// As delta, but lent, a page a message: the client reads it where it lies (TC-M33). Where the
    /// provider does not lend, as delta. In [`Request::ScanInPlace`] only.
    InPlace,
}

/// The ways there are, in the order of every array that is indexed by mode.
pub const MODES: [Mode; WAYS] = [Mode::Copy, Mode::Gather, Mode::Delta, Mode::InPlace];
/// How many ways there are.
pub const WAYS: usize = 4;

impl Mode {
    /// For people and for the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Copy => "copy",
            Mode::Gather => "gather",
            Mode::Delta => "delta",
            Mode::Auto => "auto",
            Mode::InPlace => "in-place",
        }
    }
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Mode::Auto]
            .into_iter()
            .chain(MODES)
            .find(|m| m.name() == text)
            .ok_or_else(|| format!("there is no mode {text:?}; choose auto, copy, gather, delta or in-place"))
    }
}

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// To Hello.
    Hello {
        /// The server's version.
        version: u16,
        /// Longest request it takes.
        request_bytes_max: u32,
        /// Its process id, for clients that measure it.
        pid: u32,
        /// What the server can do.
        features: Features,
    },
    /// To Create and Describe.
    Table(TableInfo),
    /// To Drop.
    Dropped,
    /// To List.
    Tables {
        /// In the order of their names.
        tables: Vec<TableInfo>,
        /// There are others behind the last of them.
        more: bool,
    },
    /// To Put and Delete.
    Applied(Applied),
    /// To Get, where the row is there: its value. None where it is not.
    Row(#[serde(with = "serde_bytes")] Option<Vec<u8>>),
    /// The end of a [`Request::Scan`]: without what is of in-place alone.
    ScanEnd(#[serde(with = "three_ways")] ScanReply),
    /// To Stats.
    Stats(ServerStats),
    /// To anything that could not be done.
    Fault(Fault),
    /// The end of a [`Request::ScanInPlace`].
    ScanEndInPlace(ScanReply),
    /// To Status; none where the tables live in memory alone.
    Status(Option<DataStatus>),
    /// To Checkpoint, once it is on the disk.
    Checkpointed(Checkpointed),
    /// To CreateIndex, while there is more to do: ask again.
    Indexing {
        /// Rows looked at.
        rows: u64,
        /// Rows that the table had when it began.
        of: u64,
    },
    /// To CreateIndex, once the index is there.
    Index(IndexInfo),
    /// To Indexes.
    Indexes(Vec<IndexInfo>),
    /// To Choices.
    Choices(Choices),
    /// To Prices.
    Prices(PriceList),
    /// To Held.
    Held(Held),
    /// To Open.
    Opened(Opened),
}

/// Where the pages of a table lie, for a client that reads them by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The number of the leftmost leaf.
    pub first: u32,
    /// Where each block of the mapping table lies in the arena.
    pub blocks: Vec<Option<u64>>,
    /// Bytes of a page, about.
    pub page_bytes: u32,
    /// Bytes of each value's prefix.
    pub prefix_len: u32,
    /// Longest value.
    pub value_max: u32,
    /// Longest key.
    pub key_max: u32,
    /// Parts of the arena, in ascending order.
    pub regions: Vec<OpenRegion>,
    /// There are others behind the last of them.
    pub more: bool,
}

/// A part of an arena that the client may read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenRegion {
    /// Its place in the arena.
    pub at: u64,
    /// Its range of the server's region, and the key, as they travel.
    pub token: [u8; 32],
}

/// How pages of a table travelled, and what that sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choices {
    /// Pages that scans sent in each of [`MODES`] since the server has the table, chosen or asked
    /// for.
    pub pages: [u64; WAYS],
    /// Deltas on a page before the next change consolidates it.
    pub chain_max: u32,
}

/// What sending is thought to cost over the provider of a connection, in ns at the server and at
/// the client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PriceList {
    /// Where they come from: "default", or the calibration's date and machine.
    pub source: String,
    /// A request.
    #[serde(deserialize_with = "prices")]
    pub request_ns: (f64, f64),
    /// Pieces of a request, by length.
    pub pieces: Vec<PiecePrice>,
    /// What making a message of a page took beyond its price in each of [`MODES`], a mean of late;
    /// none where that is unknown.
    pub beyond_ns: [Option<i64>; WAYS],
}

/// What a piece of a request costs at the server and at the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PiecePrice {
    /// Its length.
    pub bytes: u64,
    /// Packed into a transmit buffer.
    #[serde(deserialize_with = "prices")]
    pub copied_ns: (f64, f64),
    /// Sent from where it lies.
    #[serde(deserialize_with = "prices")]
    pub gathered_ns: (f64, f64),
}

/// Two prices of a peer: what is no number, or no time that anything can take, is no price.
fn prices<'de, D: Deserializer<'de>>(decoder: D) -> Result<(f64, f64), D::Error> {
    let prices = <(f64, f64)>::deserialize(decoder)?;
    let sound = |price: f64| price.is_finite() && price >= 0.0;
    if sound(prices.0) && sound(prices.1) { Ok(prices) } else { Err(D::Error::custom("no price")) }
}

/// Memory of tables and indexes that was replaced and cannot be let go yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Bytes that scans and transmissions hold.
    pub by_pins: u64,
    /// Bytes that a thread inside a tree may still see.
    pub by_epochs: u64,
    /// Pages that scans and transmissions hold, current ones included.
    pub pins: u64,
    /// The thread that has been inside a tree longest, if any lags.
    pub stall: Option<Stalled>,
}

/// A thread of a server that does not leave a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stalled {
    /// Whose.
    pub table: String,
    /// The kernel's id of the thread.
    pub thread: u32,
    /// It has been inside for at least so long.
    pub ns: u64,
}

/// An index as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexInfo {
    /// Its columns, most significant first.
    pub columns: Vec<u16>,
    /// Its leaf pages.
    pub pages: u64,
    /// Bytes of memory it has.
    pub bytes: u64,
}

/// A table as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableInfo {
    /// Its number in requests.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Its schema, encoded.
    pub schema: Vec<u8>,
    /// Its rows, counted at some moment of the call.
    pub rows: u64,
    /// Its leaf pages.
    pub pages: u64,
    /// Bytes of memory it has.
    pub bytes: u64,
}

/// What a batch did, row by row. A batch is atomic per row and goes on after a row that fails.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// Rows of the batch that were looked at; the rest was not touched.
    pub rows: u32,
    /// Of those, the ones that changed the table.
    pub applied: u32,
    /// Of those that did, the ones that replaced or removed a row that was there.
    pub replaced: u32,
    /// The others, by their index in the batch, with the reason; at most [`FAILED_MAX`] of them are
    /// named.
    pub failed: Vec<(u32, FaultCode)>,
}

/// How many failed rows a reply names.
pub const FAILED_MAX: usize = 256;

/// How a scan ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanReply {
    /// Pages that were sent in each of [`MODES`].
    pub chosen: [u64; WAYS],
    /// What the planner expected to pay for all pages in each of [`MODES`], in ns of the slower
    /// side.
    pub price_ns: [u64; WAYS],
    /// Messages sent.
    pub messages: u64,
    /// Bytes the server's processor packed.
    pub bytes_copied: u64,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Pages copied out though another way was wanted, because the connection's pins were spent.
    pub over_budget: u64,
    /// Whether the client cancelled it.
    pub cancelled: bool,
}

/// The end of a scan as clients know it that do not read in place.
mod three_ways {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::ScanReply;

    #[derive(Serialize, Deserialize)]
    struct ThreeWays {
        chosen: [u64; 3],
        price_ns: [u64; 3],
        messages: u64,
        bytes_copied: u64,
        bytes_sent: u64,
        over_budget: u64,
        cancelled: bool,
    }

    pub(super) fn serialize<S: Serializer>(reply: &ScanReply, serializer: S) -> Result<S::Ok, S::Error> {
        let ScanReply { chosen, price_ns, messages, bytes_copied, bytes_sent, over_budget, cancelled } = *reply;
        let [chosen, price_ns] = [chosen, price_ns].map(|[copy, gather, delta, _]| [copy, gather, delta]);
        ThreeWays { chosen, price_ns, messages, bytes_copied, bytes_sent, over_budget, cancelled }.serialize(serializer)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(deserializer: D) -> Result<ScanReply, D::Error> {
        let ThreeWays { chosen, price_ns, messages, bytes_copied, bytes_sent, over_budget, cancelled } =
            ThreeWays::deserialize(deserializer)?;
        let [chosen, price_ns] = [chosen, price_ns].map(|[copy, gather, delta]| [copy, gather, delta, 0]);
        Ok(ScanReply { chosen, price_ns, messages, bytes_copied, bytes_sent, over_budget, cancelled })
    }
}

/// How a server does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStats {
    /// Process id.
    pub pid: u32,
    /// Open connections.
    pub connections: u64,
    /// Bytes of table memory committed.
    pub bytes_committed: u64,
    /// Bytes of table memory in use.
    pub bytes_allocated: u64,
    /// Bytes retired but held by scans and transmissions.
    pub bytes_pinned: u64,
    /// Processor time of the whole process, in ns.
    pub cpu_ns: u64,
    /// Of it, spent polling for nothing.
    pub empty_poll_ns: u64,
    /// Connections closed because of malformed messages or missed deadlines.
    pub closed_for_cause: u64,
    /// Pages consolidated since the start.
    pub consolidations: u64,
    /// Connections whose delete waits for memory that others hold back.
    pub waiting: u64,
}

/// What an acknowledged change survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Durability {
    /// The end of the process, of the kernel and of the power.
    #[default]
    Sync,
    /// The end of the process; of the kernel and the power all but the last few milliseconds.
    Group,
    /// A clean end, or a checkpoint.
    None,
}

impl Durability {
    /// For people and for the command line.
    pub fn name(self) -> &'static str {
        match self {
            Durability::Sync => "sync",
            Durability::Group => "group",
            Durability::None => "none",
        }
    }
}

impl std::str::FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Durability::Sync, Durability::Group, Durability::None]
            .into_iter()
            .find(|durability| durability.name() == text)
            .ok_or_else(|| format!("there is no durability {text:?}; choose sync, group or none"))
    }
}

/// Where a server keeps its tables, and how far it has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataStatus {
    /// The directory.
    pub dir: String,
    /// What an acknowledged change survives.
    pub durability: Durability,
    /// How files are written, for people.
    pub way: String,
    /// Bytes of log since the directory was made: gathered, and on the disk.
    pub log_position: u64,
    /// Of those, on the disk.
    pub log_durable: u64,
    /// Bytes of log since the beginning of the last checkpoint: what a recovery would replay.
    pub since_checkpoint: u64,
    /// Checkpoints since the start of the server.
    pub checkpoints: u64,
    /// One is being written now.
    pub is_checkpointing: bool,
    /// What sets the pace of checkpoints.
    pub governor: GovernorStatus,
}

/// How fast work in the background may go, and what that is set by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GovernorStatus {
    /// In bytes a second; without work in the background, what it last came to.
    pub pace: u64,
    /// What 999 of 1,000 requests take at most, from their arrival until their replies are posted,
    /// of late, in ns; none without requests.
    pub p999_ns: Option<u64>,
    /// The same before the work under way began; none where there were too few requests.
    pub undisturbed_ns: Option<u64>,
    /// How often the pace was halved, since the start of the server.
    pub halvings: u64,
}

/// What a checkpoint did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpointed {
    /// Tables written.
    pub tables: u32,
    /// Tables that had not changed since the last one.
    pub unchanged: u32,
    /// Pages written.
    pub pages: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// What kind of fault.
    pub code: FaultCode,
    /// For people: what to do next.
    pub text: String,
}

/// Kinds of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FaultCode {
    /// No such table.
    UnknownTable,
    /// There is a table of this name already.
    TableExists,
    /// A schema, name or column that cannot be.
    BadRequest,
    /// A row that does not have the table's form.
    BadRow,
    /// A key is there already.
    Duplicate,
    /// A key is not there.
    NotFound,
    /// A value is larger than 1 MiB.
    TooLarge,
    /// The memory limit is reached.
    Exhausted,
    /// The server shuts down.
    Closing,
    /// The server has as many connections as it takes.
    TooManyConnections,
    /// The disk that the log lies on is full.
    DiskFull,
}

impl FaultCode {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            FaultCode::UnknownTable => "there is no such table",
            FaultCode::TableExists => "there is a table of this name already",
            FaultCode::BadRequest => "the request cannot be carried out",
            FaultCode::BadRow => "the row does not have the table's form, or is too long for one of its indexes",
            FaultCode::Duplicate => "the key is there already",
            FaultCode::NotFound => "the key is not there",
            FaultCode::TooLarge => "the value is larger than 1 MiB",
            FaultCode::Exhausted => "the server's memory limit is reached",
            FaultCode::Closing => "the server shuts down",
            FaultCode::TooManyConnections => "the server has as many connections as it takes",
            FaultCode::DiskFull => "the disk that the server's log lies on is full",
        }
    }
}
