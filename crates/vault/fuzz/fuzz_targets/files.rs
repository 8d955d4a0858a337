//! What is written down of a volume's files.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_vault::files::fuzz_files(data);
});
