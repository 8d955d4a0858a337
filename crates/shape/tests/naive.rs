//! Every kind of shape against a walk that lists each byte.

mod cases;

use cases::{Case, any_case, bitmapped, bytes, list, mapped, spelt, strided, variable};
use overside_shape::{Frequency, Mask, Run, Shape};
use proptest::prelude::*;

fn plain() -> impl Strategy<Value = Case> {
    prop_oneof![strided(), list(), bitmapped(), mapped(), variable()]
        .prop_filter("a set has no set", |case| !matches!(case.shape.kind(), overside_shape::ShapeKind::Set { .. }))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_shape_says_what_a_walk_says(case in any_case()) {
        let (shape, all) = (&case.shape, case.messages.concat());
        prop_assert_eq!(spelt(shape.fragments()), all.clone());
        prop_assert_eq!(shape.bytes(), all.len() as u64);
        prop_assert_eq!(shape.start(), all.iter().min().copied().unwrap_or(0));
        prop_assert_eq!(shape.end(), all.iter().max().map_or(0, |last| last + 1));
        prop_assert_eq!(shape.fragment_count(), shape.fragments().count() as u64);
        prop_assert!(shape.fragments().all(|run| run.len > 0));
        if !matches!(shape.kind(), overside_shape::ShapeKind::Set { .. }) {
            let fragments: Vec<Run> = shape.fragments().collect();
            prop_assert!(fragments.windows(2).all(|w| w[0].at + w[0].len != w[1].at), "as large as they can be");
        }
        prop_assert!(shape.within(shape.end()).is_ok());
        prop_assert!(shape.end() == 0 || shape.within(shape.end() - 1).is_err());
    }

    #[test]
    fn messages_end_where_the_rule_says(case in any_case(), from in 0usize..30, len in 0usize..30) {
        let messages = case.shape.messages();
        if case.shape.bytes() == 0 && messages.uniform_bytes().is_some() {
            prop_assert_eq!(messages.count(), 0, "what is empty has no messages");
            return Ok(());
        }
        prop_assert_eq!(messages.count(), case.messages.len() as u64);
        for (i, expected) in case.messages.iter().enumerate() {
            prop_assert_eq!(&spelt(messages.message(i as u64)), expected);
            prop_assert_eq!(messages.bytes_of(i as u64), expected.len() as u64);
        }
        let lengths: Vec<u64> = case.messages.iter().map(|m| m.len() as u64).collect();
        prop_assert_eq!(messages.lengths().collect::<Vec<_>>(), lengths.clone());
        if let Some(bytes) = messages.uniform_bytes() {
            prop_assert!(lengths.iter().all(|len| *len == bytes));
        }
        let from = from.min(case.messages.len());
        let to = (from + len).min(case.messages.len());
        let part = messages.slice(from as u64..to as u64);
        prop_assert_eq!(spelt(part.fragments()), case.messages[from..to].concat());
        prop_assert_eq!(part.bytes(), case.messages[from..to].concat().len() as u64);
        let mut pieces = vec![Vec::new(); to - from];
        for piece in part.pieces() {
            pieces[piece.message as usize - from].extend(bytes(piece.run));
        }
        prop_assert_eq!(pieces, &case.messages[from..to]);
        let tiles: Vec<u64> = messages.tiles(7).flat_map(|tile| spelt(tile.fragments())).collect();
        prop_assert_eq!(tiles, case.messages.concat());
    }

    #[test]
    fn elements_of_a_part_stand_in_a_set(case in plain(), at in 0u64..99, width in 1u64..4) {
        // Transposed with a dense column of its own number of elements.
        let elements = case.shape.elements();
        let column = Shape::column(at, width, elements).unwrap();
        let set = Shape::set(vec![case.shape.clone(), column], Mask::Rows).unwrap();
        if elements == 0 {
            return Ok(());
        }
        let expected: Vec<Vec<u64>> = case.elements.iter().enumerate()
            .map(|(i, e)| e.iter().copied().chain(bytes(Run::new(at + i as u64 * width, width))).collect()).collect();
        prop_assert_eq!(spelt(set.fragments()), expected.concat());
        prop_assert_eq!(set.fragment_count(), set.fragments().count() as u64);
        for (i, expected) in expected.iter().enumerate() {
            prop_assert_eq!(&spelt(set.messages().message(i as u64)), expected);
        }
    }

    /// Of each `of` elements `take` from `start` on, an element `width` bytes (d-rdma Fig. 4 DR-M04).
    #[test]
    fn a_frequency_takes_the_elements_that_it_names(
        base in 0u64..50, width in 1u64..6, (of, start, take) in (1u64..6).prop_flat_map(|of| (Just(of), 0..of))
            .prop_flat_map(|(of, start)| (Just(of), Just(start), 1..=of - start)), count in 1u64..8,
    ) {
        let shape = Shape::every(Frequency { base, width, take, of, start, count }).unwrap();
        let element = |index: u64| bytes(Run::new(base + index * width, width)).collect::<Vec<u64>>();
        let wanted = (0..count * of).filter(|index| (start..start + take).contains(&(index % of)));
        let wanted: Vec<Vec<u64>> = wanted.map(element).collect();
        prop_assert_eq!(spelt(shape.fragments()), wanted.concat());
        prop_assert_eq!((shape.elements(), shape.messages().count()), (count * take, count));
        for (period, elements) in wanted.chunks(take as usize).enumerate() {
            prop_assert_eq!(spelt(shape.messages().message(period as u64)), elements.concat());
        }
    }

    #[test]
    fn a_stride_and_its_list_are_equal(case in strided()) {
        let list = Shape::list(&case.shape.fragments().collect::<Vec<_>>()).unwrap();
        prop_assert_eq!(case.shape.one_message(), list);
    }
}
