//! A peer's side of a handshake.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_verbs::handshake::parts::handshake(data);
});
