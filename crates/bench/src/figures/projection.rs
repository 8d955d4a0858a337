//! `projection`: rows of four columns, each without the columns that a query leaves out (d-rdma
//! §2.2).

use super::{
    Setting,
    charts::{Curve, Curves, curves},
    figure::{Figure, Point},
    records::Copying,
    sender::{Next, Post, Sample, Sender, Side, Until},
};
use crate::{
    measure::{alternate, elapsed_ns, now_ns},
    svg::Scale,
};
use anyhow::{Result, ensure};
use overside::{
    memory::{Buffer, Pool, View},
    planner::{Planner, Terms},
    shape::{Run, Shape, ShapeKind},
    transfer::{DeclaredSend, Region},
    verbs::{CompletionQueue, QueuePair, WorkRequest},
};
use std::{collections::VecDeque, sync::Arc};

/// Adjacent rows, and which of their columns are wanted.
#[derive(Clone)]
struct Query {
    memory: Arc<Buffer>,
    rows: usize,
    /// Bit i: column i.
    pattern: u64,
}

impl Query {
    fn columns(&self) -> impl Iterator<Item = usize> {
        let pattern = self.pattern;
        (0..COLUMNS).filter(move |column| pattern >> column & 1 == 1)
    }

    fn message_bytes(&self) -> usize {
        self.columns().count() * VALUE_BYTES
    }

    /// Columns that touch are one run.
    fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for at in self.columns().map(|column| (column * VALUE_BYTES) as u64) {
            match runs.last_mut() {
                Some(last) if last.at + last.len == at => last.len += VALUE_BYTES as u64,
                _ => runs.push(Run::new(at, VALUE_BYTES as u64)),
            }
        }
        runs
    }

    /// One strided region for all rows; a message is a row.
    fn shape(&self) -> Result<Arc<Shape>> {
        let shape = Shape::strided(0, ROW_BYTES as u64, self.rows as u64, &self.runs())?;
        // All columns: dense rows are one run, and still a message each.
        Ok(Arc::new(shape.messages_of(self.message_bytes() as u64)?))
    }
}

/// A request a row, made before any time is taken.
struct SgeList {
    query: Query,
    runs: Vec<Run>,
    next: usize,
    ready: VecDeque<WorkRequest>,
    /// Gather entries of all requests that were made.
    entries: usize,
}

impl SgeList {
    fn new(query: &Query) -> SgeList {
        SgeList { query: query.clone(), runs: query.runs(), next: 0, ready: VecDeque::new(), entries: 0 }
    }

    fn prepare(&mut self, rows: usize) -> Result<()> {
        let mut row = Vec::new();
        for _ in 0..rows {
            let at = (self.next * ROW_BYTES) as u64;
            self.next = (self.next + 1) % self.query.rows;
            row.clear();
            row.extend(self.runs.iter().map(|run| Run::new(at + run.at, run.len)));
            self.entries += row.len();
            let view = View::runs(&self.query.memory, row.iter().copied())?;
            self.ready.push_back(WorkRequest::send(0, view).unsignalled());
        }
        Ok(())
    }
}

impl Side for SgeList {
    fn next(&mut self, _to: usize) -> Result<Next> {
        Ok(self.ready.pop_front().map_or(Next::Done, Next::Request))
    }

    fn bytes(&self) -> u64 {
        self.query.message_bytes() as u64
    }
}

/// Rows packed by a typed loop.
struct CopyOut {
    query: Query,
    pool: Pool,
    next: usize,
    given: u64,
}

impl CopyOut {
    fn new(query: &Query, pool: &Pool) -> CopyOut {
        CopyOut { query: query.clone(), pool: pool.clone(), next: 0, given: 0 }
    }
}

impl Side for CopyOut {
    fn next(&mut self, _to: usize) -> Result<Next> {
        if self.next == self.query.rows {
            return Ok(Next::Done);
        }
        let Some(mut buffer) = self.pool.take() else { return Ok(Next::Wait) };
        let each = self.query.message_bytes();
        let count = (BUNDLE_BYTES / each).min(self.query.rows - self.next);
        let rows = &self.query.memory.as_chunks::<ROW_BYTES>().0[self.next..self.next + count];
        let columns: Vec<usize> = self.query.columns().collect();
        match columns[..] {
            [a] => pack([a], rows, &mut buffer),
            [a, b] => pack([a, b], rows, &mut buffer),
            [a, b, c] => pack([a, b, c], rows, &mut buffer),
            _ => pack([0, 1, 2, 3], rows, &mut buffer),
        }
        self.next += count;
        self.given = (count * each) as u64;
        let request = WorkRequest::send(0, self.pool.view(buffer, count * each));
        // Of more than one row: how long each is.
        let request = if count > 1 { request.with_immediate(each as u32) } else { request };
        Ok(Next::Request(request.unsignalled()))
    }

    fn bytes(&self) -> u64 {
        self.given
    }
}

/// The loop to beat: moves of four bytes and no call.
#[inline(never)]
fn pack<const N: usize>(columns: [usize; N], rows: &[[u8; ROW_BYTES]], out: &mut [u8]) {
    let (values, _) = out.as_chunks_mut::<VALUE_BYTES>();
    let (out, _) = values.as_chunks_mut::<N>();
    for (row, out) in rows.iter().zip(out) {
        let (values, _) = row.as_chunks::<VALUE_BYTES>();
        for (column, out) in columns.iter().zip(out) {
            *out = values[*column % COLUMNS];
        }
    }
}

/// One declared region.
struct Declared<'a> {
    query: Query,
    shape: Arc<Shape>,
    planner: &'a Planner,
    pool: Pool,
    send: Option<DeclaredSend>,
}

impl Post for Declared<'_> {
    fn begin(&mut self, _pairs: &[QueuePair]) -> Result<()> {
        let region = Region::new(&self.query.memory, &self.shape)?;
        let plan = self.planner.plan(&self.shape, &terms())?;
        let capabilities = self.planner.capabilities();
        self.send = Some(DeclaredSend::new(0, region, Some(&plan), capabilities, BUNDLE_BYTES as u64)?);
        Ok(())
    }

    fn post(&mut self, queue: &mut CompletionQueue, pairs: &[QueuePair]) -> Result<bool> {
        match &mut self.send {
            Some(send) => Ok(send.post(queue, pairs[0], &self.pool)?),
            None => Ok(true),
        }
    }

    fn bytes(&self) -> u64 {
        self.shape.bytes()
    }
}

fn terms() -> Terms {
    Terms { request_bytes_max: BUNDLE_BYTES as u64, ..Terms::default() }
}

/// Measures the figure.
pub(super) fn measure(setting: &Setting<'_>) -> Result<Figure> {
    let mut figure = Figure::new("projection", setting.over.name(), "Projecting rows");
    let mut sender = Sender::start(setting.over, 1)?;
    let rows = if setting.quick { 1 << 20 } else { 16 << 20 };
    let mut memory = sender.memory(rows * ROW_BYTES)?;
    for (at, word) in memory.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *word = (at as u32).wrapping_mul(0x9E37_79B1).to_le_bytes();
    }
    let memory = Arc::new(memory);
    let pool = sender.pool(BUNDLE_BYTES, POOL_BUFFERS)?;
    for pattern in 1..1u64 << COLUMNS {
        setting.progress.part("projection", pattern as usize, 1 << COLUMNS);
        one(setting, &mut sender, &mut figure, &Query { memory: memory.clone(), rows, pattern }, &pool)?;
    }
    tell(&mut figure, rows);
    Ok(figure)
}

fn one(setting: &Setting<'_>, sender: &mut Sender, figure: &mut Figure, query: &Query, pool: &Pool) -> Result<()> {
    let planner = Planner::new(sender.capabilities.clone(), sender.profile.clone());
    let mut declared =
        Declared { query: query.clone(), shape: query.shape()?, planner: &planner, pool: pool.clone(), send: None };
    // The first rows in every way: a whole table of requests a row would take long.
    let head = Query { rows: CHECKED_ROWS.min(query.rows), ..query.clone() };
    let mut list = SgeList::new(&head);
    list.prepare(head.rows)?;
    let mut first =
        Declared { query: head.clone(), shape: head.shape()?, planner: &planner, pool: pool.clone(), send: None };
    sender.connect(1, query.message_bytes(), usize::MAX)?;
    let listed = sender.run(&mut list, Until::Done, true)?.1[0];
    sender.connect(1, BUNDLE_BYTES, POOL_BUFFERS)?;
    let packed = sender.run(&mut CopyOut::new(&head, pool), Until::Done, true)?.1[0];
    let answers = [packed, listed, sender.post(&mut first, true)?.1[0]];
    let same = answers.iter().all(|answer| (answer.messages, answer.digest) == (head.rows as u64, answers[0].digest));
    ensure!(same, "pattern {}: two ways of sending delivered different rows", name(query.pattern));
    // Counted from the list that was sent above and the region that will be (DR-C10).
    figure.count("gather entries a row", query.pattern, None, list.entries as f64 / head.rows as f64);
    figure.count("regions", query.pattern, None, regions(&declared.shape) as f64);
    let mut list = SgeList::new(query);
    let mut copying = Copying::new(BUNDLE_BYTES)?;
    let mut limits = Vec::new();
    let samples = alternate(SERIES.len() + 1, setting.rounds(), |side, _| -> Result<Sample> {
        let (start, mut all) = (now_ns(), Sample::default());
        match side {
            0 => {
                // Receive buffers as long as these messages, or few of them would be under way at once.
                sender.connect(1, query.message_bytes(), usize::MAX)?;
                list.prepare(WARM_UP_ROWS)?;
                sender.run(&mut list, Until::Done, false)?;
                list.prepare(PREPARED_ROWS)?;
                let sample = sender.run(&mut list, Until::Done, false)?.0;
                sender.connect(1, BUNDLE_BYTES, POOL_BUFFERS)?;
                return Ok(sample);
            }
            3 => {
                limits.push(copying.limit(&query.memory, setting.slice_ns() / 2));
                return Ok(all);
            }
            _ => {}
        }
        while elapsed_ns(start) < setting.slice_ns() {
            all.add(match side {
                1 => sender.run(&mut CopyOut::new(query, pool), Until::Done, false)?.0,
                _ => sender.post(&mut declared, false)?.0,
            });
        }
        Ok(all)
    })?;
    for (series, rounds) in SERIES.into_iter().zip(samples) {
        let point = Point::of(series, query.pattern, rounds, &limits);
        let point = point.with("columns", name(query.pattern)).with("message_bytes", query.message_bytes());
        figure.points.push(point.with("entries_a_row", query.runs().len()));
    }
    Ok(())
}

fn tell(figure: &mut Figure, rows: usize) {
    figure.text = format!(
        "Rows of four columns of 4 bytes, {} Ki of them, one after another; a message is a row without the columns that the query \
         leaves out. x is the pattern: 1 is column A, 2 is B, 3 both, up to 15, which is all. <i>sge-list</i> posts a request a row, \
         <i>copy-out</i> packs by a typed loop without calls, <i>declared</i> posts one strided region.",
        rows >> 10
    );
    let mut rate = Curves::new("throughput (GB/s)", "columns, as a pattern of bits", Scale::Linear).logarithmic();
    let mut cpu =
        Curves::new("CPU of both ends (ns per byte)", "columns, as a pattern of bits", Scale::Linear).logarithmic();
    for (colour, series) in SERIES.into_iter().enumerate() {
        rate.add(Curve::of(series, colour, figure.curve(series), |p| p.spread.bytes_per_s, 1e-9));
        cpu.add(Curve::of(series, colour, figure.curve(series), |p| p.spread.both_cpu_ns_per_byte, 1.0));
    }
    rate.add(Curve::limit("memcpy of whole rows", 4, &figure.curve(SERIES[0])));
    figure.charts.push((
        curves(&rate),
        "Projection with every pattern of columns: the scenario of figure 3 of <i>D-RDMA</i>, which omits its numbers."
            .into(),
    ));
    figure.charts.push((curves(&cpu), "Processor time of both ends for a byte.".into()));
}

/// How many regions a description is made of.
fn regions(shape: &Shape) -> usize {
    match shape.kind() {
        ShapeKind::List(runs) => runs.len(),
        ShapeKind::Set { regions, .. } => regions.len(),
        _ => 1,
    }
}

/// `A`, `AB`, `ABD`.
fn name(pattern: u64) -> String {
    (0..COLUMNS).filter(|column| pattern >> column & 1 == 1).map(|column| char::from(b'A' + column as u8)).collect()
}

const SERIES: [&str; 3] = ["sge-list", "copy-out", "declared"];
const COLUMNS: usize = 4;
const VALUE_BYTES: usize = 4;
const ROW_BYTES: usize = COLUMNS * VALUE_BYTES;
/// A multiple of every message's bytes.
const BUNDLE_BYTES: usize = 48 * 683;
const POOL_BUFFERS: usize = 32;
const PREPARED_ROWS: usize = 16 << 10;
const WARM_UP_ROWS: usize = 512;
const CHECKED_ROWS: usize = 20_000;

#[cfg(test)]
mod tests {
    use super::*;
    use overside::memory::Segment;

    /// What a query leaves out of a row it leaves out of each (DR-C09).
    #[test]
    fn gaps_of_a_projection_are_of_one_length() {
        let memory = Arc::new(Segment::private(4096).unwrap().carve(4096).pop().unwrap());
        let query = Query { memory, rows: 50, pattern: 0b1011 };
        let classes = query.shape().unwrap().gap_classes();
        assert_eq!(classes.iter().map(|class| (class.len, class.count)).collect::<Vec<_>>(), [(4, 50)]);
    }

    /// Of seven columns P are left out that do not touch: (1+P)·R entries, and one region (DR-C10).
    #[test]
    fn each_inner_column_that_is_dropped_is_an_entry_more_for_each_row_and_no_region() {
        for dropped in 0..=3 {
            let mut runs: Vec<Run> = Vec::new();
            for at in (0..7).filter(|column| !(column % 2 == 1 && column / 2 < dropped)).map(|column| column * 4) {
                match runs.last_mut() {
                    Some(last) if last.at + last.len == at => last.len += 4,
                    _ => runs.push(Run::new(at, 4)),
                }
            }
            // Rows that touch would be one entry: a column behind the last is left out, too.
            let shape = Shape::strided(0, 32, 5, &runs).unwrap();
            assert_eq!((shape.fragments().count() as u64, regions(&shape)), ((1 + dropped) * 5, 1), "{dropped}");
        }
    }

    #[test]
    fn every_pattern_packs_its_columns_and_is_one_region() {
        let mut buffer = Segment::private(4096).unwrap().carve(4096).pop().unwrap();
        buffer.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
        let memory = Arc::new(buffer);
        for pattern in 1..16 {
            let query = Query { memory: memory.clone(), rows: 7, pattern };
            let shape = query.shape().unwrap();
            assert_eq!(shape.messages().count(), 7, "{pattern}");
            assert_eq!(regions(&shape), 1, "{pattern}");
            // What lies together is one entry: an entry more for each gap within a row (DR-C10).
            let mut list = SgeList::new(&query);
            list.prepare(7).unwrap();
            let gaps = [0b0101, 0b1001, 0b1010, 0b1011, 0b1101].contains(&pattern);
            assert_eq!(list.entries, 7 * (1 + usize::from(gaps)), "{}", name(pattern));
            assert_eq!(shape.messages().uniform_bytes(), Some(query.message_bytes() as u64));
            let wanted: Vec<u8> =
                shape.fragments().flat_map(|run| memory[run.at as usize..][..run.len as usize].to_vec()).collect();
            let mut out = vec![0; 7 * ROW_BYTES];
            let rows = &memory.as_chunks::<ROW_BYTES>().0[..7];
            let columns: Vec<usize> = query.columns().collect();
            match columns[..] {
                [a] => pack([a], rows, &mut out),
                [a, b] => pack([a, b], rows, &mut out),
                [a, b, c] => pack([a, b, c], rows, &mut out),
                _ => pack([0, 1, 2, 3], rows, &mut out),
            }
            assert_eq!(out[..wanted.len()], wanted, "{}", name(pattern));
        }
    }
}
