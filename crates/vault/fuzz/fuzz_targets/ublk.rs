//! What the kernel's driver of block devices says: requests, and what a device is.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_vault::fronts::ublk::fuzz_ublk(data);
});
