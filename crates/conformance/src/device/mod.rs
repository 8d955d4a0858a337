//! What a block device owes, as a suite that every kind of device runs.
//!
//! Each sentence of [`overside_volume::device`] has an id and a check of the same name here. A
//! crate with a device runs all of them by one macro, in an integration test:
//!
//! ```ignore
//! fn open() -> Box<dyn Device> { /* a new one, nothing written, 1 MiB or more */ }
//! overside_conformance::device_tests!(open);
//! ```
//!
//! Devices that can be frozen, or lose power, implement [`DeviceHarness`] themselves.

mod data;
mod drive;
mod requests;
mod waiting;

use std::sync::Arc;

use overside_volume::Device;

use crate::{Outcome, Stop, ended};

/// The shortest device that the suite takes, in bytes.
pub const DEVICE_BYTES_MIN: u64 = 1 << 20;

/// What the suite needs of the crate that tests a device.
pub trait DeviceHarness: Send + Sync {
    /// A new device: nothing was ever written, and it may be written.
    fn open(&self) -> Box<dyn Device>;

    /// A device that can only be read; none skips `read-only`.
    fn frozen(&self) -> Option<Box<dyn Device>> {
        None
    }

    /// The device after a loss of all that was not durable; none skips `durable`.
    fn lose_power(&self, _device: Box<dyn Device>) -> Option<Box<dyn Device>> {
        None
    }
}

impl<F: Fn() -> Box<dyn Device> + Send + Sync> DeviceHarness for F {
    fn open(&self) -> Box<dyn Device> {
        self()
    }
}

/// A sentence of [`overside_volume::device`] with its check.
#[derive(Debug)]
pub struct DeviceSentence {
    /// Its id there.
    pub id: &'static str,
    check: fn(&dyn DeviceHarness) -> Result<(), Stop>,
}

/// Every sentence, in the order of `device.rs`.
pub const DEVICE_SENTENCES: &[DeviceSentence] = &[
    DeviceSentence { id: "geometry", check: requests::geometry },
    DeviceSentence { id: "accept", check: requests::accept },
    DeviceSentence { id: "once", check: requests::once },
    DeviceSentence { id: "own", check: data::own },
    DeviceSentence { id: "zeros", check: data::zeros },
    DeviceSentence { id: "written", check: data::written },
    DeviceSentence { id: "overlap", check: data::overlap },
    DeviceSentence { id: "range", check: requests::range },
    DeviceSentence { id: "apart", check: requests::apart },
    DeviceSentence { id: "read-only", check: requests::read_only },
    DeviceSentence { id: "durable", check: data::durable },
    DeviceSentence { id: "hint", check: requests::hint },
    DeviceSentence { id: "check", check: requests::check },
    DeviceSentence { id: "nonblocking", check: waiting::nonblocking },
    DeviceSentence { id: "arm", check: waiting::arm },
    DeviceSentence { id: "idle", check: waiting::idle },
];

/// Checks one sentence.
///
/// # Panics
/// When no sentence has this id.
pub fn check_device(id: &str, harness: &Arc<dyn DeviceHarness>) -> Outcome {
    let sentence = DEVICE_SENTENCES.iter().find(|sentence| sentence.id == id);
    let check = sentence.unwrap_or_else(|| panic!("no sentence has the id {id}")).check;
    let harness = harness.clone();
    ended(id, "device", move || check(&*harness))
}

/// Checks one sentence and fails the test that calls it when it is broken.
///
/// # Panics
/// Then, with what was seen.
pub fn assert_device_keeps(id: &str, harness: &Arc<dyn DeviceHarness>) {
    match check_device(id, harness) {
        Outcome::Kept => {}
        Outcome::Skipped(why) => eprintln!("{id}: skipped, {why}"),
        Outcome::Broken(what) => panic!("the device breaks **{id}**: {what}"),
    }
}

/// One `#[test]` for each sentence. Takes a [`DeviceHarness`], such as a `fn() -> Box<dyn Device>`.
#[macro_export]
macro_rules! device_tests {
    ($harness:expr) => {
        $crate::device_tests!(@sentences $harness,
            geometry "geometry", accept "accept", once "once", own "own", zeros "zeros", written "written",
            overlap "overlap", range "range", apart "apart", read_only "read-only", durable "durable", hint "hint",
            check "check", nonblocking "nonblocking", arm "arm", idle "idle"
        );
    };
    (@sentences $harness:expr, $($name:ident $id:literal),*) => {
        $(
            #[test]
            fn $name() {
                let harness: ::std::sync::Arc<dyn $crate::device::DeviceHarness> = ::std::sync::Arc::new($harness);
                $crate::device::assert_device_keeps($id, &harness);
            }
        )*
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owed() -> Vec<&'static str> {
        include_str!("../../../volume/src/device.rs")
            .lines()
            .filter_map(|line| line.strip_prefix("//! - **")?.split_once("**:"))
            .map(|(id, _)| id)
            .collect()
    }

    #[test]
    fn every_sentence_has_a_check_and_every_check_a_sentence() {
        let checked: Vec<&str> = DEVICE_SENTENCES.iter().map(|sentence| sentence.id).collect();
        assert!(owed().len() > 10, "the list of device.rs was found");
        assert_eq!(owed(), checked, "device.rs on the left, the suite on the right");
    }

    #[test]
    fn the_macro_makes_a_test_of_every_sentence() {
        let this = include_str!("mod.rs");
        for id in owed() {
            let arm = format!("{} \"{id}\"", id.replace('-', "_"));
            assert!(this.contains(&arm), "device_tests! lacks `{arm}`");
        }
    }
}
