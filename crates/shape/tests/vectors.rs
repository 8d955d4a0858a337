//! The paper's examples, canonical forms by name, sizes, and what is refused with which field named.

use overside_shape::{Bitmap, Column, Frequency, Level, Mask, Order, Run, Shape, ShapeError, ShapeKind};

fn every_other(rows: u64) -> Bitmap {
    Bitmap::of(rows, |row| row % 2 == 0)
}

#[test]
fn two_rows_without_column_c() {
    // d-rdma Fig. 5 DR-M08: four 4-byte columns, C dropped; a message a row.
    let shape = Shape::strided(0, 16, 2, &[Run::new(0, 8), Run::new(12, 4)]).unwrap();
    let fragments: Vec<_> = shape.fragments().collect();
    assert_eq!(fragments, [Run::new(0, 8), Run::new(12, 12), Run::new(28, 4)], "D of row 1 and A,B of row 2 touch");
    assert_eq!(shape.fragment_count(), 3);
    let messages = shape.messages();
    assert_eq!((messages.count(), messages.uniform_bytes()), (2, Some(12)));
    assert_eq!(messages.message(0).collect::<Vec<_>>(), [Run::new(0, 8), Run::new(12, 4)], "A1 B1 D1");
    assert_eq!(messages.message(1).collect::<Vec<_>>(), [Run::new(16, 8), Run::new(28, 4)], "A2 B2 D2");
}

#[test]
fn rows_of_which_nothing_is_sent_are_no_messages_and_empty_values_are() {
    let nothing = [
        Shape::strided(0, 16, 2, &[]).unwrap(),
        Shape::strided(0, 16, 2, &[Run::new(4, 0)]).unwrap(),
        Shape::mapped(vec![0, 9], &[]).unwrap(),
    ];
    for shape in nothing {
        assert_eq!((shape.bytes(), shape.messages().count()), (0, 0), "{shape:?}");
    }
    let values = Shape::variable(0, vec![0, 0, 3, 3], None).unwrap();
    assert_eq!(values.messages().lengths().collect::<Vec<_>>(), [0, 3, 0]);
}

#[test]
fn one_box_yields_both_payloads() {
    // d-rdma Fig. 10 DR-M39: positions 0..8 fetched as one box; each mask picks its row's positions.
    let rows = Shape::strided(0, 4, 2, &[Run::new(0, 2), Run::new(3, 1)]).unwrap();
    let payload = |i| rows.messages().message(i).flat_map(|r| r.at..r.at + r.len).collect::<Vec<_>>();
    assert_eq!((payload(0), payload(1)), (vec![0, 1, 3], vec![4, 5, 7]), "2 and 6 are gaps");
}

#[test]
fn a_shuffle_of_columns_is_complementary() {
    // d-rdma Fig. 6 DR-M11, M12: three columns, two servers, every other row each.
    let server = |start| {
        let column = |i: u64| Frequency { base: i * 400, width: 4, take: 1, of: 2, start, count: 50 };
        let columns = (0..3).map(|i| Shape::every(column(i)).unwrap()).collect();
        Shape::set(columns, Mask::Rows).unwrap()
    };
    let (red, blue) = (server(0), server(1));
    let row = |shape: &Shape, i| shape.messages().message(i).map(|r| r.at).collect::<Vec<_>>();
    assert_eq!(row(&red, 0), [0, 400, 800]);
    assert_eq!(row(&blue, 0), [4, 404, 804]);
    assert_eq!(row(&red, 1), [8, 408, 808]);
    let mut all: Vec<u64> = [&red, &blue].iter().flat_map(|s| s.fragments()).flat_map(|r| r.at..r.at + r.len).collect();
    all.sort_unstable();
    assert_eq!(all, (0..1200).collect::<Vec<_>>());
}

#[test]
fn a_mask_advances_by_elements_not_by_periods() {
    // DR-M12: two elements of each period of three.
    let frequency = Frequency { base: 0, width: 4, take: 2, of: 3, start: 0, count: 2 };
    let a = Shape::every(frequency).unwrap();
    let b = Shape::every(Frequency { base: 100, ..frequency }).unwrap();
    assert_eq!((a.elements(), a.messages().count()), (4, 2));
    let rows = Shape::set(vec![a.clone(), b.clone()], Mask::Rows).unwrap();
    assert_eq!(rows.messages().count(), 4);
    assert_eq!(rows.messages().message(1).collect::<Vec<_>>(), [Run::new(4, 4), Run::new(104, 4)]);
    // DR-M13: period by period, one column after another.
    let columnar = Shape::set(vec![a, b], Mask::Periods).unwrap();
    assert_eq!(columnar.messages().message(1).collect::<Vec<_>>(), [Run::new(12, 8)]);
    assert_eq!(columnar.messages().message(2).collect::<Vec<_>>(), [Run::new(100, 8)]);
}

#[test]
fn equal_descriptions_meet() {
    let four = [Run::new(0, 4)];
    let dense = Shape::strided(8, 4, 5, &[Run::new(0, 1), Run::new(1, 3)]).unwrap();
    assert_eq!(dense, Shape::column(8, 4, 5).unwrap(), "a dense stride is a column");
    assert_eq!(dense.one_message(), Shape::contiguous(8, 20).unwrap());
    let single = Shape::strided(8, 100, 1, &[Run::new(4, 4)]).unwrap();
    assert_eq!(single, Shape::contiguous(12, 4).unwrap(), "a single period loses its stride");
    let flat = Shape::strided(0, 8, 12, &four).unwrap();
    let nested = Shape::nested(0, &[Level::new(32, 3), Level::new(900, 1), Level::new(8, 4)], &four).unwrap();
    assert_eq!(nested, flat, "periods that continue each other are one level");
    let pairs = Shape::strided(0, 16, 6, &[Run::new(0, 4), Run::new(8, 4)]).unwrap();
    assert_eq!(pairs.messages_of(4).unwrap().elements_of(4).unwrap(), flat, "runs that repeat are a level");
    let column = Column::dense(0, 4);
    assert_eq!(Shape::bitmapped(&[column], &every_other(24), Order::Rows).unwrap(), flat, "equidistant set rows");
    let rows: Vec<u64> = (0..12).map(|i| i * 8).collect();
    assert_eq!(Shape::mapped(rows, &four).unwrap(), flat, "equidistant rows");
    let all = Bitmap::of(100, |_| true);
    assert_eq!(Shape::bitmapped(&[column], &all, Order::Rows).unwrap(), Shape::column(0, 4, 100).unwrap());
    let offsets: Vec<u64> = (0..=100).map(|i| i * 4).collect();
    assert_eq!(Shape::variable(0, offsets, None).unwrap(), Shape::column(0, 4, 100).unwrap(), "values of one length");
}

#[test]
fn sets_that_are_one_region_meet_it() {
    let column = |at| Shape::strided(at, 16, 100, &[Run::new(0, 4)]).unwrap();
    let projected = Shape::strided(0, 16, 100, &[Run::new(0, 8), Run::new(12, 4)]).unwrap();
    assert_eq!(Shape::set(vec![column(0), column(4), column(12)], Mask::Rows).unwrap(), projected, "a row store");
    let reversed = Shape::set(vec![column(4), column(0)], Mask::Rows).unwrap();
    assert!(matches!(reversed.kind(), ShapeKind::Set { .. }), "another order of bytes");
    let uneven = Bitmap::of(90, |row| row % 7 < 3);
    let columns = [Column::dense(0, 4), Column::dense(900, 8)];
    let one = |c: Column| Shape::bitmapped(&[c], &uneven, Order::Rows).unwrap();
    let set = Shape::set(columns.map(one).to_vec(), Mask::Rows).unwrap();
    assert_eq!(set, Shape::bitmapped(&columns, &uneven, Order::Rows).unwrap());
    let by_column = Shape::set(columns.map(one).to_vec(), Mask::Periods).unwrap();
    assert_eq!(by_column, Shape::bitmapped(&columns, &uneven, Order::Columns).unwrap());
    // The same rows, counted from another first row.
    let shifted = Bitmap::of(95, |row| row >= 5 && (row - 5) % 7 < 3);
    let earlier = Shape::bitmapped(&[Column::dense(80, 4)], &shifted, Order::Rows).unwrap();
    assert_eq!(earlier, one(Column::dense(100, 4)));
}

#[test]
fn a_region_is_much_smaller_than_its_list() {
    // DR-M19: an SGE has 16 bytes. Sixteen million rows of five columns, half of them.
    let rows = 1u64 << 24;
    let fixed = size_of::<Shape>();
    assert!(fixed <= 160, "{fixed} bytes");
    let frequency = |i: u64| Frequency { base: i * rows * 4, width: 4, take: 1, of: 2, start: 0, count: rows / 2 };
    let strided = Shape::every(frequency(0)).unwrap();
    let ShapeKind::Strided { levels, runs, .. } = strided.kind() else { panic!("a stride") };
    assert_eq!((levels.len(), runs.len()), (1, 1));
    let set = Shape::set((0..5).map(|i| Shape::every(frequency(i)).unwrap()).collect(), Mask::Rows).unwrap();
    let list_bytes = set.fragment_count() * 16;
    assert!(6 * fixed as u64 * 100_000 < list_bytes, "five regions in {list_bytes} bytes of SGEs");
    let uneven = Bitmap::of(rows, |row| row % 7 < 3);
    let columns: Vec<Column> = (0..5).map(|i| Column::dense(i * rows * 4, 4)).collect();
    let bitmapped = Shape::bitmapped(&columns, &uneven, Order::Rows).unwrap();
    let bitmap_bytes = rows / 8 + rows / 8 / 64;
    assert!(bitmap_bytes * 100 < bitmapped.fragment_count() * 16, "one bit a row and 1/64 for the directory");
}

#[test]
fn what_does_not_fit_is_refused_by_field() {
    let one = [Run::new(0, 1)];
    assert_eq!(Shape::contiguous(u64::MAX, 2), Err(ShapeError::Overflow));
    assert_eq!(Shape::strided(0, u64::MAX / 2, 4, &one), Err(ShapeError::Overflow));
    assert_eq!(Shape::strided(u64::MAX - 5, 8, 2, &one), Err(ShapeError::Overflow));
    assert_eq!(Shape::mapped(vec![u64::MAX, 0], &one), Err(ShapeError::Overflow));
    assert_eq!(Shape::variable(u64::MAX, vec![0, 2], None), Err(ShapeError::Overflow));
    let far = [Column::new(0, u64::MAX / 2, 4)];
    assert_eq!(Shape::bitmapped(&far, &Bitmap::of(9, |row| row != 3), Order::Rows), Err(ShapeError::Overflow));
    let overlap = Shape::strided(0, 8, 2, &[Run::new(0, 4), Run::new(3, 2)]);
    assert_eq!(overlap, Err(ShapeError::Runs { period: 8 }));
    let outside = Shape::strided(0, 8, 2, &[Run::new(6, 4)]);
    assert_eq!(outside, Err(ShapeError::Runs { period: 8 }));
    let levels = [Level::new(15, 2), Level::new(8, 2)];
    let eight = Shape::nested(0, &levels, &[Run::new(0, 8)]);
    assert_eq!(eight, Err(ShapeError::Level { level: 0, period: 15, reach: 16 }));
    let escapes = Shape::contiguous(10, 10).unwrap().within(19);
    assert_eq!(escapes, Err(ShapeError::Escapes { end: 20, len: 19 }));
    let narrow = Shape::bitmapped(&[Column::dense(0, 4), Column::new(0, 3, 4)], &every_other(9), Order::Rows);
    assert_eq!(narrow, Err(ShapeError::Column { column: 1, stride: 3, width: 4 }));
    assert_eq!(Shape::variable(0, vec![0, 5, 4], None), Err(ShapeError::Offsets { index: 2 }));
    assert_eq!(Shape::variable(0, vec![], None), Err(ShapeError::Offsets { index: 0 }));
    let selection = Shape::variable(0, vec![0, 5, 9], Some(&every_other(3)));
    assert_eq!(selection, Err(ShapeError::Selection { rows: 3, values: 2 }));
}

#[test]
fn sets_are_refused_by_region() {
    // DR-M14: every region has the same number of elements.
    let column = |rows| Shape::column(0, 4, rows).unwrap();
    let refused = Shape::set(vec![column(5), column(5), column(6)], Mask::Rows);
    assert_eq!(refused, Err(ShapeError::Elements { region: 2, elements: 6, expected: 5 }));
    let set = Shape::set(vec![column(5), Shape::column(90, 2, 5).unwrap()], Mask::Rows).unwrap();
    assert_eq!(Shape::set(vec![column(5), set], Mask::Rows), Err(ShapeError::Nested { region: 1 }));
    let odd = Shape::strided(0, 8, 2, &[Run::new(0, 6)]).unwrap().elements_of(4);
    assert_eq!(odd, Err(ShapeError::Divide { what: "element bytes", bytes: 4, run: 6 }));
    assert!(Shape::contiguous(0, 10).unwrap().messages_of(4).is_err());
}
