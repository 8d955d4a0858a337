//! What the journal of a degraded array says after a crash.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_volume::fuzz_journal(data);
});
