//! Frames and words that another host writes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_preload::remote::parts::ring(data);
});
