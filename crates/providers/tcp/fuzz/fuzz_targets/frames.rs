//! A peer's frames, from a socket to posted memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_tcp::parts::frames(data);
});
