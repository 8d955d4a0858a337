//! What things cost on a device.

use crate::curve::{Curve, Line};

/// Costs in nanoseconds, calibrated on the device: straight lines, and [`Bends`] where measurement
/// bends.
///
/// On a NIC the receiver's part is near zero; on a provider where the receiver plays the NIC
/// the bytes are the receiver's.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Posting and completing a request, sender.
    pub send_request_ns: f64,
    /// One more gather entry, sender.
    pub send_fragment_ns: f64,
    /// A byte moved by the sender's processor when sending (0 where the receiver or a NIC moves
    /// it).
    pub send_byte_ns: f64,
    /// A byte packed into a transmit buffer.
    pub pack_byte_ns: f64,
    /// A separate piece packed.
    pub pack_piece_ns: f64,
    /// A request that carries packed bytes: its transmit buffer.
    pub pack_request_ns: f64,
    /// A row touched on its own.
    pub row_ns: f64,
    /// Receiving a request.
    pub receive_request_ns: f64,
    /// A fragment of it, receiver.
    pub receive_fragment_ns: f64,
    /// A byte of it, receiver.
    pub receive_byte_ns: f64,
    /// What the link itself takes for a byte, overlapping with both (0 where memory is the link).
    pub wire_byte_ns: f64,
    /// Costs by length, where they were measured.
    pub bends: Bends,
    /// Where the figures come from: `"default"` or the calibration's date and machine.
    pub source: String,
    /// The same where the two ends' processors are as far apart as they are at other times, if that
    /// was measured: packed bytes travel between them, gathered ones hardly do. It has none of its
    /// own.
    pub elsewhere: Option<Box<Profile>>,
}

/// Costs by length or width, and of what only begins; where a curve is empty, the profile's
/// straight lines hold.
///
/// *Scattered* pieces lie anywhere, *near* ones within the same or the next cache line, *far* ones
/// at a regular distance of a kibibyte and more; what lies between is priced between.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bends {
    /// Sending a gathered fragment from memory that no cache holds.
    pub send: Curve,
    /// Sending a gathered fragment of a regular region whose neighbours are near, where the
    /// sender's processor moves the bytes.
    pub send_near: Curve,
    /// Sending an entry that is in the cache, as what was just packed is, or bytes in the
    /// descriptor.
    pub send_packed: Curve,
    /// Packing a scattered piece that no cache holds.
    pub pack: Curve,
    /// Packing a piece that is in the cache.
    pub pack_warm: Curve,
    /// Beginning a packed entry between gathered ones, beyond packing its pieces. 0 where it was
    /// not measured.
    pub pack_run_ns: f64,
    /// Beginning to pack what no cache holds: until the first pieces come nothing is done, which
    /// what they cost among many does not tell. 0 where it was not measured.
    pub pack_begin_ns: f64,
    /// Making a request of gathered and of packed fragments, beyond what each of them costs. 0
    /// where it was not measured.
    pub mixture_ns: f64,
    /// Dealing a row out to one of several destinations, for each of its 4-byte values: the table
    /// is passed over once for all of them. 0 where it was not measured.
    pub deal_value_ns: f64,
    /// Bytes up to which a provider that may copy pieces of a list together itself, on their way,
    /// does better to copy one than to name it to the device. 0 where it was not measured.
    pub copied_bytes: f64,
    /// How many times as long work at one end takes while the other end works as well: 1 on cores
    /// of their own, up to 2 where they are two threads of one core. 0 where it was not measured.
    pub both_busy: f64,
    /// How long a cache line took to come from the peer's processor, as its provider tells it
    /// (`overside_verbs::CompletionQueue::line_ns`), while the rest was measured. 0 where it was
    /// not measured.
    pub line_ns: f64,
    /// Packing an element of a regular region whose elements are near each other, by its width.
    pub pack_near: Curve,
    /// Likewise of one whose elements are far from each other.
    pub pack_far: Curve,
    /// Packing a bitmapped column, for each row whether it is set or not, by the values' width.
    pub bitmap_row: Curve,
    /// Likewise, for each run of set rows.
    pub bitmap_run: Curve,
    /// Receiving a gathered fragment from where it lay, scattered.
    pub receive: Curve,
    /// Receiving a gathered fragment of a regular region whose neighbours are near.
    pub receive_near: Curve,
    /// Likewise where they are far: a processor finds out a regular distance by itself.
    pub receive_far: Curve,
    /// Receiving an entry that the sender has just packed, or bytes in the descriptor.
    pub receive_packed: Curve,
    /// Receiving such an entry between gathered ones: there the receiver is busy with others while
    /// it is packed.
    pub receive_beside: Curve,
    /// Beyond the request, by its length: taking a message of one fragment as a loan, reading a
    /// value of each of its cache lines where they lie, and returning it. The memory is in no
    /// cache. What is received is read as well, after it was copied.
    pub lend: Curve,
}

impl Profile {
    /// The prices where a cache line takes `line_ns` from the peer's processor: these or those of
    /// [`elsewhere`](Self::elsewhere), whichever were measured nearer to it.
    pub fn at(&self, line_ns: Option<f64>) -> &Profile {
        match (&self.elsewhere, line_ns) {
            (Some(elsewhere), Some(now)) if self.is_nearer(elsewhere, now) => elsewhere,
            _ => self,
        }
    }

    /// With the prices of another distance that `before` has, where these have none.
    #[must_use]
    pub fn with_elsewhere_of(mut self, before: &Profile) -> Profile {
        let is_other = |other: &&Profile| {
            let lines = [self.bends.line_ns, other.bends.line_ns];
            lines[0].min(lines[1]) > 0.0 && lines[0].max(lines[1]) > lines[0].min(lines[1]) * OTHER_DISTANCE
        };
        if self.elsewhere.is_none() {
            let known = [Some(before), before.elsewhere.as_deref()].into_iter().flatten().find(is_other);
            self.elsewhere = known.map(|prices| Box::new(Profile { elsewhere: None, ..prices.clone() }));
        }
        self
    }

    /// Whether those of `elsewhere` were measured nearer to `now` than these.
    pub(crate) fn is_nearer(&self, elsewhere: &Profile, now: f64) -> bool {
        let apart = |profile: &Profile| (profile.bends.line_ns.max(1.0) / now.max(1.0)).ln().abs();
        self.bends.line_ns > 0.0 && elsewhere.bends.line_ns > 0.0 && apart(elsewhere) < apart(self)
    }

    /// Packing scattered pieces of about this length.
    pub fn pack(&self, bytes: u64, warm: bool) -> Line {
        let straight = Line { fixed_ns: self.pack_piece_ns, byte_ns: self.pack_byte_ns };
        let cold = || self.bends.pack.line(bytes).unwrap_or(straight);
        if warm { self.bends.pack_warm.line(bytes).unwrap_or_else(cold) } else { cold() }
    }

    /// A request's transmit buffer, and waiting for what is packed into it.
    pub fn pack_begin(&self, warm: bool) -> f64 {
        self.pack_request_ns + if warm { 0.0 } else { self.bends.pack_begin_ns }
    }

    /// Packing elements of about this width, one of a regular region; `distance` as [`Bends`] has
    /// it.
    pub fn pack_regular(&self, bytes: u64, distance: Distance) -> Line {
        let any = || self.pack(bytes, false);
        // A curve ends where its kernels do: what is longer is packed like anything else.
        let known =
            |curve: &Curve| curve.points().last().filter(|(last, _)| bytes <= *last).and_then(|_| curve.line(bytes));
        let near = known(&self.bends.pack_near).unwrap_or_else(any);
        near.mixed(known(&self.bends.pack_far).unwrap_or_else(any), distance.far())
    }

    /// Packing a bitmapped column of `width`: for each row, and for each run of set rows. None
    /// where it was not measured.
    pub fn pack_bitmapped(&self, width: u64) -> Option<(f64, f64)> {
        Some((self.bends.bitmap_row.at(width)?, self.bends.bitmap_run.at(width)?))
    }

    /// Sending gathered fragments of about this length.
    pub fn send(&self, bytes: u64, warm: bool) -> Line {
        let curve = if warm { &self.bends.send_packed } else { &self.bends.send };
        curve.line(bytes).unwrap_or(Line { fixed_ns: self.send_fragment_ns, byte_ns: self.send_byte_ns })
    }

    /// Sending gathered fragments of about this length, of a regular region.
    pub fn send_regular(&self, bytes: u64, distance: Distance) -> Line {
        let scattered = |bytes| self.send(bytes, false);
        let far = scattered(bytes);
        going_on(&self.bends.send_near, bytes, scattered).unwrap_or(far).mixed(far, distance.far())
    }

    /// Receiving gathered fragments of about this length, scattered.
    pub fn receive(&self, bytes: u64) -> Line {
        let straight = Line { fixed_ns: self.receive_fragment_ns, byte_ns: self.receive_byte_ns };
        self.bends.receive.line(bytes).unwrap_or(straight)
    }

    /// Receiving gathered fragments of about this length, of a regular region.
    pub fn receive_regular(&self, bytes: u64, distance: Distance) -> Line {
        let scattered = |bytes| self.receive(bytes);
        let far = going_on(&self.bends.receive_far, bytes, scattered).unwrap_or_else(|| scattered(bytes));
        going_on(&self.bends.receive_near, bytes, scattered).unwrap_or(far).mixed(far, distance.far())
    }

    /// Receiving entries of about this length that the sender has just packed.
    pub fn receive_packed(&self, bytes: u64) -> Line {
        let straight = Line { fixed_ns: self.receive_fragment_ns, byte_ns: self.receive_byte_ns };
        self.bends.receive_packed.line(bytes).unwrap_or(straight)
    }

    /// Receiving packed entries of about this length between gathered ones.
    pub fn receive_beside(&self, bytes: u64) -> Line {
        self.bends.receive_beside.line(bytes).unwrap_or_else(|| self.receive_packed(bytes))
    }

    /// Reading about so many bytes of a loan. None where it was not measured.
    pub fn lend(&self, bytes: u64) -> Option<Line> {
        self.bends.lend.line(bytes)
    }

    /// What `bytes` in the descriptor cost beyond the request and packing them, at the sender and
    /// at the receiver: they are an entry that was just packed.
    pub fn inline_ns(&self, bytes: u64) -> (f64, f64) {
        let [send, receive] = [self.send(bytes, true), self.receive_packed(bytes)];
        (send.at(1.0, bytes as f64), receive.at(1.0, bytes as f64))
    }
}

/// A curve of regular pieces up to where it ends, and from there on as `scattered` goes on; none of
/// an empty curve.
fn going_on(curve: &Curve, bytes: u64, scattered: impl Fn(u64) -> Line) -> Option<Line> {
    let (last, ns) = *curve.points().last()?;
    if bytes < last {
        return curve.line(bytes);
    }
    let (there, here) = (scattered(last).at(1.0, last as f64), scattered(bytes));
    Some(Line { fixed_ns: here.fixed_ns + ns - there, ..here })
}

/// How far apart the pieces of a region lie, from the end of one to the start of the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distance(f64);

impl Distance {
    /// Anywhere.
    pub const SCATTERED: Distance = Distance(1.0);

    /// By so many bytes on average.
    pub fn of_gap(bytes: f64) -> Distance {
        if !(GAP_NEAR..GAP_FAR).contains(&bytes) {
            return Distance(if bytes < GAP_NEAR { 0.0 } else { 1.0 });
        }
        let (near, far) = (GAP_NEAR.log2(), GAP_FAR.log2());
        Distance((bytes.log2() - near) / (far - near))
    }

    /// From 0, near, to 1, far.
    pub fn far(self) -> f64 {
        self.0
    }
}

/// Lines that take so many times as long come from another distance.
const OTHER_DISTANCE: f64 = 1.7;
/// Gaps up to here are near: the next piece lies in the same cache line or the next one.
const GAP_NEAR: f64 = 16.0;
/// From here on each piece is met anew.
const GAP_FAR: f64 = 1024.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::tests::{listed, planner};
    use crate::{Force, Goal, Method, Planner, Terms};
    use overside_shape::{Bitmap, Column, Order, Run, Shape};

    #[test]
    fn plans_are_by_the_prices_of_how_far_apart_processors_are() {
        let at = |line_ns, pack_byte_ns| {
            move |p: &Profile| Profile {
                pack_byte_ns,
                bends: Bends { line_ns, pack: Curve::default(), ..p.bends.clone() },
                ..p.clone()
            }
        };
        let far = planner(256, at(220.0, 9.0)).profile().clone();
        let both = planner(256, |p| Profile { elsewhere: Some(Box::new(far.clone())), ..at(60.0, 0.01)(p) });
        let way = |planner: &Planner| planner.plan(&listed(&[200; 30]), &Terms::default()).unwrap().way();
        for (seen, expected, line_ns) in [
            (None, Method::Copy, 60.0),
            (Some(20.0), Method::Copy, 60.0),
            (Some(100.0), Method::Copy, 60.0),
            (Some(130.0), Method::Gather, 220.0),
            (Some(9e9), Method::Gather, 220.0),
        ] {
            assert_eq!((way(both.at(seen)), both.at(seen).profile().bends.line_ns), (expected, line_ns), "{seen:?}");
            assert_eq!(both.profile().at(seen), both.at(seen).profile());
        }
        // Where nobody measured how far apart they were, nothing can be told.
        let unknown = planner(256, |p| Profile { elsewhere: Some(Box::new(far.clone())), ..at(0.0, 0.01)(p) });
        assert_eq!(unknown.at(Some(220.0)).profile().bends.line_ns, 0.0);
    }

    /// Two pieces of one length lie at a regular distance, of whatever length: what was measured of
    /// short ones says nothing of the slope of long ones.
    #[test]
    fn long_pieces_at_a_regular_distance_cost_what_scattered_ones_do() {
        let change = |p: &Profile| {
            let curve = |points: &[(u64, f64)]| Curve::new(points.iter().copied()).unwrap();
            let scattered = curve(&[(1024, 100.0), (4096, 300.0), (1 << 16, 2000.0)]);
            let regular = curve(&[(1024, 50.0), (4096, 280.0)]);
            let bends = Bends { receive: scattered.clone(), send: scattered, receive_far: regular, ..p.bends.clone() };
            Profile { bends, ..p.clone() }
        };
        let price = |bytes: u64| {
            let shape = Shape::strided(0, 1 << 20, 2, &[Run::new(0, bytes)]).unwrap().one_message();
            let forced = Terms { force: Some(Force::Method(Method::Gather)), ..Terms::default() };
            (planner(256, change).plan(&shape, &forced).unwrap().chosen().receiver_ns - 80.0) / 2.0
        };
        for (bytes, ns) in [(4096, 280.0), (1 << 16, 1980.0), (1 << 17, 3793.3)] {
            assert!((price(bytes) - ns).abs() < 1.0, "{bytes}: {:?}", price(bytes));
        }
    }

    /// Lists, rows and columns of many lengths and distances.
    fn shapes() -> Vec<Shape> {
        let mut all = Vec::new();
        for bytes in [8u64, 24, 48, 128, 512, 2048] {
            for count in [1, 2, 5, 20, 50] {
                all.push(listed(&vec![bytes; count]));
                for gap in [4, 64, 2048] {
                    all.push(
                        Shape::strided(0, bytes + gap, count as u64, &[Run::new(0, bytes)]).unwrap().one_message(),
                    );
                }
                let mixed: Vec<u64> = (0..count).map(|at| if at % 2 == 0 { bytes } else { 15 * bytes }).collect();
                all.push(listed(&mixed));
            }
        }
        for width in [4u64, 8, 16] {
            for every in [2u64, 3, 7, 31, 200] {
                let rows = Bitmap::of(3000, |row| row % every == 0 || row % 5 < every % 5);
                all.push(Shape::bitmapped(&[Column::dense(0, width)], &rows, Order::Rows).unwrap());
            }
        }
        all
    }

    /// A curve that decides nothing has no place: each of them, eight times too dear or too cheap,
    /// changes some plan.
    #[test]
    fn every_curve_changes_a_plan() {
        let line = |fixed: f64, byte: f64| {
            Curve::new((2..17).map(|power| (1u64 << power, fixed + byte * f64::from(1 << power)))).unwrap()
        };
        let bends = Bends {
            send: line(20.0, 0.02),
            send_near: line(8.0, 0.02),
            send_packed: line(10.0, 0.01),
            pack: line(24.0, 0.08),
            pack_warm: line(6.0, 0.03),
            pack_run_ns: 20.0,
            pack_begin_ns: 60.0,
            mixture_ns: 30.0,
            pack_near: line(2.0, 0.06),
            pack_far: line(8.0, 0.09),
            bitmap_row: line(0.5, 0.01),
            bitmap_run: line(4.0, 0.02),
            receive: line(30.0, 0.05),
            receive_near: line(12.0, 0.05),
            receive_far: line(22.0, 0.05),
            receive_packed: line(25.0, 0.06),
            receive_beside: line(15.0, 0.04),
            ..Bends::default()
        };
        let goals = [Goal::Throughput, Goal::TotalCpu, Goal::SenderCpu];
        let all: Vec<Terms> = goals
            .into_iter()
            .flat_map(|goal| [false, true].map(|warm| Terms { goal, warm, ..Terms::default() }))
            .collect();
        let shapes = shapes();
        let plans = |bends: &Bends| -> Vec<(Method, u64)> {
            let device = planner(256, |p| Profile { bends: bends.clone(), ..p.clone() });
            let plans = shapes.iter().flat_map(|shape| all.iter().map(|terms| device.plan(shape, terms).unwrap()));
            plans.map(|plan| (plan.way(), plan.gather_from())).collect()
        };
        let right = plans(&bends);
        // Loans are of drafts, whose tests plant a wrong price as well; and of the last curve.
        let names = crate::text::curves(&bends).map(|(name, _)| name).filter(|name| *name != "lend_ns");
        let names: Vec<&str> = names.collect();
        assert!(names.len() <= 14, "{names:?}");
        for (at, name) in names.iter().enumerate() {
            let planted = |times: f64| {
                let mut bends = bends.clone();
                let curve = &mut crate::text::curves_mut(&mut bends)[at];
                **curve = Curve::new(curve.points().iter().map(|(bytes, ns)| (*bytes, ns * times))).unwrap();
                bends
            };
            let changed =
                [8.0, 0.125].map(|times| plans(&planted(times)).iter().zip(&right).filter(|(a, b)| a != b).count());
            assert!(changed.iter().sum::<usize>() > 0, "{name} decides nothing");
        }
    }
}
