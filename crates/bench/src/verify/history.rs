//! Which version of a row may have been current when.

use std::{collections::HashMap, ops::RangeInclusive};

/// One write of the log: 32 bytes, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The row's index in the generated table.
    pub index: u64,
    /// The version it left behind; versions of a row count up by one.
    pub version: i64,
    /// Whether it deleted the row (the version then is that of its absence).
    pub delete: bool,
    /// The clock before the write was sent.
    pub before_ns: u64,
    /// The clock after it was acknowledged.
    pub after_ns: u64,
}

impl Write {
    /// As it lies in the log.
    pub fn encode(&self) -> [u8; Write::BYTES] {
        let mut bytes = [0; Write::BYTES];
        let version = if self.delete { -self.version } else { self.version };
        let words = [self.index, version as u64, self.before_ns, self.after_ns];
        for (slot, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *slot = word.to_le_bytes();
        }
        bytes
    }

    /// From the log.
    pub fn decode(bytes: &[u8; Write::BYTES]) -> Write {
        let mut words = [0u64; 4];
        for (word, slot) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*slot);
        }
        let version = words[1] as i64;
        Write {
            index: words[0],
            version: version.saturating_abs(),
            delete: version < 0,
            before_ns: words[2],
            after_ns: words[3],
        }
    }

    /// Bytes of one write in the log.
    pub const BYTES: usize = 32;
}

/// All writes of a table that began with every row at version 1.
#[derive(Clone, Debug, Default)]
pub struct History {
    rows: HashMap<u64, Vec<Write>>,
    writes: usize,
}

impl History {
    /// Adds a piece of the log, in the order written.
    ///
    /// # Errors
    ///
    /// The piece is cut off within a write, a row's versions do not count up by one, or stamps run
    /// backwards. What came before the fault has been added.
    pub fn extend(&mut self, log: &[u8]) -> Result<(), LogError> {
        let (writes, rest) = log.as_chunks::<{ Write::BYTES }>();
        for bytes in writes {
            let write = Write::decode(bytes);
            // Most rows are written once, and a list that grows begins with room for four.
            let row = self.rows.entry(write.index).or_insert_with(|| Vec::with_capacity(1));
            let last = row.last().map_or((1, 0), |w| (w.version, w.after_ns));
            if write.version != last.0 + 1 || write.before_ns < last.1 || write.after_ns < write.before_ns {
                return Err(LogError::Order { index: write.index, version: write.version });
            }
            row.push(write);
            self.writes += 1;
        }
        if rest.is_empty() { Ok(()) } else { Err(LogError::CutOff) }
    }

    /// How many writes there were.
    pub fn len(&self) -> usize {
        self.writes
    }

    /// Whether there was none.
    pub fn is_empty(&self) -> bool {
        self.writes == 0
    }

    /// The latest version of row `index`, and whether the row is there.
    pub fn latest(&self, index: u64) -> (i64, bool) {
        let last = self.rows.get(&index).and_then(|row| row.last());
        last.map_or((1, true), |w| (w.version, !w.delete))
    }

    /// When version `version` of row `index` may have been current: from before the write that made
    /// it was sent until the write that replaced it was acknowledged. `None` if it was never
    /// written, or is the version of an absence.
    pub fn current(&self, index: u64, version: i64) -> Option<RangeInclusive<u64>> {
        let writes = self.rows.get(&index).map_or(&[][..], Vec::as_slice);
        if version < 1 {
            return None;
        }
        let at = version as usize - 1;
        let from = match at.checked_sub(1) {
            None => 0,
            Some(at) => match writes.get(at)? {
                write if write.delete => return None,
                write => write.before_ns,
            },
        };
        Some(from..=writes.get(at).map_or(u64::MAX, |next| next.after_ns))
    }

    /// The versions of row `index` that may have been current between `start` and `end`.
    pub fn current_between(&self, index: u64, start: u64, end: u64) -> impl Iterator<Item = i64> {
        (1..=self.latest(index).0).filter(move |version| {
            let current = self.current(index, *version);
            current.is_some_and(|c| *c.start() <= end && *c.end() >= start)
        })
    }

    /// Whether row `index` may have been absent at some moment between `start` and `end`.
    pub fn absent_between(&self, index: u64, start: u64, end: u64) -> bool {
        let writes = self.rows.get(&index).map_or(&[][..], Vec::as_slice);
        writes.iter().enumerate().any(|(at, write)| {
            let back = writes.get(at + 1).map_or(u64::MAX, |next| next.after_ns);
            write.delete && write.before_ns <= end && back >= start
        })
    }
}

/// The log cannot be trusted, hence nothing can be verified by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogError {
    /// It ends within a write.
    CutOff,
    /// A version is missing, came twice, or its stamps run backwards.
    Order {
        /// The row's index.
        index: u64,
        /// The version that does not fit.
        version: i64,
    },
}

impl std::fmt::Display for LogError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LogError::CutOff => write!(f, "the log of updates ends within an entry: was the updating process stopped?"),
            LogError::Order { index, version } => {
                write!(f, "the log of updates is out of order at version {version} of row {index}")
            }
        }
    }
}

impl std::error::Error for LogError {}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn write(index: u64, version: i64, before_ns: u64, after_ns: u64) -> Write {
        Write { index, version, delete: false, before_ns, after_ns }
    }

    #[test]
    fn versions_are_current_from_before_their_write_to_after_the_next() {
        let gone = Write { delete: true, ..write(7, 4, 70, 80) };
        let writes = [write(7, 2, 10, 20), write(7, 3, 40, 50), gone, write(7, 5, 90, 95)];
        let mut history = History::default();
        for write in writes {
            history.extend(&write.encode()).unwrap();
        }
        assert_eq!(history.current(7, 1), Some(0..=20));
        assert_eq!(history.current(7, 2), Some(10..=50));
        assert_eq!(history.current(7, 3), Some(40..=80));
        assert_eq!(history.current(7, 4), None);
        assert_eq!(history.current(7, 5), Some(90..=u64::MAX));
        assert_eq!((history.current(7, 6), history.current(7, 0)), (None, None));
        assert_eq!(history.current(8, 1), Some(0..=u64::MAX));
        assert_eq!(history.current_between(7, 51, 69).collect::<Vec<_>>(), [3]);
        assert_eq!(history.current_between(7, 15, 15).collect::<Vec<_>>(), [1, 2]);
        assert!(!history.absent_between(7, 51, 69) && !history.absent_between(7, 96, 99));
        assert!(history.absent_between(7, 60, 71) && history.absent_between(7, 95, 99));
        assert_eq!((history.latest(7), history.latest(8)), ((5, true), (1, true)));
    }

    #[test]
    fn a_log_that_lies_is_refused() {
        let mut history = History::default();
        let first = write(1, 2, 10, 20).encode();
        assert_eq!(history.extend(&first[..31]), Err(LogError::CutOff));
        history.extend(&first).unwrap();
        let faults = [write(1, 2, 30, 40), write(1, 4, 30, 40), write(1, 3, 15, 40), write(1, 3, 40, 30)];
        for fault in faults {
            assert!(matches!(history.extend(&fault.encode()), Err(LogError::Order { .. })), "{fault:?}");
        }
        assert_eq!(history.len(), 1);
    }
}
