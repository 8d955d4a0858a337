//! Regions: what their descriptions may cost, and who takes any.

use std::time::{Duration, Instant};

use crate::ends::{End, fresh_name};
use overside_memory::Segment;
use overside_verbs::*;

use crate::raw::*;

/// A port that was not asked to take regions does nothing for one: not as much as read its
/// description.
#[test]
fn a_port_that_takes_no_regions_ends_the_connection() {
    let mut scene = Scene::new();
    scene.victim = End::with(PortOptions::default());
    let name = fresh_name("regions");
    scene.listener = scene.victim.listen(&name);
    scene.name = name;
    for described in [true, false] {
        let (raw, qp) = scene.hostile();
        raw.attach();
        if described {
            raw.pass_data();
        }
        raw.fill();
        // The region alone.
        (0..8).for_each(|word| raw.store(DESCRIPTORS + word * 8, raw.load(DESCRIPTORS + 192 + word * 8)));
        raw.stamp(1);
        let mut done = Vec::new();
        let end = Instant::now() + Duration::from_secs(5);
        let reason = loop {
            scene.victim.queue.poll(&mut done);
            if let Some(PortEvent::Disconnected { status, reason, .. }) = scene.victim.queue.next_event() {
                assert_eq!(status, Status::Malformed);
                break reason;
            }
            assert!(Instant::now() < end, "a region was taken");
        };
        assert!(reason.contains("PortOptions::regions"), "{reason}");
        scene.victim.queue.close(qp);
        scene.victim.queue.poll(&mut done);
        assert!(done.iter().filter(|c| c.buffer.is_some()).all(|c| c.status != Status::Success), "{done:?}");
    }
}

/// 4,096 regions over one bitmap, in a message of 64 bytes; a rule that names more runs than there
/// is memory; each is refused or done with while others are served.
#[test]
fn a_description_that_costs_more_than_its_bytes_is_refused_in_time() {
    let head = u64::from_le_bytes(*b"OSREGN\x01\0");
    let regions = 4096u64;
    let bitmaps = |columns: &dyn Fn(u64) -> [u64; 3], rows: u64| {
        let mut words = vec![head, 7, regions, regions, 0, regions];
        for region in 0..regions {
            words.extend([4, 1, 1, 1]);
            words.extend(columns(region));
            if region == 0 {
                words.push(rows);
                words.extend((0..rows / 64).map(|_| 0x5555_5555_5555_5555));
            } else {
                words.push(u64::MAX);
            }
        }
        words
    };
    let spelt = {
        let strided = [2, 4 << 40, 4 << 40, 0, 1, 1, 8, 1 << 40, 0, 4];
        [&[head, 7, 8 << 40, 8 << 40, 0, 2][..], &strided, &strided].concat()
    };
    let descriptions = [bitmaps(&|_| [0, 1, 1], 1 << 20), bitmaps(&|region| [region, 1 << 14, 1], 1 << 20), spelt];
    let start = Instant::now();
    let mut scene = Scene::new();
    for words in descriptions {
        let (raw, qp) = scene.hostile();
        raw.attach();
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        let len = bytes.len() as u64;
        let mut buffer = Segment::shared(4 << 20).unwrap().carve(4 << 20).pop().unwrap();
        buffer[..bytes.len()].copy_from_slice(&bytes);
        say(&raw.socket, &segment_message(8, 4 << 20), &[buffer.segment().fd().unwrap()]);
        for slot in 0..4 {
            let at = DESCRIPTORS + slot * 64;
            [4 | 2 << 8, len, 0, 8 | len << 32, 0, 4 << 20, 8 | 4096 << 32, 0]
                .into_iter()
                .enumerate()
                .for_each(|(word, value)| raw.store(at + word * 8, value));
        }
        raw.stamp(4);
        let (closed, done) = scene.settle(qp, true);
        assert_eq!(closed, Some(Status::Malformed));
        scene.check(qp, done);
    }
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
}
