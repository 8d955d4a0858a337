//! Declared sends over the first RDMA device of this host: whatever the plan, the messages of the region, with its borders.
//!
//! Where there is none, nothing is tested: `cargo xtask guest conformance` runs this on a device.

use std::sync::Arc;

use overside_conformance::declared::Delivery;
use overside_conformance::{Processes, loopback_name};
use overside_ibv::{IbvProvider, Options, devices};
use overside_verbs::Provider;
use overside_verbs::handshake::Key;

fn delivery(destinations: usize) -> Option<Delivery> {
    if let Err(why) = devices() {
        assert!(std::env::var_os("OVERSIDE_DEVICE_EXPECTED").is_none(), "there must be a device here: {why}");
        return None;
    }
    let harness = Processes::new(provider, module_path!()).named(loopback_name);
    Some(Delivery::open(&harness, destinations, MEMORY_BYTES).unwrap())
}

fn provider() -> Arc<dyn Provider> {
    let key = Key::from_bytes(b"d6909d4585e48b7f8b97acc97187c257354d2c366eb5300ff4ea9117e51cd4d8").ok();
    IbvProvider::with_options(Options { depth_max: 64, key, ..Options::default() }).expect("a device")
}

overside_conformance::declared_tests!(delivery, destinations: 4, ways: [Copy, Gather, Mixture], cases: 12);

const MEMORY_BYTES: usize = 64 << 10;
