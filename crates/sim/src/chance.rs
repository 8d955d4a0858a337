//! Chance from a seed.

/// A stream of numbers that depends on its seed alone (SplitMix64).
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    /// A stream of its own for `what`, so that drawing from one does not shift another.
    pub fn of(seed: u64, what: &str) -> Chance {
        Chance(what.bytes().fold(seed, |state, byte| mix(state ^ u64::from(byte))))
    }

    /// The next number.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // Biased by less than one part in 2^32 for the bounds of a simulation.
        self.word() % bound
    }

    /// True once in `times` on average; never where that is 0.
    pub fn one_in(&mut self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.word().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// SplitMix64's last step: every bit of the input changes half of the output's.
pub(crate) fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
