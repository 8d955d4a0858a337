//! Prices every way of sending a shape and chooses.

use std::hash::{Hash, Hasher};

use overside_shape::{Run, Shape};
use smallvec::SmallVec;

use crate::boxes::{PerByte, bottleneck, separable};
use crate::capabilities::Capabilities;
use crate::division::{Load, Moved, Part};
use crate::packing::Packing;
use crate::plan::Goal;
use crate::profile::Profile;
use crate::tables::{AccessPattern, Ends, Tables};
use crate::tally::{RANGES_AT_HAND, Range, Tally, start_of};
use crate::view::{Force, Method, PlanError, Terms, ViewPlan};

/// A device as the planner sees it: made once, asked for every shape.
#[derive(Clone, Debug)]
pub struct Planner {
    capabilities: Capabilities,
    profile: Profile,
    tables: Tables,
    fingerprint: u64,
    /// By the profile's prices of elsewhere.
    elsewhere: Option<Box<Planner>>,
}

impl Planner {
    /// For a device.
    pub fn new(capabilities: Capabilities, profile: Profile) -> Self {
        let mut hasher = std::hash::DefaultHasher::new();
        (&capabilities, profile.to_string()).hash(&mut hasher);
        let elsewhere =
            profile.elsewhere.as_deref().map(|prices| Box::new(Self::new(capabilities.clone(), prices.clone())));
        Self { fingerprint: hasher.finish(), capabilities, tables: Tables::new(&profile), profile, elsewhere }
    }

    /// The planner where a cache line takes `line_ns` from the peer's processor, by the prices that
    /// were measured nearer to that ([`Profile::at`]). Plans of both hold; one of them is the
    /// cheaper.
    #[inline]
    pub fn at(&self, line_ns: Option<f64>) -> &Planner {
        match (&self.elsewhere, line_ns) {
            (Some(elsewhere), Some(now)) if self.profile.is_nearer(&elsewhere.profile, now) => elsewhere,
            _ => self,
        }
    }

    /// The device's limits.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Its prices.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    pub(crate) fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Tells devices apart.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Prices every way of sending `shape` and chooses the cheapest; the first of equals.
    ///
    /// Exact for this profile where every message is cut alike or there is one: all thresholds
    /// between packing everything and gathering everything are priced.
    ///
    /// # Errors
    /// For a message longer than a request, and a forced way that cannot carry the shape.
    #[inline]
    pub fn plan(&self, shape: &Shape, terms: &Terms) -> Result<ViewPlan, PlanError> {
        let mut plan = ViewPlan::default();
        self.prices(shape, terms, &mut plan)?;
        plan.choose(terms.force)?;
        Ok(plan)
    }

    /// Fills in a plan in which nothing is chosen yet, in place: it is too long to be moved for
    /// nothing. Returns what packing all costs.
    #[inline]
    pub(crate) fn prices(&self, shape: &Shape, terms: &Terms, plan: &mut ViewPlan) -> Result<Packing, PlanError> {
        let messages = shape.messages();
        let bytes_max = terms.request_bytes_max.min(self.capabilities.message_max);
        let longest = match messages.uniform_bytes() {
            Some(bytes) => bytes,
            None => messages.lengths().max().unwrap_or(0),
        };
        if longest > bytes_max {
            return Err(PlanError::TooLong { bytes: longest, max: bytes_max });
        }
        let mut tally = Tally::default();
        tally.fill(shape);
        let pattern = AccessPattern::of(shape, &tally, terms.warm);
        let mut moved: SmallVec<[Moved; RANGES_AT_HAND]> = SmallVec::new();
        // All packed, and what gathering all of it costs.
        let mut all = Part { pieces: tally.pieces(), ..Part::default() };
        for range in tally.ranges() {
            let ends = self.tables.gathered(range, &pattern);
            let pack_ns = self.tables.pack(range.index, &pattern).at(range.pieces, range.bytes);
            all.ends.add(ends);
            (all.pack_ns, all.bytes, all.runs) =
                (all.pack_ns + pack_ns, all.bytes + range.bytes, all.runs + range.runs);
            moved.push(Moved { ends, pack_ns });
        }
        let uniform = messages.uniform_bytes().is_some();
        let count = messages.count();
        let load = Load {
            bytes: shape.bytes() as f64,
            messages: count as f64,
            longest: longest as f64,
            lengths: if uniform { 0.0 } else { 4.0 * count as f64 },
            bytes_max: bytes_max.min(terms.bundle_bytes) as f64,
            request_max: bytes_max as f64,
            sge_max: self.capabilities.sge_max as f64,
            warm: terms.warm,
        };
        (plan.messages, plan.fragments) = (count, all.pieces as u64);
        (plan.bytes, plan.bundle_bytes) = (shape.bytes(), terms.bundle_bytes);
        let gathered = Part { gathered: all.pieces, ends: std::mem::take(&mut all.ends), ..Part::default() };
        plan.prices[Method::Gather as usize] = self.priced(&load, &gathered, terms.goal, f64::INFINITY);
        let packing = self.packing(shape, &tally, &pattern, Some(all.pack_ns));
        let part = Part { bytes: load.bytes, runs: 1.0, pack_ns: packing.ns(), ..all };
        plan.prices[Method::Copy as usize] = self.priced(&load, &part, terms.goal, f64::INFINITY);
        self.price_thresholds(tally.ranges(), &moved, &load, all, terms, plan);
        self.price_inline(shape, packing.ns(), &load, terms, plan);
        self.price_declared(shape, &tally, &load, terms, plan);
        if terms.gaps_on_wire {
            self.price_boxes(shape, &load, terms, plan);
        }
        Ok(packing)
    }

    /// Every threshold between gathering everything and packing everything, which `part` does at
    /// first.
    fn price_thresholds(
        &self,
        ranges: &[Range],
        moved: &[Moved],
        load: &Load,
        mut part: Part,
        terms: &Terms,
        plan: &mut ViewPlan,
    ) {
        // A forced threshold stands at the first range that is gathered, and all others do not count.
        let forced = match terms.force {
            Some(Force::Threshold(from)) => Some(ranges.iter().position(|range| start_of(range.index) >= from)),
            _ => None,
        };
        plan.all_gathered = forced == Some(Some(0)) && !ranges.is_empty();
        let mut known = f64::INFINITY;
        // From the longest: where mixing pays at all it is mostly a few long ones that are gathered, and what is known to be cheap
        // spares looking closely at the rest.
        for (at, (range, moved)) in ranges.iter().zip(moved).enumerate().skip(1).rev() {
            part.pieces -= range.pieces;
            part.bytes -= range.bytes;
            part.runs -= range.runs;
            part.pack_ns -= moved.pack_ns;
            part.gathered += range.pieces;
            part.ends.add(moved.ends);
            let stands = forced.is_none_or(|first| first == Some(at));
            if stands && let Some(price) = self.priced(load, &part, terms.goal, known) {
                known = price.ns;
                plan.prices[Method::Mixture as usize] = Some(price);
                plan.mixture_from = start_of(range.index);
            }
        }
    }

    fn price_inline(&self, shape: &Shape, packing: f64, load: &Load, terms: &Terms, plan: &mut ViewPlan) {
        if load.bytes + load.lengths > terms.request_bytes_max.min(self.capabilities.inline_max as u64) as f64 {
            return;
        }
        let (send_ns, receive_ns) = self.profile.inline_ns(shape.bytes());
        let sender = self.profile.send_request_ns + packing + send_ns;
        let receiver = self.profile.receive_request_ns + receive_ns;
        plan.prices[Method::Inline as usize] = Some(self.weighed(sender, receiver, load.bytes, terms.goal));
    }

    /// The description in a transmit buffer of the provider's, and the pack kernels at the other
    /// end. A message by itself is a gather list in other words, which the ways above price better.
    fn price_declared(&self, shape: &Shape, tally: &Tally, load: &Load, terms: &Terms, plan: &mut ViewPlan) {
        if load.messages <= 1.0 || self.capabilities.region_bytes_max == 0 {
            return;
        }
        let description = shape.description_bytes();
        if description > self.capabilities.region_bytes_max || shape.describable(shape.end()).is_err() {
            return;
        }
        let sends = ((load.bytes + load.lengths) / load.bytes_max.max(load.longest)).ceil().max(1.0);
        let (profile, words) = (&self.profile, description as f64 * self.profile.pack_byte_ns);
        let sender = profile.send_request_ns + profile.pack_request_ns + words;
        // Whatever is in the sender's cache, the other end has caches of its own.
        let packing = self.packing(shape, tally, &AccessPattern::of(shape, tally, false), None).ns();
        // The description is a request more, and is read twice: to be copied out, and to be checked.
        let receiver = (sends + 1.0) * profile.receive_request_ns + 2.0 * words + packing;
        plan.prices[Method::Declared as usize] = Some(self.weighed(sender, receiver, load.bytes, terms.goal));
    }

    /// One message as boxes over its fragments; the gaps' bytes go along.
    fn price_boxes(&self, shape: &Shape, load: &Load, terms: &Terms, plan: &mut ViewPlan) {
        let fragments: Vec<Run> = shape.fragments().collect();
        let in_order = fragments.windows(2).all(|pair| pair[0].at + pair[0].len <= pair[1].at);
        if load.messages != 1.0 || !in_order {
            return;
        }
        let cost = self.box_cost();
        let boxes = separable(&fragments, &cost);
        let bytes = boxes.bytes(&fragments);
        if boxes.len() > self.capabilities.sge_max || bytes as f64 > load.request_max {
            return;
        }
        let mut ends = Ends::default();
        for run in boxes.runs(&fragments) {
            let (one, bytes) = (1.0, run.len as f64);
            ends.sender_ns += self.profile.send(run.len, terms.warm).at(one, bytes);
            ends.receiver_ns += self.profile.receive(run.len).at(one, bytes);
        }
        let part = Part { gathered: boxes.len() as f64, ends, ..Part::default() };
        let load = Load { bytes: bytes as f64, longest: bytes as f64, ..*load };
        plan.prices[Method::Boxes as usize] = self.priced(&load, &part, terms.goal, f64::INFINITY);
    }

    /// What a box costs at both ends together, the request being one more gather entry.
    pub fn box_cost(&self) -> PerByte {
        let send = self.profile.send(BOX_BYTES, false);
        let receive = self.profile.receive(BOX_BYTES);
        PerByte {
            request_ns: send.fixed_ns.max(0.0) + receive.fixed_ns.max(0.0),
            byte_ns: send.byte_ns + receive.byte_ns + self.profile.wire_byte_ns,
        }
    }

    /// The reads that fetch address-ordered fragments, from one region or several, for the goal:
    /// joined gap by gap, or the smallest gaps first where requests and bytes overlap in time
    /// (d-rdma §4.1 DR-M26).
    pub fn boxes(&self, fragments: &[Run], goal: Goal) -> crate::Boxes {
        let cost = self.box_cost();
        match goal {
            Goal::Throughput => bottleneck(fragments, cost.request_ns, cost.byte_ns),
            Goal::TotalCpu | Goal::SenderCpu | Goal::Latency => separable(fragments, &cost),
        }
    }
}

/// A box's bytes are priced as those of a fragment of this length.
const BOX_BYTES: u64 = 256;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::capabilities::{AtomicScope, ForeignMemory};
    use crate::plan::weigh_stream;
    use crate::tally::range_of;
    use crate::{Bends, Curve};
    use overside_shape::{Bitmap, Column, Order};
    use proptest::prelude::*;

    pub(crate) fn planner(sge_max: usize, change: impl Fn(&Profile) -> Profile) -> Planner {
        let capabilities = Capabilities {
            sge_max,
            inline_max: 64,
            message_max: 1 << 20,
            depth_max: 64,
            progress_by_itself: true,
            one_sided: true,
            atomics: AtomicScope::Cpu,
            last_byte_last: true,
            region_bytes_max: 0,
            foreign: ForeignMemory::Direct,
            lends: false,
        };
        let curve = |points: &[(u64, f64)]| Curve::new(points.iter().copied()).unwrap();
        let profile = Profile {
            send_request_ns: 60.0,
            send_fragment_ns: 8.0,
            send_byte_ns: 0.0,
            pack_byte_ns: 0.1,
            pack_piece_ns: 3.0,
            pack_request_ns: 40.0,
            row_ns: 4.0,
            receive_request_ns: 80.0,
            receive_fragment_ns: 14.0,
            receive_byte_ns: 0.1,
            wire_byte_ns: 0.01,
            bends: Bends {
                pack: curve(&[(4, 2.0), (64, 5.0), (1024, 90.0), (65536, 9000.0)]),
                receive: curve(&[(8, 12.0), (128, 20.0), (4096, 300.0), (65536, 6000.0)]),
                receive_packed: curve(&[(64, 10.0), (16384, 900.0)]),
                pack_run_ns: 7.0,
                pack_begin_ns: 21.0,
                mixture_ns: 13.0,
                receive_beside: curve(&[(64, 6.0), (16384, 700.0)]),
                ..Bends::default()
            },
            source: "made up".into(),
            elsewhere: None,
        };
        Planner::new(capabilities, change(&profile))
    }

    pub(crate) fn listed(lens: &[u64]) -> Shape {
        let mut at = 0;
        let runs: Vec<Run> = lens
            .iter()
            .map(|len| {
                at += len + 9;
                Run::new(at - len, *len)
            })
            .collect();
        Shape::list(&runs).unwrap()
    }

    /// The price of one request in which `packed` says for each fragment whether it is packed;
    /// walks it naively.
    fn naive(planner: &Planner, lens: &[u64], packed: &[bool], goal: Goal) -> Option<f64> {
        let profile = planner.profile();
        let (mut entries, mut sender, mut receiver, mut run) =
            (0, profile.send_request_ns, profile.receive_request_ns, 0);
        let mut runs = Vec::new();
        let mixed = packed.contains(&true) && packed.contains(&false);
        for (len, is_packed) in lens.iter().zip(packed) {
            if *is_packed {
                entries += usize::from(run == 0);
                run += len;
                sender += profile.pack(*len, false).at(1.0, *len as f64);
            } else {
                runs.extend((run > 0).then_some(run));
                (run, entries) = (0, entries + 1);
                sender += profile.send(*len, false).at(1.0, *len as f64);
                receiver += profile.receive(*len).at(1.0, *len as f64);
            }
        }
        runs.extend((run > 0).then_some(run));
        let (count, bytes) = (runs.len() as f64, runs.iter().sum::<u64>() as f64);
        if count > 0.0 {
            sender += profile.pack_request_ns + profile.send(1, true).at(count, bytes);
            let mean = (bytes / count) as u64;
            sender += profile.bends.pack_begin_ns;
            sender += if mixed { count * profile.bends.pack_run_ns + profile.bends.mixture_ns } else { 0.0 };
            let each = if mixed { profile.receive_beside(mean) } else { profile.receive_packed(mean) };
            receiver += each.at(count, bytes);
        }
        let wire = lens.iter().sum::<u64>() as f64 * profile.wire_byte_ns;
        (entries <= planner.capabilities().sge_max)
            .then(|| weigh_stream(goal, sender, receiver, wire, profile.bends.both_busy).ns)
    }

    fn lengths() -> impl Strategy<Value = Vec<u64>> {
        let any = prop_oneof![1u64..200, 1u64..6000, Just(4096), Just(64)];
        proptest::collection::vec(any, 1..=11)
    }

    fn goals() -> impl Strategy<Value = Goal> {
        prop_oneof![Just(Goal::Throughput), Just(Goal::TotalCpu), Just(Goal::SenderCpu), Just(Goal::Latency)]
    }

    proptest! {
        #[test]
        fn no_threshold_is_cheaper(
            lens in lengths(), sge_max in 1usize..12, goal in goals(), both_busy in prop_oneof![Just(0.0), 1.0..2.0],
        ) {
            let bends = |profile: &Profile| Bends { both_busy, ..profile.bends.clone() };
            let planner = planner(sge_max, |profile| Profile { bends: bends(profile), ..profile.clone() });
            let shape = listed(&lens);
            let plan = planner.plan(&shape, &Terms { goal, ..Terms::default() }).unwrap();
            let by_threshold = |from: u64| {
                let packed: Vec<bool> = lens.iter().map(|len| *len < from).collect();
                naive(&planner, &lens, &packed, goal)
            };
            let least = lens.iter().copied().chain([0, u64::MAX]).filter_map(by_threshold).min_by(f64::total_cmp).unwrap();
            let found = plan.chosen().ns;
            if plan.way() == Method::Inline {
                prop_assert!(found <= least + 0.01);
            } else {
                prop_assert!((found - by_threshold(plan.gather_from()).unwrap()).abs() < 0.01, "the price is that of the plan");
                // Lengths within a quarter of a power of two are not told apart: only that much can be missed.
                let told_apart = lens.iter().all(|a| lens.iter().all(|b| a == b || range_of(*a) != range_of(*b)));
                if told_apart {
                    prop_assert!((found - least).abs() < 0.01, "{} instead of {}", found, least);
                }
                prop_assert!(found >= least - 0.01);
            }
        }

        #[test]
        fn what_is_forced_is_done_at_its_price(lens in lengths(), from in 1u64..8000, goal in goals()) {
            let planner = planner(16, Profile::clone);
            let terms = |force| Terms { goal, force: Some(force), ..Terms::default() };
            let shape = listed(&lens);
            for way in [Method::Copy, Method::Gather] {
                let plan = planner.plan(&shape, &terms(Force::Method(way))).unwrap();
                prop_assert_eq!(plan.way(), way);
                let naive = naive(&planner, &lens, &vec![way == Method::Copy; lens.len()], goal).unwrap();
                prop_assert!((plan.chosen().ns - naive).abs() < 0.01);
            }
            let plan = planner.plan(&shape, &terms(Force::Threshold(from))).unwrap();
            // Within its quarter of a power of two, a threshold may fall on either side of a length.
            let same = |a: u64, b: u64| range_of(a) == range_of(b);
            for len in lens.iter().filter(|len| !same(**len, from)) {
                prop_assert_eq!(*len >= plan.gather_from(), *len >= from);
            }
        }
    }

    #[test]
    fn large_and_small_in_one_request_are_mixed() {
        let mut lens = vec![60_000];
        lens.extend([16; 12]);
        let plan = planner(32, Profile::clone)
            .plan(&listed(&lens), &Terms { goal: Goal::TotalCpu, ..Terms::default() })
            .unwrap();
        assert_eq!((plan.way(), plan.gather_from()), (Method::Mixture, 57_344));
        let text = plan.to_string();
        assert!(text.starts_with("60192 bytes in 13 fragments: inline impossible, copy "), "{text}");
        assert!(text.contains("mixture from 57344 bytes") && text.ends_with("(chosen)"), "{text}");
    }

    #[test]
    fn what_cannot_be_sent_is_refused() {
        let planner = planner(4, Profile::clone);
        let long = Shape::contiguous(0, 5000).unwrap();
        let terms = Terms { request_bytes_max: 4096, ..Terms::default() };
        assert_eq!(planner.plan(&long, &terms), Err(PlanError::TooLong { bytes: 5000, max: 4096 }));
        let messages = long.messages_of(500).unwrap();
        assert_eq!(planner.plan(&messages, &terms).unwrap().messages(), 10, "each fits");
        let forced = Terms { force: Some(Force::Method(Method::Gather)), ..Terms::default() };
        let many = planner.plan(&listed(&[10; 5]), &forced);
        assert_eq!(many, Err(PlanError::Impossible { way: Method::Gather, bytes: 50, fragments: 5 }));
        let inline = Terms { request_bytes_max: 40, force: Some(Force::Method(Method::Inline)), ..Terms::default() };
        assert!(planner.plan(&Shape::contiguous(0, 50).unwrap().messages_of(25).unwrap(), &inline).is_err());
    }

    #[test]
    fn boxes_are_priced_where_gaps_may_travel() {
        let planner = planner(64, Profile::clone);
        let shape = listed(&[50; 40]);
        let terms = Terms { goal: Goal::TotalCpu, ..Terms::default() };
        assert_eq!(planner.plan(&shape, &terms).unwrap().price(Method::Boxes), None);
        let allowed = planner.plan(&shape, &Terms { gaps_on_wire: true, ..terms }).unwrap();
        assert!(allowed.price(Method::Boxes).unwrap().ns < allowed.price(Method::Gather).unwrap().ns);
    }

    #[test]
    fn regular_shapes_are_priced_by_their_own_kernels() {
        let cheap = |p: &Profile| {
            let curve = |points: &[(u64, f64)]| Curve::new(points.iter().copied()).unwrap();
            let one = curve(&[(4, 0.5), (64, 4.0)]);
            let bitmapped = (curve(&[(4, 0.1)]), curve(&[(4, 0.2)]));
            let bends = Bends {
                pack_near: one.clone(),
                pack_far: one,
                bitmap_row: bitmapped.0,
                bitmap_run: bitmapped.1,
                ..p.bends.clone()
            };
            Profile { bends, ..p.clone() }
        };
        let (plain, special) = (planner(256, Profile::clone), planner(256, cheap));
        let strided = Shape::strided(0, 32, 1000, &[Run::new(0, 4)]).unwrap();
        let rows = Bitmap::of(3000, |row| row % 3 == 0);
        let bitmapped = Shape::bitmapped(&[Column::dense(0, 4)], &rows, Order::Rows).unwrap();
        let some = Bitmap::of(3000, |row| row % 3 == 0 && row != 300);
        let irregular = Shape::bitmapped(&[Column::dense(0, 4)], &some, Order::Rows).unwrap();
        // 2 ns a piece by the kernel for any runs; 0.5 ns by the other, or 0.1 ns a row and 0.2 a run.
        for (shape, ns) in [(strided, 1500.0), (bitmapped, 1500.0), (irregular, 1998.0 - 299.8 - 199.8)] {
            let price =
                |planner: &Planner| planner.plan(&shape, &Terms::default()).unwrap().price(Method::Copy).unwrap();
            let saved = price(&plain).sender_ns - price(&special).sender_ns;
            assert!((saved - ns).abs() < 2.0, "{ns} ns: {saved}");
        }
    }

    /// To-copy §6: who counts decides. Where the receiver moves the bytes, gathering spares the
    /// sender and burdens the receiver.
    #[test]
    fn each_goal_chooses_what_it_makes_small() {
        let device = planner(256, |p| Profile {
            send_fragment_ns: 5.0,
            pack_request_ns: 0.0,
            bends: Bends {
                pack: Curve::new([(64, 14.0)]).unwrap(),
                receive: Curve::new([(64, 26.0)]).unwrap(),
                receive_packed: Curve::new([(64, 10.0), (1 << 16, 500.0)]).unwrap(),
                ..Bends::default()
            },
            ..p.clone()
        });
        let shape = listed(&[64; 100]);
        let plan = |goal| device.plan(&shape, &Terms { goal, ..Terms::default() }).unwrap();
        // Copying: 1.4 µs here, little there. Gathering: 0.5 µs here, 2.6 µs there.
        for (goal, way) in [
            (Goal::Throughput, Method::Copy),
            (Goal::Latency, Method::Copy),
            (Goal::TotalCpu, Method::Copy),
            (Goal::SenderCpu, Method::Gather),
        ] {
            assert_eq!(plan(goal).way(), way, "{goal:?}: {}", plan(goal));
        }
        // With a receiver that is only a little slower, the slower end still is, and the sum is not.
        let device = planner(256, |p| Profile {
            pack_request_ns: 0.0,
            bends: Bends {
                send: Curve::new([(64, 12.0)]).unwrap(),
                pack: Curve::new([(64, 20.0)]).unwrap(),
                receive: Curve::new([(64, 13.0)]).unwrap(),
                receive_packed: Curve::new([(64, 10.0), (1 << 16, 100.0)]).unwrap(),
                ..Bends::default()
            },
            ..p.clone()
        });
        let plan = |goal| device.plan(&shape, &Terms { goal, ..Terms::default() }).unwrap();
        for (goal, way) in [
            (Goal::Throughput, Method::Gather),
            (Goal::Latency, Method::Copy),
            (Goal::TotalCpu, Method::Copy),
            (Goal::SenderCpu, Method::Gather),
        ] {
            assert_eq!(plan(goal).way(), way, "{goal:?}: {}", plan(goal));
        }
    }

    #[test]
    fn what_is_between_near_and_far_is_priced_between() {
        let change = |p: &Profile| {
            let curve = |ns: f64| Curve::new([(8, ns), (64, ns)]).unwrap();
            let bends = Bends { pack_near: curve(1.0), pack_far: curve(5.0), ..p.bends.clone() };
            Profile { bends, ..p.clone() }
        };
        let price = |period| {
            let shape = Shape::strided(0, period, 1000, &[Run::new(0, 8)]).unwrap().one_message();
            let plan = planner(256, change).plan(&shape, &Terms::default()).unwrap();
            plan.price(Method::Copy).unwrap().sender_ns
        };
        let [near, between, far] = [16, 136, 4096].map(price);
        assert!((far - near - 4000.0).abs() < 1.0 && (between - near - 2000.0).abs() < 20.0, "{near} {between} {far}");
    }

    /// Where the sender's processor moves the bytes, what lies next to each other costs it less
    /// than what lies anywhere.
    #[test]
    fn gathering_is_priced_by_how_far_apart_fragments_lie() {
        let change = |p: &Profile| {
            let curve = |ns: f64| Curve::new([(8, ns), (64, ns)]).unwrap();
            let bends = Bends { send: curve(200.0), send_near: curve(20.0), ..p.bends.clone() };
            Profile { bends, ..p.clone() }
        };
        let price = |shape: Shape| {
            let plan = planner(256, change).plan(&shape.one_message(), &Terms::default()).unwrap();
            plan.price(Method::Gather).unwrap().sender_ns
        };
        let strided = |period| Shape::strided(0, period, 100, &[Run::new(0, 8)]).unwrap();
        let anywhere: Vec<Run> = (0..100).map(|i| Run::new(i * i * 100, 8)).collect();
        let [near, far, scattered] = [strided(16), strided(4096), Shape::list(&anywhere).unwrap()].map(price);
        assert!((far - near - 18_000.0).abs() < 1.0 && (scattered - far).abs() < 1.0, "{near} {far} {scattered}");
    }
}
