//! Faults planted on purpose, each of which some test must find. Built with `--cfg mutants` alone, and chosen at run time, so
//! that one build holds all of them.

use std::sync::atomic::{AtomicBool, Ordering};

/// A fault that can be switched on.
#[derive(Debug)]
pub struct Mutant(AtomicBool);

impl Mutant {
    /// Switches it on or off, in the whole process.
    pub fn set(&self, on: bool) {
        self.0.store(on, Ordering::SeqCst);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A change draws its stamp before it reads its leaf's word.
pub static STAMP_BEFORE_WORD: Mutant = Mutant(AtomicBool::new(false));

/// The floor is made of the writers' bounds, read first, and of the counter, read next.
pub static FLOOR_SLOTS_FIRST: Mutant = Mutant(AtomicBool::new(false));
