//! Writes a small corpus: a valid input of each kind.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use overside_bwtree::{Leaf, LeafBuilder, Rest};
use overside_table::block::{Copier, DeltaAnswer, Fragment, GatherAnswer, PageState};
use overside_table::key::KeyCodec;
use overside_table::row::{RowBuilder, RowLayout, RowView, ValueRef};
use overside_table_fuzz::{projection, schema};

fn main() -> std::io::Result<()> {
    let schema = schema();
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
    let page = leaf.finish();
    for choice in 0..3 {
        for (number, message) in messages(&page, choice).iter().enumerate() {
            write("scan_answer", usize::from(choice) * 3 + number, &[&[choice][..], message].concat())?;
        }
    }
    Ok(())
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
