//! Declared sends between sockets: whatever the plan, the messages of the region, with its borders.

use std::sync::Arc;

use overside_conformance::Processes;
use overside_conformance::declared::Delivery;
use overside_tcp::{Options, TcpProvider};
use overside_verbs::Provider;

fn delivery(destinations: usize) -> Option<Delivery> {
    let harness =
        Processes::new(|| -> Arc<dyn Provider> { TcpProvider::with_options(Options::default()) }, module_path!())
            .named(overside_conformance::loopback_name);
    Some(Delivery::open(&harness, destinations, MEMORY_BYTES).unwrap())
}

overside_conformance::declared_tests!(delivery, destinations: 8, ways: [Copy, Gather, Mixture], cases: 60);

const MEMORY_BYTES: usize = 64 << 10;
