//! The report as data; serialised, it is what `--json` prints.

use super::Machine;
use crate::{
    limits::{CopyLimits, PingPong},
    measure::{Bar, Spread},
};
use serde::Serialize;

/// Everything that a demo found out. Rates are per second, CPU times in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Rows of the table.
    pub rows: u64,
    /// TPC-H scale factor.
    pub scale: f64,
    /// Whether every scan kept its contract.
    pub verified: bool,
    /// The limit for scans: the fastest kernel in chunks of a page into a ring, every row read.
    pub memcpy_bytes_per_s: f64,
    /// Workloads by mode, undisturbed.
    pub runs: Vec<Run>,
    /// Packed and sent over a Unix socket, by workload.
    pub baseline: Vec<Run>,
    /// Full scans after a number of fresh updates to every page, by mode.
    pub fresh_updates: Vec<Run>,
    /// Workloads by mode while another process updates rows.
    pub while_updating: Vec<Run>,
    /// Rows updated per second meanwhile.
    pub updates_per_s: u64,
    /// What each way costs, as the planner has it, by workload.
    pub prices: Vec<Prices>,
    /// Bars and whether they are met.
    pub bars: Vec<Bar>,
    /// The kernel's share of the CPU time during the quiet rounds: of the
    /// server's and of the client's.
    pub kernel_share: [f64; 2],
    /// The share of the cores' time that went to other programs and the hypervisor meanwhile,
    /// 0 to 1.
    pub others_share: f64,
    /// What was verified.
    pub verification: Verification,
    /// Every kernel, both ways.
    pub limits: CopyLimits,
    /// A spinning round trip; none on a single core.
    pub ping_pong: Option<PingPong>,
    /// Where.
    pub machine: Machine,
    /// Bytes of all rows as row views.
    pub table_bytes: u64,
    /// Leaf pages of the table.
    pub pages: u64,
    /// How many parts the table is scanned in, one a round; one for a table of usual size.
    pub parts: usize,
    /// Rounds in which the sides alternated.
    pub rounds: usize,
    /// What `auto` chose, why, and what it saved.
    pub summary: [String; 3],
    /// The same with a file of the reader's own.
    pub commands: [String; 4],
    /// From start to the report, in seconds.
    pub took_s: f64,
}

/// A workload in a mode: medians over the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// `full`, `range`, `projection` or `hot`.
    pub workload: String,
    /// `copy`, `gather`, `delta`, `in-place` or `auto`; `socket` for the baseline.
    pub mode: String,
    /// Fresh updates to every page before the scan.
    pub updates_per_page: u32,
    /// Rows delivered per second.
    pub rows_per_s: f64,
    /// Bytes of delivered rows per second, without the pages' slack.
    pub bytes_per_s: f64,
    /// CPU of the server for a row.
    pub server_cpu_ns_per_row: f64,
    /// Of it, spent polling for nothing.
    pub server_poll_ns_per_row: f64,
    /// CPU of the client for a row; what it waits for the server is in it.
    pub client_cpu_ns_per_row: f64,
    /// Bytes the server packed for a scan.
    pub server_bytes_copied: u64,
    /// In which way the pages of a scan were sent.
    pub chosen: Chosen,
    /// Whether every scan of this line that was checked kept its contract.
    pub verified: bool,
    /// Rows of one scan.
    pub rows: u64,
    /// Bytes of one scan's rows.
    pub bytes: u64,
    /// Medians with their quartiles.
    pub spread: Spreads,
    /// Rows per second by round, for comparing in pairs.
    #[serde(skip)]
    pub by_round: Vec<f64>,
    /// CPU of the server for a row by round, for comparing in pairs.
    #[serde(skip)]
    pub server_by_round: Vec<f64>,
}

/// The spread of each figure of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Spreads {
    /// Of `rows_per_s`.
    pub rows_per_s: Spread,
    /// Of `bytes_per_s`.
    pub bytes_per_s: Spread,
    /// CPU of the server for a byte of delivered rows, without empty polling.
    pub server_work_ns_per_byte: Spread,
    /// CPU of the client for a byte of delivered rows.
    pub client_cpu_ns_per_byte: Spread,
}

/// Pages by the way they were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Chosen {
    /// Packed into a transmit buffer.
    pub copy: u64,
    /// Sent from where its records lie, by a gather list.
    pub gather: u64,
    /// Base page and deltas as they lie, merged by the client.
    pub delta: u64,
    /// As these, but lent, and read by the client where they lie.
    pub in_place: u64,
}

impl Chosen {
    /// Of pages by way, in the order of the modes.
    pub fn of([copy, gather, delta, in_place]: [u64; 4]) -> Chosen {
        Chosen { copy, gather, delta, in_place }
    }

    /// All pages.
    pub fn pages(&self) -> u64 {
        self.parts().iter().sum()
    }

    /// Pages by way, in the order of the modes.
    pub fn parts(&self) -> [u64; 4] {
        [self.copy, self.gather, self.delta, self.in_place]
    }
}

/// What the planner expects a page of a workload to cost: nanoseconds of the slower side, in the
/// order copy, gather, delta, in-place; none for a way that cannot be taken.
#[derive(Clone, Debug, Serialize)]
pub struct Prices {
    /// The workload.
    pub workload: String,
    /// By way.
    pub ns: [Option<f64>; 4],
}

/// What was checked against the generated data and the log of updates.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verification {
    /// Scans checked row by row.
    pub scans: usize,
    /// Timed scans whose rows, bytes and sum were held against what they must come to.
    pub timed_scans: usize,
    /// Rows checked.
    pub rows: usize,
    /// Of these, rows that had been updated.
    pub updated_rows: usize,
    /// Of these, rows that changed while they were scanned.
    pub contended_rows: usize,
    /// Updates in the log.
    pub updates: usize,
    /// Violations found.
    pub violations: usize,
    /// The first few, in words.
    pub first: Vec<String>,
}

/// One round of a run, as measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Scans in this round, one after another.
    pub scans: u32,
    /// Rows delivered by all of them.
    pub rows: u64,
    /// Bytes of these rows.
    pub bytes: u64,
    /// Time they took.
    pub wall_ns: u64,
    /// CPU time of the server.
    pub server_cpu_ns: u64,
    /// Of it, spent polling for nothing.
    pub server_poll_ns: u64,
    /// CPU time of the client.
    pub client_cpu_ns: u64,
    /// Bytes the server packed.
    pub server_bytes_copied: u64,
    /// Pages by way.
    pub chosen: Chosen,
}

impl Sample {
    /// Bytes of delivered rows per second.
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 * 1e9 / self.wall_ns.max(1) as f64
    }

    /// CPU time of the server without what it spent polling for nothing.
    pub fn server_work_ns(&self) -> u64 {
        self.server_cpu_ns.saturating_sub(self.server_poll_ns)
    }
}

impl Run {
    /// Medians of `samples`, one a round.
    pub fn of(workload: &str, mode: &str, updates_per_page: u32, samples: &[Sample]) -> Run {
        let each = |figure: &dyn Fn(&Sample) -> f64| samples.iter().map(figure).collect::<Vec<_>>();
        let per = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let by_round = each(&|s| per(s.rows, s.wall_ns) * 1e9);
        let median = |figure: &dyn Fn(&Sample) -> f64| Spread::of(&each(figure)).median;
        let scans = |part: u64, sample: &Sample| part / u64::from(sample.scans.max(1));
        let last = samples.last().copied().unwrap_or_default();
        let spread = Spreads {
            rows_per_s: Spread::of(&by_round),
            bytes_per_s: Spread::of(&each(&|s| per(s.bytes, s.wall_ns) * 1e9)),
            server_work_ns_per_byte: Spread::of(&each(&|s| per(s.server_work_ns(), s.bytes))),
            client_cpu_ns_per_byte: Spread::of(&each(&|s| per(s.client_cpu_ns, s.bytes))),
        };
        Run {
            workload: workload.to_owned(),
            mode: mode.to_owned(),
            updates_per_page,
            rows_per_s: spread.rows_per_s.median,
            bytes_per_s: spread.bytes_per_s.median,
            server_cpu_ns_per_row: median(&|s| per(s.server_cpu_ns, s.rows)),
            server_poll_ns_per_row: median(&|s| per(s.server_poll_ns, s.rows)),
            client_cpu_ns_per_row: median(&|s| per(s.client_cpu_ns, s.rows)),
            server_bytes_copied: scans(last.server_bytes_copied, &last),
            chosen: Chosen::of(last.chosen.parts().map(|pages| scans(pages, &last))),
            verified: false,
            rows: scans(last.rows, &last),
            bytes: scans(last.bytes, &last),
            spread,
            by_round,
            server_by_round: each(&|s| per(s.server_cpu_ns, s.rows)),
        }
    }
}

impl Run {
    /// CPU of the server for a row without empty polling.
    pub fn server_work_ns_per_row(&self) -> f64 {
        (self.server_cpu_ns_per_row - self.server_poll_ns_per_row).max(0.0)
    }
}

impl Report {
    /// The run of `workload` in `mode`.
    pub fn run(&self, workload: &str, mode: &str) -> Option<&Run> {
        let is = |run: &&Run| run.workload == workload && run.mode == mode;
        self.runs.iter().find(is)
    }

    /// The baseline of `workload`.
    pub fn socket(&self, workload: &str) -> Option<&Run> {
        self.baseline.iter().find(|run| run.workload == workload)
    }
}

/// From this share of the cores' time on, others are said to have disturbed the figures.
pub(super) const DISTURBED_SHARE: f64 = 0.05;
/// The workloads in the order of the report.
pub(super) const WORKLOADS: [&str; 4] = ["full", "range", "projection", "hot"];
/// The modes in the order of the report.
pub(super) const MODES: [&str; 5] = ["copy", "gather", "delta", "in-place", "auto"];

#[cfg(test)]
pub(super) mod sample {
    use super::*;
    use crate::{limits::CopyLimit, measure::Ratio};

    /// A report with figures that nobody measured, for looking at its form.
    pub(crate) fn report() -> Report {
        let run = |workload: &str, mode: &str, updates: u32, speed: f64| {
            let samples: Vec<_> = (0..9u64)
                .map(|round| Sample {
                    scans: 2,
                    rows: 1_201_144,
                    bytes: 226_767_546,
                    wall_ns: ((28e6 / speed) as u64) * (97 + round) / 100,
                    server_cpu_ns: (24e6 / speed) as u64 + round * 40_000,
                    server_poll_ns: (20e6 / speed) as u64,
                    client_cpu_ns: (27e6 / speed) as u64 + round * 300_000,
                    server_bytes_copied: if mode == "copy" { 226_767_546 } else { 0 },
                    chosen: match (mode, workload) {
                        ("copy", _) => Chosen { copy: 14_260, ..Chosen::default() },
                        ("auto", "hot") => Chosen { copy: 4_200, gather: 260, delta: 9_000, in_place: 800 },
                        ("auto", "full") => Chosen { delta: 14_260, ..Chosen::default() },
                        ("in-place", _) => Chosen { in_place: 14_260, ..Chosen::default() },
                        ("auto", _) => Chosen { copy: 9_260, gather: 5_000, ..Chosen::default() },
                        ("gather", _) => Chosen { gather: 14_260, ..Chosen::default() },
                        _ => Chosen { delta: 14_260, ..Chosen::default() },
                    },
                })
                .collect();
            Run { verified: true, ..Run::of(workload, mode, updates, &samples) }
        };
        let speeds = [
            [0.5, 0.8, 1.0, 1.3, 0.99],
            [0.4, 0.6, 0.9, 1.1, 0.91],
            [1.2, 0.3, 0.7, 1.3, 1.19],
            [0.5, 0.4, 0.8, 1.0, 0.8],
        ];
        let all = || {
            WORKLOADS.iter().zip(speeds).flat_map(|(workload, speeds)| {
                MODES.iter().zip(speeds).map(move |(mode, speed)| (*workload, *mode, speed))
            })
        };
        let limit = |kernel: &str, speed: f64| CopyLimit {
            kernel: kernel.into(),
            bytes_per_s: Spread::of(&[speed * 0.97e9, speed * 1e9, speed * 1.02e9]),
            rounds: vec![],
        };
        let ratio = |median: f64| Some(Ratio { median, low: median * 0.96, high: median * 1.03, rounds: 9 });
        Report {
            rows: 600_572,
            scale: 0.1,
            verified: true,
            memcpy_bytes_per_s: 8.83e9,
            runs: all().map(|(w, m, speed)| run(w, m, if w == "hot" { 4 } else { 0 }, speed)).collect(),
            baseline: ["full", "range", "projection"].iter().map(|w| run(w, "socket", 0, 0.1)).collect(),
            fresh_updates: [1, 8]
                .iter()
                .flat_map(|n| {
                    MODES.iter().zip([0.5, 0.45, 0.9, 1.0, 0.9]).map(move |(m, s)| (*n, *m, s - 0.01 * f64::from(*n)))
                })
                .map(|(n, m, speed)| run("hot", m, n, speed))
                .collect(),
            while_updating: all().map(|(w, m, speed)| run(w, m, 0, speed * 0.8)).collect(),
            updates_per_s: 20_000,
            prices: WORKLOADS
                .iter()
                .map(|workload| Prices {
                    workload: (*workload).into(),
                    ns: [Some(4210.0), (*workload != "hot").then_some(2960.0), Some(2010.0), None],
                })
                .collect(),
            bars: vec![
                Bar::at_least("auto over the best mode, full", 0.95, ratio(0.99)),
                Bar::at_least("auto over the best mode, projection", 0.95, ratio(0.94)),
                Bar::at_least("full scan over the copy limit in chunks", 0.8, ratio(0.71)),
                Bar::at_least("row views over Arrow Flight", 12.0, None),
            ],
            kernel_share: [0.02, 0.03],
            others_share: 0.12,
            verification: Verification {
                scans: 48,
                timed_scans: 400,
                rows: 20_100_000,
                updated_rows: 410_000,
                contended_rows: 3_211,
                updates: 130_000,
                violations: 0,
                first: vec![],
            },
            limits: CopyLimits {
                once: vec![limit("glibc memcpy", 11.9), limit("AVX2", 6.4)],
                chunked: vec![limit("glibc memcpy", 8.4), limit("rep movsb", 8.83), limit("AVX2", 7.2)],
                chunk_bytes: 16 << 10,
                ring_bytes: 1 << 20,
            },
            ping_pong: Some(PingPong { round_trip_ns: Spread::of(&[273.0]) }),
            machine: Machine::here(),
            table_bytes: 113_383_773,
            pages: 7_130,
            parts: 1,
            rounds: 9,
            summary: [
                "auto sent every page of full as base page and deltas.".into(),
                "A page costs 2.0 µs that way and 4.2 µs packed.".into(),
                "It saved 52 % of the time and 88 % of the server's CPU.".into(),
            ],
            commands: [
                "overside serve --listen shm:demo".into(),
                "overside load shm:demo mine FILE.parquet --key ID".into(),
                "overside scan shm:demo mine --mode auto --json".into(),
                "overside scan shm:demo mine --mode copy --out copy.arrow".into(),
            ],
            took_s: 41.2,
        }
    }

    #[test]
    fn the_json_has_the_promised_fields() {
        let json = serde_json::to_value(report()).unwrap();
        for field in ["rows", "scale", "verified", "memcpy_bytes_per_s"] {
            assert!(!json[field].is_null(), "{field}");
        }
        let run = &json["runs"][4];
        assert_eq!((run["workload"].as_str(), run["mode"].as_str()), (Some("full"), Some("auto")));
        for field in
            ["rows_per_s", "bytes_per_s", "server_cpu_ns_per_row", "client_cpu_ns_per_row", "server_bytes_copied"]
        {
            assert!(run[field].is_number(), "{field}");
        }
        for way in ["copy", "gather", "delta", "in_place"] {
            assert!(run["chosen"][way].is_u64(), "{way}");
        }
        assert_eq!(run["verified"].as_bool(), Some(true));
    }

    #[test]
    fn figures_are_per_scan_and_per_row() {
        let report = report();
        let full = report.run("full", "delta").unwrap();
        assert_eq!((full.rows, full.bytes, full.chosen.delta), (600_572, 113_383_773, 7_130));
        assert!((full.bytes_per_s / full.rows_per_s - 188.8).abs() < 0.1);
        assert!((full.client_cpu_ns_per_row / full.spread.client_cpu_ns_per_byte.median - 188.8).abs() < 0.1);
        assert_eq!(full.by_round.len(), 9);
    }
}
