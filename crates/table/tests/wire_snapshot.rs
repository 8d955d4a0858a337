//! Every message of the protocol, byte for byte.
//!
//! A change here is a change of the wire: `wire::VERSION` goes up with it, and `docs/reference/wire.md` says what is new.
//! Accept it with `INSTA_UPDATE=always cargo test -p overside-table --test wire_snapshot`.

use std::fmt::Write;

use overside_table::schema::{Column, ColumnType, Schema};
use overside_table::wire::*;
use serde::Serialize;

#[test]
fn requests() {
    let mut lines = Lines::new();
    lines.add(&Request::Hello { version: VERSION, block_bytes: 36 << 10, features: Features::ALL });
    lines.add(&Request::Create { name: "t", schema: &schema() });
    lines.add(&Request::Drop { name: "t" });
    lines.add(&Request::List { after: "t" });
    lines.add(&Request::Describe { name: "t" });
    for mode in [PutMode::Upsert, PutMode::Insert, PutMode::Update] {
        lines.add(&Request::Put { table: 3, mode, rows: b"\x02\0\0\0ab" });
    }
    lines.add(&Request::Get { table: 3, key: b"\x80\x01" });
    lines.add(&Request::Delete { table: 3, keys: b"\x02\0\0\0\x80\x01" });
    for mode in [Mode::Copy, Mode::Gather, Mode::Delta, Mode::Auto, Mode::InPlace] {
        let bounds = Bounds { from: Some((b"a", true)), to: Some((b"b", false)) };
        let scan = ScanRequest { table: 3, bounds, columns: Some(vec![0, 2]), mode, rows_max: Some(300) };
        lines.add(&match mode {
            Mode::InPlace => Request::ScanInPlace { scan, lent_bytes_max: 102_400 },
            _ => Request::Scan(scan),
        });
    }
    lines.add(&Request::Cancel);
    lines.add(&Request::Stats);
    lines.add(&Request::Status);
    lines.add(&Request::Checkpoint);
    lines.add(&Request::CreateIndex { table: 3, columns: vec![1, 300] });
    lines.add(&Request::DropIndex { table: 3, columns: vec![1] });
    lines.add(&Request::Indexes { table: 3 });
    let bounds = Bounds { from: Some((b"a", true)), to: None };
    let scan = ScanRequest { table: 3, bounds, columns: None, mode: Mode::Auto, rows_max: None };
    lines.add(&Request::ScanIndex { scan, index: vec![1], lent_bytes_max: 0 });
    lines.add(&Request::Choices { table: 3 });
    lines.add(&Request::Prices);
    lines.add(&Request::Held);
    lines.add(&Request::Open { table: 3, from: 1 << 23 });
    insta::assert_snapshot!(lines.0);
}

#[test]
fn replies() {
    let mut lines = Lines::new();
    let table = || TableInfo { id: 3, name: "t".into(), schema: schema(), rows: 600_572, pages: 7_400, bytes: 1 << 27 };
    lines.add(&Reply::Hello {
        version: VERSION,
        request_bytes_max: REQUEST_BYTES_MAX as u32,
        pid: 4711,
        features: Features::ALL,
    });
    lines.add(&Reply::Table(table()));
    lines.add(&Reply::Dropped);
    lines.add(&Reply::Tables { tables: vec![table()], more: true });
    let failed = vec![(1, FaultCode::Duplicate), (2, FaultCode::BadRow)];
    lines.add(&Reply::Applied(Applied { rows: 5, applied: 3, replaced: 1, failed }));
    lines.add(&Reply::Row(Some(b"row".to_vec())));
    lines.add(&Reply::Row(None));
    let [chosen, price_ns] = [[1, 2, 3, 0], [400, 500, 600, 0]];
    let end =
        ScanReply { chosen, price_ns, messages: 7, bytes_copied: 8, bytes_sent: 9, over_budget: 10, cancelled: true };
    lines.add(&Reply::ScanEnd(end));
    lines.add(&Reply::ScanEndInPlace(ScanReply { chosen: [1, 2, 3, 4], price_ns: [400, 500, 600, 700], ..end }));
    lines.add(&Reply::Stats(ServerStats {
        pid: 1,
        connections: 2,
        bytes_committed: 3,
        bytes_allocated: 4,
        bytes_pinned: 5,
        cpu_ns: 6,
        empty_poll_ns: 7,
        closed_for_cause: 8,
        consolidations: 9,
        waiting: 10,
    }));
    use FaultCode::*;
    let codes = [UnknownTable, TableExists, BadRequest, BadRow, Duplicate, NotFound, TooLarge, Exhausted, Closing];
    for code in codes.into_iter().chain([TooManyConnections, DiskFull]) {
        lines.add(&Reply::Fault(Fault { code, text: "why".into() }));
    }
    lines.add(&Reply::Status(None));
    for durability in [Durability::Sync, Durability::Group, Durability::None] {
        lines.add(&Reply::Status(Some(DataStatus {
            dir: "/data".into(),
            durability,
            way: "io_uring".into(),
            log_position: 1,
            log_durable: 2,
            since_checkpoint: 3,
            checkpoints: 5,
            is_checkpointing: true,
            governor: GovernorStatus { pace: 6, p999_ns: Some(700), undisturbed_ns: None, halvings: 8 },
        })));
    }
    lines.add(&Reply::Checkpointed(Checkpointed { tables: 1, unchanged: 2, pages: 3, bytes: 4 }));
    let index = || IndexInfo { columns: vec![1, 300], pages: 2, bytes: 3 };
    lines.add(&Reply::Indexing { rows: 1, of: 2 });
    lines.add(&Reply::Index(index()));
    lines.add(&Reply::Indexes(vec![index(), index()]));
    lines.add(&Reply::Choices(Choices { pages: [1, 2, 3, 400], chain_max: 8 }));
    let piece = PiecePrice { bytes: 128, copied_ns: (1.5, 2.5), gathered_ns: (3.5, 4.5) };
    let beyond_ns = [Some(-1), None, Some(300), None];
    lines.add(&Reply::Prices(PriceList {
        source: "here".into(),
        request_ns: (5.5, 6.5),
        pieces: vec![piece],
        beyond_ns,
    }));
    let stall = Some(Stalled { table: "t".into(), thread: 4711, ns: 300 });
    for stall in [None, stall] {
        lines.add(&Reply::Held(Held { by_pins: 1, by_epochs: 2, pins: 3, stall }));
    }
    lines.add(&Reply::Opened(Opened {
        first: 1,
        blocks: vec![Some(64), None, Some(1 << 23)],
        page_bytes: 16 << 10,
        prefix_len: 24,
        value_max: 1 << 20,
        key_max: 2 << 10,
        regions: vec![OpenRegion { at: 1 << 23, token: std::array::from_fn(|at| at as u8) }],
        more: true,
    }));
    insta::assert_snapshot!(lines.0);
}

/// A column of every type, keyed by two.
fn schema() -> Vec<u8> {
    let types = [
        ColumnType::Int64,
        ColumnType::Utf8,
        ColumnType::Int8,
        ColumnType::Int16,
        ColumnType::Int32,
        ColumnType::UInt8,
        ColumnType::UInt16,
        ColumnType::UInt32,
        ColumnType::UInt64,
        ColumnType::Float32,
        ColumnType::Float64,
        ColumnType::Decimal128 { precision: 15, scale: 2 },
        ColumnType::Date32,
        ColumnType::Boolean,
        ColumnType::Binary,
    ];
    let columns = types.into_iter().enumerate().map(|(i, kind)| {
        let name = format!("c{i}");
        if i < 2 { Column::new(name, kind) } else { Column::nullable(name, kind) }
    });
    let mut out = Vec::new();
    Schema::with_key(columns.collect(), &["c0", "c1"]).expect("a schema within the limits").encode(&mut out);
    out
}

struct Lines(String);

impl Lines {
    fn new() -> Lines {
        Lines(String::new())
    }

    /// The first word of the message for people, then its bytes.
    fn add<T: Serialize + std::fmt::Debug>(&mut self, message: &T) {
        let shown = format!("{message:?}");
        let name: String = shown.chars().take_while(|c| c.is_alphanumeric()).collect();
        let bytes = encode(9, message);
        let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").expect("a string takes everything");
            hex
        });
        writeln!(self.0, "{name} {hex}").expect("a string takes everything");
    }
}
