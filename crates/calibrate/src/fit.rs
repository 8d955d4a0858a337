//! From points to a profile.
//!
//! Each point was chosen so that one price is new in it. Single small messages give the request,
//! many pieces of one length a place on that length's curve, and so on from what is simple to what
//! is made of it. Where two prices meet in several points (near and far, rows and runs), they are
//! the non-negative least squares of relative errors.

use std::collections::BTreeMap;

use overside_planner::{Curve, Distance, Method, Profile};

use super::points::Case;
use super::{Cost, Seen};

/// The profile of a device, of the costs that `cost` gives; what was not measured stays as in
/// `default`.
pub(super) fn fit(seen: &[Seen], cost: fn(&Seen) -> Cost, default: Profile, source: &str) -> Profile {
    let mut fit = Fit { seen, cost, profile: Profile { source: source.to_owned(), ..default } };
    fit.requests();
    fit.gathered();
    fit.packed();
    fit.beside();
    fit.regular();
    fit.bitmapped();
    fit.straight();
    fit.profile
}

struct Fit<'a> {
    seen: &'a [Seen],
    cost: fn(&Seen) -> Cost,
    profile: Profile,
}

/// Pieces of one length in a message, and what the message costs.
#[derive(Clone, Copy, Debug)]
struct Sample {
    bytes: u64,
    count: u64,
    cost: Cost,
}

impl Sample {
    fn all(self) -> u64 {
        self.bytes * self.count
    }

    /// Whether it tells what pieces cost, and not what a request does.
    fn is_of_many(self) -> bool {
        self.count > FEW && self.bytes != REQUEST_BYTES || self.all() > FEW_BYTES
    }
}

/// Costs by length: the mean of what several points say.
#[derive(Debug, Default)]
struct Points(BTreeMap<u64, Vec<f64>>);

impl Points {
    fn add(&mut self, bytes: u64, ns: f64) {
        self.0.entry(bytes).or_default().push(ns.max(0.0));
    }

    /// Lengths up to `exact` at which a quarter of a power of two begins stand for themselves. The
    /// others are joined by lines, and the curve has what these say where it may have points.
    fn curve(self, exact: u64) -> Curve {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let itself = |bytes: u64| bytes <= exact && bytes == start_of_range(bytes);
        let all = self.0.iter().map(|(bytes, values)| (*bytes, mean(values)));
        let mut out: BTreeMap<u64, f64> = all.clone().filter(|point| itself(point.0)).collect();
        // Between two lengths that hardly differ, noise makes any slope: they stand for one between them.
        let mut ranges: BTreeMap<u64, [Vec<f64>; 2]> = BTreeMap::new();
        for (bytes, ns) in all.filter(|point| !itself(point.0)) {
            let [lengths, costs] = ranges.entry(start_of_range(bytes)).or_default();
            lengths.push(bytes as f64);
            costs.push(ns);
        }
        let joined: Vec<(u64, f64)> = ranges.values().map(|[x, ns]| (mean(x).round() as u64, mean(ns))).collect();
        let (Some(first), Some(last)) = (joined.first(), joined.last()) else {
            return Curve::new(out).unwrap_or_default();
        };
        let powers = (2..=20).map(|power| 1u64 << power).filter(|power| *power > exact);
        let powers = powers.filter(|power| *power * 8 > first.0 * 7 && *power * 5 < last.0 * 6);
        let starts = joined.iter().map(|point| start_of_range(point.0)).filter(|start| *start <= exact);
        for at in powers.chain(starts) {
            out.entry(at).or_insert_with(|| on_lines(&joined, at).max(0.0));
        }
        if out.is_empty() {
            out.insert(start_of_range(first.0), first.1);
        }
        Curve::new(out).unwrap_or_default()
    }
}

/// Through points joined by lines, which go on beyond their ends.
fn on_lines(points: &[(u64, f64)], at: u64) -> f64 {
    let after = points.partition_point(|point| point.0 <= at).clamp(1, points.len().max(2) - 1);
    match (points.get(after - 1), points.get(after)) {
        (Some(low), Some(high)) => low.1 + (high.1 - low.1) * (at as f64 - low.0 as f64) / (high.0 - low.0) as f64,
        (Some(only), None) => only.1,
        _ => 0.0,
    }
}

/// The start of a length's quarter of a power of two.
fn start_of_range(bytes: u64) -> u64 {
    match bytes.checked_ilog2() {
        Some(power @ 3..) => bytes >> (power - 2) << (power - 2),
        _ => bytes,
    }
}

impl Fit<'_> {
    fn seen(&self, way: Method, warm: bool) -> impl Iterator<Item = &Seen> {
        self.seen.iter().filter(move |one| one.point.way == way && one.point.warm == warm && !one.point.held_out)
    }

    /// Points of scattered pieces.
    fn scattered(&self, way: Method, warm: bool) -> Vec<Sample> {
        let sample = |one: &Seen| match one.point.case {
            Case::Scattered { bytes, count } => Some(Sample { bytes, count, cost: (self.cost)(one) }),
            _ => None,
        };
        self.seen(way, warm).filter_map(sample).collect()
    }

    /// The request: one short message, less what its fragment costs among many. The receiver's of
    /// long ones, for there it is the slower end: whoever waits for each message meets it alone,
    /// and what that takes decides nothing.
    fn requests(&mut self) {
        let samples = self.scattered(Method::Gather, false);
        let one = samples.iter().find(|sample| sample.count == 1);
        let many = one.and_then(|one| samples.iter().find(|sample| sample.count > 1 && sample.bytes == one.bytes));
        let (Some(one), Some(many)) = (one, many) else { return };
        let request = |one: f64, all: f64| (one - ((all - one) / (many.count - 1) as f64).max(0.0)).max(1.0);
        self.profile.send_request_ns = request(one.cost.sender_ns, many.cost.sender_ns);
        let long = pairs(&samples).filter(|(one, _)| one.cost.receiver_ns > one.cost.sender_ns);
        let rests = long.map(|(one, many)| first_and_each(&one, &many, |sample| sample.cost.receiver_ns).0);
        let alone = request(one.cost.receiver_ns, many.cost.receiver_ns);
        self.profile.receive_request_ns =
            median(rests.collect()).map_or(alone, |rest| rest.clamp(alone / REQUEST_PART, alone));
    }

    /// What a message costs the sender beyond its request.
    fn sent(&self, cost: Cost) -> f64 {
        cost.sender_ns - self.profile.send_request_ns
    }

    fn received(&self, cost: Cost) -> f64 {
        cost.receiver_ns - self.profile.receive_request_ns
    }

    /// Fragments from where they lie; and entries that are in the sender's cache.
    fn gathered(&mut self) {
        let (mut send, mut receive, mut warm) = (Points::default(), Points::default(), Points::default());
        for sample in self.scattered(Method::Gather, false).iter().filter(|sample| sample.is_of_many()) {
            send.add(sample.bytes, self.sent(sample.cost) / sample.count as f64);
            receive.add(sample.bytes, self.received(sample.cost) / sample.count as f64);
        }
        for sample in self.scattered(Method::Gather, true) {
            warm.add(sample.bytes, self.sent(sample.cost));
        }
        let bends = &mut self.profile.bends;
        (bends.send, bends.receive, bends.send_packed) = (send.curve(0), receive.curve(0), warm.curve(0));
    }

    /// Transmit buffers, pieces by their length, and receiving what was packed.
    fn packed(&mut self) {
        let (cold, warm) = (self.scattered(Method::Copy, false), self.scattered(Method::Copy, true));
        // Of pieces in the cache, one and many of a length: what is no piece is the buffer.
        let bare = |fit: &Self, sample: &Sample| fit.sent(sample.cost) - fit.entry(sample.all());
        let rests = |samples: &[Sample]| {
            median(pairs(samples).map(|(few, many)| first_and_each(&few, &many, |one| bare(self, one)).0).collect())
        };
        let [warm_rest, cold_rest] = [&warm, &cold].map(|samples| rests(samples).map(|rest| rest.max(0.0)));
        // Quickly, only one of them was measured.
        if let Some(request) = warm_rest.or(cold_rest) {
            self.profile.pack_request_ns = request;
            self.profile.bends.pack_begin_ns = cold_rest.map_or(0.0, |cold| (cold - request).max(0.0));
        }
        let (mut pack, mut packed_warm, mut receive) = (Points::default(), Points::default(), Points::default());
        let each = |sample: &Sample, warm| self.packing(sample.cost, sample.all(), warm) / sample.count as f64;
        cold.iter().filter(|one| one.is_of_many()).for_each(|one| pack.add(one.bytes, each(one, false)));
        warm.iter().filter(|one| one.count > 1).for_each(|one| packed_warm.add(one.bytes, each(one, true)));
        for sample in &cold {
            receive.add(sample.all(), self.received(sample.cost));
        }
        let bends = &mut self.profile.bends;
        (bends.pack, bends.pack_warm, bends.receive_packed) = (pack.curve(0), packed_warm.curve(0), receive.curve(0));
    }

    /// What the sender does for an entry that was just packed.
    fn entry(&self, bytes: u64) -> f64 {
        self.profile.send(bytes, true).at(1.0, bytes as f64)
    }

    /// Packed pieces between gathered ones, against the gathered ones without them: with one run of
    /// packed pieces and with many.
    fn beside(&mut self) {
        let alone = self.scattered(Method::Gather, false);
        let (mut runs, mut receive) = (Vec::new(), Points::default());
        for one in self.seen(Method::Mixture, false) {
            let Case::Mixed { lengths } = &one.point.case else { continue };
            let is_short = |bytes: &u64| *bytes < one.point.gather_from;
            let (short, long): (Vec<u64>, Vec<u64>) = lengths.iter().partition(|bytes| is_short(bytes));
            let (Some(bytes), Some(of)) = (short.first(), long.first()) else { continue };
            let same = |alone: &&Sample| (alone.bytes, alone.count) == (*of, long.len() as u64);
            let Some(alone) = alone.iter().find(same) else { continue };
            let count = lengths.split(|bytes| !is_short(bytes)).filter(|run| !run.is_empty()).count() as f64;
            let (cost, all) = ((self.cost)(one), short.iter().sum::<u64>());
            let pieces = self.profile.pack(*bytes, false).at(short.len() as f64, all as f64);
            let entries = self.profile.send(all / count as u64, true).at(count, all as f64);
            let begin = self.profile.pack_begin(false);
            runs.push((count, cost.sender_ns - alone.cost.sender_ns - begin - pieces - entries));
            if count > 1.0 {
                receive.add(*bytes, (cost.receiver_ns - alone.cost.receiver_ns) / count);
            }
        }
        let mean = |of: &dyn Fn(f64) -> bool| {
            let some: Vec<[f64; 2]> = runs.iter().filter(|run| of(run.0)).map(|run| [run.0, run.1]).collect();
            let sum = some.iter().fold([0.0; 2], |sum, run| [sum[0] + run[0], sum[1] + run[1]]);
            (!some.is_empty()).then(|| sum.map(|sum| sum / some.len() as f64))
        };
        let mixture = match (mean(&|count| count <= 1.0), mean(&|count| count > 1.0)) {
            (Some([_, one]), Some([count, many])) => (one - ((many - one) / (count - 1.0)).max(0.0)).max(0.0),
            _ => 0.0,
        };
        let bends = &mut self.profile.bends;
        bends.pack_run_ns = mean(&|count| count > 1.0).map_or(0.0, |[count, many]| ((many - mixture) / count).max(0.0));
        bends.receive_beside = receive.curve(0);
        bends.mixture_ns = mixture;
    }

    /// Of a packed message, what packing alone cost.
    fn packing(&self, cost: Cost, bytes: u64, warm: bool) -> f64 {
        (self.sent(cost) - self.profile.pack_begin(warm) - self.entry(bytes)).max(0.0)
    }

    /// Elements at regular distances, near and far: packed, received, and sent from where they lie.
    fn regular(&mut self) {
        let mut rows: [BTreeMap<u64, Vec<[f64; 3]>>; 3] = Default::default();
        for way in [Method::Copy, Method::Gather] {
            for one in self.seen(way, false) {
                let Case::Strided { bytes, period, count } = one.point.case else { continue };
                let (far, cost) = (Distance::of_gap((period - bytes) as f64).far(), (self.cost)(one));
                let mut add = |which: usize, all: f64| {
                    rows[which].entry(bytes).or_default().push([1.0 - far, far, all / count as f64]);
                };
                if way == Method::Copy {
                    add(0, self.packing(cost, bytes * count, false));
                } else {
                    add(1, self.received(cost));
                    add(2, self.sent(cost));
                }
            }
        }
        let [packed, received, sent] = rows.map(|rows| {
            let (mut near, mut far) = (Points::default(), Points::default());
            for (bytes, rows) in rows {
                let [near_ns, far_ns] = least_squares(&rows);
                near.add(bytes, near_ns);
                far.add(bytes, far_ns);
            }
            (near, far)
        });
        let bends = &mut self.profile.bends;
        (bends.pack_near, bends.pack_far) = (packed.0.curve(WIDTH_MAX), packed.1.curve(WIDTH_MAX));
        (bends.receive_near, bends.receive_far) = (received.0.curve(0), received.1.curve(0));
        bends.send_near = sent.0.curve(0);
    }

    /// Bitmapped columns: rows and runs of set ones.
    fn bitmapped(&mut self) {
        let mut widths: BTreeMap<u64, Vec<[f64; 3]>> = BTreeMap::new();
        for one in self.seen(Method::Copy, false) {
            let Case::Bitmapped { width, rows, .. } = one.point.case else { continue };
            let runs = one.shape.fragment_count() as f64;
            widths.entry(width).or_default().push([
                rows as f64,
                runs,
                self.packing((self.cost)(one), one.shape.bytes(), false),
            ]);
        }
        let (mut row, mut run) = (Points::default(), Points::default());
        for (width, rows) in widths {
            let [row_ns, run_ns] = least_squares(&rows);
            row.add(width, row_ns);
            run.add(width, run_ns);
        }
        (self.profile.bends.bitmap_row, self.profile.bends.bitmap_run) = (row.curve(WIDTH_MAX), run.curve(WIDTH_MAX));
    }

    /// The straight lines through short and long pieces, for whoever has no shape to price.
    fn straight(&mut self) {
        let line = |cost: &dyn Fn(u64) -> f64| {
            let byte = ((cost(LONG) - cost(SHORT)) / (LONG - SHORT) as f64).max(0.0);
            ((cost(SHORT) - SHORT as f64 * byte).max(0.0), byte)
        };
        let profile = &self.profile;
        let send = line(&|bytes| profile.send(bytes, false).at(1.0, bytes as f64));
        let receive = line(&|bytes| profile.receive(bytes).at(1.0, bytes as f64));
        let regular = Distance::of_gap(REGULAR_GAP);
        let pack = line(&|bytes| match bytes {
            SHORT => profile.pack_regular(bytes, regular).at(1.0, bytes as f64),
            _ => profile.pack(bytes, false).at(1.0, bytes as f64),
        });
        let profile = &mut self.profile;
        (profile.send_fragment_ns, profile.send_byte_ns) = send;
        (profile.receive_fragment_ns, profile.receive_byte_ns) = receive;
        (profile.pack_piece_ns, profile.pack_byte_ns) = pack;
    }
}

/// A few pieces and many of the same length.
fn pairs(samples: &[Sample]) -> impl Iterator<Item = (Sample, Sample)> {
    let few = samples.iter().filter(|sample| sample.count <= FEW && sample.all() <= FEW_BYTES);
    few.filter_map(|few| {
        let many = samples.iter().filter(|many| many.bytes == few.bytes).max_by_key(|many| many.count)?;
        (many.count > few.count).then_some((*few, *many))
    })
}

/// What a message costs apart from its pieces, and each of them.
fn first_and_each(few: &Sample, many: &Sample, cost: impl Fn(&Sample) -> f64) -> (f64, f64) {
    let each = ((cost(many) - cost(few)) / (many.count - few.count) as f64).max(0.0);
    (cost(few) - each * few.count as f64, each)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let at = |place: usize| values.get(place).copied();
    Some((at(values.len().checked_sub(1)? / 2)? + at(values.len() / 2)?) / 2.0)
}

/// `x` and `y`, neither negative, that make the relative errors of `a·x + b·y = ns` least for all
/// `[a, b, ns]`.
fn least_squares(rows: &[[f64; 3]]) -> [f64; 2] {
    let rows = rows.iter().filter(|[_, _, ns]| *ns > 0.0).map(|[a, b, ns]| [a / ns, b / ns]);
    let (mut aa, mut ab, mut bb, mut a1, mut b1) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for [a, b] in rows {
        (aa, ab, bb) = (aa + a * a, ab + a * b, bb + b * b);
        (a1, b1) = (a1 + a, b1 + b);
    }
    let determinant = aa * bb - ab * ab;
    let alone = [if aa > 0.0 { a1 / aa } else { 0.0 }, if bb > 0.0 { b1 / bb } else { 0.0 }];
    if determinant <= 1e-9 * aa * bb {
        // All points say the same thing of both: each alone explains them, or only one was measured.
        return match (aa > 0.0, bb > 0.0) {
            (true, true) if ab == 0.0 => alone,
            (true, true) => [alone[0], if aa >= bb { alone[0] } else { alone[1] }],
            _ => [alone[0].max(alone[1]); 2],
        };
    }
    let both = [(a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant];
    match both {
        [x, y] if x >= 0.0 && y >= 0.0 => both,
        [x, _] if x < 0.0 => [0.0, alone[1]],
        _ => [alone[0], 0.0],
    }
}

/// Up to here each width is priced by itself.
const WIDTH_MAX: u64 = 64;
/// The pieces that tell what a request costs; no odd length, so none of a curve's.
const REQUEST_BYTES: u64 = 64;
/// Of a request met alone, no less than this part: what is left between two long messages is small,
/// and noise makes it any.
const REQUEST_PART: f64 = 3.0;
/// Pieces up to which a message tells what its request costs.
const FEW: u64 = 4;
/// And bytes up to which it tells nothing else.
const FEW_BYTES: u64 = 80 << 10;
/// Where the straight lines are drawn through.
const SHORT: u64 = 64;
const LONG: u64 = 16 << 10;
/// Between the records of a page, about.
const REGULAR_GAP: f64 = 128.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::points::{Point, points};
    use overside_planner::{AtomicScope, Bends, Capabilities, ForeignMemory, Planner};
    use std::sync::Arc;

    fn capabilities() -> Capabilities {
        Capabilities {
            sge_max: 256,
            inline_max: 256,
            message_max: 1 << 30,
            depth_max: 128,
            progress_by_itself: true,
            one_sided: true,
            atomics: AtomicScope::Cpu,
            last_byte_last: true,
            region_bytes_max: 0,
            foreign: ForeignMemory::Pushed,
            lends: false,
        }
    }

    /// A device whose prices are known.
    fn truth() -> Profile {
        let line =
            |fixed: f64, byte: f64| Curve::new((2..18).map(|k| (1u64 << k, fixed + byte * f64::from(1 << k)))).unwrap();
        Profile {
            send_request_ns: 500.0,
            send_fragment_ns: 20.0,
            send_byte_ns: 0.01,
            pack_byte_ns: 0.1,
            pack_piece_ns: 10.0,
            pack_request_ns: 250.0,
            row_ns: 4.0,
            receive_request_ns: 450.0,
            receive_fragment_ns: 24.0,
            receive_byte_ns: 0.05,
            wire_byte_ns: 0.0,
            elsewhere: None,
            bends: Bends {
                line_ns: 0.0,
                send: line(20.0, 0.01),
                send_near: line(9.0, 0.01),
                send_packed: line(15.0, 0.0),
                pack: line(40.0, 0.08),
                pack_warm: line(8.0, 0.03),
                pack_run_ns: 30.0,
                pack_begin_ns: 180.0,
                mixture_ns: 120.0,
                deal_value_ns: 0.7,
                copied_bytes: 1024.0,
                both_busy: 1.3,
                pack_near: line(1.0, 0.06),
                pack_far: line(6.0, 0.09),
                bitmap_row: line(0.4, 0.01),
                bitmap_run: line(3.0, 0.02),
                receive: line(24.0, 0.05),
                receive_near: line(12.0, 0.05),
                receive_far: line(20.0, 0.05),
                receive_packed: line(30.0, 0.07),
                receive_beside: line(15.0, 0.04),
                lend: Curve::default(),
            },
            source: "made up".into(),
        }
    }

    fn seen(points: Vec<Point>, planner: &Planner) -> Vec<Seen> {
        let one = |point: Point| {
            let shape: Arc<_> = point.shapes(64 << 20, 1).pop()?;
            let price = planner.plan(&shape, &crate::terms(&point)).ok()?.chosen();
            let (sender_ns, receiver_ns) = (price.sender_ns, price.receiver_ns);
            let wall_ns = sender_ns.max(receiver_ns);
            let cost = Cost { sender_ns, receiver_ns, wall_ns, undisturbed: true, round_trip_ns: 100.0, line_ns: 60.0 };
            Some(Seen { point, cost, halves: [cost; 2], predicted: Cost::default(), samples: (1, 1), shape })
        };
        points.into_iter().filter_map(one).collect()
    }

    #[test]
    fn prices_that_are_known_are_found_again() {
        let planner = Planner::new(capabilities(), truth());
        let seen = seen(points(&capabilities(), false), &planner);
        let found = fit(&seen, |one| one.cost, Profile { source: "before".into(), ..truth() }, "fitted");
        assert_eq!(found.source, "fitted");
        let again = Planner::new(capabilities(), found);
        for one in &seen {
            let price = again.plan(&one.shape, &crate::terms(&one.point)).unwrap().chosen();
            for (is, was) in [(price.sender_ns, one.cost.sender_ns), (price.receiver_ns, one.cost.receiver_ns)] {
                // Many runs of a bitmap are counted by a sample.
                assert!((is - was).abs() < 0.08 * was + 5.0, "{:?}: {is} instead of {was}", one.point);
            }
        }
    }

    #[test]
    fn two_prices_are_told_apart_and_none_is_negative() {
        let close =
            |a: [f64; 2], b: [f64; 2]| assert!((a[0] - b[0]).abs() < 1e-6 && (a[1] - b[1]).abs() < 1e-6, "{a:?}");
        close(least_squares(&[[1.0, 2.0, 8.0], [3.0, 1.0, 9.0], [5.0, 5.0, 25.0]]), [2.0, 3.0]);
        close(least_squares(&[[1.0, 0.0, 4.0], [0.0, 1.0, 7.0]]), [4.0, 7.0]);
        close(least_squares(&[[1.0, 0.0, 4.0]]), [4.0, 4.0]);
        let [x, y] = least_squares(&[[1.0, 0.0, 4.0], [1.0, 1.0, 2.0]]);
        assert!(x >= 0.0 && y == 0.0, "{x} {y}");
    }
}
