//! How far apart two profiles are, on the shapes of the figure.

use super::{CELLS_QUICK, Cell, Fixed, cells, place_of, sorted};
use anyhow::Result;
use overside::planner::{Capabilities, Planner, Profile, Terms, ViewPlan};
use serde::Serialize;

/// By how much two profiles differ in the price of the same way of sending the same
/// shape, without regard to sign.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PricesApart {
    /// How many prices were compared: those of every different way of sending each shape.
    pub prices: usize,
    /// Half of the prices are no further apart, as a part of the larger.
    pub median: f64,
    /// Of 100 prices, 95.
    pub p95: f64,
    /// The furthest.
    pub worst: f64,
    /// Which that is: the way, the shape, and both prices in nanoseconds.
    pub worst_is: String,
    /// Of the shapes, so many are sent differently.
    pub chosen_differently: usize,
    /// What the first profile's choice costs more than the second's, by the second's
    /// prices, in 95 of 100 shapes.
    pub choice_loses_p95: f64,
}

impl PricesApart {
    /// In a line.
    pub fn in_words(&self) -> String {
        format!(
            "{} prices are {:.1} % apart in the median, {:.1} % at 95 of 100, {:.1} % at most ({}); {} shapes would be sent otherwise, \
             which loses {:.1} % at 95 of 100",
            self.prices,
            self.median * 100.0,
            self.p95 * 100.0,
            self.worst * 100.0,
            self.worst_is,
            self.chosen_differently,
            self.choice_loses_p95 * 100.0
        )
    }
}

/// Compares the prices of `one` and `other` for a device of these capabilities.
///
/// # Errors
/// A shape of the grid cannot be made or sent.
pub fn prices_apart(capabilities: &Capabilities, one: &Profile, other: &Profile) -> Result<PricesApart> {
    let planners = [one, other].map(|profile| Planner::new(capabilities.clone(), profile.clone()));
    let (mut apart, mut losses, mut chosen_differently, mut worst) = (Vec::new(), Vec::new(), 0, (0.0, String::new()));
    for cell in cells::grid(CELLS_QUICK, 0) {
        let shape = &cell.shapes(MEMORY_BYTES, 1)?[0];
        let terms = Terms { request_bytes_max: cell.class() as u64, ..Terms::default() };
        let mut kinds: Vec<ViewPlan> = Vec::new();
        for fixed in Fixed::all() {
            let forced = Terms { force: Some(fixed.force()), ..terms };
            let [Ok(one), Ok(other)] = [0, 1].map(|at| planners[at].plan(shape, &forced)) else { continue };
            let known = kinds.len();
            if place_of(&mut kinds, one.clone(), shape) == known {
                let [a, b] = [&one, &other].map(|plan| plan.chosen().ns);
                let by = (a - b).abs() / a.max(b).max(1.0);
                apart.push(by);
                if by > worst.0 {
                    worst = (by, format!("{} of {}: {a:.0} and {b:.0} ns", fixed.name(), Cell::describe(&cell)));
                }
            }
        }
        let [first, second] = [0, 1].map(|at| planners[at].plan(shape, &terms));
        let (first, second) = (first?, second?);
        if !super::same(&first, &second, shape) {
            chosen_differently += 1;
            let way = match first.way() {
                overside::planner::Method::Mixture => overside::planner::Force::Threshold(first.gather_from()),
                way => overside::planner::Force::Method(way),
            };
            let as_first = planners[1].plan(shape, &Terms { force: Some(way), ..terms })?;
            losses.push(1.0 - second.chosen().ns / as_first.chosen().ns.max(1.0));
        } else {
            losses.push(0.0);
        }
    }
    let (apart, losses) = (sorted(apart.into_iter()), sorted(losses.into_iter()));
    Ok(PricesApart {
        prices: apart.len(),
        median: super::at(&apart, 0.5),
        p95: super::at(&apart, 0.95),
        worst: worst.0,
        worst_is: worst.1,
        chosen_differently,
        choice_loses_p95: super::at(&losses, 0.95),
    })
}

/// As the figure's region has it.
const MEMORY_BYTES: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use overside::{Network, Transport};

    #[test]
    fn a_profile_is_nowhere_from_itself_and_as_far_as_it_is_dearer() {
        let provider = Transport::of("shm").unwrap().provider(&Network::default()).unwrap();
        let (capabilities, profile) = (provider.capabilities(), provider.profile());
        let same = prices_apart(&capabilities, &profile, &profile).unwrap();
        assert!(same.prices > 300 && (same.median, same.worst, same.chosen_differently) == (0.0, 0.0, 0), "{same:?}");
        let dear =
            Profile { send_request_ns: profile.send_request_ns + 1e6, receive_request_ns: 1e6, ..profile.clone() };
        let far = prices_apart(&capabilities, &profile, &dear).unwrap();
        assert!(far.median > 0.9 && far.worst < 1.0 && far.worst_is.contains(" and "), "{far:?}");
    }
}
