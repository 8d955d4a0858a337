//! What a client does, by chance, and what it makes of the answers.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use overside_sim::{Chance, World};
use overside_table::block::{Answer as Block, LentError};
use overside_table::client::{Client, ClientError, ClientOptions, LinkError, RemoteTable, ScanOptions};
use overside_table::row::{Bytes, RowView, ValueRef};
use overside_table::schema::{Column, ColumnType, Schema};
use overside_table::wire::{Durability, FaultCode, Mode, PutMode};
use overside_verbs::Provider;

use super::history::{Answer, Call, History, Subject};

/// What all clients of a world have in common.
#[derive(Clone)]
pub struct Load {
    pub keys: u64,
    pub calls: usize,
    /// How tables survive their server.
    pub kept: Option<Durability>,
    /// Values with a longer rest lie outside of their page.
    pub inline_max: usize,
    /// One call in so many asks for a checkpoint; none where it is 0.
    pub checkpoint_one_in: u64,
    /// Tables come and go often.
    pub restless: bool,
    /// Names of tables that come and go.
    pub names: u64,
    /// Most puts insert, one row at a time, and most rows are there.
    pub refusing: bool,
    /// Every put has several rows.
    pub heavy: bool,
    pub history: History,
}

/// A client: its connection, when it has one, and the tables that it knows.
pub struct Caller {
    world: World,
    provider: Arc<dyn Provider>,
    number: usize,
    load: Load,
    chance: Chance,
    client: Option<Client>,
    tables: BTreeMap<&'static str, RemoteTable>,
    values: u64,
}

/// The table that is always there, and those that come and go.
pub const MAIN: &str = "main";
const OTHERS: [&str; 2] = ["a", "b"];
/// The indexes that come and go: along the one rows move, along the other each keeps its place.
const INDEXES: [(&str, usize); 2] = [("value", 1), ("home", 3)];

/// Where a key's row is at home.
fn home(key: u64) -> u64 {
    key % 3
}

pub fn schema() -> Schema {
    let columns = vec![
        Column::new("id", ColumnType::UInt64),
        Column::new("value", ColumnType::UInt64),
        Column::new("text", ColumnType::Utf8),
        Column::new("home", ColumnType::UInt64),
    ];
    Schema::with_key(columns, &["id"]).unwrap()
}

/// The text of a value: short, or long enough to lie outside of its page.
fn text(value: u64) -> String {
    let long = [10, 10, 30, 30, 100, 400, 3000, 8000][(value.wrapping_mul(0x9E37_79B9) >> 8) as usize % 8];
    let letter = char::from(b'a' + (value % 26) as u8);
    let mut text = value.to_string();
    text.extend(std::iter::repeat_n(letter, long));
    text
}

/// A row as it was read: its key, its value, and its text where that was asked for.
pub type Row = (u64, u64, Option<String>);

pub fn read<P: Bytes>(row: &RowView<'_, P>, with_text: bool) -> Option<Row> {
    let mut text = String::new();
    let whole = !with_text || row.copy_str(2, &mut text).ok()?;
    whole.then_some((row.u64(0)?, row.u64(1)?, with_text.then_some(text)))
}

/// The key and the value of a row, whose text must be that value's.
pub fn checked(row: Option<Row>) -> (u64, u64) {
    let (key, value, found) = row.expect("a row that can be read");
    assert!(found.is_none_or(|found| found == text(value)), "the row of value {value} is not whole");
    (key, value)
}

/// The value of a row, whose text must be that value's.
fn value_of(row: &RowView<'_>, key: u64) -> u64 {
    let (found, value) = checked(read(row, true));
    assert_eq!(found, key, "a row of another key");
    value
}

/// Whether a call's outcome is unknown because its connection ended.
fn is_lost(error: &ClientError) -> bool {
    match error {
        ClientError::Link(LinkError::TimedOut(_)) => panic!("a server that is there did not answer: {error}"),
        ClientError::Link(_) | ClientError::Partly { .. } | ClientError::Lent(LentError::Revoked) => true,
        _ => false,
    }
}

fn is_refused(error: &ClientError, with: FaultCode) -> bool {
    matches!(error, ClientError::Refused { code, .. } if *code == with)
}

impl Caller {
    pub fn new(world: &World, provider: Arc<dyn Provider>, number: usize, load: Load) -> Caller {
        let chance = world.chance(&format!("client {number}"));
        let (world, client, tables) = (world.clone(), None, BTreeMap::new());
        Caller { world, provider, number, load, chance, client, tables, values: 0 }
    }

    /// Makes the calls of its load.
    pub fn run(mut self) {
        for _ in 0..self.load.calls {
            if self.chance.one_in(8) {
                self.world.clock().sleep(Duration::from_micros(self.chance.below(5000)));
            }
            if self.client.is_none() {
                self.connect();
            }
            match self.call() {
                Ok(()) => {}
                // Refused before anything was changed.
                Err(error) if self.load.kept.is_some() && is_refused(&error, FaultCode::DiskFull) => {
                    self.load.history.note("client: refused, disk full");
                }
                // A segment of the log must hold a request.
                Err(error) if self.load.kept.is_some() && is_refused(&error, FaultCode::TooLarge) => {}
                Err(error) => self.lose(&error),
            }
        }
    }

    /// Reads all rows of the table that is always there.
    pub fn read_all(mut self) {
        for mode in [Mode::Copy, Mode::Auto] {
            loop {
                self.connect();
                let read = self.table(MAIN).and_then(|table| match table {
                    Some(table) => self.scan_range(&table, 0, self.load.keys, mode),
                    None => Ok(()),
                });
                match read {
                    Ok(()) => break,
                    Err(error) if is_refused(&error, FaultCode::DiskFull) => {
                        self.world.clock().sleep(Duration::from_millis(20));
                    }
                    // Another server has lost it meanwhile.
                    Err(error) if is_refused(&error, FaultCode::UnknownTable) => self.tables.clear(),
                    Err(error) => self.lose(&error),
                }
            }
        }
    }

    /// The connection is gone.
    fn lose(&mut self, error: &ClientError) {
        assert!(is_lost(error), "client {}: {error}", self.number);
        self.client = None;
        // It goes on with the tables that it knows: a number that the next server has lost means no other table.
        self.load.history.note("client: connection lost");
    }

    fn connect(&mut self) {
        let options = ClientOptions { blocks: 4, ..ClientOptions::default() };
        while self.client.is_none() {
            match Client::connect_with(self.provider.clone(), "tables", options) {
                Ok(client) => self.client = Some(client),
                Err(error) => {
                    assert!(is_lost(&error), "client {}: {error}", self.number);
                    self.world.clock().sleep(Duration::from_millis(20));
                }
            }
        }
    }

    fn client(&mut self) -> &mut Client {
        self.client.as_mut().expect("it was connected before the call")
    }

    fn begin(&self, calls: &[(Subject, Call)]) -> Vec<usize> {
        if let Some((_, call)) = calls.first() {
            self.load.history.note(call.name());
        }
        self.load.history.begin(self.number, calls)
    }

    fn end(&self, calls: &[usize], answers: &[Answer]) {
        self.load.history.end(calls, answers);
    }

    fn fresh(&mut self) -> u64 {
        self.values += 1;
        self.values << 8 | self.number as u64
    }

    fn call(&mut self) -> Result<(), ClientError> {
        if self.load.kept.is_some() && self.chance.one_in(self.load.checkpoint_one_in) {
            return self.checkpoint();
        }
        let restless = self.load.restless && self.chance.one_in(2);
        if self.load.refusing && !restless && self.chance.one_in(2) {
            let Some(table) = self.table(MAIN)? else { return Ok(()) };
            let deletes = self.chance.one_in(4);
            let done = if deletes { self.delete(&table) } else { self.put_rows(&table, PutMode::Insert, 1) };
            return self.known(MAIN, done);
        }
        match self.chance.below(if restless { 3 } else { 40 }) {
            0 => self.create(),
            1 => self.drop_table(),
            2 if self.chance.one_in(3) => self.list(),
            2 => self.describe(),
            kind => {
                let others = (3..6).contains(&kind);
                let name = if others { OTHERS[self.chance.below(self.load.names) as usize] } else { MAIN };
                let Some(table) = self.table(name)? else { return Ok(()) };
                let done = match kind {
                    3..16 => self.put(&table),
                    16..20 => self.delete(&table),
                    20..27 => self.get(&table),
                    27..32 => self.scan(&table),
                    32..34 => self.create_index(&table),
                    34 => self.drop_index(&table),
                    _ => self.scan_index(&table),
                };
                self.known(name, done)
            }
        }
    }

    /// What came of a call; a table that is no more is looked up again.
    fn known(&mut self, name: &'static str, done: Result<(), ClientError>) -> Result<(), ClientError> {
        if done.as_ref().is_err_and(|error| is_refused(error, FaultCode::UnknownTable)) {
            self.tables.remove(name);
            return Ok(());
        }
        done
    }

    /// The table of a name; where it does not know it, it looks it up.
    fn table(&mut self, name: &'static str) -> Result<Option<RemoteTable>, ClientError> {
        if let Some(table) = self.tables.get(name) {
            return Ok(Some(table.clone()));
        }
        if name != MAIN {
            self.describe_name(name)?;
            return Ok(self.tables.get(name).cloned());
        }
        let table = match self.client().create_table(MAIN, &schema()) {
            Err(error) if is_refused(&error, FaultCode::TableExists) => self.client().table(MAIN)?,
            table => table.inspect(|table| self.load.history.created(table.info().id))?,
        };
        self.tables.insert(MAIN, table.clone());
        Ok(Some(table))
    }

    fn create(&mut self) -> Result<(), ClientError> {
        let name = OTHERS[self.chance.below(self.load.names) as usize];
        let call = self.begin(&[(Subject::Name(name), Call::Create)]);
        match self.client().create_table(name, &schema()).inspect_err(|error| self.void_full(error, &call)) {
            Ok(table) => {
                self.load.history.created(table.info().id);
                self.end(&call, &[Answer(true, None)]);
                self.tables.insert(name, table);
            }
            Err(error) if is_refused(&error, FaultCode::TableExists) => self.end(&call, &[Answer(false, None)]),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn drop_table(&mut self) -> Result<(), ClientError> {
        let name = OTHERS[self.chance.below(self.load.names) as usize];
        let call = self.begin(&[(Subject::Name(name), Call::Drop)]);
        match self.client().drop_table(name).inspect_err(|error| self.void_full(error, &call)) {
            Ok(()) => self.end(&call, &[Answer(true, None)]),
            Err(error) if is_refused(&error, FaultCode::UnknownTable) => self.end(&call, &[Answer(false, None)]),
            Err(error) => return Err(error),
        }
        self.tables.remove(name);
        Ok(())
    }

    fn describe(&mut self) -> Result<(), ClientError> {
        let name = OTHERS[self.chance.below(self.load.names) as usize];
        self.describe_name(name)
    }

    fn describe_name(&mut self, name: &'static str) -> Result<(), ClientError> {
        let call = self.begin(&[(Subject::Name(name), Call::Describe)]);
        match self.client().table(name) {
            Ok(table) => {
                self.end(&call, &[Answer(true, None)]);
                self.tables.insert(name, table);
            }
            Err(error) if is_refused(&error, FaultCode::UnknownTable) => self.end(&call, &[Answer(false, None)]),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn list(&mut self) -> Result<(), ClientError> {
        let call = self.begin(&OTHERS.map(|name| (Subject::Name(name), Call::Describe)));
        let tables = self.client().tables()?;
        let is_there = |name| Answer(tables.iter().any(|table| table.name == name), None);
        self.end(&call, &OTHERS.map(is_there));
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), ClientError> {
        self.load.history.note("call: checkpoint");
        let asked = self.load.history.checkpoint_asked();
        match self.client().checkpoint() {
            Ok(_) => {
                self.load.history.note("server: checkpoint complete");
                self.load.history.checkpoint_complete(asked);
            }
            // It says that the last one still counts, for the disk fails or the server ends.
            Err(ClientError::Refused { .. }) => self.load.history.note("client: checkpoint refused"),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn put(&mut self, table: &RemoteTable) -> Result<(), ClientError> {
        let mode = [PutMode::Upsert, PutMode::Insert, PutMode::Update][self.chance.below(3) as usize];
        let several = self.load.heavy || self.chance.one_in(3);
        let rows = if several { 2 + self.chance.below(if self.load.heavy { 2 } else { 5 }) } else { 1 };
        self.put_rows(table, mode, rows)
    }

    fn put_rows(&mut self, table: &RemoteTable, mode: PutMode, rows: u64) -> Result<(), ClientError> {
        let mut batch = table.batch();
        let mut calls = Vec::new();
        for _ in 0..rows {
            let (key, value) = (self.chance.below(self.load.keys), self.fresh());
            let text = text(value);
            if text.len() > self.load.inline_max {
                self.load.history.note("put: overflow");
            }
            let (id, value_of, home) = (ValueRef::UInt64(key), ValueRef::UInt64(value), ValueRef::UInt64(home(key)));
            batch.push(&[id, value_of, ValueRef::Utf8(&text), home])?;
            let call = match mode {
                PutMode::Upsert if rows == 1 => Call::Upsert(value),
                PutMode::Upsert => Call::UpsertAmong(value),
                PutMode::Insert => Call::Insert(value),
                PutMode::Update => Call::Update(value),
            };
            calls.push((Subject::Row(table.info().id, key), call));
        }
        if rows > 1 {
            self.load.history.note("put: batch");
        }
        let begun = self.begin(&calls);
        let applied = self.client().put(table, mode, &batch).inspect_err(|error| self.void(error, &begun))?;
        assert_eq!(u64::from(applied.rows), rows, "rows that were not looked at: {applied:?}");
        let answer = |row: u32| match applied.failed.iter().find(|(at, _)| *at == row) {
            Some((_, code)) => {
                let expected = if mode == PutMode::Insert { FaultCode::Duplicate } else { FaultCode::NotFound };
                assert_eq!(*code, expected, "{applied:?}");
                Answer(false, None)
            }
            None => Answer(if mode == PutMode::Upsert && rows == 1 { applied.replaced == 1 } else { true }, None),
        };
        let answers: Vec<Answer> = (0..rows as u32).map(answer).collect();
        self.end(&begun, &answers);
        Ok(())
    }

    fn delete(&mut self, table: &RemoteTable) -> Result<(), ClientError> {
        let key = self.chance.below(self.load.keys);
        let begun = self.begin(&[(Subject::Row(table.info().id, key), Call::Delete)]);
        let deleted = self.client().delete(table, &[ValueRef::UInt64(key)]);
        let deleted = deleted.inspect_err(|error| self.void(error, &begun))?;
        self.end(&begun, &[Answer(deleted, None)]);
        Ok(())
    }

    fn get(&mut self, table: &RemoteTable) -> Result<(), ClientError> {
        let key = self.chance.below(self.load.keys);
        self.get_key(table, key)
    }

    fn get_key(&mut self, table: &RemoteTable, key: u64) -> Result<(), ClientError> {
        let begun = self.begin(&[(Subject::Row(table.info().id, key), Call::Read)]);
        let row = self.client().get(table, &[ValueRef::UInt64(key)]);
        let row = row.inspect_err(|error| self.void(error, &begun))?;
        let value = row.map(|row| value_of(&row.view(), key));
        self.end(&begun, &[Answer(value.is_some(), value)]);
        Ok(())
    }

    fn scan(&mut self, table: &RemoteTable) -> Result<(), ClientError> {
        let keys = self.load.keys;
        let (from, to) = match self.chance.one_in(2) {
            true => (0, keys),
            false => (self.chance.below(keys), 1 + self.chance.below(keys)),
        };
        let modes = [Mode::Copy, Mode::Gather, Mode::Delta, Mode::InPlace, Mode::Auto];
        let mode = modes[self.chance.below(modes.len() as u64) as usize];
        self.scan_range(table, from, to, mode)
    }

    fn scan_range(&mut self, table: &RemoteTable, from: u64, to: u64, mode: Mode) -> Result<(), ClientError> {
        let read = |key| (Subject::Row(table.info().id, key), Call::Read);
        let in_place = self.chance.one_in(3);
        let columns: Option<&[usize]> = if self.chance.one_in(4) { Some(&[0, 1]) } else { None };
        self.load.history.note(match mode {
            _ if in_place => "scan: read in place",
            Mode::Auto => "scan: auto",
            Mode::Copy => "scan: copy",
            Mode::Gather => "scan: gather",
            Mode::Delta => "scan: delta",
            Mode::InPlace => "scan: in place, copied out",
        });
        let (from_key, to_key) = ([ValueRef::UInt64(from)], [ValueRef::UInt64(to)]);
        let (lower, upper) = (Bound::Included(&from_key[..]), Bound::Excluded(&to_key[..]));
        let options = ScanOptions { mode, columns, from: lower, to: upper, ..ScanOptions::default() };
        let begun = self.begin(&(from..to).map(read).collect::<Vec<_>>());
        let found = read_range(self.client(), table, &options, in_place);
        let found = found.inspect_err(|error| self.void(error, &begun))?;
        let answer = |key| Answer(found.contains_key(&key), found.get(&key).copied());
        self.end(&begun, &(from..to).map(answer).collect::<Vec<_>>());
        Ok(())
    }

    fn create_index(&mut self, table: &RemoteTable) -> Result<(), ClientError> {
        let (name, column) = INDEXES[self.chance.below(2) as usize];
        let call = self.begin(&[(Subject::Index(table.info().id, name), Call::Create)]);
        match self.client().create_index(table, &[column], |_, _| {}).inspect_err(|error| self.void(error, &call)) {
            Ok(_) => {
                self.load.history.note("index: created");
                self.end(&call, &[Answer(true, None)]);
            }
            Err(ClientError::Refused { code: FaultCode::TableExists, text }) => {
                if text.contains("is being given") {
                    // It may never be there.
                    self.load.history.void(&call);
                } else {
                    self.end(&call, &[Answer(false, None)]);
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn drop_index(&mut self, table: &RemoteTable) -> Result<(), ClientError> {
        let (name, column) = INDEXES[self.chance.below(2) as usize];
        let call = self.begin(&[(Subject::Index(table.info().id, name), Call::Drop)]);
        match self.client().drop_index(table, &[column]).inspect_err(|error| self.void(error, &call)) {
            Ok(()) => {
                self.load.history.note("index: dropped");
                self.end(&call, &[Answer(true, None)]);
            }
            Err(error) if is_refused(&error, FaultCode::BadRequest) => self.end(&call, &[Answer(false, None)]),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Reads all rows through an index, or those at one home.
    fn scan_index(&mut self, table: &RemoteTable) -> Result<(), ClientError> {
        let (name, column) = INDEXES[self.chance.below(2) as usize];
        let modes = [Mode::Copy, Mode::Gather, Mode::Delta, Mode::InPlace, Mode::Auto];
        let mode = modes[self.chance.below(modes.len() as u64) as usize];
        let (at_home, moves) = (ValueRef::UInt64(self.chance.below(3)), name == "value");
        let one = [at_home];
        let one_home = !moves && self.chance.one_in(2);
        let keys = (0..self.load.keys).filter(|key| !one_home || ValueRef::UInt64(home(*key)) == at_home);
        let keys: Vec<u64> = keys.collect();
        let bound = if one_home { Bound::Included(&one[..]) } else { Bound::Unbounded };
        let index = [column];
        let options = ScanOptions { mode, from: bound, to: bound, index: Some(&index), ..ScanOptions::default() };
        let read = if moves { Call::ReadIfStill } else { Call::Read };
        let id = table.info().id;
        let shows = self.begin(&[(Subject::Index(id, name), Call::Describe)]);
        let begun = self.begin(&keys.iter().map(|key| (Subject::Row(id, *key), read)).collect::<Vec<_>>());
        let in_place = self.chance.one_in(3);
        let rows = read_rows(self.client(), table, &options, in_place).inspect_err(|error| {
            self.void(error, &begun);
            self.void(error, &shows);
        });
        let rows = match rows {
            Err(error) if is_refused(&error, FaultCode::BadRequest) => {
                self.load.history.void(&begun);
                self.end(&shows, &[Answer(false, None)]);
                return Ok(());
            }
            rows => rows?,
        };
        self.load.history.note(if moves { "scan: through an index that moves" } else { "scan: through an index" });
        let mut found = BTreeMap::new();
        let mut last = None;
        for (key, value) in rows {
            let place = if moves { (value, key) } else { (home(key), key) };
            assert!(last.is_none_or(|last| last < place), "{place:?} is out of order in a scan through {name}");
            last = Some(place);
            assert!(found.insert(key, value).is_none() || moves, "{key} comes twice through {name}");
        }
        assert!(found.keys().all(|key| keys.contains(key)), "a row of another home: {found:?}");
        self.end(&shows, &[Answer(true, None)]);
        let answer = |key: &u64| Answer(found.contains_key(key), found.get(key).copied());
        self.end(&begun, &keys.iter().map(answer).collect::<Vec<_>>());
        // What is missing in the index must be missing in the table.
        match keys.iter().find(|key| !found.contains_key(key)) {
            Some(key) => self.get_key(table, *key),
            None => Ok(()),
        }
    }

    /// A table that was dropped has no rows whose calls could be explained, and what the log has no room for changes nothing.
    fn void(&self, error: &ClientError, begun: &[usize]) {
        let codes = [FaultCode::UnknownTable, FaultCode::DiskFull, FaultCode::TooLarge];
        if codes.into_iter().any(|code| is_refused(error, code)) {
            self.load.history.void(begun);
        }
    }

    fn void_full(&self, error: &ClientError, begun: &[usize]) {
        if is_refused(error, FaultCode::DiskFull) {
            self.load.history.void(begun);
        }
    }
}

/// The rows of a range, which must come in ascending order, each once.
fn read_range(
    client: &mut Client,
    table: &RemoteTable,
    options: &ScanOptions<'_>,
    in_place: bool,
) -> Result<BTreeMap<u64, u64>, ClientError> {
    let mut found = BTreeMap::new();
    for (key, value) in read_rows(client, table, options, in_place)? {
        assert!(found.last_key_value().is_none_or(|(last, _)| *last < key), "{key} is out of order in a scan");
        found.insert(key, value);
    }
    Ok(found)
}

/// The rows of a scan, in the order in which they come.
fn read_rows(
    client: &mut Client,
    table: &RemoteTable,
    options: &ScanOptions<'_>,
    in_place: bool,
) -> Result<Vec<(u64, u64)>, ClientError> {
    let with_text = options.columns.is_none();
    let mut found = Vec::new();
    let mut take = |rows: Vec<Option<Row>>| found.extend(rows.into_iter().map(checked));
    if !in_place {
        let mut scan = client.scan(table, options)?;
        while let Some(block) = scan.next_block()? {
            take(block.rows().map(|row| read(&row, with_text)).collect());
        }
        return Ok(found);
    }
    let mut scan = client.scan_in_place(table, options)?;
    while let Some(answer) = scan.next_in_place()? {
        take(match &answer {
            Block::Copied(block) => block.rows().map(|row| read(&row, with_text)).collect(),
            // What was read counts only if the server still vouches for it afterwards.
            Block::Lent(block) => {
                let rows = block.read(|rows| rows.map(|row| read(&row, with_text)).collect());
                rows.map_err(ClientError::Lent)?
            }
        });
    }
    Ok(found)
}
