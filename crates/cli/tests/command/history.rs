//! What clients do to a table: a client's changes have numbers, and each is known by client and number alone. So whoever knows how many
//! were acknowledged knows which rows must be there, in another process and after a crash.

use overside::table::client::{Client as Connection, ClientError, RemoteTable, ScanOptions};
use overside::table::row::ValueRef;
use overside::table::schema::{Column, ColumnType, Schema};
use overside::table::wire::PutMode;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows by their number within a client's; the number of the change that put each.
pub type Rows = BTreeMap<u64, u64>;

/// A client's change.
enum Change {
    Put(std::ops::Range<u64>),
    Delete(u64),
}

impl Change {
    /// The change with this number of a client.
    fn of(client: u64, number: u64) -> Change {
        let chance = mixed(client << 40 | number);
        let row = HOT + (chance >> 8) % (ROWS - HOT - TOGETHER);
        match chance % 8 {
            0 | 1 => Change::Delete(row),
            2 => Change::Put(row..row + TOGETHER),
            3 | 4 => Change::Put((chance >> 8) % HOT..(chance >> 8) % HOT + 1),
            _ => Change::Put(row..row + 1),
        }
    }

    fn rows(&self) -> std::ops::Range<u64> {
        match self {
            Change::Put(rows) => rows.clone(),
            Change::Delete(row) => *row..*row + 1,
        }
    }

    fn apply(&self, number: u64, to: &mut Rows) {
        match self {
            Change::Put(rows) => to.extend(rows.clone().map(|row| (row, number))),
            Change::Delete(row) => drop(to.remove(row)),
        }
    }
}

/// A client, and what is known of its changes.
pub struct Client {
    number: u64,
    /// What was there when change `base_at` had been made, and no later one.
    base: Rows,
    base_at: u64,
    /// The last change that was acknowledged, and the last that began.
    pub acknowledged: AtomicU64,
    begun: u64,
    /// A change that may have been made before it is made.
    again: u64,
    /// From where on changes may be lost, where not all that was acknowledged survives.
    pub lost_from: Option<u64>,
    /// Rows of other clients that were shown to this one: the newest change of each.
    shown: BTreeMap<(u64, u64), u64>,
}

impl Client {
    /// A client of which these many changes were acknowledged. The next may have been made, and is made again.
    pub fn after(number: u64, acknowledged: u64) -> Client {
        let (base, base_at, begun) = (Rows::new(), 0, acknowledged);
        let (again, shown) = (acknowledged + 1, BTreeMap::new());
        Client { number, base, base_at, acknowledged: acknowledged.into(), begun, again, lost_from: None, shown }
    }

    /// What is there after change `number`.
    fn at(&self, number: u64) -> Rows {
        let mut rows = self.base.clone();
        (self.base_at + 1..=number).for_each(|number| Change::of(self.number, number).apply(number, &mut rows));
        rows
    }

    /// Makes changes, and looks at rows now and then, until the server is gone. `each` is told of those that were acknowledged.
    pub fn load(&mut self, connection: &mut Connection, table: &RemoteTable, mut each: impl FnMut(u64)) {
        let mut rows = self.at(self.begun);
        loop {
            let number = self.begun + 1;
            self.begun = number;
            if self.make(connection, table, number, &mut rows).is_err() {
                return;
            }
            self.acknowledged.store(number, Ordering::Release);
            each(number);
            if mixed(number).is_multiple_of(4) && self.look(connection, table, number, &rows).is_err() {
                return;
            }
        }
    }

    fn make(
        &self,
        connection: &mut Connection,
        table: &RemoteTable,
        number: u64,
        rows: &mut Rows,
    ) -> Result<(), ClientError> {
        let change = Change::of(self.number, number);
        match &change {
            Change::Put(changed) => {
                let mut batch = table.batch();
                for row in changed.clone() {
                    let text = text(self.number, row, number);
                    batch.push(&[
                        ValueRef::UInt64(id(self.number, row)),
                        ValueRef::UInt64(number),
                        ValueRef::Utf8(&text),
                    ])?;
                }
                let applied = connection.put(table, PutMode::Upsert, &batch)?;
                assert_eq!(u64::from(applied.applied), changed.end - changed.start);
            }
            Change::Delete(row) => {
                let deleted = connection.delete(table, &[ValueRef::UInt64(id(self.number, *row))])?;
                let is_right = deleted == rows.contains_key(row) || number == self.again;
                assert!(is_right, "client {}, change {number}: row {row} deleted: {deleted}", self.number);
            }
        }
        change.apply(number, rows);
        Ok(())
    }

    /// A row of this client, which must be as it left it, and one of another's.
    fn look(
        &mut self,
        connection: &mut Connection,
        table: &RemoteTable,
        number: u64,
        rows: &Rows,
    ) -> Result<(), ClientError> {
        let chance = mixed(number ^ 0x5555);
        let row = chance % ROWS;
        let found = version(connection, table, self.number, row)?;
        assert_eq!(found.as_ref(), rows.get(&row), "client {}, row {row} after change {number}", self.number);
        let (other, row) = ((self.number + 1) % CLIENTS, (chance >> 16) % HOT);
        if let Some(version) = version(connection, table, other, row)? {
            let newest = self.shown.entry((other, row)).or_default();
            *newest = version.max(*newest);
        }
        Ok(())
    }

    /// All that was acknowledged is there, and nothing that was never begun; each row as its last acknowledged change left it, or a later
    /// one without a reply.
    pub fn check(&self, found: &BTreeMap<u64, Rows>) {
        let none = Rows::new();
        let found = found.get(&self.number).unwrap_or(&none);
        let from = self.lost_from.unwrap_or(self.acknowledged.load(Ordering::Acquire));
        let mut rows = self.at(from);
        let mut possible: BTreeMap<u64, BTreeSet<Option<u64>>> =
            (0..ROWS).map(|row| (row, BTreeSet::from([rows.get(&row).copied()]))).collect();
        for number in from + 1..=self.begun.max(from + 1) {
            let change = Change::of(self.number, number);
            change.apply(number, &mut rows);
            change.rows().for_each(|row| _ = possible.get_mut(&row).unwrap().insert(rows.get(&row).copied()));
        }
        for (row, possible) in &possible {
            let found = found.get(row).copied();
            let (client, begun) = (self.number, self.begun);
            assert!(
                possible.contains(&found),
                "client {client}, row {row}: {found:?} is not among {possible:?} ({from} acknowledged, {begun} begun)"
            );
        }
        assert!(found.keys().all(|row| *row < ROWS), "rows that nobody wrote");
    }

    /// What was shown to this client, in [`load`](Self::load), is there.
    pub fn check_shown(&self, found: &BTreeMap<u64, Rows>) {
        for ((client, row), version) in &self.shown {
            let now = found.get(client).and_then(|rows| rows.get(row)).copied();
            assert!(now >= Some(*version), "row {row} of client {client}: {version} was shown, and {now:?} is there");
        }
    }

    /// After a crash: what is there, is there; changes go on behind all that were begun.
    pub fn go_on(&mut self, found: &BTreeMap<u64, Rows>) {
        self.base = found.get(&self.number).cloned().unwrap_or_default();
        self.base_at = self.begun;
        *self.acknowledged.get_mut() = self.begun;
        (self.again, self.lost_from) = (0, None);
    }
}

pub fn schema() -> Schema {
    let columns = [("id", ColumnType::UInt64), ("version", ColumnType::UInt64), ("text", ColumnType::Utf8)];
    Schema::with_key(columns.into_iter().map(|(name, ty)| Column::new(name, ty)).collect(), &["id"]).unwrap()
}

/// The rows of each client. Every byte of them is checked.
pub fn all(connection: &mut Connection, table: &RemoteTable) -> BTreeMap<u64, Rows> {
    let mut found: BTreeMap<u64, Rows> = BTreeMap::new();
    let mut scan = connection.scan(table, &ScanOptions::default()).unwrap();
    while let Some(block) = scan.next_block().unwrap() {
        for row in block.rows() {
            let [ValueRef::UInt64(id), ValueRef::UInt64(version)] = [0, 1].map(|column| row.value(column).unwrap())
            else {
                panic!("columns of other types");
            };
            let (client, number) = (id >> 32, id & u64::from(u32::MAX));
            assert!(row.str(2).unwrap() == Some(&text(client, number, version)), "row {id} of change {version}");
            let twice = found.entry(client).or_default().insert(number, version);
            assert_eq!(twice, None, "row {id} came twice");
        }
    }
    found
}

fn version(
    connection: &mut Connection,
    table: &RemoteTable,
    client: u64,
    row: u64,
) -> Result<Option<u64>, ClientError> {
    let found = connection.get(table, &[ValueRef::UInt64(id(client, row))])?;
    Ok(found.map(|found| match found.view().value(1) {
        Ok(ValueRef::UInt64(version)) => version,
        other => panic!("{other:?} is no version"),
    }))
}

fn id(client: u64, row: u64) -> u64 {
    client << 32 | row
}

/// What a change writes into a row. A few are longer than a page.
fn text(client: u64, row: u64, version: u64) -> String {
    let chance = mixed(client ^ row << 20 ^ version << 40);
    let length = if chance.is_multiple_of(29) { 12_000 } else { chance >> 8 } as usize % 12_001;
    let length = if length == 12_000 { length } else { length % 300 };
    char::from(b'a' + (chance % 26) as u8).to_string().repeat(length)
}

/// Any number, the same for the same one.
pub fn mixed(number: u64) -> u64 {
    let number = (number ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

pub const CLIENTS: u64 = 4;
/// Rows of each client; the first are put often and never deleted.
const ROWS: u64 = 96;
const HOT: u64 = 4;
/// Rows of a put of several.
const TOGETHER: u64 = 8;
