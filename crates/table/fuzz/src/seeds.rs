//! Writes a small corpus: a valid input of each kind.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use overside_bwtree::{Leaf, LeafBuilder, Rest};
use overside_table::block::{Copier, DeltaAnswer, Fragment, GatherAnswer, PageState};
use overside_table::key::KeyCodec;
use overside_table::row::{RowBuilder, RowLayout, RowView, ValueRef};
use overside_table::wire::{
    self, Applied, Bounds, Fault, FaultCode, Mode, PutMode, Reply, Request, ScanReply, ScanRequest, ServerStats,
    TableInfo,
};
use overside_table_fuzz::{projection, table};

fn main() -> std::io::Result<()> {
    let schema = table();
    let layout = Arc::new(RowLayout::new(&schema));
    let (codec, mut builder) = (KeyCodec::new(&schema), RowBuilder::new(layout.clone()));
    let mut leaf = LeafBuilder::new(layout.prefix_len());
    let (mut rows, mut keys) = (Vec::new(), Vec::new());
    for id in 0..5 {
        let name = format!("name\0{id}");
        let values = [
            ValueRef::Int64(id),
            ValueRef::Utf8(&name),
            if id == 2 { ValueRef::Null } else { ValueRef::Int8(-3) },
            ValueRef::Decimal128(12345),
            ValueRef::Timestamp(1),
            ValueRef::Boolean(true),
            ValueRef::FixedBinary(b"12345"),
            if id == 3 { ValueRef::Null } else { ValueRef::Binary(b"note") },
            ValueRef::Float64(0.5),
        ];
        let value = builder.encode(&values).expect("a row of the table");
        let row = RowView::of_value(value, &layout).expect("a row of the table");
        let mut key = Vec::new();
        codec.encode_row(&row, &mut key).expect("a short key");
        leaf.push(&key, row.prefix(), Rest::Inline(row.rest())).expect("ascending keys");
        rows.push(value.to_vec());
        keys.push(key);
    }
    let mut encoded = Vec::new();
    schema.encode(&mut encoded);
    write("schema", 0, &encoded)?;
    write("row", 0, &rows[2])?;
    write("key", 0, &keys[1])?;
    let mut batch = Vec::new();
    rows.iter().for_each(|row| wire::push_piece(&mut batch, row));
    write("batch", 0, &batch)?;
    let page = leaf.finish();
    for choice in 0..3 {
        for (number, message) in messages(&page, choice).iter().enumerate() {
            write("scan_answer", usize::from(choice) * 3 + number, &[&[choice][..], message].concat())?;
        }
    }
    let said = [requests(&encoded, &rows[0], &keys[1]), replies(&encoded, &rows[2])].concat();
    for (number, message) in said.iter().enumerate() {
        write("control", number, message)?;
    }
    for (number, block_bytes) in [40, 100].into_iter().enumerate() {
        let streams: Vec<u8> = said[1..=number + 1].iter().flat_map(|whole| parts(whole, block_bytes)).collect();
        write("parts", number, &streams)?;
    }
    Ok(())
}

/// One request of each kind.
fn requests(schema: &[u8], row: &[u8], key: &[u8]) -> Vec<Vec<u8>> {
    let listed = |bytes: &[u8]| {
        let mut batch = Vec::new();
        wire::push_piece(&mut batch, bytes);
        batch
    };
    let (row, keys) = (listed(row), listed(key));
    let scan =
        |bounds, columns, mode, rows_max| Request::Scan(ScanRequest { table: 3, bounds, columns, mode, rows_max });
    let range = Bounds { from: Some((key, true)), to: Some((b"\xff", false)) };
    let requests = [
        Request::Hello { version: wire::VERSION, block_bytes: 65536, features: wire::Features::ALL },
        Request::Create { name: "lineitem", schema },
        Request::Put { table: 3, mode: PutMode::Insert, rows: &row },
        Request::Put { table: 3, mode: PutMode::Update, rows: &row },
        Request::Drop { name: "lineitem" },
        Request::List { after: "lineitem" },
        Request::Describe { name: "lineitem" },
        Request::Get { table: 3, key },
        Request::Delete { table: 300, keys: &keys },
        scan(Bounds::default(), None, Mode::Auto, None),
        scan(range, Some(vec![1, 8, 300]), Mode::Delta, Some(1 << 40)),
        Request::Cancel,
        Request::Stats,
        Request::Status,
        Request::Checkpoint,
        Request::CreateIndex { table: 3, columns: vec![1, 300] },
        Request::DropIndex { table: 3, columns: vec![1] },
        Request::Indexes { table: 3 },
        Request::ScanIndex {
            scan: ScanRequest { table: 3, bounds: range, columns: None, mode: Mode::InPlace, rows_max: None },
            index: vec![8],
            lent_bytes_max: 102_400,
        },
        Request::Held,
    ];
    requests.iter().enumerate().map(|(number, request)| wire::encode(number as u32, request)).collect()
}

/// One reply of each kind.
fn replies(schema: &[u8], row: &[u8]) -> Vec<Vec<u8>> {
    let table = TableInfo {
        id: 3,
        name: "lineitem".to_owned(),
        schema: schema.to_vec(),
        rows: 6_001_215,
        pages: 70_000,
        bytes: 1 << 30,
    };
    let failed = vec![(1, FaultCode::Duplicate), (2, FaultCode::BadRow)];
    let index = || wire::IndexInfo { columns: vec![1, 300], pages: 9, bytes: 1 << 23 };
    let replies = [
        Reply::Hello { version: wire::VERSION, request_bytes_max: wire::REQUEST_BYTES_MAX as u32, pid: 4711, features: wire::Features::ALL },
        Reply::Table(table.clone()),
        Reply::Tables { tables: vec![table.clone(), TableInfo { name: "ü".to_owned(), ..table }], more: true },
        Reply::Tables { tables: vec![], more: false },
        Reply::Dropped,
        Reply::Applied(Applied { rows: 3, applied: 1, replaced: 0, failed }),
        Reply::Row(Some(row.to_vec())),
        Reply::Row(None),
        Reply::ScanEnd(ScanReply { chosen: [1, 2, 3, 0], price_ns: [u64::MAX, u64::MAX, u64::MAX, 0], messages: 6, ..ScanReply::default() }),
        Reply::ScanEndInPlace(ScanReply { chosen: [1, 2, 3, 4], price_ns: [u64::MAX; 4], messages: 6, ..ScanReply::default() }),
        Reply::Stats(ServerStats { pid: 4711, bytes_committed: 1 << 40, ..ServerStats::default() }),
        Reply::Fault(Fault { code: FaultCode::Closing, text: "ask another server".to_owned() }),
        Reply::Status(Some(wire::DataStatus { dir: "/data".to_owned(), log_position: 1 << 40, ..wire::DataStatus::default() })),
        Reply::Indexing { rows: 1024, of: 6_001_215 },
        Reply::Index(index()),
        Reply::Indexes(vec![index()]),
        Reply::Held(wire::Held { stall: Some(wire::Stalled { table: "t".to_owned(), thread: 4711, ns: 1 << 40 }), ..wire::Held::default() }),
        Reply::Checkpointed(wire::Checkpointed { tables: 2, pages: 70_000, bytes: 1 << 30, ..wire::Checkpointed::default() }),
    ];
    replies.iter().enumerate().map(|(number, reply)| wire::encode(number as u32, reply)).collect()
}

/// A message in parts, each behind its length.
fn parts(whole: &[u8], block_bytes: usize) -> Vec<u8> {
    wire::cut(whole.len(), block_bytes)
        .flat_map(|(header, range)| {
            let len = (header.len() + range.len()) as u16;
            [&len.to_le_bytes()[..], &header, &whole[range]].concat()
        })
        .collect()
}

fn messages(page: &[u8], choice: u8) -> [Vec<u8>; 3] {
    let projection = projection(choice);
    let state = PageState::new(Leaf::parse(page).expect("a page just made"), 0, 0..5, &[]);
    let part = |fragments: &[Fragment]| -> Vec<u8> {
        fragments.iter().flat_map(|f| page[f.offset as usize..][..f.len as usize].to_vec()).collect()
    };
    let mut copied = vec![0; 4096];
    let mut copier = Copier::new(&mut copied, &projection);
    copier.push(&state, 0..5, &|_| None).expect("whole rows");
    let bytes = copier.finish(1, 2, true);
    copied.truncate(bytes);
    let mut gather = GatherAnswer::new();
    gather.push(&state, 0..5, &projection, 0);
    let mut gathered = vec![0; gather.head_len()];
    gather.write_head(&mut gathered, &projection, 1, 2, true);
    gathered.extend(part(gather.fragments()));
    let mut answer = DeltaAnswer::new();
    answer.push(&state, &projection);
    let mut delta = vec![0; answer.head_len()];
    answer.write_head(&mut delta, &projection, 1, 2, true);
    delta.extend(part(answer.fragments()));
    [copied, gathered, delta]
}

fn write(target: &str, number: usize, bytes: &[u8]) -> std::io::Result<()> {
    let folder = Path::new("corpus").join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(format!("seed-{number}")), bytes)
}
