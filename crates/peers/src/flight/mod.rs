//! `flight`: scans over shared memory or TCP against Arrow Flight over loopback, the same rows,
//! servers in other processes.

mod limits;
mod pyarrow;
mod report;
mod service;
mod sides;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use overside_bench::limits::Touched;
use overside_bench::lineitem::Lineitem;
use overside_bench::measure::{Cpu, median, rotation};
use overside_bench::overside::calibrate::Effort;
use overside_bench::overside::table::client::{Client, ClientOptions};
use overside_bench::overside::{self, Address, Network, Prices, table::server::ServerOptions};

use crate::Measure;
use limits::Limits;
use pyarrow::PyArrow;
use report::Report;
use service::Tuning;
use sides::{Flight, Overside};

/// How to measure, and against whom.
#[derive(clap::Args, Clone, Debug)]
pub struct FlightMeasure {
    #[command(flatten)]
    measure: Measure,
    /// How Overside's rows travel: shm or tcp.
    #[arg(long, default_value = "shm", value_parser = ["shm", "tcp"])]
    over: String,
    /// A Python with pyarrow and numpy, whose Flight (in C++) is measured as well.
    #[arg(long, value_name = "PYTHON")]
    pyarrow: Option<PathBuf>,
    /// Only these sides: views, batches, flight, tuned, tagged, pyarrow.
    #[arg(long, value_name = "SIDE,…", value_delimiter = ',', conflicts_with = "results")]
    only: Vec<String>,
}

/// Who delivers rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Views,
    Batches,
    /// The one that bars are held against.
    Flight,
    Tuned,
    /// Row views by frames that carry tags made with a key.
    Tagged,
    PyArrow,
}

impl Side {
    const ALL: [Side; 6] = [Side::Views, Side::Batches, Side::Flight, Side::Tuned, Side::Tagged, Side::PyArrow];

    /// As `--only` names it.
    fn word(self) -> &'static str {
        match self {
            Side::Views => "views",
            Side::Batches => "batches",
            Side::Flight => "flight",
            Side::Tuned => "tuned",
            Side::Tagged => "tagged",
            Side::PyArrow => "pyarrow",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Side::Views => "Overside, row views",
            Side::Batches => "Overside, Arrow batches",
            Side::Flight => "Arrow Flight, as it comes",
            Side::Tuned => "Arrow Flight, tuned",
            Side::Tagged => "Overside, row views, tags",
            Side::PyArrow => "pyarrow's Flight (C++)",
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
            Limit::Loopback => "TCP: plain write and read in 64 KiB",
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
pub fn main(asked: &FlightMeasure) -> Result<()> {
    let measure = &asked.measure;
    let scale = if measure.quick { 0.02 } else { 0.1 };
    let rounds = measure.rounds.unwrap_or(if measure.quick { 7 } else { 15 }).max(2);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    eprintln!("generating lineitem");
    let generated = Lineitem::generate(scale, cores)?;
    let rows = generated.rows();
    let mut servers = Vec::new();
    let mut load = |what: &str, key_file: Option<&Path>| -> Result<(Overside, String)> {
        let address = Address::here(&asked.over, &format!("overside-peers-{what}-{}", std::process::id()))?.to_string();
        servers.push(Server::start("overside", &address, key_file)?.0);
        eprintln!("loading {} rows, {what}", rows.len());
        Ok((Overside::load(connect(&address, key_file)?, rows)?, address))
    };
    let (ours, address) = load("plain", None)?;
    let key = tempfile_key()?;
    let tagged = if asked.over == "tcp" { Some(load("tagged", Some(&key.0))?.0) } else { None };
    // They take the very batches that Overside delivers, and serve those.
    let (flight, flight_address) = Server::start("flight", &address, None)?;
    let (tuned, tuned_address) = Server::start("flight-tuned", &address, None)?;
    let pyarrow = asked.pyarrow.as_deref().map(|python| PyArrow::start(python, &flight_address, BATCH_ROWS_USUAL));
    let mut session = Session {
        ours,
        tagged,
        flight: Flight::connect(&flight_address, Tuning::AsItComes)?,
        tuned: Flight::connect(&tuned_address, Tuning::Tuned)?,
        pyarrow: pyarrow.transpose()?,
        flight_pid: flight.child.id(),
        tuned_pid: tuned.child.id(),
        batch: BATCH_ROWS_USUAL,
        tuned_batch: BATCH_ROWS_USUAL,
        only: asked.only.clone(),
    };
    let row_bytes = session.check(rows.len() as u64)?;
    session.batch = session.best_batch(Side::Batches)?;
    session.tuned_batch = session.best_batch(Side::Tuned)?;
    let limits = Limits::new(rows, (session.batch as f64 * row_bytes) as usize)?;
    let samples = session.rounds(limits, rounds)?;
    let over_tcp = asked.over == "tcp";
    let batch_rows = |side| session.batch_rows(side);
    let report = Report::new(&samples, rows.len() as u64, scale, row_bytes, over_tcp, batch_rows);
    crate::bars::tell(measure, &report)
}

/// A file with a key, gone when it is dropped.
struct KeyFile(PathBuf);

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn tempfile_key() -> Result<KeyFile> {
    use std::os::unix::fs::OpenOptionsExt;
    let path = std::env::temp_dir().join(format!("overside-peers-{}.key", std::process::id()));
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    let key = KeyFile(path);
    file.write_all(&overside::verbs::random::<32>()?)?;
    Ok(key)
}

struct Session {
    ours: Overside,
    tagged: Option<Overside>,
    flight: Flight,
    tuned: Flight,
    pyarrow: Option<PyArrow>,
    flight_pid: u32,
    tuned_pid: u32,
    /// Rows of a batch that the side does best with.
    batch: usize,
    tuned_batch: usize,
    /// Which sides run; all when it is empty.
    only: Vec<String>,
}

impl Session {
    /// Every side delivers the same rows, and its consumer reads as much; returns bytes of a row
    /// view.
    fn check(&mut self, rows: u64) -> Result<f64> {
        let views = self.ours.views()?;
        ensure!(views.rows == rows, "row views: {} of {rows} rows", views.rows);
        if let Some(tagged) = &mut self.tagged {
            ensure!(tagged.views()? == views, "row views differ when frames carry tags");
        }
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
        if let Some(theirs) = &mut self.pyarrow {
            let once = theirs.run(Duration::ZERO)?;
            ensure!(once.scans == 1 && once.rows == rows, "pyarrow: {} of {rows} rows", once.rows);
            let (few, many) = (read.bytes.min(once.bytes), read.bytes.max(once.bytes));
            ensure!(many - few < many / 100, "pyarrow's consumer reads {} bytes, ours {}", once.bytes, read.bytes);
        }
        Ok(views.bytes as f64 / rows as f64)
    }

    fn batch_rows(&self, side: Side) -> Option<usize> {
        match side {
            Side::Views | Side::Tagged => None,
            Side::Batches => Some(self.batch),
            Side::Flight | Side::PyArrow => Some(BATCH_ROWS_USUAL),
            Side::Tuned => Some(self.tuned_batch),
        }
    }

    /// The batch size that suits a side best.
    fn best_batch(&mut self, side: Side) -> Result<usize> {
        let mut best = (0.0, BATCH_ROWS_USUAL);
        if !self.has(side) {
            return Ok(best.1);
        }
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

    fn has(&self, side: Side) -> bool {
        if !self.only.is_empty() && !self.only.iter().any(|word| word == side.word()) {
            return false;
        }
        match side {
            Side::Tagged => self.tagged.is_some(),
            Side::PyArrow => self.pyarrow.is_some(),
            Side::Views | Side::Batches | Side::Flight | Side::Tuned => true,
        }
    }

    fn rounds(&mut self, mut limits: Limits, rounds: usize) -> Result<Samples> {
        let mut samples = Samples::default();
        for round in 0..rounds {
            for step in rotation(Side::ALL.len() + Limit::ALL.len(), round) {
                match Side::ALL.get(step) {
                    Some(&side) if !self.has(side) => {}
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
        let server = match (side, &mut self.pyarrow, &self.tagged) {
            (Side::PyArrow, Some(pyarrow), _) => return pyarrow.sample(SAMPLE),
            (Side::Tagged, _, Some(tagged)) => tagged.server_pid(),
            (Side::Flight, ..) => self.flight_pid,
            (Side::Tuned, ..) => self.tuned_pid,
            _ => self.ours.server_pid(),
        };
        let (server_before, client_before, start) = (Cpu::of(server)?, Cpu::own(), Instant::now());
        let mut all = Touched::default();
        while start.elapsed() < SAMPLE {
            let each = |batch| {
                all.add(sides::read(&batch));
                Ok(())
            };
            match side {
                Side::Views | Side::PyArrow => all.add(self.ours.views()?),
                Side::Tagged => all.add(self.tagged.as_mut().context("a side that was not started")?.views()?),
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
    fn start(side: &str, address: &str, key_file: Option<&Path>) -> Result<(Self, String)> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["flight-child", side, address])
            .args(key_file)
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
pub fn child(side: &str, address: &str, key_file: Option<PathBuf>) -> Result<()> {
    // Whoever started us holds the other end.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0; 1]);
        std::process::exit(0);
    });
    match side {
        "overside" => {
            let network = Network { key_file, ..Network::default() };
            let serving = overside::at(address).network(&network).prices(Prices::Measured(Effort::Quick));
            let _server = serving.serve(ServerOptions::default())?;
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
    let mut table = Overside::open(connect(address, None)?)?;
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

fn connect(address: &str, key_file: Option<&Path>) -> Result<Client> {
    let (start, network) =
        (Instant::now(), Network { key_file: key_file.map(Path::to_path_buf), ..Network::default() });
    loop {
        match overside::at(address).network(&network).client(ClientOptions::default()) {
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
