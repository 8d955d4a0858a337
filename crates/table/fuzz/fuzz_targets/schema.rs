//! An encoded schema: an error, or the only encoding of a schema within the limits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use overside_table::row::RowLayout;
use overside_table::schema::Schema;

fuzz_target!(|data: &[u8]| {
    let Ok(schema) = Schema::decode(data) else { return };
    let mut again = Vec::new();
    schema.encode(&mut again);
    assert_eq!(again, data);
    RowLayout::new(&schema);
});
