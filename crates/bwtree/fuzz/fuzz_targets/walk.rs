//! Memory that a peer reads by itself: its walk comes to an end, or to an error, and gives no key twice.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_bwtree_fuzz::walk(data);
});
