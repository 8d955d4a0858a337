//! A CSV file: an error, or batches, in bounded memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_files_fuzz::csv(data);
});
