#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_log_fuzz::group(data);
});
