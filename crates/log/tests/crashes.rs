//! A log is written, the power goes anywhere, and what is read back is what was promised.

mod memory;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use memory::{Files, MemoryDisk};
use overside_log::{
    Appender, Change, Claim, Directory, Durability, Log, Mode, Options, Position, Record, Records, Refusal, Replayed,
};
use proptest::prelude::*;

fn options(durability: Durability) -> Options {
    Options {
        durability,
        segment_bytes: 12 * 4096,
        gather_bytes: 4096,
        quiet: Duration::from_millis(5),
        retry: Duration::from_millis(20),
        deadline: Duration::from_secs(5),
        ..Options::default()
    }
}

/// A server's life between two crashes, and what it was told by then.
struct Life {
    log: Log<MemoryDisk>,
    appender: Appender,
    now: Duration,
}

/// What was appended, in order, and where it ended.
#[derive(Default)]
struct Written {
    records: Vec<(u64, Vec<u8>)>,
    ends: Vec<Position>,
    /// So many were acknowledged.
    acknowledged: usize,
}

/// What reading a directory back came to.
struct Recovered {
    life: Life,
    replayed: Replayed,
    found: Vec<(u64, Vec<u8>)>,
}

fn recover(files: &Arc<Mutex<Files>>, durability: Durability) -> Result<Recovered, Refusal> {
    let mut found = Vec::new();
    let mut directory = Directory::open(MemoryDisk::new(files), [7; 16], options(durability), Mode::Serve)?;
    let replayed = directory.replay(&mut |record| {
        let Change::Put { key, value } = record.change else { return Err("never written".to_owned()) };
        assert!(value.iter().all(|byte| *byte == key[0]), "bytes of another record");
        found.push((record.stamp, value.to_vec()));
        Ok(())
    })?;
    let (log, appender) = directory.start()?;
    Ok(Recovered { life: Life { log, appender, now: Duration::ZERO }, replayed, found })
}

impl Life {
    fn step(&mut self, floor: u64) -> bool {
        self.now += Duration::from_millis(1);
        self.log.step(floor, self.now).is_ok()
    }

    fn put(&mut self, written: &mut Written, stamp: u64, bytes: usize) -> bool {
        let Ok(room) = self.appender.reserve(Records::bytes_of(1, bytes), Claim::Put) else { return false };
        let mut records = Records::new();
        let key = [stamp as u8];
        let value = vec![stamp as u8; bytes];
        records.push(Record { stamp, table: 3, change: Change::Put { key: &key, value: &value } });
        written.ends.push(self.appender.append(room, &records));
        written.records.push((stamp, value));
        true
    }

    fn acknowledge(&self, written: &mut Written) {
        let durable = self.appender.durable();
        let done = written.ends.iter().take_while(|end| **end <= durable).count();
        written.acknowledged = written.acknowledged.max(done);
    }
}

#[derive(Clone, Debug)]
enum Deed {
    Put(usize),
    Step,
    Rest,
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = prop_oneof![
        4 => (0usize..9000).prop_map(Deed::Put),
        1 => Just(Deed::Put(100)),
        4 => Just(Deed::Step),
        1 => Just(Deed::Rest),
    ];
    prop::collection::vec(deed, 0..60)
}

/// One life: until the deeds are done or the power goes.
fn live(life: &mut Life, written: &mut Written, deeds: &[Deed], next: &mut u64) {
    for deed in deeds {
        match deed {
            Deed::Put(bytes) => {
                if life.put(written, *next, *bytes) {
                    *next += 1;
                }
            }
            Deed::Step => _ = life.step(*next),
            Deed::Rest => (0..12).for_each(|_| _ = life.step(*next)),
        }
        life.acknowledge(written);
    }
}

/// What was found is the beginning of what was written, and has all that was acknowledged.
fn check(found: &[(u64, Vec<u8>)], written: &mut Written) -> Result<(), TestCaseError> {
    prop_assert!(found.len() <= written.records.len(), "{} records of {}", found.len(), written.records.len());
    for (found, written) in found.iter().zip(&written.records) {
        prop_assert_eq!(found, written);
    }
    prop_assert!(found.len() >= written.acknowledged, "{} of {} acknowledged", found.len(), written.acknowledged);
    // What is lost was never acknowledged, and never comes back.
    written.records.truncate(found.len());
    written.ends.truncate(found.len());
    // What was read back counts as durable from then on.
    written.acknowledged = found.len();
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn after_the_power_went_what_was_acknowledged_is_there_and_nothing_unwritten(
        seed in any::<u64>(),
        lives in prop::collection::vec((deeds(), 0u64..120, any::<bool>()), 1..6),
        group in any::<bool>(),
    ) {
        let durability = if group { Durability::Group { every: Duration::from_millis(3) } } else { Durability::Sync };
        let files = Files::new(seed);
        let mut written = Written::default();
        let mut next = 1;
        for (deeds, fuse, power) in lives {
            files.lock().unwrap().fuse = Some(fuse);
            match recover(&files, durability) {
                Ok(Recovered { mut life, replayed, found }) => {
                    check(&found, &mut written)?;
                    prop_assert!(replayed.next_stamp <= next, "{} of {next}", replayed.next_stamp);
                    live(&mut life, &mut written, &deeds, &mut next);
                }
                Err(Refusal::Io { .. }) => {}
                Err(refusal) => prop_assert!(false, "{refusal}"),
            }
            let mut files = files.lock().unwrap();
            if power {
                files.crash();
                // The kernel had it, and is gone.
                if group {
                    written.acknowledged = 0;
                }
            } else {
                files.restart();
            }
        }
        let Recovered { found, .. } = recover(&files, durability).unwrap();
        check(&found, &mut written)?;
    }
}
