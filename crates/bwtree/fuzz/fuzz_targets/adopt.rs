//! Leaves that were written down: refused, or a tree whose rows are in order, can be found, replaced and deleted.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_bwtree_fuzz::adopt(data);
});
