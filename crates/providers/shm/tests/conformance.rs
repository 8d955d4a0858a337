//! Shared memory keeps every sentence of the `Port` contract.

use std::sync::Arc;

use overside_shm::ShmProvider;
use overside_verbs::Provider;

fn provider() -> Arc<dyn Provider> {
    ShmProvider::new().expect("a provider over shared memory")
}

overside_conformance::conformance_tests!(provider);
