//! Faults that are planted on purpose, to see that simulations find them.

#[cfg(mutants)]
static CHOSEN: std::sync::OnceLock<String> = std::sync::OnceLock::new();

/// Chooses a fault, once. This crate does not look at the environment, which is its program's.
#[cfg(mutants)]
pub fn plant(name: &str) {
    let _ = CHOSEN.set(name.to_owned());
}

/// Whether the fault `name` was chosen. Always false, and compiled away, in builds without `--cfg
/// mutants`.
#[cfg(mutants)]
pub(crate) fn mutant(name: &str) -> bool {
    CHOSEN.get().is_some_and(|chosen| chosen == name)
}

/// Whether a fault was chosen: never, in this build.
#[cfg(not(mutants))]
#[inline(always)]
pub(crate) const fn mutant(_name: &str) -> bool {
    false
}
