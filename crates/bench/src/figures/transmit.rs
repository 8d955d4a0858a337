//! `transmit`: records packed first (copy-out), gathered from where they lie (zero-copy), or as the
//! planner chooses, by record size and records a send (to-copy figures 3, 4 and 5).

use super::{
    Setting,
    charts::{Curve, Curves, breakdown, curves},
    figure::{Figure, Point},
    papers,
    records::{Records, Ring},
    sender::{Next, Sample, Sender, Side, Until},
};
use crate::{
    measure::{Split, Spread, alternate, elapsed_ns, now_ns},
    svg::Scale,
};
use anyhow::{Result, ensure};
use overside::{
    memory::{Pool, View},
    planner::{self, Planner, Terms},
    shape::{Run, Shape},
    verbs::WorkRequest,
};

/// How the records of a send travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransmitWay {
    /// Packed into a transmit buffer.
    CopyOut,
    /// One gather entry a record.
    ZeroCopy,
    /// Packed into the request itself, as far as those are long enough.
    Inline,
    /// Whichever the planner's price says.
    Auto,
}

impl TransmitWay {
    /// Those between which a planner chooses.
    pub(super) const ALL: [TransmitWay; 3] = [TransmitWay::CopyOut, TransmitWay::ZeroCopy, TransmitWay::Auto];

    /// As series are named.
    pub(super) fn name(self) -> &'static str {
        match self {
            TransmitWay::CopyOut => "copy-out",
            TransmitWay::ZeroCopy => "zero-copy",
            TransmitWay::Inline => "inline",
            TransmitWay::Auto => "auto",
        }
    }
}

/// `per_send` records of a region a request.
pub(super) struct Transmit {
    way: TransmitWay,
    /// One cursor a destination.
    records: Vec<Records>,
    record_bytes: usize,
    per_send: usize,
    pool: Pool,
    runs: Vec<Run>,
    planner: Planner,
    terms: Terms,
    copies: u64,
    gathers: u64,
    /// Bytes that ride in a request.
    inline: Vec<u8>,
    prepared: Prepared,
}

/// What copying records, or listing them, takes; every so many sends.
#[derive(Clone, Copy, Default)]
struct Prepared {
    sends: u64,
    timed: u64,
    ns: u64,
}

impl Prepared {
    /// When the next send is one of those.
    fn begin(&mut self) -> Option<u64> {
        self.sends += 1;
        self.sends.is_multiple_of(TIMED_EVERY).then(now_ns)
    }

    fn end(&mut self, begun: Option<u64>) {
        if let Some(begun) = begun {
            self.timed += 1;
            self.ns += elapsed_ns(begun);
        }
    }

    /// Of all sends, as far as those that were timed tell.
    fn ns(self) -> f64 {
        self.ns as f64 / self.timed.max(1) as f64 * self.sends as f64
    }
}

impl Transmit {
    pub(super) fn new(way: TransmitWay, records: &Records, per_send: usize, pool: &Pool, sender: &Sender) -> Transmit {
        let planner = Planner::new(sender.capabilities.clone(), sender.profile.clone());
        let request_bytes_max = (per_send * records.record_bytes()) as u64;
        let parts = sender.destinations();
        Transmit {
            way,
            records: (0..parts).map(|part| records.part(part, parts)).collect(),
            record_bytes: records.record_bytes(),
            per_send,
            pool: pool.clone(),
            runs: Vec::with_capacity(per_send),
            planner,
            terms: Terms { request_bytes_max, ..Terms::default() },
            copies: 0,
            gathers: 0,
            inline: vec![0; per_send * records.record_bytes()],
            prepared: Prepared::default(),
        }
    }

    /// The share of sends that were packed.
    pub(super) fn copied_share(&self) -> f64 {
        self.copies as f64 / (self.copies + self.gathers).max(1) as f64
    }
}

impl Side for Transmit {
    fn inlines(&self) -> bool {
        self.way == TransmitWay::Inline
    }

    fn next(&mut self, to: usize) -> Result<Next> {
        if self.way == TransmitWay::CopyOut {
            let Some(mut buffer) = self.pool.take() else { return Ok(Next::Wait) };
            let begun = self.prepared.begin();
            let len = self.records[to].pack(self.per_send, &mut buffer);
            self.prepared.end(begun);
            self.copies += 1;
            return Ok(Next::Request(WorkRequest::send(0, self.pool.view(buffer, len)).unsignalled()));
        }
        if self.way == TransmitWay::Inline {
            let begun = self.prepared.begin();
            let len = self.records[to].pack(self.per_send, &mut self.inline);
            self.prepared.end(begun);
            self.copies += 1;
            return Ok(Next::Request(WorkRequest::send_inline(0, &self.inline[..len]).unsignalled()));
        }
        // What auto will choose is not known yet, and its records are taken only once.
        let room = if self.way == TransmitWay::Auto { self.pool.take() } else { None };
        if self.way == TransmitWay::Auto && room.is_none() {
            return Ok(Next::Wait);
        }
        let begun = self.prepared.begin();
        self.runs.clear();
        self.runs.extend((0..self.per_send).map(|_| self.records[to].take()));
        // Prices this very send, as a user of the planner would. Who only gathers makes the entries alone.
        let packs = self.way == TransmitWay::Auto
            && self.planner.plan(&Shape::list(&self.runs)?, &self.terms)?.way() != planner::Method::Gather;
        let memory = self.records[to].memory();
        let view = match room {
            Some(mut buffer) if packs => {
                let mut len = 0;
                for run in &self.runs {
                    let (at, bytes) = (run.at as usize, run.len as usize);
                    buffer[len..len + bytes].copy_from_slice(&memory[at..at + bytes]);
                    len += bytes;
                }
                self.copies += 1;
                self.pool.view(buffer, len)
            }
            room => {
                if let Some(unused) = room {
                    self.pool.put(unused);
                }
                self.gathers += 1;
                View::runs(memory, self.runs.iter().copied())?
            }
        };
        self.prepared.end(begun);
        Ok(Next::Request(WorkRequest::send(0, view).unsignalled()))
    }

    fn bytes(&self) -> u64 {
        (self.per_send * self.record_bytes) as u64
    }
}

/// Records of one size, so many a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    record_bytes: usize,
    per_send: usize,
}

impl Cell {
    fn message_bytes(self) -> usize {
        self.record_bytes * self.per_send
    }
}

/// Measures the figure.
pub(super) fn measure(setting: &Setting<'_>) -> Result<Figure> {
    let mut figure = Figure::new("transmit", setting.over.name(), "Copy-out, zero-copy and auto");
    let cells = cells(setting.quick);
    let mut sender = Sender::start(setting.over, CLIENTS[1])?;
    let region = Records::region(&mut sender, setting.region_bytes())?;
    let mut kernel_shares = Vec::new();
    let messages = distinct(cells.iter().map(|cell| cell.message_bytes()));
    let all = messages.len() * CLIENTS.len();
    for (at, message_bytes) in messages.iter().enumerate() {
        for (of, clients) in CLIENTS.into_iter().enumerate() {
            // They are in common: who is first in turn may take those of others, so that what is copied waits where gathered bytes do not.
            let pool = sender.pool(*message_bytes, (POOL_BYTES / message_bytes).clamp(8.max(4 * clients), 2048))?;
            setting.progress.part("transmit", at * CLIENTS.len() + of, all);
            sender.connect(clients, *message_bytes, pool.capacity())?;
            for cell in cells.iter().filter(|cell| cell.message_bytes() == *message_bytes) {
                let records = Records::new(&region, cell.record_bytes);
                one(setting, &mut sender, &mut figure, *cell, clients, &records, &pool, &mut kernel_shares)?;
            }
        }
    }
    tell(&mut figure, setting, &kernel_shares);
    Ok(figure)
}

/// Checks and measures one cell: every way, and the limit, in turn.
#[allow(clippy::too_many_arguments)]
fn one(
    setting: &Setting<'_>,
    sender: &mut Sender,
    figure: &mut Figure,
    cell: Cell,
    clients: usize,
    records: &Records,
    pool: &Pool,
    kernel_shares: &mut Vec<KernelShare>,
) -> Result<()> {
    let Cell { record_bytes, per_send } = cell;
    let ways = TransmitWay::ALL.into_iter().chain([TransmitWay::Inline]);
    let limits = &sender.capabilities;
    let fits = |way: &TransmitWay| match way {
        TransmitWay::ZeroCopy => per_send <= limits.sge_max,
        TransmitWay::Inline => cell.message_bytes() <= limits.inline_max,
        TransmitWay::CopyOut | TransmitWay::Auto => true,
    };
    let ways: Vec<TransmitWay> = ways.filter(fits).collect();
    let mut sides: Vec<Transmit> =
        ways.iter().map(|way| Transmit::new(*way, records, per_send, pool, sender)).collect();
    let digests = sides.iter_mut().map(|side| check(sender, side)).collect::<Result<Vec<_>>>()?;
    ensure!(digests.windows(2).all(|pair| pair[0] == pair[1]), "two ways of sending delivered different bytes");
    let mut limit_records = records.clone();
    let mut ring = Ring::new(cell.message_bytes(), &mut limit_records, per_send)?;
    let mut limits = Vec::new();
    let mut ticks = vec![Split::default(); sides.len()];
    let mut shares: Vec<Vec<f64>> = vec![Vec::new(); sides.len()];
    let samples = alternate(sides.len() + 1, setting.rounds(), |side, _| -> Result<Sample> {
        let Some(way) = sides.get_mut(side) else {
            limits.push(ring.limit(&mut limit_records, per_send, setting.slice_ns() / 2));
            return Ok(Sample::default());
        };
        let before = Split::of(std::process::id())?;
        way.prepared = Prepared::default();
        let sample = sender.run(way, Until::Elapsed(setting.slice_ns()), false)?.0;
        let used = Split::of(std::process::id())?.since(before);
        ticks[side].user += used.user;
        ticks[side].system += used.system;
        shares[side].push(way.prepared.ns() / sample.wall_ns.max(1) as f64);
        Ok(sample)
    })?;
    for (at, (way, rounds)) in ways.iter().zip(samples).enumerate() {
        kernel_shares.push(KernelShare { way: *way, record_bytes, clients, ticks: ticks[at] });
        let point = Point::of(series(*way, record_bytes, clients), cell.message_bytes() as u64, rounds, &limits);
        let preparing = Spread::of(&shares[at]).median;
        figure.record(format!("preparing, share of time: {}", point.series), point.x, std::mem::take(&mut shares[at]));
        figure.points.push(
            point
                .with("way", way.name())
                .with("record_bytes", record_bytes)
                .with("records_per_send", per_send)
                .with("clients", clients)
                .with("copied_share", sides[at].copied_share())
                .with(PREPARING, preparing),
        );
    }
    Ok(())
}

/// What the first messages came to at every receiver, outside of any timing: digest and messages.
pub(super) fn check(sender: &mut Sender, side: &mut Transmit) -> Result<Vec<(u64, u64)>> {
    let (_, answers) = sender.run(side, Until::Requests(CHECKED), true)?;
    ensure!(answers.len() == side.records.len(), "{} of {} receivers answered", answers.len(), side.records.len());
    for answer in &answers {
        let wanted = (CHECKED, CHECKED * side.bytes());
        ensure!((answer.messages, answer.bytes) == wanted, "a receiver got {answer:?} instead of {wanted:?}");
    }
    Ok(answers.iter().map(|answer| (answer.digest, answer.messages)).collect())
}

fn series(way: TransmitWay, record_bytes: usize, clients: usize) -> String {
    match clients {
        1 => format!("{} {record_bytes} B", way.name()),
        _ => format!("{} {record_bytes} B, {clients} clients", way.name()),
    }
}

/// Ticks of one way over all rounds of a cell: they are too coarse for less.
struct KernelShare {
    way: TransmitWay,
    record_bytes: usize,
    clients: usize,
    ticks: Split,
}

/// Charts, text and claims.
fn tell(figure: &mut Figure, setting: &Setting<'_>, kernel_shares: &[KernelShare]) {
    figure.text = format!(
        "Records lie scattered over {} MiB; a send takes the next of an order in which neighbours lie far apart. Copy-out packs \
         them into a transmit buffer, zero-copy posts a gather list of them (the curve ends at this provider's longest list), \
         inline packs them into the request (it ends at the longest), auto prices each send. Receivers are processes of their own; over shared memory it is the receiver who copies, so its \
         processor plays the NIC. The limit copies the same records in the same order into a ring of the same size, by the \
         fastest kernel, on one processor.",
        setting.region_bytes() >> 20
    );
    for clients in CLIENTS {
        let who = if clients == 1 { "one client".to_owned() } else { format!("{clients} clients") };
        throughput_charts(figure, clients, &who);
        let bars = breakdown_rows(figure, kernel_shares, clients);
        figure.charts.push((
            breakdown(
                "CPU of the sender (shares of one processor's time)",
                &["copying or listing", "other work", "kernel", "empty polling", "idle"],
                &bars,
            ),
            format!(
                "What the sender's processor did at the peak of each curve with {who}, as figure 4. Packing records, or making the list of \
                 them, is timed in one send of {TIMED_EVERY}. The kernel's share is sampled in \
                 ticks of 10 ms over all rounds and taken from work."
            ),
        ));
    }
}

fn throughput_charts(figure: &mut Figure, clients: usize, who: &str) {
    let chart = |value: &str| Curves::new(value, "bytes a send", Scale::Log);
    let mut throughput = chart("throughput (GB/s)");
    let mut sender = chart("CPU of the sender (ns per byte)").logarithmic();
    let mut both = chart("CPU of both ends (ns per byte)").logarithmic();
    for (colour, (way, record_bytes)) in curve_list().enumerate() {
        let points = figure.curve(&series(way, record_bytes, clients));
        let label = format!("{} {record_bytes} B", way.name());
        let values = |of: &dyn Fn(&Point) -> f64| points.iter().map(|p| (p.x, of(p))).collect::<Vec<_>>();
        throughput.add(Curve::of(&label, colour, points.clone(), |p| p.spread.bytes_per_s, 1e-9));
        sender.add(Curve::values(&label, colour, values(&|p| p.sender_work_ns_per_byte)));
        both.add(Curve::of(&label, colour, points.clone(), |p| p.spread.both_cpu_ns_per_byte, 1.0));
    }
    for (colour, record_bytes) in DRAWN.into_iter().enumerate() {
        let points = figure.curve(&series(TransmitWay::CopyOut, record_bytes, clients));
        throughput.add(Curve::limit(&format!("memcpy {record_bytes} B"), 3 * colour, &points));
    }
    throughput.marks(papers::marks("transmit", "throughput"));
    let caption = format!(
        "Transmission throughput with {who}, as figure 3 of <i>To Copy or Not to Copy</i>. Diamonds are the paper's."
    );
    figure.charts.push((curves(&throughput), caption));
    let caption =
        format!("Work of the sender's processor for a byte with {who}, as figure 5; without empty polling, log axes.");
    figure.charts.push((curves(&sender), caption));
    if clients == 1 {
        let mut inline = chart("throughput (GB/s)");
        let ways =
            [64, 128].into_iter().flat_map(|size| [TransmitWay::CopyOut, TransmitWay::Inline].map(|way| (way, size)));
        for (colour, (way, record_bytes)) in ways.enumerate() {
            let mut points = figure.curve(&series(way, record_bytes, clients));
            points.retain(|point| point.x <= SHORT);
            let label = format!("{} {record_bytes} B", way.name());
            inline.add(Curve::of(&label, colour, points, |p| p.spread.bytes_per_s, 1e-9));
        }
        let caption = "Short sends whose bytes ride in the request (§5.6), beside copies into transmit buffers.";
        figure.charts.push((curves(&inline), caption.into()));
    }
    let caption = format!("Processor time of both ends for a byte with {who}, empty polling included; log axes.");
    figure.charts.push((curves(&both), caption));
}

fn curve_list() -> impl Iterator<Item = (TransmitWay, usize)> {
    DRAWN.into_iter().flat_map(|size| TransmitWay::ALL.into_iter().map(move |way| (way, size)))
}

/// Name and shares: copying or listing, other work in user mode, kernel, empty polling, idle.
fn breakdown_rows(figure: &Figure, kernel_shares: &[KernelShare], clients: usize) -> Vec<(String, Vec<f64>)> {
    let mut rows = Vec::new();
    for (way, record_bytes) in curve_list().filter(|(way, _)| *way != TransmitWay::Auto) {
        let name = series(way, record_bytes, clients);
        let Some(point) = figure.peak(&name, |point| point.bytes_per_s) else { continue };
        let (mut user, mut system) = (0, 0);
        let own =
            |share: &&KernelShare| share.way == way && share.record_bytes == record_bytes && share.clients == clients;
        for share in kernel_shares.iter().filter(own) {
            (user, system) = (user + share.ticks.user, system + share.ticks.system);
        }
        let kernel = system as f64 / (user + system).max(1) as f64;
        let busy = point.sender_cpu_ns_per_byte * point.bytes_per_s / 1e9;
        let work = point.sender_work_ns_per_byte * point.bytes_per_s / 1e9;
        let kernel = (busy * kernel).min(work);
        let preparing = point.label(PREPARING).min(work - kernel);
        let name = format!("{} {record_bytes} B", way.name());
        rows.push((name, vec![preparing, work - kernel - preparing, kernel, busy - work, (1.0 - busy).max(0.0)]));
    }
    rows
}

fn cells(quick: bool) -> Vec<Cell> {
    let (sizes, counts): (&[usize], &[usize]) = if quick {
        (&[64, 128, 256, 1024, 16 << 10, 64 << 10], &[1, 4, 16, 64, 256, 1024])
    } else {
        (&[64, 128, 256, 512, 1024, 4096, 16 << 10, 64 << 10], &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])
    };
    let mut cells: Vec<Cell> = sizes
        .iter()
        .flat_map(|size| counts.iter().map(move |count| Cell { record_bytes: *size, per_send: *count }))
        .collect();
    // Where the paper has gathering saturate (TC-C14), and where its lists end (TC-C19).
    for cell in [Cell { record_bytes: 1024, per_send: 6 }, Cell { record_bytes: 128, per_send: 32 }] {
        if !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    cells.retain(|cell| cell.message_bytes() <= MESSAGE_MAX);
    cells
}

/// Each once, ascending.
pub(super) fn distinct(values: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut values: Vec<usize> = values.collect();
    values.sort_unstable();
    values.dedup();
    values
}

const PREPARING: &str = "preparing_share";
/// A prime, so that it falls on all places of a batch.
const TIMED_EVERY: u64 = 13;
const CLIENTS: [usize; 2] = [1, 15];
/// Record sizes that are drawn, as the paper's.
const DRAWN: [usize; 2] = [128, 1024];
/// No descriptor has room for more.
const SHORT: u64 = 1024;
/// Longer messages would not leave a receiver's ring in the cache.
const MESSAGE_MAX: usize = 1 << 20;
/// Transmit buffers together: no more than stays in the cache.
const POOL_BYTES: usize = 1 << 20;
/// Messages to each receiver that are checked.
const CHECKED: u64 = 40;

#[cfg(test)]
mod tests {
    use super::*;

    /// A point of copy-out of 128 B to one client, from one round.
    fn point(x: u64, round: Sample) -> Point {
        Point::of(series(TransmitWay::CopyOut, 128, 1), x, vec![round], &[1e9])
    }

    /// Work and polling for nothing are by the processor's clock. Of work the kernel's share is by
    /// ticks, and copying as it was timed.
    #[test]
    fn where_a_senders_time_goes_adds_up() {
        let mut figure = Figure::new("transmit", "shm", "");
        let round = Sample { bytes: 1000, wall_ns: 1000, sender_ns: 900, sender_poll_ns: 300, ..Sample::default() };
        figure.points.push(point(8192, round).with(PREPARING, 0.2));
        let share = |record_bytes, user, system| KernelShare {
            way: TransmitWay::CopyOut,
            record_bytes,
            clients: 1,
            ticks: Split { user, system },
        };
        let rows = breakdown_rows(&figure, &[share(128, 2, 0), share(1024, 0, 9), share(128, 2, 2)], 1);
        let [(name, shares)] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!(name, "copy-out 128 B");
        let near = |(a, b): (&f64, f64)| (a - b).abs() < 1e-9;
        // A third of 0.9 in the kernel; of 0.6 of work that and copying leave a tenth.
        assert!(shares.iter().zip([0.2, 0.1, 0.3, 0.3, 0.1]).all(near), "{shares:?}");
    }

    /// Of the chart of figure 5: ten times as far, or as much, is a step of one length
    /// (to-copy §5.2 TC-M37).
    #[test]
    fn both_axes_of_cpu_per_byte_are_logarithmic() {
        let mut figure = Figure::new("transmit", "shm", "");
        for (x, sender_ns) in [(100, 10), (1000, 100), (10_000, 1000)] {
            figure.points.push(point(x, Sample { bytes: 10, wall_ns: 10, sender_ns, ..Sample::default() }));
        }
        throughput_charts(&mut figure, 1, "one client");
        let chart = figure.charts.iter().find(|(_, caption)| caption.contains("figure 5")).unwrap();
        let places = |name: &str| -> Vec<f64> {
            let dots = chart.0.split("<circle").skip(1);
            dots.map(|dot| dot.split(&format!("{name}=\"")).nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
                .collect()
        };
        for at in [places("cx"), places("cy")] {
            let [a, b, c] = at[..] else { panic!("{at:?}") };
            assert!((b - a).abs() > 10.0 && (c - b - (b - a)).abs() < 0.3, "{at:?}");
        }
    }

    /// A figure that lacks what a rule asks says nothing of its claim, however short the run.
    #[test]
    fn quick_runs_too_have_the_sends_that_rules_ask_for() {
        for quick in [true, false] {
            let cells = cells(quick);
            for (record_bytes, per_send) in
                [(1024, 4), (1024, 6), (1024, 16), (128, 32), (64, 1), (256, 1), (256, 64), (16384, 1)]
            {
                let asked = Cell { record_bytes, per_send };
                assert_eq!(cells.iter().filter(|cell| **cell == asked).count(), 1, "quick: {quick}, {asked:?}");
            }
        }
    }
}
