//! Entries of the table of a volume that keeps files, as either side reads them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_volume::files::fuzz_entry(data);
});
