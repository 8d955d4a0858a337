//! Declared sends over real queue pairs: whatever the plan, the messages of the region, with its borders.

use std::sync::Arc;

use overside_conformance::Processes;
use overside_conformance::declared::Delivery;
use overside_shm::ShmProvider;
use overside_verbs::Provider;

fn delivery(destinations: usize) -> Option<Delivery> {
    let harness = Processes::new(|| -> Arc<dyn Provider> { ShmProvider::new().unwrap() }, module_path!());
    Some(Delivery::open(&harness, destinations, MEMORY_BYTES).unwrap())
}

overside_conformance::declared_tests!(delivery, destinations: 8, ways: [Copy, Gather, Mixture, Declared], cases: 24);

const MEMORY_BYTES: usize = 64 << 10;
