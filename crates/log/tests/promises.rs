//! What the writing end promises while nothing crashes.

mod life;
mod memory;

use std::time::Duration;

use life::{Written, options, recover};
use memory::Files;
use overside_disk::Disk;
use overside_log::{Change, Claim, Durability, Mode, Options, Record, Records, Refused};
use proptest::prelude::*;

const SYNC: Durability = Durability::Sync;

#[test]
fn a_failed_write_is_final() {
    for after in 0..25 {
        let files = Files::new(after + 1);
        let mut life = recover(&files, options(SYNC)).unwrap().life;
        let begun = files.lock().unwrap().operations;
        files.lock().unwrap().fails = Some(begun + after);
        let mut written = Written::default();
        let mut failed = false;
        for _ in 0..60 {
            life.put(&mut written, 1, Some(3000));
            if !life.step(life.next) {
                failed = true;
                break;
            }
        }
        life.acknowledge(&mut written);
        let acknowledged = written.acknowledged;
        assert!(failed, "a disk that fails is no full disk");
        files.lock().unwrap().fails = None;
        let operations = files.lock().unwrap().operations;
        assert!(life.appender.failed().unwrap().contains("memory"));
        assert!(matches!(life.appender.reserve(10, Claim::Delete), Err(Refused::Failed(_))));
        (0..50).for_each(|_| assert!(!life.step(life.next)));
        life.acknowledge(&mut written);
        assert_eq!(written.acknowledged, acknowledged, "something was acknowledged after a failure");
        assert_eq!(files.lock().unwrap().operations, operations, "something was tried after a failure");
    }
}

/// Whatever its owner asks: what the next start would miss stays.
#[test]
fn no_segment_is_given_up_without_a_checkpoint() {
    let files = Files::new(6);
    let mut life = recover(&files, options(SYNC)).unwrap().life;
    let mut written = Written::default();
    for _ in 0..12 {
        assert!(life.put(&mut written, 1, Some(5000)));
        life.rest();
        life.log.release(life.next).unwrap();
    }
    assert!(life.checkpoint(&mut written, &[]));
    let state = life.state.clone();
    drop(life);
    let mut life = recover(&files, options(SYNC)).unwrap().life;
    life.log.release(u64::MAX).unwrap();
    drop(life);
    assert_eq!(recover(&files, options(SYNC)).unwrap().life.state, state);
}

/// In `group` a sync fails after its writes were acknowledged. What it was for may never be on the disk, so it is not tried again.
#[test]
fn a_failed_sync_is_final() {
    let files = Files::new(4);
    let every = Duration::from_millis(200);
    let mut life = recover(&files, options(Durability::Group { every })).unwrap().life;
    (0..60).for_each(|_| _ = life.step(1));
    let mut written = Written::default();
    assert!(life.put(&mut written, 1, Some(100)));
    (0..20).for_each(|_| assert!(life.step(life.next)));
    life.acknowledge(&mut written);
    assert_eq!((written.acknowledged, life.appender.synced_floor()), (1, 1), "the kernel has it, the disk does not");
    let operations = files.lock().unwrap().operations;
    files.lock().unwrap().fails = Some(operations);
    let steps = (0..300).take_while(|_| life.step(life.next)).count();
    assert!(steps < 300, "the failure was noticed");
    assert_eq!(files.lock().unwrap().operations, operations + 1, "one sync was tried");
    files.lock().unwrap().fails = None;
    assert!(!life.step(life.next) && life.appender.failed().is_some());
    assert_eq!(files.lock().unwrap().operations, operations + 1);
}

#[test]
fn a_full_disk_refuses_puts_before_deletes_and_recovers() {
    let files = Files::new(9);
    let mut life = recover(&files, options(SYNC)).unwrap().life;
    (0..20).for_each(|_| _ = life.step(1));
    let used: usize = files.lock().unwrap().contents().iter().map(|(_, bytes)| bytes.len()).sum();
    files.lock().unwrap().room = Some(used as u64);
    let mut written = Written::default();
    let mut puts = 0;
    while life.put(&mut written, 1, Some(3000)) {
        (0..8).for_each(|_| assert!(life.step(life.next)));
        puts += 1;
        assert!(puts < 1000);
    }
    assert!(puts > 10, "{puts}");
    life.step(life.next);
    (0..30).for_each(|_| assert!(life.step(life.next)));
    let refused = life.appender.reserve(3000, Claim::Put).unwrap_err();
    let text = refused.to_string();
    assert!(
        matches!(refused, Refused::Full { .. }) && text.contains("memory") && text.contains("4096 bytes"),
        "{text}"
    );
    assert!(life.put(&mut written, 1, None), "deletes have a reserve");
    (0..8).for_each(|_| assert!(life.step(life.next)));
    files.lock().unwrap().room = None;
    (0..30).for_each(|_| assert!(life.step(life.next)));
    assert!(life.put(&mut written, 2, Some(3000)), "there is room again");
    life.rest();
    life.acknowledge(&mut written);
    assert_eq!(written.acknowledged, puts + 2);
    files.lock().unwrap().room = Some(0);
    while life.put(&mut written, 1, Some(3000)) || life.put(&mut written, 1, None) {
        (0..8).for_each(|_| assert!(life.step(life.next)));
    }
    life.log.close();
    (0..60).for_each(|_| assert!(life.step(life.next)));
    assert!(life.log.is_closed(), "a full log can be closed");
    let more = life.appender.reserve(100_000, Claim::Put).unwrap_err();
    assert!(matches!(more, Refused::TooLarge { .. }), "{more}");
}

#[test]
fn an_idle_log_states_what_is_durable_once_and_then_writes_nothing() {
    for durability in [SYNC, Durability::Group { every: Duration::from_millis(3) }] {
        let files = Files::new(5);
        let mut life = recover(&files, options(durability)).unwrap().life;
        let mut written = Written::default();
        assert!(life.put(&mut written, 1, Some(10)));
        (0..40).for_each(|_| life.rest());
        let trace = files.lock().unwrap().trace.clone();
        // The first segment is opened under the name that it has before it is one.
        let first = |line: &&String| line.starts_with("write log/0000000000000001") && !line.contains(" 0 4096");
        let groups = trace.iter().filter(first);
        assert_eq!(groups.count(), 2, "{trace:?}");
        let operations = files.lock().unwrap().operations;
        (0..40).for_each(|_| life.rest());
        assert_eq!(files.lock().unwrap().operations, operations);
        assert_eq!(life.log.step(life.next, Duration::from_secs(9)).unwrap().wake, None);
        assert_eq!(life.appender.durable_floor(), life.next, "the floor moves by itself");
        assert_eq!(life.appender.synced_floor(), life.next);
    }
}

/// The floor that a group states is of what is in the log by its own end: an older change may wait in the group behind it.
#[test]
fn a_group_states_no_floor_of_groups_behind_it() {
    let files = Files::new(5);
    let mut life = recover(&files, options(SYNC)).unwrap().life;
    (0..20).for_each(|_| _ = life.step(1));
    let mut written = Written::default();
    life.next = 3;
    assert!(life.change(&mut written, 2, 1, Some(7000)));
    assert!(life.change(&mut written, 1, 1, Some(7000)));
    (0..20).for_each(|_| assert!(life.step(life.next)));
    assert_eq!(life.appender.durable_floor(), 3);
    drop(life);
    let recovered = recover(&files, options(SYNC)).unwrap();
    assert_eq!(recovered.life.state[&1].0, 2, "the newer change counts");
}

#[test]
fn without_a_log_nothing_is_written_but_checkpoints() {
    let files = Files::new(5);
    let none = options(Durability::None);
    let mut written = Written::default();
    let mut life = recover(&files, options(SYNC)).unwrap().life;
    assert!(life.put(&mut written, 1, Some(10)));
    life.rest();
    drop(life);
    let mut life = recover(&files, none).unwrap().life;
    let operations = files.lock().unwrap().operations;
    for key in 0..8 {
        assert!(life.put(&mut written, key, Some(20)));
    }
    life.rest();
    assert_eq!(files.lock().unwrap().operations, operations);
    assert_eq!(life.appender.durable_floor(), u64::MAX);
    assert!(life.checkpoint(&mut written, &[]));
    let kept = life.state.clone();
    assert!(life.put(&mut written, 1, Some(30)));
    drop(life);
    files.lock().unwrap().crash();
    // Then with a log again, and after that without one.
    for durability in [SYNC, Durability::None, SYNC] {
        let mut life = recover(&files, options(durability)).unwrap().life;
        assert_eq!(life.state, kept);
        life.rest();
        assert!(life.checkpoint(&mut written, &[]));
        drop(life);
        files.lock().unwrap().crash();
    }
}

#[test]
fn a_change_goes_at_once_alone_and_gathers_behind_another() {
    let files = Files::new(5);
    let mut life = recover(&files, Options { gather_bytes: 1 << 20, ..options(SYNC) }).unwrap().life;
    (0..30).for_each(|_| _ = life.step(1));
    let mut written = Written::default();
    let groups = |files: &memory::Files| files.trace.iter().filter(|line| line.contains(" 4096 true")).count();
    let before = groups(&files.lock().unwrap());
    for _ in 0..10 {
        assert!(life.put(&mut written, 1, Some(10)));
    }
    life.rest();
    assert_eq!(groups(&files.lock().unwrap()) - before, 2, "ten changes in one group, and the statement");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// What was claimed can be appended in any order, though the disk became full meanwhile.
    #[test]
    fn claimed_room_is_there(sizes in prop::collection::vec((0usize..9000, any::<u8>()), 1..60), seed in any::<u64>()) {
        let files = Files::new(seed);
        let mut life = recover(&files, options(SYNC)).unwrap().life;
        (0..20).for_each(|_| _ = life.step(1));
        let mut rooms = Vec::new();
        for (bytes, order) in sizes {
            match life.appender.reserve(Records::bytes_of(1, bytes), Claim::Delete) {
                Ok(room) => rooms.push((order, bytes, room)),
                // Such a one never fits, so it may be the only one of a case.
                Err(Refused::TooLarge { .. }) => {}
                Err(refused) => prop_assert!(!rooms.is_empty(), "{refused}"),
            }
        }
        files.lock().unwrap().room = Some(0);
        rooms.sort_by_key(|(order, ..)| *order);
        let mut last = None;
        for (stamp, (order, bytes, room)) in rooms.into_iter().enumerate() {
            let mut records = Records::new();
            let value = vec![0; bytes];
            records.push(Record { stamp: stamp as u64, table: 1, change: Change::Put { key: b"k", value: &value } });
            last = Some(life.appender.append(room, &records));
            // A group of its own each, mostly: then most is left over at the ends of segments.
            for _ in 0..order % 8 {
                prop_assert!(life.step(1), "{:?}", life.appender.failed());
            }
        }
        for _ in 0..200 {
            prop_assert!(life.step(1), "{:?}", life.appender.failed());
        }
        prop_assert!(Some(life.appender.durable()) >= last);
    }
}

/// The same over the system's disk.
#[test]
fn a_log_on_a_real_disk_is_read_back() {
    use overside_disk::{Plain, Uring};
    use overside_log::Directory;
    let folder = tempfile::tempdir().unwrap();
    let way = |uring: bool, path: &std::path::Path| -> std::io::Result<Box<dyn Disk>> {
        if uring { Ok(Box::new(Uring::open(path)?)) } else { Ok(Box::new(Plain::open(path)?)) }
    };
    for uring in [false, true] {
        for durability in [SYNC, Durability::Group { every: Duration::from_millis(3) }] {
            let path = folder.path().join(format!("{uring}-{}", durability == SYNC));
            if way(uring, &path).is_err_and(|error| error.kind() == std::io::ErrorKind::Unsupported) {
                eprintln!("no io_uring here");
                continue;
            }
            for life in 0..3u64 {
                let mut directory =
                    Directory::open(way(uring, &path).unwrap(), [1; 16], options(durability), Mode::Serve).unwrap();
                let mut stamps = Vec::new();
                directory
                    .replay(&mut |record| {
                        stamps.push(record.stamp);
                        Ok(())
                    })
                    .unwrap();
                assert_eq!(stamps, (1..=life * 50).collect::<Vec<_>>());
                let (mut log, appender) = directory.start().unwrap();
                let mut records = Records::new();
                for stamp in life * 50 + 1..=life * 50 + 50 {
                    records.clear();
                    let value = vec![9; 5000];
                    records.push(Record { stamp, table: 1, change: Change::Put { key: b"k", value: &value } });
                    let mut now = Duration::from_millis(stamp * 10);
                    let room = loop {
                        match appender.reserve(records.bytes().len(), Claim::Put) {
                            Ok(room) => break room,
                            Err(Refused::Extending { .. }) => {
                                log.step(stamp, now).unwrap();
                                log.wait(Duration::from_millis(10)).unwrap();
                            }
                            Err(refused) => panic!("{refused}"),
                        }
                    };
                    let end = appender.append(room, &records);
                    while appender.durable() < end {
                        now += Duration::from_millis(1);
                        log.step(stamp + 1, now).unwrap();
                        log.wait(Duration::from_millis(10)).unwrap();
                    }
                }
                if life > 0 {
                    log.close();
                    let mut now = Duration::from_secs(100);
                    while !log.is_closed() {
                        now += Duration::from_millis(1);
                        log.step(1000, now).unwrap();
                        log.wait(Duration::from_millis(10)).unwrap();
                    }
                }
            }
        }
    }
}
