//! Address order, gaps, overlaps and tiles against sets of bytes.

mod cases;

use std::collections::{BTreeMap, BTreeSet};

use cases::{any_case, spelt};
use overside_shape::{Bitmap, Column, Mask, Messages, Order, Run, Shape, ShapeError, gaps, shared_tiles};
use proptest::prelude::*;

/// Maximal runs of a set of bytes.
fn runs(all: &BTreeSet<u64>) -> Vec<Run> {
    let mut out: Vec<Run> = Vec::new();
    for at in all {
        match out.last_mut() {
            Some(last) if last.at + last.len == *at => last.len += 1,
            _ => out.push(Run::new(*at, 1)),
        }
    }
    out
}

/// From base addresses and counts of periods: nobody could walk these (DR-M31).
#[test]
fn strides_of_a_million_million_periods_are_compared_at_once() {
    let stride = |at: u64, len: u64| Shape::strided(at, 16, 1 << 40, &[Run::new(0, len)]).unwrap();
    assert_eq!(stride(0, 8).common_byte(&stride(8, 8)), None);
    assert_eq!(stride(0, 4).common_byte(&stride(16 * (1 << 39) + 4, 12)), None);
    let at = stride(0, 9).common_byte(&stride(16 * (1 << 39) + 8, 8)).unwrap();
    assert_eq!((at % 16, at >= 16 * (1 << 39)), (8, true));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn address_order_is_the_sorted_union(case in any_case(), from in 0usize..30, len in 0usize..30) {
        let mut ordered = vec![Run::new(7, 7)];
        case.shape.address_order(&mut ordered);
        let all: BTreeSet<u64> = case.messages.concat().into_iter().collect();
        prop_assert_eq!(&ordered[1..], runs(&all));
        let messages = case.shape.messages();
        let from = from.min(messages.count() as usize);
        let to = (from + len).min(messages.count() as usize);
        ordered.clear();
        messages.slice(from as u64..to as u64).address_order(&mut ordered);
        let part: BTreeSet<u64> = case.messages.iter().take(to).skip(from).flatten().copied().collect();
        prop_assert_eq!(ordered, runs(&part));
    }

    #[test]
    fn gaps_are_what_lies_between(case in any_case(), at in 0u64..600, len in 0u64..600) {
        let all: BTreeSet<u64> = case.messages.concat().into_iter().collect();
        let between: Vec<Run> = gaps(&runs(&all)).collect();
        let mut classes = BTreeMap::new();
        between.iter().for_each(|gap| *classes.entry(gap.len).or_insert(0u64) += 1);
        let found: Vec<(u64, u64)> = case.shape.gap_classes().iter().map(|c| (c.len, c.count)).collect();
        prop_assert_eq!(found, classes.into_iter().collect::<Vec<_>>());
        // Coverage counts a byte for each region that names it.
        let data = case.messages.concat().iter().filter(|b| (at..at + len).contains(b)).count() as u64;
        let coverage = case.shape.coverage(at..at + len);
        prop_assert_eq!((coverage.data, coverage.gaps), (data, len.saturating_sub(data)));
        let whole = case.shape.coverage(case.shape.start()..case.shape.end());
        prop_assert_eq!(whole.data, case.shape.bytes());
    }

    #[test]
    fn what_is_named_twice_is_found(a in any_case(), b in any_case()) {
        let spelled = |case: &cases::Case| case.messages.concat();
        let mut seen = BTreeSet::new();
        let twice = spelled(&a).iter().filter(|at| !seen.insert(**at)).count() > 0;
        match a.shape.disjoint() {
            Ok(()) => prop_assert!(!twice),
            Err(ShapeError::Overlap { at, .. }) => {
                prop_assert!(spelled(&a).iter().filter(|byte| **byte == at).count() > 1, "byte {} once", at);
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
        let theirs: BTreeSet<u64> = spelled(&b).into_iter().collect();
        let both: Vec<u64> = seen.intersection(&theirs).copied().collect();
        match a.shape.common_byte(&b.shape) {
            Some(at) => prop_assert!(both.contains(&at)),
            None => prop_assert_eq!(both, Vec::<u64>::new()),
        }
    }

    #[test]
    fn equal_periods_meet_where_they_meet(
        a in (0u64..40, 1u64..6, 1u64..9), b in (0u64..40, 1u64..6, 1u64..9), period in 6u64..12,
    ) {
        let stride = |(at, len, count): (u64, u64, u64)| Shape::strided(at, period, count, &[Run::new(0, len)]).unwrap();
        let (a, b) = (stride(a), stride(b));
        let ours: BTreeSet<u64> = spelt(a.fragments()).into_iter().collect();
        let both: Vec<u64> = spelt(b.fragments()).into_iter().filter(|at| ours.contains(at)).collect();
        match a.common_byte(&b) {
            Some(at) => prop_assert!(both.contains(&at)),
            None => prop_assert_eq!(both, Vec::<u64>::new()),
        }
    }

    #[test]
    fn columns_of_one_table_meet_where_their_bits_do(
        rows in proptest::collection::vec(0u8..9, 2..300), from in 0u64..5, width in 1u64..5,
    ) {
        // Destination by row; the second bitmap is shifted so that it begins elsewhere.
        let of = |who: u8, lead: u64| {
            let bits = Bitmap::of(rows.len() as u64, |row| row >= lead && rows[row as usize] % 3 == who);
            Shape::bitmapped(&[Column::dense(0, width)], &bits, Order::Rows).unwrap()
        };
        let (a, b, c) = (of(0, 0), of(1, 0), of(0, from));
        prop_assert_eq!(a.common_byte(&b), None);
        prop_assert_eq!(a.common_byte(&c).is_some(), c.bytes() > 0);
    }

    #[test]
    fn tiles_hold_every_message_once(
        choice in proptest::collection::vec(0u8..4, 1..200), columns in 1u64..4, tile in 1u64..300, strided in 1u64..9,
    ) {
        let table = |i: u64| Column::dense(i * 1000, 4);
        let mut shapes: Vec<Shape> = (0..3).map(|who| {
            let bits = Bitmap::of(choice.len() as u64, |row| choice[row as usize] == who);
            Shape::bitmapped(&(0..columns).map(table).collect::<Vec<_>>(), &bits, Order::Rows).unwrap()
        }).collect();
        let every = |i: u64| Shape::strided(i * 1000, 4 * strided, 20, &[Run::new(0, 4)]).unwrap();
        shapes.push(Shape::set((0..columns).map(every).collect(), Mask::Rows).unwrap());
        shapes.push(Shape::variable(0, vec![0, 0, 5, 5, 9], None).unwrap());
        shapes.push(Shape::nested(8, &[overside_shape::Level::new(100, 3), overside_shape::Level::new(9, 5)], &[Run::new(0, 4)]).unwrap());
        let messages: Vec<Messages<'_>> = shapes.iter().map(Shape::messages).collect();
        let mut tiles = shared_tiles(&messages, tile).unwrap();
        let mut done = vec![0; shapes.len()];
        let mut until = None;
        while let Some(ranges) = tiles.next_tile() {
            let mut low = u64::MAX;
            let mut high = 0;
            for (i, range) in ranges.iter().enumerate() {
                prop_assert_eq!(range.start, done[i]);
                done[i] = range.end;
                for index in range.clone() {
                    if let Some(run) = messages[i].message(index).next() {
                        low = low.min(run.at);
                        high = high.max(run.at);
                    }
                }
            }
            if low <= high {
                prop_assert!(high - low < tile, "a tile spans {} bytes", high - low + 1);
                prop_assert!(until.is_none_or(|until| until < low));
                until = Some(high);
            }
        }
        prop_assert_eq!(done, messages.iter().map(Messages::count).collect::<Vec<_>>());
    }
}

#[test]
fn figure_9_has_gaps_at_2_and_6() {
    // d-rdma Fig. 9 DR-M27: (b) [3] and [4,5] are one fragment across messages; 2 and 6 are the gaps.
    let rows = Shape::strided(0, 4, 2, &[Run::new(0, 2), Run::new(3, 1)]).unwrap();
    let mut ordered = Vec::new();
    rows.address_order(&mut ordered);
    assert_eq!(ordered, [Run::new(0, 2), Run::new(3, 3), Run::new(7, 1)]);
    assert_eq!(gaps(&ordered).collect::<Vec<_>>(), [Run::new(2, 1), Run::new(6, 1)]);
    assert_eq!(rows.coverage(0..8).ratio(), 2.0 / 6.0);
}

#[test]
fn the_halves_of_a_shuffle_are_one_range() {
    // Two destinations together leave no gap; space between columns is a gap like any other (DR-M32).
    let half = |start: u64, at: u64| Shape::strided(at + start, 8, 100, &[Run::new(0, 4)]).unwrap();
    let both = Shape::set(vec![half(0, 0), half(4, 0), half(0, 900), half(4, 900)], Mask::Rows).unwrap();
    let mut ordered = Vec::new();
    both.address_order(&mut ordered);
    assert_eq!(ordered, [Run::new(0, 800), Run::new(900, 800)]);
    assert_eq!(gaps(&ordered).collect::<Vec<_>>(), [Run::new(800, 100)]);
    assert!(both.destination(1700).is_ok());
    assert_eq!(both.destination(1699), Err(ShapeError::Escapes { end: 1700, len: 1699 }));
}

#[test]
fn an_overlapping_destination_is_refused_by_region() {
    let column = |at| Shape::strided(at, 12, 100, &[Run::new(0, 4)]).unwrap();
    let set = Shape::set(vec![column(8), column(0), column(8 + 10 * 12 + 3)], Mask::Rows).unwrap();
    let Err(ShapeError::Overlap { at, first, second }) = set.disjoint() else { panic!("not found") };
    assert_eq!((at, first, second), (8 + 10 * 12 + 3, 0, 2));
}
