//! A row that a client sent.
#![no_main]

use libfuzzer_sys::fuzz_target;
use overside_table::key::KeyCodec;
use overside_table::row::{RowLayout, RowView};
use overside_table_fuzz::schema;

fuzz_target!(|data: &[u8]| {
    let layout = RowLayout::new(&schema());
    let Ok(row) = RowView::of_value(data, &layout) else { return };
    let whole = row.check().is_ok();
    let mut key = Vec::new();
    let encoded = KeyCodec::new(&schema()).encode_row(&row, &mut key).is_ok();
    for column in 0..layout.columns().len() {
        assert!(row.value(column).is_ok() || !whole, "what was checked can be read");
    }
    assert!(key.is_empty() || encoded, "a key that fails leaves nothing");
});
