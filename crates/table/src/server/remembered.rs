//! Prices of pages like this one, so that not every page is priced.
//!
//! Pricing a page means drafting it in every way, which costs about a tenth of sending it. Within a
//! scan, pages with as many deltas and about as many rows come at nearly the same prices. So a
//! page's plan serves for the next ones of its kind, for the more of them the more often pricing
//! anew has led to the same choice.

use overside_planner::Plan;

use crate::block::PageState;
use crate::wire::{MODES, Mode, WAYS};

/// A page's prices by way, and what was chosen.
#[derive(Clone, Debug)]
pub(crate) struct Priced {
    pub(crate) plan: Plan<WAYS>,
    /// What making a message of it takes in the chosen way by the device's profile alone; posting
    /// it is not part of that.
    pub(crate) prepared_ns: f64,
}

/// The latest prices of each kind of page.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    kinds: Vec<Option<Known>>,
}

/// Which pages are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageClass {
    /// By what is joined and the number of deltas.
    place: usize,
    /// Rows to a power of two, and whether some lie apart.
    shape: (u32, bool),
}

#[derive(Debug)]
struct Known {
    shape: (u32, bool),
    priced: Priced,
    /// Pages that the prices still serve.
    left: u32,
    /// Pages that they served when they were last found to lead to the same choice.
    served: u32,
}

impl PageClass {
    pub(crate) fn of(state: &PageState<'_>, joins: Option<Mode>) -> PageClass {
        let joined = joins.map_or(0, |way| 1 + super::answer::index(way));
        let deltas = state.deltas().min(DELTAS_MAX);
        PageClass {
            place: joined * (DELTAS_MAX + 1) + deltas,
            shape: (state.rows().checked_ilog2().unwrap_or(0), state.leaf().has_overflow()),
        }
    }
}

impl Remembered {
    /// The prices of the last page of this kind, if they may still serve.
    pub(crate) fn recall(&mut self, kind: PageClass) -> Option<&Priced> {
        let known = self.kinds.get_mut(kind.place)?.as_mut()?;
        if known.shape != kind.shape || known.left == 0 {
            return None;
        }
        known.left -= 1;
        Some(&known.priced)
    }

    /// Takes note of a page's prices.
    pub(crate) fn note(&mut self, kind: PageClass, priced: &Priced) {
        if self.kinds.is_empty() {
            self.kinds.resize_with((MODES.len() + 1) * (DELTAS_MAX + 1), || None);
        }
        let Some(place) = self.kinds.get_mut(kind.place) else { return };
        let confirmed = place.as_ref().filter(|k| k.shape == kind.shape && k.priced.plan.chosen == priced.plan.chosen);
        let serves = confirmed.map_or(1, |known| (2 * known.served + 1).min(SERVES_MAX));
        *place = Some(Known { shape: kind.shape, priced: priced.clone(), left: serves, served: serves });
    }
}

/// Chains that are longer are one kind.
const DELTAS_MAX: usize = 15;
/// Pages that one page's prices serve at most. With that pricing is some two hundredths of the
/// work, and not in step with the messages whose time is taken.
const SERVES_MAX: u32 = 23;

#[cfg(test)]
mod tests {
    use super::*;
    use overside_planner::Price;

    fn priced(chosen: usize) -> Priced {
        Priced { plan: Plan { chosen, prices: [Some(Price::default()); WAYS] }, prepared_ns: 1.0 }
    }

    /// Of `pages` pages of one kind, which were priced.
    fn run(remembered: &mut Remembered, kind: PageClass, pages: usize, choice: impl Fn(usize) -> usize) -> Vec<usize> {
        let mut found = Vec::new();
        for page in 0..pages {
            if remembered.recall(kind).is_none() {
                remembered.note(kind, &priced(choice(page)));
                found.push(page);
            }
        }
        found
    }

    #[test]
    fn the_steadier_the_choice_the_rarer_the_pricing() {
        let kind = PageClass { place: 3, shape: (6, false) };
        let mut remembered = Remembered::default();
        assert_eq!(run(&mut remembered, kind, 76, |_| 1), [0, 2, 6, 14, 30, 54]);
        let changing = run(&mut Remembered::default(), kind, 12, |page| page / 6);
        assert_eq!(changing, [0, 2, 6, 8], "a change is followed closely");
    }

    #[test]
    fn pages_of_another_kind_are_priced_for_themselves() {
        let kind = PageClass { place: 0, shape: (6, false) };
        let mut remembered = Remembered::default();
        remembered.note(kind, &priced(1));
        for other in [
            PageClass { place: 1, ..kind },
            PageClass { shape: (5, false), ..kind },
            PageClass { shape: (6, true), ..kind },
        ] {
            assert!(remembered.recall(other).is_none(), "{other:?}");
        }
        assert!(remembered.recall(kind).is_some());
        assert!(remembered.recall(kind).is_none(), "served once");
    }
}
