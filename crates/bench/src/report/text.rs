//! The table for the terminal.

use super::model::{DISTURBED_SHARE, MODES, Report, Run, WORKLOADS};
use crate::measure::Spread;
use std::fmt::Write;

/// What was measured as a table, then the bars, the three sentences and the four commands.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write(report, &mut out);
    out
}

fn write(report: &Report, out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        "{:<11} {:<8} {:>9} {:>16} {:>8} {:>8} {:>8}  {:<22} verified",
        "workload", "mode", "Mrows/s", "GB/s", "server", "polling", "client", "pages sent as"
    )?;
    writeln!(out, "{:<11} {:<8} {:>9} {:>16} {:>8} {:>8} {:>8}", "", "", "", "", "ns/row", "ns/row", "ns/row")?;
    for workload in WORKLOADS {
        for mode in MODES {
            if let Some(run) = report.run(workload, mode) {
                line(out, run)?;
            }
        }
        if let Some(run) = report.socket(workload) {
            line(out, run)?;
        }
        writeln!(out)?;
    }
    let limit = report.limits.best_chunked();
    let name = limit.map_or("", |limit| limit.kernel.as_str());
    writeln!(
        out,
        "limit: {:.2} GB/s copying in chunks of {} KiB into a ring of {} KiB, every row read ({name}); \
         {:.2} GB/s in one piece",
        report.memcpy_bytes_per_s / 1e9,
        report.limits.chunk_bytes >> 10,
        report.limits.ring_bytes >> 10,
        report.limits.best_once().map_or(0.0, |limit| limit.bytes_per_s.median) / 1e9
    )?;
    for bar in &report.bars {
        let measured = bar.ratio.map_or("–".to_owned(), |r| format!("{:.2} [{:.2}, {:.2}]", r.median, r.low, r.high));
        writeln!(out, "bar: {:<52} ≥ {:<5} {:<20} {}", bar.name, bar.wanted, measured, bar.verdict.text())?;
    }
    let checked = &report.verification;
    writeln!(
        out,
        "verified: {} scans, {} rows, {} of them updated and {} changed while scanned; {} violations",
        checked.scans,
        grouped(checked.rows as u64),
        grouped(checked.updated_rows as u64),
        grouped(checked.contended_rows as u64),
        checked.violations
    )?;
    for violation in &checked.first {
        writeln!(out, "  {violation}")?;
    }
    if report.others_share > DISTURBED_SHARE {
        let percent = report.others_share * 100.0;
        writeln!(
            out,
            "disturbed: other programs took {percent:.0} % of the cores' time; figures are lower than they could be"
        )?;
    }
    writeln!(out)?;
    for sentence in &report.summary {
        writeln!(out, "{sentence}")?;
    }
    writeln!(out, "\nThe same with your own file:\n")?;
    for command in &report.commands {
        writeln!(out, "    {command}")?;
    }
    Ok(())
}

fn line(out: &mut String, run: &Run) -> std::fmt::Result {
    let Spread { median, quarter_low, quarter_high, .. } = run.spread.bytes_per_s;
    let ways = MODES.into_iter().zip(run.chosen.parts());
    let ways: Vec<_> = ways.filter(|(_, n)| *n > 0).map(|(way, n)| format!("{n} {way}")).collect();
    let verified = match (run.verified, run.mode.as_str()) {
        (true, _) => "yes",
        (false, "socket") => "",
        (false, _) => "NO",
    };
    writeln!(
        out,
        "{:<11} {:<8} {:>9.2} {:>16} {:>8.1} {:>8.1} {:>8.1}  {:<22} {verified}",
        run.workload,
        run.mode,
        run.rows_per_s / 1e6,
        format!("{:.2} ({:.2}–{:.2})", median / 1e9, quarter_low / 1e9, quarter_high / 1e9),
        run.server_work_ns_per_row(),
        run.server_poll_ns_per_row,
        run.client_cpu_ns_per_row,
        ways.join(", ")
    )
}

/// A number with commas.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::sample::report;

    #[test]
    fn every_run_has_a_line_and_the_end_is_what_to_do_next() {
        let report = report();
        let text = text(&report);
        let lines = |word: &str| text.lines().filter(|line| line.starts_with(word)).count();
        assert_eq!((lines("full"), lines("range"), lines("projection"), lines("hot")), (6, 6, 6, 5));
        assert!(text.contains("limit: 8.83 GB/s") && !text.contains("NO"));
        assert!(text.contains("disturbed: other programs took 12 %"));
        assert!(text.trim_end().ends_with(report.commands[3].as_str()));
    }

    #[test]
    fn a_broken_contract_is_shouted() {
        let mut report = report();
        report.runs[0].verified = false;
        report.verification.first.push("row 7 came twice".into());
        let text = text(&report);
        assert!(text.contains("NO") && text.contains("row 7 came twice"));
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1000, 600_572, 1_234_567].map(grouped), ["0", "999", "1,000", "600,572", "1,234,567"]);
    }
}
