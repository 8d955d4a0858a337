//! What `flight` measured: as JSON, and as tables for people.

use overside_bench::measure::{Bar, Ratio, Spread, median};
use serde::Serialize;

use crate::bars::Compared;

use super::{BATCH_ROWS_USUAL, Limit, Sample, Samples, Side};

/// Everything that was measured.
#[derive(Serialize)]
pub struct Report {
    pub rows: u64,
    pub scale: f64,
    pub rounds: usize,
    /// Bytes of a row as a row view; `bytes_per_s` counts these for every side.
    pub row_bytes: f64,
    pub sides: Vec<SideReport>,
    pub limits: Vec<LimitReport>,
    /// Held against Flight as it comes.
    pub bars: Vec<Bar>,
    /// The same ratios against the tuned Flight, and what else helps to judge them; nothing is held
    /// against these.
    pub beside: Vec<Beside>,
}

#[derive(Serialize)]
pub struct SideReport {
    name: &'static str,
    /// Rows of a batch; none for row views.
    batch_rows: Option<usize>,
    rows_per_s: Spread,
    bytes_per_s: f64,
    server_cpu_ns_per_row: f64,
    client_cpu_ns_per_row: f64,
}

#[derive(Serialize)]
pub struct LimitReport {
    name: &'static str,
    bytes_per_s: Spread,
}

#[derive(Serialize)]
pub struct Beside {
    name: String,
    ratio: Option<Ratio>,
}

impl Report {
    /// Summarises the samples; `batch_rows` says which batches a side delivered.
    pub fn new(
        samples: &Samples,
        rows: u64,
        scale: f64,
        row_bytes: f64,
        over_tcp: bool,
        batch_rows: impl Fn(Side) -> Option<usize>,
    ) -> Self {
        let of = |side: Side, pick: fn(&Sample) -> f64| samples.of(side).iter().map(pick).collect::<Vec<f64>>();
        let measured = Side::ALL.into_iter().filter(|side| !samples.of(*side).is_empty());
        let sides = measured.map(|side| {
            let rows_per_s = Spread::of(&of(side, |s| s.rows_per_s));
            SideReport {
                name: side.name(),
                batch_rows: batch_rows(side),
                rows_per_s,
                bytes_per_s: rows_per_s.median * row_bytes,
                server_cpu_ns_per_row: median(&of(side, |s| s.server_ns)),
                client_cpu_ns_per_row: median(&of(side, |s| s.client_ns)),
            }
        });
        let limits = Limit::ALL.into_iter();
        let limits = limits.map(|l| LimitReport { name: l.name(), bytes_per_s: Spread::of(samples.limit(l)) });
        let compare = Compare { samples, row_bytes };
        let (bars, beside) = (compare.bars(over_tcp), compare.beside());
        let rounds = samples.of(Side::Views).len();
        Self { rows, scale, rounds, row_bytes, sides: sides.collect(), limits: limits.collect(), bars, beside }
    }
}

impl Compared for Report {
    const FIGURE: &str = "peers-flight";

    fn bars(&self) -> &[Bar] {
        &self.bars
    }

    fn print(&self) {
        println!("lineitem, {} rows of {:.0} bytes, {} rounds; medians", self.rows, self.row_bytes, self.rounds);
        println!(
            "\n{:32}{:>10}{:>12}{:>8}{:>20}{:>20}",
            "", "batch of", "M rows/s", "GB/s", "server CPU ns/row", "client"
        );
        for side in &self.sides {
            println!(
                "{:32}{:>10}{:>12.2}{:>8.2}{:>20.1}{:>20.1}",
                side.name,
                side.batch_rows.map_or(String::from("-"), |rows| rows.to_string()),
                side.rows_per_s.median / 1e6,
                side.bytes_per_s / 1e9,
                side.server_cpu_ns_per_row,
                side.client_cpu_ns_per_row
            );
        }
        println!();
        for limit in &self.limits {
            println!("limit, {:47}{:>8.2}", limit.name, limit.bytes_per_s.median / 1e9);
        }
        println!(
            "\nGB/s count the bytes of the rows as row views, for every side alike. Bars are held against Flight as it"
        );
        println!("comes: the crate's and HTTP/2's defaults, batches of {BATCH_ROWS_USUAL} rows.");
        crate::bars::print(&self.bars);
        println!("\n{:66} {:>16} {:>17}", "beside the bars", "ratio", "95 % interval");
        for beside in &self.beside {
            let Some(ratio) = &beside.ratio else { continue };
            let interval = format!("{:.2} .. {:.2}", ratio.low, ratio.high);
            println!("{:66} {:>15.2}x {:>17}", beside.name, ratio.median, interval);
        }
    }
}

/// Ratios of paired rounds.
struct Compare<'a> {
    samples: &'a Samples,
    row_bytes: f64,
}

impl Compare<'_> {
    fn of(&self, side: Side, pick: fn(&Sample) -> f64) -> Vec<f64> {
        self.samples.of(side).iter().map(pick).collect()
    }

    fn bytes(&self, side: Side) -> Vec<f64> {
        self.of(side, |s| s.rows_per_s).iter().map(|rate| rate * self.row_bytes).collect()
    }

    fn faster(&self, ours: Side, theirs: Side) -> Option<Ratio> {
        Ratio::paired(&self.of(ours, |s| s.rows_per_s), &self.of(theirs, |s| s.rows_per_s))
    }

    fn cheaper(&self, ours: Side, theirs: Side) -> Option<Ratio> {
        let cpu = |side| self.of(side, |s| s.server_ns + s.client_ns);
        Ratio::paired(&cpu(theirs), &cpu(ours))
    }

    fn of_limit(&self, side: Side, limit: Limit) -> Option<Ratio> {
        Ratio::paired(&self.bytes(side), self.samples.limit(limit))
    }

    /// What is to be reached; one that was not run has no ratio.
    fn bars(&self, over_tcp: bool) -> Vec<Bar> {
        match over_tcp {
            false => vec![
                Bar::at_least("row views: throughput over Flight's", 12.0, self.faster(Side::Views, Side::Flight)),
                Bar::at_least("Arrow batches: throughput over Flight's", 4.0, self.faster(Side::Batches, Side::Flight)),
                Bar::at_least(
                    "Arrow batches: throughput over Flight's, the goal",
                    8.0,
                    self.faster(Side::Batches, Side::Flight),
                ),
                Bar::at_least("Arrow batches: Flight's CPU a row over ours, both processes", 4.0, {
                    self.cheaper(Side::Batches, Side::Flight)
                }),
            ],
            true => vec![
                Bar::at_least(
                    "row views: bytes over a plain write and read's",
                    0.9,
                    self.of_limit(Side::Views, Limit::Loopback),
                ),
                Bar::at_least("row views: throughput over Flight's", 3.0, self.faster(Side::Views, Side::Flight)),
                Bar::at_least(
                    "row views: throughput over pyarrow's Flight's",
                    1.5,
                    self.faster(Side::Views, Side::PyArrow),
                ),
                Bar::at_least("Arrow batches: throughput over Flight's", 1.0, self.faster(Side::Batches, Side::Flight)),
                Bar::at_least(
                    "Arrow batches: throughput over pyarrow's Flight's",
                    1.0,
                    self.faster(Side::Batches, Side::PyArrow),
                ),
                Bar::at_least("row views: Flight's CPU a row over ours", 1.0, self.cheaper(Side::Views, Side::Flight)),
                Bar::at_least(
                    "row views: pyarrow's CPU a row over ours",
                    1.0,
                    self.cheaper(Side::Views, Side::PyArrow),
                ),
                Bar::at_least(
                    "Arrow batches: Flight's CPU a row over ours",
                    1.0,
                    self.cheaper(Side::Batches, Side::Flight),
                ),
                Bar::at_least(
                    "Arrow batches: pyarrow's CPU a row over ours",
                    1.0,
                    self.cheaper(Side::Batches, Side::PyArrow),
                ),
            ],
        }
    }

    fn beside(&self) -> Vec<Beside> {
        vec![
            Beside::of("row views: throughput over the tuned Flight's", self.faster(Side::Views, Side::Tuned)),
            Beside::of("Arrow batches: throughput over the tuned Flight's", self.faster(Side::Batches, Side::Tuned)),
            Beside::of(
                "Arrow batches: the tuned Flight's CPU a row over ours",
                self.cheaper(Side::Batches, Side::Tuned),
            ),
            Beside::of(
                "the tuned Flight: throughput over Flight's as it comes",
                self.faster(Side::Tuned, Side::Flight),
            ),
            Beside::of("row views: share of their limit", self.of_limit(Side::Views, Limit::Rows)),
            Beside::of("Arrow batches: share of their limit", self.of_limit(Side::Batches, Limit::Batches)),
            Beside::of("Flight as it comes: share of its limit", self.of_limit(Side::Flight, Limit::Loopback)),
            Beside::of("the tuned Flight: share of its limit", self.of_limit(Side::Tuned, Limit::Loopback)),
            Beside::of("row views: throughput with tags over that without", self.faster(Side::Tagged, Side::Views)),
            Beside::of("row views: CPU a row with tags over that without", self.cheaper(Side::Views, Side::Tagged)),
            Beside::of("row views with tags: throughput over Flight's", self.faster(Side::Tagged, Side::Flight)),
            Beside::of(
                "pyarrow's Flight: throughput over Flight's as it comes",
                self.faster(Side::PyArrow, Side::Flight),
            ),
            Beside::of("row views' limit over Flight as it comes", {
                Ratio::paired(self.samples.limit(Limit::Rows), &self.bytes(Side::Flight))
            }),
            Beside::of("Arrow batches' limit over Flight as it comes", {
                Ratio::paired(self.samples.limit(Limit::Batches), &self.bytes(Side::Flight))
            }),
        ]
    }
}

impl Beside {
    fn of(name: &str, ratio: Option<Ratio>) -> Self {
        Self { name: name.to_owned(), ratio }
    }
}
