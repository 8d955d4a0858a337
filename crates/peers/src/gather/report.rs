//! What `gather` measured: as JSON, and as tables for people.

use overside_bench::figures::Sample;
use overside_bench::measure::{Bar, Spread, best_of};
use serde::Serialize;

use crate::bars::Compared;

use super::program::Library;
use super::{Cell, Side, TRANSPORTS, Who};

/// Everything that was measured.
#[derive(Serialize)]
pub struct Report {
    region_bytes: usize,
    rounds: usize,
    cells: Vec<CellReport>,
    bars: Vec<Bar>,
    /// What is not here, and why.
    skipped: Vec<String>,
}

#[derive(Serialize)]
struct CellReport {
    record_bytes: usize,
    records_a_message: usize,
    sides: Vec<SideReport>,
}

#[derive(Serialize)]
struct SideReport {
    who: &'static str,
    over: &'static str,
    way: &'static str,
    /// Gather entries that a message of theirs may have; more records are sent in more messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<usize>,
    bytes_per_s: Spread,
    sender_cpu_ns_per_byte: f64,
    receiver_cpu_ns_per_byte: f64,
}

impl Report {
    pub fn new(cells: &[Cell], region_bytes: usize, rounds: usize, skipped: Vec<String>) -> Report {
        let bars = cells.iter().flat_map(bars).collect();
        Report { region_bytes, rounds, cells: cells.iter().map(CellReport::new).collect(), bars, skipped }
    }
}

impl Compared for Report {
    const FIGURE: &str = "peers-gather";

    fn bars(&self) -> &[Bar] {
        &self.bars
    }

    fn print(&self) {
        let mebibytes = self.region_bytes >> 20;
        println!(
            "records scattered over {mebibytes} MiB, a receiver in another process, {} rounds; medians",
            self.rounds
        );
        for cell in &self.cells {
            println!("\nrecords of {} B, {} a message", cell.record_bytes, cell.records_a_message);
            println!("{:36} {:>8} {:>15} {:>16} {:>16}", "", "GB/s", "quartiles", "sender ns/B", "receiver ns/B");
            for side in &cell.sides {
                let rate = side.bytes_per_s;
                let limit = side.entries.filter(|entries| *entries < cell.records_a_message);
                let limit = limit.map_or(String::new(), |entries| format!(", {entries} at a time"));
                println!(
                    "{:36} {:>8.3} {:>15} {:>16.3} {:>16.3}",
                    format!("{} {}, {}{limit}", side.who, side.over, side.way),
                    rate.median / 1e9,
                    format!("{:.3}–{:.3}", rate.quarter_low / 1e9, rate.quarter_high / 1e9),
                    side.sender_cpu_ns_per_byte,
                    side.receiver_cpu_ns_per_byte,
                );
            }
        }
        crate::bars::print(&self.bars);
        for skipped in &self.skipped {
            println!("not measured: {skipped}");
        }
    }
}

impl CellReport {
    fn new(cell: &Cell) -> CellReport {
        let median = |side: &Side, figure: fn(&Sample) -> f64| Spread::of(&of(side, figure)).median;
        let side = |side: &Side| SideReport {
            who: side.who.name(),
            over: side.over,
            way: side.way,
            entries: side.entries,
            bytes_per_s: Spread::of(&of(side, Sample::bytes_per_s)),
            sender_cpu_ns_per_byte: median(side, Sample::sender_per_byte),
            receiver_cpu_ns_per_byte: median(side, Sample::receiver_per_byte),
        };
        CellReport {
            record_bytes: cell.record_bytes,
            records_a_message: cell.per_message,
            sides: cell.sides.iter().map(side).collect(),
        }
    }
}

fn of(side: &Side, figure: fn(&Sample) -> f64) -> Vec<f64> {
    side.rounds.iter().map(figure).collect()
}

/// What Overside chooses by itself over the better of their two ways, in rounds in which that was
/// not chosen: for messages that are declared, and for messages that are sent one by one.
fn bars(cell: &Cell) -> Vec<Bar> {
    let mut bars = Vec::new();
    for (over, way) in TRANSPORTS.into_iter().flat_map(|over| ["declared", "auto"].map(|way| (over, way))) {
        let here: Vec<&Side> = cell.sides.iter().filter(|side| side.over == over).collect();
        let auto = here.iter().find(|side| side.who == Who::Overside && side.way == way);
        for library in Library::ALL {
            let theirs = here.iter().filter(|side| side.who == Who::Other(library));
            let theirs: Vec<Vec<f64>> = theirs.map(|side| of(side, Sample::bytes_per_s)).collect();
            let ratio = auto.and_then(|auto| best_of(&of(auto, Sample::bytes_per_s), &theirs)).map(|best| best.ratio);
            let Cell { record_bytes, per_message, .. } = cell;
            let name = format!("{over}, {per_message} x {record_bytes} B: {way} over {}", library.name());
            bars.push(Bar::at_least(name, 1.0, ratio));
        }
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(who: Who, over: &'static str, way: &'static str, rates: [u64; 4]) -> Side {
        let rounds = rates.map(|bytes| Sample { bytes, wall_ns: 1, ..Sample::default() }).to_vec();
        Side { who, over, way, entries: None, rounds }
    }

    #[test]
    fn a_bar_is_held_against_their_better_way_over_the_same_transport() {
        let ucx = Who::Other(Library::Ucx);
        let sides = vec![
            side(Who::Overside, "shm", "auto", [6; 4]),
            side(Who::Overside, "shm", "copy-out", [100; 4]),
            side(ucx, "shm", "zero-copy", [3; 4]),
            side(ucx, "shm", "copy-out", [4; 4]),
            side(ucx, "tcp", "copy-out", [60; 4]),
        ];
        let bars = bars(&Cell { record_bytes: 128, per_message: 4, sides });
        let of =
            |name: &str| bars.iter().find(|bar| bar.name.contains(name)).and_then(|bar| bar.ratio).map(|r| r.median);
        assert_eq!(of("shm, 4 x 128 B: auto over UCX"), Some(1.5));
        assert_eq!(of("shm, 4 x 128 B: auto over libfabric"), None);
        assert_eq!(of("tcp, 4 x 128 B: auto over UCX"), None);
    }
}
