//! `flight`: scans over shared memory against Arrow Flight over loopback, the same rows, servers in other processes.

mod service;
mod sides;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use overside_bench::limits::Touched;
use overside_bench::lineitem::Lineitem;
use overside_bench::measure::{Bar, Cpu, Ratio, Spread, median, rotation};
use overside_bench::overside::{self, table::client::Client, table::server::ServerOptions};
use serde::Serialize;

use crate::Measure;
use sides::{Flight, Overside};

/// Everything that was measured, as JSON shows it.
#[derive(Serialize)]
struct Report {
    rows: u64,
    scale: f64,
    rounds: usize,
    /// Bytes of a row as a row view; `bytes_per_s` counts these for every side.
    row_bytes: f64,
    /// Rows of the batches with which Flight was fastest.
    flight_batch_rows: usize,
    sides: Vec<SideReport>,
    bars: Vec<Bar>,
}

#[derive(Serialize)]
struct SideReport {
    name: &'static str,
    rows_per_s: Spread,
    bytes_per_s: f64,
    server_cpu_ns_per_row: f64,
    client_cpu_ns_per_row: f64,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    rows_per_s: f64,
    server_ns: f64,
    client_ns: f64,
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
    let mut ours = Overside::load(connect(&address)?, rows)?;
    // It takes the very batches that Overside delivers, and serves those.
    let (flight_server, flight_address) = Server::start("flight", &address)?;
    let mut flight = Flight::connect(&flight_address)?;
    let mut session = Session { ours: &mut ours, flight: &mut flight, flight_pid: flight_server.child.id(), batch: 0 };
    let row_bytes = session.check(rows.len() as u64)?;
    session.choose_batch()?;
    let samples = session.rounds(rounds)?;
    let report = summary(&samples, rows.len() as u64, scale, rounds, row_bytes, session.batch);
    if measure.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    Ok(())
}

struct Session<'a> {
    ours: &'a mut Overside,
    flight: &'a mut Flight,
    flight_pid: u32,
    /// Rows of a batch that Flight does best with.
    batch: usize,
}

impl Session<'_> {
    /// Every side delivers the same rows; returns bytes of a row view.
    fn check(&mut self, rows: u64) -> Result<f64> {
        let views = self.ours.views()?;
        ensure!(views.rows == rows, "row views: {} of {rows} rows", views.rows);
        let mut theirs = Touched::default();
        let mut arrow = Touched::default();
        self.ours.batches(BATCH_ROWS[0], |batch| Ok(arrow.add(sides::digest(&batch)?)))?;
        self.flight.batches(BATCH_ROWS[0], |batch| Ok(theirs.add(sides::digest(&batch)?)))?;
        ensure!(arrow.rows == rows && theirs.rows == rows, "{} and {} of {rows} rows", arrow.rows, theirs.rows);
        ensure!(arrow.sum == theirs.sum, "the batches of both sides are not the same");
        Ok(views.bytes as f64 / rows as f64)
    }

    /// Flight may have the batch size that suits it best.
    fn choose_batch(&mut self) -> Result<()> {
        let mut best = (0.0, BATCH_ROWS[0]);
        for rows in BATCH_ROWS {
            self.batch = rows;
            let rates = [(); 3].map(|()| self.run(FLIGHT).map(|sample| sample.rows_per_s));
            let rates: Vec<f64> = rates.into_iter().collect::<Result<_>>()?;
            let rate = median(&rates);
            eprintln!("Flight with batches of {rows} rows: {:.2} M rows/s", rate / 1e6);
            if rate > best.0 {
                best = (rate, rows);
            }
        }
        self.batch = best.1;
        Ok(())
    }

    fn rounds(&mut self, rounds: usize) -> Result<Vec<Vec<Sample>>> {
        let mut samples = vec![Vec::new(); SIDES.len()];
        for round in 0..rounds {
            for side in rotation(SIDES.len(), round) {
                samples[side].push(self.run(side)?);
            }
        }
        Ok(samples)
    }

    /// Repeats one side's scan for a while.
    fn run(&mut self, side: usize) -> Result<Sample> {
        let server = if side == FLIGHT { self.flight_pid } else { self.ours.server_pid() };
        let (server_before, client_before, start) = (Cpu::of(server)?, Cpu::own(), Instant::now());
        let mut all = Touched::default();
        while start.elapsed() < SAMPLE {
            match side {
                VIEWS => all.add(self.ours.views()?),
                ARROW => self.ours.batches(self.batch, |batch| Ok(all.add(sides::read(&batch))))?,
                _ => self.flight.batches(self.batch, |batch| Ok(all.add(sides::read(&batch))))?,
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

fn summary(
    samples: &[Vec<Sample>],
    rows: u64,
    scale: f64,
    rounds: usize,
    row_bytes: f64,
    flight_batch_rows: usize,
) -> Report {
    let of = |side: usize, pick: fn(&Sample) -> f64| samples[side].iter().map(pick).collect::<Vec<f64>>();
    let sides = SIDES.into_iter().enumerate().map(|(side, name)| {
        let rows_per_s = Spread::of(&of(side, |s| s.rows_per_s));
        SideReport {
            name,
            rows_per_s,
            bytes_per_s: rows_per_s.median * row_bytes,
            server_cpu_ns_per_row: median(&of(side, |s| s.server_ns)),
            client_cpu_ns_per_row: median(&of(side, |s| s.client_ns)),
        }
    });
    let sides = sides.collect();
    let faster = |side| Ratio::paired(&of(side, |s| s.rows_per_s), &of(FLIGHT, |s| s.rows_per_s));
    let cpu = |side| of(side, |s| s.server_ns + s.client_ns);
    let bars = vec![
        Bar::at_least("row views: throughput over Flight's", 12.0, faster(VIEWS)),
        Bar::at_least("Arrow batches: throughput over Flight's", 4.0, faster(ARROW)),
        Bar::at_least("Arrow batches: throughput over Flight's, the goal", 8.0, faster(ARROW)),
        Bar::at_least("Arrow batches: Flight's CPU a row over ours, both processes", 4.0, {
            Ratio::paired(&cpu(FLIGHT), &cpu(ARROW))
        }),
    ];
    Report { rows, scale, rounds, row_bytes, flight_batch_rows, sides, bars }
}

fn print(report: &Report) {
    println!(
        "lineitem, {} rows of {:.0} bytes, {} rounds; Flight with batches of {} rows; medians",
        report.rows, report.row_bytes, report.rounds, report.flight_batch_rows
    );
    println!("\n{:28}{:>12}{:>10}{:>22}{:>22}", "", "M rows/s", "GB/s", "server CPU ns/row", "client CPU ns/row");
    for side in &report.sides {
        println!(
            "{:28}{:>12.2}{:>10.2}{:>22.1}{:>22.1}",
            side.name,
            side.rows_per_s.median / 1e6,
            side.bytes_per_s / 1e9,
            side.server_cpu_ns_per_row,
            side.client_cpu_ns_per_row
        );
    }
    println!("\nGB/s count the bytes of the rows as row views, for every side alike.");
    crate::bars::print(&report.bars);
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
        "flight" => {
            let mut table = Overside::open(connect(address)?)?;
            let mut tables = Vec::new();
            for rows in BATCH_ROWS {
                let mut batches = Vec::new();
                table.batches(rows, |batch| {
                    batches.push(batch);
                    Ok(())
                })?;
                tables.push((rows, batches));
            }
            drop(table);
            service::serve(service::Prebuilt { tables }, |address| ready(&address.to_string()))
        }
        other => bail!("there is no side named {other}"),
    }
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

const SIDES: [&str; 3] = ["Overside, row views", "Overside, Arrow batches", "Arrow Flight"];
const VIEWS: usize = 0;
const ARROW: usize = 1;
const FLIGHT: usize = 2;
/// Rows of a batch: Flight is measured with the size that suits it best.
const BATCH_ROWS: [usize; 3] = [2048, 8192, 32768];
/// HTTP/2's own default of 64 KiB would hold Flight back.
const WINDOW_BYTES: u32 = 16 << 20;
/// How long a side runs at least in a round.
const SAMPLE: Duration = Duration::from_millis(300);
