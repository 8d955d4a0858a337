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
        let again = Shape::described(&described(&shape)).unwrap();
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
        prop_assert!(Shape::described(&bytes[..cut.index(bytes.len())]).is_err(), "a part was taken for all of it");
        let at = at.index(bytes.len());
        bytes[at] = now;
        if let Ok(shape) = Shape::described(&bytes) {
            walked(&shape);
            prop_assert_eq!(Shape::described(&described(&shape)), Ok(shape));
        }
    }

    #[test]
    fn any_words_are_a_shape_or_an_error(
        kind in 0u64..9, words in proptest::collection::vec(prop_oneof![0u64..6, Just(u64::MAX), any::<u64>()], 0..24),
    ) {
        let head = u64::from_le_bytes(*b"OSREGN\x01\0");
        let bytes: Vec<u8> = [head, kind].into_iter().chain(words).flat_map(u64::to_le_bytes).collect();
        if let Ok(shape) = Shape::described(&bytes) {
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
        assert_eq!(Shape::described(&described(&shape)), Ok(shape));
    }
}

#[test]
fn what_is_wrong_is_named() {
    let good = described(&Shape::strided(0, 16, 3, &[Run::new(0, 4), Run::new(8, 4)]).unwrap());
    let word = |at: usize, value: u64| {
        let mut bytes = good.clone();
        bytes[8 * at..][..8].copy_from_slice(&value.to_le_bytes());
        Shape::described(&bytes).unwrap_err()
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
        matches!(Shape::described(&bytes), Err(DescriptionError::Field { field: "kind", value: 7 })),
        "a set in a set"
    );
    let mut long = good.clone();
    long.extend([0; 8]);
    assert!(matches!(Shape::described(&long), Err(DescriptionError::Length { .. })));
}
