//! What stands at a path in the stead of a file on a volume.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_preload::fuzz_placeholder(data);
});
