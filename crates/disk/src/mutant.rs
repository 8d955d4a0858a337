//! Faults that are planted on purpose, to see that simulations find them.

/// Whether the fault `name` was chosen by the environment's `OVERSIDE_MUTANT`. Always false, and
/// compiled away, in builds without `--cfg mutants`.
#[cfg(mutants)]
pub fn mutant(name: &str) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("OVERSIDE_MUTANT").ok()).as_deref() == Some(name)
}

/// Whether a fault was chosen: never, in this build.
#[cfg(not(mutants))]
#[inline(always)]
pub const fn mutant(_name: &str) -> bool {
    false
}
