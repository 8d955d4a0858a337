//! `verbs`: SEND, WRITE and READ by record size and gather length (thesis figures 2.2 and 2.3).

use super::{
    Setting,
    charts::{Curve, Curves, curves},
    digest::Digest,
    figure::{Figure, Point},
    ibv_bench,
    receiver::Command,
    records::{Records, Ring},
    sender::{Next, Sample, Sender, Side, Until},
};
use crate::{measure::alternate, svg::Scale};
use anyhow::{Context, Result, ensure};
use overside::{
    memory::{Buffer, Segment, View},
    shape::Run,
    verbs::{Memory, Opcode, Readable, Remote, RemoteToken, WorkCompletion, WorkRequest, Writable},
};

/// Requests of one opcode.
struct Verb {
    opcode: Opcode,
    records: Records,
    gather: usize,
    runs: Vec<Run>,
    /// What is written to or read from.
    remote: RemoteToken,
    /// Where the next WRITE goes.
    at: u64,
    sinks: Vec<Buffer>,
    /// READs that brought what does not lie there.
    wrong: u64,
    /// Whether all bytes of a READ are looked at: outside of the timing.
    checks: bool,
}

impl Side for Verb {
    fn next(&mut self, _to: usize) -> Result<Next> {
        let bytes = self.bytes();
        if self.opcode == Opcode::Read {
            let Some(sink) = self.sinks.pop() else { return Ok(Next::Wait) };
            let from = self.records.take().at;
            let remote = Remote::<Readable>::new(self.remote).part(from, bytes)?;
            return Ok(Next::Request(WorkRequest::read(from, sink, remote)));
        }
        self.runs.clear();
        self.runs.extend((0..self.gather).map(|_| self.records.take()));
        let view = View::runs(self.records.memory(), self.runs.iter().copied())?;
        let request = if self.opcode == Opcode::Send {
            WorkRequest::send(0, view)
        } else {
            // A window of a ring's size: as a receiver's buffers, it stays in the cache.
            if self.at + bytes > self.remote.len {
                self.at = 0;
            }
            let remote = Remote::<Writable>::new(self.remote).part(self.at, bytes)?;
            self.at += bytes.next_multiple_of(64);
            WorkRequest::write(0, view, remote)
        };
        Ok(Next::Request(request.unsignalled()))
    }

    fn bytes(&self) -> u64 {
        (self.gather * self.records.record_bytes()) as u64
    }

    fn completed(&mut self, done: WorkCompletion) {
        if let (Opcode::Read, Some(buffer)) = (done.opcode, done.buffer) {
            // As the receiver has filled what it offers.
            let wanted = |at: usize| ((done.id as usize + at) / 64) as u8;
            let looked_at = if self.checks { done.bytes as usize } else { 1 };
            self.wrong += u64::from((0..looked_at).any(|at| buffer[at] != wanted(at)));
            self.sinks.push(buffer);
        }
    }
}

/// Measures the figure.
pub(super) fn measure(setting: &Setting<'_>) -> Result<Figure> {
    let mut figure = Figure::new("verbs", setting.over.name(), "Rate by verb and gather length");
    let mut sender = Sender::start(setting.over, 1)?;
    ensure!(sender.capabilities.one_sided, "this provider has no WRITE and READ: `verbs` has nothing to compare");
    let region = Records::region(&mut sender, setting.region_bytes())?;
    let sizes: &[usize] = if setting.quick { &[100, 1000] } else { &[16, 100, 1000, 4000] };
    let lengths = lengths(setting.quick, sender.capabilities.sge_max);
    for (at, size) in sizes.iter().enumerate() {
        for (of, gather) in lengths.iter().enumerate() {
            setting.progress.part("verbs", at * lengths.len() + of, sizes.len() * lengths.len());
            sender.connect(1, size * gather, usize::MAX)?;
            let offer = Command::Offer { bytes: setting.region_bytes() as u64 };
            let offer = sender.ask(0, offer)?;
            let (readable, writable) =
                (offer.readable.context("nothing to read")?, offer.writable.context("no window")?);
            let window = RemoteToken { len: writable.len.min(WINDOW_BYTES), ..writable };
            let records = Records::new(&region, *size);
            let mut sides =
                vec![verb(Opcode::Send, &records, *gather, window), verb(Opcode::Write, &records, *gather, window)];
            if *gather == 1 {
                let mut read = verb(Opcode::Read, &records, 1, readable);
                read.sinks = sinks(&mut sender, *size)?;
                sides.push(read);
            }
            one(setting, &mut sender, &mut figure, *size, sides)?;
        }
    }
    ibv_bench::measure(setting, &mut sender, &region, &mut figure)?;
    tell(&mut figure, setting, sizes);
    Ok(figure)
}

fn verb(opcode: Opcode, records: &Records, gather: usize, remote: RemoteToken) -> Verb {
    let records = records.clone();
    Verb { opcode, records, gather, runs: Vec::new(), remote, at: 0, sinks: Vec::new(), wrong: 0, checks: false }
}

fn sinks(sender: &mut Sender, size: usize) -> Result<Vec<Buffer>> {
    let slot = size.next_multiple_of(64);
    let sinks = Segment::shared(slot * SINKS)?.carve(slot);
    if let Some(first) = sinks.first() {
        sender.register(&Memory::Segment(first.segment().clone()))?;
    }
    Ok(sinks)
}

fn one(
    setting: &Setting<'_>,
    sender: &mut Sender,
    figure: &mut Figure,
    size: usize,
    mut sides: Vec<Verb>,
) -> Result<()> {
    let gather = sides[0].gather;
    for side in &mut sides {
        check(sender, side)?;
    }
    let mut limit_records = sides[0].records.clone();
    let mut ring = Ring::new(size * gather, &mut limit_records, gather)?;
    let mut limits = Vec::new();
    let samples = alternate(sides.len() + 1, setting.rounds(), |side, _| -> Result<Sample> {
        let Some(side) = sides.get_mut(side) else {
            limits.push(ring.limit(&mut limit_records, gather, setting.slice_ns() / 2));
            return Ok(Sample::default());
        };
        Ok(sender.run(side, Until::Elapsed(setting.slice_ns()), false)?.0)
    })?;
    for (side, rounds) in sides.iter().zip(samples) {
        ensure!(side.wrong == 0, "{} READs brought wrong bytes", side.wrong);
        let name = format!("{} {size} B", name(side.opcode));
        let point = Point::of(name, gather as u64, rounds, &limits);
        figure.points.push(point.with("record_bytes", size).with("opcode", self::name(side.opcode)));
    }
    Ok(())
}

/// The first requests, which warm caches as well. A SEND brings its records in their order, a WRITE
/// leaves them in the window, a READ brings what lies there.
fn check(sender: &mut Sender, side: &mut Verb) -> Result<()> {
    let (mut wanted, mut records) = (Digest::default(), side.records.clone());
    let window_bytes = side.remote.len;
    if side.opcode == Opcode::Write {
        sender.ask(0, Command::Written { bytes: window_bytes })?;
    }
    side.checks = true;
    let answers = sender.run(side, Until::Requests(WARM_UP), true)?.1;
    side.checks = false;
    if side.opcode == Opcode::Send {
        let mut message = vec![0; side.bytes() as usize];
        for _ in 0..WARM_UP {
            records.pack(side.gather, &mut message);
            wanted.message(&message);
        }
        let brought = (answers[0].messages, answers[0].digest);
        ensure!(brought == (wanted.messages(), wanted.value()), "SENDs of {} records brought other bytes", side.gather);
    }
    if side.opcode == Opcode::Write {
        let (mut window, mut at, bytes) = (vec![0; window_bytes as usize], 0, side.bytes() as usize);
        for _ in 0..WARM_UP {
            at = if at + bytes > window.len() { 0 } else { at };
            records.pack(side.gather, &mut window[at..][..bytes]);
            at += bytes.next_multiple_of(64);
        }
        wanted.message(&window);
        let left = sender.ask(0, Command::Written { bytes: window_bytes })?.digest;
        ensure!(left == wanted.value(), "WRITEs of {} records left other bytes", side.gather);
    }
    ensure!(side.wrong == 0, "{} READs brought wrong bytes", side.wrong);
    Ok(())
}

fn tell(figure: &mut Figure, setting: &Setting<'_>, sizes: &[usize]) {
    figure.text = format!(
        "One process posts requests of each opcode, with gather lists of 1 to {} records scattered over {} MiB. A READ names one \
         range of the peer's memory, so it is a single point. Over shared memory the receiver executes a SEND, the initiator a \
         WRITE or READ. Last come the rows of ibv-bench, as that bench names them: records packed first or gathered, over an RDMA \
         device in each length of list that it has.",
        figure.points.iter().map(|point| point.x).max().unwrap_or(1),
        setting.region_bytes() >> 20
    );
    for size in sizes {
        let mut chart = Curves::new("transmission rate (GB/s)", "records in the gather list", Scale::Log);
        for (colour, opcode) in [Opcode::Send, Opcode::Write, Opcode::Read].into_iter().enumerate() {
            let points = figure.curve(&format!("{} {size} B", name(opcode)));
            chart.add(Curve::of(name(opcode), colour, points, |p| p.spread.bytes_per_s, 1e-9));
        }
        chart.add(Curve::limit("memcpy of the same records", 4, &figure.curve(&format!("SEND {size} B"))));
        let which = match size {
            100 => ", as figure 2.2 of <i>Large Transfers</i> (whose values are in the figure alone)",
            1000 => ", as figure 2.3 (whose values are in the figure alone)",
            _ => "",
        };
        figure
            .charts
            .push((curves(&chart), format!("Transmission rate of {size} B records over gather length{which}.")));
    }
}

fn name(opcode: Opcode) -> &'static str {
    match opcode {
        Opcode::Write => "WRITE",
        Opcode::Read => "READ",
        _ => "SEND",
    }
}

fn lengths(quick: bool, sge_max: usize) -> Vec<usize> {
    let step = if quick { 4 } else { 2 };
    std::iter::successors(Some(1), |length| Some(length * step)).take_while(|length| *length <= sge_max).collect()
}

const WINDOW_BYTES: u64 = 1 << 20;
const SINKS: usize = 64;
const WARM_UP: u64 = 64;
