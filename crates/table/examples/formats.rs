//! What the formats cost, alone: no server, no connection. Run on a quiet machine:
//! `cargo run --release -p overside-table --example formats -- [PART OF A NAME [ROUNDS [PAGES]]]`
//!
//! Rows are like TPC-H's lineitem (16 columns, about 150 bytes), pages of 16 KiB, 4,096 of them; every message is copied
//! into one of a ring of buffers of 1 MiB together, as a receive does, and read there.

use std::hint::black_box;
use std::time::Instant;

use overside_bwtree::{Leaf, LeafBuilder, Rest};
use overside_table::arrow::{BatchBuilder, BatchEncoder, EncodedRows};
use overside_table::block::{Copier, DeltaAnswer, GatherAnswer, PageState, RowBlock};
use overside_table::key::KeyCodec;
use overside_table::projection::Projection;
use overside_table::row::{RowBuilder, RowLayout, RowView, ValueRef};
use overside_table::schema::{Column, ColumnType, Schema};

fn main() {
    let schema = lineitem();
    let bench = Bench::new(&schema);
    println!("{} rows of {} bytes in {} pages", bench.rows, bench.row_bytes / bench.rows, bench.pages.len());
    let whole = Projection::whole(&schema);
    let three = Projection::new(&schema, &[0, 5, 10]).expect("columns of lineitem");
    let gathered = bench.messages(|state, out| gather(state, &whole, out));
    let copied = bench.messages(|state, out| copy(state, &whole, out));
    let narrow = bench.messages(|state, out| copy(state, &three, out));
    for _ in 0..2 {
        bench.report("the limit: the same chunks, the same ring, each line touched", || bench.limit(&gathered));
        bench.report("row views, gathered", || bench.views(&gathered, &whole));
        bench.report("row views, copied", || bench.views(&copied, &whole));
    }
    bench.report("row views, 3 columns copied", || bench.views(&narrow, &three));
    bench.report("row views of one message again and again", || bench.in_cache(&gathered, &whole));
    bench.report("parsing one message again and again", || bench.parse(&gathered, &whole));
    bench.report("Arrow batches", || bench.batches(&schema, &gathered, &whole));
    bench.report("Arrow batches of 3 columns", || bench.batches(&schema, &narrow, &three));
    bench.report("packing whole rows", || bench.pack(&whole));
    bench.report("packing 3 columns", || bench.pack(&three));
    bench.report("heads of gather and delta answers", || bench.heads(&whole));
    bench.report("rows of record batches encoded", || bench.encode(&schema, &gathered, &whole));
}

struct Bench {
    pages: Vec<Vec<u8>>,
    rows: usize,
    row_bytes: usize,
}

impl Bench {
    fn new(schema: &Schema) -> Bench {
        let layout = std::sync::Arc::new(RowLayout::new(schema));
        let codec = KeyCodec::new(schema);
        let mut builder = RowBuilder::new(layout.clone());
        let mut bench = Bench { pages: Vec::new(), rows: 0, row_bytes: 0 };
        let mut random = 88172645463325252u64;
        let (mut leaf, mut bytes, mut key) = (LeafBuilder::new(layout.prefix_len()), 0, Vec::new());
        let pages = std::env::args().nth(3).map_or(4096, |n| n.parse().unwrap_or(4096));
        while bench.pages.len() < pages {
            let value = builder.encode(&values(bench.rows as i64, &mut random)).expect("a row of lineitem");
            let row = RowView::of_value(value, &layout).expect("a row of lineitem");
            key.clear();
            codec.encode_row(&row, &mut key).expect("a short key");
            leaf.push(&key, row.prefix(), Rest::Inline(row.rest())).expect("ascending keys");
            bench.rows += 1;
            bench.row_bytes += value.len();
            bytes += value.len() + 20;
            if bytes > 15 << 10 {
                bench.pages.push(std::mem::replace(&mut leaf, LeafBuilder::new(layout.prefix_len())).finish());
                bytes = 0;
            }
        }
        bench
    }

    fn messages(&self, make: impl Fn(&PageState<'_>, &mut Vec<u8>)) -> Vec<Vec<u8>> {
        let message = |page: &Vec<u8>| {
            let leaf = Leaf::parse(page).expect("a page just made");
            let mut out = Vec::new();
            make(&PageState::new(leaf, 0, 0..leaf.count(), &[]), &mut out);
            out
        };
        self.pages.iter().map(message).collect()
    }

    /// Rows a second: the median of several rounds.
    fn rate(&self, mut round: impl FnMut() -> usize) -> f64 {
        let mut seconds: Vec<f64> = (0..std::env::args().nth(2).map_or(7, |n| n.parse().unwrap_or(7)))
            .map(|_| {
                let start = Instant::now();
                assert_eq!(round(), self.rows);
                start.elapsed().as_secs_f64()
            })
            .collect();
        seconds.sort_by(f64::total_cmp);
        self.rows as f64 / seconds[seconds.len() / 2]
    }

    /// Measures and prints, if the first argument is none or part of the name.
    fn report(&self, name: &str, measure: impl FnOnce() -> f64) {
        if std::env::args().nth(1).is_some_and(|wanted| !name.contains(&wanted)) {
            return;
        }
        let rate = measure();
        let gigabytes = rate * self.row_bytes as f64 / self.rows as f64 / 1e9;
        println!(
            "{name:60} {:8.1} M rows/s {:6.1} ns a row {gigabytes:6.2} GB/s of whole rows",
            rate / 1e6,
            1e9 / rate
        );
    }

    /// A consumer that knows where the rows are: the copy and the touching, nothing else.
    fn limit(&self, messages: &[Vec<u8>]) -> f64 {
        let mut ring = Ring::new(messages);
        let row = self.row_bytes / self.rows;
        self.rate(|| {
            let (mut rows, mut sum) = (0, 0u64);
            for (message, page) in messages.iter().zip(&self.pages) {
                let received = ring.receive(message);
                let count = Leaf::parse(page).expect("a page just made").count();
                for at in 0..count {
                    let bytes = &received[at * row..(at + 1) * row];
                    sum = sum.wrapping_add(touch(bytes, &[]));
                }
                rows += count;
            }
            black_box(sum);
            rows
        })
    }

    #[inline(never)]
    fn views(&self, messages: &[Vec<u8>], projection: &Projection) -> f64 {
        let mut ring = Ring::new(messages);
        self.rate(|| {
            let (mut rows, mut sum) = (0, 0u64);
            for message in messages {
                let block = RowBlock::parse(ring.receive(message), projection).expect("a message just made");
                block.rows().for_each(|row| sum = sum.wrapping_add(touch(row.prefix(), row.rest())));
                rows += block.len();
            }
            black_box(sum);
            rows
        })
    }

    fn in_cache(&self, messages: &[Vec<u8>], projection: &Projection) -> f64 {
        let message = &messages[0];
        self.rate(|| {
            let (mut rows, mut sum) = (0, 0u64);
            while rows < self.rows {
                let block = RowBlock::parse(&message[..], projection).expect("a message just made");
                block.rows().for_each(|row| sum = sum.wrapping_add(touch(row.prefix(), row.rest())));
                rows += block.len();
            }
            black_box(sum);
            self.rows
        })
    }

    #[inline(never)]
    fn parse(&self, messages: &[Vec<u8>], projection: &Projection) -> f64 {
        self.rate(|| {
            let mut rows = 0;
            while rows < self.rows {
                rows += black_box(RowBlock::parse(&messages[0][..], projection).expect("a message just made")).len();
            }
            self.rows
        })
    }

    #[inline(never)]
    fn batches(&self, schema: &Schema, messages: &[Vec<u8>], projection: &Projection) -> f64 {
        let mut ring = Ring::new(messages);
        let mut builder = BatchBuilder::new(schema, projection);
        self.rate(|| {
            let mut rows = 0;
            for message in messages {
                let block = RowBlock::parse(ring.receive(message), projection).expect("a message just made");
                builder.push(&block).expect("whole rows");
                if builder.rows() >= 8192 {
                    rows += black_box(builder.finish().expect("valid text")).num_rows();
                }
            }
            rows + builder.finish().expect("valid text").num_rows()
        })
    }

    #[inline(never)]
    fn pack(&self, projection: &Projection) -> f64 {
        let mut out = vec![0; 32 << 10];
        self.rate(|| {
            let mut rows = 0;
            for page in &self.pages {
                let leaf = Leaf::parse(page).expect("a page just made");
                let state = PageState::new(leaf, 0, 0..leaf.count(), &[]);
                let mut copier = Copier::new(&mut out, projection);
                rows += copier.push(&state, 0..state.rows(), &|_| None).expect("whole rows");
                black_box(copier.finish(0, 0, false));
            }
            rows
        })
    }

    #[inline(never)]
    fn heads(&self, projection: &Projection) -> f64 {
        let (mut gather, mut delta, mut head) = (GatherAnswer::new(), DeltaAnswer::new(), vec![0; 4096]);
        self.rate(|| {
            let mut rows = 0;
            for page in &self.pages {
                let leaf = Leaf::parse(page).expect("a page just made");
                let state = PageState::new(leaf, 0, 0..leaf.count(), &[]);
                gather.clear();
                gather.push(&state, 0..state.rows(), projection, 100);
                gather.write_head(&mut head, projection, 0, 0, false);
                delta.clear();
                delta.push(&state, projection);
                delta.write_head(&mut head, projection, 0, 0, false);
                rows += state.rows();
            }
            rows
        })
    }

    fn encode(&self, schema: &Schema, messages: &[Vec<u8>], projection: &Projection) -> f64 {
        let mut builder = BatchBuilder::new(schema, projection);
        let mut batches = Vec::new();
        for message in messages {
            builder.push(&RowBlock::parse(&message[..], projection).expect("a message just made")).expect("whole rows");
            if builder.rows() >= 8192 {
                batches.push(builder.finish().expect("valid text"));
            }
        }
        batches.push(builder.finish().expect("valid text"));
        let (encoder, mut out) = (BatchEncoder::new(schema), EncodedRows::default());
        self.rate(|| {
            let mut rows = 0;
            for batch in &batches {
                encoder.encode(batch, &mut out).expect("rows of the table");
                rows += black_box(&out).len();
            }
            rows
        })
    }
}

/// Reads key, length and a byte of each cache line of a row.
#[inline(always)]
fn touch(prefix: &[u8], rest: &[u8]) -> u64 {
    let key = prefix.first_chunk::<8>().map_or(0, |key| u64::from_le_bytes(*key));
    let lines = |bytes: &[u8]| bytes.iter().step_by(64).fold(0u64, |sum, &byte| sum.wrapping_add(u64::from(byte)));
    key.wrapping_add((prefix.len() + rest.len()) as u64).wrapping_add(lines(prefix)).wrapping_add(lines(rest))
}

/// Buffers that messages arrive in, used in turn.
struct Ring {
    buffers: Vec<Vec<u8>>,
    next: usize,
}

impl Ring {
    fn new(messages: &[Vec<u8>]) -> Ring {
        let bytes = messages.iter().map(Vec::len).max().unwrap_or(1).next_multiple_of(4096);
        Ring { buffers: vec![vec![0; bytes]; (1 << 20) / bytes], next: 0 }
    }

    fn receive(&mut self, message: &[u8]) -> &[u8] {
        self.next = (self.next + 1) % self.buffers.len();
        let buffer = &mut self.buffers[self.next][..message.len()];
        buffer.copy_from_slice(message);
        buffer
    }
}

fn gather(state: &PageState<'_>, projection: &Projection, out: &mut Vec<u8>) {
    let mut answer = GatherAnswer::new();
    answer.push(state, 0..state.rows(), projection, 100);
    out.resize(answer.head_len(), 0);
    answer.write_head(out, projection, 0, 0, false);
    for fragment in answer.fragments() {
        out.extend_from_slice(&state.leaf().bytes()[fragment.offset as usize..][..fragment.len as usize]);
    }
}

fn copy(state: &PageState<'_>, projection: &Projection, out: &mut Vec<u8>) {
    out.resize(32 << 10, 0);
    let mut copier = Copier::new(out, projection);
    copier.push(state, 0..state.rows(), &|_| None).expect("whole rows");
    let bytes = copier.finish(0, 0, false);
    out.truncate(bytes);
    out.shrink_to_fit();
}

fn lineitem() -> Schema {
    let decimal = || ColumnType::Decimal128 { precision: 15, scale: 2 };
    let columns = vec![
        Column::new("l_orderkey", ColumnType::Int64),
        Column::new("l_partkey", ColumnType::Int64),
        Column::new("l_suppkey", ColumnType::Int64),
        Column::new("l_linenumber", ColumnType::Int32),
        Column::new("l_quantity", decimal()),
        Column::new("l_extendedprice", decimal()),
        Column::new("l_discount", decimal()),
        Column::new("l_tax", decimal()),
        Column::new("l_returnflag", ColumnType::Utf8),
        Column::new("l_linestatus", ColumnType::Utf8),
        Column::new("l_shipdate", ColumnType::Date32),
        Column::new("l_commitdate", ColumnType::Date32),
        Column::new("l_receiptdate", ColumnType::Date32),
        Column::new("l_shipinstruct", ColumnType::Utf8),
        Column::new("l_shipmode", ColumnType::Utf8),
        Column::new("l_comment", ColumnType::Utf8),
    ];
    Schema::with_key(columns, &["l_orderkey", "l_linenumber"]).expect("a schema within the limits")
}

fn values(row: i64, random: &mut u64) -> [ValueRef<'static>; 16] {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    let some = |bits: u32, of: u64| (*random >> bits) % of;
    let text = "furiously regular requests among the ironic deposits wake carefully across";
    let from = some(5, 20) as usize;
    [
        ValueRef::Int64(row / 4),
        ValueRef::Int64(some(1, 200_000) as i64),
        ValueRef::Int64(some(2, 10_000) as i64),
        ValueRef::Int32((row % 4) as i32),
        ValueRef::Decimal128(i128::from(some(3, 50)) * 100),
        ValueRef::Decimal128(i128::from(some(4, 10_000_000))),
        ValueRef::Decimal128(i128::from(some(5, 11))),
        ValueRef::Decimal128(i128::from(some(6, 9))),
        ValueRef::Utf8(["R", "A", "N"][some(7, 3) as usize]),
        ValueRef::Utf8(["O", "F"][some(8, 2) as usize]),
        ValueRef::Date32(8000 + some(9, 2500) as i32),
        ValueRef::Date32(8000 + some(10, 2500) as i32),
        ValueRef::Date32(8000 + some(11, 2500) as i32),
        ValueRef::Utf8(["DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN"][some(12, 4) as usize]),
        ValueRef::Utf8(["AIR", "MAIL", "RAIL", "SHIP", "TRUCK", "FOB", "REG AIR"][some(13, 7) as usize]),
        ValueRef::Utf8(&text[from..from + 10 + some(14, 34) as usize]),
    ]
}
