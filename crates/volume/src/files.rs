//! A volume that keeps files: which places of its address space are what, and what lies there.
//!
//! Such a volume is read and written by the same requests as every other one, so credits, replays
//! and "exactly once" hold for files as they are. Only places differ: they count bytes, and say of
//! which file. The first part of the space is a table with an entry of 64 bytes for each id. A READ
//! of an entry says what the file is; a WRITE of one changes it. Every such change may be carried
//! out twice with the same outcome, as a replay to another life of the node does.
//!
//! | place | READ | WRITE |
//! |---|---|---|
//! | 0 | [`About`] | |
//! | id × 64 | [`Attributes`] | a [`Command`], always on stable storage when it is answered |
//! | id × 2^40 + offset | the file's bytes; zeros past its end | the same bytes; the file becomes longer |
//!
//! A request does not cross a multiple of [`PIECE_BYTES`].

/// Bytes of an entry of the table.
pub const ENTRY_BYTES: usize = 64;
/// A file is shorter than this.
pub const FILE_BYTES_MAX: u64 = 1 << 40;
/// Ids are lower.
pub const IDS: u32 = 1 << 22;
/// What a request must not cross a multiple of: what a file's bytes are allocated by.
pub const PIECE_BYTES: u64 = 64 << 10;
/// Length of the address space.
pub const SPACE_BYTES: u64 = (IDS as u64) << 40;

/// Where a file's byte is.
pub fn place(id: u32, offset: u64) -> u64 {
    u64::from(id) << 40 | offset
}

/// Which file's byte is there, and which byte; of the table, id 0.
pub fn file_at(place: u64) -> (u32, u64) {
    ((place >> 40) as u32, place & (FILE_BYTES_MAX - 1))
}

/// Where a file's entry is.
pub fn entry(id: u32) -> u64 {
    u64::from(id) * ENTRY_BYTES as u64
}

/// Which files of a program are kept on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// PostgreSQL's relations and segments of its log.
    Postgresql,
    /// SQLite's databases, their journals and logs; not their shared memory.
    Sqlite,
}

impl Preset {
    /// All.
    pub const ALL: [Preset; 2] = [Preset::Postgresql, Preset::Sqlite];

    /// As the command line has it.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Postgresql => "postgresql",
            Preset::Sqlite => "sqlite",
        }
    }

    /// By its name.
    pub fn parse(name: &str) -> Option<Preset> {
        Self::ALL.into_iter().find(|preset| preset.name() == name)
    }

    /// As it is written down.
    pub fn code(self) -> u8 {
        match self {
            Preset::Postgresql => 1,
            Preset::Sqlite => 2,
        }
    }

    /// From what is written down.
    pub fn of(code: u8) -> Option<Preset> {
        Self::ALL.into_iter().find(|preset| preset.code() == code)
    }

    /// Whether a file is one of these, by its path below the folder.
    pub fn matches(self, path: &[u8]) -> bool {
        let mut names = path.rsplit(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
        let (name, folder) = (names.next().unwrap_or_default(), names.next().unwrap_or_default());
        match self {
            Preset::Sqlite => {
                let main =
                    ["-journal", "-wal"].iter().find_map(|end| name.strip_suffix(end.as_bytes())).unwrap_or(name);
                [".db", ".db3", ".sqlite", ".sqlite3"]
                    .iter()
                    .any(|end| main.len() > end.len() && main.ends_with(end.as_bytes()))
            }
            Preset::Postgresql if folder == b"pg_wal" => is_log_segment(name),
            Preset::Postgresql => {
                let in_database = !folder.is_empty() && folder.iter().all(u8::is_ascii_digit);
                (folder == b"global" || in_database) && is_relation(name)
            }
        }
    }
}

/// `16384`, `16384.1`, `16384_fsm`, `t3_16384`.
fn is_relation(name: &[u8]) -> bool {
    let digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let name = match name.strip_prefix(b"t").map(|rest| (rest, rest.iter().position(|byte| *byte == b'_'))) {
        Some((rest, Some(at))) if digits(&rest[..at]) => &rest[at + 1..],
        _ => name,
    };
    let name = match name.iter().position(|byte| *byte == b'.') {
        Some(at) if digits(&name[at + 1..]) => &name[..at],
        Some(_) => return false,
        None => name,
    };
    let fork = ["_fsm", "_vm", "_init"].iter().find_map(|end| name.strip_suffix(end.as_bytes()));
    digits(fork.unwrap_or(name))
}

/// One of the log's own names, or the one under which it is made.
fn is_log_segment(name: &[u8]) -> bool {
    let is_hex = |byte: &u8| byte.is_ascii_digit() || (b'A'..=b'F').contains(byte);
    (name.len() == 24 && name.iter().all(is_hex)) || name.starts_with(b"xlogtemp.")
}

/// What a volume of files says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// Which files it is for.
    pub preset: Preset,
    /// An id that no file had when it was read.
    pub free_id: u32,
    /// How many files there are.
    pub files: u32,
    /// Bytes that no file has.
    pub free_bytes: u64,
}

/// What is known of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Its own, by chance; 0 where there is no such file.
    pub token: u64,
    /// Its length.
    pub size: u64,
    /// What it takes of the volume.
    pub allocated: u64,
}

/// What becomes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// It is made, empty. Invalid where the id is another file's.
    Create,
    /// It is so long, whatever it was.
    Resize(u64),
    /// It is no more. Done where it was not.
    Remove,
    /// It is at least so long, and the piece of its last byte has a place on the volume. What was
    /// there stays.
    Reserve(u64),
}

/// An entry that means nothing in this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what the node says of a file is none of this version's; are both of the same version?")]
pub struct BadEntry;

type Entry = [u8; ENTRY_BYTES];

impl About {
    /// As an entry.
    pub fn bytes(&self) -> Entry {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8] = self.preset.code();
        bytes[12..16].copy_from_slice(&self.free_id.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.files.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.free_bytes.to_le_bytes());
        bytes
    }

    /// From an entry.
    ///
    /// # Errors
    /// It is none of this version.
    pub fn parse(bytes: &Entry) -> Result<About, BadEntry> {
        let rest = bytes[9..12].iter().chain(&bytes[20..24]).chain(&bytes[32..]);
        let preset = Preset::of(bytes[8]).ok_or(BadEntry)?;
        let about =
            About { preset, free_id: u32_at(bytes, 12), files: u32_at(bytes, 16), free_bytes: u64_at(bytes, 24) };
        if bytes[..8] != *MAGIC || rest.copied().any(|byte| byte != 0) || about.free_id >= IDS {
            Err(BadEntry)
        } else {
            Ok(about)
        }
    }
}

impl Attributes {
    /// As an entry.
    pub fn bytes(&self) -> Entry {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&self.token.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.size.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.allocated.to_le_bytes());
        bytes
    }

    /// From an entry.
    ///
    /// # Errors
    /// It is none of this version.
    pub fn parse(bytes: &Entry) -> Result<Attributes, BadEntry> {
        let found = Attributes { token: u64_at(bytes, 0), size: u64_at(bytes, 8), allocated: u64_at(bytes, 16) };
        let is_file = found.token != 0 || found == Attributes::default();
        let is_sound = is_file && found.size < FILE_BYTES_MAX && bytes[24..].iter().all(|byte| *byte == 0);
        if is_sound { Ok(found) } else { Err(BadEntry) }
    }
}

impl Command {
    /// As an entry, for the file of this token.
    pub fn bytes(self, token: u64) -> Entry {
        let mut bytes = [0; ENTRY_BYTES];
        let (code, size) = match self {
            Command::Create => (1, 0),
            Command::Resize(size) => (2, size),
            Command::Remove => (3, 0),
            Command::Reserve(size) => (4, size),
        };
        bytes[0] = code;
        bytes[8..16].copy_from_slice(&token.to_le_bytes());
        bytes[16..24].copy_from_slice(&size.to_le_bytes());
        bytes
    }

    /// From an entry, with the file's token.
    ///
    /// # Errors
    /// It is none of this version.
    pub fn parse(bytes: &Entry) -> Result<(Command, u64), BadEntry> {
        let (token, size) = (u64_at(bytes, 8), u64_at(bytes, 16));
        let command = match bytes[0] {
            1 if size == 0 => Command::Create,
            2 if size < FILE_BYTES_MAX => Command::Resize(size),
            3 if size == 0 => Command::Remove,
            4 if (1..FILE_BYTES_MAX).contains(&size) => Command::Reserve(size),
            _ => return Err(BadEntry),
        };
        let rest = bytes[1..8].iter().chain(&bytes[24..]);
        if token == 0 || rest.copied().any(|byte| byte != 0) { Err(BadEntry) } else { Ok((command, token)) }
    }
}

fn u32_at(bytes: &Entry, at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &Entry, at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

const MAGIC: &[u8; 8] = b"OVSFILES";

/// Entries that each side takes, for fuzzing.
#[doc(hidden)]
pub fn seeds_entries() -> Vec<Vec<u8>> {
    let about = About { preset: Preset::Sqlite, free_id: 7, files: 6, free_bytes: 1 << 30 };
    let attributes = Attributes { token: 9, size: 100_000, allocated: 2 * PIECE_BYTES };
    let commands = [Command::Create, Command::Resize(8192), Command::Remove, Command::Reserve(8192)];
    let commands = commands.map(|command| command.bytes(9));
    let mut all = vec![about.bytes().to_vec(), attributes.bytes().to_vec(), Attributes::default().bytes().to_vec()];
    all.extend(commands.map(Vec::from));
    all
}

/// Reads an entry in every way. What is taken must say itself again. Whether any way takes it.
#[doc(hidden)]
pub fn fuzz_entry(input: &[u8]) -> bool {
    let Ok(bytes) = <&Entry>::try_from(input) else { return false };
    let about =
        About::parse(bytes).inspect(|about| assert_eq!(about.bytes(), *bytes, "what it says of itself")).is_ok();
    let file = Attributes::parse(bytes).inspect(|file| assert_eq!(file.bytes(), *bytes, "a file")).is_ok();
    let command = Command::parse(bytes)
        .inspect(|(command, token)| assert_eq!(command.bytes(*token), *bytes, "a command"))
        .is_ok();
    about || file || command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preset_names_files_and_no_others() {
        let relations = [
            "base/5/1259",
            "base/5/1259_fsm",
            "base/5/16384.12",
            "global/1262_vm",
            "pg_tblspc/1/PG_15_2/5/2_init",
            "base/1/t3_16384",
        ];
        let log = ["pg_wal/0000000100000000000000A1", "d/pg_wal/xlogtemp.71"];
        for path in relations.iter().chain(&log) {
            assert!(Preset::Postgresql.matches(path.as_bytes()), "{path}");
        }
        let others = [
            "base/5/PG_VERSION",
            "global/pg_control",
            "base/5/pg_filenode.map",
            "postmaster.pid",
            "pg_wal/00000002.history",
            "pg_xact/0000",
            "base/5/12.x",
            "base/5/12_fsm.tmp",
            "base/5/pg_internal.init.71",
            "1259",
            "pg_wal/archive_status/0000000100000000000000A1.ready",
        ];
        for path in others {
            assert!(!Preset::Postgresql.matches(path.as_bytes()), "{path}");
        }
        for (path, is) in [
            ("a.db", true),
            ("x/a.sqlite3-wal", true),
            ("a.db-journal", true),
            ("a.db-shm", false),
            (".db", false),
            ("a.txt", false),
            ("", false),
        ] {
            assert_eq!(Preset::Sqlite.matches(path.as_bytes()), is, "{path}");
        }
    }

    #[test]
    fn entries_are_taken_or_refused_and_nothing_panics_near_them() {
        for seed in seeds_entries() {
            assert!(fuzz_entry(&seed), "{seed:?}");
            for at in 0..seed.len() {
                for change in [1, 0x80, 0xff] {
                    let mut near = seed.clone();
                    near[at] ^= change;
                    fuzz_entry(&near);
                }
            }
        }
        assert!(!fuzz_entry(&[]) && !fuzz_entry(&[0xff; 64]));
    }

    #[test]
    fn places_do_not_meet() {
        assert!(entry(IDS - 1) + ENTRY_BYTES as u64 <= place(1, 0));
        assert_eq!(file_at(place(IDS - 1, FILE_BYTES_MAX - 1)), (IDS - 1, FILE_BYTES_MAX - 1));
        assert_eq!(place(IDS - 1, FILE_BYTES_MAX - 1) + 1, SPACE_BYTES);
    }
}
