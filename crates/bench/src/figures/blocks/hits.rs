//! Reads of which so many in a hundred are in the node's cache: of one disk, one at a
//! time, and of five in stripes.

use super::{
    BLOCK_BYTES, KIB,
    disks::{DISK_BYTES, Disks},
    load::{Client, LoadSpec, Stretch},
    node::{Launch, Node},
};
use crate::{
    figures::{Setting, figure::Figure},
    measure::alternate,
};
use anyhow::Result;
use overside::volume::wire::Role;
use overside_evidence::SplitMix64;

pub(super) fn measure(setting: &Setting<'_>, figure: &mut Figure) -> Result<()> {
    setting.progress.say("blocks: hits of the cache");
    let node = Node::start(Launch {
        volumes: vec![(ONE.into(), Disks::One), (FIVE.into(), Disks::Stripes(5))],
        cache_bytes: 2 * CACHE_BYTES,
        request_bytes_max: LONGEST,
        blocks: 64,
        ..Launch::default()
    })?;
    one_disk(setting, figure, &node)?;
    five_disks(setting, figure, &node)
}

/// Reads of 8 KiB, one after the other.
fn one_disk(setting: &Setting<'_>, figure: &mut Figure, node: &Node) -> Result<()> {
    let mut local = Client::over(Disks::One.open()?.0);
    let mut client = node.client("shm", ONE, Role::Reader, LONGEST)?;
    warm(&mut client)?;
    let load = LoadSpec { writes: false, bytes: BLOCK_BYTES, depth: 1 };
    let mut places = Places::new(DISK_BYTES);
    let (rounds, misses) = (setting.rounds(), if setting.quick { 10 } else { 40 });
    let mut found = vec![Vec::new(); HITS.len()];
    // All miss in the same slots, in the same order, each in a block of its own. The disk of this host reads what the
    // node's reads without a hit.
    let (mut of_round, mut done) = ((usize::MAX, Vec::new()), 0);
    let samples = alternate(HITS.len() + 1, rounds, |side, round| -> Result<f64> {
        done += 1;
        setting.progress.part("blocks: hits of the cache", done, rounds * (HITS.len() + 1));
        if of_round.0 != round {
            of_round = (round, places.cold(misses));
        }
        let block = (side % HITS.len() * BLOCK_BYTES) as u64;
        let cold: Vec<u64> = of_round.1.iter().map(|slot| slot + block).collect();
        let Some(hits) = HITS.get(side) else { return Ok(local.places_after(load, &cold)?.mean()) };
        let own = places.mixed(BLOCK_BYTES, *hits, &cold);
        let before = node.found(ONE)?;
        let mean = client.places_after(load, &own)?.mean();
        let after = node.found(ONE)?;
        found[side].push((after[0] - before[0]) as f64 / (own.len() as f64));
        Ok(mean)
    })?;
    for (side, values) in samples.into_iter().enumerate() {
        match HITS.get(side) {
            Some(hits) => figure.record("hits, ns: node", *hits, values),
            None => figure.record("hits, ns: local disk", 0, values),
        }
    }
    for (hits, found) in HITS.into_iter().zip(found) {
        figure.record("hits, found of what was read", hits, found);
    }
    Ok(())
}

/// The rate of reads of either size, ten outstanding.
fn five_disks(setting: &Setting<'_>, figure: &mut Figure, node: &Node) -> Result<()> {
    let mut local = Client::over(Disks::Stripes(5).open()?.0);
    let mut client = node.client("shm", FIVE, Role::Reader, LONGEST)?;
    warm(&mut client)?;
    let hits: &[u64] = if setting.quick { &[0, 80, 100] } else { &HITS };
    let (rounds, misses) = (setting.rounds(), if setting.quick { 20 } else { 100 });
    let mut sides = Vec::new();
    for bytes in [BLOCK_BYTES, 64 * KIB] {
        sides.push((bytes, None));
        sides.extend(hits.iter().map(|hits| (bytes, Some(*hits))));
    }
    let mut places = Places::new(5 * DISK_BYTES);
    // Of either size, what both disks read that have no hit.
    let (mut of_round, mut done) = ((usize::MAX, [Vec::new(), Vec::new()]), 0);
    let samples = alternate(sides.len(), rounds, |side, round| -> Result<f64> {
        done += 1;
        setting.progress.part("blocks: hits of the cache, five disks", done, rounds * sides.len());
        let (bytes, hits) = sides[side];
        if of_round.0 != round {
            of_round = (round, [places.cold(misses), places.cold(misses)]);
        }
        let places = match hits {
            None | Some(0) => of_round.1[usize::from(bytes != BLOCK_BYTES)].clone(),
            Some(hits) => {
                let cold = places.cold(misses);
                places.mixed(bytes, hits, &cold)
            }
        };
        let load = LoadSpec { writes: false, bytes, depth: 10 };
        let client = if hits.is_some() { &mut client } else { &mut local };
        Ok(client.places(load, &places)?.bytes_per_s())
    })?;
    for ((bytes, hits), values) in sides.into_iter().zip(samples) {
        figure.record(five(hits), bytes as u64, values);
    }
    Ok(())
}

/// How a series of the five disks is called: of this host's, or of the node's with so many hits.
pub(super) fn five(hits: Option<u64>) -> String {
    match hits {
        None => "five disks, bytes/s: local".into(),
        Some(0) => "five disks, bytes/s: no hits".into(),
        Some(hits) => format!("five disks, bytes/s: {hits} % hits"),
    }
}

/// What is to be found in the cache comes often, so that what comes once does not take its place.
fn warm(client: &mut Client) -> Result<Stretch> {
    let blocks: Vec<u64> = (0..WARM_BYTES).step_by(BLOCK_BYTES).collect();
    let load = LoadSpec { writes: false, bytes: BLOCK_BYTES, depth: 4 };
    (0..4).try_fold(Stretch::default(), |_, _| client.places(load, &blocks))
}

/// Where requests go: to what is in the cache, or to what was not read for as
/// long as the cache remembers.
struct Places {
    /// Of the longest request each, in a random order.
    slots: Vec<u64>,
    next: usize,
    random: SplitMix64,
}

impl Places {
    fn new(volume: u64) -> Places {
        let mut slots: Vec<u64> = (WARM_BYTES..volume).step_by(SLOT_BYTES).collect();
        let mut random = SplitMix64(volume);
        for left in (2..=slots.len()).rev() {
            slots.swap(left - 1, random.below(left as u64) as usize);
        }
        Places { slots, next: 0, random }
    }

    /// So many slots that are not in the cache, and one more before them.
    fn cold(&mut self, misses: u64) -> Vec<u64> {
        let first = self.next;
        self.next += misses as usize + 1;
        (first..self.next).map(|number| self.slots[number % self.slots.len()]).collect()
    }

    /// These places, which miss but where all are to hit, and as many others between as make `hits`
    /// in a hundred. The first stays first.
    fn mixed(&mut self, bytes: usize, hits: u64, cold: &[u64]) -> Vec<u64> {
        let misses = cold.len() as u64 - 1;
        let count = if hits == 100 { 20 * misses } else { misses * 100 / (100 - hits) };
        let mut cold = cold.iter().copied().take(if hits == 100 { 0 } else { cold.len() });
        let mut places = vec![cold.next().unwrap_or(0)];
        for number in 0..count {
            let missed = |number: u64| number * (100 - hits) / 100;
            let place = if missed(number + 1) > missed(number) { cold.next() } else { None };
            places.push(place.unwrap_or_else(|| self.random.below(WARM_BYTES / bytes as u64) * bytes as u64));
        }
        places
    }
}

pub(super) const HITS: [u64; 6] = [0, 20, 40, 60, 80, 100];
const ONE: &str = "one";
const FIVE: &str = "five";
const WARM_BYTES: u64 = 1 << 20;
const SLOT_BYTES: usize = 64 * KIB;
/// Of each volume.
const CACHE_BYTES: u64 = 4 << 20;
const LONGEST: u32 = 128 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_hit_as_often_as_they_are_to_and_others_do_not_come_again() {
        let mut places = Places::new(DISK_BYTES);
        let mut seen = std::collections::BTreeSet::new();
        for hits in HITS {
            let cold = places.cold(40);
            let mixed = places.mixed(BLOCK_BYTES, hits, &cold);
            let missed: Vec<u64> = mixed[1..].iter().copied().filter(|at| *at >= WARM_BYTES).collect();
            let wanted = (100 - hits) * (mixed.len() as u64 - 1);
            assert!(
                (missed.len() as u64 * 100).abs_diff(wanted) < 100,
                "{hits} %: {} of {}",
                missed.len(),
                mixed.len()
            );
            assert!(missed.into_iter().all(|at| seen.insert(at) && at + SLOT_BYTES as u64 <= DISK_BYTES), "{hits} %");
        }
    }

    /// A constant step takes the arm the same way each time; chance takes it a third of the
    /// disk, now less and now more.
    #[test]
    fn places_that_miss_are_random_and_cover_the_disk_before_they_come_again() {
        let mut places = Places::new(DISK_BYTES);
        let all = places.slots.len();
        let order = places.cold(all as u64 - 1);
        let ways: Vec<u64> = order.windows(2).map(|two| two[0].abs_diff(two[1])).collect();
        let distinct: std::collections::BTreeSet<&u64> = ways.iter().collect();
        assert!(distinct.len() > all / 3, "{} ways of {all}", distinct.len());
        let mean = ways.iter().sum::<u64>() as f64 / ways.len() as f64 / DISK_BYTES as f64;
        assert!((0.28..0.38).contains(&mean), "{mean}");
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|two| two[0] < two[1]));
        assert_eq!(places.cold(9), order[..10], "the first comes again after the last");
    }
}
