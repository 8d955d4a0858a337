use std::sync::Arc;

use overside_shape::Shape;
use proptest::prelude::*;

use super::*;
use crate::row::RowView;
use crate::row::tests::{encode_row, row_of, values_of};
use crate::schema::{Column, ColumnType, tests::any_schema};

/// A schema and some of its columns, in any order.
pub(crate) fn any_projection() -> impl Strategy<Value = (Schema, Projection)> {
    (any_schema(), any::<u64>(), any::<usize>()).prop_map(|(schema, seed, rotate)| {
        let count = schema.columns().len();
        let mut columns: Vec<usize> = (0..count).filter(|c| seed >> c & 1 == 1 || c == &(rotate % count)).collect();
        let turn = rotate % columns.len();
        columns.rotate_left(turn);
        if seed >> 63 == 1 {
            columns.reverse();
        }
        let projection = Projection::new(&schema, &columns).unwrap();
        (schema, projection)
    })
}

proptest! {
    #[test]
    fn packed_and_in_place_show_the_chosen_columns(
        (schema, projection) in any_projection(), seeds in proptest::collection::vec(any::<u128>(), 1..40),
    ) {
        let layout = Arc::new(RowLayout::new(&schema));
        let (mut prefixes, mut rests, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for seed in seeds {
            let values = row_of(&schema, seed);
            let bytes = encode_row(&layout, &values);
            prefixes.extend_from_slice(&bytes[..layout.prefix_len()]);
            rests.push(bytes[layout.prefix_len()..].to_vec());
            expected.push(projection.columns().iter().map(|&c| values[c].clone()).collect::<Vec<_>>());
        }
        let width = projection.packed().prefix_len();
        let mut packed = vec![0xaa; rests.len() * width];
        projection.pack_prefixes(&prefixes, &mut packed);
        for (row, rest) in rests.iter().enumerate() {
            let whole = &prefixes[row * layout.prefix_len()..][..layout.prefix_len()];
            let in_place = RowView::new(whole, rest, projection.in_place()).unwrap();
            prop_assert_eq!(&values_of(&in_place), &expected[row]);
            let mut out = vec![0xaa; rest.len()];
            let len = projection.pack_rest(rest, &mut out).unwrap();
            prop_assert_eq!(len, projection.packed_rest_len(rest).unwrap());
            let view = RowView::new(&packed[row * width..][..width], &out[..len], projection.packed()).unwrap();
            prop_assert_eq!(&values_of(&view), &expected[row]);
            view.check().unwrap();
        }
        if width > 0 {
            let stride = projection.in_place().prefix_len() as u64;
            let shape = Shape::strided(0, stride, rests.len() as u64, projection.prefix_runs()).unwrap();
            let gathered: Vec<u8> =
                shape.fragments().flat_map(|run| prefixes[run.at as usize..][..run.len as usize].to_vec()).collect();
            prop_assert_eq!(gathered, packed);
        }
    }

    #[test]
    fn garbage_rests_never_panic(
        (_, projection) in any_projection(), rest in proptest::collection::vec(any::<u8>(), 0..80), room in 0usize..80,
    ) {
        let len = projection.packed_rest_len(&rest);
        let mut out = vec![0; room];
        match projection.pack_rest(&rest, &mut out) {
            Ok(written) => prop_assert_eq!(len, Ok(written)),
            Err(_) => prop_assert!(len.is_err() || len.unwrap() > room),
        }
    }
}

#[test]
fn neighbours_are_one_run() {
    let int = |name: &str| Column::new(name, ColumnType::Int32);
    let columns = vec![int("a"), int("b"), Column::nullable("t", ColumnType::Utf8), int("c"), int("d")];
    let schema = Schema::with_key(columns, &["a"]).unwrap();
    let runs = |columns: &[usize]| {
        let projection = Projection::new(&schema, columns).unwrap();
        projection.prefix_runs().iter().map(|run| (run.at, run.len)).collect::<Vec<_>>()
    };
    assert_eq!(runs(&[1, 0]), [(1, 8)]);
    assert_eq!(runs(&[3, 1]), [(5, 8)], "a variable column between two takes no place between them");
    assert_eq!(runs(&[4, 0]), [(1, 4), (13, 4)]);
    assert_eq!(runs(&[2, 0]), [(0, 5)], "null bits come along with a nullable column");
    assert!(Projection::whole(&schema).is_whole());
    assert!(!Projection::new(&schema, &[0, 1, 3, 4]).unwrap().needs_rest());
    assert_eq!(Projection::new(&schema, &[]).map(drop), Err(ProjectionError::Count { count: 0 }));
    assert_eq!(Projection::new(&schema, &[5]).map(drop), Err(ProjectionError::Unknown { column: 5 }));
    assert_eq!(Projection::new(&schema, &[1, 1]).map(drop), Err(ProjectionError::Twice { column: 1 }));
}
