//! A leaf page: every accessor answers inside the page, for rows that are there and for rows that are not.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_bwtree_fuzz::leaf(data);
});
