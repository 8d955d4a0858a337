//! A CSV file: an error, or batches, in bounded memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_cli_fuzz::csv(data);
});
