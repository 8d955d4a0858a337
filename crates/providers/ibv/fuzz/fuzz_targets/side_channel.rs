//! A peer's messages on a side channel.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_ibv::parts::side_channel(data);
});
