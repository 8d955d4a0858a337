//! What a log says: whole rows, no record refers to another.

/// A change of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When: changes of one key ascend by it, in the order in which the tree took them.
    pub stamp: u64,
    /// Which table, by number. Numbers are never used again.
    pub table: u32,
    /// What happened.
    pub change: Change<'a>,
}

/// What happened to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// A row is there, in place of one with its key.
    Put {
        /// Its key, as the tree has it.
        key: &'a [u8],
        /// The rest of it, as the tree has it.
        value: &'a [u8],
    },
    /// No row has this key.
    Delete {
        /// As the tree has it.
        key: &'a [u8],
    },
    /// The table is there, and empty.
    Create {
        /// Its name, schema and options, in the form of whoever owns tables.
        options: &'a [u8],
    },
    /// The table is gone.
    Drop,
    /// The table has an index.
    CreateIndex {
        /// What it is of, in the form of whoever owns tables.
        options: &'a [u8],
    },
    /// The index that these options describe is gone.
    DropIndex {
        /// As it was created with.
        options: &'a [u8],
    },
}

/// Records of one request. They go into the log together.
#[derive(Clone, Debug, Default)]
pub struct Records {
    bytes: Vec<u8>,
    count: u32,
    newest: u64,
}

impl Records {
    /// None yet.
    pub fn new() -> Records {
        Records::default()
    }

    /// One more.
    ///
    /// # Panics
    /// When a key or a value has 2³² bytes or more.
    pub fn push(&mut self, record: Record<'_>) {
        let (kind, key, value): (u32, &[u8], &[u8]) = match record.change {
            Change::Put { key, value } => (PUT, key, value),
            Change::Delete { key } => (DELETE, key, &[]),
            Change::Create { options } => (CREATE, &[], options),
            Change::Drop => (DROP, &[], &[]),
            Change::CreateIndex { options } => (CREATE_INDEX, &[], options),
            Change::DropIndex { options } => (DROP_INDEX, &[], options),
        };
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("a row has less than 2^32 bytes");
        self.bytes.extend(record.stamp.to_le_bytes());
        for word in [kind, record.table, length(key), length(value)] {
            self.bytes.extend(word.to_le_bytes());
        }
        self.bytes.extend(key);
        self.bytes.extend(value);
        self.count += 1;
        self.newest = self.newest.max(record.stamp);
    }

    /// Bytes that a put or a create, of this key and value or options, takes in the log.
    pub fn bytes_of(key: usize, value: usize) -> usize {
        HEADER_BYTES + key + value
    }

    /// Bytes of all of them in the log.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The greatest stamp; 0 of none.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// None again; the memory is kept.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
        self.newest = 0;
    }
}

/// The records in a group's body, in order; an error at the first that is none. `Err` is where it
/// begins.
pub fn records(body: &[u8]) -> impl Iterator<Item = Result<Record<'_>, usize>> {
    let mut at = 0;
    let mut broken = false;
    std::iter::from_fn(move || {
        if broken || at == body.len() {
            return None;
        }
        let parsed = parse_one(&body[at..]);
        let here = at;
        match parsed {
            Some((record, bytes)) => {
                at += bytes;
                Some(Ok(record))
            }
            None => {
                broken = true;
                Some(Err(here))
            }
        }
    })
}

fn parse_one(bytes: &[u8]) -> Option<(Record<'_>, usize)> {
    let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
    let word = |at: usize| Some(u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?));
    let stamp = u64::from_le_bytes(header[..8].try_into().ok()?);
    let (kind, table) = (word(8)?, word(12)?);
    let (key_bytes, value_bytes) = (word(16)? as usize, word(20)? as usize);
    let (key, rest) = rest.split_at_checked(key_bytes)?;
    let value = rest.get(..value_bytes)?;
    let change = match kind {
        PUT => Change::Put { key, value },
        DELETE if value.is_empty() => Change::Delete { key },
        CREATE if key.is_empty() => Change::Create { options: value },
        DROP if key.is_empty() && value.is_empty() => Change::Drop,
        CREATE_INDEX if key.is_empty() => Change::CreateIndex { options: value },
        DROP_INDEX if key.is_empty() => Change::DropIndex { options: value },
        _ => return None,
    };
    Some((Record { stamp, table, change }, HEADER_BYTES + key_bytes + value_bytes))
}

const PUT: u32 = 1;
const DELETE: u32 = 2;
const CREATE: u32 = 3;
const DROP: u32 = 4;
const CREATE_INDEX: u32 = 5;
const DROP_INDEX: u32 = 6;
/// Stamp u64; kind, table, bytes of key and of value, each u32.
const HEADER_BYTES: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_were_pushed_and_nothing_else_does() {
        let changes = [
            Change::Put { key: b"k", value: b"value" },
            Change::Delete { key: b"key" },
            Change::Create { options: b"options" },
            Change::Drop,
            Change::CreateIndex { options: b"of" },
            Change::DropIndex { options: b"of" },
        ];
        let mut records = Records::new();
        for (at, change) in changes.into_iter().enumerate() {
            records.push(Record { stamp: 10 - at as u64, table: at as u32, change });
        }
        assert_eq!((records.count(), records.newest()), (6, 10));
        let back: Vec<_> = super::records(records.bytes()).map(Result::unwrap).collect();
        assert_eq!(back.iter().map(|record| record.change).collect::<Vec<_>>(), changes);
        assert_eq!(
            back.iter().map(|record| (record.stamp, record.table)).collect::<Vec<_>>(),
            [(10, 0), (9, 1), (8, 2), (7, 3), (6, 4), (5, 5)]
        );
        // Cut anywhere, all before the cut are there, and then an error unless a record ends there.
        let mut whole = 0;
        for cut in 0..records.bytes().len() {
            let parsed: Vec<_> = super::records(&records.bytes()[..cut]).collect();
            let sound = parsed.iter().take_while(|record| record.is_ok()).count();
            assert_eq!(parsed.len() - sound, usize::from(parsed.last().is_some_and(Result::is_err)));
            whole += usize::from(parsed.len() == sound);
        }
        assert_eq!(whole, 6);
        let mut strange = records.bytes().to_vec();
        strange[8] = 9;
        assert_eq!(super::records(&strange).next(), Some(Err(0)));
    }
}
