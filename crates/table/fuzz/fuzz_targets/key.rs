//! An encoded key: an error, or the only encoding of its values.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_table_fuzz::key(data);
});
