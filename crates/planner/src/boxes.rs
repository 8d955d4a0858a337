//! Bounding boxes: fewer, larger reads that span the gaps between fragments.
//!
//! Whoever fetches fragments from memory may fetch the bytes between two of them as well and save a
//! request (d-rdma §4.1). Which neighbours to join is a partition of the fragments, in address
//! order, into runs of neighbours; each run is read as one box. Three kinds of cost, each with an
//! exact algorithm:
//!
//! - *separable*, `F(end) − G(start)` a box (a request and so much a byte or a line): joining
//!   two neighbours changes the cost by the term of their gap alone. So every gap decides for
//!   itself: [`separable`], O(n);
//! - separable with a limit on a box's span: gaps are no longer independent. The best partition of
//!   the first j fragments extends a best partition of fewer, and the candidates are a sliding
//!   window. A monotone queue finds each in amortised constant time: [`capped`], O(n);
//! - *bottleneck*, `max(α · boxes, β · bytes)` (requests and bytes overlap, the slower decides):
//!   with k gaps bridged, only their sum counts, so the k smallest are best: [`bottleneck`], O(n
//!   log n).
//!
//! Fragments are given in address order and disjoint, as the address-merged union of one or several
//! regions is: a gap between two regions is a gap like any other.
//!
//! //= d-rdma §4.1 DR-M26 DR-M28 DR-M32; §6 DR-M59 DR-M62

use std::collections::VecDeque;
use std::ops::Range;

use overside_shape::Run;

/// What a box costs: closing it at its end less opening it at its start.
pub trait Separable {
    /// `F`: the cost up to a box's end (offset one past its last byte), the request included.
    fn closes(&self, end: u64) -> f64;
    /// `G`: the cost up to its start, taken off.
    fn opens(&self, start: u64) -> f64;
}

/// A request and so much a byte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerByte {
    /// Nanoseconds of a request.
    pub request_ns: f64,
    /// Nanoseconds of a byte, of data or gap.
    pub byte_ns: f64,
}

/// A request and so much a line of 64 bytes touched: within a line, a gap costs nothing
/// (d-rdma §5.7 DR-M50: a gap as large as a cache line can pay).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerLine {
    /// Nanoseconds of a request.
    pub request_ns: f64,
    /// Nanoseconds of a line.
    pub line_ns: f64,
}

impl Separable for PerByte {
    fn closes(&self, end: u64) -> f64 {
        self.request_ns + self.byte_ns * end as f64
    }

    fn opens(&self, start: u64) -> f64 {
        self.byte_ns * start as f64
    }
}

impl Separable for PerLine {
    fn closes(&self, end: u64) -> f64 {
        self.request_ns + self.line_ns * end.div_ceil(LINE_BYTES) as f64
    }

    fn opens(&self, start: u64) -> f64 {
        self.line_ns * (start / LINE_BYTES) as f64
    }
}

impl PerByte {
    /// The widest gap that is cheaper to fetch than to leave out.
    pub fn gap_bytes_max(&self) -> u64 {
        if self.byte_ns > 0.0 { (self.request_ns / self.byte_ns).clamp(0.0, u64::MAX as f64) as u64 } else { u64::MAX }
    }
}

/// A partition of the fragments into boxes: for each box, which fragments it covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boxes {
    covers: Vec<Range<usize>>,
}

impl Boxes {
    /// How many.
    pub fn len(&self) -> usize {
        self.covers.len()
    }

    /// Whether there is none, as for no fragments.
    pub fn is_empty(&self) -> bool {
        self.covers.is_empty()
    }

    /// The fragments of each box, as ranges of indices.
    pub fn covers(&self) -> &[Range<usize>] {
        &self.covers
    }

    /// Each box as a range of bytes.
    pub fn runs<'a>(&'a self, fragments: &'a [Run]) -> impl Iterator<Item = Run> + 'a {
        self.covers.iter().map(|cover| {
            let start = fragments[cover.start].at;
            Run::new(start, end(fragments[cover.end - 1]) - start)
        })
    }

    /// Bytes read, gaps included.
    pub fn bytes(&self, fragments: &[Run]) -> u64 {
        self.runs(fragments).map(|run| run.len).sum()
    }
}

/// The cheapest boxes for a separable cost, gap by gap. O(n).
///
/// Exact: the cost of a partition is the sum over its boxes of `F(end) − G(start)`; bridging the
/// gap between fragments i and i+1 takes off `F(end i) − G(start i+1)`, whatever the other gaps do.
pub fn separable(fragments: &[Run], cost: &impl Separable) -> Boxes {
    let mut covers = Vec::new();
    let mut first = 0;
    for next in 1..=fragments.len() {
        let bridged = fragments.get(next).is_some_and(|fragment| {
            let before = end(fragments[next - 1]);
            fragment.at <= before || cost.closes(before) - cost.opens(fragment.at) > 0.0
        });
        if !bridged {
            covers.push(first..next);
            first = next;
        }
    }
    Boxes { covers }
}

/// The cheapest boxes that span at most `span_bytes_max` each, for a separable cost. O(n).
///
/// A fragment that is longer than the limit is a box of its own, however many requests its reader
/// makes of it.
pub fn capped(fragments: &[Run], cost: &impl Separable, span_bytes_max: u64) -> Boxes {
    // `best[j]`: the least cost of boxes for the first j fragments; `from[j]`: where the last of them begins.
    let mut best = vec![0.0; fragments.len() + 1];
    let mut from = vec![0; fragments.len() + 1];
    // Starts of the last box that may still be best, cheapest first: `best[i] − G(start i)` ascends.
    let mut starts: VecDeque<(usize, f64)> = VecDeque::new();
    for (last, fragment) in fragments.iter().enumerate() {
        let offer = best[last] - cost.opens(fragment.at);
        while starts.back().is_some_and(|(_, key)| *key >= offer) {
            starts.pop_back();
        }
        starts.push_back((last, offer));
        let reach = end(*fragment);
        // This fragment's own start is the last that could be dropped, and it never is.
        while starts.len() > 1 && starts.front().is_some_and(|(i, _)| reach - fragments[*i].at > span_bytes_max) {
            starts.pop_front();
        }
        let (first, key) = starts.front().copied().unwrap_or((last, offer));
        best[last + 1] = key + cost.closes(reach);
        from[last + 1] = first;
    }
    let mut covers = Vec::new();
    let mut last = fragments.len();
    while last > 0 {
        covers.push(from[last]..last);
        last = from[last];
    }
    covers.reverse();
    Boxes { covers }
}

/// The cheapest boxes where requests and bytes overlap in time: the least `max(α · boxes, β ·
/// bytes)`. O(n log n).
///
/// Exact: a partition that bridges k gaps has n − k boxes, and the fewest bytes when the k gaps are
/// the smallest.
pub fn bottleneck(fragments: &[Run], box_ns: f64, byte_ns: f64) -> Boxes {
    if fragments.is_empty() {
        return Boxes { covers: Vec::new() };
    }
    let gap = |i: usize| fragments[i + 1].at.saturating_sub(end(fragments[i]));
    let mut gaps: Vec<usize> = (0..fragments.len() - 1).collect();
    gaps.sort_by_key(|i| gap(*i));
    let mut bytes: u64 = fragments.iter().map(|run| run.len).sum();
    let price = |boxes: usize, bytes: u64| (box_ns * boxes as f64).max(byte_ns * bytes as f64);
    let (mut bridged, mut least) = (0, price(fragments.len(), bytes));
    for (k, i) in gaps.iter().enumerate() {
        bytes += gap(*i);
        let priced = price(fragments.len() - k - 1, bytes);
        if priced < least {
            (bridged, least) = (k + 1, priced);
        }
    }
    let mut joined = vec![false; fragments.len()];
    gaps[..bridged].iter().for_each(|i| joined[*i] = true);
    let mut covers = Vec::new();
    let mut first = 0;
    for (i, joined) in joined.iter().enumerate() {
        if !joined {
            covers.push(first..i + 1);
            first = i + 1;
        }
    }
    Boxes { covers }
}

fn end(run: Run) -> u64 {
    run.at + run.len
}

const LINE_BYTES: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every partition of `n` neighbours into runs: one bit a gap (d-rdma §6 DR-M60, the exhaustive
    /// reference).
    fn partitions(n: usize) -> impl Iterator<Item = Vec<Range<usize>>> {
        (0..1u32 << n.saturating_sub(1)).map(move |bridged| {
            let (mut covers, mut first) = (Vec::new(), 0);
            for i in 0..n {
                if i + 1 == n || bridged >> i & 1 == 0 {
                    covers.push(first..i + 1);
                    first = i + 1;
                }
            }
            covers
        })
    }

    fn price(fragments: &[Run], covers: &[Range<usize>], cost: &impl Separable) -> f64 {
        covers.iter().map(|c| cost.closes(end(fragments[c.end - 1])) - cost.opens(fragments[c.start].at)).sum()
    }

    fn span(fragments: &[Run], cover: &Range<usize>) -> u64 {
        end(fragments[cover.end - 1]) - fragments[cover.start].at
    }

    fn scattered() -> impl Strategy<Value = Vec<Run>> {
        proptest::collection::vec((0u64..40, 1u64..30), 1..=11).prop_map(|pieces| {
            let mut at = 0;
            let place = |(gap, len)| {
                at += gap;
                let run = Run::new(at, len);
                at += len;
                run
            };
            pieces.into_iter().map(place).collect()
        })
    }

    #[test]
    fn the_boxes_of_figure_9() {
        // d-rdma Fig. 9 DR-M27: positions 0 to 7, gaps at 2 and 6; D of row 1 and A, B of row 2 touch.
        let fragments = [Run::new(0, 2), Run::new(3, 1), Run::new(4, 2), Run::new(7, 1)];
        let runs = |boxes: Boxes| boxes.runs(&fragments).collect::<Vec<_>>();
        let free = |request_ns| PerByte { request_ns, byte_ns: 1.0 };
        let merged = [Run::new(0, 2), Run::new(3, 3), Run::new(7, 1)];
        assert_eq!(runs(separable(&fragments, &free(0.5))), merged, "(b): what touches is one box");
        assert_eq!(runs(separable(&fragments, &free(2.0))), [Run::new(0, 8)], "(d): both gaps bridged");
        let one = [vec![Run::new(0, 6), Run::new(7, 1)], vec![Run::new(0, 2), Run::new(3, 5)]];
        let within = runs(capped(&fragments, &free(2.0), 6));
        assert!(one.contains(&within), "(c): one gap bridged, the other is out of reach: {within:?}");
        let slower = runs(bottleneck(&fragments, 3.5, 1.0));
        assert!(one.contains(&slower), "(c): bridging the second gap makes bytes the slower: {slower:?}");
    }

    #[test]
    fn nothing_needs_no_boxes() {
        let cost = PerByte { request_ns: 1.0, byte_ns: 1.0 };
        for boxes in [separable(&[], &cost), capped(&[], &cost, 8), bottleneck(&[], 1.0, 1.0)] {
            assert!(boxes.is_empty());
        }
    }

    proptest! {
        #[test]
        fn no_partition_is_cheaper(
            fragments in scattered(), request_ns in 0.0f64..50.0, byte_ns in 0.0f64..3.0, cap in 1u64..200,
        ) {
            let byte = PerByte { request_ns, byte_ns };
            let line = PerLine { request_ns, line_ns: byte_ns * 16.0 };
            let all = |allowed: &dyn Fn(&[Range<usize>]) -> bool, price: &dyn Fn(&[Range<usize>]) -> f64| {
                let allowed = partitions(fragments.len()).filter(|covers| allowed(covers));
                allowed.map(|covers| price(&covers)).min_by(f64::total_cmp).unwrap()
            };
            let found = separable(&fragments, &byte);
            let least = all(&|_| true, &|covers| price(&fragments, covers, &byte));
            prop_assert!((price(&fragments, found.covers(), &byte) - least).abs() < 1e-6);
            let found = separable(&fragments, &line);
            let least = all(&|_| true, &|covers| price(&fragments, covers, &line));
            // Lines that two boxes share are counted for both: a partition may cost less than its union.
            prop_assert!(price(&fragments, found.covers(), &line) <= least + 1e-6);

            let fits = |covers: &[Range<usize>]| covers.iter().all(|c| c.len() == 1 || span(&fragments, c) <= cap);
            let found = capped(&fragments, &byte, cap);
            prop_assert!(fits(found.covers()));
            let least = all(&fits, &|covers| price(&fragments, covers, &byte));
            prop_assert!((price(&fragments, found.covers(), &byte) - least).abs() < 1e-6);
            let found = capped(&fragments, &line, cap);
            let least = all(&fits, &|covers| price(&fragments, covers, &line));
            prop_assert!(fits(found.covers()) && (price(&fragments, found.covers(), &line) - least).abs() < 1e-6);

            let slower = |covers: &[Range<usize>]| {
                let bytes: u64 = covers.iter().map(|c| span(&fragments, c)).sum();
                (request_ns * covers.len() as f64).max(byte_ns * bytes as f64)
            };
            let found = bottleneck(&fragments, request_ns, byte_ns);
            prop_assert!((slower(found.covers()) - all(&|_| true, &slower)).abs() < 1e-6);
        }

        #[test]
        fn every_fragment_is_in_one_box(fragments in scattered(), request_ns in 0.0f64..50.0, cap in 1u64..200) {
            let cost = PerByte { request_ns, byte_ns: 1.0 };
            for boxes in [separable(&fragments, &cost), capped(&fragments, &cost, cap), bottleneck(&fragments, request_ns, 1.0)] {
                let covered: Vec<usize> = boxes.covers().iter().flat_map(Clone::clone).collect();
                prop_assert_eq!(covered, (0..fragments.len()).collect::<Vec<_>>());
                prop_assert!(boxes.bytes(&fragments) >= fragments.iter().map(|r| r.len).sum::<u64>());
            }
            // One gap threshold is all that a separable cost needs (d-rdma §6 DR-M63: the simple one for hardware).
            let by_gap = separable(&fragments, &cost);
            let gaps = fragments.windows(2).map(|w| w[1].at - end(w[0]));
            let left = gaps.filter(|gap| *gap as f64 >= request_ns && *gap > 0).count();
            prop_assert_eq!(by_gap.len(), left + 1);
        }
    }
}
