//! A peer that scribbles into every word it shares, between the polls of its victim.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_shm::parts::ring(data);
});
