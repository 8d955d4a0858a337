//! A delta record: what it says lies in it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_bwtree_fuzz::delta(data);
});
