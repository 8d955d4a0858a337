//! What a client is told.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_volume::wire::fuzz_to_client(data);
});
