//! Faults planted on purpose, each of which some test must find. Built with `--cfg mutants` alone,
//! and chosen at run time, so that one build holds all of them.

use std::sync::OnceLock;

static CHOSEN: OnceLock<String> = OnceLock::new();

/// Chooses a fault, once. This crate does not look at the environment, which is its program's.
pub fn plant(name: &str) {
    let _ = CHOSEN.set(name.to_owned());
}

/// Whether the fault `name` was chosen.
pub(crate) fn mutant(name: &str) -> bool {
    CHOSEN.get().is_some_and(|chosen| chosen == name)
}
