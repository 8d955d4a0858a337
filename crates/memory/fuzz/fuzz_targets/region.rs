//! A region that a peer describes.
#![no_main]

#[path = "../../tests/region/mod.rs"]
#[allow(dead_code)]
mod region;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    region::described_and_packed(data);
});
