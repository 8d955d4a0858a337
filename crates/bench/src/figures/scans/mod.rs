//! `scans`: a served table scanned by one client to many at once, and through a
//! secondary index, in each mode.

mod fan;
mod indexed;

use super::{
    Setting,
    charts::{Curve, Curves, curves},
    figure::{Figure, Table},
    tables::server::VALUE_BYTES,
};
use crate::{measure::Spread, svg::Scale};
use anyhow::Result;
use overside::table::wire::Mode;

pub(super) fn measure(setting: &Setting<'_>) -> Result<Figure> {
    let mut figure = Figure::new("scans", setting.over.name(), "Scans of a Served Table");
    fan::measure(setting, &mut figure)?;
    indexed::measure(setting, &mut figure)?;
    tell(&mut figure, setting);
    Ok(figure)
}

/// What is recorded of a stretch of scans; each is a series, by mode.
const RATE: &str = "rows/s";
const SERVER: &str = "server ns a row";
const CLIENTS: &str = "clients ns a row";
const MEMORY: &str = "server bytes a client";

fn series(what: &str, of: &str, way: ScanPath) -> String {
    format!("{what}, {of}: {}", way.name())
}

/// How rows come to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanPath {
    /// The server sends them.
    Served(Mode),
    /// The client reads the server's memory.
    OneSided,
}

impl ScanPath {
    /// In the order of the charts' colours.
    const ALL: [ScanPath; 6] = [
        ScanPath::Served(ALL[0]),
        ScanPath::Served(ALL[1]),
        ScanPath::Served(ALL[2]),
        ScanPath::Served(ALL[3]),
        ScanPath::Served(ALL[4]),
        ScanPath::OneSided,
    ];

    fn name(self) -> &'static str {
        match self {
            ScanPath::Served(mode) => mode.name(),
            ScanPath::OneSided => "one-sided",
        }
    }

    /// An index is read by the server alone.
    fn of(what: &str) -> &'static [ScanPath] {
        if what == fan::WHAT { &ScanPath::ALL } else { &ScanPath::ALL[..ALL.len()] }
    }
}

fn tell(figure: &mut Figure, setting: &Setting<'_>) {
    figure.text = format!(
        "Rows of 8 bytes of key and {VALUE_BYTES} of value; a client reads every row. <i>Fan-out</i>: {} rows, a server for each mode, its clients \
         threads of the process that measures, each of which scans the whole table again and again. Memory is what the server has resident \
         beyond what it had with the one client that put the rows, divided by the clients; what the kernel keeps of a connection is not in it. \
         One-sided clients read the server's memory, over shared memory without its processor. \
         <i>Through an index</i>: {} rows in the order of a column that has nothing to do with the key, so that neighbours lie on different pages. \
         All modes were found to bring the same rows.",
        fan::ROWS,
        indexed::rows(setting)
    );
    let charts = [
        (fan::WHAT, RATE, "million rows a second", "clients at once", 1e-6, "Rows that all clients together read."),
        (
            fan::WHAT,
            MEMORY,
            "KiB a client",
            "clients at once",
            1.0 / 1024.0,
            "What the server's memory grew by, for each client.",
        ),
        (
            fan::WHAT,
            SERVER,
            "ns a row",
            "clients at once",
            1.0,
            "Processor time of the server for a row that a client read.",
        ),
        (fan::WHAT, CLIENTS, "ns a row", "clients at once", 1.0, "Processor time of the clients for a row."),
        (
            indexed::WHAT,
            RATE,
            "million rows a second",
            "rows of a range",
            1e-6,
            "Ranges through a secondary index, one client.",
        ),
    ];
    for (what, of, value, place, factor, caption) in charts {
        let mut chart = Curves::new(value, place, Scale::Log);
        for (colour, way) in ScanPath::of(what).iter().enumerate() {
            let name = series(what, of, *way);
            let places = figure.recorded(&name).map(|(x, values)| (x, Spread::of(values)));
            chart.add(Curve::spreads(way.name(), colour, places, factor));
        }
        figure.charts.push((curves(&chart), caption.into()));
    }
    for what in [fan::WHAT, indexed::WHAT] {
        let table = table(figure, what);
        figure.tables.push(table);
    }
}

/// Medians, by mode and place.
fn table(figure: &Figure, what: &str) -> Table {
    let of = [RATE, SERVER, CLIENTS, MEMORY];
    let of = if what == fan::WHAT { &of[..] } else { &of[..3] };
    let mut rows = Vec::new();
    for way in ScanPath::of(what) {
        let name = series(what, RATE, *way);
        let places: Vec<u64> = figure.recorded(&name).map(|(x, _)| x).collect();
        for at in places {
            let median = |of: &str| {
                let name = series(what, of, *way);
                let value = figure.recorded(&name).find(|(x, _)| *x == at);
                value.map_or(f64::NAN, |(_, values)| Spread::of(values).median)
            };
            let cell = |of: &&str| match *of {
                RATE => format!("{:.2} M", median(of) / 1e6),
                MEMORY => format!("{:.0} KiB", median(of) / 1024.0),
                _ => format!("{:.1}", median(of)),
            };
            rows.push([way.name().to_owned(), at.to_string()].into_iter().chain(of.iter().map(cell)).collect());
        }
    }
    let place = if what == fan::WHAT { "clients" } else { "rows" };
    let head = ["mode", place].into_iter().chain(of.iter().copied());
    Table { caption: format!("Scans, {what}"), head: head.map(str::to_owned).collect(), rows }
}

/// In the order of the charts.
const ALL: [Mode; 5] = [Mode::Copy, Mode::Gather, Mode::Delta, Mode::InPlace, Mode::Auto];
