//! Which instructions pack.

/// A level of instructions that the pack kernels are written for. Each gives the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PackKernel {
    /// Plain words: runs everywhere.
    Portable,
    /// 32-byte vectors, permutations from tables (AVX2, BMI2, POPCNT).
    Avx2,
    /// 64-byte vectors and vector compress (AVX-512 F, BW, DQ, VL).
    Avx512,
}

impl PackKernel {
    /// All of them, best last.
    pub const ALL: [PackKernel; 3] = [PackKernel::Portable, PackKernel::Avx2, PackKernel::Avx512];

    /// Whether this processor can run it.
    #[inline]
    pub fn is_available(self) -> bool {
        match self {
            PackKernel::Portable => true,
            #[cfg(target_arch = "x86_64")]
            PackKernel::Avx2 => {
                std::arch::is_x86_feature_detected!("avx2")
                    && std::arch::is_x86_feature_detected!("bmi1")
                    && std::arch::is_x86_feature_detected!("bmi2")
                    && std::arch::is_x86_feature_detected!("popcnt")
            }
            #[cfg(target_arch = "x86_64")]
            PackKernel::Avx512 => {
                PackKernel::Avx2.is_available()
                    && std::arch::is_x86_feature_detected!("avx512f")
                    && std::arch::is_x86_feature_detected!("avx512bw")
                    && std::arch::is_x86_feature_detected!("avx512dq")
                    && std::arch::is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// The best that this processor can run.
    #[inline]
    pub fn best() -> Self {
        Self::Avx512.or_less()
    }

    /// This one, or the best below it that this processor can run.
    #[inline]
    pub fn or_less(self) -> Self {
        let fits = |kernel: &PackKernel| *kernel <= self && kernel.is_available();
        Self::ALL.into_iter().rev().find(fits).unwrap_or(PackKernel::Portable)
    }
}
