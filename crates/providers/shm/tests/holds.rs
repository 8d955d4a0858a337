//! Holds that do anything as they are released: no message, report or other hold suffers.

use std::sync::Arc;

use overside_conformance::Processes;
use overside_shm::ShmProvider;
use overside_verbs::Provider;

#[test]
fn whatever_a_hold_does_as_it_is_released() {
    let harness = Processes::new(|| -> Arc<dyn Provider> { ShmProvider::new().unwrap() }, module_path!());
    overside_conformance::holds::check(&harness).unwrap();
}
