//! `cargo xtask guest power`: a table server on a disk whose power goes, again and again.
//!
//! The machine serves tables from an ext4 file system in `sync`, and its clients say what was
//! acknowledged. It is killed at some moment, and its [`Drive`] loses what no flush covered. The
//! next machine says what it finds, which must be what was acknowledged, and of what was under way
//! a beginning.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use overside_vault::members::volatile::XorShift;

use crate::boot::Machine;
use crate::drive::Drive;
use crate::image::Base;
use crate::jobs::Job;

/// Rounds, unless `GUEST_POWER_ROUNDS` says how many.
const ROUNDS: u64 = 20;
const DISK_BYTES: u64 = 128 << 20;

/// Boots the machine and takes its power away, round after round.
pub fn run(base: &Base, initrd: &Path, folder: &Path, job: &Job) -> Result<()> {
    let asked = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let rounds = asked("GUEST_POWER_ROUNDS").unwrap_or(ROUNDS);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    let seed = asked("GUEST_POWER_SEED").unwrap_or(now);
    // A disk that lies must be found out: this tells whether the test can fail.
    let lies = asked("GUEST_POWER_LIES").is_some_and(|lies| lies > 0);
    println!("power: seed {seed}");
    let drive = Drive::formatted(folder, DISK_BYTES, lies)?;
    let mut chance = XorShift::of(seed);
    let mut book = Book::default();
    let mut acknowledged = 0;
    for round in 0..=rounds {
        let attached = drive.attach()?;
        let (told, lines) = channel();
        let machine = Machine::start(base, initrd, None, folder, job, Some(attached.socket()), told)?;
        let outcome = one_life(&lines, &mut book, &drive, round == rounds, &mut chance, job);
        drop(machine);
        attached.ended()?;
        // What was said before the end.
        lines.iter().for_each(|line| book.hear(&line));
        let wrong = book.wrong.take().map_or(Ok(()), Err).map_err(anyhow::Error::msg);
        outcome.and(wrong).with_context(|| format!("round {round} of seed {seed}"))?;
        let made = book.begin_end();
        acknowledged += made;
        if round < rounds {
            let lost = drive.lose_power(&mut chance)?;
            println!(
                "power: round {round}: {made} changes acknowledged, {} sectors in the cache, {} of them lost",
                lost.cached, lost.lost
            );
        }
    }
    ensure!(acknowledged > rounds, "only {acknowledged} changes were acknowledged in {rounds} rounds");
    println!("power: {rounds} rounds, {acknowledged} changes acknowledged, all of them there");
    Ok(())
}

/// A machine up to the moment in which its power goes; the last one up to where it has said what it
/// found.
fn one_life(
    lines: &Receiver<String>,
    book: &mut Book,
    drive: &Drive,
    last: bool,
    chance: &mut XorShift,
    job: &Job,
) -> Result<()> {
    // Some go early: while it mounts, makes its directory, or recovers.
    let early = !last && chance.below(5) == 0;
    let end = Instant::now() + Duration::from_secs(job.limit_s);
    let wanted = chance.below(120);
    let late = Duration::from_micros(chance.below(200_000));
    if early {
        let until = Instant::now() + Duration::from_millis(chance.below(30_000));
        return read_until(lines, book, until, |_| false).map(|_| ());
    }
    let found = read_until(lines, book, end, |book| book.is_open())?;
    ensure!(found, "the machine said nothing of what it found within its time");
    if last {
        return Ok(());
    }
    let enough = read_until(lines, book, end, |book| book.acknowledged_now() >= wanted)?;
    ensure!(enough, "fewer than {wanted} changes within its time");
    if chance.below(4) == 0 {
        return read_until(lines, book, Instant::now() + late, |_| false).map(|_| ());
    }
    // While something is in the cache that no flush has covered.
    drive.stop_after(chance.below(60));
    let stopped = read_until(lines, book, end, |_| drive.has_stopped())?;
    ensure!(stopped, "the disk was not written within its time");
    Ok(())
}

/// Reads lines until something holds; whether it did by then.
fn read_until(lines: &Receiver<String>, book: &mut Book, until: Instant, so: impl Fn(&Book) -> bool) -> Result<bool> {
    while !so(book) {
        let left = until.saturating_duration_since(Instant::now());
        match lines.recv_timeout(left.min(LOOK)) {
            Ok(line) => book.hear(&line),
            Err(RecvTimeoutError::Timeout) if left.is_zero() => return Ok(false),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("the machine ended by itself"),
        }
        if let Some(why) = book.wrong.take() {
            bail!("{why}");
        }
    }
    Ok(true)
}

/// What was changed, and what is there.
#[derive(Debug, Default)]
struct Book {
    clients: BTreeMap<u64, Client>,
    /// Rows that the machine has found so far: of each client its keys' values.
    found: BTreeMap<u64, BTreeMap<u64, u64>>,
    /// The machine has said all that it found.
    open: bool,
    wrong: Option<String>,
}

/// A client, through all lives.
#[derive(Debug, Default)]
struct Client {
    /// Numbers of its changes, in order, that are there for good.
    made: Vec<u64>,
    /// The first number of this life, and how many of them were acknowledged.
    from: u64,
    acknowledged: u64,
}

impl Book {
    fn hear(&mut self, line: &str) {
        let said = line.split_once("] ").map_or(line, |(_, said)| said);
        // The power may go in the middle of a line.
        let words: Vec<&str> = said.strip_suffix(" .").unwrap_or_default().split_whitespace().collect();
        let numbers: Vec<u64> = words.iter().skip(1).map_while(|word| word.parse().ok()).collect();
        match (words.first().copied(), &numbers[..]) {
            (Some("acked"), [client, number]) => {
                let client = self.clients.entry(*client).or_default();
                client.acknowledged = client.acknowledged.max(number + 1 - client.from.min(*number));
            }
            (Some("row"), [key, value]) => {
                let rows = self.found.entry(key / SLOTS).or_default();
                if rows.insert(key % SLOTS, *value).is_some() {
                    self.wrong = Some(format!("key {key} is there twice"));
                }
            }
            (Some("found"), []) => self.check(),
            (Some("from"), [client, number]) => {
                let client = self.clients.entry(*client).or_default();
                if client.made.last().is_some_and(|last| last >= number) {
                    self.wrong = Some(format!("number {number} was used before"));
                }
                (client.from, client.acknowledged) = (*number, 0);
            }
            (Some("ready"), []) => self.open = true,
            _ if ["failed:", "broken", "guest-exit", "thread "].iter().any(|end| said.starts_with(end)) => {
                self.wrong.get_or_insert_with(|| said.to_owned());
            }
            _ => {}
        }
        // Whoever reads it wants to see what else the machine has to say.
        if words.is_empty() && !said.trim().is_empty() {
            println!("{line}");
        }
    }

    /// What was found is, of each client, what its acknowledged changes came to, or those and some
    /// behind them.
    fn check(&mut self) {
        let found = std::mem::take(&mut self.found);
        for number in found.keys() {
            self.clients.entry(*number).or_default();
        }
        for (number, client) in &mut self.clients {
            let rows = found.get(number).cloned().unwrap_or_default();
            let came_to = |count: u64| {
                let numbers = client.made.iter().copied().chain(client.from..client.from + count);
                state(numbers)
            };
            // Of what was acknowledged last the console may not have heard.
            let count = (client.acknowledged..client.acknowledged + UNHEARD_MAX).find(|count| came_to(*count) == rows);
            match count {
                Some(count) => client.made.extend(client.from..client.from + count),
                None => {
                    let should = came_to(client.acknowledged);
                    let differ =
                        |(slot, value): (&u64, &u64)| (rows.get(slot) != Some(value)).then_some((*slot, *value));
                    let lacks: Vec<(u64, u64)> = should.iter().filter_map(differ).collect();
                    self.wrong = Some(format!(
                        "client {number}: of {} acknowledged changes from {} on something is missing or strange: {} rows found, not {lacks:?}",
                        client.acknowledged,
                        client.from,
                        rows.len(),
                    ));
                }
            }
            (client.from, client.acknowledged) = (0, 0);
        }
    }

    fn is_open(&self) -> bool {
        self.open
    }

    fn acknowledged_now(&self) -> u64 {
        self.clients.values().map(|client| client.acknowledged).sum()
    }

    /// The power goes; how many changes were acknowledged.
    fn begin_end(&mut self) -> u64 {
        self.open = false;
        self.found.clear();
        self.acknowledged_now()
    }
}

/// What changes with these numbers come to, as the machine's clients make them: the value of each
/// slot.
fn state(numbers: impl Iterator<Item = u64>) -> BTreeMap<u64, u64> {
    let mut rows = BTreeMap::new();
    for number in numbers {
        let slot = number % SLOTS;
        if number % DELETE_EACH == DELETE_EACH - 1 {
            rows.remove(&slot);
        } else {
            rows.insert(slot, number);
        }
    }
    rows
}

/// As in `crates/table/tests/power.rs`.
const SLOTS: u64 = 32;
const DELETE_EACH: u64 = 5;
/// Changes of one client that the console may not have heard of.
const UNHEARD_MAX: u64 = 100;
/// Between two looks at what no line tells.
const LOOK: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn told(lines: &[&str]) -> Option<String> {
        let mut book = Book::default();
        lines.iter().for_each(|line| {
            if *line == "power" {
                book.begin_end();
            } else {
                book.hear(&format!("[power] {line} ."));
            }
        });
        book.wrong
    }

    const LIFE: [&str; 7] = ["found", "from 1 1000", "ready", "acked 1 1000", "acked 1 1001", "acked 1 1002", "power"];

    fn then(more: &[&str]) -> Option<String> {
        told(&[&LIFE[..], more, &["found"]].concat())
    }

    #[test]
    fn what_was_acknowledged_must_be_there_and_what_was_under_way_may_be() {
        // Key 1 * 32 + number % 32.
        assert_eq!(then(&["row 40 1000", "row 41 1001", "row 42 1002"]), None);
        assert_eq!(then(&["row 40 1000", "row 41 1001", "row 42 1002", "row 43 1003"]), None);
        assert!(then(&["row 40 1000", "row 41 1001"]).is_some(), "an acknowledged one is missing");
        assert!(then(&["row 40 1000", "row 42 1002"]).is_some());
        assert!(then(&["row 40 1000", "row 41 1001", "row 42 1002", "row 50 77"]).is_some(), "nobody wrote it");
        assert!(then(&["row 40 1000", "row 40 1000", "row 41 1001", "row 42 1002"]).is_some(), "twice");
        assert!(told(&["failed: mount"]).is_some() && told(&["broken text of 5"]).is_some());
    }

    #[test]
    fn lives_follow_each_other() {
        let next =
            ["row 40 1000", "row 41 1001", "row 42 1002", "found", "from 1 2000", "ready", "acked 1 2000", "power"];
        let rows = ["row 40 1000", "row 41 1001", "row 42 1002"];
        // 2000 % 32 is 16.
        assert_eq!(then(&[&next[..], &rows, &["row 48 2000"]].concat()), None);
        assert!(then(&[&next[..], &rows].concat()).is_some());
        // An early cut between two lives.
        assert_eq!(then(&[&next[..], &["row 40 1000", "power"], &rows, &["row 48 2000"]].concat()), None);
    }
}
