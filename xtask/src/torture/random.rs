//! Choices that a seed decides, the same on every machine.

/// Numbers from a seed.
pub struct SplitMix64(u64);

impl SplitMix64 {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xD129_0C57_29B1_62B5) ^ 0x5851_F42D_4C95_7F2D)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// True so often in a hundred times.
    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    pub fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }

    /// From `low` to `high`, small ones as likely as large ones.
    pub fn size(&mut self, low: i64, high: i64) -> i64 {
        let (low, high) = (low.max(1), high.max(1));
        let bits = (high as f64 / low as f64).log2().max(0.0);
        let share = self.below(1 << 20) as f64 / f64::from(1 << 20);
        ((low as f64 * (bits * share).exp2()) as i64).clamp(low, high.max(low))
    }
}
