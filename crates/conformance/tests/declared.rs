//! Declared sends over the reference provider: its short gather lists divide what others send at once.

mod harness;

use std::sync::Arc;

use harness::ReferenceHarness;
use overside_conformance::declared::{BUFFERS, Delivery, REQUEST_BYTES, dealt, messages};
use overside_planner::{Force, Method, Terms};
use overside_reference::World;
use overside_shape::{Bitmap, Column, Mask, Order, Run, Shape};
use overside_transfer::{Balance, SharedTerms, Sharing};

fn some_delivery(destinations: usize) -> Option<Delivery> {
    Some(delivery(destinations))
}

fn delivery(destinations: usize) -> Delivery {
    Delivery::open(&ReferenceHarness(World::new()), destinations, MEMORY_BYTES).unwrap()
}

overside_conformance::declared_tests!(some_delivery, destinations: 4, ways: [Copy, Gather, Mixture], cases: 40);

/// Row `i` of five dense columns goes wherever a hash of it says.
fn hashed(rows: u64, destinations: u64) -> Vec<Arc<Shape>> {
    let columns: Vec<Column> = (0..5).map(|c| Column::dense(c * rows * 4, 4)).collect();
    let to = |row: u64| (row.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) % destinations;
    (0..destinations)
        .map(|d| Arc::new(Shape::bitmapped(&columns, &Bitmap::of(rows, |row| to(row) == d), Order::Rows).unwrap()))
        .collect()
}

#[test]
fn tiles_cut_no_request_and_fewer_buffers_than_destinations_suffice() {
    for (destinations, tile_bytes) in [(2, 900), (2, 1 << 20), (BUFFERS + 5, 2000)] {
        let mut delivery = delivery(destinations);
        let shapes = hashed(3000, destinations as u64);
        let view = Terms { force: Some(Force::Method(Method::Copy)), ..Terms::default() };
        let terms = SharedTerms { tile_bytes, balance: Balance::Any, view, ..SharedTerms::default() };
        let came = delivery.send_shared(&shapes, &terms).unwrap();
        for ((shape, came), requests) in shapes.iter().zip(came).zip(delivery.requests()) {
            assert!(came == messages(delivery.memory(), shape));
            let fewest = came.len().div_ceil(REQUEST_BYTES / 20);
            assert!(destinations > 2 || requests == fewest, "{requests} requests of whole buffers, not {fewest}");
        }
    }
}

/// Every row goes to the destination of its number, and every third one to all: no row of a table is dealt then, whatever holds the
/// rows, and tiles are cut within what several want.
#[test]
fn rows_that_several_want_come_to_each_of_them() {
    const ROWS: u64 = 3000;
    let columns: Vec<Column> = (0..5).map(|c| Column::dense(c * ROWS * 4, 4)).collect();
    let belongs = |row: u64, to: u64| row.is_multiple_of(3) || row % 4 == to;
    let hashed = |to| Shape::bitmapped(&columns, &Bitmap::of(ROWS, |row| belongs(row, to)), Order::Rows).unwrap();
    let listed = |to: u64| {
        let rows: Vec<u64> = (0..ROWS).filter(|row| belongs(*row, to)).map(|row| row * 20).collect();
        Shape::mapped(rows, &[Run::new(0, 8), Run::new(12, 4)]).unwrap()
    };
    for (tile_bytes, way) in
        [900, 1 << 20].into_iter().flat_map(|tile| [Method::Copy, Method::Gather].map(|way| (tile, way)))
    {
        let kinds: [&dyn Fn(u64) -> Shape; 2] = [&hashed, &listed];
        for kind in kinds {
            let mut delivery = delivery(4);
            let shapes: Vec<Arc<Shape>> = (0..4).map(|to| Arc::new(kind(to))).collect();
            let view = Terms { force: Some(Force::Method(way)), ..Terms::default() };
            let sharing = Sharing::Allowed;
            let terms = SharedTerms { tile_bytes, balance: Balance::Any, view, sharing };
            let came = delivery.send_shared(&shapes, &terms).unwrap();
            for (shape, came) in shapes.iter().zip(came) {
                assert!(came == messages(delivery.memory(), shape), "{shape:?} by {way:?}");
            }
        }
    }
}

/// A column that is compressed by a dictionary: codes say which value each row has, and values arrive, in the order of the rows
/// (d-rdma §6 DR-M53). Neither end writes the column that the codes stand for.
#[test]
fn values_of_a_dictionary_arrive_decoded() {
    const WIDTH: u64 = 24;
    // As bits of a hash: runs of one code, and codes that nobody has.
    let codes: Vec<u8> =
        (0..2000u64).map(|row| ((row / 3).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60) as u8 % 11).collect();
    for dictionary in [0, 4096] {
        let rows: Vec<u64> = codes.iter().map(|code| dictionary + u64::from(*code) * WIDTH).collect();
        let shape = Arc::new(Shape::mapped(rows, &[Run::new(0, WIDTH)]).unwrap());
        for way in [Method::Copy, Method::Gather] {
            let mut delivery = delivery(1);
            let came = delivery.send(&shape, Some(Some(Force::Method(way)))).unwrap();
            let value = |code: &u8| {
                let at = dictionary as usize + usize::from(*code) * WIDTH as usize;
                delivery.memory()[at..at + WIDTH as usize].to_vec()
            };
            assert!(came == codes.iter().map(value).collect::<Vec<_>>(), "{way:?}");
        }
    }
}

#[test]
fn what_breaks_the_rules_of_a_shared_send_is_refused_and_nothing_is_sent() {
    let mut delivery = delivery(2);
    let refused = |delivery: &mut Delivery, shapes: &[Arc<Shape>]| {
        delivery.send_shared(shapes, &SharedTerms::default()).unwrap_err().to_string()
    };
    let good = dealt(2, 100, 2);
    let fewer = Arc::new(Shape::strided(2, 8, 49, &[Run::new(0, 1)]).unwrap());
    let uneven = refused(&mut delivery, &[good[0].clone(), fewer]);
    assert!(uneven.contains("destination 1 has 49 elements, destination 0 has 50"), "{uneven}");
    // Column after column, of two columns and of three: what counts are elements of each region, not messages of all.
    let columns = |first: u64, columns: u64, rows: u64| {
        let column = |at: u64| Shape::strided(1024 * (first + at), 8, rows, &[Run::new(0, 4)]).unwrap();
        Arc::new(Shape::set((0..columns).map(column).collect(), Mask::Periods).unwrap())
    };
    let unlike = refused(&mut delivery, &[columns(0, 2, 60), columns(2, 3, 40)]);
    assert!(unlike.contains("destination 1 has 40 elements, destination 0 has 60"), "{unlike}");
    let alike = [columns(0, 2, 60), columns(2, 3, 60)];
    delivery.send_shared(&alike, &SharedTerms::default()).unwrap();
    let outside = Arc::new(Shape::strided(MEMORY_BYTES as u64 - 300, 8, 50, &[Run::new(0, 4)]).unwrap());
    let outside = refused(&mut delivery, &[good[0].clone(), outside]);
    assert!(outside.starts_with("destination 1: bytes "), "{outside}");
    let overlapping = refused(&mut delivery, &[good[0].clone(), good[0].clone()]);
    assert!(overlapping.starts_with("destinations 0 and 1 overlap at byte 0"), "{overlapping}");
    let nobody = refused(&mut delivery, &[]);
    assert!(nobody.contains("destinations"), "{nobody}");
    let came = delivery.send(&good[0], None).unwrap();
    assert!(came == messages(delivery.memory(), &good[0]), "nothing of the refused ones came before it");
}

const MEMORY_BYTES: usize = 64 << 10;
