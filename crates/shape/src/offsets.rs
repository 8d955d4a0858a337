//! Many offsets, shared and compared quickly.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// Shared offsets with a fingerprint, so that a cache of plans does not read them all for each
/// look-up.
#[derive(Clone, Debug)]
pub(crate) struct Offsets {
    values: Arc<[u64]>,
    fingerprint: u64,
}

impl Offsets {
    pub(crate) fn new(values: Arc<[u64]>) -> Self {
        let mix = |sum: u64, value: &u64| (sum.rotate_left(23) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let fingerprint = values.iter().fold(values.len() as u64, mix);
        Self { values, fingerprint }
    }
}

impl Deref for Offsets {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.values
    }
}

impl PartialEq for Offsets {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
            && (Arc::ptr_eq(&self.values, &other.values) || self.values == other.values)
    }
}

impl Eq for Offsets {}

impl Hash for Offsets {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.fingerprint);
    }
}
