//! A request or a reply: what decodes means the same when it is said again.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_table_fuzz::control(data);
});
