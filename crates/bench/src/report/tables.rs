//! The tables of the page, ruled as in print.

use super::Machine;
use super::model::{MODES, Report, Run, WORKLOADS};
use super::text::grouped;
use crate::{limits::CopyLimit, measure::Spread, svg::escape};

/// Where it was measured, and how fast two of its cores talk.
pub(super) fn machine(report: &Report) -> String {
    let ping = report.ping_pong.as_ref().map_or("not measured".into(), |ping| {
        format!("{:.0} ns a spinning round trip between two cores", ping.round_trip_ns.median)
    });
    let mut rows = machine_rows(&report.machine);
    rows.push(vec!["Latency limit".to_owned(), ping]);
    table(&["", ""], &rows, "machine")
}

/// Where it was measured.
pub fn machine_table(machine: &Machine) -> String {
    table(&["", ""], &machine_rows(machine), "machine")
}

fn machine_rows(machine: &Machine) -> Vec<Vec<String>> {
    let memory = format!("{:.0} GiB", machine.memory_bytes as f64 / (1u64 << 30) as f64);
    let cores = format!("{} ({} cores used)", machine.processor, machine.cores);
    let rows = [
        ("CPU", cores),
        ("Caches", machine.caches.clone()),
        ("RAM", memory),
        ("Kernel", format!("Linux {}", machine.kernel)),
        ("Huge pages for shared memory", machine.shared_huge_pages.clone()),
    ];
    rows.map(|(name, value)| vec![name.to_owned(), value]).to_vec()
}

/// Every run, with its spread.
pub(super) fn runs(report: &Report) -> String {
    let mut rows = Vec::new();
    for workload in WORKLOADS {
        let modes = MODES.iter().filter_map(|mode| report.run(workload, mode));
        for (at, run) in modes.chain(report.socket(workload)).enumerate() {
            let name = if at == 0 { workload } else { "" };
            rows.push(row(name, run));
        }
    }
    let head = [
        "workload",
        "mode",
        "Mrows/s",
        "GB/s",
        "quartiles",
        "server work",
        "polling",
        "client",
        "bytes packed",
        "verified",
    ];
    table(&head, &rows, "figures wide")
}

/// The same workloads while another process updates rows.
pub(super) fn while_updating(report: &Report) -> String {
    let mut rows = Vec::new();
    for run in &report.while_updating {
        let quiet = report.run(&run.workload, &run.mode).map_or(0.0, |quiet| quiet.rows_per_s);
        rows.push(vec![
            run.workload.clone(),
            run.mode.clone(),
            format!("{:.2}", run.rows_per_s / 1e6),
            format!("{:.2}", run.bytes_per_s / 1e9),
            if quiet > 0.0 { format!("{:.2} ×", run.rows_per_s / quiet) } else { "–".into() },
            verified(run).into(),
        ]);
    }
    table(&["workload", "mode", "Mrows/s", "GB/s", "of undisturbed", "verified"], &rows, "figures two")
}

/// What the planner expects each way to cost.
pub(super) fn prices(report: &Report) -> String {
    let mut rows = Vec::new();
    for prices in &report.prices {
        let least = prices.ns.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        let mut row = vec![prices.workload.clone()];
        row.extend(prices.ns.iter().map(|ns| match ns {
            None => "–".to_owned(),
            Some(ns) if *ns <= least => format!("{ns:.0} ←"),
            Some(ns) => format!("{ns:.0}"),
        }));
        let chosen = report.run(&prices.workload, "auto").map(|run| run.chosen.parts()).unwrap_or_default();
        row.extend(chosen.iter().map(|pages| grouped(*pages)));
        rows.push(row);
    }
    let head = ["workload", "copy", "gather", "delta", "in place", "pages copied", "gathered", "as deltas", "lent"];
    table(&head, &rows, "figures one")
}

/// The bars.
pub(super) fn bars(report: &Report) -> String {
    let row = |bar: &crate::measure::Bar| {
        let measured = bar.ratio.map_or("–".to_owned(), |r| format!("{:.2} [{:.2}, {:.2}]", r.median, r.low, r.high));
        vec![bar.name.clone(), format!("{}", bar.wanted), measured, bar.verdict.text().to_owned()]
    };
    let rows: Vec<_> = report.bars.iter().map(row).collect();
    table(&["bar", "at least", "measured [95 %]", ""], &rows, "figures one")
}

/// The kernels' speeds.
pub(super) fn limits(report: &Report) -> String {
    let speed = |limits: &[CopyLimit], kernel: &str| {
        let limit = limits.iter().find(|limit| limit.kernel == kernel);
        limit.map_or("–".to_owned(), |limit| spread(limit.bytes_per_s, 1e-9))
    };
    let row = |limit: &CopyLimit| {
        let once = speed(&report.limits.once, &limit.kernel);
        vec![limit.kernel.clone(), once, spread(limit.bytes_per_s, 1e-9)]
    };
    let rows: Vec<_> = report.limits.chunked.iter().map(row).collect();
    table(&["kernel", "one piece, GB/s", "in chunks and read, GB/s"], &rows, "figures one")
}

fn row(workload: &str, run: &Run) -> Vec<String> {
    let Spread { median, quarter_low, quarter_high, .. } = run.spread.bytes_per_s;
    let socket = run.mode == "socket";
    vec![
        workload.to_owned(),
        if socket { "write + read".into() } else { run.mode.clone() },
        format!("{:.2}", run.rows_per_s / 1e6),
        format!("{:.2}", median / 1e9),
        format!("{:.2}–{:.2}", quarter_low / 1e9, quarter_high / 1e9),
        format!("{:.1}", run.server_work_ns_per_row()),
        if socket { "–".into() } else { format!("{:.1}", run.server_poll_ns_per_row) },
        format!("{:.1}", run.client_cpu_ns_per_row),
        if socket { "all".into() } else { grouped(run.server_bytes_copied) },
        if socket { "–".into() } else { verified(run).into() },
    ]
}

fn verified(run: &Run) -> &'static str {
    if run.verified { "yes" } else { "NO" }
}

fn spread(spread: Spread, factor: f64) -> String {
    format!("{:.2} ({:.2}–{:.2})", spread.median * factor, spread.quarter_low * factor, spread.quarter_high * factor)
}

/// A table; a row whose first cell is not empty begins a block.
fn table(head: &[&str], rows: &[Vec<String>], class: &str) -> String {
    let mut out = format!("<table class=\"{class}\">");
    if head.iter().any(|cell| !cell.is_empty()) {
        let cells: String = head.iter().map(|cell| format!("<th>{}</th>", escape(cell))).collect();
        out.push_str(&format!("<thead><tr>{cells}</tr></thead>"));
    }
    out.push_str("<tbody>");
    for row in rows {
        let block = if row.first().is_some_and(|cell| !cell.is_empty()) { " class=\"block\"" } else { "" };
        let cells: String = row.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        out.push_str(&format!("<tr{block}>{cells}</tr>"));
    }
    out.push_str("</tbody></table>");
    out
}
