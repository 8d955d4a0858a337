//! What is measured: streams of one kind of shape each, at places of a memory that lie far apart.

use std::sync::Arc;

use overside_planner::{Capabilities, Method};
use overside_shape::{Bitmap, Column, Order, Run, Shape};

/// A kind of shape, without its place.
#[derive(Clone, Debug, PartialEq)]
pub enum Case {
    /// Pieces anywhere, `count` of `bytes` each.
    Scattered {
        /// Bytes of a piece.
        bytes: u64,
        /// Pieces.
        count: u64,
    },
    /// Pieces anywhere, of these lengths in this order.
    Mixed {
        /// Their lengths.
        lengths: Vec<u64>,
    },
    /// `bytes` of every `period`, `count` times.
    Strided {
        /// Bytes of the run.
        bytes: u64,
        /// Bytes from one to the next.
        period: u64,
        /// Periods.
        count: u64,
    },
    /// Some values of a column.
    Bitmapped {
        /// Bytes of a value.
        width: u64,
        /// Values, wanted or not.
        rows: u64,
        /// Of 100, so many are wanted, without rule.
        percent: u64,
    },
}

/// A stream to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Of which shapes.
    pub case: Case,
    /// Sent how.
    pub way: Method,
    /// Of a mixture: pieces of so many bytes and more are gathered.
    pub gather_from: u64,
    /// From a few places that stay in the cache, instead of cold memory.
    pub warm: bool,
    /// Not fitted: it tells how well the fit predicts.
    pub held_out: bool,
}

impl Case {
    /// Bytes of a message.
    pub fn bytes(&self) -> u64 {
        match self {
            Case::Scattered { bytes, count } | Case::Strided { bytes, count, .. } => bytes * count,
            Case::Mixed { lengths } => lengths.iter().sum(),
            Case::Bitmapped { width, rows, percent } => {
                (0..*rows).filter(|row| SplitMix64(*row).below(100) < *percent).count() as u64 * width
            }
        }
    }

    /// Bytes of the longest of its pieces.
    pub(super) fn piece_bytes(&self) -> u64 {
        match self {
            Case::Scattered { bytes, .. } | Case::Strided { bytes, .. } => *bytes,
            Case::Mixed { lengths } => lengths.iter().copied().max().unwrap_or(0),
            Case::Bitmapped { width, .. } => *width,
        }
    }

    /// Bytes of the cache lines that it lies in.
    fn touched(&self) -> u64 {
        let lines = |bytes: u64| bytes.div_ceil(64) * 64;
        match self {
            Case::Scattered { bytes, count } => lines(*bytes) * count,
            Case::Mixed { lengths } => lengths.iter().map(|bytes| lines(*bytes)).sum(),
            Case::Strided { bytes, period, count } => count * lines(*bytes).min(*period),
            Case::Bitmapped { width, rows, .. } => lines(width * rows),
        }
    }

    /// In words.
    pub fn describe(&self) -> String {
        match self {
            Case::Scattered { bytes, count } => format!("{count} scattered pieces of {bytes} B"),
            Case::Mixed { lengths } => format!("{} scattered pieces of many lengths", lengths.len()),
            Case::Strided { bytes, period, count } => format!("{bytes} B of every {period}, {count} times"),
            Case::Bitmapped { width, rows, percent } => format!("{percent} % of {rows} values of {width} B"),
        }
    }

    fn shape(&self, memory: u64, random: &mut SplitMix64) -> Option<Shape> {
        let mut place = |bytes: u64| random.below(memory.saturating_sub(bytes) / 64) * 64;
        match self {
            Case::Scattered { bytes, count } => {
                Shape::list(&(0..*count).map(|_| Run::new(place(*bytes), *bytes)).collect::<Vec<_>>()).ok()
            }
            Case::Mixed { lengths } => {
                Shape::list(&lengths.iter().map(|bytes| Run::new(place(*bytes), *bytes)).collect::<Vec<_>>()).ok()
            }
            Case::Strided { bytes, period, count } => {
                Shape::strided(place(period * count), *period, *count, &[Run::new(0, *bytes)]).ok()
            }
            Case::Bitmapped { width, rows, percent } => {
                let column = Column { base: place(width * rows), stride: *width, width: *width };
                let wanted = Bitmap::of(*rows, |row| SplitMix64(row).below(100) < *percent);
                Shape::bitmapped(&[column], &wanted, Order::Rows).ok()
            }
        }
    }
}

impl Point {
    /// The shapes of its stream: at so many places that a cache does not keep them, or in one
    /// place.
    pub(super) fn shapes(&self, memory: u64, places_max: u64) -> Vec<Arc<Shape>> {
        let touched = self.case.touched().max(1);
        let (memory, places) = match self.warm {
            true => (WARM_BYTES.max(2 * touched), (WARM_BYTES / touched).clamp(1, 16)),
            false => (memory, (memory / 2 / touched).clamp(1, places_max)),
        };
        let mut random = SplitMix64(SEED ^ touched);
        (0..places).filter_map(|_| Some(Arc::new(self.case.shape(memory, &mut random)?.one_message()))).collect()
    }
}

/// All points of a calibration; of a quick one those that a profile cannot do without.
pub(super) fn points(capabilities: &Capabilities, quick: bool) -> Vec<Point> {
    let mut out = Out(Vec::new());
    let one = |bytes| Case::Scattered { bytes, count: 1 };
    for way in [Method::Copy, Method::Gather] {
        out.add(one(64), way);
        out.add(Case::Scattered { bytes: 64, count: 64 }, way);
        for bytes in pick(quick, &[45, 1451, 16 << 10], &LENGTHS) {
            out.add(Case::Scattered { bytes: *bytes, count: (SCATTERED_BYTES / bytes).clamp(2, 64) }, way);
        }
    }
    for bytes in pick(quick, &[16 << 10], &[5803, 11_605, 23_211]) {
        out.add(one(*bytes), Method::Gather);
    }
    for bytes in pick(quick, &[], &[45, 363, 1451, 5803]) {
        out.add(one(*bytes), Method::Copy);
        out.add(Case::Scattered { bytes: *bytes, count: 4 }, Method::Copy);
    }
    for (bytes, count, long) in pick(quick, &[], &BEHIND) {
        out.mixture([*long].into_iter().chain(std::iter::repeat_n(*bytes, *count)).collect(), *long);
    }
    for (bytes, count, long) in pick(quick, &[(181, 4, 11_605)], &BESIDE) {
        out.mixed(*bytes, *count, *long);
        let alone = Case::Scattered { bytes: *long, count: *count };
        if !out.0.iter().any(|point| point.case == alone && point.way == Method::Gather) {
            out.add(alone, Method::Gather);
        }
    }
    for bytes in pick(quick, &[], &[16, 1 << 10]) {
        out.warm(one(*bytes), Method::Copy);
    }
    for bytes in pick(quick, &[64, 4 << 10], &[16, 64, 256, 1 << 10, 4 << 10, 16 << 10]) {
        out.warm(Case::Scattered { bytes: *bytes, count: ((16 << 10) / bytes).clamp(2, 64) }, Method::Copy);
    }
    for bytes in pick(quick, &[64, 64 << 10], &[64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10]) {
        out.warm(one(*bytes), Method::Gather);
    }
    for bytes in
        pick(quick, &[64], &[16, 64, 256, 1024]).iter().filter(|bytes| **bytes <= capabilities.inline_max as u64)
    {
        out.add(one(*bytes), Method::Inline);
    }
    for (bytes, period) in pick(quick, &[(8, 24), (8, 1032), (256, 512)], &STRIDES) {
        let most = (128u64 << 10) / period;
        let case = |count| Case::Strided { bytes: *bytes, period: *period, count };
        out.add(case(most.clamp(16, 1024)), Method::Copy);
        out.add(case(most.clamp(16, 256).min(capabilities.sge_max as u64).max(2)), Method::Gather);
    }
    for (width, percent) in pick(quick, &[(4, 50), (4, 10)], &BITMAPS) {
        out.add(Case::Bitmapped { width: *width, rows: (64 << 10) / width, percent: *percent }, Method::Copy);
    }
    if !quick {
        out.hold_out();
    }
    out.0
}

/// Lists of scattered pieces, from short to long, by which is told up to which length they are
/// better copied than named.
pub(super) fn copied() -> Vec<Point> {
    let mut out = Out(Vec::new());
    for bytes in [512, 724, 1024, 1448, 2048, 2896, 4096] {
        out.add(Case::Scattered { bytes, count: COPIED_BYTES / bytes }, Method::Gather);
    }
    out.0
}

fn pick<'a, T>(quick: bool, few: &'a [T], all: &'a [T]) -> &'a [T] {
    if quick { few } else { all }
}

struct Out(Vec<Point>);

impl Out {
    fn add(&mut self, case: Case, way: Method) {
        self.0.push(Point { case, way, gather_from: 0, warm: false, held_out: false });
    }

    fn warm(&mut self, case: Case, way: Method) {
        self.0.push(Point { case, way, gather_from: 0, warm: true, held_out: false });
    }

    /// Short pieces that are packed, each between long ones that are gathered.
    fn mixed(&mut self, bytes: u64, count: u64, long: u64) {
        self.mixture((0..count).flat_map(|_| [bytes, long]).collect(), long);
    }

    fn mixture(&mut self, lengths: Vec<u64>, long: u64) {
        let case = Case::Mixed { lengths };
        self.0.push(Point { case, way: Method::Mixture, gather_from: long / 2, warm: false, held_out: false });
    }

    /// Other numbers of pieces, many lengths in one message, other distances and densities.
    fn hold_out(&mut self) {
        let mut cases = Vec::new();
        for bytes in [16, 200, 1 << 10, 3000, 16_001, 50_000] {
            cases.push(Case::Scattered { bytes, count: 1 });
            cases.push(Case::Scattered { bytes, count: ((64 << 10) / bytes).clamp(2, 23) });
        }
        let mut random = SplitMix64(SEED);
        for (count, longest) in [(8, 16 << 10), (24, 4 << 10), (60, 1 << 10), (128, 512u64)] {
            let powers = u64::from((longest / 16).ilog2());
            let lengths: Vec<u64> = (0..count).map(|_| (16 << random.below(powers)) + random.below(16)).collect();
            for gather_from in [longest / 16, longest / 4] {
                let case = Case::Mixed { lengths: lengths.clone() };
                self.0.push(Point { case, way: Method::Mixture, gather_from, warm: false, held_out: true });
            }
            cases.push(Case::Mixed { lengths });
        }
        for (bytes, period, count) in
            [(12, 40, 200), (100, 228, 90), (100, 1400, 90), (700, 1100, 60), (2000, 5000, 20)]
        {
            cases.push(Case::Strided { bytes, period, count });
        }
        for (width, percent) in [(4, 35), (8, 70), (16, 25), (64, 40)] {
            cases.push(Case::Bitmapped { width, rows: (20 << 10) / width, percent });
        }
        for (case, way) in
            cases.into_iter().flat_map(|case| [Method::Copy, Method::Gather].map(|way| (case.clone(), way)))
        {
            self.0.push(Point { case, way, gather_from: 0, warm: false, held_out: true });
        }
    }
}

/// Lengths of scattered pieces: odd ones, as most are that have any length, for the ends of vectors
/// cost time.
const LENGTHS: [u64; 13] = [11, 23, 45, 91, 181, 363, 725, 1451, 2901, 5803, 11_605, 23_211, 46_421];
/// Packed pieces, how many, and how long the gathered ones between them are: so long that the
/// receiver is the slower end.
const BESIDE: [(u64, u64, u64); 9] = [
    (11, 8, 5803),
    (45, 8, 5803),
    (91, 8, 5803),
    (181, 8, 5803),
    (363, 8, 5803),
    (725, 6, 11_605),
    (1451, 6, 11_605),
    (2901, 4, 23_211),
    (5803, 4, 23_211),
];
/// Packed pieces, how many of them one after another, and how long the gathered one before them is.
const BEHIND: [(u64, usize, u64); 6] =
    [(45, 16, 5803), (91, 1, 5803), (181, 8, 5803), (363, 4, 11_605), (725, 1, 11_605), (1451, 2, 11_605)];
const SCATTERED_BYTES: u64 = 128 << 10;
/// Bytes of a message by which copied and named pieces are compared.
const COPIED_BYTES: u64 = 64 << 10;
/// Runs and periods: of each length one that is near its neighbours and one that is far from them,
/// so that neither price is drawn out of others beyond them. Up to 64 bytes each width has a
/// kernel, or a way through one, of its own.
const STRIDES: [(u64, u64); 22] = [
    (4, 12),
    (4, 64),
    (4, 1032),
    (8, 24),
    (8, 1040),
    (11, 25),
    (11, 1040),
    (16, 48),
    (16, 2000),
    (45, 61),
    (45, 1100),
    (64, 96),
    (64, 256),
    (64, 1200),
    (181, 197),
    (181, 1400),
    (363, 379),
    (363, 3000),
    (1451, 1467),
    (1451, 4096),
    (3777, 3793),
    (3777, 7000),
];
/// Widths of values, and how many of 100 are set.
const BITMAPS: [(u64, u64); 16] = [
    (1, 10),
    (1, 50),
    (2, 10),
    (2, 50),
    (4, 5),
    (4, 20),
    (4, 50),
    (4, 90),
    (8, 5),
    (8, 50),
    (8, 90),
    (16, 10),
    (16, 50),
    (64, 10),
    (64, 50),
    (64, 90),
];

/// Numbers from a seed.
#[derive(Clone, Debug)]
pub(super) struct SplitMix64(pub(super) u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n.max(1))) >> 64) as u64
    }
}

const SEED: u64 = 0x0CA1_1B2A_7E00_0001;
/// A quarter of a second-level cache.
const WARM_BYTES: u64 = 256 << 10;
