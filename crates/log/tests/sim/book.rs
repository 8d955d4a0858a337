//! What was changed, acknowledged and shown: kept outside of the world's crashes.

use std::collections::BTreeMap;
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

/// All changes that may be on the disk.
#[derive(Debug, Default)]
pub struct Book {
    pub made: Vec<Made>,
    /// Greatest stamp of each key that somebody was shown, and the floor below which all was shown.
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

impl Book {
    /// Whether recovery found what it must, and nothing else.
    pub fn check(&self, found: &[Found], next_stamp: u64, kept: Kept) -> Result<(), String> {
        if let Some(pair) = found.windows(2).find(|pair| pair[0].stamp >= pair[1].stamp) {
            return Err(format!("records out of order: {:?}, then {:?}", pair[0], pair[1]));
        }
        if let Some(last) = found.last().filter(|last| last.stamp >= next_stamp) {
            return Err(format!("the next stamp is {next_stamp}, and {} is taken", last.stamp));
        }
        let by_stamp: BTreeMap<u64, &Found> = found.iter().map(|found| (found.stamp, found)).collect();
        let mut newest_position = 0;
        for found in found {
            let made = self.made.iter().find(|made| made.stamp == found.stamp);
            let same = |made: &Made| (made.key, &made.value) == (found.key, &found.value);
            let Some(made) = made.filter(|made| same(made)) else {
                return Err(format!("found what nobody wrote: {found:?}; written was {made:?}"));
            };
            newest_position = newest_position.max(made.position.unwrap_or(0));
        }
        for made in &self.made {
            let there = by_stamp.contains_key(&made.stamp);
            let Some(position) = made.position.filter(|_| !there) else { continue };
            if made.acknowledged && kept == Kept::Acknowledged {
                return Err(format!("acknowledged and lost: {made:?}"));
            }
            if position < newest_position {
                return Err(format!(
                    "{made:?} is lost, and what was appended behind it, up to {newest_position}, is there"
                ));
            }
            if found.iter().any(|found| self.request_of(found.stamp) == Some(made.request)) {
                return Err(format!("{made:?} is lost, and others of its request are there"));
            }
        }
        for (key, stamp) in self.shown.iter().filter(|_| kept == Kept::Acknowledged) {
            if !by_stamp.contains_key(stamp) {
                return Err(format!("stamp {stamp} of key {key} was shown and is lost"));
            }
        }
        Ok(())
    }

    fn request_of(&self, stamp: u64) -> Option<u64> {
        self.made.iter().find(|made| made.stamp == stamp).map(|made| made.request)
    }

    /// What was not found did not happen: its stamps may be drawn again.
    pub fn forget_lost(&mut self, found: &[Found]) {
        let there: std::collections::BTreeSet<u64> = found.iter().map(|found| found.stamp).collect();
        self.made.retain(|made| there.contains(&made.stamp));
        self.shown.retain(|_, stamp| there.contains(stamp));
        for made in &mut self.made {
            // Recovered is durable from now on, whoever asked for it.
            made.acknowledged = true;
        }
    }
}
