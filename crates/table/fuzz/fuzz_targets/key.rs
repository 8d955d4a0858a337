//! An encoded key: an error, or the only encoding of its values.
#![no_main]

use libfuzzer_sys::fuzz_target;
use overside_table::key::KeyCodec;
use overside_table::row::Value;
use overside_table_fuzz::schema;

fuzz_target!(|data: &[u8]| {
    let codec = KeyCodec::new(&schema());
    let Ok(values) = codec.decode(data) else { return };
    let mut again = Vec::new();
    codec.encode(&values.iter().map(Value::as_ref).collect::<Vec<_>>(), &mut again).expect("values of a key");
    assert_eq!(again, data);
});
