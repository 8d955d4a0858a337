//! What an NBD server is told, from the first byte of a connection on.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_vault::fronts::nbd::fuzz_nbd(data);
});
