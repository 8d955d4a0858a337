//! A log and its checkpoints are written, the power goes anywhere, and what is read back is what was promised.

mod life;
mod memory;

use std::time::Duration;

use life::{Life, Written, options, recover};
use memory::Files;
use overside_log::{Durability, Refusal};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Deed {
    Put(u8, Option<usize>),
    /// Two changes of a key, of which the older comes into the log later.
    Crossed(u8),
    Step,
    Rest,
    Checkpoint(Vec<(u8, usize)>),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = prop_oneof![
        4 => (0u8..8, prop::option::weighted(0.9, 0usize..9000)).prop_map(|(key, bytes)| Deed::Put(key, bytes)),
        2 => (0u8..8).prop_map(|key| Deed::Put(key, Some(100))),
        1 => (0u8..8).prop_map(Deed::Crossed),
        5 => Just(Deed::Step),
        1 => Just(Deed::Rest),
        1 => prop::collection::vec((0u8..8, 0usize..9000), 0..12).prop_map(Deed::Checkpoint),
    ];
    prop::collection::vec(deed, 0..60)
}

/// One life: until the deeds are done or the power goes.
fn live(life: &mut Life, written: &mut Written, deeds: &[Deed]) {
    for deed in deeds {
        match deed {
            Deed::Put(key, bytes) => _ = life.put(written, *key, *bytes),
            Deed::Crossed(key) => {
                let older = life.next;
                if life.change(written, older + 1, *key, Some(50)) {
                    life.next += 2;
                    for _ in 0..3 {
                        life.step(older);
                        life.acknowledge(written);
                    }
                    // A stamp that is never appended is none that was promised.
                    life.change(written, older, *key, Some(20));
                }
            }
            Deed::Step => _ = life.step(life.next),
            Deed::Rest => life.rest(),
            Deed::Checkpoint(meanwhile) => _ = life.checkpoint(written, meanwhile),
        }
        life.acknowledge(written);
    }
}

fn lives() -> impl Strategy<Value = Vec<(Vec<Deed>, u64, bool)>> {
    prop::collection::vec((deeds(), 0u64..200, any::<bool>()), 1..6)
}

fn all_lives(seed: u64, lives: Vec<(Vec<Deed>, u64, bool)>, durability: Durability) -> Result<(), String> {
    let files = Files::new(seed);
    let mut written = Written::default();
    let mut next = 1;
    for (deeds, fuse, power) in lives {
        files.lock().unwrap().fuse = Some(fuse);
        match recover(&files, options(durability)) {
            Ok(mut recovered) => {
                written.check(&recovered.life.state)?;
                recovered.life.next = recovered.life.next.max(1);
                live(&mut recovered.life, &mut written, &deeds);
                next = next.max(recovered.life.next);
            }
            Err(Refusal::Io { .. }) => {}
            Err(refusal) => return Err(refusal.to_string()),
        }
        let mut files = files.lock().unwrap();
        if power {
            files.crash();
            // The kernel had it, and is gone.
            if durability != Durability::Sync {
                written.acknowledged = 0;
            }
        } else {
            files.restart();
        }
    }
    let recovered = recover(&files, options(durability)).map_err(|refusal| refusal.to_string())?;
    if recovered.replayed.next_stamp > next {
        return Err("a stamp that was never drawn".to_owned());
    }
    written.check(&recovered.life.state)
}

/// A recovery cuts a torn tail off, more is written, and the power goes again, also while the next tail is written: what was
/// acknowledged behind the cut is there.
#[test]
fn what_is_written_behind_a_torn_tail_is_there_after_the_next_crash() {
    let mut torn = 0;
    for seed in 1..60 {
        let files = Files::new(seed * 7919);
        let mut written = Written::default();
        for power_cuts in 0..5 {
            let recovered = recover(&files, options(Durability::Sync)).unwrap();
            torn += u64::from(recovered.replayed.cut_bytes > 0);
            let mut life = recovered.life;
            written.check(&life.state).unwrap_or_else(|why| panic!("seed {seed}, cut {power_cuts}: {why}"));
            life.next = life.next.max(1);
            let put = |life: &mut Life, written: &mut Written, key, bytes| {
                let mut steps = 0;
                while !life.put(written, key, Some(bytes)) {
                    assert!(life.step(life.next));
                    steps += 1;
                    assert!(steps < 1000, "there is never room for {bytes} bytes");
                }
            };
            (0..3).for_each(|key| put(&mut life, &mut written, key, 500));
            life.rest();
            life.acknowledge(&mut written);
            assert_eq!(written.acknowledged, written.changes.len(), "nothing is under way");
            // A group of several blocks, which is being written when the power goes.
            put(&mut life, &mut written, 6, 5000);
            life.step(life.next);
            files.lock().unwrap().crash();
        }
    }
    assert!(torn > 5, "{torn} tails were torn");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, max_shrink_iters: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn in_sync_what_was_acknowledged_survives_the_power(seed in any::<u64>(), lives in lives()) {
        all_lives(seed, lives, Durability::Sync).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn in_group_a_prefix_survives_the_power_and_all_survives_a_kill(seed in any::<u64>(), lives in lives()) {
        all_lives(seed, lives, Durability::Group { every: Duration::from_millis(3) }).map_err(TestCaseError::fail)?;
    }
}
