//! What a checkpoint consists of, in one file that appears when all of it is on the disk.

use crate::DirectoryId;
use crate::group::{NoHeader, POSITION_MAX, VERSION, number32, number64, padded};

/// A checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The directory that it belongs to.
    pub directory: DirectoryId,
    /// Its number, which its name says as well.
    pub number: u64,
    /// Which start of a server wrote it.
    pub incarnation: u64,
    /// Every change with a lower stamp is in it; of later ones some are. The log is replayed from
    /// here on.
    pub floor: u64,
    /// The oldest segment with a record that is replayed, if a log was written; else a number that
    /// no segment had.
    pub segment: u64,
    /// Position of the log that was on the disk.
    pub position: u64,
    /// No stamp that was drawn is this or greater.
    pub next_stamp: u64,
    /// No table had this number or a greater one, or will have it: some below may be set aside for
    /// those to come.
    pub next_table: u32,
    /// A log was written.
    pub logged: bool,
    /// All tables that there were.
    pub tables: Vec<Table>,
}

/// A table of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Its number.
    pub number: u32,
    /// Its name, schema and options, in the form of the crate that owns tables.
    pub options: Vec<u8>,
    /// The file of its pages.
    pub file: u64,
    /// Where that file's footer is, in bytes.
    pub footer_at: u64,
    /// How long it is.
    pub footer_bytes: u32,
    /// Its checksum.
    pub footer_checksum: u32,
    /// Pages, and rows in them.
    pub pages: u64,
    /// Rows in all its pages.
    pub rows: u64,
    /// The newest change in it.
    pub newest: u64,
}

impl Manifest {
    /// As a file, in whole blocks.
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = MANIFEST_MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((self.tables.len() as u32).to_le_bytes());
        bytes.extend(self.directory);
        let words = [self.number, self.incarnation, self.floor, self.segment, self.position, self.next_stamp];
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(self.next_table.to_le_bytes());
        bytes.extend(u32::from(self.logged).to_le_bytes());
        for table in &self.tables {
            bytes.extend(table.number.to_le_bytes());
            bytes.extend((table.options.len() as u32).to_le_bytes());
            for word in [table.file, table.footer_at, table.pages, table.rows, table.newest] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend(table.footer_bytes.to_le_bytes());
            bytes.extend(table.footer_checksum.to_le_bytes());
            bytes.extend(&table.options);
        }
        bytes.resize(padded(bytes.len() + 4), 0);
        let checksum = crc32c::crc32c(&bytes[..bytes.len() - 4]);
        let at = bytes.len() - 4;
        bytes[at..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Of a whole file.
    ///
    /// # Errors
    /// What it is instead.
    pub fn parse(bytes: &[u8]) -> Result<Manifest, NoHeader> {
        let checked = bytes.split_last_chunk::<4>().filter(|(said, checksum)| {
            said.len() >= FIXED_BYTES
                && &said[..8] == MANIFEST_MAGIC
                && crc32c::crc32c(said) == u32::from_le_bytes(**checksum)
        });
        let (said, _) = checked.ok_or(NoHeader::Broken)?;
        let version = number32(said, 8);
        if version != VERSION {
            return Err(NoHeader::Version(version));
        }
        let word = |at: usize| number64(said, 32 + 8 * at);
        let mut rest = &said[FIXED_BYTES..];
        let mut tables = Vec::new();
        for _ in 0..number32(said, 12) {
            let (table, left) = Table::parse(rest).ok_or(NoHeader::Broken)?;
            tables.push(table);
            rest = left;
        }
        let manifest = Manifest {
            directory: said[16..32].try_into().expect("16 bytes"),
            number: word(0),
            incarnation: word(1),
            floor: word(2),
            segment: word(3),
            position: word(4),
            next_stamp: word(5),
            next_table: number32(said, 80),
            logged: number32(said, 84) != 0,
            tables,
        };
        let ascend = manifest.tables.windows(2).all(|pair| pair[0].number < pair[1].number);
        if ascend && manifest.position < POSITION_MAX { Ok(manifest) } else { Err(NoHeader::Broken) }
    }
}

impl Table {
    fn parse(bytes: &[u8]) -> Option<(Table, &[u8])> {
        let (fixed, rest) = bytes.split_at_checked(TABLE_BYTES)?;
        let (options, rest) = rest.split_at_checked(number32(fixed, 4) as usize)?;
        let word = |at: usize| number64(fixed, 8 + 8 * at);
        let table = Table {
            number: number32(fixed, 0),
            options: options.to_vec(),
            file: word(0),
            footer_at: word(1),
            pages: word(2),
            rows: word(3),
            newest: word(4),
            footer_bytes: number32(fixed, 48),
            footer_checksum: number32(fixed, 52),
        };
        Some((table, rest))
    }
}

const MANIFEST_MAGIC: &[u8; 8] = b"ovmanif\0";
const FIXED_BYTES: usize = 88;
const TABLE_BYTES: usize = 56;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_comes_back_and_every_changed_byte_is_seen() {
        let table =
            |number| Table { number, options: vec![5; 7], file: 3, footer_at: 4096, rows: 9, ..Table::default() };
        let manifest = Manifest {
            directory: [3; 16],
            number: 4,
            floor: 17,
            next_table: 6,
            logged: true,
            tables: vec![table(1), table(5)],
            ..Manifest::default()
        };
        let bytes = manifest.write();
        assert_eq!(Manifest::parse(&bytes), Ok(manifest.clone()));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(Manifest::parse(&changed), Err(NoHeader::Broken), "byte {at}");
        }
        for end in 0..bytes.len() {
            assert!(Manifest::parse(&bytes[..end]).is_err());
        }
        let same = Manifest { tables: vec![table(1), table(1)], ..manifest };
        assert!(Manifest::parse(&same.write()).is_err(), "a table twice");
    }
}
