//! Plans of shapes that are sent again and again.

use std::sync::Arc;

use overside_shape::Shape;

use crate::planner::Planner;
use crate::view::{PlanError, Terms, ViewPlan};

/// Plans by shape, device and terms; a fixed number of them, the older of two that meet in one
/// place goes.
///
/// A shape is told from another by its contents, at the price of a few words; the same `Arc` is
/// known at once.
#[derive(Clone, Debug)]
pub struct PlanCache {
    places: Vec<[Option<Entry>; 2]>,
}

#[derive(Clone, Debug)]
struct Entry {
    device: u64,
    shape: Arc<Shape>,
    terms: Terms,
    plan: ViewPlan,
}

impl Default for PlanCache {
    fn default() -> Self {
        Self { places: vec![[None, None]; PLACES] }
    }
}

impl PlanCache {
    /// The plan for a shape: the one made before, or a new one.
    ///
    /// # Errors
    /// As [`Planner::plan`]; what cannot be sent is not kept.
    pub fn plan(&mut self, planner: &Planner, shape: &Arc<Shape>, terms: &Terms) -> Result<&ViewPlan, PlanError> {
        let device = planner.fingerprint();
        let place = &mut self.places[place(shape, device)];
        let known = |entry: &Option<Entry>| {
            entry.as_ref().is_some_and(|entry| {
                entry.device == device
                    && entry.terms == *terms
                    && (Arc::ptr_eq(&entry.shape, shape) || entry.shape == *shape)
            })
        };
        if !known(&place[0]) {
            if !known(&place[1]) {
                let plan = planner.plan(shape, terms)?;
                place[1] = Some(Entry { device, shape: shape.clone(), terms: *terms, plan });
            }
            place.swap(0, 1);
        }
        match &place[0] {
            Some(entry) => Ok(&entry.plan),
            None => unreachable!("the entry was put there or found"),
        }
    }
}

/// Where a shape belongs: by its extent alone, which costs the same for every kind.
fn place(shape: &Shape, device: u64) -> usize {
    let words = [shape.bytes(), shape.start(), shape.end(), shape.messages().count(), device];
    let mixed = words.into_iter().fold(0u64, |hash, word| (hash.rotate_left(29) ^ word).wrapping_mul(MULTIPLIER));
    (mixed >> (64 - PLACES.ilog2())) as usize
}

const PLACES: usize = 256;
/// 2^64 over the golden ratio: spreads what is alike.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::tests::planner;
    use crate::{Goal, Profile};
    use overside_shape::Run;

    #[test]
    fn a_plan_is_that_of_its_shape_its_device_and_its_terms() {
        let mut cache = PlanCache::default();
        let (device, other) =
            (planner(32, Profile::clone), planner(8, |p| Profile { send_fragment_ns: 99.0, ..p.clone() }));
        // All of one extent, so they meet in one place.
        let shapes: Vec<Arc<Shape>> = (1..40u64)
            .map(|i| Shape::list(&[Run::new(0, i), Run::new(100, 100 - i), Run::new(1000, 50)]).unwrap().into())
            .collect();
        let terms = [Terms::default(), Terms { goal: Goal::SenderCpu, ..Terms::default() }];
        for _ in 0..3 {
            for shape in &shapes {
                for (device, terms) in [(&device, &terms[0]), (&other, &terms[0]), (&device, &terms[1])] {
                    let fresh = device.plan(shape, terms).unwrap();
                    assert_eq!(cache.plan(device, shape, terms).unwrap(), &fresh);
                    let alike = Arc::new(Shape::clone(shape));
                    assert_eq!(cache.plan(device, &alike, terms).unwrap(), &fresh);
                }
            }
        }
        let long = Arc::new(Shape::contiguous(0, 1 << 30).unwrap());
        assert!(cache.plan(&device, &long, &terms[0]).is_err());
    }
}
