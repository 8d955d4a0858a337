//! Several shapes over one memory, for several destinations.

use overside_shape::{OneTable, Shape};

use crate::packing::Packing;
use crate::plan::{Goal, Price};
use crate::planner::Planner;
use crate::view::{Method, PlanError, Terms, ViewPlan};

impl Planner {
    /// Plans shapes that lie in the same cache lines and are sent together. The end that makes a
    /// shape's messages passes over all that it lies in. Each receiver does so once more, where it
    /// makes them by a description. The sender does it once for all that it packs, dealing rows out
    /// or stretch by stretch (d-rdma §4.1 DR-M32, §6 DR-M59). Which of the two is cheaper for all
    /// of them together depends on how many they are.
    ///
    /// # Errors
    /// As [`plan`](Self::plan), with the place of the shape.
    pub fn plan_together(&self, shapes: &[&Shape], terms: &Terms) -> Result<Vec<ViewPlan>, (usize, PlanError)> {
        self.together(shapes, terms, self.dealt(shapes))
    }

    /// As [`plan_together`](Self::plan_together), for shapes that have bytes in common: those are
    /// not dealt out, but packed for each stretch by stretch, and read from memory once for all of
    /// them (d-rdma §6 DR-M59).
    ///
    /// # Errors
    /// As there.
    pub fn plan_overlapping(&self, shapes: &[&Shape], terms: &Terms) -> Result<Vec<ViewPlan>, (usize, PlanError)> {
        self.together(shapes, terms, None)
    }

    fn together(
        &self,
        shapes: &[&Shape],
        terms: &Terms,
        dealt: Option<f64>,
    ) -> Result<Vec<ViewPlan>, (usize, PlanError)> {
        let mut alone = Vec::with_capacity(shapes.len());
        let mut together = Vec::with_capacity(shapes.len());
        let mut apart = Vec::with_capacity(shapes.len());
        let mut passes = Vec::with_capacity(shapes.len());
        for (index, shape) in shapes.iter().enumerate() {
            let named = |error| (index, error);
            let mut plan = ViewPlan::default();
            let packing = self.prices(shape, terms, &mut plan).map_err(named)?;
            let (mut shared, mut spared) = (plan.clone(), plan.clone());
            self.charge(
                &mut shared,
                terms.goal,
                dealt.map_or(packing.pass_ns * (PASS_AGAIN - 1.0), |share| share - packing.ns()),
            );
            plan.choose(terms.force).map_err(named)?;
            alone.push(plan);
            shared.choose(terms.force).map_err(named)?;
            together.push(shared);
            passes.push(packing);
            // Receivers are many and work at once; what is chosen for each alone leaves too much to the one sender.
            self.weigh_again(&mut spared, Goal::SenderCpu);
            spared.choose(terms.force).map_err(named)?;
            self.weigh_again(&mut spared, terms.goal);
            apart.push(spared);
        }
        if dealt.is_none() {
            self.lead(&mut together, &passes, terms.goal);
        }
        let total = |plans: &Vec<ViewPlan>| self.total(plans, terms.goal).ns;
        let candidates = [alone, together, apart];
        Ok(candidates.into_iter().min_by(|a, b| total(a).total_cmp(&total(b))).unwrap_or_default())
    }

    fn weigh_again(&self, plan: &mut ViewPlan, goal: Goal) {
        let bytes = plan.bytes as f64;
        for price in plan.prices.iter_mut().flatten() {
            *price = self.weighed(price.sender_ns, price.receiver_ns, bytes, goal);
        }
    }

    /// Each shape's share of dealing all rows out in one pass, in nanoseconds; none where they are
    /// not rows of one table that can be.
    fn dealt(&self, shapes: &[&Shape]) -> Option<f64> {
        let (table, value_ns) = (OneTable::of(shapes)?, self.profile().bends.deal_value_ns);
        let dealt = value_ns > 0.0 && table.is_dense(DEALT_BYTES) && DEALT_COLUMNS.contains(&table.columns().len());
        let values = table.rows() as f64 * table.columns().len() as f64;
        dealt.then(|| values * value_ns / table.parts().len() as f64)
    }

    /// The first pass is a full one, which all that are packed share in.
    fn lead(&self, plans: &mut [ViewPlan], passes: &[Packing], goal: Goal) {
        let packed = || plans.iter().zip(passes).filter(|(plan, _)| plan.way() == Method::Copy);
        let longest = packed().map(|(_, packing)| packing.pass_ns).fold(0.0, f64::max);
        let share = longest * (1.0 - PASS_AGAIN) / packed().count().max(1) as f64;
        for plan in plans.iter_mut().filter(|plan| plan.way() == Method::Copy) {
            self.charge(plan, goal, share);
        }
    }

    /// So many nanoseconds more for the sender where it packs.
    fn charge(&self, plan: &mut ViewPlan, goal: Goal, ns: f64) {
        let bytes = plan.bytes as f64;
        if let Some(price) = &mut plan.prices[Method::Copy as usize] {
            *price = self.weighed((price.sender_ns + ns).max(0.0), price.receiver_ns, bytes, goal);
        }
    }

    /// Of one sender and as many receivers as plans, which work at once.
    fn total(&self, plans: &[ViewPlan], goal: Goal) -> Price {
        let chosen = || plans.iter().map(ViewPlan::chosen);
        let sender_ns = chosen().map(|price| price.sender_ns).sum();
        let receivers = chosen().map(|price| price.receiver_ns);
        let receiver_ns = match goal {
            Goal::Throughput | Goal::Latency => receivers.fold(0.0, f64::max),
            Goal::TotalCpu | Goal::SenderCpu => receivers.sum(),
        };
        let bytes: u64 = plans.iter().map(|plan| plan.bytes).sum();
        self.weighed(sender_ns, receiver_ns, bytes as f64, goal)
    }
}

/// What the kernel that deals rows out takes: bytes of a value, columns.
const DEALT_BYTES: u64 = 4;
const DEALT_COLUMNS: std::ops::RangeInclusive<usize> = 2..=8;
/// Passing over what is in the nearest cache, as part of what it costs from memory
/// (docs/design/013-several-destinations.md).
const PASS_AGAIN: f64 = 1.0 / 16.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::tests::planner;
    use crate::{Bends, Curve, Force, Profile};
    use overside_shape::{Bitmap, Column, Order};

    /// A device whose receivers can be given regions, with kernels for bitmaps of 4-byte values.
    fn device() -> Planner {
        let curve = |ns: f64| Curve::new([(4, ns)]).unwrap();
        let plain = planner(256, |profile| Profile {
            bends: Bends {
                bitmap_row: curve(0.4),
                bitmap_run: curve(0.3),
                receive_packed: Curve::new([(64, 100.0), (1 << 16, 9900.0)]).unwrap(),
                ..profile.bends.clone()
            },
            ..profile.clone()
        });
        let capabilities = crate::Capabilities { region_bytes_max: 1 << 20, ..plain.capabilities().clone() };
        Planner::new(capabilities, plain.profile().clone())
    }

    /// Row `i` of five columns goes to destination `i % of`.
    fn dealt(of: u64) -> Vec<Shape> {
        let columns: Vec<Column> = (0..5).map(|column| Column::dense(column * (ROWS * 4 + 64), 4)).collect();
        let rows = |to: u64| Bitmap::of(ROWS, |row| (row * 7 + row / 11) % of == to);
        (0..of).map(|to| Shape::bitmapped(&columns, &rows(to), Order::Rows).unwrap()).collect()
    }

    fn plans(of: u64, terms: &Terms) -> Vec<ViewPlan> {
        let shapes = dealt(of);
        device().plan_together(&shapes.iter().collect::<Vec<_>>(), terms).unwrap()
    }

    #[test]
    fn few_receivers_read_the_table_and_many_do_not() {
        let terms = Terms { goal: Goal::TotalCpu, ..Terms::default() };
        let ways = |of| plans(of, &terms).iter().map(ViewPlan::way).collect::<Vec<_>>();
        assert_eq!(ways(1), [Method::Declared]);
        assert_eq!(ways(2), [Method::Declared; 2]);
        assert_eq!(ways(8), [Method::Copy; 8]);
        // One by one each would be declared, whatever the others are.
        let shapes = dealt(8);
        assert!(shapes.iter().all(|shape| device().plan(shape, &terms).unwrap().way() == Method::Declared));
        // A sender that is all that counts lets the receivers work; those of many rows at once are not slower than it.
        for goal in [Goal::SenderCpu, Goal::Throughput] {
            assert!(plans(8, &Terms { goal, ..terms }).iter().all(|plan| plan.way() == Method::Declared), "{goal:?}");
        }
    }

    #[test]
    fn together_the_table_is_paid_once() {
        let forced = Terms { goal: Goal::TotalCpu, force: Some(Force::Method(Method::Copy)), ..Terms::default() };
        let shapes = dealt(8);
        let apart: f64 = shapes.iter().map(|shape| device().plan(shape, &forced).unwrap().chosen().ns).sum();
        let together: f64 = plans(8, &forced).iter().map(|plan| plan.chosen().ns).sum();
        let pass = ROWS as f64 * 5.0 * 0.4;
        let saved = 7.0 * pass * (1.0 - PASS_AGAIN);
        // Behind a destination's last row nothing is passed over.
        assert!((apart - together - saved).abs() < saved / 1000.0, "{apart} {together} {saved}");
    }

    #[test]
    fn dealing_is_priced_by_the_table_and_not_by_who_gets_it() {
        let plain = device();
        let bends = Bends { deal_value_ns: 0.6, ..plain.profile().bends.clone() };
        let dealing = Planner::new(plain.capabilities().clone(), Profile { bends, ..plain.profile().clone() });
        let forced = Terms { goal: Goal::TotalCpu, force: Some(Force::Method(Method::Copy)), ..Terms::default() };
        let price = |planner: &Planner, of| {
            let shapes = dealt(of);
            let plans = planner.plan_together(&shapes.iter().collect::<Vec<_>>(), &forced).unwrap();
            plans.iter().map(|plan| plan.chosen().sender_ns).sum::<f64>()
        };
        let table = ROWS as f64 * 5.0 * 0.6;
        let [few, many] = [2, 16].map(|of| price(&dealing, of));
        assert!(few > table && many < 1.2 * table, "{few} {many} {table}");
        assert!(many < price(&plain, 16), "a stretch each is dearer");
        // What nobody measured is not priced so, and other columns are not dealt.
        let one = Shape::contiguous(0, 4).unwrap();
        assert_eq!((plain.dealt(&[&one]), dealing.dealt(&[&one])), (None, None));
    }

    #[test]
    fn what_several_want_is_not_dealt_and_still_paid_once() {
        let plain = device();
        // Dealing is next to nothing here, so who prices it chooses it.
        let bends = Bends { deal_value_ns: 0.01, ..plain.profile().bends.clone() };
        let dealing = Planner::new(plain.capabilities().clone(), Profile { bends, ..plain.profile().clone() });
        let forced = Terms { goal: Goal::TotalCpu, force: Some(Force::Method(Method::Copy)), ..Terms::default() };
        let some = dealt(2);
        // Everybody gets the same rows.
        let shapes = [&some[0]; 8];
        let ns = |plans: Vec<ViewPlan>| plans.iter().map(|plan| plan.chosen().ns).sum::<f64>();
        let overlapping = ns(dealing.plan_overlapping(&shapes, &forced).unwrap());
        assert_eq!(overlapping, ns(plain.plan_together(&shapes, &forced).unwrap()), "priced by stretches");
        assert!(overlapping > ns(dealing.plan_together(&shapes, &forced).unwrap()));
        let alone = 8.0 * plain.plan(&some[0], &forced).unwrap().chosen().ns;
        let pass = ROWS as f64 * 5.0 * 0.4;
        let saved = 7.0 * pass * (1.0 - PASS_AGAIN);
        assert!((alone - overlapping - saved).abs() < saved / 1000.0, "{alone} {overlapping} {saved}");
    }

    #[test]
    fn the_shape_that_cannot_be_sent_is_named() {
        let mut shapes = dealt(3);
        shapes[1] = Shape::contiguous(0, 5000).unwrap();
        let terms = Terms { request_bytes_max: 4096, ..Terms::default() };
        let error = device().plan_together(&shapes.iter().collect::<Vec<_>>(), &terms).unwrap_err();
        assert_eq!(error, (1, PlanError::TooLong { bytes: 5000, max: 4096 }));
    }

    const ROWS: u64 = 1 << 16;
}
