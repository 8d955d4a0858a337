//! Descriptions: what is written is read as the same shape, and any bytes are a shape or an error.

mod cases;

use cases::{any_case, spelt};
use overside_shape::{Bitmap, Column, DescriptionError, Mask, Order, Run, Shape};
use proptest::prelude::*;

fn described(shape: &Shape) -> Vec<u8> {
    let mut out = Vec::new();
    shape.describe(&mut out);
    assert_eq!(out.len() as u64, shape.description_bytes());
    out
}

/// Everything a shape answers, walked.
fn walked(shape: &Shape) {
    let messages = shape.messages();
    let count = messages.count().min(64);
    let some = messages.slice(0..count);
    assert_eq!(some.lengths().sum::<u64>(), some.bytes());
    let bytes: u64 = some.fragments().take(4096).map(|run| run.len).sum();
    assert!(bytes <= shape.bytes());
    for run in some.fragments().take(4096) {
        assert!(run.at >= shape.start() && run.at + run.len <= shape.end(), "{run:?} of {shape:?}");
    }
}

proptest! {
    #[test]
    fn a_described_shape_is_the_same_shape(case in any_case(), one in any::<bool>()) {
        let shape = if one { case.shape.one_message() } else { case.shape };
        let again = Shape::described(&described(&shape), u64::MAX).unwrap();
        prop_assert_eq!(&again, &shape);
        prop_assert_eq!(spelt(again.fragments()), spelt(shape.fragments()));
        let lengths = |shape: &Shape| shape.messages().lengths().collect::<Vec<_>>();
        prop_assert_eq!(lengths(&again), lengths(&shape));
    }

    #[test]
    fn what_is_near_a_description_is_a_shape_or_an_error(
        case in any_case(), at in any::<prop::sample::Index>(), now in prop_oneof![any::<u8>(), Just(0u8), Just(0xFF)], cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = described(&case.shape);
        prop_assert!(Shape::described(&bytes[..cut.index(bytes.len())], u64::MAX).is_err(), "a part was taken for all of it");
        let at = at.index(bytes.len());
        bytes[at] = now;
        if let Ok(shape) = Shape::described(&bytes, u64::MAX) {
            walked(&shape);
            prop_assert_eq!(Shape::described(&described(&shape), u64::MAX), Ok(shape));
        }
    }

    #[test]
    fn any_words_are_a_shape_or_an_error(
        kind in 0u64..9, words in proptest::collection::vec(prop_oneof![0u64..6, Just(u64::MAX), any::<u64>()], 0..24),
    ) {
        let head = u64::from_le_bytes(*b"OSREGN\x01\0");
        let bytes: Vec<u8> = [head, kind].into_iter().chain(words).flat_map(u64::to_le_bytes).collect();
        if let Ok(shape) = Shape::described(&bytes, u64::MAX) {
            walked(&shape);
        }
    }
}

#[test]
fn a_bitmap_of_several_columns_is_written_once() {
    let rows = Bitmap::of(6400, |row| row % 7 == 1 || row % 3 == 0);
    let columns: Vec<Column> = (0..5).map(|column| Column::dense(column * 40_000, 4)).collect();
    for (order, most) in [(Order::Rows, 100 + 30), (Order::Columns, 100 + 60)] {
        let shape = Shape::bitmapped(&columns, &rows, order).unwrap();
        assert!(shape.description_bytes() < 8 * most, "{order:?}: {}", shape.description_bytes());
        assert_eq!(Shape::described(&described(&shape), u64::MAX), Ok(shape));
    }
}

#[test]
fn what_is_wrong_is_named() {
    let good = described(&Shape::strided(0, 16, 3, &[Run::new(0, 4), Run::new(8, 4)]).unwrap());
    let word = |at: usize, value: u64| {
        let mut bytes = good.clone();
        bytes[8 * at..][..8].copy_from_slice(&value.to_le_bytes());
        Shape::described(&bytes, u64::MAX).unwrap_err()
    };
    assert!(matches!(word(0, 7), DescriptionError::Version { found: 7 }));
    assert!(matches!(word(1, 99), DescriptionError::Field { field: "kind", value: 99 }));
    assert!(matches!(word(2, 5), DescriptionError::Field { field: "message length", value: 5 }));
    assert!(matches!(word(2, u64::MAX), DescriptionError::Field { field: "message length", .. }));
    assert!(matches!(word(3, 0), DescriptionError::Field { field: "element length", value: 0 }));
    assert!(matches!(word(5, u64::MAX), DescriptionError::Length { .. }));
    assert!(matches!(word(5, 1 << 61), DescriptionError::Length { .. }), "a count whose bytes overflow");
    let nested = Shape::set(vec![Shape::column(0, 4, 3).unwrap(), Shape::column(100, 8, 3).unwrap()], Mask::Periods);
    let mut bytes = described(&nested.unwrap());
    let at = 8 * 6;
    assert_eq!(bytes[at], 1, "the first region's kind");
    bytes[at] = 7;
    assert!(
        matches!(Shape::described(&bytes, u64::MAX), Err(DescriptionError::Field { field: "kind", value: 7 })),
        "a set in a set"
    );
    let mut long = good.clone();
    long.extend([0; 8]);
    assert!(matches!(Shape::described(&long, u64::MAX), Err(DescriptionError::Length { .. })));
}

/// A description of `regions` regions of one bitmap of `words` words, which only the first of them has.
fn of_one_bitmap(regions: u64, words: u64, column: impl Fn(u64) -> [u64; 3]) -> Vec<u8> {
    let head = u64::from_le_bytes(*b"OSREGN\x01\0");
    let row_bytes = (0..regions).map(|region| column(region)[2]).sum();
    let mut out = vec![head, 7, row_bytes, row_bytes, 0, regions];
    for region in 0..regions {
        let [base, stride, width] = column(region);
        out.extend([4, width, width, 1, base, stride, width]);
        if region == 0 {
            out.push(words * 64);
            // Every third row, the first not among them.
            let set = |row: u64| u64::from(row % 3 == 1) << (row % 64);
            out.extend((0..words).map(|word| (0..64).map(|bit| set(word * 64 + bit)).sum::<u64>()));
        } else {
            out.push(u64::MAX);
        }
    }
    out.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// What is read of a bitmap is read once: of 4,096 regions under one they would else be counted, cut and compared 4,096 times.
#[test]
fn a_bitmap_that_is_said_again_costs_nothing_more() {
    let start = std::time::Instant::now();
    let words = 1 << 14;
    for widths in [1, 3] {
        let bytes = of_one_bitmap(4096, words, |region| [region, 8, 1 + region % widths]);
        let shape = Shape::described(&bytes, 1 << 40).unwrap();
        assert!(shape.messages().count() > 0);
    }
    assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", start.elapsed());
}

/// The steps of going through a region are held against its memory and its description before they are taken.
#[test]
fn bitmaps_that_are_said_again_and_again_are_refused_where_no_memory_warrants_it() {
    let words = 1 << 14;
    let bytes = of_one_bitmap(4096, words, |_| [0, 1, 1]);
    let of_a_column = words * 64;
    let refused = Shape::described(&bytes, of_a_column).unwrap_err();
    assert!(matches!(refused, DescriptionError::Repeats { most, .. } if most < 4096 * words), "{refused}");
    // Columns with bytes of their own.
    let columns: Vec<Column> = (0..4096).map(|column| Column::dense(column * of_a_column, 1)).collect();
    let rows = Bitmap::of(of_a_column, |row| row % 3 == 0);
    let honest = Shape::bitmapped(&columns, &rows, Order::Columns).unwrap();
    assert_eq!(honest.describable(4096 * of_a_column), Ok(()));
    assert_eq!(Shape::described(&described(&honest), 4096 * of_a_column), Ok(honest.clone()));
    assert!(matches!(honest.describable(4095 * of_a_column), Err(DescriptionError::Shape(_))), "it leaves the memory");
}

/// Who sends is told before it sends, where who receives would refuse.
#[test]
fn columns_and_regions_without_number_are_not_describable() {
    let rows = Bitmap::of(8, |row| row % 3 == 0);
    let column = |column: u64| Column::new(column * 64, 8, 1 + column % 2);
    let columns = |count| Shape::bitmapped(&(0..count).map(column).collect::<Vec<_>>(), &rows, Order::Rows).unwrap();
    let region = |at: u64| Shape::strided(at * 64, 16, 3, &[Run::new(0, 4)]).unwrap();
    let regions = |count| Shape::set((0..count).map(region).collect(), Mask::Periods).unwrap();
    for make in [&columns as &dyn Fn(u64) -> Shape, &regions] {
        let (most, more) = (make(4096), make(4097));
        assert_eq!(most.describable(1 << 20), Ok(()));
        assert_eq!(Shape::described(&described(&most), 1 << 20), Ok(most));
        let refused = more.describable(1 << 20).unwrap_err();
        assert!(matches!(refused, DescriptionError::Field { value: 4097, .. }), "{refused}");
        assert_eq!(Shape::described(&described(&more), 1 << 20), Err(refused));
    }
}

/// A set of rules is not spelt out: what two of them name would fill any memory.
#[test]
fn a_set_of_rules_whose_elements_are_whole_regions_is_no_list() {
    let many = |at: u64| Shape::strided(at, 16, 1 << 40, &[Run::new(0, 4)]).unwrap().one_message();
    let shape = Shape::set(vec![many(0), many(8)], Mask::Rows).unwrap();
    assert_eq!((shape.messages().count(), shape.bytes()), (1, 8 << 40));
    assert_eq!(shape.fragment_count(), 2 << 40);
    let first: Vec<Run> = shape.fragments().take(2).collect();
    assert_eq!(first, [Run::new(0, 4), Run::new(16, 4)]);
    assert_eq!(Shape::described(&described(&shape), u64::MAX), Ok(shape));
}

/// Of runs whose number has 288 divisors, each of which fails at the last run.
#[test]
fn runs_that_almost_repeat_are_not_compared_for_each_divisor() {
    let start = std::time::Instant::now();
    let mut runs: Vec<Run> = (0..1_441_440).map(|run| Run::new(run * 8, 4)).collect();
    runs[1_441_439].len = 3;
    let shape = Shape::list(&runs).unwrap();
    assert_eq!(shape.fragment_count(), 1_441_440);
    assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", start.elapsed());
}

/// A place in the middle of a list is found, not walked to.
#[test]
fn every_place_in_a_list_is_where_the_walk_comes_to_it() {
    let runs: Vec<Run> = (0..1000).map(|run| Run::new(run * 100 + run % 7, 1 + run % 13)).collect();
    let offsets: Vec<u64> = (0..50u64).map(|row| row * row * 200_000).collect();
    let shapes = [
        Shape::list(&runs).unwrap(),
        Shape::strided(0, 200_000, 50, &runs).unwrap(),
        Shape::mapped(offsets, &runs).unwrap(),
    ];
    for shape in shapes {
        let bytes: Vec<u64> = spelt(shape.fragments());
        for at in (0..bytes.len()).step_by(37) {
            let one = spelt(shape.fragments_in(at as u64..at as u64 + 1));
            assert_eq!(one, [bytes[at]], "byte {at}");
        }
    }
}

/// Beside what it sends, a shuffle's region has a bit a row: little for two destinations, an eighth for 32 (DR-M53).
#[test]
fn a_description_adds_a_bit_a_row() {
    let rows = 1u64 << 16;
    let columns: Vec<Column> = (0..4).map(|column| Column::dense(column * rows * 8, 8)).collect();
    let added = |destinations: u64| {
        let to = |row: u64| (row.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) % destinations;
        let shape = Shape::bitmapped(&columns, &Bitmap::of(rows, |row| to(row) == 0), Order::Rows).unwrap();
        shape.description_bytes() as f64 / shape.bytes() as f64
    };
    assert!((0.007..0.009).contains(&added(2)), "{}", added(2));
    assert!((0.11..0.14).contains(&added(32)), "{}", added(32));
}
