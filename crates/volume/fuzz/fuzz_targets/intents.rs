//! What an array's write-intent bitmap says after a crash.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_volume::fuzz_intents(data);
});
