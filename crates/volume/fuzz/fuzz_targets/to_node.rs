//! What a node is told.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_volume::wire::fuzz_to_node(data);
});
