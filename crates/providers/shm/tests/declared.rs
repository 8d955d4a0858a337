//! Declared sends over real queue pairs: whatever the plan, the messages of the region, with its borders.

use std::sync::Arc;

use overside_conformance::Processes;
use overside_conformance::declared::{Delivery, messages, shape};
use overside_planner::{Force, Terms, Way};
use overside_shape::{Mask, Run, Shape};
use overside_shm::ShmProvider;
use overside_verbs::Provider;
use overside_verbs::declared::{Balance, SharedTerms};
use proptest::prelude::*;

fn delivery(destinations: usize) -> Delivery {
    let harness = Processes::new(|| -> Arc<dyn Provider> { ShmProvider::new().unwrap() }, module_path!());
    Delivery::open(&harness, destinations, MEMORY_BYTES).unwrap()
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
    let mut delivery = delivery(8);
    let shapes = shuffled(5, 1600, 8);
    for tile_bytes in [700, 5000, 1 << 20] {
        let terms = SharedTerms { tile_bytes, ..SharedTerms::default() };
        let shared = delivery.send_shared(&shapes, &terms).unwrap();
        for (shape, came) in shapes.iter().zip(shared) {
            assert_eq!(came.len(), 200, "a message a row");
            assert!(came == messages(delivery.memory(), shape));
            assert!(came == delivery.send(shape, Some(None)).unwrap(), "and as a send of its own");
        }
    }
}

fn ways() -> impl Strategy<Value = Option<Option<Force>>> {
    let way = prop_oneof![Just(Way::Copy), Just(Way::Gather), Just(Way::Mixture), Just(Way::Declared)];
    let forced = prop_oneof![way.prop_map(Force::Way), (0u64..60).prop_map(Force::Threshold)];
    prop_oneof![Just(None), Just(Some(None)), forced.prop_map(|force| Some(Some(force)))]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

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
