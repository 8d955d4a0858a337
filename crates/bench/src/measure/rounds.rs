//! Alternating the sides of a comparison.

/// The order in which `sides` run in `round`: rotated by one each round, and backwards every other
/// time round, so that no side always runs first, and none always runs after the same neighbour.
pub fn rotation(sides: usize, round: usize) -> impl Iterator<Item = usize> {
    let backwards = sides > 0 && (round / sides) % 2 == 1;
    (0..sides).map(move |step| {
        let step = if backwards { sides - 1 - step } else { step };
        (step + round) % sides
    })
}

/// Runs every side once a round, for `rounds` rounds, and returns the samples by side, each in
/// the order of the rounds.
///
/// # Errors
///
/// The first error of `run` ends it.
pub fn alternate<T, E>(
    sides: usize,
    rounds: usize,
    mut run: impl FnMut(usize, usize) -> Result<T, E>,
) -> Result<Vec<Vec<T>>, E> {
    let mut samples: Vec<Vec<T>> = (0..sides).map(|_| Vec::with_capacity(rounds)).collect();
    for round in 0..rounds {
        for side in rotation(sides, round) {
            samples[side].push(run(side, round)?);
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_side_runs_once_a_round_and_each_goes_first() {
        let mut first = [0usize; 4];
        for round in 0..8 {
            let mut order: Vec<usize> = rotation(4, round).collect();
            first[order[0]] += 1;
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2, 3]);
        }
        assert_eq!(first, [2; 4]);
    }

    #[test]
    fn samples_lie_by_side_in_order_of_rounds() {
        let samples = alternate(3, 5, |side, round| Ok::<_, ()>((side, round))).unwrap();
        for (side, rounds) in samples.iter().enumerate() {
            assert_eq!(*rounds, (0..5).map(|round| (side, round)).collect::<Vec<_>>());
        }
        assert_eq!(alternate(3, 5, |side, round| if round == 1 { Err(side) } else { Ok(()) }), Err(1));
    }
}
