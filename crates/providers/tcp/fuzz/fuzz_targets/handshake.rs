//! A connector's side of a handshake.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_tcp::parts::handshake(data);
});
