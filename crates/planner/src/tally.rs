//! How long a shape's fragments are, counted once and allocating nothing.

use overside_shape::{Column, Level, Run, Shape, ShapeKind};
use smallvec::SmallVec;

/// Fragments by length, in ranges of a quarter of a power of two, within which no curve of a
/// profile bends: those that anything is in, from the shortest.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    ranges: SmallVec<[Range; RANGES_AT_HAND]>,
    pieces: f64,
}

/// What is counted, range by range.
struct Counts {
    /// Of each range: fragments above [`COUNT_BIT`], their bytes below.
    sums: [u64; RANGES],
    /// Packed runs that appear when a range is packed as well, and those that vanish: apart, for
    /// one count that is written twice in a row waits for itself.
    opens: [u16; RANGES + 1],
    closes: [u16; RANGES + 1],
    occupied: [u64; 2],
    /// The first fragment's range: it begins a run when packed, whatever is before it.
    start: usize,
}

/// One range of lengths: what is in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) index: usize,
    pub(crate) pieces: f64,
    pub(crate) bytes: f64,
    /// How the number of packed runs changes when fragments of this range join the packed ones.
    pub(crate) runs: f64,
}

impl Tally {
    /// Of all fragments; of large regular shapes by a sample that stands for the rest.
    #[cfg(test)]
    pub(crate) fn of(shape: &Shape) -> Self {
        let mut tally = Self::default();
        tally.fill(shape);
        tally
    }

    /// As [`of`](Self::of), in place: it is too long to be moved for nothing.
    pub(crate) fn fill(&mut self, shape: &Shape) {
        let mut counts = Counts {
            sums: [0; RANGES],
            opens: [0; RANGES + 1],
            closes: [0; RANGES + 1],
            occupied: [0; 2],
            start: RANGES,
        };
        let seen = counts.count(shape);
        // What was counted stands for so many times as much.
        let scale = if seen < shape.bytes() { shape.bytes() as f64 / seen.max(1) as f64 } else { 1.0 };
        counts.collect(scale, self);
    }

    /// The ranges that anything is in, from the shortest.
    #[inline]
    pub(crate) fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Fragments in all.
    pub(crate) fn pieces(&self) -> f64 {
        self.pieces
    }
}

impl Counts {
    /// Returns how many bytes were counted.
    fn count(&mut self, shape: &Shape) -> u64 {
        if shape.bytes() >> COUNT_BIT > 0 {
            // Their bytes would run into the number of fragments.
            let lens = shape.messages().fragments().take(FRAGMENTS_MAX).map(|run| run.len.min(LEN_MAX));
            self.add(RANGES, lens);
            return shape.bytes();
        }
        match shape.kind() {
            // These need no walk, and a walk costs more than all the rest.
            ShapeKind::List(runs) => self.add(RANGES, some(runs).iter().map(|run| run.len)).0,
            ShapeKind::Contiguous(run) if run.len > 0 && shape.messages().count() == 1 => {
                self.add(RANGES, std::iter::once(run.len)).0
            }
            ShapeKind::Strided { levels: [level], runs, .. } if level.count > PERIODS_MIN => {
                self.add_periods(*level, runs)
            }
            ShapeKind::Strided { levels: [level], runs, .. } if is_of_equal_periods(shape, *level, runs) => {
                self.add(RANGES, (0..level.count).flat_map(|_| runs.iter().map(|run| run.len))).0
            }
            ShapeKind::Bitmapped { columns, .. } if is_of_equal_rows(shape, columns) => self.add_row(columns),
            _ => self.add_messages(shape),
        }
    }

    /// One period's fragments, each period's first after the last of the one before.
    fn add_periods(&mut self, level: Level, runs: &[Run]) -> u64 {
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return 0 };
        let wraps = runs.len() > 1 && touch(level, runs);
        let lens = some(runs).iter().map(|run| run.len);
        if wraps {
            // Every border but the outermost joins two runs.
            let (joined, middle) = (first.len + last.len, lens.take(runs.len() - 1).skip(1));
            let before = runs.get(runs.len() - 2).filter(|_| runs.len() > 2).map_or(joined, |run| run.len);
            return self.add(range_of(before), std::iter::once(joined).chain(middle)).0;
        }
        self.add(range_of(last.len), lens).0
    }

    /// A row of several columns, each row's first value after the last one of the row before.
    fn add_row(&mut self, columns: &[Column]) -> u64 {
        let begins = |at: usize| at == 0 || columns[at - 1].base + columns[at - 1].width != columns[at].base;
        let from = |at: usize| {
            let joined = (at + 1..columns.len()).take_while(|next| !begins(*next));
            joined.fold(columns[at].width, |sum, next| sum + columns[next].width)
        };
        let lens = || (0..columns.len()).filter(|at| begins(*at)).map(from);
        self.add(lens().next_back().map_or(RANGES, range_of), lens()).0
    }

    fn add_messages(&mut self, shape: &Shape) -> u64 {
        let messages = shape.messages();
        let count = messages.count();
        if matches!(shape.kind(), ShapeKind::List(_) | ShapeKind::Variable { .. }) {
            return self.add(RANGES, messages.fragments().take(FRAGMENTS_MAX).map(|run| run.len)).0;
        }
        if count <= SAMPLE_MESSAGES || messages.uniform_bytes().is_none() {
            return self.add_parts(shape);
        }
        let part = SAMPLE_MESSAGES / SAMPLE_SLICES;
        let from = |i: u64| (count - part) / (SAMPLE_SLICES - 1) * i;
        let slices = (0..SAMPLE_SLICES).map(|i| messages.slice(from(i)..from(i) + part));
        slices
            .fold((0, RANGES), |(seen, before), slice| {
                let (some, last) = self.add(before, slice.fragments().take(SAMPLE_FRAGMENTS).map(|run| run.len));
                (seen + some, last)
            })
            .0
    }

    /// The first fragments of what has a rule, and if there are more, some from other places.
    fn add_parts(&mut self, shape: &Shape) -> u64 {
        let first = shape.messages();
        let (mut seen, _) = self.add(RANGES, first.fragments().take(SAMPLE_FRAGMENTS).map(|run| run.len));
        for part in 1..SAMPLE_SLICES {
            let from = shape.bytes() / SAMPLE_SLICES * part;
            if from >= seen {
                let some = shape.fragments_in(from..shape.bytes()).take(SAMPLE_FRAGMENTS / SAMPLE_SLICES as usize);
                // One after any other; the first may be cut, and is not counted.
                seen += self.add(NOWHERE, some.skip(1).map(|run| run.len)).0;
            }
        }
        seen
    }

    /// Counts a stretch of fragments that follow one of range `range` (none, when [`RANGES`];
    /// unknown, when [`NOWHERE`]); returns its bytes, and the range of its last.
    #[inline]
    fn add(&mut self, range: usize, mut lens: impl Iterator<Item = u64>) -> (u64, usize) {
        let Some(first) = lens.next() else { return (0, range) };
        let (mut low, mut width, mut last) = span_of(first);
        if self.start == RANGES {
            // Nothing shorter begins a run before it; what a period before does not end begins here once.
            self.start = if last >= range || range == RANGES { last } else { NOWHERE };
        }
        if range < RANGES {
            self.open(last, range);
        }
        let (mut alike, mut bytes, mut total) = (1, first, 0);
        for len in lens {
            // As long as lengths stay in one range, no memory is touched and no range is worked out.
            if len.wrapping_sub(low) < width {
                (alike, bytes) = (alike + 1, bytes + len);
                continue;
            }
            self.note(last, alike, bytes);
            total += bytes;
            let before = last;
            (low, width, last) = span_of(len);
            self.open(last, before);
            (alike, bytes) = (1, len);
        }
        self.note(last, alike, bytes);
        (total + bytes, last)
    }

    /// A run begins at this fragment as soon as it is packed, and no longer when its predecessor is
    /// as well. Without a branch, which nothing could predict.
    #[inline]
    fn open(&mut self, range: usize, before: usize) {
        self.opens[range.min(before)] += 1;
        self.closes[before] += 1;
    }

    #[inline]
    fn note(&mut self, range: usize, alike: u64, bytes: u64) {
        self.sums[range] += (alike << COUNT_BIT) + bytes;
        self.occupied[range / 64] |= 1 << (range % 64);
    }

    fn collect(&self, scale: f64, tally: &mut Tally) {
        let mut from = 0;
        for (word, occupied) in self.occupied.into_iter().enumerate() {
            let mut left = occupied;
            while left != 0 {
                let index = (word * 64 + left.trailing_zeros() as usize).min(RANGES - 1);
                left &= left - 1;
                let sum = |counts: &[u16]| counts[from..=index].iter().map(|count| i32::from(*count)).sum::<i32>();
                let opened = sum(&self.opens) - sum(&self.closes);
                let begins = u8::from((from..=index).contains(&self.start));
                from = index + 1;
                let sum = self.sums[index];
                let range = Range {
                    index,
                    pieces: (sum >> COUNT_BIT) as i64 as f64 * scale,
                    bytes: (sum & ((1 << COUNT_BIT) - 1)) as i64 as f64 * scale,
                    runs: f64::from(opened) * scale + f64::from(begins),
                };
                tally.pieces += range.pieces;
                tally.ranges.push(range);
            }
        }
    }
}

/// The range that a length belongs to.
#[inline]
pub(crate) fn range_of(len: u64) -> usize {
    place_of(magnitude(len))
}

/// The first length of a length's range, how many it has, and the range.
#[inline]
fn span_of(len: u64) -> (u64, u64, usize) {
    let shift = (len | 4).ilog2() - 2;
    let digits = len >> shift;
    (digits << shift, 1 << shift, place_of(magnitude(len)))
}

/// The exponent and the two highest digits behind the point, which a processor finds out faster by
/// making a float than by counting bits.
#[inline]
fn magnitude(len: u64) -> u64 {
    (len as i64 as f64).to_bits() >> DIGITS_LEFT_OUT
}

#[inline]
fn place_of(magnitude: u64) -> usize {
    (magnitude.max(OF_ONE) - OF_ONE).min(RANGES as u64 - 1) as usize
}

/// The first length of a range.
pub(crate) fn start_of(range: usize) -> u64 {
    ((4 + range as u64 % 4) << (range / 4)) / 4
}

/// As many as are counted.
fn some(runs: &[Run]) -> &[Run] {
    &runs[..runs.len().min(FRAGMENTS_MAX)]
}

/// Whether a period's last run touches the next one's first.
fn touch(level: Level, runs: &[Run]) -> bool {
    let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return false };
    last.at + last.len == level.period + first.at
}

/// Whether the messages are periods, or all of them are one, of few runs that do not touch from one
/// period to the next.
fn is_of_equal_periods(shape: &Shape, level: Level, runs: &[Run]) -> bool {
    let messages = shape.messages();
    let whole = messages.count() == 1 || messages.uniform_bytes() == Some(shape.bytes() / level.count.max(1));
    whole && runs.len() <= FRAGMENTS_MAX / PERIODS_MIN as usize && !touch(level, runs)
}

/// Whether the messages are rows, or all of them are one, of columns that do not touch from one row
/// to the next: then all rows have the same fragments.
fn is_of_equal_rows(shape: &Shape, columns: &[Column]) -> bool {
    let [first, .., last] = columns else { return false };
    let row_bytes: u64 = columns.iter().map(|column| column.width).sum();
    let messages = shape.messages();
    let whole = messages.count() == 1 || messages.uniform_bytes() == Some(row_bytes);
    // What lies side by side in one row does so in the next one as well.
    let touching = |pair: &[Column]| pair[0].base + pair[0].width == pair[1].base;
    let in_step = columns.windows(2).all(|pair| !touching(pair) || pair[0].stride == pair[1].stride);
    let apart = first.base + first.stride != last.base + last.width;
    whole && in_step && apart && shape.bytes() / row_bytes.max(1) > PERIODS_MIN
}

/// Ranges of lengths, four to a power of two (below 4, where there are not as many lengths, some
/// are empty); the last has everything from 16 MiB.
pub(crate) const RANGES: usize = 97;
/// Of a float, the binary digits that no range goes by.
const DIGITS_LEFT_OUT: u32 = f64::MANTISSA_DIGITS - 3;
/// The magnitude of 1.
const OF_ONE: u64 = 1023 * 4;
/// A message hardly ever has fragments of more.
pub(crate) const RANGES_AT_HAND: usize = 24;
/// The first fragment begins no run that its predecessor, a period before, does not end.
const NOWHERE: usize = usize::MAX;
/// Of fewer periods each is walked: where they touch, the first and the last differ from the
/// others.
const PERIODS_MIN: u64 = 32;
/// Of what has a rule, so many fragments stand for the rest.
const SAMPLE_FRAGMENTS: usize = 256;
/// Of a sum: 2^16 fragments, which is more than are ever counted, of 2^48 bytes in all.
const COUNT_BIT: u32 = 48;
const LEN_MAX: u64 = 1 << 33;
/// Of a shape without a rule, more fragments than these are taken to be like the ones before them.
const FRAGMENTS_MAX: usize = 16 << 10;
const SAMPLE_MESSAGES: u64 = 64;
const SAMPLE_SLICES: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use overside_shape::{Bitmap, Order};
    use proptest::prelude::*;

    #[test]
    fn ranges_ascend_with_length_and_begin_at_powers_of_two() {
        let mut last = range_of(0);
        assert_eq!((last, range_of(1), range_of(2), range_of(3), range_of(4)), (0, 0, 4, 6, 8));
        for len in 1..100_000u64 {
            let range = range_of(len);
            assert!(range == last || range == last + 1 || len < 5, "{len}");
            assert!(range > last || !len.is_power_of_two() || len == 1, "{len} begins no range");
            assert_eq!(range > last || len == 1, start_of(range) == len, "{len}");
            last = range;
        }
        assert_eq!((range_of(16 << 20), range_of(u64::MAX)), (RANGES - 1, RANGES - 1));
    }

    #[test]
    fn periods_count_as_their_fragments_do() {
        let cases: [&[(u64, u64)]; 4] =
            [&[(0, 8)], &[(0, 8), (10, 100)], &[(0, 100), (110, 8), (120, 4)], &[(0, 8), (20, 9), (70, 130)]];
        for runs in cases {
            let runs: Vec<Run> = runs.iter().map(|(at, len)| Run::new(*at, *len)).collect();
            let strided = Shape::strided(0, 200, 1000, &runs).unwrap();
            let listed = Shape::list(&strided.fragments().collect::<Vec<_>>()).unwrap();
            let [strided, listed] = [strided, listed].map(|shape| {
                Tally::of(&shape).ranges().iter().map(|r| [r.pieces, r.bytes, r.runs]).collect::<Vec<_>>()
            });
            // Where periods touch, the outermost fragments are shorter than the tally says.
            let close =
                |a: &[f64; 3], b: &[f64; 3]| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 2.0 + 0.004 * b.abs());
            let alike = listed.iter().filter(|range| range[0] > 2.0);
            assert!(strided.iter().zip(alike).all(|(a, b)| close(a, b)), "{runs:?}: {strided:?} {listed:?}");
        }
    }

    /// By rule and by walking, for columns apart, side by side, and side by side across rows as
    /// well.
    #[test]
    fn rows_count_as_their_fragments_do() {
        let column = |base, stride, width| Column::new(base, stride, width);
        let rows = Bitmap::of(1000, |row| row * row % 7 < 3);
        for (columns, by_rule) in [
            (vec![column(0, 4, 4), column(5000, 4, 4), column(10_000, 8, 8)], true),
            (vec![column(0, 64, 4), column(4, 64, 8), column(40, 64, 20)], true),
            (vec![column(40, 64, 20), column(0, 64, 4), column(4, 64, 8)], true),
            (vec![column(0, 64, 32), column(32, 64, 32)], false),
            (vec![column(0, 64, 4), column(4, 32, 8)], false),
        ] {
            let shape = Shape::bitmapped(&columns, &rows, Order::Rows).unwrap();
            for shape in [shape.clone(), shape.one_message()] {
                let ShapeKind::Bitmapped { columns, .. } = shape.kind() else { panic!("{shape:?}") };
                assert_eq!(is_of_equal_rows(&shape, columns), by_rule, "{shape:?}");
                let listed = Shape::list(&shape.messages().fragments().collect::<Vec<_>>()).unwrap();
                let counted = |shape: &Shape| {
                    Tally::of(shape)
                        .ranges()
                        .iter()
                        .map(|range| [range.pieces, range.bytes, range.runs])
                        .collect::<Vec<_>>()
                };
                // What touches in a list is joined there, and a sample stands for what has no rule.
                let (shape, listed) = (counted(&shape), counted(&listed));
                let close =
                    |a: &[f64; 3], b: &[f64; 3]| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 2.0 + 0.001 * b.abs());
                let alike = shape.len() == listed.len() && shape.iter().zip(&listed).all(|(a, b)| close(a, b));
                assert!(alike || !by_rule, "{shape:?} {listed:?}");
            }
        }
    }

    /// Three pieces that are two periods of 1 and 6 bytes which touch: a list and a stride alike.
    #[test]
    fn few_periods_that_touch_are_counted_as_they_are() {
        let shape = Shape::list(&[Run::new(1, 1), Run::new(3, 7), Run::new(11, 6)]).unwrap();
        assert!(matches!(shape.kind(), ShapeKind::Strided { .. }), "{shape:?}");
        let counted: Vec<_> = Tally::of(&shape).ranges().iter().map(|range| (range.pieces, range.bytes)).collect();
        assert_eq!(counted, [(1.0, 1.0), (1.0, 6.0), (1.0, 7.0)]);
    }

    proptest! {
        #[test]
        fn packed_runs_are_counted_for_every_threshold(
            lens in proptest::collection::vec(prop_oneof![1u64..9, 1u64..2000], 0..40),
        ) {
            let mut at = 0;
            let runs: Vec<Run> = lens.iter().map(|len| { at += len + 1; Run::new(at - len, *len) }).collect();
            let shape = Shape::list(&runs).unwrap();
            let tally = Tally::of(&shape);
            let (mut packed_runs, mut packed, mut bytes) = (0.0, 0.0, 0.0);
            for range in tally.ranges() {
                packed_runs += range.runs;
                packed += range.pieces;
                bytes += range.bytes;
                let is_packed = |len: u64| range_of(len) <= range.index;
                let naive = lens.split(|len| !is_packed(*len)).filter(|run| !run.is_empty()).count();
                prop_assert_eq!(packed_runs, naive as f64, "up to range {}", range.index);
                prop_assert_eq!(packed, lens.iter().filter(|len| is_packed(**len)).count() as f64);
                prop_assert_eq!(bytes, lens.iter().filter(|len| is_packed(**len)).sum::<u64>() as f64);
            }
            prop_assert_eq!(packed, lens.len() as f64);
        }
    }
}
