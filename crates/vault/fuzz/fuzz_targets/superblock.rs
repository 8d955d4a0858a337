//! What a member says of itself.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_vault::home::fuzz_superblock(data);
});
