//! `shuffle`: a columnar table sent row by row to several destinations (d-rdma §5.1, figure 11).

use super::{
    Setting,
    charts::{Curve, Curves, curves},
    figure::{Figure, Point},
    papers,
    records::Copying,
    sender::{Next, Post, Sample, Sender, Side, Until},
};
use crate::{
    measure::{Bar, alternate, elapsed_ns, now_ns},
    svg::Scale,
};
use anyhow::{Result, ensure};
use overside::{
    memory::{Buffer, Pool, View},
    planner::{Goal, Planner, Terms},
    shape::{Bitmap, Column, Order, Run, Shape, ShapeKind},
    transfer::{Balance, DeclaredSend, Destination, Region, SharedSend, SharedTerms},
    verbs::{CompletionQueue, QueuePair, WorkRequest},
};
use overside_evidence::SplitMix64;
use std::{collections::VecDeque, sync::Arc};

/// Five columns of four bytes, one after another, and where each row goes.
struct Table {
    memory: Arc<Buffer>,
    rows: usize,
    /// From one column to the next; not a power of two, so that columns do not fall into the same
    /// sets of a cache.
    pitch: usize,
    to: Vec<u8>,
}

impl Table {
    fn new(sender: &mut Sender, rows: usize, destinations: usize) -> Result<Table> {
        let pitch = (rows * VALUE_BYTES).next_multiple_of(64) + 4160;
        let mut memory = sender.memory(pitch * COLUMNS)?;
        for (at, word) in memory.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *word = (at as u32).wrapping_mul(0x9E37_79B1).to_le_bytes();
        }
        // A hash of the row: no rule that a shape could shorten, as a shuffle has it.
        let to = (0..rows as u64).map(|row| ((mixed(row) * destinations as u128) >> 64) as u8).collect();
        Ok(Table { memory: Arc::new(memory), rows, pitch, to })
    }

    fn column(&self, column: usize) -> &[[u8; VALUE_BYTES]] {
        &self.memory[column * self.pitch..][..self.rows * VALUE_BYTES].as_chunks().0[..self.rows]
    }

    /// What a destination gets: the rows of its bitmap, across all columns.
    fn shape(&self, destination: usize) -> Result<Arc<Shape>> {
        let rows = Bitmap::of(self.rows as u64, |row| usize::from(self.to[row as usize]) == destination);
        let column = |column: usize| Column {
            base: (column * self.pitch) as u64,
            stride: VALUE_BYTES as u64,
            width: VALUE_BYTES as u64,
        };
        let columns: Vec<Column> = (0..COLUMNS).map(column).collect();
        Ok(Arc::new(Shape::bitmapped(&columns, &rows, Order::Rows)?))
    }
}

/// A request a row, a gather entry a column, made before any time is taken (DR-M43) or while it is
/// (DR-C12).
struct SgeList<'a> {
    table: &'a Table,
    next: usize,
    ready: Vec<VecDeque<WorkRequest>>,
    shapes: Vec<Run>,
    /// Rows whose requests are made when they are sent.
    undescribed: usize,
    /// Gather entries of all requests that were made.
    entries: usize,
}

impl SgeList<'_> {
    fn new(table: &Table, destinations: usize) -> SgeList<'_> {
        let ready = vec_of(destinations, VecDeque::new);
        SgeList { table, next: 0, ready, shapes: Vec::new(), undescribed: 0, entries: 0 }
    }

    /// Makes the requests of the next `rows` rows, from the first again after the last.
    fn prepare(&mut self, rows: usize) -> Result<()> {
        for _ in 0..rows {
            let row = self.next;
            self.next = (row + 1) % self.table.rows;
            self.shapes.clear();
            let run =
                |column: usize| Run::new((column * self.table.pitch + row * VALUE_BYTES) as u64, VALUE_BYTES as u64);
            self.shapes.extend((0..COLUMNS).map(run));
            self.entries += self.shapes.len();
            // The entries alone: no shape is asked what a rule would make of them.
            let view = View::runs(&self.table.memory, self.shapes.iter().copied())?;
            self.ready[usize::from(self.table.to[row])].push_back(WorkRequest::send(0, view).unsignalled());
        }
        Ok(())
    }
}

impl Side for SgeList<'_> {
    fn next(&mut self, to: usize) -> Result<Next> {
        while self.ready[to].is_empty() && self.undescribed > 0 {
            let rows = self.undescribed.min(DESCRIBED_ROWS);
            self.undescribed -= rows;
            self.prepare(rows)?;
        }
        Ok(self.ready[to].pop_front().map_or(Next::Done, Next::Request))
    }

    fn bytes(&self) -> u64 {
        ROW_BYTES as u64
    }
}

/// Rows packed by a typed loop in one pass over the table, a buffer a destination (DR-M44).
struct CopyOut<'a> {
    table: &'a Table,
    pool: Pool,
    next: usize,
    /// How often the table is sent, this time included.
    passes: usize,
    filling: Vec<Option<(Buffer, usize)>>,
    ready: Vec<VecDeque<(WorkRequest, u64)>>,
    given: u64,
}

impl<'a> CopyOut<'a> {
    fn new(table: &'a Table, pool: &Pool, destinations: usize, passes: usize) -> CopyOut<'a> {
        CopyOut {
            table,
            pool: pool.clone(),
            next: 0,
            passes,
            filling: vec_of(destinations, || None),
            ready: vec_of(destinations, VecDeque::new),
            given: 0,
        }
    }

    /// Fills until a buffer is full or the table ends; false when a buffer is wanted and none is
    /// free.
    fn fill(&mut self) -> bool {
        for slot in &mut self.filling {
            if slot.is_none() {
                *slot = self.pool.take().map(|buffer| (buffer, 0));
            }
        }
        if self.filling.iter().any(Option::is_none) {
            return false;
        }
        // So many rows cannot fill any buffer before the last of them: the loop over them need not look.
        let room = self.filling.iter().flatten().map(|(_, used)| BUNDLE_ROWS - used).min().unwrap_or(0);
        let to = (self.next + room).min(self.table.rows);
        let (mut outs, mut used) = (Vec::new(), Vec::new());
        for (buffer, rows) in self.filling.iter_mut().flatten() {
            outs.push(&mut buffer.as_chunks_mut::<ROW_BYTES>().0[..BUNDLE_ROWS]);
            used.push(*rows);
        }
        let columns = std::array::from_fn(|column| &self.table.column(column)[self.next..to]);
        scatter(columns, &self.table.to[self.next..to], &mut outs, &mut used);
        for (slot, used) in self.filling.iter_mut().flatten().zip(used) {
            slot.1 = used;
        }
        self.next = to;
        let ended = to == self.table.rows;
        for destination in 0..self.filling.len() {
            let full = self.filling[destination]
                .as_ref()
                .is_some_and(|(_, used)| *used == BUNDLE_ROWS || (ended && *used > 0));
            if let (true, Some((buffer, used))) = (full, self.filling[destination].take_if(|_| full)) {
                let bytes = used * ROW_BYTES;
                let request = WorkRequest::send(0, self.pool.view(buffer, bytes)).with_immediate(ROW_BYTES as u32);
                self.ready[destination].push_back((request.unsignalled(), bytes as u64));
            }
        }
        true
    }
}

impl Side for CopyOut<'_> {
    fn next(&mut self, to: usize) -> Result<Next> {
        loop {
            if let Some((request, bytes)) = self.ready[to].pop_front() {
                self.given = bytes;
                return Ok(Next::Request(request));
            }
            if self.next == self.table.rows {
                if self.passes <= 1 {
                    return Ok(Next::Done);
                }
                (self.passes, self.next) = (self.passes - 1, 0);
            }
            if !self.fill() {
                return Ok(Next::Wait);
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.given
    }
}

impl Drop for CopyOut<'_> {
    fn drop(&mut self) {
        self.filling.iter_mut().filter_map(Option::take).for_each(|(buffer, _)| self.pool.put(buffer));
    }
}

/// The loop to beat: moves of four bytes and no call.
#[inline(never)]
fn scatter(
    columns: [&[[u8; VALUE_BYTES]]; COLUMNS],
    to: &[u8],
    outs: &mut [&mut [[u8; ROW_BYTES]]],
    used: &mut [usize],
) {
    let [a, b, c, d, e] = columns.map(|column| &column[..to.len()]);
    for row in 0..to.len() {
        let destination = usize::from(to[row]);
        let at = used[destination];
        let out = &mut outs[destination][at];
        let (values, _) = out.as_chunks_mut::<VALUE_BYTES>();
        values[0] = a[row];
        values[1] = b[row];
        values[2] = c[row];
        values[3] = d[row];
        values[4] = e[row];
        used[destination] = at + 1;
    }
}

/// A declared send for each destination.
struct Separate<'a> {
    table: &'a Table,
    shapes: &'a [Arc<Shape>],
    /// Bitmaps and shapes are made each time, before their sends.
    describes: bool,
    planner: &'a Planner,
    pool: Pool,
    sends: Vec<DeclaredSend>,
}

impl<'a> Separate<'a> {
    fn new(
        table: &'a Table,
        shapes: &'a [Arc<Shape>],
        describes: bool,
        planner: &'a Planner,
        pool: &Pool,
    ) -> Separate<'a> {
        Separate { table, shapes, describes, planner, pool: pool.clone(), sends: Vec::new() }
    }
}

impl Post for Separate<'_> {
    fn begin(&mut self, _pairs: &[QueuePair]) -> Result<()> {
        self.sends.clear();
        let made = (0..self.shapes.len()).filter(|_| self.describes).map(|to| self.table.shape(to));
        let made = made.collect::<Result<Vec<_>>>()?;
        for shape in if self.describes { &made } else { self.shapes } {
            let region = Region::new(&self.table.memory, shape)?;
            let plan = self.planner.plan(shape, &terms())?;
            let send = DeclaredSend::new(0, region, Some(&plan), self.planner.capabilities(), BUNDLE_BYTES as u64)?;
            self.sends.push(send);
        }
        Ok(())
    }

    fn post(&mut self, queue: &mut CompletionQueue, pairs: &[QueuePair]) -> Result<bool> {
        let mut all = true;
        for (send, pair) in self.sends.iter_mut().zip(pairs) {
            all &= send.is_posted() || send.post(queue, *pair, &self.pool)?;
        }
        Ok(all)
    }

    fn bytes(&self) -> u64 {
        self.shapes.iter().map(|shape| shape.bytes()).sum()
    }
}

/// One post for all destinations.
struct OnePost<'a> {
    table: &'a Table,
    shapes: &'a [Arc<Shape>],
    planner: &'a Planner,
    pool: Pool,
    send: Option<SharedSend>,
}

impl Post for OnePost<'_> {
    fn begin(&mut self, pairs: &[QueuePair]) -> Result<()> {
        let to =
            |(pair, shape): (&QueuePair, &Arc<Shape>)| Destination { queue_pair: *pair, id: 0, shape: shape.clone() };
        let destinations: Vec<Destination> = pairs.iter().zip(self.shapes).map(to).collect();
        // A hash divides rows into so many here and so many there.
        let terms = SharedTerms { view: terms(), balance: Balance::Any, ..SharedTerms::default() };
        let capabilities = self.planner.capabilities();
        self.send = Some(SharedSend::new(&self.table.memory, &destinations, Some(self.planner), capabilities, &terms)?);
        Ok(())
    }

    fn post(&mut self, queue: &mut CompletionQueue, _pairs: &[QueuePair]) -> Result<bool> {
        match &mut self.send {
            Some(send) => Ok(send.post(queue, &self.pool)?),
            None => Ok(true),
        }
    }

    fn bytes(&self) -> u64 {
        self.shapes.iter().map(|shape| shape.bytes()).sum()
    }
}

/// What the figure compares is processor time of both ends.
fn terms() -> Terms {
    Terms { goal: Goal::TotalCpu, request_bytes_max: BUNDLE_BYTES as u64, ..Terms::default() }
}

/// Measures the figure.
pub(super) fn measure(setting: &Setting<'_>) -> Result<Figure> {
    let mut figure = Figure::new("shuffle", setting.over.name(), "Shuffling a columnar table");
    let sizes: &[usize] = if setting.quick { &[64 << 10, 1 << 20] } else { &[64 << 10, 1 << 20, 16 << 20] };
    for (at, rows) in sizes.iter().enumerate() {
        // A sender for each size: its memory goes with it.
        let mut sender = Sender::start(setting.over, DESTINATIONS[DESTINATIONS.len() - 1])?;
        for (of, destinations) in DESTINATIONS.into_iter().enumerate() {
            setting.progress.part("shuffle", at * DESTINATIONS.len() + of, sizes.len() * DESTINATIONS.len());
            let pool = sender.pool(BUNDLE_BYTES, buffers(destinations))?;
            let table = Table::new(&mut sender, *rows, destinations)?;
            one(setting, &mut sender, &mut figure, &table, destinations, &pool)?;
        }
    }
    tell(&mut figure, sizes);
    Ok(figure)
}

fn one(
    setting: &Setting<'_>,
    sender: &mut Sender,
    figure: &mut Figure,
    table: &Table,
    destinations: usize,
    pool: &Pool,
) -> Result<()> {
    let shapes = (0..destinations).map(|to| table.shape(to)).collect::<Result<Vec<_>>>()?;
    let planner = Planner::new(sender.capabilities.clone(), sender.profile.clone());
    let separate = |describes| Separate::new(table, &shapes, describes, &planner, pool);
    let (mut described, mut separate) = (separate(true), separate(false));
    let mut shared = OnePost { table, shapes: &shapes, planner: &planner, pool: pool.clone(), send: None };
    check(sender, table, destinations, pool, [&mut separate, &mut described], &mut shared)?;
    counts(figure, table, &shapes)?;
    let mut copying = Copying::new(BUNDLE_BYTES)?;
    let mut limits = Vec::new();
    // A pass over a small table is short: several in one stretch, so that beginning and ending it does not count, and as
    // many stretches as fill a slice.
    let times = (STRETCH_BYTES / (table.rows * ROW_BYTES)).max(1);
    let passes = |sender: &mut Sender, run: &mut dyn FnMut(&mut Sender) -> Result<Sample>| -> Result<Sample> {
        let (start, mut all) = (now_ns(), Sample::default());
        while elapsed_ns(start) < setting.slice_ns() {
            all.add(run(sender)?);
        }
        Ok(all)
    };
    // Describing is compared for the paper's two destinations alone.
    let series = if destinations == DESTINATIONS[0] { &SERIES[..] } else { &SERIES[..SERIES.len() - 2] };
    let samples = alternate(series.len() + 1, setting.rounds(), |side, _| -> Result<Sample> {
        match side {
            side if side == series.len() => {
                limits.push(copying.limit(&table.memory, setting.slice_ns() / 2));
                Ok(Sample::default())
            }
            0 | 4 => {
                // Receive buffers as long as these messages, or few of them would be under way at once.
                sender.connect(destinations, ROW_BYTES, usize::MAX)?;
                let sample = listed(sender, table, destinations, side == 4)?;
                sender.connect(destinations, BUNDLE_BYTES, pool.capacity())?;
                Ok(sample)
            }
            1 => passes(sender, &mut |sender| {
                Ok(sender.run(&mut CopyOut::new(table, pool, destinations, times), Until::Done, false)?.0)
            }),
            2 => passes(sender, &mut |sender| Ok(sender.post_times(&mut separate, times, false)?.0)),
            3 => passes(sender, &mut |sender| Ok(sender.post_times(&mut shared, times, false)?.0)),
            _ => passes(sender, &mut |sender| Ok(sender.post_times(&mut described, times, false)?.0)),
        }
    })?;
    let plan = planner.plan(&shapes[0], &terms())?.to_string();
    let together = shared.send.as_ref().and_then(|send| send.plans().next().flatten()).map(ToString::to_string);
    for (series, rounds) in series.iter().copied().zip(samples) {
        let point = Point::of(series, destinations as u64, rounds, &limits).with("rows", table.rows);
        figure.points.push(match (series, &together) {
            ("declared", _) => point.with("plan", plan.clone()),
            ("shared-send", Some(plan)) => point.with("plan", plan.clone()),
            _ => point,
        });
    }
    Ok(())
}

/// Some rows as gather lists, which are made before time is taken or while it is.
fn listed(sender: &mut Sender, table: &Table, destinations: usize, described: bool) -> Result<Sample> {
    let mut list = SgeList::new(table, destinations);
    list.prepare(WARM_UP_ROWS)?;
    sender.run(&mut list, Until::Done, false)?;
    let rows = PREPARED_ROWS.min(table.rows);
    match described {
        true => list.undescribed = rows,
        false => list.prepare(rows)?,
    }
    Ok(sender.run(&mut list, Until::Done, false)?.0)
}

/// Every series delivers the same rows to the same receivers, in the same order and with the same
/// borders.
fn check(
    sender: &mut Sender,
    table: &Table,
    destinations: usize,
    pool: &Pool,
    separate: [&mut Separate<'_>; 2],
    shared: &mut OnePost<'_>,
) -> Result<()> {
    let mut parts = Vec::new();
    if table.rows <= CHECKED_LIST_ROWS {
        let mut list = SgeList::new(table, destinations);
        list.prepare(table.rows)?;
        sender.connect(destinations, ROW_BYTES, usize::MAX)?;
        parts.push(("sge-list", sender.run(&mut list, Until::Done, true)?.1));
    }
    sender.connect(destinations, BUNDLE_BYTES, pool.capacity())?;
    let whole = sender.run(&mut CopyOut::new(table, pool, destinations, 1), Until::Done, true)?.1;
    for (series, separate) in ["declared", "declared, described"].into_iter().zip(separate) {
        parts.push((series, sender.post(separate, true)?.1));
    }
    parts.push(("shared-send", sender.post(shared, true)?.1));
    let rows: u64 = whole.iter().map(|answer| answer.messages).sum();
    ensure!(rows == table.rows as u64, "copy-out delivered {rows} of {} rows", table.rows);
    for (series, answers) in parts {
        for (at, (one, other)) in whole.iter().zip(&answers).enumerate() {
            ensure!(
                (one.messages, one.digest) == (other.messages, other.digest),
                "{series} delivered other rows than copy-out to destination {at} ({} and {})",
                other.messages,
                one.messages
            );
        }
    }
    Ok(())
}

/// What each way describes a table by, counted from lists and regions as they are sent (DR-C11).
fn counts(figure: &mut Figure, table: &Table, shapes: &[Arc<Shape>]) -> Result<()> {
    let mut list = SgeList::new(table, shapes.len());
    // Requests of a whole large table would take more memory than the table.
    let rows = table.rows.min(CHECKED_LIST_ROWS);
    list.prepare(rows)?;
    let entries = list.entries as f64 * table.rows as f64 / rows as f64;
    let columns = |shape: &Arc<Shape>| match shape.kind() {
        ShapeKind::Bitmapped { columns, .. } => columns.len(),
        ShapeKind::List(runs) => runs.len(),
        _ => 1,
    };
    let (x, rows) = (shapes.len() as u64, Some(table.rows as u64));
    figure.count("gather entries", x, rows, entries);
    figure.count("regions", x, rows, shapes.iter().map(columns).sum::<usize>() as f64);
    figure.count("bytes of entries", x, rows, entries * ENTRY_BYTES);
    let described: u64 = shapes.iter().map(|shape| shape.description_bytes()).sum();
    figure.count("bytes of regions", x, rows, described as f64);
    Ok(())
}

fn tell(figure: &mut Figure, sizes: &[usize]) {
    figure.text = format!(
        "Five columns of 4 bytes; a hash sends each row to one of 2, 8 or 32 receivers, a process each. <i>sge-list</i> posts a \
         request a row with an entry a column, all made before time is taken; <i>copy-out</i> packs rows in one pass by a typed \
         loop without calls, {} KiB a request; <i>declared</i> posts a bitmapped region for each destination; <i>shared-send</i> \
         all of them in one post. Those that are <i>described</i> make their lists, or bitmaps and regions, while time is taken. Every receiver got the same rows with the same borders from each, checked outside of the \
         timing. The limit copies the table in pieces of a request.",
        BUNDLE_BYTES >> 10
    );
    for rows in sizes {
        let mut rate = Curves::new("throughput (GB/s)", "destinations", Scale::Log).logarithmic();
        let mut cpu = Curves::new("CPU of both ends (ns per byte)", "destinations", Scale::Log).logarithmic();
        for (colour, series) in SERIES.into_iter().enumerate().take(SERIES.len() - 2) {
            let points = || of_rows(figure, series, *rows);
            rate.add(Curve::of(series, colour, points(), |p| p.spread.bytes_per_s, 1e-9));
            cpu.add(Curve::of(series, colour, points(), |p| p.spread.both_cpu_ns_per_byte, 1.0));
        }
        rate.add(Curve::limit("memcpy of the table", 4, &of_rows(figure, SERIES[0], *rows)));
        rate.marks(papers::marks("shuffle", "throughput"));
        let mib = (rows * ROW_BYTES) as f64 / f64::from(1 << 20);
        figure.charts.push((
            curves(&rate),
            format!(
                "Shuffle of {} Ki rows ({mib:.0} MiB), as figure 11 of <i>D-RDMA</i>. Diamonds are the paper's.",
                rows >> 10
            ),
        ));
        figure
            .charts
            .push((curves(&cpu), format!("Processor time of all processes for a byte, {} Ki rows.", rows >> 10)));
    }
    bars(figure, sizes);
}

fn of_rows<'a>(figure: &'a Figure, series: &str, rows: usize) -> Vec<&'a Point> {
    let mut points = figure.curve(series);
    points.retain(|point| point.label("rows") as usize == rows);
    points
}

fn at(figure: &Figure, series: &str, rows: usize, destinations: u64) -> Option<Point> {
    of_rows(figure, series, rows).into_iter().find(|point| point.x == destinations).cloned()
}

/// How many times less processor time `better` takes for a byte than `worse`, round by round.
fn saved(figure: &Figure, worse: &str, better: &str, rows: usize, destinations: u64) -> Option<crate::measure::Ratio> {
    at(figure, worse, rows, destinations)?.ratio(&at(figure, better, rows, destinations)?, Sample::both_per_byte)
}

fn bars(figure: &mut Figure, sizes: &[usize]) {
    let mut bars = Vec::new();
    for rows in sizes {
        let name = |what: &str| format!("{what}, {} Ki rows", rows >> 10);
        let bar = |what: &str, wanted, worse, better, to| {
            Bar::at_least(name(what), wanted, saved(figure, worse, better, *rows, to))
        };
        bars.push(bar("CPU of SGE lists over declared, 2 destinations", 5.0, "sge-list", "declared", 2));
        bars.push(bar("CPU of copy-out over declared, 2 destinations", 2.0, "copy-out", "declared", 2));
        bars.push(bar("CPU of separate sends over shared send, 8 destinations", 2.0, "declared", "shared-send", 8));
    }
    figure.bars = bars;
}

/// Transmit buffers: so many a destination that one wake-up serves a dozen.
fn buffers(destinations: usize) -> usize {
    (24 * destinations).clamp(32, 192)
}

fn vec_of<T>(count: usize, make: impl FnMut() -> T) -> Vec<T> {
    std::iter::repeat_with(make).take(count).collect()
}

fn mixed(row: u64) -> u128 {
    u128::from(SplitMix64(row).word())
}

const SERIES: [&str; 6] =
    ["sge-list", "copy-out", "declared", "shared-send", "sge-list, described", "declared, described"];
const DESTINATIONS: [usize; 3] = [2, 8, 32];
const COLUMNS: usize = 5;
const VALUE_BYTES: usize = 4;
const ROW_BYTES: usize = COLUMNS * VALUE_BYTES;
/// Rows of a request: about 32 KiB.
const BUNDLE_ROWS: usize = 1638;
const BUNDLE_BYTES: usize = BUNDLE_ROWS * ROW_BYTES;
/// A stretch of sending has so many bytes at least.
const STRETCH_BYTES: usize = 16 << 20;
const WARM_UP_ROWS: usize = 2048;
/// Requests of SGE lists that are made ready for a round.
const PREPARED_ROWS: usize = 32 << 10;
/// Tables up to here are sent as SGE lists from end to end once, to be checked.
const CHECKED_LIST_ROWS: usize = 64 << 10;
/// Rows of which requests are made at once while time is taken: as many as are posted together to
/// two destinations.
const DESCRIBED_ROWS: usize = 32;
/// Of a gather entry in a request: address, length, key.
const ENTRY_BYTES: f64 = 16.0;

#[cfg(test)]
mod tests {
    use super::*;
    use overside::memory::Segment;
    use overside_evidence::Says;

    /// Three destinations, one of which gets nothing.
    fn table(rows: usize) -> Table {
        let pitch = (rows * VALUE_BYTES).next_multiple_of(64) + 64;
        let mut memory = Segment::private(pitch * COLUMNS).unwrap().carve(pitch * COLUMNS).pop().unwrap();
        memory.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 + at / 256) as u8);
        let to = (0..rows).map(|row| [0, 2, 2][row % 3]).collect();
        Table { memory: Arc::new(memory), rows, pitch, to }
    }

    /// Where rows go is no rule: what lies between those of one destination is of many lengths
    /// (DR-C09).
    #[test]
    fn gaps_of_a_shuffle_are_of_many_lengths() {
        let mut table = table(1000);
        table.to = (0..1000).map(|row| ((mixed(row) * 2) >> 64) as u8).collect();
        let lengths: Vec<u64> = table.shape(0).unwrap().gap_classes().iter().map(|class| class.len).collect();
        assert!(lengths.len() > 4 && lengths.iter().all(|len| len % VALUE_BYTES as u64 == 0), "{lengths:?}");
    }

    /// 5 entries a row in lists, 5 columns under a bitmap for each of two destinations (DR-C11).
    #[test]
    fn lists_of_a_shuffle_have_an_entry_a_value_and_regions_ten_columns() {
        let mut table = table(65536);
        table.to = (0..65536).map(|row| ((mixed(row) * 2) >> 64) as u8).collect();
        let shapes = [0, 1].map(|to| table.shape(to).unwrap());
        let mut figure = Figure::new("shuffle", "", "");
        counts(&mut figure, &table, &shapes).unwrap();
        figure.judge().unwrap();
        let said = figure.claims.iter().map(|one| &one.judgement).find(|said| said.claim == "DR-C11").unwrap();
        assert_eq!(said.verdict, Says::Agrees, "{}", said.here());
        let counted = |series: &str| figure.measured.iter().find(|one| one.series == series).and_then(|one| one.exact);
        assert_eq!((counted("gather entries"), counted("regions")), (Some(327_680.0), Some(10.0)));
    }

    #[test]
    fn the_loop_and_the_declared_regions_make_the_same_rows() {
        let table = table(100);
        let mut packed = vec![vec![[0u8; ROW_BYTES]; 100]; 3];
        let mut used = [0; 3];
        let mut outs: Vec<&mut [[u8; ROW_BYTES]]> = packed.iter_mut().map(Vec::as_mut_slice).collect();
        scatter(std::array::from_fn(|column| table.column(column)), &table.to, &mut outs, &mut used);
        assert_eq!(used, [34, 0, 66]);
        for (destination, packed) in packed.iter().enumerate() {
            let shape = table.shape(destination).unwrap();
            assert_eq!(shape.messages().count(), used[destination] as u64);
            let bytes = shape.fragments().flat_map(|run| table.memory[run.at as usize..][..run.len as usize].to_vec());
            assert_eq!(bytes.collect::<Vec<_>>(), packed[..used[destination]].concat());
        }
    }
}
