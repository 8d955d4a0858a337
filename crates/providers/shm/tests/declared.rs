//! Declared sends over real queue pairs: whatever the plan, the messages of the region, with its borders.

use std::sync::Arc;

use overside_conformance::Processes;
use overside_conformance::declared::{Delivery, messages};
use overside_planner::{Force, Method};
use overside_shape::{Mask, Run, Shape};
use overside_shm::ShmProvider;
use overside_verbs::Provider;

fn delivery(destinations: usize) -> Option<Delivery> {
    let harness = Processes::new(|| -> Arc<dyn Provider> { ShmProvider::new().unwrap() }, module_path!());
    Some(Delivery::open(&harness, destinations, MEMORY_BYTES).unwrap())
}

overside_conformance::declared_tests!(delivery, destinations: 8, ways: [Copy, Gather, Mixture, Declared], cases: 24);

/// Four bytes each of `regions` pairs of rows, a message a row.
fn pairs(regions: u64) -> Arc<Shape> {
    let pair = |region: u64| Shape::strided(region * 8, 32, 2, &[Run::new(0, 4)]).unwrap();
    Arc::new(Shape::set((0..regions).map(pair).collect(), Mask::Periods).unwrap())
}

const DECLARED: Option<Option<Force>> = Some(Some(Force::Method(Method::Declared)));
const COPY: Option<Option<Force>> = Some(Some(Force::Method(Method::Copy)));

/// What brings the messages one by one would have a request for every few of them.
#[test]
fn a_declared_region_is_one_request_and_many_sends() {
    let mut delivery = delivery(1).unwrap();
    let shape = pairs(1000);
    assert_eq!(delivery.send(&shape, DECLARED).unwrap(), messages(delivery.memory(), &shape));
    assert_eq!(delivery.under_way(), 1);
    let sends = delivery.requests()[0];
    assert!(sends > 4, "{sends} SENDs came");
    delivery.send(&shape, COPY).unwrap();
    assert!(delivery.under_way() > 1, "copied, it is several");
}

/// A peer reads descriptions of 4,096 regions at most, and ends a connection that has others.
#[test]
fn what_no_description_has_room_for_is_packed() {
    let mut delivery = delivery(1).unwrap();
    assert!(delivery.send(&pairs(4096), DECLARED).is_ok());
    let shape = pairs(4097);
    let refused = delivery.send(&shape, DECLARED).unwrap_err();
    assert!(refused.to_string().contains("cannot carry"), "{refused}");
    assert_eq!(delivery.send(&shape, Some(None)).unwrap(), messages(delivery.memory(), &shape));
}

const MEMORY_BYTES: usize = 64 << 10;
