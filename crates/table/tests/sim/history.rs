//! What clients asked and heard, in the world's order.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use overside_corpus::{Event, Model};
use overside_sim::World;

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
    /// By a scan through an index along which rows move: one that was changed meanwhile may have been missed.
    ReadIfStill,
    Create,
    Drop,
    /// Whether there is a table of the name.
    Describe,
}

impl Call {
    /// What it writes.
    pub fn value(self) -> Option<u64> {
        match self {
            Call::Insert(value) | Call::Upsert(value) | Call::UpsertAmong(value) | Call::Update(value) => Some(value),
            Call::Delete | Call::Read | Call::ReadIfStill => None,
            Call::Create | Call::Drop | Call::Describe => None,
        }
    }

    /// Its name in a trace.
    pub fn name(self) -> &'static str {
        match self {
            Call::Insert(_) => "call: insert",
            Call::Upsert(_) => "call: upsert",
            Call::UpsertAmong(_) => "call: upsert-among",
            Call::Update(_) => "call: update",
            Call::Delete => "call: delete",
            Call::Read => "call: read",
            Call::ReadIfStill => "call: read, if still",
            Call::Create => "call: create",
            Call::Drop => "call: drop",
            Call::Describe => "call: describe",
        }
    }
}

/// What a call says: whether it took effect or found something, and the value that it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer(pub bool, pub Option<u64>);

/// What a history is about: a row of a table, by the table's number; a table's name; an index of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Row(u32, u64),
    Name(&'static str),
    Index(u32, &'static str),
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
            (Call::Read | Call::ReadIfStill, _) => (*state, Answer(there, *state)),
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

/// What a server leaves to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// All that was acknowledged or shown.
    All,
    /// All that was acknowledged, not what was only shown.
    Acknowledged,
    /// What the log has up to some place. It has what was acknowledged by this moment.
    Prefix { whole: u64 },
    /// What the last complete checkpoint has.
    Checkpoint,
}

/// The end of a server.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub at: u64,
    pub left: Left,
    /// It had recovered before.
    pub was_up: bool,
}

/// When somebody asked for a checkpoint, and heard that it is complete. A clean end asks for one, too.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointRequest {
    pub began: u64,
    pub ended: Option<u64>,
}

/// All calls of a world.
#[derive(Clone)]
pub struct History {
    world: World,
    records: Arc<Mutex<Vec<Record>>>,
    /// The world's time at each moment.
    times: Arc<Mutex<Vec<Duration>>>,
    /// Numbers of tables that were created.
    tables: Arc<Mutex<BTreeSet<u32>>>,
    ends: Arc<Mutex<Vec<End>>>,
    checkpoints: Arc<Mutex<Vec<CheckpointRequest>>>,
}

impl History {
    pub fn new(world: &World) -> History {
        History {
            world: world.clone(),
            records: Arc::default(),
            times: Arc::default(),
            tables: Arc::default(),
            ends: Arc::default(),
            checkpoints: Arc::default(),
        }
    }

    pub fn seed(&self) -> u64 {
        self.world.seed()
    }

    /// The next moment.
    pub fn now(&self) -> u64 {
        let mut times = lock(&self.times);
        times.push(self.world.passed());
        times.len() as u64 - 1
    }

    /// The last moment that lies so far back in the world's time.
    fn before(&self, back: Duration) -> u64 {
        let Some(since) = self.world.passed().checked_sub(back) else { return 0 };
        let times = lock(&self.times);
        times.partition_point(|at| *at <= since).saturating_sub(1) as u64
    }

    /// Enters into the trace what was done, to be counted.
    pub fn note(&self, what: &'static str) {
        self.world.note(what, 0);
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

    /// The server has ended: what has no answer by now takes effect no more. A log that lost something may lack
    /// what was acknowledged within `window` before.
    pub fn server_ended(&self, left: Ended, was_up: bool, window: Duration) {
        let whole = self.before(window);
        let at = self.now();
        for record in self.records().iter_mut() {
            let event = &mut record.event;
            if event.answer.is_none() && event.ended == u64::MAX {
                event.ended = at;
            }
        }
        let left = match left {
            Ended::All => Left::All,
            Ended::Acknowledged => Left::Acknowledged,
            Ended::Prefix => Left::Prefix { whole },
            Ended::Checkpoint => Left::Checkpoint,
        };
        let mut ends = lock(&self.ends);
        if left == (Left::Prefix { whole }) && !was_up {
            // What the servers before left was in the kernel's memory until the next one had recovered it.
            for end in ends.iter_mut().rev() {
                if end.left == Left::Acknowledged {
                    end.left = Left::Prefix { whole: whole.min(end.at) };
                }
                if end.was_up {
                    break;
                }
            }
        }
        ends.push(End { at, left, was_up });
    }

    /// The ends of all servers but the last.
    pub fn ends(&self) -> Vec<End> {
        lock(&self.ends).clone()
    }

    /// Somebody asks for a checkpoint; its number.
    pub fn checkpoint_asked(&self) -> usize {
        let began = self.now();
        let mut checkpoints = lock(&self.checkpoints);
        checkpoints.push(CheckpointRequest { began, ended: None });
        checkpoints.len() - 1
    }

    /// It is complete.
    pub fn checkpoint_complete(&self, number: usize) {
        let ended = self.now();
        lock(&self.checkpoints)[number].ended = Some(ended);
    }

    pub fn checkpoints(&self) -> Vec<CheckpointRequest> {
        lock(&self.checkpoints).clone()
    }

    /// A table was created. Its number was never another one's, whatever its server lost.
    pub fn created(&self, table: u32) {
        assert!(lock(&self.tables).insert(table), "table number {table} was given twice");
    }

    /// All of them, those about nothing left out.
    pub fn all(&self) -> Vec<Record> {
        self.records().clone()
    }

    fn records(&self) -> MutexGuard<'_, Vec<Record>> {
        lock(&self.records)
    }

    /// As lines of JSON, in the order of their beginnings.
    pub fn json(&self) -> String {
        let mut lines: Vec<(u64, String)> = Vec::new();
        lines.extend(self.all().iter().filter(|r| !r.is_void()).map(|r| (r.event.began, r.json())));
        lines.extend(self.checkpoints().iter().map(|asked| (asked.began, asked.json())));
        lines.extend(self.ends().iter().map(|end| (end.at, end.json())));
        lines.sort_by_key(|(at, _)| *at);
        lines.into_iter().map(|(_, line)| line + "\n").collect()
    }
}

/// How a server ended, for what it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    All,
    Acknowledged,
    Prefix,
    Checkpoint,
}

impl End {
    fn json(&self) -> String {
        let End { at, left, .. } = self;
        let left = match left {
            Left::All => "all",
            Left::Acknowledged => "acknowledged",
            Left::Prefix { .. } => "prefix",
            Left::Checkpoint => "checkpoint",
        };
        format!(
            "{{\"process\":\"server\",\"kind\":\"end\",\"key\":null,\"value\":null,\"invoked\":{at},\"returned\":{at},\
             \"until\":{at},\"result\":\"{left}\"}}"
        )
    }
}

impl CheckpointRequest {
    fn json(&self) -> String {
        let CheckpointRequest { began, ended } = self;
        let returned = ended.map_or("null".to_owned(), |ended| ended.to_string());
        format!(
            "{{\"process\":\"client\",\"kind\":\"checkpoint\",\"key\":null,\"value\":null,\"invoked\":{began},\
             \"returned\":{returned},\"until\":null,\"result\":null}}"
        )
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Record {
    pub fn is_void(&self) -> bool {
        self.void
    }

    /// As a line of JSON.
    pub fn json(&self) -> String {
        let Record { client, subject, event, .. } = self;
        let call = event.call.name().trim_start_matches("call: ");
        let number = |number: Option<u64>| number.map_or("null".to_owned(), |number| number.to_string());
        let key = match subject {
            Subject::Row(table, key) => format!("{table}/{key}"),
            Subject::Name(name) => format!("table {name}"),
            Subject::Index(table, column) => format!("index {table}/{column}"),
        };
        let result = match event.answer {
            None => "null".to_owned(),
            Some(Answer(done, read)) => format!("{{\"done\":{done},\"read\":{}}}", number(read)),
        };
        let ended = (event.ended < u64::MAX).then_some(event.ended);
        format!(
            "{{\"process\":\"client {client}\",\"kind\":\"{call}\",\"key\":\"{key}\",\"value\":{},\"invoked\":{},\
             \"returned\":{},\"until\":{},\"result\":{result}}}",
            number(event.call.value()),
            event.began,
            number(event.answer.and(ended)),
            number(ended),
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
