//! The text of the page, section by section, with the figures of this run in it.

use super::model::{DISTURBED_SHARE, MODES, Report, Run};
use super::{figures, tables, text::grouped};
use crate::{measure::Verdict, svg::escape};

/// Everything within the page.
pub(super) fn body(report: &Report) -> String {
    [
        head(report),
        setup(report),
        throughput(report),
        cpu(report),
        chosen(report),
        updates(report),
        checked(report),
        bars(report),
        own_file(report),
    ]
    .concat()
}

fn head(report: &Report) -> String {
    let summary = report.summary.iter().map(|sentence| escape(sentence)).collect::<Vec<_>>().join(" ");
    let summary = summary.replacen(" auto ", " <i>auto</i> ", 1);
    let summary =
        [" %", " ×", " µs"].iter().fold(summary, |text, unit| text.replace(unit, &unit.replace(' ', "&nbsp;")));
    let verdict = if report.verified {
        "Every scan that was checked kept its contract."
    } else {
        "<span class=\"bad\">At least one scan broke its contract; see below.</span>"
    };
    format!(
        "<h1>A Table in Memory, Scanned in Every Mode</h1>\
         <p class=\"by\">overside demo · TPC-H <i>lineitem</i> at scale factor {} · {} rows</p>\
         <p class=\"abstract\"><b>Abstract.</b> A server keeps the table in a lock-free Bw-tree in memory; another \
         process scans it over shared memory, in each of the ways that <i>To Copy or Not to Copy</i> compares: packed \
         into transmit buffers (copy), sent from where the records lie (gather), as base pages with their deltas \
         (delta), and as a planner chooses page by page (auto). {summary} {verdict}</p>",
        report.scale,
        grouped(report.rows)
    )
}

fn setup(report: &Report) -> String {
    let row_bytes = report.table_bytes / report.rows.max(1);
    let method = format!(
        "<p>The table has {} rows of {row_bytes} bytes on average, {:.0} MB, in {} leaf pages. Modes alternate within \
         {} rounds; figures are medians, whiskers and ranges are quartiles, ratios are taken within a round and come \
         with 95&nbsp;% bootstrap intervals. The consumer reads key, length and a byte of each cache line of every \
         row. Bytes are those of delivered row views, without the pages' slack. CPU time is the scheduler's account in \
         nanoseconds, of each process on its own. Verification and this report are not timed.</p>",
        grouped(report.rows),
        report.table_bytes as f64 / 1e6,
        grouped(report.pages),
        report.rounds
    );
    let large = match report.parts {
        ..=1 => String::new(),
        parts => format!(
            "<p>The table is large, so a round scans one of {parts} equal parts of it, each round another: <i>full</i> and \
             <i>projection</i> are scans of such a part, and <i>hot</i> is one of the first. Verification of pages at rest \
             checks every row once for each workload, in one of the modes. The line to beat and the limit keep the first \
             part alone, and send or copy as many rows of it.</p>"
        ),
    };
    let limit = format!(
        "<p>Two yardsticks are measured in the same run. The <i>limit</i> copies the same rows in chunks of {} KiB \
         into a ring of {} KiB that stays in the cache, by the fastest of several kernels, and reads every row as the \
         consumer does. The <i>line to beat</i> is what hand-written code would do: pack the rows one after another, \
         <code>write</code> 64 KiB pieces to a Unix socket and <code>read</code> them in the other process; its rows \
         lie packed already, with no index over them and no update to look out for.</p>",
        report.limits.chunk_bytes >> 10,
        report.limits.ring_bytes >> 10
    );
    let percent = report.others_share * 100.0;
    let disturbed = if report.others_share > DISTURBED_SHARE {
        format!(
            "<p class=\"bad\">Other programs and the hypervisor took {percent:.0}&nbsp;% of the cores' time meanwhile: the \
             figures are lower than this machine's.</p>"
        )
    } else {
        format!("<p>Other programs and the hypervisor took {percent:.0}&nbsp;% of the cores' time meanwhile.</p>")
    };
    format!(
        "<h2>1&ensp;Setup</h2>{method}{large}{}{disturbed}{limit}{}",
        figure_table(1, "The machine.", &tables::machine(report)),
        figure_table(2, "Limits for copies, from the same source, page-aligned.", &tables::limits(report)),
    )
}

fn throughput(report: &Report) -> String {
    let text = best(report, "full").map_or(String::new(), |(mode, run)| {
        let limit = run.bytes_per_s / report.memcpy_bytes_per_s.max(1.0) * 100.0;
        let socket = report.socket("full").map_or(String::new(), |socket| {
            format!(", {:.1} times what packing and writing to a socket reaches", run.rows_per_s / socket.rows_per_s.max(1.0))
        });
        format!(
            "<p>A full scan is fastest as <i>{mode}</i>: {:.1} million rows and {:.2} GB a second, {limit:.0}&nbsp;% of \
             the limit{socket}.</p>",
            run.rows_per_s / 1e6,
            run.bytes_per_s / 1e9
        )
    });
    let caption = "Throughput by mode. <i>full</i> is every row and column, <i>range</i> 1&nbsp;% of the key space at \
                   random places, <i>projection</i> three of the columns, <i>hot</i> a full scan with four fresh \
                   updates to every page. Bytes of a \
                   projection are those of its three columns. The socket is the hand-written line to beat.";
    format!(
        "<h2>2&ensp;Throughput</h2>{text}{}{}",
        figure(1, caption, &figures::throughput(report)),
        figure_table(
            3,
            "All runs. The CPU columns are in ns per row; polling is the server's for nothing, beside its work.",
            &tables::runs(report)
        ),
    )
}

fn cpu(report: &Report) -> String {
    let work = |mode: &str| report.run("full", mode).map(Run::server_work_ns_per_row);
    let text = work("delta").zip(work("copy")).map_or(String::new(), |(delta, copy)| {
        format!(
            "<p>Between processes of one host the receiver plays the NIC: it copies, from a read-only mapping of the \
             server's pages, straight into its own buffer. What a mode saves is therefore the server's time: in a full \
             scan a row costs it {copy:.1} ns when packed and {delta:.1} ns when base pages are sent as they lie. The \
             kernel's share was {:.0}&nbsp;% of the server's CPU and {:.0}&nbsp;% of the client's.</p>",
            report.kernel_share[0] * 100.0,
            report.kernel_share[1] * 100.0
        )
    });
    let charts = format!(
        "<div class=\"panel\">server</div>{}<div class=\"panel\">client</div>{}",
        figures::cpu(report, true),
        figures::cpu(report, false)
    );
    let caption = "CPU time per delivered byte by mode, of the server (above, without empty polling) and of the \
                   client (below, with what it waits). Note the logarithmic axes.";
    format!("<h2>3&ensp;CPU</h2>{text}{}", figure(2, caption, &charts))
}

fn chosen(report: &Report) -> String {
    let caption = "What <i>auto</i> chose, as shares of the pages of a scan.";
    let prices = "What the planner expects a page to cost in each way, in nanoseconds of the slower side (the least is \
                  marked), and how many pages of a scan <i>auto</i> then sent in it.";
    format!(
        "<h2>4&ensp;What <i>auto</i> chose, and why</h2><p>No size constant decides. The planner prices every way \
         that a page can take, with costs calibrated on this device, and takes the cheapest; its prices serve for the next pages of \
         the same kind while pricing anew confirms them.</p>{}{}",
        figure(3, caption, &figures::chosen(report)),
        figure_table(4, prices, &tables::prices(report)),
    )
}

fn updates(report: &Report) -> String {
    let fresh = "Throughput of a full scan over the number of fresh updates that every page got before it. Scans \
                 trigger no consolidation.";
    let mut out = format!("<h2>5&ensp;Updates</h2>{}", figure(4, fresh, &figures::fresh_updates(report)));
    if !report.while_updating.is_empty() {
        let disturbed = format!(
            "The same workloads while a third process updates {} rows a second at random places, and now and then \
             deletes one and brings it back. Three processes share {} cores here.",
            grouped(report.updates_per_s),
            report.machine.cores
        );
        out.push_str(&figure_table(5, &disturbed, &tables::while_updating(report)));
    }
    out
}

fn checked(report: &Report) -> String {
    let checked = &report.verification;
    let result = if checked.violations == 0 {
        "<span class=\"good\">No violation was found.</span>".to_owned()
    } else {
        let first: String = checked.first.iter().map(|text| format!("<li>{}</li>", escape(text))).collect();
        format!("<span class=\"bad\">{} violations were found:</span></p><ul>{first}</ul><p>", checked.violations)
    };
    format!(
        "<h2>6&ensp;What was verified</h2><p>A scan is no snapshot. It owes that every row present throughout comes \
         exactly once, in key order; that each returned row is whole; and that its version was current at some moment \
         between the scan's start and its end. The updating process stamps each write before and after with the host's \
         monotonic clock, every row carries its version and a checksum over all columns, and what came is held against \
         the generated data and that log: {} scans, {} rows, of which {} had been updated and {} changed while they \
         were scanned, against {} updates. Of the {} timed scans of pages at rest, rows, bytes and the sum of all that was read \
         are what they must come to. {result}</p>",
        checked.scans,
        grouped(checked.rows as u64),
        grouped(checked.updated_rows as u64),
        grouped(checked.contended_rows as u64),
        grouped(checked.updates as u64),
        grouped(checked.timed_scans as u64)
    )
}

fn bars(report: &Report) -> String {
    let missed = report.bars.iter().filter(|bar| bar.verdict == Verdict::Missed).count();
    let text = match missed {
        0 => "No bar that was measured is missed.".to_owned(),
        1 => "One bar is missed.".to_owned(),
        more => format!("{more} bars are missed."),
    };
    let caption = "Bars. A bar is missed when the 95&nbsp;% interval of the paired ratio excludes it; the best mode is \
                   chosen in rounds other than those it is compared in.";
    format!("<h2>7&ensp;Bars</h2><p>{text}</p>{}", figure_table(6, caption, &tables::bars(report)))
}

fn own_file(report: &Report) -> String {
    let commands = report.commands.iter().map(|command| escape(command)).collect::<Vec<_>>().join("\n");
    format!(
        "<h2>8&ensp;The same with your own file</h2><pre>{commands}</pre>\
         <p class=\"end\">Written by <code>overside demo</code> in {:.0} s, from generated data to this page. The \
         figures are of this machine; take ratios from them, not absolutes.</p>",
        report.took_s
    )
}

/// The fastest of the modes that a caller can ask for.
fn best<'a>(report: &'a Report, workload: &str) -> Option<(&'static str, &'a Run)> {
    let runs = MODES[..4].iter().filter_map(|mode| Some((*mode, report.run(workload, mode)?)));
    runs.max_by(|a, b| a.1.rows_per_s.total_cmp(&b.1.rows_per_s))
}

fn figure(number: usize, caption: &str, content: &str) -> String {
    format!("<figure>{content}<figcaption><b>Fig. {number}.</b> {caption}</figcaption></figure>")
}

fn figure_table(number: usize, caption: &str, content: &str) -> String {
    format!(
        "<figure class=\"table\"><figcaption><b>Table {number}.</b> {caption}</figcaption>\
         <div class=\"scroll\">{content}</div></figure>"
    )
}
