//! What the kernel asks of a file system of one file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_vault::fronts::fuse::fuzz_fuse(data);
});
