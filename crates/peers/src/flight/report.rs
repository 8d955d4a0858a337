//! What `flight` measured: as JSON, and as tables for people.

use overside_bench::measure::{Bar, Ratio, Spread, median};
use serde::Serialize;

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
    /// The same ratios against the tuned Flight, and what else helps to judge them; nothing is held against these.
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
        let rate = |side| of(side, |s| s.rows_per_s);
        let cpu = |side| of(side, |s| s.server_ns + s.client_ns);
        let faster = |ours, theirs| Ratio::paired(&rate(ours), &rate(theirs));
        let cheaper = |ours, theirs| Ratio::paired(&cpu(theirs), &cpu(ours));
        let bytes = |side| rate(side).iter().map(|rate| rate * row_bytes).collect::<Vec<f64>>();
        let of_limit = |side, limit| Ratio::paired(&bytes(side), samples.limit(limit));
        // One that was not run has no ratio.
        let at_least = |name: &str, wanted, ratio| Bar::at_least(name, wanted, ratio);
        let bars = match over_tcp {
            false => vec![
                at_least("row views: throughput over Flight's", 12.0, faster(Side::Views, Side::Flight)),
                at_least("Arrow batches: throughput over Flight's", 4.0, faster(Side::Batches, Side::Flight)),
                at_least("Arrow batches: throughput over Flight's, the goal", 8.0, faster(Side::Batches, Side::Flight)),
                at_least("Arrow batches: Flight's CPU a row over ours, both processes", 4.0, {
                    cheaper(Side::Batches, Side::Flight)
                }),
            ],
            true => vec![
                at_least("row views: bytes over a plain write and read's", 0.9, of_limit(Side::Views, Limit::Loopback)),
                at_least("row views: throughput over Flight's", 3.0, faster(Side::Views, Side::Flight)),
                at_least("row views: throughput over pyarrow's Flight's", 1.5, faster(Side::Views, Side::PyArrow)),
                at_least("Arrow batches: throughput over Flight's", 1.0, faster(Side::Batches, Side::Flight)),
                at_least(
                    "Arrow batches: throughput over pyarrow's Flight's",
                    1.0,
                    faster(Side::Batches, Side::PyArrow),
                ),
                at_least("row views: Flight's CPU a row over ours", 1.0, cheaper(Side::Views, Side::Flight)),
                at_least("row views: pyarrow's CPU a row over ours", 1.0, cheaper(Side::Views, Side::PyArrow)),
                at_least("Arrow batches: Flight's CPU a row over ours", 1.0, cheaper(Side::Batches, Side::Flight)),
                at_least("Arrow batches: pyarrow's CPU a row over ours", 1.0, cheaper(Side::Batches, Side::PyArrow)),
            ],
        };
        let beside = |name: &str, ratio| Beside { name: name.to_owned(), ratio };
        let beside = vec![
            beside("row views: throughput over the tuned Flight's", faster(Side::Views, Side::Tuned)),
            beside("Arrow batches: throughput over the tuned Flight's", faster(Side::Batches, Side::Tuned)),
            beside("Arrow batches: the tuned Flight's CPU a row over ours", cheaper(Side::Batches, Side::Tuned)),
            beside("the tuned Flight: throughput over Flight's as it comes", faster(Side::Tuned, Side::Flight)),
            beside("row views: share of their limit", of_limit(Side::Views, Limit::Rows)),
            beside("Arrow batches: share of their limit", of_limit(Side::Batches, Limit::Batches)),
            beside("Flight as it comes: share of its limit", of_limit(Side::Flight, Limit::Loopback)),
            beside("the tuned Flight: share of its limit", of_limit(Side::Tuned, Limit::Loopback)),
            beside("row views: throughput with tags over that without", faster(Side::Tagged, Side::Views)),
            beside("row views: CPU a row with tags over that without", cheaper(Side::Views, Side::Tagged)),
            beside("row views with tags: throughput over Flight's", faster(Side::Tagged, Side::Flight)),
            beside("pyarrow's Flight: throughput over Flight's as it comes", faster(Side::PyArrow, Side::Flight)),
            beside("row views' limit over Flight as it comes", {
                Ratio::paired(samples.limit(Limit::Rows), &bytes(Side::Flight))
            }),
            beside("Arrow batches' limit over Flight as it comes", {
                Ratio::paired(samples.limit(Limit::Batches), &bytes(Side::Flight))
            }),
        ];
        let rounds = samples.of(Side::Views).len();
        Self { rows, scale, rounds, row_bytes, sides: sides.collect(), limits: limits.collect(), bars, beside }
    }

    /// Tables for people.
    pub fn print(&self) {
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
