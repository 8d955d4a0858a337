//! A batch of rows that a client sent.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_table_fuzz::batch(data);
});
