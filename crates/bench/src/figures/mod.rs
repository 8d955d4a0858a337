//! The papers' figures for this machine: `overside bench FIGURE`.
//!
//! Sender and receivers are processes of their own, and sides alternate within one run. Delivered
//! bytes are checked outside of the timing. Every figure has the limit for copies of equally cold
//! memory beside it, and the papers' own points where their text states them (`data/papers.json`).

mod blocks;
mod charts;
mod consolidate;
mod costs;
mod delta;
mod digest;
mod durability;
mod figure;
pub mod gather;
mod ibv_bench;
mod messages;
mod mixed;
mod oltp;
mod page;
mod papers;
mod policies;
mod projection;
mod receiver;
mod records;
mod regret;
mod remote;
mod results;
mod scans;
mod sender;
mod shuffle;
mod sockets;
mod tables;
mod text;
mod transmit;
mod verbs;

pub use durability::{Batches, Ours, Testbed, Values};
pub use figure::{Comparison, Figure, Point, PointSpread, Recorded};
pub use regret::{PricesApart, prices_apart};
pub use remote::receive;
pub use results::Keep;
pub use sender::Sample;
pub use sockets::{
    installed::{found, free_port},
    keeper::{Keeper, Launch, tree_ns},
    postgresql::{account, programs as postgresql},
};

use crate::{
    progress::Progress,
    rendezvous::Rendezvous,
    report::{self, Machine},
};
use anyhow::{Context, Result, ensure};
use overside::Network;
use serde::Serialize;
use std::{
    ffi::OsString,
    io::Write,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

/// What to measure, and where to write it up.
#[derive(Clone, Debug)]
pub struct Options {
    /// One of [`NAMES`], or `all`.
    pub figure: String,
    /// Fewer places and rounds.
    pub quick: bool,
    /// One JSON object on standard output instead of tables.
    pub json: bool,
    /// The page to write; one named for the figure when none is given.
    pub report: Option<PathBuf>,
    /// Which provider to go over, as addresses begin.
    pub over: String,
    /// Of `rdma`, the device by name; none: the first with an active port.
    pub rdma_device: Option<String>,
    /// Where `overside bench receive` listens, on another host: the receivers are there.
    pub to: Option<String>,
    /// What goes over a network, with [`Options::to`].
    pub network: Network,
    /// The library that is preloaded into programs for `sockets`; without it
    /// there is no such figure.
    pub library: Option<PathBuf>,
    /// Of `sockets` and `messages`: only what has this in its name.
    pub only: Option<String>,
    /// A folder in which a full run is kept, to be committed and judged again.
    pub results: Option<PathBuf>,
    /// Of `regret`: which grid of shapes; 0 is the usual one.
    pub seed: u64,
    /// Of `durability`, `oltp` and `targets`: in which folder its data lies meanwhile; the
    /// current one unless said.
    pub dir: Option<PathBuf>,
    /// Of `policies`: a trace in addition to those that it makes.
    pub trace: Option<PathBuf>,
}

/// All figures of a run.
#[derive(Debug, Serialize)]
pub struct Figures {
    /// In the order of [`NAMES`].
    pub figures: Vec<Figure>,
    /// Where.
    pub machine: Machine,
    /// From start to the report, in seconds.
    pub took_s: f64,
}

/// What [`Options::figure`] may be, besides `all`.
pub use overside_evidence::FIGURES as NAMES;

/// Measures, prints what was found, writes the page.
///
/// Call it from the main thread, which must outlive it: the processes it starts are killed when the
/// thread that started them ends.
///
/// # Errors
///
/// There is no such figure, provider or device, or no such choice within the figure. The page
/// cannot be written, a process could not be started or ended early, or memory ran out. Two ways of
/// sending delivered different bytes.
pub fn run(options: &Options) -> Result<Figures> {
    let start = Instant::now();
    let names: Vec<&str> = match options.figure.as_str() {
        "all" => NAMES.into_iter().filter(|name| !ALONE.contains(name)).collect(),
        name => vec![name],
    };
    let over = over(options)?;
    fits(options, &names)?;
    let report = options.report.clone().unwrap_or_else(|| default_report(&options.figure));
    report::writable(&report)?;
    ensure!(
        options.results.is_none() || (!options.quick && options.only.is_none()),
        "--results keeps full runs: leave away --quick and --only, which show a part"
    );
    let mut keep = options.results.as_deref().map(results::Keep::here).transpose()?;
    let progress = Progress::new();
    let library = options.library.as_deref();
    // Said now rather than after all the others have been measured.
    ensure!(
        library.is_some() || !names.contains(&"sockets"),
        "the sockets library is not beside this executable; `cargo build --release` puts it there"
    );
    let setting = Setting {
        over: &over,
        quick: options.quick,
        progress: &progress,
        library,
        installed: options.figure != "all",
        only: options.only.as_deref(),
        seed: options.seed,
        dir: options.dir.as_deref(),
        trace: options.trace.as_deref(),
    };
    let machine = Machine::here();
    let (measured, failed) = all(&names, &setting, |figure| match (&mut keep, results::lacking(figure)) {
        (Some(_), Some(lacking)) => {
            progress.tell(&format!("{lacking}: the house rules would refuse its results, so they are not kept"));
            Ok(())
        }
        (Some(keep), None) => keep.keep(figure, &machine).map(drop),
        (None, _) => Ok(()),
    })?;
    let figures = Figures { figures: measured, machine, took_s: start.elapsed().as_secs_f64() };
    let written = report::write(&report, &page::html(&figures, options));
    drop(progress);
    // A page that could not be written takes nothing else with it.
    let mut out = std::io::stdout().lock();
    match (options.json, &figures.figures[..]) {
        (true, [one]) => writeln!(out, "{}", serde_json::to_string(one)?)?,
        (true, _) => writeln!(out, "{}", serde_json::to_string(&figures)?)?,
        (false, _) => write!(out, "{}", text::text(&figures))?,
    }
    written?;
    if let Some(folder) = keep.as_ref().and_then(results::Keep::folder).filter(|_| !options.json) {
        writeln!(out, "The results are in {}: commit them, then `cargo xtask papers` joins them.", folder.display())?;
    }
    if !options.json {
        writeln!(out, "The report is {}: open it in a browser.", report.display())?;
    }
    ensure!(failed.is_empty(), "not measured: {}; what went wrong is above", failed.join(", "));
    Ok(figures)
}

/// Whether the figures have a use for what was chosen.
fn fits(options: &Options, names: &[&str]) -> Result<()> {
    ensure!(
        options.only.is_none() || names.iter().any(|name| ["messages", "sockets"].contains(name)),
        "--only chooses among the series of messages and sockets; {} has no use for it",
        options.figure
    );
    ensure!(
        options.seed == 0 || names.contains(&"regret"),
        "--seed chooses the shapes of regret; {} has no use for it",
        options.figure
    );
    ensure!(
        options.trace.is_none() || options.figure == "policies",
        "--trace is replayed by policies; {} has no use for it",
        options.figure
    );
    if names.iter().any(|name| WITH_DATA.contains(name)) {
        // Refused now rather than after all the others have been measured.
        durability::folder::parent(options.dir.as_deref())?;
    } else {
        ensure!(
            options.dir.is_none(),
            "--dir is where {} have their data; {} has none",
            WITH_DATA.join(", "),
            options.figure
        );
    }
    Ok(())
}

/// Measures one after the other; each is kept at once. What the others took, and take yet, is not
/// lost with one that fails.
fn all<'n>(
    names: &[&'n str],
    setting: &Setting<'_>,
    mut keep: impl FnMut(&Figure) -> Result<()>,
) -> Result<(Vec<Figure>, Vec<&'n str>)> {
    let (mut measured, mut failed) = (Vec::new(), Vec::new());
    for (at, name) in names.iter().enumerate() {
        setting.progress.begin(at + 1, names.len());
        match judged(name, setting).and_then(|figure| keep(&figure).map(|()| figure)) {
            Ok(figure) => measured.push(figure),
            Err(error) if names.len() == 1 => return Err(error),
            Err(error) => {
                setting.progress.tell(&format!("{error:#}; the other figures go on"));
                failed.push(*name);
            }
        }
    }
    Ok((measured, failed))
}

fn over(options: &Options) -> Result<Over> {
    let Some(to) = &options.to else { return Over::new(&options.over, options.rdma_device.as_deref()) };
    let far = FAR.contains(&&*options.figure);
    ensure!(far, "{} has no receiver on another host; --to is for {}", options.figure, FAR.join(", "));
    Over::to(to, &options.network)
}

fn judged(name: &str, setting: &Setting<'_>) -> Result<Figure> {
    let mut figure = measure(name, setting)?;
    figure.judge()?;
    Ok(figure)
}

fn measure(name: &str, setting: &Setting<'_>) -> Result<Figure> {
    setting.progress.say(name);
    match name {
        "verbs" => verbs::measure(setting),
        "transmit" => transmit::measure(setting),
        "delta" => delta::measure(setting),
        "consolidate" => consolidate::measure(setting),
        "shuffle" => shuffle::measure(setting),
        "projection" => projection::measure(setting),
        "regret" => regret::measure(setting),
        "messages" => messages::measure(setting),
        "sockets" => sockets::measure(setting),
        "durability" => durability::measure(setting),
        "mixed" => mixed::measure(setting),
        "scans" => scans::measure(setting),
        "costs" => costs::measure(setting),
        "blocks" => blocks::measure(setting),
        "policies" => policies::measure(setting),
        "clients" => blocks::clients::measure(setting),
        "oltp" => oltp::measure(setting),
        "targets" => blocks::targets::measure(setting),
        other => anyhow::bail!("there is no figure {other:?}; choose one of {}, or all", NAMES.join(", ")),
    }
    .with_context(|| format!("figure {name}"))
}

/// A process of a figure; `None` when `role` is not one of theirs.
pub(crate) fn child(role: &str, arguments: &[OsString]) -> Option<Result<()>> {
    match role {
        receiver::ROLE => Some(Rendezvous::from_arguments(arguments).and_then(receiver::serve)),
        messages::ROLE => Some(messages::answer(arguments)),
        sockets::ROLE => Some(sockets::program(arguments)),
        tables::ROLE => Some(tables::serve(arguments)),
        costs::traffic::ROLE => Some(costs::traffic::send(arguments)),
        blocks::ROLE => Some(blocks::serve(arguments)),
        _ => None,
    }
}

/// What `all` leaves out: it wants root, and programs that are installed.
const ALONE: [&str; 2] = ["oltp", "targets"];
/// Those with data on a disk.
const WITH_DATA: [&str; 3] = ["durability", "oltp", "targets"];
/// Figures whose other ends do what they are told over a line, and may be on another host.
const FAR: [&str; 8] = ["verbs", "transmit", "delta", "consolidate", "shuffle", "projection", "regret", "messages"];

fn default_report(figure: &str) -> PathBuf {
    match figure {
        "all" => PathBuf::from("overside-figures.html"),
        one => PathBuf::from(format!("overside-figure-{one}.html")),
    }
}

/// Which provider to go over.
#[derive(Debug)]
struct Over {
    transport: String,
    rdma_device: Option<String>,
    /// The receivers are on another host.
    to: Option<remote::Host>,
}

impl Over {
    fn new(transport: &str, rdma_device: Option<&str>) -> Result<Over> {
        let rdma_device = rdma_device.map(str::to_owned);
        let over = Over { transport: transport.to_owned(), rdma_device, to: None };
        // Refused now rather than after the first process has started.
        over.rendezvous()?.check()?;
        Ok(over)
    }

    /// To receivers of another host.
    fn to(address: &str, network: &Network) -> Result<Over> {
        let host = remote::Host::new(address, network)?;
        let (transport, rdma_device) = (host.transport().name.to_owned(), network.rdma_device.clone());
        let over = Over { transport, rdma_device, to: Some(host) };
        over.rendezvous()?.check()?;
        over.to.iter().try_for_each(remote::Host::look)?;
        Ok(over)
    }

    fn name(&self) -> &str {
        &self.transport
    }

    /// A place on this host that nobody else has.
    fn rendezvous(&self) -> Result<Rendezvous> {
        if let Some(host) = &self.to {
            return host.rendezvous();
        }
        // Of the process: two providers opened by one program meet at different places.
        static GIVEN: AtomicU64 = AtomicU64::new(0);
        let number = GIVEN.fetch_add(1, Ordering::Relaxed);
        let name = format!("overside-figure-{}-{number}", std::process::id());
        Ok(Rendezvous::here(&self.transport, self.rdma_device.as_deref(), &name)?)
    }
}

/// What every figure is told.
struct Setting<'a> {
    over: &'a Over,
    quick: bool,
    progress: &'a Progress,
    library: Option<&'a Path>,
    /// Other people's programs as well, where they are installed.
    installed: bool,
    only: Option<&'a str>,
    seed: u64,
    dir: Option<&'a Path>,
    trace: Option<&'a Path>,
}

impl Setting<'_> {
    /// Whether a series of this name is to be measured.
    fn wants(&self, name: &str) -> bool {
        self.only.is_none_or(|only| name.contains(only))
    }

    /// Rounds in which sides alternate.
    fn rounds(&self) -> usize {
        if self.quick { 5 } else { 9 }
    }

    /// How long a side sends in a round.
    fn slice_ns(&self) -> u64 {
        if self.quick { 8_000_000 } else { 30_000_000 }
    }

    /// Bytes that records are scattered over: a power of two, and more than any cache holds.
    fn region_bytes(&self) -> usize {
        if self.quick { overside::calibrate::cold_bytes() } else { 512 << 20 }
    }
}
