//! A server's life on a disk in memory: a tree of few keys, its log and its checkpoints.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use overside_log::{
    Appender, Change, Checkpoints, Claim, Directory, Durability, Log, Mode, Options, Page, Position, Record, Records,
    Refusal, Replayed,
};

use crate::memory::{Files, MemoryDisk};

pub fn options(durability: Durability) -> Options {
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

/// Of each key the newest change and its stamp: the value, or none after a delete.
pub type State = BTreeMap<u8, (u64, Option<Vec<u8>>)>;

/// What was appended, in order, and where each ended.
#[derive(Default)]
pub struct Written {
    pub changes: Vec<(u64, u8, Option<Vec<u8>>)>,
    ends: Vec<Position>,
    /// So many were acknowledged.
    pub acknowledged: usize,
    pub checkpoints: u64,
}

/// A server between two crashes.
pub struct Life {
    pub log: Log<MemoryDisk>,
    pub appender: Appender,
    pub checkpoints: Checkpoints,
    pub state: State,
    pub next: u64,
    now: Duration,
}

/// What reading a directory back came to.
pub struct Recovered {
    pub life: Life,
    pub replayed: Replayed,
}

const TABLE: u32 = 3;
const OPTIONS: &[u8] = b"a table";

/// What the directory holds, without taking it up.
pub fn read(
    files: &Arc<Mutex<Files>>,
    options: Options,
    mode: Mode,
) -> Result<(Directory<MemoryDisk>, State, Replayed), Refusal> {
    let mut directory = Directory::open(MemoryDisk::new(files), [7; 16], options, mode)?;
    let mut state = State::new();
    if let Some(manifest) = directory.checkpoint()? {
        for table in &manifest.tables {
            assert_eq!((table.number, table.options.as_slice()), (TABLE, OPTIONS));
            let mut pages = directory.pages(table)?;
            for part in 0..pages.parts().len() {
                pages.read(part, &mut |page| {
                    state.append(&mut unpaged(page.base));
                    assert_eq!(page.count as usize, unpaged(page.base).len());
                    Ok(())
                })?;
            }
        }
    }
    let mut last = 0;
    let replayed = directory.replay(&mut |record| {
        assert!(record.stamp >= last, "not by stamp");
        last = record.stamp;
        assert_eq!(record.table, TABLE);
        match record.change {
            Change::Put { key, value } => {
                assert!(value.iter().all(|byte| *byte == record.stamp as u8), "bytes of another record");
                state.insert(key[0], (record.stamp, Some(value.to_vec())));
            }
            Change::Delete { key } => _ = state.insert(key[0], (record.stamp, None)),
            _ => return Err("never written".to_owned()),
        }
        Ok(())
    })?;
    Ok((directory, state, replayed))
}

pub fn recover(files: &Arc<Mutex<Files>>, options: Options) -> Result<Recovered, Refusal> {
    let (directory, state, replayed) = read(files, options, Mode::Serve)?;
    let (mut log, appender) = directory.start()?;
    let checkpoints =
        log.checkpoints().map_err(|source| Refusal::Io { what: "listing checkpoints".to_owned(), source })?;
    let next = replayed.next_stamp;
    Ok(Recovered { life: Life::new(log, appender, checkpoints, state, next), replayed })
}

impl Life {
    pub fn new(log: Log<MemoryDisk>, appender: Appender, checkpoints: Checkpoints, state: State, next: u64) -> Life {
        Life { log, appender, checkpoints, state, next, now: Duration::ZERO }
    }

    pub fn step(&mut self, floor: u64) -> bool {
        self.now += Duration::from_millis(1);
        self.log.step(floor, self.now).is_ok()
    }

    /// Time without a change.
    pub fn rest(&mut self) {
        for _ in 0..12 {
            self.step(self.next);
        }
    }

    /// Installs and appends a change with this stamp; whether there was room.
    pub fn change(&mut self, written: &mut Written, stamp: u64, key: u8, bytes: Option<usize>) -> bool {
        let claim = if bytes.is_some() { Claim::Put } else { Claim::Delete };
        let Ok(room) = self.appender.reserve(Records::bytes_of(1, bytes.unwrap_or(0)), claim) else { return false };
        let value = bytes.map(|bytes| vec![stamp as u8; bytes]);
        let change = match &value {
            Some(value) => Change::Put { key: &[key], value },
            None => Change::Delete { key: &[key] },
        };
        let mut records = Records::new();
        records.push(Record { stamp, table: TABLE, change });
        // An older change does not replace a newer one in a tree.
        if self.state.get(&key).is_none_or(|(there, _)| *there < stamp) {
            self.state.insert(key, (stamp, value.clone()));
        }
        written.ends.push(self.appender.append(room, &records));
        written.changes.push((stamp, key, value));
        true
    }

    pub fn put(&mut self, written: &mut Written, key: u8, bytes: Option<usize>) -> bool {
        let done = self.change(written, self.next, key, bytes);
        self.next += u64::from(done);
        done
    }

    pub fn acknowledge(&self, written: &mut Written) {
        let durable = self.appender.durable();
        let done = written.ends.iter().take_while(|end| **end <= durable).count();
        written.acknowledged = written.acknowledged.max(done);
    }

    /// A checkpoint, with changes between two of its pages; whether it counts.
    pub fn checkpoint(&mut self, written: &mut Written, meanwhile: &[(u8, usize)]) -> bool {
        let floor = self.next;
        // Before the checkpoint is begun, which borrows.
        let first = paged(self.state.range(..4));
        for (key, bytes) in meanwhile {
            self.put(written, *key, Some(*bytes));
            if *bytes > 4000 {
                self.step(self.next);
            }
        }
        let second = paged(self.state.range(4..));
        let mut checkpoint = self.checkpoints.begin(floor);
        let write = |checkpoint: &mut overside_log::Checkpoint<'_>| {
            checkpoint.table(TABLE, OPTIONS)?;
            for (base, count, newest) in [first, second] {
                let page = Page { base: &base, count, newest, high: Some(b"x"), ..Page::default() };
                checkpoint.page(&page)?;
            }
            checkpoint.written()
        };
        if write(&mut checkpoint).is_err() {
            return false;
        }
        for _ in 0..60 {
            if checkpoint.is_covered(&self.appender) {
                break;
            }
            self.now += Duration::from_millis(1);
            if self.log.step(self.next, self.now).is_err() {
                return false;
            }
        }
        let counts = checkpoint.finish(&self.appender, self.next, TABLE + 1).is_ok();
        if counts {
            written.checkpoints += 1;
            let _ = self.log.release(floor);
        }
        counts
    }
}

/// The state after the first `count` changes of the log.
fn after(written: &Written, count: usize) -> State {
    let mut changes = written.changes[..count].to_vec();
    changes.sort_by_key(|(stamp, ..)| *stamp);
    changes.into_iter().map(|(stamp, key, value)| (key, (stamp, value))).collect()
}

impl Written {
    /// What was found is the state after a beginning of what was written, which has all that was acknowledged.
    pub fn check(&mut self, found: &State) -> Result<(), String> {
        let counts = (self.acknowledged..=self.changes.len()).rev();
        let same = counts.clone().find(|count| after(self, *count) == *found);
        let Some(count) = same else {
            return Err(format!(
                "of {} changes {} were acknowledged, and this is the state after none of those numbers: {found:?}",
                self.changes.len(),
                self.acknowledged
            ));
        };
        // What is lost was never acknowledged, and never comes back. What was read back counts as durable from then on.
        self.changes.truncate(count);
        self.ends = vec![Position(0); count];
        self.acknowledged = count;
        Ok(())
    }
}

fn paged<'a>(rows: impl Iterator<Item = (&'a u8, &'a (u64, Option<Vec<u8>>))>) -> (Vec<u8>, u32, u64) {
    let (mut page, mut count, mut newest) = (Vec::new(), 0, 0);
    for (key, (stamp, value)) in rows {
        page.push(*key);
        page.push(u8::from(value.is_some()));
        page.extend(stamp.to_le_bytes());
        page.extend((value.as_ref().map_or(0, Vec::len) as u32).to_le_bytes());
        page.extend(value.as_deref().unwrap_or(&[]));
        count += 1;
        newest = newest.max(*stamp);
    }
    (page, count, newest)
}

fn unpaged(mut page: &[u8]) -> State {
    let mut rows = State::new();
    while let Some((header, rest)) = page.split_at_checked(14) {
        let stamp = u64::from_le_bytes(header[2..10].try_into().unwrap());
        let (value, rest) = rest.split_at(u32::from_le_bytes(header[10..14].try_into().unwrap()) as usize);
        rows.insert(header[0], (stamp, (header[1] == 1).then(|| value.to_vec())));
        page = rest;
    }
    rows
}
