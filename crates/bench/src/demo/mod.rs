//! The demo: TPC-H `lineitem` in a server process, scanned by this one in every mode,
//! updated by a third, compared with what hand-written code reaches over a socket, verified
//! row by row, and written up.
//!
//! Its course is [`run`]; what runs beside it are processes of this same executable
//! ([`crate::child_main`]), which end when it does, whatever it ends of.

mod children;
mod disturbed;
mod expected;
mod hot;
mod quiet;
mod stage;
mod summary;
mod table;
mod updates;
mod workload;

pub(crate) use children::child;

use crate::{
    baseline::Baseline,
    limits::{Chunks, ping_pong},
    lineitem::{Lineitem, NarrowRows, PackedRows, Rows},
    measure::{HostTime, Split, median, now_ns},
    process::Process,
    progress::{MEASURING, Progress},
    rendezvous::Rendezvous,
    report::{self, Machine, Prices, Report, Run},
    verify::History,
};
use anyhow::{Result, ensure};
use children::{BASELINE, SERVER, UPDATER};
use expected::Expected;
use overside::{
    Transport,
    memory::{Buffer, available_bytes},
    prices,
};
use stage::{Checked, Stage};
use std::{io::Write, os::unix::net::UnixStream, path::PathBuf};
use table::Table;
use updates::Updater;
use workload::{Workload, part_rows, parts};

/// What to demonstrate, and where to write it up.
#[derive(Clone, Debug)]
pub struct Options {
    /// TPC-H scale factor: 0.1 is 600,572 rows.
    pub scale: f64,
    /// One JSON object on standard output instead of tables.
    pub json: bool,
    /// The page to write.
    pub report: PathBuf,
    /// Few rounds: for looking whether it works, not for figures.
    pub quick: bool,
    /// Which provider to go over, as addresses begin.
    pub over: String,
    /// Of `rdma`, the device by name; none: the first with an active port.
    pub rdma_device: Option<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            scale: 0.1,
            json: false,
            report: PathBuf::from("overside-demo.html"),
            quick: false,
            over: Transport::names().next().unwrap_or_default().into(),
            rdma_device: None,
        }
    }
}

/// Runs the demo: prints what it found, writes the page, returns it all. Takes under a
/// minute at the default scale.
///
/// Call it from the main thread, which must outlive it: the processes it starts are killed when the
/// thread that started them ends.
///
/// # Errors
///
/// There is no such provider or device, a process could not be started or ended early, memory ran
/// out, or the page could not be written. A scan that breaks its contract is no error here: the
/// report says `verified: false`.
pub fn run(options: &Options) -> Result<Report> {
    let start = now_ns();
    let name = format!("overside-demo-{}", std::process::id());
    let rendezvous = Rendezvous::here(&options.over, options.rdma_device.as_deref(), &name)?;
    rendezvous.check()?;
    report::writable(&options.report)?;
    let (needed, there) = (memory_needed(options.scale), available_bytes());
    ensure!(
        there.is_none_or(|there| needed <= there),
        "scale factor {} takes about {} MiB of memory in all processes, and {} MiB are available; give a smaller --scale",
        options.scale,
        needed >> 20,
        there.unwrap_or_default() >> 20
    );
    let progress = Progress::new();
    progress.say("generating lineitem");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let generated = Lineitem::narrow(options.scale, cores)?.shared()?;
    let mut report = measure(options, &rendezvous, &generated, &progress)?;
    report.took_s = (now_ns() - start) as f64 / 1e9;
    progress.say("writing the report");
    let written = report::write(&options.report, &report::html(&report));
    drop(progress);
    // A page that could not be written takes nothing else with it.
    let mut out = std::io::stdout().lock();
    if options.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        write!(out, "{}", report::text(&report))?;
    }
    written?;
    if !options.json {
        writeln!(out, "\nThe report is {}: open it in a browser.", options.report.display())?;
    }
    Ok(report)
}

/// All that runs. What is declared first is dropped, and with that killed and reaped, last but
/// for the table's connection.
struct Cast<'a> {
    stage: Stage<'a>,
    baseline: Baseline,
    server: Process,
    baseline_process: Process,
    _server_line: UnixStream,
}

impl Cast<'_> {
    /// Ticks that all processes of the demo have used, this one included.
    fn used(&self) -> Result<u64> {
        let others = [self.server.used()?, self.baseline_process.used()?, self.stage.updater.used()?];
        let own = Split::of(std::process::id())?;
        Ok(own.total() + others.iter().map(|split| split.total()).sum::<u64>())
    }
}

fn measure(
    options: &Options,
    rendezvous: &Rendezvous,
    rows: &NarrowRows<Buffer>,
    progress: &Progress,
) -> Result<Report> {
    let plan = Plan::of(options);
    let mut cast = assemble(rows, rendezvous, progress)?;
    let before = (HostTime::now(), cast.used()?);
    let stage = &mut cast.stage;
    progress.say("consolidating pages");
    let pages = hot::clean(stage, &(0..rows.len()))?.len() as u64;
    progress.say("measuring the limits");
    let mut chunks = Chunks::lay_out(&first_part(rows), CHUNK_BYTES, RING_BYTES)?;
    let limits = chunks.measure(plan.limit_rounds);
    let ping_pong = ping_pong(PING_PONG_BATCHES);
    progress.say("verifying scans of clean pages");
    quiet::verify(stage)?;
    let all = plan.rounds * Workload::ALL.len();
    let part = |done| progress.part("scanning clean pages", done, all);
    let quiet = quiet::run(stage, &mut cast.baseline, &mut chunks, &limits, plan.rounds, part)?;
    drop(chunks);
    let (hot_runs, mut fresh_updates, hot_price) = fresh(stage, plan.hot_rounds, progress)?;
    let mut done = 0;
    let mut while_updating = disturbed::run(stage, plan.disturbed_rounds, || {
        done += 1;
        progress.part("scanning while rows change", done, plan.disturbed_rounds * Workload::ALL.len());
    })?;
    cast.server.alive()?;
    let others_share = HostTime::now().others_share(before.0, cast.used()? - before.1);
    let stage = &mut cast.stage;
    let whole = table::ScanSpec { rows: 0..rows.len(), projected: false };
    let table_bytes = stage.expected.of(rows, &stage.history, &[whole])?.bytes;
    let bars = summary::bars(&quiet, &hot_runs);
    let mut runs = quiet.runs;
    runs.extend(hot_runs);
    let mut prices = quiet.prices;
    prices.extend(hot_price);
    let all = [&mut runs, &mut fresh_updates, &mut while_updating];
    all.into_iter().flatten().for_each(|run| run.verified = kept(&stage.checked, run));
    let verification = stage.checked.verification(stage.history.len());
    Ok(Report {
        rows: rows.len() as u64,
        scale: options.scale,
        verified: verification.violations == 0,
        memcpy_bytes_per_s: median(&quiet.limit),
        summary: summary::sentences(&runs, &quiet.baseline, &prices),
        runs,
        baseline: quiet.baseline,
        fresh_updates,
        while_updating,
        updates_per_s: disturbed::UPDATES_PER_S,
        prices,
        bars,
        kernel_share: quiet.kernel_share,
        others_share,
        verification,
        limits,
        ping_pong,
        machine: Machine::here(),
        table_bytes,
        pages,
        parts: parts(rows.len()),
        rounds: plan.rounds,
        commands: summary::commands(),
        took_s: 0.0,
    })
}

/// Starts everything and loads the table.
fn assemble<'a>(rows: &'a NarrowRows<Buffer>, rendezvous: &Rendezvous, progress: &Progress) -> Result<Cast<'a>> {
    let stored = prices::is_stored(&rendezvous.address, &rendezvous.network);
    progress.say(if stored { "starting the server" } else { MEASURING });
    let (mut server, server_line) = Process::start("server", SERVER, &[&rendezvous.to_string()], None)?;
    let mut table = Table::create(rendezvous, &mut server)?;
    table.load(rows, |done| progress.part("loading", done, rows.len()))?;
    server.alive()?;
    let (baseline_process, baseline, updater) = companions(rows, rendezvous, progress)?;
    progress.say("reckoning what every scan must come to");
    let expected = Expected::new(rows, table.layout())?;
    let (history, checked) = (History::default(), Checked::default());
    let stage = Stage { rows, table, updater, history, expected, checked };
    Ok(Cast { stage, baseline, server, baseline_process, _server_line: server_line })
}

/// The runs of `hot`, those with other numbers of updates, and the planner's prices for `hot`.
fn fresh(stage: &mut Stage<'_>, rounds: usize, progress: &Progress) -> Result<(Vec<Run>, Vec<Run>, Option<Prices>)> {
    let (mut hot_runs, mut others, mut price) = (Vec::new(), Vec::new(), None);
    let mut done = 0;
    for updates in HOT {
        let (ran, priced) = hot::run(stage, updates, rounds, || {
            done += 1;
            progress.part("scanning hot pages", done, rounds * HOT.len());
        })?;
        if updates == HOT_UPDATES {
            (hot_runs, price) = (ran, Some(priced));
        } else {
            others.extend(ran);
        }
    }
    Ok((hot_runs, others, price))
}

/// The baseline's process and the updater, which both read the rows where this process has them.
fn companions(
    rows: &NarrowRows<Buffer>,
    rendezvous: &Rendezvous,
    progress: &Progress,
) -> Result<(Process, Baseline, Updater)> {
    progress.say("starting the process that updates and the one to beat");
    let kept = part_rows(rows.len()).to_string();
    let (process, socket) = Process::start("baseline", BASELINE, &[&kept], Some(rows.file()?))?;
    let told = [&*rendezvous.to_string()];
    let (updating, line) = Process::start("updating process", UPDATER, &told, Some(rows.file()?))?;
    Ok((process, Baseline::new(socket), Updater::new(updating, line)?))
}

/// The rows of the first part, as hand-written code would keep them.
fn first_part(rows: &NarrowRows<Buffer>) -> PackedRows {
    let count = part_rows(rows.len());
    let mut packed = PackedRows::with_capacity(count);
    (0..count).for_each(|index| packed.push(&rows.row(index)));
    packed
}

fn kept(checked: &Checked, run: &Run) -> bool {
    quiet::MODES.iter().any(|mode| mode.name() == run.mode && checked.kept(&run.workload, *mode))
}

/// Bytes that all processes of the demo take together at their most, about: the table, its
/// rows at a third of their width, and what the text of comments takes while they are
/// generated. Measured at 0.1 and 1.
fn memory_needed(scale: f64) -> u64 {
    (4.8e8 + scale * 1.6e9) as u64
}

/// How many rounds of what.
struct Plan {
    limit_rounds: usize,
    rounds: usize,
    hot_rounds: usize,
    disturbed_rounds: usize,
}

impl Plan {
    fn of(options: &Options) -> Plan {
        if options.quick {
            Plan { limit_rounds: 2, rounds: 2, hot_rounds: 2, disturbed_rounds: 1 }
        } else {
            Plan { limit_rounds: 5, rounds: 17, hot_rounds: 9, disturbed_rounds: 3 }
        }
    }
}

/// Fresh updates to every page, one run each; the report's `hot` is [`HOT_UPDATES`].
const HOT: [usize; 3] = [1, HOT_UPDATES, 8];
const HOT_UPDATES: usize = 4;
const CHUNK_BYTES: usize = 16 << 10;
const RING_BYTES: usize = 1 << 20;
const PING_PONG_BATCHES: usize = 20;
