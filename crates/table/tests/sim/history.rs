//! What clients asked and heard, in the world's order.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use overside_corpus::{Event, Model};

/// A call about one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Insert(u64),
    /// Alone in its batch: it tells whether it replaced a row.
    Upsert(u64),
    /// One row of several: only their number is told.
    UpsertAmong(u64),
    Update(u64),
    Delete,
    /// By a get or a scan.
    Read,
    Create,
    Drop,
    /// Whether there is a table of the name.
    Describe,
}

/// What a call says: whether it took effect or found something, and the value that it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer(pub bool, pub Option<u64>);

/// What a history is about: a row of a table, by the table's number, or a table's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Row(u32, u64),
    Name(&'static str),
}

/// A row, or a name, on its own.
pub struct Value;

impl Model for Value {
    type State = Option<u64>;
    type Call = Call;
    type Answer = Answer;

    fn apply(state: &Option<u64>, call: &Call) -> (Option<u64>, Answer) {
        let there = state.is_some();
        match (*call, there) {
            (Call::Insert(value), false) => (Some(value), Answer(true, None)),
            (Call::Update(value), true) => (Some(value), Answer(true, None)),
            (Call::Insert(_), true) | (Call::Update(_) | Call::Delete | Call::Drop, false) => {
                (*state, Answer(false, None))
            }
            (Call::Upsert(value), _) => (Some(value), Answer(there, None)),
            (Call::UpsertAmong(value), _) => (Some(value), Answer(true, None)),
            (Call::Delete | Call::Drop, true) => (None, Answer(true, None)),
            (Call::Read, _) => (*state, Answer(there, *state)),
            (Call::Create, _) => (Some(0), Answer(!there, None)),
            (Call::Describe, _) => (*state, Answer(there, None)),
        }
    }
}

/// A call, and what became of it.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    pub client: usize,
    pub subject: Subject,
    pub event: Event<Call, Answer>,
    /// It turned out to be about nothing: its table was dropped.
    void: bool,
}

/// All calls of a world.
#[derive(Clone, Default)]
pub struct History {
    records: Arc<Mutex<Vec<Record>>>,
    time: Arc<AtomicU64>,
    /// Numbers of tables that were created.
    tables: Arc<Mutex<BTreeSet<u32>>>,
}

impl History {
    /// The next moment.
    pub fn now(&self) -> u64 {
        self.time.fetch_add(1, Ordering::Relaxed)
    }

    /// Calls begin together; their numbers.
    pub fn begin(&self, client: usize, calls: &[(Subject, Call)]) -> Vec<usize> {
        let began = self.now();
        let mut records = self.records();
        let first = records.len();
        for (at, (subject, call)) in calls.iter().enumerate() {
            // The second row of a key takes effect behind the first.
            let after = calls[..at].iter().rposition(|(other, _)| other == subject).map(|before| first + before);
            let event = Event { call: *call, answer: None, began, ended: u64::MAX, after };
            records.push(Record { client, subject: *subject, event, void: false });
        }
        (first..records.len()).collect()
    }

    /// Calls have ended.
    pub fn end(&self, calls: &[usize], answers: &[Answer]) {
        let ended = self.now();
        let mut records = self.records();
        for (call, answer) in calls.iter().zip(answers) {
            let event = &mut records[*call].event;
            (event.ended, event.answer) = (ended, Some(*answer));
        }
    }

    /// Calls that changed nothing and read nothing: there was no such table.
    pub fn void(&self, calls: &[usize]) {
        let mut records = self.records();
        calls.iter().for_each(|call| records[*call].void = true);
    }

    /// The server has ended: what has no answer by now takes effect no more. Where it was `lost` with
    /// changes that it had shown and not acknowledged, reads and refusals bind nobody.
    pub fn server_ended(&self, lost: bool) {
        let now = self.now();
        for record in self.records().iter_mut() {
            let event = &mut record.event;
            if event.answer.is_none() && event.ended == u64::MAX {
                event.ended = now;
            }
            let reads = matches!(event.call, Call::Read | Call::Describe);
            let refused = event.answer == Some(Answer(false, None));
            record.void |= lost && (reads || (refused && !matches!(event.call, Call::Upsert(_))));
        }
    }

    /// A table was created. Its number was never another one's.
    pub fn created(&self, table: u32) {
        let fresh = self.tables.lock().unwrap_or_else(|e| e.into_inner()).insert(table);
        assert!(fresh, "table number {table} was given twice");
    }

    /// All of them, those about nothing left out.
    pub fn all(&self) -> Vec<Record> {
        self.records().clone()
    }

    fn records(&self) -> MutexGuard<'_, Vec<Record>> {
        self.records.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Record {
    pub fn is_void(&self) -> bool {
        self.void
    }

    /// As a line of JSON.
    pub fn json(&self) -> String {
        let Record { client, subject, event, .. } = self;
        let (call, value) = match event.call {
            Call::Insert(value) => ("insert", Some(value)),
            Call::Upsert(value) => ("upsert", Some(value)),
            Call::UpsertAmong(value) => ("upsert-among", Some(value)),
            Call::Update(value) => ("update", Some(value)),
            Call::Delete => ("delete", None),
            Call::Read => ("read", None),
            Call::Create => ("create", None),
            Call::Drop => ("drop", None),
            Call::Describe => ("describe", None),
        };
        let number = |number: Option<u64>| number.map_or("null".to_owned(), |number| number.to_string());
        let subject = match subject {
            Subject::Row(table, key) => format!("\"table\":{table},\"key\":{key}"),
            Subject::Name(name) => format!("\"name\":\"{name}\""),
        };
        let answer = match event.answer {
            None => "null".to_owned(),
            Some(Answer(effect, read)) => format!("{{\"effect\":{effect},\"read\":{}}}", number(read)),
        };
        let ended = (event.ended < u64::MAX).then_some(event.ended);
        format!(
            "{{\"client\":{client},{subject},\"call\":\"{call}\",\"value\":{},\"answer\":{answer},\
             \"began\":{},\"ended\":{}}}",
            number(value),
            event.began,
            number(ended)
        )
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Record { client, event, .. } = self;
        let Event { call, answer, began, ended, .. } = event;
        let ended = if *ended == u64::MAX { "…".to_owned() } else { ended.to_string() };
        write!(f, "{began:>6} to {ended:>6}  client {client}  {call:?} ")?;
        match answer {
            None => f.write_str("without an answer"),
            Some(Answer(effect, None)) => write!(f, "answered {effect}"),
            Some(Answer(_, Some(read))) => write!(f, "read {read}"),
        }
    }
}
