//! The figures, drawn as the paper draws its own.

use super::model::{MODES, Report, Run, WORKLOADS};
use crate::{
    measure::Spread,
    svg::{Bar, Bars, Group, Line, Lines, Reference, Scale, ShareBar, Shares},
};

/// Throughput by mode, per workload.
pub(super) fn throughput(report: &Report) -> String {
    let bar = |run: &Run| scaled(run.spread.bytes_per_s, 1e-9);
    Bars {
        value: "throughput (GB/s)".into(),
        scale: Scale::Linear,
        series: series(),
        groups: groups(report, &bar),
        references: vec![Reference {
            name: "memcpy in the same chunks".into(),
            value: report.memcpy_bytes_per_s / 1e9,
        }],
        size: (WIDTH, 270.0),
    }
    .draw()
}

/// CPU per byte by mode, of the server or of the client.
pub(super) fn cpu(report: &Report, server: bool) -> String {
    let bar = |run: &Run| {
        let spread = &run.spread;
        scaled(if server { spread.server_work_ns_per_byte } else { spread.client_cpu_ns_per_byte }, 1.0)
    };
    Bars {
        value: "CPU (ns per byte)".into(),
        scale: Scale::Log,
        series: series(),
        groups: groups(report, &bar),
        references: vec![],
        size: (WIDTH, 210.0),
    }
    .draw()
}

/// What `auto` chose, as shares of the pages.
pub(super) fn chosen(report: &Report) -> String {
    let bar = |workload: &str| {
        let run = report.run(workload, "auto")?;
        Some(ShareBar {
            name: workload.to_owned(),
            parts: run.chosen.parts().map(|pages| pages as f64).to_vec(),
            remark: format!("{} pages a scan", super::text::grouped(run.chosen.pages())),
        })
    };
    Shares {
        series: MODES[..4].iter().map(|mode| (*mode).to_owned()).collect(),
        bars: WORKLOADS.iter().filter_map(|workload| bar(workload)).collect(),
        width: WIDTH,
    }
    .draw()
}

/// Throughput of a full scan over the number of fresh updates to each page.
pub(super) fn fresh_updates(report: &Report) -> String {
    let mut places: Vec<u32> = report.fresh_updates.iter().map(|run| run.updates_per_page).collect();
    places.extend(report.runs.iter().filter(|run| run.workload == "hot").map(|run| run.updates_per_page));
    places.push(0);
    places.sort_unstable();
    places.dedup();
    let at = |mode: &str, updates: u32| {
        if updates == 0 {
            return report.run("full", mode);
        }
        let is = |run: &&Run| run.mode == mode && run.workload == "hot" && run.updates_per_page == updates;
        report.runs.iter().chain(&report.fresh_updates).find(is)
    };
    let line = |(series, mode): (usize, &&str)| Line {
        name: (*mode).to_owned(),
        series,
        points: places.iter().map(|n| at(mode, *n).and_then(|run| scaled(run.spread.bytes_per_s, 1e-9))).collect(),
    };
    Lines {
        value: "throughput (GB/s)".into(),
        scale: Scale::Linear,
        place: "fresh updates to every page before the scan".into(),
        places: places.iter().map(u32::to_string).collect(),
        lines: MODES.iter().enumerate().map(line).collect(),
        size: (WIDTH, 250.0),
    }
    .draw()
}

fn series() -> Vec<String> {
    let modes = MODES.iter().map(|mode| (*mode).to_owned());
    modes.chain(["write + read".to_owned()]).collect()
}

fn groups(report: &Report, bar: &dyn Fn(&Run) -> Option<Bar>) -> Vec<Group> {
    let group = |workload: &&str| Group {
        name: (*workload).to_owned(),
        bars: MODES
            .iter()
            .map(|mode| report.run(workload, mode).and_then(bar))
            .chain([report.socket(workload).and_then(bar)])
            .collect(),
    };
    WORKLOADS.iter().map(group).collect()
}

/// The median with its quartiles as whisker, if there is one.
fn scaled(spread: Spread, factor: f64) -> Option<Bar> {
    (spread.samples > 0).then_some(Bar {
        value: spread.median * factor,
        low: spread.quarter_low * factor,
        high: spread.quarter_high * factor,
    })
}

const WIDTH: f64 = 660.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::sample::report;

    #[test]
    fn every_measured_figure_is_drawn() {
        let report = report();
        let bars = |svg: &str| svg.matches("<rect").count() - svg.matches("height=\"9.0\"").count();
        // Five modes in four workloads, and the baseline in three.
        assert_eq!(bars(&throughput(&report)), 23);
        assert_eq!(bars(&cpu(&report, true)), 23);
        assert!(throughput(&report).contains("memcpy"));
        assert_ne!(cpu(&report, true), cpu(&report, false));
        // 0, 1, 4 and 8 updates in five modes.
        assert_eq!(fresh_updates(&report).matches("<circle").count(), 20);
        let shares = chosen(&report);
        assert!(shares.contains("7,130 pages a scan") && shares.contains(">100 %<"));
    }
}
