//! Medians, quartiles, and ratios of paired samples with their 95 % intervals.

use crate::SplitMix64;
use serde::{Deserialize, Serialize};

/// Median with the quartiles around it and the extremes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Half of the samples lie below.
    pub median: f64,
    /// A quarter of the samples lie below.
    pub quarter_low: f64,
    /// A quarter of the samples lie above.
    pub quarter_high: f64,
    /// The smallest sample.
    pub min: f64,
    /// The largest sample.
    pub max: f64,
    /// How many samples there were.
    pub samples: usize,
}

impl Spread {
    /// Summarises `samples`; all zero when there are none. Values that are not numbers are left
    /// out.
    pub fn of(samples: &[f64]) -> Spread {
        let sorted = sorted(samples);
        if sorted.is_empty() {
            return Spread::default();
        }
        Spread {
            median: quantile(&sorted, 0.5),
            quarter_low: quantile(&sorted, 0.25),
            quarter_high: quantile(&sorted, 0.75),
            min: sorted[0],
            max: sorted[sorted.len() - 1],
            samples: sorted.len(),
        }
    }
}

/// How one side compares to another, round by round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Median of the ratios of the rounds.
    pub median: f64,
    /// Lower end of the 95 % bootstrap interval of that median.
    pub low: f64,
    /// Upper end of the 95 % bootstrap interval of that median.
    pub high: f64,
    /// How many rounds were compared.
    pub rounds: usize,
}

impl Ratio {
    /// `ours[i] / theirs[i]` over the rounds both have; `None` without a single usable pair.
    pub fn paired(ours: &[f64], theirs: &[f64]) -> Option<Ratio> {
        let ratios: Vec<f64> = ours.iter().zip(theirs).filter(|(_, t)| **t > 0.0).map(|(o, t)| o / t).collect();
        Ratio::of(&ratios)
    }

    /// Summarises ratios that are at hand already.
    pub fn of(ratios: &[f64]) -> Option<Ratio> {
        let ratios = sorted(ratios);
        if ratios.is_empty() {
            return None;
        }
        if ratios[0] == ratios[ratios.len() - 1] {
            let all = ratios[0];
            return Some(Ratio { median: all, low: all, high: all, rounds: ratios.len() });
        }
        // A fixed seed: the same samples always give the same interval.
        let mut random = SplitMix64(0x05E4_51DE);
        let mut resampled = vec![0.0; ratios.len()];
        let mut medians: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                for slot in &mut resampled {
                    *slot = ratios[random.below(ratios.len() as u64) as usize];
                }
                resampled.sort_unstable_by(f64::total_cmp);
                quantile(&resampled, 0.5)
            })
            .collect();
        medians.sort_by(f64::total_cmp);
        Some(Ratio {
            median: quantile(&ratios, 0.5),
            low: quantile(&medians, 0.025),
            high: quantile(&medians, 0.975),
            rounds: ratios.len(),
        })
    }
}

/// The best of several sides, and how another side compares to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BestOf {
    /// The side that won in the even rounds.
    pub chosen_even: usize,
    /// The side that won in the odd rounds.
    pub chosen_odd: usize,
    /// The side in question over the best, in the rounds in which the best was *not* chosen.
    pub ratio: Ratio,
}

/// Compares `ours` with the best of `others` (each: one sample per round, larger is better).
///
/// The best is chosen by its median in one half of the rounds and compared in the other half, both
/// ways round. So every round is compared against a choice it had no part in. `None` when there are
/// fewer than two rounds or no others.
pub fn best_of(ours: &[f64], others: &[Vec<f64>]) -> Option<BestOf> {
    let rounds = others.iter().map(Vec::len).min()?.min(ours.len());
    if rounds < 2 {
        return None;
    }
    let winner = |parity: usize| {
        let score =
            |side: &Vec<f64>| median(&side[..rounds].iter().copied().skip(parity).step_by(2).collect::<Vec<_>>());
        (0..others.len()).max_by(|a, b| score(&others[*a]).total_cmp(&score(&others[*b])))
    };
    let chosen = [winner(0)?, winner(1)?];
    let ratios: Vec<f64> = (0..rounds)
        .map(|round| (ours[round], others[chosen[1 - round % 2]][round]))
        .filter(|(_, theirs)| *theirs > 0.0)
        .map(|(ours, theirs)| ours / theirs)
        .collect();
    Some(BestOf { chosen_even: chosen[0], chosen_odd: chosen[1], ratio: Ratio::of(&ratios)? })
}

/// The median; zero of nothing.
pub fn median(samples: &[f64]) -> f64 {
    let sorted = sorted(samples);
    if sorted.is_empty() { 0.0 } else { quantile(&sorted, 0.5) }
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = samples.iter().copied().filter(|x| x.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Linear between neighbours; `sorted` is not empty.
fn quantile(sorted: &[f64], at: f64) -> f64 {
    let position = at * (sorted.len() - 1) as f64;
    let below = position.floor() as usize;
    let above = position.ceil() as usize;
    sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64)
}

const RESAMPLES: usize = 2000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_interpolate() {
        let spread = Spread::of(&[4.0, 1.0, 3.0, 2.0, f64::NAN]);
        assert_eq!((spread.median, spread.quarter_low, spread.quarter_high), (2.5, 1.75, 3.25));
        assert_eq!((spread.min, spread.max, spread.samples), (1.0, 4.0, 4));
        assert_eq!(Spread::of(&[]), Spread::default());
    }

    #[test]
    fn pairs_cancel_drift() {
        // The machine halves its speed in mid-run; one side is always 10 % faster.
        let theirs: Vec<f64> = (0..10).map(|i| if i < 5 { 100.0 } else { 50.0 }).collect();
        let ours: Vec<f64> = theirs.iter().map(|t| t * 1.1).collect();
        let ratio = Ratio::paired(&ours, &theirs).unwrap();
        assert!((ratio.median - 1.1).abs() < 1e-9 && ratio.high - ratio.low < 1e-9, "{ratio:?}");
    }

    #[test]
    fn the_interval_covers_the_truth_and_narrows() {
        let mut random = SplitMix64(7);
        let mut noisy = |n: usize| (0..n).map(|_| 0.9 + random.below(2001) as f64 / 10_000.0).collect::<Vec<_>>();
        let few = Ratio::of(&noisy(7)).unwrap();
        let many = Ratio::of(&noisy(200)).unwrap();
        assert!(many.low <= 1.0 && 1.0 <= many.high, "{many:?}");
        assert!(many.high - many.low < few.high - few.low, "{few:?} {many:?}");
        assert!(few.low <= few.median && few.median <= few.high);
    }

    #[test]
    fn the_best_is_not_credited_with_its_own_luck() {
        // Two equal sides with one lucky round each; chosen and compared in the same rounds, the best would seem 2 x ours.
        let ours = vec![1.0; 6];
        let others = vec![vec![2.0, 1.0, 2.0, 1.0, 2.0, 1.0], vec![1.0; 6]];
        let best = best_of(&ours, &others).unwrap();
        assert_eq!(best.chosen_even, 0);
        assert_eq!(best.ratio.rounds, 6);
        // Odd rounds are compared with side 0 (chosen in even ones), where it shows 1.0.
        assert!((best.ratio.median - 1.0).abs() < 1e-9, "{best:?}");
    }

    #[test]
    fn nothing_to_compare_is_none() {
        assert!(Ratio::paired(&[], &[]).is_none());
        assert!(Ratio::paired(&[1.0], &[0.0]).is_none());
        assert!(best_of(&[1.0], &[vec![1.0]]).is_none());
        assert!(best_of(&[1.0, 1.0], &[]).is_none());
    }
}
