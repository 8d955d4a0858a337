//! Two engines and a peer of both that says any frame at any moment.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_tcp::parts::two_ends(data);
});
