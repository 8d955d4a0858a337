//! Datagrams by which the ends of a connection find each other.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    overside_preload::remote::parts::datagram(data);
});
