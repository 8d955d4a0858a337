//! Who may attach which volume, as a user writes it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_vault::server::fuzz_access(data);
});
