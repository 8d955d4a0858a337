//! One-sided requests of a peer that has keys.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_tcp::parts::one_sided(data);
});
