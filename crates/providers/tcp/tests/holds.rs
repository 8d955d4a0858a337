//! Holds that do anything as they are released: no message, report or other hold suffers. And how
//! long they are kept.

use std::sync::Arc;

use overside_conformance::Processes;
use overside_tcp::{Options, TcpProvider};
use overside_verbs::Provider;

#[test]
fn whatever_a_hold_does_as_it_is_released() {
    overside_conformance::holds::check(&harness()).unwrap();
}

#[test]
fn what_nobody_has_taken_is_held() {
    overside_conformance::holds::check_waiting(&harness()).unwrap();
}

fn harness() -> Processes {
    Processes::new(|| -> Arc<dyn Provider> { TcpProvider::with_options(Options::default()) }, module_path!())
        .named(overside_conformance::loopback_name)
}
