//! A trace of requests.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_vault::trace::fuzz_trace(data);
});
