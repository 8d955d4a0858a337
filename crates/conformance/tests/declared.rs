//! Declared sends over the reference provider: its short gather lists divide what others send at once.

#[allow(dead_code)]
mod reference;

use std::sync::Arc;

use overside_conformance::declared::{BUFFERS, Delivery, REQUEST_BYTES, messages, shape};
use overside_planner::{Force, Terms, Way};
use overside_shape::{Bitmap, Column, Mask, Order, Run, Shape};
use overside_verbs::declared::{Balance, SharedTerms};
use proptest::prelude::*;
use reference::ReferenceHarness;

fn delivery(destinations: usize) -> Delivery {
    Delivery::open(&ReferenceHarness::new(None, |port| port), destinations, MEMORY_BYTES).unwrap()
}

/// Row `i` of a columnar table goes to destination `i % destinations`.
fn shuffled(columns: u64, rows: u64, destinations: u64) -> Vec<Arc<Shape>> {
    let to = |d: u64| {
        let column =
            |c: u64| Shape::strided(c * rows * 4 + d * 4, destinations * 4, rows / destinations, &[Run::new(0, 4)]);
        Arc::new(Shape::set((0..columns).map(|c| column(c).unwrap()).collect(), Mask::Rows).unwrap())
    };
    (0..destinations).map(to).collect()
}

#[test]
fn a_shared_send_brings_what_separate_sends_bring() {
    let mut delivery = delivery(4);
    let shapes = shuffled(5, 800, 4);
    for tile_bytes in [200, 3000, 1 << 20] {
        let terms = SharedTerms { tile_bytes, ..SharedTerms::default() };
        let shared = delivery.send_shared(&shapes, &terms).unwrap();
        for (shape, came) in shapes.iter().zip(shared) {
            assert_eq!(came.len(), 200, "a message a row");
            assert!(came == messages(delivery.memory(), shape));
            assert!(came == delivery.send(shape, Some(None)).unwrap(), "and as a send of its own");
        }
    }
}

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
        let view = Terms { force: Some(Force::Way(Way::Copy)), ..Terms::default() };
        let terms = SharedTerms { tile_bytes, balance: Balance::Any, view };
        let came = delivery.send_shared(&shapes, &terms).unwrap();
        for ((shape, came), requests) in shapes.iter().zip(came).zip(delivery.requests()) {
            assert!(came == messages(delivery.memory(), shape));
            let fewest = came.len().div_ceil(REQUEST_BYTES / 20);
            assert!(destinations > 2 || requests == fewest, "{requests} requests of whole buffers, not {fewest}");
        }
    }
}

#[test]
fn what_breaks_the_rules_of_a_shared_send_is_refused_and_nothing_is_sent() {
    let mut delivery = delivery(2);
    let refused = |delivery: &mut Delivery, shapes: &[Arc<Shape>]| {
        delivery.send_shared(shapes, &SharedTerms::default()).unwrap_err().to_string()
    };
    let good = shuffled(2, 100, 2);
    let fewer = Arc::new(Shape::strided(2, 8, 49, &[Run::new(0, 1)]).unwrap());
    let uneven = refused(&mut delivery, &[good[0].clone(), fewer]);
    assert!(uneven.contains("destination 1 has 49 elements, destination 0 has 50"), "{uneven}");
    let outside = Arc::new(Shape::strided(MEMORY_BYTES as u64 - 300, 8, 50, &[Run::new(0, 4)]).unwrap());
    let outside = refused(&mut delivery, &[good[0].clone(), outside]);
    assert!(outside.starts_with("destination 1 ends at byte"), "{outside}");
    let overlapping = refused(&mut delivery, &[good[0].clone(), good[0].clone()]);
    assert!(overlapping.starts_with("destinations 0 and 1 overlap at byte 0"), "{overlapping}");
    let nobody = refused(&mut delivery, &[]);
    assert!(nobody.contains("destinations"), "{nobody}");
    let came = delivery.send(&good[0], None).unwrap();
    assert!(came == messages(delivery.memory(), &good[0]), "nothing of the refused ones came before it");
}

fn ways() -> impl Strategy<Value = Option<Option<Force>>> {
    let way = prop_oneof![Just(Way::Copy), Just(Way::Gather), Just(Way::Mixture)];
    let forced = prop_oneof![way.prop_map(Force::Way), (0u64..60).prop_map(Force::Threshold)];
    prop_oneof![Just(None), Just(Some(None)), forced.prop_map(|force| Some(Some(force)))]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn every_way_delivers_the_messages_of_the_region(
        sends in proptest::collection::vec((any::<[u64; 8]>(), ways()), 1..12),
    ) {
        let mut delivery = delivery(1);
        for (numbers, way) in sends {
            let Some(shape) = shape(&numbers, MEMORY_BYTES as u64).map(Arc::new) else { continue };
            let longest = shape.messages().lengths().max().unwrap_or(0);
            match delivery.send(&shape, way) {
                Ok(came) => prop_assert!(came == messages(delivery.memory(), &shape), "{:?} by {:?}", shape, way),
                Err(error) => {
                    let forced = matches!(way, Some(Some(Force::Way(_))));
                    let why = error.to_string();
                    let allowed = why.contains("longer than a request") && longest > 1024 || forced && why.contains("cannot carry");
                    prop_assert!(allowed, "{:?} by {:?}: {}", shape, way, why);
                }
            }
        }
    }

    #[test]
    fn random_shapes_are_shared_among_destinations(
        columns in 1u64..5, rows in 1u64..100, destinations in 1u64..5, tile_bytes in 1u64..4000, odd in any::<[u64; 8]>(),
    ) {
        let mut delivery = delivery(destinations as usize + 1);
        let mut shapes = shuffled(columns, rows * destinations, destinations);
        // One more destination with a region of any kind, wherever it does not overlap.
        let beyond = shapes.iter().map(|shape| shape.end()).max().unwrap_or(0);
        if let Some(odd) = shape(&odd, MEMORY_BYTES as u64).filter(|shape| shape.start() >= beyond && shape.messages().lengths().max() <= Some(1024)) {
            shapes.push(Arc::new(odd));
        }
        let terms = SharedTerms { tile_bytes, balance: Balance::Any, view: Terms::default() };
        let came = delivery.send_shared(&shapes, &terms).unwrap();
        for (shape, came) in shapes.iter().zip(came) {
            prop_assert!(came == messages(delivery.memory(), shape), "{:?}", shape);
        }
    }
}

const MEMORY_BYTES: usize = 64 << 10;
