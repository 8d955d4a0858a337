//! Holds that do anything as they are released: no message, report or other hold suffers.

use std::sync::Arc;

use overside_conformance::Processes;
use overside_tcp::{Options, TcpProvider};
use overside_verbs::Provider;

#[test]
fn whatever_a_hold_does_as_it_is_released() {
    let harness =
        Processes::new(|| -> Arc<dyn Provider> { TcpProvider::with_options(Options::default()) }, module_path!())
            .named(overside_conformance::loopback_name);
    overside_conformance::holds::check(&harness).unwrap();
}
