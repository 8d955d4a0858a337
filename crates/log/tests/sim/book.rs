//! What was changed, acknowledged and shown: kept outside of the world's crashes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A change as it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    pub stamp: u64,
    pub key: u64,
    /// None deletes it.
    pub value: Option<Bytes>,
    /// Changes of one request are in the log together.
    pub request: u64,
    /// The position that the log gave it; none before it was appended.
    pub position: Option<u64>,
    /// Its writer was told that it is durable.
    pub acknowledged: bool,
}

/// A record that recovery gave out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub stamp: u64,
    pub key: u64,
    pub value: Option<Bytes>,
}

/// The bytes of a value, shown as their number and the first of them.
#[derive(Clone, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, {:02x?}", self.0.len(), &self.0[..self.0.len().min(4)])
    }
}

/// The newest change of each key: its stamp, and the value or none.
pub type State = BTreeMap<u64, (u64, Option<Bytes>)>;

/// All changes that may be on the disk.
#[derive(Debug, Default)]
pub struct Book {
    pub made: Vec<Made>,
    /// Greatest stamp of each key that somebody was shown.
    pub shown: BTreeMap<u64, u64>,
    pub requests: u64,
}

/// What a crash may have taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// All that was acknowledged or shown.
    Acknowledged,
    /// Any prefix of the log.
    Prefix,
}

/// What recovery found: records of the log in the order in which it gave them, and what they and the
/// checkpoint come to.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    pub records: Vec<Found>,
    pub state: State,
    pub next_stamp: u64,
}

impl Recovered {
    /// Whether a change is there, or was overwritten by a later one of its key.
    fn has(&self, made: &Made) -> bool {
        self.state.get(&made.key).is_some_and(|(stamp, _)| *stamp >= made.stamp)
    }
}

impl Book {
    /// Whether recovery found what it must, and nothing else.
    pub fn check(&self, found: &Recovered, kept: Kept) -> Result<(), String> {
        let Recovered { records, state, next_stamp } = found;
        if let Some(pair) = records.windows(2).find(|pair| pair[0].stamp >= pair[1].stamp) {
            return Err(format!("records out of order: {:?}, then {:?}", pair[0], pair[1]));
        }
        let in_state = state.iter().map(|(key, (stamp, value))| (*stamp, *key, value));
        let all = records.iter().map(|found| (found.stamp, found.key, &found.value)).chain(in_state);
        let (mut newest_position, mut requests) = (0, BTreeSet::new());
        for (stamp, key, value) in all {
            if stamp >= *next_stamp {
                return Err(format!("the next stamp is {next_stamp}, and {stamp} is taken"));
            }
            let made = self.made.iter().find(|made| made.stamp == stamp);
            let Some(made) = made.filter(|made| (made.key, &made.value) == (key, value)) else {
                return Err(format!("found what nobody wrote: {stamp}, {key}, {value:?}; written was {made:?}"));
            };
            newest_position = newest_position.max(made.position.unwrap_or(0));
            requests.insert(made.request);
        }
        for made in self.made.iter().filter(|made| !found.has(made)) {
            let Some(position) = made.position else { continue };
            if made.acknowledged && kept == Kept::Acknowledged {
                return Err(format!("acknowledged and lost: {made:?}"));
            }
            if position < newest_position {
                let behind = format!("what was appended behind it, up to {newest_position}, is there");
                return Err(format!("{made:?} is lost, and {behind}"));
            }
            if requests.contains(&made.request) {
                return Err(format!("{made:?} is lost, and others of its request are there"));
            }
        }
        for (key, stamp) in self.shown.iter().filter(|_| kept == Kept::Acknowledged) {
            if state.get(key).is_none_or(|(found, _)| found < stamp) {
                return Err(format!("stamp {stamp} of key {key} was shown and is lost"));
            }
        }
        Ok(())
    }

    /// What was not found did not happen: its stamps may be drawn again.
    pub fn forget_lost(&mut self, found: &Recovered) {
        self.made.retain(|made| found.has(made));
        self.shown.retain(|key, stamp| found.state.get(key).is_some_and(|(found, _)| found >= stamp));
        for made in &mut self.made {
            // Recovered is durable from now on, whoever asked for it.
            made.acknowledged = true;
        }
    }
}
