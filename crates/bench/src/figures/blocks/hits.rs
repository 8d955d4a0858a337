//! Reads of which so many in a hundred are in the node's cache: of one disk, one at a time, and of five in stripes.

use super::{
    BLOCK_BYTES, KIB,
    disks::{DISK_BYTES, Disks},
    load::{Asked, Client, Stretch},
    node::{Node, Order},
};
use crate::{
    figures::{
        Setting,
        figure::Figure,
        tables::clients::{Random, scattered},
    },
    measure::alternate,
};
use anyhow::Result;
use overside::volume::wire::Role;

pub(super) fn measure(setting: &Setting<'_>, figure: &mut Figure) -> Result<()> {
    setting.progress.say("blocks: hits of the cache");
    let node = Node::start(Order {
        volumes: vec![(ONE.into(), Disks::One), (FIVE.into(), Disks::Stripes(5))],
        cache_bytes: 2 * CACHE_BYTES,
        request_bytes_max: LONGEST,
        blocks: 64,
        ..Order::default()
    })?;
    one_disk(setting, figure, &node)?;
    five_disks(setting, figure, &node)
}

/// Reads of 8 KiB, one after the other.
fn one_disk(setting: &Setting<'_>, figure: &mut Figure, node: &Node) -> Result<()> {
    let mut local = Client::over(Disks::One.open()?.0);
    let mut client = node.client("shm", ONE, Role::Reader, LONGEST)?;
    warm(&mut client)?;
    let asked = Asked { writes: false, bytes: BLOCK_BYTES, depth: 1 };
    let mut places = Places::new(DISK_BYTES, BLOCK_BYTES);
    let (rounds, misses) = (setting.rounds(), if setting.quick { 10 } else { 40 });
    let mut found = vec![Vec::new(); HITS.len()];
    // The disk of this host reads what the node's reads without a hit: the same places, in the same order.
    let (mut of_round, mut done) = ((usize::MAX, Vec::new()), 0);
    let samples = alternate(HITS.len() + 1, rounds, |side, round| -> Result<f64> {
        done += 1;
        setting.progress.part("blocks: hits of the cache", done, rounds * (HITS.len() + 1));
        if of_round.0 != round {
            of_round = (round, places.mixed(0, misses));
        }
        let Some(hits) = HITS.get(side) else { return Ok(local.places_after(asked, &of_round.1)?.mean()) };
        let own = if *hits == 0 { of_round.1.clone() } else { places.mixed(*hits, misses) };
        let before = node.found(ONE)?;
        let mean = client.places_after(asked, &own)?.mean();
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
    let mut places = [BLOCK_BYTES, 64 * KIB].map(|bytes| Places::new(5 * DISK_BYTES, bytes));
    let mut done = 0;
    let samples = alternate(sides.len(), rounds, |side, _| -> Result<f64> {
        done += 1;
        setting.progress.part("blocks: hits of the cache, five disks", done, rounds * sides.len());
        let (bytes, hits) = sides[side];
        let places = places[usize::from(bytes != BLOCK_BYTES)].mixed(hits.unwrap_or(0), misses);
        let asked = Asked { writes: false, bytes, depth: 10 };
        let client = if hits.is_some() { &mut client } else { &mut local };
        Ok(client.places(asked, &places)?.bytes_per_s())
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
    let asked = Asked { writes: false, bytes: BLOCK_BYTES, depth: 4 };
    (0..4).try_fold(Stretch::default(), |_, _| client.places(asked, &blocks))
}

/// Where requests of one length go: to what is in the cache, or to what was not read for as long as the cache remembers.
struct Places {
    cold: u64,
    next: u64,
    bytes: u64,
    random: Random,
}

impl Places {
    fn new(volume: u64, bytes: usize) -> Places {
        let bytes = bytes as u64;
        Places { cold: (volume - WARM_BYTES) / bytes, next: 0, bytes, random: Random(bytes) }
    }

    /// `misses` places that are not in the cache, one more before them, and as many others between as make `hits` in a hundred.
    fn mixed(&mut self, hits: u64, misses: u64) -> Vec<u64> {
        let count = if hits == 100 { 20 * misses } else { misses * 100 / (100 - hits) };
        let mut places = vec![if hits == 100 { 0 } else { self.cold() }];
        for number in 0..count {
            let missed = |number: u64| number * (100 - hits) / 100;
            let place = if missed(number + 1) > missed(number) { self.cold() } else { self.warm() };
            places.push(place);
        }
        places
    }

    fn cold(&mut self) -> u64 {
        self.next += 1;
        WARM_BYTES + scattered(self.next % self.cold, self.cold) * self.bytes
    }

    fn warm(&mut self) -> u64 {
        self.random.below(WARM_BYTES / self.bytes) * self.bytes
    }
}

pub(super) const HITS: [u64; 6] = [0, 20, 40, 60, 80, 100];
const ONE: &str = "one";
const FIVE: &str = "five";
const WARM_BYTES: u64 = 1 << 20;
/// Of each volume.
const CACHE_BYTES: u64 = 4 << 20;
const LONGEST: u32 = 128 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_hit_as_often_as_they_are_to_and_others_do_not_come_again() {
        let mut places = Places::new(DISK_BYTES, BLOCK_BYTES);
        let mut cold = std::collections::BTreeSet::new();
        for hits in HITS {
            let mixed = places.mixed(hits, 40);
            let missed: Vec<u64> = mixed[1..].iter().copied().filter(|at| *at >= WARM_BYTES).collect();
            let wanted = (100 - hits) * (mixed.len() as u64 - 1);
            assert!(
                (missed.len() as u64 * 100).abs_diff(wanted) < 100,
                "{hits} %: {} of {}",
                missed.len(),
                mixed.len()
            );
            assert!(missed.into_iter().all(|at| cold.insert(at) && at + BLOCK_BYTES as u64 <= DISK_BYTES), "{hits} %");
        }
    }
}
