//! Holds that do anything as they are released: no message, report or other hold suffers. And how
//! long they are kept.
//!
//! Where there is no device, nothing is tested: `cargo xtask guest conformance` runs this on one.

use std::sync::Arc;

use overside_conformance::{Processes, loopback_name};
use overside_ibv::{IbvProvider, Options, devices};
use overside_verbs::Provider;
use overside_verbs::handshake::Key;

#[test]
fn whatever_a_hold_does_as_it_is_released() {
    let Some(harness) = harness() else { return };
    overside_conformance::holds::check(&harness).unwrap();
}

#[test]
fn what_nobody_has_taken_is_held() {
    let Some(harness) = harness() else { return };
    overside_conformance::holds::check_waiting(&harness).unwrap();
}

fn harness() -> Option<Processes> {
    if let Err(why) = devices() {
        assert!(std::env::var_os("OVERSIDE_DEVICE_EXPECTED").is_none(), "there must be a device here: {why}");
        return None;
    }
    Some(Processes::new(provider, module_path!()).named(loopback_name))
}

fn provider() -> Arc<dyn Provider> {
    let key = Key::from_bytes(b"0d1c7f5fb2a94c0e8a4be0b3dd0c0f6f4b1f0f8d3d6b4f7a9c2e5a1b8e7d6c53").ok();
    IbvProvider::with_options(Options { depth_max: 64, key, ..Options::default() }).expect("a device")
}
