//! A scan answer, by rows and as a record batch; its first byte chooses the projection.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_table_fuzz::scan_answer(data);
});
