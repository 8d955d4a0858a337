//! An encoded schema: an error, or the only encoding of a schema within the limits.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_table_fuzz::schema(data);
});
