//! `mixed`: small requests beside full scans, in each mode; and how much of a small
//! request is its transfer.

mod split;

use super::{
    Setting,
    charts::bars,
    figure::{Figure, Table},
    tables::{
        clients::{Worker, quantile, scattered},
        server::{Kept, Served, VALUE_BYTES},
    },
};
use crate::{
    measure::{Cpu, Spread, alternate, elapsed_ns, now_ns},
    svg::Group,
};
use anyhow::{Result, ensure};
use overside::table::wire::{MODES, Mode};
use split::{Operation, Transport};
use std::{
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

pub(super) fn measure(setting: &Setting<'_>) -> Result<Figure> {
    let mut figure = Figure::new("mixed", setting.over.name(), "Small Requests Beside Full Scans");
    let served = Served::start(setting.over, Kept::Memory, Path::new(""), false)?;
    let mut small = Worker::new(&served, ROWS, 1)?;
    small.fill(|number| scattered(number, ROWS))?;
    let mut scanner = Worker::new(&served, ROWS, 2)?;
    same_rows(&mut scanner)?;
    let (rounds, mut done) = (setting.rounds(), 0);
    let samples = alternate(Load::ALL.len(), rounds, |side, _| {
        done += 1;
        setting.progress.part("mixed: beside scans", done, rounds * Load::ALL.len());
        beside(&served, &mut small, &mut scanner, Load::ALL[side], slice_ns(setting))
    })?;
    served.end();
    let mut table = Vec::new();
    for (load, rounds) in Load::ALL.into_iter().zip(&samples) {
        record(&mut figure, load, rounds);
        table.push(line(load, rounds));
    }
    let transports = split::measure(setting, &mut figure)?;
    tell(&mut figure, table, &transports);
    Ok(figure)
}

/// What goes on beside the small requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Nothing.
    None,
    /// Threads that only compute, as many as a scan keeps busy: what fewer processors
    /// cost, without any transfer.
    Busy,
    /// A client that scans the whole table, again and again, and reads every row.
    Scans(Mode),
}

impl Load {
    const ALL: [Load; 7] = [
        Load::None,
        Load::Busy,
        Load::Scans(Mode::Copy),
        Load::Scans(Mode::Gather),
        Load::Scans(Mode::Delta),
        Load::Scans(Mode::InPlace),
        Load::Scans(Mode::Auto),
    ];

    /// As series are named.
    fn name(self) -> &'static str {
        match self {
            Load::None => "undisturbed",
            Load::Busy => "busy thread",
            Load::Scans(mode) => mode.name(),
        }
    }
}

/// A stretch of time.
#[derive(Debug, Default)]
struct Beside {
    /// Nanoseconds of each get, and of each put.
    gets: Vec<u64>,
    puts: Vec<u64>,
    /// Rows that were scanned, and how long the last scan of them took to end.
    rows: u64,
    scanned_ns: u64,
    wall_ns: u64,
    server_ns: u64,
    small_ns: u64,
    other_ns: u64,
}

/// Every mode brings the same rows, byte by byte as far as a client reads them.
fn same_rows(scanner: &mut Worker) -> Result<()> {
    let first = scanner.read(ROWS, Mode::Copy)?.0;
    for mode in MODES.into_iter().chain([Mode::Auto]) {
        let read = scanner.read(ROWS, mode)?.0;
        ensure!(read == first, "a scan by {} brings other rows than one by copy", mode.name());
    }
    Ok(())
}

/// One client gets and puts single rows in turn and waits for each, while the load goes on.
fn beside(served: &Served, small: &mut Worker, scanner: &mut Worker, load: Load, ns: u64) -> Result<Beside> {
    let (is_over, is_under_way) = (AtomicBool::new(false), AtomicBool::new(load == Load::None));
    thread::scope(|scope| {
        let other = scope.spawn(|| other(scanner, load, &is_under_way, &is_over));
        while !is_under_way.load(Ordering::Acquire) && !other.is_finished() {
            thread::yield_now();
        }
        let done = requests(served, small, ns);
        is_over.store(true, Ordering::Release);
        let (rows, scanned_ns, other_ns) = other.join().map_err(|_| anyhow::anyhow!("the load panicked"))??;
        Ok(Beside { rows, scanned_ns, other_ns, ..done? })
    })
}

/// The load: rows scanned, in which time, and its threads' processor time.
fn other(scanner: &mut Worker, load: Load, under_way: &AtomicBool, over: &AtomicBool) -> Result<(u64, u64, u64)> {
    if load == Load::Busy {
        return Ok((0, 0, busy(under_way, over)?));
    }
    let (start, cpu, mut rows) = (now_ns(), Cpu::thread(), 0);
    under_way.store(true, Ordering::Release);
    while let Load::Scans(mode) = load
        && !over.load(Ordering::Acquire)
    {
        rows += scanner.read(ROWS, mode)?.0.rows;
    }
    Ok((rows, elapsed_ns(start), Cpu::thread() - cpu))
}

/// Computes in as many threads as a scan takes, its client and its server's
/// worker; their processor time.
fn busy(under_way: &AtomicBool, over: &AtomicBool) -> Result<u64> {
    let computing = AtomicUsize::new(0);
    let compute = || {
        let cpu = Cpu::thread();
        if computing.fetch_add(1, Ordering::AcqRel) + 1 == SCAN_THREADS {
            under_way.store(true, Ordering::Release);
        }
        while !over.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        Cpu::thread() - cpu
    };
    thread::scope(|scope| {
        let all = [(); SCAN_THREADS].map(|()| scope.spawn(compute));
        let each = all.into_iter().map(|one| one.join().map_err(|_| anyhow::anyhow!("a busy thread panicked")));
        each.sum()
    })
}

fn requests(served: &Served, small: &mut Worker, ns: u64) -> Result<Beside> {
    let mut done = Beside::default();
    let (start, server, cpu) = (now_ns(), served.cpu()?, Cpu::thread());
    let mut at = now_ns();
    while at - start < ns {
        small.get()?;
        let between = now_ns();
        small.put(1)?;
        let end = now_ns();
        done.gets.push(between - at);
        done.puts.push(end - between);
        at = end;
    }
    done.wall_ns = at - start;
    (done.server_ns, done.small_ns) = (served.cpu()? - server, Cpu::thread() - cpu);
    Ok(done)
}

impl Beside {
    fn of(&self, kind: &str) -> &[u64] {
        if kind == "get" { &self.gets } else { &self.puts }
    }

    fn rows_per_s(&self) -> f64 {
        self.rows as f64 * 1e9 / self.scanned_ns.max(1) as f64
    }
}

fn record(figure: &mut Figure, load: Load, rounds: &[Beside]) {
    let name = load.name();
    for kind in KINDS {
        for (quantile_name, share) in QUANTILES {
            let values = rounds.iter().map(|round| quantile(round.of(kind), share)).collect();
            figure.record(format!("{kind}, {quantile_name} ns: {name}"), 0, values);
        }
    }
    if matches!(load, Load::Scans(_)) {
        figure.record(format!("scan, rows/s: {name}"), 0, rounds.iter().map(Beside::rows_per_s).collect());
    }
}

/// A row of the table of latencies.
fn line(load: Load, rounds: &[Beside]) -> Vec<String> {
    let median = |of: &dyn Fn(&Beside) -> f64| Spread::of(&rounds.iter().map(of).collect::<Vec<_>>()).median;
    let mut cells = vec![load.name().to_owned()];
    for kind in KINDS {
        cells.extend(
            QUANTILES.map(|(_, share)| format!("{:.1}", median(&|round| quantile(round.of(kind), share)) / 1e3)),
        );
    }
    let scans = matches!(load, Load::Scans(_));
    cells.push(if scans { format!("{:.1}", median(&Beside::rows_per_s) / 1e6) } else { "–".into() });
    let share =
        |of: fn(&Beside) -> u64| format!("{:.0}", median(&|round| of(round) as f64 / round.wall_ns as f64) * 100.0);
    cells.extend([share(|round| round.server_ns), share(|round| round.small_ns), share(|round| round.other_ns)]);
    cells
}

/// So long a side goes on in a round.
fn slice_ns(setting: &Setting<'_>) -> u64 {
    if setting.quick { 100_000_000 } else { 800_000_000 }
}

fn tell(figure: &mut Figure, rows: Vec<Vec<String>>, transports: &[Transport]) {
    figure.text = format!(
        "A table of {ROWS} rows of 8 bytes of key and {VALUE_BYTES} of value, in memory. One client gets and puts random rows in turn, one \
         request at a time. Beside it goes nothing; or {SCAN_THREADS} threads that only compute, as many as a scan takes; or \
         another client that scans the whole table by a mode, again and again, and reads every row. All modes were found to bring the same rows. \
         Below, a request's time is split: an <i>echo</i> is a service of the same workers, connections and buffers that answers as many bytes \
         and does nothing else, so what a request takes beyond it is the server's work and the client's reading of it. Everything is on one host, so no time is a wire's."
    );
    let head =
        ["beside", "get p50", "p99", "p99.9", "put p50", "p99", "p99.9", "scan M rows/s", "server", "client", "load"];
    figure.tables.push(Table {
        caption: "What requests take, in µs; and which share of a processor each took, in %".into(),
        head: head.map(str::to_owned).to_vec(),
        rows,
    });
    figure.tables.push(split::table(figure, transports));
    for kind in KINDS {
        let of = |load: Load, quantile_name: &str| {
            bars::of(figure.spread_of(&format!("{kind}, {quantile_name} ns: {}", load.name())), 1e-3)
        };
        let group = |load: Load| Group {
            name: load.name().to_owned(),
            bars: QUANTILES.map(|(name, _)| of(load, name)).to_vec(),
        };
        let groups = Load::ALL.map(group).into_iter().collect();
        let chart = bars::logarithmic("µs", &QUANTILES.map(|(name, _)| name), groups);
        figure.charts.push((chart, format!("One {kind} at a time, beside full scans in each mode; log axis.")));
    }
    let groups = transports.iter().flat_map(|transport| Operation::ALL.map(|kind| (transport, kind)));
    let group = |(transport, kind): (&Transport, Operation)| Group {
        name: format!("{} {}", kind.name(), transport.name),
        bars: [kind.series(transport.name), kind.echo_series(transport.name)]
            .map(|series| bars::of(figure.spread_of(&series), 1e-3))
            .to_vec(),
    };
    let chart = bars::draw("µs", &["request", "echo of as many bytes"], groups.map(group).collect());
    figure.charts.push((chart, "Half of all requests take no longer, and the same without the server's work.".into()));
}

const ROWS: u64 = 200_000;
/// The scanning client, and the server's worker that sends to it.
const SCAN_THREADS: usize = 2;
const KINDS: [&str; 2] = ["get", "put"];
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];
