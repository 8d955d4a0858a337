//! An Arrow file or stream: an error, or batches, in bounded memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_files_fuzz::arrow(data);
});
