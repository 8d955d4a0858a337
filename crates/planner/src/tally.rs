//! How long a shape's fragments are, counted once and allocating nothing.

use overside_shape::{Kind, Level, Run, Shape};

/// Fragments by length, in ranges of a quarter of a power of two, within which no curve of a profile bends.
pub(crate) struct Tally {
    /// Of each range: fragments above [`COUNT_BIT`], their bytes below.
    sums: [u64; RANGES],
    /// `opens[r]`: packed runs that appear, less those that vanish, when range `r` is packed as well.
    opens: [i32; RANGES + 1],
    occupied: [u64; 2],
    /// The first fragment's range: it begins a run when packed, whatever is before it.
    start: usize,
    /// What stands here stands for so many times as much.
    scale: f64,
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
    pub(crate) fn of(shape: &Shape) -> Self {
        let mut tally = Self { sums: [0; RANGES], opens: [0; RANGES + 1], occupied: [0; 2], start: RANGES, scale: 1.0 };
        let seen = match shape.kind() {
            // These two need no walk, and a walk costs more than all the rest.
            Kind::List(runs) => tally.add(RANGES, runs.iter().take(FRAGMENTS_MAX).map(|run| run.len)),
            Kind::Strided { levels: [level], runs, .. } if level.count > PERIODS_MIN => tally.add_periods(*level, runs),
            _ => tally.add_messages(shape),
        };
        if seen < shape.bytes() {
            tally.scale = shape.bytes() as f64 / seen.max(1) as f64;
        }
        tally
    }

    /// One period's fragments, each period's first after the last of the one before.
    fn add_periods(&mut self, level: Level, runs: &[Run]) -> u64 {
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return 0 };
        let wraps = runs.len() > 1 && last.at + last.len == level.period + first.at;
        let lens = runs.iter().take(FRAGMENTS_MAX).map(|run| run.len);
        if wraps {
            // Every border but the outermost joins two runs.
            let (joined, middle) = (first.len + last.len, lens.take(runs.len() - 1).skip(1));
            let before = runs.get(runs.len() - 2).filter(|_| runs.len() > 2).map_or(joined, |run| run.len);
            return self.add(range_of(before), std::iter::once(joined).chain(middle));
        }
        self.add(range_of(last.len), lens)
    }

    fn add_messages(&mut self, shape: &Shape) -> u64 {
        let messages = shape.messages();
        let count = messages.count();
        if matches!(shape.kind(), Kind::List(_) | Kind::Variable { .. }) {
            return self.add(RANGES, messages.fragments().take(FRAGMENTS_MAX).map(|run| run.len));
        }
        if count <= SAMPLE_MESSAGES || messages.uniform_bytes().is_none() {
            return self.add_parts(shape);
        }
        let part = SAMPLE_MESSAGES / SAMPLE_SLICES;
        let from = |i: u64| (count - part) / (SAMPLE_SLICES - 1) * i;
        let slices = (0..SAMPLE_SLICES).map(|i| messages.slice(from(i)..from(i) + part));
        let mut before = RANGES;
        let mut seen = 0;
        for slice in slices {
            let fragments = || slice.fragments().take(SAMPLE_FRAGMENTS);
            seen += self.add(before, fragments().map(|run| run.len));
            before = fragments().last().map_or(before, |run| range_of(run.len));
        }
        seen
    }

    /// The first fragments of what has a rule, and if there are more, some from other places.
    fn add_parts(&mut self, shape: &Shape) -> u64 {
        let first = shape.messages();
        let mut seen = self.add(RANGES, first.fragments().take(SAMPLE_FRAGMENTS).map(|run| run.len));
        for part in 1..SAMPLE_SLICES {
            let from = shape.bytes() / SAMPLE_SLICES * part;
            if from >= seen {
                let some = shape.fragments_in(from..shape.bytes()).take(SAMPLE_FRAGMENTS / SAMPLE_SLICES as usize);
                // One after any other; the first may be cut, and is not counted.
                seen += self.add(NOWHERE, some.skip(1).map(|run| run.len));
            }
        }
        seen
    }

    /// Counts a stretch of fragments that follow one of range `range` (none, when [`RANGES`]; unknown, when
    /// [`NOWHERE`]); returns its bytes.
    #[inline]
    fn add(&mut self, range: usize, mut lens: impl Iterator<Item = u64>) -> u64 {
        let Some(first) = lens.next() else { return 0 };
        let (mut before, mut alike, mut total, mut last) = (first, 1, first, range_of(first));
        if self.start == RANGES {
            // Nothing shorter begins a run before it; what a period before does not end begins here once.
            self.start = if last >= range || range == RANGES { last } else { NOWHERE };
        }
        if range < RANGES {
            self.open(last, range);
        }
        for len in lens {
            total += len;
            if len == before {
                alike += 1;
                continue;
            }
            self.note(last, before, alike);
            let next = range_of(len);
            self.open(next, last);
            (before, alike, last) = (len, 1, next);
        }
        self.note(last, before, alike);
        total
    }

    /// A run begins at this fragment as soon as it is packed, and no longer when its predecessor is as well. Without a
    /// branch, which nothing could predict.
    #[inline]
    fn open(&mut self, range: usize, before: usize) {
        self.opens[range.min(before)] += 1;
        self.opens[before] -= 1;
    }

    #[inline]
    fn note(&mut self, range: usize, len: u64, alike: u64) {
        self.sums[range] += (alike << COUNT_BIT) + (alike * len.min(LEN_MAX));
        self.occupied[range / 64] |= 1 << (range % 64);
    }

    /// The ranges that anything is in, from the shortest.
    #[inline]
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range> + '_ {
        let (mut left, mut from) = (u128::from(self.occupied[0]) | u128::from(self.occupied[1]) << 64, 0);
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let index = left.trailing_zeros() as usize;
            left &= left - 1;
            let runs: i32 = self.opens[from..=index].iter().sum();
            let start = f64::from(u8::from((from..=index).contains(&self.start)));
            from = index + 1;
            let sum = self.sums[index];
            Some(Range {
                index,
                pieces: (sum >> COUNT_BIT) as f64 * self.scale,
                bytes: (sum & ((1 << COUNT_BIT) - 1)) as f64 * self.scale,
                runs: f64::from(runs) * self.scale + start,
            })
        })
    }
}

/// The range that a length belongs to.
#[inline]
pub(crate) fn range_of(len: u64) -> usize {
    if len < 4 {
        return len as usize;
    }
    let power = len.ilog2() as usize;
    ((power - 1) * 4 + (len >> (power - 2) & 3) as usize).min(RANGES - 1)
}

/// The first length of a range.
pub(crate) fn start_of(range: usize) -> u64 {
    if range < 4 { range as u64 } else { (4 + range as u64 % 4) << (range / 4 - 1) }
}

/// Ranges of lengths: up to 2 and a half, then four to a power of two; the last has everything from 16 MiB.
pub(crate) const RANGES: usize = 92;
/// The first fragment begins no run that its predecessor, a period before, does not end.
const NOWHERE: usize = usize::MAX;
/// Of fewer periods each is walked: where they touch, the first and the last differ from the others.
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
    use proptest::prelude::*;

    #[test]
    fn ranges_ascend_with_length_and_begin_at_powers_of_two() {
        let mut last = 0;
        for len in 1..100_000u64 {
            let range = range_of(len);
            assert!(range == last || range == last + 1, "{len}");
            assert!(range == last + 1 || !len.is_power_of_two(), "{len} begins no range");
            assert_eq!(range == last + 1, start_of(range) == len && range > 0, "{len}");
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
            let [strided, listed] = [strided, listed]
                .map(|shape| Tally::of(&shape).ranges().map(|r| [r.pieces, r.bytes, r.runs]).collect::<Vec<_>>());
            // Where periods touch, the outermost fragments are shorter than the tally says.
            let close =
                |a: &[f64; 3], b: &[f64; 3]| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 2.0 + 0.004 * b.abs());
            let alike = listed.iter().filter(|range| range[0] > 2.0);
            assert!(strided.iter().zip(alike).all(|(a, b)| close(a, b)), "{runs:?}: {strided:?} {listed:?}");
        }
    }

    /// Three pieces that are two periods of 1 and 6 bytes which touch: a list and a stride alike.
    #[test]
    fn few_periods_that_touch_are_counted_as_they_are() {
        let shape = Shape::list(&[Run::new(1, 1), Run::new(3, 7), Run::new(11, 6)]).unwrap();
        assert!(matches!(shape.kind(), Kind::Strided { .. }), "{shape:?}");
        let counted: Vec<_> = Tally::of(&shape).ranges().map(|range| (range.pieces, range.bytes)).collect();
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
