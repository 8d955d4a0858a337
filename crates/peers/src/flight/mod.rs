//! `flight`: scans over shared memory against Arrow Flight over loopback, the same rows, servers in other processes.

mod limits;
mod report;
mod service;
mod sides;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use overside_bench::limits::Touched;
use overside_bench::lineitem::Lineitem;
use overside_bench::measure::{Cpu, median, rotation};
use overside_bench::overside::{self, table::client::Client, table::server::ServerOptions};

use crate::Measure;
use limits::Limits;
use report::Report;
use service::Tuning;
use sides::{Flight, Overside};

/// Who delivers rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Views,
    Batches,
    /// The one that bars are held against.
    Flight,
    Tuned,
}

impl Side {
    const ALL: [Side; 4] = [Side::Views, Side::Batches, Side::Flight, Side::Tuned];

    fn name(self) -> &'static str {
        match self {
            Side::Views => "Overside, row views",
            Side::Batches => "Overside, Arrow batches",
            Side::Flight => "Arrow Flight, as it comes",
            Side::Tuned => "Arrow Flight, tuned",
        }
    }
}

/// What bounds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Rows,
    Batches,
    Loopback,
}

impl Limit {
    const ALL: [Limit; 3] = [Limit::Rows, Limit::Batches, Limit::Loopback];

    fn name(self) -> &'static str {
        match self {
            Limit::Rows => "row views: copied once, in pages, read",
            Limit::Batches => "batches: copied twice, used again, read",
            Limit::Loopback => "Flight: loopback TCP, read",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    rows_per_s: f64,
    server_ns: f64,
    client_ns: f64,
}

/// Samples by side and limit, each in the order of the rounds.
#[derive(Default)]
struct Samples {
    sides: [Vec<Sample>; Side::ALL.len()],
    /// Bytes per second.
    limits: [Vec<f64>; Limit::ALL.len()],
}

impl Samples {
    fn of(&self, side: Side) -> &[Sample] {
        &self.sides[side as usize]
    }

    fn limit(&self, limit: Limit) -> &[f64] {
        &self.limits[limit as usize]
    }
}

/// Measures and reports.
pub fn main(measure: Measure) -> Result<()> {
    let scale = if measure.quick { 0.02 } else { 0.1 };
    let rounds = measure.rounds.unwrap_or(if measure.quick { 7 } else { 15 }).max(2);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    eprintln!("generating lineitem");
    let generated = Lineitem::generate(scale, cores)?;
    let rows = generated.rows();
    let address = format!("shm:overside-peers-{}", std::process::id());
    let (_server, _) = Server::start("overside", &address)?;
    eprintln!("loading {} rows", rows.len());
    let ours = Overside::load(connect(&address)?, rows)?;
    // They take the very batches that Overside delivers, and serve those.
    let (flight, flight_address) = Server::start("flight", &address)?;
    let (tuned, tuned_address) = Server::start("flight-tuned", &address)?;
    let mut session = Session {
        ours,
        flight: Flight::connect(&flight_address, Tuning::AsItComes)?,
        tuned: Flight::connect(&tuned_address, Tuning::Tuned)?,
        flight_pid: flight.child.id(),
        tuned_pid: tuned.child.id(),
        batch: BATCH_ROWS_USUAL,
        tuned_batch: BATCH_ROWS_USUAL,
    };
    let row_bytes = session.check(rows.len() as u64)?;
    session.batch = session.best_batch(Side::Batches)?;
    session.tuned_batch = session.best_batch(Side::Tuned)?;
    let limits = Limits::new(rows, (session.batch as f64 * row_bytes) as usize)?;
    let samples = session.rounds(limits, rounds)?;
    let report = Report::new(&samples, rows.len() as u64, scale, row_bytes, |side| session.batch_rows(side));
    if measure.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        report.print();
    }
    Ok(())
}

struct Session {
    ours: Overside,
    flight: Flight,
    tuned: Flight,
    flight_pid: u32,
    tuned_pid: u32,
    /// Rows of a batch that the side does best with.
    batch: usize,
    tuned_batch: usize,
}

impl Session {
    /// Every side delivers the same rows, and its consumer reads as much; returns bytes of a row view.
    fn check(&mut self, rows: u64) -> Result<f64> {
        let views = self.ours.views()?;
        ensure!(views.rows == rows, "row views: {} of {rows} rows", views.rows);
        let (mut ours, mut read) = (Touched::default(), Touched::default());
        self.ours.batches(BATCH_ROWS_USUAL, |batch| {
            read.add(sides::read(&batch));
            ours.add(sides::digest(&batch)?);
            Ok(())
        })?;
        ensure!(ours.rows == rows, "batches: {} of {rows} rows", ours.rows);
        for flight in [&mut self.flight, &mut self.tuned] {
            let (mut theirs, mut their_read) = (Touched::default(), Touched::default());
            flight.batches(BATCH_ROWS_USUAL, |batch| {
                their_read.add(sides::read(&batch));
                theirs.add(sides::digest(&batch)?);
                Ok(())
            })?;
            ensure!(ours == theirs, "the batches of both sides are not the same");
            let (few, many) = (read.bytes.min(their_read.bytes), read.bytes.max(their_read.bytes));
            ensure!(many - few < many / 100, "one side's consumer reads {few} bytes, the other's {many}");
        }
        Ok(views.bytes as f64 / rows as f64)
    }

    fn batch_rows(&self, side: Side) -> Option<usize> {
        match side {
            Side::Views => None,
            Side::Batches => Some(self.batch),
            Side::Flight => Some(BATCH_ROWS_USUAL),
            Side::Tuned => Some(self.tuned_batch),
        }
    }

    /// The batch size that suits a side best.
    fn best_batch(&mut self, side: Side) -> Result<usize> {
        let mut best = (0.0, BATCH_ROWS_USUAL);
        for rows in BATCH_ROWS {
            match side {
                Side::Tuned => self.tuned_batch = rows,
                _ => self.batch = rows,
            }
            let rates = [(); 3].map(|()| self.run(side).map(|sample| sample.rows_per_s));
            let rates: Vec<f64> = rates.into_iter().collect::<Result<_>>()?;
            let rate = median(&rates);
            eprintln!("{} with batches of {rows} rows: {:.2} M rows/s", side.name(), rate / 1e6);
            if rate > best.0 {
                best = (rate, rows);
            }
        }
        Ok(best.1)
    }

    fn rounds(&mut self, mut limits: Limits, rounds: usize) -> Result<Samples> {
        let mut samples = Samples::default();
        for round in 0..rounds {
            for step in rotation(Side::ALL.len() + Limit::ALL.len(), round) {
                match Side::ALL.get(step) {
                    Some(&side) => samples.sides[side as usize].push(self.run(side)?),
                    None => {
                        let limit = Limit::ALL[step - Side::ALL.len()];
                        samples.limits[limit as usize].push(match limit {
                            Limit::Rows => limits.rows(),
                            Limit::Batches => limits.batches(),
                            Limit::Loopback => limits.loopback()?,
                        });
                    }
                }
            }
        }
        Ok(samples)
    }

    /// Repeats one side's scan for a while.
    fn run(&mut self, side: Side) -> Result<Sample> {
        let server = match side {
            Side::Views | Side::Batches => self.ours.server_pid(),
            Side::Flight => self.flight_pid,
            Side::Tuned => self.tuned_pid,
        };
        let (server_before, client_before, start) = (Cpu::of(server)?, Cpu::own(), Instant::now());
        let mut all = Touched::default();
        while start.elapsed() < SAMPLE {
            let each = |batch| {
                all.add(sides::read(&batch));
                Ok(())
            };
            match side {
                Side::Views => all.add(self.ours.views()?),
                Side::Batches => self.ours.batches(self.batch, each)?,
                Side::Flight => self.flight.batches(BATCH_ROWS_USUAL, each)?,
                Side::Tuned => self.tuned.batches(self.tuned_batch, each)?,
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let client = Cpu::own() - client_before;
        // A thread that runs just now is a tick behind in the account of another process.
        std::thread::sleep(Duration::from_millis(8));
        let server = Cpu::of(server)? - server_before;
        let rows = all.rows as f64;
        std::hint::black_box(all);
        Ok(Sample { rows_per_s: rows / seconds, server_ns: server as f64 / rows, client_ns: client as f64 / rows })
    }
}

/// A server process of ours. It ends when its standard input does, which is when we end or drop it.
struct Server {
    child: Child,
}

impl Server {
    /// Starts this executable again; returns the line that it says when it is ready.
    fn start(side: &str, address: &str) -> Result<(Self, String)> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["flight-child", side, address])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("the {side} server could not be started"))?;
        let mut line = String::new();
        let said = child.stdout.take().map(|out| BufReader::new(out).read_line(&mut line));
        let server = Self { child };
        if !matches!(said, Some(Ok(1..))) {
            bail!("the {side} server ended before it was ready; its last words are above");
        }
        Ok((server, line.trim().to_owned()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already; then there is only to reap.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server process.
pub fn child(side: &str, address: &str) -> Result<()> {
    // Whoever started us holds the other end.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0; 1]);
        std::process::exit(0);
    });
    match side {
        "overside" => {
            let _server = overside::serve(&[address], ServerOptions::default())?;
            ready("")?;
            loop {
                std::thread::park();
            }
        }
        "flight" => flight(address, &[BATCH_ROWS_USUAL], Tuning::AsItComes),
        "flight-tuned" => flight(address, &BATCH_ROWS, Tuning::Tuned),
        other => bail!("there is no side named {other}"),
    }
}

/// Serves what Overside's server at `address` delivers, in batches of these sizes.
fn flight(address: &str, sizes: &[usize], tuning: Tuning) -> Result<()> {
    let mut table = Overside::open(connect(address)?)?;
    let mut tables = Vec::new();
    for &rows in sizes {
        let mut batches = Vec::new();
        table.batches(rows, |batch| {
            batches.push(batch);
            Ok(())
        })?;
        tables.push((rows, batches));
    }
    drop(table);
    service::serve(service::Prebuilt { tables }, tuning, |address| ready(&address.to_string()))
}

fn ready(word: &str) -> Result<()> {
    println!("{word}");
    std::io::stdout().flush()?;
    Ok(())
}

fn connect(address: &str) -> Result<Client> {
    let start = Instant::now();
    loop {
        match overside::connect(address) {
            Ok(client) => return Ok(client),
            Err(_) if start.elapsed() < Duration::from_secs(10) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(error).with_context(|| format!("the server at {address} does not answer")),
        }
    }
}

/// Rows of a batch as query engines and file readers make them.
const BATCH_ROWS_USUAL: usize = 8192;
/// Rows of a batch: Overside and the tuned Flight are measured with the size that suits each best.
const BATCH_ROWS: [usize; 3] = [2048, BATCH_ROWS_USUAL, 32768];
/// HTTP/2's own default of 64 KiB holds Flight back.
const WINDOW_BYTES: u32 = 16 << 20;
/// How long a side runs at least in a round.
const SAMPLE: Duration = Duration::from_millis(200);
