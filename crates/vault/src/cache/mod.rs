//! The node's cache: which blocks it keeps ([`Policy`]), and the blocks themselves.
//!
//! | file | what |
//! |---|---|
//! | `device` | a cache over a device, and a device itself |
//! | `blocks` | memory of its blocks |
//! | `policy` | the trait, and the names of the policies |
//! | `queues` | blocks in queues, found by number: what every policy is made of |
//! | `mq`, `lru`, `arc`, `two_q`, `lirs`, `s3_fifo`, `w_tinylfu` | one policy each |

mod arc;
mod blocks;
mod device;
mod lirs;
mod lru;
mod mq;
mod policy;
mod queues;
mod s3_fifo;
mod two_q;
mod w_tinylfu;

pub use blocks::BlockMemory;
pub(crate) use device::keeps;
pub use device::{Cache, CacheOptions, CacheStatistics};
pub use policy::{Access, Policy, PolicyKind};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// What every policy owes, with blocks that are pinned and blocks that are taken out.
        #[test]
        fn a_policy_says_what_is_in_the_cache(
            blocks in 1usize..40,
            steps in proptest::collection::vec((0u8..40, 0u64..90, 0u64..90), 1..1200),
        ) {
            for kind in PolicyKind::ALL {
                let mut policy = kind.policy(blocks);
                let mut cached = BTreeSet::new();
                let mut pinned = BTreeSet::new();
                for (step, block, other) in &steps {
                    match step {
                        0 => {
                            policy.remove(*block);
                            cached.remove(block);
                            pinned.remove(block);
                        }
                        1 if cached.contains(other) => drop(pinned.insert(*other)),
                        2 => pinned.clear(),
                        _ => {
                            let all_pinned = cached.len() == blocks && cached.is_subset(&pinned);
                            let access = policy.access(*block, &mut |block| !pinned.contains(&block));
                            prop_assert_eq!(access.hit, cached.contains(block), "{}", kind);
                            prop_assert!(access.admitted || all_pinned, "{}: passed though one could go", kind);
                            if let Some(evicted) = access.evicted {
                                prop_assert!(cached.remove(&evicted), "{}: evicted what was not there", kind);
                                prop_assert!(!pinned.contains(&evicted), "{}: evicted a pinned block", kind);
                            }
                            if access.admitted {
                                cached.insert(*block);
                            }
                        }
                    }
                    prop_assert_eq!(policy.len(), cached.len(), "{}", kind);
                    prop_assert!(cached.len() <= blocks, "{}", kind);
                }
            }
        }
    }

    fn hits(kind: PolicyKind, blocks: usize, accesses: impl Iterator<Item = u64>) -> f64 {
        let mut policy = kind.policy(blocks);
        let (mut hits, mut all) = (0u64, 0u64);
        for block in accesses {
            hits += u64::from(policy.access(block, &mut |_| true).hit);
            all += 1;
        }
        hits as f64 / all as f64
    }

    /// A loop that is longer than the cache is nothing to one that keeps the most recent; the
    /// policies that were made for it keep almost all that fits, from the second round on.
    #[test]
    fn loops_tell_policies_apart() {
        for length in [1_200, 10_000, 20_000] {
            let looped = || (0..10 * length).map(|i| i % length);
            assert!(hits(PolicyKind::Lru, 1000, looped()) < 0.01);
            let most = 0.9 * 1000.0 / length as f64;
            for kind in [PolicyKind::Lirs, PolicyKind::WTinyLfu] {
                let ratio = hits(kind, 1000, looped());
                assert!(ratio > 0.95 * most, "{kind}: {ratio} of {most}, {length} blocks");
            }
        }
    }

    /// Few blocks often, beside a stream of blocks that come once: every policy but
    /// the plainest keeps the few.
    #[test]
    fn a_stream_does_not_flush_what_comes_often() {
        let stream = || {
            let mut state = 1u64;
            (0..60_000u64).map(move |i| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if i % 2 == 0 { (state >> 33) % 300 } else { 1_000 + i }
            })
        };
        let lru = hits(PolicyKind::Lru, 400, stream());
        for kind in PolicyKind::ALL.into_iter().filter(|kind| *kind != PolicyKind::Lru) {
            let ratio = hits(kind, 400, stream());
            assert!(ratio > lru + 0.05, "{kind}: {ratio}, lru {lru}");
        }
    }
}
