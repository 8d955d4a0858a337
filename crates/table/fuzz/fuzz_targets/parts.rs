//! Parts of longer messages, each behind its length as a u16: a whole is its payloads in order, and nothing grows past the limit.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_table_fuzz::parts(data);
});
