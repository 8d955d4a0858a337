//! What a member that forgets reads from its side file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_vault::members::volatile::fuzz_unflushed(data);
});
