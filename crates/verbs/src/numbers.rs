//! Maps by small integers, as every provider has them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by small integers that need no protection from whoever chooses them: ours, or a peer's
/// that only slows itself down.
pub type ByNumber<T> = HashMap<u32, T, BuildHasherDefault<NumberHasher>>;

/// Multiplies: enough for small integers.
#[derive(Debug, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u32(u32::from(*b)));
    }

    fn write_u32(&mut self, value: u32) {
        self.0 = (self.0 ^ u64::from(value)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}
