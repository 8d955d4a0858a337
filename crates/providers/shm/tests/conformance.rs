//! Every sentence of the `Port` contract.

use std::sync::Arc;

use overside_shm::ShmProvider;
use overside_verbs::Provider;

fn provider() -> Arc<dyn Provider> {
    ShmProvider::new().expect("a page of memory")
}

overside_conformance::conformance_tests!(provider);
